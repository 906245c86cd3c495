"""Ingestion on two nodes: one dies, loses its disk, or stands still; the other one goes on."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from tests.support import children, orders, refusals
from tests.support.recorded import counting

from waybill import services
from waybill.access import Decision
from waybill.errors import InputError, RetryError, SettleError
from waybill.events import decode, wall_us
from waybill.ledger import IntakeWatermark, read_watermarks
from waybill.settings import Settings
from waybill.storage import open_log, open_tracker
from waybill.undeployment import UndeployRequest

pytestmark = pytest.mark.serves
ROWS, PAGE_ROWS = 1_000, 100
PATCHES = """
import os, signal
from waybill.ledger import write_ahead_logs
from waybill.ingestion import run as module; from waybill.ingestion import takeover
from waybill.producer import LosslessProducer
from waybill.services import environment
import confluent_kafka

def act():
    os.kill(os.getpid(), signal.{signal})

def after(owner, name, number, before=lambda producer: None, act_first=False):
    real, calls = getattr(owner, name), []
    def call(*given, **named):
        calls.append(1)
        if act_first and len(calls) == number:
            act()
        result = real(*given, **named)
        if not act_first and len(calls) == number:
            before(*given[:1])
            act()
        return result
    setattr(owner, name, call)

def delivered(producer):
    assert real_flush(producer, 30.0) == 0

real_flush = LosslessProducer.flush
real_config = environment.librdkafka_config
{patch}
from waybill.services import run_ingest
print(run_ingest(settings, "orders"))
"""
UNSENT = 'environment.librdkafka_config = lambda s: {**real_config(s), "linger.ms": 60_000}\n'
SENT = "LosslessProducer.settled = lambda self, lsn: False\n"
POINTS = {
    "amid a page, nothing sent": UNSENT + 'after(LosslessProducer, "produce", 350)',
    "amid a page, all sent": SENT + 'after(LosslessProducer, "produce", 350, delivered)',
    "marked, nothing sent": UNSENT + 'after(LosslessProducer, "mark", 4)',
    "marked, all sent": SENT + 'after(LosslessProducer, "mark", 4, delivered)',
    "about to commit": 'after(module, "commit_intake", 3, act_first=True)',
    "committed, not confirmed": 'after(module, "commit_intake", 3)',
    "about to give the source back": 'after(module, "close_source", 1, act_first=True)',
}
EACH_TIME = ("amid a page, all sent",)
"""Points of every run of the tests; the others belong to the campaigns."""


@pytest.fixture
def settings(stack_settings: Settings, tmp_path: Path) -> Settings:
    orders.write_orders(tmp_path / "pipelines", rows=ROWS, page_rows=PAGE_ROWS)
    made = stack_settings.model_copy(update={"pipelines_dir": tmp_path / "pipelines"})
    services.migrate(made)
    services.run_deploy(made, tmp_path / "pipelines" / "orders", who="test")
    return made


def node(settings: Settings, name: str) -> Settings:
    """Return the settings of a node with disks of its own."""
    wal = settings.wal.model_copy(update={"dir": settings.wal.dir / name, "node": name})
    return settings.model_copy(update={"wal": wal})


def in_kafka(settings: Settings) -> list[Any]:
    log = open_log(settings.kafka)
    topic = log.describe(orders.topic_of(settings.pipelines_dir))
    return [decode(value) for value in log.read(topic.name, log.watermarks(topic))]


def logs(settings: Settings) -> list[tuple[str, str]]:
    """Return (node, state) of all logs, as they were claimed."""
    with open_tracker(settings.tracker) as tracker, tracker.transaction() as connection:
        rows = connection.execute(text("SELECT node, state FROM write_ahead_logs ORDER BY epoch"))
        return [(row.node, row.state) for row in rows]


def breaches(settings: Settings) -> list[Any]:
    assert services.audit_round(settings).number > 0
    return [one.to_json() for one in services.breaches(settings, states=None)]


def dies(settings: Settings, patch: str) -> None:
    code = PATCHES.replace("{patch}", patch).replace("{signal}", "SIGKILL")
    child = children.start(settings, code)
    try:
        output, _ = child.communicate(timeout=600)
    finally:
        children.kill(child)
    assert child.returncode == -signal.SIGKILL, output.decode()


def assert_whole(settings: Settings, *, copies: int = 0) -> None:
    """Each row is in Kafka, and the books have as many events as Kafka."""
    events = in_kafka(settings)
    assert len({event.id for event in events}) == ROWS
    assert len(events) == ROWS + copies
    report = services.balance(settings)
    assert (report.ingested, report.in_flight) == (ROWS + copies, ROWS + copies)
    assert (report.unaccounted, report.settling) == (0, {})
    assert breaches(settings) == []


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(point, marks=[] if point in EACH_TIME else pytest.mark.campaign)
        for point in POINTS
    ],
)
def test_a_node_that_is_gone_leaves_nothing_behind_and_nothing_twice(
    settings: Settings, point: str
) -> None:
    dies(node(settings, "a"), POINTS[point])
    assert breaches(settings) == []
    report = services.run_ingest(node(settings, "b"), "orders")
    assert_whole(settings)
    assert report.accepted <= ROWS
    assert logs(settings) == [("a", "taken_over"), ("b", "closed")]
    taken = Counter(trace.event_id for trace in counting(settings) if trace.phase == "ingestion")
    assert taken == Counter(event.id for event in in_kafka(settings))
    told = [one for one in services.waiting_notices(settings) if one.kind == "log"]
    assert sum(one.notices for one in told) == 1

    again = services.run_ingest(node(settings, "a"), "orders")
    assert (again.read, again.accepted) == (0, 0)
    assert_whole(settings)
    assert logs(settings) == [("a", "ended"), ("b", "closed"), ("a", "closed")]


@pytest.mark.campaign
def test_a_second_death_on_the_other_node_is_told_apart_as_well(settings: Settings) -> None:
    dies(node(settings, "a"), POINTS["marked, all sent"])
    dies(node(settings, "b"), SENT + 'after(LosslessProducer, "mark", 2, delivered)')
    services.run_ingest(node(settings, "c"), "orders")
    assert_whole(settings)


@pytest.mark.parametrize(
    "patch",
    [
        pytest.param(
            UNSENT + 'after(LosslessProducer, "produce", 350)',
            id="with events to send",
            marks=pytest.mark.campaign,
        ),
        pytest.param(SENT + 'after(LosslessProducer, "mark", 4, delivered)', id="behind a mark"),
        pytest.param(
            'after(module, "commit_intake", 3, act_first=True)',
            id="before its commit",
            marks=pytest.mark.campaign,
        ),
    ],
)
def test_a_run_that_wakes_up_after_another_took_over_ends_and_its_copies_are_counted(
    settings: Settings, patch: str
) -> None:
    patch = patch.replace("60_000", "1_000")
    code = PATCHES.replace("{patch}", patch).replace("{signal}", "SIGSTOP")
    child = children.start(node(settings, "a"), code)
    try:
        assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
        services.run_ingest(node(settings, "b"), "orders")
        assert_whole(settings)
        os.kill(child.pid, signal.SIGCONT)
        output, _ = child.communicate(timeout=600)
    finally:
        children.kill(child)
    assert b"FencedError" in output, output.decode()
    copies = len(in_kafka(settings)) - ROWS
    assert_whole(settings, copies=copies)
    assert logs(settings) == [("a", "ended"), ("b", "closed")]


def watermark(settings: Settings) -> IntakeWatermark:
    with open_tracker(settings.tracker) as tracker, tracker.transaction() as connection:
        [found] = read_watermarks(connection).values()
        return found


def test_a_run_that_wakes_up_at_its_end_does_not_close_the_minutes_of_the_newer_one(
    settings: Settings,
) -> None:
    """The newer run still reads: no minute from its first one on may be taken for whole."""
    code = PATCHES.replace("{signal}", "SIGSTOP")
    ends = children.start(
        node(settings, "a"), code.replace("{patch}", 'after(module._Run, "_deliver_all", 1)')
    )
    try:
        assert os.WIFSTOPPED(os.waitpid(ends.pid, os.WUNTRACED)[1])
        reads = children.start(
            node(settings, "b"), code.replace("{patch}", 'after(module._Run, "_look_elsewhere", 1)')
        )
        try:
            assert os.WIFSTOPPED(os.waitpid(reads.pid, os.WUNTRACED)[1])
            before = watermark(settings)
            assert before.open
            os.kill(ends.pid, signal.SIGCONT)
            output, _ = ends.communicate(timeout=600)
            assert watermark(settings) == before
            assert logs(settings) == [("a", "ended"), ("b", "open")]
        finally:
            children.kill(reads)
    finally:
        children.kill(ends)
    assert b"FencedError" in output, output.decode()
    services.run_ingest(node(settings, "c"), "orders")
    assert_whole(settings)
    assert not watermark(settings).open


def test_a_kill_amid_the_end_of_a_run_leaves_the_source_to_the_next_one(settings: Settings) -> None:
    dies(settings, 'after(write_ahead_logs, "close_watermark", 1, act_first=True)')
    assert watermark(settings).open
    assert [state for _, state in logs(settings)] == ["open"]
    assert services.run_ingest(settings, "orders").read == 0
    assert not watermark(settings).open
    assert [state for _, state in logs(settings)] == ["closed"]
    assert_whole(settings)


def ingest_as_a_task(settings: Settings) -> None:
    """Run it, and again where both runs counted what the other one had sent."""
    for _ in range(3):
        try:
            services.run_ingest(settings, "orders")
        except RetryError as error:
            assert "counted by another run meanwhile" in str(error)
        else:
            return
    raise AssertionError("three runs met another one that counted")


def test_a_run_beside_another_takes_over_and_one_of_them_goes_on(settings: Settings) -> None:
    """Neither stands still: the one that claimed last ends well, the other one is told."""
    slow = (
        "import time\n"
        "real_page = module._Run._page\n"
        "module._Run._page = lambda *given: (time.sleep(1.0), real_page(*given))[1]\n"
    )
    code = PATCHES.replace("{patch}", slow).replace("{signal}", "SIGKILL")
    child = children.start(node(settings, "a"), code)
    try:
        children.wait_until(
            lambda: logs(settings) == [("a", "open")], limit_s=600, what="a run has the source"
        )
        ingest_as_a_task(node(settings, "b"))
        output, _ = child.communicate(timeout=600)
    finally:
        children.kill(child)
    assert b"FencedError" in output, output.decode()
    assert_whole(settings, copies=len(in_kafka(settings)) - ROWS)


def test_what_kafka_refused_of_a_lost_log_is_parked_again_and_the_books_balance(
    stack_settings: Settings, tmp_path: Path
) -> None:
    settings = refusals.with_a_big_order(stack_settings, tmp_path)
    refused = "from waybill.ingestion.refused_messages import Undeliverable\n"
    dies(node(settings, "a"), refused + SENT + 'after(Undeliverable, "park", 1)')
    services.run_ingest(node(settings, "b"), "orders")
    report = services.balance(settings)
    assert (report.ingested, report.parked, report.in_flight) == (41, 2, 39)
    assert report.unaccounted == 0
    assert breaches(settings) == []


def test_a_clock_that_steps_back_makes_no_version_older_and_the_minutes_are_of_the_clock(
    settings: Settings,
) -> None:
    hour_us = 3_600_000_000
    now = wall_us()
    services.run_ingest(settings, "orders", now_us=lambda: now + 24 * hour_us)
    ahead = max(event.intake_version for event in in_kafka(settings))
    assert ahead >= now + 24 * hour_us
    source = settings.pipelines_dir / "orders" / "orders.csv"
    source.write_text(source.read_text().replace("note ", "newer "))
    services.run_ingest(node(settings, "b"), "orders", now_us=lambda: now - hour_us)
    newer = [event for event in in_kafka(settings) if event.intake_minute < now // 60_000_000]
    assert len(newer) == ROWS
    assert min(event.intake_version for event in newer) > ahead
    assert {event.intake_minute for event in newer} == {(now - hour_us) // 60_000_000}
    report = services.balance(settings)
    assert (report.ingested, report.in_flight, report.unaccounted) == (2 * ROWS, 2 * ROWS, 0)
    assert breaches(settings) == []


FILES = """  connector: files
  event: order
  options: {path: "in/*.csv", settle_s: 0}
"""
UNREAD = UNSENT + 'after(LosslessProducer, "produce", 350)'
"""Dies amid its first page: the cursor stands nowhere yet."""


def rows_of(settings: Settings, statement: str) -> list[Any]:
    with open_tracker(settings.tracker) as tracker, tracker.transaction() as connection:
        result = connection.execute(text(statement))
        return [tuple(row) for row in result] if result.returns_rows else []


@pytest.fixture
def filed(settings: Settings) -> Settings:
    """`orders` as files in a folder, all in one page."""
    home = settings.pipelines_dir / "orders"
    declared = (home / "pipeline.yaml").read_text()
    before, _, rest = declared.partition("  connector: csv\n")
    (home / "pipeline.yaml").write_text(before + FILES + "events:" + rest.partition("events:")[2])
    (home / "in").mkdir()
    (home / "orders.csv").rename(home / "in" / "a.csv")
    services.run_deploy(settings, home, who="test")
    return settings


def test_a_first_page_whose_file_is_moved_away_leaves_the_cursor_nowhere(filed: Settings) -> None:
    dies(filed, UNREAD)
    inbox = filed.pipelines_dir / "orders" / "in"
    (inbox / "a.csv").rename(inbox.parent / "away.csv")
    assert services.run_ingest(filed, "orders").accepted == 350
    assert rows_of(filed, "SELECT sequence, cursor FROM connector_positions") == [(1, None)]
    (inbox / "b.csv").write_text("number,amount,note\n5000,1,new\n")
    assert services.run_ingest(filed, "orders").accepted == 1
    assert (services.balance(filed).ingested, services.balance(filed).unaccounted) == (351, 0)


def undeploys(settings: Settings, wait: float) -> services.UndeployReport:
    rows_of(settings, "UPDATE source_runs SET told_at = told_at - interval '2 minutes'")
    request = UndeployRequest(pipeline="orders", why="gone", wait=wait)
    return services.run_undeploy(settings, request, Decision("ann", "gone"))


def test_a_first_page_that_undeploy_brought_to_kafka_is_read_again_after_a_deploy(
    filed: Settings,
) -> None:
    dies(filed, UNREAD)
    assert not undeploys(filed, wait=8).is_done, "350 events are to be processed"
    assert [state for _, state in logs(filed)] == ["closed"]
    assert rows_of(filed, "SELECT sequence, cursor FROM connector_positions") == [(1, None)]
    services.run_deploy(filed, filed.pipelines_dir / "orders", who="test")
    services.run_ingest(filed, "orders")
    assert len({event.id for event in in_kafka(filed)}) == ROWS


LOSES = """
import json
real_commit, real_page, pages = module.commit_intake, module._Run._page, []
def commit(tracker, page, record):
    done = real_commit(tracker, page, record)
    if page.sequence == 2:
        open({kept!r}, "w").write(json.dumps([page.cursor, page.progress.committed_lsn]))
    return done
def read(run, *given):
    result = real_page(run, *given)
    pages.append(1)
    if len(pages) == 5:
        sender = run._intake.producer._sender
        with sender.poller._lock:
            assert not sender._client.flush(30)  # librdkafka's own: it does not wait for linger.ms
        run._deliver_all()
        run._intake.producer.components.maintenance.try_checkpoint()
    if len(pages) == {last}:
        act()
    return result
module.commit_intake, module._Run._page = commit, read
"""


def loses_commits(settings: Settings, kept: Path, *, last: int) -> None:
    """Die amid a run, and put the tracker back to where its second page was committed."""
    patch = LOSES.replace("{kept!r}", repr(str(kept))).replace("{last}", str(last))
    dies(settings, UNSENT + patch)  # flushed at page 5; later pages are in the log only
    cursor, lsn = json.loads(kept.read_text())
    later = "sequence BETWEEN 3 AND 5"
    assert rows_of(settings, f"SELECT 1 FROM connector_positions WHERE {later}") == [(1,)]
    rows_of(
        settings,
        f"UPDATE connector_positions SET sequence = 2, rows_read = {2 * PAGE_ROWS}, "
        f"cursor = '{json.dumps(cursor)}'",
    )
    rows_of(
        settings,
        f"UPDATE write_ahead_logs SET committed_lsn = {lsn}, offsets = '{{}}'",
    )
    lost = "reference LIKE 'intake:%' AND split_part(reference, ':', 4)::int > 2"
    rows_of(settings, f"DELETE FROM ledger WHERE {lost}")


def test_a_tracker_that_lost_commits_is_caught_up_with_by_the_next_run(
    settings: Settings, tmp_path: Path
) -> None:
    loses_commits(settings, tmp_path / "kept.json", last=8)
    services.run_ingest(settings, "orders")
    assert_whole(settings)
    assert [state for _, state in logs(settings)] == ["ended", "closed"]
    [(notice,)] = rows_of(settings, "SELECT detail FROM notices WHERE kind = 'log'")
    assert "the tracker lost commits of ingestion" in str(notice)


def test_a_tracker_that_lost_the_log_as_well_is_told_which_command_helps(
    settings: Settings, tmp_path: Path
) -> None:
    loses_commits(settings, tmp_path / "kept.json", last=8)
    rows_of(settings, "DELETE FROM write_ahead_logs")
    with pytest.raises(SettleError, match="stands at page 2, not at 5") as refused:
        services.run_ingest(settings, "orders")
    [(wal_id,)] = rows_of(settings, "SELECT wal_id FROM write_ahead_logs")
    assert f"`waybill logs settle {wal_id} --why" in str(refused.value)
    services.settle_log(settings, wal_id, Decision("ann", "the tracker was restored"))
    services.run_ingest(settings, "orders")
    assert len({event.id for event in in_kafka(settings)}) == ROWS


@pytest.mark.campaign
def test_a_tracker_that_lost_commits_of_all_that_a_log_holds_is_caught_up_with(
    settings: Settings, tmp_path: Path
) -> None:
    loses_commits(settings, tmp_path / "kept.json", last=5)
    services.run_ingest(settings, "orders")
    assert_whole(settings)


def test_undeploy_ends_where_a_tracker_lost_commits_and_a_deploy_reads_on(
    settings: Settings, tmp_path: Path
) -> None:
    loses_commits(settings, tmp_path / "kept.json", last=8)
    undeploys(settings, wait=8)
    assert [state for _, state in logs(settings)] == ["ended", "closed"]
    services.run_deploy(settings, settings.pipelines_dir / "orders", who="test")
    services.run_ingest(settings, "orders")
    assert_whole(settings)


def test_a_run_that_failed_with_nothing_unsettled_is_not_told_for_a_dead_one(
    settings: Settings,
) -> None:
    source = settings.pipelines_dir / "orders" / "orders.csv"
    source.rename(source.with_suffix(".away"))
    with pytest.raises(InputError):
        services.run_ingest(node(settings, "a"), "orders")
    assert logs(settings) == [("a", "closed")]
    source.with_suffix(".away").rename(source)
    services.run_ingest(node(settings, "b"), "orders")
    assert services.run_ingest(node(settings, "a"), "orders").accepted == 0
    assert_whole(settings)
    assert [state for _, state in logs(settings)] == ["closed", "closed"]
    assert [one for one in services.waiting_notices(settings) if one.kind == "log"] == []
    assert rows_of(settings, "SELECT 1 FROM audit_log WHERE action = 'take_over_log'") == []


def test_a_run_that_failed_amid_a_page_keeps_the_source_for_the_next_one(
    settings: Settings,
) -> None:
    """What is in the log behind the last mark is found only where it lies."""
    patch = (
        "from waybill.errors import InputError\n"
        "def refuses(*given):\n"
        '    raise InputError("the page is refused")\n'
        "module._Run._mark = refuses\n"
    )
    code = PATCHES.replace("{patch}", patch).replace("{signal}", "SIGKILL")
    child = children.start(node(settings, "a"), code)
    try:
        output, _ = child.communicate(timeout=600)
    finally:
        children.kill(child)
    assert b"the page is refused" in output, output.decode()
    assert logs(settings) == [("a", "open")]
    services.run_ingest(node(settings, "b"), "orders")
    assert_whole(settings)


def test_undeploy_names_a_log_of_another_machine_and_leaves_it_its_events(
    settings: Settings,
) -> None:
    a, b = node(settings, "a"), node(settings, "b")
    dies(a, POINTS["marked, nothing sent"])
    report = undeploys(b, wait=60)
    [(wal_id, path)] = rows_of(settings, "SELECT wal_id, path FROM write_ahead_logs")
    assert not report.is_done
    [said] = [one for one in report.waits_for if "write-ahead log" in one]
    assert f"{path} of a is open" in said
    assert f"waybill logs settle {wal_id} --why" in said
    assert logs(settings) == [("a", "open")]
    undeploys(a, wait=8)
    assert logs(settings) == [("a", "closed")]
    [(rows,)] = rows_of(settings, "SELECT rows_read FROM connector_positions")
    assert len(in_kafka(settings)) == rows == 4 * PAGE_ROWS


def test_a_log_whose_disk_is_gone_is_settled_and_undeploy_ends(settings: Settings) -> None:
    dies(node(settings, "a"), POINTS["marked, nothing sent"])
    [(wal_id,)] = rows_of(settings, "SELECT wal_id FROM write_ahead_logs")
    services.settle_log(settings, wal_id, Decision("ann", "the node is gone"))
    assert undeploys(node(settings, "b"), wait=8).is_done
    services.run_deploy(settings, settings.pipelines_dir / "orders", who="test")
    services.run_ingest(node(settings, "b"), "orders")
    assert_whole(settings)
