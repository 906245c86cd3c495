"""PostgreSQL's own ways to refuse a row: each parks the row alone."""

from __future__ import annotations

import random
from decimal import Decimal

import psycopg
import pyarrow as pa
import pytest
from tests.integration.destinations.test_values import every_row, every_type
from tests.support.destined import Park
from tests.unit.destinations.orders import (
    Order,
    clean_database,
    commit_of,
    rows_of,
    spec_of,
    totals,
)

from waybill.destinations import Commit, open_destination
from waybill.events import Event, decode, encode
from waybill.pipelines import Column
from waybill.processing.mapping import map_rows
from waybill.settings import DestinationSettings

pytestmark = pytest.mark.serves


@pytest.fixture
def dsn(postgres):
    return clean_database(postgres)


@pytest.fixture
def destination(dsn):
    with open_destination("warehouse", DestinationSettings(dsn=dsn)) as opened:
        opened.ensure_table(spec_of())
        yield opened


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


def test_a_replayed_refused_row_is_delivered_once_the_cause_is_gone(destination, dsn, park):
    check(dsn)
    destination.load([commit_of(1, [Order(1, 1, 1, "bad")])], park)
    ask(dsn, "ALTER TABLE shop.orders DROP CONSTRAINT no_bad")
    (found,) = destination.load([commit_of(2, [Order(1, 1, 1, "bad", replayed=True)])], park)
    assert (found.counts[0].in_replayed, found.counts[0].delivered) == (1, 1)


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
    assert park.codes == {
        "2": "destination_unique_violation",
        "3": "destination_foreign_key_violation",
        "4": "destination_check_violation",
        "5": "destination_value_refused",
    }
    assert "(price)=(5.00) already exists" in park.rows[0].message
    assert found.rows["outcome"].to_pylist() == ["delivered", *["parked"] * 4, "delivered"]


def test_a_constraint_that_waits_for_the_commit_still_parks_the_row_alone(destination, dsn, park):
    ask(
        dsn,
        "ALTER TABLE shop.orders ADD CONSTRAINT later UNIQUE (what) DEFERRABLE INITIALLY DEFERRED",
    )
    orders = [Order(1, 1, 1, "a"), Order(2, 1, 1, "a"), Order(3, 1, 1, "b")]
    destination.load([commit_of(1, orders)], park)
    assert held(dsn) == {1: "a", 3: "b"}
    assert park.codes == {"2": "destination_unique_violation"}


def test_a_value_set_free_earlier_in_the_batch_may_be_taken_later(destination, dsn, park):
    ask(dsn, "CREATE UNIQUE INDEX ON shop.orders (what)")
    destination.load([commit_of(1, [Order(1, 1, 1, "a"), Order(9, 1, 1, "z")])], park)
    batch = [Order(1, 2, 2, None, op="delete"), Order(2, 1, 1, "a"), Order(3, 1, 1, "z")]
    destination.load([commit_of(2, batch)], park)
    assert held(dsn) == {2: "a", 9: "z"}
    assert park.codes == {"3": "destination_unique_violation"}


def test_a_delete_that_others_refer_to_is_refused_and_leaves_no_tombstone(destination, dsn, park):
    destination.load([commit_of(1, [Order(1, 1, 1), Order(2, 1, 1)])], park)
    ask(dsn, "CREATE TABLE shop.parts (of bigint REFERENCES shop.orders)")
    ask(dsn, "INSERT INTO shop.parts VALUES (1)")
    batch = [Order(i, 2, 2, None, op="delete") for i in (1, 2)]
    destination.load([commit_of(2, batch)], park)
    assert list(held(dsn)) == [1]
    assert park.codes == {"1": "destination_foreign_key_violation"}
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
    assert (park.codes, park.rows[0].message) == ({"2": "destination_check_violation"}, "not two")


def test_a_key_too_large_for_an_index_parks_alone(destination, dsn, park):
    draw = random.Random(1)
    large = "".join(chr(draw.randint(0x4E00, 0x9FFF)) for _ in range(4_000))
    ask(dsn, "CREATE INDEX ON shop.orders (what)")
    destination.load([commit_of(1, [Order(1, 1, 1, large), Order(2, 1, 1)])], park)
    assert list(held(dsn)) == [2]
    assert park.codes == {"1": "destination_value_refused"}


def test_refused_rows_of_every_type_come_back_the_same_through_the_envelope(destination, dsn, park):
    destination.ensure_table(every_type())
    ask(dsn, 'ALTER TABLE shop."every type" ADD CHECK (id IS NULL)')
    rows = every_row(1)
    destination.load([Commit(1, (rows,))], park)
    payloads = []
    for row in park.rows:
        event = Event(row.event_id, row.pipeline_id, "t", row.event_name, row.key, 1, 1, 1, "", {})
        event.data = row.row
        payloads.append(decode(encode(event)).data)
    batch, faults = map_rows(every_type(), payloads, policy="strict", by_column=True)
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
    assert park.codes == dict.fromkeys("12", "destination_value_refused")
    assert len(ask(dsn, "SELECT * FROM shop.documents")) == 2
    assert park.rows[0].row["doc"] == "\0"


def test_times_before_all_history_are_refused_and_shown(destination, park):
    spec = spec_of("times", Column(name="id", type="int64"), Column(name="at", type="timestamp"))
    rows = rows_of([Order(i, 1, 1) for i in range(2)], spec, at=[-(2**62) - 2**61, 0])
    (found,) = destination.load([Commit(1, (rows,))], park)
    assert park.codes == {"0": "destination_value_refused"}
    assert found.counts[0].delivered == 1
    assert isinstance(park.rows[0].row["at"], str)


def test_a_thousand_refused_rows_among_twenty_thousand_are_found(destination, dsn, park):
    check(dsn)
    orders = [Order(i, 1, 1, "good" if i % 20 else "bad") for i in range(20_000)]
    (found,) = destination.load([commit_of(1, orders)], park)
    assert totals([found]) | {"delivered": 19_000, "parked": 1_000} == totals([found])
    assert len(held(dsn)) == 19_000
