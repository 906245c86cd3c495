"""What the tracker says of a source's runs: while they go, once they end, fail, are stopped, are killed."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text
from tests.support import children, orders
from typer.testing import CliRunner

from waybill import services
from waybill.access import Decision
from waybill.cli import app
from waybill.errors import InputError, RetryError
from waybill.events import decode
from waybill.ingestion import Turn, run, run_progress
from waybill.ingestion.connectors.csv_file import CsvConnector
from waybill.ledger import (
    AskedOfRun,
    RunFigures,
    SourceFilter,
    SourceLine,
    ask_stop,
    begin_run,
    end_run,
    read_position,
    read_sources,
    tell_run,
)
from waybill.settings import Settings
from waybill.storage import TrackerStore, open_log, open_tracker

pytestmark = pytest.mark.serves
ROWS, PAGE_ROWS = 600, 20
ID, NAME = "test-orders", "orders"
SLOW = """
import time
from waybill.ingestion.connectors.csv_file import CsvConnector
from waybill.ingestion import run_progress
from waybill.services import run_ingest
run_progress.TELL_EVERY_S = 0.1
real = CsvConnector.read
def slowly(self, cursor):
    for page in real(self, cursor):
        yield page
        time.sleep(1.0)  # half a minute in all, in which it is looked at, stopped or killed
CsvConnector.read = slowly
"""
RUN = (
    SLOW
    + """
print(run_ingest(settings, "orders").to_json())
"""
)
TASK = (
    SLOW
    + """
import signal
from types import SimpleNamespace
from waybill.errors import RetryError
from waybill_airflow.operators import ingest
ingest.read_settings = lambda: settings
operator = ingest.IngestOperator(task_id="ingest", pipeline="orders")
signal.signal(signal.SIGTERM, lambda *_: operator.on_kill())  # as Airflow's task runner does
try:
    operator.execute({"ti": SimpleNamespace(xcom_push=lambda key, value: print(key, value))})
except RetryError as error:
    print("ended:", error)
"""
)


@pytest.fixture
def settings(stack_settings: Settings, tmp_path: Any, monkeypatch: Any) -> Settings:
    orders.write_orders(tmp_path / "pipelines", rows=ROWS, page_rows=PAGE_ROWS)
    found = stack_settings.model_copy(update={"pipelines_dir": tmp_path / "pipelines"})
    services.migrate(found)
    services.run_deploy(found, tmp_path / "pipelines" / "orders", who="test")
    monkeypatch.setattr(run_progress, "TELL_EVERY_S", 0.05)
    return found


@pytest.fixture
def tracker(settings: Settings) -> Iterator[TrackerStore]:
    with open_tracker(settings.tracker) as tracker:
        yield tracker


def line(tracker: TrackerStore) -> SourceLine:
    [found] = read_sources(tracker).sources
    return found


def wait_until(tracker: TrackerStore, holds: Any, limit_s: float = 600) -> SourceLine:
    end = time.monotonic() + limit_s
    while not holds(found := line(tracker)):
        assert time.monotonic() < end, found
        time.sleep(0.05)
    return found


def ids_in_kafka(settings: Settings) -> list[str]:
    log = open_log(settings.kafka)
    topic = log.describe(orders.topic_of(settings.pipelines_dir))
    return [decode(value).id for value in log.read(topic.name, log.watermarks(topic))]


def test_a_page_waits_until_what_is_on_its_way_leaves_room_for_bytes(
    settings: Settings, tracker: TrackerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for less than a page, each goes alone: all before it are committed."""
    real, ahead = CsvConnector.read, []

    def read(self: Any, cursor: Any) -> Iterator[Any]:
        for number, page in enumerate(real(self, cursor)):
            ahead.append(number * PAGE_ROWS - read_position(tracker, ID).rows_read)
            yield page

    monkeypatch.setattr(CsvConnector, "read", read)
    monkeypatch.setattr(run, "_MOST_BYTES_IN_FLIGHT", 1)
    assert services.run_ingest(settings, NAME).read == ROWS
    assert ahead == [0] * (ROWS // PAGE_ROWS)
    assert len(set(ids_in_kafka(settings))) == len(ids_in_kafka(settings)) == ROWS


def test_the_rate_of_a_run_is_its_rows_over_the_seconds_of_its_report(
    settings: Settings, tracker: TrackerStore
) -> None:
    report = services.run_ingest(settings, NAME)
    rate = line(tracker).figures.rate_per_s
    assert rate == pytest.approx(report.read / report.seconds, rel=0.03)


def test_a_run_is_seen_while_it_goes_is_stopped_at_a_page_and_the_next_one_reads_the_rest(
    settings: Settings, tracker: TrackerStore
) -> None:
    assert line(tracker).state == "never"
    child = children.start(settings, RUN)
    try:
        seen = wait_until(tracker, lambda one: one.figures.settled > 0)
        assert (seen.state, seen.pipeline, seen.connector) == ("running", NAME, "csv")
        assert 0 < seen.figures.read < ROWS
        assert seen.figures.total == ROWS
        assert seen.figures.rate_per_s >= 0
        assert seen.figures.position.startswith("row ")
        assert seen.figures.unit == "rows"
        ask_stop(tracker, ID, Decision("mia", "the source is too slow"))
        with pytest.raises(InputError, match="asked before"):
            ask_stop(tracker, ID, Decision("mia", "again"))
        output, _ = child.communicate(timeout=180)
    finally:
        children.kill(child)
    assert child.returncode == 0, output
    stopped = line(tracker)
    assert (stopped.state, stopped.stop_asked_by) == ("stopped", "mia")
    assert stopped.succeeded_at is None
    assert stopped.figures.read % PAGE_ROWS == 0
    assert 0 < stopped.rows_read == stopped.figures.read < ROWS
    assert b"'stopped': 'mia'" in output
    with tracker.transaction() as connection:
        audited = connection.execute(
            text("SELECT who, target FROM audit_log WHERE action = 'stop_source'")
        ).all()
        left = connection.execute(text("SELECT source->>'left' FROM intake_watermarks"))
        assert left.scalar_one() is None, "what a stopped run left unread is no breach"
    assert [tuple(one) for one in audited] == [("mia", ID)]
    report = services.run_ingest(settings, NAME)
    assert report.read == ROWS - stopped.rows_read
    done = line(tracker)
    assert (done.state, done.rows_read, done.stop_asked_by) == ("success", ROWS, "")
    assert done.succeeded_at is not None
    assert (done.figures.behind, done.figures.unit) == (0, "rows")
    ids = ids_in_kafka(settings)
    assert len(ids) == len(set(ids)) == ROWS
    assert services.balance(settings).unaccounted == 0


def test_a_process_that_is_told_to_end_stops_at_a_page_and_says_so(
    settings: Settings, tracker: TrackerStore
) -> None:
    ended = threading.Event()
    ended.set()
    report = services.run_ingest(settings, NAME, turn=Turn(is_ended=ended.is_set))
    assert (report.read, report.stopped) == (PAGE_ROWS, "the end of its process")
    assert line(tracker).state == "stopped"
    assert services.run_ingest(settings, NAME).read == ROWS - PAGE_ROWS
    ids = ids_in_kafka(settings)
    assert len(ids) == len(set(ids)) == ROWS


@pytest.mark.campaign
def test_a_task_that_gets_airflows_signal_stops_at_a_page(
    settings: Settings, tracker: TrackerStore
) -> None:
    child = children.start(settings, TASK)
    try:
        wait_until(tracker, lambda one: one.figures.read > 0)
        os.kill(child.pid, signal.SIGTERM)
        output, _ = child.communicate(timeout=180)
    finally:
        children.kill(child)
    assert child.returncode == 0, output
    assert b"ended: the task was ended: it stopped at a page" in output
    stopped = line(tracker)
    assert stopped.state == "stopped"
    assert 0 < stopped.rows_read < ROWS
    assert stopped.rows_read % PAGE_ROWS == 0


def test_a_killed_run_is_silent_after_a_minute_and_the_next_one_takes_the_row(
    settings: Settings, tracker: TrackerStore
) -> None:
    child = children.start(settings, RUN)
    try:
        wait_until(tracker, lambda one: one.figures.read > 0)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(120)
    finally:
        children.kill(child)
    assert line(tracker).state == "running"
    with tracker.transaction() as connection:
        connection.execute(text("UPDATE source_runs SET told_at = told_at - interval '2 min'"))
    assert line(tracker).state == "silent"
    assert read_sources(tracker).running == 0
    with pytest.raises(InputError, match="none is going or heard of"):
        ask_stop(tracker, ID, Decision("mia", "it hangs"))
    services.run_ingest(settings, NAME)
    assert (line(tracker).state, line(tracker).rows_read) == ("success", ROWS)


def test_a_failed_run_says_why_until_and_after_the_next_success(
    settings: Settings, tracker: TrackerStore
) -> None:
    source = settings.pipelines_dir / "orders" / "orders.csv"
    kept = source.read_bytes()
    source.unlink()
    with pytest.raises(InputError):
        services.run_ingest(settings, NAME)
    failed = line(tracker)
    assert failed.state == "failed"
    assert "orders.csv" in failed.error
    assert read_sources(tracker, SourceFilter(state="failed")).total == 1
    source.write_bytes(kept)
    services.run_ingest(settings, NAME)
    assert line(tracker).state == "success"
    assert line(tracker).failed_at == failed.failed_at
    assert read_sources(tracker, SourceFilter(state="failed")).total == 0


def test_a_second_try_that_finds_the_log_open_leaves_the_first_one_seen_and_stoppable(
    settings: Settings, tracker: TrackerStore
) -> None:
    child = children.start(settings, RUN)
    try:
        wait_until(tracker, lambda one: one.figures.read > 0)
        with pytest.raises(RetryError, match="is open in process"):
            services.run_ingest(settings, NAME)
        assert (line(tracker).state, line(tracker).error) == ("running", "")
        ask_stop(tracker, ID, Decision("mia", "twice"))
        output, _ = child.communicate(timeout=180)
    finally:
        children.kill(child)
    assert child.returncode == 0, output
    assert (line(tracker).state, line(tracker).stop_asked_by) == ("stopped", "mia")


def test_a_run_takes_the_row_of_one_that_is_heard_of_once_it_has_the_source(
    settings: Settings, tracker: TrackerStore
) -> None:
    old = begin_run(tracker, ID, node="one")
    tell_run(tracker, ID, old, RunFigures(read=7))
    new = begin_run(tracker, ID, node="two", claimed=False)
    tell_run(tracker, ID, new, RunFigures(read=9))
    assert (line(tracker).node, line(tracker).figures.read) == ("one", 7)
    begin_run(tracker, ID, node="two", run=new)
    tell_run(tracker, ID, new, RunFigures(read=9))
    ask_stop(tracker, ID, Decision("mia", "enough"))
    begin_run(tracker, ID, node="two", run=new)
    assert (line(tracker).node, line(tracker).figures.read) == ("two", 9)
    assert line(tracker).state == "stopping", "to begin again changes nothing"


def test_a_run_that_lost_its_row_to_another_writes_nothing_more(
    settings: Settings, tracker: TrackerStore
) -> None:
    old = begin_run(tracker, ID, node="one")
    new = begin_run(tracker, ID, node="two")
    assert tell_run(tracker, ID, old, RunFigures(read=7)) == AskedOfRun()
    end_run(tracker, ID, old, RunFigures(read=7), state="failed", error="late")
    assert (line(tracker).state, line(tracker).node, line(tracker).figures.read) == (
        "running",
        "two",
        0,
    )
    tell_run(tracker, ID, new, RunFigures(read=9, position="x" * 1000 + "\0", behind=1.5))
    figures = line(tracker).figures
    assert (figures.read, figures.behind, len(figures.position)) == (9, 1.5, 300)


def test_the_command_shows_sources_in_eighty_columns_and_stops_a_run(
    settings: Settings, tracker: TrackerStore, monkeypatch: Any
) -> None:
    for name, value in settings.to_env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("COLUMNS", "80")

    def cli(*words: str, code: int = 0) -> str:
        found = CliRunner().invoke(app, ["sources", *words])
        assert found.exit_code == code, found.output
        return found.output

    assert "never" in cli("status")
    services.run_ingest(settings, NAME)
    shown = cli("status")
    assert "success" in shown
    assert all(len(row) <= 80 for row in shown.splitlines())
    run = begin_run(tracker, ID, node="node-7")
    figures = RunFigures(read=50, settled=40, pages=2, rate_per_s=12.5, behind=550, unit="rows")
    tell_run(tracker, ID, run, figures)
    shown = cli("status", NAME)
    for words in ("running", "node-7", "550 rows", "12.5"):
        assert words in shown
    [found] = json.loads(cli("status", NAME, "--json"))
    assert (found["state"], found["figures"]["read"], found["next_run_at"]) == ("running", 50, None)
    assert "next page" in cli("stop", NAME, "--why", "enough")
    assert json.loads(cli("status", "--json"))[0]["state"] == "stopping"
    cli("stop", NAME, "--why", "enough", code=1)
    cli("status", "nothing", code=3)
    with tracker.transaction() as connection:
        connection.execute(
            text("INSERT INTO pipelines (id, name, team) VALUES (:id, 'others', 'x')"), {"id": NAME}
        )
    [found] = json.loads(cli("status", NAME, "--json"))
    assert found["pipeline_id"] == ID, "a name goes before an id"


def test_why_a_try_failed_is_shown_while_the_next_goes_and_by_the_status_of_the_stack(
    settings: Settings, tracker: TrackerStore, monkeypatch: Any
) -> None:
    from waybill.stack.embedded import ServiceStatus, Stack

    for name, value in settings.to_env().items():
        monkeypatch.setenv(name, value)
    postgres = ServiceStatus("postgres", 1, (), 1, 1.0, healthy=True, log="x.log")
    monkeypatch.setattr(Stack, "status", lambda _self: [postgres])

    def cli(*words: str) -> str:
        found = CliRunner().invoke(app, words)
        assert found.exit_code == 0, found.output
        return " ".join(found.output.split())

    assert "the last run of source" not in cli("status")
    run = begin_run(tracker, ID, node="node-7")
    error = "api.example refuses\nconnections\x1b[2J " + "x" * 900
    end_run(tracker, ID, run, RunFigures(), state="failed", error=error)
    said = cli("status")
    assert f"the last run of source {NAME} failed " in said
    assert " s ago: api.example refuses connections" in said
    assert "`waybill sources status` shows how each source is read" in said
    assert "x" * 300 not in said
    begin_run(tracker, ID, node="node-7")
    said = cli("sources", "status")
    assert "running" in said
    assert f"{NAME}: the last try failed " in said
    assert " s ago: api.example refuses connections" in said
    assert "x" * 300 not in said
    assert services.ingest_progress(settings, services.deployed_pipeline(settings, NAME)).error
    services.run_ingest(settings, NAME)
    assert "failed" not in cli("sources", "status")
    assert "the last run of source" not in cli("status")


FILES = """
id: test-rides
name: rides
team: {team}
owner: ops@bikes.example
source:
  connector: files
  event: ride
  options: {{path: "in/*.jsonl", settle_s: 60}}
events:
  ride: {{key: [number], version: ended, table: rides, columns: {{number: int64, ended: int64}}}}
destination: {{name: warehouse, schema: shop}}
"""


@pytest.fixture
def rides(settings: Settings, monkeypatch: Any) -> Any:
    """A folder of files that are read by the deployed pipeline `rides`."""
    home = settings.pipelines_dir / "rides"
    (home / "in").mkdir(parents=True)
    (home / "pipeline.yaml").write_text(FILES.format(team=orders.team_of(settings.pipelines_dir)))
    (home / "transformation.py").write_text("def transform(event):\n    return event\n")
    services.run_deploy(settings, home, who="test")
    for name, value in settings.to_env().items():
        monkeypatch.setenv(name, value)
    return home / "in"


def test_a_file_that_waits_is_told_by_the_report_the_log_and_the_status(
    settings: Settings, rides: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    (rides / "new.jsonl").write_text('{"number": 1, "ended": 1}\n')
    report = services.run_ingest(settings, "rides")
    assert report.read == 0
    assert report.to_json()["waiting"].startswith("1 file waits for the next run")
    assert report.waiting in caplog.messages
    result = CliRunner().invoke(app, ["sources", "status", "rides"])
    assert f"position: {report.waiting}" in " ".join(result.output.split())
    assert "0 files left" not in result.output


def test_a_failed_task_of_a_pipeline_is_a_notice_to_its_owner(
    settings: Settings, rides: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import SimpleNamespace

    from tests.support.told import web_server

    from waybill_airflow.notifiers.task_failed import TaskFailedNotifier
    from waybill_airflow.operators.ingest import IngestOperator

    def notices(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["notices", *arguments])
        assert result.exit_code == 0, result.output
        return " ".join(result.output.split())

    ti = SimpleNamespace(
        dag_id="ingest_rides", task_id="ingest", run_id="cli__1", get_previous_dagrun=lambda: None
    )
    task = IngestOperator(task_id="ingest", pipeline="rides")
    TaskFailedNotifier()({"ti": ti, "task": task, "exception": InputError("no field")})
    [waiting] = json.loads(notices("list", "--json"))
    found = waiting["owner"], waiting["kind"], waiting["notices"]
    assert found == ("ops@bikes.example", "task", 1)
    assert "task in rides" in notices("list")
    with web_server() as webhook:
        monkeypatch.setenv("WAYBILL_NOTICES__WEBHOOK_URL", webhook.url)
        notices("send")
    [content] = webhook.contents
    assert content["owner"] == "ops@bikes.example"
    said = content["text"]
    assert said.startswith("Waybill: 1 task failed in rides\n")
    assert "ingest_rides.ingest in run cli__1 failed after its last try: no field" in said
    assert "`waybill sources status rides` shows the last error" in said
    said = notices("list")
    assert "No notice waits to be sent." in said
    assert "1 notice was sent within the last day: `waybill notices list --sent`" in said
    assert "task in rides" in notices("list", "--sent")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rides", "--from", "yesterday"], "from: expected when a file was changed"),
        (["rides", "--from", "2026-01-01", "--to", "now"], "to: expected when a file was changed"),
        ([NAME, "--from", "3"], "no value of it can be given; --full reads the source"),
    ],
)
def test_a_value_to_read_from_is_checked_before_a_run_is_started(
    rides: Any, arguments: list[str], said: str
) -> None:
    """No Airflow is there: what is refused is refused before it is asked."""
    result = CliRunner().invoke(app, ["ingest", *arguments, "--why", "test", "--yes"])
    assert result.exit_code == 1, result.output
    assert said in " ".join(result.output.split())
