"""``waybill clusters``, on the real tracker."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from tests.support.books import open_books
from tests.support.clustered import LogInMemory, deploy_teams, set_load, topic_of
from typer.testing import CliRunner

from waybill import __version__
from waybill.access import read_audit
from waybill.cli import app
from waybill.clusters import (
    ApplicationLease,
    DryRunInfra,
    HeldConsumer,
    Serving,
    cluster_settings,
    coordinate,
)
from waybill.errors import RetryError
from waybill.settings import Settings, TrackerSettings
from waybill.storage import TrackerStore

pytestmark = pytest.mark.serves


@pytest.fixture
def tracker(
    postgres: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TrackerStore]:
    with open_books(postgres, "clusters_cli") as books:
        deploy_teams(books, tmp_path, "red", "green")
        own = Settings(_env_file=None, home=tmp_path, tracker=TrackerSettings(dsn=books.dsn))
        for name, value in own.to_env().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("COLUMNS", "80")
        yield books


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["clusters", *arguments])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def refused(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["clusters", *arguments])
    absent = ("there is no cluster", "is of team", "is not pinned")
    code = 3 if any(words in done.output for words in absent) else 1
    assert done.exit_code == code, (done.output, done.exception)
    assert done.output.startswith("Error: ")
    return " ".join(done.output.split())


def as_json(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json"))


def test_a_cluster_from_its_creation_until_it_is_drained(tracker: TrackerStore) -> None:
    assert as_json("list")["clusters"][0]["name"] == "default"
    assert run("set", "default", "--cores", "4", "--max-consumers", "50") == "default: changed\n"
    made = as_json("create", "big", "--cores", "8", "--spark-conf", "spark.executor.cores=2")
    assert (made["name"], made["cores"], made["max_consumers"]) == ("big", 8, None)
    assert made["spark_conf"] == {"spark.executor.cores": "2"}
    assert run("pin", "red", "big", "--who", "ann", "--why", "slow") == "red: pinned to big\n"
    shown = as_json("show", "big")
    [team] = [one for one in shown["clusters"][0]["teams"] if one["team"] == "red"]
    assert (team["pinned_by"], team["reason"]) == ("ann", "pinned to big")
    assert {one["team"] for one in shown["decisions"]} >= {"red"}
    assert "in cluster big" in run("unpin", "red")
    assert "red: in cluster default" in run("move", "red", "default", "--why", "back")
    assert "is being drained" in run("drain", "big")
    assert "takes teams in again" in run("drain", "big", "--undo")


def test_configuration_of_before_that_waybill_sets_itself_stops_no_start(
    tracker: TrackerStore, caplog: pytest.LogCaptureFixture
) -> None:
    with tracker.transaction() as connection:  # an earlier release took it
        conf = '{"spark.driver.memory": "4g", "spark.extra": "a"}'
        connection.execute(text(f"UPDATE virtual_clusters SET spark_conf = '{conf}'"))
    assert dict(cluster_settings(tracker, "default").spark_conf) == {"spark.extra": "a"}
    takes_out = "`waybill clusters set default --spark-conf spark.driver.memory=` takes it out"
    assert takes_out in caplog.text
    shown = run("show", "default")
    assert "spark.driver.memory=4g (of no effect: Waybill sets it)\nspark.extra=a\n" in shown
    words = refused("set", "default", "--spark-conf", "spark.driver.memory=8g")
    assert "spark.driver.memory is set by Waybill: use WAYBILL_SPARK__DRIVER_MEMORY" in words
    run("set", "default", "--spark-conf", "spark.driver.memory=")
    assert as_json("show", "default")["clusters"][0]["spark_conf"] == {"spark.extra": "a"}


def test_a_cluster_is_deleted_once_nobody_is_in_it(tracker: TrackerStore) -> None:
    run("create", "big")
    run("pin", "red", "big")
    assert "pinned to cluster 'big': red" in refused("delete", "big")
    run("unpin", "red")
    assert "'big' serves red: `waybill clusters drain big`" in refused("delete", "big")
    run("move", "red", "default")
    words = refused("delete", "big")
    assert "applications at work (processing): `waybill clusters stop big` ends them" in words
    with tracker.transaction() as connection:
        connection.execute(
            text("UPDATE applications SET heartbeat_at = now() - interval '2 minutes'")
        )
    assert run("delete", "big", "--why", "empty") == "big: deleted\n"
    assert run("delete", "big") == "big: there is no such cluster; nothing changed\n"
    assert as_json("delete", "big") == {"name": "big", "deleted": False}
    assert [one["name"] for one in as_json("list")["clusters"]] == ["default"]
    entries = [one["action"] for one in read_audit(tracker, None, limit=99)]
    assert entries.count("delete_cluster") == 1
    assert run("create", "big").endswith("created\n")
    assert as_json("show", "big")["history"] == []


def test_applications_are_shown_stopped_started_and_replaced(tracker: TrackerStore) -> None:
    lease = ApplicationLease.acquire(tracker, "loading", "default")
    lease.renew(at_work=True)
    with tracker.transaction() as connection:
        connection.execute(
            text(
                "INSERT INTO cluster_loads (cluster, teams, needed_cores, demand_cores) "
                "VALUES ('default', 1, 3, 1.5)"
            )
        )
    assert as_json("show", "default")["history"][0]["needed_cores"] == 3
    shown = " ".join(run("show", "default").split())
    mine = f"pid {os.getpid()} on {socket.gethostname()}"
    assert (
        f"loading: at work; start number 1, as a process of a worker's machine, Waybill {__version__}; {mine}; "
        in shown
    )
    [loading] = [
        one for one in as_json("show", "default")["clusters"][0]["applications"]
        if one["kind"] == "loading"
    ]  # fmt: skip
    assert (loading["state"], loading["epoch"], loading["wanted"]) == ("at work", 1, "running")
    assert "processing and loading start anew" in run("restart", "default", "--who", "ann")
    assert "default: no application runs" in run("restart", "default")
    assert "its applications end" in run("stop", "default", "--who", "ann", "--why", "late")
    assert "were to be stopped already" in run("stop", "default", "--who", "ann")
    assert "; stopped by ann" in " ".join(run("show", "default").split())
    assert not lease.renew()
    assert "its applications are to run" in run("start", "default")
    assert "there is no cluster 'gone'" in refused("stop", "gone")


def test_lists_are_read_by_people(tracker: TrackerStore) -> None:
    run("set", "default", "--cores", "4")
    set_load(tracker, "red", cores=2.5, lag_s=12)
    set_load(tracker, "green", cores=0.5)
    log = LogInMemory()
    log.ends = {topic_of("red"): {0: 0}}
    log.away = {topic_of("red")}  # its rates stay those of the looks that were written
    coordinate(tracker, log, DryRunInfra())
    listed = run("list")
    assert f"topic {topic_of('red')} did not answer" in listed
    assert max(len(line) for line in listed.splitlines() if line[:5] != "topic") <= 80
    [line] = [line.split() for line in listed.splitlines() if line.startswith("default ")]
    assert line[1].startswith("active")
    assert line[-8:-6] == ["2", "2"]
    assert line[-3:] == ["12", "/", "60"]
    assert "hot: team red takes" in listed
    shown = run("show", "default")
    assert "4 cores" in shown
    assert "red to default" in " ".join(shown.split())


def test_what_an_application_does_not_serve_is_told_with_why(tracker: TrackerStore) -> None:
    lease = ApplicationLease.acquire(tracker, "processing", "default")
    away = RetryError(f"partition 0 of {topic_of('red')} has no leader: wait for its broker")
    held = [HeldConsumer.of(topic_of("red"), away, "")]
    wait = HeldConsumer.of(topic_of("green") + "\x1b[2J", None, "for its turn")
    lease.renew(at_work=True, serving=Serving.of(12, 50, [*held, wait]))
    said = (
        "processing: serving 48 of 50 topics; 1 fails, 1 waits "
        f"{topic_of('red')}: fails: RetryError: partition 0 of {topic_of('red')} has no leader: "
        f"wait for its broker {topic_of('green')}\\x1b[2J: waits for its turn"
    )
    listed = run("list")
    assert f"default, {said}" in " ".join(listed.split())
    assert max(map(len, listed.splitlines())) <= 80
    shown = run("show", "default")
    assert said in " ".join(shown.split())
    assert "\n  follows version 12 of the assignment\n" in shown
    lease.renew(at_work=True, serving=Serving.of(12, 1, held))
    listed = run("list")
    assert "active, reads" in listed
    assert "default, processing: serving 0 of 1 topic; 1 fails\n" in listed
    assert max(map(len, listed.splitlines())) <= 80
    lease.note_end("StopError: Spark has had no executor for 60 s")
    shown = run("show", "default")
    assert "processing: ended; start number 2, as a process of a worker's machine" in shown
    assert "UTC: StopError: Spark has had no executor for 60 s" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("show", "nothing"), "no cluster 'nothing'; there are default"),
        (("pin", "red", "nothing"), "`waybill clusters create` makes one"),
        (("pin", "nobody", "default"), "no deployed pipeline is of team 'nobody'"),
        (("move", "red", "nothing"), "no cluster 'nothing'"),
        (("delete", "default"), "cluster 'default' stays"),
        (("drain", "default"), "the only one that takes teams in"),
        (("drain", "default", "--undo"), "is not being drained"),
        (("create", "default"), "there is a cluster 'default' already"),
        (("create", "a b"), "a name is made of"),
        (("create", "a", "--lag-objective-s", "inf"), "lag_objective_s must be"),
        (("set", "default"), "nothing of cluster 'default' would change"),
        (("set", "nothing", "--cores", "1"), "no cluster 'nothing'"),
        (("unpin", "red"), "'red' is not pinned"),
    ],
)
def test_what_cannot_be_is_said_with_what_to_do(
    tracker: TrackerStore, arguments: tuple[str, ...], words: str
) -> None:
    assert words in refused(*arguments)


def test_a_pin_to_a_full_cluster_says_how_to_make_room(tracker: TrackerStore) -> None:
    run("create", "small", "--max-consumers", "1")
    run("pin", "red", "small")
    assert "--max-consumers 2" in refused("pin", "green", "small")


def test_what_a_name_holds_reaches_no_terminal(tracker: TrackerStore) -> None:
    said = refused("pin", "red\x1b[2J", "default")
    assert "\x1b" not in said
    assert "\\x1b[2J" in said
