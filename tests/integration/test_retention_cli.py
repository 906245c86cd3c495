"""``waybill retention`` on the real servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from tests.support import orders
from typer.testing import CliRunner

from waybill import services
from waybill.cli import app
from waybill.ledger import LogIdentity, claim_source
from waybill.storage import open_log, open_tracker
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
    assert all(one["bytes"] > 0 for one in rules["tables"].values())
    assert rules["problem"] is None
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


def test_tables_are_shown_with_their_sizes_the_largest_first(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with open_tracker(settings.tracker) as tracker, tracker.transaction() as connection:
        connection.execute(
            text(
                "INSERT INTO audit_log (who, action, target) SELECT 'ann', 'test', "
                "repeat(md5(n::text), 9) FROM generate_series(1, 3000) n"
            )
        )
    shown = CliRunner().invoke(app, ["retention", "show"])
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()
    assert len(lines) < 90
    assert max(map(len, lines)) <= 80
    head = next(number for number, line in enumerate(lines) if line.startswith("table "))
    name, size, unit, *_ = lines[head + 2].split()
    assert (name, unit) == ("audit_log", "MiB")
    assert float(size) > 1
    rest = " ".join(shown.stdout.split()).partition("tables more do not grow with events")[2]
    assert "upkeep_jobs" in rest
    assert "KiB together" in rest


def test_without_a_tracker_rules_are_shown_and_sizes_are_not(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYBILL_TRACKER__DSN", "postgresql://nobody:x@127.0.0.1:1/none")
    shown = CliRunner().invoke(app, ["retention", "show"])
    assert shown.exit_code == 0, shown.output
    assert "sizes are not known: " in " ".join(shown.stderr.split())
    assert "audit_log" in shown.stdout
    assert "together" not in shown.stdout
    [line] = CliRunner().invoke(app, ["retention", "show", "--json"]).stdout.splitlines()
    assert json.loads(line)["tables"]["audit_log"]["bytes"] is None


def test_the_command_names_a_log_that_keeps_records(settings: Any, tmp_path: Path) -> None:
    topic = orders.topic_of(tmp_path / "pipelines")
    info = open_log(settings.kafka).describe(topic)
    old = "now() - interval '31 days'"
    with open_tracker(settings.tracker) as tracker:
        identity = LogIdentity(
            "a" * 32, "test-orders", "ingestion", "p", "n\x1b[31m", "/wal", topic
        )
        assert claim_source(tracker, identity, ends={topic: {0: 0}})
        with tracker.transaction() as connection:
            for statement in (
                f"UPDATE write_ahead_logs SET seen_at = {old}",
                "INSERT INTO load_positions (destination, last_commit) VALUES ('warehouse', 1)",
                "INSERT INTO topic_offsets (cluster_id, topic_id, topic, partition, next_offset, "
                f"known_since) VALUES ('{info.cluster_id}', '{info.topic_id}', '{topic}', 0, 0, "
                "now() - interval '90 days')",
                "INSERT INTO batches (id, consumer, epoch, destination, commit_number, offsets, "
                "committed_at) VALUES (gen_random_uuid(), 'processing/x', 1, 'warehouse', 1, "
                f"jsonb_build_array(jsonb_build_array('{topic}', 0, 0, 1, 1)), {old})",
            ):
                connection.execute(text(statement))
    done = CliRunner().invoke(app, ["retention", "run", "--yes"])
    assert done.exit_code == 0, done.output
    words = " ".join(done.output.split())
    assert f"commit 1 and all behind it are kept: what log {'a' * 32} of orders on n" in words
    assert f"its next run does that, or `waybill logs settle {'a' * 32}`" in words
    assert "\x1b" not in words
