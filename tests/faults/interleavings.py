"""Random interleavings of live updates, deletes, parking, replays, discards and loads.

One play is one parked partition and a few keys. Its events come in source order; some are bad and
park; replays with random conditions send them back, are killed and resumed, or cancelled; some park
again; people discard and undo; loads take what was staged, when they like. At the end all that is
not discarded has been loaded, and the warehouse must be that of a run in which nothing ever failed:
for each key the row of its newest event that was not discarded, or its tombstone.

The tracker and the warehouse are real; objects and the producer's log are in memory, so that a
thousand plays take minutes.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from tests.support.memory_objects import MemoryObjects
from tests.support.mortal_producer import Death, Fate, Log, MortalProducer, mortal
from tests.unit.destinations.orders import Order, commit_of

from waybill.access import Decision
from waybill.destinations import Destination
from waybill.errors import InputError, RetryError
from waybill.events import Event, decode, encode
from waybill.parking import (
    Packer,
    ParkedEvent,
    ParkedGroupFilter,
    Parking,
    ReplayConditions,
    new_key,
)
from waybill.parking import fingerprint as fingerprint_of
from waybill.pipelines import Pipeline
from waybill.replay.marking import MarkingLimits
from waybill.replay.run import ReplayParts, ReplayRun, replay
from waybill.storage import TrackerStore

KEYS, EVENTS, STEPS = 3, 14, 22
_CAUSES = ("no amount", "no such shop", "no price")


@dataclass
class World:
    """What all plays share."""

    tracker: TrackerStore
    destination: Destination
    pipeline: Pipeline
    objects: MemoryObjects = field(default_factory=MemoryObjects)
    commits: int = 0
    loads: int = 0
    numbers: Counter[str] = field(default_factory=Counter)

    @property
    def parking(self) -> Parking:
        return Parking(self.tracker, self.objects)  # type: ignore[arg-type]


class Play:
    """One interleaving; the seed decides all of it."""

    def __init__(self, world: World, number: int, seed: int) -> None:
        self.world, self.number = world, number
        self.draw = random.Random(seed)
        self.name = f"order-{number}"
        self.orders = {order.event_id: order for order in _orders(self.draw, number)}
        self.coming = list(self.orders.values())
        self.bad = {name: self.draw.choice((0, 0, 0, 1, 1, 2)) for name in self.orders}
        """How often each parks."""
        self.log = Log()
        self.read = 0
        self.staged: list[list[Order]] = []
        self.runs = 0
        self.run: ReplayRun | None = None
        self.cancelled = False

    def go(self) -> list[Order]:
        """Play to the end; returns the events that are not discarded."""
        steps = (
            [self.live] * 4
            + [self.process] * 4
            + [self.replay] * 5
            + [self.load] * 3
            + [self.discard, self.discard, self.undo, self.cancel, self.cancel]
        )
        for _ in range(STEPS):
            step = self.draw.choice(steps)
            try:
                step()
            except (RetryError, InputError):
                self.world.numbers["refused"] += 1
        self.settle()
        gone = self._gone()
        self.check(gone)
        return [order for name, order in self.orders.items() if name not in gone]

    # What may happen

    def live(self) -> None:
        for _ in range(self.draw.randrange(1, 4)):
            if self.coming:
                self.log.topic.append(encode(_event(self.coming.pop(0), self.name)))

    def process(self, most: int | None = None) -> None:
        end = len(self.log.topic) if most is None else self.read + most
        values = self.log.topic[self.read : end]
        packer, passed = Packer(), []
        for offset, value in enumerate(values, self.read):
            event = decode(value)
            if event.attempt < self.bad[event.id]:
                packer.add(_parked(event, offset, self.draw.choice(_CAUSES)))
            else:
                passed.append(replace(self.orders[event.id], replayed=event.attempt > 0))
        self.read += len(values)
        self.world.numbers["parked"] += packer.count
        if packer.count:
            self._record(packer)
        if passed:
            self.staged.append(passed)

    def _record(self, packer: Packer) -> None:
        world, packed, key = self.world, packer.finish(), new_key()
        world.objects.put(key, packed.body)
        world.commits += 1
        with world.tracker.transaction() as connection:
            world.parking.record(
                connection,
                key=key,
                size=len(packed.body),
                segments=packed.segments,
                scope="warehouse",
                commit_number=world.commits,
            )

    def load(self) -> None:
        most = self.draw.randrange(1, 4)
        taken, self.staged = self.staged[:most], self.staged[most:]
        if taken:
            first = self.world.loads + 1
            self.world.loads += len(taken)
            commits = [commit_of(first + index, orders) for index, orders in enumerate(taken)]
            self.world.destination.load(commits, _never_park)

    def replay(self, *, last: int | None = 12) -> None:
        partition = self._partition()
        if partition is None:
            return
        if self.run is None:
            self.runs += 1
            chosen = ReplayConditions() if last is None else self._conditions()
            self.run = ReplayRun(partition.id, "ann", f"r{self.runs}", chosen)
        fate = Fate(self.draw, last=None if self.draw.random() < 0.4 else last)
        try:
            producer: Any = MortalProducer(self.log, fate, self.draw)
            parts = ReplayParts(mortal(self.world.parking, fate), producer, self.world.pipeline)
            parts.limits = MarkingLimits(events=self.draw.choice((1, 3, 100)))
            replay(parts, self.run)
            self.run = None
            self.world.numbers["replays"] += 1
        except Death:
            self.world.numbers["deaths"] += 1
        except InputError:  # it was cancelled
            self.run = None
            raise

    def _conditions(self) -> ReplayConditions:
        hours = sorted(self.draw.sample(range(EVENTS + 1), 2))
        window = {"since": _time(hours[0]), "until": _time(hours[1])}
        cause = fingerprint_of(self.draw.choice(_CAUSES), "line 3")
        return ReplayConditions(
            **(window if self.draw.random() < 0.3 else {}),
            fingerprint=cause if self.draw.random() < 0.3 else None,
            max_events=self.draw.randrange(1, 6) if self.draw.random() < 0.4 else None,
        )

    def cancel(self) -> None:
        with self.world.tracker.transaction() as connection:
            from waybill.parking.selection import read_replay
            from waybill.storage.tracker.tables import replays

            partition = self._partition()
            found = partition and read_replay(
                connection, replays.c.partition_id == partition.id, replays.c.state == "running"
            )
        if found:
            self.world.parking.cancel_replay(found.id, who="bob")
            self.cancelled = True
            self.world.numbers["cancelled"] += 1

    def discard(self) -> None:
        window = {"until": _time(self.draw.randrange(EVENTS))} if self.draw.random() < 0.7 else {}
        wanted = ParkedGroupFilter(event_name=self.name, **window)
        report = self.world.parking.discard(wanted, Decision("eve", "play"))
        self.world.numbers["discarded"] += report.events

    def undo(self) -> None:
        wanted = ParkedGroupFilter(event_name=self.name)
        report = self.world.parking.undo_discard(wanted, Decision("eve", "play"))
        self.world.numbers["undone"] += report.events

    # The end

    def settle(self) -> None:
        """Let all come to rest: nothing waits but what is discarded."""
        while self.coming:
            self.live()
        for _ in range(100):
            self.process()
            partition = self._partition()
            if self.run is None and (partition is None or not partition.held):
                break
            try:
                self.replay(last=None)
            except (RetryError, InputError):
                self.world.numbers["refused"] += 1
        else:
            raise AssertionError(f"play {self.number} does not come to an end")
        while self.staged:
            self.load()

    def _gone(self) -> set[str]:
        """Return the events that were discarded, and that no cancelled replay had sent before."""
        last: dict[str, int] = {}
        for event in map(decode, self.log.topic):
            last[event.id] = max(event.attempt, last.get(event.id, 0))
        discarded = [decode(event.value) for event in self.events("discarded")]
        return {event.id for event in discarded if event.attempt == last[event.id]}

    def check(self, gone: set[str]) -> None:
        """Each event was sent once an attempt, unless somebody cancelled half-way."""
        sent = Counter((event.id, event.attempt) for event in map(decode, self.log.topic))
        if not self.cancelled:
            twice = [key for key, number in sent.items() if number > 1]
            assert not twice, f"play {self.number} sent twice: {twice}"
        kept = {name for name, _ in sent}
        assert kept == set(self.orders), f"play {self.number} lost events"
        assert gone <= kept

    def events(self, *states: str) -> list[ParkedEvent]:
        partition = self._partition()
        if partition is None:
            return []
        return list(self.world.parking.events(partition.id, states=states))

    def _partition(self) -> Any:
        found = self.world.parking.partitions(ParkedGroupFilter(event_name=self.name))
        return found[0] if found else None


def _orders(draw: random.Random, number: int) -> list[Order]:
    """Return a few keys' events in source order: updates, deletes, keys that come back."""
    versions: Counter[int] = Counter()
    found = []
    for index in range(EVENTS):
        key = number * KEYS + draw.randrange(KEYS)
        versions[key] += draw.choice((0, 1, 1))
        op = "delete" if draw.random() < 0.2 else "upsert"
        price = Decimal(draw.randrange(100)) / 10
        found.append(Order(key, versions[key], index, f"thing {index}", price, op))
    return found


def _event(order: Order, name: str) -> Event:
    return Event(
        id=order.event_id,
        pipeline_id="test-orders",
        team="shop",
        name=name,
        key=f"[{order.id}]",
        source_version=order.source,
        intake_version=order.intake,
        intake_minute=order.minute,
        time=_time(order.intake),
        data={"id": order.id},
        op=order.op,
    )


def _parked(event: Event, offset: int, cause: str) -> ParkedEvent:
    return ParkedEvent(
        pipeline_id=event.pipeline_id,
        event_name=event.name,
        stage="transformation",
        error_type="null_value",
        message=cause,
        where="line 3",
        stack_hash="",
        pipeline_version="1",
        event_at=event.time,
        parked_at="2026-11-21T00:00:01Z",
        topic="t",
        kafka_partition=0,
        kafka_offset=offset,
        attempt=event.attempt,
        value=encode(event),
    )


def _time(hour: int) -> str:
    return f"2013-01-01T{hour:02}:00:00Z"


def _never_park(refused: Any) -> None:
    raise AssertionError(f"refused: {refused}")
