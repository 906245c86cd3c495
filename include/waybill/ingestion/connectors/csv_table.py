"""A CSV file as a typed table and its bad rows.

Two ways lead to the same columns of text. The fast one is Arrow's reader over the whole file; it is
taken as it is when the file is UTF-8, no row is refused, every value fits its declared type and,
where there are quotes, each line is one record with pairs of them. Anything else is read again
record by record (``CsvRecord``), which knows the line and the bytes of each.

Columns of text become typed columns, and these JSON's values, all by Arrow. A text that does not
fit its declared type is an offender, named by its row; it never fails a file. Whitespace around a
number or time does not count. Without a declared type, a column is int64 when every text is an
integer of at most 18 digits without leading zeros; float64 when every text is a decimal number
(declare decimal or string to keep more than 17 digits); bool when every text is true or false; else
text as it stands.

Record by record nothing of a damaged file is lost; it takes about 5 µs a record. A record is good
when it is UTF-8 and has as many fields as the header. One that spans several lines must also be
well-formed; else its first line alone is the bad record and reading goes on at the next line, so
that a stray quote does not swallow its neighbours. Empty lines are no records.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from waybill.errors import InputError
from waybill.ingestion.connectors.base import BadRow
from waybill.nearest_name import nearest
from waybill.pipelines import arrow_type

_INTEGER = r"^(?:0|-?[1-9][0-9]{0,17})$"
_FLOAT = r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3})?$"
_BOOLEAN = r"^(?:true|false)$"
_HAS_ZONE = r"[0-9]:[0-9].*(?:[Zz]|[-+][0-9]{2}:?[0-9]{2}|[-+][0-9]{2})$"
_NUMBERS = frozenset({"int32", "int64", "float64"})
_SECONDS = pa.timestamp("s", tz="UTC")
_MICROS = pa.timestamp("us", tz="UTC")


def typed(texts: pa.Array, kind: str) -> tuple[pa.Array, list[int]]:
    """Return a text column as its declared type, and the rows that do not fit (null there).

    Cost: one cast a column when all fit; else about 10 µs for each distinct text that does not.
    """
    if kind == "string":
        return texts, []
    if kind in _NUMBERS:  # mostly distinct: to look for those that are not costs more than the cast
        with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return _cast(pc.utf8_trim_whitespace(texts), kind), []
    coded = _coded(texts)
    values, wrong = _convert(pc.utf8_trim_whitespace(coded.dictionary), kind)
    if not wrong:
        return values.take(coded.indices), []
    bad = pc.is_in(coded.indices, value_set=pa.array(wrong, coded.indices.type))
    return values.take(coded.indices), pc.indices_nonzero(bad).to_pylist()


def inferred(texts: pa.Array) -> str:
    """Return the type that a column of text suggests."""
    distinct = _coded(texts).dictionary
    if len(distinct) == 0:
        return "string"
    for pattern, kind in ((_INTEGER, "int64"), (_FLOAT, "float64"), (_BOOLEAN, "bool")):
        matches = pc.all(pc.match_substring_regex(distinct, pattern)).as_py()
        if matches and not _convert(distinct, kind)[1]:
            return kind
    return "string"


def plain(values: pa.Array) -> pa.Array:
    """Return a typed column as Arrow values whose Python form is a JSON value."""
    kind = values.type
    if pa.types.is_timestamp(kind):
        coded = _coded(values)
        return _rfc3339(coded.dictionary).take(coded.indices)
    if pa.types.is_date(kind) or pa.types.is_decimal(kind):
        return pc.cast(values, pa.string())
    return values


def is_listed(kind: pa.DataType) -> bool:
    """Tell whether ``listed`` is quick for a type."""
    return bool(pa.types.is_string(kind) or pa.types.is_integer(kind) or kind in _QUICK)


_QUICK = frozenset({pa.float32(), pa.float64(), pa.bool_()})


def listed(values: pa.Array) -> list[Any]:
    """Return a column as values of Python, the same as ``to_pylist``.

    Cost: some 0.04 µs a value of text, a number or a boolean; of others as ``to_pylist``.
    """
    kind = values.type
    if not is_listed(kind):
        return values.to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_string(kind) or not values.null_count:
        try:
            return values.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]
        except (pa.ArrowException, ValueError):  # text that is not UTF-8, of which that says more
            return values.to_pylist()  # type: ignore[no-any-return]
    nothing = pa.scalar(0, pa.int8()).cast(kind)
    found: list[Any] = values.fill_null(nothing).to_numpy(zero_copy_only=False).tolist()
    for row in pc.indices_nonzero(values.is_null()).to_numpy().tolist():
        found[row] = None
    return found


def dict_rows(names: Sequence[str], columns: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Return columns as rows."""
    rows = zip(*columns, strict=True)
    return list(map(dict, map(zip, repeat(names), rows)))


def _coded(values: pa.Array) -> pa.DictionaryArray:
    return values.dictionary_encode()


def _convert(texts: pa.Array, kind: str) -> tuple[pa.Array, list[int]]:
    """Return (values, indices of the texts that do not fit)."""
    try:
        values = _cast(texts, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return _halves(texts, kind)
    return values, []


def _halves(texts: pa.Array, kind: str) -> tuple[pa.Array, list[int]]:
    if len(texts) == 1:
        return pa.nulls(1, arrow_type(kind)), [0]
    middle = len(texts) // 2
    left, wrong = _convert(texts.slice(0, middle), kind)
    right, also = _convert(texts.slice(middle), kind)
    return pa.concat_arrays([left, right]), wrong + [middle + index for index in also]


def _cast(texts: pa.Array, kind: str) -> pa.Array:
    if kind == "timestamp":
        return _moments(texts)
    if kind.startswith("int") and any(_has(texts, letter) for letter in "xX"):
        raise pa.ArrowInvalid("hexadecimal digits are no integer")
    values = pc.cast(texts, arrow_type(kind))
    if kind == "float64" and not pc.all(pc.is_finite(values)).as_py():
        if len(values) > values.null_count:
            raise pa.ArrowInvalid("NaN and infinity have no form in JSON")
    return values


def _has(texts: pa.Array, letter: str) -> bool:
    return bool(pc.any(pc.match_substring(texts, letter)).as_py())


def _moments(texts: pa.Array) -> pa.Array:
    """Parse times; one without a zone is in UTC."""
    zoned = pc.match_substring_regex(texts, _HAS_ZONE)
    nothing = pa.scalar(None, pa.string())
    with_zone = pc.cast(pc.if_else(zoned, texts, nothing), _MICROS)
    without = pc.cast(pc.if_else(zoned, nothing, texts), pa.timestamp("us"))
    return pc.coalesce(with_zone, pc.assume_timezone(without, "UTC"))


def _rfc3339(moments: pa.Array) -> pa.Array:
    whole = pc.cast(moments, _SECONDS, safe=False)
    short = pc.strftime(whole, "%Y-%m-%dT%H:%M:%SZ")
    is_whole = pc.equal(pc.cast(whole, _MICROS), moments)
    if pc.all(is_whole).as_py() is not False:
        return short
    return pc.if_else(is_whole, short, pc.strftime(moments, "%Y-%m-%dT%H:%M:%SZ"))


_NAMES = {",": "a comma", "\t": "a tab"}
MAX_LINES = 1000
"""A quoted field that spans more lines is taken for a stray quote."""
_FIELD_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class CsvRecord:
    """One record, good or bad."""

    line: int
    """1-based, where it begins."""
    raw: bytes
    fields: list[str]
    """Empty when the record is bad."""
    code: str = ""
    message: str = ""


class _Lines:
    """Feeds the csv reader one record's lines, and knows where it stands."""

    def __init__(self, body: bytes) -> None:
        self.lines = body.splitlines(keepends=True)
        self.next = 0
        self.stop = 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        if self.next >= min(len(self.lines), self.stop):
            raise StopIteration
        self.next += 1
        return self.lines[self.next - 1].decode("latin-1")


def read_records(
    body: bytes, *, width: int, first_line: int, delimiter: str = ","
) -> Iterator[CsvRecord]:
    """Yield every record of a file's body, in order.

    Args:
        body: what follows the header.
        width: number of fields in the header.
        first_line: the file's line at which the body begins.
        delimiter: between two fields.
    """
    csv.field_size_limit(_FIELD_LIMIT)
    lines = _Lines(body)
    while lines.next < len(lines.lines):
        begin = lines.next
        lines.stop = begin + MAX_LINES
        fields = next(csv.reader(lines, delimiter=delimiter), [])
        raw = b"".join(lines.lines[begin : lines.next])
        if lines.next - begin > 1 or raw.count(b'"') % 2:
            said = _malformed(raw, fields, width, delimiter)
            if said:
                lines.next = begin + 1
                raw = lines.lines[begin].rstrip(b"\r\n")
                yield CsvRecord(first_line + begin, raw, [], "source_row_malformed", said)
                continue
        if fields:
            yield _record(first_line + begin, raw.rstrip(b"\r\n"), fields, width)


def _malformed(raw: bytes, fields: list[str], width: int, delimiter: str) -> str:
    """Return what is wrong with a record that holds line ends or an odd number of quotes."""
    text = raw.decode("latin-1")
    try:
        lines = text.splitlines(keepends=True)
        next(csv.reader(lines, delimiter=delimiter, strict=True), None)
    except csv.Error as error:
        return f"expected a closing quote, then {_NAMES.get(delimiter, delimiter)}; found: {error}"
    return "" if len(fields) == width else _wrong_width(len(fields), width)


def _wrong_width(found: int, width: int) -> str:
    return f"expected {width} fields; found {found}"


def _record(line: int, raw: bytes, fields: list[str], width: int) -> CsvRecord:
    if not raw.isascii():
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            said = f"expected UTF-8; found byte 0x{raw[error.start]:02x} at {error.start}"
            return CsvRecord(line, raw, [], "source_encoding_invalid", said)
        fields = [field.encode("latin-1").decode() for field in fields]
    if len(fields) != width:
        return CsvRecord(line, raw, [], "source_row_malformed", _wrong_width(len(fields), width))
    return CsvRecord(line, raw, fields)


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
    decided: Mapping[str, str]
    """Types that columns got from the mapping, though not all their texts are so."""


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
    content: bytes,
    *,
    columns: Mapping[str, str],
    nulls: Sequence[str],
    where: str,
    mapped: Mapping[str, str] | None = None,
) -> CsvTable:
    """Read a whole file.

    Args:
        content: the file's bytes.
        columns: declared types; other columns get the type their values suggest.
        nulls: texts that mean null.
        where: the file's name, for errors.
        mapped: types that the mapping has for columns that are not declared. Such a column is of
            this type where most of its texts are: one bad text makes its row bad, and not a column
            of text of all the others.

    Raises:
        InputError: no usable header, or a declared column is not in it.

    Cost: about 1 s for 300,000 rows of 20 columns; 5 s when one of them is bad.
    """
    text = _without_header(content, tuple(nulls), where)
    require_columns(list(columns), text.names, where=where, field="source.columns")
    table = _fast(text)
    decided: dict[str, str] = {}
    if table is not None:
        decided = _decided(table, columns, mapped or {})
        columns = {**columns, **decided}
        values, offenders = _declared(table, columns)
        if not offenders:
            return CsvTable(_inferred(values, columns), [], decided)
    table, places, bad = _exact(text)
    if not decided:
        decided = _decided(table, columns, mapped or {})
        columns = {**columns, **decided}
    values, offenders = _declared(table, columns)
    bad.extend(
        BadRow(places.raws[row], places.lines[row], "source_value_invalid", "; ".join(said))
        for row, said in offenders.items()
    )
    if offenders:
        good = pc.invert(pc.is_in(pa.array(range(len(values))), pa.array(list(offenders))))
        values = values.filter(good)
    ordered = sorted(bad, key=lambda row: row.line)
    return CsvTable(_inferred(values, columns), ordered, decided)


def _decided(
    table: pa.Table, columns: Mapping[str, str], mapped: Mapping[str, str]
) -> dict[str, str]:
    """Return the mapping's types for columns of which most texts are so, but not all."""
    found: dict[str, str] = {}
    for index, name in enumerate(table.column_names):
        if name in columns or name not in mapped:
            continue
        texts = _whole(table, index)
        if inferred(texts) != "string" or texts.null_count == len(texts):
            continue
        wrong = len(typed(texts, mapped[name])[1])
        if wrong * 2 < len(texts) - texts.null_count:
            found[name] = mapped[name]
    return found


def require_columns(wanted: Sequence[str], names: Sequence[str], *, where: str, field: str) -> None:
    """Refuse names that a file's header lacks.

    Raises:
        InputError: says which, what the header has, and the nearest.
    """
    missing = [name for name in wanted if name not in names]
    if missing:
        near = nearest(missing[0], names)
        asked = "" if near is None else f" (is it {near!r}?)"
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


def _bad_row(record: CsvRecord) -> BadRow:
    return BadRow(record.raw, record.line, record.code, record.message)


def _block(records: list[CsvRecord], names: list[str], nulls: pa.Array) -> pa.Table:
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


def sort_rows(table: pa.Table, order_by: tuple[str, ...]) -> pa.Table:
    """Sort; equal rows stay in file order, nulls come last."""
    if not order_by:
        return table
    keys = [(name, "ascending") for name in order_by]
    return table.take(pc.sort_indices(table, sort_keys=keys))
