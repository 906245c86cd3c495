"""The collector with real Kafka, tracker and object store."""

from __future__ import annotations

import gzip
import hashlib
import hmac
import json
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard
from sqlalchemy import text
from tests.support import collectors, processes
from tests.support.children import wait_until
from tests.support.orders import team_of
from tests.support.recorded import counting

from waybill import services
from waybill.access import Decision
from waybill.errors import InputError
from waybill.events import decode
from waybill.ledger import note_partitions
from waybill.pipelines import topic_name
from waybill.settings import Settings
from waybill.stack import Stack, credentials, environment, free_port, state_folder
from waybill.storage import open_log, open_tracker
from waybill.topics import GrowRequest

pytestmark = pytest.mark.serves


def test_what_is_answered_is_in_kafka_counted_and_traced_once(
    stack_settings: Settings, tmp_path: Path
) -> None:
    settings = collectors.deployed(stack_settings, tmp_path, event_id="field:delivery")
    with collectors.collector(settings, tmp_path) as running:
        one = {"number": 1, "amount": 5, "delivery": "d-1"}
        answer = running.post(one)
        assert (answer.status_code, answer.json()["ids"]) == (202, ["d-1"]), answer.text
        assert running.post(one).json()["duplicates"] == 1
        mixed = [{"number": n, "amount": n, "delivery": f"d-{n}"} for n in range(2, 60)]
        answer = running.post([*mixed, {"amount": 3, "delivery": "bad"}])
        assert answer.status_code == 207
        assert answer.json()["records"][-1]["error"]["code"] == "key_missing"
        assert running.post(b"{", path="/v1/hooks").status_code == 400
        wrong = {"authorization": "Bearer wrong"}
        nobody = running.post(one, path="/v1/nobody")
        refused = running.post(one, **wrong)
        assert nobody.status_code == refused.status_code == 401
        assert nobody.content == refused.content

        def counted() -> bool:
            return services.balance(settings).ingested == 59

        wait_until(counted, what="its pages are committed while it runs")
        [log] = services.write_ahead_logs(settings)
        assert (log.state, log.unsettled, log.rereadable) == ("open", 0, False)
        assert services.audit_round(settings).number > 0
        assert services.breaches(settings, states=None) == []
        assert running.stop() == 0, running.words()
    events = collectors.in_kafka(settings)
    assert sorted(event.data["number"] for event in events) == list(range(1, 60))
    report = services.balance(settings)
    assert (report.ingested, report.in_flight, report.unaccounted) == (59, 59, 0)
    assert report.settling == {}
    taken = [trace.event_id for trace in counting(settings) if trace.phase == "ingestion"]
    assert sorted(taken) == sorted(event.id for event in events)
    assert services.audit_round(settings).number > 0
    assert services.breaches(settings, states=None) == []
    assert services.write_ahead_logs(settings) == []


def github(body: bytes, **headers: str) -> dict[str, str]:
    digest = hmac.new(collectors.BEARER.encode(), body, hashlib.sha256).hexdigest()
    return {
        "x-hub-signature-256": f"sha256={digest}",
        "content-type": "application/json",
        **headers,
    }


def test_a_webhook_of_github_and_every_form_of_a_body(
    stack_settings: Settings, tmp_path: Path
) -> None:
    """One collector, whose pipeline waits for Kafka: an answer means that Kafka has it."""
    settings = collectors.deployed(
        stack_settings, tmp_path, auth="github", id_field="delivery", ack="kafka"
    )
    numbers = iter(range(1, 100))

    def send(content: Any, kind: str = "application/json", **headers: str) -> httpx.Response:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        named = {"x-github-event": "order", "x-github-delivery": f"d-{next(numbers)}"}
        signed = github(body, **named, **headers) | {"content-type": kind}
        return httpx.post(running.url + "/v1/hooks", content=body, headers=signed, timeout=90)

    def event(number: int) -> dict[str, Any]:
        return {
            "specversion": "1.0",
            "id": f"{number}",
            "source": "/s",
            "type": "refund",
            "data": {"number": number},
        }

    line = b'{"number": 2}\n{"number": 3}\n'
    with collectors.collector(settings, tmp_path) as running:
        answers = [
            send({"number": 1}),
            send(line, "application/x-ndjson"),
            send(gzip.compress(b'[{"number": 4}]'), **{"content-encoding": "gzip"}),
            send(zstandard.compress(b'{"number": 5}'), **{"content-encoding": "zstd"}),
            send(event(6), "application/cloudevents+json"),
            send([event(7), event(8)], "application/cloudevents-batch+json"),
            send(
                {"number": 9},
                **{"ce-specversion": "1.0", "ce-id": "9", "ce-source": "/s", "ce-type": "refund"},
            ),
            send({"number": 10, "note": "x" * 1_500_000}),
        ]
        assert [answer.status_code for answer in answers] == [202] * len(answers), [
            answer.text[:500] for answer in answers
        ]
        names = {
            event.data["number"]: event.name
            for event in collectors.in_kafka(settings)
            if event.data
        }
        assert names == {n: "refund" if 6 <= n <= 9 else "order" for n in range(1, 10)}
        again = send(event(6), "application/cloudevents+json")
        assert again.json()["duplicates"] == 1
        body = b'{"number": 1}'
        headers = github(body, **{"x-github-event": "order", "x-github-delivery": "d"})
        hooks = running.url + "/v1/hooks"
        wrong = httpx.post(hooks, content=body + b" ", headers=headers, timeout=90)
        assert wrong.status_code == 401
        starred = headers | {"x-github-event": "star"}
        undeclared = httpx.post(hooks, content=body, headers=starred, timeout=90)
        assert undeclared.status_code == 422
        assert undeclared.json()["records"][0]["error"]["code"] == "event_unknown"
        assert httpx.get(hooks, timeout=90).status_code == 405
        assert httpx.post(running.url + "/v2/hooks", timeout=90).status_code == 404
        page = httpx.get(running.url + "/metrics", timeout=90).text
        assert 'waybill_collector_events_total{outcome="accepted"} 10.0' in page
        assert "hooks" not in page
        assert running.stop() == 0, running.words()
        for hidden in (collectors.BEARER, "xxxx", headers["x-hub-signature-256"]):
            assert hidden not in running.words()
    [large] = [event for event in collectors.in_kafka(settings) if event.data_ref]
    assert large.data_ref.startswith("payloads/test-hooks/")
    assert services.balance(settings).ingested == 10


@pytest.mark.campaign
def test_a_client_that_sends_too_much_or_too_slowly_is_ended_and_others_are_served(
    stack_settings: Settings, tmp_path: Path
) -> None:
    settings = collectors.deployed(stack_settings, tmp_path, events_per_s=5)
    own = {"request_s": 3.0, "body_bytes": 10_000, "records": 50, "header_bytes": 4096}
    settings = settings.model_copy(update={"collector": settings.collector.model_copy(update=own)})
    patch = "from waybill.collector import protocol\nprotocol.HEAD_S = 3.0"
    with collectors.collector(settings, tmp_path, patch=patch) as running:
        port = settings.collector.port

        def raw(data: bytes) -> bytes:
            with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
                connection.sendall(data)
                found = b""
                while part := connection.recv(65_536):
                    found += part
                return found

        head = b"POST /v1/hooks HTTP/1.1\r\nHost: x\r\n"
        assert raw(head) == b""
        assert raw(b"") == b""
        assert b" 408 " in raw(head + b"Content-Length: 10\r\n\r\n{")
        assert b" 413 " in raw(head + b"Content-Length: 99999\r\n\r\n")
        chunked = head + b"Transfer-Encoding: chunked\r\n\r\n" + b"ffff\r\n" + b"x" * 20_000
        assert b" 413 " in raw(chunked)
        assert b" 431 " in raw(head + b"A: " + b"x" * 10_000 + b"\r\n\r\n")
        bomb = gzip.compress(b" " * 60_000_000, 9)[:10_000]
        assert running.post(bomb, **{"content-encoding": "gzip"}).status_code in {400, 413}
        batch = [{"number": number} for number in range(20)]
        assert running.post(batch * 3).status_code == 413
        assert running.post(batch).status_code == 202
        limited = running.post(batch)
        assert limited.status_code == 429
        time.sleep(int(limited.headers["retry-after"]))
        assert running.post(batch).status_code == 202


@pytest.mark.campaign
def test_while_kafka_stands_still_the_disk_is_enough_and_two_workers_settle_all_of_it(
    stack_settings: Settings, tmp_path: Path, kafka: Any
) -> None:
    settings = collectors.deployed(stack_settings, tmp_path, event_id="field:delivery")
    own = settings.collector.model_copy(update={"workers": 2})
    settings = settings.model_copy(update={"collector": own})
    batches = [
        [{"number": n, "delivery": f"d{n}"} for n in range(first, first + 20)]
        for first in range(0, 400, 20)
    ]
    events: list[dict[str, Any]] = []
    with collectors.collector(settings, tmp_path) as running:
        warm = iter(range(1000, 2000))

        def both_take_events() -> bool:
            number = next(warm)
            events.append({"number": number, "delivery": f"d{number}"})
            assert running.post(events[-1]).status_code == 202
            return len(services.write_ahead_logs(settings)) == 2

        wait_until(both_take_events, what=running.words())
        processes.freeze([kafka.pid])
        try:
            for batch in batches:
                answer = running.post(batch)
                assert answer.status_code == 202, answer.text + running.words()
            running.kill()
        finally:
            processes.wake([kafka.pid])
    one = settings.collector.model_copy(update={"workers": 1})
    with collectors.collector(
        settings.model_copy(update={"collector": one}), tmp_path
    ) as running:  # it empties the other worker's logs too
        assert running.stop() == 0, running.words()
    found = [event.id for event in collectors.in_kafka(settings)]
    sent = [one["delivery"] for one in (*events, *(one for batch in batches for one in batch))]
    assert sorted(found) == sorted(sent)
    report = services.balance(settings)
    assert (report.ingested, report.unaccounted, report.settling) == (len(sent), 0, {})
    assert services.write_ahead_logs(settings) == []


@pytest.mark.campaign
def test_a_log_that_cannot_be_recovered_yet_is_tried_until_it_is_and_no_request_needs_to_come(
    stack_settings: Settings, tmp_path: Path, kafka: Any
) -> None:
    settings = collectors.deployed(stack_settings, tmp_path)
    own = settings.collector.model_copy(update={"answer_s": 2.0})
    hasty = settings.model_copy(update={"collector": own})
    with collectors.collector(settings, tmp_path) as running:
        assert running.post({"number": 0}).status_code == 202
        wait_until(lambda: services.balance(settings).ingested == 1, what=running.words())
        processes.freeze([kafka.pid])
        try:
            answer = running.post([{"number": number} for number in range(1, 30)])
            assert answer.status_code == 202, answer.text
            running.kill()
            with collectors.collector(hasty, tmp_path, ready=False) as next_one:
                wait_until(
                    lambda: next_one.words().count("is not recovered") > 2,
                    limit_s=360,
                    what="it tries again",
                )
                ready = httpx.get(next_one.url + "/readyz", timeout=120)
                assert ready.status_code == 503, next_one.words()
                processes.wake([kafka.pid])
                next_one.wait_until_ready()
                wait_until(
                    lambda: services.balance(settings).ingested == 30,
                    limit_s=240,
                    what="what was answered is counted without a request",
                )
        finally:
            processes.wake([kafka.pid])
    assert sorted(event.data["number"] for event in collectors.in_kafka(settings)) == list(
        range(30)
    )


WORKER = """
import time, types, uvicorn
from waybill.events import identity
real_run = uvicorn.run
uvicorn.run = lambda *given, **named: real_run(*given, **{**named, "workers": 1})
identity.time = types.SimpleNamespace(time_ns=lambda: time.time_ns() - BEHIND_S * 10**9)
"""


def test_intake_versions_rise_over_the_workers_of_a_host_whatever_its_clock_does(
    stack_settings: Settings, tmp_path: Path
) -> None:
    settings = collectors.deployed(stack_settings, tmp_path)
    both = [
        settings.model_copy(
            update={
                "collector": settings.collector.model_copy(
                    update={"workers": 2, "port": free_port()}
                )
            }
        )
        for _ in range(2)
    ]
    with (
        collectors.collector(both[0], tmp_path, patch=WORKER.replace("BEHIND_S", "0")) as first,
        collectors.collector(both[1], tmp_path, patch=WORKER.replace("BEHIND_S", "5")) as second,
    ):
        for begin in range(0, 24, 6):
            for at, running in ((begin, first), (begin + 3, second)):
                batch = [{"number": 1, "amount": at + n} for n in range(3)]
                assert running.post(batch).status_code == 202, running.words()
        assert (first.stop(), second.stop()) == (0, 0), first.words() + second.words()
    events = collectors.in_kafka(settings)
    events.sort(key=lambda event: int(event.intake_version))
    assert [event.data["amount"] for event in events] == list(range(24))
    assert len({event.intake_version for event in events}) == 24


UNSENT = """
from waybill.services import collector
real_config = collector.librdkafka_config
collector.librdkafka_config = lambda settings: {**real_config(settings), "linger.ms": 60_000}
"""


def test_what_was_answered_is_sent_though_a_restored_tracker_does_not_know_its_log(
    stack_settings: Settings, tmp_path: Path
) -> None:
    settings = collectors.deployed(stack_settings, tmp_path)
    name = topic_name(team_of(settings.pipelines_dir), "warehouse")
    open_log(settings.kafka).ensure_topic(name)
    with open_tracker(settings.tracker) as tracker:
        note_partitions(tracker, name, open_log(settings.kafka).describe(name).partitions)
    plan = services.plan_growth(settings, GrowRequest(topic=name, partitions=8))
    second = services.grow_topic(settings, plan, Decision("ann", "a test")).name
    with collectors.collector(settings, tmp_path, patch=UNSENT) as running:
        answer = running.post([{"number": number} for number in range(30)])
        assert answer.status_code == 202, answer.text
        running.kill()
    with open_tracker(settings.tracker) as tracker, tracker.transaction() as connection:
        assert connection.execute(text("DELETE FROM write_ahead_logs")).rowcount == 1
    with collectors.collector(settings, tmp_path) as running:
        wait_until(lambda: services.balance(settings).ingested == 30, what=running.words())
        assert running.stop() == 0, running.words()
    log = open_log(settings.kafka)
    sent = list(log.read(second, log.watermarks(log.describe(second))))
    assert sorted(decode(value).data["number"] for value in sent) == list(range(30))
    assert not list((settings.wal.dir).glob("*/quarantine/*"))


def test_a_pipeline_that_is_sent_to_cannot_become_one_that_fetches(
    stack_settings: Settings, tmp_path: Path
) -> None:
    settings = collectors.deployed(stack_settings, tmp_path)
    with pytest.raises(InputError, match="waybill collector"):
        services.run_ingest(settings, "hooks")
    declaration = settings.pipelines_dir / "hooks" / "pipeline.yaml"
    text = declaration.read_text()
    options = text[text.index("  options:") : text.index("events:")]
    fetches = text.replace("connector: http", "connector: csv\n  path: a.csv")
    declaration.write_text(fetches.replace(options, ""))
    with pytest.raises(InputError, match="with an id of its own"):
        services.run_deploy(settings, declaration.parent, who="test")


def test_the_stack_starts_its_collector_and_ends_it(
    stack_settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = collectors.deployed(stack_settings, tmp_path)
    own = settings.collector.model_copy(update={"embedded": True})
    settings = settings.model_copy(update={"home": tmp_path, "collector": own})
    monkeypatch.setenv(collectors.VARIABLE, collectors.BEARER)
    environment.write(settings)
    state_folder.make_private(tmp_path, ("run", "logs"))
    services_of_stack = Stack(settings).supervised(credentials.read_or_draw(tmp_path))
    [service] = [one for one in services_of_stack if one.name == "collector"]
    try:
        assert service.start()
        assert service.healthy()
        assert not service.start(), "it was up"
        running = collectors.RunningCollector(settings, None, service.log)  # type: ignore[arg-type]

        def takes_events() -> bool:
            return running.post({"number": 1}).status_code == 202

        wait_until(takes_events, what=running.words())
    finally:
        service.stop()
    assert not service.healthy()
    assert services.write_ahead_logs(settings) == []
