"""Payloads that the object store does not give park their events; a store that is away is waited for."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import orjson
import pytest
from botocore.retries.standard import ExponentialBackoff
from tests.support import evolving
from tests.support.s3_proxy import S3Proxy, proxied

from waybill import services
from waybill.errors import InputError, ParkError, RetryError
from waybill.events import Event, encode, payload_key
from waybill.parking import read_directory, read_segment
from waybill.processing.spark import tasks
from waybill.settings import Settings
from waybill.storage import open_objects
from waybill.storage.payloads import PayloadReader

pytestmark = pytest.mark.serves
REFUSALS = {
    "forbidden": (403, "AccessDenied"),
    "archived": (403, "InvalidObjectState"),
    "broken": (500, "InternalError"),
    "busy": (503, "SlowDown"),
}


@pytest.fixture
def proxy(s3):
    with proxied(s3.settings.endpoint_url) as made:
        yield made


@pytest.fixture
def settings(stack_settings: Settings, proxy: S3Proxy, tmp_path: Path, monkeypatch) -> Settings:
    quick = partial(PayloadReader, first_wait_s=0.01)
    monkeypatch.setattr(tasks, "PayloadReader", quick)
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda *_: 0.01)
    made = stack_settings.model_copy(
        update={
            "pipelines_dir": tmp_path / "pipelines",
            "s3": stack_settings.s3.model_copy(update={"endpoint_url": proxy.endpoint}),
        }
    )
    home = evolving.write_evolving(made.pipelines_dir)
    services.migrate(made)
    services.run_deploy(made, home, who="test")
    return made


def claim(settings: Settings, number: int, name: str) -> bytes:
    """Store a payload, unless it is to be gone; return the message that names it."""
    event = Event(
        id=f"e{number}", pipeline_id="test-evolving", team="team", name="order",
        key=f"[{number}]", source_version=number, intake_version=number,
        intake_minute=29_000_000, time="2026-01-01T00:00:00Z", data=None,
        data_ref=payload_key("test-evolving", name),
    )  # fmt: skip
    if name != "gone":
        content = orjson.dumps({"number": number, "amount": number})
        open_objects(settings.s3).put(event.data_ref, content)
    return encode(event)


def parked(settings: Settings, told: dict) -> dict[bytes, str]:
    """Return {message: error type} of what a task parked."""
    body = open_objects(settings.s3).get(told["parked"]["key"])
    return {
        event.value: event.error_type
        for s in read_directory(body)
        for event in read_segment(body[s.position : s.position + s.length], sha256=s.sha256)
    }


def numbers(settings: Settings, told: dict) -> list[int]:
    return [row["number"] for row in evolving.staged_rows(evolving.staged(settings, told))]


def test_payloads_that_are_not_given_park_and_their_replay_brings_them(settings, proxy):
    names = ["good", *REFUSALS, "gone"]
    values = [claim(settings, number, name) for number, name in enumerate(names)]
    values.append(evolving.order(99, amount=1))
    proxy.errors = dict(REFUSALS)
    told = evolving.run_task(settings, values)
    assert numbers(settings, told) == [0, 99]
    unreadable = dict.fromkeys(values[1:5], "data_ref_unreadable")
    assert parked(settings, told) == {**unreadable, values[5]: "data_ref_missing"}
    proxy.errors = {}
    told = evolving.run_task(settings, list(unreadable))
    assert numbers(settings, told) == [1, 2, 3, 4]
    assert told["parked"] is None


def test_a_payload_that_is_given_after_a_while_is_waited_for(settings, proxy):
    values = [claim(settings, 1, "busy")]
    proxy.errors = {"payloads/test-evolving/busy": (500, "InternalError")}
    answers = []

    class Mended(PayloadReader):
        def __call__(self, key):
            threading.Timer(0.3, proxy.errors.clear).start()
            answers.append(key)
            return super().__call__(key)

    reader = Mended(open_objects(settings.s3), attempts=100, first_wait_s=0.2)
    assert orjson.loads(reader("payloads/test-evolving/busy")) == {"number": 1, "amount": 1}
    assert numbers(settings, evolving.run_task(settings, values)) == [1]


def test_a_store_that_is_away_parks_nothing(settings, s3):
    values = [claim(settings, number, f"p{number}") for number in range(3)]
    s3.stop()
    started = threading.Timer(2.0, s3.start)
    started.start()
    told = evolving.run_task(settings, values)
    started.join()
    assert numbers(settings, told) == [0, 1, 2]
    assert told["parked"] is None


@pytest.mark.parametrize(
    ("answer", "error"),
    [((500, "InternalError"), RetryError), ((403, "AccessDenied"), InputError)],
)
def test_a_store_that_gives_nothing_at_all_parks_nothing(settings, proxy, answer, error):
    """Puts go through, as with a volume server that is gone: the probe is not given either."""
    claim(settings, 1, "p1")
    proxy.errors = {"": answer}
    reader = PayloadReader(open_objects(settings.s3), first_wait_s=0.01, away_limit_s=0.1)
    with pytest.raises(error):
        reader("payloads/test-evolving/p1")


def test_many_unreadable_payloads_share_what_is_waited(settings, proxy):
    for number in range(6):
        claim(settings, number, f"p{number}")
    proxy.errors = {f"p{number}": (403, "AccessDenied") for number in range(6)}
    reader = PayloadReader(open_objects(settings.s3), first_wait_s=0.1, budget_s=0.85)
    for number in range(6):
        with pytest.raises(ParkError, match="the store gives other objects") as caught:
            reader(f"payloads/test-evolving/p{number}")
        assert caught.value.code == "data_ref_unreadable"
    asked = [path[-2:] for path in proxy.asked if "/payloads/" in path]
    assert [asked.count(f"p{number}") for number in range(6)] == [4, 2, 1, 1, 1, 1]
