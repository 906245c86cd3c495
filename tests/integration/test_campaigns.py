"""Campaigns on a real tracker: what is frozen, what is launched, and what a kill leaves."""

from __future__ import annotations

import asyncio
import json
import resource
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from sqlalchemy import text
from tests.integration.parking_lot import Points, TrackerWithPoints
from tests.support.books import open_books
from tests.support.children import forked, was_killed
from typer.testing import CliRunner

from waybill import services
from waybill.access import Decision
from waybill.cli import app
from waybill.errors import InputError, RetryError
from waybill.replay import (
    Campaign,
    CampaignRequest,
    advance_campaign,
    cancel_campaign,
    freeze_campaign,
    pause_campaign,
    read_campaign,
    read_campaign_groups,
    read_campaigns,
    read_open_campaigns,
    resume_campaign,
)
from waybill.replay.campaigns import run_id_of
from waybill.retention import TRIMS
from waybill.services import airflow_client
from waybill.settings import Settings, TrackerSettings
from waybill.storage import TrackerStore

pytestmark = pytest.mark.serves
ANN = Decision("ann", "a test")
PARK = """
INSERT INTO parked_partitions
  (pipeline_id, event_name, stage, error_type, parked, replaying, replayed,
   first_event_at, last_event_at)
SELECT :pipeline, :name || number, :stage, :code, :parked, :replaying, :replayed,
  '2013-01-01Z', '2013-01-02Z'
FROM generate_series(1, :number) AS number RETURNING id
"""
RUNNING = """
INSERT INTO replays (id, partition_id, state, requested_by)
VALUES (gen_random_uuid(), :partition, 'running', 'ann')
"""


HOLD = "INSERT INTO pipeline_holds (pipeline_id, cause, held_by) VALUES (:pipeline, '{}', 'ann')"


class Airflow:
    """Runs of the DAG ``replay``, kept in a table: they outlive a process that is killed."""

    def __init__(self, tracker: TrackerStore, points: Points | None = None) -> None:
        self.tracker, self.points = tracker, points or Points(0)
        self.answers: list[Exception | None] = []
        """For the next starts; None: it is taken."""
        self.most = 0
        """Most runs that were unfinished at a time."""
        sql(
            tracker,
            "CREATE TABLE IF NOT EXISTS airflow_runs (run_id text PRIMARY KEY, conf jsonb, "
            "state text DEFAULT 'queued', posts int DEFAULT 1)",
        )

    def start(self, run_id: str, conf: Mapping[str, Any]) -> None:
        self.points.pass_one()
        error = self.answers.pop(0) if self.answers else None
        if isinstance(error, LookupError):
            raise RetryError("Airflow did not answer")  # before it was taken
        sql(
            self.tracker,
            "INSERT INTO airflow_runs (run_id, conf) VALUES (:run_id, CAST(:conf AS jsonb)) "
            "ON CONFLICT (run_id) DO UPDATE SET posts = airflow_runs.posts + 1",
            run_id=run_id,
            conf=json.dumps(conf),
        )
        self.most = max(self.most, len(self.unfinished()))
        if error is not None:
            raise error
        self.points.pass_one()

    def state(self, run_id: str) -> str | None:
        rows = sql(self.tracker, "SELECT state FROM airflow_runs WHERE run_id = :id", id=run_id)
        return str(rows[0][0]) if rows else None

    def unfinished(self) -> list[str]:
        query = "SELECT run_id FROM airflow_runs WHERE state = 'queued' ORDER BY run_id"
        return [str(row[0]) for row in sql(self.tracker, query)]

    def end(self, run_id: str, state: str = "success") -> None:
        sql(
            self.tracker,
            "UPDATE airflow_runs SET state = :state WHERE run_id = :id",
            state=state,
            id=run_id,
        )

    def runs_by_group(self) -> dict[str, int]:
        """Return {event name: runs}."""
        query = "SELECT conf ->> 'event_name', count(*) FROM airflow_runs GROUP BY 1"
        return {str(row[0]): int(row[1]) for row in sql(self.tracker, query)}


def sql(tracker: TrackerStore, statement: str, **values: Any) -> list[tuple[Any, ...]]:
    # the store's own transaction, also where a child's has points at which it is killed
    with TrackerStore.transaction(tracker) as connection:
        found = connection.execute(text(statement), values)
        return [tuple(row) for row in found] if found.returns_rows else []


def park(tracker: TrackerStore, number: int = 1, **changes: Any) -> list[int]:
    given = {
        "pipeline": "pl-1",
        "name": "order",
        "stage": "mapping",
        "code": "null_value",
        **dict.fromkeys(("replaying", "replayed"), 0),
        "parked": 5,
        "number": number,
    }
    return [int(row[0]) for row in sql(tracker, PARK, **given | changes)]


def freeze(tracker: TrackerStore, run_id: str = "manual__1", **asked: Any) -> Campaign:
    request = CampaignRequest.of(asked)
    return freeze_campaign(tracker, request, asked.get("pipeline"), who="ann", run_id=run_id)


def numbers(tracker: TrackerStore, campaign_id: int) -> dict[str, int]:
    """Return {state: groups} as the rows say; they are the campaign's own numbers, too."""
    rows = sql(
        tracker,
        "SELECT state, outcome, count(*) FROM campaign_groups WHERE campaign_id = :id "
        "GROUP BY 1, 2",
        id=campaign_id,
    )
    by_state: Counter[str] = Counter()
    for state, _, number in rows:
        by_state[state] += number
    found = read_campaign(tracker, campaign_id)
    assert found.groups == by_state["waiting"] + by_state["launched"] + by_state["ended"]
    assert found.launched == by_state["launched"] + by_state["ended"]
    assert found.ended == by_state["ended"]
    assert found.failed == sum(n for s, how, n in rows if s == "ended" and how != "success")
    assert found.left_out == {how: n for s, how, n in rows if s == "left_out"}
    return dict(by_state)


def to_the_end(tracker: TrackerStore, campaign_id: int, airflow: Airflow) -> Campaign:
    """Advance a campaign until it is over; one run ends before each look."""
    while (found := advance_campaign(tracker, campaign_id, airflow)).ended_at is None:
        unfinished = airflow.unfinished()
        assert len(unfinished) <= found.max_unfinished
        assert unfinished, "it waits for nothing"
        airflow.end(unfinished[0])
    return found


@pytest.fixture
def tracker(postgres: Any) -> Iterator[TrackerStore]:
    with open_books(postgres, "campaigns") as books:
        sql(books, "INSERT INTO pipelines (id, name, team) VALUES ('pl-1', 'orders', 'shop')")
        yield books


# Freezing ----------------------------------------------------------------------------------------


def test_what_matches_is_frozen_and_what_cannot_be_replayed_is_left_out_with_the_reason(
    tracker: TrackerStore,
) -> None:
    fine = park(tracker, 3)
    fine += park(tracker, code="delivery_too_large", stage="ingestion")
    fine += park(tracker, pipeline="pl-2")
    park(tracker, code="source_row_malformed", stage="ingestion")
    park(tracker, 2, pipeline="pl-held")
    sql(
        tracker,
        "INSERT INTO pipeline_holds (pipeline_id, cause, held_by, released_at) VALUES "
        "('pl-held', '{}', 'ann', NULL), ('pl-1', '{}', 'ann', now())",
    )
    [taken] = park(tracker, name="all taken", parked=0, replaying=5)
    [some] = park(tracker, name="some taken", parked=3, replaying=2)
    for partition in (taken, some):
        sql(tracker, RUNNING, partition=partition)
    park(tracker, name="sent", parked=0, replayed=9)

    found = freeze(tracker)
    left_out = {"never_events": 1, "held": 2, "replaying": 2}
    assert (found.groups, found.left_out) == (len(fine), left_out)
    assert (found.state, found.asked_by, found.teams) == ("running", "ann", ("", "shop"))
    waiting = read_campaign_groups(tracker, found.id, state="waiting", limit=99)
    assert [group.partition_id for group in waiting] == fine
    assert waiting[0].pipeline == "orders"
    numbers(tracker, found.id)
    tried = freeze(tracker, "manual__dry", dry_run=True)
    assert (tried.groups, tried.left_out) == (len(fine) + 3, {"never_events": 1})
    [entry] = sql(
        tracker,
        'SELECT who, target, detail FROM audit_log WHERE detail @> \'{"request": {"dry_run": true}}\'',
    )
    assert entry[:2] == ("ann", f"campaign {tried.id}")
    assert entry[2]["groups"] == tried.groups


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ({"stage": "mapping"}, ["a1", "b1"]),
        ({"stage": "mapping", "event_name": "a1"}, ["a1"]),
        ({"error_type": "type_error"}, ["c1"]),
        ({"event_name": "a1' OR 1=1 --"}, []),
        ({"since": "2013-01-01T12:00Z", "until": "2013-01-01T13:00Z"}, ["a1"]),
        ({"since": "2013-02-01"}, []),
        ({"fingerprint": "0123456789abcdef"}, ["a1"]),
        ({"pipeline": "pl-2"}, ["c1"]),
    ],
)
def test_the_filter_is_that_of_the_lists(
    tracker: TrackerStore, asked: dict[str, Any], names: list[str]
) -> None:
    [first] = park(tracker, name="a")
    park(tracker, name="b")
    park(tracker, name="c", stage="transformation", code="type_error", pipeline="pl-2")
    sql(tracker, "INSERT INTO parked_objects (key, bytes) VALUES ('k', 1)")
    sql(
        tracker,
        "INSERT INTO segments (partition_id, object_key, position, length, count, bytes, sha256, "
        "first_event_at, last_event_at, scope, commit_number, kafka_partition, first_offset, "
        "fingerprint) VALUES (:id, 'k', 0, 1, 5, 1, '', '2013-01-01Z', '2013-01-01T13:30Z', '', "
        "1, 0, 0, '0123456789abcdef')",
        id=first,
    )
    found = freeze(tracker, **asked)
    waiting = read_campaign_groups(tracker, found.id, state="waiting", limit=99)
    assert sorted(group.event_name for group in waiting) == names


def test_what_is_left_out_takes_no_place_of_the_limit(tracker: TrackerStore) -> None:
    park(tracker, 2, code="source_row_malformed", stage="ingestion")
    fine = park(tracker, 5)
    found = freeze(tracker, limit=3)
    assert (found.groups, found.left_out) == (3, {"never_events": 2, "over_limit": 2})
    waiting = read_campaign_groups(tracker, found.id, state="waiting", limit=99)
    assert [group.partition_id for group in waiting] == fine[:3]


def test_a_retry_has_the_same_campaign_and_what_parks_later_is_not_in_it(
    tracker: TrackerStore,
) -> None:
    park(tracker, 50)
    ids: list[int] = []
    barrier = threading.Barrier(4)

    def asked() -> None:
        barrier.wait()
        ids.append(freeze(tracker).id)

    threads = [threading.Thread(target=asked) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    park(tracker, name="later")
    again = freeze(tracker, stage="transformation")
    assert {*ids, again.id} == {ids[0]}
    assert (len(ids), again.groups, again.request["max_unfinished"]) == (4, 50, 8)
    assert numbers(tracker, again.id) == {"waiting": 50}


def test_a_group_is_in_one_campaign_at_work_and_the_other_says_which(
    tracker: TrackerStore,
) -> None:
    park(tracker, 3)
    airflow = Airflow(tracker)
    tried = freeze(tracker, "dry", dry_run=True)
    first = freeze(tracker, "first", limit=2)
    assert first.groups == 2, "a dry run takes nothing"
    advance_campaign(tracker, first.id, airflow)
    second = freeze(tracker, "second")
    assert (second.groups, second.left_out) == (1, {f"campaign {first.id}": 2})
    assert freeze(tracker, "other dry", dry_run=True).groups == 3
    pause_campaign(tracker, first.id, ANN)
    assert freeze(tracker, "third").left_out == {
        f"campaign {first.id}": 2,
        f"campaign {second.id}": 1,
    }
    cancel_campaign(tracker, first.id, ANN)
    assert freeze(tracker, "fourth").groups == 2
    assert read_campaign(tracker, tried.id).groups == 3


def test_many_groups_are_frozen_in_sql_and_none_of_them_in_this_process(
    tracker: TrackerStore,
) -> None:
    park(tracker, 50_000)
    before = resource.getrusage(resource.RUSAGE_SELF)
    found = freeze(tracker)
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert found.groups == 50_000
    assert after.ru_maxrss - before.ru_maxrss < 10 * 1024, "KiB"
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1
    advance_campaign(tracker, found.id, Airflow(tracker))
    with tracker.transaction() as connection:
        assert len(read_open_campaigns(connection)[found.id].run_ids) == 8
    assert freeze(tracker, "second").left_out == {f"campaign {found.id}": 50_000}


# Working on it -----------------------------------------------------------------------------------


def test_a_few_runs_at_a_time_are_launched_until_all_have_ended(tracker: TrackerStore) -> None:
    park(tracker, 30)
    airflow = Airflow(tracker)
    found = freeze(tracker, max_unfinished=25, canary=True, rate_per_s=7)
    looked = advance_campaign(tracker, found.id, airflow)
    assert (looked.launched, looked.waiting, looked.state) == (25, 5, "running")
    first, second, third = airflow.unfinished()[:3]
    airflow.end(first, "failed")
    airflow.end(second)
    sql(tracker, "DELETE FROM airflow_runs WHERE run_id = :id", id=third)
    looked = advance_campaign(tracker, found.id, airflow)
    assert (looked.ended, looked.failed, looked.launched) == (3, 2, 28)
    failed = read_campaign_groups(tracker, found.id, state="failed", limit=9)
    assert {group.run_id: group.outcome for group in failed} == {first: "failed", third: "gone"}
    assert numbers(tracker, found.id) == {"waiting": 2, "launched": 25, "ended": 3}
    done = to_the_end(tracker, found.id, airflow)
    assert (done.state, done.ended, done.failed, done.eta_s) == ("done", 30, 2, None)
    assert airflow.most == 25
    assert advance_campaign(tracker, found.id, airflow).ended_at == done.ended_at
    [(conf,)] = sql(tracker, "SELECT conf FROM airflow_runs WHERE run_id = :id", id=first)
    assert conf["pipeline"] == "orders"
    assert (conf["canary"], conf["rate_per_s"], conf["governed"]) == (True, 7, True)
    with tracker.transaction() as connection:
        assert read_open_campaigns(connection) == {}


def test_a_campaign_of_no_group_is_over_at_once(tracker: TrackerStore) -> None:
    found = freeze(tracker)
    assert advance_campaign(tracker, found.id, Airflow(tracker)).state == "done"


def test_an_api_that_fails_or_says_nothing_launches_nothing_twice_and_forgets_nothing(
    tracker: TrackerStore,
) -> None:
    park(tracker, 5)
    airflow = Airflow(tracker)
    found = freeze(tracker, max_unfinished=4)
    taken_but_lost = RetryError("500 after it was taken")
    airflow.answers[:] = [None, LookupError(), None, taken_but_lost]
    with pytest.raises(RetryError):
        advance_campaign(tracker, found.id, airflow)
    assert numbers(tracker, found.id) == {"waiting": 4, "launched": 1}
    with pytest.raises(RetryError, match="500"):
        advance_campaign(tracker, found.id, airflow)
    assert numbers(tracker, found.id) == {"waiting": 3, "launched": 2}
    done = to_the_end(tracker, found.id, airflow)
    assert (done.ended, done.failed) == (5, 0)
    assert set(airflow.runs_by_group().values()) == {1}
    posts = sql(tracker, "SELECT max(posts), sum(posts) FROM airflow_runs")
    assert posts == [(2, 6)], "the lost answer was asked for again"


def test_pause_resume_and_cancel(tracker: TrackerStore) -> None:
    park(tracker, 5)
    airflow = Airflow(tracker)
    found = freeze(tracker, max_unfinished=2)
    advance_campaign(tracker, found.id, airflow)
    paused = pause_campaign(tracker, found.id, ANN)
    assert (paused.state, paused.changed_by, paused.unfinished) == ("paused", "ann", 2)
    airflow.end(airflow.unfinished()[0])
    looked = advance_campaign(tracker, found.id, airflow)
    assert (looked.ended, looked.launched, looked.ended_at) == (1, 2, None)
    assert pause_campaign(tracker, found.id, ANN).changed_at == paused.changed_at
    resume_campaign(tracker, found.id, ANN)
    assert advance_campaign(tracker, found.id, airflow).launched == 3
    cancelled = cancel_campaign(tracker, found.id, ANN)
    assert (cancelled.waiting, cancelled.to_json()["cancelled"], cancelled.unfinished) == (0, 2, 2)
    assert cancelled.ended_at is None, "two of its runs go on"
    done = to_the_end(tracker, found.id, airflow)
    assert (done.state, done.launched, done.ended) == ("cancelled", 3, 3)
    assert cancel_campaign(tracker, found.id, ANN) == read_campaign(tracker, found.id)
    for change in (pause_campaign, resume_campaign):
        with pytest.raises(InputError, match="is cancelled by ann"):
            change(tracker, found.id, ANN)
    with pytest.raises(InputError, match="there is no campaign 99"):
        pause_campaign(tracker, 99, ANN)
    actions = sql(
        tracker, "SELECT action FROM audit_log WHERE action <> 'begin_campaign' ORDER BY id"
    )
    assert [row[0] for row in actions] == ["pause_campaign", "resume_campaign", "cancel_campaign"]


def test_what_is_held_or_taken_when_its_turn_comes_is_left_out(tracker: TrackerStore) -> None:
    first, second, *_ = park(tracker, 3)
    park(tracker, 30, pipeline="pl-2")
    airflow = Airflow(tracker)
    found = freeze(tracker, max_unfinished=2)
    own, dry = run_id_of(found.run_id, first), freeze(tracker, "dry", dry_run=True)
    # a task that was killed before it wrote down what it had started
    sql(tracker, RUNNING, partition=first)
    sql(tracker, "UPDATE replays SET run_id = :own", own=own)
    sql(tracker, RUNNING, partition=second)
    sql(tracker, HOLD, pipeline="pl-2")
    looked = advance_campaign(tracker, found.id, airflow)
    assert (looked.groups, looked.launched, looked.left_out) == (32, 2, {"replaying": 1})
    assert own in airflow.unfinished()
    done = to_the_end(tracker, found.id, airflow)
    assert (done.groups, done.ended) == (2, 2)
    assert done.left_out == {"replaying": 1, "held": 30}
    numbers(tracker, found.id)
    assert advance_campaign(tracker, dry.id, airflow).launched == 8


def test_a_pause_counts_amid_a_long_row_of_launches(tracker: TrackerStore) -> None:
    park(tracker, 60)
    found = freeze(tracker, max_unfinished=60)

    class Pausing(Airflow):
        def start(self, run_id: str, conf: Mapping[str, Any]) -> None:
            super().start(run_id, conf)
            if len(self.unfinished()) == 5:
                pause_campaign(tracker, found.id, ANN)

    looked = advance_campaign(tracker, found.id, Pausing(tracker))
    assert (looked.state, looked.launched) == ("paused", 20)
    assert numbers(tracker, found.id) == {"waiting": 40, "launched": 20}


def test_two_tasks_of_one_campaign_at_once_launch_each_group_once(tracker: TrackerStore) -> None:
    """A worker that was frozen wakes up beside the retry of its task."""
    park(tracker, 6)
    found = freeze(tracker, max_unfinished=3)

    class Frozen(Airflow):
        woke = False

        def start(self, run_id: str, conf: Mapping[str, Any]) -> None:
            if not self.woke:
                self.woke = True
                advance_campaign(tracker, found.id, Airflow(tracker))
            super().start(run_id, conf)

    airflow = Frozen(tracker)
    advance_campaign(tracker, found.id, airflow)
    assert numbers(tracker, found.id) == {"waiting": 3, "launched": 3}
    to_the_end(tracker, found.id, airflow)
    assert set(airflow.runs_by_group().values()) == {1}


@pytest.mark.parametrize(
    ("meanwhile", "size", "step"),
    [
        ("nothing", 1, 3),
        ("held", 1, 9),
        ("cancelled", 2, 6),
        pytest.param("nothing", 1, 1, marks=pytest.mark.campaign),
        pytest.param("cancelled", 1, 3, marks=pytest.mark.campaign),
        pytest.param("held", 1, 3, marks=pytest.mark.campaign),
        pytest.param("cancelled", 2, 2, marks=pytest.mark.campaign),
    ],
)
def test_a_kill_between_any_two_writes_launches_nothing_twice_and_forgets_nothing(
    tracker: TrackerStore, meanwhile: str, size: int, step: int
) -> None:
    """Whatever a killed task has started is written down, also of what is not wanted any more.

    ``step``: one point in so many is tried.
    """
    park(tracker, 3)
    airflow = Airflow(tracker)
    kills = 0
    asked = {"max_unfinished": 2, "groups_per_run": size}
    while _killed(tracker, f"manual__{kills}", kills * step + 1, asked):
        found = freeze(tracker, f"manual__{kills}", **asked)
        assert (found.groups, found.left_out) == (3, {})
        if meanwhile == "cancelled":
            if found.state == "running":
                cancel_campaign(tracker, found.id, ANN)
        elif meanwhile == "held":
            sql(tracker, HOLD, pipeline="pl-1")
        done = to_the_end(tracker, found.id, airflow)
        launched = numbers(tracker, found.id).get("ended", 0)
        if meanwhile == "nothing":
            assert (done.state, done.launched, done.failed) == ("done", 3, 0)
        query = "SELECT run_id FROM campaign_groups WHERE state = 'ended' AND campaign_id = :id"
        known = [row[0] for row in sql(tracker, query, id=found.id)]
        started = [row[0] for row in sql(tracker, "SELECT run_id FROM airflow_runs")]
        assert sorted(set(known)) == sorted(started)
        assert (len(started), set(airflow.runs_by_group().values())) in (
            (0, set()),
            (-(-launched // size), {1}),
        )
        sql(tracker, "TRUNCATE airflow_runs, pipeline_holds")
        kills += 1
    assert kills > 20 / (size * step)


def _killed(tracker: TrackerStore, run_id: str, kill_at: int, asked: dict[str, int]) -> bool:
    """Freeze and work on a campaign in a child that is killed at a point; True when it was."""

    def work() -> None:
        mortal = TrackerWithPoints(TrackerSettings(dsn=tracker.dsn))
        points = Points(0)
        mortal.points = points
        airflow = Airflow(mortal, points)
        points.kill_at = kill_at
        found = freeze(mortal, run_id, **asked)
        to_the_end(mortal, found.id, airflow)

    return was_killed(forked(work))


def test_its_task_is_woken_by_its_trigger_until_all_have_ended(
    tracker: TrackerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator and its trigger on a real tracker; only Airflow's API is stood in for."""
    from airflow.sdk.exceptions import TaskDeferred

    from waybill_airflow.operators import campaign as operators
    from waybill_airflow.triggers import campaigns as triggers
    from waybill_airflow.triggers.shared_rows import SharedRows

    monkeypatch.setenv("WAYBILL_TRACKER__DSN", tracker.dsn.get_secret_value())
    park(tracker, 7)
    airflow = Airflow(tracker)
    rows = SharedRows(triggers._read_rows)
    monkeypatch.setattr(triggers, "ROWS", rows)
    monkeypatch.setattr(triggers, "count_unfinished", lambda _ids: len(airflow.unfinished()))
    monkeypatch.setattr(operators, "is_paused", lambda: False)
    monkeypatch.setattr(operators.ReplayCampaignOperator, "runs", lambda _self: airflow)
    task: Any = operators.ReplayCampaignOperator(task_id="campaign", poll_s=0.0)
    run = SimpleNamespace(triggering_user_name="ann", dag_id="d", run_id="manual__1")
    context = {"dag_run": run, "run_id": "manual__1", "params": {"max_unfinished": 4}}

    async def fired(trigger: Any) -> Any:
        ended = asyncio.ensure_future(anext(trigger.run()))
        while rows.reads == seen:  # it has looked, and found nothing to do
            await asyncio.sleep(0.01)
        for run_id in airflow.unfinished():
            airflow.end(run_id)
        return (await asyncio.wait_for(ended, 240)).payload

    waits = seen = 0
    report: Any = None
    look = partial(task.execute, context)
    while report is None:
        try:
            report = look()
        except TaskDeferred as deferred:
            waits, seen = waits + 1, rows.reads
            event = asyncio.run(fired(deferred.trigger))
            look = partial(getattr(task, deferred.method_name), {}, event)
    assert (report["state"], report["ended"], report["failed"]) == ("done", 7, 0)
    assert (waits, airflow.most) == (2, 4)


# The command line, and what is left --------------------------------------------------------------


def test_the_command_line_shows_progress_and_decides(
    tracker: TrackerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYBILL_TRACKER__DSN", tracker.dsn.get_secret_value())
    monkeypatch.setenv("COLUMNS", "80")
    park(tracker, 4, name="a \x1b[31mname that is longer than any column of eighty ")
    park(tracker, code="source_row_malformed", stage="ingestion")
    airflow = Airflow(tracker)
    found = freeze(tracker, max_unfinished=2)
    advance_campaign(tracker, found.id, airflow)
    airflow.end(airflow.unfinished()[0], "failed")
    advance_campaign(tracker, found.id, airflow)

    def run(*words: str, fails: bool = False) -> str:
        done = CliRunner().invoke(app, ["campaigns", *words])
        assert (done.exit_code != 0) is fails, done.output
        assert "\x1b" not in done.output
        return done.output

    listed = run("list")
    assert max(map(len, listed.splitlines())) <= 80
    row = next(line for line in listed.splitlines() if "running" in line).split()
    assert row[:7] == ["1", "running", "ann", "4", "3", "1", "1"]
    shown = " ".join(run("show", "1").split())
    assert "4 groups: 1 waiting, 3 launched, 1 ended, 1 of these failed" in shown
    assert "1 group left out: what the source gave could not be read" in shown
    assert "groups: failed" in shown
    assert "null_value" in "".join(run("show", "1", "--groups", "waiting").split())
    assert "paused" in run("pause", "1", "--why", "a look")
    assert json.loads(run("show", "1", "--json"))["state"] == "paused"
    assert json.loads(run("resume", "1", "--json"))["waiting"] == 1
    assert "2 runs of it not ended" in " ".join(run("cancel", "1").split())
    assert "1 cancelled" in " ".join(run("show", "1").split())
    assert json.loads(run("list", "--json"))[0]["cancelled"] == 1
    assert "is cancelled by" in run("resume", "1", fails=True)
    assert "there is no campaign 7" in run("show", "7", fails=True)
    assert "is none of waiting" in run("show", "1", "--groups", "x", fails=True)
    [(detail,)] = sql(tracker, "SELECT detail FROM audit_log WHERE action = 'pause_campaign'")
    assert detail["why"] == "a look"


def test_groups_of_a_campaign_go_long_after_its_end_and_its_numbers_stay(
    tracker: TrackerStore,
) -> None:
    park(tracker, 3)
    old = freeze(tracker, "old")
    to_the_end(tracker, old.id, Airflow(tracker))
    sql(tracker, "UPDATE campaigns SET ended_at = now() - interval '9 days'")
    new = freeze(tracker, "new")
    assert TRIMS["campaign_groups"](tracker, 8 * 86_400) == 3
    assert TRIMS["campaign_groups"](tracker, 8 * 86_400) == 0
    assert read_campaign(tracker, old.id).ended == 3
    assert numbers(tracker, new.id) == {"waiting": 3}


class Door:
    """Stands for Airflow's API: a run of the campaign's DAG freezes it, or fails."""

    tracker: ClassVar[TrackerStore]
    runs: ClassVar[list[tuple[str, dict[str, Any]]]]
    unpaused: ClassVar[list[str]]
    paused: ClassVar[list[str]]
    fails: ClassVar[bool]

    def __init__(self, _settings: Any, _tell: Any) -> None: ...

    def __enter__(self) -> Door:
        return self

    def __exit__(self, *_: object) -> None: ...

    def is_paused(self, dag_id: str) -> bool:
        return dag_id in self.paused

    def unpause(self, dag_id: str) -> None:
        self.unpaused.append(dag_id)

    def count_runs(self, _dag_id: str, _states: Any) -> int:
        return 3

    def trigger(self, dag_id: str, run_id: str, conf: dict[str, Any]) -> None:
        assert dag_id == "replay_parked_partitions"
        self.runs.append((run_id, conf))
        if not self.fails:
            services.freeze_campaign(Settings(), CampaignRequest.of(conf), who="ann", run_id=run_id)

    def run_state(self, _dag_id: str, _run_id: str) -> str:
        return "failed" if self.fails else "running"


@pytest.fixture
def start(tracker: TrackerStore, monkeypatch: pytest.MonkeyPatch, stack_settings: Any) -> Any:
    for name, value in stack_settings.to_env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WAYBILL_TRACKER__DSN", tracker.dsn.get_secret_value())
    monkeypatch.setattr(airflow_client, "AirflowClient", Door)
    for name, value in {"runs": [], "unpaused": [], "paused": [], "fails": False}.items():
        monkeypatch.setattr(Door, name, value, raising=False)
    return lambda *words, answer=None: CliRunner().invoke(
        app, ["campaigns", "start", *words], input=answer
    )


def test_a_campaign_is_begun_from_the_command_line(tracker: TrackerStore, start: Any) -> None:
    park(tracker, 3)
    park(tracker, code="source_row_malformed", stage="ingestion")
    listed = CliRunner().invoke(app, ["campaigns", "list"])
    assert "there is no campaign; begin one: waybill campaigns start PIPELINE" in listed.output
    for words, said in (
        ((), "say --all-pipelines to mean those of all teams"),
        (("--all-pipelines", "-s", "mappin"), "did you mean 'mapping'"),
        (("-p", "nosuch"), "'nosuch'"),
        (("--all-pipelines", "-s", "ingestion"), "nothing that matches can be replayed"),
        (("--all-pipelines", "--json"), "--json asks no questions: add --yes"),
        (("--all-pipelines",), "add --yes to go on without being asked"),
    ):
        refused = start(*words, answer="")
        assert said in " ".join(refused.output.split()), refused.output
        assert refused.exit_code in {1, 3}
    assert start("--all-pipelines", answer="n\n").exit_code == 1
    assert Door.runs == [], "nothing was begun that was refused"
    words = ("--all-pipelines", "--rate", "7", "--canary", "--why", "a fix")
    done = start(*words, answer="y\n")
    assert done.exit_code == 0, done.output
    assert "Replay up to 15 parked events, in 3 groups? [y/N]" in done.stderr
    assert "1 group left out: what the source gave could not be read" in done.stderr
    assert "campaign 1 has begun: 3 groups: 3 waiting" in " ".join(done.stdout.split())
    assert "waybill campaigns show 1" in done.stdout
    assert Door.unpaused == [], "nobody had paused them"
    [(_, conf)] = Door.runs
    assert (conf["rate_per_s"], conf["canary"], conf["governed"]) == (7, True, True)
    [(who, detail)] = sql(
        tracker, "SELECT who, detail FROM audit_log WHERE action = 'begin_campaign'"
    )
    assert (who, detail["why"], detail["groups"]) == ("ann", "a fix", 3)
    assert detail["claimed_who"] == services.current_user()


def test_who_a_campaign_is_begun_for_stands_beside_airflows_user_and_never_in_its_place(
    tracker: TrackerStore, start: Any
) -> None:
    park(tracker, 2)
    assert start("--all-pipelines", "--yes", "--who", "eve\x1b[2J").exit_code == 0
    entry = "SELECT who, detail FROM audit_log WHERE action = 'begin_campaign' ORDER BY id DESC"
    who, detail = sql(tracker, entry)[0]
    assert who == "ann", "whom Airflow has signed in"
    assert detail["claimed_who"].startswith("eve")
    assert "who" not in detail["request"]
    shown = CliRunner().invoke(app, ["campaigns", "show", "1"]).stdout
    assert "asked by ann (for eve" in " ".join(shown.split())
    assert "\x1b" not in shown
    [found] = read_campaigns(tracker, limit=9)
    assert found.asked_by.startswith("ann (for eve")
    freeze_campaign(tracker, CampaignRequest(who=" ann "), None, who="ann", run_id="own")
    freeze_campaign(tracker, CampaignRequest(who="\x00 "), None, who="ann", run_id="none")
    assert [one.asked_by for one in read_campaigns(tracker, limit=2)] == ["ann", "ann"]
    assert "claimed_who" not in sql(tracker, entry)[0][1]


@pytest.mark.parametrize("is_json", [False, True])
def test_a_campaign_whose_run_failed_has_not_begun_and_ends_with_2(
    tracker: TrackerStore, start: Any, monkeypatch: pytest.MonkeyPatch, is_json: bool
) -> None:
    park(tracker, 2)
    monkeypatch.setattr(Door, "run_state", lambda *_: "failed")
    for wait in ((), ("--wait", "30")):
        sql(tracker, "UPDATE campaigns SET state = 'cancelled', ended_at = now()")
        done = start("--all-pipelines", "--yes", *wait, *(["--json"] if is_json else []))
        assert done.exit_code == 2, done.output
        assert "has begun" not in done.output
        newest = read_campaigns(tracker, limit=1)[0].id
        assert f"campaign {newest} was made, and its run failed" in done.stderr
        if is_json:
            told = json.loads(done.stdout)
            assert (told["id"], told["state"]) == (newest, "failed")


@pytest.mark.parametrize("more", [(), ("--json",), ("--wait", "0")])
def test_a_run_that_succeeded_without_a_campaign_in_this_tracker_ends_with_2(
    tracker: TrackerStore, start: Any, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    park(tracker, 2)
    monkeypatch.setattr(Door, "fails", True)
    monkeypatch.setattr(Door, "run_state", lambda *_: "success")
    done = start("--all-pipelines", "--yes", *more)
    assert done.exit_code == 2, done.output
    assert "no campaign of that run is in this tracker" in done.stderr


@pytest.mark.parametrize("paused", [["replay"], ["replay_parked_partitions", "replay"]])
def test_a_campaign_unpauses_no_dag_that_somebody_paused_unless_that_is_asked_for(
    tracker: TrackerStore, start: Any, monkeypatch: pytest.MonkeyPatch, paused: list[str]
) -> None:
    park(tracker, 2)
    monkeypatch.setattr(Door, "paused", paused)
    refused = start("--all-pipelines", "--yes")
    assert refused.exit_code == 1, refused.output
    said = " ".join(refused.stderr.split())
    for dag_id in paused:
        assert f"the DAG {dag_id} is paused, with 3 unfinished runs" in said
    assert "--unpause" in said
    assert (Door.runs, Door.unpaused) == ([], [])
    done = start("--all-pipelines", "--yes", "--unpause")
    assert done.exit_code == 0, done.output
    assert Door.unpaused == paused
    assert "was paused, with 3 unfinished runs; it is unpaused now" in " ".join(done.stderr.split())


def test_a_campaign_that_did_not_begin_ends_with_2_and_one_that_waits_is_said(
    tracker: TrackerStore, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    park(tracker, 2)
    monkeypatch.setattr(Door, "fails", True)
    failed = start("--all-pipelines", "--yes")
    assert failed.exit_code == 2
    assert "the campaign did not begin: its run failed" in failed.stderr
    monkeypatch.setattr(Door, "run_state", lambda *_: "queued")
    told = start("--all-pipelines", "--yes", "--wait", "0", "--json")
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout) | {"run_id": ""} == {
        **{"id": None, "dag_id": "replay_parked_partitions"},
        **{"run_id": "", "state": "queued"},
    }
    assert json.loads(told.stdout)["run_id"] == Door.runs[-1][0]
