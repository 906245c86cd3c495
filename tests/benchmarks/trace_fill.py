"""Fills a store with traces as compaction leaves them: made by columns, written by bucket and hour.

Each event leaves five traces: a line of its primary key, ingestion, transformation, mapping and
destination. Ids are 32 random hexadecimal digits; batches hold 5,000 events; four million traces an
hour, however many hours that makes.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import numpy as np
import orjson
import pyarrow as pa

from waybill.storage import ObjectMissingError, ObjectStore
from waybill.tracing.layout import LAYOUT_KEY, NEW_BUCKETS, Hour, Layout, object_key
from waybill.tracing.parquet import encode_sorted
from waybill.tracing.trace import MEMORY_SCHEMA

A_EVENT = 5
AN_HOUR = 4_000_000
FIRST = Hour.of(datetime(2026, 1, 1, tzinfo=UTC))
BATCH_EVENTS = 5000
PIPELINES, NAMES = 20, 200
DONE_KEY = "filled.json"
PHASES = ["ingestion", "transformation", "mapping", "destination", "key"]
OUTCOMES = ["accepted", "passed", "passed", "delivered", "accepted"]
DELAYS_US = np.array([0, 1_500_000, 1_500_040, 9_000_000, 0])
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_POLYNOMIAL = 0xEDB88320
_DICTIONARY = pa.dictionary(pa.int32(), pa.string())


def fill(store: ObjectStore, traces: int, *, samples: int = 200) -> list[dict[str, object]]:
    """Make the traces, once; return some events: id, and the time of their ingestion in µs."""
    try:
        done = store.get(DONE_KEY)
    except ObjectMissingError:
        store.put(LAYOUT_KEY, Layout(NEW_BUCKETS).encode())
    else:
        known: list[dict[str, object]] = orjson.loads(done)
        return known
    hours = max(1, traces // AN_HOUR)
    found: list[dict[str, object]] = []
    with ThreadPoolExecutor(2) as pool:
        for number in range(hours):
            made = Made(number, traces // hours // A_EVENT)
            sent = [pool.submit(store.put, key, body) for key, body in made.objects()]
            for one in sent:
                one.result()
            found += made.some(-(-samples // hours))
    store.put(DONE_KEY, orjson.dumps(found))
    return found


class Made:
    """The events of one hour."""

    def __init__(self, number: int, events: int) -> None:
        self.hour = Hour(FIRST.number + number)
        chance = np.random.default_rng(number)
        self.ids = _hex(chance, events, 16)
        self.keys = np.concatenate(
            [
                np.broadcast_to(np.frombuffer(b"key-", np.uint8), (events, 4)),
                _hex(chance, events, 12),
            ],
            axis=1,
        )
        start_us = int(self.hour.start.timestamp()) * 1_000_000
        self.at_us = start_us + np.sort(chance.integers(0, 3_590_000_000, events))
        self.kind = chance.integers(0, PIPELINES * NAMES, events)
        self.number = number

    def some(self, count: int) -> list[dict[str, object]]:
        """Return some of the events."""
        step = max(1, len(self.ids) // count)
        return [
            {"id": self.ids[n].tobytes().decode(), "at_us": int(self.at_us[n])}
            for n in range(step // 2, len(self.ids), step)
        ][:count]

    def objects(self) -> Iterator[tuple[str, bytes]]:
        """Yield the object of each bucket."""
        events = _by_bucket(self.ids)
        keys = _by_bucket(self.keys)
        for bucket in range(NEW_BUCKETS):
            body = bytes(encode_sorted(self._table(events[bucket], keys[bucket])))
            yield object_key(bucket, self.hour, f"made{self.number:06d}_0000"), body

    def _table(self, events: np.ndarray, keys: np.ndarray) -> pa.Table:
        """Return the traces of events (four each) and the lines of keys; rows are positions."""
        rows = np.concatenate([np.repeat(events, 4), keys])
        phase = np.concatenate([np.tile(np.arange(4), len(events)), np.full(len(keys), 4)])
        of_key = phase == 4
        ids = [*_texts(np.repeat(self.ids[events], 4, axis=0)), *_texts(self.keys[keys])]
        batch, pipeline = rows // BATCH_EVENTS, self.kind[rows] // NAMES
        at = self.at_us[rows] + DELAYS_US[phase]
        refers = pa.concat_arrays([pa.nulls(4 * len(events), pa.string()), *_texts(self.ids[keys])])
        stage = np.minimum(phase, 3)
        columns = {
            "event_id": pa.concat_arrays(ids),
            "pipeline_id": _coded(pipeline, [f"pipeline-{n:04d}" for n in range(PIPELINES)]),
            "event_name": _coded(self.kind[rows] % NAMES, [f"table_{n}" for n in range(NAMES)]),
            "phase": _coded(phase, PHASES),
            "outcome": _coded(phase, OUTCOMES),
            "host": _coded(rows % 4, [f"node-{n}.example" for n in range(4)]),
            "topic": _coded(pipeline % 4, [f"events.team.{n}" for n in range(4)]),
            "kafka_partition": pa.array(rows % 8, pa.int32(), mask=of_key),
            "kafka_offset": pa.array(rows // 8, pa.int64(), mask=of_key),
            "object_key": _coded(batch, self._names("staged/warehouse/", rows), mask=phase != 2),
            "batch": _coded(batch * 4 + stage, self._names("", rows, 4), mask=of_key),
            "commit_number": pa.array(batch, pa.int64(), mask=phase != 3),
            "attempt": pa.array(np.zeros(len(rows)), pa.int32(), mask=of_key),
            "intake_minute": pa.array(self.at_us[rows] // 60_000_000, pa.int32()),
            "refers_to": refers,
            "at": pa.array(at, pa.int64()).cast(MEMORY_SCHEMA.field("at").type),
        }
        arrays = [
            columns.get(field.name, pa.nulls(len(rows), field.type)) for field in MEMORY_SCHEMA
        ]
        return pa.Table.from_arrays(arrays, schema=MEMORY_SCHEMA)

    def _names(self, prefix: str, rows: np.ndarray, times: int = 1) -> list[str]:
        """Return a name for each batch of the hour, like a UUID."""
        count = (len(self.ids) // BATCH_EVENTS + 1) * times
        digits = _hex(np.random.default_rng(10**6 + self.number * 10 + times), count, 16)
        texts = [row.tobytes().decode() for row in digits]
        return [f"{prefix}{t[:8]}-{t[8:12]}-{t[12:16]}-{t[16:20]}-{t[20:]}" for t in texts]


def _hex(chance: np.random.Generator, count: int, size: int) -> np.ndarray:
    """Return random texts of hexadecimal digits as rows of bytes."""
    some = chance.integers(0, 256, (count, size), np.uint8)
    return np.stack([_HEX[some >> 4], _HEX[some & 15]], axis=2).reshape(count, 2 * size)


def _crc32(rows: np.ndarray) -> np.ndarray:
    """Return zlib's CRC-32 of each row of bytes."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1)
    crc = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in rows.T:
        crc = table[(crc ^ column) & 0xFF] ^ (crc >> 8)
    return crc ^ np.uint32(0xFFFFFFFF)


def _by_bucket(texts: np.ndarray) -> list[np.ndarray]:
    """Return for each bucket the positions of its texts, in their order as texts."""
    buckets = _crc32(texts) % NEW_BUCKETS
    order = np.lexsort((_as_number(texts), buckets))
    return np.split(order, np.searchsorted(buckets[order], np.arange(1, NEW_BUCKETS)))


def _as_number(texts: np.ndarray) -> np.ndarray:
    """Return numbers that sort as the texts do: 16 digits are enough to tell them apart."""
    width = texts.shape[1]
    return np.ascontiguousarray(texts).view(f"S{width}").ravel()


def _texts(rows: np.ndarray) -> list[pa.Array]:
    count, width = rows.shape
    offsets = pa.py_buffer(np.arange(0, (count + 1) * width, width, dtype=np.int32))
    data = pa.py_buffer(np.ascontiguousarray(rows))
    return [pa.StringArray.from_buffers(count, offsets, data)]


def _coded(codes: np.ndarray, values: list[str], *, mask: np.ndarray | None = None) -> pa.Array:
    indices = pa.array(codes.astype(np.int32), pa.int32(), mask=mask)
    return pa.DictionaryArray.from_arrays(indices, pa.array(values, pa.string()))
