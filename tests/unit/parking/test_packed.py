import enum
import io
import re
import shutil
import subprocess
from dataclasses import replace

import orjson
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from waybill.errors import StopError
from waybill.parking import (
    CorruptSegmentError,
    Packer,
    ParkedEvent,
    SegmentDescriptor,
    fingerprint,
    new_key,
    read_directory,
    read_segment,
)
from waybill.parking.packed import LARGEST_SEGMENT_BYTES, directory_length
from waybill.parking.segment_stream import SegmentStream, write_segments

EVENT = ParkedEvent(
    "pl-1", "flight", "transformation", "null_value", "no dep_time", "line 3", "ab", "v1",
    "2013-01-01T05:00:00Z", "2026-01-01T00:00:00Z", "events.a.b", 3, 100, 0, b'{"a":1}',
)  # fmt: skip
NAMES = st.text(st.characters(exclude_categories=()), max_size=20)
EVENTS = st.lists(
    st.builds(
        lambda name, code, value: replace(EVENT, event_name=name, error_type=code, value=value),
        st.sampled_from(["a", "b", "\x00", "\ud800", "../..", ""]) | NAMES,
        st.sampled_from(["null_value", "type_error"]),
        st.binary(max_size=60) | st.just(b'{"x":"y"}'),
    ),
    max_size=40,
)


def pack(events):
    packer = Packer()
    for event in events:
        packer.add(event)
    return packer.finish()


def frame_of(packed, segment):
    return packed.body[segment.position : segment.position + segment.length]


def events_of(packed):
    return [
        event
        for segment in packed.segments
        for event in read_segment(frame_of(packed, segment), sha256=segment.sha256)
    ]


@settings(max_examples=60)
@given(EVENTS)
def test_all_events_come_back_in_order_within_their_partition(events):
    packed = pack(events)
    groups = {}
    for event in events:
        groups.setdefault((event.event_name, event.error_type), []).append(event)
    told = [
        replace(event, fingerprint=fingerprint(event.message, event.where))
        for group in groups.values()
        for event in group
    ]
    assert events_of(packed) == told


@settings(max_examples=60)
@given(EVENTS)
def test_the_directory_is_what_the_packer_said_and_the_frames_fill_the_object(events):
    packed = pack(events)
    told = tuple(replace(segment, ids="", origins=()) for segment in packed.segments)
    assert read_directory(packed.body) == told
    end = 0
    for segment in packed.segments:
        assert segment.position == end
        end += segment.length
    assert directory_length(packed.body[-8:]) == len(packed.body) - end - 8
    assert sum(segment.count for segment in packed.segments) == len(events)


def test_a_descriptor_survives_json():
    event = replace(EVENT, event_name="\ud800\x00" + "x" * 400, message="\ud800\x00" + "m" * 9000)
    [segment] = pack([event]).segments
    assert SegmentDescriptor.from_json(orjson.loads(orjson.dumps(segment.to_json()))) == segment
    assert "\x00" not in segment.event_name + segment.last_message
    assert len(segment.last_message) <= 510


@settings(deadline=None)  # Arrow loads pandas with the first one
@given(EVENTS)
def test_descriptors_survive_a_stream_in_the_order_of_partitions(events):
    segments = pack(events).segments
    stream = SegmentStream(write_segments(segments))
    wanted = sorted(segments, key=lambda one: one.partition)
    assert list(stream) == wanted
    assert list(stream) == wanted, "it can be read again"


def test_the_whole_object_and_each_segment_are_jsonl_zst_files():
    events = [replace(EVENT, event_name=f"e{n % 3}", kafka_offset=n) for n in range(30)]
    packed = pack(events)
    reader = zstandard.ZstdDecompressor().stream_reader(
        io.BytesIO(packed.body), read_across_frames=True
    )
    whole = reader.read().splitlines()
    assert [orjson.loads(line)["event"] for line in whole] == [{"a": 1}] * 30
    parts = [zstandard.ZstdDecompressor().decompress(frame_of(packed, s)) for s in packed.segments]
    assert b"".join(parts).splitlines() == whole


@pytest.mark.skipif(shutil.which("zstd") is None, reason="the zstd program is not installed")
def test_the_zstd_program_reads_the_object(tmp_path):
    file = tmp_path / "parked.jsonl.zst"
    file.write_bytes(pack([EVENT, replace(EVENT, event_name="other")]).body)
    subprocess.run(["zstd", "-t", "-q", file], check=True)
    out = subprocess.run(["zstd", "-dc", file], check=True, capture_output=True).stdout
    assert len(out.splitlines()) == 2


def test_a_segment_says_its_span_of_times_and_its_first_offset():
    times = ["2013-01-02T00:00:00Z", "2013-01-01T23:00:00-05:00", "2013-01-01T00:00:00+01:00"]
    events = [replace(EVENT, event_at=at, kafka_offset=n) for n, at in enumerate(times, 50)]
    [segment] = pack(events).segments
    assert segment.first_event_at == "2012-12-31T23:00:00Z"
    assert segment.last_event_at == "2013-01-02T04:00:00Z"
    assert (segment.kafka_partition, segment.first_offset, segment.count) == (3, 50, 3)
    lines = [event.to_line(fingerprint=segment.fingerprint) for event in events]
    assert segment.bytes == sum(len(line) + 1 for line in lines)


@pytest.mark.parametrize(
    "at", ["", "soon", None, 17, "99999-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "x" * 5000]
)
def test_a_time_that_is_none_counts_as_the_time_of_parking(at):
    [segment] = pack([replace(EVENT, event_at=at)]).segments
    assert segment.first_event_at == segment.last_event_at == "2026-01-01T00:00:00Z"


def test_a_large_partition_has_several_segments_in_order():
    value = b'"' + b"x" * (1024 * 1024) + b'"'
    events = [replace(EVENT, value=value, kafka_offset=n) for n in range(20)]
    other = replace(EVENT, event_name="other")
    packed = pack([events[0], other, *events[1:]])
    mine = [segment for segment in packed.segments if segment.event_name == "flight"]
    assert [s.event_name for s in packed.segments] == ["flight"] * len(mine) + ["other"]
    assert len(mine) == 3
    assert all(segment.bytes <= LARGEST_SEGMENT_BYTES for segment in mine)
    assert [s.first_offset for s in mine] == sorted(s.first_offset for s in mine)
    assert [e.kafka_offset for e in events_of(packed)] == [*range(20), 100]


def test_an_event_larger_than_a_segment_is_one_segment():
    packed = pack([EVENT, replace(EVENT, value=b"\x00" * 20_000_000), EVENT])
    assert [segment.count for segment in packed.segments] == [1, 1, 1]
    assert [len(event.value) for event in events_of(packed)] == [7, 20_000_000, 7]


def test_any_flipped_byte_of_a_frame_is_found_before_the_first_event():
    packed = pack([EVENT] * 3)
    [segment] = packed.segments
    frame = frame_of(packed, segment)
    for at in range(len(frame)):
        broken = bytearray(frame)
        broken[at] ^= 1
        with pytest.raises(CorruptSegmentError) as caught:
            read_segment(bytes(broken), sha256=segment.sha256, key="parked/k", position=9)
        assert (caught.value.key, caught.value.position) == ("parked/k", 9)
        assert "parked/k" in str(caught.value)


def test_a_cut_frame_is_found_without_a_hash():
    packed = pack([replace(EVENT, value=bytes(range(256)) * n) for n in range(1, 30)])
    [segment] = packed.segments
    frame = frame_of(packed, segment)
    for length in (*range(0, len(frame), 7), *range(len(frame) - 8, len(frame))):
        with pytest.raises(CorruptSegmentError):
            list(read_segment(frame[:length]))


def test_a_damaged_segment_stops_the_process_and_parks_nothing():
    assert issubclass(CorruptSegmentError, StopError)


@pytest.mark.parametrize("body", [b"", b"WBP1", b"x" * 100, b"\xff\xff\xff\xffWBP1"])
def test_what_has_no_directory_is_refused(body):
    with pytest.raises(CorruptSegmentError):
        read_directory(body)


def test_a_damaged_directory_is_refused():
    body = bytearray(pack([EVENT]).body)
    body[-30] ^= 1
    with pytest.raises(CorruptSegmentError):
        read_directory(bytes(body))


def test_keys_are_fresh_sorted_by_time_and_hold_no_name():
    keys = [new_key() for _ in range(1000)]
    assert len(set(keys)) == 1000
    uuid7 = r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
    shape = rf"parked/\d{{4}}/\d\d/\d\d/{uuid7}\.jsonl\.zst"
    assert all(re.fullmatch(shape, key) for key in keys)
    assert [key[:31] for key in keys] == sorted(key[:31] for key in keys)


def test_names_may_be_texts_of_the_users_own_classes():
    class Kind(enum.StrEnum):
        ORDER = "order"

    packed = pack([replace(EVENT, event_name=Kind.ORDER), replace(EVENT, event_name="order")])
    [segment] = packed.segments
    assert (segment.event_name, segment.count) == ("order", 2)
    assert type(segment.event_name) is str
    assert list(SegmentStream(write_segments(packed.segments))) == [segment]
