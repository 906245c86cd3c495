"""Descriptors of a task's segments as an Arrow stream: how the driver is told of them.

There may be 100,000 in a micro-batch. As values each takes 1 KB; in a stream, which is compressed,
a fifth of it, and it is read some at a time. They are in the order of their partitions' names, and
inside a partition as they were given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from sys import intern
from typing import Any

import orjson
import pyarrow as pa

from waybill.parking.packed import SegmentDescriptor

_ROWS = 2000
"""Descriptors that are read at a time."""
_SHARED = ("pipeline_id", "event_name", "stage", "error_type", "topic", "fingerprint")
_SCHEMA = pa.schema(
    [
        *[pa.field(name, pa.string()) for name in _SHARED],
        *[pa.field(name, pa.int64()) for name in ("position", "length", "count", "bytes")],
        pa.field("sha256", pa.string()),
        pa.field("first_event_at", pa.string()),
        pa.field("last_event_at", pa.string()),
        pa.field("kafka_partition", pa.int64()),
        pa.field("first_offset", pa.int64()),
        pa.field("last_message", pa.string()),
        pa.field("ids", pa.string()),
        pa.field("origins", pa.binary()),
    ]
)


def write_segments(segments: Sequence[SegmentDescriptor]) -> bytes:
    """Return descriptors, of which no event is known to be a copy yet, as a stream."""
    ordered = sorted(segments, key=lambda one: one.partition)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1))
    with pa.ipc.new_stream(sink, _SCHEMA, options=options) as writer:
        for start in range(0, len(ordered), _ROWS):
            writer.write_batch(_batch(ordered[start : start + _ROWS]))
    return bytes(sink.getvalue().to_pybytes())


def _batch(segments: Sequence[SegmentDescriptor]) -> pa.RecordBatch:
    columns = {name: [getattr(one, name) for one in segments] for name in _SCHEMA.names}
    columns["origins"] = [orjson.dumps(origins) for origins in columns["origins"]]
    return pa.RecordBatch.from_pydict(columns, _SCHEMA)


class SegmentStream:
    """Descriptors as ``write_segments`` wrote them; can be read more than once."""

    def __init__(self, stream: bytes) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[SegmentDescriptor]:
        """Yield them in order; 2,000 are in memory at a time. Cost: about 5 µs each."""
        with pa.ipc.open_stream(pa.py_buffer(self._stream)) as reader:
            for batch in reader:
                columns = batch.to_pydict()
                for name in _SHARED:
                    columns[name] = list(map(intern, columns[name]))
                columns["origins"] = [_origins(text) for text in columns["origins"]]
                yield from map(_descriptor, zip(*columns.values(), strict=True))


def _descriptor(row: tuple[Any, ...]) -> SegmentDescriptor:
    return SegmentDescriptor(**dict(zip(_SCHEMA.names, row, strict=True)))


def _origins(text: bytes) -> tuple[tuple[int, str, int], ...]:
    return tuple((minute, replay_id, number) for minute, replay_id, number in orjson.loads(text))
