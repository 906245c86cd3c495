"""What the demo claims at its end, counted in the warehouse itself and held against the ledger."""

from __future__ import annotations

from typing import Any

from waybill.errors import StopError
from waybill.settings import Settings
from waybill.wiring import balance, deployed_pipelines


def result(settings: Settings) -> dict[str, Any]:
    """Return the demo's figures.

    Raises:
        StopError: the warehouse and the ledger do not agree, or a key is there twice.
    """
    report = balance(settings)
    rows = _warehouse_rows(settings)
    if rows != report.delivered:
        raise StopError(f"the warehouse holds {rows} rows, the ledger says {report.delivered}")
    return {
        "ingested": report.ingested,
        "delivered": rows,
        "parked": report.parked,
        "replayed": report.replayed,
        "unaccounted": report.unaccounted,
    }


def _warehouse_rows(settings: Settings) -> int:
    """Count rows and distinct keys of each pipeline's table, as any user could."""
    import psycopg  # noqa: PLC0415
    from psycopg import sql  # noqa: PLC0415

    total = 0
    for pipeline in deployed_pipelines(settings).values():
        dsn = settings.destinations[pipeline.destination].dsn.get_secret_value()
        with psycopg.connect(dsn) as connection:
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
