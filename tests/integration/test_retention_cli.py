"""``waybill retention`` on the real servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support import orders
from typer.testing import CliRunner

from waybill import services
from waybill.cli import app
from waybill.storage import open_log
from waybill.storage.tracker.tables import METADATA

pytestmark = pytest.mark.serves


@pytest.fixture
def settings(stack_settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    home = orders.write_orders(tmp_path / "pipelines", rows=1)
    made = stack_settings.model_copy(update={"pipelines_dir": tmp_path / "pipelines"})
    services.migrate(made)
    services.run_deploy(made, home, who="test")
    open_log(made.kafka).ensure_topic(orders.topic_of(tmp_path / "pipelines"))
    for name, value in made.to_env().items():
        monkeypatch.setenv(name, value)
    return made


def test_what_is_shown_asked_and_trimmed(settings: Any, tmp_path: Path) -> None:
    runner = CliRunner()
    shown = runner.invoke(app, ["retention", "show", "--json"])
    assert shown.exit_code == 0, shown.output
    rules = json.loads(shown.output)
    assert rules["tables"].keys() == METADATA.tables.keys()
    assert rules["settings"]["log_days"] == 7
    words = runner.invoke(app, ["retention", "show"]).output
    assert "rows of the tracker: 90 days (WAYBILL_RETENTION__BOOKS_DAYS)" in words
    refused = runner.invoke(app, ["retention", "run"], input="n\n")
    assert refused.exit_code == 1
    assert "deletes for good" in refused.output
    done = runner.invoke(app, ["retention", "run", "--yes", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["problems"] == []
    topic = orders.topic_of(tmp_path / "pipelines")
    assert [(one["topic"], one["deleted"]) for one in report["topics"]] == [(topic, 0)]
    assert set(report["rows"].values()) == {0}
    assert report["source_keys"] == {"deleted": 0, "bytes": 0, "kept": {}}
    assert runner.invoke(app, ["retention", "run", "--yes"]).exit_code == 0
