"""From a record to its event, the limit of events, ids that are remembered, pages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.collectors import write_hooks

from waybill.collector.body import Record
from waybill.collector.intake import RememberedIds
from waybill.collector.page import OpenPage
from waybill.collector.rate_limit import RateLimit
from waybill.collector.records import CollectedEvent, RecordReader
from waybill.errors import InputError, ParkError
from waybill.ingestion.connectors import HttpSource, open_connector
from waybill.pipelines import DeclarationError, Pipeline, load_pipeline


@pytest.fixture
def reader(tmp_path):
    def made(**options: object) -> RecordReader:
        pipeline: Pipeline = load_pipeline(write_hooks(tmp_path, **options))
        return RecordReader(pipeline, HttpSource.of(pipeline.source))

    return made


def test_the_event_name_comes_from_a_header_a_field_or_the_path(reader):
    by_header = reader(event_name="header:X-Kind")
    assert by_header.request_name({b"x-kind": b"refund"}, "") == "refund"
    with pytest.raises(ParkError):
        by_header.request_name({}, "")
    by_field = reader(event_name="field:kind")
    assert by_field.request_name({}, "") is None
    assert by_field.read(Record({"kind": "refund", "number": 1}), None, None, None).name == "refund"
    for wrong in ({"number": 1}, {"number": 1, "kind": 7}, {"number": 1, "kind": "other"}):
        with pytest.raises(ParkError) as raised:
            by_field.read(Record(wrong), None, None, None)
        assert raised.value.code == "event_unknown"
    by_path = reader(event_name="path")
    assert by_path.named_by_path()
    assert by_path.request_name({}, "refund") == "refund"
    assert reader().request_name({}, "") == "order"


def test_an_event_without_an_id_of_its_own_has_the_same_one_each_time(reader):
    one = reader().read(Record({"number": 1, "amount": 2}), "order", None, None)
    same = reader().read(Record({"number": 1, "amount": 2}), "order", None, None)
    other = reader().read(Record({"number": 1, "amount": 3}), "order", None, None)
    assert one == same
    assert not one.own_id
    assert one.id != other.id


def test_an_id_of_its_sender_is_kept_where_it_is_plain_and_hashed_where_it_is_not(reader):
    own = reader(event_id="header:X-Delivery", id_field="delivery")
    assert own.request_id({b"x-delivery": b"72d3162e-cc78"}, 1) == "72d3162e-cc78"
    with pytest.raises(ParkError):
        own.request_id({}, 1)
    event = own.read(Record({"number": 1}), "order", "72d3162e-cc78", None)
    assert (event.id, event.own_id) == ("72d3162e-cc78", True)
    assert event.content == b'{"number":1,"delivery":"72d3162e-cc78"}'
    several = own.read(Record({"number": 1}), "order", "72d3162e-cc78", 4)
    assert several.id == "72d3162e-cc78:4"
    for hostile in ("../x", "key-0123", "a/0", "x" * 129, "\0", "é"):
        hashed = own.read(Record({"number": 1}), "order", hostile, None)
        assert len(hashed.id) == 32
        assert hashed.id == own.read(Record({"number": 1}), "order", hostile, None).id


@pytest.mark.parametrize("value", [None, "", True, [], {}, 1.5])
def test_a_field_that_is_no_id_is_told(reader, value):
    with pytest.raises(ParkError) as raised:
        reader(event_id="field:delivery").read(
            Record({"number": 1, "delivery": value}), "order", None, None
        )
    assert raised.value.code == "event_id_missing"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"auth": "basic"}, "auth"),
        ({"tolerance_s": 0}, "tolerance_s"),
        ({"event_name": "heder:x"}, "event_name"),
        ({"event_id": "path"}, "event_id"),
        ({"ack": "none"}, "ack"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_options_that_are_wrong_are_named(tmp_path, options, said):
    pipeline = load_pipeline(write_hooks(tmp_path, **options))
    with pytest.raises(InputError, match=f"source.options.{said}"):
        open_connector(pipeline.source, tmp_path)


@pytest.mark.parametrize(
    "secret", ["plain-secret-text", "env:WAYBILL_TRACKER__DSN", "env:", "file:/etc/passwd"]
)
def test_a_secret_in_a_declaration_is_refused_and_not_repeated(secret):
    from waybill.pipelines import Source

    source = Source(connector="http", event="e", options={"auth": "bearer", "secret": secret})
    with pytest.raises(InputError) as raised:
        HttpSource.of(source)
    assert "plain-secret-text" not in str(raised.value)


def test_an_http_source_has_no_path_and_nothing_to_fetch(tmp_path):
    home = write_hooks(tmp_path)
    connector = open_connector(load_pipeline(home).source, home)
    assert connector.count() is None
    with pytest.raises(InputError, match="waybill collector"):
        connector.read(None)
    declaration = home / "pipeline.yaml"
    declaration.write_text(
        declaration.read_text().replace("event: order", "event: order\n  path: x")
    )
    with pytest.raises(DeclarationError, match="reads no file"):
        load_pipeline(home)


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0, 2)), max_size=60))
def test_the_limit_lets_no_more_through_than_its_rate_and_one_burst(requests):
    now = [0.0]
    limit = RateLimit(20, lambda: now[0])
    passed, most = 0, 0
    for events, pause_s in requests:
        now[0] += pause_s
        wait_s = limit.take(events)
        if wait_s == 0:
            passed, most = passed + events, max(most, events)
        assert passed <= 20 * (now[0] + 1) + most
        assert wait_s <= 5


def test_who_waits_as_long_as_it_was_told_is_let_through():
    now = [0.0]
    limit = RateLimit(10, lambda: now[0])
    assert limit.take(10) == 0
    wait_s = limit.take(10)
    assert wait_s == 1
    now[0] += wait_s
    assert limit.take(10) == 0
    assert RateLimit(0).take(10**9) == 0


def event(identity: str, content: bytes = b"{}") -> CollectedEvent:
    return CollectedEvent(identity, "order", "[1]", 0, content, own_id=True)


def test_an_id_is_known_with_its_payload_only_and_the_oldest_is_forgotten():
    known = RememberedIds(2)
    known.add(event("a"), 1)
    known.add(event("b"), 2)
    assert known.lsn(event("a")) == 1
    assert known.lsn(event("a", b'{"x":1}')) is None
    assert known.lsn(event("a")._replace(name="refund")) is None
    known.add(event("c"), 3)
    assert [known.lsn(event(name)) for name in "abc"] == [None, 2, 3]


def test_a_page_counts_by_name_and_minute():
    page = OpenPage()
    for lsn, (name, minute) in enumerate([("order", 7), ("refund", 7), ("order", 6)], start=11):
        page.add(name, f"id-{lsn}", f"[{lsn}]", (lsn, minute, minute * 60_000_000))
    assert (page.first_lsn, page.events, page.least_minute) == (11, 3, 6)
    mark = page.mark("p", page.reference("p", "ab"), 99)
    assert (mark["reference"], mark["events"], mark["last_version"]) == ("intake:p:ab:11", 3, 99)
    [(pipeline_id, rows)] = mark["counts"]
    assert pipeline_id == "p"
    counted = {(row[0], row[2]): row[3] for row in rows}
    assert set(counted) == {("order", 6), ("order", 7), ("refund", 7)}
    batches = page.batches("p", topic="events.t.w", reference="r")
    assert sum(batch.num_rows for batch in batches) == 6
