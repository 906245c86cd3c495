"""A dry run says exactly what a replay would come to."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterable
from typing import Any

import pytest
from tests.support.user_code import sandbox
from tests.unit.processing.made import event, pipeline

from waybill.events import Event, encode
from waybill.parking import Drawn, EventSample, ParkedEvent, Stratum
from waybill.parking.masking import MASK
from waybill.pipelines import Pipeline
from waybill.processing.dry_runner import DryRunner, Fetch
from waybill.replay.dry_run import DryRunReport, dry_run, whole

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


def tried(
    version: Pipeline,
    corpus: Iterable[ParkedEvent] | EventSample,
    *,
    timeout_s: float = 100.0,
    fetch: Fetch | None = None,
) -> DryRunReport:
    sample = corpus if isinstance(corpus, EventSample) else whole(corpus)
    return dry_run(version, DryRunner(version, code=sandbox(timeout_s), fetch=fetch), sample)


def ended(report: DryRunReport) -> tuple[int, int, int, dict[str, int]]:
    return report.events, report.would_pass, report.would_filter, report.would_fail


def test_every_event_is_counted_once_under_what_becomes_of_it() -> None:
    corpus = [doing(n, None) for n in range(7)]
    corpus += [doing(n, "filter") for n in range(10, 13)]
    corpus += [doing(n, "fail") for n in range(20, 22)]
    corpus += [doing(30, "twins"), doing(31, "half"), doing(32, "leave")]
    corpus += [parked(b"junk")]
    report = tried(pipeline(FIXED), corpus)
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
    report = tried(pipeline(FIXED), corpus)
    assert ended(report) == (12_345, 11_110, 0, {"transformation/value_error": 1_235})


def test_events_enter_at_the_stage_that_parked_them() -> None:
    code = "def transform(event): raise ValueError\n"
    corpus = [
        parked(event(1), "mapping"),
        parked(event(2), "destination"),
        parked(event(3, {"id": 3, "n": "x"}), "mapping"),
        parked(event(4), "transformation"),
    ]
    assert ended(tried(pipeline(code), corpus)) == (
        4,
        2,
        0,
        {"mapping/type_mismatch": 1, "transformation/value_error": 1},
    )


def test_a_payload_in_the_store_is_fetched_where_it_can_be() -> None:
    corpus = [parked(event(1, data_ref="payloads/p1/x"))]
    assert ended(tried(pipeline(), corpus))[3] == {"transformation/data_ref_missing": 1}
    report = tried(pipeline(), corpus, fetch=lambda key: b'{"id":1,"n":%d}' % len(key))
    assert ended(report) == (1, 1, 0, {})


def test_the_events_of_another_pipeline_are_said_to_fail() -> None:
    report = tried(pipeline(), [parked(event(1, pipeline_id="p2"))])
    assert ended(report)[3] == {"transformation/pipeline_unknown": 1}


def test_messages_of_a_report_hold_no_personal_value() -> None:
    events = [event(n, {"id": 4_000 + n, "n": n, "do": "fail"}) for n in range(3)]
    corpus = [parked(one, message=f"no such id: {one.data['id']}") for one in events]
    version = pipeline(FIXED)
    report = dry_run(version, DryRunner(version, code=sandbox()), whole(corpus), personal=("id",))
    assert report.examples == {"transformation/value_error": f"ValueError: still {MASK}"}
    assert {row["message"] for row in report.by_fingerprint.values()} == {f"no such id: {MASK}"}
    assert "400" not in str(report.to_json())


def test_nothing_parked_is_nothing() -> None:
    assert ended(tried(pipeline("not python"), [])) == (0, 0, 0, {})


def test_code_that_ends_the_interpreter_fails_its_event_only() -> None:
    code = "import os\ndef transform(event):\n    if event.data['n'] == 2: os._exit(3)\n    return event\n"
    report = tried(pipeline(code), [parked(event(n)) for n in (1, 2, 3)])
    assert (report.would_pass, report.would_fail) == (2, {"transformation/interpreter_crashed": 1})


@pytest.mark.parametrize(
    ("stuck", "way"),
    [
        ("while True: pass", "transformation_timeout"),
        ("import time; time.sleep(600)", "transformation_timeout"),
        ("sum(range(10**13))", "transformation_timeout"),
    ],
)
def test_code_without_end_fails_its_event_only(stuck: str, way: str) -> None:
    code = (
        f"def transform(event):\n    if event.data['n'] == 2:\n        {stuck}\n    return event\n"
    )
    began = time.monotonic()
    report = tried(pipeline(code), [parked(event(n)) for n in (1, 2, 3)], timeout_s=1.0)
    assert ended(report) == (3, 2, 0, {f"transformation/{way}": 1})
    assert time.monotonic() - began < 120


def test_code_that_loads_without_end_is_invalid() -> None:
    report = tried(pipeline("while True: pass\n"), [parked(event(1))], timeout_s=0.3)
    assert report.would_fail == {"transformation/code_invalid": 1}


def test_the_callers_alarms_and_threads_are_its_own() -> None:
    def struck(_number: int, _frame: Any) -> None:
        raise AssertionError("the parent was struck")

    timer = signal.getitimer(signal.ITIMER_REAL)[0]
    before = signal.signal(signal.SIGALRM, struck)
    found: list[DryRunReport] = []
    try:
        slow = "import time\ndef transform(event):\n    time.sleep(0.4)\n    return event\n"
        thread = threading.Thread(
            target=lambda: found.append(
                tried(pipeline(slow), [parked(event(n)) for n in range(3)], timeout_s=3.0)
            )
        )
        thread.start()
        thread.join(300)
        assert signal.getsignal(signal.SIGALRM) is struck
        assert (signal.getitimer(signal.ITIMER_REAL)[0] > 0) == (timer > 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert [report.would_pass for report in found] == [3]


def test_a_sample_is_weighted_by_what_its_groups_stand_for() -> None:
    many, few = Stratum("m" * 16, whole=True), Stratum("f" * 16, whole=True)
    corpus = [(many, doing(n, None)) for n in range(10)]
    corpus += [(few, doing(n, "fail" if n % 2 else None)) for n in range(20, 30)]
    for stratum, one in corpus:
        one.fingerprint = stratum.fingerprint
    strata = {many: Drawn(990, 10), few: Drawn(110, 10)}
    report = tried(pipeline(FIXED), EventSample(iter(corpus), strata))
    assert ended(report) == (1_100, 15, 0, {"transformation/value_error": 5})
    assert report.pass_rate == pytest.approx(0.9 + 0.1 * 0.5)
    assert report.low < report.pass_rate < report.high
    assert report.expected_fail == {"transformation/value_error": 55}
    assert report.by_fingerprint == {
        "m" * 16: {"message": "", "events": 990, "tried": 10, "would_pass": 10},
        "f" * 16: {"message": "", "events": 110, "tried": 10, "would_pass": 5},
    }
    assert list(report.by_fingerprint) == ["m" * 16, "f" * 16]


def test_what_was_drawn_but_not_wanted_is_not_in_the_population() -> None:
    cut = Stratum("", whole=False)
    corpus = [(cut, doing(n, None)) for n in range(5)]
    report = tried(pipeline(FIXED), EventSample(iter(corpus), {cut: Drawn(1_000, 20)}))
    assert (report.events, report.tried, report.pass_rate) == (250, 5, 1.0)


def test_all_events_tried_leave_no_doubt() -> None:
    report = tried(pipeline(FIXED), [doing(n, "fail" if n < 3 else None) for n in range(10)])
    assert (report.pass_rate, report.low, report.high) == (0.7, 0.7, 0.7)


def test_nothing_tried_says_nothing_of_the_rate() -> None:
    report = tried(pipeline(), [])
    assert (report.tried, report.low, report.high) == (0, 0.0, 1.0)
