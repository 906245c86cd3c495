"""A PostgreSQL of its own as a source, its tables, and what is made of the records read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
