"""The connector ``kafka`` against a real Kafka."""

import json
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec
from pydantic import SecretStr
from tests.servers import wait_for
from tests.support.apicurio import Apicurio, why_not
from tests.support.schema_server import SchemaServer, orders_file, serialized

from waybill.errors import InputError, RetryError
from waybill.ingestion.connectors import Connections, Opening
from waybill.ingestion.connectors.kafka_topics.connector import KafkaConnector
from waybill.pipelines import Column, EventDeclaration, Source, TableSpec
from waybill.settings import EgressSettings, Settings

pytestmark = pytest.mark.serves


class Topics:
    """Topics of others, and a connector over them."""

    def __init__(self, servers):
        self.servers, self.registry, self.settings = servers, None, None
        self.admin = AdminClient({"bootstrap.servers": servers})
        self.name = f"others-{secrets.token_hex(4)}"
        self.make()

    def use(self, registry):
        """Let connectors have the connection ``registry``, of an address on loopback."""
        self.registry = registry
        place = urlsplit(registry).netloc.rpartition("@")[2]
        egress = EgressSettings(allowed_hosts=(place,))
        self.settings = Settings().model_copy(update={"egress": egress})

    def make(self, partitions=3):
        made = self.admin.create_topics([NewTopic(self.name, partitions, 1)])
        made[self.name].result(60)
        wait_for(lambda: self.has_leaders(partitions))

    def has_leaders(self, partitions):
        places = [TopicPartition(self.name, number) for number in range(partitions)]
        fresh = AdminClient({"bootstrap.servers": self.servers})  # it knows no fewer partitions
        asked = fresh.list_offsets(dict.fromkeys(places, OffsetSpec.latest()))
        return not any(future.exception(60) for future in asked.values())

    def ended(self):
        """Wait until all transactions have: one's commit is answered before its end is written."""
        wait_for(lambda: self.ends(IsolationLevel.READ_COMMITTED) == self.ends())

    def ends(self, isolation=IsolationLevel.READ_UNCOMMITTED):
        places = [TopicPartition(self.name, number) for number in range(3)]
        latest = dict.fromkeys(places, OffsetSpec.latest())
        asked = self.admin.list_offsets(latest, isolation_level=isolation)
        return [future.result(60).offset for future in asked.values()]

    def delete(self):
        """Delete it; the broker does not know it any more."""
        self.admin.delete_topics([self.name])[self.name].result(60)
        fresh = AdminClient({"bootstrap.servers": self.servers})
        wait_for(lambda: self.name not in fresh.list_topics(timeout=60).topics)

    def send(self, *messages, **config):
        """Send (partition, key, value) each; values become JSON unless they are bytes or None."""
        producer = Producer({"bootstrap.servers": self.servers} | config)
        if "transactional.id" in config:
            producer.init_transactions(120)  # the broker makes a topic for the first one
            producer.begin_transaction()
        for partition, key, value in messages:
            text = value if value is None or isinstance(value, bytes) else json.dumps(value)
            producer.produce(self.name, text, key, partition)
        assert producer.flush(120) == 0
        return producer

    def connector(self, *, page_rows=1000, servers=None, **options):
        columns = (Column(name="id", type="int64"),)
        table = TableSpec(schema_name="s", name="t", columns=columns, key=("id",))
        events = {"order": EventDeclaration(name="order", key=("id",), table=table)}
        source = Source(
            connector="kafka",
            event="order",
            connection="theirs",
            page_rows=page_rows,
            options={"topics": {"order": self.name}, "idle_s": 0.1} | options,
        )
        connection = json.dumps(
            {"conn_type": "kafka", "extra": {"bootstrap.servers": servers or self.servers}}
        )
        given = {"theirs": connection} | ({"registry": self.registry} if self.registry else {})
        connections = Connections({name: SecretStr(text) for name, text in given.items()})
        opening = Opening(source, Path(), (), events, connections, self.settings)
        return KafkaConnector(opening)

    def read(self, cursor=None, **options):
        """Read to the end of a run; returns the pages, and the cursor behind."""
        source, pages = self.connector(**options), []
        for page in source.read(cursor):
            if page is not None:
                assert page.start == cursor
                pages.append(page)
                cursor = json.loads(json.dumps(page.cursor))
        source.close()
        return pages, cursor


@pytest.fixture
def topics(kafka):
    topics = Topics(kafka.bootstrap_servers)
    yield topics
    topics.delete()


def ids(pages):
    return [record.data["id"] for page in pages for record in page.rows]


def orders(first, last, partitions=3):
    return [(n % partitions, str(n), {"id": n}) for n in range(first, last)]


def test_each_message_is_in_one_page_and_a_run_goes_on_where_the_last_one_ended(topics):
    assert topics.read()[0] == [], "an empty topic has no pages"
    topics.send(*orders(0, 250))
    pages, cursor = topics.read(page_rows=40)
    assert sorted(ids(pages)) == list(range(250))
    assert [len(page.rows) for page in pages] == [0, 40, 40, 40, 40, 40, 40, 10]
    assert topics.read(cursor)[0] == []
    topics.send(*orders(250, 260))
    assert sorted(ids(topics.read(cursor)[0])) == list(range(250, 260))


def test_messages_from_a_time_on_are_read_again_and_none_that_was_not_read_is_left_out(topics):
    producer = Producer({"bootstrap.servers": topics.servers})
    begin = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    for n in range(3):
        for partition in range(2):
            value = json.dumps({"id": 10 * n + partition})
            at_ms = int((begin + timedelta(minutes=n)).timestamp() * 1000)
            producer.produce(topics.name, value, str(n), partition, timestamp=at_ms)
    assert producer.flush(120) == 0
    _, cursor = topics.read()
    topics.send((0, "9", {"id": 90}))
    source = topics.connector()
    again = source.cursor_at((begin + timedelta(minutes=1)).isoformat(), cursor)
    assert sorted(ids(topics.read(again)[0])) == [10, 11, 20, 21, 90]
    later = source.cursor_at("2100-01-01", cursor)
    assert ids(topics.read(later)[0]) == [90], "what was not read is not passed over"
    assert ids(topics.read(source.cursor_at("2100-01-01", None))[0]) == []
    with pytest.raises(InputError, match="from: expected a message's time"):
        source.cursor_at("200", None)


def test_messages_between_two_times_are_read_again_and_the_cursor_stays_where_it_is(topics):
    producer = Producer({"bootstrap.servers": topics.servers})
    begin = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    times = [(begin + timedelta(minutes=n)).isoformat() for n in range(4)]
    for n in range(4):
        for partition in range(2):
            value = json.dumps({"id": 10 * n + partition})
            at_ms = int((begin + timedelta(minutes=n)).timestamp() * 1000)
            producer.produce(topics.name, value, str(n), partition, timestamp=at_ms)
    assert producer.flush(120) == 0
    source = topics.connector()
    with pytest.raises(InputError, match="^to: no topic was read yet"):
        source.reread_between(times[1], times[2], None)
    _, stood = topics.read()
    topics.send((0, "9", {"id": 90}))

    again = {**stood, "rereads": [source.reread_between(times[1], times[2], stood)]}
    pages, _ = topics.read(again, page_rows=3)
    assert ids(pages) == [10, 20, 11, 21, 90]
    assert [page.start for page in pages] == [again, *(page.cursor for page in pages[:-1])]
    behind = next(page.cursor for page in pages if "rereads" not in page.cursor)
    assert behind == stood
    for page in pages:
        [first, *_] = topics.read(json.loads(json.dumps(page.start)), page_rows=3)[0]
        assert (ids([first]), first.cursor) == (ids([page]), page.cursor)

    all_of_it = source.reread_between(times[0], "2100-01-01", stood)
    assert sorted(ids(topics.read({**stood, "rereads": [all_of_it]})[0])) == [
        *(10 * n + partition for n in range(4) for partition in range(2)),
        90,
    ], "what was not read is not in the range, and comes behind it"
    none = source.reread_between("2001-01-01", "2001-02-01", stood)
    assert ids(topics.read({**stood, "rereads": [none, none]})[0]) == [90]
    with pytest.raises(InputError, match="^to: .* is before from"):
        source.reread_between(times[2], times[1], stood)
    with pytest.raises(InputError, match="^to: expected a message's time"):
        source.reread_between(times[2], "soon", stood)


def test_messages_that_were_deleted_since_they_were_asked_for_again_are_left_out(topics):
    topics.send(*orders(0, 6, partitions=1))
    _, stood = topics.read()
    asked = topics.connector().reread_between("2001-01-01", "2100-01-01", stood)
    place = TopicPartition(topics.name, 0, 4)
    topics.admin.delete_records([place])[place].result(60)
    assert ids(topics.read({**stood, "rereads": [asked]})[0]) == [4, 5]


def test_a_page_that_is_read_again_is_the_same_whatever_came_meanwhile(topics):
    topics.send(*orders(0, 90))
    pages, _ = topics.read(page_rows=25)
    topics.send(*orders(90, 200))
    for page in pages[1:]:
        source = topics.connector(page_rows=25)
        again = next(found for found in source.read(page.start) if found is not None)
        source.close()
        assert (again.rows, again.cursor) == (page.rows, page.cursor)


def test_only_what_transactions_committed_is_read(topics):
    topics.send(*orders(0, 3))
    topics.send(*orders(3, 6), **{"transactional.id": "a"}).commit_transaction(120)
    topics.send(*orders(6, 9), **{"transactional.id": "b"}).abort_transaction(120)
    topics.ended()
    open_one = topics.send(*orders(9, 12), **{"transactional.id": "c"})
    topics.send(*orders(12, 15))
    pages, cursor = topics.read()
    assert sorted(ids(pages)) == list(range(6)), "what stands behind an open one waits"
    open_one.commit_transaction(120)
    topics.ended()
    assert sorted(ids(topics.read(cursor)[0])) == list(range(9, 15))


def test_what_cannot_be_read_parks_with_its_place_and_its_neighbours_go_on(topics):
    topics.send((1, "0", {"id": 0}), (1, "1", b"\x00\x01"), (1, None, None), (1, "3", {"id": 3}))
    pages, _ = topics.read()
    assert ids(pages) == [0, 3]
    bad = [one for page in pages for one in page.bad]
    assert [(one.raw, one.code, one.place) for one in bad] == [
        (b"\x00\x01", "source_row_malformed", f"{topics.name}/1/1"),
        (b"", "key_missing", f"{topics.name}/1/2"),
    ]
    assert pages[-1].place(1) == f"{topics.name}/1/3"


def test_keys_of_messages_and_tombstones(topics):
    topics.send((0, "7", {"name": "a"}), (0, '{"id": 8}', {"name": "b"}), (0, "7", None))
    pages, _ = topics.read(key="message")
    found = [(one.op, one.data) for page in pages for one in page.rows]
    assert found == [
        ("upsert", {"name": "a", "id": 7}),
        ("upsert", {"name": "b", "id": 8}),
        ("delete", {"id": 7}),
    ]


def test_changes_of_debezium_come_with_the_position_of_the_sources_log(topics):
    def change(op, lsn, **parts):
        return {"op": op, "source": {"lsn": lsn}, "before": None, "after": None} | parts

    key = '{"id": 7}'
    topics.send(
        (0, key, change("r", 5, after={"id": 7, "name": "a"})),
        (0, key, change("u", 10, after={"id": 7, "name": "b"})),
        (0, key, change("d", 20, before={"id": 7, "name": None})),
        (0, key, None),
    )
    pages, _ = topics.read(format="debezium", version="position")
    found = [(one.op, one.version) for page in pages for one in page.rows]
    assert found == [("upsert", None), ("upsert", 10), ("delete", 20)]


def test_partitions_that_are_added_are_read_from_their_beginning(topics):
    topics.send(*orders(0, 30))
    _, cursor = topics.read()
    topics.admin.create_partitions([NewPartitions(topics.name, 5)])[topics.name].result(60)
    wait_for(lambda: topics.has_leaders(5))
    moved = topics.connector().cursor_at("2100-01-01", cursor)
    stands = cursor["topics"][topics.name]["offsets"]
    assert moved["topics"][topics.name]["offsets"] == stands, "wherever new ones begin by then"
    topics.send(*orders(30, 60, partitions=5))
    assert sorted(ids(topics.read(cursor)[0])) == list(range(30, 60))
    assert sorted(ids(topics.read(moved)[0])) == list(range(30, 60))


def test_messages_that_were_deleted_before_they_were_read_are_told(topics):
    topics.send(*orders(0, 30))
    _, cursor = topics.read()
    topics.send(*orders(30, 60))
    place = TopicPartition(topics.name, 1, 15)
    topics.admin.delete_records([place])[place].result(60)
    with pytest.raises(InputError, match=r"partition 1: the messages 10 to 14 were deleted"):
        topics.read(cursor)
    assert sorted(ids(topics.read()[0])) == sorted({*range(60)} - {*range(1, 46, 3)})


def test_a_topic_that_was_made_again_is_told(topics):
    topics.send(*orders(0, 30))
    _, cursor = topics.read()
    topics.delete()
    topics.make()
    with pytest.raises(InputError, match="was deleted and made again"):
        topics.read(cursor)


def test_what_is_wrong_is_said(topics):
    with pytest.raises(InputError, match=r"correct source\.options\.topics"):
        topics.read(topics={"order": "nothing-here"})
    with pytest.raises(InputError, match="position is for format: debezium"):
        topics.read(version="position")
    with pytest.raises(InputError, match="is not under `events`"):
        topics.read(topics={"line": topics.name})
    with pytest.raises(InputError, match="is not one of connector kafka"):
        topics.read({"row": 1})


def test_a_kafka_that_is_away_is_tried_again(topics, monkeypatch):
    monkeypatch.setattr("waybill.ingestion.connectors.kafka_topics.log._ANSWER_S", 1.0)
    with pytest.raises(RetryError):
        topics.read(servers="127.0.0.1:1")


ORDER = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})
LATER = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"], "default": None},
        ],
    }
)


def of_schema(number, data):
    return b"\0" + number.to_bytes(4) + data


@pytest.fixture
def schemas():
    server = SchemaServer()
    yield server
    server.close()


def test_messages_of_a_registry_that_is_away_wait_and_one_that_is_wrong_parks_alone(
    topics, schemas
):
    topics.use(f"http://u:s3cret-word@127.0.0.1:{schemas.port}")
    schemas.add(1, ORDER, subject="orders-value")
    schemas.add(2, LATER, subject="orders-value", version=2)
    topics.send(
        (0, "1", of_schema(1, b"\2")),
        (0, "2", of_schema(2, b"\4\2\4hi")),
        (0, "3", of_schema(1, b"\2\2")),
        (0, "4", of_schema(9, b"\2")),
        (0, "5", None),
    )
    options = {"format": "avro", "registry": "registry"}
    schemas.answer = 500, b"", {}
    source = topics.connector(**options)
    began = next(page for page in source.read(None) if page is not None)
    assert (began.rows, began.bad) == ([], []), "where the topic's end is"
    source.close()
    with pytest.raises(RetryError, match="answers 500"):
        topics.read(began.cursor, **options)
    schemas.answer = 401, b"s3cret-word", {}
    with pytest.raises(InputError, match="correct the connection's login"):
        topics.read(began.cursor, **options)
    schemas.answer = None
    source, rows, bad = topics.connector(**options), [], []
    for page in source.read(began.cursor):
        if page is not None:
            rows += page.rows
            bad += page.bad
    assert [(row.op, row.data) for row in rows] == [
        ("upsert", {"id": 1}),
        ("upsert", {"id": 2, "note": "hi"}),
        ("delete", {"id": 5}),
    ]
    assert [(one.code, one.place, one.raw) for one in bad] == [
        ("source_row_malformed", f"{topics.name}/0/2", of_schema(1, b"\2\2")),
        ("source_schema_unknown", f"{topics.name}/0/3", of_schema(9, b"\2")),
    ]
    assert source.notes()[0].startswith("schema 1 (subject orders-value): 1 message")
    source.close()


def test_messages_of_protobuf_by_a_registry(topics, schemas):
    topics.use(f"http://127.0.0.1:{schemas.port}")
    schemas.add(5, serialized(orders_file()), "PROTOBUF")
    topics.send((0, "1", of_schema(5, b"\0\x08\x07")), (0, "2", of_schema(5, b"\0\x08")))
    pages, _ = topics.read(format="protobuf", registry="registry")
    assert ids(pages) == [7]
    assert [one.place for page in pages for one in page.bad] == [f"{topics.name}/0/1"]


@pytest.mark.campaign
def test_messages_by_a_real_registry(topics, tmp_path):
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    registry = Apicurio(tmp_path)
    try:
        topics.use(registry.url)
        first = registry.register("orders-value", {"schema": ORDER})
        kind = json.dumps({"type": "enum", "name": "Kind", "symbols": ["A", "B"]})
        registry.register("kind", {"schema": kind})
        fields = [{"name": "id", "type": "long"}, {"name": "kind", "type": "Kind"}]
        text = json.dumps({"type": "record", "name": "Line", "fields": fields})
        reference = {"name": "Kind", "subject": "kind", "version": 1}
        second = registry.register("lines-value", {"schema": text, "references": [reference]})
        proto = 'syntax = "proto3"; message O { int64 id = 1; }'
        third = registry.register("o-value", {"schema": proto, "schemaType": "PROTOBUF"})
        topics.send(
            (0, "1", of_schema(first, b"\2")),
            (0, "2", of_schema(second, b"\4\2")),
            (0, "3", of_schema(third, b"\0\x08\1")),
            (0, "4", of_schema(first + 10_000, b"\2")),
        )
        options = {"format": "avro", "registry": "registry"}
        pages, cursor = topics.read(**options)
        assert [row.data for page in pages for row in page.rows] == [
            {"id": 1},
            {"id": 2, "kind": "B"},
        ]
        bad = [one for page in pages for one in page.bad]
        assert [one.code for one in bad] == ["source_schema_unknown"] * 2
        assert "format=serialized" in bad[0].message
        topics.send((0, "5", of_schema(second, b"\6\0")))
        registry.stop()
        with pytest.raises(RetryError, match="does not answer"):
            topics.read(cursor, **options)
        registry.start()
        again = registry.register("lines-value", {"schema": ORDER})
        topics.send((0, "6", of_schema(again, b"\x0c")))
        assert ids(topics.read(cursor, **options)[0])[-1] == 6
    finally:
        registry.stop()
