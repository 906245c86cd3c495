"""A topic with slow code that is alone in its query lets go of its cores in bounded time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.evolving import kafka_records
from tests.unit.processing.batches_in_process import Application, Consumer
from tests.unit.processing.made import event, pipeline

from waybill.events import encode
from waybill.processing import Counts, read_staged
from waybill.processing.spark import batch_size, topic_group
from waybill.processing.spark.batch_size import LONGEST_S, MOST_BYTES, BatchSize, QueriesAtWork
from waybill.processing.spark.batches import read_descriptor
from waybill.processing.spark.topic_group import TopicGroup
from waybill.settings import Settings

PARTITIONS = 3
LEAST = Settings().parking.storm_min_events


class SimulatedTasks:
    """Tasks that take so long an event, one for each partition, all at once."""

    def __init__(self, event_s: float) -> None:
        self.event_s = event_s
        self.event_bytes = 0
        """Made of each."""
        self.light: tuple[int, ...] = ()
        """Partitions of whose events nothing is made."""
        self.fails: tuple[str, ...] = ()
        """Pipelines of which each event fails unless it is held; partitions are theirs in turns."""
        self.took_s: list[float] = []
        """Of each action."""
        self.then: Callable[[], object] = lambda: None

    def run(self, frame: Any, task: Any) -> dict[str, list[dict[str, Any]]]:
        plan, told, longest_s = task._plan, dict[str, list[dict[str, Any]]](), 0.0
        for share in plan.shares:
            for topic, number, start, end in share:
                took_s = (end - start) * self.event_s
                longest_s = max(longest_s, min(took_s, plan.limit_s))
                row: dict[str, Any] = {"topic": topic, "gave_up": True, "parked": None}
                event_bytes = 0 if number in self.light else self.event_bytes
                is_within = (end - start) * event_bytes <= plan.limit_bytes
                if is_within and took_s <= plan.limit_s:
                    ranges = [[number, start, end - 1, end - start, 0, ""]]
                    row = {"topic": topic, "took_s": took_s, "ranges": ranges, "counts": []}
                    row["made_bytes"] = (end - start) * event_bytes
                    row |= {"failures": [], "staged": None, "parked": None, "replayed": []}
                    failing = self.fails[number % len(self.fails)] if self.fails else ""
                    if failing and failing not in plan.held:
                        cause = [failing, "transformation", "transformation_timeout", "", ""]
                        counts = Counts()
                        counts.add((failing, "order", "transformation", 0), "in_first", end - start)
                        row |= {"failures": [[*cause, end - start]], "counts": counts.to_json()}
                told.setdefault(topic, []).append(row)
        self.took_s.append(longest_s)
        self.then()
        return told


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Application, list[float]]]:
    """Run a batch of so many events a partition; return what was committed and how long it took."""

    def run(
        tasks: SimulatedTasks, *topics: str, events: int, app: Application | None = None
    ) -> tuple[Application, list[float]]:
        if app is None:
            app = Application(monkeypatch, **{topic: pipeline() for topic in topics})
        monkeypatch.setattr(topic_group, "run_tasks", tasks.run)
        monkeypatch.setattr(type(app.group), "_most_tasks", lambda *args: PARTITIONS)
        ends = {topic: {str(n): events for n in range(PARTITIONS)} for topic in app.consumers}
        monkeypatch.setattr(topic_group, "read_offsets", lambda *args: ends)
        app.group._on_batch(SimulatedTasks, 0)  # type: ignore[arg-type]
        return app, tasks.took_s

    monkeypatch.setattr(SimulatedTasks, "sparkSession", None, raising=False)
    return run


MIB = 1024**2


@pytest.mark.parametrize("event_bytes", [60_000, 40 * MIB, 400 * MIB, 4_000 * MIB])
def test_no_batch_makes_more_than_a_worker_and_a_load_hold_unless_one_event_does(run, event_bytes):
    tasks = SimulatedTasks(0.00001)
    tasks.event_bytes = event_bytes
    events = 100_000 if event_bytes < MIB else 20
    app, took_s = run(tasks, "t", events=events)
    assert positions(app) == {events}
    sizes = [batch.made_bytes for batch in app.consumers["t"].committed]
    assert sum(sizes) == events * PARTITIONS * event_bytes
    assert max(sizes) <= max(MOST_BYTES, event_bytes)
    if event_bytes < MIB:
        assert len(took_s) - len(sizes) == 1, "it is given up once, and knows then"
        assert len(sizes) < 1.2 * sum(sizes) / (MOST_BYTES / 2) + 5


def test_light_events_of_one_partition_do_not_keep_heavy_ones_of_others_from_their_turn(run):
    tasks = SimulatedTasks(0.00001)
    tasks.event_bytes, tasks.light = MOST_BYTES * 2 // 3, (0,)  # two at once are too much
    app, took_s = run(tasks, "t", events=20)
    assert positions(app) == {20}
    assert len(took_s) <= 20 * (1 + PARTITIONS) + 4, "a turn gives up once"


WIDENS = "def transform(event):\n    event.data['note'] = 'a' * 10_000\n    return event\n"


def test_small_events_that_become_large_rows_are_committed_in_parts_that_loads_hold(monkeypatch):
    """Real tasks over 300 events of some 300 bytes, which make 3 MB of rows."""
    monkeypatch.setattr(topic_group, "MOST_BYTES", 500_000, raising=False)
    monkeypatch.setattr(batch_size, "MOST_BYTES", 500_000, raising=False)
    monkeypatch.setattr(batch_size, "_TARGET_BYTES", 250_000, raising=False)
    app = Application(monkeypatch, t=pipeline(WIDENS, n="int64", note="string"))
    values = [encode(event(number)) for number in range(300)]

    def run_tasks(frame: Any, task: Any) -> dict[str, list[dict[str, Any]]]:
        told = dict[str, list[dict[str, Any]]]()
        for [(topic, _, start, end)] in task._plan.shares:
            for row in task.run([kafka_records(topic, values[start:end], first=start)]):
                one = read_descriptor(*(column[0].as_py() for column in row.columns))
                told.setdefault(one["topic"], []).append(one)
        return told

    monkeypatch.setattr(topic_group, "run_tasks", run_tasks)
    monkeypatch.setattr(topic_group, "read_offsets", lambda *args: {"t": {"0": 300}})
    app.group._on_batch(SimpleNamespace(sparkSession=None), 0)  # type: ignore[arg-type]
    assert positions(app) == {300}
    assert sorted(row["n"] for row in app.rows("t")) == [*range(300)]
    assert app.parked("t") == []
    sizes = [
        sum(frame.data.nbytes for frame in read_staged(body))
        for body in app.objects.bodies.values()
    ]
    assert max(sizes) <= 500_000


def test_what_tasks_made_together_is_limited_as_what_one_made(run):
    tasks = SimulatedTasks(0.00001)
    tasks.event_bytes = MOST_BYTES // 1_000  # each of three tasks is within it
    app, _ = run(tasks, "t", events=900)
    assert positions(app) == {900}
    assert max(batch.made_bytes for batch in app.consumers["t"].committed) <= MOST_BYTES


def test_what_made_too_much_beside_others_is_left_to_a_query_of_its_own(run):
    tasks = SimulatedTasks(0.00001)
    tasks.event_bytes = MIB
    app, _ = run(tasks, "t", "u", events=1_000)
    assert app.group.take_apart() == {"t", "u"}
    assert app.consumers["t"].committed == []


def positions(app: Application, topic: str = "t") -> set[int]:
    return set(app.consumers[topic].positions.values())


def test_quick_code_is_one_batch(run):
    app, took_s = run(SimulatedTasks(0.0001), "t", events=70_000)
    assert len(took_s) == 1
    assert positions(app) == {70_000}


@pytest.mark.parametrize("event_s", [0.001, 0.2, 29, 300])
def test_no_batch_holds_its_cores_for_longer_than_a_minute_or_an_event(run, event_s):
    events = 100_000 if event_s < 1 else 100
    app, took_s = run(SimulatedTasks(event_s), "t", events=events)
    assert positions(app) == {events}
    assert max(took_s) <= max(LONGEST_S, event_s)
    assert max(took_s[1:]) <= max(21, event_s)  # once it is known
    assert sum(took_s) < events * event_s * 1.1 + 2 * LONGEST_S  # and it goes on at its speed


@pytest.fixture
def held(run, monkeypatch) -> Callable[..., list[tuple[str, int, int]]]:
    """Run a batch of pipelines that fail; return (id, events, their last offset) of each storm."""

    def held(*fails: str) -> list[tuple[str, int, int]]:
        found = list[tuple[str, int, int]]()
        commit = Consumer.commit

        def noted(consumer: Any, batch: Any, storms: Any, *, took_ms: int) -> int:
            at = {fails[number % len(fails)]: end for number, (_, end) in batch.ranges.items()}
            found.extend((one.pipeline_id, one.events, at[one.pipeline_id]) for one in storms)
            return commit(consumer, batch, storms, took_ms=took_ms)

        monkeypatch.setattr(Consumer, "commit", noted)
        tasks = SimulatedTasks(1.0)
        tasks.fails = fails
        app, _ = run(SimulatedTasks(0.001), "t", events=1)
        monkeypatch.setattr(topic_group, "held_pipelines", lambda _: {one[0] for one in found})
        run(tasks, events=2 * LEAST, app=app)
        assert positions(app) == {2 * LEAST}
        return found

    return held


def test_what_fails_slowly_is_held_as_what_fails_at_once(held):
    [(pipeline_id, events, _)] = held("p1")
    assert pipeline_id == "p1"
    assert LEAST <= events < LEAST + 100


def test_a_storm_lets_nothing_be_forgotten_of_other_pipelines(held):
    """Of three partitions "p2" has one: its storm is there when "p1" is held already."""
    [first, second] = held("p1", "p2")
    assert (first[0], second[0]) == ("p1", "p2")
    assert second[1:] == (second[2] - 1, second[2])  # all since the batch began, at offset 1


def test_a_query_that_is_to_end_does_so_after_the_batch_that_runs(run):
    tasks = SimulatedTasks(29)
    app, took_s = run(SimulatedTasks(29), "t", events=2)

    def end() -> None:
        assert app.group.end(None) is False  # type: ignore[arg-type]

    tasks.then = end
    _, took_s = run(tasks, events=1_000, app=app)
    assert took_s == [29]
    assert positions(app) == {3}


def test_what_was_given_up_beside_others_is_the_least_when_it_is_alone(run):
    app, _ = run(SimulatedTasks(1), "t", "u", events=1_000)
    assert app.group.take_apart() == {"t", "u"}
    assert app.consumers["t"].committed == []
    size = app.consumers["t"].batch_size
    assert size.of({0: (5, 1_000), 1: (7, 7_000)}) == {0: (5, 6), 1: (7, 8)}


def test_code_that_becomes_quick_again_gets_large_batches_again(run):
    app, _ = run(SimulatedTasks(29), "t", events=2)
    _, took_s = run(SimulatedTasks(0.0001), events=70_002, app=app)
    assert len(took_s) < 8
    assert positions(app) == {70_002}


def most_tasks(app: Application, *, events: int, topic: str = "t", cores: int = 4) -> int:
    """Return how many tasks the group would give a batch of so many events."""
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=cores))
    return TopicGroup._most_tasks(app.group, spark, {topic: {0: (0, events)}})


def test_slow_code_has_its_share_of_the_cores_while_other_queries_are_at_work(run):
    app, _ = run(SimulatedTasks(0.001), "t", events=1_000)
    at_work = app.group._parts.at_work
    assert most_tasks(app, events=200_000) > 4, "nobody else wants them"
    with at_work.batch("g"), at_work.batch("h"):
        assert most_tasks(app, events=200_000) == 2
        assert most_tasks(app, events=1_000) > 4, "so few are soon done"
        with at_work.batch("i"), at_work.batch("j"), at_work.batch("k"):
            assert most_tasks(app, events=200_000) == 1


def test_quick_code_has_all_cores_that_are_free(run):
    app, _ = run(SimulatedTasks(0.00001), "t", events=50_000)
    with app.group._parts.at_work.batch("g"), app.group._parts.at_work.batch("h"):
        assert most_tasks(app, events=200_000) > 4


def test_what_was_slow_beside_others_is_known_when_it_has_its_own_query(run):
    app, _ = run(SimulatedTasks(0.001), "t", "u", events=1_000)
    assert [one.batch_size.is_long(200_000) for one in app.consumers.values()] == [True, True]
    app, _ = run(SimulatedTasks(1), "t", "u", events=1_000)
    assert [one.batch_size.is_long(2) for one in app.consumers.values()] == [True, True], "given up"


def test_one_batch_without_slow_events_does_not_hide_them_and_some_do():
    size = BatchSize()
    size.worked(50_000, 30.0)
    size.worked(50_000, 0.5)
    assert size.is_long(200_000)
    for _ in range(3):
        size.worked(50_000, 0.5)
    assert not size.is_long(200_000)
    size.worked(3, 0.9)  # a process was started: that is not of the events
    assert not size.is_long(200_000)


@pytest.fixture
def clock(monkeypatch):
    made = SimpleNamespace(now=100.0)
    monkeypatch.setattr(batch_size.time, "monotonic", lambda: made.now)
    return made


def test_a_query_is_at_work_for_a_moment_after_its_batch(clock):
    at_work = QueriesAtWork()
    with at_work.batch("g"):
        with at_work.batch("h"):
            pass
        clock.now = 101.9
        assert at_work.cores_for("g", 2) == 1
        clock.now = 102.1
        assert at_work.cores_for("g", 2) == 2


def test_the_cores_of_a_query_are_those_of_its_last_batch_with_the_pause_before_it(clock):
    at_work = QueriesAtWork()
    assert at_work.cores_of("g") == 0
    with at_work.batch("g"):
        assert at_work.cores_of("g") == math.inf, "it is not known yet"
    clock.now += 0.6
    with at_work.batch("g"):
        clock.now += 0.4
        at_work.worked("g", 0.5)
    assert at_work.cores_of("g") == pytest.approx(0.5)
    clock.now += 2.1
    assert at_work.cores_of("g") == 0, "it is at work no more"


@pytest.mark.parametrize(
    ("busy_s", "left"),
    [(0.5, 7), (0.7, 7), (0.8, 6), (1.7, 6), (1.8, 5), (3.0, 4), (7.9, 4)],
    ids=["little", "most of a core", "more", "of two", "more of two", "half", "all"],
)
def test_of_many_cores_a_slow_topic_has_what_others_leave_and_its_share_at_the_least(
    clock, busy_s, left
):
    at_work = QueriesAtWork()
    assert at_work.cores_for("g", 8) == 8
    with at_work.batch("h"):
        assert at_work.cores_for("g", 8) == 4, "it is not known yet what the other takes"
    clock.now += 0.6
    with at_work.batch("h"):
        clock.now += 0.4
        at_work.worked("h", busy_s)
    assert at_work.cores_for("h", 8) == 8, "nobody else is at work"
    assert at_work.cores_for("g", 8) == left


class FairCores:
    """Spark's FAIR pools on two cores: a core goes to the query with the fewest running tasks.

    Each query has two partitions and batches of 200,000 events, which take so many core seconds.
    """

    def __init__(self, clock: Any, groups: dict[str, tuple[Any, float]]) -> None:
        self._clock = clock
        self._groups = groups
        self._waiting: dict[str, list[float]] = {name: [] for name in groups}
        self._running = dict.fromkeys(groups, 0)
        self._batches: dict[str, ExitStack] = {}
        self.events = dict.fromkeys(groups, 0)
        self.tasks: dict[str, list[int]] = {name: [] for name in groups}
        """Of each batch."""

    def run(self, seconds: float, *, full: bool = True) -> FairCores:
        at = [
            (self._clock.now + number * 0.1, name, "begins")
            for number, name in enumerate(self._groups)
        ]
        until = self._clock.now + seconds
        while at and at[0][0] < until:
            self._clock.now, name, what = heapq.heappop(at)
            if what == "begins":
                self._begin(name)
            else:
                self._running[name] -= 1
                if not self._running[name] and not self._waiting[name]:
                    self._end(name, full=full)
                    heapq.heappush(at, (self._clock.now + 0.1, name, "begins"))
            while sum(self._running.values()) < 2 and any(self._waiting.values()):
                name = min((self._running[one], one) for one, own in self._waiting.items() if own)[
                    1
                ]
                self._running[name] += 1
                heapq.heappush(at, (self._clock.now + self._waiting[name].pop(), name, "ends"))
        return self

    def _begin(self, name: str) -> None:
        app, core_s = self._groups[name]
        self._batches[name] = ExitStack()
        self._batches[name].enter_context(app.group._parts.at_work.batch(name))
        tasks = min(2, most_tasks(app, events=200_000, cores=2))
        self._waiting[name] = [core_s / tasks] * tasks
        self.tasks[name].append(tasks)

    def _end(self, name: str, *, full: bool) -> None:
        app, core_s = self._groups[name]
        app.consumers["t"].batch_size.worked(200_000, core_s)
        app.group._parts.at_work.worked(name, core_s, is_full=full)
        self._batches[name].close()
        self.events[name] += 200_000


@pytest.fixture
def beside(monkeypatch, clock) -> Callable[..., FairCores]:
    """Run a query beside one whose batches take so many core seconds; its own take 1.7."""

    def beside(core_s: float, *, full: bool = True) -> FairCores:
        groups = {"other": (Application(monkeypatch, t=pipeline()), core_s)}
        groups["own"] = (Application(monkeypatch, t=pipeline()), 1.7)
        at_work = QueriesAtWork()
        for name, (app, _) in groups.items():
            app.group.name, app.group._parts.at_work = name, at_work  # type: ignore[misc]
        return FairCores(clock, groups).run(600.0, full=full)

    return beside


@pytest.mark.parametrize("core_s", [1.8, 2.0, 2.3, 2.9, 5.0, 15.0])
def test_beside_code_that_takes_longer_a_query_that_falls_behind_keeps_its_share(beside, core_s):
    fair = beside(1.7)
    assert set(fair.tasks["own"] + fair.tasks["other"]) == {2}, "of equals none is held back"
    found = beside(core_s)
    assert found.events["own"] >= 0.9 * fair.events["own"]
    assert found.events["other"] * core_s >= 0.9 * fair.events["other"] * 1.7
    assert set(found.tasks["own"]) == {2}


def test_quick_code_has_all_cores_beside_a_query_that_does_not_fall_behind(beside):
    assert set(beside(2.9, full=False).tasks["other"]) == {2}
