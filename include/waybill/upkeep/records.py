"""The jobs of upkeep, and the record of each: its lease, its last runs, whether it is paused.

Each change is one statement, so a process that is killed leaves no half of one. All times are the
tracker's clock. Cost: a statement on a table of a few rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection, Row, text

from waybill.access import Decision, write_audit
from waybill.errors import NotFoundError
from waybill.events import rfc3339
from waybill.nearest_name import hint
from waybill.storage import TrackerStore
from waybill.storage.tracker import json_value, text_value

LEASE_S = 60.0
"""After so long without a beat another process may have the job."""
BEAT_S = 15.0
TRIES = 4
"""A job that fails is tried again after ``RETRY_S``, so often in all; then at its interval."""
RETRY_S = 10.0
LATE_S = 300.0
"""A job that has not succeeded for so long, and is not paused, is late."""
_LONGEST_ERROR = 1000
_DEEPEST = 3


@dataclass(frozen=True, slots=True)
class Job:
    """What is done again and again."""

    name: str
    about: str
    """What is not done while it fails or is paused: ends "nobody …"."""
    interval_s: float = 60.0
    """From one start to the next."""
    limit_s: float = 600.0
    """A run that takes longer is ended, with its process."""


JOBS = (
    Job("audit", "looks for breaches"),
    Job("watch", "looks for what is out of the usual, or makes lost objects again", limit_s=1800),
    Job("tell_owners", "tells owners what happened to their events"),
    Job("probe_held_pipelines", "tries whether held pipelines may go on", limit_s=900),
    Job("auto_replay", "replays marked groups whose cause has changed"),
    Job("coordinate", "measures teams, or moves them between virtual clusters"),
    Job("measure_delays", "sees how long tasks wait that may run"),
    Job("share_slots", "shares the slots of ingestion among teams", interval_s=20.0),
    Job("scale_nodes", "decides how many nodes there are to be, or ends those that drained"),
    Job("seal_audit_log", "seals the audit log, so that it shows who changes it"),
)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """How a job is."""

    job: str
    holder: str
    """Who runs it, or ran it last."""
    running: bool
    """It has the lease, and gave a sign of life lately."""
    started_at: datetime | None
    ended_at: datetime | None
    succeeded_at: datetime | None
    failed_at: datetime | None
    failures: int
    """In a row; 0: the last run succeeded."""
    error: str
    """Of the last failure."""
    outcome: dict[str, Any]
    """Of the last success."""
    paused_at: datetime | None
    paused_by: str
    late: bool
    """It is not paused, and its last success is over five minutes old, or there was none."""
    due_in_s: float | None
    """None: it runs, or is paused."""

    @property
    def state(self) -> str:
        """Return one word: paused, running, failing, late, or ok."""
        if self.paused_at is not None:
            return "paused"
        if self.late or self.failures:
            return "failing" if self.failures else "late"
        return "running" if self.running else "ok"

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        found = {
            name: rfc3339(value) if isinstance(value, datetime) else value
            for name, value in asdict(self).items()
        }
        return found | {"state": self.state}


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to run a job, and to write what came of it."""

    job: str
    token: UUID


@dataclass(frozen=True, slots=True)
class Failed:
    """What a failure was written down as."""

    failures: int
    tell: bool
    """It is to be told: its tries are used up, and nothing was told since the last success."""


_LIMITS = {"lease": LEASE_S, "tries": TRIES, "retry": RETRY_S}
_READ = text("""
SELECT wanted.job, known.holder, known.started_at, known.ended_at, known.succeeded_at,
  known.failed_at, known.failures, known.error, known.outcome, known.paused_at, known.paused_by,
  known.token IS NOT NULL AND known.beat_at
    BETWEEN clock_timestamp() - :lease * interval '1 s'
    AND clock_timestamp() + :lease * interval '1 s' AS running,
  known.paused_at IS NULL AND (known.succeeded_at IS NULL OR known.succeeded_at
    NOT BETWEEN clock_timestamp() - :late * interval '1 s'
    AND clock_timestamp() + :late * interval '1 s') AS late,
  CASE WHEN known.started_at <= clock_timestamp() THEN EXTRACT(epoch FROM known.started_at
    + CASE WHEN known.failures BETWEEN 1 AND :tries - 1 THEN LEAST(:retry, wanted.interval_s)
      ELSE wanted.interval_s END * interval '1 s' - clock_timestamp()) ELSE 0 END AS due_in_s
FROM unnest(CAST(:jobs AS text[]), CAST(:intervals AS float[])) WITH ORDINALITY
  AS wanted (job, interval_s, place)
LEFT JOIN upkeep_jobs AS known USING (job) ORDER BY place
""")
_TAKE = text("""
INSERT INTO upkeep_jobs AS known (job, token, holder, started_at, beat_at)
VALUES (:job, :token, :holder, clock_timestamp(), clock_timestamp())
ON CONFLICT (job) DO UPDATE SET token = excluded.token, holder = excluded.holder,
  started_at = clock_timestamp(), beat_at = clock_timestamp(),
  failures = known.failures + CAST(known.token IS NOT NULL AS int),
  failed_at = CASE WHEN known.token IS NULL THEN known.failed_at ELSE clock_timestamp() END,
  error = CASE WHEN known.token IS NULL THEN known.error
    ELSE 'the process that ran it ended, or froze, amid it: ' || known.holder END
WHERE (known.token IS NULL OR known.beat_at
    NOT BETWEEN clock_timestamp() - :lease * interval '1 s'
    AND clock_timestamp() + :lease * interval '1 s')
  AND (:asked OR (known.paused_at IS NULL AND (known.started_at IS NULL OR clock_timestamp()
    NOT BETWEEN known.started_at AND known.started_at
    + CASE WHEN known.failures BETWEEN 1 AND :tries - 1
      THEN LEAST(:retry, CAST(:interval AS float)) ELSE :interval END * interval '1 s')))
RETURNING job
""")
_BEAT = text("""
UPDATE upkeep_jobs SET beat_at = clock_timestamp()
WHERE (job, token) IN (SELECT * FROM unnest(CAST(:jobs AS text[]), CAST(:tokens AS uuid[])))
RETURNING job
""")
_SUCCEEDED = text("""
UPDATE upkeep_jobs SET token = NULL, ended_at = clock_timestamp(),
  succeeded_at = clock_timestamp(), failures = 0, told = false, outcome = CAST(:outcome AS jsonb)
WHERE job = :job AND token = :token RETURNING job
""")
_FAILED = text("""
UPDATE upkeep_jobs SET token = NULL, ended_at = clock_timestamp(), failed_at = clock_timestamp(),
  error = :error, failures = GREATEST(failures + 1, CASE WHEN :final THEN :tries ELSE 0 END)
WHERE job = :job AND token = :token RETURNING failures, failures >= :tries AND NOT told AS tell
""")
_PAUSE = text("""
INSERT INTO upkeep_jobs AS known (job, paused_at, paused_by)
VALUES (:job, clock_timestamp(), :who)
ON CONFLICT (job) DO UPDATE SET paused_at = excluded.paused_at, paused_by = excluded.paused_by
WHERE known.paused_at IS NULL RETURNING job
""")
_RESUME = text(
    "UPDATE upkeep_jobs SET paused_at = NULL, paused_by = '' "
    "WHERE job = :job AND paused_at IS NOT NULL RETURNING job"
)


def find_job(name: str) -> Job:
    """Return a job.

    Raises:
        InputError: there is none of this name.
    """
    for job in JOBS:
        if job.name == name:
            return job
    names = [job.name for job in JOBS]
    raise NotFoundError(f"there is no job {name!r}; jobs: {', '.join(names)}{hint(name, names)}")


def read_jobs(tracker: TrackerStore) -> list[JobRecord]:
    """Return how all jobs are, those that never ran as well."""
    with tracker.transaction() as connection:
        return _read(connection)


def take_lease(
    tracker: TrackerStore, job: Job, *, holder: str, asked: bool = False
) -> Lease | None:
    """Take the lease of a job that is due and not paused; ``None``: it is not, or is run.

    Args:
        tracker: the books.
        job: which.
        holder: who says so, for people.
        asked: a person wants it now: whether or not it is due, or paused.
    """
    lease = Lease(job.name, uuid4())
    given = {
        "job": job.name,
        "token": lease.token,
        "holder": text_value(holder, longest=200),
        "interval": job.interval_s,
        "asked": asked,
    }
    with tracker.transaction() as connection:
        taken = connection.execute(_TAKE, given | _LIMITS).scalar_one_or_none()
    return None if taken is None else lease


def beat(tracker: TrackerStore, leases: Sequence[Lease]) -> list[Lease]:
    """Keep leases; return those that were lost."""
    given = {"jobs": [one.job for one in leases], "tokens": [one.token for one in leases]}
    with tracker.transaction() as connection:
        kept = set(connection.execute(_BEAT, given).scalars())
    return [one for one in leases if one.job not in kept]


def write_success(tracker: TrackerStore, lease: Lease, outcome: Mapping[str, Any]) -> bool:
    """Write what came of a run, and give the lease back; False: it was lost."""
    import orjson

    given = {"job": lease.job, "token": lease.token}
    values = orjson.dumps(json_value(dict(outcome), deepest=_DEEPEST, longest=200)).decode()
    with tracker.transaction() as connection:
        done = connection.execute(_SUCCEEDED, given | {"outcome": values}).scalar_one_or_none()
    return done is not None


def write_failure(
    tracker: TrackerStore, lease: Lease, error: str, *, final: bool = False
) -> Failed | None:
    """Write that a run failed, and give the lease back; ``None``: it was lost.

    Args:
        tracker: the books.
        lease: of the run.
        error: why, in words.
        final: the same would happen again: it is not tried before its interval is over.
    """
    given = {"job": lease.job, "token": lease.token, "tries": TRIES, "final": final}
    words = text_value(error, longest=_LONGEST_ERROR)
    with tracker.transaction() as connection:
        row = connection.execute(_FAILED, given | {"error": words}).one_or_none()
    return None if row is None else Failed(row.failures, row.tell)


def note_told(tracker: TrackerStore, job: str) -> None:
    """Write that somebody was told that a job fails; the next success takes it back."""
    query = text("UPDATE upkeep_jobs SET told = true WHERE job = :job AND failures > 0")
    with tracker.transaction() as connection:
        connection.execute(query, {"job": job})


def pause_job(tracker: TrackerStore, name: str, decision: Decision) -> JobRecord:
    """Have a job not be started by itself until it is resumed; a run that goes on ends as usual.

    Raises:
        InputError: there is no such job.
    """
    return _change(tracker, name, decision, paused=True)


def resume_job(tracker: TrackerStore, name: str, decision: Decision) -> JobRecord:
    """Have a job be started again.

    Raises:
        InputError: there is no such job.
    """
    return _change(tracker, name, decision, paused=False)


def _change(tracker: TrackerStore, name: str, decision: Decision, *, paused: bool) -> JobRecord:
    """Pause or resume, with an entry of the audit log where that changes something."""
    job = find_job(name)
    given = {"job": job.name, "who": text_value(decision.who)} if paused else {"job": job.name}
    with tracker.transaction() as connection:
        statement = _PAUSE if paused else _RESUME
        if connection.execute(statement, given).scalar_one_or_none() is not None:
            write_audit(
                connection,
                who=decision.who,
                action="pause_job" if paused else "resume_job",
                target=job.name,
                why=decision.why,
                **decision.beside_who(),
            )
        return next(one for one in _read(connection) if one.job == job.name)


def _read(connection: Connection) -> list[JobRecord]:
    given = {
        "jobs": [job.name for job in JOBS],
        "intervals": [job.interval_s for job in JOBS],
        "late": LATE_S,
    }
    return [_record(row) for row in connection.execute(_READ, given | _LIMITS)]


def _record(row: Row[Any]) -> JobRecord:
    waits = not row.running and row.paused_at is None
    return JobRecord(
        **{
            **row._asdict(),
            "holder": row.holder or "",
            "running": bool(row.running),
            "failures": row.failures or 0,
            "error": row.error or "",
            "outcome": row.outcome or {},
            "paused_by": row.paused_by or "",
            "due_in_s": max(0.0, float(row.due_in_s)) if waits else None,
        }
    )
