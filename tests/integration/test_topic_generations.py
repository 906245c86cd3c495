"""Generations of topics: in the tracker, by the commands, and under load with kills (G4)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from tests.support import children, orders
from tests.support.books import batch, nothing_parked, open_books
from tests.support.clustered import look_back
from typer.testing import CliRunner

from waybill import services
from waybill.access import Decision
from waybill.cli import app
from waybill.clusters import ServedTopics
from waybill.errors import InputError, RetryError, StopError
from waybill.events import decode
from waybill.ledger import (
    FencedError,
    LogIdentity,
    OffsetRange,
    acquire_lease,
    claim_source,
    close_source,
    commit_batch,
    count_copies,
    end_generation,
    ended_at,
    flip_generation,
    follow_generation,
    live_names,
    lock_generations,
    refuse_when_left_behind,
    register_log,
    replaced_log,
    settle_log,
    topic_positions,
)
from waybill.pipelines import generation_name
from waybill.processing.spark.application import read_served
from waybill.reconciliation.checks import WatchParts, watch
from waybill.retention import trim_log
from waybill.settings import Settings
from waybill.stack.doctor import topic_checks
from waybill.storage import KafkaLog, TopicInfo, TrackerStore, open_log, open_tracker
from waybill.topics import Draining, GrowRequest, delete_ended

pytestmark = pytest.mark.serves
TOPIC = "events.t.w"
SECOND = "events-g2.t.w"
PLACE = ("c1", "t1")
ROWS, PAGE, KEYS = 600, 20, 12


@pytest.fixture
def tracker(postgres: Any) -> Iterator[TrackerStore]:
    with open_books(postgres, "generations") as books:
        with books.transaction() as connection:
            lock_generations(connection, TOPIC)  # else who comes second waits for the first row
        yield books


def log(number: int, purpose: str = "ingestion") -> LogIdentity:
    return LogIdentity(f"{number:032x}", "p", purpose, "ingest-p", f"n{number}", "/wal", TOPIC)


def claimed(tracker: TrackerStore, number: int, *, empty: bool = False) -> Any:
    return claim_source(tracker, log(number), ends={TOPIC: {0: 5}}, empty=empty)


def flip(tracker: TrackerStore) -> None:
    with tracker.transaction() as connection:
        flip_generation(connection, lock_generations(connection, TOPIC, alone=True), partitions=4)


def end(tracker: TrackerStore, ends: dict[int, int]) -> bool:
    with tracker.transaction() as connection:
        first = lock_generations(connection, TOPIC, alone=True)[0]
        return end_generation(connection, first, place=PLACE, ends=ends)


# The tracker


def test_a_log_keeps_its_generation_until_it_moves_on_and_a_new_one_takes_the_newest(
    tracker: TrackerStore,
) -> None:
    first = claimed(tracker, 1, empty=True)
    assert first.topic == TOPIC
    flip(tracker)
    assert claimed(tracker, 1).topic == TOPIC, "its records are of the one that drains"
    assert follow_generation(tracker, first.wal_id, TOPIC, {SECOND: {0: 3}}) == SECOND
    again = claimed(tracker, 1)
    assert again.topic == SECOND
    close_source(tracker, again, last_version=1, minute=1, left=None)
    assert claimed(tracker, 1).topic == SECOND
    assert claimed(tracker, 2, empty=True).topic == SECOND
    with pytest.raises(FencedError):
        follow_generation(tracker, first.wal_id, TOPIC, {})
    assert claimed(tracker, 3) is None, "nobody knows for which generation its records are"


def test_a_generation_ends_once_no_log_writes_to_it_and_all_is_read_and_fences_its_consumer(
    tracker: TrackerStore,
) -> None:
    claimed(tracker, 1, empty=True)
    flip(tracker)
    epoch = acquire_lease(tracker, f"processing/{TOPIC}", holder="test")
    commit_batch(tracker, batch(epoch, (0, 0, 5)), nothing_parked)
    assert not end(tracker, {0: 5}), "a log writes to it"
    commit_batch(tracker, batch(epoch, (0, 5, 6)), nothing_parked)
    settle_log(tracker, log(1).wal_id, who="ann", reason="x")
    assert not end(tracker, {0: 7}), "a record is unread"
    assert end(tracker, {0: 6, 1: 0})
    assert ended_at(tracker, TOPIC) == {0: 6, 1: 0}
    with pytest.raises(FencedError):
        commit_batch(tracker, batch(epoch, (0, 6, 7)), nothing_parked)
    with tracker.transaction() as connection:
        assert live_names(connection, [TOPIC, "events.t.other"]) == {
            TOPIC: [SECOND],
            "events.t.other": ["events.t.other"],
        }


def test_what_a_fenced_log_sends_behind_the_end_is_neither_counted_nor_marked(
    tracker: TrackerStore,
) -> None:
    claimed(tracker, 1, empty=True)
    register_log(tracker, log(2, "replay"))
    flip(tracker)
    for number in (1, 2):
        settle_log(tracker, log(number).wal_id, who="ann", reason="x")
    with tracker.transaction() as connection:
        refuse_when_left_behind(connection, log(2).wal_id)  # it drains: what is sent will be read
    assert end(tracker, {0: 0})
    fenced = replaced_log(tracker, log(1).wal_id)
    assert fenced is not None
    with pytest.raises(RetryError, match="ended meanwhile"):
        count_copies(tracker, fenced, reference="r", counts=(), counted_to={0: 1})
    count_copies(tracker, fenced, reference="r", counts=(), counted_to={0: 0})
    with pytest.raises(FencedError), tracker.transaction() as connection:
        refuse_when_left_behind(connection, log(2).wal_id)


def waits_for_a_lock(tracker: TrackerStore) -> bool:
    """Tell whether a transaction waits for another."""
    with tracker.transaction() as connection:
        asked = "SELECT count(*) FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0"
        return bool(connection.exec_driver_sql(asked).scalar())


@contextmanager
def waiting(tracker: TrackerStore, act: Callable[[], Any]) -> Iterator[Future[Any]]:
    """Begin something in a thread, and go on once it waits for a row."""
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(act)
        children.wait_until(lambda: waits_for_a_lock(tracker), what="it waits")
        yield found


def test_a_generation_is_not_flipped_while_a_claim_of_it_is_on_its_way(
    tracker: TrackerStore,
) -> None:
    with tracker.transaction() as claim:
        lock_generations(claim, TOPIC)
        with waiting(tracker, lambda: flip(tracker)) as flipped:
            claim.commit()
            flipped.result(240)
    with tracker.transaction() as connection:
        assert [one.state for one in lock_generations(connection, TOPIC)] == ["draining", "writing"]


def test_a_claim_that_waits_for_a_flip_writes_to_the_generation_that_it_began(
    tracker: TrackerStore,
) -> None:
    with tracker.transaction() as growing:
        generations = lock_generations(growing, TOPIC, alone=True)
        with waiting(tracker, lambda: claimed(tracker, 1, empty=True)) as claim:
            flip_generation(growing, generations, partitions=4)
            growing.commit()
            assert claim.result(240).topic == SECOND


def test_a_log_of_an_older_release_is_not_opened_for_a_generation_that_has_ended(
    tracker: TrackerStore,
) -> None:
    older = text(
        "INSERT INTO write_ahead_logs (wal_id, pipeline_id, purpose, name, node, path, topic, "
        "rereadable, epoch) VALUES (:wal_id, 'p', 'ingestion', 'p', 'n', '/wal', :topic, true, 9) "
        "ON CONFLICT (wal_id) DO UPDATE SET state = 'open', topic = :topic"
    )

    def opens(number: int) -> None:
        with tracker.transaction() as connection:
            connection.execute(older, {"wal_id": log(number).wal_id, "topic": TOPIC})

    lease = claimed(tracker, 1, empty=True)
    close_source(tracker, lease, last_version=1, minute=1, left=None)
    flip(tracker)
    opens(1)
    assert not end(tracker, {}), "it is waited for"
    close_source(tracker, lease, last_version=1, minute=1, left=None)
    with tracker.transaction() as ending:
        first = lock_generations(ending, TOPIC, alone=True)[0]
        with waiting(tracker, lambda: opens(2)) as opened:
            assert end_generation(ending, first, place=PLACE, ends={})
            ending.commit()
            with pytest.raises(DBAPIError, match="upgrade Waybill"):
                opened.result(240)
    with pytest.raises(DBAPIError, match="upgrade Waybill"):
        opens(1)


# Kafka


class Shop:
    """A pipeline with few keys and many events of each, its topic, and who reads it."""

    def __init__(self, settings: Settings, kafka: Any) -> None:
        self.settings, self.kafka = settings, kafka
        self.topic = orders.topic_of(settings.pipelines_dir)
        self.log = open_log(settings.kafka)
        self.tracker = open_tracker(settings.tracker)
        self.draining = Draining(self.tracker, self.log)
        self.read: list[tuple[str, int]] = []
        """(key, number) in the order in which they were committed."""
        self._epochs: dict[str, int] = {}

    def run(self, *arguments: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, [*arguments])
        assert done.exit_code == code, (done.output, done.exception)
        return done.output

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", code=code))

    def grow(self, partitions: int) -> str:
        plan = services.plan_growth(
            self.settings, GrowRequest(topic=self.topic, partitions=partitions)
        )
        return services.grow_topic(self.settings, plan, Decision("ann", "a test")).name

    def written(self, number: int) -> int:
        name = generation_name(self.topic, number)
        marks = self.log.watermarks(self.log.describe(name))
        return sum(high for _, high in marks.values())

    def reading(self) -> str:
        """Return the generation that the processing application reads now; it ends what drained."""
        [name] = read_served(ServedTopics(self.tracker, "default"), self.draining)
        return name

    def process(self, **more: Any) -> int:
        """Commit some of what the application would read, as it does, but for Spark."""
        name = self.reading()
        topic = self.log.describe(name)
        consumer = f"processing/{name}"
        if name not in self._epochs:
            self._epochs[name] = acquire_lease(self.tracker, consumer, holder="test")
        at = topic_positions(
            self.tracker, cluster_id=topic.cluster_id, topic_id=topic.topic_id, topic=name
        )
        ends = {n: high for n, (_, high) in self.log.watermarks(topic).items()}
        ranges = {n: (at.get(n, 0), min(end, at.get(n, 0) + 30)) for n, end in ends.items()}
        ranges = {n: (start, end) for n, (start, end) in ranges.items() if start < end}
        if not ranges:
            return 0
        found = []
        for number, span in ranges.items():
            for value in self.log.read(name, {number: span}):
                event = decode(value)
                found.append((event.key, event.data["number"]))
        done = batch(
            self._epochs[name],
            consumer=consumer,
            topic=name,
            destination="warehouse",
            topic_id=topic.topic_id,
            cluster_id=topic.cluster_id,
            ranges=[OffsetRange(n, a, b, b - a) for n, (a, b) in ranges.items()],
            **more,
        )
        commit_batch(self.tracker, done, nothing_parked)
        self.read += found
        return len(found)

    def load_and_trim(self) -> None:
        """Say that all commits are loaded, and go through them as retention does when they are."""
        loaded = (
            "INSERT INTO load_positions (destination, last_commit) SELECT destination, last FROM "
        )
        with self.tracker.transaction() as connection:
            connection.exec_driver_sql(loaded + "commit_sequences")
        [done] = trim_log(self.tracker, self.log, {self.topic: "warehouse"}, kept_s=0)
        assert not done.problem

    def draining_findings(self) -> list[str]:
        report = watch(WatchParts(self.tracker, self.log, {}), datetime.now(UTC))
        assert not report.problems
        return [one.words for one in report.findings if one.kind == "draining"]

    def drain(self) -> None:
        """Read until nothing is left, and the generations that drain have ended."""
        children.wait_until(
            lambda: (
                self.process() == 0
                and self.draining.end([self.topic]) == []
                and self.process() == 0
            ),
            limit_s=360,
            what="all is read",
        )


@pytest.fixture
def shop(
    stack_settings: Settings, kafka: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shop]:
    folder = tmp_path / "pipelines"
    home = orders.write_orders(folder, rows=1, page_rows=PAGE)
    declared = (home / "pipeline.yaml").read_text().replace("key: [number]", "key: [note]")
    (home / "pipeline.yaml").write_text(declared)
    lines = [f"{number},{number * 3},k{number % KEYS}" for number in range(ROWS)]
    (home / "orders.csv").write_text("\n".join(["number,amount,note", *lines]) + "\n")
    kafka_settings = stack_settings.kafka.model_copy(update={"topic_partitions": 2})
    settings = stack_settings.model_copy(update={"pipelines_dir": folder, "kafka": kafka_settings})
    services.migrate(settings)
    services.run_deploy(settings, home, who="test")
    for name, value in settings.to_env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(
        "waybill.topics.generations._ENDS_S", 60.0
    )  # Kafka is there, and may be busy
    made = Shop(settings, kafka)
    yield made
    made.tracker.close()


DIES_UNSENT = """
import os, signal
from waybill.producer import LosslessProducer
from waybill.services import environment
real_config, real_produce, calls = environment.librdkafka_config, LosslessProducer.produce, []
environment.librdkafka_config = lambda s: {**real_config(s), "linger.ms": 60_000}

def produce(*given):
    calls.append(1)
    lsn = real_produce(*given)
    if len(calls) == 50:
        os.kill(os.getpid(), signal.SIGKILL)
    return lsn

LosslessProducer.produce = produce
"""
SLOW = """
import time
from waybill.producer import LosslessProducer
from waybill.services import environment
real_config = environment.librdkafka_config
environment.librdkafka_config = lambda s: {**real_config(s), "linger.ms": 3_000}
real_produce = LosslessProducer.produce

def produce(*given):
    time.sleep(0.02)
    return real_produce(*given)

LosslessProducer.produce = produce
"""
INGEST = """
from waybill.services import run_ingest
run_ingest(settings, "orders")
"""


@pytest.mark.campaign
def test_keys_keep_their_order_while_the_topic_grows_twice_under_runs_that_are_killed(
    shop: Shop,
) -> None:
    child = children.start(shop.settings, DIES_UNSENT + INGEST)
    child.communicate(timeout=360)
    assert shop.written(1) < 50, "its log holds what it did not send"
    second = shop.grow(3)
    shop.drain()
    assert shop.reading() == shop.topic, "it waits for the log of the dead run"
    [first, _] = shop.json("topics", "list")
    assert (first["state"], len(first["waits_for"])) == ("draining", 1)
    with pytest.raises(InputError, match="drains since"):
        shop.grow(9)

    child = children.start(shop.settings, SLOW + INGEST)
    try:
        children.wait_until(lambda: shop.written(2) >= 20, what="the run moves on")
        children.wait_until(
            lambda: shop.process() >= 0 and shop.reading() == second, what="it drains"
        )
        third = shop.grow(5)
        children.wait_until(lambda: shop.written(3) >= 5, what="it moves on again")
        assert child.poll() is None, "it is killed amid its work"
    finally:
        children.kill(child)
    shop.process()
    assert shop.reading() in {second, third}
    services.run_ingest(shop.settings, "orders")
    shop.drain()
    assert shop.reading() == third

    numbers = [number for _, number in shop.read]
    assert sorted(numbers) == list(range(ROWS)), "nothing is lost, nothing is there twice"
    for key in {key for key, _ in shop.read}:
        own = [number for other, number in shop.read if other == key]
        assert own == sorted(own), key
    states = [(one["topic"], one["state"]) for one in shop.json("topics", "list")]
    assert states == [(shop.topic, "ended"), (second, "ended"), (third, "ok")]


def test_a_topic_is_grown_by_the_command_which_adopts_what_a_killed_one_left(shop: Shop) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewPartitions

    grow = ("topics", "grow", shop.topic, "--partitions")
    assert "is not there yet" in shop.run(*grow, "4", "--yes", code=1)
    services.run_ingest(shop.settings, "orders")
    assert "has 2 partitions" in shop.run(*grow, "2", "--yes", code=1)
    assert "no pipeline writes" in shop.run(
        "topics", "grow", "events.no.one", "--partitions=4", "--yes", code=3
    )
    second = generation_name(shop.topic, 2)
    assert not shop.json(*grow, "4", "--plan")["grown"]
    assert second not in shop.log.topics()
    shop.log.create_topic(second, 4)  # as a command that was killed before its transaction
    assert "empty, with 4 partitions" in shop.run(*grow, "5", "--yes", code=1)
    done = shop.json(*grow, "4", "--yes", "--who", "ann", "--why", "slow")
    assert (done["adopted"], done["name"], done["grown"]) == (True, second, True)
    assert "drains since" in shop.run(*grow, "8", "--yes", code=1)
    with shop.tracker.transaction() as connection:
        asked = "SELECT who, target FROM audit_log WHERE action = 'grow_topic'"
        rows = connection.exec_driver_sql(asked).all()
        assert [tuple(row) for row in rows] == [("ann", f"topic {shop.topic}")]

    shop.drain()
    assert [one["state"] for one in shop.json("topics", "list")] == ["ended", "ok"]
    servers = {"bootstrap.servers": shop.kafka.bootstrap_servers, "log_level": 2}
    producer = Producer(servers)
    producer.produce(shop.topic, b"late")
    assert producer.flush(120) == 0
    assert [one["late"] for one in shop.json("topics", "list", code=2)] == [1, 0]
    admin = AdminClient(servers)
    admin.create_partitions([NewPartitions(second, 6)])[second].result(120)
    children.wait_until(lambda: shop.log.describe(second).partitions == 6, what="it is altered")
    [_, altered] = shop.json("topics", "list", code=2)
    assert altered["state"] == "altered"
    assert "made with 4 partitions, and has 6" in altered["altered"]
    [check] = topic_checks(shop.settings)
    assert (check.ok, check.found) == (False, f"{second}: {altered['altered']}")
    assert "has 6 partitions" in shop.run(*grow, "5", "--yes", code=1)
    assert shop.json(*grow, "8", "--yes")["name"] == generation_name(shop.topic, 3)


def test_the_coordinator_grows_a_topic_whose_tasks_do_not_keep_up_and_runs_move_on(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    services.run_ingest(shop.settings, "orders")
    shop.process(took_ms=900_000, tasks_ms=900_000)
    real = KafkaLog.first_times

    def earlier(log: KafkaLog, offsets: Any) -> Any:
        found = real(log, offsets)
        return {
            name: {n: None if at is None else at - 1_000_000 for n, at in own.items()}
            for name, own in found.items()
        }

    monkeypatch.setattr(KafkaLog, "first_times", earlier)

    def round_of() -> Any:
        look_back(shop.tracker)
        return shop.json("clusters", "coordinate")

    assert round_of()["growths"] == [], "the cluster has as many cores as partitions"
    shop.run("clusters", "set", "default", "--cores", "4")
    found = round_of()
    assert found["growths"] == [], "by default it only says so"
    assert f"topic {shop.topic} needs more partitions" in "".join(found["problems"])
    monkeypatch.setenv("WAYBILL_KAFKA__MAX_TOPIC_PARTITIONS", "16")
    second = generation_name(shop.topic, 2)
    shop.log.create_topic(second, 3)  # as a command that was killed before its transaction
    [growth] = round_of()["growths"]
    assert (growth["topic"], growth["before"], growth["partitions"]) == (shop.topic, 2, 3)
    assert "2 of its 2 partitions get more than one task each can process" in growth["reason"]
    assert round_of()["growths"] == [], "the first generation drains"
    [newest, *_] = shop.json("clusters", "show", "default")["decisions"]
    assert (newest["kind"], newest["made_by"]) == ("grow", "coordinator")
    assert newest["reason"] == (f"{shop.topic} has 3 partitions in place of 2: {growth['reason']}")
    shown = " ".join(shop.run("clusters", "show", "default").split())
    assert f"coordinator: team {newest['team']}: " in shown

    shop.run("pipelines", "reread", "orders", "--why", "x", "--yes")
    child = children.start(shop.settings, INGEST)
    child.communicate(timeout=360)
    assert shop.written(2) == ROWS, "a run in another process writes to the next generation"
    shop.drain()
    assert shop.reading() == second
    for key in {key for key, _ in shop.read}:
        own = [number for other, number in shop.read if other == key]
        assert own == 2 * sorted(set(own)), key
    assert round_of()["growths"] == []


@pytest.mark.campaign
def test_an_ended_generation_is_deleted_once_its_records_are_and_its_name_does_not_come_back(
    shop: Shop,
) -> None:
    services.run_ingest(shop.settings, "orders")
    second = shop.grow(4)
    shop.drain()
    assert delete_ended(shop.tracker, shop.log) == [], "its records are kept for some days"
    topic = shop.log.describe(shop.topic)
    lasts = {n: high - 1 for n, (_, high) in shop.log.watermarks(topic).items()}
    shop.log.delete_records(shop.topic, lasts)  # now it is as one with few events is from the first
    assert delete_ended(shop.tracker, shop.log) == [], "what is in it is not loaded"
    shop.load_and_trim()
    asked = {"state": "taken_over"}
    with shop.tracker.transaction() as connection:
        connection.execute(text("UPDATE write_ahead_logs SET state = :state"), asked)
    assert delete_ended(shop.tracker, shop.log) == [], "what a log has sent may be looked for"
    with shop.tracker.transaction() as connection:
        connection.execute(text("UPDATE write_ahead_logs SET state = 'closed'"))
    assert delete_ended(shop.tracker, shop.log) == [shop.topic]
    children.wait_until(lambda: shop.topic not in shop.log.topics(), what="it is gone from Kafka")
    assert delete_ended(shop.tracker, shop.log) == []
    assert [one["topic"] for one in shop.json("topics", "list")] == [second]
    shop.run("pipelines", "reread", "orders", "--why", "x", "--yes")
    assert services.run_ingest(shop.settings, "orders").read == ROWS
    shop.drain()
    assert shop.written(2) == ROWS
    assert shop.topic not in shop.log.topics()


class Away:
    """A source that fails before its first page."""

    def count(self) -> None:
        return None

    def read(self, _cursor: Any) -> Iterator[Any]:
        raise RetryError("the source is away")
        yield


def test_a_run_whose_source_is_away_holds_no_generation(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        with monkeypatch.context() as patch, pytest.raises(RetryError, match="source is away"):
            patch.setattr("waybill.ingestion.connectors.open_connector", lambda *_, **__: Away())
            services.run_ingest(shop.settings, "orders")

    fails()
    with shop.tracker.transaction() as connection:  # as where it was killed
        connection.exec_driver_sql("UPDATE write_ahead_logs SET state = 'open', ended_at = NULL")
    second = shop.grow(4)
    assert shop.reading() == shop.topic, "the log of a run that was killed is open"
    assert shop.draining_findings() == []
    with shop.tracker.transaction() as connection:
        connection.exec_driver_sql(
            "UPDATE topic_generations SET draining_since = draining_since - interval '11 minutes'"
        )
    [waits, _] = shop.json("topics", "list", code=2)
    assert waits["draining_since"]
    [found] = shop.draining_findings()
    assert f"{shop.topic} drains for 11 min" in found
    assert "it waits for log " in found
    fails()
    assert shop.reading() == second
    assert shop.draining_findings() == []
    shop.run("topics", "list")
    [log] = services.write_ahead_logs(shop.settings, every=True)
    assert (log.state, log.topic) == ("closed", second)


def test_a_tracker_that_lacks_a_generation_is_told_and_nothing_is_taken_in(shop: Shop) -> None:
    from confluent_kafka import Producer

    services.run_ingest(shop.settings, "orders")
    second = generation_name(shop.topic, 2)
    shop.log.create_topic(second, 3)
    assert [one["topic"] for one in shop.json("topics", "list")] == [shop.topic]
    services.run_ingest(shop.settings, "orders")  # a grow that was killed holds nobody up
    producer = Producer({"bootstrap.servers": shop.kafka.bootstrap_servers, "log_level": 2})
    producer.produce(second, b"of before the tracker was restored")
    assert producer.flush(120) == 0
    [_, unknown] = shop.json("topics", "list", code=2)
    assert (unknown["topic"], unknown["state"]) == (second, "unknown")
    assert [check.found for check in topic_checks(shop.settings) if not check.ok] == [
        f"{second}: in Kafka, with records, and unknown to the tracker"
    ]
    with pytest.raises(StopError, match="restored from before"):
        services.run_ingest(shop.settings, "orders")


class Held(KafkaLog):
    """Looks whether a generation's row is held whenever it is asked where the topic ends."""

    def __init__(self, shop: Shop) -> None:
        super().__init__(shop.settings.kafka)
        self.shop = shop
        self.held: list[bool] = []
        self.away = True

    def ends_now(self, topic: TopicInfo, *, limit_s: float) -> dict[int, int]:
        asked = "SELECT FROM topic_generations WHERE name = :name FOR SHARE SKIP LOCKED"
        with self.shop.tracker.transaction() as connection:
            rows = connection.execute(text(asked), {"name": topic.name}).all()
        self.held.append(not rows)
        if self.away:
            raise RetryError("a partition has no leader")
        return super().ends_now(topic, limit_s=limit_s)


def test_one_of_two_who_grow_it_does_and_it_ends_where_kafka_does_while_nobody_else_has_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waybill.topics.generations._AGAIN_S", 3_600.0)
    services.run_ingest(shop.settings, "orders")
    while shop.process():
        pass
    asked = GrowRequest(topic=shop.topic, partitions=4)
    plan = services.plan_growth(shop.settings, asked)
    with ThreadPoolExecutor(2) as pool:
        both = [
            pool.submit(services.grow_topic, shop.settings, plan, Decision(who, "a test"))
            for who in ("ann", "bob")
        ]
    refused = [one.exception() for one in both if one.exception()]
    assert len(refused) == 1
    assert isinstance(refused[0], InputError)
    log = Held(shop)
    draining = Draining(shop.tracker, log)
    assert draining.end([shop.topic]) == []
    assert draining.end([shop.topic]) == []
    assert log.held == [False], "Kafka did not answer: it is not asked again at once"
    log.away = False
    topics = [shop.topic, "events.else.warehouse"]
    before = draining.names_to_read(topics)
    assert before == {topic: topic for topic in topics}, "its time is not over"
    after = Draining(shop.tracker, log).names_to_read(topics)
    assert after[shop.topic].startswith("events-g2."), "the first one is drained, and ended"
    assert after.keys() == before.keys()
    assert log.held == [False, False, True]
