"""Statements on Athena: started, watched, cancelled; rows as they come.

NOT LIVE-TESTED in this project: nothing local runs Athena. Held by tests: the calls and what is
done with their answers, against a server that speaks Athena's protocol.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from waybill.errors import RetryError
from waybill.tracing.lookup import Statement, Value
from waybill.tracing.watch import QueryCancelledError, QueryWatch

if TYPE_CHECKING:
    from waybill.settings import Settings

_POLL_S = 0.5
_SUCCEEDED = "SUCCEEDED"
Row = Sequence[Any]


class Runner(Protocol):
    """Runs a statement and yields its rows."""

    def __call__(self, statement: Statement, watch: QueryWatch | None) -> Iterator[Row]:
        """Start a statement; yield its rows once it has succeeded.

        Args:
            statement: with ``?``.
            watch: told of the execution's id and of the bytes it scans; asked whether to go on.
        """
        ...


class AthenaRunner:
    """Runs statements as Athena is configured; connects at the first one.

    Args:
        settings: database, workgroup, region and folder of results.
        poll_s: how often an execution is asked after.
    """

    def __init__(self, settings: Settings, *, poll_s: float = _POLL_S) -> None:
        self._settings = settings
        self._poll_s = poll_s
        self._connection: Any = None

    def __call__(self, statement: Statement, watch: QueryWatch | None) -> Iterator[Row]:
        """See ``Runner``. Raises RetryError, and QueryCancelledError once Athena has stopped it."""
        with _athenas_errors(), self._cursor() as cursor:
            literals = [literal(value) for value in statement.values]
            query_id, rows = cursor.execute(statement.sql, literals, paramstyle="qmark")
            if watch is not None:
                watch.started(query_id)
                self._wait(cursor, query_id, watch)
            result = rows.result()
            if result.state != _SUCCEEDED:
                raise RetryError(  # pyathena's cursor gives no rows then, and no error
                    f"Athena's query {query_id} ended as {result.state}: "
                    f"{result.state_change_reason or 'no reason given'}"
                )
            yield from result

    def _wait(self, cursor: Any, query_id: str, watch: QueryWatch) -> None:
        """Tell the watch how far the execution is until it ends; stop it when the watch says so."""
        while True:
            execution = cursor.query_execution(query_id).result()
            scanned = execution.data_scanned_in_bytes or 0
            watch.progress(objects_read=0, bytes_scanned=scanned)
            if execution.state in execution.TERMINAL_STATES:
                return
            if watch.cancelled():
                cursor.cancel(query_id).result()
                raise QueryCancelledError(f"the query was cancelled ({query_id} on Athena)")
            time.sleep(self._poll_s)

    def _cursor(self) -> Any:
        import pyathena
        from botocore.config import Config
        from pyathena.async_cursor import AsyncCursor

        if self._connection is None:
            traces = self._settings.traces
            self._connection = pyathena.connect(
                schema_name=traces.athena_database,
                work_group=traces.athena_workgroup,
                region_name=self._settings.s3.region,
                s3_staging_dir=traces.athena_results or None,
                poll_interval=self._poll_s,
                config=Config(connect_timeout=5, read_timeout=60),
                cursor_class=AsyncCursor,
            )
        return self._connection.cursor()


@contextmanager
def _athenas_errors() -> Iterator[None]:
    import pyathena
    from botocore.exceptions import BotoCoreError

    try:
        yield
    except (pyathena.error.DatabaseError, BotoCoreError) as error:
        raise RetryError(f"Athena did not run the query: {error}") from error


def literal(value: Value) -> str:
    """Return a value as the SQL literal that Athena's execution parameters ask for."""
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"
