"""What events teach a declaration: new columns, wider types, tables of items; nothing is lost."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from tests.support.mapped import RULES, declared, names, types

from waybill.mappings import Given, NameRules, learn
from waybill.mappings.evolution import NamedField
from waybill.pipelines import EventDeclaration


def learned(declaration: EventDeclaration, *payloads: Any, **options: Any) -> EventDeclaration:
    """Return what is learned, and that nothing is to be learned of the same again."""
    found = learn(declaration, payloads, RULES, **options)
    assert found is not None
    assert learn(found, payloads, RULES, **options) is None
    return found


def children(declaration: EventDeclaration) -> dict[str, dict[str, str]]:
    return {
        child.name: {column.name: column.type for column in child.columns}
        for child in declaration.table.children
    }


def test_new_fields_get_nullable_columns_in_the_order_they_were_met():
    found = learned(declared(), {"id": 1, "userId": 7}, {"id": 2, "at": "2013-01-31", "userId": 8})
    assert types(found) == {"id": "int64", "user_id": "int64", "at": "date"}
    assert [column.nullable for column in found.table.columns] == [False, True, True]
    assert found.table.columns[0] == declared().table.columns[0]


@pytest.mark.parametrize("policy", ["strict", "ignore"])
def test_other_policies_learn_nothing(policy):
    assert learn(declared(policy), [{"id": 1, "new": 2}], RULES) is None


@pytest.mark.parametrize("payload", [{"id": 1}, {"id": 1, "none": None}, {}, [1], None, "text"])
def test_there_is_nothing_to_learn_of_nothing(payload):
    assert learn(declared(), [payload], RULES) is None


@pytest.mark.parametrize(
    ("before", "value", "after"),
    [
        ("int32", 2**40, "int64"),
        ("int64", 2**63, "decimal(29,0)"),
        ("int64", 1.5, "decimal(28,9)"),
        ("int32", 0.30000000000000004, "decimal(27,17)"),
        ("decimal(10,2)", 1.005, "decimal(28,9)"),
        ("decimal(10,2)", 10**30, "decimal(33,2)"),
        ("decimal(28,9)", Decimal("0.1234567891"), "decimal(29,10)"),
        ("date", "2013-01-31T05:17:00Z", "timestamp"),
    ],
)
def test_a_type_becomes_as_wide_as_its_values(before, value, after):
    found = learned(declared(columns={"v": before}), {"id": 1, "v": value})
    assert types(found)["v"] == after


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("int64", "5"),
        ("decimal(10,2)", 1.25),
        ("decimal(10,2)", 12345678),
        ("string", 5),
        ("bool", 1),
        ("timestamp", "2013-01-31"),
        ("timestamp", 5),
        ("date", "soon"),
        ("float64", Decimal("0.1234567890123456789")),
        ("decimal(38,9)", Decimal("0.1234567891")),
        ("json", {"any": "thing"}),
    ],
)
def test_what_fits_and_what_nothing_would_fit_is_left(column, value):
    assert learn(declared(columns={"v": column}), [{"id": 1, "v": value}], RULES) is None


def test_one_value_that_no_type_joins_does_not_keep_the_others_from_theirs():
    found = learned(declared(columns={"v": "int32"}), {"v": "text"}, {"v": 2**40}, {"v": True})
    assert types(found)["v"] == "int64"


def test_the_table_takes_no_more_columns_than_its_destination():
    rules = NameRules(63, folds=False, most_columns=4)
    found = learn(declared(), [{f"f{n}": n} for n in range(10)], rules)
    assert found is not None
    assert list(types(found)) == ["id", "f0", "f1", "f2"]
    assert learn(found, [{"f9": 1}], rules) is None
    wider = learn(found, [{"f9": 1, "f0": 1.5}], rules)
    assert wider is not None
    assert types(wider)["f0"] == "decimal(28,9)"


def test_a_row_with_more_new_fields_than_there_is_room_for_takes_none_from_others():
    rules = NameRules(63, folds=False, most_columns=4)
    many = {f"f{n}": n for n in range(4)}
    assert learn(declared(), [many], rules) is None
    assert list(types(learn(declared(), [many, {"mine": 1}], rules))) == ["id", "mine"]
    wider = learn(declared(columns={"id": "int64", "w": "int32"}), [{**many, "w": 2**40}], rules)
    assert types(wider) == {"id": "int64", "w": "int64"}


@pytest.mark.parametrize("field", ["a\0b", "\ud800", "x" * 1_001])
def test_fields_whose_names_the_tracker_cannot_hold_get_no_column(field):
    payload = {field: 1, "list": 1}
    assert types(learned(declared(), payload)) == {"id": "int64", "list": "int64"}
    assert learn(declared(arrays="child"), [{field: [1]}], RULES) is None


def test_objects_and_arrays_are_json_by_default():
    found = learned(declared(), {"id": 1, "a": {"b": 1}, "c": [1], "d": {}})
    assert types(found) == {"id": "int64", "a": "json", "c": "json", "d": "json"}


def test_objects_are_flattened_down_to_their_depth():
    payload = {"a": {"b": {"c": 1}}, "a.b": "x", "e": {}, "list": [1]}
    found = learned(declared(nested="flatten", depth=1), payload)
    assert types(found) == {"id": "int64", "a__b": "json", "a_b": "string", "list": "json"}
    assert names(found) == {"id": "id", "a.b": "a__b", r"a\.b": "a_b", "list": "list"}


def test_an_object_that_a_json_column_takes_whole_is_not_looked_into():
    base = declared(columns={"a": "json"}, nested="flatten")
    assert learn(base, [{"a": {"b": 1}}, {"a": {}}], RULES) is None


def test_arrays_get_tables_of_their_items():
    found = learned(
        declared(arrays="child"),
        {"items": [{"id": 1, "sku": "a", "n": {"x": 1}}, {"sku": "b", "price": 1.5}]},
        {"tags": ["x", None], "items": [], "none": [], "nulls": [None]},
    )
    assert types(found) == {"id": "int64"}
    items = {"item_id": "int64", "sku": "string", "n": "json", "price": "decimal(28,9)"}
    assert children(found) == {"orders__items": items, "orders__tags": {"value": "string"}}
    tags = found.table.children[1]
    assert (tags.source, tags.columns[0].source) == ("tags", "")


def test_items_teach_their_table_more():
    first = learned(declared(arrays="child"), {"items": [{"n": 1}]})
    found = learned(first, {"items": [{"n": 1.5, "value": "x"}, 5, {"deep": {"a": 1}}]})
    columns = found.table.children[0].columns
    assert children(found)["orders__items"] == {
        "n": "decimal(28,9)",
        "value": "string",
        columns[2].name: "int64",
        "deep": "json",
    }
    assert columns[2].source == ""
    assert columns[2].name.startswith("value_")


def test_items_are_flattened_as_the_event_is():
    base = declared(arrays="child", nested="flatten")
    found = learned(base, {"order": {"items": [{"unit": {"price": 1}}]}})
    assert children(found) == {"orders__order__items": {"unit__price": "int64"}}
    assert found.table.children[0].source == "order.items"


def test_items_that_one_json_column_takes_are_taken_whole():
    first = learned(declared(arrays="child"), {"grid": [[1, 2], [3]]})
    assert children(first) == {"orders__grid": {"value": "json"}}
    assert learn(first, [{"grid": [{"x": 1}]}], RULES) is None


def test_a_field_that_is_not_always_an_array_is_a_column():
    found = learned(declared(arrays="child"), {"v": [1]}, {"v": 2})
    assert types(found)["v"] == "json"
    assert children(found) == {}


def test_an_array_that_has_a_column_keeps_it():
    base = declared(columns={"items": "json"}, arrays="child")
    assert learn(base, [{"items": [{"a": 1}]}], RULES) is None


def test_names_given_before_come_back_and_are_given_to_nobody_else():
    given = Given(
        columns=NamedField({"userId": "customer"}, frozenset({"customer", "user_id"})),
        children=NamedField({"items": "things"}, frozenset({"things", "orders__tags"})),
        items={"items": NamedField({"sku": "article"}, frozenset({"article", "code"}))},
        tables=frozenset({"orders__lines"}),
    )
    payload = {
        "userId": 1, "user_id": 2, "items": [{"sku": 1, "code": 2}], "tags": [1], "lines": [1],
    }  # fmt: skip
    found = learned(declared(arrays="child"), payload, given=given)
    assert names(found)["userId"] == "customer"
    assert names(found)["user_id"] == "user_id_7coww2la"
    tables = {child.source: child for child in found.table.children}
    assert tables["items"].name == "things"
    assert tables["items"].columns[0].name == "article"
    assert tables["items"].columns[1].name.startswith("code_")
    assert tables["tags"].name.startswith("orders__tags_")
    assert tables["lines"].name.startswith("orders__lines_")


def test_a_name_that_a_declared_column_took_since_is_not_given_back():
    given = Given(columns=NamedField({"userId": "user_id"}, frozenset({"user_id"})))
    base = declared(columns={"user_id": ("int64", "uid")})
    found = learned(base, {"userId": 1}, given=given)
    assert names(found)["userId"].startswith("user_id_")
