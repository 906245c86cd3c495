"""Tables follow their declarations: columns come, widen and take null; older declarations still load."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pytest
from tests.support.destined import never_park
from tests.support.warehouses import utc
from tests.unit.destinations.orders import Order, rows_of, spec_of, totals

from waybill.destinations import Commit
from waybill.errors import InputError
from waybill.pipelines import Column, TableSpec

pytestmark = pytest.mark.serves

ID = Column(name="id", type="int64", nullable=False)
DAY, MIDNIGHT = datetime.date(2026, 11, 22), utc(2026, 11, 22)
WIDENINGS = {
    "int32": ("int64", 7, 2**40),
    "int64": ("decimal(21,2)", 2**62, Decimal("1.25")),
    "decimal(10,2)": ("decimal(12,4)", Decimal("-12345678.25"), Decimal("0.0001")),
    "date": ("timestamp", DAY, utc(2026, 1, 1, 12)),
}
"""Column type to a wider one, a value of it, and one that only the wider one holds."""


def version(*more, name="orders"):
    return spec_of(name, ID, *more)


def load(destination, number, spec, orders, **values):
    return destination.load([Commit(number, (rows_of(orders, spec, **values),))], never_park)


def values(warehouse, spec, *names):
    rows = sorted(warehouse.rows(spec), key=lambda row: row["id"])
    return [tuple(row[name] for name in ("id", *names)) for row in rows]


def every(kinds, place):
    """Return a declaration with a column for each widening, and for int32 to float64."""
    columns = [Column(name=f"c{i}", type=kind) for i, kind in enumerate(kinds)]
    return version(*columns, Column(name="f", type=("int32", "float64")[place]))


def test_a_new_column_is_added_and_older_rows_have_null(destination, warehouse):
    old, new = version(), version(Column(name="note", type="string"))
    load(destination, 1, old, [Order(1, 1, 1)])
    load(destination, 2, new, [Order(2, 1, 1)], note=["new"])
    load(destination, 3, old, [Order(3, 1, 1)])
    assert values(warehouse, new, "note") == [(1, None), (2, "new"), (3, None)]


def test_a_column_that_may_be_null_now_takes_null(destination, warehouse):
    strict = version(Column(name="what", type="string", nullable=False))
    loose = version(Column(name="what", type="string"))
    load(destination, 1, strict, [Order(1, 1, 1)])
    load(destination, 2, loose, [Order(2, 1, 1, None)])
    assert values(warehouse, loose, "what") == [(1, "thing"), (2, None)]


def test_a_dropped_column_stays_and_takes_null(destination, warehouse):
    strict = version(Column(name="what", type="string", nullable=False))
    load(destination, 1, strict, [Order(1, 1, 1)])
    load(destination, 2, version(), [Order(2, 1, 1)])
    assert values(warehouse, strict, "what") == [(1, "thing"), (2, None)]


def test_columns_widen_in_place_and_narrower_declarations_still_load(destination, warehouse):
    narrow, wide = every(WIDENINGS, 0), every([w[0] for w in WIDENINGS.values()], 1)
    small = {f"c{i}": [w[1]] for i, w in enumerate(WIDENINGS.values())} | {"f": [7]}
    large = {f"c{i}": [w[2]] for i, w in enumerate(WIDENINGS.values())} | {"f": [0.5]}
    load(destination, 1, narrow, [Order(1, 1, 1)], **small)
    load(destination, 2, wide, [Order(2, 1, 1)], **large)
    kinds = {name: kind for name, kind in warehouse.types(wide).items() if name != "id"}
    assert kinds == {c.name: c.type for c in wide.columns if c.name != "id"}
    (again,) = load(destination, 3, narrow, [Order(1, 1, 2)], **small)
    assert again.rows["outcome"].to_pylist() == ["duplicate"], "the same content, of another type"
    load(warehouse.open(), 4, narrow, [Order(3, 1, 1)], **small)
    assert warehouse.types(wide) == {"id": "int64", **kinds}
    names = list(small)
    was = tuple(MIDNIGHT if v[0] == DAY else v[0] for v in small.values())
    now = tuple(v[0] for v in large.values())
    assert values(warehouse, wide, *names) == [(1, *was), (2, *now), (3, *was)]


def test_declarations_of_which_neither_is_wider_meet_in_one_that_is(destination, warehouse):
    one = version(Column(name="n", type="decimal(10,1)"))
    other = version(Column(name="n", type="decimal(8,4)"))
    load(destination, 1, one, [Order(1, 1, 1)], n=[Decimal("123456789.5")])
    load(destination, 2, other, [Order(2, 1, 1)], n=[Decimal("1234.5678")])
    assert warehouse.types(one)["n"] == "decimal(13,4)"
    assert values(warehouse, one, "n") == [(1, Decimal("123456789.5")), (2, Decimal("1234.5678"))]


def test_versions_of_a_table_in_one_load_are_joined(destination, warehouse):
    old = version(
        Column(name="gone", type="string", nullable=False), Column(name="n", type="int64")
    )
    new = version(Column(name="n", type="int32"), Column(name="note", type="string"))
    found = destination.load(
        [
            Commit(1, (rows_of([Order(1, 1, 1)], old, gone=["x"], n=[2**40]),)),
            Commit(2, (rows_of([Order(2, 1, 1)], new, n=[7], note=["y"]),)),
        ],
        never_park,
    )
    assert totals(found)["delivered"] == 2
    assert values(warehouse, old, "gone", "n", "note") == [(1, "x", 2**40, None), (2, None, 7, "y")]


@pytest.mark.parametrize(
    ("kind", "wide", "key", "wider_key"),
    [
        ("int32", "decimal(12,2)", 7, Decimal(7)),
        ("decimal(10,0)", "decimal(21,2)", Decimal(7), Decimal("7.00")),
        ("date", "timestamp", DAY, MIDNIGHT),
    ],
)
def test_a_key_that_widens_still_finds_rows_and_deletes(
    destination, warehouse, kind, wide, key, wider_key
):
    def spec(of):
        return TableSpec(
            schema_name="shop", name="keyed", columns=(Column(name="id", type=of),), key=("id",)
        )

    load(destination, 1, spec(kind), [Order(1, 5, 5, op="delete")], id=[key])
    (late,) = load(destination, 2, spec(wide), [Order(1, 1, 1)], id=[wider_key])
    assert late.rows["outcome"].to_pylist() == ["superseded"], "the delete was forgotten"
    assert warehouse.rows(spec(wide)) == []
    load(destination, 3, spec(wide), [Order(1, 6, 6)], id=[wider_key])
    (late,) = load(destination, 4, spec(kind), [Order(1, 2, 2)], id=[key])
    assert late.rows["outcome"].to_pylist() == ["superseded"]
    assert [row["id"] for row in warehouse.rows(spec(wide))] == [wider_key]
    assert warehouse.tombstones(spec(wide)) == {}


@pytest.mark.parametrize(
    ("first", "then"),
    [("int32", "string"), ("decimal(10,2)", "float64"), ("string", "bool"), ("json", "timestamp")],
)
def test_types_without_a_common_one_are_a_conflict_that_loads_nothing(
    destination, warehouse, first, then
):
    destination.ensure_table(version(Column(name="n", type=first)))
    spec = version(Column(name="n", type=then))
    with pytest.raises(InputError, match=r"shop\.orders.*'n'.*found .*expected "):
        destination.ensure_table(spec)
    with pytest.raises(InputError, match=r"column 'n'"):
        load(destination, 1, spec, [Order(1, 1, 1)], n=[None])
    assert warehouse.rows(spec) == []
    good = version(Column(name="n", type=first))
    (found,) = load(destination, 1, good, [Order(1, 1, 1)], n=[None])
    assert found.counts[0].delivered == 1, "nothing of it was kept"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (spec_of("t" * 400), "400 bytes"),
        (spec_of("t", ID, Column(name="a\0b", type="string")), "NUL"),
        (spec_of("t", ID, Column(name="_waybill_id", type="string")), "_waybill_"),
    ],
)
def test_a_name_that_cannot_be_is_refused_before_anything_is_made(
    destination, warehouse, spec, words
):
    with pytest.raises(InputError, match=words):
        destination.ensure_table(spec)
    assert warehouse.types(spec) == {}
