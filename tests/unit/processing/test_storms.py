"""When a batch is a storm, and when it is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from tests.unit.processing.made import chained, event, pipeline

from waybill.events import Event
from waybill.processing import ChainResult, Counts
from waybill.processing.storms import Storm, Tally, find_storms

BROKEN = """
def transform(event):
    do = event.data.pop("do", None)
    if do == "filter": return None
    if do == "fail": raise ValueError("no number: " + event.id)
    if do == "look":
        return {}["nothing"]
    if do == "many":
        return [event.child(i, {"id": i, "n": "text" if i == 0 else i}) for i in range(4)]
    return event
"""


def doing(
    *wanted: tuple[int, str | None], pipeline_id: str = "p1", attempt: int = 0
) -> list[Event]:
    """Return so many events of each kind."""
    kinds = [do for number, do in wanted for _ in range(number)]
    return [
        event(n, {"id": n, "n": n, "do": do}, pipeline_id=pipeline_id, attempt=attempt)
        for n, do in enumerate(kinds)
    ]


def storms_of(
    *tasks: Sequence[Event], share: float = 0.5, min_events: int = 10, held: Sequence[str] = ()
) -> list[Storm]:
    """Run each task's events, send its numbers as a task does, and look for storms."""
    known = {"p1", "p2"}
    plans = [pipeline(BROKEN, ident=ident) for ident in sorted(known)]
    results: list[ChainResult] = [chained(plans, events, held=held) for events in tasks]
    counts, rows = Counts(), list[Any]()
    for result in results:
        counts.merge(result.counts)
        rows += tallied(result, known)
    return find_storms(counts, rows, share=share, min_events=min_events)


def tallied(result: ChainResult, known: set[str]) -> list[Any]:
    """Return the rows that a task sends, of failures that came in two chunks."""
    tally, middle = Tally(known), len(result.failures) // 2
    tally.add(result.failures[:middle])
    tally.add(result.failures[middle:])
    rows: list[Any] = orjson.loads(orjson.dumps(tally.rows()))
    return rows


def test_more_than_the_share_for_one_cause_is_a_storm() -> None:
    [storm] = storms_of(doing((6, "fail"), (4, None)))
    assert (storm.pipeline_id, storm.stage, storm.error_type) == (
        "p1", "transformation", "value_error",
    )  # fmt: skip
    assert (storm.failed, storm.events) == (6, 10)
    assert storm.place == "name-of-p1/transformation.py:5 in transform"
    assert storm.message == "ValueError: no number: e0"


def test_exactly_the_share_is_none() -> None:
    assert storms_of(doing((5, "fail"), (5, None))) == []


def test_two_causes_do_not_add_up_though_together_they_are_all() -> None:
    assert storms_of(doing((5, "fail"), (5, "look"))) == []


def test_a_batch_with_few_events_of_the_pipeline_is_none() -> None:
    assert storms_of(doing((9, "fail"))) == []
    assert len(storms_of(doing((10, "fail")))) == 1


def test_what_no_task_sees_alone_is_seen_over_all_of_them() -> None:
    assert storms_of(doing((5, "fail"), (4, None))) == []
    [storm] = storms_of(doing((5, "fail"), (4, None)), doing((4, "fail"), (2, None)))
    assert (storm.failed, storm.events) == (9, 15)


def test_a_neighbours_storm_is_its_own() -> None:
    mine = doing((100, None), (5, "fail"))
    [storm] = storms_of(mine + doing((10, "fail"), pipeline_id="p2"))
    assert (storm.pipeline_id, storm.events) == ("p2", 10)


def test_what_is_filtered_counts_as_come() -> None:
    assert storms_of(doing((6, "filter"), (5, "fail"))) == []


def test_one_bad_child_of_each_event_is_measured_by_all_children() -> None:
    assert storms_of(doing((10, "many"))) == [], "10 of 40"


def test_a_storm_of_the_mapping_names_the_column() -> None:
    bad = [event(n, {"id": n, "n": "text"}) for n in range(9)]
    [storm] = storms_of([*bad, event(9), event(10)])
    assert (storm.stage, storm.error_type, storm.place) == ("mapping", "type_mismatch", "n")


def test_replays_that_fail_again_hold_nothing_and_hide_nothing() -> None:
    again = doing((1000, "fail"), attempt=1)
    assert storms_of(again + doing((20, None))) == []
    good = doing((1000, None), attempt=1)
    [storm] = storms_of(good + doing((20, "fail")))
    assert (storm.failed, storm.events) == (20, 20)


def test_a_share_of_nothing_switches_it_off() -> None:
    assert storms_of(doing((10, "fail")), share=0) == []


def test_what_is_held_is_no_storm_again() -> None:
    assert storms_of(doing((10, "fail")), held=["p1"]) == []


def test_events_of_a_pipeline_that_is_not_deployed_are_no_storm() -> None:
    assert storms_of(doing((10, None), pipeline_id="gone")) == []


def test_a_task_names_the_commonest_causes_only_and_any_text_can_be_sent() -> None:
    code = """
from waybill.errors import ParkError
def transform(event):
    n = event.data["n"]
    place = "p" + str(n % 30) if n < 900 else "\\x00\\ud800"
    raise ParkError("record_invalid", "\\x00\\ud800", where=place)
"""
    rows = tallied(chained(pipeline(code), [event(n) for n in range(1000)]), {"p1"})
    assert len(rows) == 20
    assert rows[0] == ["p1", "transformation", "record_invalid", "\\0\\ud800", "\\0\\ud800", 100]
