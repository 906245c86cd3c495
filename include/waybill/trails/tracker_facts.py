"""What the tracker knows beside the traces: what became of what parked, replays, loads, batches.

A trace says what happened at its time. Whether what parked then is parked still, is in the rows of
its segment; whether what was staged is loaded, in those of its destination.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, select

from waybill.events import rfc3339
from waybill.parking import Decided, ParkedPlace, Whereabouts, storable
from waybill.storage import TrackerStore
from waybill.storage.tracker import batches, pipelines, replays, staged_objects
from waybill.tracing import Trace

LOOK_S = 5.0
"""Longest that one answer looks for what became of what parked: files may have to be read."""
WhereParked = Callable[[ParkedPlace], Whereabouts | None]
"""Returns what became of a parked event; None: the books do not know it."""


@dataclass(frozen=True, slots=True)
class ParkedNow:
    """What became of an event since it parked at a stop."""

    partition_id: int
    state: str
    """parked, replaying, replayed, discarded, quarantined, copy; what the clean-up took: ``deleted
    after a replay``, ``deleted after a discard``."""
    replay_id: str = ""
    by: str = ""
    """Who discarded it."""
    why: str = ""
    at: datetime | None = None
    """Since when it is so."""
    decisions: tuple[Decided, ...] = ()
    """Discards and their undoing since, the oldest first."""

    @classmethod
    def of(cls, found: Whereabouts) -> ParkedNow:
        """Return what the books say, with the decision that counts."""
        state, at = found.state, found.since
        if state == "deleted":
            state = f"deleted after a {'replay' if found.replay_id else 'discard'}"
        last = found.decisions[-1] if found.decisions else None
        by = why = ""
        if last is not None and last.action == "discard" and "discard" in state:
            by, why, at = last.who, last.why, last.at
        is_replays = state not in ("parked", "discarded", "copy")
        replay_id = (found.replay_id or "") if is_replays else ""
        return cls(found.partition_id, state, replay_id, by, why, at, found.decisions)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "partition_id": self.partition_id,
            "state": self.state,
            "replay_id": self.replay_id,
            "by": self.by,
            "why": self.why,
            "at": None if self.at is None else rfc3339(self.at),
        }


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """A replay."""

    id: str
    run_id: str
    state: str
    requested_by: str


def asked_by(name: str) -> str:
    """Return who asked for a replay, in words: a user of Airflow, or a run that nobody started."""
    return name if "/" in name else f"{name} in Airflow"


@dataclass(frozen=True, slots=True)
class StagedRow:
    """A staged object."""

    destination: str
    commit_number: int
    state: str
    loaded_at: datetime | None


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A micro-batch that committed."""

    consumer: str
    destination: str
    commit_number: int
    committed_at: datetime


@dataclass(frozen=True, slots=True)
class PipelineRow:
    """A pipeline."""

    name: str
    team: str


@dataclass(slots=True)
class Known:
    """What the tracker knows of some stops."""

    pipelines: dict[str, PipelineRow] = field(default_factory=dict)
    parked: dict[ParkedPlace, ParkedNow] = field(default_factory=dict)
    unasked: set[ParkedPlace] = field(default_factory=set)
    """Of these there was no time to ask what became of them."""
    replays: dict[str, ReplayRow] = field(default_factory=dict)
    staged: dict[str, StagedRow] = field(default_factory=dict)
    batches: dict[str, BatchRow] = field(default_factory=dict)

    def parked_now(self, stop: Trace) -> ParkedNow | None:
        """Return what became of what parked at a stop; None: no row tells, or nobody asked."""
        return self.parked.get(place_of(stop))


def place_of(stop: Trace) -> ParkedPlace:
    """Return where an event parked, as its trace says."""
    names = (stop.pipeline_id, stop.event_name, stop.phase, stop.error_type)
    return ParkedPlace(stop.event_id, *names, stop.object_key)


def read_known(tracker: TrackerStore, stops: Sequence[Trace], parked: WhereParked) -> Known:
    """Return what the tracker knows of stops.

    Cost: four statements, and for each stop that parked what ``parked`` costs, for ``LOOK_S`` s.
    """
    known = Known()
    _ask_parked(known, [stop for stop in stops if stop.outcome == "parked"], parked)
    with tracker.transaction() as connection:
        known.pipelines = _pipelines(connection, {stop.pipeline_id for stop in stops})
        ids = {stop.replay_id for stop in stops if stop.replay_id}
        ids |= {now.replay_id for now in known.parked.values() if now.replay_id}
        known.replays = _replays(connection, ids)
        known.staged = _staged(connection, {s.object_key for s in stops if s.phase == "mapping"})
        known.batches = _batches(connection, {stop.batch for stop in stops})
    return known


def _ask_parked(known: Known, stops: Sequence[Trace], parked: WhereParked) -> None:
    until = time.monotonic() + LOOK_S
    for place in dict.fromkeys(place_of(stop) for stop in reversed(stops) if stop.object_key):
        if time.monotonic() > until:
            known.unasked.add(place)
        elif (found := parked(place)) is not None:
            known.parked[place] = ParkedNow.of(found)


def _pipelines(connection: Connection, ids: set[str]) -> dict[str, PipelineRow]:
    query = select(pipelines).where(pipelines.c.id.in_(map(storable, ids)))
    return {row.id: PipelineRow(row.name, row.team) for row in connection.execute(query)}


def _replays(connection: Connection, ids: Iterable[str]) -> dict[str, ReplayRow]:
    columns = [replays.c[name] for name in ("id", "run_id", "state", "requested_by")]
    query = select(*columns).where(replays.c.id.in_(uuids(ids)))
    rows = connection.execute(query)
    return {str(r.id): ReplayRow(str(r.id), r.run_id, r.state, r.requested_by) for r in rows}


def _staged(connection: Connection, keys: set[str]) -> dict[str, StagedRow]:
    columns = [staged_objects.c[n] for n in ("destination", "commit_number", "state", "loaded_at")]
    query = select(staged_objects.c.key, *columns).where(staged_objects.c.key.in_(keys - {""}))
    return {row[0]: StagedRow(*row[1:]) for row in connection.execute(query)}


def _batches(connection: Connection, ids: Iterable[str]) -> dict[str, BatchRow]:
    names = ("consumer", "destination", "commit_number", "committed_at")
    columns = [batches.c[name] for name in names]
    query = select(batches.c.id, *columns).where(batches.c.id.in_(uuids(ids)))
    return {str(row[0]): BatchRow(*row[1:]) for row in connection.execute(query)}


def uuids(texts: Iterable[str]) -> list[UUID]:
    """Return those of the texts that are UUIDs."""
    found = []
    for text in texts:
        try:
            found.append(UUID(text))
        except ValueError:
            continue
    return found
