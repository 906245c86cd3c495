"""Messages by a schema registry: frames, Avro, Protobuf, what is hostile, and the registry itself."""

import base64
import io
import json
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import fastavro
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr
from tests.support.schema_server import SchemaServer, orders_file, serialized

from waybill.egress import EgressGuard
from waybill.errors import InputError, ParkError, RetryError
from waybill.events import dumps, loads
from waybill.ingestion.connectors import Connections, Opening
from waybill.ingestion.connectors.kafka_topics import schema_registry
from waybill.ingestion.connectors.kafka_topics.avro import AvroSchema
from waybill.ingestion.connectors.kafka_topics.connector import KafkaConnector, _add, _Gathered
from waybill.ingestion.connectors.kafka_topics.debezium import DebeziumMessages
from waybill.ingestion.connectors.kafka_topics.framed_messages import FramedMessages
from waybill.ingestion.connectors.kafka_topics.messages import JsonMessages
from waybill.ingestion.connectors.kafka_topics.protobuf import ProtobufSchema
from waybill.ingestion.connectors.kafka_topics.schema_registry import Schema, SchemaRegistry
from waybill.pipelines import Column, EventDeclaration, Source, TableSpec
from waybill.settings import EgressSettings, Settings

ID = {"name": "id", "type": "long"}


@pytest.fixture
def server():
    server = SchemaServer()
    yield server
    server.close()


class Alone:
    """A registry for schemas that refer to no others."""

    def referenced(self, _):
        return iter(())


def record(*fields, name="Order"):
    return {"type": "record", "name": name, "namespace": "shop", "fields": list(fields)}


def written(schema, value):
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return stream.getvalue()


def avro(schema):
    return AvroSchema(Schema("AVRO", json.dumps(schema)), Alone())


def frame(number, data):
    return b"\0" + number.to_bytes(4) + data


def framed(server, kind="AVRO", records=None, **fields):
    return FramedMessages(lambda: server.registry(**fields), kind, records or {})


TYPES = [
    ("long", 2**62 + 1, 2**62 + 1),
    ("bytes", b"\x00\xff", "AP8="),
    ({"type": "fixed", "name": "F", "size": 2}, b"ab", "YWI="),
    ("double", 0.1, 0.1),
    ("double", float("nan"), "NaN"),
    ("float", float("-inf"), "-Infinity"),
    (["null", "string"], None, None),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
    ({"type": "array", "items": "bytes"}, [b"a"], ["YQ=="]),
    ({"type": "map", "values": {"type": "int", "logicalType": "date"}}, {"k": date(1960, 2, 3)}, {"k": "1960-02-03"}),
    ({"type": "long", "logicalType": "timestamp-millis"}, datetime(2020, 1, 2, 3, 4, 5, 6000, UTC), "2020-01-02T03:04:05.006000Z"),
    ({"type": "long", "logicalType": "timestamp-micros"}, datetime(1969, 1, 2, 3, 4, 5, 6, UTC), "1969-01-02T03:04:05.000006Z"),
    ({"type": "long", "logicalType": "timestamp-nanos"}, 1_000_000_000_000_000_001, "2001-09-09T01:46:40.000000001Z"),
    ({"type": "int", "logicalType": "time-millis"}, 3_723_004, "01:02:03.004000"),
    ({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 4}, Decimal("-1234567890123456789012345678901234.5678"), "-1234567890123456789012345678901234.5678"),
    ({"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}, 1, "1970-01-01T00:00:00.000001Z"),
    ({"type": "int", "connect.name": "io.debezium.time.Date"}, 1, "1970-01-02"),
    ({"type": "string", "connect.name": "io.debezium.data.Json"}, '{"a": 12345678901234567890}', {"a": 12345678901234567890}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "row"), TYPES, ids=map(str, range(len(TYPES))))
def test_avro_types_have_the_form_that_rows_have(kind, value, row):
    schema = record({"name": "v", "type": kind})
    logical = kind.get("logicalType") if isinstance(kind, dict) else None
    plain = {"type": "long"} if logical == "timestamp-nanos" else kind
    if logical == "time-millis":
        plain = "int"
    data = written(record({"name": "v", "type": plain}), {"v": value})
    found, name = avro(schema).decode(data)
    assert found == {"v": row}
    assert type(found["v"]) is type(row)
    assert name == "shop.Order"
    assert loads(dumps(found)) == found


def test_more_digits_than_a_decimals_precision_stay():
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 2}
    data = written(record({"name": "v", "type": "bytes"}), {"v": (1234567).to_bytes(3)})
    assert avro(record({"name": "v", "type": kind})).decode(data)[0] == {"v": "12345.67"}


def nested(levels, inner):
    for _ in range(levels):
        inner = {"type": "array", "items": inner}
    return inner


def laughs(level):
    if level == 0:
        return record(name="L0")
    parts = [{"name": "a", "type": laughs(level - 1)}, {"name": "b", "type": f"shop.L{level - 1}"}]
    return record(*parts, name=f"L{level}")


REFUSED = {
    "an array of nulls": ({"type": "array", "items": "null"}, "items take no bytes"),
    "an array of records without fields": (
        {"type": "array", "items": record(name="Nothing")},
        "items take no bytes",
    ),
    "a record in itself": (record({"name": "o", "type": "shop.Order"}), "contains itself"),
    "a type that doubles 40 times": (laughs(40), "values of no bytes"),
    "500 arrays in each other": (nested(500, "int"), "nested more than 100 deep"),
    "a scale of a billion": (
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 10**9},
        "scale",
    ),
    "an unknown type": (record({"name": "o", "type": "shop.Nothing"}), "cannot be used"),
    "a number": (7, "cannot be used"),
    "no fields": ({"type": "record", "name": "R"}, "cannot be used"),
    "megabytes": (record({"name": "x" * 2**20, "type": "int"}), "more than 1048576"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_avro_schema_without_bounds_is_refused_at_once(name):
    schema, words = REFUSED[name]
    began = time.process_time()
    with pytest.raises(ParkError, match=words) as error:
        avro(schema)
    assert error.value.code == "source_schema_unknown"
    assert time.process_time() - began < 10


def test_thousands_of_types_are_read():
    inner = [record(ID, name=f"R{number}") for number in range(3000)]
    schema = record(*({"name": f"f{n}", "type": ["null", kind]} for n, kind in enumerate(inner)))
    row, _ = avro(schema).decode(b"\2\4" + b"\0" * 2999)
    assert row["f0"] == {"id": 2}


def test_a_list_of_avro_that_is_too_deep_parks_and_kills_nobody():
    chain = avro(record({"name": "next", "type": ["null", "shop.Order"]}))
    row, _ = chain.decode(b"\2\2\0")
    assert row == {"next": {"next": {"next": None}}}
    with pytest.raises(ParkError, match="RecursionError"):
        chain.decode(b"\2" * 1_000_000 + b"\0")


@pytest.mark.parametrize(
    "data",
    [
        b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f" + b"\0" * 1000,
        b"\x02\x05xyz",
        b"\xff" * 40,
        b"\x01" * 30,
        b"",
        b"\x00\x00",
    ],
    ids=["2^62 items", "2^62 of 1000", "length -3", "no end", "block -1", "empty", "more"],
)
def test_counts_and_lengths_that_lie_park(data):
    with pytest.raises(ParkError) as error:
        avro({"type": "array", "items": "string"}).decode(data)
    assert error.value.code == "source_row_malformed"


def test_a_negative_block_count_is_read():
    assert avro({"type": "array", "items": "int"}).decode(b"\x03\x04\x02\x04\x00")[0] == [1, 2]


EVERYTHING = record(
    *({"name": f"f{number}", "type": kind} for number, (kind, _, _) in enumerate(TYPES[:3])),
    {"name": "list", "type": {"type": "array", "items": ["null", "double", "string", "shop.Order"]}},
    {"name": "map", "type": {"type": "map", "values": {"type": "long", "logicalType": "timestamp-micros"}}},
    {"name": "n", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}]},
    {"name": "e", "type": {"type": "enum", "name": "Kind", "symbols": ["A"]}},
)  # fmt: skip


@settings(max_examples=150)
@given(st.binary(max_size=300))
def test_any_bytes_are_a_row_or_park(data):
    for reader in (EVERYTHING_AVRO, ORDERS):
        try:
            row, _ = reader.decode(data)
        except ParkError as error:
            assert error.code == "source_row_malformed"
        else:
            assert loads(dumps(row)) == row


@settings(max_examples=100)
@given(st.binary(max_size=60), st.integers(0, 200))
def test_a_message_with_some_wrong_bytes_is_a_row_or_parks(noise, position):
    for reader, good in (
        (EVERYTHING_AVRO, GOOD_AVRO),
        (ORDERS, GOOD_PROTOBUF),
    ):
        try:
            row, _ = reader.decode(good[:position] + noise + good[position + len(noise) :])
        except ParkError:
            continue
        assert loads(dumps(row)) == row


EVERYTHING_AVRO = avro(EVERYTHING)
GOOD_AVRO = written(
    EVERYTHING,
    {
        "f0": 1, "f1": b"x" * 20, "f2": b"ab", "list": [None, 1.5, "text"],
        "map": {"a": datetime(2020, 1, 1, tzinfo=UTC)}, "n": Decimal("1.25"), "e": "A",
    },
)  # fmt: skip
ORDERS = ProtobufSchema(Schema("PROTOBUF", serialized(orders_file())), Alone())


def order(**fields):
    pool = DescriptorPool()
    for name in ("timestamp", "struct", "wrappers"):
        known = FileDescriptorProto()
        __import__(f"google.protobuf.{name}_pb2", fromlist=["x"]).DESCRIPTOR.CopyToProto(known)
        pool.Add(known)
    pool.Add(orders_file())
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    return kind(**fields)


GOOD_PROTOBUF = b"\0" + order(id=2**60, cash=b"x" * 20, lines=[{"id": 1}]).SerializeToString()


def test_protobuf_types_have_the_form_that_rows_have():
    message = order(id=2**63 - 1, big=2**64 - 1, cash=b"\x00\xff", share=0.1, status=7)
    message.at.FromJsonString("2020-01-01T00:00:00.123456789Z")
    early = order()
    early.at.FromJsonString("0001-01-01T00:00:00.5Z")
    row, _ = ORDERS.decode(b"\0" + early.SerializeToString())
    assert row["at"] == "0001-01-01T00:00:00.500000Z"
    message.extra.update({"a": [1.5, None, {"b": True}]})
    message.count.value = 0
    message.shares[2**40] = float("inf")
    message.lines.add(id=1, card="x")
    row, name = ORDERS.decode(b"\0" + message.SerializeToString())
    [line] = row.pop("lines")
    assert name == "shop.Order"
    assert row == {
        "id": 2**63 - 1, "big": 2**64 - 1, "at": "2020-01-01T00:00:00.123456789Z",
        "extra": {"a": [1.5, None, {"b": True}]}, "count": 0, "card": None, "cash": "AP8=",
        "share": 0.1, "status": 7, "shares": {str(2**40): "Infinity"}, "child": None,
    }  # fmt: skip
    assert (line["id"], line["card"], line["status"], line["at"]) == (1, "x", "NEW", None)
    assert loads(dumps(row)) == row


def test_protobuf_that_is_deep_or_makes_millions_of_values_parks():
    deep = b""
    for _ in range(150):
        deep = wrapped(deep)
    with pytest.raises(ParkError, match="MaxDepth"):
        ORDERS.decode(b"\0" + deep)
    with pytest.raises(ParkError, match="more than 1000000 values"):
        ORDERS.decode(b"\0" + b"\x62\x00" * 100_000)
    for indexes in (b"\x02\x04", b"\x03\x01\x01", b"\xff" * 20, b"", b"\x04\x00\x08"):
        with pytest.raises(ParkError):
            ORDERS.decode(indexes)


def wrapped(body):
    length, size = b"", len(body)
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return b"\x5a" + length + bytes([size]) + body


def test_protobuf_of_a_registry_that_gives_text_says_so(server):
    server.add(1, 'syntax = "proto3"; message Order {}', "PROTOBUF")
    with pytest.raises(ParkError, match="format=serialized"):
        framed(server, "PROTOBUF").value(frame(1, b"\0"), "the value")


def test_frames_and_headers_name_a_schema_which_is_asked_for_once(server):
    guid = UUID(int=77)
    for schema_id in (7, guid):
        server.add(schema_id, json.dumps(record(ID)), subject=f"orders-{schema_id}")
    messages = framed(server)
    plain = SimpleNamespace(key=lambda: b"7", value=lambda: frame(7, b"\4"), headers=lambda: None)
    headers = [("__value_schema_id", b"\1" + guid.bytes), ("other", None)]
    by_header = SimpleNamespace(key=lambda: b"8", value=lambda: b"\6", headers=lambda: headers)
    reader = JsonMessages("order", ("id",), "value", read_value=messages.value)
    for _ in range(3):
        assert reader.record(*messages.bytes_of(plain)).data == {"id": 2}
        assert reader.record(*messages.bytes_of(by_header)).data == {"id": 3}
    assert [path.partition("?")[0] for path, _ in server.asked] == [
        "/schemas/ids/7",
        f"/schemas/guids/{guid}",
    ]
    assert messages.notes() == [
        "schema 7 (subject orders-7): 3 messages",
        f"schema {guid}: 3 messages",
    ]
    for data in (b"", b"\0\0", b"{}", b"\1" + bytes(3)):
        with pytest.raises(ParkError, match="has no schema id"):
            messages.value(data, "the value")


def test_an_unknown_schema_parks_its_message_and_is_not_asked_for_at_each(server):
    messages = framed(server)
    for _ in range(3):
        with pytest.raises(ParkError, match="schema 9: schema 9 is not in the registry") as error:
            messages.value(frame(9, b"\4"), "the value")
        assert error.value.code == "source_schema_unknown"
    assert len(server.asked) == 1


def test_keys_are_read_by_their_schema_or_as_they_are(server):
    server.add(1, json.dumps(record(ID)))
    server.add(2, '"long"')
    messages = framed(server)
    reader = JsonMessages(
        "order", ("id",), "message", read_value=messages.value, read_key=messages.key
    )
    value = frame(1, b"\4")
    assert reader.record(frame(1, b"\x0e"), value).data == {"id": 7}
    assert reader.record(frame(2, b"\x0e"), value).data == {"id": 7}
    assert reader.record(b"7", value).data == {"id": 7}
    deleted = reader.record(frame(1, b"\x0e"), None)
    assert (deleted.op, deleted.data) == ("delete", {"id": 7})


def test_an_event_name_by_the_name_of_a_record(server):
    server.add(1, json.dumps(["null", record(ID), record(ID, name="Refund")]))
    messages = framed(server, records={"shop.Refund": "refund"})
    reader = JsonMessages("order", ("id",), "value", read_value=messages.value)

    def read(value):
        message = SimpleNamespace(key=lambda: b"1", value=lambda: value, headers=lambda: None)
        return messages.routed(reader.record(*messages.bytes_of(message)))

    assert read(frame(1, b"\4\2")).event == "refund"
    assert read(frame(1, b"\2\2")).event == "order"
    assert read(None).event == "order", "a tombstone has no record"


def test_debezium_in_avro(server):
    row = record(
        ID,
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}},
        name="Value",
    )  # fmt: skip
    source = record({"name": "lsn", "type": ["null", "long"]}, name="Source")
    envelope = record(
        {"name": "before", "type": ["null", row]},
        {"name": "after", "type": ["null", "shop.Value"]},
        {"name": "source", "type": source},
        {"name": "op", "type": "string"},
        name="Envelope",
    )
    server.add(1, json.dumps(envelope))
    server.add(2, json.dumps(record(ID, name="Key")))
    messages = framed(server, "")
    reader = DebeziumMessages(
        "order", ("id",), "position", read_value=messages.value, read_key=messages.key
    )
    values = {"id": 7, "price": Decimal("1.50"), "at": 1}
    change = {"before": None, "after": values, "source": {"lsn": 5}, "op": "u"}
    found = reader.record(None, frame(1, written(envelope, change)))
    assert found.data == {"id": 7, "price": "1.50", "at": "1970-01-01T00:00:00.000001Z"}
    assert found.version == 5
    gone = change | {"after": None, "op": "d"}
    found = reader.record(frame(2, b"\x0e"), frame(1, written(envelope, gone)))
    assert (found.op, found.data) == ("delete", {"id": 7})
    assert reader.record(frame(2, b"\x0e"), None) is None


def test_schemas_that_others_refer_to(server):
    server.add(
        1, json.dumps({"type": "enum", "name": "shop.Kind", "symbols": ["A"]}), subject="kind/a b"
    )
    inner = record({"name": "kind", "type": "shop.Kind"}, name="Line")
    references = [("shop.Kind", "kind/a b", 1)]
    server.add(2, json.dumps(inner), references=references, subject="line")
    outer = record({"name": "line", "type": "shop.Line"})
    server.add(3, json.dumps(outer), references=[*references, ("shop.Line", "line", 1)])
    assert framed(server).value(frame(3, b"\0"), "the value") == {"line": {"kind": "A"}}
    file = orders_file()
    server.add(4, serialized(file), "PROTOBUF", subject="orders")
    other = FileDescriptorProto(name="x", package="other", syntax="proto3", dependency=["o.proto"])
    other.message_type.add(name="Box").field.add(
        name="order", number=1, type="TYPE_MESSAGE", label="LABEL_OPTIONAL", type_name=".shop.Order"
    )
    server.add(5, serialized(other), "PROTOBUF", references=[("o.proto", "orders", 1)])
    row = framed(server, "PROTOBUF").value(frame(5, b"\0\x0a\x02\x08\x05"), "the value")
    assert row["order"]["id"] == 5


def test_references_in_a_circle_or_by_the_hundred_are_refused(server):
    server.add(1, json.dumps(record(ID)), references=[("x", "a", 1)], subject="b")
    server.add(2, json.dumps(record(ID)), references=[("x", "b", 1)], subject="a")
    with pytest.raises(ParkError, match="refers to itself"):
        framed(server).value(frame(2, b"\2"), "the value")
    many = [(f"n{number}", f"s{number}", 1) for number in range(300)]
    for number in range(300):
        server.add(1000 + number, json.dumps(record(ID, name=f"R{number}")), subject=f"s{number}")
    server.add(3, json.dumps(record(ID)), references=many)
    with pytest.raises(ParkError, match="more than 200"):
        framed(server).value(frame(3, b"\2"), "the value")


@pytest.mark.parametrize("kind", ["AVRO", "PROTOBUF", "JSON"])
def test_a_schema_of_another_kind_parks(server, kind):
    text = {"AVRO": '"long"', "PROTOBUF": serialized(orders_file()), "JSON": "{}"}[kind]
    server.add(1, text, kind)
    other = "PROTOBUF" if kind == "AVRO" else "AVRO"
    with pytest.raises(ParkError, match=f"of {kind}, and not of {other}"):
        framed(server, other).value(frame(1, b"\0"), "the value")


def test_json_behind_an_id_asks_nobody(server):
    messages = framed(server, "JSON")
    assert messages.value(frame(1, b'{"id": 12345678901234567890}'), "x") == {
        "id": 12345678901234567890
    }
    assert server.asked == []
    with pytest.raises(ParkError, match="is not JSON"):
        messages.value(frame(1, b"{"), "the value")


@pytest.mark.parametrize(
    ("status", "body", "error", "words"),
    [
        (500, b"oops", RetryError, "answers 500"),
        (503, b"{}", RetryError, "answers 503"),
        (429, b"", RetryError, "answers 429"),
        (401, b"{}", InputError, "correct the connection's login"),
        (403, b"<html>", InputError, "grant it the right"),
        (404, b"<html>", InputError, "is no schema registry"),
        (404, b'{"error_code": 404}', InputError, "is no schema registry"),
        (200, b"<html>", InputError, "is no schema registry"),
        (200, b'{"schema": 1}', InputError, "is no schema"),
        (200, b"[]", InputError, "is no schema"),
        (200, b'{"schema": "1", "references": [1]}', InputError, "is no schema"),
        (302, b"", InputError, "is no schema registry"),
        (200, b'"' + b"x" * 5_000_000 + b'"', ParkError, "more than 4194304 bytes"),
    ],
    ids=[f"answer {number}" for number in range(13)],
)
def test_what_a_registry_may_answer(server, status, body, error, words):
    server.answer = status, body, {"Location": "http://127.0.0.1:1/"}
    with pytest.raises(error, match=words):
        framed(server, password=SecretStr("s3cret-word")).value(frame(1, b"\2"), "the value")
    assert len(server.asked) == 1


def test_an_answer_that_breaks_off_or_never_ends_is_tried_again(server, monkeypatch):
    server.add(1, '"long"')
    server.answer = 200, b'{"schema": ', {"Content-Length": "1000"}
    with pytest.raises(RetryError, match="does not answer"):
        framed(server).value(frame(1, b"\2"), "the value")
    server.answer = None
    monkeypatch.setattr(schema_registry, "_ANSWER_S", -1.0)
    with pytest.raises(RetryError, match="no whole answer"):
        framed(server).value(frame(1, b"\2"), "the value")


def test_a_registry_that_is_away_is_tried_again_and_then_all_is_read(server):
    server.add(1, json.dumps(record(ID)))
    messages = framed(server)
    server.answer = 503, b"", {}
    with pytest.raises(RetryError):
        messages.value(frame(1, b"\2"), "the value")
    server.answer = None
    assert messages.value(frame(1, b"\2"), "the value") == {"id": 1}
    gone = SchemaServer()
    gone.close()
    with pytest.raises(RetryError, match="does not answer"):
        framed(gone).value(frame(1, b"\2"), "the value")


def test_the_connection_says_who_asks_and_where(server):
    server.add(1, '"long"')
    base = base64.b64encode("ü:s3cret".encode()).decode()
    for fields, expected in (
        ({"login": "ü", "password": SecretStr("s3cret")}, f"Basic {base}"),
        ({"password": SecretStr("token")}, "Bearer token"),
        ({}, None),
    ):
        server.registry(**fields).schema(1)
        assert server.asked[-1][1] == expected
    server.schemas = {f"apis/v7/{path}": one for path, one in server.schemas.items()}
    server.registry(schema="apis/v7/").schema(1)
    server.registry(schema="http", extra={"path": "apis/v7"}).schema(1)
    for host in ("", "evil/x", "u@h", "a?b", "a#b"):
        with pytest.raises(InputError, match="no name of a host"):
            server.registry(host=host)


def test_an_address_that_is_not_open_is_not_connected_to(server):
    closed = SchemaRegistry(server.connection(), EgressGuard(EgressSettings()))
    with pytest.raises(InputError, match="closed to sources"):
        closed.schema(1)
    assert server.asked == []


def connector(server, *, egress=(), pipelines="*", **options):
    """Return a connector of a declaration, whose connection ``registry`` is the server's."""
    columns = (Column(name="id", type="int64"),)
    events = {
        name: EventDeclaration(
            name=name,
            key=("id",),
            table=TableSpec(schema_name="s", name=name, columns=columns, key=("id",)),
        )
        for name in ("order", "refund")
    }
    given = {"topics": {"order": "shop.orders"}, "format": "avro", "registry": "registry"}
    source = Source(connector="kafka", event="order", connection="k", options=given | options)
    registry = f"http://127.0.0.1:{server.port}?waybill_pipelines={pipelines}"
    connections = Connections({"registry": SecretStr(registry)})
    egress = EgressSettings(allowed_hosts=egress)
    settings = Settings().model_copy(update={"egress": egress})
    return KafkaConnector(Opening(source, Path("shop"), (), events, connections, settings))


def test_a_registry_is_connected_to_as_the_settings_and_its_connection_let(server):
    server.add(1, json.dumps(record(ID)), subject="orders-value")
    with pytest.raises(InputError, match="closed to sources"):
        connector(server)._framed.value(frame(1, b"\4"), "the value")
    place = (f"127.0.0.1:{server.port}",)
    with pytest.raises(InputError, match="not open to pipeline 'shop'"):
        connector(server, egress=place, pipelines="other")._framed.value(frame(1, b"\4"), "x")
    assert server.asked == []
    with pytest.raises(InputError, match=r"source\.options\.registry: there is no connection"):
        connector(server, registry="nothing")._framed.value(frame(1, b"\4"), "the value")
    opened = connector(server, egress=place)
    assert opened._framed.value(frame(1, b"\4"), "the value") == {"id": 2}
    opened.close()
    assert opened.notes() == ["schema 1 (subject orders-value): 1 messages"]
    opened.close()


class Message:
    """One of Kafka's, with what the connector asks of it."""

    def __init__(self, offset, key, value):
        self._all = {"offset": offset, "key": key, "value": value}

    def __getattr__(self, name):
        more = {"topic": "shop.orders", "partition": 0, "headers": None}
        return lambda: (self._all | more)[name]


def test_a_message_that_is_wrong_parks_with_its_place_and_an_outage_parks_nothing(server):
    server.add(1, json.dumps(["null", record(ID), record(ID, name="Refund")]))
    opened = connector(
        server, egress=(f"127.0.0.1:{server.port}",), records={"shop.Refund": "refund"}
    )
    reader, gathered = opened._readers["shop.orders"], _Gathered()
    values = [frame(1, b"\2\2"), frame(1, b"\2\2\2"), frame(9, b"\2"), frame(1, b"\4\2"), None]
    for offset, value in enumerate(values):
        _add(gathered, reader, Message(offset, b"7", value), opened._framed)
    found = [(row.event, row.op, row.data) for row in gathered.records]
    assert found == [
        ("order", "upsert", {"id": 1}),
        ("refund", "upsert", {"id": 1}),
        ("order", "delete", {"id": 7}),
    ]
    assert gathered.places == [f"shop.orders/0/{offset}" for offset in (0, 3, 4)]
    assert [(one.code, one.place, one.raw) for one in gathered.bad] == [
        ("source_row_malformed", "shop.orders/0/1", values[1]),
        ("source_schema_unknown", "shop.orders/0/2", values[2]),
    ]
    server.answer = 500, b"", {}
    with pytest.raises(RetryError, match="answers 500"):
        _add(gathered, reader, Message(5, b"7", frame(10, b"\2")), opened._framed)
    assert len(gathered) == 5
    opened.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"registry": None}, "needs the connection of a schema registry"),
        ({"format": "json"}, "format: json has no schemas"),
        ({"format": "debezium", "records": {"a": "order"}}, "for format: avro and protobuf alone"),
        ({"records": {"a": "nothing"}}, r"options\.records: 'nothing' is not under `events`"),
        ({"format": "xml"}, "expected json, avro"),
        ({"registry": "https://u:s3cret@h/"}, "do not belong into a declaration"),
    ],
    ids=["no registry", "json", "records", "event", "format", "a secret"],
)
def test_a_declaration_that_is_wrong_is_refused(server, options, words):
    with pytest.raises(InputError, match=words):
        connector(server, **options)
