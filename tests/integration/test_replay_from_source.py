"""Replays that enter at the transformation: parents go back once, and the books balance."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import text
from tests.support import orders
from tests.support.books import batch
from tests.support.evolving import executor_settings, kafka_records
from tests.support.replays import dry_run_request, run_replay

from waybill import services
from waybill.access import Decision
from waybill.destinations import open_destination
from waybill.errors import InputError, RetryError
from waybill.events import decode
from waybill.ingestion import IngestRequest
from waybill.inspection.status import read_newest, read_standings
from waybill.ledger import (
    acquire_lease,
    commit_batch,
    count_entries,
    load_position,
    staged_after,
    topic_positions,
)
from waybill.ledger.commit import StagedObject, write_copies
from waybill.loading.loader import Loader
from waybill.parking import ParkedGroupFilter, Parking
from waybill.processing import Counts
from waybill.processing.spark import tasks
from waybill.processing.spark.batches import read_descriptor
from waybill.processing.spark.plan_cache import TaskTexts
from waybill.producer import LosslessProducer
from waybill.reconciliation.balance_report import BalanceReport
from waybill.replay import CanaryWait, CanaryWaitError, ReplayRequest
from waybill.settings import Settings
from waybill.storage import open_log, open_objects, open_tracker

pytestmark = pytest.mark.serves
NAMES = ("orders", "order", "mapping", "not_null_violation")
WORDS = dict(zip(("pipeline", "event_name", "stage", "error_type"), NAMES, strict=True))
ROWS = 12
SPLIT = """
def transform(event):
    order = event.data
    return [
        event.child(i, {"number": order["number"] * 10 + i, "note": NOTE, "amount": i})
        for i in range(3)
    ]
"""
BROKEN = SPLIT.replace("NOTE", "'ok' if i == 2 else None")
MENDED = SPLIT.replace("NOTE", "'mended'")
HALF = SPLIT.replace("NOTE", "'ok' if i else None")
RAISES = "def transform(event):\n    raise ValueError('no')\n"


class World:
    """A tracker, a bucket, a log and a warehouse, and what the Spark applications do there."""

    def __init__(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settings = settings
        self.log, self.objects = open_log(settings.kafka), open_objects(settings.s3)
        self.tracker = open_tracker(settings.tracker)
        self.parking = Parking(self.tracker, self.objects)
        monkeypatch.setattr(tasks, "_WORKERS", [])

    def deploy(self, code: str, *, keep: bool = True) -> None:
        home = orders.write_orders(self.settings.pipelines_dir, rows=ROWS, code=code)
        declared = (home / "pipeline.yaml").read_text()
        kept = f"keep_source: {str(keep).lower()}\n"
        (home / "pipeline.yaml").write_text(f"{declared}{kept}")
        services.migrate(self.settings)
        services.run_deploy(self.settings, home, who="test")

    def process(self) -> None:
        """Run each Kafka partition through the task that Spark runs, and commit it."""
        topic = self.log.describe(orders.topic_of(self.settings.pipelines_dir))
        own = {"cluster_id": topic.cluster_id, "topic_id": topic.topic_id, "topic": topic.name}
        known = topic_positions(self.tracker, **own)
        for number, (_, end) in sorted(self.log.watermarks(topic).items()):
            at = known.get(number, 0)
            if at < end:
                values = list(self.log.read(topic.name, {number: (at, end)}))
                self._commit(own, number, at, values)

    def _commit(self, own: Any, number: int, at: int, values: list[bytes]) -> None:
        count = len(values)
        given = kafka_records(own["topic"], values, partition=number, first=at)
        version = services.deployed_pipelines(self.settings)["test-orders"]
        plan = tasks.TopicPlan(str(uuid4()), TaskTexts().of({version.id: version}, {}))
        task_plan = tasks.TaskPlan({own["topic"]: plan}, [], executor_settings(self.settings))
        [answer] = tasks.StageTask(task_plan).run([given])
        told = read_descriptor(*[column[0].as_py() for column in answer.columns])

        def record(connection: Any, commit_number: int) -> None:
            if parked := told["parked"]:
                copies = self.parking.record_once(
                    connection,
                    [parked],
                    scope="warehouse",
                    commit_number=commit_number,
                )
                write_copies(connection, plan.batch_id, copies)

        staged = [StagedObject(**told["staged"])] if told["staged"] else []
        epoch = acquire_lease(self.tracker, "processing/t", holder="test")
        counts = list(Counts.from_json(told["counts"]).by_pipeline())
        done = batch(
            epoch, (number, at, at + count), consumer="processing/t", counts=counts,
            destination="warehouse", staged=staged, replayed=count_entries(told["replayed"]), **own,
        )  # fmt: skip
        commit_batch(self.tracker, done, record)

    def load(self) -> None:
        after = load_position(self.tracker, "warehouse")
        rows = staged_after(self.tracker, "warehouse", after=after)
        last = self.sql("SELECT max(commit_number) FROM batches")[0][0]
        warehouse = partial(open_destination, "warehouse", self.settings.destinations["warehouse"])
        loader = Loader(self.tracker, self.objects, warehouse, name="warehouse")
        loader.load(rows, after=after, until=last)
        loader.close()

    def sql(self, statement: str, **values: Any) -> list[Any]:
        with self.tracker.transaction() as connection:
            return [tuple(row) for row in connection.execute(text(statement), values)]

    def warehouse_notes(self) -> dict[str, int]:
        found = self.settings.destinations["warehouse"].dsn
        with psycopg.connect(found.get_secret_value()) as connection:
            statement = "SELECT note, count(*) FROM shop.orders GROUP BY 1"
            return dict(connection.execute(statement).fetchall())

    def books(self) -> BalanceReport:
        """Return the books of everything, which balance."""
        report = services.balance(self.settings)
        assert (report.unaccounted, [g.breaches for g in report.pipelines if g.breaches]) == (0, [])
        became = ("delivered", "parked", "discarded", "superseded", "duplicate", "in_flight")
        gone = sum(getattr(report, name) for name in became)
        assert report.ingested + report.made + report.sent_unmarked == gone
        return report

    def sent_back(self) -> list[Any]:
        topic = self.log.describe(orders.topic_of(self.settings.pipelines_dir))
        values = self.log.read(topic.name, self.log.watermarks(topic))
        return [event for event in map(decode, values) if event.attempt]

    def replay(self, run: str = "r1", **changes: Any) -> Any:
        given = {**WORDS, "enter": "transformation", "who": "ann", "run_id": run, **changes}
        return run_replay(self.settings, **given)

    def standing(self, partition_id: int) -> tuple[str, dict[str, int]]:
        """Return how the newest replay of a partition stands, as the page tells it."""
        newest = read_standings(self.tracker, read_newest(self.tracker, partition_id))[0]
        return newest.standing, newest.became

    def states(self) -> dict[str, int]:
        return dict(self.sql("SELECT state, sum(count)::int FROM segments GROUP BY 1"))


@pytest.fixture
def world(
    stack_settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    settings = stack_settings.model_copy(update={"pipelines_dir": tmp_path / "pipelines"})
    made = World(settings, monkeypatch)
    yield made
    made.tracker.close()


def parked_children(world: World, *, keep: bool = True) -> None:
    world.deploy(BROKEN, keep=keep)
    services.run_ingest(world.settings, "orders")
    world.process()
    world.load()
    assert world.books().parked == 2 * ROWS


def test_parents_go_back_once_and_the_books_balance_at_each_step(world: World) -> None:
    parked_children(world)
    world.deploy(MENDED)
    request = dry_run_request(*NAMES, enter="transformation")
    tried = services.run_dry_run(world.settings, request)
    assert (tried.tried, tried.would_pass) == (2 * ROWS, 2 * ROWS)
    as_parked = dry_run_request(*NAMES, enter="mapping")
    untouched = services.run_dry_run(world.settings, as_parked)
    assert untouched.would_pass == 0
    [remedy] = untouched.remedies
    assert "was deployed after these parked" in remedy.advice
    assert [command.split()[2] for command in remedy.commands] == ["dry-run", "replay"]
    assert all(command.endswith("--enter transformation") for command in remedy.commands)

    done = world.replay()
    assert (done.events, done.sent, done.refused) == (2 * ROWS, ROWS, 0)
    back = world.sent_back()
    assert sorted(event.data["number"] for event in back) == list(range(ROWS))
    assert {event.stage for event in back} == {"transformation"}
    report = world.books()
    assert (report.parked, report.replayed, report.in_flight) == (0, 2 * ROWS, ROWS)
    [partition] = services.parked_partitions(world.settings)
    early = services.replay_outcome(world.settings, partition, "r1", wait_s=0)
    assert (early.passed, early.in_flight, early.waits_for) == (0, 2 * ROWS, "processing")

    world.process()
    assert world.books().in_flight == 3 * ROWS
    world.load()
    report = world.books()
    assert (report.in_flight, report.delivered, report.duplicate) == (0, 3 * ROWS, ROWS)
    stages = report.pipelines[0].stages
    assert (stages["transformation"].in_replayed, stages["transformation"].parents) == (ROWS, ROWS)
    assert (stages["mapping"].in_replayed, stages["mapping"].replayed_as_parents) == (0, 2 * ROWS)
    assert world.warehouse_notes() == {"ok": ROWS, "mended": 2 * ROWS}
    outcome = services.replay_outcome(world.settings, partition, "r1", wait_s=0)
    assert (outcome.sent, outcome.passed, outcome.waits_for) == (2 * ROWS, 2 * ROWS, "")


def test_a_parent_that_was_taken_in_twice_goes_back_twice(world: World) -> None:
    parked_children(world)
    again = services.AskedRun(IngestRequest(full=True, why="test"), "again", "ann")
    services.run_ingest(world.settings, "orders", asked=again)
    world.process()
    world.load()
    assert world.books().parked == 4 * ROWS
    world.deploy(MENDED)
    done = world.replay()
    assert (done.events, done.sent) == (4 * ROWS, 2 * ROWS)
    world.process()
    world.load()
    report = world.books()
    assert (report.parked, report.in_flight, report.made) == (0, 0, 6 * ROWS), "as twice one"
    assert world.warehouse_notes() == {"ok": ROWS, "mended": 2 * ROWS}
    [partition] = services.parked_partitions(world.settings)
    outcome = services.replay_outcome(world.settings, partition, "r1", wait_s=0)
    assert (outcome.passed, outcome.in_flight) == (4 * ROWS, 0)


def test_what_fails_again_is_parked_with_its_source_and_goes_back_again(world: World) -> None:
    parked_children(world)
    world.deploy(HALF)
    world.replay()
    world.process()
    world.load()
    [partition] = services.parked_partitions(world.settings)
    outcome = services.replay_outcome(world.settings, partition, "r1", wait_s=0)
    assert (outcome.passed, outcome.parked_again) == (
        ROWS, {"mapping/not_null_violation": ROWS}
    )  # fmt: skip
    assert world.books().parked == ROWS
    told = {"delivered": ROWS, "duplicate": ROWS, "parked": ROWS}
    assert world.standing(partition.id) == ("parked again", told)
    world.deploy(RAISES)
    assert world.replay("r2").sent == ROWS
    assert world.standing(partition.id) == ("moving", {"moving": ROWS})
    world.process()
    assert world.standing(partition.id) == ("parked again", {"parked": ROWS})
    outcome = services.replay_outcome(world.settings, partition, "r2", wait_s=0)
    assert (outcome.passed, outcome.parked_again) == (0, {"transformation/value_error": ROWS})
    assert world.books().parked == ROWS


@pytest.mark.parametrize(("at", "before"), [(1, False), (2, True)])
def test_a_run_that_dies_at_a_mark_is_resumed_and_sends_no_parent_twice(
    world: World, monkeypatch: pytest.MonkeyPatch, at: int, before: bool
) -> None:
    parked_children(world)
    assert (world.replay("r0", max_events=1).sent, world.replay("r0").sent) == (1, 0)
    world.process()
    report = world.books()  # of the first parent one child is parked behind all others now
    assert (report.parked, report.duplicate) == (2 * ROWS, 1)
    world.deploy(MENDED)
    mark, calls = Parking.mark_replayed, []

    def dying(*given: Any) -> bool:
        calls.append(given)
        wanted = True if len(calls) == at and before else mark(*given)
        if len(calls) == at:
            raise RetryError("the process dies")
        return wanted

    with monkeypatch.context() as patch:
        patch.setattr(Parking, "mark_replayed", dying)
        patch.setattr(LosslessProducer, "capacity_bytes", 0)  # a mark for each group
        with pytest.raises(RetryError, match="dies"):
            world.replay()
    done = world.replay()
    assert done.state == "done"
    back = [event for event in world.sent_back() if event.replay_id == done.replay_id]
    assert sorted(event.data["number"] for event in back) == list(range(ROWS))
    assert world.books().replayed == 2 * ROWS + 1
    world.process()
    world.load()
    assert world.books().delivered == 3 * ROWS


def test_what_cannot_enter_earlier_is_refused_in_words_and_nothing_is_sent(world: World) -> None:
    parked_children(world, keep=False)
    with pytest.raises(
        InputError, match="keeps no sources.*`waybill parked show orders -s mapping`"
    ):
        world.replay()
    tried = services.run_dry_run(world.settings, dry_run_request(*NAMES))
    group = "orders -e order -s mapping -t not_null_violation"
    mild, remedy = tried.remedies
    assert "Change the mapping" in mild.advice, "another mapping was not tried yet"
    deploy, again = remedy.commands
    assert (tried.would_pass, deploy) == (0, "waybill pipelines deploy orders")
    read, discard = again.split(" && ")
    assert read == "waybill ingest orders --full --yes --why corrected --wait"
    assert discard.startswith(f"waybill parked discard {group} --parked-until 20")
    world.deploy(BROKEN)
    with pytest.raises(
        InputError, match=r"24 of 24 parked events carry no source.* Nothing was sent"
    ):
        world.replay("r2")
    assert world.states() == {"parked": 2 * ROWS}
    assert world.sent_back() == []
    with pytest.raises(InputError, match="24 of 24 parked events carry no source"):
        services.run_dry_run(world.settings, dry_run_request(*NAMES, enter="transformation"))
    with pytest.raises(InputError, match="is not a stage to enter at"):
        world.replay("r3", enter="ingestion")
    world.parking.discard(ParkedGroupFilter(stage="mapping"), Decision("ann", "test"))
    world.books()


def test_a_replay_without_enter_never_loses_what_a_later_transformation_could_mend(
    world: World,
) -> None:
    parked_children(world)
    assert world.replay(enter=None).sent == ROWS, "the parents go back, not the children"
    world.process()
    world.load()
    assert world.books().parked == 2 * ROWS, "nothing was mended: all parked again"
    world.deploy(MENDED)
    tried = services.run_dry_run(world.settings, dry_run_request(*NAMES))
    assert (tried.tried, tried.would_pass) == (2 * ROWS, 2 * ROWS)
    world.replay("r2", enter=None)
    world.process()
    world.load()
    assert world.books().parked == 0
    assert world.warehouse_notes() == {"ok": ROWS, "mended": 2 * ROWS}


def test_where_only_some_carry_a_source_it_has_to_be_said_where_they_enter(world: World) -> None:
    parked_children(world)
    assert world.replay(enter="mapping", max_events=1).sent == 1
    world.process()
    with pytest.raises(InputError, match="23 of 24 parked events carry what they were made from"):
        world.replay("r2", enter=None)
    with pytest.raises(InputError, match="--enter mapping"):
        services.run_dry_run(world.settings, dry_run_request(*NAMES))
    assert world.states()["parked"] == 2 * ROWS
    assert world.replay("r3", enter="mapping").sent == 2 * ROWS
    world.process()
    assert world.replay("r4", enter=None).sent == 2 * ROWS, "none carries one: as they parked"


def dies_at_its_mark(world: World, monkeypatch: pytest.MonkeyPatch, **asked: Any) -> None:
    """Replay; what was sent is in Kafka, and the process dies before it writes its mark."""

    def dying(*_: Any) -> int:
        raise RetryError("the process dies")

    with monkeypatch.context() as patch:
        patch.setattr(LosslessProducer, "mark", dying)
        with pytest.raises(RetryError, match="dies"):
            world.replay(**asked)


def test_a_replay_enters_where_it_began_whatever_is_deployed_before_it_is_resumed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    parked_children(world)
    world.deploy(MENDED)
    dies_at_its_mark(world, monkeypatch, enter=None)
    world.deploy(MENDED, keep=False)
    done = world.replay(enter=None)
    assert (done.resumed, done.sent) == (ROWS, 0)
    assert {event.stage for event in world.sent_back()} == {"transformation"}
    world.process()
    world.load()
    assert world.books().parked == 0
    assert world.warehouse_notes() == {"ok": ROWS, "mended": 2 * ROWS}


@pytest.mark.parametrize("asked", [None, "transformation"])
def test_a_replay_that_an_older_release_began_enters_where_that_let_it(
    world: World, monkeypatch: pytest.MonkeyPatch, asked: str | None
) -> None:
    parked_children(world)
    world.deploy(MENDED)
    dies_at_its_mark(world, monkeypatch, enter=asked or "mapping")
    world.sql("UPDATE replays SET entry = NULL RETURNING 1")
    world.replay(enter=asked)
    stages = {event.stage for event in world.sent_back()}
    assert stages == {asked or "mapping"}
    assert len(world.sent_back()) == (ROWS if asked else 2 * ROWS), "each once"
    world.process()
    world.load()
    assert world.books().parked == (0 if asked else 2 * ROWS)


def test_what_an_older_release_sent_of_a_replay_that_had_not_decided_is_not_sent_anew(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One release began it and died at once, an older one went on, this one ends it."""
    parked_children(world)
    world.deploy(MENDED)
    dies_at_its_mark(world, monkeypatch, enter="mapping")
    world.sql("UPDATE replays SET entry = '' RETURNING 1")
    world.replay(enter=None)
    assert [event.stage for event in world.sent_back()] == ["mapping"] * 2 * ROWS
    assert world.sql("SELECT entry FROM replays") == [("as_parked",)], "for a try on another node"
    world.process()
    world.load()
    assert world.books().parked == 2 * ROWS


@pytest.mark.parametrize("decided", [False, True])
def test_a_replay_that_dies_at_its_decision_has_sent_nothing_and_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch, decided: bool
) -> None:
    parked_children(world)
    world.deploy(MENDED)
    decide = Parking.decide_entry

    def dying(*given: Any) -> str:
        if decided:
            decide(*given)
        raise RetryError("the process dies")

    with monkeypatch.context() as patch:
        patch.setattr(Parking, "decide_entry", dying)
        with pytest.raises(RetryError, match="dies"):
            world.replay(enter=None)
    assert world.sent_back() == []
    world.deploy(MENDED, keep=False)
    world.replay(enter=None)
    assert len(world.sent_back()) == (ROWS if decided else 2 * ROWS)
    world.process()
    world.load()
    world.books()


def canary(world: World, *, enter: str | None = None, between: Any = None, **asked: Any) -> Any:
    """Replay with a canary, each step processed and loaded before the next."""
    request = ReplayRequest.of({**WORDS, "enter": enter, "canary": True, **asked})
    while True:
        try:
            return services.run_replay(
                world.settings, request, who="ann", run_id="c1", canary_wait=CanaryWait(0.0)
            )
        except CanaryWaitError:
            world.process()
            world.load()
            if between is not None:
                between()


@pytest.mark.parametrize("first", ["with", "without"])
def test_a_canary_whose_choice_is_mixed_is_refused_before_its_first_step(
    world: World, first: str
) -> None:
    parked_children(world)
    world.replay("r0", enter="mapping", max_events=20)
    world.process()  # 20 lost their sources, and lie behind the 4 that have them
    if first == "without":
        world.replay("r1", max_events=4)
        world.deploy(HALF)
        world.process()
    sent = len(world.sent_back())
    with pytest.raises(InputError, match="of 2. parked events carry what they were.*was sent"):
        canary(world)
    assert len(world.sent_back()) == sent
    assert world.states().get("replaying", 0) == 0


def test_a_canary_enters_where_its_first_step_did_whatever_is_deployed_meanwhile(
    world: World,
) -> None:
    parked_children(world)
    world.deploy(MENDED)
    done = canary(world, between=lambda: world.deploy(MENDED, keep=False))
    assert [step.events for step in done.steps] == [1, 2, 21]
    assert {event.stage for event in world.sent_back()} == {"transformation"}
    world.process()
    world.load()
    assert world.books().parked == 0
    assert world.warehouse_notes() == {"ok": ROWS, "mended": 2 * ROWS}


def test_a_canary_of_part_of_a_group_looks_at_no_more_than_it_takes(world: World) -> None:
    parked_children(world)
    world.replay("r0", enter="mapping", max_events=12)
    world.process()
    world.deploy(MENDED)
    done = canary(world, max_events=12)
    assert sum(step.events for step in done.steps) == 12
    assert {event.stage for event in world.sent_back()[12:]} == {"transformation"}
    world.process()
    world.load()
    world.books()
