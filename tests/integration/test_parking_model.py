"""What is done to parked events in any order leaves what a plain table of states says.

Twice: with each discard of whole partitions written row by row, and with each one a mark.
"""

import random
from datetime import timedelta

import pytest
from tests.integration import parking_lot
from tests.integration.parking_lot import START, make_event

from waybill.access import Decision
from waybill.parking import ParkedGroupFilter, ReplayConditions

pytestmark = pytest.mark.serves
lot, opened_lots = parking_lot.lot, parking_lot.opened_lots
BY = Decision("ann", "a test")
STATES = ("parked", "replaying", "replayed", "discarded")
KINDS = ("a", "b", "c")
STEPS = 30


class Model:
    """The same work on parked events and on a table {number of the event: (kind, state)}."""

    def __init__(self, lot, draw):
        self.lot, self.draw = lot, draw
        self.events = {}
        self.running = {}
        self.steps = 0

    def step(self):
        names = ["park", "discard", "undo", "window", "undo_window", "replay", "end", "tidy"]
        weights = [5, 4, 3, 2, 2, 3, 3, 2]
        [name] = self.draw.choices(names, weights)
        self.steps += 1
        getattr(self, name)()
        return name

    def park(self):
        first, numbers = len(self.events), range(self.draw.randrange(1, 7))
        new = {first + number: self.draw.choice(KINDS) for number in numbers}
        self.lot.park([make_event(n, name=kind) for n, kind in new.items()], self.steps)
        self.events |= {n: (kind, "parked") for n, kind in new.items()}

    def discard(self, since=None, until=None):
        self._decide(self.lot.parking.discard, "parked", "discarded", since, until)

    def undo(self, since=None, until=None):
        self._decide(self.lot.parking.undo_discard, "discarded", "parked", since, until)

    def window(self):
        self.discard(*self._some_window())

    def undo_window(self):
        self.undo(*self._some_window())

    def replay(self):
        kind = self.draw.choice(KINDS)
        place = self._partition(kind)
        if place is None or kind in self.running:
            return
        since, until = self.draw.choice([(None, None), self._some_window()])
        replay = self.lot.parking.begin_replay(
            place.id,
            who="ann",
            run_id=f"run {self.steps}",
            conditions=ReplayConditions(since=self._at(since), until=self._at(until)),
        )
        assert replay.events == self._move(kind, "parked", "replaying", since, until)
        self.running[kind] = replay

    def end(self):
        if not self.running:
            return
        kind = self.draw.choice(sorted(self.running))
        replay, parking = self.running.pop(kind), self.lot.parking
        if self.draw.random() < 0.5:
            parking.cancel_replay(replay.id, who="ann")
            self._move(kind, "replaying", "parked")
        else:
            parking.mark_replayed(replay.id, [s.id for s in parking.replay_segments(replay.id)])
            assert parking.finish_replay(replay.id).sent == replay.events
            self._move(kind, "replaying", "replayed")

    def tidy(self):
        """Which objects are worth it is no matter of this test: only decided events may go."""
        graces = [0, 0, 1e6]
        below = self.draw.choice([0.0, 1.0])
        self.lot.parking.clean_up(grace_s=self.draw.choice(graces), rewrite_below=below)
        assert self.lot.parking.refresh(grace_s=1e6).aggregates_corrected == 0
        left = set().union(*self._read().values())
        for number in self.events.keys() - left:
            kind, state = self.events[number]
            assert state in ("replayed", "discarded", "gone")
            self.events[number] = (kind, "gone")

    def check(self):
        self.lot.check()
        wanted = {state: set() for state in STATES}
        for number, (_, state) in self.events.items():
            if state != "gone":
                wanted[state].add(number)
        assert self._read() == wanted
        for kind in KINDS:
            place = self._partition(kind)
            mine = [state for name, state in self.events.values() if name == kind]
            held = mine.count("parked") + mine.count("replaying")
            if place is not None:
                assert place.parked == mine.count("parked")
                assert sum(one.events for one in self.lot.parking.causes(place.id)) == held
                assert self.lot.parking.count_parked(place.id, ReplayConditions()) == place.parked

    def _decide(self, work, source, target, since, until):
        kind = self.draw.choice([None, *KINDS])
        given = {"pipeline_id": "pl-1", "event_name": kind}
        window = {"since": self._at(since), "until": self._at(until)}
        report = work(ParkedGroupFilter(**given, **window), BY)
        assert (report.events, report.left_events) == (
            self._move(kind, source, target, since, until),
            0,
        )

    def _move(self, kind, source, target, since=None, until=None):
        low, high = 0 if since is None else since, len(self.events) if until is None else until
        moved = [
            number
            for number, (name, state) in self.events.items()
            if state == source and kind in (None, name) and low <= number < high
        ]
        for number in moved:
            self.events[number] = (self.events[number][0], target)
        return len(moved)

    def _some_window(self):
        edges = sorted(self.draw.randrange(len(self.events) + 1) for _ in range(2))
        return self.draw.choice([(edges[0], edges[1] + 1), (edges[0], None), (None, edges[1] + 1)])

    def _at(self, number):
        return None if number is None else START + timedelta(hours=number)

    def _partition(self, kind):
        found = self.lot.parking.partitions(ParkedGroupFilter(event_name=kind))
        return found[0] if found else None

    def _read(self):
        found = {state: [] for state in STATES}
        for place in self.lot.parking.partitions():
            for state, numbers in found.items():
                some = self.lot.parking.events(place.id, states=(state,))
                numbers.extend(event.kafka_offset for event in some)
        assert all(len(numbers) == len(set(numbers)) for numbers in found.values())
        return {state: set(numbers) for state, numbers in found.items()}


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.campaign)])
@pytest.mark.parametrize("many", [0, 10_000], ids=["marks", "rows"])
def test_random_work_leaves_what_a_table_of_states_says(lot, monkeypatch, many, seed):
    monkeypatch.setattr("waybill.parking.discards.MANY", many)
    model = Model(lot, random.Random(seed))
    done = []
    for _ in range(STEPS):
        done.append(model.step())
        try:
            model.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, after {done}") from error
    assert len(set(done)) > 5
