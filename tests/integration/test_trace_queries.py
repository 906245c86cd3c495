"""Questions about events on the real tracker: taken up once, watched, cancelled, outliving runners."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import text
from tests.servers import wait_for
from tests.support import emptied
from tests.support.children import forked
from tests.support.memory_traces import MemoryTraces, made

from waybill.settings import TrackerSettings
from waybill.storage import TrackerStore
from waybill.trails import queries as trace_queries
from waybill.trails.queries import Beat, TooManyQuestionsError
from waybill.trails.question import ask_for_ids, ask_for_key
from waybill.trails.runner import Runner
from waybill.trails.service import TrailService
from waybill.trails.trail import TrailBooks

pytestmark = pytest.mark.serves

ONE = ask_for_ids(["e"])
WAIT_S = 600.0


@pytest.fixture(scope="module")
def opened(_postgres):
    _postgres.ensure()
    with TrackerStore(TrackerSettings(dsn=_postgres.database("questions"))) as store:
        store.migrate()
        yield store


@pytest.fixture
def tracker(opened):
    with opened.transaction() as connection:
        connection.execute(
            text(emptied.without_triggers("TRUNCATE trace_queries, audit_log, pipelines CASCADE"))
        )
    return opened


@pytest.fixture
def make_runner(tracker):
    made_ones = []

    def make(traces, parked=lambda _: None):
        books = TrailBooks(tracker, lambda batches: batches, parked)
        runner = Runner(books, lambda: traces, shipped_after_s=5.0)
        made_ones.append(runner)
        return runner

    yield make
    for runner in made_ones:
        runner.close()


def grow_old(tracker, seconds=60):
    """Let all that runners said be so long ago."""
    with tracker.transaction() as connection:
        connection.execute(
            text("UPDATE trace_queries SET seen_at = seen_at - :age"),
            {"age": timedelta(seconds=seconds)},
        )


def read(tracker, query_id):
    found = trace_queries.read(tracker, query_id)
    assert found is not None
    return found


def test_two_runners_never_take_up_the_same_question(tracker):
    ids = {trace_queries.ask(tracker, ONE, who=f"user-{n}") for n in range(30)}
    taken = []

    def take(runner):
        while (asked := trace_queries.claim(tracker, runner=runner)) is not None:
            taken.append(asked.id)

    with ThreadPoolExecutor(5) as pool:
        list(pool.map(take, "abcde"))
    assert sorted(taken) == sorted(ids)


def test_the_oldest_question_is_taken_up_first(tracker):
    ids = [trace_queries.ask(tracker, ONE, who="anna") for _ in range(3)]
    assert [trace_queries.claim(tracker, runner="r").id for _ in ids] == ids


def test_a_dead_runners_question_is_taken_up_and_what_wakes_late_writes_nothing(tracker):
    query_id = trace_queries.ask(tracker, ONE, who="anna")
    trace_queries.claim(tracker, runner="dead")
    said = Beat(1, 9, 100, "execution-7", "athena")
    assert trace_queries.beat(tracker, query_id, said, runner="dead") is False
    assert trace_queries.claim(tracker, runner="other") is None
    grow_old(tracker)
    again = trace_queries.claim(tracker, runner="other")
    assert (again.id, again.external_id, again.objects) == (query_id, "execution-7", 9)
    assert trace_queries.beat(tracker, query_id, said, runner="dead") is None
    late = {"runner": "dead", "state": "done", "answer": {"trails": ["late"]}}
    assert not trace_queries.finish(tracker, query_id, **late)
    assert trace_queries.finish(tracker, query_id, runner="other", state="done", answer={})
    assert (read(tracker, query_id).state, read(tracker, query_id).answer) == ("done", {})


def test_a_question_that_outlives_three_runners_fails(tracker):
    query_id = trace_queries.ask(tracker, ONE, who="anna")
    for number in range(3):
        assert trace_queries.claim(tracker, runner=f"r{number}").id == query_id
        grow_old(tracker)
    assert trace_queries.claim(tracker, runner="r3") is None
    assert "3 processes died" in read(tracker, query_id).error
    assert read(tracker, query_id).state == "failed"


def test_a_cancelled_question_of_a_dead_runner_ends(tracker):
    query_id = trace_queries.ask(tracker, ONE, who="anna", runner="dead")
    assert trace_queries.cancel(tracker, query_id, who="bob").state == "running"
    assert trace_queries.beat(tracker, query_id, Beat(), runner="dead") is True
    grow_old(tracker)
    assert trace_queries.claim(tracker, runner="other") is None
    assert read(tracker, query_id).state == "cancelled"


def test_a_question_that_nobody_works_on_is_cancelled_at_once(tracker):
    query_id = trace_queries.ask(tracker, ONE, who="anna")
    assert trace_queries.cancel(tracker, query_id, who="anna").state == "cancelled"
    assert trace_queries.claim(tracker, runner="r") is None
    with tracker.transaction() as connection:
        found = connection.execute(text("SELECT who, action FROM audit_log ORDER BY id")).all()
    assert [tuple(row) for row in found] == [("anna", "ask_trail"), ("anna", "cancel_trail")]


def test_nobody_has_more_than_so_many_questions_open(tracker):
    for _ in range(trace_queries.MOST_WAITING):
        last = trace_queries.ask(tracker, ONE, who="anna")
    with pytest.raises(TooManyQuestionsError, match="anna has 20 questions open"):
        trace_queries.ask(tracker, ONE, who="anna")
    trace_queries.ask(tracker, ONE, who="bob")
    trace_queries.cancel(tracker, last, who="anna")
    trace_queries.ask(tracker, ONE, who="anna")


def test_two_who_ask_at_once_are_counted_one_after_the_other(tracker):
    """Two web servers: each would else count what it sees, and let one more through."""
    question = ask_for_key("pl-1", ["4711"])

    def ask(_number):
        try:
            trace_queries.ask(tracker, question, who="anna", most_keys=3)
        except TooManyQuestionsError:
            return 0
        return 1

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(ask, range(16))) == 3
    trace_queries.ask(tracker, question, who="bob", most_keys=3)
    trace_queries.ask(tracker, ONE, who="anna", most_keys=None)


def test_old_questions_are_removed_but_none_that_is_open(tracker):
    old = trace_queries.ask(tracker, ONE, who="anna", runner="r")
    trace_queries.finish(tracker, old, runner="r", state="done", answer={})
    is_open = trace_queries.ask(tracker, ONE, who="anna")
    with tracker.transaction() as connection:
        connection.execute(text("UPDATE trace_queries SET asked_at = asked_at - interval '31 d'"))
    new = trace_queries.ask(tracker, ONE, who="anna", runner="r")
    trace_queries.finish(tracker, new, runner="r", state="done", answer={})
    assert trace_queries.expire(tracker, keep_days=30) == 1
    assert trace_queries.read(tracker, old) is None
    kept = {one.id for one in trace_queries.newest(tracker, asked_by=None, limit=9)}
    assert kept == {new, is_open}


def test_a_served_question_is_answered_with_how_much_was_read(tracker, make_runner):
    traces = MemoryTraces(made("e", "ingestion", "accepted", host="a1"))
    desk = TrailService(tracker, make_runner(traces))
    asked = desk.ask(ONE, who="anna", limit_s=WAIT_S)
    [trail] = asked.answer["trails"]
    assert (trail["event_id"], trail["state"], trail["stops"][0]["host"]) == (
        "e",
        "in flight",
        "a1",
    )
    assert asked.state == "done"
    assert asked.answer["searched"]["objects"] == 3
    assert desk.newest(asked_by="anna", limit=5)[0].answer is None


def test_a_running_question_is_cancelled_from_elsewhere(tracker, make_runner):
    traces = MemoryTraces()
    traces.waits = True
    desk = TrailService(tracker, make_runner(traces))
    asked = desk.ask(ONE, who="anna", limit_s=0.0)
    assert traces.began.wait(WAIT_S)
    trace_queries.cancel(tracker, asked.id, who="bob")
    ended = desk.wait(asked.id, limit_s=WAIT_S)
    assert (ended.state, ended.answer) == ("cancelled", None)


def test_it_is_cancelled_also_while_it_looks_what_became_of_what_parked(tracker, make_runner):
    one = made("e", "mapping", "parked", object_key="parked/x", error_type="x")
    asks, desks = [], []

    def parked(place):
        asks.append(place)
        trace_queries.cancel(tracker, desks[0].newest(asked_by="anna", limit=1)[0].id, who="bob")
        assert slow_end.wait(WAIT_S)

    many = [replace(one, at=one.at, object_key=f"parked/{n}") for n in range(3)]
    desk = TrailService(tracker, make_runner(MemoryTraces(*many), parked))
    desks.append(desk)
    slow_end = CancelSeen(tracker)
    assert desk.run(ONE, who="anna").state == "cancelled"
    assert len(asks) == 1


class CancelSeen:
    """Waits until the runner has heard twice that a question is to be cancelled."""

    def __init__(self, tracker):
        self._tracker = tracker

    def wait(self, limit_s):
        seen, until = set(), time.monotonic() + limit_s
        while len(seen) < 3 and time.monotonic() < until:
            with self._tracker.transaction() as connection:
                seen.add(connection.execute(text("SELECT seen_at FROM trace_queries")).scalar())
            threading.Event().wait(0.02)
        return len(seen) >= 3


def test_while_it_runs_it_says_how_far_it_is_and_by_which_execution(tracker, make_runner):
    traces = MemoryTraces()
    traces.waits = True
    desk = TrailService(tracker, make_runner(traces))
    asked = desk.ask(ONE, who="anna", limit_s=0.0)

    def is_told():
        found = read(tracker, asked.id)
        told_of = (found.objects, found.external_id, found.backend, found.state)
        return told_of == (3, "execution-1", "duckdb", "running")

    wait_for(is_told, WAIT_S)
    traces.waits = False
    assert desk.wait(asked.id, limit_s=WAIT_S).state == "done"


def test_a_runner_that_ends_gives_back_what_it_runs(tracker, make_runner):
    slow, quick = MemoryTraces(), MemoryTraces(made("e", "ingestion", "accepted"))
    slow.waits = True
    first = make_runner(slow)
    asked = TrailService(tracker, first).ask(ONE, who="anna", limit_s=0.0)
    assert slow.began.wait(WAIT_S)
    first.close()
    assert slow.closed
    assert read(tracker, asked.id).state == "queued"
    again = TrailService(tracker, make_runner(quick))
    again.read(asked.id)
    assert again.wait(asked.id, limit_s=WAIT_S).state == "done"


def test_a_runner_that_lost_its_question_ends_the_query_and_writes_nothing(tracker, make_runner):
    traces = MemoryTraces()
    traces.waits = True
    desk = TrailService(tracker, make_runner(traces))
    asked = desk.ask(ONE, who="anna", limit_s=0.0)
    assert traces.began.wait(WAIT_S)
    with tracker.transaction() as connection:
        connection.execute(text("UPDATE trace_queries SET runner = 'thief'"))
    traces.began.clear()
    other = desk.ask(ONE, who="anna", limit_s=0.0)
    assert traces.began.wait(WAIT_S), "no thread is free again"
    assert read(tracker, asked.id).state == "running"
    trace_queries.cancel(tracker, other.id, who="anna")
    assert desk.wait(other.id, limit_s=WAIT_S).state == "cancelled"


def test_a_question_that_takes_too_long_fails(tracker, make_runner, monkeypatch):
    monkeypatch.setattr("waybill.trails.runner.LIMIT_S", 0.1)
    traces = MemoryTraces()
    traces.waits = True
    asked = TrailService(tracker, make_runner(traces)).run(ONE, who="anna")
    assert (asked.state, "took longer" in asked.error) == ("failed", True)


def test_what_goes_wrong_is_told_and_the_threads_go_on(tracker, make_runner):
    traces = MemoryTraces()
    desk = TrailService(tracker, make_runner(traces))
    traces.away = True
    failed = desk.ask(ONE, who="anna", limit_s=WAIT_S)
    assert (failed.state, failed.error) == ("failed", "the object store is away")
    traces.away = False
    traces.traces = None  # type: ignore[assignment]
    broken = desk.ask(ONE, who="anna", limit_s=WAIT_S)
    assert (broken.state, broken.error.startswith("unexpected TypeError")) == ("failed", True)
    traces.traces = []
    assert desk.ask(ONE, who="anna", limit_s=WAIT_S).state == "done"


def test_a_question_in_the_own_thread_is_listed_and_can_be_cancelled(tracker, make_runner):
    traces = MemoryTraces()
    traces.waits = True
    desk = TrailService(tracker, make_runner(traces))
    ended = []
    thread = threading.Thread(target=lambda: ended.append(desk.run(ONE, who="anna")))
    thread.start()
    assert traces.began.wait(WAIT_S)
    [listed] = desk.newest(asked_by="anna", limit=5)
    assert listed.state == "running"
    desk.cancel(listed.id, who="anna")
    thread.join(WAIT_S)
    assert ended[0].state == "cancelled"


def test_ids_and_errors_that_sql_does_not_take_are_kept_in_words(tracker):
    query_id = trace_queries.ask(tracker, ONE, who="an\x00na", runner="r")
    answer = {"trails": [{"said": "a\x00b\ud800"}]}
    trace_queries.finish(
        tracker, query_id, runner="r", state="failed", answer=answer, error="x\x00"
    )
    found = read(tracker, query_id)
    assert (found.asked_by, found.error, found.answer) == (
        "an\\0na", "x\\0", {"trails": [{"said": "a\\0b\\ud800"}]},
    )  # fmt: skip


def kill_while_it_looks(tracker):
    """Ask in a process of its own, and kill it once it looks traces up."""
    reading, writing = os.pipe()

    def look():
        slow = MemoryTraces()
        slow.waits = True
        with TrackerStore(TrackerSettings(dsn=tracker.dsn)) as own:
            books = TrailBooks(own, lambda batches: batches, lambda _: None)
            desk = TrailService(own, Runner(books, lambda: slow, shipped_after_s=5.0))
            desk.ask(ONE, who="anna", limit_s=0.0)
            assert slow.began.wait(WAIT_S)
            os.write(writing, b"!")
            signal.pause()

    child = forked(look)
    assert os.read(reading, 1) == b"!"
    os.close(reading)
    os.close(writing)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_question_whose_process_is_killed_is_answered_by_another(
    tracker, make_runner, monkeypatch
):
    """A real process that is killed while it looks; how long it is waited for is shortened."""
    monkeypatch.setattr(trace_queries, "STALE_S", 3.0)
    tracker.engine.dispose()
    kill_while_it_looks(tracker)
    [asked] = trace_queries.newest(tracker, asked_by="anna", limit=5)
    assert asked.state == "running"
    quick = MemoryTraces(made("e", "ingestion", "accepted"))
    desk = TrailService(tracker, make_runner(quick))
    desk.read(asked.id)
    ended = desk.wait(asked.id, limit_s=WAIT_S)
    assert (ended.state, len(ended.answer["trails"])) == ("done", 1)
