"""Payloads that are put, or named anew, between the decision to delete and the deletion, stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from sqlalchemy import text
from tests.integration import parking_lot
from tests.integration.parking_lot import make_event
from tests.support import orders

from waybill import services
from waybill.access import Decision
from waybill.events import Event, decode, encode
from waybill.ledger import fold
from waybill.replay.messages import message_again
from waybill.retention import trim_payloads
from waybill.settings import Settings
from waybill.storage import ObjectStore, open_log, open_tracker
from waybill.storage.payloads import LARGEST_MESSAGE_BYTES

pytestmark = pytest.mark.serves
lot, opened_lots = parking_lot.lot, parking_lot.opened_lots
ALL_S = -3600.0
"""Of what is kept, so that all objects are old."""
ROWS = 3


class Interrupted(ObjectStore):
    """Lets something happen once it has listed, or before it deletes: but once."""

    def __init__(self, settings: Any, **events: Callable[[], None]) -> None:
        super().__init__(settings)
        self._events = events

    def list(self, prefix: str) -> Any:
        yield from super().list(prefix)
        self._events.pop("listed", lambda: None)()

    def delete(self, keys: Sequence[str]) -> None:
        self._events.pop("deleting", lambda: None)()
        super().delete(keys)


@pytest.fixture
def settings(stack_settings: Settings, tmp_path: Path) -> Settings:
    home = orders.write_orders(tmp_path / "pipelines", rows=ROWS, fixed=True)
    source = home / "orders.csv"
    note = "x" * LARGEST_MESSAGE_BYTES
    source.write_text(source.read_text().replace("note 1\n", f"{note}\n"))
    made = stack_settings.model_copy(update={"pipelines_dir": tmp_path / "pipelines"})
    services.migrate(made)
    services.run_deploy(made, home, who="test")
    return made


def named(settings: Settings) -> list[str]:
    """Return the payloads that the events of the topic name."""
    log = open_log(settings.kafka)
    topic = log.describe(orders.topic_of(settings.pipelines_dir))
    events = map(decode, log.read(topic.name, log.watermarks(topic)))
    return [event.data_ref for event in events if event.data_ref is not None]


def test_a_record_that_is_read_again_while_its_old_payload_is_deleted_keeps_its_new_one(
    settings: Settings,
) -> None:
    services.run_ingest(settings, "orders")
    [old] = named(settings)

    def read_again() -> None:
        services.ask_rereads(settings, ["orders"], Decision("ann", "lost"))
        assert services.run_ingest(settings, "orders").read == ROWS

    objects = Interrupted(settings.s3, deleting=read_again)
    with open_tracker(settings.tracker) as tracker:
        fold(tracker)
        with tracker.transaction() as connection:
            connection.execute(text("DELETE FROM audit_minutes"))  # the auditor is through
        assert trim_payloads(tracker, objects, kept_s=ALL_S).deleted == 1
    [first, new] = named(settings)
    assert first == old
    assert len(objects.get(new)) > LARGEST_MESSAGE_BYTES
    assert not objects.exists(old)


def large_event(n: int) -> bytes:
    """Return the message of an event with its payload in it, as it parks behind a stage."""
    event = Event(
        id=f"e{n}", pipeline_id="pl-1", team="a", name="flight", key=f"[{n}]", source_version=n,
        intake_version=n, intake_minute=29_000_000, time="2026-01-01T00:00:00Z",
        data={"n": "x" * LARGEST_MESSAGE_BYTES},
    )  # fmt: skip
    return encode(event)


def pipeline_of(lot: Any) -> None:
    lot.sql("INSERT INTO pipelines (id, name, team) VALUES ('pl-1', 'flights', 'a')")


def replayed(lot: Any, run_id: str) -> str:
    """Send what is parked back, and return the payload that its message names."""
    replay = lot.parking.begin_replay(lot.only().id, who="ann", run_id=run_id)
    [segment] = lot.parking.replay_segments(replay.id)
    [(_, parked)] = lot.parking.read_slice([segment]).events
    back = message_again(parked, replay_id=str(replay.id), objects=lot.objects)
    lot.parking.mark_replayed(replay.id, [segment.id])
    lot.parking.finish_replay(replay.id)
    return str(orjson.loads(back[2])["dataref"])


def test_a_replay_while_an_older_one_s_payload_is_deleted_keeps_its_own(lot: Any) -> None:
    pipeline_of(lot)
    lot.park([make_event(1, value=large_event(1))])
    old = replayed(lot, "r1")
    lot.park([make_event(1, value=large_event(1))], 2)
    found = list[str]()
    objects = Interrupted(lot.settings["s3"], deleting=lambda: found.append(replayed(lot, "r2")))
    assert trim_payloads(lot.tracker, objects, kept_s=ALL_S).deleted == 1
    assert not objects.exists(old)
    assert len(objects.get(found[0])) > LARGEST_MESSAGE_BYTES
    objects.delete(found)


def test_a_replay_that_takes_what_is_parked_after_the_listing_keeps_its_payloads(lot: Any) -> None:
    pipeline_of(lot)
    key = "payloads/pl-1/named"
    lot.objects.put(key, b"{}")
    lot.park([make_event(1, value=b'{"id":"x","dataref":"%s"}' % key.encode())])

    def replay() -> None:
        begun = lot.parking.begin_replay(lot.only().id, who="ann", run_id="r1")
        ids = [segment.id for segment in lot.parking.replay_segments(begun.id)]
        lot.parking.mark_replayed(begun.id, ids)

    objects = Interrupted(lot.settings["s3"], listed=replay)
    report = trim_payloads(lot.tracker, objects, kept_s=ALL_S)
    assert report.kept == {"pl-1": "a replay is running, or ended recently"}
    assert objects.exists(key)
    objects.delete([key])


def test_a_bad_row_that_quotes_the_word_keeps_no_payload(lot: Any) -> None:
    pipeline_of(lot)
    lot.objects.put("payloads/pl-1/orphan", b"{}")
    row = b'7,"dataref",x,y\n'
    lot.park([make_event(1, stage="ingestion", code="source_row_malformed", value=row)])
    report = trim_payloads(lot.tracker, lot.objects, kept_s=ALL_S)
    assert report.kept == {}
    assert not lot.objects.exists("payloads/pl-1/orphan")


def test_a_payload_that_is_named_with_an_escape_stays(lot: Any) -> None:
    pipeline_of(lot)
    key = "payloads/pl-1/named"
    lot.objects.put(key, b"{}")
    lot.park([make_event(1, value=b'{"id":"x","data\\u0072ef":"%s"}' % key.encode())])
    trim_payloads(lot.tracker, lot.objects, kept_s=ALL_S)
    assert lot.objects.exists(key)
