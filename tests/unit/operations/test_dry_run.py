"""A dry run says exactly what a replay would come to."""

from __future__ import annotations

from typing import Any

from tests.unit.stages.made import event, pipeline

from waybill.events import Event, encode
from waybill.operations.dry_run import DryRunReport, dry_run
from waybill.parking import ParkedEvent

FIXED = """
def transform(event):
    do = event.data.pop("do", None)
    if do == "filter": return None
    if do == "fail": raise ValueError("still " + str(event.data["id"]))
    if do == "leave": raise SystemExit
    if do == "twins":
        return [event.child(i, {"id": i, "n": "text"}) for i in range(2)]
    if do == "half":
        return [event.child(0, {"id": 1, "n": 1}), event.child(1, {"id": 2, "n": "text"})]
    return event
"""


def parked(value: Event | bytes, stage: str = "transformation", **changes: Any) -> ParkedEvent:
    values: dict[str, Any] = {
        "pipeline_id": "p1",
        "event_name": "order",
        "stage": stage,
        "error_type": "value_error",
        "message": "",
        "where": "",
        "stack_hash": "",
        "pipeline_version": "v",
        "event_at": "2026-01-01T00:00:00Z",
        "parked_at": "2026-01-01T00:00:00Z",
        "topic": "t",
        "kafka_partition": 0,
        "kafka_offset": 0,
        "attempt": 0,
        "value": value if isinstance(value, bytes) else encode(value),
    }
    return ParkedEvent(**{**values, **changes})


def doing(number: int, do: str | None) -> ParkedEvent:
    return parked(event(number, {"id": number, "n": number, "do": do}))


def ended(report: DryRunReport) -> tuple[int, int, int, dict[str, int]]:
    return report.events, report.would_pass, report.would_filter, report.would_fail


def test_every_event_is_counted_once_under_what_becomes_of_it() -> None:
    corpus = [doing(n, None) for n in range(7)]
    corpus += [doing(n, "filter") for n in range(10, 13)]
    corpus += [doing(n, "fail") for n in range(20, 22)]
    corpus += [doing(30, "twins"), doing(31, "half"), doing(32, "leave")]
    corpus += [parked(b"junk")]
    report = dry_run(pipeline(FIXED), corpus)
    assert ended(report) == (
        16,
        7,
        3,
        {
            "transformation/value_error": 2,
            "mapping/type_mismatch": 2,
            "transformation/interpreter_crashed": 1,
            "transformation/envelope_not_json": 1,
        },
    )
    assert report.examples["transformation/value_error"] == "ValueError: still 20"
    assert report.to_json()["version"] == pipeline(FIXED).version


def test_more_events_than_one_piece_holds_are_counted_exactly() -> None:
    corpus = (doing(n, "fail" if n % 10 == 3 else None) for n in range(12_345))
    report = dry_run(pipeline(FIXED), corpus)
    assert ended(report) == (12_345, 11_110, 0, {"transformation/value_error": 1_235})


def test_events_enter_at_the_stage_that_parked_them() -> None:
    code = "def transform(event): raise ValueError\n"
    corpus = [
        parked(event(1), "mapping"),
        parked(event(2), "destination"),
        parked(event(3, {"id": 3, "n": "x"}), "mapping"),
        parked(event(4), "transformation"),
    ]
    assert ended(dry_run(pipeline(code), corpus)) == (
        4,
        2,
        0,
        {"mapping/type_mismatch": 1, "transformation/value_error": 1},
    )


def test_a_payload_in_the_store_is_fetched_where_it_can_be() -> None:
    corpus = [parked(event(1, data_ref="payloads/x"))]
    assert ended(dry_run(pipeline(), corpus))[3] == {"transformation/data_ref_missing": 1}
    report = dry_run(pipeline(), corpus, fetch=lambda key: b'{"id":1,"n":%d}' % len(key))
    assert ended(report) == (1, 1, 0, {})


def test_the_events_of_another_pipeline_are_said_to_fail() -> None:
    report = dry_run(pipeline(), [parked(event(1, pipeline_id="p2"))])
    assert ended(report)[3] == {"transformation/pipeline_unknown": 1}


def test_nothing_parked_is_nothing() -> None:
    assert ended(dry_run(pipeline("not python"), [])) == (0, 0, 0, {})


def test_code_that_ends_the_interpreter_fails_its_event_only() -> None:
    code = "import os\ndef transform(event):\n    if event.data['n'] == 2: os._exit(3)\n    return event\n"
    report = dry_run(pipeline(code), [parked(event(n)) for n in (1, 2, 3)])
    assert (report.would_pass, report.would_fail) == (2, {"transformation/interpreter_crashed": 1})
