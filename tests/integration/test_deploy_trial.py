"""``check --deep`` and ``deploy`` against a real PostgreSQL: rights, conflicts, and what is left."""

from __future__ import annotations

import json

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.support import orders
from typer.testing import CliRunner

from waybill.cli import app
from waybill.destinations import open_destination
from waybill.destinations.adapters.postgres import session
from waybill.pipelines import load_pipeline
from waybill.settings import Settings

pytestmark = pytest.mark.serves
PASSES = "def transform(event):\n    return event\n"
CATALOGUE = (
    "SELECT relname, relkind::text, relacl::text FROM pg_class WHERE relnamespace NOT IN "
    "(SELECT oid FROM pg_namespace WHERE nspname LIKE 'pg_%') UNION ALL "
    "SELECT nspname, 'schema', nspacl::text FROM pg_namespace WHERE nspname !~ '^pg_t' ORDER BY 1"
)


@pytest.fixture
def dsn(postgres):
    return postgres.tracker()


@pytest.fixture
def warehouse(postgres, monkeypatch, dsn, tmp_path):
    """A fresh database that is the destination; returns its dsn."""
    found = postgres.tracker("warehouse")
    for name, value in {
        "WAYBILL_HOME": str(tmp_path / "state"),
        "WAYBILL_TRACKER__DSN": dsn,
        "WAYBILL_PIPELINES_DIR": str(tmp_path / "pipelines"),
        "WAYBILL_AIRFLOW__URL": "http://127.0.0.1:1",
    }.items():
        monkeypatch.setenv(name, value)
    use(monkeypatch, found)
    return found


def use(monkeypatch, dsn):
    given = {"warehouse": {"kind": "postgres", "dsn": dsn}}
    monkeypatch.setenv("WAYBILL_DESTINATIONS", json.dumps(given))


def run(*words, code=0):
    done = CliRunner().invoke(app, ["pipelines", *map(str, words)])
    assert done.exit_code == code, (done.output, done.exception)
    return done


def rows(dsn, statement):
    with psycopg.connect(dsn) as connection:
        found = connection.execute(statement)
        return found.fetchall() if found.description else []


def flat(text):
    return " ".join(text.split())


def test_a_trial_leaves_the_database_as_it_was_and_the_deploy_is_done(warehouse, tmp_path):
    folder = orders.write_orders(tmp_path / "pipelines", rows=3, code=PASSES)
    before = rows(warehouse, CATALOGUE)
    tried = run("check", "--deep", folder)
    assert "destination 'warehouse' can be loaded" in flat(tried.stdout)
    assert "3 of the first 3 rows of its source pass" in flat(tried.stdout)
    report = json.loads(run("check", "--deep", "orders", "--json").stdout)
    assert report["ok"]
    assert len(report["tried"]["orders"]) == 2
    assert "warning" not in run("deploy", folder).stderr
    assert rows(warehouse, CATALOGUE) == before


def test_a_user_without_rights_is_refused_and_told_at_which_step(warehouse, tmp_path, monkeypatch):
    folder = orders.write_orders(tmp_path / "pipelines", rows=1, code=PASSES)
    database = psycopg.conninfo.conninfo_to_dict(warehouse)["dbname"]
    role = f"poor_{database[-8:]}".replace("-", "_")
    rows(warehouse, f'CREATE ROLE "{role}" LOGIN')
    try:
        use(monkeypatch, make_conninfo(warehouse, user=role))
        refused = run("deploy", folder, code=1)
        assert "make Waybill's own tables" in flat(refused.stderr)
        assert "permission denied" in flat(refused.stderr)
        assert "--no-deep deploys it all the same" in flat(refused.stderr)
        assert run("check", folder).exit_code == 0
        problems = json.loads(run("check", "--deep", folder, "--json", code=1).stdout)["problems"]
        assert [one["field"] for one in problems] == ["destination.name"]

        rows(warehouse, "CREATE SCHEMA shop")
        rows(warehouse, "CREATE TABLE shop.orders (number bigint PRIMARY KEY, amount bigint, "
             "note text, doubled bigint)")  # fmt: skip
        rows(warehouse, f'GRANT CREATE ON DATABASE "{database}" TO "{role}"')
        rows(warehouse, f'GRANT ALL ON SCHEMA shop TO "{role}"')
        refused = run("deploy", folder, code=1)
        assert "bring the pipeline's tables to their declarations" in flat(refused.stderr)
        assert "--no-deep" in refused.stderr
        run("deploy", "--no-deep", folder)
    finally:
        rows(warehouse, f'DROP OWNED BY "{role}"; DROP ROLE "{role}"')


def test_rights_to_write_a_table_are_asked_for_where_nothing_is_to_be_changed_of_it(
    warehouse, tmp_path, monkeypatch
):
    folder = orders.write_orders(tmp_path / "pipelines", rows=1, code=PASSES)
    spec = load_pipeline(folder).events["order"].table
    with open_destination("warehouse", Settings().destinations["warehouse"]) as destination:
        destination.ensure_table(spec)
    database = psycopg.conninfo.conninfo_to_dict(warehouse)["dbname"]
    role = f"reader_{database[-8:]}".replace("-", "_")
    rows(warehouse, f'CREATE ROLE "{role}" LOGIN')
    try:
        for right in (
            f'CREATE ON DATABASE "{database}"', "ALL ON SCHEMA shop", "ALL ON SCHEMA waybill",
            "ALL ON ALL TABLES IN SCHEMA waybill", "SELECT, INSERT ON shop.orders",
        ):  # fmt: skip
            rows(warehouse, f'GRANT {right} TO "{role}"')
        use(monkeypatch, make_conninfo(warehouse, user=role))
        refused = flat(run("deploy", folder, code=1).stderr)
        assert "write to the pipeline's tables" in refused
        assert "permission denied for table orders" in refused
        rows(warehouse, f'GRANT UPDATE, DELETE ON shop.orders TO "{role}"')
        run("deploy", folder)
    finally:
        rows(warehouse, f'DROP OWNED BY "{role}"; DROP ROLE "{role}"')


def test_a_destination_that_is_away_is_a_warning_and_the_deploy_is_done(
    warehouse, tmp_path, monkeypatch
):
    folder = orders.write_orders(tmp_path / "pipelines", rows=1, code=PASSES)
    use(monkeypatch, "postgresql://waybill@127.0.0.1:1/warehouse")
    done = run("deploy", folder)
    assert "waits, and nothing is lost" in flat(done.stderr)
    assert "is active" in done.stdout


def test_a_table_in_use_is_not_waited_for_and_others_are_not_held_up(warehouse, tmp_path):
    folder = orders.write_orders(tmp_path / "pipelines", rows=1, code=PASSES)
    rows(warehouse, "CREATE SCHEMA shop")
    rows(warehouse, "CREATE TABLE shop.orders (number bigint PRIMARY KEY)")
    with psycopg.connect(warehouse) as reader:
        reader.execute("SELECT * FROM shop.orders")
        done = run("deploy", folder)
    assert "lock timeout" in flat(done.stderr)
    columns = "SELECT count(*) FROM information_schema.columns WHERE table_name = 'orders'"
    assert rows(warehouse, columns) == [(1,)]


def test_a_trial_that_takes_long_ends_and_leaves_no_lock(warehouse, tmp_path, monkeypatch):
    folder = orders.write_orders(tmp_path / "pipelines", rows=1, code=PASSES)
    spec = load_pipeline(folder).events["order"].table
    with open_destination("warehouse", Settings().destinations["warehouse"]) as destination:
        destination.ensure_table(spec)
    rows(warehouse, "CREATE FUNCTION shop.sleeps() RETURNS trigger LANGUAGE plpgsql AS "
         "'BEGIN PERFORM pg_sleep(300); RETURN NULL; END'")  # fmt: skip
    rows(warehouse, "CREATE TRIGGER slow BEFORE INSERT ON shop.orders FOR EACH STATEMENT "
         "EXECUTE FUNCTION shop.sleeps()")  # fmt: skip
    monkeypatch.setitem(session._UNDONE_LIMITS, "statement_timeout", "2s")
    done = flat(run("deploy", folder).stderr)
    assert "write to the pipeline's tables: destination 'warehouse' cannot take the load" in done
    assert "statement timeout" in done
    held = "SELECT count(*) FROM pg_locks WHERE relation = 'shop.orders'::regclass"
    assert rows(warehouse, held) == [(0,)]


def test_code_that_fails_for_every_row_is_refused_and_nothing_was_written(warehouse, dsn, tmp_path):
    code = "def transform(event):\n    print('hello')\n    return event.dota\n"
    folder = orders.write_orders(tmp_path / "pipelines", rows=3, code=code)
    refused = run("deploy", folder, code=1)
    assert "all of the first 3 rows of its source park" in flat(refused.stderr)
    assert "hello" in refused.stderr
    assert rows(dsn, "SELECT count(*) FROM pipelines") == [(0,)]
    assert run("deploy", "--no-deep", folder, "--json").exit_code == 0


def test_a_rollback_looks_for_imports_and_for_the_destination(warehouse, tmp_path, monkeypatch):
    code = "import pandaz\n\n\ndef transform(event):\n    return event\n"
    folder = orders.write_orders(tmp_path / "pipelines", rows=1, code=code)
    run("deploy", folder, "--missing-ok")
    (folder / "transformation.py").write_text(PASSES)
    run("deploy", folder)
    refused = flat(run("rollback", "orders", "1", "--why", "back", code=1).stderr)
    assert "found 'pandaz'" in refused
    assert "--missing-ok rolls back all the same" in refused
    done = run("rollback", "orders", "1", "--why", "back", "--missing-ok")
    assert "pandaz" in done.stderr
    monkeypatch.setenv(
        "WAYBILL_DESTINATIONS", json.dumps({"warehose": {"kind": "postgres", "dsn": warehouse}})
    )
    refused = flat(run("rollback", "orders", "2", "--why", "on", code=1).stderr)
    assert "found 'warehouse'; did you mean 'warehose'?" in refused
