"""Sums over the keys of a table's rows: which of the rows that a table lacks nobody misses.

By numbers alone a row that somebody deleted, and that a load brought back, is missing for ever:
loads put it there twice, and it is there once. So loads keep, beside the number of rows, sums over
hashes of the keys of rows that they added, less those of rows that they took away. These sums, less
those over the table, are of the keys that it lacks. They are an invertible Bloom lookup table
(Goodrich and Mitzenmacher): each key lies in one cell of each of three parts, a cell is the number
of its keys and sums of their hashes, so that a cell of one key tells which, and without it others
have one key left. Some fifty keys can be read, however many millions were added and taken away.

A key that is read and is in the table was brought back. One that was put there twice, and is not
there, was brought back and deleted again. One that has a tombstone was deleted by its source, too.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from waybill.destinations.batch import TableBatch

if TYPE_CHECKING:
    import pyarrow as pa

    from waybill.pipelines import TableSpec

Hashes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint64]]"
Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"

MOST_ROWS = 2_000_000
"""Keys of larger tables are not read."""
_PART = 32
"""Cells of each of the three parts."""
_CELLS = 3 * _PART
_ROWS, _LOW, _HIGH, _CHECK = range(4)
_HALF = np.uint64(0xFFFF_FFFF)
_GOLDEN = np.uint64(0x9E37_79B9_7F4A_7C15)
_CHUNK = 1 << 20
"""So many values of 32 bits are summed exactly as floats."""
_MOST_TIMES = 100
_LONG = 256
"""A text of more bytes is hashed by itself."""


@dataclass(frozen=True, slots=True, eq=False)
class KeySums:
    """Sums over keys; those that were taken away count less."""

    cells: Numbers
    """4 x cells: the number of keys, sums of both halves of their hashes, and of a check."""

    @classmethod
    def none(cls) -> KeySums:
        """Return the sums of no key."""
        return cls(np.zeros((4, _CELLS), np.int64))

    @classmethod
    def of(cls, hashes: Hashes) -> KeySums:
        """Return the sums of keys with these hashes. Cost: 25 ns a key."""
        cells = np.zeros((4, _CELLS), np.int64)
        for start in range(0, len(hashes), _CHUNK):
            chunk = hashes[start : start + _CHUNK]
            places, check = _places(chunk)
            sums = (None, chunk & _HALF, chunk >> np.uint64(32), check)
            weights = [None if one is None else one.astype(np.float64) for one in sums]
            for part, place in enumerate(places):
                for row, weight in enumerate(weights):
                    counted = np.bincount(place, weight, minlength=_PART)
                    cells[row, part * _PART : (part + 1) * _PART] += counted.astype(np.int64)
        return cls(cells)

    @classmethod
    def from_text(cls, text: str | None) -> KeySums | None:
        """Return sums that ``to_text`` gave; None: there are none, or not of this form."""
        try:
            packed = zlib.decompress(b64decode(text or "", validate=True))
            return cls(np.frombuffer(packed, "<i8").astype(np.int64).reshape(4, _CELLS))
        except (ValueError, zlib.error):
            return None

    def to_text(self) -> str:
        """Return them as text: at most 4 kB."""
        return b64encode(zlib.compress(self.cells.astype("<i8").tobytes(), 1)).decode()

    def __add__(self, other: KeySums) -> KeySums:
        """Return the sums of both."""
        return KeySums(self.cells + other.cells)

    def __sub__(self, other: KeySums) -> KeySums:
        """Return these sums less the other's."""
        return KeySums(self.cells - other.cells)

    def __bool__(self) -> bool:
        """Say whether there are any."""
        return bool(self.cells.any())

    @property
    def rows(self) -> int:
        """Return the number of keys, less that of those taken away."""
        return int(self.cells[_ROWS, :_PART].sum())

    def keys(self) -> dict[int, int] | None:
        """Return {hash: how often}, less than 0 where more were taken away; None: too many."""
        left, found = self.cells.copy(), dict[int, int]()
        waiting = list(range(_CELLS))
        for _ in range(10 * _CELLS):
            if not waiting:
                break
            cell = waiting.pop()
            single = _single(left[:, cell], cell)
            if single is None:
                continue
            hashed, times = single
            found[hashed] = found.get(hashed, 0) + times
            one = KeySums.of(np.array([hashed], np.uint64)).cells
            left -= times * one
            waiting += np.flatnonzero(one[_ROWS]).tolist()
        return None if left.any() else {key: times for key, times in found.items() if times}


def _places(hashes: Hashes) -> tuple[list[Numbers], Hashes]:
    """Return each key's cell in each part, and its check."""
    mixed = _mixed(hashes ^ _GOLDEN)
    parts = (mixed >> np.uint64(5 * part) & np.uint64(_PART - 1) for part in range(3))
    return [part.astype(np.int64) for part in parts], mixed >> np.uint64(32)


def _single(cell: Numbers, place: int) -> tuple[int, int] | None:
    """Return the key that alone makes up a cell, and how often; None: there is none."""
    rows, low, high, check = (int(value) for value in cell)
    if not rows or low % rows or high % rows or check % rows:
        return None
    halves = (low // rows, high // rows)
    if not all(0 <= half <= int(_HALF) for half in halves):
        return None
    hashed = halves[0] | halves[1] << 32
    [*places], checks = _places(np.array([hashed], np.uint64))
    mine = int(places[place // _PART][0]) == place % _PART
    return (hashed, rows) if mine and int(checks[0]) == check // rows else None


def _mixed(values: Hashes) -> Hashes:
    """Spread bits over all 64: the last steps of SplitMix64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return values ^ (values >> np.uint64(31))


def change_of(batch: TableBatch, added: Numbers | None, gone: Numbers | None = None) -> KeySums:
    """Return the sums of what a load did.

    Args:
        batch: its rows.
        added: ordinals of those that it added; None: all.
        gone: ordinals of those whose key it took away; one more than once: so many rows.
    """
    sums = KeySums.none()
    for ordinals, sign in ((added, 1), (gone, -1)):
        if ordinals is None and sign < 0:
            continue
        if ordinals is not None and not len(ordinals):
            continue
        columns = batch.columns.select(batch.spec.key)
        rows = columns if ordinals is None else columns.take(ordinals)
        part = KeySums.of(key_hashes(key_types(batch.spec), rows.columns))
        sums = sums + part if sign > 0 else sums - part
    return sums


def key_types(spec: TableSpec) -> list[str]:
    """Return the types of a table's key columns."""
    types = {column.name: column.type for column in spec.columns}
    return [types[name] for name in spec.key]


def key_hashes(types: Sequence[str], columns: Sequence[pa.ChunkedArray]) -> Hashes:
    """Return a hash of 64 bits of each key: one for equal values, also after a type was widened.

    Args:
        types: column types of the key.
        columns: its values, in types of Arrow in which the destination gives them.

    Cost: 20 ns a number, 100 ns a text of 20 bytes, 10 µs a JSON value of 30.
    """
    hashes: Hashes | None = None
    for kind, column in zip(types, columns, strict=True):
        own = _hashed(kind, column)
        hashes = own if hashes is None else _mixed(hashes * _GOLDEN + own)
    return no_keys() if hashes is None else hashes


def moments(column: pa.ChunkedArray | pa.Array) -> Numbers:
    """Return times as microseconds since 1970; null: the least number."""
    import pyarrow as pa

    times = column.cast(pa.timestamp("us", getattr(column.type, "tz", None)), safe=False)
    return np.asarray(times.cast(pa.int64()).fill_null(np.iinfo(np.int64).min + 1), np.int64)


def _hashed(kind: str, column: pa.ChunkedArray) -> Hashes:
    import pyarrow as pa

    of = pa.types
    if of.is_date(column.type) or of.is_timestamp(column.type):
        return _mixed(moments(column).view(np.uint64) + _GOLDEN)
    if of.is_integer(column.type) or of.is_boolean(column.type):
        return _whole(column)
    if of.is_floating(column.type):
        return _float(np.asarray(column.cast(pa.float64()).fill_null(0.0), np.float64))
    if kind in ("int32", "int64") or kind.startswith("decimal"):
        return _decimal(column.cast(pa.string()))
    if kind == "json":
        return _json(column.cast(pa.string()))
    return _text(column)


def _whole(column: pa.ChunkedArray) -> Hashes:
    import pyarrow as pa

    values = np.asarray(column.cast(pa.int64()).fill_null(0), np.int64)
    return _mixed(values.view(np.uint64) + _GOLDEN)


def _float(values: np.ndarray[Any, np.dtype[np.float64]]) -> Hashes:
    """Whole numbers are as integers."""
    whole = (np.abs(values) < 2.0**53) & (np.floor(values) == values)
    numbers = np.where(whole, values, 0.0).astype(np.int64).view(np.uint64)
    bits = np.where(whole, numbers, values.view(np.uint64))
    return _mixed(bits + _GOLDEN)


def _decimal(texts: pa.ChunkedArray) -> Hashes:
    """Whole numbers of 64 bits are as integers; zeros at the end do not matter."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = texts.fill_null("0")
    if pc.any(pc.match_substring(texts, "E")).as_py():
        spelt = [format(Decimal(text), "f") for text in texts.to_pylist()]
        texts = pa.chunked_array([pa.array(spelt, pa.string())])
    bare = pc.utf8_rtrim(pc.utf8_rtrim(texts, "0"), ".")
    texts = pc.if_else(pc.match_substring(texts, "."), bare, texts)
    whole = pc.match_substring_regex(texts, r"^-?[0-9]{1,18}$")
    for sign, largest in (("", str(2**63 - 1)), ("-", str(-(2**63)))):
        longest = pc.match_substring_regex(texts, f"^{sign}[0-9]{{19}}$")
        whole = pc.or_(whole, pc.and_(longest, pc.less_equal(texts, largest)))
    numbers = _whole(pc.if_else(whole, texts, "0").cast(pa.int64()))
    return np.where(np.asarray(whole), numbers, _text(texts))


def _json(texts: pa.ChunkedArray) -> Hashes:
    """Hash what JSON says: servers keep no blanks, and order names and write numbers their way."""
    import pyarrow as pa

    said = [text if text is None else _one_spelling(text) for text in texts.to_pylist()]
    return _text(pa.chunked_array([pa.array(said, pa.string())]))


def _one_spelling(text: str) -> str:
    """Return JSON in one spelling of its own; what is none, or is nested too deeply, as it is."""
    try:
        value = json.loads(
            text, parse_int=_one_number, parse_float=_one_number, object_hook=lambda one: {"o": one}
        )
        return json.dumps(value, sort_keys=True)
    except (ValueError, RecursionError):
        return text


def _one_number(text: str) -> dict[str, str]:
    """Return a number such that equal ones are equal, and nothing else: objects have an ``o``."""
    sign, digits, exponent = Decimal(text).as_tuple()
    bare = "".join(map(str, digits)).lstrip("0")
    short = bare.rstrip("0")
    if not short:
        return {"n": "0"}
    power = int(exponent) + len(bare) - len(short)
    return {"n": f"{'-' if sign else ''}{short}e{power}"}


def _text(column: pa.ChunkedArray) -> Hashes:
    """Hash eight bytes of all values at a time."""
    import pyarrow as pa

    values = pa.chunked_array([column.cast(pa.large_binary()).fill_null(b"").combine_chunks()])
    array = values.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0)
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    lengths, starts = np.diff(ends), ends[:-1] - ends[0]
    used = int(ends[-1] - ends[0])
    padded = np.zeros(used + 8, np.uint8)
    if used:
        padded[:used] = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    words = np.ndarray((used + 1,), "<u8", padded.data, 0, (1,))
    hashes = _mixed(lengths.astype(np.uint64) + _GOLDEN)
    for at in range(0, int(min(lengths.max(initial=0), _LONG)), 8):
        have = np.flatnonzero((lengths > at) & (lengths <= _LONG))
        beyond = np.clip(8 - (lengths[have] - at), 0, 8).astype(np.uint64)
        word = words[starts[have] + at] << (beyond * np.uint64(8))
        hashes[have] = _mixed((hashes[have] ^ word) + _GOLDEN)
    for place in np.flatnonzero(lengths > _LONG):
        digest = blake2b(array[int(place)].as_py(), digest_size=8).digest()
        hashes[place] = np.uint64(int.from_bytes(digest, "little"))
    return hashes


def no_keys() -> Hashes:
    """Return no hashes."""
    return np.zeros(0, np.uint64)


def not_missing(
    lacks: KeySums, there: Hashes, loaded_at: Numbers, buried: Callable[[], Hashes]
) -> KeySums:
    """Return the sums of the rows that a table lacks and nobody misses.

    They were brought back, or their source deleted them, too. Where more are lacked than can be
    read, those are tried that the last loads put there, a load more each time: the sums without
    them are of few keys again if just these came back.

    Args:
        lacks: what loads put, less what is there.
        there: the keys that are there.
        loaded_at: when each one was loaded; equal for rows of one load.
        buried: the keys that the source deleted; asked for when it matters.
    """
    for since in _tried(lacks.rows, there, loaded_at):
        back = KeySums.of(since)
        left = (lacks - back).keys()
        if left is not None:
            return back + _others(left, since, there, buried)
    return KeySums.none()


def _tried(lacked: int, there: Hashes, loaded_at: Numbers) -> Iterator[Hashes]:
    """Give no keys, then those of the last load, of the last two, and so on."""
    yield there[:0]
    order = np.argsort(loaded_at, kind="stable")[::-1]
    ends = np.flatnonzero(np.diff(loaded_at[order], append=np.iinfo(np.int64).min)) + 1
    for end in ends[:_MOST_TIMES]:
        if end > lacked + _CELLS:
            return
        if end >= lacked - _CELLS:
            yield there[order[:end]]


def _others(
    left: dict[int, int], since: Hashes, there: Hashes, buried: Callable[[], Hashes]
) -> KeySums:
    """Return what comes to ``since`` of the keys whose numbers differ from it."""
    keys = np.array(list(left), np.uint64)
    again = {int(key): int((since == key).sum()) for key in keys[np.isin(keys, since)]}
    known = set(keys[np.isin(keys, there)].tolist())
    lacked = {key: times + again.get(key, 0) for key, times in left.items()}
    if any(times > 0 and key not in known for key, times in lacked.items()):
        known |= set(keys[np.isin(keys, buried())].tolist())
    sums = KeySums.none()
    for key, times in lacked.items():
        found = max(0, times if key in known else times - 1)
        one = KeySums.of(np.array([key], np.uint64))
        sums = KeySums(sums.cells + (found - again.get(key, 0)) * one.cells)
    return sums
