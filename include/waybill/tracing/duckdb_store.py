"""A connection of DuckDB that reads the object store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson

from waybill.errors import InputError, RetryError
from waybill.tracing.watch import QueryCancelledError, QueryWatch, check_cancelled

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
    for option in _OPTIONS:
        connection.execute(option)
    return connection


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

    found = boto3.Session().get_credentials()
    if found is None:
        raise InputError("no keys for the object store: set WAYBILL_S3__ACCESS_KEY and SECRET_KEY")
    frozen = found.get_frozen_credentials()
    token = {"SESSION_TOKEN": frozen.token} if frozen.token else {}
    return {"KEY_ID": frozen.access_key, "SECRET": frozen.secret_key, **token}
