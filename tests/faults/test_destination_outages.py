"""One destination of the loading application is away: it waits, the other one goes on."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from tests import servers
from tests.support import children, orders, streams
from tests.support.loads import opened_loads, some
from tests.unit.destinations.orders import clean_database

from waybill import services
from waybill.loading.states import all_waiting
from waybill.settings import DestinationSettings, Settings, SparkSettings, TraceSettings
from waybill.stack import jars

pytestmark = [pytest.mark.serves, pytest.mark.slow, pytest.mark.campaign]


def declared(folder: Path, name: str, destination: str) -> Path:
    """Write a pipeline of that name into that destination; nothing of it runs here."""
    home = orders.write_orders(folder / name, rows=1)
    text = (home / "pipeline.yaml").read_text()
    text = text.replace("id: test-orders", f"id: test-{name}").replace(
        "name: orders", f"name: {name}"
    )
    text = text.replace("name: warehouse", f"name: {destination}")
    (home / "pipeline.yaml").write_text(text)
    return home


@pytest.fixture
def loads(postgres, s3):
    jars.ensure(servers.JARS)
    with opened_loads(postgres, s3, clean_database(postgres)) as opened:
        yield opened


@pytest.fixture
def settings(loads, postgres, tmp_path):
    other = DestinationSettings(dsn=postgres.database("other"), min_rows=8, max_wait_s=3600)
    made = Settings(
        _env_file=None,
        home=tmp_path,
        tracker=loads.tracker_settings,
        s3=loads.s3,
        spark=SparkSettings(jars_dir=servers.JARS / jars.SPARK, work_dir=tmp_path / "spark"),
        traces=TraceSettings(spool_dir=tmp_path / "traces"),
        destinations={"warehouse": loads.settings, "other": other},
    )
    for name in ("warehouse", "other", "nowhere"):
        home = declared(tmp_path / "pipelines", f"into-{name}", name)
        services.run_deploy(made, home, who="test")
    with streams.stopped_at_end(made):
        yield made


def stage(loads, name, orders):
    loads.name = name
    number = loads.stage(orders)
    loads.name = "warehouse"
    return number


def ids_in(settings, name):
    with psycopg.connect(settings.destinations[name].dsn.get_secret_value()) as connection:
        if connection.execute("SELECT to_regclass('shop.orders')").fetchone() == (None,):
            return []
        return [row[0] for row in connection.execute("SELECT id FROM shop.orders ORDER BY 1")]


def test_a_destination_that_is_away_holds_up_no_other(loads, settings):
    loads.gate.shut()
    stage(loads, "warehouse", some(1, 5))
    stage(loads, "nowhere", some(1, 5))
    for first in (1, 6):
        stage(loads, "other", some(first, 5))
    services.start_application(settings, "loading", "default")
    children.wait_until(
        lambda: ids_in(settings, "other") == list(range(1, 11)), limit_s=300, what="the other"
    )
    children.wait_until(
        lambda: set(all_waiting(loads.tracker)) == {"warehouse", "nowhere"},
        limit_s=60,
        what="both being waited for",
    )
    assert "is not configured" in all_waiting(loads.tracker)["nowhere"].error
    stage(loads, "other", some(11, 7))
    stage(loads, "other", some(18, 1))
    children.wait_until(
        lambda: ids_in(settings, "other") == list(range(1, 19)), limit_s=60, what="the next load"
    )
    loads.gate.open()
    children.wait_until(lambda: loads.position == 1, what="the first load")
    assert loads.ids() == [1, 2, 3, 4, 5]
    assert set(all_waiting(loads.tracker)) == {"nowhere"}
    rows = loads.sql(
        "SELECT sum(rows)::int, count(*)::int FROM staged_objects WHERE state = 'staged'"
    )
    assert rows == [(5, 1)], "what is for nowhere keeps"
