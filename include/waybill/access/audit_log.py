"""The audit log: who decided what, and why; written in the transaction that does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, or_, select

from waybill.errors import InputError
from waybill.events import rfc3339
from waybill.storage import TrackerStore
from waybill.storage.tracker import audit_log, json_value, pipelines, text_value
from waybill.storage.tracker import parked_partitions as partitions

_DEEPEST = 32
_OF_A_TEAM = ("see_personal_messages", "pin_team", "unpin_team", "move_team", "grow_topic")
"""Actions whose detail names the team that they are about."""
_OF_TEAMS = ("begin_campaign", "pause_campaign", "resume_campaign", "cancel_campaign")
"""Actions whose detail names all teams that they are about."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One person's decision.

    Raises:
        InputError: ``who`` is empty.
    """

    who: str
    why: str = ""
    """The reason; empty only where none is asked for."""
    system_user: str | None = None
    """Who ran the process, beside ``who``, which anybody may give; None: they signed in."""

    def __post_init__(self) -> None:
        """Leave out what no audit log holds."""
        object.__setattr__(self, "who", required_text(self.who, "who"))

    def require_why(self) -> str:
        """Return the reason.

        Raises:
            InputError: there is none.
        """
        return required_text(self.why, "why")

    def beside_who(self) -> dict[str, str]:
        """Return what an entry of the audit log says of it beside ``who``."""
        return {} if self.system_user is None else {"system_user": self.system_user}


def write_audit(
    connection: Connection, *, who: str, action: str, target: str, **detail: object
) -> None:
    """Write who did what, in the transaction that does it; what SQL cannot hold is escaped."""
    connection.execute(
        audit_log.insert().values(
            who=text_value(who),
            action=action,
            target=text_value(target),
            detail=json_value(detail, deepest=_DEEPEST),
        )
    )


def required_text(value: str, name: str) -> str:
    """Return a text that a person must give.

    Raises:
        InputError: it is empty.
    """
    cleaned = text_value(value.replace("\x00", "")).strip()
    if not cleaned:
        raise InputError(f"`{name}` must not be empty: it goes into the audit log")
    return cleaned


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
        audit_log.c.action.in_(_OF_A_TEAM) & detail["team"].astext.in_(teams),
        audit_log.c.action.in_(_OF_TEAMS) & detail["teams"].contained_by(list(teams)),
        audit_log.c.target.in_(own),
        audit_log.c.target.in_(parked),
    )
