"""A pipeline undeployed while it is read, with both Spark applications: all arrives, none is lost."""

from __future__ import annotations

import psycopg
import pytest
from tests.support import children, orders, streams

from waybill import services
from waybill.access import Decision
from waybill.ledger import read_position
from waybill.storage import open_tracker
from waybill.undeployment import UndeployRequest

pytestmark = [pytest.mark.serves, pytest.mark.slow, pytest.mark.campaign]
ROWS = 12_000
PASSES = "def transform(event):\n    return event\n"
SLOWLY = """
import time
from waybill.ingestion import run
from waybill.services.ingestion import run_ingest
commit = run.commit_intake
def slowly(*given):
    time.sleep(0.3)
    return commit(*given)
run.commit_intake = slowly
print(run_ingest(settings, "orders").stopped)
"""


def test_what_was_read_arrives_and_the_rest_is_read_once_it_is_deployed_again(
    stack_settings, tmp_path
):
    settings = streams.with_orders(stack_settings, tmp_path, rows=ROWS)
    folder = orders.write_orders(
        settings.pipelines_dir, rows=ROWS, code=PASSES, fixed=True, page_rows=200
    )
    services.run_deploy(settings, folder, who="test")
    with streams.stopped_at_end(settings):
        streams.keep_running(settings)
        child = children.start(settings, SLOWLY)
        try:
            children.wait_until(lambda: taken(settings) > 0, what="a page")
            report = undeploy(settings)
            said, _ = child.communicate(timeout=600)
        finally:
            children.kill(child)
        assert said.decode().splitlines()[-1] == "ann", said  # a new broker may be complained of
        assert report.is_done, report
        read = taken(settings)
        assert 0 < read < ROWS
        books = services.balance(settings)
        assert (books.ingested, books.in_flight, books.unaccounted) == (read, 0, 0)
        assert sorted(streams.warehouse_numbers(settings)) == list(range(read))

        services.run_deploy(settings, folder, who="test")
        services.run_ingest(settings, "orders")
        streams.rest_of(settings, rows=ROWS)
        streams.assert_once_each(settings, range(ROWS))

        assert undeploy(settings, drop_tables=True).dropped == ("shop.orders",)
        assert tables(settings) == []
        services.run_deploy(settings, folder, who="test")
        services.run_ingest(settings, "orders")
        books = streams.rest_of(settings, rows=2 * ROWS)
        assert books.duplicate == books.superseded == 0
        assert sorted(streams.warehouse_numbers(settings)) == list(range(ROWS))


def undeploy(settings, *, drop_tables=False):
    request = UndeployRequest(
        pipeline="orders", drop_tables=drop_tables, why="gone", wait=120, leave_parked=False
    )
    return services.run_undeploy(settings, request, Decision("ann", "gone"))


def taken(settings):
    """Return how many rows of the source are committed."""
    with open_tracker(settings.tracker) as tracker:
        return read_position(tracker, "test-orders").rows_read


def tables(settings):
    dsn = settings.destinations["warehouse"].dsn.get_secret_value()
    with psycopg.connect(dsn) as connection:
        query = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'shop'"
        return connection.execute(query).fetchall()
