"""The client of Airflow's API, against a server that answers as Airflow does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from pydantic import SecretStr

from waybill.errors import AwayError, InputError, NotFoundError, RetryError
from waybill.services import airflow_client
from waybill.services.airflow_client import AirflowClient
from waybill.settings import AirflowSettings

HEALTH = {
    "metadatabase": {"status": "healthy"},
    "scheduler": {"status": "unhealthy"},
    "triggerer": {"status": None},
    "dag_processor": {"status": "unhealthy"},
}


class Airflow(HTTPServer):
    """Tells a run's states one after the other, the last for ever."""

    def __init__(self, states: list[str]) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.states = states
        self.left: dict[str, Any] = {}
        self.parses: list[str] = []
        """By when each that is asked for begins; none begins after the last."""
        self.asked: list[str] = []
        self.patched: list[str] = []
        self.token: Any = {"access_token": "t"}
        self.token_status = 200


class Answers(BaseHTTPRequestHandler):
    server: Airflow

    def do_GET(self) -> None:
        if self.path.endswith("/health"):
            self.answer(HEALTH)
        elif "/xcomEntries/" in self.path:
            left = self.server.left.get(self.path.rpartition("/")[2])
            self.answer({"value": left} if left else {}, 200 if left else 404)
        elif "/dags/" in self.path and "/dagRuns/" not in self.path:
            parses, number = self.server.parses, len(self.server.asked)
            at = parses[number - 1] if number <= len(parses) else ""
            dag = {"is_stale": False, "last_parsed_time": at, "last_parse_duration": 5.0}
            dag["is_paused"] = True
            self.answer(dag if at else {}, 200 if at else 404)
        else:
            states = self.server.states
            self.answer({"state": states.pop(0) if len(states) > 1 else states[0]})

    def do_PATCH(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.patched.append(self.path)
        self.answer({})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.endswith("/parse"):
            self.server.asked.append(self.path)
            self.answer({"asked_at": "2026-01-01T00:01:00Z", "interval_s": 300}, 202)
        elif self.path.endswith("/dagRuns/list"):
            self.answer({"dag_runs": [], "total_entries": 2})
        else:
            self.answer(self.server.token, self.server.token_status)

    def answer(self, value: Any, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def airflow() -> Iterator[Airflow]:
    with Airflow(["queued", "queued", "success"]) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def client(airflow: Airflow) -> Iterator[AirflowClient]:
    url = f"http://127.0.0.1:{airflow.server_port}"
    settings = AirflowSettings(url=url, user="admin", password=SecretStr("x"))
    with AirflowClient(settings) as opened:
        yield opened


def test_what_gives_no_sign_of_life_is_named(client: AirflowClient) -> None:
    assert client.unhealthy() == ["scheduler", "dag processor"]


def test_who_waits_is_told_that_nothing_can_come_of_it(
    client: AirflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(airflow_client, "_HEALTH_S", 0.0)
    heard: list[str] = []
    assert client.follow("replay", "r", limit_s=300, told=heard.append) == "success"
    assert "the run is queued" in heard[0]
    assert "scheduler and dag processor" in heard[0]
    assert "waybill up" in heard[0]
    assert len(heard) == 1  # once, not at every look


def test_a_run_that_does_not_end_is_given_up(client: AirflowClient, airflow: Airflow) -> None:
    airflow.states = ["running"]
    with pytest.raises(RetryError, match="is running after 0 s"):
        client.follow("replay", "r", limit_s=0.1)


def test_what_a_task_left_is_read_and_nothing_where_it_left_nothing(
    client: AirflowClient, airflow: Airflow
) -> None:
    airflow.left["reason"] = "it was cancelled"
    assert client.left("replay", "r", "replay", "reason") == "it was cancelled"
    assert client.left("replay", "r", "replay", "return_value") is None


def test_a_failed_replay_says_why_on_the_command_line(
    airflow: Airflow,
) -> None:
    from waybill.cli import replays
    from waybill.settings import Settings

    airflow.states, airflow.left["reason"] = ["running", "failed"], "the canary stopped: of 10"
    url = f"http://127.0.0.1:{airflow.server_port}"
    given = AirflowSettings(url=url, user="admin", password=SecretStr("x"))
    settings = Settings().model_copy(update={"airflow": given})
    conf = {"pipeline": "orders", "error_type": "null_value"}
    airflow.parses = [""]
    with pytest.raises(NotFoundError, match="no DAG replay"):
        replays._launch(settings, conf, follow=True, unpause=True)
    airflow.parses = ["2026-01-01T00:01:04Z"]
    with pytest.raises(InputError, match="the DAG replay is paused, with 2 unfinished runs"):
        replays._launch(settings, conf, follow=True, unpause=False)
    assert airflow.patched == []
    state, _, reason = replays._launch(settings, conf, follow=True, unpause=True)
    assert airflow.patched == ["/api/v2/dags/replay"]
    assert (state, reason) == ("failed", "the canary stopped: of 10")


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (1200, "stopped: by mia, after 1,200 rows, which are delivered or parked; the next"),
        (0, "stopped: by mia, before it had read a row; the next run goes on"),
    ],
)
def test_a_stopped_ingest_is_no_success_for_who_follows_it(
    client: AirflowClient,
    airflow: Airflow,
    capsys: pytest.CaptureFixture[str],
    read: int,
    words: str,
) -> None:
    from waybill.cli import ingest
    from waybill.ingestion import IngestReport
    from waybill.services import IngestProgress

    report = IngestReport("orders", read, read, 0, 0, 0, 3, 1.5, "mia").to_json()
    airflow.states, airflow.left["return_value"] = ["running", "success"], report
    sayer = ingest._Sayer(lambda: progress, progress := IngestProgress(0, 0, False), to_stderr=True)
    run = {"pipeline": "orders", "dag_id": "ingest_orders", "run_id": "r"}
    ended = ingest._follow(client, run, sayer, as_json=False)
    assert (ended["state"], ended["report"]) == ("stopped", report)
    ingest._say_ended(run | ended, as_json=False)
    assert words in " ".join(capsys.readouterr().err.split())


def test_a_dag_is_current_once_a_parse_made_it_that_began_after_it_was_asked_for(
    client: AirflowClient, airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(airflow_client, "_ASK_AGAIN_S", 0.0)  # the first request is dropped
    airflow.parses = ["2026-01-01T00:01:04Z", "2026-01-01T00:01:05Z"]
    found = client.renew_dag("my orders", "ingest_orders", limit_s=300, absent_s=300)
    assert (found.exists, found.is_current, found.interval_s) == (True, True, 300)
    assert found.is_paused
    assert airflow.asked == ["/waybill/api/declarations/my%20orders/parse"] * 2


def test_a_dag_that_is_not_made_is_not_waited_for_longer_than_said(
    client: AirflowClient, airflow: Airflow
) -> None:
    airflow.parses = ["2026-01-01T00:01:04Z"]
    found = client.renew_dag("orders", "ingest_orders", limit_s=0, absent_s=300)
    assert (found.exists, found.is_current) == (True, False)
    airflow.parses, airflow.asked = [], []
    found = client.renew_dag("orders", "ingest_orders", limit_s=300, absent_s=0)
    assert (found.exists, found.is_current, found.is_paused) == (False, False, False)
    with pytest.raises(InputError, match="nothing by the name"):
        client.renew_dag("\udcff", "ingest_x", limit_s=0, absent_s=0)


def test_a_deploy_unpauses_what_is_there_and_names_what_is_not(airflow: Airflow) -> None:
    from waybill.cli import pipelines
    from waybill.settings import Settings

    url = f"http://127.0.0.1:{airflow.server_port}"
    given = AirflowSettings(url=url, user="admin", password=SecretStr("x"))
    settings = Settings().model_copy(update={"airflow": given})
    wanted = ["stream_default", "ingest_my orders"]
    airflow.parses = ["2026-01-01T00:01:04Z"]
    assert pipelines._unpause(settings, wanted) == (wanted, [])
    paths = ["/api/v2/dags/stream_default", "/api/v2/dags/ingest_my%20orders"]
    assert airflow.patched == paths
    airflow.parses = [""]
    assert pipelines._unpause(settings, wanted) == ([], wanted)
    assert airflow.patched == paths


@pytest.mark.parametrize(
    ("status", "answer", "error", "words"),
    [
        (200, ["a list"], InputError, "no Airflow: 200.*check WAYBILL_AIRFLOW__URL"),
        (302, {}, InputError, "no Airflow: 302"),
        (401, {}, InputError, "check WAYBILL_AIRFLOW__USER and WAYBILL_AIRFLOW__PASSWORD"),
        (503, {}, AwayError, "does not answer: 503"),
    ],
)
def test_what_answers_and_is_no_airflow_or_refuses_is_named(
    airflow: Airflow, status: int, answer: Any, error: type[Exception], words: str
) -> None:
    airflow.token, airflow.token_status = answer, status
    url = f"http://127.0.0.1:{airflow.server_port}"
    with AirflowClient(AirflowSettings(url=url), patience_s=0.0) as client:
        with pytest.raises(error, match=words):
            client.renew_dag("orders", "ingest_orders", limit_s=0, absent_s=0)
