"""Partitions that somebody marked to be replayed by themselves when their cause changes.

A mark keeps how the cause stood when it was last looked at (``seen``). Looking is not acting:
``seen`` moves to a changed cause only once the replay was launched, so that a kill in between
launches it again, under the same run id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, get_args

from sqlalchemy import Connection, func, select, update
from sqlalchemy.dialects.postgresql import insert

from waybill.access import Decision, write_audit
from waybill.errors import InputError
from waybill.events import rfc3339
from waybill.parking.states import lock_group
from waybill.storage import TrackerStore
from waybill.storage.tracker import auto_replays as marks

OnChange = Literal["version", "destination", "any"]
"""A new version of the pipeline; the destination healthy again after it was away; either."""


@dataclass(frozen=True, slots=True)
class AutoReplay:
    """One partition's mark."""

    partition_id: int
    on_change: OnChange
    asked_by: str
    asked_at: datetime
    seen: Mapping[str, Any]
    """"version": the pipeline's; "destination": "healthy" or "away"; "away_since"."""
    last_run_id: str
    """Of the replay that it launched last; empty: none yet."""
    tried_at: datetime | None

    def to_json(self) -> dict[str, Any]:
        """Return the mark as JSON."""
        return {
            "partition_id": self.partition_id,
            "on_change": self.on_change,
            "asked_by": self.asked_by,
            "asked_at": rfc3339(self.asked_at),
            "last_run_id": self.last_run_id,
            "tried_at": None if self.tried_at is None else rfc3339(self.tried_at),
        }


_FIELDS = tuple(marks.c[name] for name in AutoReplay.__slots__)


def set_mark(
    tracker: TrackerStore,
    partition_id: int,
    *,
    on_change: str,
    seen: Mapping[str, Any],
    decision: Decision,
) -> AutoReplay:
    """Mark a partition, or change its mark.

    Raises:
        InputError: no such partition, or ``on_change`` is none of ``OnChange``.
    """
    if on_change not in get_args(OnChange):
        known = ", ".join(get_args(OnChange))
        raise InputError(f"on_change: {on_change!r} is not one of {known}")
    values = {"on_change": on_change, "asked_by": decision.who, "seen": dict(seen)}
    with tracker.transaction() as connection:
        lock_group(connection, partition_id)
        statement = insert(marks).values(partition_id=partition_id, **values)
        connection.execute(
            statement.on_conflict_do_update(
                index_elements=["partition_id"],
                set_={**values, "asked_at": func.clock_timestamp()},
            )
        )
        _write(connection, "auto_replay_on", decision, partition_id, on_change=on_change)
        found = connection.execute(select(*_FIELDS).where(marks.c.partition_id == partition_id))
        return AutoReplay(*found.one())


def remove_mark(tracker: TrackerStore, partition_id: int, decision: Decision) -> bool:
    """Take a partition's mark away; False: it had none."""
    with tracker.transaction() as connection:
        gone = marks.delete().where(marks.c.partition_id == partition_id)
        if connection.execute(gone).rowcount == 0:
            return False
        _write(connection, "auto_replay_off", decision, partition_id)
    return True


def read_mark(tracker: TrackerStore, partition_id: int) -> AutoReplay | None:
    """Return a partition's mark."""
    query = select(*_FIELDS).where(marks.c.partition_id == partition_id)
    with tracker.transaction() as connection:
        row = connection.execute(query).first()
    return None if row is None else AutoReplay(*row)


def read_marks(tracker: TrackerStore) -> list[AutoReplay]:
    """Return all marks, by partition."""
    with tracker.transaction() as connection:
        rows = connection.execute(select(*_FIELDS).order_by(marks.c.partition_id))
        return [AutoReplay(*row) for row in rows]


def note_seen(
    tracker: TrackerStore,
    partition_id: int,
    *,
    before: Mapping[str, Any],
    seen: Mapping[str, Any],
    run_id: str | None = None,
) -> bool:
    """Write how a cause stands, unless somebody wrote it since ``before`` was read.

    Args:
        tracker: the books.
        partition_id: whose mark.
        before: ``seen`` as it was read.
        seen: as it is now.
        run_id: of the replay that the change launched.

    Returns:
        False: the mark was changed or taken away meanwhile.
    """
    values: dict[str, Any] = {"seen": dict(seen)}
    if run_id is not None:
        values |= {"last_run_id": run_id, "tried_at": func.clock_timestamp()}
    statement = (
        update(marks)
        .where(marks.c.partition_id == partition_id, marks.c.seen == dict(before))
        .values(**values)
    )
    with tracker.transaction() as connection:
        return bool(connection.execute(statement).rowcount)


def _write(
    connection: Connection, action: str, decision: Decision, partition_id: int, **detail: object
) -> None:
    target, said = f"partition {partition_id}", {**decision.beside_who(), **detail}
    write_audit(connection, who=decision.who, action=action, target=target, **said)
