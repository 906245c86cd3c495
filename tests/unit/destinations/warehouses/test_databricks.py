import random
import sys

import pyarrow as pa
import pytest
import sqlglot
from tests.support.databricks_wire import DatabricksWire
from tests.support.warehouse_wires import Recorded
from tests.unit.destinations.orders import commit_of, cut, expected, some_orders
from tests.unit.destinations.warehouses.databricks_scenarios import SCENARIOS, recording
from tests.unit.destinations.warehouses.golden import (
    FOLDER,
    databricks_statements,
    path_of,
    text_of,
)
from tests.unit.destinations.warehouses.standing_in import over, settings_of

from waybill.destinations import open_destination
from waybill.destinations.adapters.databricks.dialect import ERRORS, alterations, field_of, sql_type
from waybill.destinations.adapters.databricks.session import warehouse_error
from waybill.destinations.per_table.table import ShapePlan
from waybill.errors import InputError, RetryError, StopError

COUNTS = {
    "in_first": 4,
    "in_replayed": 0,
    "delivered": 3,
    "superseded": 1,
    "duplicate": 0,
    "parked": 0,
}


def played(name, monkeypatch):
    """Return what came of a scenario; all of its recording was used."""
    wire = Recorded(recording(name))
    with over("databricks", wire, monkeypatch) as destination:
        found = SCENARIOS[name][0](destination)
    assert wire.at_end(), f"{name}: calls of the recording were not made"
    return found


def test_a_good_day_and_all_of_it_again(monkeypatch):
    assert played("good_day", monkeypatch) == COUNTS | {
        "in_first": 9, "delivered": 4, "superseded": 4, "duplicate": 1, "counted": [3, 3],
    }  # fmt: skip


@pytest.mark.parametrize("name", ["died_before_the_merge", "died_after_the_merge", "conflict"])
def test_a_load_that_failed_is_loaded_once_by_the_next(name, monkeypatch):
    found = played(name, monkeypatch)
    assert found.pop("said").startswith("RetryError: destination 'warehouse'")
    assert found == COUNTS | {"counted": [3, 3]}


def test_after_a_lost_answer_to_the_merge_nothing_is_merged_again():
    lines = recording("died_after_the_merge").read_text().splitlines()
    assert len([line for line in lines if "MERGE INTO `shop`" in line]) == 1


def test_items_and_soft_deletes(monkeypatch):
    assert played("items", monkeypatch) == COUNTS | {
        "in_first": 6, "delivered": 4, "duplicate": 1, "counted": [2, 2],
    }  # fmt: skip


def test_a_column_comes_and_another_is_widened(monkeypatch):
    found = played("wider", monkeypatch)
    assert found == COUNTS | {"in_first": 3, "delivered": 2, "superseded": 0, "duplicate": 1}


def test_the_metadata_of_a_commit_is_set_before_its_merge_and_taken_back_after():
    lines = recording("good_day").read_text().splitlines()
    merges = [i for i, line in enumerate(lines) if "MERGE INTO `shop`" in line]
    assert merges
    for at in merges:
        assert "SET spark.databricks.delta.commitInfo.userMetadata = waybill." in lines[at - 1]
        assert "RESET spark.databricks.delta.commitInfo.userMetadata" in lines[at + 1]


@pytest.mark.parametrize("seed", [0])
def test_loads_in_any_batching_end_in_the_newest_versions(seed, monkeypatch):
    draw = random.Random(seed)
    wire = DatabricksWire("databricks")
    orders = some_orders(draw, keys=4, events=12)
    with over("databricks", wire, monkeypatch) as destination:
        for number, part in enumerate(cut(draw, orders), 1):
            destination.load([commit_of(number, part)], lambda rows: {})
        steps = destination.examine("shop")
    assert [step.ok for step in steps] == [True] * 5
    rows, _ = expected(orders)
    held = wire.connection.execute("SELECT id, what, _waybill_id FROM shop.orders ORDER BY id")
    assert held.fetchall() == [(k, o.what, o.event_id) for k, o in sorted(rows.items())]


def test_a_table_that_changed_since_it_was_read_is_judged_again(monkeypatch):
    wire = DatabricksWire("databricks")
    first, second = (commit_of(n, orders) for n, orders in enumerate(_two_loads(), 1))
    with over("databricks", wire, monkeypatch) as destination:
        destination.load([first], lambda rows: {})

        def meanwhile(step):
            if step == "table":
                wire.history["`shop`.`orders`"].insert(0, {"version": 99, "userMetadata": None})
                destination.hook = lambda step: None

        destination.hook = meanwhile
        destination.load([second], lambda rows: {})
    assert len(wire.connection.execute("SELECT * FROM shop.orders").fetchall()) == 2
    assert len(wire.staged) == 3, (
        "the second load was staged for a version that had passed, then anew"
    )


def _two_loads():
    from tests.unit.destinations.orders import Order

    return [Order(1, 1, 1)], [Order(1, 2, 2), Order(2, 1, 1)]


def test_the_statements_are_those_that_were_read():
    found = databricks_statements()
    assert {name: text_of(items) for name, items in found.items()} == {
        name: path_of("databricks", name).read_text() for name in found
    }
    assert {p.stem for p in (FOLDER / "databricks").iterdir()} == set(found)


def test_every_statement_is_read_by_the_dialect():
    for found in databricks_statements().values():
        for statement in found:
            assert sqlglot.parse_one(statement, read="databricks").key != "command", statement


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("[DELTA_CONCURRENT_APPEND] Files were added. SQLSTATE: 2D521", RetryError),
        ("[TABLE_OR_VIEW_NOT_FOUND] The table cannot be found. SQLSTATE: 42P01", RetryError),
        ("Error during request to server: HTTP 503 TEMPORARILY_UNAVAILABLE", RetryError),
        ("[INSUFFICIENT_PERMISSIONS] Insufficient privileges. SQLSTATE: 42501", InputError),
        ("[CONFIG_NOT_AVAILABLE] Configuration x is not available. SQLSTATE: 42K0I", InputError),
        ("Error during request to server: Invalid access token.", InputError),
        ("[PARSE_SYNTAX_ERROR] Syntax error. SQLSTATE: 42601", StopError),
    ],
)
def test_an_error_says_what_the_caller_must_do(words, expected):
    error = ERRORS.sorted(warehouse_error(Exception(words), away=False), "warehouse")
    assert type(error) is expected
    assert words in str(error)


@pytest.mark.parametrize(
    "item",
    [
        pa.field("a", pa.int32()),
        pa.field("a", pa.decimal128(38, 9), nullable=False),
        pa.field("a", pa.timestamp("us", "UTC")),
        pa.field("a", pa.binary()),
    ],
)
def test_types_are_read_back_as_they_are_written(item):
    assert field_of("a", sql_type(item.type), nullable=item.nullable) == item


@pytest.mark.parametrize(
    ("was", "declared"),
    [(pa.date32(), pa.timestamp("us", "UTC")), (pa.int64(), pa.decimal128(21, 2))],
)
def test_where_delta_does_not_widen_the_statements_to_run_are_said(was, declared):
    known = pa.schema([pa.field("n", was)])
    with pytest.raises(InputError, match="ADD COLUMN .n_new.*RENAME COLUMN"):
        alterations("`s`.`t`", known, ShapePlan(widen=(pa.field("n", declared),)))


def test_a_driver_that_is_not_installed_is_named_with_its_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "databricks.sql.exc", None)
    with open_destination("warehouse", settings_of("databricks")) as destination:
        with pytest.raises(InputError, match="pip install 'databricks-sql-connector"):
            destination.check()
        assert "Experimental" in type(destination).__doc__


@pytest.mark.parametrize(
    ("dsn", "words"),
    [
        ("databricks://token:t@h/sql?catalog=c", "lacks staging"),
        ("databricks://token:t@h/sql?catalog=c&staging=s3://x", "staging folder"),
        ("databricks://token:t@h/?catalog=c&staging=/Volumes/a/b/c", "path has 0 parts"),
    ],
)
def test_a_dsn_of_another_form_is_refused(dsn, words):
    with pytest.raises(InputError, match=words):
        open_destination("warehouse", settings_of("databricks", dsn))
