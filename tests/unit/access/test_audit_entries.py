"""The canonical line of an entry: exact, and the same whatever writes the JSON."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from waybill.access.audit_entries import (
    AuditLine,
    audit_lines,
    canonical_json,
    digest_lines,
    exact_json,
)


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ('{"b": 1, "a": [true, null, "é\\u0000"]}', '{"a":[true,null,"\\u00e9\\u0000"],"b":1}'),
        ("1", "1"),
        ("1.0", "1.0"),
        ("1.10", "1.10"),
        ("1e400", "1" + "0" * 400),
        ("1e-7", "0.0000001"),
        (
            "0.1234567890123456789012345678901234567890",
            "0.1234567890123456789012345678901234567890",
        ),
        ("-12345678901234567890", "-12345678901234567890"),
        ("9" * 6_000, "9" * 6_000),
    ],
)
def test_numbers_keep_all_digits_and_names_are_sorted(written: str, canonical: str) -> None:
    assert canonical_json(exact_json(written)) == canonical
    assert canonical_json(exact_json(canonical)) == canonical


def test_what_python_writes_is_the_same_text() -> None:
    value = {"who": "ann", "detail": {"n": 1, "list": [1, "2", None, False]}, "id": 7}
    assert canonical_json(value) == json.dumps(value, sort_keys=True, separators=(",", ":"))
    assert canonical_json(Decimal("1E+3")) == "1000"


def test_pages_are_read_to_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.access.audit_entries.PAGE_ENTRIES", 2)
    rows = [AuditLine(number, "x") for number in (1, 2, 4, 5, 9)]

    def read(first: int, last: int) -> list[AuditLine]:
        return [row for row in rows if first <= row.id <= last][:2]

    assert [line.id for line in audit_lines(read, 2, 5)] == [2, 4, 5]
    assert digest_lines(audit_lines(read, 1, 9))[0] == 5
