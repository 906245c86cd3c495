"""Pipelines, a line each: state, rate, lag, what is parked or held, breaches, the last run.

A page is one statement, and costs the same however deep it lies: what is told of all pipelines is
counted over their names, and all else is read for its lines only. Declarations, which may be long,
are read of others as well only where that is needed: of those whose last run failed or fell silent,
and of all while a topic is stopped or a destination away. Rates are events by the minute in
which they came in, and by the one in which a destination took them, whenever they came in. The last
of these minutes is the one that is on; what is not folded yet is counted in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import text

from waybill.events import HELD_ERROR
from waybill.ledger import SILENT_S, SourceState, source_state
from waybill.pipelines import PUSHED, topic_name
from waybill.storage import TrackerStore
from waybill.storage.tracker import COUNT_COLUMNS

MOST_PIPELINES = 100
"""Of a page."""
_MOST_UNFOLDED = 50_000
"""Rows of the ledger, the newest, that rates are told by before they are folded, each minute."""
RATE_MINUTES = 60
MEAN_MINUTES = 5
"""Whole ones before the one that is on, of which rates per second are means."""
_LONGEST = "SET LOCAL statement_timeout = '10s'"
PipelineState = Literal[
    "not deployed", "held", "stopped", "failed", "silent", "away", "running", "stopping", "waiting",
    "listening", "idle",
]  # fmt: skip
_OF_RUNS: Mapping[SourceState, PipelineState] = {
    "pushed": "listening",
    "never": "idle",
    "success": "idle",
    "stopped": "idle",
    "failed": "failed",
    "silent": "silent",
    "running": "running",
    "stopping": "stopping",
    "waiting": "waiting",
}
_PAGE = text("""
WITH breaching AS (
  SELECT pipeline_id, count(*) AS open FROM breaches WHERE state = 'open' GROUP BY 1
), stopped AS MATERIALIZED (
  SELECT coalesce(known.topic, stops.topic) AS topic, min(stops.found_at) AS found_at
  FROM topic_stops AS stops LEFT JOIN topic_generations AS known ON known.name = stops.topic
  WHERE stops.settled_at IS NULL AND (known.state <> 'ended' OR NOT EXISTS (
    SELECT FROM topic_generations AS others
    WHERE others.topic = coalesce(known.topic, stops.topic) AND others.state <> 'ended'))
  GROUP BY 1
), away AS MATERIALIZED (
  SELECT destination, waiting_since FROM destination_states WHERE waiting_since IS NOT NULL
), everything AS MATERIALIZED (
  SELECT pipelines.id, pipelines.name, pipelines.team, hold.held_at,
    hold.cause->>'kind' AS hold_kind, coalesce(breaching.open, 0) AS breaches,
    run.state AS run_state, coalesce(run.ended_at, run.told_at) AS run_at,
    run.stop_asked_by, run.heard, stopped.found_at AS stopped_at, away.waiting_since,
    coalesce(changed.since_run, false) AS run_outdated,
    run.state = 'failed' AND NOT coalesce(changed.since_run, false) AS failed,
    run.state = 'running' AND NOT run.heard AND NOT coalesce(changed.since_run, false) AS silent
  FROM pipelines
  LEFT JOIN pipeline_holds AS hold ON hold.pipeline_id = pipelines.id AND hold.released_at IS NULL
  LEFT JOIN breaching ON breaching.pipeline_id = pipelines.id
  LEFT JOIN (SELECT *, told_at > clock_timestamp() - make_interval(secs => :silent) AS heard
    FROM source_runs) AS run ON run.pipeline_id = pipelines.id
  LEFT JOIN LATERAL (
    SELECT declaration->>'destination' AS name FROM pipeline_versions
    WHERE pipeline_id = pipelines.id
      AND (EXISTS (SELECT FROM stopped) OR EXISTS (SELECT FROM away))
    ORDER BY number DESC LIMIT 1) AS target ON true
  LEFT JOIN stopped ON stopped.topic = format(CAST(:topic AS text), pipelines.team, target.name)
  LEFT JOIN away ON away.destination = target.name
  LEFT JOIN LATERAL (
    SELECT now.source->>'connector' = :pushed OR now.source IS DISTINCT FROM was.source
      OR now.destination IS DISTINCT FROM was.destination AS since_run
    FROM (SELECT declaration->'source' AS source, declaration->>'destination' AS destination
      FROM pipeline_versions WHERE pipeline_id = pipelines.id
        AND (run.state = 'failed' OR (run.state = 'running' AND NOT run.heard))
      ORDER BY number DESC LIMIT 1) AS now
    CROSS JOIN LATERAL (
      SELECT declaration->'source' AS source, declaration->>'destination' AS destination
      FROM pipeline_versions WHERE pipeline_id = pipelines.id AND deployed_at <= run.started_at
      ORDER BY number DESC LIMIT 1) AS was) AS changed ON true
  WHERE (CAST(:teams AS text[]) IS NULL OR pipelines.team = ANY(:teams))
    AND (:words = '' OR position(lower(:words) IN lower(pipelines.name)) > 0
      OR position(lower(:words) IN lower(pipelines.team)) > 0)
    AND NOT EXISTS (SELECT FROM undeployments AS gone
      WHERE gone.pipeline_id = pipelines.id AND gone.done_at IS NOT NULL)
), matching AS MATERIALIZED (
  SELECT * FROM everything AS one
  WHERE NOT :attention OR held_at IS NOT NULL OR breaches > 0 OR failed OR silent
    OR stopped_at IS NOT NULL OR waiting_since IS NOT NULL
    OR EXISTS (SELECT FROM parked_partitions AS parked WHERE parked.pipeline_id = one.id
      AND (parked.parked > 0 OR parked.replaying > 0))
), total AS (
  SELECT count(*) AS pipelines, count(held_at) AS held, coalesce(sum(breaches), 0) AS breaches,
    count(*) FILTER (WHERE failed) AS failed, count(*) FILTER (WHERE silent) AS silent,
    count(stopped_at) AS stopped, count(waiting_since) AS away
  FROM matching
), page AS (
  SELECT * FROM matching WHERE CAST(:after AS text) IS NULL OR name > :after
  ORDER BY name LIMIT :most
), unfolded AS MATERIALIZED (
  SELECT pipeline_id, reference, counts, floor(extract(epoch FROM committed_at) / 60)::int AS minute
  FROM (SELECT * FROM ledger WHERE NOT folded ORDER BY id DESC LIMIT :most_unfolded) AS newest
  WHERE committed_at >= to_timestamp(:since * 60) AND pipeline_id IN (SELECT id FROM page)
), events AS MATERIALIZED (
  SELECT pipeline_id, starts_with(reference, 'load:') AND row->>1 = 'destination' AS is_delivered,
    CASE WHEN row->>1 = 'ingestion' THEN (row->>2)::int ELSE minute END AS minute,
    CASE WHEN row->>1 = 'ingestion' THEN row->3->>CAST(:came_in AS int)
      ELSE row->3->>CAST(:delivered AS int) END AS events
  FROM unfolded, jsonb_array_elements(counts) AS row
  WHERE row->>1 = 'ingestion' OR (starts_with(reference, 'load:') AND row->>1 = 'destination')
)
SELECT page.*, total.pipelines AS total_pipelines, total.held AS total_held,
  total.breaches AS total_breaches, total.failed AS total_failed,
  total.silent AS total_silent, total.stopped AS total_stopped, total.away AS total_away,
  active.destination, active.connector, parked.parked, parked.replaying, parked.held,
  error.id AS error_id, error.event_name, error.stage, error.error_type, error.last_parked_at,
  look.lag_s, look.at AS lag_at,
  taken.minutes AS came_in, given.minutes AS delivered
FROM total LEFT JOIN page ON true
LEFT JOIN LATERAL (
  SELECT declaration->>'destination' AS destination,
    declaration->'source'->>'connector' AS connector
  FROM pipeline_versions WHERE pipeline_id = page.id ORDER BY number DESC LIMIT 1) AS active ON true
LEFT JOIN LATERAL (
  SELECT sum(parked) AS parked, sum(replaying) AS replaying,
    sum(parked) FILTER (WHERE error_type = :held) AS held
  FROM parked_partitions WHERE pipeline_id = page.id) AS parked ON true
LEFT JOIN LATERAL (
  SELECT id, event_name, stage, error_type, last_parked_at FROM parked_partitions
  WHERE pipeline_id = page.id ORDER BY last_parked_at DESC LIMIT 1) AS error ON true
LEFT JOIN LATERAL (
  SELECT format(CAST(:topic AS text), page.team, active.destination) AS name
  WHERE active.destination IS NOT NULL) AS topic ON true
LEFT JOIN LATERAL (
  SELECT coalesce(array_agg(name), ARRAY[topic.name]) AS names FROM topic_generations
  WHERE topic_generations.topic = topic.name AND state <> 'ended') AS topics ON true
LEFT JOIN LATERAL (
  SELECT lag_s, at FROM topic_looks WHERE topic = ANY(topics.names)
  ORDER BY lag_s DESC LIMIT 1) AS look ON true
LEFT JOIN LATERAL (
  SELECT jsonb_object_agg(minute - :since, events) AS minutes FROM (
    SELECT minute, sum(events) AS events FROM (
      SELECT minute, in_first AS events FROM ledger_minutes
      WHERE pipeline_id = page.id AND minute >= :since AND stage = 'ingestion'
      UNION ALL SELECT minute, events::bigint FROM events
      WHERE pipeline_id = page.id AND NOT is_delivered) AS known
    WHERE minute >= :since AND minute < :until GROUP BY minute) AS of_minute) AS taken ON true
LEFT JOIN LATERAL (
  SELECT jsonb_object_agg(minute - :since, events) AS minutes FROM (
    SELECT minute, sum(events) AS events FROM (
      SELECT minute, delivered AS events FROM delivered_minutes
      WHERE pipeline_id = page.id AND minute >= :since
      UNION ALL SELECT minute, events::bigint FROM events
      WHERE pipeline_id = page.id AND is_delivered) AS known
    WHERE minute >= :since AND minute < :until GROUP BY minute) AS of_minute) AS given ON true
ORDER BY page.name
""")


@dataclass(frozen=True, slots=True)
class PipelineFilter:
    """Which pipelines."""

    teams: tuple[str, ...] | None = None
    """Only of these; None: of all."""
    words: str = ""
    """In the name of the pipeline, or of its team; upper and lower case are alike."""
    attention: bool = False
    """Only those that are held, have events parked or a breach open, whose last run failed or is
    not heard of, whose topic is stopped, or whose destination is away."""


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
    state: PipelineState
    """Of what holds it up the worst; else of its source. ``away``: its destination takes nothing;
    ``stopped``: its topic is not read."""
    state_since: datetime | None
    """Of ``held``, ``stopped`` and ``away``."""
    lag_s: float | None
    """For how long the oldest unread event of its topic waits; None: not known."""
    lag_at: datetime | None
    """When that was looked at."""
    parked: int
    """Events, held ones among them."""
    held: int
    """Of these: as they came, because the pipeline is held, or was and they are not back yet."""
    replaying: int
    held_at: datetime | None
    """Since when all its events are parked at once; None: they are not."""
    hold_kind: str | None
    """storm, or by hand."""
    breaches: int
    """That are open."""
    run_state: SourceState
    """Of the last run of its source."""
    run_at: datetime | None
    """When that ended, or was heard of last; None: there was none."""
    run_outdated: bool
    """That run failed or fell silent with another source or destination than is deployed now."""
    last_error: LastError | None
    came_in: tuple[int, ...]
    """Events by minute, ``RATE_MINUTES`` of them; the last one is on."""
    delivered: tuple[int, ...]
    """What a destination took in each, whenever it came in; replayed events as well."""
    came_in_per_s: float
    """Mean of the last ``MEAN_MINUTES`` minutes and the one that is on."""
    delivered_per_s: float
    """Likewise."""


@dataclass(frozen=True, slots=True)
class PipelinePage:
    """A page of pipelines, by name."""

    pipelines: tuple[PipelineLine, ...]
    next: str | None
    """The name to go on after; None: this was the last page."""
    since: datetime
    """Where the first minute of rates begins."""
    total: int
    """Of all that match:"""
    held: int
    """those of them that are held,"""
    breaches: int
    """their open breaches,"""
    failed: int
    """those whose last run failed, with the source and destination that they have now,"""
    silent: int
    """those whose run is not heard of,"""
    stopped: int
    """those whose topic is not read,"""
    away: int
    """and those whose destination takes nothing."""


def pipeline_page(
    tracker: TrackerStore,
    wanted: PipelineFilter,
    *,
    limit: int = 50,
    after: str | None = None,
    now: datetime | None = None,
) -> PipelinePage:
    """Return a page of the pipelines that match.

    Args:
        tracker: the books.
        wanted: which.
        limit: most pipelines, up to ``MOST_PIPELINES``.
        after: ``next`` of the page before.
        now: until when rates are told; None: now.

    Raises:
        RetryError: the tracker does not answer within 10 s.

    Cost: one statement: a look at each pipeline's name, last run and open breaches (for
    ``attention`` at its parked groups, while a topic is stopped or a destination away at its
    declaration); of those on the page the parked groups, and the ledger's
    minutes of an hour for each event name, and what is not folded yet: of all pipelines the newest
    50,000 rows of commits, so that rates say less where more wait.
    """
    most = min(limit, MOST_PIPELINES)
    whole_minutes, second = divmod((now or datetime.now(UTC)).timestamp(), 60)
    until, mean_s = int(whole_minutes) + 1, MEAN_MINUTES * 60 + second
    asked = {
        "teams": None if wanted.teams is None else list(wanted.teams),
        "words": wanted.words,
        "attention": wanted.attention,
        "after": after,
        "most": most + 1,
        "silent": SILENT_S,
        "pushed": PUSHED,
        "held": HELD_ERROR,
        "topic": topic_name("%s", "%s"),
        "since": until - RATE_MINUTES,
        "until": until,
        "most_unfolded": _MOST_UNFOLDED,
        "came_in": COUNT_COLUMNS.index("in_first"),
        "delivered": COUNT_COLUMNS.index("passed"),
    }
    with tracker.transaction() as connection:
        connection.execute(text(_LONGEST))
        found = connection.execute(_PAGE, asked).all()
    total, rows = found[0], [row for row in found if row.id is not None]
    lines = tuple(_line(row, mean_s) for row in rows[:most])
    return PipelinePage(
        pipelines=lines,
        next=lines[-1].name if len(rows) > most else None,
        since=datetime.fromtimestamp((until - RATE_MINUTES) * 60, UTC),
        total=int(total.total_pipelines),
        held=int(total.total_held),
        breaches=int(total.total_breaches),
        failed=int(total.total_failed),
        silent=int(total.total_silent),
        stopped=int(total.total_stopped),
        away=int(total.total_away),
    )


def _line(row: Any, mean_s: float) -> PipelineLine:
    run_state = source_state(
        row.run_state, connector=row.connector, heard=row.heard, stop_asked_by=row.stop_asked_by
    )
    state, since = _state(row, run_state)
    error = row.error_id and LastError(
        int(row.error_id), row.event_name, row.stage, row.error_type, row.last_parked_at
    )
    came_in, delivered = _minutes(row.came_in), _minutes(row.delivered)
    return PipelineLine(
        id=row.id,
        name=row.name,
        team=row.team,
        destination=row.destination,
        state=state,
        state_since=since,
        lag_s=row.lag_s,
        lag_at=row.lag_at,
        parked=int(row.parked or 0),
        held=int(row.held or 0),
        replaying=int(row.replaying or 0),
        held_at=row.held_at,
        hold_kind=row.hold_kind,
        breaches=int(row.breaches),
        run_state=run_state,
        run_at=row.run_at,
        run_outdated=row.run_outdated,
        last_error=error or None,
        came_in=came_in,
        delivered=delivered,
        came_in_per_s=sum(came_in[-MEAN_MINUTES - 1 :]) / mean_s,
        delivered_per_s=sum(delivered[-MEAN_MINUTES - 1 :]) / mean_s,
    )


def _state(row: Any, run_state: SourceState) -> tuple[PipelineState, datetime | None]:
    """Return what holds a pipeline up, the worst first; else what its source does."""
    if row.destination is None:
        return "not deployed", None
    if row.held_at is not None:
        return "held", row.held_at
    if row.stopped_at is not None:
        return "stopped", row.stopped_at
    state = _OF_RUNS[run_state]
    is_over = row.run_outdated and state in {"failed", "silent"}
    if state in {"failed", "silent"} and not is_over:
        return state, row.run_at
    if row.waiting_since is not None:
        return "away", row.waiting_since
    return "idle" if is_over else state, None


def _minutes(found: Mapping[str, int] | None) -> tuple[int, ...]:
    return tuple(int((found or {}).get(str(place), 0)) for place in range(RATE_MINUTES))
