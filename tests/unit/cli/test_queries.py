"""``waybill sql`` and ``waybill connect`` at a DuckDB file; what is handed to a shell."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import duckdb
import pytest
from typer.testing import CliRunner

from waybill.cli import app
from waybill.deployment import DeclaredTable
from waybill.destinations import QueryResult
from waybill.services import destination_shell
from waybill.settings import DestinationSettings, Settings

EVIL = "a\x1b[31mred\nnext"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "house.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE t (id INT, name VARCHAR, big HUGEINT, raw BLOB)")
        connection.execute("INSERT INTO t VALUES (1, ?, 170141183460469231731, ?)", [EVIL, b"\0a"])
        connection.execute("INSERT INTO t VALUES (2, NULL, NULL, NULL)")
    house = {"house": {"kind": "duckdb", "dsn": str(path)}}
    monkeypatch.setenv("WAYBILL_DESTINATIONS", json.dumps(house))
    monkeypatch.setenv("COLUMNS", "80")
    return path


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["--wait", "0", *words])


def test_a_table_shows_what_a_terminal_would_obey(file: Path) -> None:
    done = run("sql", "SELECT id, name FROM t ORDER BY id")
    assert done.exit_code == 0, done.output
    assert "a\\x1b[31mred\\nnext" in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stdout.endswith("2 rows\n")


def test_json_is_one_object_and_keeps_what_json_has_no_number_for(file: Path) -> None:
    done = run("sql", "SELECT * FROM t ORDER BY id", "--json", "-n", "1")
    assert json.loads(done.stdout) == {
        "columns": ["id", "name", "big", "raw"],
        "rows": [[1, EVIL, "170141183460469231731", "\\x0061"]],
        "more": True,
    }


def test_csv_keeps_values_as_they_are_in_a_pipe(file: Path) -> None:
    done = run("sql", "SELECT id, name FROM t ORDER BY id", "--csv")
    assert done.stdout == f'id,name\n1,"{EVIL}"\n2,\n'


def test_rows_wider_than_the_terminal_are_shown_a_value_a_line(file: Path) -> None:
    done = run("sql", "SELECT repeat('x', 100) AS wide, 1 AS n")
    assert done.stdout == f"wide:\n{'x' * 100}\nn:    1\n1 row\n"


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM t",
        "SELECT 1; DELETE FROM t",
        "COPY t TO 'out.csv'",
        "ATTACH 'other.duckdb'",
        "SELECT * FROM read_text('/etc/hostname')",
        "SET enable_external_access = true",
        "",
        "SELEC 1",
    ],
)
def test_what_is_not_one_statement_that_reads_is_refused(
    statement: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("sql", statement)
    assert done.exit_code == 1, done.output
    assert done.stdout == ""
    assert [one.name for one in tmp_path.iterdir()] == [file.name]
    with duckdb.connect(str(file), read_only=True) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchall() == [(2,)]


@pytest.mark.parametrize("asked", ["shop.orders", "orders", '"shop"."orders"', "SHOP.Orders"])
def test_of_a_table_that_no_load_has_made_yet_it_says_whose_it_is(
    asked: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = DeclaredTable("my orders", "shop", "orders")

    def declaring(_tracker: object, destination: str, table: str) -> list[DeclaredTable]:
        schema, _, name = table.lower().rpartition(".")
        is_its = destination == "house" and name == "orders" and schema in ("", "shop")
        return [declared] if is_its else []

    monkeypatch.setattr("waybill.storage.open_tracker", lambda *_: nullcontext())
    monkeypatch.setattr("waybill.deployment.declaring_pipelines", declaring)
    done = run("sql", f"SELECT * FROM {asked}")
    said = " ".join(done.stderr.split())
    assert done.exit_code == 1
    assert "pipeline 'my orders' declares table shop.orders, and no load has made it yet" in said
    assert "`waybill balance 'my orders'` says what is on its way, `waybill status`" in said
    assert "no load" not in run("sql", "SELECT * FROM zzzzzz").stderr
    with duckdb.connect(str(file)) as connection:
        connection.execute("CREATE SCHEMA shop; CREATE TABLE shop.orders (id INT)")
    assert "no load" not in run("sql", f"SELECT nope FROM {asked}").stderr


def test_a_missing_table_is_told_where_the_tracker_is_away_too(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYBILL_TRACKER__DSN", "postgresql://nobody@127.0.0.1:1/none")
    done = run("sql", "SELECT * FROM shop.orders")
    said = " ".join(done.stderr.split())
    assert (done.exit_code, "Table with name" in said) == (1, True)
    assert "whether a pipeline declares it is not known:" in said


def test_a_wrong_destination_gets_the_nearest_name(file: Path) -> None:
    done = run("sql", "-d", "hause", "SELECT 1")
    assert (done.exit_code, "did you mean 'house'?" in done.output) == (3, True)
    assert run("connect", "hause").exit_code == 3


def test_the_only_destination_is_meant_where_none_is_given(file: Path) -> None:
    done = run("connect", "--json")
    assert done.exit_code == 0, done.output
    assert done.stderr == "destination: house, the only one\n"
    assert "loads into this file wait" in json.loads(done.stdout)["note"]


def test_python_is_duckdbs_shell_where_its_own_is_not_installed(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _name: None)
    shell = destination_shell(Settings(), "house")
    assert (shell.program, shell.environment) == (sys.executable, {"WAYBILL_SHELL_FILE": str(file)})
    assert "program duckdb" in shell.note


def test_a_password_is_handed_to_psql_by_the_environment_and_never_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dsn = "postgresql://ann:s3cret@db.example:6432/house?sslmode=require&keepalives=1"
    house = {"house": {"kind": "postgres", "dsn": dsn}}
    monkeypatch.setenv("WAYBILL_DESTINATIONS", json.dumps(house))
    shell = destination_shell(Settings(), "house")
    assert shell.arguments == ()
    assert shell.environment == {
        "PGUSER": "ann",
        "PGPASSWORD": "s3cret",
        "PGHOST": "db.example",
        "PGPORT": "6432",
        "PGDATABASE": "house",
        "PGSSLMODE": "require",
    }
    done = run("connect", "house", "--json")
    assert "s3cret" not in done.output
    assert "keepalives" in json.loads(done.stdout)["note"]


def test_another_kind_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    house = {"house": {"kind": "snowflake", "dsn": "snowflake://nobody"}}
    monkeypatch.setenv("WAYBILL_DESTINATIONS", json.dumps(house))
    assert DestinationSettings(**house["house"]).kind == "snowflake"
    for words in (["sql", "SELECT 1"], ["connect", "house"]):
        done = run(*words)
        assert (done.exit_code, "a client of its own" in done.output) == (1, True)


def test_control_characters_in_the_words_of_an_error_do_not_reach_a_terminal(file: Path) -> None:
    done = run("sql", "SELECT CAST(chr(27) || '[31m' AS INTEGER)")
    assert done.exit_code == 1
    assert "\x1b" not in done.stderr
    assert "\\x1b[31m" in done.stderr


def test_a_statement_that_is_no_text_is_wrong_input(file: Path) -> None:
    done = run("sql", "SELECT '\udcff'")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "no UTF-8" in done.stderr


def test_pythons_shell_imports_nothing_of_the_folder_it_is_started_in(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    shell = json.loads(run("connect", "house", "--json").stdout)
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    (hostile / "duckdb.py").write_text("print('hostile')")
    done = subprocess.run(
        [shell["program"], *shell["arguments"]],
        cwd=hostile,
        env={"WAYBILL_SHELL_FILE": str(file)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert "Ctrl-D ends" in done.stdout, done.stderr
    assert "hostile" not in done.stdout


ENDLESS = "SELECT sum(a.range * b.range) FROM range(100000) a, range(10000000) b"


def test_a_statement_that_takes_too_long_is_ended_and_told(file: Path) -> None:
    began = time.monotonic()
    done = run("sql", ENDLESS, "--timeout", "1")
    assert (done.exit_code, done.stdout) == (4, "")
    assert "the statement was ended after 1 s" in " ".join(done.stderr.split())
    assert time.monotonic() - began < 300


def test_ctrl_c_ends_a_statement_without_a_traceback(file: Path) -> None:
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"from waybill.cli import app; app(['sql', {ENDLESS!r}])"
    )
    for after_s, again_s in ((0.0, ()), (0.15, ()), (0.3, (0.01, 0.03))):
        child = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            assert child.stdout is not None
            child.stdout.readline()  # "destination: warehouse, the only one"
            time.sleep(after_s)  # while it imports, connects, runs
            child.send_signal(signal.SIGINT)
            for wait_s in again_s:
                time.sleep(wait_s)
                child.send_signal(signal.SIGINT)
            said, _ = child.communicate(timeout=600)
        finally:
            child.kill()
        assert again_s or child.returncode == 130, said  # another may come as Python ends
        assert again_s or "Traceback" not in said


RAISING_HANDLER = f"""
import os, signal, sys, threading
from waybill.destinations.queries import ReadQuery, read_rows
from waybill.settings import DestinationSettings

def raising(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGINT, raising)
threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT)).start()
house = DestinationSettings(kind="duckdb", dsn=sys.argv[1])
try:
    read_rows("house", house, ReadQuery({ENDLESS!r}, 5, timeout_s=600))
except KeyboardInterrupt:
    print("ended")
"""


def test_a_handler_of_signals_that_raises_ends_a_statement_too(file: Path) -> None:
    """A program's own handler; before, it waited for DuckDB, which nobody told."""
    done = subprocess.run(
        [sys.executable, "-c", RAISING_HANDLER, str(file)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("ended\n", "")


@pytest.mark.parametrize("levels", [150, 300])
def test_values_that_are_nested_deeper_than_json_is_written_are_text(
    file: Path, levels: int
) -> None:
    asked = f"SELECT {'[' * levels}1{']' * levels} AS deep, [1, 2] AS flat"
    done = run("sql", asked, "--json")
    assert done.exit_code == 0, done.output
    [[deep, flat]] = json.loads(done.stdout)["rows"]
    assert flat == [1, 2]
    assert isinstance(deep, list) is (levels == 150)
    text = json.dumps(deep) if levels == 150 else deep
    assert text == "[" * levels + "1" + "]" * levels
    assert run("sql", asked).exit_code == 0


def test_half_a_surrogate_pair_is_written_out_in_every_form(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB has no text with one; PostgreSQL's drivers give it for bytes that are no UTF-8."""
    row = ("a\udcffb", {"k\udcff": ["\udcff"]})
    found = QueryResult(columns=("n\udcff", "m"), rows=[row], is_cut=False)
    monkeypatch.setattr("waybill.services.query_destination", lambda *_: found)
    done = run("sql", "SELECT 1", "--json")
    assert done.exit_code == 0, done.output
    values = [r"a\udcffb", {r"k\udcff": [r"\udcff"]}]
    assert json.loads(done.stdout) == {
        "columns": [r"n\udcff", "m"],
        "rows": [values],
        "more": False,
    }
    done = run("sql", "SELECT 1", "--csv")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[1].startswith(r"a\udcffb,")
    assert r"a\udcffb" in run("sql", "SELECT 1").stdout


def test_columns_of_waybill_are_the_last_and_leave_a_narrow_table_first(file: Path) -> None:
    own = ", ".join(f"repeat('{c}', 24) AS _waybill_{c}" for c in "ab")
    statement = f"SELECT {own}, id, id = 1 AS late FROM t ORDER BY id"
    lines = run("sql", statement).stdout.splitlines()
    assert [line.split() for line in lines[2:4]] == [
        ["1", "true", "a" * 24, "b" * 24],
        ["2", "false", "a" * 24, "b" * 24],
    ]
    lines = run("sql", statement.replace("24", "40")).stdout.splitlines()
    assert lines[0].split() == ["id", "late", "_waybill_a"]
    assert "not in 80 columns: _waybill_b; --json has all" in lines
    only = "SELECT repeat('x', 100) AS _waybill_a"
    assert run("sql", only).stdout == f"_waybill_a:\n{'x' * 100}\n1 row\n"
    assert run("sql", statement, "--csv").stdout.startswith("_waybill_a,_waybill_b,id,late\n")
    assert run("sql", "SELECT true AS x", "--csv").stdout == "x\ntrue\n"
