"""A run of a source over several turns: it leaves at a page, is seen to wait, goes on, and is exact."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import text
from tests.integration import test_source_runs
from tests.integration.test_source_runs import ID, NAME, ids_in_kafka, line, wait_until
from tests.support import children, orders, processes
from typer.testing import CliRunner

from waybill import services
from waybill.access import Decision
from waybill.cli import app
from waybill.ingestion import IngestReport, RunSoFar, Turn, TurnEndedError, run_progress
from waybill.ingestion.connectors.csv_file import CsvConnector
from waybill.ingestion.run_progress import RunProgress
from waybill.ledger import any_run, ask_leave, ask_stop, last_turns, read_logs, read_slot_users
from waybill.settings import Settings
from waybill.storage import TrackerStore

pytestmark = pytest.mark.serves
settings, tracker = test_source_runs.settings, test_source_runs.tracker
ROWS, PAGE_ROWS = test_source_runs.ROWS, test_source_runs.PAGE_ROWS


def turn(
    settings: Settings, before: RunSoFar | None = None, **given: Any
) -> RunSoFar | IngestReport:
    """Run a turn; return what it hands to the next, or the report of a run that is done."""
    try:
        return services.run_ingest(settings, NAME, turn=Turn(before=before, **given))
    except TurnEndedError as ended:
        return RunSoFar.from_json(ended.so_far.to_json())


def assert_exact(settings: Settings, rows: int = ROWS) -> None:
    ids = ids_in_kafka(settings)
    assert len(ids) == len(set(ids)) == rows
    assert services.balance(settings).unaccounted == 0


def test_without_a_user_for_airflow_or_a_run_no_slots_are_shared(settings: Settings) -> None:
    assert services.share_slots(settings) is None
    user = {"password": SecretStr("secret"), "url": "http://127.0.0.1:1"}
    airflow = settings.airflow.model_copy(update=user)
    assert services.share_slots(settings.model_copy(update={"airflow": airflow})) == {}


class Pace:
    """How long a source waits behind each page: half a minute for all, so that tests can act."""

    page_s = 1.0


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> Pace:
    real, pace = CsvConnector.read, Pace()

    def read(self: Any, cursor: Any) -> Iterator[Any]:
        for page in real(self, cursor):
            yield page
            time.sleep(pace.page_s)

    monkeypatch.setattr(CsvConnector, "read", read)
    return pace


def test_a_run_that_is_asked_gives_its_slot_back_at_a_page_and_goes_on_as_the_same_run(
    settings: Settings, tracker: TrackerStore, slowly: Pace
) -> None:
    assert not any_run(tracker)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(turn(settings)))
    thread.start()
    seen = wait_until(tracker, lambda one: one.figures.settled > 0)
    assert any_run(tracker)
    ask_leave(tracker, [ID])
    user = read_slot_users(tracker, [NAME, "no such"])[NAME]
    assert (user.pipeline_id, user.team) == (ID, orders.team_of(settings.pipelines_dir))
    thread.join(180)
    slowly.page_s = 0.0
    [first] = found
    assert isinstance(first, RunSoFar)
    waits = line(tracker)
    assert (waits.state, waits.waits_for) == ("waiting", "share")
    assert 0 < waits.figures.read == waits.rows_read == first.report.read < ROWS
    assert waits.figures.settled == waits.rows_read, "what was read is delivered"
    assert not any_run(tracker)
    assert read_slot_users(tracker, [NAME])[NAME].asked_s is None, "it has left"
    assert last_turns(tracker).keys() == {user.team}
    for words in (["sources", "status"], ["sources", "status", NAME]):
        shown = CliRunner().invoke(app, words, env=settings.to_env()).output
        assert "its team is over its share" in " ".join(shown.split())

    done = turn(settings, first)
    assert isinstance(done, IngestReport)
    assert (done.read, done.pages, done.stopped) == (ROWS, ROWS // PAGE_ROWS, "")
    ended = line(tracker)
    assert (ended.state, ended.waits_for, ended.rows_read) == ("success", "", ROWS)
    assert ended.started_at == seen.started_at, "it is one run"
    assert (ended.figures.read, ended.figures.pages) == (ROWS, ROWS // PAGE_ROWS)
    assert ended.figures.settled == done.accepted
    assert_exact(settings)


def test_a_run_that_is_asked_at_each_page_reads_one_page_a_turn_to_the_end(
    settings: Settings, tracker: TrackerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.write_orders(settings.pipelines_dir, rows=4 * PAGE_ROWS, page_rows=PAGE_ROWS)
    monkeypatch.setattr(RunProgress, "leave_asked", lambda _self: True)
    before: Any = None
    for number in range(1, 5):
        before = turn(settings, before)
        assert (before.report.read, before.report.pages) == (number * PAGE_ROWS, number)
    done = turn(settings, before)
    assert isinstance(done, IngestReport)
    assert done.read == 4 * PAGE_ROWS
    assert line(tracker).state == "success"
    assert_exact(settings, 4 * PAGE_ROWS)


def test_a_turn_does_not_end_before_the_sources_cursor_has_moved(
    settings: Settings, tracker: TrackerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = CsvConnector.read

    def read(self: Any, cursor: Any) -> Iterator[Any]:
        yield None  # as while a table is walked along, or a tap starts
        for page in real(self, cursor):
            start, half = page.start or {**page.cursor, "row": 0}, len(page.rows) // 2
            yield replace(page, rows=page.rows[:half], cursor=start)  # as of a tap without a STATE
            yield replace(page, rows=page.rows[half:], start=start)

    orders.write_orders(settings.pipelines_dir, rows=2 * PAGE_ROWS, page_rows=PAGE_ROWS)
    monkeypatch.setattr(CsvConnector, "read", read)
    monkeypatch.setattr(RunProgress, "leave_asked", lambda _self: True)
    found, turns = turn(settings), 1
    while isinstance(found, RunSoFar) and turns < 9:
        found, turns = turn(settings, found), turns + 1
    assert isinstance(found, IngestReport), "each turn began where the one before it had"
    assert len(set(ids_in_kafka(settings))) == 2 * PAGE_ROWS


def test_a_run_that_waits_for_its_source_has_a_log_that_is_seen(
    settings: Settings, tracker: TrackerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By that its log is none that was forgotten, for which Kafka keeps records."""
    real, unseen = CsvConnector.read, list[float]()

    def read(self: Any, cursor: Any) -> Iterator[Any]:
        with tracker.transaction() as connection:
            connection.execute(
                text("UPDATE write_ahead_logs SET seen_at = seen_at - interval '9 d'")
            )
        yield None
        unseen.extend(log.unseen_s for log in read_logs(tracker))
        yield from real(self, cursor)

    monkeypatch.setattr(CsvConnector, "read", read)
    monkeypatch.setattr("waybill.ingestion.run._TELL_IDLE_S", -1.0)
    assert services.run_ingest(settings, NAME).read == ROWS
    assert len(unseen) == 1
    assert unseen[0] < 600


def test_a_run_without_a_slot_is_not_moved_by_being_asked(
    settings: Settings, tracker: TrackerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunProgress, "leave_asked", lambda _self: True)
    assert services.run_ingest(settings, NAME).read == ROWS


def test_a_run_that_waits_can_be_stopped_and_ends_at_its_next_page(
    settings: Settings, tracker: TrackerStore, slowly: Pace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as asked:
        asked.setattr(RunProgress, "leave_asked", lambda _self: True)
        first = turn(settings)
    assert isinstance(first, RunSoFar)
    ask_stop(tracker, ID, Decision("mia", "not now"))
    assert (line(tracker).state, line(tracker).stop_asked_by) == ("waiting", "mia")
    done = turn(settings, first)
    assert isinstance(done, IngestReport)
    assert (done.stopped, line(tracker).state) == ("mia", "stopped")
    assert PAGE_ROWS < done.read < ROWS


@pytest.mark.parametrize("name", ["close_source", "wait_run", "transaction"])
def test_killed_while_it_leaves_the_next_try_reads_the_rest(
    settings: Settings, tracker: TrackerStore, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Before the source is given back; before it is told that it waits; and after all of that."""
    from waybill.ingestion import run

    monkeypatch.setattr(RunProgress, "leave_asked", lambda _self: True)
    if name == "transaction":

        def dies() -> None:
            turn(settings)
            os.kill(os.getpid(), signal.SIGKILL)

        assert children.was_killed(children.forked(dies))
    else:
        owner = run if name == "close_source" else run_progress
        children.killed((owner, name, 1), lambda: turn(settings))
    left = line(tracker)
    assert left.state == ("waiting" if name == "transaction" else "running")
    assert left.rows_read == PAGE_ROWS, "the page is committed"
    monkeypatch.undo()
    monkeypatch.setattr(run_progress, "TELL_EVERY_S", 0.05)
    report = services.run_ingest(settings, NAME, turn=Turn(20.0))
    assert report.read == ROWS - PAGE_ROWS
    assert line(tracker).state == "success"
    assert_exact(settings)


def test_killed_amid_a_later_turn_the_next_try_reads_the_rest(
    settings: Settings, tracker: TrackerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from waybill.ingestion import run

    with monkeypatch.context() as asked:
        asked.setattr(RunProgress, "leave_asked", lambda _self: True)
        first = turn(settings)
    assert isinstance(first, RunSoFar)
    children.killed((run, "commit_intake", 3), lambda: turn(settings, first))
    assert line(tracker).state == "running"
    services.run_ingest(settings, NAME)
    assert_exact(settings)


@pytest.fixture
def frozen(kafka: Any) -> Iterator[Any]:
    """Freeze Kafka by calling it; it goes on at the end, or by ``thaw``."""

    class Frozen:
        def __call__(self) -> None:
            processes.freeze([kafka.pid])

        def thaw(self) -> None:
            processes.wake([kafka.pid])

    found = Frozen()
    yield found
    found.thaw()


@pytest.mark.campaign
def test_a_kafka_that_takes_nothing_is_waited_for_without_a_slot_and_the_run_ends_exact(
    settings: Settings, tracker: TrackerStore, slowly: Pace, frozen: Any
) -> None:
    slowly.page_s = 0.1
    rows = 60 * PAGE_ROWS  # more pages than may be on their way at once
    orders.write_orders(settings.pipelines_dir, rows=rows, page_rows=PAGE_ROWS)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(turn(settings, kafka_wait_s=2.0)))
    thread.start()
    wait_until(tracker, lambda one: one.figures.settled > 0)
    frozen()
    began = time.monotonic()
    thread.join(120)
    assert time.monotonic() - began < 60
    [first] = found
    assert isinstance(first, RunSoFar)
    waits = line(tracker)
    assert (waits.state, waits.waits_for) == ("waiting", "kafka")
    assert waits.rows_read <= first.report.read == waits.figures.read < rows
    with tracker.transaction() as connection:
        query = text("SELECT sum(unsettled) FROM write_ahead_logs WHERE purpose = 'ingestion'")
        assert connection.execute(query).scalar_one() > 0, "the log has what Kafka is to take"
    shown = CliRunner().invoke(app, ["sources", "status", NAME], env=settings.to_env()).output
    assert "the log is full" in " ".join(shown.split())

    again = turn(settings, first, kafka_wait_s=2.0)  # it is still away
    assert isinstance(again, RunSoFar)
    assert again.report.read == first.report.read
    assert line(tracker).state == "waiting"
    frozen.thaw()
    done = turn(settings, again, kafka_wait_s=20.0)
    assert isinstance(done, IngestReport)
    assert (done.read, done.pages) == (rows, rows // PAGE_ROWS)
    ended = line(tracker)
    assert (ended.state, ended.figures.read, ended.figures.pages) == (
        "success",
        rows,
        rows // PAGE_ROWS,
    )
    assert ended.figures.settled == done.accepted
    assert_exact(settings, rows)
