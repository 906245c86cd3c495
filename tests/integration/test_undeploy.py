"""``waybill pipelines undeploy`` on real servers: what it waits for, what stays, and who dies when."""

from __future__ import annotations

import json
import re
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor

import duckdb
import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.support import children, orders
from typer.testing import CliRunner

from waybill import services, undeployment
from waybill.access import Decision
from waybill.cli import app, undeployments
from waybill.deployment import (
    active_pipeline,
    begin_undeployment,
    end_undeployment,
    hold_undeployment,
    refuse_replays,
)
from waybill.destinations import open_destination
from waybill.destinations.transactional.destination import SqlDestination
from waybill.errors import InputError, RetryError
from waybill.pipelines import load_pipeline
from waybill.services import undeployment as service
from waybill.services.ingestion import run_ingest
from waybill.settings import Settings
from waybill.storage import open_tracker
from waybill.undeployment import UndeployRequest

pytestmark = pytest.mark.serves
PASSES = "def transform(event):\n    return event\n"
DIES = """
import os, signal
from waybill import services, undeployment
from waybill.access import Decision
from waybill.services import undeployment as service
from waybill.undeployment import UndeployRequest
def dies(*given, **more):
    os.kill(os.getpid(), signal.SIGKILL)
{place} = dies
request = UndeployRequest(pipeline="orders", drop_tables=True, why="gone", wait=20)
services.run_undeploy(settings, request, Decision("ann", "gone"))
"""
HALF_A_PAGE = """
import os, signal
from waybill.ingestion import run
from waybill.services.ingestion import run_ingest
def killed(*given):
    os.kill(os.getpid(), signal.SIGKILL)
run.commit_intake = killed
run_ingest(settings, "orders")
"""


@pytest.fixture
def folder(stack_settings, tmp_path, monkeypatch):
    """The folder of `orders`, and the command line beside real servers; Airflow is away."""
    for name, value in stack_settings.to_env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WAYBILL_PIPELINES_DIR", str(tmp_path / "pipelines"))
    monkeypatch.setenv("WAYBILL_AIRFLOW__URL", "http://127.0.0.1:1")
    services.migrate(Settings())
    return write(tmp_path, rows=3)


def write(tmp_path, *, rows):
    return orders.write_orders(tmp_path / "pipelines", rows=rows, code=PASSES)


def run(*words, code=0, given=None):
    done = CliRunner().invoke(app, ["pipelines", *map(str, words)], input=given)
    assert done.exit_code == code, (done.output, done.exception)
    return done


def undeploy(*words, code=0, wait=0, given=None):
    return run(
        "undeploy", "orders", "--why", "gone", "--wait", wait, *words, code=code, given=given
    )


def deploy(folder):
    return json.loads(run("deploy", folder, "--no-deep", "--json").stdout)


def tracked(statement):
    with psycopg.connect(Settings().tracker.dsn.get_secret_value()) as connection:
        return connection.execute(statement).fetchall()


def warehouse(statement):
    dsn = Settings().destinations["warehouse"].dsn.get_secret_value()
    with psycopg.connect(dsn) as connection:
        found = connection.execute(statement)
        return found.fetchall() if found.description else []


def flat(text):
    return " ".join(text.split())


def test_a_pipeline_is_undeployed_and_deployed_again(folder, tmp_path):
    deploy(folder)
    assert "no pipeline 'others' is deployed" in flat(
        run("undeploy", "others", "--why", "x", code=3).stderr
    )
    asked = undeploy(code=1, given="n\n")
    assert "will not be read any more; shop.orders stays as it is" in flat(asked.stderr)
    assert tracked("SELECT count(*) FROM undeployments") == [(0,)]
    done = json.loads(undeploy("--yes", "--json").stdout)
    assert done["is_done"]
    assert [one["state"] for one in json.loads(run("list", "--json").stdout)] == ["undeployed"]
    with pytest.raises(InputError, match=r"'orders' was undeployed on .*its source is not read"):
        run_ingest(Settings(), "orders")
    started = CliRunner().invoke(app, ["ingest", "orders"])
    assert started.exit_code == 1, "before Airflow, which is away, is asked"
    assert re.search(r"'orders' was undeployed on .*source is not read", flat(started.stderr))
    again = flat(undeploy("--why", "x").stdout)
    assert re.match(r"orders: it was undeployed on .*, by \S+ already; its tables stay", again)
    assert json.loads(undeploy("--json").stdout)["already"].startswith("was undeployed on")
    refused = flat(undeploy("--drop-tables", "--confirm", "orders", code=1).stderr)
    assert "already, with its tables kept" in refused
    assert "nothing to roll back" in run("rollback", "orders", "1", "--why", "x", code=1).stderr
    audited = (
        "SELECT action, detail->>'why' FROM audit_log WHERE target = 'test-orders' ORDER BY id"
    )
    assert tracked(audited)[1:] == [("undeploy", "gone"), ("undeployed", "gone")]

    shutil.move(folder, tmp_path / "away")
    assert json.loads(run("list", "--json").stdout) == []
    [version] = json.loads(run("history", "orders", "--json").stdout)
    [gone] = version["undeployments"]
    assert (version["active"], gone["why"], gone["dropped"]) == (False, "gone", [])
    assert (gone["asked_by"], gone["done_at"] > gone["asked_at"]) == (version["deployed_by"], True)
    listed = flat(run("history", "orders").stdout)
    assert "undeployed: gone" in listed
    assert "active" not in listed
    again = deploy(tmp_path / "away")
    assert (again["changed"], again["number"]) == (True, 2)
    newest, oldest = json.loads(run("history", "orders", "--json").stdout)
    assert (newest["active"], newest["undeployments"]) == (True, [])
    assert (oldest["active"], oldest["undeployments"]) == (False, [gone])
    shutil.move(tmp_path / "away", folder)
    assert run_ingest(Settings(), "orders").accepted == 3


def test_what_is_on_its_way_is_told_and_a_deploy_takes_it_back(folder):
    deploy(folder)
    run_ingest(Settings(), "orders")
    waiting = undeploy("--yes", code=2)
    assert "3 events are in Kafka or staged" in flat(waiting.stdout)
    assert json.loads(run("list", "--json").stdout)[0]["state"] == "undeploying"
    with pytest.raises(InputError, match="is being undeployed"):
        run_ingest(Settings(), "orders")
    undeploy("--yes", code=2)
    assert tracked("SELECT count(*) FROM audit_log WHERE action = 'undeploy'") == [(1,)]
    assert "is being undeployed: gone" in flat(run("history", "orders").stdout)
    assert deploy(folder)["changed"]
    listed = flat(run("history", "orders").stdout)
    assert "active" in listed
    assert "undeployment begun, ended by a deploy: gone" in listed
    assert run_ingest(Settings(), "orders").accepted == 0


def test_what_a_dead_run_left_in_its_log_is_brought_to_kafka_and_nothing_more_is_read(
    folder, tmp_path
):
    write(tmp_path, rows=600)
    deploy(folder)
    child = children.start(Settings(), HALF_A_PAGE)
    child.communicate(timeout=300)
    assert child.returncode == -signal.SIGKILL
    assert tracked("SELECT state FROM write_ahead_logs") == [("open",)]
    tracked("UPDATE source_runs SET told_at = told_at - interval '2 minutes' RETURNING 1")
    left = undeploy("--yes", code=2, wait=12)
    assert tracked("SELECT state, unsettled FROM write_ahead_logs") == [("closed", 0)]
    [(taken,)] = tracked("SELECT rows_read FROM connector_positions")
    assert 0 < taken < 1200
    assert "log" not in left.stdout
    assert f"{taken} events are in Kafka" in flat(left.stdout)


def test_parked_events_are_a_reason_not_to_unless_they_are_left(folder, tmp_path):
    (folder / "orders.csv").write_text("number,amount,note\n,1,a\n,2,b\n")
    deploy(folder)
    assert run_ingest(Settings(), "orders").parked == 2
    refused = flat(undeploy("--yes", code=1).stderr)
    assert "2 events are parked" in refused
    assert "--leave-parked" in refused
    assert tracked("SELECT count(*) FROM undeployments") == [(0,)]
    assert "its parked events stay" in flat(undeploy("--yes", "--leave-parked").stdout)


def test_an_open_replay_is_a_reason_not_to(folder, tmp_path):
    (folder / "orders.csv").write_text("number,amount,note\n,1,a\n")
    deploy(folder)
    run_ingest(Settings(), "orders")
    tracked(
        "INSERT INTO replays (id, partition_id, state, requested_by) "
        "SELECT gen_random_uuid(), id, 'running', 'ann' FROM parked_partitions RETURNING 1"
    )
    assert "1 replays are open" in undeploy("--yes", "--leave-parked", code=1).stderr


def make_table():
    """Make the table of orders with a row, as loads do, and its books."""
    make_bare_table()
    warehouse(
        "INSERT INTO shop.orders (number, note, _waybill_id, _waybill_source_version, "
        "_waybill_intake_version, _waybill_loaded_at) VALUES (1, 'a', 'x', 0, 0, now())"
    )
    for table in ("orders", "others"):
        warehouse(
            "INSERT INTO waybill._waybill_row_counts (table_schema, table_name, rows, gap) "
            f"VALUES ('shop', '{table}', 1, 0) ON CONFLICT DO NOTHING"
        )


TABLES = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'shop'"
COUNTED = "SELECT table_name FROM waybill._waybill_row_counts"


def test_tables_are_dropped_once_the_name_is_typed(folder):
    deploy(folder)
    make_table()
    wrong = undeploy("--drop-tables", code=1, given="order\n")
    assert "shop.orders" in wrong.stderr
    assert "nothing was done: expected 'orders', found 'order'" in flat(wrong.stderr)
    assert "add --confirm" in undeploy("--drop-tables", "--json", code=1).stderr
    assert tracked("SELECT count(*) FROM undeployments") == [(0,)]
    done = undeploy("--drop-tables", given="orders\n")
    assert "dropped are shop.orders" in flat(done.stdout)
    assert (warehouse(TABLES), warehouse(COUNTED)) == ([], [("others",)])
    dropped = "SELECT detail->'dropped' FROM audit_log WHERE action = 'undeployed'"
    assert tracked(dropped) == [(["shop.orders"],)]
    assert "undeployed, shop.orders dropped: gone" in flat(run("history", "orders").stdout)


def test_tables_that_another_pipeline_writes_are_not_dropped(folder, tmp_path):
    deploy(folder)
    other = tmp_path / "others"
    shutil.copytree(folder, other)
    text = (other / "pipeline.yaml").read_text()
    text = text.replace("id: test-orders", "id: test-others").replace(
        "name: orders", "name: others"
    )
    (other / "pipeline.yaml").write_text(text)
    deploy(other)
    refused = flat(undeploy("--drop-tables", "--confirm", "orders", code=1).stderr)
    assert "its tables are not dropped: pipelines 'orders' and 'others' both write" in refused


def test_a_table_that_another_pipeline_learned_is_not_dropped(folder, tmp_path):
    deploy(folder)
    learn(LEARNED)
    other = others_of(folder, tmp_path, "orders__tags")
    [warning] = deploy(other)["warnings"]
    assert "'others' and 'orders' both write table shop.orders__tags" in warning
    request = UndeployRequest(pipeline="others", drop_tables=True, why="gone", wait=0)
    refused = r"not dropped: pipelines 'others' and 'orders' both write table shop\.orders__tags"
    with pytest.raises(InputError, match=refused):
        services.run_undeploy(Settings(), request, Decision("ann", "gone"))
    text = (folder / "pipeline.yaml").read_text().replace("event: order", "event: sale")
    (folder / "pipeline.yaml").write_text(text.replace("order:\n", "sale:\n"))
    deploy(folder)
    assert deploy(other)["warnings"] == [], "an event name that is not declared writes no table"


@pytest.fixture
def places(folder, tmp_path, monkeypatch):
    """Name a PostgreSQL or a file `warehouse` and, by another address, `second`; `third` is empty.

    Returns what makes the settings; called with no kind, `warehouse` is all there is.
    """
    dsn = Settings().destinations["warehouse"].dsn.get_secret_value()
    file = tmp_path / "warehouse.duckdb"
    (tmp_path / "link").symlink_to(tmp_path)
    dsns = {
        "postgres": (dsn, make_conninfo(dsn, application_name="second")),
        "duckdb": (str(file), str(tmp_path / "link" / file.name)),
    }

    def configure(kind, *names):
        known = dict(zip(("warehouse", "second"), dsns[kind], strict=True))
        made = {name: {"kind": kind, "dsn": known[name]} for name in names if name in known}
        if "third" in names:
            made["third"] = {"kind": "duckdb", "dsn": str(tmp_path / "third.duckdb")}
        monkeypatch.setenv("WAYBILL_DESTINATIONS", json.dumps(made))

    return configure


def make_bare_table():
    """Make the table of orders where its destination is; no row is in it."""
    settings = Settings()
    spec = load_pipeline(settings.pipelines_dir / "orders").events["order"].table
    with open_destination("warehouse", settings.destinations["warehouse"], settings.s3) as found:
        found.ensure_table(spec)
        found.held(0, [])


def tables_there():
    """Return the names of the tables of schema `shop` of `warehouse`."""
    settings = Settings().destinations["warehouse"]
    if settings.kind == "postgres":
        return [name for (name,) in warehouse(TABLES)]
    with duckdb.connect(settings.dsn.get_secret_value()) as connection:
        return [name for (name,) in connection.execute(TABLES).fetchall()]


def half_dropped():
    """Have the tables of `orders` be dropped, by somebody who died before they were."""
    tracked(
        "INSERT INTO undeployments (pipeline_id, asked_by, why, drop_tables, dropping_at) "
        "VALUES ('test-orders', 'ann', 'gone', true, now()) RETURNING 1"
    )


ONE_TABLE = pytest.mark.parametrize(
    ("kind", "table", "destination"),
    [
        ("duckdb", "Orders", "warehouse"),
        ("duckdb", "ORDERS", "second"),
        ("postgres", "orders", "second"),
    ],
)
"""What another pipeline calls shop.orders of `warehouse`."""


@ONE_TABLE
def test_a_table_that_another_pipeline_writes_by_another_name_is_not_dropped(
    folder, tmp_path, places, kind, table, destination
):
    places(kind, "warehouse", "second", "third")
    deploy(folder)
    make_bare_table()
    [warning] = deploy(others_of(folder, tmp_path, table, destination))["warnings"]
    both = f"'others' and 'orders' both write table shop.{table} of {destination!r} ('orders' calls"
    assert f"{both} it shop.orders of 'warehouse'): rows with equal keys" in warning
    refused = flat(undeploy("--drop-tables", "--confirm", "orders", code=1).stderr)
    assert "its tables are not dropped: pipelines 'orders' and 'others' both write" in refused
    assert f"('others' calls it shop.{table} of {destination!r})" in refused
    assert tables_there() == ["orders"]
    assert tracked("SELECT count(*) FROM undeployments") == [(0,)]


@ONE_TABLE
def test_nobody_deploys_by_another_name_onto_a_table_that_is_being_dropped(
    folder, tmp_path, places, kind, table, destination
):
    places(kind, "warehouse", "second", "third")
    deploy(folder)
    make_bare_table()
    half_dropped()
    other = others_of(folder, tmp_path, table, destination)
    refused = flat(run("deploy", other, "--no-deep", code=1).stderr)
    assert f"writes table shop.{table} of {destination!r}, which is being dropped with" in refused
    undeploy("--drop-tables", "--confirm", "orders")
    assert tables_there() == []
    assert deploy(other)["warnings"] == []


@pytest.mark.parametrize(
    ("kind", "table", "destination"),
    [
        ("postgres", "Orders", "second"),
        ("duckdb", "orders", "third"),
        ("postgres", "orders", "third"),
        ("duckdb", "ordérs", "warehouse"),
    ],
)
def test_another_table_of_another_pipeline_is_no_reason_to_keep_one(
    folder, tmp_path, places, kind, table, destination
):
    places(kind, "warehouse", "second", "third")
    deploy(folder)
    make_bare_table()
    assert deploy(others_of(folder, tmp_path, table, destination))["warnings"] == []
    undeploy("--drop-tables", "--confirm", "orders")
    assert tables_there() == []


def test_a_table_of_a_destination_that_is_not_configured_may_be_the_one_that_is_dropped(
    folder, tmp_path, places
):
    places("postgres", "warehouse", "second")
    deploy(folder)
    make_table()
    deploy(others_of(folder, tmp_path, "Orders", "second"))
    places("postgres", "warehouse")
    refused = flat(undeploy("--drop-tables", "--confirm", "orders", code=1).stderr)
    assert "'orders' and 'others' may both write table shop.orders of 'warehouse'" in refused
    assert "destination 'second' is not among the settings here" in refused
    places("postgres", "warehouse", "second")
    assert undeploy("--drop-tables", "--confirm", "orders")
    assert warehouse(TABLES) == []


@pytest.mark.parametrize(("names", "said"), [(("second",), "both"), ((), "may both")])
def test_a_table_that_another_pipeline_writes_since_settings_changed_is_not_dropped_by_the_dag(
    folder, tmp_path, places, names, said
):
    deploy(folder)
    make_table()
    places("postgres", "warehouse", "third")
    deploy(others_of(folder, tmp_path, "orders", "third"))
    tracked(
        "UPDATE pipeline_versions SET declaration = jsonb_set(declaration, '{destination}', "
        "'\"second\"') WHERE pipeline_id = 'test-others' RETURNING 1"
    )
    half_dropped()
    places("postgres", "warehouse", *names)
    [report] = services.finish_drops(Settings())
    assert f"'orders' and 'others' {said} write table shop.orders" in report.waits_for[0]
    assert warehouse(TABLES) == [("orders",)]
    assert "write table shop.orders" in flat(run("list").stdout)
    assert "tables stay" in flat(undeploy("--keep-tables", "--yes").stdout)
    assert services.finish_drops(Settings()) == []


def learn(children):
    """Have children's tables learned of the events of `orders`."""
    tracked(
        "UPDATE mapping_versions SET declaration = jsonb_set(declaration, "
        f"'{{table,children}}', '{children}') RETURNING 1"
    )


def test_a_table_that_no_load_wrote_to_is_not_dropped(folder, monkeypatch):
    deploy(folder)
    warehouse("CREATE SCHEMA shop; CREATE TABLE shop.orders (number bigint PRIMARY KEY)")
    refused = flat(undeploy("--drop-tables", "--confirm", "orders", code=1).stderr)
    assert "shop.orders was never loaded by Waybill" in refused
    assert "keep it with --keep-tables" in refused
    assert tracked("SELECT count(*) FROM undeployments") == [(0,)]
    monkeypatch.setattr(undeployment, "refuse_drop", lambda *_given, **_more: None)
    late = flat(undeploy("--drop-tables", "--confirm", "orders", code=1).stderr)
    assert "shop.orders was never loaded by Waybill" in late
    assert warehouse(TABLES) == [("orders",)]


@pytest.mark.parametrize(
    ("place", "is_dropped", "can_deploy"),
    [
        ("service.begin_undeployment", False, True),
        pytest.param("undeployment.on_the_way", False, True, marks=pytest.mark.campaign),
        pytest.param("undeployment.begin_drop", False, True, marks=pytest.mark.campaign),
        pytest.param("undeployment.drop_tables", False, False, marks=pytest.mark.campaign),
        ("undeployment.finish", True, False),
        pytest.param("service.UndeployReport", True, True, marks=pytest.mark.campaign),
    ],
)
def test_whoever_is_killed_at_any_step_is_finished_by_the_same_command(
    folder, place, is_dropped, can_deploy
):
    deploy(folder)
    run_ingest_of_nothing(folder)
    make_table()
    child = children.start(Settings(), DIES.format(place=place))
    output, _ = child.communicate(timeout=300)
    assert child.returncode == -signal.SIGKILL, output
    assert (warehouse(TABLES) == []) is is_dropped
    if not can_deploy:
        refused = run("deploy", folder, "--no-deep", code=1).stderr
        assert "its tables are being dropped: finish that first" in flat(refused)
    undeploy("--drop-tables", "--confirm", "orders", wait=20)
    assert (warehouse(TABLES), warehouse(COUNTED)) == ([], [("others",)])
    [(again,)] = tracked("SELECT reread_asked_at IS NOT NULL FROM connector_positions")
    assert again
    assert deploy(folder)["number"] == 2
    orders.write_orders(folder.parent, rows=3, code=PASSES)
    assert run_ingest(Settings(), "orders").accepted == 3, "from the beginning"


def run_ingest_of_nothing(folder):
    """Have a position of the source."""
    rows = (folder / "orders.csv").read_text()
    (folder / "orders.csv").write_text(rows.partition("\n")[0] + "\n")
    run_ingest(Settings(), "orders")
    tracked(
        "INSERT INTO connector_positions (pipeline_id, sequence, cursor, rows_read) VALUES "
        "('test-orders', 0, '{}', 0) "
        "ON CONFLICT DO NOTHING RETURNING 1"
    )


def others_of(folder, tmp_path, table="orders", destination="warehouse"):
    """Return the folder of another pipeline that writes a table of the same schema."""
    other = tmp_path / "others"
    shutil.copytree(folder, other)
    text = (other / "pipeline.yaml").read_text()
    text = text.replace("id: test-orders", "id: test-others")
    text = text.replace("table: orders", f"table: {table}")
    text = text.replace("name: warehouse", f"name: {destination}")
    (other / "pipeline.yaml").write_text(text.replace("name: orders", "name: others"))
    return other


def drops(who="ben", **given):
    """Undeploy `orders` and drop its tables, as somebody else does."""
    request = UndeployRequest(pipeline="orders", drop_tables=True, why="gone", **given)
    return services.run_undeploy(Settings(), request, Decision(who, "gone"))


def test_a_table_that_another_pipeline_got_meanwhile_is_not_dropped(folder, tmp_path, monkeypatch):
    deploy(folder)
    make_table()
    drained = service._drained

    def deployed_beside(*given):
        deploy(others_of(folder, tmp_path))
        return drained(*given)

    monkeypatch.setattr(service, "_drained", deployed_beside)
    refused = flat(undeploy("--drop-tables", "--confirm", "orders", code=1).stderr)
    assert "'orders' and 'others' both write" in refused
    assert warehouse(TABLES) == [("orders",)]
    assert tracked("SELECT dropping_at FROM undeployments") == [(None,)]


def test_nothing_is_replayed_into_tables_that_are_being_dropped(folder):
    deploy(folder)
    child = children.start(Settings(), DIES.format(place="undeployment.drop_tables"))
    output, _ = child.communicate(timeout=300)
    assert child.returncode == -signal.SIGKILL, output
    with (
        open_tracker(Settings().tracker) as tracker,
        pytest.raises(InputError, match="deploy it before its parked events are replayed"),
    ):
        refuse_replays(tracker, active_pipeline(tracker, "orders"))


def test_who_is_late_does_not_drop_the_tables_that_a_deploy_made_since(folder, monkeypatch):
    deploy(folder)
    make_table()
    begin = undeployment.begin_drop

    def overtaken(*given):
        monkeypatch.setattr(undeployment, "begin_drop", begin)
        begun = begin(*given)
        assert drops().is_done
        services.run_deploy(Settings(), folder, who="ben")
        make_table()
        return begun

    monkeypatch.setattr(undeployment, "begin_drop", overtaken)
    with pytest.raises(InputError, match="was deployed meanwhile"):
        drops("ann")
    assert warehouse(TABLES) == [("orders",)]
    assert tracked("SELECT count(*) FROM undeployments") == [(0,)]


def test_who_is_late_does_not_end_an_undeployment_that_another_began_since(folder, monkeypatch):
    deploy(folder)
    finish = undeployment.finish

    def overtaken(*given):
        monkeypatch.setattr(undeployment, "finish", finish)
        services.run_deploy(Settings(), folder, who="ben")
        run_ingest(Settings(), "orders")
        assert not drops(wait=0).is_done
        return finish(*given)

    monkeypatch.setattr(undeployment, "finish", overtaken)
    with pytest.raises(InputError, match="somebody else went on with its undeployment"):
        services.run_undeploy(
            Settings(), UndeployRequest(pipeline="orders", why="x"), Decision("ann", "x")
        )
    assert tracked("SELECT asked_by, done_at FROM undeployments") == [("ben", None)]


def test_while_one_drops_tables_no_other_goes_on_and_nobody_deploys_onto_them(
    folder, tmp_path, monkeypatch
):
    deploy(folder)
    make_table()
    declaration = "SELECT declaration #> '{table,children}' FROM mapping_versions"
    assert tracked(declaration) == [([],)]
    learn(LEARNED)
    monkeypatch.setenv("WAYBILL_TRACKER__LOCK_TIMEOUT_S", "1")
    drop, tried = SqlDestination.drop_tables, []

    def watched(self, specs, *confirm):
        tried.append([spec.name for spec in specs])
        with pytest.raises(RetryError, match="held a lock for too long"):
            drops("ben")
        for table in ("orders", "orders__tags"):
            other = others_of(folder, tmp_path / table, table)
            with pytest.raises(InputError, match=f"shop.{table} of 'warehouse', which is being"):
                services.run_deploy(Settings(), other, who="ben")
        drop(self, specs, *confirm)

    monkeypatch.setattr(SqlDestination, "drop_tables", watched)
    assert drops("ann").dropped == ("shop.orders", "shop.orders__tags")
    assert tried == [["orders"]]
    done = services.run_deploy(Settings(), tmp_path / "orders" / "others", who="ben")
    assert done.warnings == (), "orders is undeployed, and writes no table"


LEARNED = json.dumps(
    [
        {
            "name": "orders__tags",
            "source": "tags",
            "columns": [{"name": "value", "type": "string", "source": ""}],
        }
    ]
)


def test_tables_stay_where_the_tracker_ended_the_hold_on_the_undeployment(folder, monkeypatch):
    deploy(folder)
    make_table()
    drop = SqlDestination.drop_tables

    def cut_off(self, specs, confirm):
        def confirmed():
            ended = tracked(
                "SELECT pg_terminate_backend(pid, 120000) FROM pg_locks JOIN pg_database AS own "
                "ON own.oid = database WHERE locktype = 'advisory' AND own.datname = "
                "current_database()"
            )
            assert ended == [(True,)]
            confirm()

        drop(self, specs, confirmed)

    monkeypatch.setattr(SqlDestination, "drop_tables", cut_off)
    with pytest.raises(RetryError, match="tracker"):
        drops()
    assert (warehouse(TABLES), len(warehouse(COUNTED))) == ([("orders",)], 2)
    monkeypatch.setattr(SqlDestination, "drop_tables", drop)
    assert drops().is_done
    assert warehouse(TABLES) == []


def test_a_replay_that_began_since_somebody_looked_has_them_look_again(folder, monkeypatch):
    (folder / "orders.csv").write_text("number,amount,note\n,1,a\n")
    deploy(folder)
    run_ingest(Settings(), "orders")
    replay = (
        "INSERT INTO replays (id, partition_id, state, requested_by) "
        "SELECT gen_random_uuid(), id, 'done', 'ann' FROM parked_partitions RETURNING 1"
    )
    log = (
        "INSERT INTO write_ahead_logs (wal_id, pipeline_id, purpose, name, node, path, topic, "
        "rereadable) VALUES ('w', 'test-orders', 'replay', 'replay-1', 'n', '/w', 't', false) "
        "RETURNING 1"
    )
    drained, happens, looks = service._drained, [replay, log], []

    def looked(*given):
        found = drained(*given)
        looks.append(bool(found))
        if happens:
            tracked(happens.pop(0))
        return found

    monkeypatch.setattr(service, "_drained", looked)
    done = undeploy("--yes", "--leave-parked", code=2)
    assert "write-ahead log /w of n is open" in flat(done.stdout)
    assert looks == [False, False, True]
    assert tracked("SELECT done_at FROM undeployments") == [(None,)]


def test_a_replay_that_begins_as_an_undeployment_ends_waits_for_its_end(folder):
    deploy(folder)
    decision = Decision("ann", "gone")
    with open_tracker(Settings().tracker) as tracker, ThreadPoolExecutor(1) as pool:
        pipeline = active_pipeline(tracker, "orders")
        begun = begin_undeployment(tracker, pipeline, decision, drop_tables=False)
        refuse_replays(tracker, pipeline)
        with tracker.transaction() as connection:
            hold_undeployment(connection, pipeline, begun)
            asked = pool.submit(refuse_replays, tracker, pipeline)
            with pytest.raises(TimeoutError):
                asked.result(timeout=1)
            end_undeployment(connection, begun, decision, [])
        with pytest.raises(InputError, match="deploy it before its parked events are replayed"):
            asked.result(timeout=240)


def test_a_drop_that_is_refused_is_told_and_tried_again_by_the_dag(folder):
    deploy(folder)
    make_table()
    warehouse("CREATE VIEW shop.seen AS SELECT note FROM shop.orders")
    refused = flat(undeploy("--drop-tables", "--confirm", "orders", code=1).stderr)
    assert "other objects depend on it" in refused
    assert "waybill pipelines undeploy orders --keep-tables" in refused
    [listed] = json.loads(run("list", "--json").stdout)
    assert (listed["state"], "depend on it" in listed["problem"]) == ("undeploying", True)
    assert "orders: its tables are not dropped: destination" in flat(run("list").stdout)
    [again] = services.finish_drops(Settings())
    assert not again.is_done
    assert "depend on it" in again.waits_for[0]
    told = "SELECT detail->>'destination', detail->>'message' FROM notices"
    [(where, why)] = tracked(told)
    assert where.startswith("warehouse did not drop the tables")
    assert "depend on it" in why
    assert (len(warehouse(TABLES)), len(warehouse(COUNTED))) == (2, 2)
    warehouse("DROP VIEW shop.seen")
    [done] = services.finish_drops(Settings())
    assert (done.is_done, done.dropped) == (True, ("shop.orders",))
    assert (warehouse(TABLES), services.finish_drops(Settings())) == ([], [])
    [listed] = json.loads(run("list", "--json").stdout)
    assert (listed["state"], listed["problem"]) == ("undeployed", "")
    who = "SELECT who, detail->>'why' FROM audit_log WHERE action = 'undeployed'"
    asked = "SELECT asked_by, why FROM undeployments"
    assert tracked(who) == tracked(asked)


def test_who_waits_while_the_dag_ends_it_is_told_what_came_of_it(folder, monkeypatch):
    deploy(folder)
    make_table()
    drop = undeployment.drop_tables

    def overtaken(*given):
        monkeypatch.setattr(undeployment, "drop_tables", drop)
        [done] = services.finish_drops(Settings())
        assert done.is_done
        return drop(*given)

    monkeypatch.setattr(undeployment, "drop_tables", overtaken)
    done = flat(undeploy("--drop-tables", "--confirm", "orders").stdout)
    assert "already; dropped are shop.orders" in done
    assert "read from its beginning" in done
    assert tracked("SELECT count(*) FROM audit_log WHERE action = 'undeployed'") == [(1,)]


def test_a_pipeline_that_cannot_be_read_keeps_no_other_from_being_finished(folder, tmp_path):
    deploy(folder)
    other = others_of(folder, tmp_path, "others")
    deploy(other)
    make_table()
    tracked(
        "INSERT INTO undeployments (pipeline_id, asked_by, why, drop_tables, dropping_at) SELECT "
        "id, 'ann', 'gone', true, now() FROM pipelines RETURNING 1"
    )
    tracked("UPDATE pipelines SET name = 'test-orders' WHERE id = 'test-others' RETURNING 1")
    [done, also] = services.finish_drops(Settings())
    assert (done.pipeline, done.dropped) == ("orders", ("shop.orders",)), "ids are not names"
    assert also.dropped == ("shop.others",)
    tracked("UPDATE undeployments SET done_at = NULL RETURNING 1")
    tracked(
        "UPDATE pipeline_versions SET declaration = '[]' WHERE pipeline_id = 'test-orders' "
        "RETURNING 1"
    )
    [broken, done] = services.finish_drops(Settings())
    assert (broken.pipeline_id, broken.is_done) == ("test-orders", False)
    assert "stored Pipeline cannot be read" in broken.waits_for[0]
    assert (done.pipeline_id, done.is_done) == ("test-others", True)


def test_a_drop_that_rights_are_missing_for_is_ended_with_the_tables_kept(folder, monkeypatch):
    deploy(folder)
    run_ingest_of_nothing(folder)
    make_table()
    dsn = Settings().destinations["warehouse"].dsn.get_secret_value()
    database = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    role = f"keeper_{database[-8:]}".replace("-", "_")
    warehouse(f'CREATE ROLE "{role}" LOGIN')
    try:
        for right in (
            f'CREATE ON DATABASE "{database}"', "ALL ON SCHEMA shop", "ALL ON SCHEMA waybill",
            "ALL ON ALL TABLES IN SCHEMA waybill", "ALL ON ALL TABLES IN SCHEMA shop",
        ):  # fmt: skip
            warehouse(f'GRANT {right} TO "{role}"')
        given = {"warehouse": {"kind": "postgres", "dsn": make_conninfo(dsn, user=role)}}
        monkeypatch.setenv("WAYBILL_DESTINATIONS", json.dumps(given))
        refused = flat(undeploy("--drop-tables", "--confirm", "orders", code=1).stderr)
        assert "must be owner of table orders" in refused
        refused = flat(run("deploy", folder, "--no-deep", code=1).stderr)
        assert "its tables are being dropped: finish that first" in refused
        assert "--keep-tables" in flat(undeploy("--yes", code=1).stderr)
        both = undeploy("--keep-tables", "--drop-tables", "--confirm", "orders", code=1)
        assert "not both" in both.stderr
        kept = flat(undeploy("--keep-tables", "--yes").stdout)
        assert "its tables stay, as far as they were not dropped before" in kept
        monkeypatch.setenv("WAYBILL_DESTINATIONS", json.dumps({"warehouse": {"dsn": dsn}}))
        assert warehouse(TABLES) == [("orders",)]
        assert tracked("SELECT reread_asked_at IS NOT NULL FROM connector_positions") == [(True,)]
        assert services.finish_drops(Settings()) == []
        assert deploy(folder)["number"] == 2
    finally:
        monkeypatch.setenv("WAYBILL_DESTINATIONS", json.dumps({"warehouse": {"dsn": dsn}}))
        warehouse(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"')


def test_a_dag_is_paused_only_once_nothing_refuses_the_undeployment(folder, monkeypatch):
    paused = []
    monkeypatch.setattr(
        undeployments, "_pause", lambda _settings, dag: paused.append(dag) or "paused"
    )
    deploy(folder)
    run_ingest(Settings(), "orders")
    undeploy("--drop-tables", "--confirm", "orders", code=2)
    assert paused == ["ingest_orders"]
    assert "with its tables to be dropped" in flat(undeploy("--yes", code=1).stderr)
    assert paused == ["ingest_orders"]
