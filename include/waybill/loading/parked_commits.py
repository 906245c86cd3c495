"""Commits that are parked whole, because their destination is not to be waited for any more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from waybill.destinations import (
    PARKED,
    Commit,
    LoadOutcome,
    Rows,
    TableBatch,
    batches_of,
    outcomes_of,
    refused_rows,
)
from waybill.loading.refused_rows import pack_refused, store_packed
from waybill.parking import Packer, new_unloaded_key

if TYPE_CHECKING:
    from waybill.storage import ObjectStore

_ROWS_AT_A_TIME = 5_000
"""Rows that are Python objects at a time, 2 to 5 KB each; what is packed is compressed."""


def park_commits(
    objects: ObjectStore,
    commits: Sequence[Commit],
    origins: Mapping[tuple[str, str], tuple[str, str]],
    *,
    destination: str,
    code: str,
    message: str,
) -> list[LoadOutcome]:
    """Write all rows of some commits into one parked object; return what a load would have.

    Rows have the same numbers in their commit as in a load, so that a trace of this says what
    became of a row of which a load that failed had said something else.

    Args:
        objects: where the object goes.
        commits: with the rows, which are in memory already.
        origins: (pipeline id, event name) to (team, pipeline version).
        destination: whose commits.
        code: the error type under which all are parked.
        message: what the destination said.

    Raises:
        RetryError: the store is away; nothing was parked.

    Cost: about 100 µs a row; memory: the rows, and what is packed of them.
    """
    packer = Packer()
    batches = []
    for commit in commits:
        for batch in _frames_of(commit):
            batch.outcomes[:] = PARKED
            for part in _parts(batch.columns.num_rows):
                rows = refused_rows(batch, dict.fromkeys(part, (code, message)))
                pack_refused(packer, rows, origins)
            batches.append(batch)
    outcomes = outcomes_of(commits, batches)
    if not packer.count:
        return outcomes
    key = new_unloaded_key(destination, commits[-1].number)
    parked = store_packed(objects, packer, key)
    return [replace(one, parked=(parked,)) if one.counts else one for one in outcomes]


def _frames_of(commit: Commit) -> Iterator[TableBatch]:
    """Yield each frame by itself, in the order of a load: frames need not go together."""

    def place(rows: Rows) -> tuple[str, str]:
        return (rows.table.schema_name, rows.table.name)

    for rows in sorted(commit.rows, key=place):
        yield from batches_of([Commit(commit.number, (rows,))])


def _parts(rows: int) -> Iterator[range]:
    for first in range(0, rows, _ROWS_AT_A_TIME):
        yield range(first, min(rows, first + _ROWS_AT_A_TIME))
