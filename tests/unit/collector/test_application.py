"""A worker of the collector by itself: what it says to whom it does not know, and how much it holds."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.collectors import write_hooks

from waybill.collector import application
from waybill.collector.application import Collector, Room
from waybill.collector.authentication import Authenticator
from waybill.collector.catalog import Catalog, Entry
from waybill.collector.intake import Stores
from waybill.collector.rate_limit import RateLimit
from waybill.collector.records import RecordReader
from waybill.collector.refusal import Refusal
from waybill.ingestion.connectors import HttpSource
from waybill.pipelines import load_pipeline
from waybill.settings import CollectorSettings, WalSettings

SECRET = b"it is a secret"


class Known:
    """A catalogue of one pipeline, by the name ``hooks``."""

    looked, looks = True, 0

    def __init__(self, folder: Path, auth: str) -> None:
        pipeline = load_pipeline(write_hooks(folder, auth=auth))
        source = HttpSource.of(pipeline.source)
        made = Authenticator(source, [SECRET])
        self._entry = Entry(pipeline, source, made, RecordReader(pipeline, source), RateLimit(0))

    def refresh(self) -> None:
        self.looks += 1
        if self.looks == 1:
            raise OSError("of a library")

    def entry(self, name: str) -> Entry | None:
        return self._entry if name == "hooks" else None


def collector(folder: Path, auth: str, **settings: Any) -> Collector:
    catalog = cast(Catalog, Known(folder, auth))
    return Collector(cast(Stores, None), CollectorSettings(**settings), catalog)


async def post(
    app: Collector, path: str, headers: dict[bytes, bytes], parts: list[bytes]
) -> tuple[int, bytes]:
    """Send one request; return status and body."""
    waiting = [
        {"type": "http.request", "body": part, "more_body": number < len(parts)}
        for number, part in enumerate(parts, 1)
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.sleep(0)
        return waiting.pop(0) if waiting else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "headers": [(b"content-type", b"application/json"), *headers.items()],
        "client": ("127.0.0.1", 1),
    }
    await app(scope, receive, send)
    return sent[0]["status"], sent[1]["body"]


@pytest.mark.parametrize("auth", ["bearer", "github", "stripe"])
def test_who_is_refused_learns_from_no_clock_whether_there_is_such_a_pipeline(
    tmp_path: Path, auth: str
) -> None:
    app = collector(tmp_path, auth)

    async def refused_after(path: str) -> float:
        began_s = time.monotonic()
        status, _ = await post(app, path, {}, [b"{}"])
        assert status == 401
        return time.monotonic() - began_s

    async def both() -> list[float]:
        return [await refused_after(path) for path in ("/v1/hooks", "/v1/nobody")]

    assert min(asyncio.run(both())) > 0.09  # what the check takes, milliseconds, is within it


def test_those_without_a_secret_cannot_have_a_worker_hold_more_than_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # so long each of them holds its part: all have come by then, on a busy machine too
    monkeypatch.setattr(application, "_REFUSED_AFTER_S", 2.0)
    limits = {"body_bytes": 10_000, "inflated_bytes": 10_000, "held_bytes": 100_000}
    app = collector(tmp_path, "github", **limits)
    body = b'{"number": 1}'.ljust(10_000)

    async def all_at_once() -> list[int]:
        parts = [body[:5_000], body[5_000:]]
        answers = await asyncio.gather(*[post(app, "/v1/hooks", {}, parts) for _ in range(50)])
        return [status for status, _ in answers]

    found = asyncio.run(all_at_once())
    assert set(found) == {401, 503}
    assert found.count(401) <= 10
    assert asyncio.run(all_at_once()).count(401) >= 1  # all of the room is given back
    digest = hmac.new(b"wrong secret", body, hashlib.sha256).hexdigest().encode()
    signed = {b"x-hub-signature-256": b"sha256=" + digest}
    assert asyncio.run(post(app, "/v1/hooks", signed, [body]))[0] == 401


def test_room_is_given_back_whatever_ends_a_request() -> None:
    room = Room(10)
    with pytest.raises(Refusal), room.share() as first:
        first(6)
        with room.share() as second:
            second(4)
            second(1)
    with room.share() as third:
        third(10)


def test_a_failure_that_nobody_thought_of_does_not_end_the_looks_at_what_is_deployed(
    tmp_path: Path,
) -> None:
    known = Known(tmp_path, "bearer")
    stores = cast(Stores, SimpleNamespace(wal=WalSettings(dir=tmp_path / "wal")))
    settings = CollectorSettings(recheck_s=0.01)
    app = Collector(stores, settings, cast(Catalog, known))

    async def run() -> None:
        await app.start()
        async with asyncio.timeout(300):
            while known.looks < 3:
                await asyncio.sleep(0.05)
        await app.stop()

    asyncio.run(run())
