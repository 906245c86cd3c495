"""G6: one bad event never stops its neighbours, not even one that ends the interpreter."""

from __future__ import annotations

import pytest
from tests.support import orders, streams

from waybill import services

pytestmark = [pytest.mark.serves, pytest.mark.slow, pytest.mark.campaign]
ROWS = 2_000
LOOPS, DIES, RAISES_WRONG, LOOPS_DEAF = 700, 1_200, 1_500, 1_700
CODE = f"""
import os


def transform(event):
    number = event.data["number"]
    if number == {LOOPS}:
        while True:
            try:
                pass
            except Exception:
                pass
    if number == {LOOPS_DEAF}:
        while True:
            try:
                while True:
                    pass
            except BaseException:
                pass
    if number == {DIES}:
        os._exit(9)
    if number == {RAISES_WRONG}:
        raise type("Odd", (Exception,), {{"__str__": lambda self: 1 / 0}})
    event.data["doubled"] = 0
    event.data["note"] = event.data["note"] or "none"
    return event
"""


@pytest.fixture
def settings(stack_settings, tmp_path):
    made = streams.with_orders(stack_settings, tmp_path, rows=ROWS, event_timeout_s=2.0)
    orders.write_orders(made.pipelines_dir, rows=ROWS, code=CODE)
    services.run_deploy(made, made.pipelines_dir / "orders", who="test")
    with streams.stopped_at_end(made):
        yield made


def test_loops_a_crash_and_a_broken_exception_are_parked_and_all_others_arrive(settings):
    services.run_ingest(settings, "orders")
    report = streams.rest_of(settings, rows=ROWS)
    parked = {p.error_type: p.parked for p in services.parked_partitions(settings)}
    assert parked == {
        "transformation_timeout": 2,
        "interpreter_crashed": 1,
        "transformation_failed": 1,
    }
    bad = {LOOPS, DIES, RAISES_WRONG, LOOPS_DEAF}
    assert sorted(streams.warehouse_numbers(settings)) == [n for n in range(ROWS) if n not in bad]
    assert report.delivered == ROWS - len(bad)
