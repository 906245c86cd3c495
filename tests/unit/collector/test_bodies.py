"""What a request's body may be, and what becomes of it."""

from __future__ import annotations

import base64
import gzip
import json
import random
import time
import zlib

import orjson
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from waybill.collector.body import BodyLimits, inflate, read_records
from waybill.collector.refusal import Refusal

LIMITS = BodyLimits(inflated_bytes=100_000, records=50)
JSON = {b"content-type": b"application/json"}
LINES = {b"content-type": b"application/x-ndjson; charset=utf-8"}
CLOUD = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order"}

scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=20)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=9,
)


def status(headers: dict[bytes, bytes], body: bytes) -> int:
    with pytest.raises(Refusal) as raised:
        read_records(headers, body, LIMITS)
    return raised.value.status


@given(st.lists(values, min_size=1, max_size=10))
def test_an_array_and_lines_of_the_same_values_give_the_same_records(items: list[object]):
    array = read_records(JSON, json.dumps(items).encode(), LIMITS)
    lines = read_records(LINES, b"\n".join(json.dumps(one).encode() for one in items), LIMITS)
    assert array == lines
    assert [record.data for record in array if record.problem is None] == [
        one for one in items if isinstance(one, dict)
    ]


def test_numbers_keep_every_digit():
    body = b'{"big": 123456789012345678901234567890, "exact": 0.12345678901234567890123}'
    [record] = read_records(JSON, body, LIMITS)
    assert record.data["big"] == 123456789012345678901234567890
    assert str(record.data["exact"]) == "0.12345678901234567890123"


def test_one_line_that_is_no_json_is_told_and_the_others_are_records():
    records = read_records(LINES, b'{"a":1}\r\n\n{"a":\n[]\n{"a":2}', LIMITS)
    assert [record.problem and record.problem[0] for record in records] == [
        None,
        "payload_not_json",
        "payload_not_object",
        None,
    ]


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        (JSON, b"{", 400),
        (JSON, b"", 400),
        (JSON, b"[]", 400),
        (JSON, b'{"a": NaN}', 400),
        (JSON, b"\xff{}", 400),
        (JSON, b"[" * 100_000, 400),
        (JSON, b"[" + b"{}," * 50 + b"{}]", 413),
        (LINES, b"{}\n" * 51, 413),
        (JSON, b" " * 100_001, 413),
        ({b"content-type": b"application/x-www-form-urlencoded"}, b"a=1", 415),
        ({}, b"{}", 415),
        ({b"content-type": b"application/json; charset=latin-1"}, b"{}", 415),
        (JSON | {b"content-encoding": b"br"}, b"{}", 415),
        (JSON | {b"content-encoding": b"gzip, gzip"}, b"{}", 415),
        (JSON | {b"content-encoding": b"gzip"}, b"{}", 400),
        (JSON | {b"content-encoding": b"gzip"}, gzip.compress(b"{}", mtime=0)[:-4], 400),
        (JSON | {b"content-encoding": b"zstd"}, b"{}", 400),
        (JSON | {b"content-encoding": b"zstd"}, zstandard.compress(b"{}")[:-1], 400),
        ({b"content-type": b"application/cloudevents-batch+json"}, b"{}", 400),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_status(headers, body, expected):
    assert status(headers, body) == expected


@given(st.binary(max_size=5_000), st.integers(1, 4))
def test_what_was_compressed_comes_out_as_it_was(body: bytes, parts: int):
    cut = [body[n * len(body) // parts : (n + 1) * len(body) // parts] for n in range(parts)]
    assert inflate(b"".join(map(gzip.compress, cut)), b"gzip", 5_000) == body
    assert inflate(b"".join(map(zstandard.compress, cut)), b"zstd", 5_000) == body


@pytest.mark.parametrize("encoding", [b"gzip", b"zstd"])
def test_a_bomb_is_refused_and_never_unpacked(encoding: bytes, monkeypatch: pytest.MonkeyPatch):
    huge = b"\0" * (64 * 1024**2)
    bomb = zlib.compress(huge, wbits=31) if encoding == b"gzip" else zstandard.compress(huge)
    assert len(bomb) < 100_000
    with pytest.raises(Refusal) as raised:
        inflate(bomb, encoding, 1_000_000)
    assert raised.value.status == 413
    window = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=27, enable_ldm=True)
    ).compressobj()
    wide = window.compress(b"a") + window.flush()
    if encoding == b"zstd":
        with pytest.raises(Refusal):
            inflate(wide, encoding, 1_000_000)


@pytest.mark.parametrize("encoding", [b"gzip", b"zstd"])
def test_a_body_of_a_million_empty_streams_is_refused_at_once(encoding: bytes):
    empty = gzip.compress(b"") if encoding == b"gzip" else zstandard.compress(b"")
    hostile = empty * (10 * 1024**2 // len(empty))
    began_s = time.process_time()
    with pytest.raises(Refusal) as raised:
        inflate(hostile, encoding, 1_000_000)
    assert raised.value.status == 413
    assert time.process_time() - began_s < 15  # it was minutes, in which nobody was served
    some = empty * 1_000 + (
        gzip.compress(b"{}") if encoding == b"gzip" else zstandard.compress(b"{}")
    )
    assert inflate(some, encoding, 1_000_000) == b"{}"


@pytest.mark.parametrize("size", [1, 65_535, 65_536, 65_537, 200_000])
def test_streams_may_end_anywhere_in_a_window(size: int):
    noise = random.Random(size).randbytes(size)
    for pack, name in ((gzip.compress, b"gzip"), (zstandard.compress, b"zstd")):
        body = pack(noise) + pack(b"") + pack(noise)
        assert inflate(body, name, 2 * size) == noise * 2
        for wrong, limit, expected in ((body, 2 * size - 1, 413), (body[:-1], 2 * size, 400)):
            with pytest.raises(Refusal) as raised:
                inflate(wrong, name, limit)
            assert raised.value.status == expected


def cloud(**more: object) -> dict[str, object]:
    return CLOUD | more


def test_cloud_events_come_in_three_forms_and_name_themselves():
    one = cloud(data={"n": 1})
    structured = {b"content-type": b"application/cloudevents+json; charset=UTF-8"}
    [single] = read_records(structured, orjson.dumps(one), LIMITS)
    batch = read_records(
        {b"content-type": b"application/cloudevents-batch+json"}, orjson.dumps([one, one]), LIMITS
    )
    headers = {f"ce-{name}".encode(): value.encode() for name, value in CLOUD.items()}
    [binary] = read_records(JSON | headers, b'{"n": 1}', LIMITS)
    encoded = cloud(data_base64=base64.b64encode(b'{"n": 1}').decode())
    [in_base64] = read_records(structured, orjson.dumps(encoded), LIMITS)
    assert [single, single] == batch
    assert single == binary == in_base64
    assert (single.data, single.name) == ({"n": 1}, "order")
    assert single.own_id == '["/shop","1"]'


@pytest.mark.parametrize(
    "wrong",
    [
        cloud(specversion="0.3", data={}),
        cloud(id="", data={}),
        cloud(type=3, data={}),
        cloud(source=None, data={}),
        cloud(data="text"),
        cloud(),
        cloud(data_base64="@"),
        cloud(data_base64=7),
        [],
    ],
)
def test_a_cloud_event_that_is_none_is_told_by_its_place(wrong):
    body = orjson.dumps([cloud(data={}), wrong])
    headers = {b"content-type": b"application/cloudevents-batch+json"}
    good, bad = read_records(headers, body, LIMITS)
    assert good.problem is None
    assert bad.problem is not None


@given(st.binary(max_size=400), st.sampled_from([b"", b"gzip", b"zstd"]))
def test_whatever_a_body_holds_it_gives_records_or_a_refusal(body: bytes, encoding: bytes):
    for kind in (b"application/json", b"application/jsonl", b"application/cloudevents+json"):
        headers = {b"content-type": kind, b"content-encoding": encoding}
        try:
            assert read_records(headers, body, LIMITS)
        except Refusal as refusal:
            assert refusal.status in {400, 413}
