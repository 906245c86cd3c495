"""Pages of a replication slot: inserts that are read at once make the pages of those read slowly."""

from __future__ import annotations

import random
from types import SimpleNamespace

import msgspec
import pytest

from waybill.errors import StopError
from waybill.ingestion.connectors.base import Patience, Record
from waybill.ingestion.connectors.postgres_cdc.changes import ChangeReader
from waybill.ingestion.connectors.postgres_cdc.column_values import Converters
from waybill.ingestion.connectors.postgres_cdc.declaration import TableName
from waybill.ingestion.connectors.postgres_cdc.log_reader import LogReader
from waybill.ingestion.connectors.postgres_cdc.position import Position
from waybill.ingestion.connectors.postgres_cdc.replication import ReplicationStream
from waybill.ingestion.connectors.postgres_cdc.source_database import SourceTable

SEED, BEGIN = 42, 2**40
OIDS = {"orders": 16_388, "customers": 16_390, "nobody's": 16_392}
TYPES = {"id": 20, "name": 25, "price": 701, "paid": 16, "at": 1184, "more": 3802}
TEXTS = {
    "id": [b"7", b"-1", b"9223372036854775807"],
    "name": [b"", "é".encode(), b"\xff", b"NaN"],
    "price": [b"1.5", b"NaN", b"-Infinity", b"1e+300", b"5"],
    "paid": [b"t", b"f"],
    "at": [
        b"2026-03-01 00:00:01+00",
        b"2026-03-01 00:00:01.5+00",
        b"2026-03-01 00:00:01+05:45",
        b"12026-03-01 00:00:01+00",
        b"0044-03-15 00:00:00+00 BC",
        b"infinity",
    ],
    "more": [b'{"a": [1.50, null]}', b"nothing", b"7"],
}


class Libpq:
    """A connection in COPY BOTH whose server has sent some messages of the output plugin."""

    socket = 0

    def __init__(self, messages):
        self._left = [
            b"w" + (BEGIN + 100 * number).to_bytes(8) + bytes(16) + message
            for number, message in enumerate(messages)
        ][::-1]

    def get_copy_data(self, _decode):
        if not self._left:
            return 0, memoryview(b"")
        data = self._left.pop()
        return len(data), memoryview(data)

    def consume_input(self):
        pass

    def put_copy_data(self, data):
        pass

    def flush(self):
        pass


def table(name):
    columns, key = tuple(TYPES), ("id",)
    at = TableName(("public", name))
    return SourceTable(at, name, key, OIDS[name], columns, page_key=key, page_key_types=("bigint",))


def pages(messages, *, position, page_rows=1000):
    stream = ReplicationStream.__new__(ReplicationStream)
    stream._confirmed = stream._received = BEGIN
    stream._told = float("inf")
    stream._connection = Libpq(messages)
    stream._poll = SimpleNamespace(poll=lambda _ms: [])
    database = SimpleNamespace(rows=lambda *_: [SimpleNamespace(name="name")])
    changes = ChangeReader(database, Converters(None), [table("orders"), table("customers")])
    changes.complete = lambda page: page.incomplete.clear()
    reader = LogReader(stream, changes, position, page_rows=page_rows)
    return [page for page in reader.pages(Patience(0.05, 1000), target=BEGIN) if page is not None]


def relation(name):
    columns = b"".join(
        b"%c%b\0%b\xff\xff\xff\xff" % (name == "id", name.encode(), oid.to_bytes(4))
        for name, oid in TYPES.items()
    )
    count = len(TYPES).to_bytes(2)
    return b"R" + OIDS[name].to_bytes(4) + b"public\0" + name.encode() + b"\0d" + count + columns


def cell(chance, name):
    kind = chance.random()
    if kind < 0.1:
        return b"u" if kind < 0.01 and name == "name" else b"n"
    text = chance.choice(TEXTS[name]) if kind > 0.9 else TEXTS[name][0]
    return b"t" + len(text).to_bytes(4) + text


def row(chance):
    return len(TYPES).to_bytes(2) + b"".join(cell(chance, name) for name in TYPES)


def a_log(chance, changes):
    messages, end = [relation(name) for name in OIDS], BEGIN
    while changes > 0:
        size = chance.randrange(1, 30)
        changes -= size
        end += 10_000
        messages.append(b"B" + end.to_bytes(8) + bytes(12))
        for _ in range(size):
            oid = chance.choice([*OIDS.values()]).to_bytes(4)
            kind = chance.random()
            if kind < 0.7:
                messages.append(b"I" + oid + b"N" + row(chance))
            elif kind < 0.8:
                messages.append(b"U" + oid + b"N" + row(chance))
            elif kind < 0.9:
                messages.append(b"D" + oid + b"O" + row(chance))
            elif kind < 0.95:
                messages.append(b"M nothing of a row")
            else:
                messages.append(b"T" + (1).to_bytes(4) + b"\0" + oid)
        messages.append(b"C\0" + end.to_bytes(8) + (end + 64).to_bytes(8) + bytes(8))
    return messages


def plain(page):
    rows = [msgspec.structs.astuple(one) for one in page.rows]
    return repr((rows, page.bad, page.cursor, page.start))


@pytest.mark.parametrize("page_rows", [1, 7, 1000])
def test_pages_are_the_same_whether_inserts_are_read_at_once_or_like_all_else(
    page_rows, monkeypatch
):
    messages = a_log(random.Random(SEED), 2_000)
    begin = Position(system="1", slot="s", lsn=BEGIN)
    quickly = pages(messages, position=begin, page_rows=page_rows)
    monkeypatch.setattr(ChangeReader, "add_insert", lambda *_: False)
    slowly = pages(messages, position=begin, page_rows=page_rows)
    assert list(map(plain, quickly)) == list(map(plain, slowly))
    assert sum(len(page.rows) for page in quickly) > 1_000
    assert sum(len(page.bad) for page in quickly) > 100


def test_a_run_that_goes_on_within_a_transaction_passes_over_what_was_read_of_it():
    insert = b"I" + OIDS["orders"].to_bytes(4) + b"N"
    chance = random.Random(SEED)
    rows = [insert + row(chance) for _ in range(9)]
    end = BEGIN + 10_000
    messages = [b"B" + end.to_bytes(8) + bytes(12), relation("orders"), *rows]
    messages.append(b"C\0" + end.to_bytes(8) + (end + 64).to_bytes(8) + bytes(8))
    first, *others = pages(
        messages, position=Position(system="1", slot="s", lsn=BEGIN), page_rows=4
    )
    again = pages(messages, position=Position.of(first.cursor), page_rows=4)
    assert list(map(plain, again)) == list(map(plain, others))


def test_an_insert_that_ends_too_early_stops_the_run():
    message = b"I" + OIDS["orders"].to_bytes(4) + b"N" + row(random.Random(SEED))
    begin = Position(system="1", slot="s", lsn=BEGIN)
    with pytest.raises(StopError, match="cannot be read"):
        pages([relation("orders"), message[:-1]], position=begin)


def test_a_new_row_is_a_record_of_its_table():
    parts = [b"t" + len(text).to_bytes(4) + text for text in (b"7", b"x", b"1.5", b"t")]
    message = b"I" + OIDS["customers"].to_bytes(4) + b"N" + (6).to_bytes(2)
    message += b"".join(parts) + b"nn"
    [page] = pages(
        [relation("customers"), message], position=Position(system="1", slot="s", lsn=BEGIN)
    )
    data = {"id": 7, "name": "x", "price": 1.5, "paid": True, "at": None, "more": None}
    assert page.rows == [Record(data, "customers", "upsert", BEGIN + 100)]
