"""``waybill pipelines history``: versions, and when, by whom and why a pipeline was undeployed."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from typer.testing import CliRunner

from waybill import services
from waybill.cli import app
from waybill.deployment import DeployedVersion, PastUndeployment

MORNING, NOON, EVENING = (datetime(2026, 11, 28, hour, tzinfo=UTC) for hour in (9, 12, 18))
OLD = DeployedVersion("o", 1, "0fe460dfc505", MORNING, "ann", "/pipelines/orders")
NEW = DeployedVersion("o", 2, "0fe460dfc505", EVENING, "ben", "/pipelines/orders")
GONE = PastUndeployment(1, NOON, "cleo", "nobody reads [red]it", False, NOON)


def history(
    monkeypatch: pytest.MonkeyPatch, versions: list[Any], undeployments: list[Any]
) -> tuple[list[list[str]], Any]:
    """Return the lines of the table, cut where two blanks are, and what --json has."""
    monkeypatch.setattr(services, "deploy_history", lambda *_: versions)
    monkeypatch.setattr(services, "past_undeployments", lambda *_: undeployments)
    shown = CliRunner().invoke(app, ["pipelines", "history", "orders"], env={"COLUMNS": "300"})
    assert shown.exit_code == 0, shown.output
    lines = [[one.strip() for one in line.split("  ") if one] for line in shown.stdout.splitlines()]
    as_json = CliRunner().invoke(app, ["pipelines", "history", "orders", "--json"])
    return lines[2:], json.loads(as_json.stdout)


def test_an_undeployed_pipeline_has_no_active_version_and_says_who_when_and_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (newest, oldest), [version] = history(monkeypatch, [OLD], [GONE])
    assert {"cleo", "2026-11-28 12:00", "undeployed: nobody reads [red]it"} <= {*newest}
    assert "active" not in oldest
    assert version["active"] is False
    [undeployed] = version["undeployments"]
    assert (undeployed["asked_by"], undeployed["asked_at"]) == ("cleo", "2026-11-28T12:00:00Z")
    assert undeployed["why"] == "nobody reads [red]it"


def test_an_undeployment_stays_in_the_history_of_what_was_deployed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (newest, gone, oldest), versions = history(monkeypatch, [NEW, OLD], [GONE])
    assert {"2", "active"} <= {*newest}
    assert "undeployed: nobody reads [red]it" in gone
    assert "active" not in oldest
    assert [one["active"] for one in versions] == [True, False]
    assert [len(one["undeployments"]) for one in versions] == [0, 1]


def test_how_far_an_undeployment_came_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    drains = PastUndeployment(1, NOON, "cleo", "", False)
    [newest, _], [version] = history(monkeypatch, [OLD], [drains])
    assert "is being undeployed" in newest
    assert version["undeployments"][0]["done_at"] is None
    [_, taken_back, _], _ = history(monkeypatch, [NEW, OLD], [drains])
    assert "undeployment begun, ended by a deploy" in taken_back
    dropped = PastUndeployment(1, NOON, "cleo", "old", True, NOON, ("shop.orders",))
    [newest, _], _ = history(monkeypatch, [OLD], [dropped])
    assert "undeployed, shop.orders dropped: old" in newest
