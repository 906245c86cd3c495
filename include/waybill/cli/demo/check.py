"""What the demo claims at its end, counted in the warehouse itself and held against the ledger."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from waybill.errors import StopError
from waybill.services import balance, deployed_pipelines
from waybill.settings import Settings


def result(settings: Settings, names: Collection[str]) -> dict[str, Any]:
    """Return the figures of the demo's pipelines, given by name.

    Raises:
        StopError: the warehouse and the ledger do not agree, or a key is there twice.
    """
    reports = [balance(settings, pipeline=name) for name in names]
    total = {
        name: sum(int(getattr(report, name)) for report in reports)
        for name in ("ingested", "delivered", "parked", "replayed", "unaccounted")
    }
    rows = _warehouse_rows(settings, names)
    if rows != total["delivered"]:
        raise StopError(f"the warehouse holds {rows} rows, the ledger says {total['delivered']}")
    return total


_LIMITS: dict[str, Any] = {"connect_timeout": 10, "options": "-c statement_timeout=300s"}


def _warehouse_rows(settings: Settings, names: Collection[str]) -> int:
    """Count rows and distinct keys of each pipeline's table, as any user could."""
    import psycopg
    from psycopg import sql

    total = 0
    mine = [p for p in deployed_pipelines(settings).values() if p.name in names]
    for pipeline in mine:
        dsn = settings.destinations[pipeline.destination].dsn.get_secret_value()
        with psycopg.connect(dsn, **_LIMITS) as connection:
            for event in pipeline.events.values():
                table = sql.Identifier(event.table.schema_name, event.table.name)
                keys = sql.SQL(", ").join(map(sql.Identifier, event.table.key))
                query = sql.SQL("SELECT count(*), count(DISTINCT ({keys})) FROM {table}")
                row = connection.execute(query.format(keys=keys, table=table)).fetchone()
                rows, distinct = (0, 0) if row is None else row
                if rows != distinct:
                    raise StopError(f"{event.table.name}: {rows} rows, {distinct} keys")
                total += rows
    return total
