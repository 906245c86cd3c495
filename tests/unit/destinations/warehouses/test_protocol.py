"""Each scenario over its recording: the calls, to the letter and in order, and what comes of them."""

import pytest
from tests.support.warehouse_wires import Recorded
from tests.unit.destinations.orders import Order, commit_of
from tests.unit.destinations.warehouses.scenarios import PARKED, SCENARIOS, recording
from tests.unit.destinations.warehouses.standing_in import KINDS, over


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def played(kind, name, monkeypatch):
    """Return what came of a scenario; all of its recording was used."""
    wire = Recorded(recording(kind, name))
    with over(kind, wire, monkeypatch) as destination:
        found = SCENARIOS[name](destination)
    assert wire.at_end(), f"{kind} {name}: calls of the recording were not made"
    return found


COUNTS = {
    "in_first": 4,
    "in_replayed": 0,
    "delivered": 3,
    "superseded": 1,
    "duplicate": 0,
    "parked": 0,
}


def test_a_good_day_and_all_of_it_again(kind, monkeypatch):
    found = played(kind, "good_day", monkeypatch)
    assert found == COUNTS | {"in_first": 9, "delivered": 4, "superseded": 4, "duplicate": 1}


def test_rows_that_are_refused_park_alone_and_their_losers_are_delivered(kind, monkeypatch):
    found = played(kind, "refused_rows", monkeypatch)
    parked = (PARKED | {"ids": ["1/2/2", "2/2/2"]},)
    assert found == COUNTS | {"in_first": 5, "superseded": 0, "parked": parked}


@pytest.mark.parametrize("name", ["lost_before_commit", "lost_after_commit", "conflict"])
def test_a_load_that_failed_is_loaded_once_by_the_next_call(kind, name, monkeypatch):
    found = played(kind, name, monkeypatch)
    assert found.pop("said").startswith("RetryError: destination 'warehouse'")
    assert found == COUNTS


def test_after_a_lost_answer_to_commit_nothing_is_written_again(kind):
    lines = recording(kind, "lost_after_commit").read_text().splitlines()
    after = lines[
        next(i for i, line in enumerate(lines) if '"error"' in line and "COMMIT" in line) :
    ]
    assert not [line for line in after if "INSERT" in line or "MERGE" in line or '"put"' in line]


def test_a_commit_that_another_loader_took_meanwhile_is_reported_as_it_loaded_it(kind, monkeypatch):
    found = played(kind, "overtaken", monkeypatch)
    assert found == COUNTS | {"in_first": 7, "delivered": 6, "rows": [None, 3]}


def test_a_deviation_from_the_recording_fails(kind, monkeypatch):
    wire = Recorded(recording(kind, "good_day"))
    with (
        pytest.raises(AssertionError, match="good_day"),
        over(kind, wire, monkeypatch) as destination,
    ):
        destination.load([commit_of(1, [Order(9, 9, 9)])], lambda refused: {})


def test_every_transaction_begins_with_the_lock_and_ends(kind):
    for name in SCENARIOS:
        lines = recording(kind, name).read_text().splitlines()
        begun = [i for i, line in enumerate(lines) if '"BEGIN' in line]
        trials = name == "refused_rows"
        for at in begun:
            assert trials or "_waybill_locks" in lines[at + 1]
        ends = [line for line in lines if '"COMMIT"' in line or '"ROLLBACK"' in line]
        assert len(ends) >= len(begun) > 0


def test_the_dialects_say_that_they_were_not_tested_live(kind, monkeypatch):
    with over(kind, None, monkeypatch) as destination:
        assert "Experimental" in type(destination).__doc__
        assert "Experimental" in type(destination._session).__doc__
