"""The check of topics whose old generation drains for long."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from waybill.ledger import TopicGeneration
from waybill.reconciliation.checks import WatchLimits, draining

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
PIPELINES: dict[str, Any] = {
    name: SimpleNamespace(id=name, name=name, team=team, destination="w")
    for name, team in (("orders", "shop"), ("fast", "shop"), ("other", "else"))
}
LIMITS = WatchLimits(late_of_pipelines={"fast": {"transformation": 60.0}})


def found(minutes: float, *logs: str) -> dict[str, str]:
    since = NOW - timedelta(minutes=minutes)
    one = TopicGeneration("events.shop.w", 1, state="draining", draining_since=since)
    told = draining.look([(one, logs)], PIPELINES, LIMITS, NOW)
    return {finding.pipeline_id: finding.words for finding in told}


def test_a_generation_that_drains_beyond_a_pipelines_objective_is_told_with_what_it_waits_for() -> (
    None
):
    assert found(0.5, "log a") == {}
    assert found(5, "log a").keys() == {"fast"}
    told = found(11, "log a", "log b")
    assert told.keys() == {"orders", "fast"}
    assert "events.shop.w drains for 11 min" in told["orders"]
    assert "it waits for log a; log b." in told["orders"]
    assert "processing is not through" in found(11)["orders"]
