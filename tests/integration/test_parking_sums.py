"""I4: after any sequence of operations, a partition's numbers are the sums of its segments."""

import random
import threading

import pytest
from tests.integration import parking_lot
from tests.integration.parking_lot import make_event

from waybill.access import Decision
from waybill.errors import InputError, RetryError
from waybill.parking import ParkedGroupFilter, ReplayConditions

pytestmark = pytest.mark.serves
lot, opened_lots = parking_lot.lot, parking_lot.opened_lots
NAMES = ("a", "b", "c")
STEPS = 60


class Walk:
    """Random operations of several users on a few partitions."""

    def __init__(self, lot, seed):
        self.lot, self.random = lot, random.Random(seed)
        self.number = 0
        self.ever = dict.fromkeys(NAMES, 0)
        self.replays = []

    def step(self):
        """Do one operation that a user or a job may do now; refused ones change nothing."""
        operation = self.random.choice(
            [self.park, self.begin, self.mark] * 2
            + [self.finish, self.cancel, self.discard, self.undo, self.clean_up, self.refresh]
        )
        try:
            operation()
        except (InputError, RetryError) as refused:
            assert "tracker" not in str(refused)  # a deadlock, or the database away
        return operation.__name__

    def park(self):
        self.number += 1
        names = [self.random.choice(NAMES) for _ in range(self.random.randint(1, 6))]
        for name in names:
            self.ever[name] += 1
        hours = [self.random.randint(0, 20) for _ in names]
        events = [make_event(n, name=name) for n, name in zip(hours, names, strict=True)]
        self.lot.park(events, self.number)

    def partition(self):
        found = self.lot.parking.partitions(ParkedGroupFilter(event_name=self.random.choice(NAMES)))
        if not found:
            raise InputError("nothing yet")
        return found[0]

    def begin(self):
        self.number += 1
        since = self.random.choice((None, f"2013-01-01T{self.random.randint(0, 19):02}:00Z"))
        run = self.random.choice(("again", f"run-{self.number}"))
        partition = self.partition()
        replay = self.lot.parking.begin_replay(
            partition.id, who="a", run_id=run, conditions=ReplayConditions(since=since)
        )
        self.replays.append(replay.id)

    def replay(self):
        if not self.replays:
            raise InputError("none yet")
        return self.random.choice(self.replays[-4:])

    def mark(self):
        replay = self.replay()
        segments = self.lot.parking.replay_segments(replay)
        some = self.random.sample(segments, self.random.randint(0, len(segments)))
        self.lot.parking.mark_replayed(replay, [s.id for s in some])

    def finish(self):
        replay = self.replay()
        if self.random.random() < 0.5:
            ids = [s.id for s in self.lot.parking.replay_segments(replay)]
            self.lot.parking.mark_replayed(replay, ids)
        self.lot.parking.finish_replay(replay)

    def cancel(self):
        self.lot.parking.cancel_replay(self.replay(), who="b")

    def filter(self):
        name = self.random.choice((None, *NAMES))
        until = f"2013-01-01T{self.random.randint(1, 20):02}:00Z"
        return ParkedGroupFilter(event_name=name, until=self.random.choice((None, until)))

    def discard(self):
        self.lot.parking.discard(self.filter(), Decision("c", "walk"))

    def undo(self):
        self.lot.parking.undo_discard(self.filter(), Decision("c", "walk"))

    def clean_up(self):
        self.lot.parking.clean_up(grace_s=0)

    def refresh(self):
        report = self.lot.parking.refresh(grace_s=0)
        assert (report.aggregates_corrected, report.missing) == (0, ())

    def check(self):
        self.lot.check()
        for p in self.lot.parking.partitions():
            assert p.parked + p.replaying + p.replayed + p.discarded == self.ever[p.event_name]
            assert min(p.parked, p.replaying, p.replayed, p.discarded, p.bytes) >= 0
            assert len(list(self.lot.parking.events(p.id))) == p.parked


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(n, marks=pytest.mark.campaign) for n in range(2, 8))]
)
def test_numbers_are_sums_after_every_step(lot, seed):
    walk = Walk(lot, seed)
    done = set()
    for _ in range(STEPS):
        done.add(walk.step())
        walk.check()
    assert len(done) >= 9


def test_numbers_are_sums_after_many_users_at_once(lot):
    walks = [Walk(lot, seed) for seed in range(4)]
    errors = []

    def run(walk):
        try:
            for _ in range(40):
                walk.step()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(walk,)) for walk in walks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    ever = {name: sum(walk.ever[name] for walk in walks) for name in NAMES}
    for p in lot.parking.partitions():
        assert p.parked + p.replaying + p.replayed + p.discarded == ever[p.event_name]
    lot.check()
