"""Folders that change, or go, while they are checked and deployed."""

from __future__ import annotations

import json
import shutil

import pytest
from tests.support import orders
from typer.testing import CliRunner

from waybill import services
from waybill.cli import app
from waybill.deployment import DeployReport
from waybill.errors import InputError
from waybill.services import deployments, run_deploy
from waybill.settings import Settings


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of a pipeline; no server answers."""
    monkeypatch.setenv("WAYBILL_TRACKER__DSN", "postgresql://nobody@127.0.0.1:1/none")
    monkeypatch.setenv("WAYBILL_AIRFLOW__URL", "http://127.0.0.1:1")
    return orders.write_orders(tmp_path / "pipelines", rows=1)


@pytest.mark.parametrize("file", ["pipeline.yaml", "transformation.py"])
def test_what_was_saved_while_it_was_checked_is_not_deployed_unchecked(folder, monkeypatch, file):
    look = deployments.check_sources

    def saved_meanwhile(*given):
        found = look(*given)
        text = (folder / file).read_text()
        (folder / file).write_text(text.replace("doubled", "tripled"))
        return found

    monkeypatch.setattr(deployments, "check_sources", saved_meanwhile)
    with pytest.raises(InputError, match=rf"{folder} changed while it was checked; run the comm"):
        run_deploy(Settings(), folder, who="ann")


@pytest.mark.parametrize("is_pushed", [False, True])
def test_a_deploy_that_is_done_is_told_also_where_its_folder_is_gone_by_then(
    folder, monkeypatch, is_pushed
):
    def deployed(*_given, **_more):
        shutil.rmtree(folder)
        report = DeployReport("orders", "test-orders", "0" * 12, 1, True, is_pushed=is_pushed)
        return report

    monkeypatch.setattr(services, "run_deploy", deployed)
    done = CliRunner().invoke(app, ["pipelines", "deploy", str(folder), "--json"])
    assert done.exit_code == 0, (done.output, done.exception)
    said = json.loads(done.stdout)
    assert (said["is_pushed"], said["dag"] is None) == (is_pushed, is_pushed)
