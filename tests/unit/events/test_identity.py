"""Who an event is: stable for ever, different for what differs."""

from __future__ import annotations

import random

import pytest

from waybill.errors import InputError, ParkError
from waybill.events import (
    EventIds,
    IntakeClock,
    dumps,
    event_id,
    key_id,
    ordering_key,
    source_version,
    topic_name,
)

SEED = 4


@pytest.mark.parametrize(
    ("arguments", "version", "content", "golden"),
    [
        (("nyc-flights", "flight", '["UA",1545]'), None, b"{}", "651a3acc76ada82178644909c79442e5"),
        (("nyc-flights", "flight", '["UA",1545]'), 7, b"{}", "109506f31d8e61e51b2e273ad2371bc2"),
        (("", "", "[]"), None, b"", "1f958c56547132fde102aab291584cd2"),
        (("p", "é\ud800", '["\\u0000"]'), -1, b"", "151a812ee416acf4a00bf2dac1650c2c"),
    ],
)
def test_ids_are_what_they_were_in_the_first_release(
    arguments: tuple[str, str, str], version: int | None, content: bytes, golden: str
) -> None:
    """A changed id would double every event that is read again after an upgrade."""
    assert event_id(*arguments, version=version, content=content) == golden
    pipeline_id, name, key = arguments
    ids, text = EventIds(pipeline_id, name), dumps(key)
    assert ids.event(text, version, content, delete=False) == golden
    deleted = event_id(*arguments, version=version, content=content, delete=True)
    assert ids.event(text, version, content, delete=True) == deleted
    assert ids.keys([key, key + "é"]) == [
        key_id(pipeline_id, name, one) for one in (key, key + "é")
    ]


def test_ids_differ_where_anything_differs() -> None:
    whats = [("p", "n", "[1]", 1, b"c"), ("q", "n", "[1]", 1, b"c"), ("p", "m", "[1]", 1, b"c")]
    whats += [("p", "n", "[2]", 1, b"c"), ("p", "n", "[1]", 2, b"c"), ("p", "n", "[1]", None, b"c")]
    whats += [("p", "n", "[1]", None, b"d"), ("pn", "", "[1]", 1, b"c"), ("p", "n[1]", "", 1, b"c")]
    ids = {event_id(p, n, k, version=v, content=c) for p, n, k, v, c in whats}
    assert len(ids) == len(whats)


def test_with_a_version_the_content_does_not_matter() -> None:
    assert event_id("p", "n", "k", version=1, content=b"a") == event_id(
        "p", "n", "k", version=1, content=b"b"
    )


def test_a_key_is_the_same_text_whatever_order_the_payload_has() -> None:
    assert ordering_key({"a": 1, "b": "x"}, ["b", "a"]) == '["x",1]'
    assert ordering_key({"b": "x", "a": 1}, ["b", "a"]) == '["x",1]'
    assert ordering_key({"a": 1}, ["a"]) != ordering_key({"a": "1"}, ["a"])


@pytest.mark.parametrize("value", [0, -7, 2**63 - 1, 2**63, -(2**63) - 1, True, 1.5, "7", "é", [7]])
def test_the_key_of_one_field_is_an_array_of_its_value(value: object) -> None:
    assert ordering_key({"a": value}, ["a"]) == dumps([value]).decode()


@pytest.mark.parametrize("data", [{}, {"a": None}, {"A": 1}])
def test_a_missing_key_field_is_named(data: dict[str, object]) -> None:
    with pytest.raises(ParkError, match="'a'") as caught:
        ordering_key(data, ["a"])
    assert (caught.value.code, caught.value.where) == ("key_missing", "a")


@pytest.mark.parametrize("value", [float("nan"), object(), {1: 2}])
def test_a_key_without_a_json_form_parks_the_event(value: object) -> None:
    with pytest.raises(ParkError) as caught:
        ordering_key({"a": value}, ["a"])
    assert caught.value.code == "payload_not_json"


def test_zero_empty_and_false_are_keys() -> None:
    assert ordering_key({"a": 0, "b": "", "c": False}, ["a", "b", "c"]) == '[0,"",false]'


@pytest.mark.parametrize(
    ("value", "version"),
    [
        (5, 5),
        (-(2**63), -(2**63)),
        ("1970-01-01T00:00:00.000001Z", 1),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01", 0),
        ("0001-01-01T00:00:00+23:59", -62135683140000000),
    ],
)
def test_versions_are_numbers_or_times_in_microseconds(value: object, version: int) -> None:
    assert source_version({"v": value}, "v") == version


@pytest.mark.parametrize("value", [None, True, 1.5, "soon", "12", 2**63, -(2**63) - 1, [1], {}])
def test_what_is_no_version_parks_the_event(value: object) -> None:
    with pytest.raises(ParkError) as caught:
        source_version({"v": value}, "v")
    assert (caught.value.code, caught.value.where) == ("source_version_invalid", "v")


def test_a_missing_version_parks_and_none_declared_is_none() -> None:
    with pytest.raises(ParkError):
        source_version({}, "v")
    assert source_version({}, None) is None


def test_the_clock_never_gives_the_same_version_twice_nor_goes_back() -> None:
    now = 10**15
    clock = IntakeClock(last=2**60, now_us=lambda: now)  # another run's clock was far ahead
    stamps = [clock.stamp() for _ in range(1000)]
    assert [stamp.version for stamp in stamps] == list(range(2**60 + 1, 2**60 + 1001))
    assert {(s.minute, s.taken_us) for s in stamps} == {(now // 60_000_000, now)}, "of this machine"


def test_a_clock_that_goes_back_within_a_run_stops_the_minute_and_not_the_version() -> None:
    times = iter([600_000_000, 660_000_000, 60_000_000, 90_000_000, 720_000_000])
    clock = IntakeClock(now_us=lambda: next(times))
    assert [tuple(clock.stamp()) for _ in range(5)] == [
        (600_000_000, 10, 600_000_000),
        (660_000_000, 11, 660_000_000),
        (660_000_001, 11, 660_000_000),
        (660_000_002, 11, 660_000_000),
        (720_000_000, 12, 720_000_000),
    ]


def test_no_version_is_given_that_was_not_reserved() -> None:
    asked: list[int] = []

    def reserve(version: int) -> int:
        asked.append(version)
        if len(asked) > 2:
            raise InputError("fenced")
        return version + 10

    clock = IntakeClock(last=100, reserve=reserve, now_us=lambda: 0)
    assert [clock.stamp().version for _ in range(22)] == list(range(101, 123))
    with pytest.raises(InputError, match="fenced"):
        clock.stamp()
    assert asked == [101, 112, 123]
    assert clock.last == 122


def test_a_topic_that_kafka_would_refuse_is_refused_with_its_length() -> None:
    assert topic_name("t", "warehouse") == "events.t.warehouse"
    with pytest.raises(InputError, match="249"):
        topic_name("t" * 200, "d" * 50)


def test_ids_do_not_collide_in_a_hundred_thousand_keys() -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    keys = {f"[{chance.getrandbits(60)}]" for _ in range(100_000)}
    assert len({event_id("p", "n", k, version=None, content=b"") for k in keys}) == len(keys)
