"""The poison corpus against the real tracker and store, and by the REST API."""

from __future__ import annotations

import pytest
from tests.integration.parking_lot import make_event
from tests.support import poison, web_app

from waybill.parking import CorruptSegmentError
from waybill.parking.holds import begin_probe, end_probe, read_holds, record_storm
from waybill.storage import ObjectMissingError

pytestmark = pytest.mark.serves
airflow_app, web = web_app.airflow_app, web_app.web
HOSTILE = {
    "message": "\x00\ud800" * 50,
    "place": float("nan"),
    "key\x00\udfff": [{"deep": {"\ud800": float("inf")}}],
    "number": 10**5000,
    "bytes": b"\xff\x00",
}


@pytest.fixture
def lot(web):
    return web.lot


def test_a_hold_and_its_probe_are_told_whatever_user_code_said(lot):
    with lot.tracker.transaction() as connection:
        assert record_storm(connection, "pl-1", {"version": "1", **HOSTILE, "pipeline_id": "x"})
    [hold] = read_holds(lot.tracker)
    assert hold.cause["message"] == "\\0\\ud800" * 50
    assert begin_probe(lot.tracker, hold, "2")
    assert end_probe(lot.tracker, hold, {"version": "2", **HOSTILE}, passed=True)
    told = lot.sql("SELECT kind, pipeline_id, detail FROM notices ORDER BY id")
    assert [(kind, pipeline) for kind, pipeline, _ in told] == [
        ("hold", "pl-1"),
        ("release", "pl-1"),
    ]
    assert told[0][2]["message"] == "\\0\\ud800" * 50
    assert told[0][2]["place"] == "nan"
    audited = lot.sql("SELECT action FROM audit_log ORDER BY id")
    assert [row[0] for row in audited] == ["hold", "release"]


def test_a_quarantine_is_told_whatever_the_damage_says(lot):
    lot.park([make_event(n) for n in range(3)], 1)
    replay = lot.parking.begin_replay(lot.only().id, who="ann", run_id="r1")
    [segment] = lot.parking.replay_segments(replay.id)
    error = CorruptSegmentError(segment.object_key, 0, HOSTILE["message"])
    assert lot.parking.quarantine(replay.id, [(segment, error)]) == 3
    [(detail, pipeline, partition)] = lot.sql(
        "SELECT detail, pipeline_id, partition_id FROM notices WHERE kind = 'damage'"
    )
    assert (detail["reason"], detail["events"]) == ("\\0\\ud800" * 50, 3)
    assert (pipeline, partition) == ("pl-1", lot.only().id)
    [(said,)] = lot.sql("SELECT detail FROM audit_log WHERE action = 'quarantine'")
    assert said["reason"] == "\\0\\ud800" * 50


def test_a_key_that_no_object_can_have_is_an_object_that_is_not_there(lot):
    for name in poison.NAMES:
        with pytest.raises(ObjectMissingError):
            lot.objects.get(name)


def test_names_are_parked_apart_and_objects_have_keys_of_our_own(lot):
    codes = list(poison.NAMES)
    lot.park([make_event(n, name=name, message=name) for n, name in enumerate(codes)], 1)
    assert lot.sql("SELECT count(*), sum(parked)::int FROM parked_partitions") == [
        (len(codes), len(codes))
    ]
    [key] = {row[0] for row in lot.sql("SELECT DISTINCT object_key FROM segments")}
    assert key.startswith("parked/")
    assert key.isascii()


def test_of_a_partition_with_a_damaged_frame_the_rest_is_read_byte_for_byte(lot):
    messages = poison.messages()
    keys = [
        lot.park(
            [make_event(n, value=m) for n, m in enumerate(messages[start:][:50], start)], start
        )
        for start in range(0, len(messages), 50)
    ]
    body = bytearray(lot.objects.get(keys[1]))
    body[len(body) // 4] ^= 1
    lot.objects.put(keys[1], bytes(body))
    replay = lot.parking.begin_replay(lot.only().id, who="ann", run_id="r1")
    values, quarantined = [], 0
    for group in lot.parking.replay_slices(replay.id):
        reading = lot.parking.read_slice(group)
        if reading.damaged:
            quarantined += lot.parking.quarantine(replay.id, reading.damaged)
        values += [event.value for _, event in reading.events]
        lot.parking.mark_replayed(replay.id, [segment.id for segment in reading.segments])
    assert values == messages[:50] + messages[100:]
    assert quarantined == 50
    ended = lot.parking.finish_replay(replay.id)
    assert (ended.sent, ended.quarantined) == (len(messages) - 50, 50)


@pytest.mark.parametrize("user", ["pia", "uma"])
def test_the_page_of_events_is_json_whatever_they_hold(web, user):
    web.deploy("pl-1", "flights", "aviation", personal=["n", "text"])
    messages = poison.messages()
    names = poison.NAMES
    said = [names[n % len(names)] for n in range(len(messages))]
    web.lot.park(
        [
            make_event(n, value=message, message=said[n], where=said[n], topic=said[n])
            for n, message in enumerate(messages)
        ]
    )
    path, after, shown = f"/api/partitions/{web.lot.only().id}/events", None, 0
    while shown == 0 or after is not None:
        query = {"limit": 200} | ({"after": after} if after else {})
        page = web.get(user, path, params=query)
        shown, after = shown + len(page["events"]), page["next"]
    assert shown == len(messages)
