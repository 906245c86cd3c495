"""Upkeep: what its jobs do, the shift that runs them, how they are."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from waybill import services
from waybill.errors import StopError
from waybill.settings import Settings
from waybill.storage import open_tracker
from waybill.upkeep import Job, JobRecord, Shift, find_job, read_jobs
from waybill.upkeep import pause_job as pause
from waybill.upkeep import resume_job as resume

if TYPE_CHECKING:
    from waybill.access import Decision
    from waybill.replay import Launches, ReplayLauncher
    from waybill.storage import TrackerStore

_LOG = logging.getLogger(__name__)
_WAIT_S = 300.0
"""For a job that another process runs, when a person asks for it."""
_MOST_LAUNCHES = 500
"""Replays of one round: each asks Airflow twice, and a round has a limit. Slots are far fewer."""
_MOST_SAID = 5
"""Problems of a round that its outcome has in words; the log has all."""
_TURN_S = 60
_SEAL_PAUSE_S = 900.0
"""Between two seals of the audit log: each is an object, which a verification reads."""
One = TypeVar("One")


@dataclass(frozen=True, slots=True)
class UpkeepParts:
    """What upkeep needs of whoever runs it."""

    launcher: ReplayLauncher
    holder: str
    """Who runs the jobs, for people: a DAG run, a user."""
    words_of: Callable[[BaseException], str]
    """An error in words that may be shown to anybody who may see upkeep."""
    is_stopped: Callable[[], bool] = lambda: False
    """Tells whether a shift is to end; it may not raise."""
    lookup: Callable[[str], str | None] | None = None
    """Finds a source's connection by its name, beside settings and environment."""


def run_upkeep(settings: Settings, parts: UpkeepParts, *, length_s: float) -> dict[str, int]:
    """Run the jobs that are due, for a shift; returns how often each ran.

    Raises:
        RetryError: the tracker did not answer for half a minute, or a job was over its limit.
        StopError: another process has the lease of a job that ran here.
    """
    with open_tracker(settings.tracker) as tracker:
        return _shift(settings, parts, tracker).run(length_s, is_stopped=parts.is_stopped)


def run_upkeep_job(settings: Settings, parts: UpkeepParts, name: str) -> dict[str, Any]:
    """Run one job now, whether or not it is due or paused; returns its outcome.

    Where another process runs it, that is waited for, five minutes at most.

    Raises:
        InputError: there is no such job.
        RetryError: it is still run elsewhere.
        Exception: the job's own.
    """
    job = find_job(name)
    with open_tracker(settings.tracker) as tracker:
        return dict(_shift(settings, parts, tracker).run_now(job, wait_s=_WAIT_S))


def upkeep_jobs(settings: Settings) -> list[JobRecord]:
    """Return how the jobs of upkeep are."""
    with open_tracker(settings.tracker) as tracker:
        return read_jobs(tracker)


def pause_job(settings: Settings, name: str, decision: Decision) -> JobRecord:
    """Have a job not be started by itself until it is resumed."""
    with open_tracker(settings.tracker) as tracker:
        return pause(tracker, name, decision)


def resume_job(settings: Settings, name: str, decision: Decision) -> JobRecord:
    """Have a job be started again."""
    with open_tracker(settings.tracker) as tracker:
        return resume(tracker, name, decision)


def _shift(settings: Settings, parts: UpkeepParts, tracker: TrackerStore) -> Shift:
    def tell(job: Job, error: str, times: int) -> None:
        words = (
            f"upkeep job {job.name} failed {times} times in a row ({error}): until it succeeds "
            f"nobody {job.about}; then it looks at all that it missed"
        )
        services.tell_task_failed(settings, words, kind="upkeep")

    work = {
        "audit": lambda: _audit(settings),
        "watch": lambda: _watch(settings, parts.lookup),
        "tell_owners": lambda: _tell_owners(settings),
        "probe_held_pipelines": lambda: _probe_held_pipelines(settings, parts.launcher),
        "auto_replay": lambda: _auto_replay(settings, parts.launcher),
        "coordinate": lambda: _coordinate(settings),
        "measure_delays": lambda: _measure_delays(settings),
        "share_slots": lambda: _share_slots(settings),
        "scale_nodes": lambda: _scale_nodes(settings),
        "seal_audit_log": lambda: _seal_audit_log(settings),
    }
    holder = f"{parts.holder} on {socket.gethostname()}, process {os.getpid()}"
    return Shift(tracker, work, holder=holder, tell=tell, words_of=parts.words_of)


def _audit(settings: Settings) -> dict[str, Any]:
    """Run a round; a breach fails nothing: its owner is told by ``tell_owners``."""
    report = services.run_audit(settings)
    for words in report["opened"]:
        _LOG.error("breach: %s", words)
    naming = report["naming"] or {"named": []}
    counts = {name: report[name] for name in ("number", "looked_at", "balanced", "moving")}
    return counts | {
        "breaches": report["breaches"],
        "opened": len(report["opened"]),
        "named": len(naming["named"]),
        **({"problem": report["naming_problem"]} if "naming_problem" in report else {}),
    }


def _watch(settings: Settings, lookup: Callable[[str], str | None] | None = None) -> dict[str, Any]:
    """Look once; neither what is found fails it, nor a server that only one check needs."""
    watched = services.watch(settings, lookup=lookup)
    for one in watched.findings:
        _LOG.warning("%s: %s", one.kind, one.words)
    for problem in watched.problems:
        _LOG.error("a check could not look: %s", problem)
    return dict(Counter(one.kind for one in watched.findings)) | (
        {"problems": len(watched.problems)} if watched.problems else {}
    )


def _tell_owners(settings: Settings) -> dict[str, Any]:
    """Send what waits.

    Raises:
        StopError: a message waits for longer than ``notices.stuck_after_s``; the others were sent.
    """
    report = services.send_notices(settings)
    if report.stuck:
        raise StopError("; ".join(report.stuck))
    return {name: value for name, value in report.to_json().items() if name != "stuck"}


def _coordinate(settings: Settings) -> dict[str, Any]:
    """Run a round; what it cannot do fails nothing."""
    report = services.run_coordinator(settings)
    for move in report.moves:
        _LOG.info("team %s: %s -> %s: %s", move.team, move.old, move.new, move.reason)
    for growth in report.growths:
        _LOG.info("topic %s", growth)
    for problem in report.problems:
        _LOG.warning("%s", problem)
    return {
        "version": report.version,
        "moves": len(report.moves),
        "growths": len(report.growths),
        "problems": len(report.problems),
        **({"said": list(report.problems[:_MOST_SAID])} if report.problems else {}),
    }


def _measure_delays(settings: Settings) -> dict[str, Any]:
    """Look how long tasks wait; without a user for Airflow's API there is nothing to look at."""
    report = services.measure_delays(settings)
    if report is None:
        return {"off": "WAYBILL_AIRFLOW__PASSWORD is not set"}
    return {
        "waiting": report.waiting + report.unseen,
        "running": report.busy,
        "p95_s": round(report.p95_s, 1),
        "oldest_s": round(report.oldest_s, 1),
    }


def _share_slots(settings: Settings) -> dict[str, Any]:
    """Share the slots of ingestion; without a user for Airflow's API nobody can."""
    shared = services.share_slots(settings)
    return {"off": "WAYBILL_AIRFLOW__PASSWORD is not set"} if shared is None else dict(shared)


def _scale_nodes(settings: Settings) -> dict[str, Any]:
    """Run a round; what it cannot do fails nothing."""
    report = services.scale_nodes(settings)
    for problem in report.problems:
        _LOG.warning("%s", problem)
    changes: dict[str, Any] = {
        kind: f"{one.before} -> {one.after}"
        for kind, one in report.decisions.items()
        if one.action != "hold"
    }
    counts = {"version": report.version, "removed": len(report.removed)}
    first = {"problem": report.problems[0]} if report.problems else {}
    return changes | counts | {"problems": len(report.problems)} | first


def _seal_audit_log(settings: Settings) -> dict[str, Any]:
    """Seal what is new, at most once in a quarter of an hour."""
    made = services.seal_audit_log(settings, pause_s=_SEAL_PAUSE_S).seals
    return {"seals": len(made), "entries": sum(seal.entries for seal in made)}


def _probe_held_pipelines(settings: Settings, launcher: ReplayLauncher) -> dict[str, Any]:
    """Launch a replay for each group whose held events are to go back; probe; launch the rest.

    What waits for no probe goes first: probes run user code, which may take its time.
    """
    from waybill.replay import Launches

    launches = Launches(launcher)
    rows = [group.to_json() for group in services.held_to_replay(settings)]
    _send_back(settings, launches, rows)
    report = services.probe_held_pipelines(settings).to_json()
    for probe in report["probes"]:
        _LOG.info("probe: %s", probe)
    listed = {row["id"] for row in rows}
    released = [row for row in report["to_replay"] if row["id"] not in listed]
    _send_back(settings, launches, released)
    launches.finish()
    counts = {"held": len(report["held"]), "probes": len(report["probes"])}
    return counts | {"to_replay": len(rows) + len(released)}


def _send_back(settings: Settings, launches: Launches, groups: Sequence[dict[str, Any]]) -> None:
    """Launch a replay for each of these groups.

    Its run id is made of what is parked, and of the replay that ended last: one that was cancelled,
    or that left damaged events which are mended since, is not asked for again.
    """
    from waybill.replay import group_of, replay_run_id

    rows = _turn(groups)
    before = services.ended_replays(settings, [row["id"] for row in rows]) if rows else {}
    for row in rows:
        salt = [row["parked"], str(row["last_parked_at"]), before.get(row["id"])]
        launches.launch(replay_run_id(row["id"], group_of(row), salt), group_of(row))


def _auto_replay(settings: Settings, launcher: ReplayLauncher) -> dict[str, Any]:
    """Launch a replay for each marked group whose cause has changed, then keep that it was.

    Killed in between, the next look names the same run: its id is made of how the cause stood and
    stands.
    """
    from waybill.replay import Launches, group_of, replay_run_id

    due, launches = services.due_auto_replays(settings), Launches(launcher)
    launched = 0
    for launch in (one.to_json() for one in _turn(due)):
        conf: Mapping[str, Any] = group_of(launch) | {"canary": True}
        run_id = replay_run_id(launch["partition_id"], conf, [launch["before"], launch["seen"]])
        _LOG.info("%s: %s", conf, launch["why"])
        if launches.launch(run_id, conf):
            note = {name: launch[name] for name in ("partition_id", "before", "seen")}
            launched += services.keep_auto_replays(settings, [note | {"run_id": run_id}])
    launches.finish()
    return {"due": len(due), "launched": launched}


def _turn(due: Sequence[One]) -> Sequence[One]:
    """Return what a round has time for: in the end all have their turn, whatever is refused."""
    if len(due) <= _MOST_LAUNCHES:
        return due
    first = int(time.time() // _TURN_S) * _MOST_LAUNCHES % len(due)
    return [*due[first:], *due[:first]][:_MOST_LAUNCHES]
