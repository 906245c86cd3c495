"""Holds: pipelines whose events wait unprocessed, because nearly all of them would park.

States of a hold: active, then released; a pipeline has one active hold at most, which an index
sees to. Processing reads the active holds before each batch, so a hold, or a release, counts from
the next batch on. The events wait as parked ones of error type ``pipeline_held``; what waits there
when the pipeline is not held any more is to be replayed: ``to_replay`` lists it from what the
tables say, so that no death between a release and its replays can forget one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Float, cast, func, select, update
from sqlalchemy.dialects.postgresql import insert

from waybill.access import Decision, write_audit
from waybill.errors import InputError
from waybill.events import HELD_ERROR, rfc3339
from waybill.notices import Kind, write_notice
from waybill.storage.tracker import TrackerStore, json_value, pipeline_holds, pipelines, replays
from waybill.storage.tracker import parked_partitions as partitions

BREAKER = "storm breaker"
"""Who holds a pipeline when a storm does."""
FIRST_PROBE_S = 60.0
"""From the hold to its first probe; doubled by each probe that fails, and by each storm that comes
back soon after a release."""
LONGEST_PROBE_S = 3600.0
_SOON_S = LONGEST_PROBE_S
_MOST_DOUBLINGS = 6
_STORM = "storm"
_BY_HAND = "by hand"
_DEEPEST = 32
_TAKEN = ("kind", "pipeline_id", "partition_id")
"""Of a notice itself; a cause may say them too."""


@dataclass(frozen=True, slots=True)
class Hold:
    """One hold of a pipeline."""

    id: int
    pipeline_id: str
    pipeline: str
    """The pipeline's name; its id where no such pipeline is known."""
    cause: dict[str, Any]
    """Of a storm: ``kind`` "storm", version, stage, error_type, place, message, failed, events, and
    ``returned``, the storms that came back before it. By hand: ``kind`` "by hand", ``why``."""
    held_by: str
    held_at: datetime
    probes: int
    """Probes begun; none for a hold by hand."""
    last_probe: dict[str, Any] | None
    """The version that was probed, and what came of it."""
    released_by: str | None
    released_at: datetime | None
    quiet_s: float
    """Seconds since the hold or its last probe, by the tracker's clock."""

    @property
    def is_storm(self) -> bool:
        """False: a person made it, and a person ends it."""
        return bool(self.cause.get("kind") == _STORM)

    @property
    def wait_s(self) -> float:
        """Seconds from the hold, or its last probe, to the next probe."""
        doublings = min(self.probes + int(self.cause.get("returned", 0)), _MOST_DOUBLINGS)
        return min(FIRST_PROBE_S * 2.0**doublings, LONGEST_PROBE_S)

    def is_untried(self, version: str) -> bool:
        """Tell whether this version is neither the one that failed nor the one probed last."""
        return bool((self.last_probe or self.cause).get("version") != version)

    def is_due(self, version: str) -> bool:
        """Tell whether to probe now: the time has come, or another version is active."""
        return self.is_storm and (self.quiet_s >= self.wait_s or self.is_untried(version))

    def to_json(self) -> dict[str, Any]:
        """Return the hold as JSON."""
        plain = {
            name: rfc3339(value) if isinstance(value, datetime) else value
            for name, value in asdict(self).items()
        }
        return plain | {"wait_s": self.wait_s if self.is_storm else None}


def held_pipelines(tracker: TrackerStore) -> frozenset[str]:
    """Return the ids of the pipelines that are held now."""
    query = select(pipeline_holds.c.pipeline_id).where(pipeline_holds.c.released_at.is_(None))
    with tracker.transaction() as connection:
        return frozenset(str(row[0]) for row in connection.execute(query))


def read_holds(tracker: TrackerStore, *, active: bool = True) -> list[Hold]:
    """Return the active holds, or all there ever were, the oldest first."""
    query = _select_holds().order_by(pipeline_holds.c.id)
    if active:
        query = query.where(pipeline_holds.c.released_at.is_(None))
    with tracker.transaction() as connection:
        return [Hold(*row) for row in connection.execute(query)]


def record_storm(connection: Connection, pipeline_id: str, cause: Mapping[str, Any]) -> bool:
    """Hold a pipeline in the transaction that commits the events which are held first.

    Returns:
        False: it is held already, by another; then nothing is written.
    """
    full = {"kind": _STORM, **cause, "returned": _returned(connection, pipeline_id)}
    return _insert(connection, pipeline_id, full, Decision(BREAKER)) is not None


def hold(tracker: TrackerStore, pipeline_id: str, decision: Decision) -> Hold:
    """Hold a pipeline by hand: only a person releases it; see ``Parking.hold``."""
    cause = {"kind": _BY_HAND, "why": decision.require_why()}
    with tracker.transaction() as connection:
        made = _insert(connection, pipeline_id, cause, decision)
        if made is None:
            raise InputError(
                f"pipeline {pipeline_id!r} is held already; `waybill pipelines holds` says why"
            )
        return _read(connection, made)


def release(tracker: TrackerStore, pipeline_id: str, decision: Decision) -> Hold:
    """End a pipeline's hold by hand; see ``Parking.release``."""
    decision.require_why()
    active = select(pipeline_holds.c.id).where(
        pipeline_holds.c.pipeline_id == pipeline_id, pipeline_holds.c.released_at.is_(None)
    )
    with tracker.transaction() as connection:
        number = connection.execute(active).scalar()
        if number is None or not _end(connection, int(number), decision):
            raise InputError(f"pipeline {pipeline_id!r} is not held")
        return _read(connection, int(number))


def begin_probe(tracker: TrackerStore, found: Hold, version: str) -> bool:
    """Count a probe before it runs: one that never ends is not begun again at once.

    Returns:
        False: another probe has begun since ``found`` was read, or the hold is over.
    """
    begun = (
        update(pipeline_holds)
        .where(
            pipeline_holds.c.id == found.id,
            pipeline_holds.c.probes == found.probes,
            pipeline_holds.c.released_at.is_(None),
        )
        .values(
            probes=found.probes + 1,
            probed_at=func.clock_timestamp(),
            last_probe={"version": version, "outcome": "not finished"},
        )
    )
    with tracker.transaction() as connection:
        return connection.execute(begun).rowcount == 1


def end_probe(tracker: TrackerStore, found: Hold, said: Mapping[str, Any], *, passed: bool) -> bool:
    """Write what a probe found, and release the hold if it passed.

    Returns:
        True: released by this call.
    """
    wrote = (
        update(pipeline_holds)
        .where(pipeline_holds.c.id == found.id, pipeline_holds.c.released_at.is_(None))
        .values(last_probe=_plain(said))
    )
    with tracker.transaction() as connection:
        if connection.execute(wrote).rowcount != 1 or not passed:
            return False
        return _end(connection, found.id, Decision("probe", "a probe passed"), probe=dict(said))


def held_groups(tracker: TrackerStore, pipeline_id: str) -> list[tuple[int, int]]:
    """Return (partition id, events parked) where a pipeline's held events wait, largest first."""
    query = (
        select(partitions.c.id, partitions.c.parked)
        .where(
            partitions.c.pipeline_id == pipeline_id,
            partitions.c.error_type == HELD_ERROR,
            partitions.c.parked > 0,
        )
        .order_by(partitions.c.parked.desc(), partitions.c.id)
    )
    with tracker.transaction() as connection:
        return [(int(row[0]), int(row[1])) for row in connection.execute(query)]


def to_replay(tracker: TrackerStore) -> list[int]:
    """Return the ids of the partitions whose held events are to go back: their hold is over.

    Left out: those that a replay is taking, and those whose replay since the release somebody
    cancelled.
    """
    active = select(pipeline_holds.c.id).where(
        pipeline_holds.c.pipeline_id == partitions.c.pipeline_id,
        pipeline_holds.c.released_at.is_(None),
    )
    released = (
        select(func.max(pipeline_holds.c.released_at))
        .where(pipeline_holds.c.pipeline_id == partitions.c.pipeline_id)
        .scalar_subquery()
    )
    taken = select(replays.c.id).where(
        replays.c.partition_id == partitions.c.id,
        (replays.c.state == "running")
        | ((replays.c.state == "cancelled") & (replays.c.finished_at >= released)),
    )
    query = select(partitions.c.id).where(
        partitions.c.error_type == HELD_ERROR,
        partitions.c.parked > 0,
        ~active.exists(),
        ~taken.exists(),
    )
    with tracker.transaction() as connection:
        return [int(row[0]) for row in connection.execute(query.order_by(partitions.c.id))]


def _insert(
    connection: Connection, pipeline_id: str, cause: Mapping[str, Any], decision: Decision
) -> int | None:
    who = decision.who
    row = insert(pipeline_holds).values(pipeline_id=pipeline_id, cause=_plain(cause), held_by=who)
    once = row.on_conflict_do_nothing(
        index_elements=[pipeline_holds.c.pipeline_id],
        index_where=pipeline_holds.c.released_at.is_(None),
    ).returning(pipeline_holds.c.id)
    made = connection.execute(once).scalar()
    if made is None:
        return None
    _tell(connection, "hold", pipeline_id, hold=int(made), held_by=who, **cause)
    # messages can quote personal values, and the audit log is read by more people
    said = {name: value for name, value in cause.items() if name != "message"}
    detail = {"hold": int(made), "cause": said, **decision.beside_who()}
    write_audit(connection, who=who, action="hold", target=pipeline_id, **detail)
    return int(made)


def _end(connection: Connection, hold_id: int, decision: Decision, **found: object) -> bool:
    who, detail = decision.who, {"hold": hold_id, "why": decision.require_why(), **found}
    ended = (
        update(pipeline_holds)
        .where(pipeline_holds.c.id == hold_id, pipeline_holds.c.released_at.is_(None))
        .values(released_by=who, released_at=func.clock_timestamp())
        .returning(pipeline_holds.c.pipeline_id)
    )
    pipeline_id = connection.execute(ended).scalar()
    if pipeline_id is None:
        return False
    said = detail | decision.beside_who()
    write_audit(connection, who=who, action="release", target=str(pipeline_id), **said)
    _tell(connection, "release", str(pipeline_id), released_by=who, **detail)
    return True


def _plain(said: Mapping[str, Any]) -> Any:
    """Return what user code may have said as ``jsonb`` takes it."""
    return json_value(dict(said), deepest=_DEEPEST)


def _tell(connection: Connection, /, notice: Kind, pipeline: str, **detail: Any) -> None:
    """Write what the owner is to be told, in the transaction that does it."""
    said = {name: value for name, value in detail.items() if name not in _TAKEN}
    write_notice(connection, kind=notice, pipeline_id=pipeline, **said)


def _returned(connection: Connection, pipeline_id: str) -> int:
    """Return how many storms in a row came back soon after the release of the one before."""
    age_s = func.extract("epoch", func.clock_timestamp() - pipeline_holds.c.released_at)
    query = (
        select(pipeline_holds.c.cause, age_s)
        .where(
            pipeline_holds.c.pipeline_id == pipeline_id, pipeline_holds.c.released_at.is_not(None)
        )
        .order_by(pipeline_holds.c.id.desc())
    )
    last = connection.execute(query.limit(1)).first()
    if last is None or last[0].get("kind") != _STORM or float(last[1]) > _SOON_S:
        return 0
    return int(last[0].get("returned", 0)) + 1


def _select_holds() -> Any:
    hold_ = pipeline_holds.c
    quiet = func.clock_timestamp() - func.coalesce(hold_.probed_at, hold_.held_at)
    return select(
        hold_.id,
        hold_.pipeline_id,
        func.coalesce(pipelines.c.name, hold_.pipeline_id),
        hold_.cause,
        hold_.held_by,
        hold_.held_at,
        hold_.probes,
        hold_.last_probe,
        hold_.released_by,
        hold_.released_at,
        cast(func.extract("epoch", quiet), Float),
    ).select_from(pipeline_holds.outerjoin(pipelines, pipelines.c.id == hold_.pipeline_id))


def _read(connection: Connection, hold_id: int) -> Hold:
    return Hold(*connection.execute(_select_holds().where(pipeline_holds.c.id == hold_id)).one())
