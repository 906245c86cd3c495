"""A deploy and its DAG, on a whole Airflow that parses its files every five minutes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests import servers
from tests.support import orders, real_airflow

from waybill import services
from waybill.pipelines import SHARDS
from waybill.stack.airflow import PARSE_INTERVAL_S, USER

pytestmark = [pytest.mark.serves, pytest.mark.campaign, pytest.mark.timeout(1500)]
FILES = [*real_airflow.DAGS, *(f"ingest_{number:02}" for number in range(SHARDS))]
SOON_S = 60.0
"""A fifth of the time between two parses; on a machine that is busy with other tests."""


@pytest.fixture(scope="module")
def airflow(_postgres, _kafka, _s3, airflow_metadata, tmp_path_factory):
    home = tmp_path_factory.mktemp("deployed")
    settings = servers.stack_settings(_postgres, _kafka, _s3, home)
    folder = home / "pipelines"
    folder.mkdir()
    settings = settings.model_copy(update={"pipelines_dir": folder})
    services.migrate(settings)
    with real_airflow.started(settings, airflow_metadata, files=FILES) as started:
        started.settings = settings
        yield started


def declare(folder, name, schedule="null"):
    """Write a pipeline's folder; return it."""
    if not folder.exists():
        orders.write_orders(folder.with_name(f".{name}"), rows=1).rename(folder)
    text = orders.DECLARATION.format(page_rows=100, not_null="", team=f"team-{name}")
    changes = {"id: test-orders": f"id: test-{name}", "name: orders": f"name: {name}",
               "schema: shop": f"schema: {name}", "schedule: null": f"schedule: {schedule!r}"}  # fmt: skip
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "pipeline.yaml").write_text(text.replace("schedule: 'null'", "schedule: null"))
    return folder


def deploy(airflow, folder, **changes):
    """Deploy as from a shell; return what it says, as JSON."""
    done = shell(airflow, "pipelines", "deploy", str(folder), "--json", **changes)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def shell(airflow, *words, **changes):
    """Run the command line as from a shell."""
    settings = {
        **airflow.settings.to_env(),
        "WAYBILL_AIRFLOW__URL": airflow.airflow.url,
        "WAYBILL_AIRFLOW__USER": USER,
        "WAYBILL_AIRFLOW__PASSWORD": airflow.airflow.credentials.airflow_password,
        **changes,
    }
    return subprocess.run(
        [sys.executable, "-m", "waybill.cli", *words],
        env={**os.environ, **settings, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def current(report):
    return report["dag"]["is_current"], report["dag"]["note"]


def declared(airflow, name, **given):
    return declare(airflow.settings.pipelines_dir / name, name, **given)


def schedule_of(airflow, dag_id):
    query = f"SELECT timetable_summary FROM dag WHERE dag_id = '{dag_id}' AND NOT is_stale"
    return [summary for (summary,) in airflow.sql(query)]


def runs_by(airflow, dag_id):
    """Return the schedule that the scheduler goes by; None: by hand."""
    [(timetable,)] = airflow.sql(
        "SELECT data -> 'dag' -> 'timetable' -> '__var' ->> 'expression' FROM serialized_dag "
        f"WHERE dag_id = '{dag_id}' ORDER BY last_updated DESC LIMIT 1"
    )
    return timetable


def test_a_deploy_has_its_dag_within_seconds_and_so_has_each_of_several_at_once(airflow):
    servers.wait_for(lambda: parsed(airflow) >= set(FILES), 300)  # all of the first round
    began = time.monotonic()
    folder = declared(airflow, "first")
    assert current(deploy(airflow, folder)) == (True, "")
    assert time.monotonic() - began < SOON_S < PARSE_INTERVAL_S
    assert schedule_of(airflow, "ingest_first") == ["None"]

    declared(airflow, "first", schedule="17 3 * * *")
    assert current(deploy(airflow, folder)) == (True, "")
    assert schedule_of(airflow, "ingest_first") == ["17 3 * * *"]
    assert runs_by(airflow, "ingest_first") == "17 3 * * *"
    declared(airflow, "first", schedule="18 3 * * *")
    assert current(deploy(airflow, folder)) == (True, "")
    assert runs_by(airflow, "ingest_first") == "18 3 * * *"

    folders = [declared(airflow, f"many{number}") for number in range(5)]
    with ThreadPoolExecutor(len(folders)) as pool:
        reports = list(pool.map(lambda one: deploy(airflow, one), folders))
    for report in reports:  # where it took longer than a deploy waits, it says so
        done, note = current(report)
        assert done or "did not within 15 s" in note
    ids = [report["dag"]["id"] for report in reports]
    servers.wait_for(lambda: all(schedule_of(airflow, one) == ["None"] for one in ids), SOON_S)
    assert time.monotonic() - began < PARSE_INTERVAL_S, "no regular parse was waited for"


def parsed(airflow):
    """Return the files that the DAG processor has parsed, by their stems."""
    log = airflow.airflow.home / "logs" / "dag_processor"
    return {path.name.partition(".")[0] for path in log.rglob("*.log")}


def test_a_deploy_holds_where_airflow_does_not_take_it_and_says_when_the_dag_is_there(
    airflow, tmp_path
):
    elsewhere = deploy(airflow, declare(tmp_path / "elsewhere", "elsewhere"))
    done, note = current(elsewhere)
    assert (elsewhere["changed"], done) == (True, False)
    assert note.startswith("Airflow has no ingest_elsewhere: it has DAGs for what is in its own")
    assert note.endswith("within 5 minutes")

    folder = declared(airflow, "refused")
    report = deploy(airflow, folder, WAYBILL_AIRFLOW__PASSWORD="wrong")
    assert (report["changed"], report["dag"]["is_current"]) == (True, False)
    assert "within 5 minutes" in report["dag"]["note"]
    assert "check WAYBILL_AIRFLOW__USER and WAYBILL_AIRFLOW__PASSWORD" in report["dag"]["note"]

    airflow.components["dag-processor"].stop()
    report = deploy(airflow, folder)
    assert (report["changed"], report["dag"]["is_current"]) == (False, False)
    assert "was asked to make ingest_refused anew and did not within 15 s" in report["dag"]["note"]
    airflow.components["dag-processor"].start()
    servers.wait_for(lambda: schedule_of(airflow, "ingest_refused") == ["None"], 200)

    airflow.components["api-server"].stop()
    report = deploy(airflow, declared(airflow, "away"))
    assert (report["changed"], report["dag"]["is_current"]) == (True, False)
    assert f"{airflow.airflow.url} does not answer" in report["dag"]["note"]
    assert "within 5 minutes" in report["dag"]["note"]


def test_a_run_that_the_command_line_starts_is_followed_and_reads_again_what_it_is_asked_to(
    airflow,
):
    airflow.keep_up()  # what the test before has stopped
    servers.wait_for(lambda: parsed(airflow) >= set(FILES), 300)
    deploy(airflow, declared(airflow, "asked"))

    airflow.sql("UPDATE dag SET is_paused = true WHERE dag_id = 'ingest_asked' RETURNING 1")
    paused = shell(airflow, "ingest", "asked", "--wait")
    assert (paused.returncode, paused.stdout) == (1, "")
    assert "DAG 'ingest_asked' is paused" in paused.stderr
    airflow.sql("UPDATE dag SET is_paused = false WHERE dag_id = 'ingest_asked' RETURNING 1")

    def ended(*words, code=0):
        done = shell(airflow, "ingest", "asked", "--wait", "--yes", "--json", *words)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)

    first = ended()
    assert (first["state"], first["report"]["read"]) == ("success", 1)
    assert ended()["report"]["read"] == 0
    again = ended("--full", "--why", "a {{ 1/0 }} new column", "--who", "kim")
    assert (again["report"]["read"], again["report"]["accepted"]) == (1, 1)
    refused = shell(airflow, "ingest", "asked", "--wait", "--yes", "--from", "3", "--why", "x")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "no value of it can be given; --full reads" in refused.stderr

    words = shell(airflow, "ingest", "asked", "--wait")
    assert words.returncode == 0, words.stderr
    assert "done: 0 rows read, 0 events taken in, 0 parked" in words.stdout
    assert max(map(len, words.stdout.splitlines())) <= 80
    for wrong, said in (
        (("ingest", "nobody"), "nobody"),
        (("ingest", "asked", "--full"), "why: a reason must be given"),
        (("ingest", "asked", "--full", "--put-back", "--why", "x"), "a run has one beginning"),
    ):
        done = shell(airflow, *wrong)
        assert done.returncode == (3 if said == "nobody" else 1)
        assert said in done.stderr
