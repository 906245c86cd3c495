"""A deploy laid over what was learned."""

from __future__ import annotations

import pytest
from tests.support.mapped import RULES, declared, names, types

from waybill.errors import InputError
from waybill.mappings import learn, over
from waybill.pipelines import ChildTable, Column, EventDeclaration


def taught(base: EventDeclaration, **fields: object) -> EventDeclaration:
    found = learn(base, [fields], RULES)
    assert found is not None
    return found


def test_declared_columns_come_first_and_learned_ones_stay():
    kept = taught(declared(columns={"a": "int32"}), note="x")
    found = over(declared(columns={"b": "string", "a": "int32"}), kept)
    assert list(types(found)) == ["id", "b", "a", "note"]


@pytest.mark.parametrize(
    ("new", "kept", "wider"),
    [("int32", "int64", "int64"), ("int64", "int32", "int64"), ("timestamp", "date", "timestamp")],
)
def test_a_column_has_the_wider_of_its_types(new, kept, wider):
    assert types(over(declared(columns={"v": new}), declared(columns={"v": kept})))["v"] == wider


@pytest.mark.parametrize("policy", ["strict", "ignore", "evolve"])
def test_a_type_that_nothing_joins_is_refused_with_what_to_do(policy):
    new = declared(policy, columns={"v": "string"})
    words = r"'v': expected int64, which 'orders' has already.*Declare int64, or a new column"
    with pytest.raises(InputError, match=words):
        over(new, declared(columns={"v": "int64"}))


def test_policy_key_and_table_are_those_declared():
    new = declared("ignore", columns={"v": "int64"}, personal=("v",))
    found = over(new, taught(declared(), w=1))
    assert (found.policy, found.personal) == ("ignore", ("v",))


def test_a_learned_field_that_is_declared_by_another_name_goes_there():
    kept = taught(declared(), userId=1)
    found = over(declared(columns={"customer": ("int64", "userId")}), kept)
    assert names(found) == {"id": "id", "userId": "customer"}


def test_a_declared_name_takes_over_the_column_that_was_learned_by_it():
    kept = taught(declared(), userId=1)
    found = over(declared(columns={"user_id": ("decimal(20,0)", "uid")}), kept)
    assert names(found) == {"id": "id", "uid": "user_id"}
    assert types(found)["user_id"] == "decimal(20,0)"
    twin = over(declared(columns={"User_ID": ("int64", "uid")}), kept)
    assert names(twin) == {"id": "id", "uid": "User_ID"}


@pytest.mark.parametrize(
    ("policy", "left"),
    [("evolve", ["id", "a", "b", "note"]), ("strict", ["id", "a", "note"]),
     ("ignore", ["id", "a", "note"])],
)  # fmt: skip
def test_a_column_that_is_declared_no_more(policy, left):
    before = declared(columns={"a": "int64", "b": "int64"})
    found = over(declared(policy, columns={"a": "int64"}), taught(before, note="x"), before)
    assert list(types(found)) == left
    assert all(column.nullable for column in found.table.columns[1:])


def test_what_stays_without_being_declared_takes_null():
    kept = declared()
    columns = (*kept.table.columns, Column(name="must", type="int64", nullable=False))
    table = kept.table.model_copy(update={"columns": columns})
    found = over(declared(), kept.model_copy(update={"table": table}))
    assert [c.nullable for c in found.table.columns] == [False, True]


def test_child_tables_stay_while_arrays_are_children():
    kept = taught(declared(arrays="child"), items=[{"a": 1}])
    assert over(declared(arrays="child"), kept).table.children == kept.table.children
    assert over(declared("strict", arrays="child"), kept).table.children == kept.table.children
    assert over(declared(), kept).table.children == ()
    own = over(declared(arrays="child", columns={"items": "json"}), kept)
    assert own.table.children == ()


def test_a_declared_child_has_what_its_items_taught():
    kept = taught(declared(arrays="child"), items=[{"a": 1, "b": "x"}])
    child = ChildTable(
        name="lines",
        source="items",
        columns=(Column(name="a", type="int32"), Column(name="c", type="bool")),
    )
    base = declared(arrays="child")
    new = base.model_copy(update={"table": base.table.model_copy(update={"children": (child,)})})
    found = over(new, kept).table.children
    assert [(one.name, [c.name for c in one.columns]) for one in found] == [
        ("lines", ["a", "c"]),
    ]
    same = child.model_copy(update={"name": "orders__items"})
    new = base.model_copy(update={"table": base.table.model_copy(update={"children": (same,)})})
    (joined,) = over(new, kept).table.children
    assert [(c.name, c.type) for c in joined.columns] == [
        ("a", "int64"), ("c", "bool"), ("b", "string"),
    ]  # fmt: skip


def test_a_key_that_a_child_table_could_not_have_is_refused():
    kept = taught(declared(arrays="child"), items=[{"sku": 1}])
    base = declared(arrays="child", columns={"sku": "int64"})
    table = base.table.model_copy(update={"key": ("sku",)})
    with pytest.raises(InputError, match="key column 'sku' would stand twice.*another name"):
        over(base.model_copy(update={"table": table, "key": ("sku",)}), kept)


def test_fields_are_read_as_paths_when_objects_are_flattened_from_now_on():
    kept = taught(declared(), **{"a.b": 1, "c": {"d": 1}})
    found = over(declared(nested="flatten"), kept)
    assert names(found) == {"id": "id", r"a\.b": "a_b", "c": "c"}
    # and back again; what was read from inside an object has no field any more
    back = over(declared(), taught(found, e={"f": 1}))
    assert names(back) == {"id": "id", "a.b": "a_b", "c": "c"}
