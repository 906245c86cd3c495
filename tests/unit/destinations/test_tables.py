import pytest
from tests.unit.destinations.orders import spec_of

from waybill.destinations.adapters.postgres.schema import SPELLING, sql_type
from waybill.destinations.merging import KEPT_COLUMNS
from waybill.destinations.specs import union
from waybill.destinations.transactional import tables
from waybill.destinations.transactional.tables import ORDINARY, FoundColumn, FoundTable
from waybill.errors import InputError
from waybill.pipelines import Column, TableSpec

ID = Column(name="id", type="int64", nullable=False)


def plan(spec, table):
    return tables.plan(SPELLING, spec, table).statements


def found(**columns):
    """A table with its key, system columns, and others as (type, not null, has default)."""
    known = {"id": FoundColumn("bigint", not_null=True, has_default=False)}
    known |= {
        name: FoundColumn(sql_type(kind), not_null=True, has_default=False)
        for name, kind in KEPT_COLUMNS
    }
    known |= {
        name: FoundColumn(kind, not_null=required, has_default=default)
        for name, (kind, required, default) in columns.items()
    }
    return FoundTable(ORDINARY, known, [frozenset({"id"})])


def test_a_table_as_declared_needs_nothing():
    what = Column(name="what", type="string")
    assert plan(spec_of("t", ID, what), found(what=("text", False, False))) == []


def test_every_difference_is_one_statement():
    spec = spec_of("t", ID, Column(name="new", type="json"), Column(name="loose", type="date"))
    table = found(loose=("date", True, False), gone=("text", True, False), own=("text", True, True))
    del table.columns["_waybill_id"]
    assert plan(spec, table) == [
        'ALTER TABLE "shop"."t" ADD COLUMN IF NOT EXISTS "new" jsonb',
        'ALTER TABLE "shop"."t" ALTER COLUMN "loose" DROP NOT NULL',
        'ALTER TABLE "shop"."t" ALTER COLUMN "gone" DROP NOT NULL',
        'ALTER TABLE "shop"."t" ADD COLUMN IF NOT EXISTS "_waybill_id" text',
    ]


def test_names_are_quoted_whatever_they_hold():
    spec = spec_of('t"; DROP TABLE x; --', ID, schema='s"')
    assert plan(spec, None)[0] == 'CREATE SCHEMA IF NOT EXISTS "s"""'
    assert plan(spec, None)[1].startswith('CREATE TABLE "s"""."t""; DROP TABLE x; --" ("id" bigint')


def test_a_unique_index_on_other_columns_is_no_key():
    table = FoundTable(ORDINARY, found().columns, [frozenset({"id", "what"})])
    with pytest.raises(InputError, match=r"unique keys \['id', 'what'\], expected \['id'\]"):
        plan(spec_of("t", ID), table)


def test_the_union_of_equal_declarations_is_that_declaration():
    specs = [spec_of("t", ID), spec_of("t", ID)]
    assert union(specs) is specs[1]


def test_the_newest_declaration_gives_types_and_order_and_older_columns_stay():
    old = spec_of("t", ID, Column(name="a", type="int32"), Column(name="b", type="string",
                                                                  nullable=False))  # fmt: skip
    new = spec_of("t", Column(name="c", type="date", nullable=False), ID,
                  Column(name="a", type="int64", nullable=False))  # fmt: skip
    assert [(c.name, c.type, c.nullable) for c in union([old, new, new]).columns] == [
        ("c", "date", False),
        ("id", "int64", False),
        ("a", "int64", True),
        ("b", "string", True),
    ]


def test_the_union_has_an_arrow_schema_of_its_own():
    old, new = spec_of("t", ID, Column(name="a", type="int32")), spec_of("t", ID)
    assert new.arrow_schema().names == ["id"]
    assert union([old, new]).arrow_schema().names == ["id", "a"]


def test_declarations_with_different_keys_do_not_go_together():
    other = TableSpec(schema_name="shop", name="t", columns=(ID,), key=("id",))
    wide = TableSpec(
        schema_name="shop", name="t", columns=(ID, Column(name="b", type="date")), key=("id", "b")
    )
    with pytest.raises(InputError, match=r"found key \['id'\].*expected \['id', 'b'\]"):
        union([other, wide])
