"""Sums over the keys of a table's rows: which of the rows that a table lacks nobody misses.

By numbers alone a row that somebody deleted, and that a load brought back, is missing for ever:
loads put it there twice, and it is there once. So loads keep, beside the number of rows, sums over
hashes of the keys of rows that they added, less those of rows that they took away. What these are
above the sums over the table is of the keys that are there less often than they were put; up to two
a cell can be read from the sums (two power sums are two equations). One that is in the table was
brought back; one that was put twice and is not there was brought back, and deleted again; one that
has a tombstone was deleted by its source as well.

A key is hashed to 64 bits: 31 of them (``h``) are read from the sums, 33 others (``check``) tell
whether a row has that key. The lowest six bits of ``h`` are the cell.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from math import isqrt
from typing import NamedTuple, TypeAlias

CELLS = 64
H_BITS = 31


class CellSums(NamedTuple):
    """Sums over the keys of one cell."""

    rows: int = 0
    h: int = 0
    squares: int = 0
    """Of ``h``."""
    check: int = 0

    def plus(self, other: CellSums, sign: int = 1) -> CellSums:
        """Return the sums of both; ``sign`` -1: less the other's."""
        return CellSums(*(mine + sign * its for mine, its in zip(self, other, strict=True)))

    def keys(self, cell: int) -> Counter[int]:
        """Return {h: how often} of the keys that make up these sums; empty: it cannot be read."""
        found: list[int] = []
        if self.rows > 0 and self.squares * self.rows == self.h * self.h:
            found = [self.h // self.rows] * self.rows
        elif self.rows == 2:  # noqa: PLR2004 - two unknowns, two equations
            root = isqrt(max(0, 2 * self.squares - self.h * self.h))
            found = [(self.h - root) // 2, (self.h + root) // 2]
        made = (len(found), sum(found), sum(one * one for one in found))
        is_right = made == self[:3] and all(
            0 <= one < 1 << H_BITS and one % CELLS == cell for one in found
        )
        return Counter(found) if is_right else Counter()


KeySums: TypeAlias = Mapping[int, CellSums]
"""By cell; those without rows may be left out."""


def key_of(hashed: int) -> CellSums:
    """Return the sums of one key with this hash of 64 bits."""
    h, check = hashed & (1 << H_BITS) - 1, (hashed >> H_BITS) & (1 << 64 - H_BITS) - 1
    return CellSums(1, h, h * h, check)


def total(mine: KeySums, others: KeySums, sign: int = 1) -> dict[int, CellSums]:
    """Return the sums of both, cells of nothing left out; ``sign`` -1: less the others'."""
    nothing = CellSums()
    sums = {
        cell: mine.get(cell, nothing).plus(others.get(cell, nothing), sign)
        for cell in sorted({*mine, *others})
    }
    return {cell: one for cell, one in sums.items() if one != nothing}


def rows_of(sums: KeySums) -> int:
    """Return the number of rows of all cells."""
    return sum(one.rows for one in sums.values())


def dumped(sums: KeySums) -> str:
    """Return sums as text, for the books."""
    return json.dumps({str(cell): list(one) for cell, one in sums.items()})


def loaded(text: str | None) -> dict[int, CellSums]:
    """Return sums from their text; numbers may be written as texts."""
    found = json.loads(text or "{}")
    return {int(cell): CellSums(*map(int, one)) for cell, one in found.items()}


def wanted_keys(lacks: KeySums) -> set[int]:
    """Return ``h`` of the keys that a table has less often than loads put them, where known."""
    return {h for cell, one in lacks.items() for h in one.keys(cell)}


def not_missing(
    lacks: KeySums, known: Mapping[int, Collection[int]], since: KeySums
) -> dict[int, CellSums]:
    """Return, of the rows that a table lacks, those that nobody misses: brought back, or deleted.

    Args:
        lacks: what loads put, less what is there.
        known: keys that are there, or that the source deleted, by ``h``, of ``wanted_keys``: their
            hashes of 64 bits.
        since: of rows loaded since nothing was missing; a cell that lacks just these has them all.
    """
    found: dict[int, CellSums] = {}
    for cell, one in lacks.items():
        sums = one if one.rows > 0 and since.get(cell) == one else _of_cell(one, cell, known)
        if sums.rows:
            found[cell] = sums
    return found


def _of_cell(lack: CellSums, cell: int, known: Mapping[int, Collection[int]]) -> CellSums:
    found = CellSums()
    for h, times in lack.keys(cell).items():
        hashes = known.get(h, ())
        if len(hashes) > 1:
            continue  # two keys with this h: which one is meant cannot be told
        key, often = CellSums(1, h, h * h, lack.check // times), times - 1
        if hashes:
            [hashed] = hashes
            key, often = key_of(hashed), times
        if times == lack.rows and key.check * times != lack.check:
            continue  # another key with this h
        for _ in range(often):
            found = found.plus(key)
    return CellSums() if found.rows == lack.rows and found != lack else found
