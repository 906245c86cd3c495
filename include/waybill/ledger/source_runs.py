"""How the last run of each source is, while it runs and after: one row a pipeline.

A run takes the row when it begins, unless it is that of a run which is heard of: that one it takes
once it has the lease of the source, which alone gives a right. It writes to the row under its own
id: one that another run took the row from writes nothing more. Who is killed amid a run leaves a
row that says *running* and is not heard of (``SILENT_S``). A run that waits between two turns keeps
its row, which says *waiting* and for what. Each change is one statement. All times are the
tracker's clock.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple
from uuid import UUID, uuid4

import orjson
from sqlalchemy import Connection, text

from waybill.access import Decision, write_audit
from waybill.errors import InputError
from waybill.events import rfc3339
from waybill.pipelines import PUSHED, next_run
from waybill.storage import TrackerStore
from waybill.storage.tracker import json_value, text_value

SILENT_S = 60.0
"""A run that was not heard of for so long is dead, frozen, or has no tracker."""
MOST_SOURCES = 100
"""Of one page."""
_LONGEST_ERROR = 1000
_LONGEST_POSITION = 300
_FIGURES = ("read", "settled", "parked", "pages")
SourceState = Literal[
    "pushed", "never", "running", "stopping", "silent", "waiting", "success", "failed", "stopped"
]
WAITS_FOR = {
    "share": "its team is over its share",
    "kafka": "the log is full",
}
"""What a run waits for between two turns, in words."""


@dataclass(frozen=True, slots=True)
class RunFigures:
    """How far a run is."""

    read: int = 0
    """Rows read by this run, good and bad."""
    settled: int = 0
    """Events of which the tracker knows that Kafka has them."""
    parked: int = 0
    pages: int = 0
    """That are committed."""
    rate_per_s: float = 0.0
    """Rows read, lately; of a run that ended, over all of it."""
    total: int | None = None
    """Rows that the source has; None: it cannot say."""
    position: str = ""
    """Where it stands in the source, in words; empty: the source has none."""
    behind: float | None = None
    """How far that was behind the source's end when it was looked at; None: it cannot say."""
    unit: str = ""
    """Of ``behind``: rows, messages, bytes, seconds, …"""


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A pipeline's source, and how its last run is."""

    pipeline_id: str
    pipeline: str
    team: str
    connector: str
    """Empty: no version is deployed."""
    schedule: str
    """As declared; empty: it has none."""
    state: SourceState
    """pushed: it sends by itself, to the collector, and nothing runs."""
    node: str
    started_at: datetime | None
    told_at: datetime | None
    """When the run was heard of last."""
    ended_at: datetime | None
    succeeded_at: datetime | None
    failed_at: datetime | None
    error: str
    """Of the last failure."""
    stop_asked_by: str
    waits_for: str
    """A key of ``WAITS_FOR`` while it waits; else empty."""
    rows_read: int
    """By all runs up to the committed position, since the source was begun, or begun again."""
    figures: RunFigures
    """Of the last run."""

    @property
    def failed_since(self) -> bool:
        """Whether a run, or a try of the one that goes, failed after the last success."""
        failed_at, succeeded_at = self.failed_at, self.succeeded_at
        return failed_at is not None and (succeeded_at is None or failed_at > succeeded_at)

    def next_run(self, now: datetime) -> datetime | None:
        """Return when the schedule has the next run begin, were its DAG not paused; None: never."""
        if self.connector == PUSHED:
            return None
        return next_run(self.schedule or None, self.pipeline_id, now)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        due = self.next_run(datetime.now(UTC))
        return {"next_run_at": None if due is None else rfc3339(due)} | {
            name: rfc3339(value) if isinstance(value, datetime) else value
            for name, value in asdict(self).items()
        }


@dataclass(frozen=True, slots=True)
class SourcePage:
    """Sources, by the names of their pipelines."""

    sources: tuple[SourceLine, ...]
    next: str | None
    """The name to go on after; None: this was the last page."""
    total: int
    """All that match."""
    running: int
    """Of these: heard of within ``SILENT_S``."""
    failed: int
    """Whose last run failed."""


@dataclass(frozen=True, slots=True)
class SourceFilter:
    """Which sources."""

    teams: Sequence[str] | None = None
    """Only of these; None: of all."""
    words: str = ""
    """In the name of the pipeline, or of its team; upper and lower case are alike."""
    state: Literal["", "running", "failed"] = ""
    name: str | None = None
    """Of one pipeline, or its id."""


_BEGIN = text("""
INSERT INTO source_runs (pipeline_id, run, node) VALUES (:pipeline, :run, :node)
ON CONFLICT (pipeline_id) DO UPDATE SET run = excluded.run, node = excluded.node,
  state = 'running', started_at = clock_timestamp(), told_at = clock_timestamp(), ended_at = NULL,
  figures = '{}'::jsonb, stop_asked_at = NULL, stop_asked_by = '', leave_asked_at = NULL,
  waits_for = ''
WHERE source_runs.run <> excluded.run AND (:claimed OR source_runs.state <> 'running'
  OR source_runs.told_at <= clock_timestamp() - make_interval(secs => :silent))
""")
_RESUME = text("""
UPDATE source_runs SET state = 'running', node = :node, told_at = clock_timestamp(), waits_for = ''
WHERE pipeline_id = :pipeline AND run = :run AND state = 'waiting'
""")
_TELL = text("""
UPDATE source_runs SET told_at = clock_timestamp(), figures = CAST(:figures AS jsonb)
WHERE pipeline_id = :pipeline AND run = :run RETURNING stop_asked_by, leave_asked_at
""")
_WAIT = text("""
UPDATE source_runs SET state = 'waiting', waits_for = :waits_for, told_at = clock_timestamp(),
  leave_asked_at = NULL, figures = CAST(:figures AS jsonb)
WHERE pipeline_id = :pipeline AND run = :run
""")
_LEAVE = text("""
UPDATE source_runs SET leave_asked_at = CASE WHEN pipeline_id = ANY(:pipelines)
  THEN coalesce(leave_asked_at, clock_timestamp()) END
WHERE (pipeline_id = ANY(:pipelines) AND state = 'running') OR leave_asked_at IS NOT NULL
""")
_RUNNING = text("SELECT EXISTS (SELECT FROM source_runs WHERE state = 'running')")
_SLOT_USERS = text("""
SELECT pipelines.id AS pipeline_id, pipelines.name, pipelines.team,
  EXTRACT(epoch FROM clock_timestamp() - run.leave_asked_at) AS asked_s
FROM pipelines LEFT JOIN source_runs AS run ON run.pipeline_id = pipelines.id
WHERE pipelines.name = ANY(:names)
""")
_LAST_TURNS = text("""
SELECT pipelines.team, EXTRACT(epoch FROM max(run.told_at))
FROM source_runs AS run JOIN pipelines ON pipelines.id = run.pipeline_id GROUP BY pipelines.team
""")
_END_WAIT = text("""
UPDATE source_runs SET state = 'failed', waits_for = '', ended_at = clock_timestamp(),
  failed_at = clock_timestamp(), error = 'its task was ended by hand while it waited'
WHERE run = :run AND state = 'waiting'
""")
_END = text("""
UPDATE source_runs SET state = :state, told_at = clock_timestamp(), ended_at = clock_timestamp(),
  waits_for = '', leave_asked_at = NULL, figures = CAST(:figures AS jsonb),
  succeeded_at = CASE WHEN :state = 'success' THEN clock_timestamp() ELSE succeeded_at END,
  failed_at = CASE WHEN :state = 'failed' THEN clock_timestamp() ELSE failed_at END,
  error = CASE WHEN :state = 'failed' THEN :error ELSE error END
WHERE pipeline_id = :pipeline AND run = :run
""")
_STOP = text("""
UPDATE source_runs SET stop_asked_at = clock_timestamp(), stop_asked_by = :who
WHERE pipeline_id = :pipeline AND stop_asked_at IS NULL AND (state = 'waiting'
  OR (state = 'running' AND told_at > clock_timestamp() - make_interval(secs => :silent)))
RETURNING node
""")
_HEARD = (
    "run.state = 'running' AND run.told_at > clock_timestamp() - make_interval(secs => :silent)"
)
_FROM = """
FROM pipelines
LEFT JOIN connector_positions AS at ON at.pipeline_id = pipelines.id
LEFT JOIN source_runs AS run ON run.pipeline_id = pipelines.id
"""
_FAILED = """run.state = 'failed' AND (SELECT declaration->'source'->>'connector'
    FROM pipeline_versions WHERE pipeline_id = pipelines.id ORDER BY number DESC LIMIT 1)
  IS DISTINCT FROM :pushed"""
"""The declaration is read of those alone whose last run failed."""
_ACTIVE = """
LEFT JOIN LATERAL (
  SELECT declaration->'source'->>'connector' AS connector, declaration->>'schedule' AS schedule
  FROM pipeline_versions WHERE pipeline_id = pipelines.id ORDER BY number DESC LIMIT 1
) AS active ON true
"""
"""A declaration may be long: only those of one page are read."""
_MATCHES = """
WHERE (CAST(:teams AS text[]) IS NULL OR pipelines.team = ANY(:teams))
  AND (CAST(:name AS text) IS NULL OR pipelines.name = :name OR pipelines.id = :name)
  AND (:words = '' OR position(lower(:words) IN lower(pipelines.name)) > 0
    OR position(lower(:words) IN lower(pipelines.team)) > 0)
  AND NOT EXISTS (SELECT FROM undeployments AS gone
    WHERE gone.pipeline_id = pipelines.id AND gone.done_at IS NOT NULL)
"""
_STATE = f"""
  AND (:state = '' OR (:state = 'running' AND {_HEARD})
    OR (:state = 'failed' AND {_FAILED}))
"""
_PAGE = text(f"""
SELECT pipelines.id AS pipeline_id, pipelines.name AS pipeline, pipelines.team, active.connector,
  active.schedule, run.state, {_HEARD} AS heard, run.node, run.started_at, run.told_at,
  run.ended_at, run.succeeded_at, run.failed_at, run.error, run.stop_asked_by, run.waits_for,
  run.figures,
  at.rows_read
{_FROM} {_ACTIVE} {_MATCHES} {_STATE}
  AND (CAST(:after AS text) IS NULL OR pipelines.name > :after)
ORDER BY pipelines.name LIMIT :most
""")
_TOTAL = text(f"""
SELECT count(*) AS total, count(*) FILTER (WHERE {_HEARD}) AS running,
  count(*) FILTER (WHERE {_FAILED}) AS failed {_FROM} {_MATCHES} {_STATE}
""")


def begin_run(
    tracker: TrackerStore,
    pipeline_id: str,
    *,
    node: str,
    run: UUID | None = None,
    claimed: bool = True,
) -> UUID:
    """Write that a run of a pipeline's source begins; returns the run's id.

    Args:
        tracker: the books.
        pipeline_id: whose source.
        node: of its machine, for people.
        run: its id; None: a new one. Again with the same changes nothing.
        claimed: it has the source's lease; else the row of a run that is heard of stays as it is.
    """
    run = run or uuid4()
    given = {
        "pipeline": pipeline_id,
        "run": run,
        "node": text_value(node, longest=200),
        "claimed": claimed,
        "silent": SILENT_S,
    }
    with tracker.transaction() as connection:
        connection.execute(_BEGIN, given)
    return run


def resume_run(tracker: TrackerStore, pipeline_id: str, run: UUID, *, node: str) -> bool:
    """Write that a run which waited goes on; False: another run has taken the row."""
    given = {"pipeline": pipeline_id, "run": run, "node": text_value(node, longest=200)}
    with tracker.transaction() as connection:
        return connection.execute(_RESUME, given).rowcount > 0


@dataclass(frozen=True, slots=True)
class AskedOfRun:
    """What a run is asked for."""

    stop_by: str = ""
    """Who wants it to stop; empty: nobody."""
    leave: bool = False
    """It is to give its slot to another team."""


def tell_run(tracker: TrackerStore, pipeline_id: str, run: UUID, figures: RunFigures) -> AskedOfRun:
    """Write how far a run is; returns what it is asked for."""
    given = {"pipeline": pipeline_id, "run": run, "figures": _packed(figures)}
    with tracker.transaction() as connection:
        row = connection.execute(_TELL, given).one_or_none()
    if row is None:
        return AskedOfRun()
    return AskedOfRun(row.stop_asked_by or "", row.leave_asked_at is not None)


def wait_run(
    tracker: TrackerStore, pipeline_id: str, run: UUID, figures: RunFigures, *, waits_for: str
) -> None:
    """Write that a run waits between two turns, and for what: a key of ``WAITS_FOR``."""
    given = {
        "pipeline": pipeline_id,
        "run": run,
        "figures": _packed(figures),
        "waits_for": waits_for,
    }
    with tracker.transaction() as connection:
        connection.execute(_WAIT, given)


def last_turns(tracker: TrackerStore) -> dict[str, float]:
    """Return {team: when a run of its sources was heard of last}, in seconds since the epoch."""
    with tracker.transaction() as connection:
        return {team: float(at_s) for team, at_s in connection.execute(_LAST_TURNS)}


class SlotUser(NamedTuple):
    """A pipeline whose runs take slots."""

    pipeline_id: str
    team: str
    asked_s: float | None
    """Since when its run is asked to give its slot to another team; None: it is not."""


def any_run(tracker: TrackerStore) -> bool:
    """Tell whether a run of a source goes, or a dead one has left that behind."""
    with tracker.transaction() as connection:
        return bool(connection.execute(_RUNNING).scalar_one())


def read_slot_users(tracker: TrackerStore, names: Collection[str]) -> dict[str, SlotUser]:
    """Return {name: pipeline} of the pipelines of these names."""
    with tracker.transaction() as connection:
        rows = connection.execute(_SLOT_USERS, {"names": list(names)}).all()
    return {
        row.name: SlotUser(
            row.pipeline_id, row.team, None if row.asked_s is None else float(row.asked_s)
        )
        for row in rows
    }


def ask_leave(tracker: TrackerStore, pipeline_ids: Collection[str]) -> None:
    """Ask the runs of these sources, and no others, to give their slots to another team."""
    with tracker.transaction() as connection:
        connection.execute(_LEAVE, {"pipelines": list(pipeline_ids)})


def end_wait(connection: Connection, run: UUID) -> None:
    """Write that a run which waits does not go on: somebody ended its task."""
    connection.execute(_END_WAIT, {"run": run})


def end_run(
    tracker: TrackerStore,
    pipeline_id: str,
    run: UUID,
    figures: RunFigures,
    *,
    state: Literal["success", "failed", "stopped"],
    error: str = "",
) -> None:
    """Write how a run ended; nothing where another one began since."""
    given = {
        "pipeline": pipeline_id,
        "run": run,
        "figures": _packed(figures),
        "state": state,
        "error": text_value(error, longest=_LONGEST_ERROR),
    }
    with tracker.transaction() as connection:
        connection.execute(_END, given)


def ask_stop(tracker: TrackerStore, pipeline_id: str, decision: Decision) -> str:
    """Ask the run of a source to end at its next page; returns its node. Written to the audit log.

    Raises:
        InputError: the decision says not why, no run of it is going, or it was asked before.
    """
    why = decision.require_why()
    given = {
        "pipeline": pipeline_id,
        "who": text_value(decision.who, longest=200) or "somebody",
        "silent": SILENT_S,
    }
    with tracker.transaction() as connection:
        node = connection.execute(_STOP, given).scalar_one_or_none()
        if node is None:
            raise InputError(
                f"no run of {pipeline_id!r} can be stopped: none is going or heard of, or it was"
                " asked before"
            )
        write_audit(
            connection,
            who=decision.who,
            action="stop_source",
            target=pipeline_id,
            why=why,
            **decision.beside_who(),
        )
    return str(node)


def read_sources(
    tracker: TrackerStore,
    wanted: SourceFilter | None = None,
    *,
    limit: int = MOST_SOURCES,
    after: str | None = None,
) -> SourcePage:
    """Return a page of the pipelines, by name; two statements.

    The declarations of that page alone are read, however many pipelines there are.
    """
    wanted = wanted or SourceFilter()
    given = {
        "teams": None if wanted.teams is None else list(wanted.teams),
        "words": wanted.words,
        "state": wanted.state,
        "name": wanted.name,
        "silent": SILENT_S,
        "pushed": PUSHED,
    }
    with tracker.transaction() as connection:
        rows = connection.execute(_PAGE, given | {"after": after, "most": limit + 1}).all()
        total = connection.execute(_TOTAL, given).one()
    lines = tuple(_line(row) for row in rows[:limit])
    following = lines[-1].pipeline if len(rows) > limit else None
    return SourcePage(lines, following, total.total, total.running, total.failed)


def source_state(
    state: SourceState | None,
    *,
    connector: str | None,
    heard: bool | None,
    stop_asked_by: str | None,
) -> SourceState:
    """Return how a source is, from what its row says of its last run.

    What ended before a source was made one that sends by itself is not told any more: no run will
    ever follow it.

    Args:
        state: of that row; None: there is none.
        connector: of the active version; None: none is deployed.
        heard: the run was heard of within ``SILENT_S``.
        stop_asked_by: who wants it to stop; empty or None: nobody.
    """
    if state == "running" and heard:
        return "stopping" if stop_asked_by else "running"
    if connector == PUSHED:
        return "pushed"
    if state is None:
        return "never"
    return "silent" if state == "running" else state


def _packed(figures: RunFigures) -> str:
    shown = json_value(asdict(figures), deepest=1, longest=_LONGEST_POSITION)
    return orjson.dumps(shown).decode()


def _line(row: Any) -> SourceLine:
    return SourceLine(
        pipeline_id=row.pipeline_id,
        pipeline=row.pipeline,
        team=row.team,
        connector=row.connector or "",
        schedule=row.schedule or "",
        state=source_state(
            row.state, connector=row.connector, heard=row.heard, stop_asked_by=row.stop_asked_by
        ),
        node=row.node or "",
        started_at=row.started_at,
        told_at=row.told_at,
        ended_at=row.ended_at,
        succeeded_at=row.succeeded_at,
        failed_at=row.failed_at,
        error=row.error or "",
        stop_asked_by=row.stop_asked_by or "",
        waits_for=row.waits_for or "",
        rows_read=row.rows_read or 0,
        figures=_figures(row.figures or {}),
    )


def _figures(found: dict[str, Any]) -> RunFigures:
    behind = found.get("behind")
    return RunFigures(
        **{name: int(found.get(name) or 0) for name in _FIGURES},
        rate_per_s=float(found.get("rate_per_s") or 0.0),
        total=found.get("total"),
        position=found.get("position") or "",
        behind=None if behind is None else float(behind),
        unit=found.get("unit") or "",
    )
