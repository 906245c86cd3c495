"""The collector with real Kafka, tracker and object store."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support import collectors
from tests.support.children import wait_until
from tests.support.recorded import counting

from waybill import services
from waybill.settings import Settings

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


def test_the_minutes_of_a_running_collector_are_whole_up_to_now(
    stack_settings: Settings, tmp_path: Path
) -> None:
    settings = collectors.deployed(stack_settings, tmp_path)
    with collectors.collector(settings, tmp_path) as running:
        assert running.post({"number": 1, "amount": 1}).status_code == 202

        def counted() -> bool:
            return services.balance(settings).ingested == 1

        wait_until(counted, limit_s=60, what=running.words())
        [log] = services.write_ahead_logs(settings)
        assert (log.state, log.unsettled, log.rereadable) == ("open", 0, False)
        assert services.audit_round(settings).number > 0
        assert services.breaches(settings, states=None) == []
