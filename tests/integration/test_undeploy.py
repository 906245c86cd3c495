"""``waybill pipelines undeploy`` on real servers: what it waits for, what stays, and who dies when."""

from __future__ import annotations

import json
import shutil
import signal

import psycopg
import pytest
from tests.support import children, orders
from typer.testing import CliRunner

from waybill import services
from waybill.cli import app
from waybill.deployment import active_pipeline, refuse_replays
from waybill.errors import InputError
from waybill.services import undeployment as service
from waybill.services.ingestion import run_ingest
from waybill.settings import Settings
from waybill.storage import open_tracker

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
    assert "shop.orders stay as they are" in flat(asked.stderr)
    assert tracked("SELECT count(*) FROM undeployments") == [(0,)]
    done = json.loads(undeploy("--yes", "--json").stdout)
    assert done["is_done"]
    assert [one["state"] for one in json.loads(run("list", "--json").stdout)] == ["undeployed"]
    with pytest.raises(InputError, match=r"'orders' was undeployed on .*its source is not read"):
        run_ingest(Settings(), "orders")
    assert "was undeployed on" in undeploy("--yes", code=1).stderr
    assert "nothing to roll back" in run("rollback", "orders", "1", "--why", "x", code=1).stderr
    audited = (
        "SELECT action, detail->>'why' FROM audit_log WHERE target = 'test-orders' ORDER BY id"
    )
    assert tracked(audited)[1:] == [("undeploy", "gone"), ("undeployed", "gone")]

    shutil.move(folder, tmp_path / "away")
    assert json.loads(run("list", "--json").stdout) == []
    assert len(json.loads(run("history", "orders", "--json").stdout)) == 1
    again = deploy(tmp_path / "away")
    assert (again["changed"], again["number"]) == (True, 2)
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
    assert deploy(folder)["changed"]
    assert run_ingest(Settings(), "orders").accepted == 0


def test_what_a_dead_run_left_in_its_log_is_brought_to_kafka_and_nothing_more_is_read(
    folder, tmp_path
):
    write(tmp_path, rows=600)
    deploy(folder)
    child = children.start(Settings(), HALF_A_PAGE)
    child.communicate(timeout=90)
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
    from waybill.destinations import open_destination
    from waybill.pipelines import load_pipeline

    settings = Settings()
    spec = load_pipeline(settings.pipelines_dir / "orders").events["order"].table
    with open_destination("warehouse", settings.destinations["warehouse"], settings.s3) as found:
        found.ensure_table(spec)
        found.held(0, [])
    warehouse(
        "INSERT INTO shop.orders (number, note, _waybill_id, _waybill_source_version, "
        "_waybill_intake_version, _waybill_loaded_at) VALUES (1, 'a', 'x', 0, 0, now())"
    )
    for table in ("orders", "others"):
        warehouse(
            "INSERT INTO waybill._waybill_row_counts (table_schema, table_name, rows, gap) "
            f"VALUES ('shop', '{table}', 1, 0)"
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


@pytest.mark.parametrize(
    ("place", "is_dropped", "can_deploy"),
    [
        ("service.begin_undeployment", False, True),
        ("undeployment.on_the_way", False, True),
        ("service.begin_drop", False, True),
        ("undeployment.drop_tables", False, False),
        ("undeployment.finish", True, False),
    ],
)
def test_whoever_is_killed_at_any_step_is_finished_by_the_same_command(
    folder, place, is_dropped, can_deploy
):
    deploy(folder)
    run_ingest_of_nothing(folder)
    make_table()
    child = children.start(Settings(), DIES.format(place=place))
    output, _ = child.communicate(timeout=90)
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


def test_a_table_that_another_pipeline_got_meanwhile_is_not_dropped(folder, tmp_path, monkeypatch):
    deploy(folder)
    make_table()
    drained = service._drained

    def deployed_beside(*given):
        other = tmp_path / "others"
        shutil.copytree(folder, other)
        text = (other / "pipeline.yaml").read_text()
        text = text.replace("id: test-orders", "id: test-others")
        (other / "pipeline.yaml").write_text(text.replace("name: orders", "name: others"))
        deploy(other)
        return drained(*given)

    monkeypatch.setattr(service, "_drained", deployed_beside)
    refused = flat(undeploy("--drop-tables", "--confirm", "orders", code=1).stderr)
    assert "'orders' and 'others' both write" in refused
    assert warehouse(TABLES) == [("orders",)]
    assert tracked("SELECT dropping_at FROM undeployments") == [(None,)]


def test_nothing_is_replayed_into_tables_that_are_being_dropped(folder):
    deploy(folder)
    child = children.start(Settings(), DIES.format(place="undeployment.drop_tables"))
    output, _ = child.communicate(timeout=90)
    assert child.returncode == -signal.SIGKILL, output
    with (
        open_tracker(Settings().tracker) as tracker,
        pytest.raises(InputError, match="deploy it before its parked events are replayed"),
    ):
        refuse_replays(tracker, active_pipeline(tracker, "orders"))
