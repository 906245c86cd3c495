"""When a topic gets more partitions: by what comes in, seldom, never by the heat of a key."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.clusters import (
    GrowthPolicy,
    PartitionBacklog,
    TopicGrowth,
    TopicLoad,
    decide_growth,
)

POLICY = GrowthPolicy(limit=16)
FULL = PartitionBacklog(waiting=400_000, lag_s=400.0)
"""1,000 events a second."""
EVEN = PartitionBacklog(waiting=4_000, lag_s=4.0)
BEHIND = TopicLoad(
    "events.red.warehouse", "red", "default",
    lag_objective_s=60.0, cores=8, free_cores=6.0, backlogs={0: FULL, 1: FULL},
    arrival_per_s=1_900.0, batch_events_per_s=1_800.0, core_s_per_event=0.001, busy_cores=1.8,
)  # fmt: skip


def test_a_topic_whose_tasks_do_not_keep_up_gets_twice_as_many_with_its_reason():
    found = decide_growth(BEHIND, POLICY)
    assert isinstance(found, TopicGrowth)
    assert (found.topic, found.team, found.before, found.partitions) == (
        "events.red.warehouse", "red", 2, 4,
    )  # fmt: skip
    assert found.reason == (
        "2 of its 2 partitions get more than one task each can process (what comes in takes 2.0 "
        "cores), its oldest event waits for 400 s (objective 60 s), and 6.0 of 8 cores of default "
        "are free"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"is_draining": True},
        {"rested_s": 1799.0},
        {"core_s_per_event": 0.0},
        {"core_s_per_event": 0.0007},
        {"backlogs": {}},
        {"backlogs": {0: EVEN, 1: EVEN}},
        {"backlogs": {0: PartitionBacklog(400_000, None), 1: PartitionBacklog(400_000, None)}},
        {"lag_objective_s": 101.0},
        {"busy_cores": 0.9},
        {"arrival_per_s": 1_799.0},
        {"arrival_per_s": None},
        {"batch_events_per_s": 2_001.0},
        {"batch_events_per_s": 0.0},
        {"cores": 2},
        {"free_cores": 0.9},
    ],
    ids=str,
)
def test_it_does_not_where_any_one_thing_is_otherwise_or_not_known(change):
    assert decide_growth(replace(BEHIND, **change), POLICY) is None


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_a_limit_that_is_reached_is_said_with_what_would_help(limit):
    found = decide_growth(BEHIND, GrowthPolicy(limit=limit))
    assert isinstance(found, str)
    assert f"WAYBILL_KAFKA__MAX_TOPIC_PARTITIONS allows {limit}: raise it" in found
    assert "`waybill topics grow events.red.warehouse --partitions 4`" in found


def test_growth_stops_at_the_limit_that_is_no_double():
    found = decide_growth(BEHIND, GrowthPolicy(limit=3))
    assert isinstance(found, TopicGrowth)
    assert found.partitions == 3


@pytest.mark.parametrize("hot", [1, 2, 4])
def test_a_few_hot_partitions_grow_nothing_and_it_is_said_why(hot):
    backlogs = {number: FULL if number < hot else EVEN for number in range(8)}
    load = replace(
        BEHIND, backlogs=backlogs, arrival_per_s=9e6, cores=32, free_cores=20, busy_cores=6.0
    )
    found = decide_growth(load, POLICY)
    assert isinstance(found, str)
    assert f"is hot in {hot} of 8 partitions ({', '.join(map(str, range(hot)))})" in found
    idle = replace(load, busy_cores=POLICY.busy * hot - 0.1)
    assert decide_growth(idle, POLICY) is None, "its tasks do not work: it is not its keys"
    assert "a key stays in one partition, so more of them would not help" in found


OTHERWISE = {
    "lag_objective_s": st.floats(1, 600),
    "free_cores": st.floats(-5, 40),
    "backlogs": st.dictionaries(
        st.integers(0, 40),
        st.builds(
            PartitionBacklog,
            st.integers(0, 10_000_000),
            st.none() | st.just(0.0) | st.floats(0, 86_400),
        ),
        max_size=12,
    ),
    "arrival_per_s": st.none() | st.floats(0, 1e6),
    "batch_events_per_s": st.sampled_from([0.0, 1.0, 1e6]),
    "core_s_per_event": st.sampled_from([0.0, 0.0001, 1.0]),
    "busy_cores": st.floats(0, 40),
    "is_draining": st.booleans(),
    "rested_s": st.floats(-100, 10_000),
}


@st.composite
def loads(draw):
    """A topic whose partitions are full, and up to three things that are otherwise."""
    there = draw(st.integers(1, 30))
    behind = replace(
        BEHIND,
        backlogs=dict.fromkeys(range(there), FULL),
        cores=draw(st.integers(1, 40)),
        arrival_per_s=1e6,
        batch_events_per_s=there * 900.0,
        busy_cores=float(there),
    )
    changed = draw(st.sets(st.sampled_from(sorted(OTHERWISE)), max_size=3))
    return replace(behind, **{name: draw(OTHERWISE[name]) for name in sorted(changed)})


@given(loads(), st.integers(0, 40))
def test_whatever_is_measured_it_never_shrinks_nor_passes_the_limit_nor_grows_while_it_drains(
    load, limit
):
    policy = GrowthPolicy(limit=limit)
    found = decide_growth(load, policy)
    if not isinstance(found, TopicGrowth):
        return
    there = len(load.backlogs)
    assert found.before == there < found.partitions <= min(limit, 2 * there)
    assert not load.is_draining
    assert load.rested_s >= policy.rest_s
    assert load.core_s_per_event > 0
    assert load.arrival_per_s is not None
    assert 0 < load.batch_events_per_s < load.arrival_per_s
    assert there < load.cores
    late = [one for one in load.backlogs.values() if one.lag_s and one.lag_s > policy.late_s]
    assert 2 * len(late) > there


# Minute by minute

COST_S = 0.001
TASK_PER_S = 0.9 / COST_S
"""Events that a task gets through in a second of a batch; the rest is reading and writing."""
TICK_S = 5


@dataclass
class Partition:
    came: deque[tuple[float, int]] = field(default_factory=deque)
    """(When events came in, how many), the oldest first."""
    waiting: int = 0

    def put(self, at: float, events: int) -> None:
        self.waiting += events
        self.came.append((at, events))

    def take(self, events: int) -> None:
        self.waiting -= events
        while events:
            at, number = self.came.popleft()
            if number > events:
                self.came.appendleft((at, number - events))
            events -= min(events, number)


@dataclass
class Generation:
    partitions: list[Partition]
    ended_s: float = -inf

    @classmethod
    def of(cls, partitions: int) -> Generation:
        return cls([Partition() for _ in range(partitions)])

    @property
    def waiting(self) -> int:
        return sum(own.waiting for own in self.partitions)


@dataclass
class Batch:
    """Events of each partition, and from when to when tasks work on them."""

    events: list[int]
    began_s: float
    ends_s: float


@dataclass
class World:
    """One topic alone in its cluster, with a round of the coordinator each minute.

    What comes in goes to the newest generation, and the oldest that is not empty is read, by one
    task a partition, while there are cores. A batch counts once it is committed.
    """

    cores: int = 8
    policy: GrowthPolicy = POLICY
    hot: float = 0.0
    """Of what comes in, to one key; the rest to all others."""
    batch_s: tuple[float, ...] = (20.0,)
    """How long batches are that have enough to do, in turns."""
    growths: list[tuple[int, int]] = field(default_factory=list)
    """(minute, partitions)."""
    said: set[str] = field(default_factory=set)
    lags: list[float] = field(default_factory=list)
    generations: list[Generation] = field(default_factory=lambda: [Generation.of(2)])
    committed: list[Batch] = field(default_factory=list)
    running: Batch | None = None

    def run(
        self, minutes: int, cores_in: Callable[[int], float], paused: range = range(0)
    ) -> World:
        """Let so much come in, said as the cores that it takes."""
        for minute in range(minutes):
            came = 0
            for at in range(minute * 60, (minute + 1) * 60, TICK_S):
                came += self.arrive(at, round(cores_in(minute) / COST_S * TICK_S))
                if minute not in paused:
                    self.process(at + TICK_S)
            self.look(minute, came)
        return self

    def arrive(self, at: float, events: int) -> int:
        own = self.generations[-1].partitions
        for number, partition in enumerate(own):
            came = events * (1 - self.hot) / len(own) + events * self.hot * (number == 0)
            if came >= 1:
                partition.put(at, round(came))
        return events

    def process(self, now: float) -> None:
        """Commit the batch that has ended, and begin the next one."""
        read = self.generations[0]
        if (batch := self.running) is not None and batch.ends_s <= now:
            for partition, events in zip(read.partitions, batch.events, strict=True):
                partition.take(events)
            self.committed.append(batch)
            self.running = None
            if len(self.generations) > 1 and not read.waiting:
                self.generations.pop(0)
                self.generations[0].ended_s = now
        if self.running is None and (read := self.generations[0]).waiting:
            per_s = TASK_PER_S * min(1.0, self.cores / len(read.partitions))
            most = per_s * self.batch_s[len(self.committed) % len(self.batch_s)]
            events = [min(round(most), own.waiting) for own in read.partitions]
            self.running = Batch(events, now, now + max(events) / per_s)

    def look(self, minute: int, came: int) -> None:
        read, now = self.generations[0], (minute + 1) * 60.0
        lately = [one for one in self.committed if one.ends_s > now - 600]
        events = sum(sum(one.events) for one in lately)
        took_s, busy = sum(one.ends_s - one.began_s for one in lately), events * COST_S / 600
        load = replace(
            BEHIND,
            cores=self.cores,
            free_cores=self.cores - busy,
            backlogs={
                n: PartitionBacklog(own.waiting, now - own.came[0][0] if own.came else None)
                for n, own in enumerate(read.partitions)
            },
            arrival_per_s=came / 60 if len(self.generations) == 1 else 0.0,
            batch_events_per_s=events / took_s if took_s else 0.0,
            core_s_per_event=COST_S if events else 0.0,
            busy_cores=busy,
            is_draining=len(self.generations) > 1,
            rested_s=now - read.ended_s,
        )
        self.lags.append(load.lag_s)
        found = decide_growth(load, self.policy)
        if isinstance(found, TopicGrowth):
            self.growths.append((minute, found.partitions))
            self.generations.append(Generation.of(found.partitions))
        elif found:
            self.said.add(found)


def test_a_topic_that_gets_more_than_its_tasks_can_do_grows_once_and_keeps_up():
    found = World().run(300, lambda minute: 0.5 if minute < 30 else 2.5)
    assert [partitions for _, partitions in found.growths] == [4]
    [(minute, _)] = found.growths
    assert 30 + 5 < minute < 30 + 30
    assert found.lags[-1] <= 60
    assert not found.said


def test_it_doubles_until_it_keeps_up_resting_after_each_and_no_further():
    found = World(cores=16).run(600, lambda minute: 5.5)
    assert [partitions for _, partitions in found.growths] == [4, 8]
    [first, second] = [minute for minute, _ in found.growths]
    assert second - first > 30
    assert found.lags[-1] <= 60


def test_the_limit_and_the_cores_end_it():
    limited = World(cores=64, policy=GrowthPolicy(limit=6)).run(400, lambda minute: 8.0)
    assert [partitions for _, partitions in limited.growths] == [4, 6]
    assert any("allows 6" in words for words in limited.said)
    small = World(cores=4).run(200, lambda minute: 8.0)
    assert [partitions for _, partitions in small.growths] == [4]


def test_a_pause_an_hour_long_and_bursts_grow_nothing():
    paused = World().run(400, lambda minute: 1.2, paused=range(60, 120))
    assert max(paused.lags) > 3_000
    assert (paused.growths, paused.lags[-1] <= 60) == ([], True)
    bursts = World().run(400, lambda minute: 4.0 if minute % 120 < 6 else 0.8)
    assert max(bursts.lags) > 360
    assert bursts.growths == []


@pytest.mark.parametrize("batch_s", [(20.0,), (75.0,), (20.0, 75.0, 33.0), (60.0,)], ids=str)
@pytest.mark.parametrize("cores_in", [1.5, 1.6, 1.7])
def test_what_a_pause_left_grows_nothing_however_slowly_it_gets_less_and_wherever_batches_end(
    cores_in, batch_s
):
    """Its tasks are busy for hours, of 1.8 cores that they can use, and each look meets a batch."""
    found = World(batch_s=batch_s).run(400, lambda minute: cores_in, paused=range(30, 60))
    assert found.lags[60] > 1_700
    assert (found.growths, found.lags[-1] < 400) == ([], cores_in < 1.7)


@pytest.mark.parametrize("batch_s", [(75.0,), (20.0, 75.0, 33.0)], ids=str)
def test_a_topic_that_gets_a_little_too_much_grows_wherever_batches_end(batch_s):
    found = World(batch_s=batch_s).run(300, lambda minute: 1.9)
    assert [partitions for _, partitions in found.growths] == [4]


def test_a_hot_key_grows_nothing_however_long_it_lasts():
    found = World(hot=0.8).run(600, lambda minute: 1.6)
    assert found.growths == []
    assert found.lags[-1] > 3_600
    assert any("is hot in 1 of 2 partitions (0)" in words for words in found.said)
