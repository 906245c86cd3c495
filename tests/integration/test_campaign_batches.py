"""Runs that replay many groups of a campaign: on a real tracker, and with Kafka and a store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from tests.integration import test_campaigns as campaigns
from tests.integration import test_replay_from_source as from_source
from tests.integration.test_campaigns import ANN, HOLD, RUNNING, Airflow, freeze, park, sql
from tests.integration.test_replay_from_source import World
from tests.support.children import killed
from typer.testing import CliRunner

from waybill import services
from waybill.cli import app
from waybill.errors import InputError, RetryError
from waybill.parking import Parking
from waybill.producer import LosslessProducer
from waybill.progress import Progress
from waybill.replay import (
    BatchGroup,
    BatchRequest,
    CampaignRequest,
    ReplayRequest,
    advance_campaign,
    campaign_batches,
    cancel_campaign,
    read_campaign,
    read_campaign_groups,
)
from waybill.replay.campaign_batches import read_batch, read_report, replay_batch
from waybill.replay.campaigns import batch_run_id_of
from waybill.storage import TrackerStore

pytestmark = pytest.mark.serves
tracker, world = campaigns.tracker, from_source.world
SENT = {"events": 5, "sent": 5}
OWN = "UPDATE replays SET run_id = :run, state = :state WHERE partition_id = :id"


class Runs(Airflow):
    """Runs of a campaign; they are carried out by ``work``, with a stand-in for the producer."""

    def __init__(self, tracker: TrackerStore) -> None:
        super().__init__(tracker)
        self.opened: list[tuple[str, bool]] = []
        self.sent: list[str] = []
        self.answers_of: dict[str, Any] = {}
        """{event name: what comes of it: an exception, a report, or a function}."""

    def asked(self, run_id: str) -> BatchRequest:
        [(conf,)] = sql(self.tracker, "SELECT conf FROM airflow_runs WHERE run_id = :r", r=run_id)
        own = {name: conf.pop(name) for name in ("campaign", "batch")}
        ReplayRequest.of(conf)  # what else a run is given is the replay of a group
        return BatchRequest.of(own)

    def work(self, run_id: str) -> Any:
        """Carry a run out as its task does; return its report."""
        asked = self.asked(run_id)
        batch = read_batch(self.tracker, asked, run_id)
        replay_batch(self.tracker, batch, self._opened, Progress("test", "groups"))
        report = read_report(self.tracker, asked, run_id)
        self.end(run_id, "failed" if report.problem else "success")
        return report

    @contextmanager
    def _opened(self, first: BatchGroup) -> Iterator[Callable[[BatchGroup], Mapping[str, Any]]]:
        self.opened.append(first.shares)
        yield self._send

    def _send(self, group: BatchGroup) -> Mapping[str, Any]:
        answer = self.answers_of.get(group.event_name, SENT)
        if isinstance(answer, Exception):
            raise answer
        self.sent.append(group.event_name)
        return answer() if callable(answer) else answer


@pytest.fixture
def airflow(tracker: TrackerStore) -> Runs:
    return Runs(tracker)


def numbers(tracker: TrackerStore, campaign_id: int = 1) -> dict[str, int]:
    return campaigns.numbers(tracker, campaign_id)


def begun(tracker: TrackerStore, airflow: Runs, **asked: Any) -> list[str]:
    """Begin a campaign; return the runs that it has started, by batch."""
    found = freeze(tracker, **asked)
    advance_campaign(tracker, found.id, airflow)
    return sorted(airflow.unfinished())


def test_a_run_has_many_groups_each_with_an_outcome_and_a_report(
    tracker: TrackerStore, airflow: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    park(tracker, 5)
    park(tracker, 2, name="other", pipeline="pl-2")
    runs = begun(tracker, airflow, groups_per_run=3, max_unfinished=2)
    assert runs == [batch_run_id_of("manual__1", number) for number in (0, 1)]
    assert numbers(tracker) == {"launched": 6, "waiting": 1}
    airflow.answers_of = {
        "order2": InputError("no such source"),
        "order3": {"events": 5, "problem": "2 events are damaged"},
    }
    report = airflow.work(runs[0])
    assert (report.groups, report.succeeded, report.failed, report.sent) == (3, 1, 2, 10)
    for words in ("2 of 3 groups failed", "orders/order2/mapping/null_value: no such source"):
        assert words in report.problem
    assert airflow.work(runs[1]).problem == ""
    assert airflow.opened == [("pl-1", False), ("pl-1", False), ("pl-2", False)], "one a pipeline"
    looked = advance_campaign(tracker, 1, airflow)
    assert (looked.ended, looked.failed, looked.launched) == (6, 2, 7)
    airflow.work(airflow.unfinished()[0])
    done = advance_campaign(tracker, 1, airflow)
    assert (done.state, done.groups, done.failed) == ("done", 7, 2)
    numbers(tracker)
    failed = read_campaign_groups(tracker, 1, state="failed", limit=9)
    assert [(group.outcome, group.report) for group in failed] == [
        ("failed", {"error": "no such source"}),
        ("failed", {"events": 5, "problem": "2 events are damaged"}),
    ]
    monkeypatch.setenv("WAYBILL_TRACKER__DSN", tracker.dsn.get_secret_value())
    shown = " ".join(CliRunner().invoke(app, ["campaigns", "show", "1"]).output.split())
    assert "a run replays up to 3 groups" in shown
    assert "no such source" in shown


def test_a_run_that_is_cleared_tries_its_failed_groups_again(
    tracker: TrackerStore, airflow: Runs
) -> None:
    park(tracker, 3)
    [run] = begun(tracker, airflow, groups_per_run=9)
    airflow.answers_of = {"order2": InputError("no")}
    airflow.work(run)
    assert advance_campaign(tracker, 1, airflow).failed == 1
    airflow.answers_of.clear()
    airflow.sent.clear()
    assert airflow.work(run).problem == ""
    assert airflow.sent == ["order2"]
    assert read_campaign(tracker, 1).failed == 0
    assert numbers(tracker) == {"ended": 3}


@pytest.mark.parametrize(
    ("error", "words"),
    [(RetryError("away"), "RetryError: away"), (KeyError("a value of an event"), "KeyError")],
)
def test_what_may_pass_ends_the_try_and_the_retry_takes_that_group_last(
    tracker: TrackerStore, airflow: Runs, error: Exception, words: str
) -> None:
    park(tracker, 4)
    [run] = begun(tracker, airflow, groups_per_run=9)
    airflow.answers_of = {"order2": error}
    with pytest.raises(type(error)):
        airflow.work(run)
    assert airflow.sent == ["order1"]
    assert numbers(tracker) == {"launched": 3, "ended": 1}
    with pytest.raises(type(error)):
        airflow.work(run)
    assert airflow.sent == ["order1", "order3", "order4"]
    airflow.end(run, "failed")  # its retries are used up
    done = advance_campaign(tracker, 1, airflow)
    assert (done.state, done.ended, done.failed) == ("done", 4, 1)
    [failed] = read_campaign_groups(tracker, 1, state="failed", limit=9)
    assert failed.to_json()["report"] == {"error": words}


def test_a_failed_group_that_cannot_pass_when_its_run_is_cleared_keeps_no_other_from_it(
    tracker: TrackerStore, airflow: Runs
) -> None:
    park(tracker, 4)
    [run] = begun(tracker, airflow, groups_per_run=9)
    airflow.answers_of = dict.fromkeys(("order2", "order3", "order4"), InputError("no"))
    airflow.work(run)
    assert advance_campaign(tracker, 1, airflow).failed == 3
    airflow.sent.clear()
    airflow.answers_of = dict.fromkeys(("order2", "order3"), RetryError("away"))
    for _ in range(2):
        with pytest.raises(RetryError):
            airflow.work(run)
    assert airflow.sent == []
    with pytest.raises(RetryError):
        airflow.work(run)
    assert airflow.sent == ["order4"]
    assert read_campaign(tracker, 1).failed == 2
    failed = read_campaign_groups(tracker, 1, state="failed", limit=9)
    assert {group.report["error"] for group in failed} == {"RetryError: away"}
    airflow.answers_of.clear()
    assert airflow.work(run).problem == ""
    assert numbers(tracker) == {"ended": 4}


@pytest.mark.parametrize("error", [InputError("it was cancelled"), RetryError("it was fenced")])
def test_a_try_that_was_frozen_takes_no_success_of_the_next_one_back(
    tracker: TrackerStore, airflow: Runs, error: Exception
) -> None:
    park(tracker, 2)
    [run] = begun(tracker, airflow, groups_per_run=9)

    def frozen() -> None:
        airflow.answers_of.clear()
        airflow.work(run)
        raise error

    airflow.answers_of = {"order1": frozen}
    with suppress(RetryError):
        airflow.work(run)
    assert advance_campaign(tracker, 1, airflow).failed == 0
    assert numbers(tracker) == {"ended": 2}
    found = read_campaign_groups(tracker, 1, state="ended", limit=9)
    assert [(one.outcome, one.report) for one in found] == [("success", SENT)] * 2


def test_what_is_hindered_when_its_turn_comes_is_left_out_with_the_reason(
    tracker: TrackerStore, airflow: Runs
) -> None:
    first, taken, settled, amid, _last = park(tracker, 5)
    park(tracker, pipeline="pl-9", name="held")
    [run] = begun(tracker, airflow, groups_per_run=9)

    def meanwhile() -> dict[str, int]:
        sql(tracker, RUNNING, partition=taken)
        sql(tracker, OWN, run="another", state="running", id=taken)
        sql(tracker, "UPDATE parked_partitions SET parked = 0 WHERE id = :id", id=settled)
        sql(tracker, HOLD, pipeline="pl-9")
        return {"events": 5}

    def is_cancelled() -> dict[str, int]:
        sql(tracker, RUNNING, partition=amid)
        sql(tracker, OWN, run=run, state="cancelled", id=amid)
        raise InputError("replay … was cancelled")

    airflow.answers_of = {"order1": meanwhile, "order4": is_cancelled}
    assert airflow.work(run).problem == ""
    done = advance_campaign(tracker, 1, airflow)
    assert (done.state, done.groups, done.ended) == ("done", 2, 2)
    reasons = {"replaying": 1, "settled": 1, "held": 1, "cancelled": 1}
    assert done.left_out == reasons
    assert numbers(tracker) == {"ended": 2, "left_out": 4}
    # begun before: it is resumed, though nothing waits and its pipeline is held by now
    sql(tracker, RUNNING, partition=first)
    sql(tracker, OWN, run=run, state="done", id=first)
    sql(tracker, "UPDATE campaign_groups SET outcome = 'failed' WHERE partition_id = :i", i=first)
    sql(tracker, "UPDATE campaigns SET failed = 1")
    sql(tracker, "UPDATE parked_partitions SET parked = 0")
    airflow.answers_of.clear()
    assert airflow.work(run).succeeded == 2
    assert numbers(tracker) == {"ended": 2, "left_out": 4}


def test_a_cancelled_campaign_leaves_out_what_its_runs_have_not_begun(
    tracker: TrackerStore, airflow: Runs
) -> None:
    park(tracker, 6)
    [run] = begun(tracker, airflow, groups_per_run=4, max_unfinished=1)
    airflow.answers_of = {"order1": lambda: cancel_campaign(tracker, 1, ANN) and {"events": 5}}
    airflow.work(run)
    assert airflow.sent == ["order1"]
    done = advance_campaign(tracker, 1, airflow)
    assert (done.state, done.ended, done.left_out) == ("cancelled", 1, {"cancelled": 3})
    assert done.to_json()["cancelled"] == 2
    numbers(tracker)


def test_a_run_that_begins_before_it_is_written_down_leaves_the_numbers_right(
    tracker: TrackerStore, airflow: Runs
) -> None:
    """The campaign's task was killed between the start and its note; the run is done by then."""
    park(tracker, 4)
    found = freeze(tracker, groups_per_run=3, max_unfinished=1)
    airflow.answers[:] = [RetryError("500 after it was taken")]
    with pytest.raises(RetryError):
        advance_campaign(tracker, found.id, airflow)
    [run] = airflow.unfinished()
    airflow.answers_of = {"order2": InputError("no")}
    airflow.work(run)
    assert numbers(tracker) == {"ended": 3, "waiting": 1}
    campaigns.to_the_end(tracker, found.id, airflow)
    assert numbers(tracker) == {"ended": 4}
    assert sql(tracker, "SELECT count(*), max(posts) FROM airflow_runs") == [(2, 1)]


def test_groups_are_numbered_by_what_can_share_a_producer(
    tracker: TrackerStore, airflow: Runs
) -> None:
    for name in ("a", "b"):
        park(tracker, name=name)
        park(tracker, name=name, pipeline="pl-2")
        park(tracker, name=name, stage="ingestion", code="delivery_too_large")
    [run] = begun(tracker, airflow, groups_per_run=9)
    airflow.work(run)
    assert airflow.opened == [("pl-1", False), ("pl-1", True), ("pl-2", False)]


def test_batches_are_proposed_for_a_large_campaign(
    tracker: TrackerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    park(tracker, 12_001)
    monkeypatch.setenv("WAYBILL_TRACKER__DSN", tracker.dsn.get_secret_value())
    large = freeze(tracker, "dry", dry_run=True)
    assert large.to_json()["proposed_groups_per_run"] == 3
    shown = " ".join(CliRunner().invoke(app, ["campaigns", "show", "1"]).output.split())
    assert "groups_per_run=3 is proposed, which makes them 4,001" in shown
    cancelled = CliRunner().invoke(app, ["campaigns", "cancel", "1", "--json"]).output
    assert json.loads(cancelled)["proposed_groups_per_run"] is None
    for few in ({"limit": 5_000}, {"groups_per_run": 2}):
        assert freeze(tracker, f"{few}", dry_run=True, **few).proposed_groups_per_run is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"campaign": "manual__2"}, "there is none of run 'manual__2'"),
        ({"campaign": "x' OR true --"}, "there is none"),
        ({"batch": 1}, "only the campaign itself starts its runs"),
        ({"batch": None}, "only the campaign itself starts its runs"),
        ({"campaign": None}, "there is none"),
        ({"batch": -1}, "batch: "),
        ({"batch": 2**70}, "batch: "),
        ({"campaign": "x" * 251}, "campaign: "),
    ],
)
def test_a_run_that_the_campaign_did_not_start_is_refused(
    tracker: TrackerStore, airflow: Runs, changes: dict[str, Any], words: str
) -> None:
    park(tracker, 2)
    [run] = begun(tracker, airflow, groups_per_run=2)
    with pytest.raises(InputError, match=words):
        asked = airflow.asked(run).model_dump()
        read_batch(tracker, BatchRequest.of(asked | changes), run)
    with pytest.raises(InputError, match="only the campaign itself"):
        read_batch(tracker, airflow.asked(run), "manual__by_hand")


# With Kafka and a store --------------------------------------------------------------------------

MIXED = """
from waybill.errors import ParkError

def transform(event):
    number = event.data["number"]
    if FIXED or number % 2:  # what is odd parks at mapping, and does so again
        note = None if number % 2 else "mended"
        return [event.child(0, {"number": number, "note": note, "amount": 1})]
    raise ParkError(CODE, "no")
"""
THREE_CODES = '["record_incomplete", "value_out_of_range", "type_error"][number % 3]'
DEATHS = (
    (LosslessProducer, "produce", 2),
    (LosslessProducer, "mark", 2),
    (Parking, "mark_replayed", 1),
    (LosslessProducer, "confirm", 2),
    (campaign_batches, "_write", 1),
)


class BatchRun:
    """A run of the DAG ``replay`` over all parked groups, with the params that its campaign gave it."""

    def __init__(
        self, world: World, monkeypatch: pytest.MonkeyPatch, code: str, **asked: Any
    ) -> None:
        from waybill_airflow.operators.replay import ReplayParkedPartitionOperator

        mixed = MIXED.replace("CODE", code)
        world.deploy(mixed.replace("FIXED", "False"))
        services.run_ingest(world.settings, "orders")
        world.process()
        world.deploy(mixed.replace("FIXED", "True"))
        for name, value in world.settings.to_env().items():
            monkeypatch.setenv(name, value)
        self.world, self.airflow = world, Runs(world.tracker)
        request = CampaignRequest(groups_per_run=9, **asked)
        found = services.freeze_campaign(world.settings, request, who="ann", run_id="manual__1")
        advance_campaign(world.tracker, found.id, self.airflow)
        [self.run_id] = self.airflow.unfinished()
        [(conf,)] = world.sql("SELECT conf FROM airflow_runs")
        dag_run = SimpleNamespace(triggering_user_name="ann", dag_id="replay", run_id=self.run_id)
        self.context: Any = {"dag_run": dag_run, "run_id": self.run_id, "params": conf}
        self.task = ReplayParkedPartitionOperator(task_id="replay")

    def execute(self) -> Any:
        return self.task.execute(self.context)


def test_killed_anywhere_a_run_goes_on_with_one_producer_and_sends_nothing_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = BatchRun(world, monkeypatch, THREE_CODES)
    parked = world.books().parked
    assert (parked, len(services.parked_partitions(world.settings))) == (from_source.ROWS, 4)
    for point in DEATHS:
        killed(point, run.execute)
        world.books()
    opened: list[str] = []
    real = LosslessProducer.__init__

    def counted(self: Any, *given: Any, **more: Any) -> None:
        opened.append(more["name"])
        real(self, *given, **more)

    monkeypatch.setattr(LosslessProducer, "__init__", counted)
    report = run.execute()
    assert (report["groups"], report["succeeded"], report["failed"]) == (4, 4, 0), report
    assert len(opened) == 1
    assert len(world.sent_back()) == parked, "nothing was sent twice"
    rows = read_campaign_groups(world.tracker, 1, state="ended", limit=9)
    assert {row.outcome for row in rows} == {"success"}
    assert sum((row.report or {})["events"] for row in rows) == parked
    assert json.dumps([row.to_json() for row in rows])
    world.process()
    world.load()
    assert world.books().parked == parked / 2
    assert world.warehouse_notes() == {"mended": parked / 2}
    world.sql("UPDATE campaign_groups SET outcome = 'failed' RETURNING 1")
    world.sql("UPDATE campaigns SET failed = ended RETURNING 1")
    again = run.execute()  # cleared: what had ended is known by its replay
    assert (again["succeeded"], len(world.sent_back())) == (4, parked)


def test_what_a_cancelled_group_had_sent_is_marked_by_the_next_group_of_its_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark is in the log that they share: it is settled as that of its own group."""
    run = BatchRun(world, monkeypatch, '"record_incomplete"', enter="mapping")
    killed((Parking, "mark_replayed", 1), run.execute)
    [(cancelled, partition)] = world.sql(
        "SELECT id, partition_id FROM replays WHERE state = 'running'"
    )
    world.parking.cancel_replay(cancelled, who="ann")
    report = run.execute()
    assert (report["groups"], report["succeeded"]) == (1, 1)
    [left_out] = read_campaign_groups(world.tracker, 1, state="left_out", limit=9)
    assert (left_out.partition_id, left_out.outcome) == (partition, "cancelled")
    assert len(world.sent_back()) == from_source.ROWS
    stages = world.sql(
        "SELECT r.id = :id, e.stage = p.stage, e.marked::int FROM replay_entries e "
        "JOIN replays r ON r.id = e.replay_id JOIN parked_partitions p ON p.id = r.partition_id",
        id=cancelled,
    )
    half = from_source.ROWS // 2
    assert sorted(stages) == [(False, True, half), (True, True, half)]
    world.process()
    world.books()
