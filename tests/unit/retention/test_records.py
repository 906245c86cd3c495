"""What is deleted in Kafka is decided by positions that are newer than the look for stops."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from waybill.ledger import LastRead, TopicPosition
from waybill.retention import records
from waybill.storage import TopicInfo

SINCE = datetime(2026, 1, 1, tzinfo=UTC)
TOPIC = "events.shop.warehouse"


class Log:
    """A log of 100 records that says below which offset they were deleted."""

    def __init__(self) -> None:
        self.deleted: list[dict[int, int]] = []

    def describe(self, name: str) -> TopicInfo:
        return TopicInfo(name, "c", "t", 1)

    def topics(self) -> set[str]:
        return {TOPIC}

    def watermarks(self, topic: TopicInfo) -> dict[int, tuple[int, int]]:
        return dict.fromkeys(range(topic.partitions), (0, 100))

    def delete_records(self, _topic: str, below: dict[int, int]) -> None:
        self.deleted.append(below)


@pytest.mark.parametrize(("settled_to", "deleted"), [(25, [{0: 24}]), (0, [])])
def test_records_that_a_settlement_has_read_again_are_not_deleted(monkeypatch, settled_to, deleted):
    """The log was cut and grew again; it is settled between the first look and the deletion."""
    positions = {0: 60}

    def settle(*_given):
        positions[0] = settled_to
        return []

    def known(*_given):
        return records._Known("c", "t", {0: SINCE}, 0)

    def stands(*_given):
        return {("c", "t"): {0: TopicPosition(positions[0])}}

    monkeypatch.setattr(records, "_known", known)
    monkeypatch.setattr(records, "read_stops", lambda *_given: [])
    monkeypatch.setattr(records, "read_positions", stands)
    monkeypatch.setattr(records, "examine", settle)
    monkeypatch.setattr(records, "_ends", lambda *_given: records._Over({0: 60}, 9))
    monkeypatch.setattr(records, "_keep", lambda *_given: None)
    log = Log()
    [done] = records.trim_log(None, log, {TOPIC: "warehouse"}, kept_s=0)
    assert log.deleted == deleted
    assert not done.problem


def test_the_last_record_that_was_read_stays_before_a_transactions_marker(monkeypatch):
    """By it a log that was cut is known; the marker behind it is no record."""
    position = TopicPosition(100, LastRead(98, 1, "d", 0, 100))  # 99 is the marker
    known = records._Known("c", "t", {0: SINCE}, 0)
    monkeypatch.setattr(records, "read_stops", lambda *_: [])
    monkeypatch.setattr(records, "read_positions", lambda *_: {("c", "t"): {0: position}})
    monkeypatch.setattr(records, "examine", lambda *_: [])
    monkeypatch.setattr(records, "_known", lambda *_: known)
    monkeypatch.setattr(records, "_ends", lambda *_: records._Over({0: 100}, 9))
    monkeypatch.setattr(records, "_keep", lambda *_: None)
    log = Log()
    records.trim_log(None, log, {TOPIC: "warehouse"}, kept_s=0)
    assert log.deleted == [{0: 98}]
