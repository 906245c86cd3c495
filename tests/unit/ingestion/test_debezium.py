"""Envelopes of Debezium, in the forms that its documentation shows."""

import base64
import json

import pytest

from waybill.errors import ParkError
from waybill.ingestion.connectors import Record
from waybill.ingestion.connectors.kafka_topics.debezium import UNAVAILABLE, DebeziumMessages
from waybill.ingestion.connectors.kafka_topics.messages import JsonMessages

POSTGRES = {"connector": "postgresql", "lsn": 24023128, "txId": 555}
MYSQL = {"connector": "mysql", "file": "mysql-bin.000003", "pos": 484, "row": 0}
KEY = b'{"id": 7}'


def read(envelope, *, key=KEY, version="order"):
    value = None if envelope is None else json.dumps(envelope).encode()
    return DebeziumMessages("order", ("id",), version).record(key, value)


def envelope(op, source=POSTGRES, **parts):
    return {"op": op, "source": source, "ts_ms": 1, "before": None, "after": None, **parts}


@pytest.mark.parametrize("op", ["c", "u", "r"])
def test_creates_updates_and_rows_of_a_snapshot_are_upserts(op):
    row = {"id": 7, "name": "a"}
    assert read(envelope(op, after=row)) == Record(row, "order")


def test_a_delete_has_the_key_and_what_is_known_of_the_row():
    found = read(envelope("d", before={"id": 7, "name": None}))
    assert found == Record({"id": 7, "name": None}, "order", "delete")
    assert read(envelope("d")) == Record({"id": 7}, "order", "delete")
    key = json.dumps({"schema": {"type": "struct"}, "payload": {"id": 7}}).encode()
    assert read(envelope("d"), key=key) == Record({"id": 7}, "order", "delete")


def test_a_version_is_the_position_in_the_sources_log():
    row = {"id": 7}
    found = read(envelope("u", after=row), version="position")
    assert found.version == 24023128
    first = read(envelope("u", MYSQL, after=row), version="position").version
    later = read(envelope("u", MYSQL | {"pos": 2**32 - 1}, after=row), version="position").version
    file = {"file": "mysql-bin.000004", "pos": 4}
    last = read(envelope("u", MYSQL | file, after=row), version="position").version
    assert first < later < last < 2**63
    assert read(envelope("r", after=row), version="position").version is None
    with pytest.raises(ParkError, match="declare version: order"):
        read(envelope("u", {"connector": "mongodb"}, after=row), version="position")


def test_what_says_nothing_of_a_row_is_no_record():
    assert read(None) is None
    assert read(envelope("m")) is None
    assert (
        read({"source": MYSQL, "databaseName": "shop", "ddl": "ALTER TABLE", "tableChanges": []})
        is None
    )
    assert read({"status": "BEGIN", "id": "571", "event_count": None}) is None


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (envelope("t"), "source_truncated"),
        (envelope("x", after={}), "source_row_malformed"),
        (envelope("u"), "source_row_malformed"),
        ({"id": 7}, "source_row_malformed"),
        ([1], "source_row_malformed"),
        (envelope("u", after={"id": 7, "big": UNAVAILABLE}), "source_value_invalid"),
    ],
)
def test_what_cannot_be_a_record_parks_under_its_cause(given, code):
    with pytest.raises(ParkError) as caught:
        read(given)
    assert caught.value.code == code


def field(name, kind, semantic=None, **parameters):
    found = {"field": name, "type": kind, "optional": True}
    if semantic:
        found |= {"name": semantic, "version": 1}
    if parameters:
        found["parameters"] = parameters
    return found


def test_values_that_a_schema_marks_have_the_form_of_rows():
    unscaled = base64.b64encode((-12345).to_bytes(2, signed=True)).decode()
    large = base64.b64encode((10**30).to_bytes(13, signed=True)).decode()
    fields = [
        field("price", "bytes", "org.apache.kafka.connect.data.Decimal", scale="2"),
        field("any", "struct", "io.debezium.data.VariableScaleDecimal"),
        field("day", "int32", "io.debezium.time.Date"),
        field("at", "int64", "io.debezium.time.MicroTimestamp"),
        field("ms", "int64", "io.debezium.time.Timestamp"),
        field("zoned", "string", "io.debezium.time.ZonedTimestamp"),
        field("doc", "string", "io.debezium.data.Json"),
        field("none", "int32", "io.debezium.time.Date"),
    ]
    after = {
        "price": unscaled,
        "any": {"scale": 3, "value": large},
        "day": 20454,
        "at": 1767323045600000,
        "ms": -1,
        "zoned": "2026-01-02T03:04:05Z",
        "doc": '{"a": 1.5}',
        "none": None,
    }
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}
    found = read({"schema": schema, "payload": envelope("c", after=after)})
    assert found.data == {
        "price": "-123.45",
        "any": "1" + "0" * 27 + ".000",
        "day": "2026-01-01",
        "at": "2026-01-02T03:04:05.600000Z",
        "ms": "1969-12-31T23:59:59.999000Z",
        "zoned": "2026-01-02T03:04:05Z",
        "doc": {"a": 1.5},
        "none": None,
    }


@pytest.mark.parametrize("value", ["no base64!", {"x": 1}])
def test_a_value_that_is_not_what_its_schema_says_parks(value):
    fields = [field("price", "bytes", "org.apache.kafka.connect.data.Decimal", scale="2")]
    fields.append(field("day", "int32", "io.debezium.time.Date"))
    schema = {"fields": [{"field": "after", "fields": fields}]}
    with pytest.raises(ParkError) as caught:
        read({"schema": schema, "payload": envelope("c", after={"price": value, "day": value})})
    assert caught.value.code == "source_value_invalid"


def json_record(key, value, *, fields=("id",), where="message"):
    return JsonMessages("order", fields, where).record(key, value)


def test_the_key_may_be_kafkas():
    assert json_record(b'{"id": 7}', b'{"a": 1}').data == {"a": 1, "id": 7}
    assert json_record(b"7", b'{"a": 1}').data == {"a": 1, "id": 7}
    assert json_record(b"seven", b'{"a": 1}').data == {"a": 1, "id": "seven"}
    assert json_record(None, b'{"id": 7}', where="value").data == {"id": 7}


def test_a_value_that_is_null_deletes_the_keys_row():
    assert json_record(b"7", None, where="value") == Record({"id": 7}, "order", "delete")


@pytest.mark.parametrize(
    ("key", "value", "fields", "code"),
    [
        (b"7", b"[1]", ("id",), "source_row_malformed"),
        (b"7", b"{", ("id",), "source_row_malformed"),
        (b"7", b"\x00\x00\x00\x00\x01binary", ("id",), "source_row_malformed"),
        (None, None, ("id",), "key_missing"),
        (b"7", None, ("shop", "id"), "key_missing"),
        (b"\xff\xfe", None, ("id",), "source_encoding_invalid"),
    ],
)
def test_what_is_no_record_parks_under_its_cause(key, value, fields, code):
    with pytest.raises(ParkError) as caught:
        json_record(key, value, fields=fields)
    assert caught.value.code == code


def schema(**field):
    return {"type": "struct", "fields": [{"field": "after", "fields": [field]}]}


DECIMAL = "org.apache.kafka.connect.data.Decimal"


@pytest.mark.parametrize("op", [[], {}, 1, True])
def test_an_op_that_is_no_text_parks_its_message_alone(op):
    with pytest.raises(ParkError, match="`op` is no text"):
        read(envelope(op, after={"id": 7}))


@pytest.mark.parametrize(
    ("of_after", "value"),
    [
        ({"fields": None}, 1),
        ({"fields": [{"field": "after", "fields": ["text"]}]}, 1),
        (schema(field="id", name=[]), 1),
        (schema(field=[], name="io.debezium.time.Date"), 1),
        (schema(field="id", name=DECIMAL), "AQ=="),
        (schema(field="id", name=DECIMAL, parameters={"scale": "-2000000000"}), "AQ=="),
        (
            schema(field="id", name="io.debezium.data.VariableScaleDecimal"),
            {"scale": 2_000_000_000, "value": "AQ=="},
        ),
        (schema(field="id", name="io.debezium.data.Json"), 1),
        (schema(field="id", name="io.debezium.time.Timestamp"), "x" * 100_000),
    ],
)
def test_a_schema_or_value_that_lies_parks_its_message_and_takes_no_memory(of_after, value):
    with pytest.raises(ParkError, match="not what its schema says"):
        read({"schema": of_after, "payload": envelope("c", after={"id": value})})
