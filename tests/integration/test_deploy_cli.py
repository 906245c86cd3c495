"""``waybill pipelines deploy``: what it says beside what it does."""

from __future__ import annotations

import json

import pytest
from tests.support import orders
from typer.testing import CliRunner

from waybill import services
from waybill.cli import app

pytestmark = pytest.mark.serves


def test_a_deploy_names_the_pipeline_that_writes_the_same_table(
    stack_settings, tmp_path, monkeypatch
):
    services.migrate(stack_settings)
    for name, value in stack_settings.to_env().items():
        monkeypatch.setenv(name, value)
    first = orders.write_orders(tmp_path / "one", rows=1)
    second = orders.write_orders(tmp_path / "two", rows=1)
    elsewhere = orders.write_orders(tmp_path / "three", rows=1)
    for folder, name, schema in ((second, "returns", "shop"), (elsewhere, "others", "other")):
        text = (folder / "pipeline.yaml").read_text().replace("schema: shop", f"schema: {schema}")
        text = text.replace("id: test-orders", f"id: test-{name}").replace(
            "name: orders", f"name: {name}"
        )
        text = text.replace(orders.team_of(folder.parent), orders.team_of(first.parent))
        (folder / "pipeline.yaml").write_text(text)

    def deploy(folder, *options):
        done = CliRunner().invoke(app, ["pipelines", "deploy", str(folder), *options])
        assert done.exit_code == 0, (done.output, done.exception)
        return done

    assert "warning" not in deploy(first).stderr
    assert "warning" not in deploy(elsewhere).stderr
    warned = " ".join(deploy(second).stderr.split())
    assert "pipelines 'returns' and 'orders' both write table shop.orders of 'warehouse'" in warned
    again = json.loads(deploy(first, "--json").stdout)
    assert not again["changed"]
    assert len(again["warnings"]) == 1


def test_a_pipeline_whose_source_sends_has_no_dag_that_is_waited_for(
    stack_settings, tmp_path, monkeypatch
):
    services.migrate(stack_settings)
    for name, value in stack_settings.to_env().items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "hooks"
    folder.mkdir()
    (folder / "transformation.py").write_text("def transform(event):\n    return event\n")
    (folder / "pipeline.yaml").write_text(
        "id: test-hooks\nname: hooks\nteam: shop\nowner: shop@example.com\n"
        "source:\n  connector: http\n  event: order\n"
        "  options: {auth: bearer, secret: env:HOOKS_TOKEN}\n"
        "events:\n  order: {key: [id], table: hooks, columns: {id: int64}}\n"
        "destination: {name: warehouse, schema: shop}\n"
    )
    done = CliRunner().invoke(app, ["pipelines", "deploy", str(folder)])
    assert done.exit_code == 0, (done.output, done.exception)
    assert "its source sends to `waybill collector`: POST /v1/hooks" in done.stdout
    assert "Airflow" not in done.output
    again = CliRunner().invoke(app, ["pipelines", "deploy", str(folder), "--json"])
    assert json.loads(again.stdout)["dag"] is None
