"""A warehouse that was put back to an older point is known for one, and loaded again."""

from __future__ import annotations

import pytest
from tests.support.destined import commits_of, held, load, never_park
from tests.unit.destinations.orders import SPEC, Order

from waybill.destinations import BehindError, Expected

pytestmark = pytest.mark.serves
PLACE = (SPEC.schema_name, SPEC.name)


def test_the_books_say_which_commits_are_held(warehouse):
    destination = warehouse.open()
    assert destination.held(0, [PLACE]).newest == 0
    load(destination, [Order(1, 1, 1)], [Order(2, 1, 2)], [Order(3, 1, 3)])
    found = destination.held(1, [PLACE, ("shop", "absent")])
    assert found.newest == 3
    if destination.per_table:
        assert found.tables == {PLACE: 3, ("shop", "absent"): 0}
    else:
        assert found.numbers == {2, 3}
    assert warehouse.open("another").held(0, [PLACE]).newest == 0


def test_a_load_goes_only_on_top_of_what_the_destination_took(warehouse):
    destination = warehouse.open()
    load(destination, [Order(1, 1, 1)])
    [commit] = commits_of([Order(3, 1, 3)], start=3)
    with pytest.raises(BehindError, match="took commit 2"):
        destination.load([commit], never_park, expected=Expected(2, {PLACE: 2}))
    assert set(held(warehouse)) == {1}, "nothing of it is there"
    load(destination, [Order(2, 1, 2)], start=2)
    destination.load([commit], never_park, expected=Expected(2, {PLACE: 2}))
    assert set(held(warehouse)) == {1, 2, 3}
