"""Iceberg by pyiceberg: tables of a SQL catalog, their files in a folder or a bucket."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from waybill.destinations.adapters.iceberg.table import IcebergLakeTable
from waybill.destinations.adapters.postgres.session import LIMITS
from waybill.destinations.per_table.destination import LakeDestination
from waybill.destinations.per_table.errors import sorter
from waybill.destinations.per_table.files import is_remote, root_of
from waybill.errors import InputError
from waybill.settings import DestinationSettings, S3Settings

CATALOG_FILE = "waybill-catalog.db"
CATALOG_OPTIONS = (
    "-c lock_timeout=60s -c statement_timeout=300s -c idle_in_transaction_session_timeout=120s"
)
_DRIVERS = {
    "postgresql://": "postgresql+psycopg://",
    "postgres://": "postgresql+psycopg://",
    "sqlite:///": "sqlite:///",
}


_LIBRARIES = ("_duckdb", "pyiceberg", "sqlalchemy", "psycopg", "sqlite3", "pyarrow", "botocore")
"""Modules whose errors are the format's own."""


@dataclass(slots=True)
class IcebergLake:
    """A catalog with Iceberg tables: see ``Lake``."""

    root: str
    catalog_uri: str
    properties: dict[str, str]
    _opened: SqlCatalog | None = field(default=None)

    @property
    def catalog(self) -> SqlCatalog:
        """Return the catalog; it is opened on first use."""
        if self._opened is None:
            if not is_remote(self.root):
                Path(self.root).mkdir(parents=True, exist_ok=True)
            warehouse = self.root if is_remote(self.root) else Path(self.root).as_uri()
            self._opened = SqlCatalog(
                "waybill", uri=self.catalog_uri, warehouse=warehouse, **self.properties
            )
        return self._opened

    def table(self, schema_name: str, name: str) -> IcebergLakeTable:
        """Return a table that may be there or not."""
        root = self.root if is_remote(self.root) else Path(self.root).as_uri()
        return IcebergLakeTable(root, schema_name, name, self.catalog)

    def check(self) -> None:
        """See whether the catalog answers."""
        self.catalog.list_namespaces()

    def close(self) -> None:
        """Close the catalog's connections."""
        if self._opened is not None:
            self._opened.engine.dispose()
            self._opened = None


def catalog_uri(name: str, root: str, given: str | None) -> str:
    """Return the catalog's address for SQLAlchemy.

    Args:
        name: the destination's.
        root: where the tables are.
        given: ``options.catalog``; None: a SQLite file beside the tables, on a disk only.

    Raises:
        InputError: it is none, or there is none and the tables are in a bucket.
    """
    if given is None:
        if is_remote(root):
            raise InputError(
                f"destination {name!r}: tables in a bucket need options.catalog, a "
                "postgresql://… URL of a database for the catalog"
            )
        return f"sqlite:///{root}/{CATALOG_FILE}"
    for known, driver in _DRIVERS.items():
        if given.startswith(known):
            try:
                return _limited(driver + given.removeprefix(known))
            except (ArgumentError, ValueError):  # their words show the address
                break
    raise InputError(
        f"destination {name!r}: options.catalog must look like "
        "postgresql://user:password@host:5432/database or sqlite:///…"
    ) from None


def _limited(uri: str) -> str:
    """Return an address with limits for connections to PostgreSQL; those that it has win.

    Raises:
        ArgumentError, ValueError: it is no URL.
    """
    url = make_url(uri)
    if not url.drivername.startswith("postgresql"):
        return uri
    limits = {name: value for name, value in LIMITS.items() if name not in url.query}
    limits["options"] = f"{CATALOG_OPTIONS} {url.query.get('options', '')}".strip()
    return url.update_query_dict(limits).render_as_string(hide_password=False)


def io_properties(s3: S3Settings | None) -> dict[str, str]:
    """Return pyiceberg's settings for reading and writing files."""
    properties = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
    if s3 is None:
        return properties
    properties |= {"s3.region": s3.region, "s3.connect-timeout": "5", "s3.request-timeout": "60"}
    if s3.endpoint_url is not None:
        properties |= {"s3.endpoint": s3.endpoint_url}
    if s3.access_key is not None and s3.secret_key is not None:
        properties |= {
            "s3.access-key-id": s3.access_key.get_secret_value(),
            "s3.secret-access-key": s3.secret_key.get_secret_value(),
        }
    return properties


def open_iceberg(
    name: str, settings: DestinationSettings, s3: S3Settings | None
) -> LakeDestination:
    """Open a catalog of Iceberg tables; it is looked at on first use.

    Raises:
        InputError: the dsn is neither a folder nor a bucket, or the catalog no SQL database.
    """
    root, remote = root_of(name, settings.dsn.get_secret_value())
    given = settings.options.get("catalog")
    uri = catalog_uri(name, root, None if given is None else given.get_secret_value())
    lake = IcebergLake(root, uri, io_properties(s3 if remote else None))
    return LakeDestination(name, lake, sorter(name, _LIBRARIES))
