"""What becomes of an event that changed, under each policy: the table of docs/mapping.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.unit.processing.made import chunk, event, faults, pipeline, rows

from waybill.events import encode
from waybill.mappings import rules_of
from waybill.pipelines import Pipeline
from waybill.processing import Chain, ChainResult, Plan, read_staged
from waybill.processing.learning import LocalLearner

PAGE = Path(__file__).resolve().parents[3] / "docs" / "mapping.md"


class Change(NamedTuple):
    """An event name with a column ``x``, and what its second event brings."""

    brings: str
    column: str
    first: Any
    data: dict[str, Any]
    strict: str
    ignore: str
    evolve: str


def same(brings: str, column: str, first: Any, data: dict[str, Any], outcome: str) -> Change:
    return Change(brings, column, first, data, outcome, outcome, outcome)


UNKNOWN, NULL, NOT_NULL = "parks: unknown_column", "maps as null", "parks: not_null_violation"
WITHOUT, LARGE = "maps without it", "parks: number_out_of_range"
MISMATCH = "parks: type_mismatch"
MATRIX = [
    Change("a new field", "int64", 1, {"x": 1, "y": 2}, UNKNOWN, WITHOUT, "adds a column"),
    Change("a new field that is null", "int64", 1, {"x": 1, "y": None}, UNKNOWN, WITHOUT, WITHOUT),
    same("a field no more", "int64", 1, {}, NULL),
    same("a `not null` field no more", "int64!", 1, {}, NOT_NULL),
    Change("a field under a new name", "int64", 1, {"y": 1}, UNKNOWN, NULL,
           "adds a column, the old one is null"),
    Change("a larger integer: int32, then 2^40", "int32", 1, {"x": 2**40}, LARGE, LARGE,
           "widens to int64"),
    Change("a larger integer: int64, then 2^63", "int64", 1, {"x": 2**63}, LARGE, LARGE,
           "widens to decimal(29,0)"),
    Change("a fraction for an integer", "int64", 1, {"x": 1.5}, MISMATCH, MISMATCH,
           "widens to decimal(28,9)"),
    Change("more digits behind the point", "decimal(10,2)", "1.25", {"x": 1.125},
           "parks: precision_lost", "parks: precision_lost", "widens to decimal(28,9)"),
    Change("a time for a date", "date", "2026-01-01", {"x": "2026-01-01T10:00:00Z"},
           "parks: timestamp_invalid", "parks: timestamp_invalid", "widens to timestamp"),
    Change("a narrower value: an integer for a decimal", "decimal(10,2)", 1.25, {"x": 1}, "maps",
           "maps", "maps, the column stays"),
    Change("a narrower value: a date for a timestamp", "timestamp", "2026-01-01T10:00:00Z",
           {"x": "2026-01-01"}, "maps", "maps", "maps, the column stays"),
    same("null for a column that takes it", "int64", 1, {"x": None}, NULL),
    same("null for a `not null` column", "int64!", 1, {"x": None}, NOT_NULL),
    same("null for a key column", "int64", 1, {"id": None, "x": 1}, "parks: mapped_key_missing"),
    same("text for a number", "int64", 1, {"x": "many"}, MISMATCH),
    same("a number for text", "string", "a", {"x": 1}, MISMATCH),
    same("an object for a scalar", "int64", 1, {"x": {"a": 1}}, MISMATCH),
]  # fmt: skip


def run_through(declared: Pipeline, *payloads: dict[str, Any]) -> ChainResult:
    """Run payloads through a chain that learns, each in a chunk of its own."""
    learner = LocalLearner(rules_of("postgres"))
    chain = Chain({"p1": Plan(declared, learner=learner)})
    for number, payload in enumerate(payloads, 1):
        chain.process(chunk([encode(event(number, {"id": number, **payload}))], number))
    return chain.result


def outcome(change: Change, policy: str) -> str:
    """Return what became of the changed event, in the table's words."""
    result = run_through(pipeline(policy=policy, x=change.column), {"x": change.first}, change.data)
    if result.failures:
        [(offset, stage, code)] = faults(result)
        assert (offset, stage) == (2, "mapping")
        return f"parks: {code}"
    *before, frame = read_staged(result.staged.finish())
    types = {column.name: column.type for column in frame.table.columns}
    row = frame.data.to_pylist()[-1]
    assert row["id"] == 2
    if before:
        assert types.keys() >= {"id", "x"}
        if "y" in types:
            return "adds a column" + ("" if row["x"] else ", the old one is null")
        assert row["x"] is not None
        return f"widens to {types['x']}"
    assert types == {"id": "int64", "x": change.column.rstrip("!")}
    if row["x"] is None:
        return NULL
    if change.data.keys() - types.keys():
        return WITHOUT
    return "maps, the column stays" if policy == "evolve" else "maps"


@pytest.mark.parametrize("policy", ["strict", "ignore", "evolve"])
@pytest.mark.parametrize("change", MATRIX, ids=lambda change: change.brings)
def test_a_changed_event_ends_as_the_table_says(change: Change, policy: str) -> None:
    assert outcome(change, policy) == getattr(change, policy)


def test_the_table_is_that_of_the_documentation() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = lines.index("| an event brings | strict | ignore | evolve |")
    table = [line.strip("| ").split(" | ") for line in lines[start + 2 :]]
    table = table[: next(n for n, cells in enumerate(table) if len(cells) != 4)]
    assert table == [[c.brings, c.strict, c.ignore, c.evolve] for c in MATRIX]


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("int64", "many", "column 'x' is int64; got str 'many'"),
        ("string", 5, "column 'x' is string; got int 5"),
        ("timestamp", True, "column 'x' is timestamp; got bool True"),
        ("bool", {"a": [1]}, "column 'x' is bool; got dict {'a': [1]}"),
        ("float64", 2**53 + 1, "column 'x' is float64; got int 9007199254740993"),
        ("int64!", None, "column 'x' is int64 and takes no null"),
    ],
)
def test_a_change_that_no_type_holds_names_column_found_and_expected(column, value, words):
    result = run_through(pipeline(policy="evolve", x=column), {"x": value})
    [failure] = result.failures
    assert (failure.fault.message, failure.fault.where) == (words, "x")
    assert rows(result) == []


def test_a_neighbour_is_mapped_by_what_was_learned_from_one_that_parks():
    declared = pipeline(policy="evolve", x="int64")
    result = run_through(declared, {"x": "no", "y": 1}, {"x": 2, "y": 2})
    assert faults(result) == [(1, "mapping", "type_mismatch")]
    assert [(row["x"], row["y"]) for row in rows(result)] == [(2, 2)]
