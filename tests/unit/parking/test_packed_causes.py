"""Frames of one cause each, who the events are, all errors of an event, lines that are copies."""

import base64
import json
from dataclasses import replace

import orjson
import pytest
from tests.unit.parking.test_packed import EVENT, events_of, frame_of, pack

from waybill.parking import (
    Packer,
    ParkedEvent,
    SegmentDescriptor,
    fingerprint,
    identify,
    read_directory,
    read_segment,
)
from waybill.parking.event import MOST_ERRORS
from waybill.parking.packed import MOST_FINGERPRINTS

ERRORS = [
    {"error_type": "null_value", "message": 'a },"event":1', "where": "a"},
    {"error_type": "type_mismatch", "message": "b", "where": "b"},
]


def identity(event_id, source=1, intake=1, **given):
    versions = {"source_version": source, "intake_version": intake}
    return identify(event_id, **versions, **({"minute": 3} | given))


def caused(number, offset=0, **changes):
    return replace(EVENT, where=f"column{number}", kafka_offset=offset, **changes)


def test_a_frame_is_of_one_cause_and_keeps_its_order():
    packed = pack([caused(n % 3, offset=n) for n in range(30)])
    assert len({s.fingerprint for s in packed.segments}) == len(packed.segments) == 3
    for segment in packed.segments:
        events = list(read_segment(frame_of(packed, segment)))
        assert {event.fingerprint for event in events} == {segment.fingerprint}
        assert segment.fingerprint == fingerprint(EVENT.message, events[0].where)
        assert [e.kafka_offset for e in events] == sorted(e.kafka_offset for e in events)
        assert segment.count == 10


def test_causes_beyond_16_share_one_frame_that_names_none():
    events = [caused(n % 40, offset=n) for n in range(400)]
    packed = pack([*events, *[caused(n, event_name="other") for n in range(2)]])
    mine = [s for s in packed.segments if s.event_name == "flight"]
    assert [s.fingerprint == "" for s in mine] == [False] * MOST_FINGERPRINTS + [True]
    mixed = list(read_segment(frame_of(packed, mine[-1])))
    assert len(mixed) == 240
    assert len({event.fingerprint for event in mixed}) == 24
    assert [e.kafka_offset for e in mixed] == sorted(e.kafka_offset for e in mixed)
    assert len(packed.segments) == MOST_FINGERPRINTS + 3
    assert len(events_of(packed)) == 402


def test_a_segment_says_who_its_events_are_in_line_order():
    packer = Packer()
    identities = [
        identity(f"id{n}", n, 2, minute=10 + n // 2, replay_id=None if n < 3 else "r1")
        for n in range(5)
    ]
    for one in identities:
        packer.add(EVENT, one)
    packer.add(EVENT, None)
    [segment] = packer.finish().segments
    ids = base64.b64decode(segment.ids)
    assert [ids[n : n + 8] for n in range(0, 48, 8)] == [i.digest for i in identities] + [bytes(8)]
    assert segment.origins == ((10, "", 2), (11, "", 1), (11, "r1", 1), (12, "r1", 1), (0, "", 1))
    again = SegmentDescriptor.from_json(orjson.loads(orjson.dumps(segment.to_json())))
    assert again == segment


def test_events_without_an_id_have_no_identities():
    [segment] = pack([EVENT, EVENT]).segments
    assert (segment.ids, segment.origins) == ("", ())
    assert identity("") is None


def test_an_identity_is_of_id_and_version():
    one = identity("a", 1, 2)
    assert one.digest == identity("a", 1, 2, minute=9, replay_id="r").digest
    others = [("b", 1, 2), ("a", 2, 2), ("a", 1, 3), ("a", -1, 2), ("a\0", 1, 2)]
    assert one.digest not in {identity(*other).digest for other in others}


def test_lines_that_are_copies_are_left_out():
    packed = pack([replace(EVENT, kafka_offset=n) for n in range(6)])
    [segment] = packed.segments
    events = read_segment(frame_of(packed, segment), sha256=segment.sha256, copies=(0, 3, 5))
    assert [event.kafka_offset for event in events] == [1, 2, 4]


def test_all_errors_of_an_event_come_back():
    event = replace(EVENT, errors=ERRORS, fingerprint="00" * 8)
    assert ParkedEvent.from_line(event.to_line()) == event
    hostile = replace(event, errors=[{**ERRORS[0], "message": '\ud800\\ud800"},"event":'}])
    line = hostile.to_line()
    assert ParkedEvent.from_line(line) == hostile
    assert json.loads(line)["event"] == {"a": 1}


def test_more_errors_than_are_kept_are_counted():
    errors = [{**ERRORS[0], "message": str(n) * 9000} for n in range(MOST_ERRORS + 10)]
    back = ParkedEvent.from_line(replace(EVENT, errors=errors).to_line())
    assert len(back.errors) == MOST_ERRORS
    assert back.errors[-1]["message"] == "and 11 errors more"
    assert len(back.errors[0]["message"]) == 500


def test_a_line_of_an_older_release_is_read():
    line = orjson.loads(EVENT.to_line())
    assert not {"fingerprint", "errors"} & set(line["error"])
    assert ParkedEvent.from_line(EVENT.to_line()).errors == []


def test_a_directory_of_an_older_release_is_read(monkeypatch):
    new = ("fingerprint", "ids", "origins", "copies")
    real = SegmentDescriptor.to_json
    packed = pack([EVENT])
    monkeypatch.setattr(
        SegmentDescriptor,
        "to_json",
        lambda self: {k: v for k, v in real(self).items() if k not in new},
    )
    [segment] = read_directory(pack([EVENT]).body)
    assert segment == replace(packed.segments[0], fingerprint="")


@pytest.mark.parametrize("number", [1, 17])
def test_the_directory_names_causes_but_not_who_the_events_are(number):
    packer = Packer()
    for n in range(number):
        packer.add(caused(n), identity(f"i{n}"))
    packed = packer.finish()
    found = read_directory(packed.body)
    assert [s.fingerprint for s in found] == [s.fingerprint for s in packed.segments]
    assert {s.ids for s in found} == {""}
    assert all(s.ids for s in packed.segments)
