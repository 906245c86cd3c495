"""A destination that is away is waited for, however long; the tracker says so, the owners know."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest
from tests.support.loads import opened_loads, some
from tests.unit.destinations.orders import clean_database

from waybill.errors import RetryError
from waybill.ledger import FencedError
from waybill.loading.backoff import StoppedError
from waybill.loading.states import all_waiting
from waybill.parking import Parking

pytestmark = pytest.mark.serves


@pytest.fixture
def loads(postgres, s3):
    with opened_loads(postgres, s3, clean_database(postgres)) as opened:
        yield opened


def test_what_waits_is_loaded_once_the_destination_is_back(loads):
    loads.stage(some(1, 5))
    last = loads.stage(some(6, 5))
    loads.gate.shut()
    loads.time.then = [(90, loads.gate.open)]
    loads.deliver(loads.patience(), last)
    assert loads.time.now_s >= 90
    assert loads.ids() == list(range(1, 11))
    assert loads.counts() == {"in_first": 10, "passed": 10}
    assert (loads.position, loads.sql("SELECT * FROM destination_states")) == (last, [])


def test_waits_grow_to_half_a_minute_and_are_never_all_alike(loads):
    last = loads.stage(some(1, 1))
    loads.gate.shut()
    loads.time.then = [(300, loads.gate.open)]
    tries = []
    patience = loads.patience()
    real = patience._not_taken

    def noted(*given):
        tries.append(loads.time.now_s)
        return real(*given)

    patience._not_taken = noted
    loads.deliver(patience, last)
    gaps = [b - a for a, b in pairwise(tries)]
    assert 0.25 <= gaps[0] <= 0.5
    assert 15 <= max(gaps) <= 30
    assert len(set(gaps)) == len(gaps)
    assert len(tries) < 25


def test_the_tracker_knows_since_when_and_why(loads):
    last = loads.stage(some(1, 1))
    loads.gate.shut()
    seen = []
    loads.time.then = [
        (5, lambda: seen.append(all_waiting(loads.tracker)["warehouse"])),
        (60, lambda: seen.append(all_waiting(loads.tracker)["warehouse"])),
        (61, loads.gate.open),
    ]
    loads.deliver(loads.patience(), last)
    early, late = seen
    assert early.since == late.since
    assert late.attempts > early.attempts > 0
    assert late.tried_at > early.tried_at
    assert late.code == "destination_unreachable"
    assert "did not answer" in late.error
    assert late.parked_from is None


def test_the_tracker_is_not_written_at_each_try(loads, monkeypatch):
    from waybill.loading import backoff as room

    written = []
    real = room.note_failure
    monkeypatch.setattr(room, "note_failure", lambda *a, **k: written.append(1) or real(*a, **k))
    last = loads.stage(some(1, 1))
    loads.gate.shut()
    loads.time.then = [(9, loads.gate.open)]
    loads.deliver(loads.patience(), last)
    assert len(written) == 1


def test_owners_are_told_once_after_some_minutes_and_when_it_is_over(loads):
    for name, into in (("orders", "warehouse"), ("others", "elsewhere")):
        values = {"id": f"shop-{name}", "name": name, "into": into}
        loads.sql("INSERT INTO pipelines (id, name, team) VALUES (:id, :name, 'shop')", **values)
        loads.sql(
            "INSERT INTO pipeline_versions (pipeline_id, number, version, declaration, "
            "deployed_by) SELECT :id, n, 'v', jsonb_build_object('destination', "
            "CAST(:into AS text)), 'ann' FROM generate_series(1, 2) n",
            **values,
        )
    last = loads.stage(some(1, 1))
    loads.gate.shut()
    loads.time.then = [
        (30, lambda: (told(loads, 0), loads.age_wait(301))),
        (200, lambda: (told(loads, 1), loads.gate.open())),
    ]
    loads.deliver(loads.patience(), last)
    told(loads, 2)
    first, over = (row[0] for row in loads.sql("SELECT detail FROM notices ORDER BY id"))
    assert "takes no loads" in first["destination"]
    assert "did not answer" in first["message"]
    assert "takes loads again" in over["destination"]


def told(loads, number):
    assert loads.sql("SELECT count(*) FROM notices WHERE kind = 'destination'") == [(number,)]


def test_a_wait_of_seconds_is_told_to_nobody(loads):
    last = loads.stage(some(1, 1))
    loads.gate.shut()
    loads.time.then = [(30, loads.gate.open)]
    loads.deliver(loads.patience(), last)
    told(loads, 0)


def test_a_right_that_is_mended_is_found_without_a_restart(loads):
    """A table that differs: it waits, says what to do, and goes on once the table is mended."""
    loads.ask("CREATE SCHEMA shop")
    loads.ask("CREATE TABLE shop.orders (id int8 PRIMARY KEY, what int4)")
    last = loads.stage(some(1, 3))
    seen = []

    def mend():
        seen.append(all_waiting(loads.tracker)["warehouse"])
        loads.ask("DROP TABLE shop.orders")

    loads.time.then = [(60, mend)]
    loads.deliver(loads.patience(), last)
    assert seen[0].code == "destination_schema_conflict"
    assert "what" in seen[0].error
    assert loads.ids() == [1, 2, 3]


def test_the_destination_is_opened_anew_after_each_failure(loads):
    last = loads.stage(some(1, 1))
    loads.gate.shut()
    loads.time.then = [(20, loads.gate.open)]
    loads.deliver(loads.patience(), last)
    assert len(loads.opened) > 4


def test_commits_without_rows_need_no_destination(loads):
    loads.stage([])
    last = loads.stage([])
    loads.gate.shut()
    loads.deliver(loads.patience(), last)
    assert (loads.position, loads.time.waits, loads.opened) == (last, [], [])


def test_commits_without_rows_do_not_end_a_wait(loads):
    first = loads.stage(some(1, 1))
    loads.gate.shut()
    loads.time.stopped = True
    patience = loads.patience()
    with pytest.raises(StoppedError):
        loads.deliver(patience, first)
    assert loads.position == 0
    loads.sql("UPDATE load_positions SET last_commit = 1")
    loads.sql("INSERT INTO load_positions SELECT 'warehouse', 1 ON CONFLICT DO NOTHING")
    loads.deliver(patience, loads.stage([]))
    assert list(all_waiting(loads.tracker)) == ["warehouse"]


def test_a_new_loader_knows_since_when_it_is_waited_for(loads):
    last = loads.stage(some(1, 1))
    loads.gate.shut()
    loads.time.stopped = True
    with pytest.raises(StoppedError):
        loads.deliver(loads.patience(), last)
    before = all_waiting(loads.tracker)["warehouse"]
    with pytest.raises(StoppedError):
        loads.deliver(loads.patience(), last)
    after = all_waiting(loads.tracker)["warehouse"]
    assert (after.since, after.attempts) == (before.since, before.attempts + 1)


def test_a_loader_that_was_taken_over_says_nothing_of_the_destination(loads):
    last = loads.stage(some(1, 1))
    loads.gate.shut()
    patience = loads.patience()
    loads.loader()
    with pytest.raises(FencedError):
        loads.deliver(patience, last)
    assert all_waiting(loads.tracker) == {}


def test_an_object_store_that_is_away_is_no_word_of_the_destination(loads, monkeypatch):
    last = loads.stage(some(1, 1))
    real, left = loads.objects.get, [1, 1]

    def get(key):
        if left:
            left.pop()
            raise RetryError("the store is away")
        return real(key)

    monkeypatch.setattr(loads.objects, "get", get)
    loads.time.then = [(0.1, lambda: seen.append(all_waiting(loads.tracker)))]
    seen = []
    loads.deliver(loads.patience(park_after_s=0.001), last)
    assert (loads.ids(), seen, loads.parked()) == ([1], [{}], {})


def test_a_trace_that_cannot_be_written_is_no_word_of_the_destination(loads):
    class Recorder:
        left = 1

        def write(self, _batches):
            if self.left:
                self.left -= 1
                raise RetryError("the spool is full")

    last = loads.stage(some(1, 1))
    loads.deliver(loads.patience(park_after_s=0.001, recorder=Recorder()), last)
    assert (loads.ids(), loads.parked()) == ([1], {})


def test_an_error_without_a_class_waits_as_well_and_is_logged(loads, caplog):
    class Broken:
        def load(self, *_, **__):
            raise ZeroDivisionError("a mistake in the driver")

        def check(self): ...

        def close(self): ...

    last = loads.stage(some(1, 1))
    kinds = [Broken(), Broken()]
    patience = loads.patience(
        opening=lambda: kinds.pop() if kinds else loads.open(), park_after_s=0.001
    )
    with caplog.at_level(logging.ERROR):
        loads.deliver(patience, last)
    assert "a mistake in the driver" in caplog.text
    assert (loads.ids(), loads.parked()) == ([1], {}), "nobody knows what it means: not parked"


def test_staged_objects_keep_however_long_the_destination_is_away(loads):
    last = loads.stage(some(1, 4))
    loads.sql("UPDATE staged_objects SET committed_at = committed_at - interval '400 days'")
    parking = Parking(loads.tracker, loads.objects)
    report = parking.refresh(grace_s=0)
    assert (report.staged_deleted, report.garbage_deleted, report.missing) == (0, 0, ())
    loads.deliver(loads.patience(), last)
    assert loads.ids() == [1, 2, 3, 4]
    assert parking.refresh(grace_s=0).staged_deleted == 0, "kept for a warehouse put back"
    loads.sql("UPDATE staged_objects SET loaded_at = loaded_at - interval '6 days 23 hours'")
    assert parking.refresh(grace_s=0).staged_deleted == 0
    loads.sql("UPDATE staged_objects SET loaded_at = loaded_at - interval '1 hour'")
    assert parking.refresh(grace_s=0).staged_deleted == 1


def test_what_does_not_wait_is_asked_whether_it_answers(loads):
    """Nothing comes, and the destination is back: the wait ends all the same."""
    last = loads.stage(some(1, 1))
    loads.gate.shut()
    patience = loads.patience()
    loads.time.stopped = True
    with pytest.raises(StoppedError):
        loads.deliver(patience, last)
    patience.look()
    assert list(all_waiting(loads.tracker)) == ["warehouse"]
    loads.gate.open()
    loads.time.now_s += 60
    patience.look()
    assert all_waiting(loads.tracker) == {}
