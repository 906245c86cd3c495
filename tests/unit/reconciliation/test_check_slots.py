"""The check of what sources keep for pipelines that do not read on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from waybill.ingestion.connectors import HeldLog
from waybill.reconciliation.checks import slots

PIPELINE: Any = SimpleNamespace(id="shop-orders", name="orders")


def words(held: HeldLog | None) -> list[str]:
    return [one.words for one in slots.look(PIPELINE, held)]


def test_a_source_that_keeps_more_than_its_limit_is_told() -> None:
    assert words(None) == []
    assert words(HeldLog("slot s holds back 5 MiB", 5, 5)) == []
    (told,) = words(HeldLog("slot s holds back 6 MiB", 6, 5))
    assert told.startswith("orders: slot s holds back 6 MiB; run the pipeline")


def test_a_source_that_has_given_up_is_told_whatever_it_keeps() -> None:
    (told,) = words(HeldLog("slot s is lost", 0, 5, lost=True))
    assert "waybill pipelines reread" in told
