"""Upkeep on a real tracker: a job at a time, whoever dies, freezes, or comes back from a backup."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text
from tests.integration.parking_lot import Points, TrackerWithPoints
from tests.support.audited import wait_for
from tests.support.books import open_books, sessions_ended
from tests.support.children import forked, was_killed
from typer.testing import CliRunner

from waybill.cli import app, stack
from waybill.errors import AwayError, InputError, RetryError, StopError, WaybillError
from waybill.settings import TrackerSettings
from waybill.storage import TrackerStore
from waybill.upkeep import Job, JobRecord, Shift, find_job, read_jobs, records, shift
from waybill.upkeep.records import beat, take_lease, write_success

pytestmark = pytest.mark.serves
Work = Callable[[], Mapping[str, Any]]


@pytest.fixture(scope="module")
def _books(_postgres: Any) -> Iterator[TrackerStore]:
    with open_books(_postgres, "upkeep", pool_size=8) as tracker:
        yield tracker


@pytest.fixture
def tracker(_books: TrackerStore, monkeypatch: pytest.MonkeyPatch) -> TrackerStore:
    """A tracker on which no job ever ran."""
    sql(_books, "DELETE FROM upkeep_jobs")
    monkeypatch.setenv("WAYBILL_TRACKER__DSN", _books.dsn.get_secret_value())
    monkeypatch.setattr(shift, "_POLL_S", 0.02)
    return _books


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are due again as soon as they ended."""
    jobs = tuple(replace(job, interval_s=0.0) for job in records.JOBS)
    for module in (records, shift):
        monkeypatch.setattr(module, "JOBS", jobs)


def sql(tracker: TrackerStore, statement: str, **values: Any) -> list[tuple[Any, ...]]:
    with TrackerStore.transaction(tracker) as connection:
        found = connection.execute(text(statement), values)
        return [tuple(row) for row in found] if found.returns_rows else []


def record(tracker: TrackerStore, job: str = "audit") -> JobRecord:
    return next(one for one in read_jobs(tracker) if one.job == job)


def lease_ends(tracker: TrackerStore, job: str = "audit") -> None:
    """Let a minute pass in which nobody gives a sign of life."""
    sql(tracker, "UPDATE upkeep_jobs SET beat_at = beat_at - interval '61 s' WHERE job = :job", job=job)  # fmt: skip


def is_due(tracker: TrackerStore) -> None:
    sql(tracker, "UPDATE upkeep_jobs SET started_at = started_at - interval '61 s'")


def fails(error: BaseException) -> Work:
    def work() -> Mapping[str, Any]:
        raise error

    return work


class Held:
    """Work that goes on until it is let go, and knows how many of it run at once."""

    def __init__(self) -> None:
        self.begun, self.let_go = threading.Semaphore(0), threading.Event()

    def __call__(self) -> Mapping[str, Any]:
        self.begun.release()
        assert self.let_go.wait(120)
        return {"held": 1}


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Run in a thread; what it returns or raises comes into the list."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except WaybillError as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, found


def test_a_shift_runs_each_job_that_is_due_once_and_writes_down_what_came_of_it(
    tracker: TrackerStore,
) -> None:
    work: dict[str, Work] = {
        job.name: lambda: {"looked_at": 7, "moving": 0} for job in records.JOBS
    }
    assert all(
        (one.state, one.late, one.due_in_s) == ("late", True, 0) for one in read_jobs(tracker)
    )
    assert Shift(tracker, work, holder="ann").run(0.01) == dict.fromkeys(work, 1)
    assert Shift(tracker, work, holder="bob").run(0.1) == {}, "none is due"
    for job, one in zip(records.JOBS, read_jobs(tracker), strict=True):
        assert (one.state, one.holder, one.failures, one.late) == ("ok", "ann", 0, False)
        assert one.outcome == {"looked_at": 7, "moving": 0}
        assert one.due_in_s is not None
        assert job.interval_s - 50 < one.due_in_s <= job.interval_s
    is_due(tracker)
    assert Shift(tracker, {"audit": lambda: {}}, holder="bob").run(0.01) == {"audit": 1}


@pytest.mark.usefixtures("at_once")
def test_two_shifts_never_run_a_job_at_the_same_time(
    tracker: TrackerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shift, "_ASK_S", 0.05)
    at_work, most, runs, lock = 0, 0, Counter[str](), threading.Lock()

    def work(holder: str) -> Mapping[str, Any]:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most, runs[holder] = max(most, at_work), runs[holder] + 1
        record(tracker)  # a while in which the other one looks
        with lock:
            at_work -= 1
        return {}

    def both_have_run() -> bool:
        return all(runs[holder] >= 5 for holder in "ab")

    def run(holder: str) -> Mapping[str, int]:
        one = Shift(tracker, {"audit": partial(work, holder)}, holder=holder)
        return one.run(240, is_stopped=both_have_run)

    shifts = {holder: in_thread(partial(run, holder)) for holder in "ab"}
    for thread, _ in shifts.values():
        thread.join(300)
    assert {holder: found for holder, (_, found) in shifts.items()} == {
        holder: [{"audit": runs[holder]}] for holder in "ab"
    }
    assert most == 1
    assert both_have_run(), "they take turns"


@pytest.mark.usefixtures("at_once")
def test_a_long_job_delays_no_other_and_outlasts_the_shift(tracker: TrackerStore) -> None:
    held, ran = Held(), threading.Semaphore(0)

    def audit() -> Mapping[str, Any]:
        ran.release()
        return {}

    thread, found = in_thread(
        lambda: Shift(tracker, {"watch": held, "audit": audit}, holder="x").run(0.01)
    )
    for _ in range(4):
        assert ran.acquire(timeout=120)
    assert record(tracker, "watch").running
    held.let_go.set()
    thread.join(120)
    assert found[0]["watch"] >= 1


@pytest.mark.usefixtures("at_once")
def test_a_job_that_fails_keeps_no_other_and_is_told_once_after_its_tries(
    tracker: TrackerStore,
) -> None:
    told: list[tuple[str, str, int]] = []

    def tell(job: Job, error: str, times: int) -> None:
        told.append((job.name, error, times))

    work: dict[str, Work] = {"audit": fails(RetryError("Kafka is away")), "watch": lambda: {}}
    one = Shift(tracker, work, holder="x", tell=tell)
    for times in range(1, 7):
        assert one.run(0.001)["watch"] >= 1
        sql(tracker, "UPDATE upkeep_jobs SET started_at = started_at - interval '11 s'")
        assert record(tracker).failures >= times
        assert bool(told) is (record(tracker).failures >= records.TRIES)
    assert told == [("audit", "Kafka is away", records.TRIES)]
    found = record(tracker)
    assert (found.state, found.error, found.succeeded_at) == ("failing", "Kafka is away", None)
    Shift(tracker, {"audit": lambda: {}}, holder="x", tell=tell).run(0.001)
    assert (record(tracker).state, record(tracker).failures) == ("ok", 0)
    # what would fail again is told at once; of errors that are not the library's, the type
    for error in (InputError("no such key"), ValueError("ann@example.org")):
        Shift(tracker, {"audit": fails(error)}, holder="x", tell=tell).run(0.001)
    assert told[1:] == [("audit", "no such key", records.TRIES)]
    assert record(tracker).error == "ValueError"


def test_what_fails_is_tried_again_soon_and_later_at_its_interval(tracker: TrackerStore) -> None:
    one = Shift(tracker, {"audit": fails(RetryError("x"))}, holder="x")
    for wait in (10, 10, 10, 60):
        with pytest.raises(RetryError):
            one.run_now(find_job("audit"), wait_s=0)
        due = record(tracker).due_in_s
        assert due is not None
        assert wait - 9 < due <= wait


def test_a_kill_at_any_write_leaves_the_job_to_the_next_shift_once_its_lease_ended(
    tracker: TrackerStore,
) -> None:
    sql(tracker, "CREATE TABLE IF NOT EXISTS done (who text)")
    kill_at, seen = 1, set()
    while _killed_shift(tracker, kill_at):
        [row] = sql(tracker, "SELECT token IS NOT NULL, succeeded_at IS NOT NULL FROM upkeep_jobs") or [(None, None)]  # fmt: skip
        seen.add(row)
        work: dict[str, Work] = {"audit": lambda: {"by": "next"}}
        if row[0]:
            is_due(tracker)
            assert Shift(tracker, work, holder="next").run(0.05) == {}, "it may still live"
            lease_ends(tracker)
        elif row[1]:
            is_due(tracker)
        assert Shift(tracker, work, holder="next").run(0.01) == {"audit": 1}
        found = record(tracker)
        assert (found.state, found.outcome, found.holder) == ("ok", {"by": "next"}, "next")
        assert ("froze" in found.error) is bool(row[0])
        sql(tracker, "DELETE FROM upkeep_jobs")
        kill_at += 1
    assert kill_at > 9, "read, lease, work, record: three points each"
    assert seen == {(None, None), (True, False), (False, True)}


def _killed_shift(tracker: TrackerStore, kill_at: int) -> bool:
    """Run the job once in a child that is killed at a point; False: it went to its end."""

    def run() -> None:
        shift._POLL_S = 60.0  # it looks at the jobs as often in each child, however slow that is
        points = TrackerWithPoints.points = Points(kill_at)
        own = TrackerWithPoints(TrackerSettings(dsn=tracker.dsn))

        def work() -> Mapping[str, Any]:
            points.pass_one()
            sql(own, "INSERT INTO done VALUES ('child')")
            points.pass_one()
            return {"by": "child"}

        Shift(own, {"audit": work}, holder="child").run(0.001)

    with sessions_ended(tracker):
        return was_killed(forked(run))


def test_a_shift_that_was_frozen_ends_when_it_wakes_and_changes_nothing(
    tracker: TrackerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shift, "BEAT_S", 0.2)
    held = Held()
    frozen = TrackerWithGate(TrackerSettings(dsn=tracker.dsn))
    thread, found = in_thread(lambda: Shift(frozen, {"audit": held}, holder="a").run(60))
    assert held.begun.acquire(timeout=120)
    frozen.gate.clear()  # its main thread stops at its next statement
    wait_for(lambda: frozen.stopped)
    lease_ends(tracker)
    is_due(tracker)
    work: dict[str, Work] = {"audit": lambda: {"by": "b"}}
    assert Shift(tracker, work, holder="b").run(0.01) == {"audit": 1}
    before = record(tracker)
    frozen.gate.set()
    thread.join(120)
    [error] = found
    assert isinstance(error, StopError)
    assert "another process has audit: this one was frozen" in str(error)
    held.let_go.set()
    assert replace(record(tracker), due_in_s=0) == replace(before, due_in_s=0)
    frozen.close()


class TrackerWithGate(TrackerStore):
    """Its statements wait while the gate is shut, as those of a process that was stopped."""

    def __init__(self, settings: TrackerSettings) -> None:
        super().__init__(settings)
        self.gate, self.stopped = threading.Event(), False
        self.gate.set()

    def transaction(self, **limits: Any) -> Any:
        self.stopped = not self.gate.is_set()
        assert self.gate.wait(120)
        return super().transaction(**limits)


def test_work_that_ends_after_its_lease_was_lost_is_not_written_down(tracker: TrackerStore) -> None:
    held = Held()
    thread, found = in_thread(lambda: Shift(tracker, {"audit": held}, holder="a").run(60))
    assert held.begun.acquire(timeout=120)
    lease_ends(tracker)
    lease = take_lease(tracker, find_job("audit"), holder="b", asked=True)
    assert lease is not None
    held.let_go.set()
    thread.join(120)
    assert isinstance(found[0], StopError)
    assert record(tracker).running
    assert record(tracker).holder == "b"
    assert beat(tracker, [lease]) == []
    assert write_success(tracker, lease, {"by": "b"})
    assert not write_success(tracker, lease, {"by": "again"})
    assert record(tracker).outcome == {"by": "b"}


@pytest.mark.parametrize("hours", [-24, 24])
def test_a_clock_that_was_set_stops_no_job(tracker: TrackerStore, hours: int) -> None:
    """All times of the record lie a day ahead, or behind, and the lease is not given back."""
    assert take_lease(tracker, find_job("audit"), holder="dead") is not None
    sql(
        tracker,
        "UPDATE upkeep_jobs SET started_at = started_at + :hours * interval '1 h', "
        "beat_at = beat_at + :hours * interval '1 h', "
        "succeeded_at = clock_timestamp() + :hours * interval '1 h'",
        hours=hours,
    )
    assert record(tracker).state == "late"
    assert Shift(tracker, {"audit": lambda: {}}, holder="x").run(0.01) == {"audit": 1}
    assert record(tracker).state == "ok"


@pytest.mark.parametrize("restored", ["DELETE FROM upkeep_jobs", "UPDATE upkeep_jobs SET token = gen_random_uuid()"])  # fmt: skip
def test_a_tracker_that_was_restored_ends_the_shift_and_stops_no_job(
    tracker: TrackerStore, restored: str
) -> None:
    held = Held()
    thread, found = in_thread(lambda: Shift(tracker, {"audit": held}, holder="a").run(60))
    assert held.begun.acquire(timeout=120)
    sql(tracker, restored)
    held.let_go.set()
    thread.join(120)
    assert isinstance(found[0], StopError)
    lease_ends(tracker)
    is_due(tracker)
    assert Shift(tracker, {"audit": lambda: {}}, holder="b").run(0.01) == {"audit": 1}


def test_a_job_over_its_limit_ends_the_shift_and_is_told(
    tracker: TrackerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = tuple(replace(job, limit_s=0.3) for job in records.JOBS)
    monkeypatch.setattr(shift, "JOBS", jobs)
    held, told = Held(), []
    one = Shift(tracker, {"audit": held}, holder="a", tell=lambda job, *said: told.append(said))
    with pytest.raises(RetryError, match="audit took over 0 s"):
        one.run(60)
    held.let_go.set()
    assert [times for _, times in told] == [records.TRIES]
    assert "took over" in record(tracker).error
    assert not record(tracker).running


def test_a_tracker_that_is_away_for_a_moment_is_waited_for_and_then_ends_the_shift(
    tracker: TrackerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Away(TrackerStore):
        asked = 0

        def transaction(self, **limits: Any) -> Any:
            self.asked += 1
            if self.asked > 20:
                monkeypatch.setattr(shift, "_AWAY_S", 0.2)
            if self.asked <= 3 or self.asked > 20:
                raise AwayError("tracker did not answer", setting="WAYBILL_TRACKER__DSN")
            return super().transaction(**limits)

    ran: list[int] = []
    with Away(TrackerSettings(dsn=tracker.dsn)) as away:
        with pytest.raises(AwayError):
            Shift(away, {"audit": lambda: ran.append(1) or {}}, holder="a").run(60)  # type: ignore[func-returns-value]
        assert ran == [1]
        assert away.asked > 21, "it asked again before it gave up"


def test_a_job_by_hand_waits_for_the_one_that_runs_and_needs_not_be_due(
    tracker: TrackerStore,
) -> None:
    held = Held()
    thread, _ = in_thread(lambda: Shift(tracker, {"audit": held}, holder="shift 1").run(0.01))
    assert held.begun.acquire(timeout=120)
    by_hand = Shift(tracker, {"audit": lambda: {"by": "hand"}}, holder="ann")
    with pytest.raises(RetryError, match="audit is run by shift 1 since"):
        by_hand.run_now(find_job("audit"), wait_s=0)
    waiting, found = in_thread(lambda: by_hand.run_now(find_job("audit"), wait_s=60))
    held.let_go.set()
    thread.join(120)
    waiting.join(120)
    assert found == [{"by": "hand"}]
    assert record(tracker).holder == "ann"
    with pytest.raises(InputError, match="no job 'audits'; jobs: audit, watch"):
        find_job("audits")


def called(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["upkeep", *words], env={"COLUMNS": "80"})
    assert done.exit_code == code, done.output
    return done.output


def test_what_came_of_a_job_is_listed_in_words(tracker: TrackerStore) -> None:
    found = {"number": 4, "looked_at": 1_204, "balanced": 1, "moving": 0, "problem": "a word"}
    assert Shift(tracker, {"audit": lambda: found}, holder="x").run(0.01) == {"audit": 1}
    said = " ".join(called("list", code=2).split())
    assert "round 4, 1,204 minutes checked, 1 in balance, problem: a word" in said


def test_a_job_is_paused_resumed_and_listed_by_the_command_line(tracker: TrackerStore) -> None:
    work: dict[str, Work] = {job.name: lambda: {"looked_at": 7} for job in records.JOBS}
    assert "never" in (said := called("list", code=2))
    assert "that is done could not be checked: Airflow" in said
    assert "audit is paused" in called("pause", "audit", "--who", "ann", "--why", "a restore")
    called("pause", "audit", "--who", "bob")
    assert Shift(tracker, work, holder="x").run(0.01) == dict.fromkeys(set(work) - {"audit"}, 1)
    said = called("list")
    assert "upkeep job audit is paused by ann" in said
    assert "7 looked at" in said
    assert "=" not in said
    assert "late:" not in said
    assert max(map(len, said.splitlines())) <= 80
    assert Shift(tracker, work, holder="x").run_now(find_job("audit"), wait_s=0) == {"looked_at": 7}
    is_due(tracker)
    assert Shift(tracker, {"audit": work["audit"]}, holder="x").run(0.01) == {}
    assert "audit is not paused" in called("resume", "audit", "--who", "bob", "--why", "restored")
    assert Shift(tracker, {"audit": work["audit"]}, holder="x").run(0.01) == {"audit": 1}
    rows = sql(tracker, "SELECT who, action, target, detail ->> 'why' FROM audit_log ORDER BY id")
    assert rows[-2:] == [
        ("ann", "pause_job", "audit", "a restore"),
        ("bob", "resume_job", "audit", "restored"),
    ]
    assert "no job 'nothing'" in called("pause", "nothing", code=3)
    [first, *_] = json.loads(called("list", "--json"))
    assert (first["job"], first["state"], first["outcome"]) == ("audit", "ok", {"looked_at": 7})


def test_status_and_doctor_look_at_the_records(tracker: TrackerStore) -> None:
    work: dict[str, Work] = {job.name: dict for job in records.JOBS}
    check = stack._jobs()
    assert (check.ok, check.found.split(";")[0]) == (False, "upkeep job audit never succeeded")
    Shift(tracker, work, holder="x").run(0.01)
    assert (stack._jobs().ok, stack._jobs().found) == (True, "each job succeeded lately")
    is_due(tracker)
    hostile = StopError("a mail\x1b[2J to ann")
    Shift(tracker, {"tell_owners": fails(hostile)}, holder="x").run(0.01)
    check = stack._jobs()
    assert not check.ok
    assert check.found.startswith("upkeep job tell_owners fails, last succeeded ")
    assert "s ago: a mail" in check.found
    assert check.found.isprintable()
    sql(
        tracker, "UPDATE upkeep_jobs SET succeeded_at = succeeded_at - interval '2 h', failures = 0"
    )
    assert "upkeep job audit last succeeded 2 h ago" in stack._jobs().found


@pytest.mark.usefixtures("at_once")
def test_a_shift_whose_dag_is_paused_ends_once_nothing_runs(
    tracker: TrackerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shift, "_ASK_S", 0.05)
    held, paused, asked = Held(), threading.Event(), threading.Semaphore(0)

    def is_stopped() -> bool:
        if paused.is_set():
            asked.release()
        return paused.is_set()

    ran = 0

    def audit() -> Mapping[str, Any]:
        nonlocal ran
        ran += 1
        return {}

    one = Shift(tracker, {"watch": held, "audit": audit}, holder="a")
    thread, found = in_thread(lambda: one.run(60, is_stopped=is_stopped))
    assert held.begun.acquire(timeout=120)
    paused.set()
    assert asked.acquire(timeout=120)
    assert asked.acquire(timeout=120)
    wait_for(lambda: not record(tracker).running)  # one that was started before may be on its way
    before = ran
    assert asked.acquire(timeout=120)
    assert thread.is_alive(), "a run is not cut off"
    assert ran == before, "nothing more is started"
    held.let_go.set()
    thread.join(120)
    assert found == [{"watch": 1, "audit": ran}]
