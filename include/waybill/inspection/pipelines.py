"""Pipelines, a line each: how far behind they are, what is parked, held, and failed last; rates.

A page costs the same however many pipelines there are and however deep it lies: it is cut by name,
and all else is read for its pipelines only. Rates are events by
the minute in which they came in, and by the one in which a destination took them, whenever they
came in. The last two minutes are left out: their books are not folded yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, text

from waybill.clusters import read_topic_looks
from waybill.ledger import live_names
from waybill.pipelines import topic_name
from waybill.storage import TrackerStore

MOST_PIPELINES = 100
"""Of a page, and of which rates are asked for at once."""
RATE_MINUTES = 60
_UNFOLDED_MINUTES = 2
_LONGEST = "SET LOCAL statement_timeout = '10s'"
_HOLD = """
LEFT JOIN pipeline_holds AS hold ON hold.pipeline_id = pipelines.id AND hold.released_at IS NULL
"""
_ACTIVE = """
LEFT JOIN LATERAL (
  SELECT declaration->>'destination' AS destination FROM pipeline_versions
  WHERE pipeline_id = pipelines.id ORDER BY number DESC LIMIT 1) AS active ON true
"""
_MATCHES = """
WHERE (CAST(:teams AS text[]) IS NULL OR pipelines.team = ANY(:teams))
  AND (:words = '' OR position(lower(:words) IN lower(pipelines.name)) > 0
    OR position(lower(:words) IN lower(pipelines.team)) > 0)
  AND NOT EXISTS (SELECT FROM undeployments AS gone
    WHERE gone.pipeline_id = pipelines.id AND gone.done_at IS NOT NULL)
  AND (NOT :attention OR hold.id IS NOT NULL OR EXISTS (
    SELECT FROM parked_partitions AS parked
    WHERE parked.pipeline_id = pipelines.id AND (parked.parked > 0 OR parked.replaying > 0)))
"""
_PAGE = text(f"""
SELECT pipelines.id, pipelines.name, pipelines.team, active.destination,
  hold.held_at, hold.cause->>'kind' AS hold_kind
FROM pipelines {_HOLD} {_ACTIVE} {_MATCHES}
  AND (CAST(:after AS text) IS NULL OR pipelines.name > :after)
ORDER BY pipelines.name LIMIT :most
""")
_TOTAL = text(f"""
SELECT count(*) AS pipelines, count(hold.id) AS held FROM pipelines {_HOLD} {_MATCHES}
""")
_PARKED = text("""
SELECT pipeline_id, sum(parked)::bigint AS parked, sum(replaying)::bigint AS replaying
FROM parked_partitions WHERE pipeline_id = ANY(:ids) GROUP BY 1
""")
_LAST_ERRORS = text("""
SELECT DISTINCT ON (pipeline_id) pipeline_id, id, event_name, stage, error_type, last_parked_at
FROM parked_partitions WHERE pipeline_id = ANY(:ids) ORDER BY pipeline_id, last_parked_at DESC
""")
_RATES = text("""
SELECT pipeline_id, minute, sum(came_in)::bigint AS came_in, sum(delivered)::bigint AS delivered
FROM (
  SELECT pipeline_id, minute, in_first AS came_in, 0 AS delivered FROM ledger_minutes
  WHERE pipeline_id = ANY(:ids) AND minute >= :since AND minute < :until AND stage = 'ingestion'
  UNION ALL
  SELECT pipeline_id, minute, 0, delivered FROM delivered_minutes
  WHERE pipeline_id = ANY(:ids) AND minute >= :since AND minute < :until) AS events
GROUP BY 1, 2
""")


@dataclass(frozen=True, slots=True)
class PipelineFilter:
    """Which pipelines."""

    teams: tuple[str, ...] | None = None
    """Only of these; None: of all."""
    words: str = ""
    """In the name of the pipeline, or of its team; upper and lower case are alike."""
    attention: bool = False
    """Only those that are held, or have events parked."""


@dataclass(frozen=True, slots=True)
class LastError:
    """What parked last."""

    partition_id: int
    """Of the parked group."""
    event_name: str
    stage: str
    error_type: str
    at: datetime


@dataclass(frozen=True, slots=True)
class PipelineLine:
    """One pipeline."""

    id: str
    name: str
    team: str
    destination: str | None
    """None: no version of it is deployed."""
    lag_s: float | None
    """For how long the oldest unread event of its topic waits; None: not known."""
    lag_at: datetime | None
    """When that was looked at."""
    parked: int
    replaying: int
    held_at: datetime | None
    """Since when all its events are parked at once; None: they are not."""
    hold_kind: str | None
    """storm, or by hand."""
    last_error: LastError | None


@dataclass(frozen=True, slots=True)
class PipelinePage:
    """A page of pipelines, by name."""

    pipelines: tuple[PipelineLine, ...]
    next: str | None
    """The name to go on after; None: this was the last page."""
    total: int
    """Of all that match,"""
    held: int
    """and those of them that are held."""


@dataclass(frozen=True, slots=True)
class PipelineRates:
    """Events by minute."""

    since: datetime
    """Where the first minute begins."""
    came_in: Mapping[str, Sequence[int]]
    """By pipeline id, a number for each of ``RATE_MINUTES``."""
    delivered: Mapping[str, Sequence[int]]
    """What a destination took in each, whenever it came in; replayed events as well."""


def pipeline_page(
    tracker: TrackerStore, wanted: PipelineFilter, *, limit: int = 50, after: str | None = None
) -> PipelinePage:
    """Return a page of the pipelines that match.

    Args:
        tracker: the books.
        wanted: which.
        limit: most pipelines, up to ``MOST_PIPELINES``.
        after: ``next`` of the page before.

    Raises:
        RetryError: the tracker does not answer.

    Cost: a look at each pipeline's name (and for ``attention`` at its parked groups), and at the
    parked groups of those on the page.
    """
    most = min(limit, MOST_PIPELINES)
    asked = {
        "teams": None if wanted.teams is None else list(wanted.teams),
        "words": wanted.words,
        "attention": wanted.attention,
        "after": after,
        "most": most + 1,
    }
    with tracker.transaction() as connection:
        connection.execute(text(_LONGEST))
        rows = connection.execute(_PAGE, asked).all()
        total = connection.execute(_TOTAL, asked).one()
        lines = _lines(connection, rows[:most])
    return PipelinePage(
        tuple(lines),
        lines[-1].name if len(rows) > most else None,
        int(total.pipelines),
        int(total.held),
    )


def _lines(connection: Connection, rows: Sequence[Any]) -> list[PipelineLine]:
    asked = {"ids": [row.id for row in rows]}
    parked = {row.pipeline_id: row for row in connection.execute(_PARKED, asked)}
    errors = {
        row.pipeline_id: LastError(
            int(row.id), row.event_name, row.stage, row.error_type, row.last_parked_at
        )
        for row in connection.execute(_LAST_ERRORS, asked)
    }
    topics = {row.id: topic_name(row.team, row.destination) for row in rows if row.destination}
    names = live_names(connection, set(topics.values()))
    looks = read_topic_looks(connection, {name for own in names.values() for name in own})
    found = []
    for row in rows:
        own = names.get(topics.get(row.id, ""), [])
        known = [looks[name] for name in own if name in looks]
        look = max(known, key=lambda one: one.lag_s, default=None)
        held = parked.get(row.id)
        found.append(
            PipelineLine(
                row.id,
                row.name,
                row.team,
                row.destination,
                None if look is None else look.lag_s,
                None if look is None else datetime.fromtimestamp(look.at_s, UTC),
                0 if held is None else int(held.parked),
                0 if held is None else int(held.replaying),
                row.held_at,
                row.hold_kind,
                errors.get(row.id),
            )
        )
    return found


def pipeline_rates(tracker: TrackerStore, ids: Sequence[str], *, now: datetime) -> PipelineRates:
    """Return how many events came in, and how many were delivered, minute by minute.

    Raises:
        RetryError: the tracker does not answer within 10 s.

    Cost: the ledger's minutes of an hour, for each event name.
    """
    until = int(now.timestamp() // 60) - _UNFOLDED_MINUTES
    since = until - RATE_MINUTES
    came_in = {one: [0] * RATE_MINUTES for one in ids}
    delivered = {one: [0] * RATE_MINUTES for one in ids}
    with tracker.transaction() as connection:
        connection.execute(text(_LONGEST))
        asked = {"ids": list(ids), "since": since, "until": until}
        for row in connection.execute(_RATES, asked):
            came_in[row.pipeline_id][row.minute - since] = int(row.came_in)
            delivered[row.pipeline_id][row.minute - since] = int(row.delivered)
    return PipelineRates(datetime.fromtimestamp(since * 60, UTC), came_in, delivered)
