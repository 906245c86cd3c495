"""Fields that come, and values that grow, mid-stream: through real Kafka and Spark to the table."""

from __future__ import annotations

from decimal import Decimal

import psycopg
import pytest
from tests.support import evolving, streams

from waybill import services
from waybill.mappings.versions import history
from waybill.storage import open_tracker

pytestmark = [pytest.mark.serves, pytest.mark.slow, pytest.mark.campaign]
ROWS = 900
WEIGHT, ITEMS, LARGE, LARGER = 250, 400, 550, 700
"""The first numbers with a new object, with an array, and with values that need a wider type."""
CODE = f"""
def transform(event):
    order = event.data
    n = order["number"]
    if n >= {WEIGHT}:
        order["weight"] = {{"kg": n / 4, "": {{}}}}
    if n >= {ITEMS}:
        order["items"] = [{{"sku": f"a{{n}}", "left": 2**62 + n}}] * (n % 3)
    if n >= {LARGE}:
        order["amount"] = 2**40 + n
    if n >= {LARGER}:
        order["amount"] = 2**63 + n
    if n % 100 == 7:
        order["amount"] = "many"
    return event
"""
PARKED = [n for n in range(ROWS) if n % 100 == 7]


@pytest.fixture
def settings(stack_settings, tmp_path):
    made = streams.with_orders(stack_settings, tmp_path, rows=1, max_events_per_batch=120)
    home = evolving.write_evolving(made.pipelines_dir, rows=ROWS, code=CODE)
    services.run_deploy(made, home, who="ann")
    with streams.stopped_at_end(made):
        yield made


def warehouse(settings, query):
    dsn = settings.destinations["warehouse"].dsn.get_secret_value()
    with psycopg.connect(dsn) as connection:
        return connection.execute(query).fetchall()


def amount(n):
    if n >= LARGER:
        return 2**63 + n
    return 2**40 + n if n >= LARGE else n


def test_new_fields_and_larger_values_end_in_the_table_and_only_what_no_type_holds_parks(settings):
    services.run_ingest(settings, "evolving")
    report = streams.rest_of(settings, rows=ROWS)
    assert (report.delivered, report.parked) == (ROWS - len(PARKED), len(PARKED))
    [parked] = services.parked_partitions(settings)
    assert (parked.stage, parked.error_type) == ("mapping", "type_mismatch")

    good = [n for n in range(ROWS) if n not in PARKED]
    rows = warehouse(settings, "SELECT number, amount, weight__kg FROM shop.orders ORDER BY number")
    assert rows == [(n, Decimal(amount(n)), Decimal(n) / 4 if n >= WEIGHT else None) for n in good]
    items = warehouse(
        settings,
        'SELECT number, _waybill_item, sku, "left" FROM shop.orders__items ORDER BY number, _waybill_item',
    )
    assert items == [
        (n, item, f"a{n}", 2**62 + n) for n in good if n >= ITEMS for item in range(n % 3)
    ]

    with open_tracker(settings.tracker) as tracker:
        versions = history(tracker, "test-evolving", "order")
    known = versions[0].declaration.table
    types = {column.name: column.type for column in known.columns}
    assert types == {"number": "int64", "amount": "decimal(29,0)", "weight__kg": "decimal(28,9)"}
    assert [child.name for child in known.children] == ["orders__items"]
    assert versions[-1].author == "ann"
    assert {one.author.split(".")[0] for one in versions[:-1]} == {"processing/events"}
