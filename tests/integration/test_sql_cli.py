"""``waybill sql`` at PostgreSQL: one statement, in a transaction that cannot write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support import orders
from typer.testing import CliRunner

from waybill import services
from waybill.cli import app
from waybill.settings import Settings

pytestmark = pytest.mark.serves


@pytest.fixture
def dsn(postgres: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    made: str = postgres.database("sql_cli")
    with psycopg.connect(made, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS t")
        connection.execute("CREATE TABLE t (id int, amount numeric, said text, raw bytea)")
        connection.execute(
            "INSERT INTO t VALUES (1, 1.50, E'a\\x1b[31m', '\\x00ff'), (2, NULL, NULL, NULL)"
        )
    house = {"warehouse": {"kind": "postgres", "dsn": made}, "other": {"dsn": made}}
    monkeypatch.setenv("WAYBILL_DESTINATIONS", json.dumps(house))
    monkeypatch.setenv("COLUMNS", "80")
    return made


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["--wait", "0", *words])


def test_rows_are_shown_as_a_table_and_as_json(dsn: str) -> None:
    done = run("sql", "SELECT id, said FROM t ORDER BY id")
    assert done.exit_code == 0, done.output
    assert "a\\x1b[31m" in done.stdout
    assert "\x1b" not in done.stdout
    done = run("sql", "SELECT * FROM t ORDER BY id -- with a comment", "--json")
    assert json.loads(done.stdout) == {
        "columns": ["id", "amount", "said", "raw"],
        "rows": [[1, "1.50", "a\x1b[31m", "\\x00ff"], [2, None, None, None]],
        "more": False,
    }
    assert json.loads(run("sql", "SELECT 100 % 7", "--json").stdout)["rows"] == [[2]]


def test_rows_without_columns_are_counted(dsn: str) -> None:
    done = run("sql", "SELECT FROM t")
    assert (done.exit_code, done.stdout) == (0, "2 rows without columns\n"), done.output
    assert run("sql", "SELECT FROM t WHERE id > 2").stdout == "0 rows without columns\n"
    done = run("sql", "SELECT FROM t", "--json")
    assert json.loads(done.stdout) == {"columns": [], "rows": [[], []], "more": False}
    assert run("sql", "SELECT FROM t", "--csv").stdout == "\n\n\n"


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM t",
        "SELECT 1; DELETE FROM t",
        "COMMIT; DELETE FROM t",
        "WITH gone AS (DELETE FROM t RETURNING id) SELECT * FROM gone",
        "SELECT set_config('transaction_read_only', 'off', false); DELETE FROM t",
        "SELECT set_config('transaction_read_only', 'off', true)",
        "SELECT id FROM t FOR UPDATE",
        "COPY t TO PROGRAM 'cat'",
        "DO $$ BEGIN DELETE FROM t; END $$",
        "SELECT nope",
    ],
)
def test_what_is_not_one_statement_that_reads_is_refused(statement: str, dsn: str) -> None:
    done = run("sql", statement)
    assert done.exit_code == 1, done.output
    assert done.stdout == ""
    assert "refused the statement" in done.stderr
    is_another = not statement.startswith(("SELECT id", "SELECT nope", "SELECT set_config", "WITH"))
    is_another |= ";" in statement
    assert ("`waybill sql` runs one SELECT" in done.stderr) == is_another, done.stderr
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchall() == [(2,)]


def test_an_error_marks_the_place_in_the_statement_as_it_was_given(dsn: str) -> None:
    done = run("sql", "SELECT id,\n  nope FROM t")
    assert "waybill_sql" not in done.stderr
    lines = done.stderr.splitlines()
    place = next(at for at, line in enumerate(lines) if "LINE 2:" in line)
    assert lines[place].strip() == "LINE 2:   nope FROM t"
    assert lines[place + 1].index("^") == lines[place].index("nope")
    long = run("sql", f"SELECT {', '.join(['id'] * 50)}, nope FROM t").stderr.splitlines()
    place = next(at for at, line in enumerate(long) if "LINE 1:" in line)
    assert long[place + 1].index("^") == long[place].index("nope")
    assert max(map(len, long[place:])) <= 80


def test_of_a_table_that_there_is_not_near_ones_are_named(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA IF NOT EXISTS library")
        connection.execute('CREATE TABLE IF NOT EXISTS library.loan (id int, "Due" date)')
        connection.execute('CREATE TABLE IF NOT EXISTS library."Late Fee" (id int)')
    for asked in ("loan", "loans", "librery.loan", "LOAN"):
        done = run("sql", f"SELECT * FROM {asked}")
        assert done.exit_code == 1
        assert "did you mean library.loan?" in done.stderr, done.stderr
    assert 'did you mean library."Late Fee"?' in run("sql", 'SELECT 1 FROM "late fee"').stderr
    assert "did you mean" not in run("sql", "SELECT * FROM zzzzzz").stderr
    assert run("sql", "SELECT * FROM library.loan").exit_code == 0


def test_of_a_table_that_no_load_has_made_yet_its_pipeline_is_named(
    stack_settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in stack_settings.to_env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WAYBILL_PIPELINES_DIR", str(tmp_path / "pipelines"))
    monkeypatch.setenv("WAYBILL_AIRFLOW__URL", "http://127.0.0.1:1")
    services.migrate(Settings())
    folder = orders.write_orders(tmp_path / "pipelines", rows=1)
    dsn = stack_settings.destinations["warehouse"].dsn.get_secret_value()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS shop.orders")
        assert "no load has made it" not in run("sql", "SELECT * FROM shop.orders").stderr
        assert run("pipelines", "deploy", str(folder), "--no-deep", "--json").exit_code == 0
        for asked in ("shop.orders", "orders", "Shop.Orders"):
            done = run("sql", f"SELECT * FROM {asked}")
            said = " ".join(done.stderr.split())
            assert done.exit_code == 1
            assert "'orders' declares table shop.orders, and no load has made it yet" in said
            assert "`waybill balance orders`" in said
        assert "no load has made it" not in run("sql", "SELECT * FROM other.orders").stderr
        connection.execute("CREATE SCHEMA IF NOT EXISTS shop")
        connection.execute("CREATE TABLE shop.orders (number int)")
        assert "no load has made it" not in run("sql", "SELECT * FROM orders").stderr


def test_psql_is_the_shell_of_a_warehouse(dsn: str) -> None:
    done = run("connect", "warehouse", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["program"].endswith("psql")
    assert told["arguments"] == []


def test_times_that_python_has_none_for_are_shown(dsn: str) -> None:
    asked = "SELECT 'infinity'::date AS d, '24:00:00'::time AS t, '20000-01-01'::timestamp AS s"
    done = run("sql", asked, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["rows"] == [["infinity", "24:00:00", "20000-01-01 00:00:00"]]


def test_a_statement_that_takes_too_long_is_ended_by_the_server_and_told(dsn: str) -> None:
    done = run("sql", "SELECT pg_sleep(60)", "--timeout", "1")
    assert (done.exit_code, done.stdout) == (4, "")
    assert "the statement was ended after 1 s" in " ".join(done.stderr.split())
    with psycopg.connect(dsn) as connection:
        left = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%sleep(60)%' AND state"
        assert connection.execute(f"{left} = 'active' AND pid <> pg_backend_pid()").fetchone() == (
            0,
        )


@pytest.mark.parametrize("levels", [300, 3_000])
def test_json_that_is_nested_deeper_than_python_or_its_writer_takes_is_shown(
    dsn: str, levels: int
) -> None:
    asked = f"SELECT (repeat('[', {levels}) || repeat(']', {levels}))::jsonb AS deep, 1 AS n"
    done = run("sql", asked, "--json")
    assert done.exit_code == 0, done.output
    [[deep, number]] = json.loads(done.stdout)["rows"]
    assert (deep, number) == ("[" * levels + "]" * levels, 1)
    assert run("sql", asked).exit_code == 0
    assert run("sql", asked, "--csv").exit_code == 0
