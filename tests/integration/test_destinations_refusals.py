"""Rows that PostgreSQL refuses park alone; their neighbours go on."""

from __future__ import annotations

import datetime
import random
import time
from decimal import Decimal

import psycopg
import pyarrow as pa
import pytest
from tests.unit.destinations.orders import (
    Order,
    clean_database,
    commit_of,
    rows_of,
    spec_of,
    totals,
)

from waybill.destinations import Commit, open_destination
from waybill.events import CATALOGUE, Event, decode, encode
from waybill.pipelines import Column, TableSpec
from waybill.settings import DestinationSettings
from waybill.stages.mapping import map_rows

pytestmark = pytest.mark.serves


@pytest.fixture
def dsn(postgres):
    return clean_database(postgres)


@pytest.fixture
def destination(dsn):
    with open_destination("warehouse", DestinationSettings(dsn=dsn)) as opened:
        opened.ensure_table(spec_of())
        yield opened


class Park:
    """Keeps what it is given."""

    def __init__(self):
        self.calls = []

    def __call__(self, refused):
        self.calls.append(list(refused))
        return {"key": f"parked-{len(self.calls)}"}

    @property
    def rows(self):
        (rows,) = self.calls
        return rows


@pytest.fixture
def park():
    return Park()


def ask(dsn, query):
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(query)
        return cursor.fetchall() if cursor.description else []


def held(dsn):
    return {row[0]: row[1] for row in ask(dsn, "SELECT id, what FROM shop.orders")}


def check(dsn, condition="what <> 'bad'"):
    ask(dsn, f"ALTER TABLE shop.orders ADD CONSTRAINT no_bad CHECK ({condition})")


def test_refused_rows_park_with_all_that_a_replay_needs(destination, dsn, park):
    check(dsn)
    orders = [Order(i, 1, 100 + i, "bad" if i in (3, 700) else "good") for i in range(1_000)]
    commits = [commit_of(1, orders[:500]), commit_of(2, orders[500:]), commit_of(3, [])]
    found = destination.load(commits, park)
    assert sorted(held(dsn)) == [i for i in range(1_000) if i not in (3, 700)]
    assert [(r.commit_number, r.event_id) for r in park.rows] == [(1, "3/1/103"), (2, "700/1/800")]
    assert [o.parked for o in found] == [{"key": "parked-1"}, {"key": "parked-1"}, None]
    assert totals(found) | {"delivered": 998, "parked": 2} == totals(found)
    first = park.rows[0]
    assert first.row == {"id": 3, "what": "bad", "price": None}
    assert (first.pipeline_id, first.event_name, first.key) == ("shop-orders", "order", "[3]")
    assert (first.source_version, first.intake_version, first.op) == (1, 103, "upsert")
    assert first.table == "shop.orders"
    assert "no_bad" in first.message
    again = destination.load(commits, park)
    assert [o.parked for o in again] == [o.parked for o in found]
    assert len(park.calls) == 1


def test_a_replayed_refused_row_is_delivered_once_the_cause_is_gone(destination, dsn, park):
    check(dsn)
    destination.load([commit_of(1, [Order(1, 1, 1, "bad")])], park)
    ask(dsn, "ALTER TABLE shop.orders DROP CONSTRAINT no_bad")
    (found,) = destination.load([commit_of(2, [Order(1, 1, 1, "bad", replayed=True)])], park)
    assert (found.counts[0].in_replayed, found.counts[0].delivered) == (1, 1)


def test_a_row_that_lost_only_to_a_refused_one_is_delivered(destination, dsn, park):
    check(dsn)
    versions = ["one", "two", "bad", "bad"]
    orders = [Order(1, i, i, what) for i, what in enumerate(versions)]
    (found,) = destination.load([commit_of(1, [*orders, Order(2, 1, 1, "other")])], park)
    assert held(dsn) == {1: "two", 2: "other"}
    outcomes = found.rows["outcome"].to_pylist()
    assert outcomes == ["superseded", "delivered", "parked", "parked", "delivered"]


def test_a_delete_that_lost_to_a_refused_row_still_leaves_its_tombstone(destination, dsn, park):
    check(dsn)
    destination.load([commit_of(1, [Order(1, 1, 1, "here")])], park)
    orders = [Order(1, 2, 2, None, op="delete"), Order(1, 3, 3, "bad")]
    destination.load([commit_of(2, orders)], park)
    (found,) = destination.load([commit_of(3, [Order(1, 1, 5, "late")])], park)
    assert found.rows["outcome"].to_pylist() == ["superseded"]
    assert held(dsn) == {}


def test_a_deleted_key_whose_newer_row_is_refused_stays_deleted(destination, dsn, park):
    check(dsn)
    destination.load([commit_of(1, [Order(1, 2, 2, None, op="delete")])], park)
    destination.load([commit_of(2, [Order(1, 3, 3, "bad")])], park)
    (found,) = destination.load([commit_of(3, [Order(1, 1, 5, "late")])], park)
    assert found.rows["outcome"].to_pylist() == ["superseded"]


def codes(park):
    assert all(CATALOGUE[row.error_code].stage == "destination" for row in park.rows)
    return {row.event_id.partition("/")[0]: row.error_code for row in park.rows}


def test_each_kind_of_violation_has_its_error_type(destination, dsn, park):
    check(dsn)
    ask(dsn, "CREATE UNIQUE INDEX ON shop.orders (price)")
    ask(dsn, "CREATE TABLE shop.things (what text PRIMARY KEY)")
    ask(dsn, "INSERT INTO shop.things VALUES ('thing'), ('bad')")
    ask(dsn, "ALTER TABLE shop.orders ADD FOREIGN KEY (what) REFERENCES shop.things")
    orders = [
        Order(1, 1, 1, price=Decimal(5)),
        Order(2, 1, 1, price=Decimal(5)),
        Order(3, 1, 1, "nothing"),
        Order(4, 1, 1, "bad"),
        Order(5, 1, 1, "a\0b"),
        Order(6, 1, 1),
    ]
    (found,) = destination.load([commit_of(1, orders)], park)
    assert codes(park) == {
        "2": "destination_unique_violation",
        "3": "destination_foreign_key_violation",
        "4": "destination_check_violation",
        "5": "destination_value_refused",
    }
    assert "(price)=(5.00) already exists" in park.rows[0].message
    assert found.rows["outcome"].to_pylist() == ["delivered", *["parked"] * 4, "delivered"]


def test_a_key_without_value_and_a_column_that_takes_no_null_are_refused(destination, dsn, park):
    spec = spec_of(
        "strict",
        Column(name="id", type="int64"),
        Column(name="what", type="string", nullable=False),
    )
    orders = [Order(1, 1, 1), Order(2, 1, 1), Order(3, 1, 1, None)]
    rows = rows_of(orders, spec, id=[1, None, 3], what=["a", "b", None])
    (found,) = destination.load([Commit(1, (rows,))], park)
    assert codes(park) == dict.fromkeys("23", "destination_not_null_violation")
    assert found.counts[0].delivered == 1


def test_a_constraint_that_waits_for_the_commit_still_parks_the_row_alone(destination, dsn, park):
    ask(
        dsn,
        "ALTER TABLE shop.orders ADD CONSTRAINT later UNIQUE (what) DEFERRABLE INITIALLY DEFERRED",
    )
    orders = [Order(1, 1, 1, "a"), Order(2, 1, 1, "a"), Order(3, 1, 1, "b")]
    destination.load([commit_of(1, orders)], park)
    assert held(dsn) == {1: "a", 3: "b"}
    assert codes(park) == {"2": "destination_unique_violation"}


def test_a_value_set_free_earlier_in_the_batch_may_be_taken_later(destination, dsn, park):
    ask(dsn, "CREATE UNIQUE INDEX ON shop.orders (what)")
    destination.load([commit_of(1, [Order(1, 1, 1, "a"), Order(9, 1, 1, "z")])], park)
    batch = [Order(1, 2, 2, None, op="delete"), Order(2, 1, 1, "a"), Order(3, 1, 1, "z")]
    destination.load([commit_of(2, batch)], park)
    assert held(dsn) == {2: "a", 9: "z"}
    assert codes(park) == {"3": "destination_unique_violation"}


def test_a_delete_that_others_refer_to_is_refused_and_leaves_no_tombstone(destination, dsn, park):
    destination.load([commit_of(1, [Order(1, 1, 1), Order(2, 1, 1)])], park)
    ask(dsn, "CREATE TABLE shop.parts (of bigint REFERENCES shop.orders)")
    ask(dsn, "INSERT INTO shop.parts VALUES (1)")
    batch = [Order(i, 2, 2, None, op="delete") for i in (1, 2)]
    destination.load([commit_of(2, batch)], park)
    assert list(held(dsn)) == [1]
    assert codes(park) == {"1": "destination_foreign_key_violation"}
    assert park.rows[0].op == "delete"
    assert ask(dsn, "SELECT key FROM waybill._waybill_tombstones") == [("[2]",)]


def test_a_trigger_that_raises_refuses_its_row(destination, dsn, park):
    ask(
        dsn,
        "CREATE FUNCTION shop.no() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF new.id = 2 THEN RAISE EXCEPTION 'not two'; END IF; RETURN new; END $$",
    )
    ask(dsn, "CREATE TRIGGER no BEFORE INSERT ON shop.orders EXECUTE FUNCTION shop.no()")
    ask(dsn, "DROP TRIGGER no ON shop.orders")
    ask(
        dsn,
        "CREATE TRIGGER no BEFORE INSERT ON shop.orders FOR EACH ROW EXECUTE FUNCTION shop.no()",
    )
    destination.load([commit_of(1, [Order(i, 1, 1) for i in (1, 2, 3)])], park)
    assert list(held(dsn)) == [1, 3]
    assert (codes(park), park.rows[0].message) == ({"2": "destination_check_violation"}, "not two")


def test_a_key_too_large_for_an_index_parks_alone(destination, dsn, park):
    draw = random.Random(1)
    large = "".join(chr(draw.randint(0x4E00, 0x9FFF)) for _ in range(4_000))
    ask(dsn, "CREATE INDEX ON shop.orders (what)")
    destination.load([commit_of(1, [Order(1, 1, 1, large), Order(2, 1, 1)])], park)
    assert list(held(dsn)) == [2]
    assert codes(park) == {"1": "destination_value_refused"}


EVERY_TYPE = TableSpec(
    schema_name="shop",
    name="every type",
    columns=(
        Column(name="id", type="int64"),
        Column(name="a bool", type="bool"),
        Column(name="int32", type="int32"),
        Column(name='"quoted"', type="float64"),
        Column(name="decimal", type="decimal(38,9)"),
        Column(name="select", type="string"),
        Column(name="Straße 漢字 🙂", type="timestamp"),
        Column(name="a'b", type="date"),
        Column(name="bytes", type="bytes"),
        Column(name="json", type="json"),
    ),
    key=("id",),
)
VALUES = {
    "id": [-(2**63), 0, 2**63 - 1],
    "a bool": [True, False, None],
    "int32": [-(2**31), 2**31 - 1, None],
    '"quoted"': [0.1, 1.7976931348623157e308, None],
    "decimal": [
        Decimal("12345678901234567890123456789.123456789"),
        Decimal("-0.000000001"),
        None,
    ],
    "select": ["", "ünï 🙂 'quote' \"double\" \\back \n\t,", None],
    "Straße 漢字 🙂": [
        datetime.datetime(1, 1, 1, tzinfo=datetime.UTC),
        datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999, datetime.UTC),
        None,
    ],
    "a'b": [datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None],
    "bytes": [b"", b"\x00\xff\\x41", None],
    "json": ['{"a": [1, 2.50, "\\"", null], "big": 123456789012345678901234567890}', '""', None],
}


def every_type():
    return rows_of([Order(i, 1, 1) for i in range(3)], EVERY_TYPE, **VALUES)


def test_every_type_and_any_name_come_through_unchanged(destination, dsn, park):
    (found,) = destination.load([Commit(1, (every_type(),))], park)
    assert found.counts[0].delivered == 3
    names = [c.name for c in EVERY_TYPE.columns]
    quoted = ", ".join('"' + name.replace('"', '""') + '"' for name in names[:-1])
    with psycopg.connect(dsn) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        rows = connection.execute(
            f'SELECT {quoted}, json::text FROM shop."every type" ORDER BY id'  # noqa: S608
        ).fetchall()
    got = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    assert got.pop("json") == [
        '{"a": [1, 2.50, "\\"", null], "big": 123456789012345678901234567890}',
        '""',
        None,
    ]
    assert got == {name: values for name, values in VALUES.items() if name != "json"}
    (again,) = destination.load([Commit(2, (every_type_later(),))], park)
    assert again.counts[0].duplicate == 3, "content is compared exactly, for every type"


def every_type_later():
    return rows_of([Order(i, 1, 2) for i in range(3)], EVERY_TYPE, **VALUES)


def test_refused_rows_of_every_type_come_back_the_same_through_the_envelope(destination, dsn, park):
    destination.ensure_table(EVERY_TYPE)
    ask(dsn, 'ALTER TABLE shop."every type" ADD CHECK (id IS NULL)')
    rows = every_type()
    destination.load([Commit(1, (rows,))], park)
    payloads = []
    for row in park.rows:
        event = Event(row.event_id, row.pipeline_id, "t", row.event_name, row.key, 1, 1, 1, "", {})
        event.data = row.row
        payloads.append(decode(encode(event)).data)
    batch, faults = map_rows(EVERY_TYPE, payloads, policy="strict", by_column=True)
    assert faults == {}
    again = pa.Table.from_batches([batch])
    for name in again.column_names:
        if name != "json":
            assert again[name].to_pylist() == rows.data[name].to_pylist(), name
    assert again["json"].to_pylist()[1:] == ['""', None]
    assert "123456789012345678901234567890" in again["json"][0].as_py()


def test_what_jsonb_cannot_hold_is_refused_alone(destination, dsn, park):
    spec = spec_of("documents", Column(name="id", type="int64"), Column(name="doc", type="json"))
    docs = ['{"a": 1}', '"\\u0000"', '"\\ud800"', "[]"]
    rows = rows_of([Order(i, 1, 1) for i in range(4)], spec, doc=docs)
    destination.load([Commit(1, (rows,))], park)
    assert codes(park) == dict.fromkeys("12", "destination_value_refused")
    assert len(ask(dsn, "SELECT * FROM shop.documents")) == 2
    assert park.rows[0].row["doc"] == "\0"


def test_times_before_all_history_are_refused_and_shown(destination, park):
    spec = spec_of("times", Column(name="id", type="int64"), Column(name="at", type="timestamp"))
    rows = rows_of([Order(i, 1, 1) for i in range(2)], spec, at=[-(2**62) - 2**61, 0])
    (found,) = destination.load([Commit(1, (rows,))], park)
    assert codes(park) == {"0": "destination_value_refused"}
    assert found.counts[0].delivered == 1
    assert isinstance(park.rows[0].row["at"], str)


def test_a_batch_where_every_row_is_refused_ends_soon(destination, dsn, park):
    check(dsn)
    began = time.monotonic()
    destination.load([commit_of(1, [Order(i, 1, 1, "bad") for i in range(5_000)])], park)
    destination.load([commit_of(2, [Order(i, 1, 1, "a\0") for i in range(5_000)])], park)
    assert [len(rows) for rows in park.calls] == [5_000, 5_000]
    assert held(dsn) == {}
    assert time.monotonic() - began < 30


def test_a_thousand_refused_rows_among_twenty_thousand_are_found(destination, dsn, park):
    check(dsn)
    orders = [Order(i, 1, 1, "good" if i % 20 else "bad") for i in range(20_000)]
    (found,) = destination.load([commit_of(1, orders)], park)
    assert totals([found]) | {"delivered": 19_000, "parked": 1_000} == totals([found])
    assert len(held(dsn)) == 19_000
