"""Delta Lake by delta-rs: a folder or a bucket of tables, ``<dsn>/<schema>/<table>``."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from deltalake import DeltaTable

from waybill.destinations.adapters.delta.table import DeltaLakeTable
from waybill.destinations.per_table.destination import LakeDestination
from waybill.destinations.per_table.errors import sorter
from waybill.destinations.per_table.files import is_remote, root_of
from waybill.destinations.per_table.tombstones import NAME, SCHEMA
from waybill.settings import DestinationSettings, S3Settings

_LIBRARIES = ("_duckdb", "deltalake", "_internal", "arro3", "pyarrow")
"""Modules whose errors are the format's own."""


@dataclass(frozen=True, slots=True)
class DeltaLake:
    """A place with Delta tables: see ``Lake``."""

    root: str
    options: dict[str, str]

    def table(self, schema_name: str, name: str) -> DeltaLakeTable:
        """Return a table that may be there or not."""
        return DeltaLakeTable(self.root, schema_name, name, self.options)

    def check(self) -> None:
        """See whether the place answers."""
        if not is_remote(self.root):
            Path(self.root).mkdir(parents=True, exist_ok=True)
            return
        with contextlib.suppress(ValueError):
            DeltaTable.is_deltatable(self.table(SCHEMA, NAME).uri, self.options)

    def close(self) -> None:
        """Nothing is held."""


def storage_options(s3: S3Settings | None) -> dict[str, str]:
    """Return delta-rs's options for the object store: commits are conditional PUTs."""
    if s3 is None:
        return {}
    options = {
        "AWS_REGION": s3.region,
        "aws_conditional_put": "etag",
        "connect_timeout": "5s",
        "timeout": "60s",
    }
    if s3.endpoint_url is not None:
        options |= {"AWS_ENDPOINT_URL": s3.endpoint_url}
        if s3.endpoint_url.startswith("http://"):
            options |= {"AWS_ALLOW_HTTP": "true"}
    if s3.access_key is not None and s3.secret_key is not None:
        options |= {
            "AWS_ACCESS_KEY_ID": s3.access_key.get_secret_value(),
            "AWS_SECRET_ACCESS_KEY": s3.secret_key.get_secret_value(),
        }
    return options


def open_delta(name: str, settings: DestinationSettings, s3: S3Settings | None) -> LakeDestination:
    """Open a folder or bucket of Delta tables; it is looked at on first use.

    Raises:
        InputError: the dsn is neither.
    """
    root, remote = root_of(name, settings.dsn.get_secret_value())
    lake = DeltaLake(root, storage_options(s3) if remote else {})
    return LakeDestination(name, lake, sorter(name, _LIBRARIES))
