"""A PostgreSQL of its own as a source, its tables, and what is made of the records read."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from pydantic import SecretStr
from tests import servers

from waybill.ingestion.connectors import Connections, Opening
from waybill.ingestion.connectors.postgres_cdc.connector import PostgresCdcConnector
from waybill.pipelines import Source
from waybill.stack.postgres import Postgres


@contextmanager
def source_server() -> Iterator[Postgres]:
    """A server that tests may stop, break and configure."""
    home = servers.new_home(servers.in_memory())
    server = Postgres(home)
    try:
        server.start()
        yield server
    finally:
        servers.end_home(home)


def connected(dsn: str) -> psycopg.Connection[Any]:
    """A session that commits each statement."""
    return psycopg.connect(dsn, autocommit=True)


def connector(dsn: str, **given: Any) -> PostgresCdcConnector:
    """A connector over ``public.orders``; ``given`` are options, ``page_rows`` and ``events``."""
    options = {
        "slot": "waybill_test",
        "tables": {"order": "public.orders"},
        "idle_s": 0.3,
        "run_s": 60.0,
    }
    page_rows, events = given.pop("page_rows", 1000), given.pop("events", {})
    source = Source(
        connector="postgres_cdc",
        event="order",
        connection="shop",
        page_rows=page_rows,
        options=options | given,
    )
    connections = Connections({"shop": SecretStr(dsn)})
    return PostgresCdcConnector(Opening(source, Path(), (), events, connections))


def read(source: PostgresCdcConnector, cursor: Any = None) -> tuple[list[Any], Any]:
    """Read to the end of a run, confirming each page; returns the pages, and the cursor behind."""
    pages = []
    for page in source.read(cursor):
        if page is not None:
            assert page.start == cursor
            pages.append(page)
            cursor = page.cursor
            source.confirm(cursor)
    return pages, cursor


def records(pages: list[Any]) -> list[Any]:
    """All records of some pages."""
    return [record for page in pages for record in page.rows]


class Merged:
    """Rows as a destination has them: by key, of the highest version."""

    def __init__(self, key: str = "id") -> None:
        self._key = key
        self._newest: dict[tuple[Any, Any], Any] = {}

    def take(self, rows: list[Any]) -> None:
        """Merge records; what has the version of what is there is a duplicate."""
        for record in rows:
            place = (record.event, record.data[self._key])
            known = self._newest.get(place)
            if known is None or known.version < record.version:
                self._newest[place] = record

    @property
    def rows(self) -> dict[tuple[Any, Any], dict[str, Any]]:
        """By event name and key; deleted rows are not there."""
        return {
            place: record.data for place, record in self._newest.items() if record.op == "upsert"
        }


DECLARATION = """
id: {team}-orders
name: orders
team: {team}
owner: shop@example.com
schedule: null
source:
  connector: postgres_cdc
  connection: shop
  event: order
  page_rows: {page_rows}
  options:
    slot: {team}
    idle_s: 0.5
    tables: {{order: public.orders}}
events:
  order:
    key: [id]
    version: null
    table: orders
    policy: evolve
    columns: {{id: int64}}
transformation: transformation.py
destination: {{name: warehouse, schema: {team}}}
"""


def write_pipeline(folder: Path, *, team: str, page_rows: int = 50) -> Path:
    """Write a pipeline over ``public.orders`` of connection ``shop``; the slot has the team's name."""
    home = folder / "orders"
    home.mkdir(parents=True, exist_ok=True)
    (home / "pipeline.yaml").write_text(DECLARATION.format(team=team, page_rows=page_rows))
    (home / "transformation.py").write_text("def transform(event):\n    return event\n")
    return home


def change_orders(shop: psycopg.Connection[Any], chance: random.Random, *, highest: int) -> None:
    """Change one row of ``orders`` at random: insert, update, delete, or give it another key."""
    number, other = chance.randint(1, highest), chance.randint(1, highest)
    kind = chance.random()
    with suppress(psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
        with shop.transaction():
            if kind < 0.2:
                shop.execute("DELETE FROM orders WHERE id = %s", [number])
            elif kind < 0.4:
                shop.execute(
                    "UPDATE orders SET id = %s WHERE id = %s AND NOT EXISTS"
                    " (SELECT FROM orders WHERE id = %s)",
                    [other, number, other],
                )
            elif kind < 0.6:
                big = None if chance.random() < 0.3 else str(chance.random()) * 200
                shop.execute("UPDATE orders SET big = %s WHERE id = %s", [big, number])
            elif kind < 0.8:
                name = f"by {chance.random()}"
                shop.execute("UPDATE orders SET name = %s WHERE id = %s", [name, number])
            else:
                shop.execute("INSERT INTO orders VALUES (%s) ON CONFLICT DO NOTHING", [number])
