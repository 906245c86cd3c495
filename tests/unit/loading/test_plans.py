"""Plans and reports of loads are values: they travel, and tables' reports join to a plan's."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pyarrow as pa
import pytest

from waybill.destinations import Expected, LoadOutcome, OutcomeCount
from waybill.errors import StopError
from waybill.loading import LoadPlan, LoadReport
from waybill.loading.plans import PlannedObject

PARKED = {"key": "parked/x", "size": 3, "segments": [{"last_message": "a \ud800 b", "ids": ""}]}
COUNT = OutcomeCount("p", "order", 7, in_first=3, delivered=2, parked=1)
OTHER = OutcomeCount("p", "line", 7, in_replayed=2, duplicate=2)
REPORT = LoadReport(
    3,
    (
        LoadOutcome(4, [COUNT], {"r": {"delivered": 2}}, (PARKED,), None),
        LoadOutcome(5, [], {}, (), None),
    ),
    {("shop", "orders"): 4},
    {"staged/gone": "it is \udfff gone"},
)


def test_a_report_comes_out_of_its_text_as_it_was():
    text = REPORT.to_json()
    assert text.isascii()
    assert LoadReport.from_json(text) == replace(REPORT, outcomes=REPORT.outcomes[:1])  # 5 had none


def test_a_parked_object_is_once_in_a_report():
    """One is of all commits of a load, and names all their rows: it is by far the most of it."""
    parked = {**PARKED, "segments": [{"ids": "x" * 10_000}]}
    second = {**PARKED, "key": "parked/y", "segments": [{"ids": "y" * 10_000}], "reload": 3}
    outcomes = tuple(
        LoadOutcome(n, [COUNT], {}, (parked, second) if n % 2 else (second,), None)
        for n in range(100)
    )
    report = replace(REPORT, outcomes=outcomes)
    text = report.to_json()
    assert len(text) < 2 * 10_000 + 100 * 100
    assert LoadReport.from_json(text) == report


def test_rows_stay_where_they_were_loaded():
    with_rows = replace(REPORT.outcomes[0], rows=pa.table({"event_id": ["secret-of-a-row"]}))
    text = replace(REPORT, outcomes=(with_rows,)).to_json()
    assert "secret-of-a-row" not in text
    assert LoadReport.from_json(text).outcomes[0].rows is None


def test_reports_of_tables_join_to_that_of_the_plan():
    lines = LoadReport(
        2,
        (
            LoadOutcome(
                4, [OTHER], {"r": {"delivered": 1}}, ({**PARKED, "key": "parked/y"},), None
            ),
            LoadOutcome(5, [replace(OTHER, event_name="z")], {}, (), None),
        ),
        {("shop", "lines"): 5},
        {"staged/gone": "it is \udfff gone"},
    )
    found = LoadReport.joined([REPORT, lines])
    assert found.rows == 5
    four, five = found.outcomes
    assert (four.commit_number, five.commit_number) == (4, 5)
    assert four.counts == [OTHER, COUNT]
    assert four.replays == {"r": {"delivered": 3}}
    assert [item["key"] for item in four.parked] == ["parked/x", "parked/y"]
    assert found.tables == {("shop", "orders"): 4, ("shop", "lines"): 5}
    assert found.lost == REPORT.lost


def test_a_plan_travels_with_texts_that_are_no_unicode():
    plan = LoadPlan(
        "w", (4, 5), (PlannedObject(4, "staged/a", 3, 99, 999, "b"),), Expected(3),
        park=("destination_full", "disk \ud83d full"),
    )  # fmt: skip
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert (plan.rows, plan.row_bytes) == (3, 999)


def test_a_report_that_leaves_out_rows_is_refused():
    items = (
        PlannedObject(4, "staged/a", 3, 99, 999, "b"),
        PlannedObject(5, "staged/gone", 7, 99, 999, "b"),
    )
    plan = LoadPlan("w", (4, 5), items)
    REPORT.check_whole(plan)
    for wrong in (LoadReport(), replace(REPORT, rows=2), replace(REPORT, lost={})):
        with pytest.raises(StopError, match="nothing is acknowledged"):
            wrong.check_whole(plan)
    LoadReport().check_whole(replace(plan, objects=()))
