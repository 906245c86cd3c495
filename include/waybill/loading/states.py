"""Destinations that do not take their loads, as the tracker knows them: table destination_states.

The loader writes what happened, under its lease; people write what they want. All functions that
take a connection are part of the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Float, cast, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from waybill.access import Decision, write_audit
from waybill.errors import InputError
from waybill.notices import write_notice
from waybill.storage import TrackerStore
from waybill.storage.tracker import destination_states as states
from waybill.storage.tracker import pipeline_versions, text_value

LOADER = "loading"
"""Who parks when the settings say so, in the audit log."""
TELL_AFTER_S = 300.0
"""Owners are told of a destination that is waited for this long."""
_LONGEST_ERROR = 2000


@dataclass(frozen=True, slots=True)
class Waiting:
    """One destination that does not take its loads."""

    destination: str
    since: datetime
    """Of the first load that it did not take."""
    waited_s: float
    """Seconds since then, by the tracker's clock."""
    tried_at: datetime
    """When it was last tried; the loader says so every 10 s at most."""
    attempts: int
    code: str
    """The error type of what it said last; what is parked is parked under it."""
    error: str
    told_at: datetime | None
    parked_from: int | None
    """The first commit number that was parked; None: nothing is."""
    asked_at: datetime | None
    """When somebody ordered by hand that what waits is parked; None: nobody did."""
    asked_by: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        times = {n: v.isoformat() for n, v in fields.items() if isinstance(v, datetime)}
        return fields | times | {"waited_s": round(self.waited_s, 3)}


def read_waiting(connection: Connection, destination: str) -> Waiting | None:
    """Return how a destination is waited for; None: it takes its loads."""
    row = connection.execute(_select().where(states.c.destination == destination)).first()
    return None if row is None else Waiting(*row)


def all_waiting(tracker: TrackerStore) -> dict[str, Waiting]:
    """Return all destinations that are waited for, by name."""
    with tracker.transaction() as connection:
        rows = connection.execute(_select().order_by(states.c.destination))
        return {row[0]: Waiting(*row) for row in rows}


def note_failure(
    connection: Connection, destination: str, *, code: str, error: str, attempts: int
) -> Waiting:
    """Note that a load was not taken; after some minutes, tell the owners, once."""
    values = {
        "tried_at": func.clock_timestamp(),
        "attempts": attempts,
        "code": code,
        "error": text_value(error, longest=_LONGEST_ERROR),
    }
    row = insert(states).values(
        destination=destination, waiting_since=func.clock_timestamp(), **values
    )
    connection.execute(
        row.on_conflict_do_update(index_elements=[states.c.destination], set_=values)
    )
    found = _stands(connection, destination)
    if found.told_at is None and found.waited_s >= TELL_AFTER_S:
        _tell(connection, found, "takes no loads; they wait, and nothing is lost")
        connection.execute(_of(destination).values(told_at=func.clock_timestamp()))
    return found


def note_parking(connection: Connection, found: Waiting, commit_number: int) -> None:
    """Note the first commit that is parked, in the transaction that parks it."""
    begun = _of(found.destination).where(states.c.parked_from.is_(None))
    if connection.execute(begun.values(parked_from=commit_number)).rowcount == 1:
        audit_destination(
            connection,
            LOADER,
            "park_loads",
            found.destination,
            from_commit=commit_number,
            error_type=found.code,
            ordered_by=found.asked_by or "park_after_s",
            waited_s=round(found.waited_s),
        )


def note_taken(connection: Connection, destination: str, commit_number: int | None) -> None:
    """End the wait of a destination that took a load; None: it only answers again."""
    waiting = read_waiting(connection, destination)
    if waiting is None:
        return
    connection.execute(delete(states).where(states.c.destination == destination))
    if waiting.told_at is not None:
        _tell(connection, waiting, "takes loads again")
    if waiting.parked_from is not None or waiting.asked_at is not None:
        detail = {"from_commit": waiting.parked_from, "loaded_commit": commit_number}
        audit_destination(connection, LOADER, "end_parking_loads", destination, **detail)


def ask_to_park(tracker: TrackerStore, destination: str, decision: Decision) -> Waiting:
    """Order that what waits for a destination is parked, until it takes a load.

    Raises:
        InputError: it is not waited for, or the order stands already.
    """
    why = decision.require_why()
    with tracker.transaction() as connection:
        asked = _of(destination).where(states.c.park_asked_at.is_(None))
        values = {"park_asked_at": func.clock_timestamp(), "park_asked_by": decision.who}
        if connection.execute(asked.values(**values, park_reason=why)).rowcount != 1:
            _refuse(read_waiting(connection, destination), destination)
        said = {"why": why, **decision.beside_who()}
        audit_destination(connection, decision.who, "park_destination", destination, **said)
        return _stands(connection, destination)


def take_back(tracker: TrackerStore, destination: str, decision: Decision) -> Waiting:
    """Take the order back: what comes from now on waits again. What is parked stays parked.

    Raises:
        InputError: there is no order.
    """
    why = decision.require_why()
    with tracker.transaction() as connection:
        ordered = _of(destination).where(states.c.park_asked_at.is_not(None))
        none = {"park_asked_at": None, "park_asked_by": "", "park_reason": ""}
        if connection.execute(ordered.values(**none, parked_from=None)).rowcount != 1:
            raise InputError(_no_order(read_waiting(connection, destination), destination))
        said = {"why": why, **decision.beside_who()}
        audit_destination(connection, decision.who, "unpark_destination", destination, **said)
        return _stands(connection, destination)


def _refuse(found: Waiting | None, destination: str) -> None:
    if found is None:
        raise InputError(
            f"destination {destination!r} takes its loads: nothing is waiting that could be parked "
            "(`waybill destination list`)"
        )
    raise InputError(
        f"{found.asked_by} already asked to park what waits for destination {destination!r}, at "
        f"{found.asked_at:%Y-%m-%d %H:%M} UTC ({found.reason})"
    )


def _no_order(found: Waiting | None, destination: str) -> str:
    if found is not None and found.parked_from is not None:
        return (
            f"the settings of destination {destination!r} park what waits for it: raise or remove "
            "park_after_s, and restart loading"
        )
    return f"nobody asked to park what waits for destination {destination!r}"


def _select() -> Any:
    age = cast(func.extract("epoch", func.clock_timestamp() - states.c.waiting_since), Float)
    return select(
        states.c.destination,
        states.c.waiting_since,
        age,
        states.c.tried_at,
        states.c.attempts,
        states.c.code,
        states.c.error,
        states.c.told_at,
        states.c.parked_from,
        states.c.park_asked_at,
        states.c.park_asked_by,
        states.c.park_reason,
    )


def _stands(connection: Connection, destination: str) -> Waiting:
    return Waiting(*connection.execute(_select().where(states.c.destination == destination)).one())


def _of(destination: str) -> Any:
    return update(states).where(states.c.destination == destination)


def audit_destination(
    connection: Connection, who: str, action: str, destination: str, **detail: object
) -> None:
    """Write a line about a destination into the audit log."""
    target = f"destination {destination}"
    write_audit(connection, who=who, action=action, target=target, **detail)


def _tell(connection: Connection, found: Waiting, happened: str) -> None:
    since = f"{found.since:%Y-%m-%d %H:%M} UTC"
    tell_owners(connection, found.destination, happened, since=since, message=found.error)


def tell_owners(connection: Connection, destination: str, happened: str, **detail: str) -> None:
    """Tell the owners of all pipelines into a destination; a pipeline keeps its destination."""
    for pipeline_id in pipelines_into(connection, destination):
        write_notice(
            connection,
            kind="destination",
            pipeline_id=pipeline_id,
            partition_id=None,
            destination=f"{destination} {happened}",
            **detail,
            see="waybill destination list",
        )


def pipelines_into(connection: Connection, destination: str) -> Iterable[str]:
    """Return the ids of pipelines that go to a destination."""
    versions = pipeline_versions.c
    into = versions.declaration["destination"].astext == destination
    query = select(versions.pipeline_id).where(into).distinct().order_by(versions.pipeline_id)
    return [str(row[0]) for row in connection.execute(query)]
