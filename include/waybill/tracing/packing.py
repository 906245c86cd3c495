"""Spool files into objects: read, cut by hour, sort, encode. Pure but for reading.

They go into the fresh bucket, one object an hour; compaction cuts them by id later.

The same files in the same order give the same objects under the same keys, which is what lets a
shipment be sent again after a death.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from waybill.tracing.files import DamagedFileError, MakeBody
from waybill.tracing.layout import HOUR_US, Hour, object_key
from waybill.tracing.parquet import encode_sorted, read_whole
from waybill.tracing.trace import MEMORY_SCHEMA


@dataclass(frozen=True, slots=True)
class Part:
    """The traces that go into one object."""

    hour: Hour
    bucket: int
    """The fresh one."""
    rows: np.ndarray[tuple[int], np.dtype[np.int64]]
    """Positions in the shipment's table."""

    def key(self, ship_id: str) -> str:
        """Return the object's key."""
        return object_key(self.bucket, self.hour, ship_id)


@dataclass(frozen=True, slots=True)
class TraceCargo:
    """The traces of a shipment's files, and how they are cut."""

    table: pa.Table
    parts: tuple[Part, ...]

    @property
    def records(self) -> int:
        """How many traces there are."""
        return int(self.table.num_rows)

    def keys(self, ship_id: str) -> tuple[str, ...]:
        """Return every object key, in the order of the parts."""
        return tuple(part.key(ship_id) for part in self.parts)

    def objects(self, ship_id: str) -> Iterator[tuple[str, MakeBody]]:
        """Yield every object's key and what makes its bytes, in the order of the parts."""
        for part in self.parts:
            yield part.key(ship_id), partial(self.body, part)

    def body(self, part: Part) -> bytes:
        """Return one object's bytes: its traces sorted by event id, equal ids in file order.

        Cost: about 0.9 µs of CPU a trace.
        """
        return sorted_body(self.table.take(pa.array(part.rows)))


def sorted_body(table: pa.Table) -> bytes:
    """Return an object's bytes: the traces sorted by event id, equal ids in their order."""
    import pyarrow.compute as pc

    order = pc.sort_indices(table.column("event_id"))  # stable
    return bytes(encode_sorted(table.take(order)))


def load(paths: Sequence[Path], *, buckets: int) -> TraceCargo:
    """Read files, oldest first, and cut their traces by hour, for the fresh bucket.

    Raises:
        DamagedFileError: one of them is gone or cannot be read.

    Cost: 0.4 µs of CPU and 110 bytes of memory a trace.
    """
    tables = [_read(path) for path in paths]
    table = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    return TraceCargo(table, tuple(_cut(table, buckets)))


def _read(path: Path) -> pa.Table:
    try:
        return read_whole(path).cast(MEMORY_SCHEMA)
    except FileNotFoundError as error:
        raise DamagedFileError(path, "is gone from the disk") from error
    except (OSError, ValueError) as error:
        raise DamagedFileError(path, f"is damaged: {error}") from error


def _cut(table: pa.Table, buckets: int) -> Iterator[Part]:
    if not table.num_rows:
        return
    hours = table.column("at").cast(pa.int64()).to_numpy() // HOUR_US
    order = np.argsort(hours, kind="stable")
    ends = np.flatnonzero(np.diff(hours[order])) + 1
    for rows in np.split(order, ends):
        yield Part(Hour(int(hours[rows[0]])), buckets, rows)
