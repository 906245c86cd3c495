"""What tasks tell the driver of new fields: bounded, whatever names events bring."""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st

from waybill.mappings import LearnedField, LearnedFields
from waybill.processing.spark.learning_reports import report_of, reports_by_name

READING = ("json", 8, "json")
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=1_000)


def fields(*names: str) -> LearnedFields:
    return LearnedFields(READING, tuple(LearnedField(None, name, "int64") for name in names))


@given(st.lists(st.lists(NAMES, min_size=1, max_size=30), min_size=1, max_size=8))
def test_a_report_is_no_larger_than_it_may_be_and_each_name_has_something(names):
    learned = [("p1", f"event {place}", fields(*found)) for place, found in enumerate(names)]
    report, more = report_of(learned, most_bytes=4_000)
    assert [name for _, name, _ in report] == [name for _, name, _ in learned]
    one_each = sum(len(orjson.dumps(found[0])) + 32 for found in names)
    assert (
        sum(len(orjson.dumps(list(f))) for *_, (_, kept) in report for f in kept)
        <= 4_000 + one_each
    )
    assert more is any(len(k) < len(f) for f, (_, _, (_, k)) in zip(names, report, strict=True))
    for found, (_, _, (_, kept)) in zip(names, report, strict=True):
        assert [field[1] for field in kept] == found[: len(kept)]
        assert kept


def test_what_is_small_is_told_whole_and_comes_together_by_event_name():
    learned = [("p2", "b", fields("x", "y")), ("p1", "c", fields("z"))]
    told = {"learned": orjson.loads(orjson.dumps(report_of(learned)[0]))}
    also = {"learned": orjson.loads(orjson.dumps(report_of([("p1", "c", fields("é", ""))])[0]))}
    assert reports_by_name([told, {"counts": []}, also]) == {
        ("p1", "c"): [fields("z"), fields("é", "")],
        ("p2", "b"): [fields("x", "y")],
    }
    assert list(reports_by_name([told])) == [("p1", "c"), ("p2", "b")]


def test_a_report_of_more_names_than_it_takes_says_that_it_is_cut():
    learned = [("p1", f"event {place}", fields("x")) for place in range(101)]
    assert report_of(learned[:100])[1] is False
    report, more = report_of(learned)
    assert (len(report), more) == (100, True)
