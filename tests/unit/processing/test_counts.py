"""Counts add up, and survive a trip as JSON."""

from __future__ import annotations

from waybill.processing import Counts
from waybill.storage.tracker.tables import COUNT_COLUMNS


def test_the_counters_are_the_columns_of_the_books() -> None:
    from waybill.processing import COUNT_NAMES

    assert COUNT_NAMES == COUNT_COLUMNS


def test_adding_minutes_is_adding_one_by_one() -> None:
    one, many = Counts(), Counts()
    for minute in (5, 6, 5):
        one.add(("p", "n", "mapping", minute), "passed")
    many.add_minutes("p", "n", "mapping", "passed", {5: 2, 6: 1})
    assert one.to_json() == many.to_json()
    assert one.to_json()[0] == ["p", "n", "mapping", 5, [0, 0, 2, 0, 0, 0, 0, 0]]


def test_counts_survive_json_and_merge() -> None:
    counts = Counts()
    counts.add(("p", "n", "mapping", 1), "in_first", 3)
    counts.add(("q", "", "staged", 2), "in_replayed")
    again = Counts.from_json(counts.to_json())
    again.merge(counts)
    assert again.total("in_first") == 6
    assert again.total("in_replayed", stage="staged") == 2
    assert again.total("in_replayed", stage="mapping") == 0
    assert counts.total("in_first") == 3, "merging must not change what is merged in"


def test_packed_rows_are_by_pipeline() -> None:
    counts = Counts()
    for pipeline in ("b", "a"):
        for stage in ("staged", "mapping"):
            counts.add((pipeline, "n", stage, 1), "out")
    assert [(name, [row[1] for row in rows]) for name, rows in counts.by_pipeline()] == [
        ("a", ["mapping", "staged"]),
        ("b", ["mapping", "staged"]),
    ]
