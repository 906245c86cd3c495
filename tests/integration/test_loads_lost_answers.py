"""A load that the destination did, and nobody heard of: it is parked then, or its loader killed."""

from __future__ import annotations

import signal

import pytest
from tests.support.dying_loads import park_and_die
from tests.support.loads import opened_loads, some
from tests.support.processes import PROCESSES, start_server
from tests.unit.destinations.orders import Order, clean_database, spec_of

from waybill.loading.states import all_waiting
from waybill.parking import Parking
from waybill.pipelines import Column

pytestmark = pytest.mark.serves
CHECKED = spec_of(
    "orders",
    Column(name="id", type="int64", nullable=False),
    Column(name="what", type="string"),
    Column(name="price", type="decimal(10,2)"),
    Column(name="must", type="string", nullable=False),
)


@pytest.fixture
def loads(postgres, s3):
    with opened_loads(postgres, s3, clean_database(postgres)) as opened:
        yield opened


def back(loads):
    loads.gate.open()
    loads.time.now_s += 60


def replayed(orders):
    """Return orders as a replay brings them."""
    return [Order(o.id, o.source, o.intake, o.what, o.price, o.op, replayed=True) for o in orders]


def test_what_was_loaded_and_parked_is_a_duplicate_in_its_replay(loads):
    """Also of deletes, and of what another event of the same load had superseded."""
    orders = [
        *some(1, 5),
        Order(2, 2, 50, "newer"),
        Order(3, 2, 51, op="delete"),
        Order(77, 1, 52, op="delete"),
    ]
    last = loads.stage(orders)
    loads.deliver(loads.patience(park_after_s=0.001, opening=loads.open_losing()), last)
    held = loads.ask("SELECT id, what, _waybill_id FROM shop.orders ORDER BY id")
    assert [row[0] for row in held] == [1, 2, 4, 5], "the load was done"
    assert loads.counts() == {"in_first": 8, "parked": 8}
    back(loads)
    loads.deliver(loads.patience(), loads.stage(replayed(orders)))
    assert loads.ask("SELECT id, what, _waybill_id FROM shop.orders ORDER BY id") == held
    found = loads.counts()
    assert found == {
        "in_first": 8, "parked": 8, "in_replayed": 8, "duplicate": 6, "superseded": 2,
    }  # fmt: skip


def test_refused_rows_of_a_lost_load_are_parked_once(loads):
    """Commits 1 and 2 are loaded, the answer lost; 1 is parked by order, 2 is then found loaded."""
    loads.stage(some(1, 3), CHECKED, must=["a", None, "a"])
    last = loads.stage(some(11, 3), CHECKED, must=[None, "b", None])
    with loads.open() as destination:
        destination.ensure_table(CHECKED)
    patience = loads.patience(park_after_s=0.001, opening=loads.open_losing())
    real = patience._park

    def park_first(rest, after, until):
        done = real(rest, after, after + 1)
        back(loads)
        return done

    patience._park = park_first
    loads.deliver(patience, last)
    assert loads.position == last
    assert loads.counts() == {"in_first": 6, "passed": 1, "parked": 5}
    assert loads.parked() == {"destination_unreachable": 3, "destination_not_null_violation": 2}
    assert loads.ids() == [1, 3, 12]
    before = loads.counts()
    loads.deliver(loads.patience(), last)
    assert loads.counts() == before


@pytest.mark.parametrize("moment", ["before the object", "before the commit", "after the commit"])
def test_a_kill_while_parking_leaves_garbage_or_all(loads, moment):
    """In a process without the threads of this one, which a fork of it died of (SIGSEGV), once."""
    last = loads.stage(some(1, 4))
    loads.gate.shut()
    start_server()
    child = PROCESSES.Process(target=park_and_die, args=(loads.parts, last, moment))
    child.start()
    child.join(300)
    assert child.exitcode == -signal.SIGKILL
    loads.deliver(loads.patience(park_after_s=0.001), last)
    assert loads.counts() == {"in_first": 4, "parked": 4}
    assert loads.parked() == {"destination_unreachable": 4}
    assert all_waiting(loads.tracker)["warehouse"].parked_from == 1
    keys = {item.key for item in loads.objects.list("parked/")}
    named = {row[0] for row in loads.sql("SELECT key FROM parked_objects")}
    assert named <= keys
    assert len(keys - named) == (moment == "before the commit")
    report = Parking(loads.tracker, loads.objects).refresh(grace_s=0)
    assert report.missing == ()
    assert {item.key for item in loads.objects.list("parked/")} == named
