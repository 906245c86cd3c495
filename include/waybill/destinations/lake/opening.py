"""From settings to a lake."""

from __future__ import annotations

from pathlib import Path

from waybill.destinations.lake.destination import LakeDestination
from waybill.destinations.lake.errors import sorter
from waybill.destinations.lake.places import is_remote
from waybill.errors import InputError
from waybill.settings import DestinationSettings, S3Settings

_ICEBERG = ("_duckdb", "pyiceberg", "sqlalchemy", "psycopg", "sqlite3", "pyarrow", "botocore")
_DELTA = ("_duckdb", "deltalake", "_internal", "arro3", "pyarrow")


def open_delta(name: str, settings: DestinationSettings, s3: S3Settings | None) -> LakeDestination:
    """Open a folder or bucket of Delta tables; it is looked at on first use.

    Raises:
        InputError: the dsn is neither.
    """
    from waybill.destinations.lake.delta import DeltaLake, storage_options

    root, remote = _root(name, settings.dsn.get_secret_value())
    lake = DeltaLake(root, storage_options(s3) if remote else {})
    return LakeDestination(name, lake, sorter(name, _DELTA))


def open_iceberg(
    name: str, settings: DestinationSettings, s3: S3Settings | None
) -> LakeDestination:
    """Open a catalog of Iceberg tables; it is looked at on first use.

    Raises:
        InputError: the dsn is neither a folder nor a bucket, or the catalog no SQL database.
    """
    from waybill.destinations.lake.iceberg import (
        IcebergLake,
        catalog_uri,
        io_properties,
    )

    root, remote = _root(name, settings.dsn.get_secret_value())
    given = settings.options.get("catalog")
    uri = catalog_uri(name, root, None if given is None else given.get_secret_value())
    lake = IcebergLake(root, uri, io_properties(s3 if remote else None))
    return LakeDestination(name, lake, sorter(name, _ICEBERG))


def _root(name: str, dsn: str) -> tuple[str, bool]:
    """Return the place without a slash at its end, and whether it is a bucket."""
    if is_remote(dsn):
        bucket = dsn.partition("://")[2].partition("/")[0]
        if not bucket:
            raise InputError(f"destination {name!r}: dsn must look like s3://bucket/folder")
        return "s3://" + dsn.partition("://")[2].rstrip("/"), True
    path = dsn.removeprefix("file://")
    if "://" in path or not path:
        raise InputError(
            f"destination {name!r}: dsn must be a folder or look like s3://bucket/folder"
        )
    return str(Path(path).absolute()), False
