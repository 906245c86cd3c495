"""Rows as events: the ids and the bytes that the parts of an event have by themselves."""

from __future__ import annotations

import random
from decimal import Decimal
from itertools import count, pairwise
from types import SimpleNamespace

import pytest

from waybill.errors import ParkError, RetryError
from waybill.events import (
    Event,
    IntakeClock,
    decode,
    encode,
    encode_data,
    event_id,
    ordering_key,
    rfc3339_us,
    source_version,
)
from waybill.ingestion import IntakeRows
from waybill.ingestion.connectors import Record
from waybill.pipelines import Column, EventDeclaration, TableSpec

SEED = 42
BEGAN_US = 1_790_000_000_000_000
NAMES = ["order", '100% "new"', "Straße", "a\\u0000b", "%b%d"]


def declared(name, key=("id",), version=None):
    table = TableSpec(
        schema_name="s", name="t", columns=(Column(name="id", type="int64"),), key=("id",)
    )
    return EventDeclaration(name=name, key=key, version=version, table=table)


def pipeline(**events):
    events = events or {"order": declared("order")}
    own = next(iter(events))
    return SimpleNamespace(
        id="shop-%d-0001", team="te%am", source=SimpleNamespace(event=own), events=events
    )


def clock():
    return IntakeClock(now_us=count(BEGAN_US, 333_333).__next__)


def by_parts(pipeline, row, clock):
    """Return (id, message) of a row's event, made of what an event is made of."""
    record = row if isinstance(row, Record) else Record(row)
    one = pipeline.events[record.event or pipeline.source.event]
    version = record.version
    if version is None:
        version = source_version(record.data, one.version)
    key = ordering_key(record.data, one.key)
    content = encode_data(record.data)
    identity = event_id(
        pipeline.id, one.name, key, version=version, content=content, delete=record.op == "delete"
    )
    intake_version, minute, taken_us = clock.stamp()
    event = Event(
        id=identity,
        pipeline_id=pipeline.id,
        team=pipeline.team,
        name=one.name,
        key=key,
        source_version=version or 0,
        intake_version=intake_version,
        intake_minute=minute,
        time=rfc3339_us(taken_us),
        data=record.data,
        op=record.op,
    )
    return identity, encode(event)


VALUES = [None, True, 7, -(2**63), 2**64, 2**70, 1.5, -0.0, 1e300, "x", "", "é%b\ud800", '\0"\\']
VALUES += [Decimal("1.50"), [1, None], {"a": {"b": [None]}}]


def a_row(chance):
    row = {"id": chance.choice([0, 7, -3, 2**63, 2**70, "k%", 'ü"', "\ud800", 1.5, True])}
    row |= {"part": chance.choice([1, "x"]), "at": chance.choice([5, "2026-03-01T00:00:01.5Z"])}
    return row | {f"field {n}": chance.choice(VALUES) for n in range(chance.randrange(5))}


def test_a_row_is_the_event_and_the_message_that_its_parts_make():
    chance = random.Random(SEED)
    keys = [("id",), ("id", "part"), ("part",), ("id",), ("part", "id")]
    versions = [None, "at", None, "at", "at"]
    shop = pipeline(**{
        name: declared(name, key, version)
        for name, key, version in zip(NAMES, keys, versions, strict=True)
    })  # fmt: skip
    rows, own = IntakeRows(shop, clock()), clock()
    for _ in range(5_000):
        row = a_row(chance)
        if chance.random() < 0.7:
            version = chance.choice([None, 0, -1, 2**63 - 1, -(2**63)])
            operation = chance.choice(["upsert", "delete"])
            row = Record(row, chance.choice([None, *NAMES]), operation, version)
        taken = rows.take(row, finite=chance.random() < 0.5)
        assert (taken.id, taken.message) == by_parts(shop, row, own), row


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"at": 1}, "key_missing"),
        ({"id": None, "at": 1}, "key_missing"),
        ({"id": 1}, "source_version_invalid"),
        ({"id": 1, "at": "soon"}, "source_version_invalid"),
        ({"id": 1, "at": True}, "source_version_invalid"),
        ({"id": 1, "at": 2**63}, "source_version_invalid"),
        (Record({"id": 1}, version=2**63), "source_version_invalid"),
        (Record({"id": 1}, event="nobody's", version=1), "event_undeclared"),
        ({"id": 1, "at": 1, "n": float("nan")}, "payload_not_json"),
        ({"id": 1, "at": 1, "n": None, "deep": [{"n": float("inf")}]}, "payload_not_json"),
    ],
)
def test_what_is_no_event_says_why_and_takes_no_version(row, code):
    stamps = clock()
    rows = IntakeRows(pipeline(order=declared("order", version="at")), stamps)
    with pytest.raises(ParkError) as caught:
        rows.take(row)
    assert caught.value.code == code
    assert stamps.last == 0


def test_rows_of_a_page_are_what_each_is_alone_some_taken_in_at_one_time():
    shop = pipeline(order=declared("order", version="at"))
    page = [{"id": None if number % 50 == 7 else number, "at": number} for number in range(500)]
    page[100] = Record({"id": 100}, "order", "delete", 5)
    found = list(IntakeRows(shop, clock()).take_all(page))
    alone = IntakeRows(shop, clock())
    for row, taken in zip(page, found, strict=True):
        if isinstance(taken, ParkError):
            with pytest.raises(ParkError, match="key field 'id'"):
                alone.take(row)
        else:
            one = alone.take(row)
            assert (taken.id, taken.key, taken.content) == (one.id, one.key, one.content)
            assert decode(taken.message).time == rfc3339_us(taken.taken_us)
    events = [one for one in found if not isinstance(one, ParkError)]
    assert len(events) == 490
    assert all(one.intake_version < two.intake_version for one, two in pairwise(events))
    assert all(one.taken_us <= two.taken_us for one, two in pairwise(events))
    assert all(one.minute == one.taken_us // 60_000_000 for one in events)
    assert len({one.taken_us for one in events}) == 8


def test_a_page_gives_no_version_that_was_not_reserved():
    """Whoever took the source over begins above what was reserved."""
    asked: list[int] = []

    def reserve(version):
        asked.append(version)
        if len(asked) > 1:
            raise RetryError("fenced")
        return version + 36

    stamps = IntakeClock(reserve=reserve, now_us=lambda: 0)
    found = []
    with pytest.raises(RetryError, match="fenced"):
        found.extend(IntakeRows(pipeline(), stamps).take_all([{"id": n} for n in range(200)]))
    assert asked == [64, 128]
    assert stamps.last == 64


def test_the_event_of_a_large_payload_is_the_one_that_travels():
    rows = IntakeRows(pipeline(), clock())
    taken = rows.take(Record({"id": 7}, op="delete", version=3))
    assert encode(rows.event(taken), content=taken.content) == taken.message
    assert decode(taken.message).data == {"id": 7}
