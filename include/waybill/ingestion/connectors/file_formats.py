"""Formats of files as rows: CSV, JSON lines, Parquet, a piece of a file at a time.

A piece is a function of the file and a position alone, so that who reads it again from there gets
the same. It holds ``rows`` records at most, of at most some MiB of text; a record that is larger
than 64 MiB is bad, and the first MiB of it is kept.
"""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv as arrow_csv

from waybill.errors import InputError
from waybill.events import loads
from waybill.ingestion.connectors.base import BadRow
from waybill.ingestion.connectors.csv_table import (
    MAX_LINES,
    CsvRecord,
    dict_rows,
    is_listed,
    listed,
    plain,
    read_records,
    typed,
)
from waybill.ingestion.connectors.file_text import PIECE, TextFile
from waybill.ingestion.connectors.sql_values import json_value
from waybill.nearest_name import hint, shown_name
from waybill.pipelines import COLUMN_TYPES

_TEXT_BYTES = 2 * PIECE
"""Text of one piece, but for a record that is longer."""
_RECORD_BYTES = 64 * PIECE
_PARQUET_BYTES = 64 * PIECE
"""Values of one piece of Parquet, but for a row that is larger."""
_LOOK_LINES = 200
_LOOK_LEAST = 5
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Position:
    """Where a piece begins."""

    at: int = 0
    """Bytes of text, or rows of Parquet."""
    line: int = 1
    """1-based: the line, or row, that begins there."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some records of a file."""

    rows: list[Row]
    bad: list[BadRow]
    places: Sequence[int]
    """The line, or row, of each of ``rows``."""
    end: Position
    last: bool
    """Nothing is behind it."""
    finite: bool = False
    """No number in ``rows`` is NaN or infinite."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a declaration says of the rows of files."""

    fields: Sequence[str]
    """That each file must have: keys and versions."""
    declared: Mapping[str, str]
    """Types of columns: a text that does not fit makes its row bad."""
    mapped: Mapping[str, str]
    """Types that the mapping has for fields: a text that does not fit stays as it is."""
    nulls: Sequence[str]
    delimiter: str = ","
    encoding: str = "utf-8"
    names: Sequence[str] | None = None
    """Of a CSV's columns; None: its first line has them."""


class Format(Protocol):
    """Reads one file."""

    def piece(self, rows: int) -> Piece:
        """Return the next records."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


def _next_text(text: TextFile, rows: int) -> bytes:
    """Return whole lines from the buffer's beginning, not taken yet; all of it at the end."""
    size = PIECE
    while True:
        text.fill(size)
        buffer = text.buffer
        if text.ended or buffer.count(b"\n", 0, size) >= rows or size >= _TEXT_BYTES:
            cut = buffer.rfind(b"\n", 0, max(size, _TEXT_BYTES)) + 1
            if text.ended and len(buffer) <= max(size, _TEXT_BYTES):
                return bytes(buffer)
            if cut or size > _RECORD_BYTES:
                return bytes(buffer[:cut])
        size *= 2


def _oversized(text: TextFile, position: Position, where: str) -> Piece:
    """Return a record that is too long as a bad one."""
    kept = bytes(text.buffer[:PIECE])
    size = 0
    while True:
        text.fill(PIECE)
        end = text.buffer.find(b"\n") + 1
        size += len(text.take(end or len(text.buffer)))
        if end or (text.ended and not text.buffer):
            break
    said = (
        f"expected a record of at most {_RECORD_BYTES} bytes; found {size}; this is its beginning"
    )
    bad = BadRow(kept, position.line, "payload_too_large", said, where)
    return Piece([], [bad], [], Position(text.position, position.line + 1), last=not text.buffer)


class _TextFormat(ABC):
    """What the formats of text share."""

    _more_lines: ClassVar[int] = 0
    """A record that begins within a piece may go on for so many lines behind it."""

    def __init__(self, raw: IO[bytes], name: str, wanted: Wanted, position: Position) -> None:
        self._name, self._wanted = name, wanted
        self._text = TextFile(raw, name, wanted.encoding)
        self._position = self._look(position)
        self._text.go_to(self._position.at)

    @abstractmethod
    def _look(self, position: Position) -> Position:
        """Refuse a file that is not what it should be; return where its records begin."""

    @abstractmethod
    def _records(self, lines: list[bytes], first: int) -> tuple[list[Row], list[BadRow], list[int]]:
        """Return rows, bad rows, and the line of each row; the first line's number is given."""

    def _whole(self, lines: list[bytes], rows: int, first: int, *, final: bool) -> int:
        """Return how many lines the piece has: whole records, of which ``rows`` lines or more."""
        del first, final
        return min(rows, len(lines))

    def piece(self, rows: int) -> Piece:
        """See ``Format``."""
        text, position = self._text, self._position
        content = _next_text(text, rows + self._more_lines)
        if not content and text.buffer:
            found = _oversized(text, position, self._where(position.line))
            self._position = found.end
            return found
        lines = content.splitlines(keepends=True)[: rows + self._more_lines]
        size = sum(map(len, lines))
        text.fill(size + 1)
        final = len(text.buffer) <= size
        lines = lines[: self._whole(lines, rows, position.line, final=final)]
        text.take(sum(map(len, lines)))
        text.fill(1)
        good, bad, places = self._records(lines, position.line)
        self._position = Position(text.position, position.line + len(lines))
        return Piece(good, bad, places, self._position, last=not text.buffer, finite=True)

    def _where(self, line: int) -> str:
        return f"{self._name}, line {line}"

    def close(self) -> None:
        """See ``Format``."""
        self._text.close()

    def _head(self) -> list[bytes]:
        """Return the file's first lines, whole ones."""
        self._text.fill(PIECE)
        lines = bytes(self._text.buffer[:PIECE]).splitlines(keepends=True)
        return lines if self._text.ended or len(lines) == 1 else lines[:-1]

    def _refuse_encoding(self, lines: Sequence[bytes]) -> None:
        """Refuse a file in another encoding; one line that is not UTF-8 is only a bad one."""
        other = [line for line in lines[:10_000] if not line.isascii()]
        wrong = [line for line in other if not _is_utf8(line)]
        if len(wrong) >= _LOOK_LEAST and len(wrong) * 2 > len(other):
            raise InputError(
                f"source file {self._name!r}: expected UTF-8; found {len(wrong)} of {len(other)}"
                " lines with other letters than ASCII that are not; declare the file's own"
                " (latin-1, cp1252, ...) in source.options.encoding"
            )


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


class CsvFormat(_TextFormat):
    """CSV with a header, or with names that are declared."""

    _more_lines = MAX_LINES
    _names: list[str]
    _ends_with_lines = False
    """Each record of the piece is a line."""

    def _look(self, position: Position) -> Position:
        lines = self._head()
        reader = csv.reader(
            (line.decode("utf-8", "surrogateescape") for line in lines),
            delimiter=self._wanted.delimiter,
        )
        header = next((fields for fields in reader if fields), [])
        self._refuse_encoding(lines)
        if self._wanted.names is not None:
            self._names = list(self._wanted.names)
            if header and len(header) != len(self._names):
                raise self._not_as_declared(header, f"{len(self._names)} columns")
            return position
        self._names = header
        self._require_header()
        begin = self._text.position + sum(map(len, lines[: reader.line_num]))
        return position if position.at else Position(begin, reader.line_num + 1)

    def _require_header(self) -> None:
        names = self._names
        needed = list(dict.fromkeys([*self._wanted.fields, *self._wanted.declared]))
        missing = [name for name in needed if name not in names]
        if missing:
            raise self._not_as_declared(names, f"column {', '.join(map(repr, missing))}")
        if not names and not self._text.buffer:
            return
        if "" in names or len(set(names)) < len(names):
            raise InputError(
                f"the header of {self._name!r} names a column twice, or not at all: "
                f"{_listed(names)}; give each a name of its own"
            )

    def _not_as_declared(self, found: Sequence[str], expected: str) -> InputError:
        """Say what was found; the likely cause first."""
        said = f"source file {self._name!r}: expected {expected}; found {_listed(found)}"
        if not found:
            return InputError(f"source file {self._name!r}: expected {expected}; it is empty")
        if len(found) == 1:
            for other in (",", ";", "\t", "|"):
                if other != self._wanted.delimiter and other in found[0]:
                    return InputError(f"{said}; is the delimiter {other!r} (options.delimiter)?")
        near = next((hint(name, found) for name in self._wanted.fields if name not in found), "")
        return InputError(said + near)

    def _whole(self, lines: list[bytes], rows: int, first: int, *, final: bool) -> int:
        """Return how many lines there are up to the end of a record, ``rows`` of them or more."""
        wanted = min(rows, len(lines))
        self._ends_with_lines = not any(line.count(b'"') % 2 for line in lines[:wanted])
        if self._ends_with_lines:
            return wanted
        begin = 0
        for record in self._read(lines, first):
            begin = record.line - first
            if begin >= wanted:
                return begin
        return len(lines) if final else begin or len(lines)

    def _read(self, lines: list[bytes], first: int) -> Iterator[CsvRecord]:
        return read_records(
            b"".join(lines),
            width=len(self._names),
            first_line=first,
            delimiter=self._wanted.delimiter,
        )

    def _records(self, lines: list[bytes], first: int) -> tuple[list[Row], list[BadRow], list[int]]:
        table = self._fast(b"".join(lines), lines)
        if table is not None:
            places: Sequence[int] = range(first, first + len(lines))
            return self._typed(table, list(places), lines)
        good, bad = [], []
        for record in self._read(lines, first):
            if record.code:
                where = self._where(record.line)
                bad.append(BadRow(record.raw, record.line, record.code, record.message, where))
            else:
                good.append(record)
        columns: Any = zip(*(record.fields for record in good), strict=True)
        arrays = [
            pa.array(column, pa.string())
            for column in (columns if good else [()] * len(self._names))
        ]
        nulls, nothing = (
            pa.array(list(self._wanted.nulls), pa.string()),
            pa.scalar(None, pa.string()),
        )
        arrays = [pc.if_else(pc.is_in(one, value_set=nulls), nothing, one) for one in arrays]
        rows, more, places = self._typed(
            pa.table(arrays, names=self._names), [r.line for r in good], [r.raw for r in good]
        )
        return rows, sorted(bad + more, key=lambda row: row.line), places

    def _fast(self, content: bytes, lines: list[bytes]) -> pa.Table | None:
        """Return columns of text, or None when the lines must be looked at one by one."""
        if not self._ends_with_lines:
            return None
        try:
            table = arrow_csv.read_csv(
                pa.BufferReader(content),
                read_options=arrow_csv.ReadOptions(column_names=self._names),
                parse_options=arrow_csv.ParseOptions(delimiter=self._wanted.delimiter),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(self._names, pa.string()),
                    null_values=list(self._wanted.nulls),
                    strings_can_be_null=True,
                ),
            )
        except pa.ArrowInvalid:
            return None
        return table if table.num_rows == len(lines) else None

    def _typed(
        self, table: pa.Table, places: list[int], raws: Sequence[bytes]
    ) -> tuple[list[Row], list[BadRow], list[int]]:
        columns: list[list[Any]] = []
        offenders: dict[int, list[str]] = {}
        for name, column in zip(table.column_names, table.columns, strict=True):
            texts = column.combine_chunks() if column.num_chunks else pa.array([], pa.string())
            kind = self._wanted.declared.get(name) or self._wanted.mapped.get(name, "string")
            values, wrong = typed(texts, kind)
            cells = listed(plain(values))
            for row in wrong:
                found = texts[row].as_py()
                cells[row] = found
                if name in self._wanted.declared:
                    said = f"column {name!r}: expected {kind}; found {found[:80]!r}"
                    offenders.setdefault(row, []).append(said)
            columns.append(cells)
        rows = dict_rows(table.column_names, columns)
        if not offenders:
            return rows, [], places
        bad = [
            BadRow(raws[row].rstrip(b"\r\n"), places[row], "source_value_invalid",
                   "; ".join(said), self._where(places[row]))
            for row, said in sorted(offenders.items())
        ]  # fmt: skip
        kept = [row for row in range(len(rows)) if row not in offenders]
        return [rows[row] for row in kept], bad, [places[row] for row in kept]


class JsonLinesFormat(_TextFormat):
    """An object of JSON a line."""

    def _look(self, position: Position) -> Position:
        lines = [line for line in self._head()[:_LOOK_LINES] if line.strip()]
        self._refuse_encoding(lines)
        good = [row for line in lines if isinstance(row := _parsed(line), dict)]
        if lines and not good:
            shown = shown_name(lines[0].decode("utf-8", "replace").strip())
            raise InputError(
                f"source file {self._name!r}: expected an object of JSON on each line; found"
                f" {shown!r}"
            )
        there = set().union(*good)
        missing = [name for name in self._wanted.fields if name not in there]
        if good and missing:
            raise InputError(
                f"source file {self._name!r}: expected field {', '.join(map(repr, missing))}; its"
                f" first {_many(len(good))} {_listed(sorted(there))}"
            )
        return position if position.at else Position(self._text.position, 1)

    def _records(self, lines: list[bytes], first: int) -> tuple[list[Row], list[BadRow], list[int]]:
        rows, bad, places = [], [], []
        for number, line in enumerate(lines, first):
            row = _parsed(line)
            if isinstance(row, dict):
                rows.append(row)
                places.append(number)
            elif line.strip():
                raw, where = line.rstrip(b"\r\n"), self._where(number)
                code = "source_row_malformed" if _is_utf8(line) else "source_encoding_invalid"
                found = type(row).__name__ if row is not None else "no JSON"
                said = f"expected an object of JSON in UTF-8; found {found}"
                bad.append(BadRow(raw, number, code, said, where))
        return rows, bad, places


def _many(records: int) -> str:
    return "record has" if records == 1 else f"{records:,} records have"


def _parsed(line: bytes) -> Any:
    """Return a line's JSON; None: it is none."""
    try:
        return loads(line)
    except (ValueError, RecursionError):
        return None


class ParquetFormat:
    """A Parquet file, a row group at a time.

    Text is kept as the file's dictionary until it is a row's: some kilobytes of a file may be a
    text that is the same in each row, and gigabytes once it is written out.
    """

    def __init__(self, raw: IO[bytes], name: str, wanted: Wanted, position: Position) -> None:
        self._name, self._raw, self._position = name, raw, position
        try:
            source = pa.PythonFile(raw, mode="r")
            schema = pq.read_schema(source)
            self._file = pq.ParquetFile(
                source,
                pre_buffer=False,
                read_dictionary=[one.name for one in schema if _is_text(one)],
            )
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"source file {name!r} cannot be read as Parquet: {error}") from error
        names = self._file.schema_arrow.names
        missing = [one for one in wanted.fields if one not in names]
        if missing:
            raise InputError(
                f"source file {name!r}: expected column {', '.join(map(repr, missing))}; it has"
                f" {_listed(names)}{hint(missing[0], names)}"
            )
        if len(set(names)) < len(names):
            raise InputError(f"source file {name!r} names a column twice: {_listed(names)}")
        self._total = self._file.metadata.num_rows
        self._batches: Iterator[pa.RecordBatch] | None = None

    def piece(self, rows: int) -> Piece:
        """See ``Format``."""
        if self._batches is None:
            self._batches = self._from(self._position.at, rows)
        try:
            batch = next(self._batches, None)
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"source file {self._name!r} is damaged: {error}") from error
        if batch is None:
            return Piece([], [], [], self._position, last=True)
        begin, size = self._position.at, batch.num_rows
        found, wrong = _rows_of(batch)
        self._position = Position(begin + size, begin + size + 1)
        bad = [
            BadRow(raw, begin + row + 1, "source_value_invalid", said,
                   f"{self._name}, line {begin + row + 1}")
            for row, (raw, said) in sorted(wrong.items())
        ]  # fmt: skip
        good = [row for row in range(size) if row not in wrong]
        places = [begin + 1 + row for row in good]
        kept = found if not wrong else [found[row] for row in good]
        return Piece(kept, bad, places, self._position, last=self._position.at >= self._total)

    def _from(self, row: int, rows: int) -> Iterator[pa.RecordBatch]:
        """Yield what is behind a row: of each batch of so many rows, parts of some MiB."""
        begin = 0
        for group in range(self._file.num_row_groups):
            size = self._file.metadata.row_group(group).num_rows
            if begin + size > row:
                at = begin
                for batch in self._file.iter_batches(batch_size=rows, row_groups=[group]):
                    if at + batch.num_rows > row:
                        yield from _parts(batch, max(0, row - at))
                    at += batch.num_rows
            begin += size

    def close(self) -> None:
        """See ``Format``."""
        self._file.close()
        self._raw.close()


def _is_text(field: pa.Field) -> bool:
    kind = field.type
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _parts(batch: pa.RecordBatch, begin: int) -> Iterator[pa.RecordBatch]:
    """Yield a batch from a row on, cut where a part has more than some MiB of values."""
    sizes = np.zeros(batch.num_rows)
    for column in batch.columns:
        if pa.types.is_dictionary(column.type):
            lengths = pc.binary_length(column.dictionary).take(column.indices)
            sizes += pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False)
        else:
            sizes += column.nbytes / batch.num_rows
    ends = sizes.cumsum()
    while begin < batch.num_rows:
        before = ends[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + _PARQUET_BYTES, "right")))
        yield batch.slice(begin, end - begin)
        begin = end


def _rows_of(batch: pa.RecordBatch) -> tuple[list[Row], dict[int, tuple[bytes, str]]]:
    """Return rows; and of those with a value that has no form, their text and what is wrong."""
    names, columns = batch.schema.names, []
    offenders: dict[int, list[str]] = {}
    for name, column in zip(names, batch.columns, strict=True):
        plain_column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        try:
            columns.append(_listed_values(plain_column))
        except (ValueError, OverflowError):  # years beyond 9999, text that is not UTF-8
            listed = []
            for row, value in enumerate(plain_column):
                try:
                    listed += _listed_values(pa.array([value], plain_column.type))
                except (ValueError, OverflowError) as error:
                    said = f"column {name!r}: {plain_column.type} without a form in JSON: {error}"
                    offenders.setdefault(row, []).append(said[:500])
                    listed.append(_bare(value))
            columns.append(listed)
    rows = dict_rows(names, columns)
    return rows, {
        row: (repr(rows[row]).encode("utf-8", "backslashreplace"), "; ".join(said))
        for row, said in offenders.items()
    }


def _bare(value: pa.Scalar) -> Any:
    """Return what a value is in the file: bytes, or a number of days or of parts of a second."""
    return value.as_buffer().to_pybytes() if hasattr(value, "as_buffer") else value.value


def _listed_values(column: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        texts = pc.cast(column.cast(pa.timestamp("ns", "UTC")), pa.string()).to_pylist()
        return [None if text is None else text.replace(" ", "T") for text in texts]
    if is_listed(kind):
        return listed(column)
    if pa.types.is_timestamp(kind) and _is_of_four_digits(column):
        return listed(plain(column.cast(_MICROS)))
    return [json_value(value) for value in column.to_pylist()]


def _is_of_four_digits(moments: pa.Array) -> bool:
    """Tell whether all years of times in s, ms or µs have four digits, whatever the zone."""
    ends = pc.min_max(moments)
    least, most = ends["min"].value, ends["max"].value
    if least is None:
        return True
    per_s = _PER_S[moments.type.unit]
    return bool(_YEAR_1001_S * per_s <= least and most < _YEAR_9999_S * per_s)


_PER_S = {"s": 1, "ms": 1_000, "us": 1_000_000}
_YEAR_1001_S, _YEAR_9999_S = (
    int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (1001, 9999)
)
_MICROS = pa.timestamp("us", "UTC")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, map(shown_name, names[:50])))


FORMATS: Mapping[str, Callable[[IO[bytes], str, Wanted, Position], Format]] = {
    "csv": CsvFormat,
    "jsonl": JsonLinesFormat,
    "parquet": ParquetFormat,
}
MAPPED_TYPES = frozenset(COLUMN_TYPES) - {"bytes", "json", "string"}
