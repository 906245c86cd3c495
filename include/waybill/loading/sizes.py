"""How much a load takes, and when: the settings of its destination. Pure functions.

A commit is never cut: a load takes whole commits, at least one, whatever it brings (processing
bounds that: `MOST_BYTES` of ``batch_size``). Bytes are those of rows in memory: staged objects are
compressed, and say little of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from waybill.ledger import StagedSum
from waybill.settings import DestinationSettings

MOST_COMMITS = 2_000
"""Commits of one load: each has at least one object to fetch, and a row in the destination's books;
a destination that was away for a week has millions."""

_SMALL_ROWS = 2_000
_SMALL_BYTES = 4 * 1024**2
"""Beside what a task of an executor costs, a load of no more is nothing."""


def is_small(rows: int, row_bytes: int) -> bool:
    """Tell whether a load is done in the driver, wherever others are."""
    return rows <= _SMALL_ROWS and row_bytes <= _SMALL_BYTES


@dataclass(frozen=True, slots=True)
class LoadSizes:
    """What a destination's settings say of its loads."""

    max_rows: int = 1_000_000
    max_bytes: int = 512 * 1024**2
    min_rows: int = 0
    max_wait_s: float = 0.0

    @classmethod
    def of(cls, settings: DestinationSettings | None) -> Self:
        """Return those of a destination; of one without settings, the defaults."""
        if settings is None:
            return cls()
        return cls(settings.max_rows, settings.max_bytes, settings.min_rows, settings.max_wait_s)


def is_due(sizes: LoadSizes, waiting: Sequence[StagedSum], age_s: Callable[[], float]) -> bool:
    """Tell whether to load now: there is enough, or the first commit has waited long enough.

    Args:
        sizes: of the destination.
        waiting: the first commits that wait, at most ``MOST_COMMITS``.
        age_s: asks how old the first of them is, by the tracker's clock; called only if it matters.
    """
    if not sizes.min_rows or len(waiting) >= MOST_COMMITS:
        return True
    rows, size = sum(item.rows for item in waiting), sum(item.row_bytes for item in waiting)
    if rows >= sizes.min_rows or size >= sizes.max_bytes:
        return True
    return age_s() >= sizes.max_wait_s


def last_of_load(sizes: LoadSizes, waiting: Sequence[StagedSum], *, after: int, last: int) -> int:
    """Return the last commit of the next load; those that bring nothing go with the one before.

    Args:
        sizes: of the destination.
        waiting: the first commits that bring something, in order.
        after: where the destination stands.
        last: the newest commit there is.
    """
    last = min(last, after + MOST_COMMITS)
    rows = size = 0
    for number, item in enumerate(waiting):
        rows, size = rows + item.rows, size + item.row_bytes
        if number and (rows > sizes.max_rows or size > sizes.max_bytes):
            return min(last, item.commit_number - 1)
    return last
