"""Destinations whose drivers are over a wire."""

from __future__ import annotations

import itertools
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support import warehouse_drivers, warehouse_lake_drivers

from waybill.destinations import Destination, open_destination
from waybill.destinations.adapters.redshift.session import RedshiftSession
from waybill.settings import DestinationSettings

DSNS = {
    "snowflake": "snowflake://loader:secret@org-acme/ANALYTICS?warehouse=LOADING&role=LOADER",
    "bigquery": "bigquery://acme-data?location=EU",
    "redshift": "redshift://loader:secret@cluster.example:5439/dev"
    "?staging=s3://waiting/rows&iam_role=arn:aws:iam::1:role/copy",
}
KINDS = tuple(DSNS)
"""Of warehouses with transactions."""
DSNS["databricks"] = (
    "databricks://token:secret@dbc.example/sql/1.0/warehouses/abc"
    "?catalog=main&staging=/Volumes/main/waybill/staging"
)
DSNS["clickhouse"] = "clickhouse://loader:secret@clicks.example:8443/?secure=true"


@contextmanager
def over(kind: str, wire, monkeypatch) -> Iterator[Destination]:
    """Open a destination of a kind whose driver talks to the wire; its random names count up."""
    lakes = kind in ("clickhouse", "databricks")
    drivers = warehouse_lake_drivers if lakes else warehouse_drivers
    for name, module in getattr(drivers, kind)(wire).items():
        monkeypatch.setitem(sys.modules, name, module)
    numbers = itertools.count(1)
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=next(numbers) << 80))
    monkeypatch.setattr(
        "waybill.destinations.per_table.books._now", lambda: "2026-11-22T20:00:00+00:00"
    )
    monkeypatch.setattr(RedshiftSession, "bucket", lambda self: warehouse_drivers.WireBucket(wire))
    with open_destination("warehouse", settings_of(kind)) as destination:
        yield destination


def settings_of(kind: str, dsn: str | None = None, **options: str) -> DestinationSettings:
    return DestinationSettings(kind=kind, dsn=dsn or DSNS[kind], options=options)
