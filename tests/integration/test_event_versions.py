"""A deploy or a rollback after which events have other versions than the rows of their table."""

from __future__ import annotations

import json

import pytest
from tests.support import orders
from typer.testing import CliRunner

from waybill import services
from waybill.access import Decision
from waybill.cli import app
from waybill.deployment import active_pipeline, begin_undeployment, end_undeployment
from waybill.services.ingestion import run_ingest
from waybill.settings import Settings
from waybill.storage import open_tracker

pytestmark = pytest.mark.serves
CDC = """source:
  connector: postgres_cdc
  connection: shop
  event: order
  options: {slot: orders, tables: {order: public.orders}}
"""


@pytest.fixture
def folder(stack_settings, tmp_path, monkeypatch):
    """The folder of `orders`, whose version is `amount`, deployed; Airflow is away."""
    for name, value in stack_settings.to_env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WAYBILL_PIPELINES_DIR", str(tmp_path / "pipelines"))
    monkeypatch.setenv("WAYBILL_AIRFLOW__URL", "http://127.0.0.1:1")
    services.migrate(Settings())
    home = orders.write_orders(tmp_path / "pipelines", rows=1)
    declare(home, "version: null", "version: amount")
    deploy(home)
    return home


def declare(home, old, new):
    file = home / "pipeline.yaml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def run(*words, code=0):
    done = CliRunner().invoke(app, ["pipelines", *map(str, words)])
    assert done.exit_code == code, (done.output, done.exception)
    return done


def deploy(home, *words, code=0):
    return flat(run("deploy", home, "--no-deep", *words, code=code).stderr)


def flat(text):
    return " ".join(text.split())


def versions():
    return len(json.loads(run("history", "orders", "--json").stdout))


def test_a_version_that_is_taken_out_is_refused_once_something_was_taken_in(folder):
    assert run_ingest(Settings(), "orders").accepted == 1
    declare(folder, "version: amount", "version: null")
    refused = deploy(folder, code=1)
    assert "event 'order': its version was field 'amount', and is now none" in refused
    assert "shop.orders" in refused
    assert "waybill pipelines undeploy orders --drop-tables" in refused
    assert "--version-ok" in refused
    assert versions() == 1
    assert "warning: event 'order': its version was" in deploy(folder, "--version-ok")
    run("rollback", "orders", "1", "--why", "x")  # from none to one that is greater
    back = flat(run("rollback", "orders", "2", "--why", "x", code=1).stderr)
    assert "--version-ok" in back
    said = flat(run("rollback", "orders", "2", "--why", "x", "--version-ok").stderr)
    assert "warning: event 'order'" in said
    assert versions() == 4


def test_a_version_by_another_field_or_another_kind_of_source_is_refused(folder):
    assert run_ingest(Settings(), "orders").accepted == 1
    declare(folder, "version: amount", "version: number")
    assert "field 'amount', and is now field 'number'" in deploy(folder, code=1)
    text = (folder / "pipeline.yaml").read_text()
    rest = text[text.index("events:") :].replace("version: number", "version: null")
    (folder / "pipeline.yaml").write_text(text[: text.index("source:")] + CDC + rest)
    assert "is now the position in PostgreSQL's log" in deploy(folder, code=1)
    assert versions() == 1


def test_another_version_is_deployed_where_no_row_has_the_former_one(folder):
    declare(folder, "version: amount", "version: null")
    deploy(folder)  # nothing was taken in
    declare(folder, "version: null", "version: amount")
    deploy(folder, "--force")
    assert run_ingest(Settings(), "orders").accepted == 1
    declare(folder, "version: amount", "version: null")
    declare(folder, "table: orders", "table: orders_anew")
    assert "its version was" not in deploy(folder)  # another table has no rows


def test_after_tables_were_dropped_another_version_is_deployed(folder):
    assert run_ingest(Settings(), "orders").accepted == 1
    with open_tracker(Settings().tracker) as tracker:
        pipeline, ann = active_pipeline(tracker, "orders"), Decision("ann", "gone")
        begun = begin_undeployment(tracker, pipeline, ann, drop_tables=True)
        with tracker.transaction() as connection:
            end_undeployment(connection, begun, ann, ["shop.orders"])
    declare(folder, "version: amount", "version: null")
    deploy(folder)
    assert versions() == 2
