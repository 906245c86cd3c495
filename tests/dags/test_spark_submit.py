"""Applications on a Spark cluster: what the provider makes of a connection, and what YARN says."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from waybill.clusters import Application, VirtualCluster
from waybill.errors import InputError, RetryError
from waybill.settings import Settings, SparkSettings
from waybill_airflow.spark_submit import SubmittedBackend, spark_backends, submitted_conf

RUNS = Application("second", "processing", 100.0, epoch=7, external_id="application_1_0042")
"""It was started long ago, and nothing was heard of it."""


def settings_with(tmp_path, monkeypatch, uri: str) -> Settings:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_HERE", uri)
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-sql-kafka.jar").touch()
    spark = SparkSettings(connection_id="spark_here", jars_dir=tmp_path / "jars")
    return Settings(home=tmp_path, dags_dir=tmp_path / "dags", spark=spark)


def test_without_a_connection_applications_are_processes_of_this_host(tmp_path):
    assert spark_backends(Settings(home=tmp_path)) == {}


def test_a_standalone_cluster_gets_a_process_in_client_mode(tmp_path, monkeypatch):
    made = settings_with(tmp_path, monkeypatch, "spark://127.0.0.1:7077")
    [(name, backend)] = spark_backends(made).items()
    assert name == "process"
    script = tmp_path / "spark_jobs" / "processing.py"
    command = backend._command(script, ["--epoch", "7", "--cluster", "second"])
    assert command[:3] == ["spark-submit", "--master", "spark://127.0.0.1:7077"]
    assert command[-5:] == [str(script), "--epoch", "7", "--cluster", "second"]
    assert command[command.index("--name") + 1] == "waybill-processing-second"
    assert command[command.index("--jars") + 1].endswith("spark-sql-kafka.jar")
    assert "--deploy-mode" not in command
    assert not [word for word in command if "postgresql" in word], "no secret is in a command"


def test_what_cannot_be_is_said(tmp_path, monkeypatch):
    made = settings_with(tmp_path, monkeypatch, "spark://127.0.0.1:7077?deploy-mode=cluster")
    with pytest.raises(InputError, match="no Python driver on a standalone cluster"):
        spark_backends(made)
    monkeypatch.setenv(
        "AIRFLOW_CONN_SPARK_HERE", "k8s://https%3A%2F%2F127.0.0.1:1?deploy-mode=cluster"
    )
    with pytest.raises(InputError, match="apache-airflow-providers-cncf-kubernetes"):
        spark_backends(made)
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_HERE")
    with pytest.raises(InputError, match="connection 'spark_here' of Spark"):
        spark_backends(made)


def test_a_submission_says_what_the_cluster_was_set_to(tmp_path):
    settings = Settings(home=tmp_path)
    own = VirtualCluster(
        "second",
        cores=8,
        memory_mb=2048,
        spark_conf={"spark.executor.cores": "3", "spark.yarn.maxAppAttempts": "9"},
    )
    conf = submitted_conf(settings, RUNS, own)
    assert conf == {
        "spark.executor.cores": "3",
        "spark.executor.instances": "2",
        "spark.executor.memory": "2048m",
        "spark.cores.max": "8",
        "spark.yarn.maxAppAttempts": "1",
    }
    assert submitted_conf(settings, RUNS, VirtualCluster("second"))["spark.cores.max"] == "2"


@dataclass
class ResourceManager:
    """YARN's REST API on loopback: states of one application, and what was asked."""

    url: str = ""
    state: tuple[str, str] = ("RUNNING", "UNDEFINED")
    code: int = 200
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def yarn() -> Iterator[ResourceManager]:
    made = ResourceManager()

    class Answers(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            made.asked.append(f"{self.command} {self.path}")
            length = int(self.headers.get("Content-Length") or 0)
            made.asked += [self.rfile.read(length).decode()] if length else []
            state, final = made.state
            body = json.dumps({"app": {"state": state, "finalStatus": final}}).encode()
            self.send_response(made.code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self._answer()

        def do_PUT(self) -> None:
            self._answer()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        made.url = f"127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield made
        server.shutdown()


@pytest.fixture
def on_yarn(tmp_path, monkeypatch, yarn) -> SubmittedBackend:
    extra = f"deploy-mode=cluster&yarn_resourcemanager_webapp_address={yarn.url}"
    made = settings_with(tmp_path, monkeypatch, f"yarn://?{extra}")
    monkeypatch.setenv(
        "AIRFLOW_CONN_SPARK_HERE",
        json.dumps(
            {
                "conn_type": "spark",
                "host": "yarn",
                "extra": {
                    "deploy-mode": "cluster",
                    "yarn_resourcemanager_webapp_address": yarn.url,
                },
            }
        ),
    )
    monkeypatch.setattr(SubmittedBackend, "_own", lambda *_: VirtualCluster("second", cores=2))
    (tmp_path / "spark_jobs").mkdir()
    (tmp_path / "spark_jobs" / "processing.py").touch()
    [(name, backend)] = spark_backends(made).items()
    assert name == "spark"
    return backend


@pytest.mark.parametrize(
    ("state", "final", "word"),
    [
        ("ACCEPTED", "UNDEFINED", "alive"),
        ("RUNNING", "UNDEFINED", "alive"),
        ("FINISHED", "SUCCEEDED", "dead"),
        ("FAILED", "FAILED", "dead"),
        ("KILLED", "KILLED", "dead"),
    ],
)
def test_yarn_is_asked_by_its_rest_api(on_yarn, yarn, state, final, word):
    yarn.state = (state, final)
    assert on_yarn.ask(RUNS) == word
    assert yarn.asked == ["GET /ws/v1/cluster/apps/application_1_0042"]


def test_what_reports_is_not_dead_yet_whatever_yarn_says(on_yarn, yarn):
    yarn.state = ("FAILED", "FAILED")
    assert on_yarn.ask(replace(RUNS, heartbeat_s=RUNS.now_s - 2)) == "no answer"
    assert on_yarn.ask(replace(RUNS, heartbeat_s=RUNS.now_s - 20)) == "dead"


def test_a_resource_manager_that_errs_is_no_death_and_one_that_forgot_leaves_the_lease_to_decide(
    on_yarn, yarn
):
    yarn.code = 500
    with pytest.raises(RetryError, match="HTTP 500"):
        on_yarn.ask(RUNS)
    yarn.code = 404
    assert on_yarn.ask(RUNS) == "unknown"


def test_an_application_whose_starter_died_cannot_be_asked_after(on_yarn, yarn):
    for written in ("", "vm:4026531836:44f88644-5e86:6342597:27330"):
        named = Application("second", "processing", 0.0, epoch=7, external_id=written)
        assert on_yarn.ask(named) == "unknown"
        on_yarn.kill(named)
    assert yarn.asked == []


def test_yarn_is_asked_to_kill(on_yarn, yarn):
    on_yarn.kill(RUNS)
    assert yarn.asked == [
        "PUT /ws/v1/cluster/apps/application_1_0042/state",
        '{"state": "KILLED"}',
    ]


def test_a_submission_returns_the_id_that_spark_submit_tells(on_yarn, tmp_path, monkeypatch):
    """The provider runs ``spark-submit`` from the PATH: here one that tells what YARN's would."""
    program = tmp_path / "bin" / "spark-submit"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n'
        'echo "INFO Client: Submitted application application_1_0099"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    assert on_yarn.start(RUNS) == "application_1_0099"
    asked = (tmp_path / "asked").read_text()
    assert "--master yarn" in asked
    assert "--deploy-mode cluster" in asked
    assert "spark.yarn.submit.waitAppCompletion=false" in asked
    assert asked.rstrip().endswith("processing.py --epoch 7 --cluster second")
    assert "postgresql" not in asked
    program.write_text('#!/bin/sh\necho "no room"\nexit 1\n')
    with pytest.raises(RetryError, match="no room"):
        on_yarn.start(RUNS)


class Pods:
    """The one call of the client of Kubernetes by which the provider asks after a pod."""

    class ApiError(Exception):
        """The client's ``ApiException``."""

        def __init__(self, status: int) -> None:
            super().__init__(f"({status})")
            self.status = status

    def __init__(self) -> None:
        self.phase: str | int = "Running"
        """A phase, or the status of an answer without one."""
        self.asked: list[str] = []

    def read_namespaced_pod(self, name: str, namespace: str) -> SimpleNamespace:
        self.asked.append(f"{namespace}/{name}")
        if isinstance(self.phase, int):
            raise self.ApiError(self.phase)
        return SimpleNamespace(status=SimpleNamespace(phase=self.phase))


@pytest.fixture
def pods(monkeypatch) -> Pods:
    made = Pods()
    client = SimpleNamespace(get_kube_client=lambda: made, ApiException=Pods.ApiError)
    for module in ("hooks", "operators"):
        where = f"airflow.providers.apache.spark.{module}.spark_submit.kube_client"
        monkeypatch.setattr(where, client, raising=False)
    return made


def on_kubernetes(tmp_path, monkeypatch, **extra: str) -> SubmittedBackend:
    where = {"conn_type": "spark", "host": "k8s://https://127.0.0.1", "port": 1}
    connection = json.dumps({**where, "extra": {"deploy-mode": "cluster", **extra}})
    made = settings_with(tmp_path, monkeypatch, connection)
    monkeypatch.setattr(SubmittedBackend, "_own", lambda *_: VirtualCluster("second", cores=2))
    (tmp_path / "spark_jobs").mkdir()
    (tmp_path / "spark_jobs" / "processing.py").touch()
    return spark_backends(made)["spark"]


@pytest.mark.parametrize(
    ("phase", "word"),
    [
        ("Pending", "alive"),
        ("Running", "alive"),
        ("Succeeded", "dead"),
        ("Failed", "dead"),
        ("Unknown", "no answer"),
        (404, "unknown"),
    ],
)
def test_a_driver_pod_that_is_not_found_is_no_death(tmp_path, monkeypatch, pods, phase, word):
    pods.phase = phase
    backend = on_kubernetes(tmp_path, monkeypatch, namespace="streams")
    assert backend.ask(replace(RUNS, external_id="streams:driver-1")) == word
    assert pods.asked == ["streams/driver-1"]


def test_an_api_server_that_errs_is_no_death(tmp_path, monkeypatch, pods):
    pods.phase = 503
    backend = on_kubernetes(tmp_path, monkeypatch, namespace="streams")
    with pytest.raises(RetryError, match="503"):
        backend.ask(replace(RUNS, external_id="streams:driver-1"))


def test_a_connection_without_a_namespace_is_refused(tmp_path, monkeypatch, pods):
    with pytest.raises(InputError, match="names no namespace"):
        on_kubernetes(tmp_path, monkeypatch)
