"""All that is wrong with an event is told, the first of it decides where it parks."""

from __future__ import annotations

from typing import Any

from tests.unit.processing.made import chained, event, pipeline, table

from waybill.processing import MappingFault, map_rows


def told(fault: MappingFault) -> list[tuple[str, str]]:
    return [(one.code, one.where) for one in (fault, *fault.others)]


def test_every_column_at_fault_is_told_in_the_order_of_the_table() -> None:
    spec = table(a="int64", b="timestamp!", c="int32")
    rows: list[Any] = [
        {"id": 1, "a": "x", "b": None, "c": 2**40},
        {"id": 2, "a": 1, "b": "2013-01-01", "c": 3},
        {"id": None, "a": 1, "b": "soon"},
        {"id": 4, "a": "x", "b": "2013-01-01"},
    ]
    batch, faults = map_rows(spec, rows, policy="strict")
    assert batch.column("id").to_pylist() == [2]
    assert {index: told(fault) for index, fault in faults.items()} == {
        0: [("type_mismatch", "a"), ("not_null_violation", "b"), ("number_out_of_range", "c")],
        2: [("mapped_key_missing", "id"), ("timestamp_invalid", "b")],
        3: [("type_mismatch", "a")],
    }


def test_a_row_with_unknown_fields_is_looked_at_column_by_column_as_well() -> None:
    rows: list[Any] = [{"id": 1, "n": "x", "more": 1, "less": 2}, 5, {"id": 2, "n": 2}]
    batch, faults = map_rows(table(n="int64"), rows, policy="strict")
    assert batch.column("id").to_pylist() == [2]
    assert told(faults[0]) == [
        ("unknown_column", "more"),
        ("unknown_column", "less"),
        ("type_mismatch", "n"),
    ]
    assert told(faults[1]) == [("not_an_object", "")]


def test_of_very_many_unknown_fields_some_are_named_and_all_are_counted() -> None:
    row: dict[str, Any] = {"id": 1} | {f"f{n}": n for n in range(100_000)}
    _, faults = map_rows(table(n="int64"), [row], policy="strict")
    assert len(faults[0].others) == 15
    assert "nor have 99984 fields more" in faults[0].others[-1].message


def test_what_is_parked_has_all_of_it_under_the_first() -> None:
    made = pipeline(n="int64", m="int64")
    [failure] = chained(made, [event(1, {"id": 1, "n": "x", "m": "y"})]).failures
    assert failure.fault.code == "type_mismatch"
    assert [(one.code, one.where) for one in failure.fault.others] == [("type_mismatch", "m")]
    assert failure.fault.where == "n"
