"""The audit log as the people of a team may read it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, func, or_, select

from waybill.parking.instants import rfc3339
from waybill.storage import TrackerStore
from waybill.storage.tracker.tables import audit_log, pipelines
from waybill.storage.tracker.tables import parked_partitions as partitions


def read_audit(
    tracker: TrackerStore, teams: tuple[str, ...] | None, *, limit: int
) -> list[dict[str, Any]]:
    """Return the newest entries about these teams; None: all there are."""
    fields = [audit_log.c[name] for name in ("at", "who", "action", "target", "detail")]
    query = select(*fields).order_by(audit_log.c.id.desc()).limit(limit)
    if teams is not None:
        query = query.where(_about(teams))
    with tracker.transaction() as connection:
        rows = [dict(row) for row in connection.execute(query).mappings()]
    return [row | {"at": rfc3339(row["at"])} for row in rows]


def _about(teams: tuple[str, ...]) -> ColumnElement[bool]:
    """Return the condition that an audit entry names a pipeline or a partition of these teams."""
    own = select(pipelines.c.id).where(pipelines.c.team.in_(teams))
    target = func.concat("partition ", partitions.c.id)
    parked = select(target).where(partitions.c.pipeline_id.in_(own))
    detail = audit_log.c.detail
    return or_(
        detail["pipeline_id"].astext.in_(own),
        detail["filter"]["pipeline_id"].astext.in_(own),
        (audit_log.c.action == "see_personal_messages") & detail["team"].astext.in_(teams),
        audit_log.c.target.in_(own),
        audit_log.c.target.in_(parked),
    )
