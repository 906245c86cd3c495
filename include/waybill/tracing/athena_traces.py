"""Look-ups by Athena over the same objects, for production on AWS.

NOT LIVE-TESTED in this project: nothing local runs Athena. What tests hold: Trino 476, where it is
installed (`make trino`), runs these very statements and answers as DuckDB does; a server that
speaks Athena's protocol checks the calls, and what is done with their answers.

The tables (``sql``; ``waybill traces ddl`` prints them) lie in
``settings.traces.athena_database``. A look-up scans the event's bucket and the fresh one. Athena
reads ``at`` rounded to milliseconds, so microseconds are lost, and windows are widened to whole
milliseconds: what is near an edge is found too often rather than not at all. While an hour is
compacted Athena sees its traces in two objects: a trail is DISTINCT; a minute's traces are asked
for without those hours' outputs, and again when that changed meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from waybill.errors import RetryError
from waybill.tracing.layout import TraceStore, bucket_of, holds
from waybill.tracing.manifests import Manifest, read_manifests
from waybill.tracing.query import (
    QueryCancelledError,
    QueryWatch,
    Searched,
    StatementOf,
    TraceQuery,
    Window,
    only_of,
)
from waybill.tracing.sql import (
    Statement,
    Value,
    trails_statement,
)
from waybill.tracing.trace import TRACE_SCHEMA, Trace, to_trace

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
            traces, s3 = self._settings.traces, self._settings.s3
            keys = {}
            if s3.endpoint_url is None and s3.access_key and s3.secret_key:
                keys = {  # of another store's server they would be no keys of AWS
                    "aws_access_key_id": s3.access_key.get_secret_value(),
                    "aws_secret_access_key": s3.secret_key.get_secret_value(),
                }
            self._connection = pyathena.connect(
                schema_name=traces.athena_database,
                work_group=traces.athena_workgroup,
                region_name=s3.region,
                s3_staging_dir=traces.athena_results or None,
                poll_interval=self._poll_s,
                config=Config(connect_timeout=5, read_timeout=60),
                cursor_class=AsyncCursor,
                **keys,
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


_MILLISECOND = timedelta(milliseconds=1)
_ANY_TIME = datetime(1970, 1, 1, tzinfo=UTC)
_IDS_A_STATEMENT = 100
_ROWS_A_BATCH = 10_000


class AthenaTraces(TraceQuery):
    """Reads traces through Athena, and from this node's spool. Experimental, see the module.

    A trail takes seconds, and scans two buckets of the hours asked; trails take a statement for
    each hundred ids. Questions by time take a call to Athena for each 1,000 rows; they raise
    RetryError when an hour's compaction began or went on meanwhile: nothing that was yielded may be
    used then.

    Args:
        runner: runs a statement; ``AthenaRunner`` is the real one.
        store: states the layout, and which hours are being compacted.
        spool_dir: this node's spool; None: only what is shipped.
    """

    engine = "athena"

    def __init__(self, runner: Runner, store: TraceStore, *, spool_dir: Path | None) -> None:
        super().__init__(store, spool_dir=spool_dir)
        self._runner = runner

    def _widened(self, window: Window) -> Window:
        since, until = window
        return since and _floor(since), until and _ceiling(until)

    def _shipped(
        self, event_ids: Sequence[str], window: Window, watch: QueryWatch | None, spool_files: int
    ) -> list[Trace]:
        if watch is not None:
            watch.searching(Searched("athena", *window, 0, 0, spool_files))
        layout = self._layout.get()
        if layout is None:
            return []
        scanned = _Scanned(watch)
        shipped: list[Trace] = []
        for start in range(0, len(event_ids), _IDS_A_STATEMENT):
            ids = event_ids[start : start + _IDS_A_STATEMENT]
            buckets = sorted(
                {bucket_of(event_id, layout.buckets) for event_id in ids} | {layout.fresh}
            )
            statement = trails_statement("athena", ids, buckets, *window)
            shipped += only_of(ids, map(_trace, self._runner(statement, scanned.next())))
        return shipped

    def _joined(self, in_spool: list[Trace], shipped: list[Trace]) -> list[Trace]:
        return shipped + _not_yet_shipped(in_spool, shipped)

    def _by_time(
        self,
        statement_of: StatementOf,
        schema: pa.Schema,
        window: tuple[datetime, datetime],
        watch: QueryWatch | None,
    ) -> Iterator[pa.RecordBatch]:
        since, until = _floor(window[0]), _ceiling(window[1])
        if self._layout.get() is None:
            return
        if watch is not None:
            watch.searching(Searched("athena", since, until, 0, 0, 0))
        before = self._compactions(since, until)
        runs = [run for manifest in before for run in (manifest.run, *manifest.abandoned)]
        statement = statement_of((since, until), runs)
        rows: list[Row] = []
        for row in self._runner(statement, watch):
            rows.append(row)
            if len(rows) == _ROWS_A_BATCH:
                yield _batch(rows, schema)
                rows.clear()
        if self._compactions(since, until) != before:
            raise RetryError("traces of these hours were compacted meanwhile; ask again")
        yield _batch(rows, schema)

    def _compactions(self, since: datetime, until: datetime) -> list[Manifest]:
        """Return the compactions of a window's hours that are not over; RetryError: see there."""
        manifests = [
            manifest for manifest in read_manifests(self._store) if holds(manifest.at, since, until)
        ]
        if any(manifest.state == "deleting" for manifest in manifests):
            raise RetryError("what compaction replaced is being deleted; ask again in a minute")
        return manifests


def _floor(moment: datetime) -> datetime:
    return moment - timedelta(microseconds=moment.microsecond % 1000)


def _ceiling(moment: datetime) -> datetime:
    return moment + timedelta(microseconds=-moment.microsecond % 1000)


def _trace(row: Row) -> Trace:
    return to_trace(dict(zip(TRACE_SCHEMA.names, row, strict=True)))


class _Scanned:
    """Adds up the bytes of a question's statements for one watch."""

    def __init__(self, watch: QueryWatch | None) -> None:
        self._watch = watch
        self._before = self._now = 0

    def next(self) -> QueryWatch | None:
        """Return what watches the next statement."""
        self._before = self._now
        return None if self._watch is None else self

    def searching(self, searched: Searched) -> None:
        """See ``QueryWatch``."""
        self._watching().searching(searched)

    def started(self, external_id: str) -> None:
        """See ``QueryWatch``."""
        self._watching().started(external_id)

    def progress(self, *, objects_read: int, bytes_scanned: int) -> None:
        """Tell the sum."""
        self._now = self._before + bytes_scanned
        self._watching().progress(objects_read=objects_read, bytes_scanned=self._now)

    def cancelled(self) -> bool:
        """See ``QueryWatch``."""
        return self._watching().cancelled()

    def _watching(self) -> QueryWatch:
        if self._watch is None:
            raise RuntimeError("nobody watches")
        return self._watch


def _batch(rows: Sequence[Row], schema: pa.Schema) -> pa.RecordBatch:
    columns: list[Any] = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [
        pa.array([_zoned(value) for value in column], field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _zoned(value: Any) -> Any:
    """Return a time without a zone as UTC, all else as it is."""
    naive = isinstance(value, datetime) and value.tzinfo is None
    return value.replace(tzinfo=UTC) if naive else value


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
