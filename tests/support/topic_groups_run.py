"""An application's topics in groups, over real servers and a Spark session of this process.

``main`` runs the whole story in a process of its own: Spark's Java stays in one for good, and its
workers have the settings that it was started with.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from sqlalchemy import text
from tests.support import cut_logs
from tests.support.evolving import DECLARATION, PASSES

from waybill import services
from waybill.clusters import ApplicationLease
from waybill.errors import StopError
from waybill.events import Event, encode
from waybill.ledger import acquire_lease
from waybill.processing.spark import plan_cache, topic_group
from waybill.processing.spark.application import fresh_checkpoints
from waybill.processing.spark.batch_size import BatchSize
from waybill.processing.spark.executor_watch import watch_executors
from waybill.processing.spark.session import cores_of, open_session, stop_session
from waybill.processing.spark.topic_consumer import ProcessingParts, TopicConsumer
from waybill.processing.spark.topic_group import TopicGroup
from waybill.processing.spark.topic_groups import TopicGroups
from waybill.settings import Settings
from waybill.storage import open_log, open_objects, open_tracker
from waybill.topics.stops import read_stops

TEAMS = ("north", "south", "west")
TASKS_A_CORE = 10
SLOW = """
import time
def transform(event):
    print("slow:", event.id)
    time.sleep(0.2)
    return event
"""


class Application:
    """The groups of an application in one Spark session; a pipeline of each team is deployed."""

    def __init__(self, settings: Settings) -> None:
        services.migrate(settings)
        self.settings, self._servers = settings, settings.kafka.bootstrap_servers
        self.tag = uuid.uuid4().hex[:8]
        for team in TEAMS:
            services.run_deploy(settings, self._written(team), who="test")
        self.log = open_log(settings.kafka)
        self.tracker = open_tracker(settings.tracker)
        self.topics = {team: f"events.{team}-{self.tag}.warehouse" for team in TEAMS}
        self.spark = open_session(settings.spark, name="groups")
        self.cores = self.spark.sparkContext.defaultParallelism
        self.log.create_topic(self.topics["west"], TASKS_A_CORE * self.cores)
        self._folder = fresh_checkpoints(settings.spark.work_dir / "groups")
        objects = open_objects(settings.s3)
        self._parts = ProcessingParts.over(settings, self.tracker, self.log, objects)
        self.opened: list[str] = []
        self.started: list[str] = []
        self.processes = 0
        self.groups = self.fresh_groups()

    def _written(self, team: str) -> Path:
        home = self.settings.pipelines_dir / team
        home.mkdir(parents=True)
        declared = (
            DECLARATION.format(team=f"{team}-{self.tag}", policy="strict", amount="int32")
            .replace("test-evolving", f"{team}-{self.tag}")
            .replace("name: evolving", f"name: {team}")
            .replace("schema: shop", f"schema: {team}")
        )
        (home / "pipeline.yaml").write_text(declared)
        (home / "transformation.py").write_text(PASSES)
        (home / "orders.csv").write_text("number,amount\n")
        return home

    def _open(self, lease: ApplicationLease, topic: str) -> TopicConsumer:
        self.opened.append(topic)
        info = self.log.ensure_topic(topic)
        consumer = TopicConsumer(
            self._parts, info, destination="warehouse", holder="test", check=lease.check
        )
        consumer.open()
        return consumer

    def _group(
        self, process: int, consumers: Iterable[TopicConsumer], name: str, number: int
    ) -> TopicGroup:
        name, folder = f"{name}-of-{process}", self._folder / uuid.uuid4().hex
        return TopicGroup(self._parts, consumers, name=name, number=number, checkpoint=folder)

    def _start(self, group: TopicGroup) -> Any:
        self.started.append(group.name)
        return group.start(self.spark)

    def started_beside_itself(self, team: str) -> None:
        """Start a second query of the group that a team's topic is in; there is nothing to read."""
        [group] = [one.group for one in self.groups._slots if self.topics[team] in one.read]
        again = TopicGroup(
            self._parts,
            group._consumers.values(),
            name=group.name,
            checkpoint=self._folder / uuid.uuid4().hex,
        )
        query = again.start(self.spark)
        assert query.isActive
        assert again.end(query)

    def send(
        self,
        team: str,
        numbers: Iterable[int],
        *,
        of: str = "",
        partition: int = 0,
        send: Callable[..., None] = cut_logs.send_one_by_one,
    ) -> None:
        """Send orders to a team's topic, of its own pipeline or of another team's."""
        self.log.ensure_topic(self.topics[team])
        messages = [
            encode(
                Event(
                    id=f"{team}-{number}", pipeline_id=f"{of or team}-{self.tag}",
                    team=f"{of or team}-{self.tag}", name="order", key=f"[{number}]",
                    source_version=number, intake_version=number, intake_minute=29_000_000,
                    time="2026-01-01T00:00:00Z", data={"number": number, "amount": number},
                )
            )
            for number in numbers
        ]  # fmt: skip
        send(self._servers, self.topics[team], messages, partition)

    def sql(self, statement: str) -> dict[str, int]:
        with self.tracker.transaction() as connection:
            rows = connection.execute(text(statement)).all()
        return {str(name).removesuffix(f"-{self.tag}"): int(number) for name, number in rows}

    def passed(self) -> dict[str, int]:
        """Return {team: events that were mapped}, as the ledger counts them."""
        return self.sql(
            "SELECT pipeline_id, sum((row -> 3 ->> 2)::int) FROM ledger, "
            "jsonb_array_elements(counts) AS row WHERE row ->> 1 = 'mapping' GROUP BY 1"
        )

    def fresh_groups(self, spread: int = 1) -> TopicGroups:
        """Return what another process of the application would have; it replaces the one before."""
        self.processes += 1
        self._parts.in_use.clear()
        lease = ApplicationLease.acquire(self.tracker, "processing", "default")
        opened, group = partial(self._open, lease), partial(self._group, self.processes)
        return TopicGroups(
            opened, group, self._start, self.log.unreadable, most_topics=2, spread=spread
        )

    def pools(self) -> set[str]:
        """Return the names of Spark's scheduler pools."""
        pools = self.spark.sparkContext._jsc.sc().getAllPools()
        return {pools.apply(number).name() for number in range(pools.size())}

    def until(self, condition: Callable[[], bool], what: str, teams: Iterable[str]) -> None:
        deadline = time.monotonic() + 600
        while not condition():
            self.groups.look([self.topics[team] for team in teams])
            assert time.monotonic() < deadline, f"{what}: did not happen; passed {self.passed()}"
            time.sleep(0.1)


def died_and_fenced(application: Application) -> None:
    """A driver dies between two topics' commits; one wakes up late."""
    teams, commit = ("north", "south"), TopicConsumer.commit
    committed: list[str] = []
    refused: list[str] = []

    def dying(consumer: TopicConsumer, *args: Any, **named: Any) -> int:
        if committed:
            refused.append(consumer.topic.name)
            raise RuntimeError("the driver dies here")
        committed.append(consumer.topic.name)
        return commit(consumer, *args, **named)

    for team in teams:
        application.send(team, range(30))
    with mock.patch.object(TopicConsumer, "commit", dying):
        application.until(lambda: bool(refused), "one is committed, one is not", teams)
        application.groups.stop()
    assert len(committed) == 1
    assert len(application.passed()) == 1

    application.groups = application.fresh_groups()
    application.until(
        lambda: application.passed() == {"north": 30, "south": 30}, "what was not committed", teams
    )

    # another application takes one of the topics; the old one wakes up with records of both
    late, application.groups = application.groups, application.fresh_groups()
    application.until(lambda: len(application.started) == 3, "taken over", ["north"])
    application.send("south", range(30, 35))
    application.send("north", range(30, 40))
    wanted = {"north": 40, "south": 35}
    application.until(lambda: application.passed() == wanted, "both go on", ["north"])
    leases = "SELECT name, epoch FROM consumers WHERE name LIKE '%north%'"
    lease, opened = application.sql(leases), len(application.opened)
    deadline = time.monotonic() + 300
    while len(application.opened) == opened:  # it tries to take the topic again, and may not
        late.look([application.topics[team] for team in teams])
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert application.sql(leases) == lease
    assert application.passed() == wanted
    staged = "SELECT 'rows', sum(rows) FROM staged_objects"
    assert application.sql(staged) == {"rows": sum(wanted.values())}


def committed_apart(application: Application) -> None:
    """Two topics of a query, a third in another; one of them with a hole."""
    teams = ("north", "south")
    application.groups = application.fresh_groups()
    application.send("north", range(100, 140))
    application.send("south", range(100, 107))
    wanted = {"north": 80, "south": 42}
    application.until(lambda: application.passed() == wanted, "all are read", teams)
    started = application.started[:-1]
    assert application.started == [*started, "topics-1-of-4"]
    assert "topics-1-of-4" in application.pools()
    offsets = "SELECT DISTINCT o ->> 0, 1 FROM staged_objects, jsonb_array_elements(offsets) AS o"
    assert set(application.sql(offsets)) == {application.topics[team] for team in teams}
    mixed = (
        "SELECT key, count(DISTINCT o ->> 0) FROM staged_objects, "
        "jsonb_array_elements(offsets) AS o GROUP BY 1"
    )
    assert set(application.sql(mixed).values()) == {1}  # no object has rows of two topics

    # a query is started anew while Spark still ends the one before it
    application.started_beside_itself("south")

    # another team's event is nobody's here
    application.send("south", [500], of="north")
    parked = "SELECT p.pipeline_id, s.count FROM segments s JOIN parked_partitions p ON p.id = s.partition_id"
    application.until(lambda: bool(application.sql(parked)), "it parks", teams)
    assert application.sql(parked) == {"unknown": 1}

    # one more topic: a group of its own, as the first is full
    application.send("west", range(5))
    application.until(lambda: application.passed().get("west") == 5, "the third is read", TEAMS)
    assert application.started == [*started, "topics-1-of-4", "topics-2-of-4"]

    # a topic with a hole stops; its neighbour is read on, and nobody is examined anew
    cut_logs.send_in_transaction(
        application.settings.kafka.bootstrap_servers, application.topics["south"], [b"h1", b"h2"]
    )

    def stopped() -> bool:
        return bool(read_stops(application.tracker, application.topics["south"]))

    application.until(stopped, "a hole stops its topic", TEAMS)
    opened = application.opened.count(application.topics["north"])
    application.send("north", range(200, 220))
    application.until(lambda: application.passed()["north"] == 100, "a neighbour goes on", TEAMS)
    assert application.opened.count(application.topics["north"]) == opened
    assert application.passed() == {"north": 100, "south": 42, "west": 5}

    # another cluster's application has a topic for a moment, between two looks: it is taken again
    acquire_lease(application.tracker, f"processing/{application.topics['west']}", holder="other")
    application.send("west", range(5, 8))
    application.until(lambda: application.passed()["west"] == 8, "it is taken again", TEAMS)
    assert application.passed() == {"north": 100, "south": 42, "west": 8}


def by_need(application: Application) -> None:
    """Tasks are sent no pipeline before its first event: all is committed once all the same."""
    application.groups.stop()
    teams, before, needed = ("north", "west"), application.passed(), list[str]()
    need = TopicConsumer.need

    def noted(consumer: TopicConsumer, ids: Collection[str]) -> None:
        needed.extend(ids)
        need(consumer, ids)

    with (
        mock.patch.object(plan_cache, "FEW_PIPELINES", 0),
        mock.patch.object(TopicConsumer, "need", noted),
    ):
        application.groups = application.fresh_groups()
        application.send("north", range(250, 270))
        application.send("west", range(250, 255))
        wanted = before | {"north": before["north"] + 20, "west": before["west"] + 5}
        application.until(lambda: application.passed() == wanted, "needed and sent", teams)
        application.send("north", range(270, 280))
        wanted["north"] += 10
        application.until(lambda: application.passed() == wanted, "in use from now on", teams)
        application.groups.stop()
    assert sorted(needed) == [f"{team}-{application.tag}" for team in teams]
    staged = "SELECT 'rows', sum(rows) FROM staged_objects"
    assert application.sql(staged) == {"rows": sum(wanted.values())}


def idle(application: Application) -> None:
    """A query without data looks less often; what comes is read, and it looks as usual again."""
    north = application.passed()["north"] + 3
    application.groups = application.fresh_groups()
    application.until(lambda: bool(application.groups._read()), "it is read", ["north"])
    [slot] = application.groups._slots
    assert slot.group is not None
    assert slot.query is not None
    executor = slot.query._jsq.streamingQuery().triggerExecutor()
    usual_ms = application.settings.spark.trigger_ms
    assert executor.nextBatchTime(1) == usual_ms
    slot.group._trigger._after_s = 0.5
    application.until(lambda: executor.nextBatchTime(1) == 2_000, "it is idle", ["north"])
    slot.group._trigger._after_s = 120.0
    application.send("north", range(280, 283))
    application.until(lambda: application.passed()["north"] == north, "read", ["north"])
    assert executor.nextBatchTime(1) == usual_ms


def side_by_side(application: Application) -> None:
    """Two topics that one group had room for: neither waits for a batch of the other."""
    application.groups.stop()
    teams, before = ("north", "west"), application.passed()
    begun, released, run_tasks = threading.Event(), threading.Event(), topic_group.run_tasks
    application.groups = application.fresh_groups(spread=2)
    started = len(application.started)

    def held(numbers: Any, task: Any) -> Any:
        if application.topics["west"] in task._plan.topics:
            begun.set()
            assert released.wait(900)  # for longer than `until` does
        return run_tasks(numbers, task)

    application.send("west", range(290, 295))
    with mock.patch.object(topic_group, "run_tasks", held):
        application.until(begun.is_set, "a batch of the one", teams)
        application.send("north", range(290, 295))
        north, west = before["north"] + 5, before["west"] + 5
        application.until(lambda: application.passed()["north"] == north, "no waiting", teams)
        assert application.passed()["west"] == before["west"]
        released.set()
        application.until(lambda: application.passed()["west"] == west, "the other, too", teams)
    names = [f"topics-{number}-of-{application.processes}" for number in (1, 2)]
    assert sorted(application.started[started:]) == names, "neither was started again"
    assert application.pools().issuperset(names), "each has a share of the cores"
    assert cores_of(application.spark) == application.cores
    queries = [slot.query for slot in application.groups._slots if slot.query is not None]
    executors = [query._jsq.streamingQuery().triggerExecutor() for query in queries]
    intervals, now_ms = [200, 203], 1_790_000_000_123
    next_ticks = [executor.nextBatchTime(now_ms) for executor in executors]
    since_epoch = [(now_ms // interval + 1) * interval for interval in intervals]
    assert next_ticks == since_epoch, "their batches do not begin together for long"


def slow_alone(application: Application) -> None:
    """A neighbour of a topic whose code is slow does not wait for it; none of it is lost."""
    application.groups.stop()
    application.groups = application.fresh_groups()
    teams, before = ("north", "west"), application.passed()
    opened = application.opened.count(application.topics["west"])
    home = application.settings.pipelines_dir / "west"
    (home / "transformation.py").write_text(SLOW)
    services.run_deploy(application.settings, home, who="test")
    topic_group.BESIDE_OTHERS_S = 2.0  # in this process, until it ends
    application.send("west", range(300, 340))
    application.send("north", range(300, 310))
    started = len(application.started)
    north = before["north"] + 10
    application.until(lambda: application.passed()["north"] == north, "no waiting", teams)
    assert application.passed()["west"] == before["west"]
    west = before["west"] + 40
    application.until(lambda: application.passed()["west"] == west, "read by itself", teams)
    names = application.started[started:]
    assert len(set(names)) == 2, names
    assert application.opened.count(application.topics["west"]) == opened + 1  # kept as it stood


def shared(application: Application) -> None:
    """A group with a tenth of another's events gets its turn while the other's tasks wait."""
    teams, before = ("north", "west"), application.passed()
    tasks, status = TASKS_A_CORE * application.cores, application.spark.sparkContext.statusTracker()

    def waiting() -> int:
        """Return how many tasks of the large backlog are not begun."""
        stages = map(status.getStageInfo, status.getActiveStageIds())
        large = [stage for stage in stages if stage and stage.numTasks > application.cores]
        return sum(one.numTasks - one.numActiveTasks - one.numCompletedTasks for one in large)

    begun, sent, run_tasks = threading.Event(), threading.Event(), topic_group.run_tasks

    def held(*args: Any) -> Any:
        begun.set()
        assert sent.wait(300)
        return run_tasks(*args)

    def send(partition: int) -> None:
        first = 1_000 + 5 * partition
        application.send("west", range(first, first + 5), partition=partition)

    with (
        mock.patch.object(topic_group, "_EVENTS_PER_TASK", 1),
        mock.patch.object(topic_group, "run_tasks", held),
        mock.patch.object(BatchSize, "of", lambda _size, ranges: dict(ranges)),  # all at once
    ):
        send(0)
        application.until(begun.is_set, "a batch of the first", teams)
        for partition in range(1, tasks):  # all in the next one
            send(partition)
        sent.set()
        application.until(
            lambda: waiting() > tasks // 2, "most of the backlog is in one batch", teams
        )
        application.send("north", range(310, 310 + tasks // 2))
        north = before["north"] + tasks // 2
        application.until(lambda: application.passed()["north"] == north, "its turn", teams)
        left = waiting()
        west = before["west"] + 5 * tasks
        application.until(lambda: application.passed()["west"] == west, "all is read", teams)
    assert left > application.cores, f"it waited while the large backlog was worked on: {left} left"


def ends_after_its_batch(application: Application) -> None:
    """An application that is told to stop commits the batch that it is at."""
    before, began = application.passed(), threading.Event()
    run_tasks = topic_group.run_tasks

    def noted(*args: Any) -> Any:
        began.set()
        return run_tasks(*args)

    application.send("west", range(400, 420), send=cut_logs.send_at_once)
    with mock.patch.object(topic_group, "run_tasks", noted):
        application.until(began.is_set, "a batch runs", ["west"])
        application.groups.stop()
    assert application.passed() == before | {"west": before["west"] + 20}


def stop_spark(application: Application) -> None:
    """Stop Spark as it does itself where its master drops an application: that is noticed."""
    watch = watch_executors(application.spark)
    assert watch.look(), "the driver does the work"
    application.spark.sparkContext._jsc.sc().stop()
    with pytest.raises(StopError, match=r"Spark has ended on local\["):
        watch.look()
    stop_session(application.spark)


def main(settings: Settings) -> None:
    """Run all of it."""
    application = Application(settings)
    try:
        died_and_fenced(application)
        committed_apart(application)
        by_need(application)
        idle(application)
        side_by_side(application)
        slow_alone(application)
        shared(application)
        ends_after_its_batch(application)
    finally:
        application.groups.stop()
        stop_spark(application)
        application.tracker.close()
