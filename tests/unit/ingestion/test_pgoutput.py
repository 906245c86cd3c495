"""The messages of pgoutput, as bytes of PostgreSQL's own documentation of the protocol."""

import pytest

from waybill.errors import StopError
from waybill.ingestion.connectors.postgres_cdc.pgoutput import (
    UNCHANGED,
    Begin,
    Column,
    Commit,
    Delete,
    Insert,
    Relation,
    Truncate,
    Update,
    decode,
    read_insert,
)

OID = (16388).to_bytes(4)


def text(value):
    return b"t" + len(value).to_bytes(4) + value


def values(*parts):
    return len(parts).to_bytes(2) + b"".join(parts)


def test_a_transaction_begins_and_commits_at_positions_of_the_log():
    assert decode(b"B" + (2**40 + 8).to_bytes(8) + bytes(12)) == Begin(2**40 + 8)
    commit = b"C\0" + (16).to_bytes(8) + (64).to_bytes(8) + bytes(8)
    assert decode(commit) == Commit(16, 64)


def test_a_relation_says_names_types_and_what_identifies_a_row():
    columns = b"\1id\0" + (23).to_bytes(4) + b"\xff\xff\xff\xff"
    columns += b"\0na\xc3\xafve\0" + (25).to_bytes(4) + b"\xff\xff\xff\xff"
    data = b"R" + OID + b"shop\0orders\0d" + (2).to_bytes(2) + columns
    found = decode(data)
    assert found == Relation(
        16388, "shop", "orders", (Column("id", 23, True), Column("naïve", 25, False))
    )


def test_values_are_text_null_or_untouched():
    row = values(text(b"7"), b"n", b"u", text(b""))
    assert decode(b"I" + OID + b"N" + row) == Insert(16388, [b"7", None, UNCHANGED, b""])


@pytest.mark.parametrize(("kind", "whole"), [(b"K", False), (b"O", True)])
def test_an_update_may_have_the_old_row_or_its_key(kind, whole):
    old, new = values(text(b"7")), values(text(b"8"))
    found = decode(b"U" + OID + kind + old + b"N" + new)
    assert found == Update(16388, [b"7"], whole, [b"8"])
    assert decode(b"U" + OID + b"N" + new) == Update(16388, None, False, [b"8"])


def test_deletes_and_truncations_name_what_is_gone():
    assert decode(b"D" + OID + b"K" + values(text(b"7"), b"n")) == Delete(16388, [b"7", None])
    assert decode(b"T" + (2).to_bytes(4) + b"\0" + OID + OID) == Truncate((16388, 16388))


@pytest.mark.parametrize("kind", [b"Y", b"O", b"M"])
def test_what_says_nothing_about_rows_is_passed_over(kind):
    assert decode(kind + b"whatever") is None


@pytest.mark.parametrize(
    "data",
    [
        b"S" + bytes(8),
        b"B123",
        b"I" + OID + b"N" + (2).to_bytes(2) + text(b"7"),
        b"I" + OID + b"N" + (1).to_bytes(2) + b"t" + (9).to_bytes(4) + b"7",
        b"I" + OID + b"N" + (1).to_bytes(2) + b"b" + (1).to_bytes(4) + b"7",
        b"R" + OID + b"never ends",
    ],
)
def test_what_the_protocol_does_not_have_stops_the_run(data):
    with pytest.raises(StopError):
        decode(data)


def row_message(oid, *parts):
    return b"I" + oid + b"N" + values(*parts)


COLUMNS = [("id", int), ("name", bytes.decode), ("at", int)]


@pytest.mark.parametrize(
    ("parts", "row"),
    [
        ([text(b"7"), text("é".encode()), b"n"], {"id": 7, "name": "é", "at": None}),
        ([b"n", b"n", b"n"], {"id": None, "name": None, "at": None}),
        ([text(b"7"), text(b""), text(b"8")], {"id": 7, "name": "", "at": 8}),
        ([text(b"7"), b"u", b"n"], None),
        ([text(b"7"), text(b"x")], None),
        ([text(b"7"), text(b"x"), b"n", b"n"], None),
        ([text(b"7"), text(b"\xff"), b"n"], None),
        ([text(b"x"), text(b"x"), b"n"], None),
        ([text(b"7"), b"b" + (1).to_bytes(4) + b"x", b"n"], None),
    ],
)
def test_an_insert_is_read_at_once_where_nothing_is_strange(parts, row):
    message = row_message(OID, *parts)
    assert read_insert(message, COLUMNS) == row
    if row is not None:
        assert [*row] == [name for name, _ in COLUMNS]
        for end in range(8, len(message)):
            assert read_insert(message[:end], COLUMNS) is None
