"""DuckDB's own: one file, held while a load runs; keys that users gave their tables."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest
from tests.support.destined import Park, held, load, never_park
from tests.support.warehouses import DuckWarehouse
from tests.unit.destinations.orders import SPEC, Order, commit_of, rows_of, spec_of, totals

from waybill.destinations import Commit, open_destination
from waybill.errors import InputError, RetryError
from waybill.pipelines import Column
from waybill.settings import DestinationSettings


@pytest.fixture
def warehouse(tmp_path):
    return DuckWarehouse(tmp_path / "warehouse.duckdb")


@pytest.fixture
def destination(warehouse):
    return warehouse.open()


@pytest.fixture
def park():
    return Park()


def make(warehouse, columns, *more):
    """Make the table of orders as a user would."""
    warehouse.ask("CREATE SCHEMA shop", write=True)
    warehouse.ask(f"CREATE TABLE shop.orders ({columns})", write=True)
    for statement in more:
        warehouse.ask(statement, write=True)


ORDERS = "id BIGINT PRIMARY KEY, what VARCHAR, price DECIMAL(10,2)"


def test_rows_that_a_unique_key_refuses_park_alone(warehouse, destination, park):
    make(warehouse, f"{ORDERS}, UNIQUE (what)", "INSERT INTO shop.orders VALUES (999, 'w7', NULL)")
    orders = [Order(n, 1, 1, f"w{n}") for n in range(200)]
    orders[150] = Order(150, 1, 1, "w3")
    orders[151] = Order(151, 1, 1, "w4: no space left on device")
    orders[152] = Order(152, 1, 1, "w4: no space left on device")
    found = load(destination, orders[:100], orders[100:], park=park)
    assert park.codes == dict.fromkeys(("7", "150", "152"), "destination_unique_violation")
    assert totals(found) | {"delivered": 197, "parked": 3} == totals(found)
    assert sorted(held(warehouse)) == sorted({*range(200), 999} - {7, 150, 152})
    assert load(destination, orders[:100], orders[100:])[0].parked == found[0].parked


def test_rows_that_a_foreign_key_refuses_park_alone_also_among_tables(warehouse, destination, park):
    warehouse.ask("CREATE SCHEMA shop", write=True)
    warehouse.ask("CREATE TABLE shop.kinds (what VARCHAR PRIMARY KEY)", write=True)
    warehouse.ask("INSERT INTO shop.kinds VALUES ('thing')", write=True)
    columns = f"{ORDERS}, FOREIGN KEY (what) REFERENCES shop.kinds (what)"
    warehouse.ask(f"CREATE TABLE shop.orders ({columns})", write=True)
    other = spec_of("another")
    rows = (
        rows_of([Order(1, 1, 1), Order(2, 1, 1, "none")], SPEC),
        rows_of([Order(5, 1, 1, "none")], other),
    )
    (found,) = destination.load([Commit(1, rows)], park)
    assert park.codes == {"2": "destination_foreign_key_violation"}
    assert found.rows["outcome"].to_pylist().count("parked") == 1
    assert (list(held(warehouse)), list(held(warehouse, other))) == ([1], [5])


def test_a_row_that_lost_to_one_that_a_key_refuses_is_delivered(warehouse, destination, park):
    make(warehouse, f"{ORDERS}, UNIQUE (what)", "INSERT INTO shop.orders VALUES (99, 'x', NULL)")
    orders = [Order(1, 1, 1, "one"), Order(1, 2, 2, "x"), Order(2, 1, 1, "two")]
    (found,) = load(destination, orders, park=park)
    assert found.rows["outcome"].to_pylist() == ["delivered", "parked", "delivered"]
    assert held(warehouse)[1][0] == "one"


def test_a_file_that_another_process_holds_is_waited_for_and_free_between_loads(
    warehouse, destination
):
    load(destination, [Order(1, 1, 1)])
    hold = (
        f"import duckdb; c = duckdb.connect({str(warehouse.path)!r}); print(1, flush=True); input()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout.readline() == "1\n", "the file was not free between loads"
        for call in (destination.check, lambda: load(destination, [Order(2, 1, 1)], start=2)):
            with pytest.raises(RetryError, match="another process holds the file"):
                call()
    finally:
        other.communicate("\n")
    load(destination, [Order(2, 1, 1)], start=2)
    assert sorted(held(warehouse)) == [1, 2]


def test_threads_of_one_process_take_turns(warehouse):
    started, go_on = threading.Event(), threading.Event()

    def stay(_outcomes):
        started.set()
        assert go_on.wait(240)

    def first():
        warehouse.open("one").load([commit_of(1, [Order(1, 1, 1)])], never_park, stay)

    thread = threading.Thread(target=first)
    thread.start()
    assert started.wait(240)
    second = threading.Thread(target=lambda: load(warehouse.open("two"), [Order(1, 2, 2, "two")]))
    second.start()
    time.sleep(0.1)
    assert second.is_alive(), "it did not wait"
    go_on.set()
    thread.join(240)
    second.join(240)
    assert held(warehouse)[1][0] == "two"


def test_a_users_own_table_is_taken_over_whatever_the_case_of_its_names(warehouse, destination):
    make(
        warehouse,
        "ID BIGINT NOT NULL, What VARCHAR, price DECIMAL(8,2), mine VARCHAR DEFAULT 'kept'",
        "INSERT INTO shop.orders BY NAME SELECT 1 AS id, 'theirs' AS what UNION ALL SELECT 2, 'untouched'",
    )
    load(destination, [Order(1, -5, 1), Order(3, 1, 1)])
    rows = warehouse.ask("SELECT id, what, mine FROM shop.orders ORDER BY id").to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (1, "thing", "kept"),
        (2, "untouched", "kept"),
        (3, "thing", "kept"),
    ]
    assert warehouse.types(SPEC)["price"] == "decimal(10,2)"


def test_a_users_table_with_two_rows_of_a_key_is_refused(warehouse, destination):
    make(
        warehouse,
        ORDERS.replace("PRIMARY KEY", "NOT NULL"),
        "INSERT INTO shop.orders VALUES (1, 'a', 1), (1, 'b', 1)",
    )
    with pytest.raises(InputError, match=r"two rows with key \{'id': 1\}"):
        load(destination, [Order(1, 1, 1)])


def test_a_view_is_no_table(warehouse, destination):
    warehouse.ask("CREATE SCHEMA shop", write=True)
    warehouse.ask("CREATE VIEW shop.orders AS SELECT 1 AS id", write=True)
    with pytest.raises(InputError, match="found a view"):
        destination.ensure_table(SPEC)


def test_names_that_differ_in_case_alone_are_one_name(destination):
    spec = spec_of("t", Column(name="id", type="int64"), Column(name="ID", type="string"))
    with pytest.raises(InputError, match="'id' and 'ID' are one name in DuckDB"):
        destination.ensure_table(spec)


@pytest.mark.parametrize(
    ("dsn", "options", "words"),
    [
        ("", {}, "its dsn must be a file"),
        (":memory:", {}, "its dsn must be a file"),
        ("md:cloud", {}, "its dsn must be a file"),
        ("x.duckdb", {"memory": "1GB"}, "found option 'memory', expected some of memory_limit"),
    ],
)
def test_settings_that_cannot_be_right_are_refused_at_once(dsn, options, words):
    with pytest.raises(InputError, match=words):
        open_destination("d", DestinationSettings(kind="duckdb", dsn=dsn, options=options))


@pytest.mark.parametrize(
    ("made", "options", "words"),
    [
        ("nowhere/x.duckdb", {}, "make the folder"),
        ("text.duckdb", {}, "a file of its own"),
        (".", {}, "let the dsn name a file"),
        ("x.duckdb", {"memory_limit": "lots"}, "memory_limit"),
        ("x.duckdb", {"threads": "many"}, "threads"),
    ],
)
def test_a_file_that_cannot_be_opened_says_what_to_do(tmp_path, made, options, words):
    (tmp_path / "text.duckdb").write_text("no database\n" * 1_000)
    settings = DestinationSettings(kind="duckdb", dsn=str(tmp_path / made), options=options)
    with pytest.raises(InputError, match=words):
        open_destination("d", settings).check()
    assert [one.ok for one in open_destination("d", settings).examine("shop")] == [False]


def test_a_table_dropped_meanwhile_is_made_again(warehouse, destination):
    load(destination, [Order(1, 1, 1)])
    warehouse.ask("DROP TABLE shop.orders", write=True)
    with pytest.raises(RetryError, match="somebody else changed table shop.orders"):
        load(destination, [Order(2, 1, 1)], start=2)
    load(destination, [Order(2, 1, 1)], start=2)
    assert list(held(warehouse)) == [2]


def test_what_is_no_json_parks_alone(warehouse, destination, park):
    spec = spec_of("documents", Column(name="id", type="int64"), Column(name="doc", type="json"))
    rows = rows_of([Order(n, 1, 1) for n in range(3)], spec, doc=['{"a": 1}', "[]", None])
    destination.load([Commit(1, (rows,))], park)
    assert park.calls == []
    assert len(warehouse.rows(spec)) == 3
