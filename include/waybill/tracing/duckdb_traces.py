"""Look-ups by DuckDB over the Parquet objects: the embedded default.

Our code finds the objects (``manifests.visible``): one listing of the event's bucket and one of the
fresh one. DuckDB reads of each the footer and the row groups whose least and greatest id hold the
id, so a look-up reads one part in (buckets) of what is compacted, and the footers of what is fresh.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson
import pyarrow as pa

from waybill.errors import InputError, RetryError
from waybill.tracing.layout import (
    Layout,
    TraceStore,
    bucket_of,
    hours_between,
    in_hours,
)
from waybill.tracing.manifests import TraceObject, visible
from waybill.tracing.query import (
    QueryCancelledError,
    QueryWatch,
    Searched,
    StatementOf,
    TraceQuery,
    Window,
    check_cancelled,
    joined,
    only_of,
)
from waybill.tracing.sql import (
    Statement,
    trails_statement,
)
from waybill.tracing.trace import Trace, to_traces

if TYPE_CHECKING:
    from waybill.settings import S3Settings


_MEMORY = "512MB"
_THREADS = 16
"""They wait for the store most of the time."""
_LOOK_S = 0.1
_OPTIONS = (
    "SET http_timeout = 30",  # seconds, of one request; tried again three times
    # Objects never change, so what is known of one is never asked again.
    "SET enable_http_metadata_cache = true",
    "SET parquet_metadata_cache = true",
    "SET validate_external_file_cache = 'NO_VALIDATION'",
)
_COUNTED = (
    "SET enable_profiling = 'no_output'",
    """SET custom_profiling_settings = '{"TOTAL_BYTES_READ": "true"}'""",
)


def counted_cursor(connection: Any) -> Any:
    """Return a cursor whose reads are counted: see ``bytes_read``."""
    cursor = connection.cursor()
    for text in _COUNTED:
        cursor.execute(text)
    return cursor


def bytes_read(cursor: Any) -> int:
    """Return how many bytes the last statement read from the store."""
    said = cursor.get_profiling_information("json")
    return int(orjson.loads(said).get("total_bytes_read", 0)) if said else 0


@contextmanager
def guarded(cursor: Any, watch: QueryWatch | None) -> Iterator[None]:
    """Run statements: a cancelled watch interrupts them, a store that is away is a RetryError.

    Raises:
        QueryCancelledError: the watch said so.
        RetryError: the object store did not answer, or an object is not there any more.
    """
    import duckdb

    over = Event()
    looker = Thread(target=_interrupt, args=(cursor, watch, over), daemon=True)
    if watch is not None:
        looker.start()
    try:
        yield
    except duckdb.InterruptException as error:
        raise QueryCancelledError("the query was cancelled") from error
    except (duckdb.IOException, duckdb.HTTPException) as error:
        raise RetryError(f"the object store did not answer DuckDB: {error}") from error
    finally:
        over.set()
        if watch is not None:
            looker.join()
    check_cancelled(watch)


def _interrupt(cursor: Any, watch: QueryWatch, over: Event) -> None:
    while not over.wait(_LOOK_S):
        if watch.cancelled():
            cursor.interrupt()  # again and again: one that comes between statements is not heard


def connected(s3: S3Settings) -> Any:
    """Return a connection with the httpfs extension and the store's address and keys."""
    import duckdb

    connection = duckdb.connect(
        config={
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "memory_limit": _MEMORY,
            "threads": _THREADS,
        }
    )
    connection.load_extension(str(_httpfs()))
    text, values = _secret(s3)
    connection.execute(text, values)
    for option in (*_OPTIONS, *_trust(s3)):
        connection.execute(option)
    return connection


def _trust(s3: S3Settings) -> list[str]:
    """Return what has DuckDB check the store's certificate, as boto3 does: it would take any."""
    from botocore.httpsession import get_cert_path

    if urlsplit(s3.endpoint_url or "https:").scheme != "https":
        return []
    path = os.environ.get("AWS_CA_BUNDLE") or os.environ.get("REQUESTS_CA_BUNDLE")
    trusted = str(path or get_cert_path(verify=True)).replace("'", "''")
    return [
        "SET enable_server_cert_verification = true",
        "SET enable_curl_server_cert_verification = true",
        f"SET ca_cert_file = '{trusted}'",
    ]


def _httpfs() -> Path:
    """Return the extension's file from its package; DuckDB's own INSTALL would download it."""
    import duckdb
    import duckdb_extension_httpfs

    folder = Path(duckdb_extension_httpfs.__file__).parent / "extensions"
    path = folder / f"v{duckdb.__version__}" / "httpfs.duckdb_extension"
    if not path.exists():
        raise InputError(
            f"duckdb-extension-httpfs has no extension for DuckDB {duckdb.__version__}; "
            "install the same version of both, as requirements.txt pins them"
        )
    return path


def _secret(s3: S3Settings) -> tuple[str, list[str]]:
    """Return the statement that gives DuckDB the store's address and keys, and its parameters."""
    options = {"REGION": s3.region, **_keys(s3)}
    fixed = ""
    if s3.endpoint_url is not None:
        address = urlsplit(s3.endpoint_url)
        options["ENDPOINT"] = address.netloc
        fixed = f", URL_STYLE 'path', USE_SSL {str(address.scheme == 'https').lower()}"
    names = ", ".join(f"{name} ?" for name in options)
    return f"CREATE SECRET waybill (TYPE s3, {names}{fixed})", list(options.values())


def _keys(s3: S3Settings) -> dict[str, str]:
    """Return the configured keys, else those of the usual AWS chain as they are now."""
    if s3.access_key is not None and s3.secret_key is not None:
        return {
            "KEY_ID": s3.access_key.get_secret_value(),
            "SECRET": s3.secret_key.get_secret_value(),
        }
    import boto3

    credentials = boto3.Session().get_credentials()
    if credentials is None:
        raise InputError("no keys for the object store: set WAYBILL_S3__ACCESS_KEY and SECRET_KEY")
    frozen = credentials.get_frozen_credentials()
    token = {"SESSION_TOKEN": frozen.token} if frozen.token else {}
    return {"KEY_ID": frozen.access_key, "SECRET": frozen.secret_key, **token}


_LISTINGS_AT_ONCE = 8
_OBJECTS_A_STATEMENT = 256
_IDS_A_STATEMENT = 200
_ALONE = 4
"""So many ids in one bucket are looked up one by one: a condition of several prunes nothing."""
_ROWS_A_BATCH = 32_768
_MOMENT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class _Read:
    """One statement to come: which ids in which objects."""

    event_ids: tuple[str, ...]
    objects: tuple[TraceObject, ...]


class DuckDbTraces(TraceQuery):
    """Reads traces from the object store and this node's spool. Safe for several threads.

    A trail takes four listings, and three reads an object. Of trails, a listing a bucket; objects
    are read once, or id by id; where more than four ids are of one bucket, their column is read
    whole in that bucket's objects. Questions by time take a listing a bucket and hour, then 2 MB at
    a time: of every row group of the hours the columns that are asked by are read, the others where
    rows are found.

    Args:
        store: lists objects.
        s3: how DuckDB reaches the same store.
        spool_dir: this node's spool; None: only what is shipped.
    """

    engine = "duckdb"

    def __init__(self, store: TraceStore, s3: S3Settings, *, spool_dir: Path | None) -> None:
        super().__init__(store, spool_dir=spool_dir)
        self._s3 = s3
        self._connection: Any = None
        self._lock = threading.Lock()

    def _shipped(
        self, event_ids: Sequence[str], window: Window, watch: QueryWatch | None, spool_files: int
    ) -> list[Trace]:
        layout = self._layout.get()
        reads = [] if layout is None else self._reads(layout, event_ids, window)
        _tell(watch, window, _objects(reads), spool_files)
        return self._traces(reads, window, watch)

    def _joined(self, in_spool: list[Trace], shipped: list[Trace]) -> list[Trace]:
        return joined(in_spool, shipped)

    def _by_time(
        self,
        statement_of: StatementOf,
        schema: pa.Schema,
        window: tuple[datetime, datetime],
        watch: QueryWatch | None,
    ) -> Iterator[pa.RecordBatch]:
        """Run a statement over all objects of each hour of a window."""
        layout = self._layout.get()
        if layout is None:
            return
        since, until = window
        progress = _Progress(watch)
        for hour in hours_between(since, until):
            check_cancelled(watch)
            part = (max(since, hour.start), min(until, hour.end - _MOMENT))
            objects = self._visible(layout, range(layout.buckets + 1), part)
            _tell(watch, part, objects, 0)
            statement = statement_of(part, ())
            for some in _pieces(objects, _OBJECTS_A_STATEMENT):
                for batch in self._batches(statement, some, progress, watch):
                    yield batch.cast(schema)

    def close(self) -> None:
        """Close DuckDB's connection."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _reads(self, layout: Layout, event_ids: Sequence[str], window: Window) -> list[_Read]:
        """Return what is to be read: each bucket for its ids, the fresh one for all of them."""
        groups: dict[int, list[str]] = {}
        for event_id in event_ids:
            groups.setdefault(bucket_of(event_id, layout.buckets), []).append(event_id)
        objects = self._visible(layout, [*groups, layout.fresh], window)
        cut = {n: [o for o in objects if o.place.bucket == n and not o.early] for n in groups}
        fresh = [o for o in objects if o.early or o.place.bucket == layout.fresh]
        if len(event_ids) == 1:
            return list(_statements(event_ids, [*cut[next(iter(groups))], *fresh]))
        reads = [read for n, ids in groups.items() for read in _statements(ids, cut[n])]
        return reads + list(_statements(event_ids, fresh))

    def _visible(self, layout: Layout, buckets: Iterable[int], window: Window) -> list[TraceObject]:
        return visible(self._store, layout, buckets, *window, each=_several_at_once)

    def _traces(
        self, reads: Sequence[_Read], window: Window, watch: QueryWatch | None
    ) -> list[Trace]:
        progress = _Progress(watch)
        shipped: list[Trace] = []
        for read in reads:
            check_cancelled(watch)
            buckets = sorted({item.place.bucket for item in read.objects})
            statement = trails_statement("duckdb", read.event_ids, buckets, *window)
            for batch in self._batches(statement, read.objects, progress, watch):
                shipped += only_of(read.event_ids, to_traces(pa.Table.from_batches([batch])))
        return shipped

    def _batches(
        self,
        statement: Statement,
        objects: Sequence[TraceObject],
        progress: _Progress,
        watch: QueryWatch | None,
    ) -> Iterator[pa.RecordBatch]:
        """Run a statement over objects; yield its rows as they come."""
        urls = [f"s3://{self._s3.bucket}/{item.key}" for item in objects]
        try:
            with self._cursor() as cursor, guarded(cursor, watch):
                answer = cursor.execute(statement.sql, [urls, *statement.values])
                yield from answer.to_arrow_reader(_ROWS_A_BATCH)
                progress.read(objects, bytes_read(cursor))
        except RetryError:
            self.close()  # the next call connects again, with fresh credentials
            raise

    def _cursor(self) -> Any:
        with self._lock:
            if self._connection is None:
                self._connection = connected(self._s3)
            return counted_cursor(self._connection)


class _Progress:
    """Adds up what statements read, and tells a watch."""

    def __init__(self, watch: QueryWatch | None) -> None:
        self._watch = watch
        self._keys: set[str] = set()
        self._bytes = 0

    def read(self, objects: Iterable[TraceObject], some_bytes: int) -> None:
        self._keys.update(item.key for item in objects)
        self._bytes += some_bytes
        if self._watch is not None:
            self._watch.progress(objects_read=len(self._keys), bytes_scanned=self._bytes)


def _statements(event_ids: Sequence[str], objects: Sequence[TraceObject]) -> Iterator[_Read]:
    size = 1 if len(event_ids) <= _ALONE else _IDS_A_STATEMENT
    for ids in _pieces(event_ids, size):
        for some in _pieces(objects, _OBJECTS_A_STATEMENT):
            yield _Read(tuple(ids), tuple(some))


def _pieces(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _objects(reads: Iterable[_Read]) -> list[TraceObject]:
    return list({item.key: item for read in reads for item in read.objects}.values())


def _several_at_once(
    listed: Callable[[str], list[TraceObject]], prefixes: list[str]
) -> list[list[TraceObject]]:
    with ThreadPoolExecutor(_LISTINGS_AT_ONCE) as pool:
        return list(pool.map(listed, prefixes))


def _tell(
    watch: QueryWatch | None, window: Window, objects: Sequence[TraceObject], files: int
) -> None:
    if watch is not None:
        hours = in_hours(item.place for item in objects)
        watch.searching(Searched("duckdb", *window, hours, len(objects), files))
