"""What grows: each table of the tracker is named, with who trims it, in the code and in the docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from waybill.retention import GROWTH, TRIMS
from waybill.settings import RetentionSettings
from waybill.storage.tracker.tables import METADATA

ROOT = Path(__file__).resolve().parents[3]
ELSEWHERE = {
    "audit_minutes": "reconciliation/queue.py",
    "audit_rounds": "reconciliation/queue.py",
    "cluster_assignments": "clusters/records.py",
    "capacity_acks": "capacity/records.py",
    "capacity_nodes": "capacity/records.py",
    "capacity_rounds": "capacity/records.py",
    "capacity_versions": "capacity/records.py",
    "cluster_loads": "clusters/records.py",
    "delivered_minutes": "ledger/balance.py",
    "notice_messages": "notices/outbox.py",
    "notices": "notices/outbox.py",
    "parked_objects": "retention/rows.py",
    "replay_entries": "retention/rows.py",
    "replay_outcomes": "retention/rows.py",
    "task_waits": "capacity/records.py",
    "team_loads": "clusters/records.py",
    "topic_looks": "clusters/records.py",
}
"""Tables that others trim, or that go with another one: where the statement is."""


def test_every_table_says_by_what_it_grows_and_who_trims_it():
    assert GROWTH.keys() == METADATA.tables.keys()
    trimmed = {name for name, one in GROWTH.items() if not one.lasts}
    assert trimmed == {*TRIMS, *ELSEWHERE, "trace_queries"}
    for name, path in ELSEWHERE.items():
        source = (ROOT / "include" / "waybill" / path).read_text(encoding="utf-8")
        assert re.search(rf"\bFROM {name}\b", source), name


def test_the_table_of_the_docs_is_the_one_of_the_code():
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \|$", page, re.MULTILINE)
    said = {name: (by, trimmed) for name, by, trimmed in rows if name in METADATA.tables}
    assert said == {name: (one.by, one.trimmed) for name, one in GROWTH.items()}


def test_what_others_ask_for_is_kept_as_long_as_they_are():
    with pytest.raises(ValidationError, match="WAYBILL_RETENTION__LOG_DAYS is 3, less than"):
        RetentionSettings(log_days=3)
    with pytest.raises(ValidationError, match=r"STAGED_DAYS \(60\): set it to 60 or more"):
        RetentionSettings(staged_days=60)
    with pytest.raises(ValidationError, match="BOOKS_DAYS is 80, less than"):
        RetentionSettings(books_days=80)
    assert RetentionSettings(staged_days=0, log_days=0, payloads_days=0).log_days == 0
