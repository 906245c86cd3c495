"""What differs between two mappings."""

from __future__ import annotations

from tests.support.mapped import RULES, declared

from waybill.mappings import learn
from waybill.mappings.difference import Difference, differences


def told(before, after):
    return [(one.what, one.name, one.before, one.after) for one in differences(before, after)]


def test_the_same_has_no_differences():
    assert differences(declared(), declared()) == []


def test_everything_differs_from_nothing():
    kept = learn(declared(arrays="child"), [{"items": [{"a": 1}]}], RULES)
    assert [(one.table, one.after) for one in differences(None, kept)] == [
        ("orders", "1 column"),
        ("orders__items", "1 column"),
    ]


def test_columns_that_came_went_and_changed():
    before = declared(columns={"a": "int32", "b": "string", "c": ("int64", "old")})
    after = declared(columns={"a": "int64", "c": ("int64", "new"), "d": "json"})
    assert told(before, after) == [
        ("type", "a", "int32", "int64"),
        ("source", "c", "old", "new"),
        ("column", "d", None, "json"),
        ("column", "b", "string", None),
    ]
    assert differences(before, after)[0] == Difference("type", "orders", "a", "int32", "int64")


def test_the_events_own_fields():
    after = declared("strict", version="lsn", personal=("id",), arrays="child")
    soft = after.table.model_copy(update={"soft_delete": True, "name": "sales"})
    after = after.model_copy(update={"table": soft})
    assert told(declared(), after) == [
        ("version", "", "none", "lsn"),
        ("policy", "", "evolve", "strict"),
        ("arrays", "", "json", "child"),
        ("personal", "", "none", "id"),
        ("table", "", "shop.orders", "shop.sales"),
        ("deletes", "", "hard", "soft"),
    ]


def test_tables_of_items():
    base = declared(arrays="child")
    first = learn(base, [{"items": [{"a": 1}]}], RULES)
    more = learn(first, [{"items": [{"a": 1.5, "b": 2}], "tags": [1]}], RULES)
    assert [(one.table, *rest) for one, rest in
            zip(differences(first, more), told(first, more), strict=True)] == [
        ("orders__items", "type", "a", "int64", "decimal(28,9)"),
        ("orders__items", "column", "b", None, "int64"),
        ("orders__tags", "table", "", None, "1 column"),
    ]  # fmt: skip
    assert told(more, base)[-1] == ("table", "", "1 column", None)
