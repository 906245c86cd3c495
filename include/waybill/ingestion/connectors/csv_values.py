"""From columns of text to typed columns, and from those to JSON's values; all by Arrow.

A text that does not fit its declared type is an offender, named by its row; it never fails a file.
Whitespace around a number or time does not count. Without a declared type, a column is int64 when
every text is an integer of at most 18 digits without leading zeros; float64 when every text is a
decimal number (declare decimal or string to keep more than 17 digits); bool when every text is true
or false; else text as it stands.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from waybill.pipelines import arrow_type

_INTEGER = r"^(?:0|-?[1-9][0-9]{0,17})$"
_FLOAT = r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3})?$"
_BOOLEAN = r"^(?:true|false)$"
_HAS_ZONE = r"[0-9]:[0-9].*(?:[Zz]|[-+][0-9]{2}:?[0-9]{2}|[-+][0-9]{2})$"
_SECONDS = pa.timestamp("s", tz="UTC")
_MICROS = pa.timestamp("us", tz="UTC")


def typed(texts: pa.Array, kind: str) -> tuple[pa.Array, list[int]]:
    """Return a text column as its declared type, and the rows that do not fit (null there).

    Cost: one cast a column when all fit; else about 10 µs for each distinct text that does not.
    """
    if kind == "string":
        return texts, []
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
    if kind.startswith("int") and pc.any(pc.match_substring_regex(texts, "[xX]")).as_py():
        raise pa.ArrowInvalid("hexadecimal digits are no integer")
    values = pc.cast(texts, arrow_type(kind))
    if kind == "float64" and not pc.all(pc.is_finite(values)).as_py():
        if len(values) > values.null_count:
            raise pa.ArrowInvalid("NaN and infinity have no form in JSON")
    return values


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
