"""Objects flattened, arrays as items of child tables: exactly, or parked by name."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from tests.unit.processing.made import chunk, event, rows

from waybill.events import encode
from waybill.mappings import rules_of
from waybill.pipelines import ChildTable, Column, EventDeclaration, Pipeline, Source, TableSpec
from waybill.processing import Chain, ChainResult, Plan, read_staged
from waybill.processing.learning import LocalLearner
from waybill.processing.mapping import Mapper, Reading

SEED = 23
ITEMS = "_waybill_items_order_items"


def declared(
    columns: dict[str, Any] | None = None,
    children: dict[str, tuple[str, dict[str, Any]]] | None = None,
    **fields: Any,
) -> EventDeclaration:
    """Return event ``order``; columns and children's columns by name: a type, or (type, source)."""
    made = TableSpec(
        schema_name="s",
        name="order",
        columns=(Column(name="id", type="int64", nullable=False), *_columns(columns or {})),
        key=("id",),
        children=tuple(
            ChildTable(name=name, source=source, columns=_columns(inner))
            for name, (source, inner) in (children or {}).items()
        ),
    )
    return EventDeclaration(name="order", key=("id",), table=made, **fields)


def _columns(said: dict[str, Any]) -> tuple[Column, ...]:
    pairs = {name: (kind, name) if isinstance(kind, str) else kind for name, kind in said.items()}
    return tuple(
        Column(name=name, type=kind.rstrip("!"), nullable=not kind.endswith("!"), source=source)
        for name, (kind, source) in pairs.items()
    )


def mapped(one: EventDeclaration, *payloads: Any, by_column: bool = False) -> Any:
    """Return the rows that fit, and the messages of the others by index."""
    batch, faults = Mapper(one.table, Reading.of(one, by_column=by_column)).map(payloads)
    batch.validate(full=True)
    assert batch.schema == one.table.arrow_schema()
    return batch.to_pylist(), {
        index: [(f.code, f.where, f.message) for f in (fault, *fault.others)]
        for index, fault in faults.items()
    }


def chained(one: EventDeclaration, *payloads: Any, learn: bool = True) -> ChainResult:
    """Run payloads through a chain, each in a chunk of its own."""
    pipeline = Pipeline(
        id="p1", name="p", team="team", owner="o@example.com",
        source=Source(connector="csv", event="order", path="x.csv"), events={"order": one},
        transformation_code="def transform(event):\n    return event\n",
        destination="warehouse", schema_name="s",
    )  # fmt: skip
    learner = LocalLearner(rules_of("postgres")) if learn else None
    chain = Chain({"p1": Plan(pipeline, learner=learner)})
    for number, payload in enumerate(payloads, 1):
        chain.process(chunk([encode(event(number, {"id": number, **payload}))], number))
    return chain.result


def test_fields_inside_objects_are_read_by_their_path():
    one = declared({"city": ("string", "a.city"), "odd": ("int64", "b\\.c"), "x": ("int64", "x.y.z")},
                   nested="flatten")  # fmt: skip
    payload = {"id": 1, "a": {"city": "Bonn"}, "b.c": 2, "x": {"y": {"z": 3}}}
    assert mapped(one, payload) == ([{"id": 1, "city": "Bonn", "odd": 2, "x": 3}], {})


def test_what_lies_deeper_than_the_depth_is_one_field():
    one = declared({"x": ("json", "x.y")}, nested="flatten", depth=1)
    rows_, faults = mapped(one, {"id": 1, "x": {"y": {"z": {"a": 1}}}})
    assert (rows_[0]["x"], faults) == ('{"z":{"a":1}}', {})


def test_a_json_column_takes_an_object_whole_where_no_column_is_inside_of_it():
    one = declared({"a": "json", "b": "json", "c": ("int64", "b.c")}, nested="flatten")
    payload = {"id": 1, "a": {"x": 1, "y": {}}, "b": {"c": 2}}
    assert mapped(one, payload, {"id": 2, "a": {}, "b": [1]}) == (
        [
            {"id": 1, "a": '{"x":1,"y":{}}', "b": None, "c": 2},
            {"id": 2, "a": "{}", "b": "[1]", "c": None},
        ],
        {},
    )


def test_an_unknown_field_inside_an_object_is_named_by_its_path():
    _, faults = mapped(
        declared({"x": ("int64", "a.x")}, nested="flatten"), {"id": 1, "a": {"y": 1}}
    )
    assert faults == {0: [("unknown_column", "a.y", "field 'a.y' has no column in 'order'")]}


def test_an_object_where_a_value_was_is_new_fields_where_it_is_flattened():
    one = declared({"a": "int64"}, policy="evolve", nested="flatten")
    found = rows(chained(one, {"a": 5}, {"a": {"b": 1}}, {"a": {}}, {"a": [1]}))
    assert [(row["a"], row.get("a__b")) for row in found] == [(5, None), (None, 1), (None, None)]
    strict = declared({"a": "int64"}, nested="flatten")
    assert mapped(strict, {"id": 1, "a": {"b": 1}})[1][0][0][:2] == ("unknown_column", "a.b")


def test_items_are_a_list_of_structs_and_empty_where_there_are_none():
    one = declared(children={"order_items": ("items", {"sku": "string", "n": ("int64", "many")})})
    payloads = [
        {"id": 1, "items": [{"sku": "a", "many": 1}, {"sku": None}, None]},
        {"id": 2},
        {"id": 3, "items": None},
        {"id": 4, "items": []},
        {"id": 5, "items": [{}]},
    ]
    found, faults = mapped(one, *payloads)
    assert faults == {}
    nothing = {"sku": None, "n": None}
    assert [row[ITEMS] for row in found] == [
        [{"sku": "a", "n": 1}, nothing, nothing],
        [],
        [],
        [],
        [nothing],
    ]


def test_items_that_are_no_objects_have_one_column():
    one = declared(children={"order_items": ("tags", {"tag": ("string", "")})})
    found, faults = mapped(one, {"id": 1, "tags": ["a", None, "b"]}, {"id": 2, "tags": ["c", 4]})
    assert [row[ITEMS] for row in found] == [[{"tag": "a"}, {"tag": None}, {"tag": "b"}]]
    assert faults == {1: [("type_mismatch", "order_items.tag",
        "'order_items' item 1: column 'tag' is string; got int 4")]}  # fmt: skip


def test_a_single_json_column_takes_any_item_whole():
    one = declared(children={"order_items": ("tags", {"item": ("json", "")})})
    found, faults = mapped(one, {"id": 1, "tags": [{"a": 1}, [2], "c"]})
    assert (found[0][ITEMS], faults) == (
        [{"item": '{"a":1}'}, {"item": "[2]"}, {"item": '"c"'}],
        {},
    )


def test_a_fault_inside_an_item_names_table_item_and_column_and_its_neighbours_go_on():
    one = declared({"x": "int64"}, {"order_items": ("items", {"sku": "string!", "n": "int64"})})
    good = {"sku": "a", "n": 1}
    found, faults = mapped(
        one,
        {"id": 1, "items": [good, good]},
        {"id": 2, "items": []},
        {"id": 3, "x": "no", "items": [good, {"sku": "b", "n": "many"}, {"n": 2}]},
        {"id": 4, "items": "none"},
        {"id": 5, "items": [good, {"sku": "c", "size": 4}]},
        {"id": 6, "items": [good, 7]},
        {"id": 7, "items": [good]},
    )
    assert [(row["id"], len(row[ITEMS])) for row in found] == [(1, 2), (2, 0), (7, 1)]
    table = "order_items"
    assert faults == {
        2: [
            ("type_mismatch", "x", "column 'x' is int64; got str 'no'"),
            ("type_mismatch", f"{table}.n",
             f"'{table}' item 1: column 'n' is int64; got str 'many'"),
            ("not_null_violation", f"{table}.sku",
             f"'{table}' item 2: column 'sku' is string and takes no null"),
        ],
        3: [("type_mismatch", "items", f"field 'items' is str, not an array of items for '{table}'")],
        4: [("unknown_column", f"{table}.size", f"'{table}' item 1: field 'size' has no column")],
        5: [
            ("type_mismatch", table, f"'{table}' item 1: the item is int, not an object"),
            ("not_null_violation", f"{table}.sku",
             f"'{table}' item 1: column 'sku' is string and takes no null"),
        ],
    }  # fmt: skip


def test_of_many_faults_of_items_the_first_are_told_and_the_rest_counted():
    one = declared(children={"order_items": ("items", {"n": "int64"})})
    _, faults = mapped(one, {"id": 1, "items": [{"n": "x"}] * 100})
    assert len(faults[0]) == 16
    assert faults[0][-1][2].endswith("item 15: column 'n' is int64; got str 'x', and so are 84 values more")  # fmt: skip


def test_the_policy_is_that_of_items_too():
    children = {"order_items": ("items", {"n": "int64"})}
    payload = {"items": [{"n": 1, "new": "a"}, {"n": 2**63}]}
    assert [f.fault.code for f in chained(declared(children=children), payload).failures] == [
        "unknown_column"
    ]
    [kept] = rows(
        chained(declared(children=children, policy="ignore"), {"items": [{"n": 1, "y": 2}]})
    )
    assert kept[ITEMS] == [{"n": 1}]
    [learned] = rows(chained(declared(children=children, policy="evolve"), payload))
    assert learned[ITEMS] == [{"n": 1, "new": "a"}, {"n": 2**63, "new": None}]


def test_arrays_get_tables_of_their_own_only_by_choice():
    payload = {"tags": ["a"], "items": [{"n": 1}], "nothing": [], "nulls": [None], "e": {}}
    [as_json] = rows(chained(declared(policy="evolve"), payload))
    assert (as_json["tags"], as_json["items"], as_json["nothing"]) == ('["a"]', '[{"n":1}]', "[]")
    result = chained(declared(policy="evolve", nested="flatten", arrays="child"), payload)
    [frame] = read_staged(result.staged.finish())
    assert [(child.name, child.source) for child in frame.table.children] == [
        ("order__tags", "tags"),
        ("order__items", "items"),
    ]
    assert [column.name for column in frame.table.columns] == ["id"], "nothing is no column"


def test_rows_that_a_destination_refused_come_back_with_their_items():
    one = declared(
        {"city": ("string", "a.city")},
        {"order_items": ("items", {"sku": ("string", "x.sku"), "item": ("int64", "")})},
        policy="evolve",
        nested="flatten",
    )
    row = {"id": 1, "city": "Bonn", ITEMS: [{"sku": "a", "item": 2**62}, {"sku": None}]}
    [back], faults = mapped(one, row, by_column=True)
    assert faults == {}
    assert back[ITEMS] == [{"sku": "a", "item": 2**62}, {"sku": None, "item": None}]
    _, faults = mapped(one, {"id": 1, "a.city": "Bonn"}, by_column=True)
    assert faults[0][0][:2] == ("unknown_column", "a.city")


EXACT = {
    "big": 2**63,
    "least": -(2**63),
    "long": Decimal("12345678901234567890.123456789012345678"),
    "tenth": 0.1,
    "zoned": "2026-03-29T02:30:00.123456+01:00",
    "text": "é💥 007",
}


def test_nothing_is_lost_on_the_way_into_flattened_columns_and_items():
    one = declared(policy="evolve", nested="flatten", arrays="child")
    result = chained(one, {"a": {"b": EXACT}, "items": [EXACT, {"big": 1}]})
    [row] = rows(result)
    expected = EXACT | {
        "big": Decimal(2**63),
        "tenth": Decimal("0.1"),
        "zoned": datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=UTC),
    }
    assert {name: row[f"a__b__{name}"] for name in EXACT} == expected
    assert row["_waybill_items_order__items"][0] == expected
    assert row["_waybill_items_order__items"][1] == dict.fromkeys(EXACT) | {"big": 1}


def test_bytes_of_a_declared_item_are_bytes():
    one = declared(children={"order_items": ("items", {"raw": "bytes", "m": "decimal(38,10)"})})
    found, _ = mapped(one, {"id": 1, "items": [{"raw": "AP9A", "m": "1." + "1" * 10}]})
    assert found[0][ITEMS] == [{"raw": b"\0\xff@", "m": Decimal("1." + "1" * 10)}]


def test_any_mixture_of_arrays_is_mapped_as_item_by_item():
    """Against one payload at a time: lists of structs keep to their rows, whoever parks."""
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    one = declared(
        children={
            "order_items": ("items", {"n": "int64!", "s": "string"}),
            "order_tags": ("tags", {"tag": ("int32", "")}),
        }
    )
    things: list[Any] = [
        None,
        {},
        {"n": 1},
        {"n": "x"},
        {"n": 2, "s": "y"},
        5,
        "t",
        {"q": 1},
        2**40,
    ]
    payloads = []
    for number in range(300):
        row: dict[str, Any] = {"id": number}
        for name in ("items", "tags"):
            if chance.random() < 0.8:
                row[name] = [chance.choice(things) for _ in range(chance.choice((0, 0, 1, 1, 4)))]
        payloads.append(row)
    together, faults = mapped(one, *payloads)
    apart = [mapped(one, payload) for payload in payloads]
    assert together == [row for found, _ in apart for row in found]
    assert faults == {n: found[0] for n, (_, found) in enumerate(apart) if found}
    assert 20 < len(together) < 280


def test_flattening_does_not_end_on_deep_or_odd_payloads():
    deep: Any = 1
    for _ in range(60):
        deep = {"a": deep}
    one = declared({"x": "int64"}, nested="flatten", depth=32, policy="evolve")
    result = chained(one, {"x": 1, "deep": deep, "": {"": 2}, "a": {"b": {}}})
    assert [f.fault.code for f in result.failures] == []
    [row] = rows(result)
    assert row["x"] == 1
    [name] = [name for name in row if name.startswith("deep")]
    assert row[name] == '{"a":' * 28 + "1" + "}" * 28
