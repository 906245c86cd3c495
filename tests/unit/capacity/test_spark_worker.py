"""What an enhancer asks the page of its Spark worker, and how it has it drain."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.servers import wait_for

from waybill.errors import InputError, RetryError
from waybill.services.nodes import loopback_nodes
from waybill.services.spark_nodes import spark_commands, spark_worker
from waybill.settings import CapacitySettings, Settings, SparkSettings, WalSettings
from waybill.stack import launch

CATCHES = """
import pathlib, signal, sys
signal.signal(signal.SIGPWR, lambda *_: pathlib.Path(sys.argv[1], "told").touch())
pathlib.Path(sys.argv[1], "ready").touch()
while True:
    signal.pause()
"""


@pytest.fixture
def page() -> Iterator[ThreadingHTTPServer]:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/json/" else 404)
            self.end_headers()
            self.wfile.write(self.server.said)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def worker(page):
    url = f"http://127.0.0.1:{page.server_address[1]}/"
    return spark_worker(Settings(capacity=CapacitySettings(spark_worker_url=url, cores=4)))


def test_the_cores_that_executors_have_are_those_that_run(page):
    page.said = json.dumps({"cores": 4, "coresused": 3, "executors": [{"id": 0}]}).encode()
    assert worker(page).read() == (4, 3)
    page.said = json.dumps({"cores": 4, "coresused": 0, "executors": []}).encode()
    assert worker(page).read() == (4, 0)


@pytest.mark.parametrize("said", [b"<html>", b"[]", b"{}", b'{"coresused": null}'])
def test_another_page_is_said_to_be_no_spark_worker(page, said):
    page.said = said
    with pytest.raises(RetryError, match="is no Spark worker"):
        worker(page).read()


def test_a_worker_that_is_away_is_waited_for(page):
    asked = worker(page)
    page.shutdown()
    page.server_close()
    with pytest.raises(RetryError, match="does not answer"):
        asked.read()


@pytest.fixture
def node(page, tmp_path: Path) -> Iterator[Settings]:
    """Settings of a node on loopback: its worker is a process that catches the signal."""
    (tmp_path / "run").mkdir()
    command = [sys.executable, "-c", CATCHES, str(tmp_path)]
    worker = subprocess.Popen(command)
    wait_for((tmp_path / "ready").exists)
    record = tmp_path / "run" / "loopback-spark-1.json"
    ports = {"page": page.server_address[1]}
    launch.write_record(record, {"name": "loopback-spark-1", "ports": ports}, worker.pid)
    yield Settings(home=tmp_path, wal=WalSettings(node="loopback-spark-1"))
    worker.kill()
    worker.wait(300)


def said(page, state: str) -> bytes:
    """Return what a page says that is a worker's and its master's at once."""
    url = f"http://127.0.0.1:{page.server_address[1]}"
    known = [{"id": "other", "state": "ALIVE"}, {"id": "worker-1", "state": state}]
    own = {"id": "worker-1", "masterwebuiurl": url, "coresused": 1, "executors": [{}]}
    return json.dumps(own | {"workers": known}).encode()


def test_a_worker_is_told_to_drain_and_drains_once_its_master_knows(node, page, monkeypatch):
    monkeypatch.setattr("waybill.services.spark_nodes._TOLD_S", 0.2)
    page.said = said(page, "ALIVE")
    drained = spark_worker(node)
    with pytest.raises(RetryError, match="master does not know yet"):
        drained.drain()
    wait_for((node.home / "told").exists)
    page.said = said(page, "DECOMMISSIONED")
    (node.home / "told").unlink()
    drained.drain()
    assert drained.read()[1] == 1
    assert not (node.home / "told").exists(), "it is not told again"


def test_a_worker_that_died_or_is_somebody_elses_is_sent_no_signal(node, page):
    page.said = said(page, "ALIVE")
    other = node.model_copy(update={"wal": WalSettings(node="another-host")})
    url = f"http://127.0.0.1:{page.server_address[1]}"
    other = other.model_copy(update={"capacity": CapacitySettings(spark_worker_url=url)})
    with pytest.raises(RetryError, match=r"decommission-worker\.sh"):
        spark_worker(other).drain()
    record = node.home / "run" / "loopback-spark-1.json"
    fields = json.loads(record.read_text())
    record.write_text(json.dumps(fields | {"create_time": 1.0, "boot": "other:1"}))
    with pytest.raises(RetryError, match="no process of this state folder"):
        spark_worker(node).drain()
    assert not (node.home / "told").exists()


@pytest.mark.parametrize("workers", [None, {}, [{"id": "worker-1"}], ["worker-1"]])
def test_a_master_that_says_something_else_is_no_answer(node, page, workers):
    page.said = json.dumps(json.loads(said(page, "ALIVE")) | {"workers": workers}).encode()
    with pytest.raises(RetryError, match="is no Spark master|does not know"):
        spark_worker(node).drain()


def test_a_worker_on_loopback_gets_nothing_of_the_coordinators_secrets(tmp_path, monkeypatch):
    for name in ("AWS_SECRET_ACCESS_KEY", "AIRFLOW__CORE__FERNET_KEY", "WAYBILL_TRACKER__DSN"):
        monkeypatch.setenv(name, "canary")
    settings = Settings(home=tmp_path, spark=SparkSettings(work_dir=tmp_path / "spark"))
    found = spark_commands(settings, "loopback-spark-1", ["enhancer"], dict(os.environ))
    assert "canary" not in found.worker_env.values()
    assert found.worker_env["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert found.worker[found.worker.index("--webui-port") + 1] == str(found.ports["page"])


@pytest.mark.parametrize(
    "master", ["local[2]", "yarn", "spark://0.0.0.0:7077", "spark://host:7077", "spark://", "spark"]
)
def test_workers_on_loopback_refuse_a_master_that_they_cannot_serve(master, tmp_path):
    spark = SparkSettings(master=master)
    own = CapacitySettings(loopback=("spark",))
    with pytest.raises(InputError, match="WAYBILL_SPARK__MASTER=spark://127"):
        loopback_nodes(Settings(home=tmp_path, spark=spark, capacity=own))
