"""Look-ups by DuckDB over the Parquet objects: the embedded default.

Our code finds the objects (``_objects``): one listing of the hour markers when no time is known,
then one listing an hour of this bucket's prefix. DuckDB reads of each the footer and the row groups
whose least and greatest id hold the id.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from waybill.errors import InputError, RetryError
from waybill.tracing.layout import (
    HOURS_PREFIX,
    Hour,
    bucket_prefix,
    hour_of_marker,
    hours_between,
)
from waybill.tracing.lookup import lookup_sql, lookup_values
from waybill.tracing.query import arranged, check_window, spooled
from waybill.tracing.store import Buckets, TraceStore
from waybill.tracing.trace import Trace, to_traces

if TYPE_CHECKING:
    from waybill.settings import S3Settings

_LISTINGS_AT_ONCE = 8
_MEMORY = "512MB"
_SHORT_WINDOW = timedelta(hours=48)


class DuckDbTraces:
    """Reads traces from the object store and this node's spool. Safe for several threads.

    Args:
        store: lists objects.
        s3: how DuckDB reaches the same store.
        buckets: used while the store states none.
        spool_dir: this node's spool; None: only what is shipped.
    """

    def __init__(
        self, store: TraceStore, s3: S3Settings, *, buckets: int, spool_dir: Path | None
    ) -> None:
        self._store = store
        self._s3 = s3
        self._buckets = Buckets(store, configured=buckets)
        self._spool_dir = spool_dir
        self._connection: Any = None
        self._lock = threading.Lock()

    def trail(
        self, event_id: str, *, since: datetime | None = None, until: datetime | None = None
    ) -> list[Trace]:
        """See ``TraceQuery.trail``. Cost: one listing an hour, and two or three reads an object."""
        check_window(since, until)
        found = spooled(self._spool_dir, event_id)  # before the store: invariant I6
        bucket = self._buckets.of(event_id)
        keys = list(self._objects(bucket, since, until))
        if keys:
            found += self._read(event_id, bucket, keys, (since, until))
        return arranged(found, since, until)

    def close(self) -> None:
        """Close DuckDB's connection."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _objects(
        self, bucket: int, since: datetime | None, until: datetime | None
    ) -> Iterator[str]:
        prefixes = [bucket_prefix(hour, bucket) for hour in self._hours(since, until)]
        with ThreadPoolExecutor(_LISTINGS_AT_ONCE) as pool:
            for listing in pool.map(lambda prefix: list(self._store.list(prefix)), prefixes):
                yield from (info.key for info in listing if info.key.endswith(".parquet"))

    def _hours(self, since: datetime | None, until: datetime | None) -> list[Hour]:
        """Return the hours to look in: those of a short window, else those that have objects."""
        if since is not None and until is not None and until - since <= _SHORT_WINDOW:
            return list(hours_between(since, until))
        first = Hour(0) if since is None else Hour.of(since)
        marked = (hour_of_marker(info.key) for info in self._store.list(HOURS_PREFIX))
        return sorted(h for h in marked if h >= first and (until is None or h.start <= until))

    def _read(
        self,
        event_id: str,
        bucket: int,
        keys: list[str],
        window: tuple[datetime | None, datetime | None],
    ) -> list[Trace]:
        import duckdb

        since, until = window
        sql = lookup_sql("duckdb", since=since is not None, until=until is not None)
        urls = [f"s3://{self._s3.bucket}/{key}" for key in keys]
        try:
            with self._cursor() as cursor:
                values = [urls, *lookup_values(event_id, bucket, since, until)]
                return to_traces(cursor.execute(sql, values).to_arrow_table())
        except (duckdb.IOException, duckdb.HTTPException) as error:
            self.close()  # the next call connects again, with fresh credentials
            raise RetryError(f"the object store did not answer DuckDB: {error}") from error

    def _cursor(self) -> Any:  # noqa: ANN401 - duckdb's types are not imported
        with self._lock:
            if self._connection is None:
                self._connection = _connect(self._s3)
            return self._connection.cursor()


def _connect(s3: S3Settings) -> Any:  # noqa: ANN401
    import duckdb

    connection = duckdb.connect(
        config={
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "memory_limit": _MEMORY,
            "threads": 4,
        }
    )
    connection.load_extension(str(_httpfs()))
    text, values = _secret(s3)
    connection.execute(text, values)
    return connection


def _httpfs() -> Path:
    """Return the extension's file from its package; DuckDB's own INSTALL would download it."""
    import duckdb
    import duckdb_extension_httpfs  # noqa: PLC0415

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

    found = boto3.Session().get_credentials()
    if found is None:
        raise InputError("no keys for the object store: set WAYBILL_S3__ACCESS_KEY and SECRET_KEY")
    frozen = found.get_frozen_credentials()
    token = {"SESSION_TOKEN": frozen.token} if frozen.token else {}
    return {"KEY_ID": frozen.access_key, "SECRET": frozen.secret_key, **token}
