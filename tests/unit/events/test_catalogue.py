"""The catalogue holds every code that can park an event, each once, each with what to do."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from tests.support.error_types_page import codes_in_use

import waybill
from waybill.events import CATALOGUE, STAGES, catalogue, error_type

LIBRARY = Path(waybill.__file__).parent
CODE = r'"([a-z][a-z0-9_]+)"'
SAID = (
    re.compile(rf"ParkError\(\s*{CODE}"),
    re.compile(rf"\b(?:MappingFault|Fault)\(\s*{CODE}"),
    re.compile(rf"\bBadRow\([^\"()]*{CODE}"),
    re.compile(rf"\bcode = {CODE}"),
    re.compile(rf"\berror_(?:type|code)={CODE}"),
    re.compile(
        r'"([a-z]+(?:_[a-z]+)*_(?:violation|refused|malformed|missing|unreachable|throttled))"'
    ),
    re.compile(r'"((?:source|value|type|code|record|key|timestamp|text)_(?:[a-z]+_)*invalid)"'),
)


OTHER_NAMES = {"object_missing", "ix_notices_one_missing", "event_id_missing", "event_unknown"}
"""An action of the audit log, an index, answers of the collector."""


def codes_said() -> dict[str, list[str]]:
    """Return {code: files} of what the library's source says where a code stands."""
    found: dict[str, list[str]] = {}
    modules = (path for path in LIBRARY.rglob("*.py") if path.name != "__init__.py")
    for path in sorted(modules):
        text = path.read_text(encoding="utf-8")
        for pattern in SAID:
            for code in pattern.findall(text):
                if code not in OTHER_NAMES:
                    found.setdefault(code, []).append(str(path.relative_to(LIBRARY)))
    return found


def test_no_code_stands_twice() -> None:
    twice = [code for code, n in Counter(row.code for row in catalogue._ALL).items() if n > 1]
    assert twice == []


def test_there_are_at_least_fifty_codes() -> None:
    assert len(CATALOGUE) >= 50


def test_every_code_the_library_says_is_in_the_catalogue() -> None:
    said = codes_said()
    assert len(said) >= 20, "the patterns find nothing: this test would prove nothing"
    assert {code: files for code, files in said.items() if code not in CATALOGUE} == {}


def test_every_code_of_the_failure_tables_is_in_the_catalogue() -> None:
    from waybill.processing import failures

    assert [code for _, code in failures._BY_TYPE if code not in CATALOGUE] == []


def test_each_code_arises_somewhere_or_it_is_said_why_not() -> None:
    unused = set(CATALOGUE) - codes_in_use()
    assert unused <= set(catalogue.NOT_RAISED)
    assert set(catalogue.NOT_RAISED) <= set(CATALOGUE)
    assert all(catalogue.NOT_RAISED.values())


def test_what_may_pass_later_is_told_from_what_may_not() -> None:
    transient = {row.code for row in CATALOGUE.values() if row.transient}
    assert {"io_error", "pipeline_held", "destination_throttled", "kafka_unreachable"} <= transient
    assert not {"null_value", "unexpected_error", "segment_damaged", "type_mismatch"} & transient


def test_every_entry_has_a_stage_a_title_and_advice() -> None:
    for row in CATALOGUE.values():
        assert row.stage in (*STAGES, "any"), row.code
        assert re.fullmatch(r"[a-z][a-z0-9_]{2,40}", row.code)
        assert row.title
        assert row.advice.endswith("."), row.code


def test_an_unknown_code_is_an_unexpected_error() -> None:
    assert error_type("no such code").code == "unexpected_error"
    assert error_type("null_value").code == "null_value"
