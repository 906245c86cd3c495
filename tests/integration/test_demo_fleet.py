"""The database that ``waybill demo --sources`` makes, changes, and leaves without a slot."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests.servers import wait_for

from waybill.cli.demo_sources import ROUNDS, Fleet, changes_of, difference, planes

pytestmark = pytest.mark.serves


@pytest.fixture
def dsn(postgres: Any) -> str:
    made: str = postgres.database("fleet")
    return made


def test_a_database_that_was_made_and_changed_stays_so_when_that_is_done_again(dsn: str) -> None:
    fleet = Fleet(dsn)
    fleet.prepare()
    first = [(*row, "in service") for row in planes()[:3_000]]
    assert difference(first, fleet.rows()) == ""
    for number in (0, 1, 0):
        fleet.change(number)
    fleet.prepare()
    rows = {row[0]: row for row in fleet.rows()}
    assert len(rows) == 3_000 + 2 * (16 - 10)
    for number in (0, 1):
        changes = changes_of(number, planes())
        assert {rows[key][-1] for key in changes.updated} == {"repainted"}
        assert not rows.keys() & set(changes.deleted)
        assert {row[0] for row in changes.inserted} <= rows.keys()
    for number in range(ROUNDS):
        fleet.change(number)
    assert len(fleet.rows()) == 3_120


def test_a_slot_is_dropped_once_nobody_reads_it_and_a_missing_one_is_no_error(
    dsn: str, postgres: Any
) -> None:
    from psycopg.pq import PGconn

    fleet, name = Fleet(dsn), "waybill_demo_test"
    fleet.prepare()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE PUBLICATION waybill_demo_test FOR TABLE public.planes")
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
        reader = PGconn.connect(f"{dsn}&replication=database".encode())
        reader.exec_(
            f"START_REPLICATION SLOT {name} LOGICAL 0/0"
            f" (proto_version '1', publication_names '{name}')".encode()
        )
        assert not fleet.drop_slot(name)
        reader.finish()
        wait_for(lambda: fleet.drop_slot(name))
        assert fleet.drop_slot(name)
        for table in ("pg_replication_slots WHERE slot_name", "pg_publication WHERE pubname"):
            found = connection.execute(f"SELECT count(*) FROM {table} = %s", [name]).fetchone()
            assert found == (0,)
