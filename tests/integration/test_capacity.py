"""Nodes that follow the work, on a real tracker: decided, drained, announced; whoever dies."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from sqlalchemy import text
from tests.support.books import open_books
from tests.support.children import forked, was_killed
from tests.support.topics import until
from typer.testing import CliRunner

from waybill import services
from waybill.capacity import (
    KINDS,
    CapacityWatcher,
    ConsulThresholds,
    DelayReport,
    DryRunNodes,
    FixedThresholds,
    NodeReport,
    Thresholds,
    capacity_status,
    scale,
    write_report,
    write_waits,
)
from waybill.capacity.records import drain_nodes, read_node_hours, read_nodes
from waybill.cli import app
from waybill.clusters import ApplicationLease, Heartbeat
from waybill.errors import AwayError, InputError, RetryError
from waybill.ledger import FencedError
from waybill.settings import CapacitySettings, Settings, TrackerSettings, WalSettings
from waybill.storage import TrackerStore

pytestmark = pytest.mark.serves
UNITS = dict.fromkeys(KINDS, 4)
LIMITS = {"max_nodes": 6, "most_added": 3, "grow_every_s": 0, "shrink_after_s": 0}
STORE = FixedThresholds({"ingestion": LIMITS})
IDLE, BUSY = NodeReport(4, 0, 0.1, 0.0, 0.3), NodeReport(4, 4, 0.5, 0.1, 0.3)
DRAINED = replace(IDLE, drains=True)
TABLES = (
    "capacity_nodes", "task_waits", "capacity_rounds", "capacity_versions", "capacity_acks",
    "capacity_thresholds", "cluster_loads", "write_ahead_logs", "applications", "team_loads",
)  # fmt: skip


@pytest.fixture(scope="module")
def _books(_postgres: Any) -> Iterator[TrackerStore]:
    with open_books(_postgres, "capacity", pool_size=8) as tracker:
        yield tracker


@pytest.fixture
def tracker(_books: TrackerStore, monkeypatch: pytest.MonkeyPatch) -> TrackerStore:
    for table in TABLES:
        sql(_books, f"DELETE FROM {table}")
    monkeypatch.setenv("WAYBILL_TRACKER__DSN", _books.dsn.get_secret_value())
    return _books


def sql(tracker: TrackerStore, statement: str, **values: Any) -> list[tuple[Any, ...]]:
    with tracker.transaction() as connection:
        found = connection.execute(text(statement), values)
        return [tuple(row) for row in found] if found.returns_rows else []


class Nodes:
    """Who gives nodes, in memory."""

    name, acts = "the nodes of a test", True

    def __init__(self, *names: str) -> None:
        self.names, self.asked = list(names), list[int]()
        self.refuses: Exception | None = None

    def nodes(self) -> Collection[str]:
        return list(self.names)

    def resize(self, total: int) -> None:
        if self.refuses:
            raise self.refuses
        self.asked.append(total)
        self.names += [f"new-{n}" for n in range(len(self.names), total)]

    def remove(self, node: str) -> None:
        if self.refuses:
            raise self.refuses
        self.names.remove(node)


def reports(tracker: TrackerStore, report: NodeReport, *names: str) -> None:
    with tracker.transaction() as connection:
        for name in names:
            write_report(connection, name, "ingestion", 4, report)


def waits(tracker: TrackerStore, waiting: int, *, arrival: float = 0.0) -> None:
    oldest = 200.0 if waiting else 0.0
    with tracker.transaction() as connection:
        report = DelayReport(time.time(), waiting, 8, arrival, 20.0, oldest, oldest, oldest)
        write_waits(connection, report)


def scaled(tracker: TrackerStore, nodes: Any, store: Any = STORE) -> Any:
    return scale(tracker, store, {"ingestion": nodes, "spark": DryRunNodes()}, units=UNITS)


def test_where_tasks_wait_nodes_are_asked_for_and_the_decision_is_kept_with_its_reasons(tracker):
    nodes = Nodes("a", "b")
    reports(tracker, BUSY, "a", "b")
    waits(tracker, 60, arrival=1.0)
    report = scaled(tracker, nodes)
    assert report.problems == ()
    assert nodes.asked == [5]
    [kept] = capacity_status(tracker).decisions
    assert (kept["kind"], kept["action"], kept["before"], kept["after"]) == (
        "ingestion",
        "grow",
        2,
        5,
    )
    assert "1200 unit seconds wait" in kept["reasons"][0]
    assert kept["observation"]["ready"] == 2
    scaled(tracker, nodes)
    assert nodes.asked == [5, 6], "those that start are counted"


def test_a_kind_without_a_node_and_without_a_backend_decides_nothing(tracker):
    waits(tracker, 60, arrival=1.0)
    assert scaled(tracker, DryRunNodes()).decisions == {}


def test_a_dry_run_says_what_it_would_do_and_no_node_drains_for_it(tracker):
    reports(tracker, IDLE, "a", "b", "c")
    waits(tracker, 0)
    report = scaled(tracker, DryRunNodes())
    assert report.decisions["ingestion"].action == "shrink"
    with tracker.transaction() as connection:
        assert {node.state for node in read_nodes(connection)} == {"active"}
    scaled(tracker, DryRunNodes())
    assert len(capacity_status(tracker).decisions) == 1, "the same again is not listed again"


def test_a_node_drains_until_nothing_runs_and_no_log_is_open_and_then_it_is_ended(tracker):
    nodes = Nodes("a", "b")
    reports(tracker, BUSY, "a", "b")
    reports(tracker, IDLE, "b")
    waits(tracker, 0)
    assert scaled(tracker, nodes).decisions["ingestion"].action == "shrink"
    assert scaled(tracker, nodes).removed == (), "it was idle before it knew, and may be busy now"
    reports(tracker, replace(BUSY, drains=True), "b")  # it finishes what it has
    assert scaled(tracker, nodes).removed == ()
    reports(tracker, IDLE, "b")
    assert scaled(tracker, nodes).removed == (), "its enhancer began anew, and has not heard of it"
    reports(tracker, DRAINED, "b")
    sql(
        tracker,
        "INSERT INTO write_ahead_logs (wal_id, pipeline_id, purpose, name, node, path, topic, "
        "rereadable, state) VALUES (repeat('a', 32), 'p', 'ingestion', 'p', 'b', '/wal', 't', "
        "false, 'open')",
    )
    assert scaled(tracker, nodes).removed == ()
    sql(tracker, "UPDATE capacity_nodes SET draining_at = draining_at - interval '2 hours'")
    [problem] = scaled(tracker, nodes).problems
    assert "node b drains for 120 min and is not ended: 1 write-ahead logs are open" in problem
    sql(tracker, "UPDATE write_ahead_logs SET state = 'closed'")
    last = scaled(tracker, nodes)
    assert (last.removed, nodes.names) == (("b",), ["a"])
    assert last.decisions["ingestion"].before == 1, "what was ended just now does not start"


def test_a_node_that_drains_and_reports_nothing_is_never_ended(tracker):
    nodes = Nodes("a", "b")
    reports(tracker, IDLE, "a", "b")
    waits(tracker, 0)
    scaled(tracker, nodes)
    sql(
        tracker,
        "UPDATE capacity_nodes SET reported_at = reported_at - interval '1 hour', "
        "draining_at = draining_at - interval '2 hours' WHERE state = 'draining'",
    )
    report = scaled(tracker, nodes)
    assert (report.removed, nodes.names) == ((), ["a", "b"])
    assert "it reports nothing" in report.problems[0]


def test_nodes_that_are_long_silent_are_forgotten(tracker):
    reports(tracker, IDLE, "a", "b")
    sql(
        tracker,
        "UPDATE capacity_nodes SET reported_at = reported_at - interval '4 days' WHERE name = 'b'",
    )
    sql(
        tracker,
        "INSERT INTO capacity_acks (application, version, at) VALUES"
        " ('enhancer of b', 1, clock_timestamp() - interval '4 days')",
    )
    waits(tracker, 0)
    with tracker.transaction() as connection:
        assert [node.name for node in read_nodes(connection)] == ["a"]
        assert connection.execute(text("SELECT count(*) FROM capacity_acks")).scalar_one() == 0


def test_killed_between_the_decision_and_the_backend_the_next_round_asks_once(tracker):
    nodes = Nodes("a", "b")
    reports(tracker, BUSY, "a", "b")
    waits(tracker, 60, arrival=1.0)

    class Dies(Nodes):
        def resize(self, total: int) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        with TrackerStore(TrackerSettings(dsn=tracker.dsn)) as own:
            scaled(own, Dies("a", "b"))

    assert was_killed(forked(work))
    assert len(capacity_status(tracker).decisions) == 1, "decided, and not asked for"
    scaled(tracker, nodes)
    assert nodes.asked == [5]


def test_what_a_backend_refuses_is_said_and_decided_anew(tracker):
    nodes = Nodes("a")
    reports(tracker, BUSY, "a")
    waits(tracker, 60, arrival=1.0)
    nodes.refuses = InputError("AWS refused set_desired_capacity: AccessDenied")
    assert scaled(tracker, nodes).problems == (
        "no ingestion nodes are added: AWS refused set_desired_capacity: AccessDenied",
    )
    status = capacity_status(tracker)
    assert status.decisions == (), "nothing changed"
    kept = status.last["ingestion"]
    assert (kept["action"], kept["before"], kept["after"]) == ("hold", 1, 1)
    assert kept["reasons"][0].startswith("no ingestion nodes are added: AWS refused")
    assert "1200 unit seconds wait" in kept["reasons"][1], "why some were wanted stays"
    shown = CliRunner().invoke(app, ["capacity", "show"]).output
    assert "no ingestion nodes are added: AWS refused" in " ".join(shown.split())
    nodes.refuses = None
    assert scaled(tracker, nodes).problems == ()
    assert nodes.asked == [4]


def test_nodes_that_were_given_and_report_nothing_are_told_of(tracker):
    nodes = Nodes("a", "silent")
    reports(tracker, IDLE, "a")
    waits(tracker, 0)
    [problem] = scaled(tracker, nodes).problems
    assert "1 ingestion nodes report nothing for over 15 min" in problem
    assert problem in capacity_status(tracker).last["ingestion"]["reasons"]


def test_nodes_that_report_nothing_count_where_others_are_added(tracker):
    nodes = Nodes("a", *(f"silent-{number}" for number in range(4)))
    reports(tracker, BUSY, "a")
    waits(tracker, 600, arrival=1.0)
    report = scaled(tracker, nodes)
    assert nodes.asked == [6], "max_nodes"
    sql(tracker, "UPDATE capacity_rounds SET state = jsonb_set(state, '{grown_at_s}', '0')")
    report = scaled(tracker, nodes)
    assert nodes.asked == [6], "each round would add as many again"
    [reason, *_] = report.decisions["ingestion"].reasons
    assert "5 ingestion nodes report nothing" in reason
    assert report.decisions["ingestion"].action == "hold"
    assert scaled(tracker, nodes).decisions["ingestion"].reasons[0] == reason, "until it is mended"


def test_without_a_fresh_measurement_nothing_changes(tracker):
    nodes = Nodes("a")
    reports(tracker, BUSY, "a")
    assert scaled(tracker, nodes).decisions["ingestion"].action == "hold"
    waits(tracker, 60, arrival=1.0)
    sql(tracker, "UPDATE task_waits SET at = at - interval '6 minutes'")
    [reason] = scaled(tracker, nodes).decisions["ingestion"].reasons
    age = re.fullmatch(r"the last measurement is (\d+) s old: nothing changes", reason)
    assert age is not None, reason
    assert 360 <= int(age[1]) < 600


def test_spark_nodes_follow_the_cores_that_the_processing_coordinator_asks_for(tracker):
    with tracker.transaction() as connection:
        write_report(connection, "spark-1", "spark", 4, NodeReport(4, 0, 0.9, 0, 0.3))
    sql(
        tracker,
        "INSERT INTO cluster_loads (cluster, teams, needed_cores, demand_cores, forecast_cores, "
        "lag_s) VALUES ('default', 3, 10, 6, 7, 400)",
    )
    store = FixedThresholds({"spark": LIMITS})
    decision = scaled(tracker, DryRunNodes(), store).decisions["spark"]
    assert (decision.action, decision.before, decision.after) == ("grow", 1, 3)


def test_new_nodes_are_announced_and_applications_acknowledge_the_version(tracker):
    waits(tracker, 0)
    with CapacityWatcher(tracker, "loader") as watcher:
        assert not watcher.read()
        came: list[bool] = []
        listener = threading.Thread(target=lambda: came.append(watcher.wait(300)))
        listener.start()
        time.sleep(0.5)
        reports(tracker, IDLE, "a")
        version = scaled(tracker, Nodes("a")).version
        listener.join(120)
        assert came == [True]
        assert watcher.read()
        assert watcher.nodes == {"a": {"kind": "ingestion", "state": "active", "units": 4}}
    known = {one.name: one.version for one in capacity_status(tracker).followers}
    assert known == {"enhancer of a": 0, "loader": version}
    assert scaled(tracker, Nodes("a")).version == version, "nothing new is not announced"


class Away:
    name = "a store"

    def __init__(self, error: Exception) -> None:
        self.error = error

    def read(self, wait_s: float = 0.0) -> object:
        raise self.error


@pytest.mark.parametrize(
    "broken",
    [
        Away(AwayError("a store is not read: refused", setting="X")),
        FixedThresholds({"ingestion": {"min_nodes": 9, "max_nodes": 2}}),
        FixedThresholds({"ingestoin": {}}),
    ],
)
def test_thresholds_that_are_away_or_contradict_leave_the_last_ones_in_force(tracker, broken):
    nodes = Nodes("a")
    reports(tracker, BUSY, "a")
    waits(tracker, 0)
    scaled(tracker, nodes, FixedThresholds({"ingestion": LIMITS | {"max_nodes": 2}}))
    waits(tracker, 60, arrival=1.0)
    report = scaled(tracker, nodes, broken)
    assert "the last known thresholds hold" in report.problems[0]
    assert nodes.asked == [2], "max_nodes is still 2"


@pytest.mark.parametrize("kept", [None, '{"of_another_release": 1}'])
def test_without_known_thresholds_no_node_goes_and_it_is_said_why(tracker, kept):
    """The tracker was put back, and the store is away: ten nodes are more than the default takes."""
    names = [f"n{number}" for number in range(10)]
    nodes = Nodes(*names)
    reports(tracker, IDLE, *names)
    waits(tracker, 0)
    if kept:
        sql(
            tracker,
            "INSERT INTO capacity_thresholds (kind, thresholds, source) VALUES"
            " ('ingestion', CAST(:kept AS jsonb), 's')",
            kept=kept,
        )
    report = scaled(tracker, nodes, Away(AwayError("a store is not read: refused", setting="X")))
    assert report.decisions == {}
    assert "a store is not read: refused" in report.problems[0]
    assert "ingestion nodes stay as they are: no thresholds of them are known" in report.problems
    with tracker.transaction() as connection:
        assert {node.state for node in read_nodes(connection)} == {"active"}


def test_a_clock_that_steps_back_keeps_no_round_from_deciding(tracker):
    """What was seen before lies in the future: it is not the newest."""
    nodes = Nodes("a", "b")
    reports(tracker, BUSY, "a", "b")
    waits(tracker, 0)
    sql(tracker, "UPDATE task_waits SET at = at + interval '2 hours'")
    sql(
        tracker,
        "INSERT INTO capacity_rounds (at, kind, action, observation, decision, state) VALUES"
        " (clock_timestamp() + interval '2 hours', 'ingestion', 'hold',"
        """ '{"ready": 100, "starting": 0, "draining": 0}', '{}', '{}')""",
    )
    waits(tracker, 60, arrival=1.0)
    assert scaled(tracker, nodes).decisions["ingestion"].action == "grow"
    assert nodes.asked == [5]
    assert sql(tracker, "SELECT count(*) FROM task_waits WHERE at > clock_timestamp()") == [(0,)]
    with tracker.transaction() as connection:
        assert 0 <= read_node_hours(connection, "ingestion") < 1


def test_the_newest_minute_of_a_cluster_is_no_minute_of_the_future(tracker):
    def needs(cores, later):
        sql(
            tracker,
            "INSERT INTO cluster_loads (cluster, at, teams, needed_cores, demand_cores,"
            " forecast_cores, lag_s) VALUES ('c', clock_timestamp() + CAST(:later AS interval), 1,"
            " :cores, :cores, 0, 0)",
            cores=cores,
            later=later,
        )

    with tracker.transaction() as connection:
        write_report(connection, "s", "spark", 4, IDLE)
    needs(1, "2 hours")
    needs(24, "0")
    made = scaled(tracker, Nodes()).decisions["spark"]
    assert "the last measurement is" not in made.reasons[0]
    assert made.wanted > 1


class Consul(ThreadingHTTPServer):
    """A KV server with blocking queries, as Consul's: index, wait, raw, 404, X-Consul-Index."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _ConsulAnswers)
        self.value: str | None = None
        self.index, self.token = 10, ""
        self.changed = threading.Condition()

    def put(self, value: str | None, *, index: int | None = None) -> None:
        with self.changed:
            self.value, self.index = value, index or self.index + 1
            self.changed.notify_all()


class _ConsulAnswers(BaseHTTPRequestHandler):
    server: Consul

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        query = parse_qs(asked.query)
        if self.server.token and self.headers.get("X-Consul-Token") != self.server.token:
            self.answer(403, "Permission denied")
            return
        with self.server.changed:
            if "index" in query:
                wait_s = float(query["wait"][0].removesuffix("s"))
                seen = int(query["index"][0])
                self.server.changed.wait_for(lambda: self.server.index != seen, wait_s)
            there = asked.path == "/v1/kv/waybill/capacity" and self.server.value is not None
            self.answer(200 if there else 404, self.server.value or "")

    def answer(self, status: int, words: str) -> None:
        self.send_response(status)
        self.send_header("X-Consul-Index", str(self.server.index))
        self.send_header("Content-Length", str(len(words.encode())))
        self.end_headers()
        self.wfile.write(words.encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def consul() -> Iterator[Consul]:
    with Consul() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def watched(server: Consul, token: str = "") -> ConsulThresholds:
    return ConsulThresholds(f"http://127.0.0.1:{server.server_port}", "waybill/capacity", token)


def test_a_change_in_consul_ends_the_wait_for_it(consul):
    store = watched(consul)
    assert store.read() == {}
    consul.put('{"ingestion": {"max_nodes": 3}}')
    assert store.read() == {"ingestion": {"max_nodes": 3}}
    threading.Timer(0.5, lambda: consul.put("{}")).start()
    began = time.monotonic()
    assert store.read(300) == {}
    assert time.monotonic() - began < 120
    began = time.monotonic()
    assert store.read(1) == {}, "nothing new: the same after the wait"
    assert time.monotonic() - began >= 0.9


def test_an_index_that_goes_back_is_begun_anew(consul):
    store = watched(consul)
    consul.put('{"spark": {}}', index=900)
    store.read()
    consul.put('{"ingestion": {}}', index=5)  # a new cluster of servers, from a snapshot
    assert store.read(300) == {"ingestion": {}}
    began = time.monotonic()
    assert store.read(300) == {"ingestion": {}}, "without an index it does not wait"
    assert time.monotonic() - began < 120


def test_consul_that_refuses_or_is_away_or_has_no_json_says_so(consul):
    consul.put("not json")
    with pytest.raises(InputError, match="Consul's key waybill/capacity is no JSON"):
        watched(consul).read()
    consul.token = "right"
    with pytest.raises(InputError, match="WAYBILL_CAPACITY__CONSUL_TOKEN"):
        watched(consul, "wrong").read()
    with pytest.raises(AwayError, match="is not read"):
        ConsulThresholds("http://127.0.0.1:1", "waybill/capacity").read()


class Pool:
    """A node's workers, in memory."""

    def __init__(self) -> None:
        self.workers, self.running, self.drains = 2, 2, False
        self.away = 0

    def read(self) -> tuple[int, int]:
        if self.away > 0:
            self.away -= 1
            raise RetryError("the executor does not answer")
        return self.workers, self.running

    def resize(self, workers: int, *, now: int) -> None:
        self.workers = workers

    def drain(self) -> None:
        self.drains = True


def test_an_enhancer_declares_its_node_follows_announcements_and_drains_it(tracker, monkeypatch):
    pool, looks = Pool(), 0
    pool.away = 1
    monkeypatch.setattr("waybill.services.capacity._pool", lambda _settings: pool)
    monkeypatch.setattr("waybill.capacity.CapacityWatcher.wait", lambda *_: False)

    def is_stopped() -> bool:
        nonlocal looks
        looks += 1
        if looks == 8:
            with tracker.transaction() as connection:
                drain_nodes(connection, ["node-7"])
        return looks > 14

    settings = Settings(
        tracker=TrackerSettings(dsn=tracker.dsn),
        wal=WalSettings(node="node-7"),
        capacity=CapacitySettings(workers=2, max_workers=3),
    )
    services.run_enhancer(settings, is_stopped=is_stopped)
    with tracker.transaction() as connection:
        [node] = read_nodes(connection)
    assert (node.name, node.kind, node.units, node.state) == ("node-7", "ingestion", 2, "draining")
    assert node.report is not None
    assert pool.drains
    assert (node.report.why, node.report.drains) == ("it drains: no new task is taken", True)


def test_an_enhancer_that_lacks_what_it_needs_says_which_setting(tracker):
    dsn = TrackerSettings(dsn=tracker.dsn)
    with pytest.raises(InputError, match="WAYBILL_AIRFLOW__PASSWORD"):
        services.run_enhancer(Settings(tracker=dsn), is_stopped=lambda: True)
    celery = CapacitySettings(executor="celery")
    with pytest.raises(InputError, match="WAYBILL_CAPACITY__CELERY_BROKER"):
        services.run_enhancer(Settings(tracker=dsn, capacity=celery), is_stopped=lambda: True)
    consul = CapacitySettings(store="consul")
    with pytest.raises(InputError, match="WAYBILL_CAPACITY__CONSUL_URL"):
        services.scale_nodes(Settings(tracker=dsn, capacity=consul))


def test_the_commands_show_nodes_waits_thresholds_and_decisions(tracker):
    empty = CliRunner().invoke(app, ["capacity", "show"])
    assert "no node has declared its capacity" in empty.output
    assert "not known" in empty.output
    reports(tracker, BUSY, "a")
    waits(tracker, 60, arrival=1.0)
    scaled(tracker, Nodes("a"))
    shown = CliRunner().invoke(app, ["capacity", "show"], env={"COLUMNS": "100"})
    assert shown.exit_code == 0, shown.output
    assert "60 tasks wait and 8 run" in shown.output
    assert "ingestion thresholds, of WAYBILL_CAPACITY__THRESHOLDS" in shown.output
    scale(tracker, FixedThresholds({}), {kind: DryRunNodes() for kind in KINDS}, units=UNITS)
    same = CliRunner().invoke(app, ["capacity", "show"], env={"COLUMNS": "100"})
    assert "ingestion and spark thresholds, of WAYBILL_CAPACITY__THRESHOLDS" in same.output
    assert same.output.count("wait_objective_s") == 1, "what is the same is said once"
    listed = CliRunner().invoke(app, ["capacity", "decisions"])
    assert "ingestion: 1 -> 4 nodes:" in listed.output
    [one] = json.loads(CliRunner().invoke(app, ["capacity", "decisions", "--json"]).output)
    assert one["after"] == 4
    assert Thresholds.read(LIMITS).max_nodes == 6


def test_who_did_not_acknowledge_the_announced_nodes_is_named_and_who_is_gone_is_not(tracker):
    reports(tracker, IDLE, "a", "b", "gone")
    scaled(tracker, Nodes("a", "b", "gone"))
    with CapacityWatcher(tracker, "enhancer of a") as one, CapacityWatcher(tracker, "lake") as lake:
        assert one.read()
        assert lake.read()
        with CapacityWatcher(tracker, "enhancer of gone") as other:
            other.read()
        sql(
            tracker,
            "UPDATE capacity_nodes SET reported_at = now() - interval '1 h' WHERE name = 'gone'",
        )
        scaled(tracker, Nodes("a", "b", "gone"))
        assert one.read()
        found = capacity_status(tracker)
        behind = {one.name: one.version for one in found.behind}
        assert behind == {"enhancer of b": 0, "lake": found.version - 1}
        known = {one.name: one.version for one in found.followers}
        assert known["enhancer of a"] == found.version
        assert "enhancer of gone" not in known
        shown = CliRunner().invoke(app, ["capacity", "show"], env={"COLUMNS": "200"}).output
        assert (
            "acknowledged by 1 of 3 applications; not by enhancer of b (version 0), lake" in shown
        )


def versions(tracker: TrackerStore) -> dict[str, int]:
    return {one.name: one.version for one in capacity_status(tracker).followers}


def application(tracker: TrackerStore, epoch: int | None = None) -> ApplicationLease:
    return ApplicationLease.acquire(tracker, "processing", "default", epoch=epoch)


def test_an_application_acknowledges_announced_nodes_and_one_started_anew_does_so_again(tracker):
    older = application(tracker)
    with Heartbeat(older, every_s=0.05) as heartbeat:
        heartbeat.beat()
        assert versions(tracker) == {"processing of default": 0}, "there is nothing to acknowledge"
        assert capacity_status(tracker).behind == ()
        reports(tracker, IDLE, "a")
        version = scaled(tracker, Nodes("a")).version
        time.sleep(0.06)
        heartbeat.beat()
        assert versions(tracker)["processing of default"] == version
        [one] = [f for f in capacity_status(tracker).followers if f.name != "enhancer of a"]
        assert (one.version, one.waits_s, one.is_late) == (version, 0.0, False)
        assert one.at is not None
    newer = application(tracker)
    assert versions(tracker)["processing of default"] == 0, "that was another start of it"
    reports(tracker, IDLE, "b")
    version = scaled(tracker, Nodes("a", "b")).version
    with pytest.raises(FencedError):
        older.acknowledge_nodes()
    newer.acknowledge_nodes()
    assert versions(tracker)["processing of default"] == version
    sql(tracker, "DELETE FROM capacity_acks")  # the tracker was restored
    newer.acknowledge_nodes()
    assert versions(tracker)["processing of default"] == version


def test_an_application_whose_loop_hangs_reports_and_is_named_as_late(tracker):
    with Heartbeat(application(tracker), every_s=0.05) as heartbeat:
        heartbeat.beat()
        reports(tracker, IDLE, "a")
        version = scaled(tracker, Nodes("a")).version
        time.sleep(0.3)  # its thread reports meanwhile
        [soon] = [f for f in capacity_status(tracker).behind if f.name != "enhancer of a"]
        assert not soon.is_late
        sql(tracker, "UPDATE capacity_versions SET at = at - interval '2 minutes'")
        assert not any(one.is_late for one in capacity_status(tracker).behind
                       if one.name != "enhancer of a"), "it was started a second ago"  # fmt: skip
        sql(tracker, "UPDATE applications SET started_at = started_at - interval '90 seconds'")
        problems = scaled(tracker, Nodes("a")).problems
        words = f"processing of default has not acknowledged version {version} of the nodes for "
        assert any(one.startswith(words) for one in problems), problems
        shown = CliRunner().invoke(app, ["capacity", "show"], env={"COLUMNS": "200"}).output
        assert "processing of default (version 0, late: " in shown
    sql(tracker, "UPDATE applications SET heartbeat_at = now() - interval '1 minute'")
    # who is dead acknowledges nothing; nobody is, while the database is just up
    until(lambda: "processing of default" not in versions(tracker))


def test_who_acknowledged_the_newest_nodes_long_ago_still_has(tracker):
    reports(tracker, IDLE, "a")
    version = scaled(tracker, Nodes("a")).version
    with CapacityWatcher(tracker, "enhancer of a") as watcher:
        watcher.read()
    sql(tracker, "UPDATE capacity_acks SET at = at - interval '5 days'")
    sql(tracker, "UPDATE capacity_versions SET at = at - interval '5 days'")
    waits(tracker, 0)  # with it goes what is old
    reports(tracker, IDLE, "a")
    assert versions(tracker) == {"enhancer of a": version}
    assert capacity_status(tracker).behind == ()


def test_spark_nodes_are_as_many_as_consumers_want_whatever_comes_in(tracker):
    serves = NodeReport(4, 0, 0.1, 0, 0.3, consumers=50)
    with tracker.transaction() as connection:
        write_report(connection, "spark-1", "spark", 4, serves)
    sql(
        tracker,
        "INSERT INTO cluster_loads (cluster, teams, needed_cores, demand_cores, forecast_cores, "
        "lag_s) VALUES ('default', 3, 1, 0, 0, 0)",
    )
    for at, consumers in (("5 minutes", 400), ("1 minute", 60)):
        sql(
            tracker,
            "INSERT INTO team_loads (team, at, consumers, written, read, lag_s, batches, "
            "batch_events, core_s) SELECT team, now() - CAST(:at AS interval), :consumers, "
            "0, 0, 0, 0, 0, 0 FROM (VALUES ('a'), ('b')) AS t (team)",
            at=at,
            consumers=consumers,
        )
    store = FixedThresholds({"spark": LIMITS})
    decision = scaled(tracker, DryRunNodes(), store).decisions["spark"]
    assert (decision.action, decision.after) == ("grow", 3), "120 consumers, 50 a node"
    assert "consumers want 3" in decision.reasons[0]
    with tracker.transaction() as connection:
        write_report(connection, "spark-2", "spark", 4, replace(serves, consumers=0))
    decision = scaled(tracker, DryRunNodes(), store).decisions["spark"]
    assert decision.wanted == 1, "a node that does not say how many serves as many as come"
    assert "consumers" not in decision.reasons[0]


def test_a_node_that_its_backend_has_not_and_that_says_nothing_is_gone_and_told_of_once(tracker):
    reports(tracker, IDLE, "a", "died", "drained")
    with tracker.transaction() as connection:
        drain_nodes(connection, ["drained"])
    assert scaled(tracker, Nodes("a")).problems == (), "those still report"
    sql(
        tracker,
        "UPDATE capacity_nodes SET reported_at = now() - interval '1 h' WHERE name <> 'a'",
    )
    problems = scaled(tracker, Nodes("a")).problems
    assert [one.split(" and nobody")[0] for one in problems] == [
        "node died is gone,",
        "node drained is gone,",
    ]
    assert [node.name for node in capacity_status(tracker).nodes] == ["a"]
    assert scaled(tracker, Nodes("a")).problems == ()
    assert scaled(tracker, DryRunNodes()).problems == ()
