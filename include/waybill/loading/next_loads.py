"""Which commits a destination is to load next, by the tracker's books."""

from __future__ import annotations

from dataclasses import dataclass

from waybill.ledger import (
    StagedReference,
    commit_age_s,
    last_commit_number,
    staged_after,
    staged_sums,
)
from waybill.loading.sizes import MOST_COMMITS, LoadSizes, is_due, last_of_load
from waybill.storage import TrackerStore


@dataclass(frozen=True, slots=True)
class NextLoad:
    """Commits ``after`` + 1 to ``until``, and the staged objects of those that bring rows."""

    references: list[StagedReference]
    after: int
    until: int


def next_load(
    tracker: TrackerStore, destination: str, sizes: LoadSizes, *, after: int
) -> NextLoad | None:
    """Return what to load now; None: nothing waits, or it is not due.

    Args:
        tracker: the books.
        destination: whose.
        sizes: of its loads.
        after: the commit that it stands at.

    Raises:
        RetryError: the tracker is away.

    Cost: one statement where nothing waits, two or three more where something does, 1 ms each.
    """
    last = last_commit_number(tracker, destination)
    if last <= after:
        return None
    found = staged_sums(tracker, destination, after=after, most=MOST_COMMITS)
    waiting = [item for item in found if item.commit_number <= last]
    if not is_due(sizes, waiting, lambda: commit_age_s(tracker, destination, after + 1)):
        return None
    until = last_of_load(sizes, waiting, after=after, last=last)
    return NextLoad(staged_after(tracker, destination, after=after, until=until), after, until)
