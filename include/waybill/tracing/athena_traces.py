"""Look-ups by Athena over the same objects, for production on AWS.

NOT LIVE-TESTED in this project: nothing local runs Athena. Held by tests: the statement (golden),
its parameters, and what is done with its rows. DuckDB runs the same template for real.

The table ``traces`` (partition projection on dt, hour and bucket, all strings; no partition DDL)
lies in ``settings.traces.athena_database``; a statement scans one bucket of the days asked for.
Athena reads ``at`` with milliseconds, so microseconds are lost; traces equal in all else are one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from waybill.errors import RetryError
from waybill.settings import Settings
from waybill.tracing.lookup import lookup_sql, lookup_values
from waybill.tracing.query import arranged, check_window, spooled
from waybill.tracing.store import Buckets, TraceStore
from waybill.tracing.trace import TRACE_SCHEMA, Trace, to_trace

_MILLISECOND = timedelta(milliseconds=1)
_ANY_TIME = datetime(1970, 1, 1, tzinfo=UTC)

Rows = Sequence[Sequence[Any]]
Execute = Callable[[str, list[str]], Rows]
"""Runs a statement with ``?`` and SQL literals for them, and returns its rows."""


class AthenaTraces:
    """Reads traces through Athena, and from this node's spool. Not live-tested, see the module.

    Args:
        execute: runs a statement; ``athena_execute`` makes the real one.
        store: states the number of buckets.
        buckets: used while the store states none.
        spool_dir: this node's spool; None: only what is shipped.
    """

    def __init__(
        self, execute: Execute, store: TraceStore, *, buckets: int, spool_dir: Path | None
    ) -> None:
        self._execute = execute
        self._buckets = Buckets(store, configured=buckets)
        self._spool_dir = spool_dir

    def trail(
        self, event_id: str, *, since: datetime | None = None, until: datetime | None = None
    ) -> list[Trace]:
        """See ``TraceQuery.trail``. Cost: seconds; scans one bucket of the days asked."""
        check_window(since, until)
        found = spooled(self._spool_dir, event_id)  # before the store: invariant I6
        sql = lookup_sql("athena", since=since is not None, until=until is not None)
        values = lookup_values(event_id, self._buckets.of(event_id), since, until)
        rows = self._execute(sql, [_literal(value) for value in values])
        shipped = [to_trace(dict(zip(TRACE_SCHEMA.names, row, strict=True))) for row in rows]
        return arranged(shipped + _not_yet_shipped(found, shipped), since, until)


def athena_execute(settings: Settings) -> Execute:
    """Return what runs a statement on Athena, as it is configured; connects at the first call."""

    def execute(sql: str, literals: list[str]) -> Rows:
        import pyathena  # noqa: PLC0415

        options: dict[str, Any] = {
            "schema_name": settings.traces.athena_database,
            "work_group": settings.traces.athena_workgroup,
            "region_name": settings.s3.region,
        }
        if settings.traces.athena_results:
            options["s3_staging_dir"] = settings.traces.athena_results
        try:
            with pyathena.connect(**options) as connection, connection.cursor() as cursor:
                rows: Rows = cursor.execute(sql, literals, paramstyle="qmark").fetchall()
        except pyathena.error.OperationalError as error:
            raise RetryError(f"Athena did not run the look-up: {error}") from error
        return rows

    return execute


def _literal(value: str) -> str:
    """Return a text as the SQL literal that Athena's execution parameters ask for."""
    return "'" + value.replace("'", "''") + "'"


def _not_yet_shipped(found: list[Trace], shipped: list[Trace]) -> list[Trace]:
    """Return the spool's traces without those that Athena has, to the millisecond."""
    known: dict[Trace, list[datetime]] = {}
    for trace in shipped:
        known.setdefault(replace(trace, at=_ANY_TIME), []).append(trace.at)
    return [
        trace
        for trace in found
        if not any(
            abs(at - trace.at) <= _MILLISECOND for at in known.get(replace(trace, at=_ANY_TIME), ())
        )
    ]
