"""Executors that fail: told after some tries, never parked by settings, parked by order."""

from __future__ import annotations

import pytest
from tests.support.loads import opened_loads, some
from tests.unit.destinations.orders import clean_database

from waybill.access import Decision
from waybill.errors import InputError, RetryError
from waybill.ledger import staged_after
from waybill.loading import DeliveryParts, StoppedError, deliver, loader
from waybill.loading.failures import ExecutorsFailedError, NotTakenError
from waybill.loading.states import all_waiting, ask_to_park

pytestmark = pytest.mark.serves


@pytest.fixture(autouse=True)
def no_load_is_small(monkeypatch):
    monkeypatch.setattr(loader, "is_small", lambda *_given: False)


@pytest.fixture
def loads(postgres, s3):
    with opened_loads(postgres, s3, clean_database(postgres)) as opened:
        yield opened


class Executors:
    """Executors that raise what they are given, in turn and the last for ever, or load.

    Args:
        loads: whose destination it is.
        errors: None: a load is carried out.
        first: called before.
    """

    def __init__(self, loads, *errors, first=lambda: None) -> None:
        self._loads, self._errors, self._first = loads, list(errors), first
        self.plans = []

    def __call__(self, plan):
        self.plans.append(plan)
        self._first()
        error = self._errors.pop(0) if len(self._errors) > 1 else self._errors[0]
        if error is not None:
            raise error
        with self._loads.open() as destination:
            return [deliver(plan, None, DeliveryParts(self._loads.objects, lambda: destination))]


def unreached(error):
    made = NotTakenError(error, unreached=True)
    made.__cause__ = error
    return made


DIED = ExecutorsFailedError("executors did not bring the load to its end: killed")


def deliver_for(loads, seconds, patience, last):
    """Deliver until some time has passed."""
    loads.time.then = [(seconds, lambda: setattr(loads.time, "stopped", True))]
    with pytest.raises(StoppedError):
        loads.deliver(patience, last)
    loads.time.stopped = False


def test_executors_that_die_at_each_load_are_told_and_parked_by_order_alone(loads):
    last = loads.stage(some(1, 5))
    executors = Executors(loads, DIED)
    patience = loads.patience(executors=executors, park_after_s=0.001)
    deliver_for(loads, 100, patience, last)
    [waiting] = all_waiting(loads.tracker).values()
    assert waiting.code == "executors_failed"
    for word in ("killed", "--memory-mb", "loaded_by of warehouse to driver"):
        assert word in waiting.error
    loads.age_wait(600)
    deliver_for(loads, loads.time.now_s + 100, patience, last)
    assert (loads.position, loads.parked()) == (0, {}), "nobody ordered it"
    assert loads.sql("SELECT told_at IS NOT NULL FROM destination_states") == [(True,)]
    ask_to_park(loads.tracker, loads.name, Decision("ann", "needs the rest"))
    loads.deliver(patience, last)
    assert (loads.position, loads.parked()) == (last, {"executors_failed": 5})
    assert loads.counts() == {"in_first": 5, "parked": 5}
    assert [plan.park for plan in executors.plans] == [None] * len(executors.plans)


def test_a_restart_does_not_forget_that_settings_park_nothing(loads):
    last = loads.stage(some(1, 5))
    for _ in range(2):
        patience = loads.patience(executors=Executors(loads, DIED), park_after_s=0.001)
        deliver_for(loads, loads.time.now_s + 100, patience, last)
        loads.age_wait(600)
    assert (loads.position, loads.parked()) == (0, {})
    patience = loads.patience(executors=Executors(loads, None), park_after_s=0.001)
    loads.deliver(patience, last)
    assert (loads.ids(), all_waiting(loads.tracker)) == ([1, 2, 3, 4, 5], {})


def test_executors_that_die_twice_are_nobodys_business(loads):
    last = loads.stage(some(1, 5))
    noted = []
    executors = Executors(loads, DIED, DIED, None, first=lambda: noted.append(waits(loads)))
    loads.deliver(loads.patience(executors=executors), last)
    assert noted == [[], [], []]
    assert (len(executors.plans), loads.ids()) == (3, [1, 2, 3, 4, 5])


def waits(loads):
    return list(all_waiting(loads.tracker))


@pytest.mark.parametrize("error", [RetryError("no route"), InputError("needs a package")])
def test_what_only_executors_do_not_reach_is_told_and_not_parked_by_settings(loads, error):
    last = loads.stage(some(1, 5))
    patience = loads.patience(executors=Executors(loads, unreached(error)), park_after_s=0.001)
    deliver_for(loads, 100, patience, last)
    [waiting] = all_waiting(loads.tracker).values()
    assert (loads.position, loads.parked(), waiting.code) == (0, {}, "executors_failed")
    for word in (str(error), "the driver reaches it", "loaded_by of warehouse to driver"):
        assert word in waiting.error


def test_what_the_driver_does_not_reach_either_is_the_destinations(loads):
    last = loads.stage(some(1, 5))
    executors = Executors(loads, unreached(RetryError("no route")), first=loads.gate.shut)
    loads.deliver(loads.patience(executors=executors, park_after_s=0.001), last)
    assert (loads.position, loads.parked()) == (last, {"destination_unreachable": 5})


def test_what_the_destination_refused_on_an_executor_is_parked_by_settings(loads):
    last = loads.stage(some(1, 5))
    error = InputError("a column is missing")
    executors = Executors(loads, NotTakenError(error))
    loads.deliver(loads.patience(executors=executors, park_after_s=0.001), last)
    assert (loads.position, loads.parked()) == (last, {"destination_schema_conflict": 5})
    found = staged_after(loads.tracker, loads.name, after=last, until=last)
    assert found == []
