"""Values come through unchanged, whatever their type, and under any name."""

from __future__ import annotations

import datetime
import json
import math
from decimal import Decimal

import pytest
from tests.support.destined import load, never_park
from tests.support.warehouses import utc
from tests.unit.destinations.orders import Order, rows_of, spec_of

from waybill.destinations import Commit
from waybill.mappings.naming import rules_of
from waybill.pipelines import ChildTable, Column, TableSpec

pytestmark = pytest.mark.serves

TYPES = {
    "a bool": "bool",
    "int32": "int32",
    "int64": "int64",
    '"quoted"': "float64",
    "decimal": "decimal(38,9)",
    "whole": "decimal(38,0)",
    "select": "string",
    "Straße 漢字 🙂": "timestamp",
    "a'b": "date",
    "bytes": "bytes",
    "json": "json",
}
VALUES = {
    "id": [-(2**63), 0, 2**63 - 1],
    "a bool": [True, False, None],
    "int32": [-(2**31), 2**31 - 1, None],
    "int64": [-(2**63), 2**63 - 1, None],
    '"quoted"': [0.1, 1.7976931348623157e308, None],
    "decimal": [Decimal("12345678901234567890123456789.123456789"), Decimal("-0.000000001"), None],
    "whole": [Decimal(10**38 - 1), Decimal(-(10**38) + 1), None],
    "select": ["", "ünï 🙂 'quote' \"double\" \\back \n\t,", None],
    "Straße 漢字 🙂": [utc(1, 1, 1), utc(9999, 12, 31, 23, 59, 59, 999_999), None],
    "a'b": [datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None],
    "bytes": [b"", b"\x00\xff\\x41", None],
    "json": ['{"a": [1, 2.50, "\\"", null], "big": 123456789012345678901234567890}', '""', None],
}


def every_type(name="every type") -> TableSpec:
    columns = [Column(name="id", type="int64")]
    columns += [Column(name=column, type=kind) for column, kind in TYPES.items()]
    return TableSpec(schema_name="shop", name=name, columns=tuple(columns), key=("id",))


def every_row(intake):
    return rows_of([Order(i, 1, intake) for i in range(3)], every_type(), **VALUES)


def test_every_type_and_any_name_come_through_unchanged(destination, warehouse):
    (found,) = destination.load([Commit(1, (every_row(1),))], never_park)
    assert found.counts[0].delivered == 3
    rows = sorted(warehouse.rows(every_type()), key=lambda row: row["id"])
    got = {name: [row[name] for row in rows] for name in VALUES}
    documents, given = got.pop("json"), dict(VALUES)
    assert [d if d is None else json.loads(d) for d in documents] == [
        d if d is None else json.loads(d) for d in given.pop("json")
    ]
    assert "123456789012345678901234567890" in documents[0]
    assert got == given
    (again,) = destination.load([Commit(2, (every_row(2),))], never_park)
    assert again.counts[0].duplicate == 3, "content is compared exactly, for every type"


def test_a_change_of_any_one_column_is_a_change(destination):
    """Each column compares: the same source version with another value there is delivered."""
    destination.load([Commit(1, (every_row(1),))], never_park)
    for number, name in enumerate(TYPES, start=2):
        values = {**VALUES, name: [VALUES[name][1], VALUES[name][0], None]}
        rows = rows_of([Order(i, 1, number * 2) for i in range(3)], every_type(), **values)
        (found,) = destination.load([Commit(number * 2, (rows,))], never_park)
        assert (found.counts[0].delivered, found.counts[0].duplicate) == (2, 1), name
        back = rows_of([Order(i, 1, number * 2 + 1) for i in range(3)], every_type(), **VALUES)
        destination.load([Commit(number * 2 + 1, (back,))], never_park)


def test_floats_that_are_no_numbers_come_through_and_are_equal_to_themselves(
    destination, warehouse
):
    spec = spec_of("floats", Column(name="id", type="int64"), Column(name="f", type="float64"))
    values = [math.nan, math.inf, -math.inf, -0.0, 5e-324]
    for number, outcome in ((1, "delivered"), (2, "duplicate")):
        rows = rows_of([Order(i, 1, number) for i in range(5)], spec, f=values)
        (found,) = destination.load([Commit(number, (rows,))], never_park)
        assert found.rows["outcome"].to_pylist() == [outcome] * 5
    got = [row["f"] for row in sorted(warehouse.rows(spec), key=lambda row: row["id"])]
    assert [repr(f) for f in got] == [repr(f) for f in values]


KEYS = {
    "string": ("a'b\n漢", ""),
    "bytes": (b"\x00\xff", b""),
    "decimal(38,9)": (Decimal("12345678901234567890123456789.123456789"), Decimal(0)),
    "timestamp": (utc(2026, 1, 1, 0, 0, 0, 1), utc(2026, 1, 1)),
    "date": (datetime.date(2026, 1, 1), datetime.date(1, 1, 1)),
    "bool": (True, False),
    "float64": (0.1, -0.0),
}


def test_keys_of_any_type_find_their_rows(destination, warehouse):
    specs = {
        kind: TableSpec(
            schema_name="shop",
            name=f"keyed {number}",
            columns=(Column(name="id", type=kind), Column(name="n", type="int32")),
            key=("id", "n"),
        )
        for number, kind in enumerate(KEYS)
    }

    def go(number, *orders):
        """Load the same orders into a table a type; return what became of them, for each alike."""
        rows = [
            rows_of(orders, spec, id=list(KEYS[kind])[: len(orders)], n=[1, 2][: len(orders)])
            for kind, spec in specs.items()
        ]
        (found,) = destination.load([Commit(number, tuple(rows))], never_park)
        return found.rows["outcome"].to_pylist()

    def every(*outcomes):
        return list(outcomes) * len(KEYS)

    assert go(1, Order(1, 1, 1), Order(2, 1, 1)) == every("delivered", "delivered")
    assert go(2, Order(1, 0, 9), Order(2, 2, 2)) == every("superseded", "delivered")
    assert go(3, Order(1, 3, 3, op="delete")) == every("delivered")
    for kind, spec in specs.items():
        assert [(row["id"], row["n"]) for row in warehouse.rows(spec)] == [(KEYS[kind][1], 2)]
        assert len(warehouse.tombstones(spec)) == 1
    assert go(4, Order(1, 2, 9)) == every("superseded")
    assert go(5, Order(1, 4, 4)) == every("delivered")
    assert all(warehouse.tombstones(spec) == {} for spec in specs.values())


HOSTILE = [
    't"; DROP TABLE x; --',
    "it's",
    "select",
    "a.b/c\\d",
    "tab\tline\nend",
    "漢字 🙂",
    "%s $1 {x} :y ?",
    "UPPER and lower",
    " ",
    "../../etc",
    "a" * 60,
]


def test_a_hostile_name_is_a_name(destination, warehouse):
    """Of a table, of a column, and of the key."""
    assert max(len(name.encode()) for name in HOSTILE) <= rules_of(warehouse.kind).longest
    specs = {
        name: TableSpec(
            schema_name="shop",
            name=name,
            columns=(Column(name=name, type="int64"), Column(name=f"{name}2", type="string")),
            key=(name,),
        )
        for name in HOSTILE
    }

    def go(number, order, text):
        """Load an order into the table of each name; return what became of them."""
        rows = [
            rows_of([order], spec, **{name: [order.id], f"{name}2": [text]})
            for name, spec in specs.items()
        ]
        (found,) = destination.load([Commit(number, tuple(rows))], never_park)
        return set(found.rows["outcome"].to_pylist())

    assert go(1, Order(1, 1, 1), "a") == {"delivered"}
    assert go(2, Order(1, 1, 2), "b") == {"delivered"}
    assert go(3, Order(1, 1, 3), "b") == {"duplicate"}
    for name, spec in specs.items():
        (row,) = warehouse.rows(spec)
        assert (row[name], row[f"{name}2"]) == (1, "b")
    assert go(4, Order(1, 2, 1, op="delete"), None) == {"delivered"}
    assert not any(warehouse.rows(spec) for spec in specs.values())
    assert all(len(warehouse.tombstones(spec)) == 1 for spec in specs.values())


OWN_NAMES = (
    "at as_new current_timestamp deleted file gone intake item k0 key known m met n op outcome place "
    "prev row rows s source stage t touch winner x"
).split()
"""What the statements and joins of a load call columns and tables of their own, or an engine does."""


@pytest.mark.parametrize("spell", [str.lower, str.upper], ids=["lower", "UPPER"])
def test_a_column_may_have_any_name_that_loads_use_themselves(destination, warehouse, spell):
    """Such names are of all columns of a key in one table, of all others in the other."""
    names = [spell(name) for name in OWN_NAMES]
    own = [Column(name=name, type="int64") for name in names]
    text = Column(name="v", type="string")
    keyed = TableSpec(schema_name="shop", name="keyed", columns=(*own, text), key=tuple(names))
    free = spec_of("free", Column(name="id", type="int64"), *own, text)

    def go(number, *orders):
        """Load the same orders into both tables; return what became of them, for each alike."""
        texts = [o.what for o in orders]
        keys = {name: [10 * o.id + place for o in orders] for place, name in enumerate(names)}
        same = {name: [7 + place for _ in orders] for place, name in enumerate(names)}
        rows = (rows_of(orders, free, v=texts, **same), rows_of(orders, keyed, v=texts, **keys))
        (found,) = destination.load([Commit(number, rows)], never_park)
        outcomes = found.rows["outcome"].to_pylist()
        assert outcomes[: len(orders)] == outcomes[len(orders) :]
        return outcomes[: len(orders)]

    new = [Order(i, 1, i, what) for i, what in ((1, "a"), (2, "b"), (3, "c"))]
    assert go(1, *new) == ["delivered"] * 3
    again = [Order(1, 1, 11, "a"), Order(2, 1, 12, "changed"), Order(3, 1, 13, "c")]
    assert go(2, *again) == ["duplicate", "delivered", "duplicate"]
    later = [Order(1, 2, 20, "x"), Order(1, 3, 21, "y"), Order(2, 2, 22, None, op="delete")]
    assert go(3, *later) == ["superseded", "delivered", "delivered"]
    assert go(4, Order(2, 1, 30, "late"), Order(3, 1, 31, "c")) == ["superseded", "duplicate"]
    assert sorted((row["id"], row["v"]) for row in warehouse.rows(free)) == [(1, "y"), (3, "c")]
    found = sorted((row[names[0]], row["v"]) for row in warehouse.rows(keyed))
    assert found == [(10, "y"), (30, "c")]


def test_zero_is_one_key_whatever_its_sign(destination, warehouse):
    columns = (Column(name="id", type="float64"), Column(name="v", type="string"))
    items = ChildTable(name="items", source="items", columns=(Column(name="sku", type="string"),))
    plain = TableSpec(schema_name="shop", name="plain", columns=columns, key=("id",))
    parent = TableSpec(
        schema_name="shop", name="parent", columns=columns, key=("id",), children=(items,)
    )

    def go(number, order, key):
        values = {"id": [key], "v": [order.what], items.arrow_name: [[{"sku": order.what}]]}
        rows = (rows_of([order], parent, **values), rows_of([order], plain, **values))
        (found,) = destination.load([Commit(number, rows)], never_park)
        held = [sorted(row["v"] for row in warehouse.rows(spec)) for spec in (parent, plain)]
        held.append([row["sku"] for row in warehouse.rows(parent, "items")])
        assert held[0] == held[1] == held[2]
        return set(found.rows["outcome"].to_pylist()), held[0]

    assert go(1, Order(1, 1, 1, "a"), 0.0) == ({"delivered"}, ["a"])
    assert go(2, Order(1, 2, 2, "b"), -0.0) == ({"delivered"}, ["b"])
    assert go(3, Order(1, 3, 3, "gone", op="delete"), -0.0) == ({"delivered"}, [])
    assert go(4, Order(1, 1, 4, "late"), 0.0) == ({"superseded"}, [])
    assert go(5, Order(1, 4, 5, "c"), 0.0) == ({"delivered"}, ["c"])
    assert go(6, Order(1, 5, 6, "gone", op="delete"), 0.0) == ({"delivered"}, [])
    assert go(7, Order(1, 4, 7, "late"), -0.0) == ({"superseded"}, [])
    orders, signs = [Order(1, 7, 8, "old"), Order(1, 8, 9, "new")], [-0.0, 0.0]
    rows = rows_of(orders, plain, id=signs, v=["old", "new"])
    (found,) = destination.load([Commit(8, (rows,))], never_park)
    assert found.rows["outcome"].to_pylist() == ["superseded", "delivered"]
    assert [row["v"] for row in warehouse.rows(plain)] == ["new"]


def test_a_hostile_name_of_a_destination_is_a_name(warehouse):
    for name in ("it's; DROP", '"', "../..", "漢 🙂"):
        (found,) = load(warehouse.open(name), [Order(1, 1, 1)])
        (again,) = load(warehouse.open(name), [Order(1, 1, 1)])
        assert (found.rows is None, again.rows is None) == (False, True)
