"""Traces of an hour, cut by bucket on the local disk, between being read and written anew.

In memory are the traces of a few objects, or of one part, never those of the hour. The file has no
name, so that a death leaves nothing of it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from types import TracebackType
from typing import IO, Self

import numpy as np
import pyarrow as pa

from waybill.tracing.layout import hashes_of
from waybill.tracing.packing import sorted_body
from waybill.tracing.parquet import encode_unsorted, read_whole
from waybill.tracing.trace import MEMORY_SCHEMA, TRACE_SCHEMA

_ROWS_AT_ONCE = 400_000
"""About 100 MB."""


class Spill:
    """Takes tables in any order; gives each part's traces as one sorted object. Use it once.

    Args:
        buckets: of the layout.
        slices: parts that each bucket's traces are cut into, by the same hash.
    """

    def __init__(self, *, buckets: int, slices: int) -> None:
        self._buckets = buckets
        self._slices = slices
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="waybill-compaction-")
        self._chunks: dict[int, list[tuple[int, int]]] = {}
        self._waiting: list[pa.Table] = []
        self._rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(self, table: pa.Table) -> None:
        """Take traces. Cost: 1.5 µs a trace."""
        self._waiting.append(table)
        self._rows += table.num_rows
        if self._rows >= _ROWS_AT_ONCE:
            self._cut()

    def parts(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Yield (bucket, slice, traces, object's bytes), without empty ones. Cost: 1 µs a trace."""
        self._cut()
        for part in sorted(self._chunks):
            table = self._read(self._chunks[part])
            bucket, number = divmod(part, self._slices)
            yield bucket, number, table.num_rows, sorted_body(table)

    def _cut(self) -> None:
        if not self._rows:
            return
        table = pa.concat_tables(self._waiting).unify_dictionaries().combine_chunks()
        self._waiting, self._rows = [], 0
        hashes = np.array(hashes_of(table.column("event_id")), np.int64)
        buckets, numbers = hashes % self._buckets, hashes // self._buckets % self._slices
        codes = buckets * self._slices + numbers
        order = np.argsort(codes, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
            # plain texts: a dictionary would be stored with all values of all parts
            some = table.take(pa.array(rows)).cast(TRACE_SCHEMA)
            self._append(int(codes[rows[0]]), memoryview(encode_unsorted(some)))

    def _append(self, part: int, body: memoryview) -> None:
        self._chunks.setdefault(part, []).append((self._file.tell(), len(body)))
        self._file.write(body)

    def _read(self, chunks: list[tuple[int, int]]) -> pa.Table:
        tables = []
        for position, length in chunks:
            self._file.seek(position)
            tables.append(read_whole(pa.BufferReader(self._file.read(length))).cast(MEMORY_SCHEMA))
        return pa.concat_tables(tables).unify_dictionaries().combine_chunks()
