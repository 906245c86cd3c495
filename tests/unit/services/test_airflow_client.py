"""The client of Airflow's API, against a server that answers as Airflow does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from pydantic import SecretStr

from waybill.errors import RetryError
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
        self.left: dict[str, str] = {}


class Answers(BaseHTTPRequestHandler):
    server: Airflow

    def do_GET(self) -> None:
        if self.path.endswith("/health"):
            self.answer(HEALTH)
        elif "/xcomEntries/" in self.path:
            left = self.server.left.get(self.path.rpartition("/")[2])
            self.answer({"value": left} if left else {}, 200 if left else 404)
        else:
            states = self.server.states
            self.answer({"state": states.pop(0) if len(states) > 1 else states[0]})

    def do_PATCH(self) -> None:
        self.answer({})

    def do_POST(self) -> None:
        self.answer({"access_token": "t"})

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
    assert client.follow("replay", "r", limit_s=30, told=heard.append) == "success"
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
    state, _, reason = replays._launch(settings, conf, follow=True)
    assert (state, reason) == ("failed", "the canary stopped: of 10")
