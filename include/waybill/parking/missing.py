"""The alarm for rows whose object is gone: raised once an object, to each owner of events in it.

A notice for each pipeline that has events in the object, and one line in the audit log, both in the
transaction that finds that neither was written before. The rows stay as they are: the object may
be restored, and a replay that comes to it says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, and_, func, literal, or_, select
from sqlalchemy.dialects.postgresql import insert

from waybill.access import write_audit
from waybill.parking.marks import IS_UNMARKED
from waybill.storage import AdvisoryLock, TrackerStore
from waybill.storage.tracker import audit_log, notices, segments
from waybill.storage.tracker import parked_partitions as partitions

KIND = "missing"
_ACTION = "object_missing"


def raise_alarm(tracker: TrackerStore, keys: Sequence[str]) -> None:
    """Tell of objects that rows name and the store does not have; again changes nothing."""
    if not keys:
        return
    with tracker.transaction() as connection:
        # two refreshes at once would both find nothing written
        AdvisoryLock.MISSING_OBJECTS.take(connection)
        _write_notices(connection, keys)
        told = select(audit_log.c.target).where(
            audit_log.c.action == _ACTION, audit_log.c.target.in_(list(keys))
        )
        known = {str(row[0]) for row in connection.execute(told)}
        for key in keys:
            if key not in known:
                write_audit(connection, who="refresh_tracker", action=_ACTION, target=key)


def _write_notices(connection: Connection, keys: Sequence[str]) -> None:
    own = segments.c
    there = or_(
        own.state == "quarantined", and_(own.state.in_(("parked", "replaying")), IS_UNMARKED)
    )
    held: Any = func.coalesce(func.sum(own.count).filter(there), 0)
    detail = func.jsonb_build_object(
        "object_key", own.object_key, "segments", func.count(), "events_held", held
    )
    each = (
        select(literal(KIND), partitions.c.pipeline_id, detail)
        .join_from(segments, partitions, partitions.c.id == own.partition_id)
        .where(own.object_key.in_(list(keys)), own.state.not_in(("replaced", "deleted")))
        .group_by(own.object_key, partitions.c.pipeline_id)
    )
    statement = insert(notices).from_select(["kind", "pipeline_id", "detail"], each)
    connection.execute(statement.on_conflict_do_nothing())
