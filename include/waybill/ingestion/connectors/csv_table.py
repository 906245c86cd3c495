"""A CSV file as a typed table and its bad rows.

Two ways lead to the same columns of text. The fast one is Arrow's reader over the whole file; it is
taken as it is when the file is UTF-8, no row is refused, every value fits its declared type and,
where there are quotes, each line is one record with pairs of them. Anything else is read again
record by record (``csv_records``), which knows the line and the bytes of each.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from waybill.errors import InputError
from waybill.ingestion.connectors.base import BadRow
from waybill.ingestion.connectors.csv_records import Record, read_records
from waybill.ingestion.connectors.csv_values import inferred, typed

_BOM = b"\xef\xbb\xbf"
_OTHER_UNICODE = (b"\xff\xfe", b"\xfe\xff")
_MAX_HEADER_BYTES = 1024**2
_BLOCK_RECORDS = 50_000
_WORDS = {
    "timestamp": "timestamp (RFC 3339, at most microseconds)",
    "date": "date (YYYY-MM-DD)",
    "bool": "bool (true or false)",
}
"""How a type's text looks, where its name does not say it."""


@dataclass(frozen=True, slots=True)
class CsvTable:
    """Every record of a file: the good ones typed, in file order; the bad ones by line."""

    table: pa.Table
    bad: list[BadRow]


@dataclass(frozen=True, slots=True)
class _Text:
    """A file, its header taken off."""

    names: list[str]
    content: bytes
    begin: int
    """The byte at which the body begins."""
    first_line: int
    """The line at which it begins."""
    nulls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Places:
    """Line and bytes of each row of a table."""

    lines: list[int]
    raws: list[bytes]


def read_table(
    content: bytes, *, columns: Mapping[str, str], nulls: Sequence[str], where: str
) -> CsvTable:
    """Read a whole file.

    Args:
        content: the file's bytes.
        columns: declared types; other columns get the type their values suggest.
        nulls: texts that mean null.
        where: the file's name, for errors.

    Raises:
        InputError: no usable header, or a declared column is not in it.

    Cost: about 1 s for 300,000 rows of 20 columns; 5 s when one of them is bad.
    """
    text = _without_header(content, tuple(nulls), where)
    require_columns(list(columns), text.names, where=where, field="source.columns")
    table = _fast(text)
    if table is not None:
        values, offenders = _declared(table, columns)
        if not offenders:
            return CsvTable(_inferred(values, columns), [])
    table, places, bad = _exact(text)
    values, offenders = _declared(table, columns)
    bad.extend(
        BadRow(places.raws[row], places.lines[row], "source_value_invalid", "; ".join(said))
        for row, said in offenders.items()
    )
    if offenders:
        good = pc.invert(pc.is_in(pa.array(range(len(values))), pa.array(list(offenders))))
        values = values.filter(good)
    return CsvTable(_inferred(values, columns), sorted(bad, key=lambda row: row.line))


def require_columns(wanted: Sequence[str], names: Sequence[str], *, where: str, field: str) -> None:
    """Refuse names that a file's header lacks.

    Raises:
        InputError: says which, what the header has, and the nearest.
    """
    from difflib import get_close_matches

    missing = [name for name in wanted if name not in names]
    if missing:
        near = get_close_matches(missing[0], names, n=1)
        asked = f" (is it {near[0]!r}?)" if near else ""
        raise InputError(
            f"source file {where!r} has no column {', '.join(map(repr, missing))}{asked};"
            f" its header has {', '.join(names)}; correct {field}, or the file"
        )


def _without_header(content: bytes, nulls: tuple[str, ...], where: str) -> _Text:
    if content.startswith(_OTHER_UNICODE):
        raise InputError(f"source file {where!r} is UTF-16; save it as UTF-8")
    begin = len(_BOM) if content.startswith(_BOM) else 0
    lines = content[begin : begin + _MAX_HEADER_BYTES].splitlines(keepends=True)
    try:
        reader = csv.reader((line.decode() for line in lines), strict=True)
        names = next((fields for fields in reader if fields), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"the header of {where!r} cannot be read: {error}; mend it") from error
    _refuse_header(names, where)
    end = begin + sum(len(line) for line in lines[: reader.line_num])
    return _Text(names, content, end, reader.line_num + 1, nulls)


def _refuse_header(names: list[str], where: str) -> None:
    if not names:
        raise InputError(f"source file {where!r} is empty; its first line must name the columns")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or "" in names:
        said = f"names {twice} twice" if twice else "has a column without a name"
        raise InputError(f"the header of {where!r} {said}; give each column a name of its own")


def _fast(text: _Text) -> pa.Table | None:
    """Return columns of text, or None when the file must be looked at record by record."""
    if text.begin == len(text.content):
        return _block([], text.names, pa.array([], pa.string()))
    quoted = text.content.find(b'"', text.begin) >= 0
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(pa.py_buffer(text.content).slice(text.begin)),
            read_options=arrow_csv.ReadOptions(column_names=text.names),
            parse_options=arrow_csv.ParseOptions(newlines_in_values=quoted),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(text.names, pa.string()),
                null_values=list(text.nulls),
                strings_can_be_null=True,
            ),
        )
    except pa.ArrowInvalid:
        return None
    if quoted and not _one_line_each(text, table.num_rows):
        return None
    return table


def _one_line_each(text: _Text, rows: int) -> bool:
    """Return whether no quoted field can hold the end of a line."""
    lines = text.content[text.begin :].splitlines()
    return sum(map(bool, lines)) == rows and not any(line.count(b'"') % 2 for line in lines)


def _exact(text: _Text) -> tuple[pa.Table, _Places, list[BadRow]]:
    places = _Places([], [])
    bad: list[BadRow] = []
    body = text.content[text.begin :]
    records = read_records(body, width=len(text.names), first_line=text.first_line)
    nulls = pa.array(text.nulls, pa.string())
    blocks = [_block([], text.names, nulls)]
    while block := list(islice(records, _BLOCK_RECORDS)):
        good = [record for record in block if not record.code]
        places.lines.extend(record.line for record in good)
        places.raws.extend(record.raw for record in good)
        bad.extend(_bad_row(record) for record in block if record.code)
        blocks.append(_block(good, text.names, nulls))
    return pa.concat_tables(blocks), places, bad


def _bad_row(record: Record) -> BadRow:
    return BadRow(record.raw, record.line, record.code, record.message)


def _block(records: list[Record], names: list[str], nulls: pa.Array) -> pa.Table:
    columns: Iterable[Sequence[str]] = zip(*(record.fields for record in records), strict=True)
    if not records:
        columns = [()] * len(names)
    arrays = [pa.array(column, pa.string()) for column in columns]
    nothing = pa.scalar(None, pa.string())
    return pa.table(
        [pc.if_else(pc.is_in(array, value_set=nulls), nothing, array) for array in arrays],
        names=names,
    )


def _declared(table: pa.Table, columns: Mapping[str, str]) -> tuple[pa.Table, dict[int, list[str]]]:
    """Return the table with its declared columns typed, and what is wrong with each row."""
    offenders: dict[int, list[str]] = {}
    for index, name in enumerate(table.column_names):
        if name not in columns:
            continue
        texts = _whole(table, index)
        values, wrong = typed(texts, columns[name])
        for row in wrong:
            found = texts[row].as_py()
            wanted = _WORDS.get(columns[name], columns[name])
            said = f"column {name!r}: expected {wanted}; found {found[:80]!r}"
            offenders.setdefault(row, []).append(said)
        table = table.set_column(index, name, values)
    return table, offenders


def _inferred(table: pa.Table, columns: Mapping[str, str]) -> pa.Table:
    """Give every column without a declared type the one that its values suggest."""
    for index, name in enumerate(table.column_names):
        if name not in columns:
            texts = _whole(table, index)
            table = table.set_column(index, name, typed(texts, inferred(texts))[0])
    return table


def _whole(table: pa.Table, index: int) -> pa.Array:
    return table.column(index).combine_chunks()
