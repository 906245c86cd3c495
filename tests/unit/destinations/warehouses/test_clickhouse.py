import sys

import pyarrow as pa
import pytest
import sqlglot
from tests.support.warehouse_wires import Recorded
from tests.unit.destinations.warehouses.clickhouse_scenarios import SCENARIOS, recording
from tests.unit.destinations.warehouses.golden import (
    FOLDER,
    clickhouse_statements,
    path_of,
    text_of,
)
from tests.unit.destinations.warehouses.standing_in import over, settings_of

from waybill.destinations import open_destination
from waybill.destinations.adapters.clickhouse.dialect import (
    ERRORS,
    field_of,
    literal,
    quoted,
    sql_type,
)
from waybill.destinations.drivers import WarehouseError
from waybill.errors import InputError, RetryError, StopError

COUNTS = {
    "in_first": 4,
    "in_replayed": 0,
    "delivered": 3,
    "superseded": 1,
    "duplicate": 0,
    "parked": 0,
}
LOST = "RetryError: destination 'warehouse' did not answer: the connection was lost"


def played(name, monkeypatch):
    """Return what came of a scenario; all of its recording was used."""
    wire = Recorded(recording(name))
    with over("clickhouse", wire, monkeypatch) as destination:
        found = SCENARIOS[name][0](destination)
    assert wire.at_end(), f"{name}: calls of the recording were not made"
    return found


def test_a_good_day_and_all_of_it_again(monkeypatch):
    assert played("good_day", monkeypatch) == COUNTS | {
        "in_first": 9, "delivered": 4, "superseded": 4, "duplicate": 1, "counted": [3, 3],
    }  # fmt: skip


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name.startswith("died")])
def test_a_load_that_died_anywhere_is_counted_once_as_it_was_judged(name, monkeypatch):
    assert played(name, monkeypatch) == COUNTS | {"said": LOST, "counted": [3, 3]}


def test_a_day_that_would_be_stored_as_another_one_parks_alone(monkeypatch):
    assert played("beyond", monkeypatch) == COUNTS | {
        "in_first": 3, "delivered": 2, "superseded": 0, "parked": 1, "ids": ["1/2/2"],
        "counted": [2, 2],
    }  # fmt: skip


def test_items_and_soft_deletes(monkeypatch):
    assert played("items", monkeypatch) == COUNTS | {
        "in_first": 6, "delivered": 4, "duplicate": 1, "counted": [2, 2],
    }  # fmt: skip


def test_a_column_comes_and_another_is_widened(monkeypatch):
    found = played("wider", monkeypatch)
    assert found == COUNTS | {"in_first": 3, "delivered": 2, "superseded": 0, "duplicate": 1}


def test_every_insert_of_a_load_has_a_token():
    for name in SCENARIOS:
        lines = [
            line
            for line in recording(name).read_text().splitlines()
            if "INSERT INTO `shop`" in line
        ]
        sent = [line for line in lines if line.startswith('{"call": "command"')]
        assert sent
        assert all('"insert_deduplication_token": "_waybill_work_' in line for line in sent)


def test_the_statements_are_those_that_were_read():
    found = clickhouse_statements()
    assert {name: text_of(items) for name, items in found.items()} == {
        name: path_of("clickhouse", name).read_text() for name in found
    }
    assert {p.stem for p in (FOLDER / "clickhouse").iterdir()} == set(found)


def test_every_statement_is_read_by_the_dialect():
    for found in clickhouse_statements().values():
        for statement in found:
            assert sqlglot.parse_one(statement, read="clickhouse").key != "command", statement


@pytest.mark.parametrize(
    ("code", "words", "expected"),
    [
        ("241", "MEMORY_LIMIT_EXCEEDED", RetryError),
        ("252", "TOO_MANY_PARTS", RetryError),
        ("319", "UNKNOWN_STATUS_OF_INSERT", RetryError),
        ("60", "UNKNOWN_TABLE", RetryError),
        ("497", "ACCESS_DENIED", InputError),
        ("516", "AUTHENTICATION_FAILED", InputError),
        ("524", "ALTER_OF_COLUMN_IS_FORBIDDEN", InputError),
        ("469", "VIOLATED_CONSTRAINT", InputError),
        ("62", "SYNTAX_ERROR", StopError),
    ],
)
def test_an_error_says_what_the_caller_must_do(code, words, expected):
    error = ERRORS.sorted(WarehouseError(words, code), "warehouse")
    assert type(error) is expected
    assert words in str(error)


@pytest.mark.parametrize(
    "item",
    [
        pa.field("a", pa.int32()),
        pa.field("a", pa.decimal128(38, 9), nullable=False),
        pa.field("a", pa.timestamp("us", "UTC")),
        pa.field("a", pa.date32(), nullable=False),
        pa.field("a", pa.bool_()),
        pa.field("a", pa.float64()),
    ],
)
def test_types_are_read_back_as_they_are_written(item):
    assert field_of("a", sql_type(item)) == item


def test_a_type_that_is_none_of_ours_is_not_taken_for_one():
    assert field_of("a", "Array(String)").type == pa.null()
    assert field_of("a", "Decimal(76, 2)").type == pa.null()


def test_names_and_texts_are_quoted_as_the_engine_reads_them():
    hostile = "it's \\ ` '"
    tree = sqlglot.parse_one(f"SELECT {literal(hostile)} AS {quoted('a b')}", read="clickhouse")
    assert tree.expressions[0].this.this == hostile
    assert quoted("a`b\\") == "`a\\`b\\\\`"


def test_a_driver_that_is_not_installed_is_named_with_its_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "clickhouse_connect", None)
    with open_destination("warehouse", settings_of("clickhouse")) as destination:
        with pytest.raises(InputError, match="pip install 'clickhouse-connect"):
            destination.check()
        assert "Experimental" in type(destination).__doc__


def test_a_dsn_of_another_form_is_refused():
    with pytest.raises(InputError, match="unknown options: cluster"):
        open_destination("warehouse", settings_of("clickhouse", "clickhouse://u:p@h/?cluster=c"))
