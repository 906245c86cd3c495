"""The books that a table's own commits carry: what loads did to it, written with what they did.

A record is JSON, beside the rows in the same commit (Delta: metadata of the commit; Iceberg: a
property of the table, set in the snapshot's own commit):

  rows     rows that all loads added less those they took away
  beside   rows that were there beside them, before the first load or when somebody accepted them
  counted  when ``beside`` was taken
  keys     sums over the keys of both (``key_sums``); null: not known
  cut      older loads were left out of ``loads``
  loads    newest first: {destination, at, first, commits: {number: {rows, replays, parked, batch}}}

Each record carries the loads before it, so that the newest is all that a repeat has to read. A
table may have several loads of which the tracker knows nothing, as a neighbour's table does not
take its part; but a load begins behind what is acknowledged, so that nobody comes back with a
commit before ``first``, the first one that the load was called with. When the record grows, older
loads are left out; the newest load of each destination, and all that have its ``first`` or a later
commit, stay, however large.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import orjson

from waybill.destinations.batch import GroupKey
from waybill.destinations.key_sums import KeySums
from waybill.destinations.model import Commit, LoadOutcome, OutcomeCount
from waybill.destinations.transactional.books import is_same, warn_other

MOST_BYTES = 32 * 1024
"""Older loads are left out of a record that is longer."""


@dataclass(frozen=True, slots=True)
class LoadRecord:
    """A table's books, as its newest load left them."""

    rows: int
    beside: int
    counted: str
    cut: bool
    loads: tuple[Mapping[str, Any], ...]
    keys: str | None = None

    @classmethod
    def new(cls, beside: int, *, cut: bool) -> LoadRecord:
        """Return the books of a table that has these rows and no loads, or whose loads are lost."""
        keys = None if beside else KeySums.none().to_text()
        return cls(0, beside, _now(), cut, (), keys)

    def to_text(self) -> str:
        """Return it as JSON."""
        return orjson.dumps(
            {
                "rows": self.rows,
                "beside": self.beside,
                "counted": self.counted,
                "cut": self.cut,
                "loads": self.loads,
                "keys": self.keys,
            }
        ).decode()

    @classmethod
    def from_text(cls, text: str) -> LoadRecord:
        """Return what ``to_text`` gave."""
        fields = orjson.loads(text)
        return cls(
            fields["rows"],
            fields["beside"],
            fields["counted"],
            fields["cut"],
            tuple(fields["loads"]),
            fields.get("keys"),
        )

    @property
    def sums(self) -> KeySums | None:
        """Return the sums over keys; None: not known, as when an older release loaded since."""
        sums = KeySums.from_text(self.keys)
        return sums if sums is not None and sums.rows == self.rows + self.beside else None

    def stored(self, destination: str, number: int) -> tuple[str, Mapping[str, Any]] | None:
        """Return when a commit was loaded and what became of it; None: not that it knows."""
        for load in self.loads:
            if load["destination"] == destination and str(number) in load["commits"]:
                return load["at"], load["commits"][str(number)]
        return None

    def with_load(
        self,
        destination: str,
        outcomes: Sequence[LoadOutcome],
        change: KeySums,
        batches: Mapping[int, str],
        *,
        first: int,
    ) -> LoadRecord:
        """Return the books after a load.

        Args:
            destination: its name.
            outcomes: what became of the commits' rows for this table.
            change: keys of rows added less those of rows taken away.
            batches: commit number to the id of its micro-batch.
            first: all commits before it are acknowledged, so that no loader comes back with them.
        """
        commits = {
            str(outcome.commit_number): _packed(outcome, batches.get(outcome.commit_number, ""))
            for outcome in outcomes
        }
        load = {"destination": destination, "at": _now(), "first": first, "commits": commits}
        kept, cut = _kept([load, *self.loads])
        known = self.sums
        return replace(
            self,
            rows=self.rows + change.rows,
            cut=self.cut or cut,
            loads=kept,
            keys=None if known is None else (known + change).to_text(),
        )

    def accepted(self, counted: int, keys: KeySums | None) -> LoadRecord:
        """Return the books after somebody said that so many rows, with these keys, are right."""
        text = None if keys is None else keys.to_text()
        return replace(self, beside=counted - self.rows, counted=_now(), keys=text)

    def expecting(self, sums: KeySums) -> LoadRecord:
        """Return the books with these sums over keys; they may be of fewer rows than before."""
        return replace(self, beside=sums.rows - self.rows, keys=sums.to_text())


def _kept(loads: Sequence[Mapping[str, Any]]) -> tuple[tuple[Mapping[str, Any], ...], bool]:
    kept: list[Mapping[str, Any]] = []
    firsts: dict[str, int | None] = {}
    size = 0
    for load in loads:
        size += len(orjson.dumps(load))
        destination = load["destination"]
        is_newest = destination not in firsts
        first = firsts.setdefault(destination, load.get("first"))  # an older release wrote none
        asked_for = first is not None and max(map(int, load["commits"]), default=0) >= first
        if size <= MOST_BYTES or is_newest or asked_for:
            kept.append(load)
    return tuple(kept), len(kept) < len(loads)


def stored_outcome(
    destination: str, commit: Commit, table: str, found: tuple[str, Mapping[str, Any]]
) -> LoadOutcome | None:
    """Return what became of a commit's rows for one table when it was loaded.

    None: the number was loaded for another batch.
    """
    at, packed = found
    counts = [OutcomeCount(*item) for item in packed["rows"]]
    if not is_same(commit, packed.get("batch"), counts):
        warn_other(destination, commit, at, table)
        return None
    return LoadOutcome(commit.number, counts, packed["replays"], tuple(packed["parked"]), None)


def joined_outcome(number: int, pieces: Sequence[LoadOutcome]) -> LoadOutcome:
    """Return the outcome of a commit from those of its rows for each table."""
    import pyarrow as pa

    counts: dict[GroupKey, OutcomeCount] = {}
    replays: dict[str, dict[str, int]] = {}
    parked: dict[str, Mapping[str, Any]] = {}
    rows: list[pa.Table] = []
    for piece in pieces:
        _add_counts(counts, piece.counts)
        for replay_id, numbers in piece.replays.items():
            outcomes = replays.setdefault(replay_id, {})
            for outcome, count in numbers.items():
                outcomes[outcome] = outcomes.get(outcome, 0) + count
        parked |= {json.dumps(item, default=str): item for item in piece.parked}
        if piece.rows is not None:
            rows.append(piece.rows)
    return LoadOutcome(
        number,
        [counts[key] for key in sorted(counts)],
        replays,
        tuple(parked.values()),
        pa.concat_tables(rows) if rows else None,
    )


_NUMBERS = ("in_first", "in_replayed", "delivered", "superseded", "duplicate", "parked")


def _add_counts(counts: dict[GroupKey, OutcomeCount], items: Iterable[OutcomeCount]) -> None:
    for item in items:
        key = (item.pipeline_id, item.event_name, item.intake_minute)
        known = counts.get(key, OutcomeCount(*key))
        sums = {name: getattr(known, name) + getattr(item, name) for name in _NUMBERS}
        counts[key] = OutcomeCount(*key, **sums)


def _packed(outcome: LoadOutcome, batch: str) -> dict[str, Any]:
    rows = [
        [c.pipeline_id, c.event_name, c.intake_minute, *(getattr(c, name) for name in _NUMBERS)]
        for c in outcome.counts
    ]
    named = {"batch": batch} if batch else {}
    return {"rows": rows, "replays": outcome.replays, "parked": list(outcome.parked)} | named


def _now() -> str:
    return datetime.now(UTC).isoformat()
