"""G4 over generations: whatever is interleaved, processing meets each key's events in order.

A model of sources, write-ahead logs, Kafka and processing around the real decisions
(``waybill.ledger.generations``): runs begin, append, send, commit, die, freeze, wake up and go on;
other nodes take sources over; topics grow; processing reads, and generations end, at any moment.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.ledger import (
    LogBefore,
    TopicGeneration,
    generation_of_log,
    is_drained,
    reading_generation,
    writing_generation,
)

TOPIC = "events.team.warehouse"
KEYS = 3
STEPS = 250


@dataclass(slots=True)
class Message:
    """One event: the nth of a source; its key says which partition of a generation it is in."""

    source: int
    number: int

    @property
    def key(self) -> tuple[int, int]:
        return self.source, self.number % KEYS


@dataclass(slots=True)
class Log:
    """A write-ahead log: its row in the tracker, and what it holds."""

    name: str
    source: int
    node: int
    state: str = "open"
    committed: int = 0
    """Records of it up to here are committed."""
    records: list[tuple[str, Message]] = field(default_factory=list)
    sent: int = 0
    """Records of it up to here are in Kafka."""


@dataclass(slots=True)
class Run:
    """A process that reads a source into a log."""

    log: Log
    position: int
    """Of the next event to read from the source."""
    elsewhere: set[tuple[int, int]]
    """What logs that were taken over have in Kafka: it is not sent again."""
    again: set[tuple[int, int]] = field(default_factory=set)
    """Keys of which something was sent again."""
    frozen: bool = False


class Model:
    """Everything; ``broken``: a rule that is left out, to see that it is needed."""

    def __init__(self, random: Random, broken: str = "") -> None:
        self.random: Any = random
        self.broken = broken
        self.generations = [TopicGeneration(TOPIC, 1, 2)]
        self.kafka: dict[str, list[list[Message]]] = {TOPIC: [[], []]}
        self.positions: dict[str, dict[int, int]] = {TOPIC: {0: 0, 1: 0}}
        self.logs: list[Log] = []
        self.runs: dict[int, Run] = {}
        self.zombies: list[Run] = []
        self.cursors = [0, 0]
        self.read: list[Message] = []
        self.took_over = False
        self.look()

    def look(self) -> None:
        """Read what a transaction that holds no row would decide by, some time later."""
        self.seen = list(self.generations)
        self.seen_ends = {
            name: {n: len(log) for n, log in enumerate(partitions)}
            for name, partitions in self.kafka.items()
        }

    # Ingestion

    def begin(self) -> None:
        source, node = self.random.randrange(2), self.random.randrange(2)
        if source in self.runs and not self.runs[source].frozen:
            return
        own = next((one for one in self.logs if (one.source, one.node) == (source, node)), None)
        if own is not None and any(run.log is own for run in self.all_runs()):
            return  # a process has it open, frozen or not
        others = [one for one in self.logs if one.source == source and one is not own]
        known = self.seen if self.broken == "claims without holding" else self.generations
        if own is not None:
            generation = generation_of_log(
                known, LogBefore(own.name, own.state), empty=not own.records
            )
            if generation is None:  # set aside: it was fenced
                own.node = -1
                others.append(own)
                own = None
            else:
                own.name, own.state = generation.name, "open"
        if own is None:
            generation = generation_of_log(known, None, empty=True)
            assert generation is not None
            own = Log(generation.name, source, node)
            self.logs.append(own)
        for other in others:
            if other.state == "open":
                other.state, self.took_over = "taken_over", True
        if (frozen := self.runs.pop(source, None)) is not None:
            self.zombies.append(frozen)
        while own.sent < len(own.records):  # recovery ends before anything new is sent
            self.send_one(own)
        position = max([self.cursors[source], *(m.number + 1 for _, m in own.records)])
        self.commit(own)
        elsewhere = set().union(*(self.in_kafka(one) for one in others))
        self.runs[source] = Run(own, position, elsewhere)

    def in_kafka(self, log: Log) -> set[tuple[int, int]]:
        """Return what a fenced log has in Kafka and did not commit, up to each generation's end."""
        if log.state == "closed":
            return set()
        found = set()
        for name, message in log.records[log.committed : log.sent]:
            if not name:
                continue
            if self.broken == "counts behind the end" or self.is_within(name, message):
                found.add((message.source, message.number))
        return found

    def is_within(self, name: str, message: Message) -> bool:
        ends = next(one for one in self.generations if one.name == name)
        if ends.state != "ended":
            return True
        return any(
            any(one is message for one in partition[: ends.ends[number]])
            for number, partition in enumerate(self.kafka[name])
        )

    def append(self) -> None:
        if (run := self.some_run()) is None:
            return
        if self.random.randrange(2):  # once a second, between two pages
            self.follow(run)
        for _ in range(self.random.randrange(1, 4)):  # a page
            message = Message(run.log.source, run.position)
            run.position += 1
            if (message.source, message.number) in run.elsewhere and message.key not in run.again:
                run.log.records.append(("", message))
            else:
                run.again.add(message.key)
                run.log.records.append((run.log.name, message))

    def follow(self, run: Run) -> None:
        """Go on with the newest generation, between two pages."""
        own = next(one for one in self.generations if one.name == run.log.name)
        if own.state == "writing":
            return
        if self.broken != "moves on with messages left":
            while run.log.sent < len(run.log.records):
                self.send_one(run.log)
            self.commit(run.log)
        if run.log.state == "open":
            run.log.name = writing_generation(self.generations).name

    def send(self) -> None:
        logs = [run.log for run in self.all_runs() if not run.frozen]
        logs = [one for one in logs if one.sent < len(one.records)]
        if logs:
            self.send_one(self.random.choice(logs))

    def send_one(self, log: Log) -> None:
        name, message = log.records[log.sent]
        log.sent += 1
        if name:
            partitions = self.kafka[name]
            partitions[hash(message.key) % len(partitions)].append(message)

    def commit(self, log: Log) -> None:
        if log.state != "open":
            return
        log.committed = log.sent
        numbers = [m.number + 1 for _, m in log.records[: log.sent]]
        self.cursors[log.source] = max([self.cursors[log.source], *numbers])

    def commit_some(self) -> None:
        if (run := self.some_run()) is not None:
            self.commit(run.log)

    def close(self) -> None:
        if (run := self.some_run()) is None or run.log.sent < len(run.log.records):
            return
        self.commit(run.log)
        if run.log.state == "open":
            run.log.state = "closed"
        self.end(run)

    def die(self) -> None:
        if runs := self.all_runs():
            self.end(self.random.choice(runs))

    def end(self, run: Run) -> None:
        self.runs = {source: one for source, one in self.runs.items() if one is not run}
        self.zombies = [one for one in self.zombies if one is not run]

    def freeze(self) -> None:
        if runs := self.all_runs():
            run = self.random.choice(runs)
            run.frozen = not run.frozen

    def all_runs(self) -> list[Run]:
        return [*self.runs.values(), *self.zombies]

    def some_run(self) -> Run | None:
        awake = [one for one in self.runs.values() if not one.frozen]
        return self.random.choice(awake) if awake else None

    # Generations and processing

    def grow(self) -> None:
        if any(one.state == "draining" for one in self.generations):
            return
        writing = writing_generation(self.generations)
        made = TopicGeneration(TOPIC, writing.number + 1, writing.partitions + 1)
        self.generations[-1] = replace(writing, state="draining")
        self.generations.append(made)
        self.kafka[made.name] = [[] for _ in range(made.partitions)]
        self.positions[made.name] = dict.fromkeys(range(made.partitions), 0)

    def process(self) -> None:
        reading = reading_generation(self.generations)
        if self.broken == "reads all generations":
            reading = self.random.choice([o for o in self.generations if o.state != "ended"])
        at = self.positions[reading.name]
        left = [n for n, log in enumerate(self.kafka[reading.name]) if at[n] < len(log)]
        if left:
            number = self.random.choice(left)
            self.read.append(self.kafka[reading.name][number][at[number]])
            at[number] += 1

    def end_drained(self) -> None:
        for place, one in enumerate(self.generations):
            ends = {n: len(log) for n, log in enumerate(self.kafka[one.name])}
            if self.broken == "asks for ends before it holds":
                ends = self.seen_ends.get(one.name, ends)
            logs = sum(log.name == one.name and log.state == "open" for log in self.logs)
            open_logs = 0 if self.broken == "does not wait for logs" else logs
            at = self.positions[one.name]
            if is_drained(one, open_logs=open_logs, positions=at, ends=ends):
                self.generations[place] = replace(one, state="ended", ends=ends)

    # All

    def play(self) -> None:
        actions = [
            *[self.append, self.send, self.process] * 4,
            *[self.begin, self.commit_some, self.end_drained] * 2,
            *[self.grow, self.close, self.die, self.freeze, self.look],
        ]
        for _ in range(STEPS):
            self.random.choice(actions)()
        self.finish()

    def finish(self) -> None:
        """Run each source once more to its end, and read all."""
        self.zombies = []
        for source in range(2):
            self.runs.pop(source, None)
        for _ in range(500):
            if len(self.runs) == 2:
                break
            self.begin()
        for run in self.runs.values():
            self.follow(run)
            target = max(
                [
                    m.number + 1
                    for log in self.logs
                    for _, m in log.records
                    if m.source == run.log.source
                ],
                default=0,
            )
            while run.position < target:
                self.random, kept = _One(run, self.random), self.random
                self.append()
                self.random = kept
            while run.log.sent < len(run.log.records):
                self.send_one(run.log)
            self.commit(run.log)
            run.log.state = "closed" if run.log.state == "open" else run.log.state
        for _ in range(20):
            while True:
                before = len(self.read)
                self.process()
                if len(self.read) == before:
                    break
            self.end_drained()

    def faults(self) -> list[str]:
        """Return what is wrong with what processing met."""
        found = []
        seen: dict[tuple[int, int], list[int]] = {}
        for message in self.read:
            own = seen.setdefault(message.key, [])
            if message.number in own:
                if not self.took_over:
                    found.append(f"{message} came twice, though no log was taken over")
            else:
                if own and message.number < max(own):
                    found.append(f"{message} came after {max(own)}")
                own.append(message.number)
        for source, cursor in enumerate(self.cursors):
            for number in range(cursor):
                message = Message(source, number)
                if number not in seen.get(message.key, []):
                    found.append(f"{message} is lost: the cursor stands at {cursor}")
        return found


class _One:
    """Has ``append`` take one run, and otherwise decides as before."""

    def __init__(self, run: Run, random: Any) -> None:
        self.run, self.own = run, random

    def choice(self, runs: Any) -> Any:
        return self.run if self.run in list(runs) else self.own.choice(runs)

    def randrange(self, *given: int) -> int:
        return int(self.own.randrange(*given))


@given(seed=st.integers(0, 2**32))
def test_each_key_is_met_in_order_whatever_is_interleaved_with_growth(seed: int) -> None:
    model = Model(Random(seed))
    model.play()
    assert not model.faults()


@pytest.mark.parametrize(
    "rule",
    [
        "reads all generations",
        "does not wait for logs",
        "moves on with messages left",
        "counts behind the end",
        "claims without holding",
        "asks for ends before it holds",
    ],
)
def test_without_any_of_its_rules_the_model_breaks_its_promise(rule: str) -> None:
    seeds = itertools.count()
    for seed in itertools.islice(seeds, 3_000):
        model = Model(Random(seed), broken=rule)
        model.play()
        if model.faults():
            return
    pytest.fail(f"nothing went wrong in 3,000 plays without the rule: {rule}")


def test_a_log_with_records_is_not_opened_where_nobody_knows_for_which_generation_they_are() -> (
    None
):
    known = [TopicGeneration(TOPIC, 1, state="draining"), TopicGeneration(TOPIC, 2)]
    before = LogBefore("events-g3.team.warehouse", "open")  # the tracker is older than the log
    assert generation_of_log(known, before, empty=False) is None
    assert generation_of_log(known, before, empty=True) == known[1]
    assert generation_of_log(known, LogBefore(TOPIC, "open"), empty=False) == known[0]
