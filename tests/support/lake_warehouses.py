"""Warehouses of lake tables for the contract of destinations, read by the formats' own libraries."""

from __future__ import annotations

import datetime
import json
from abc import ABC, abstractmethod
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from sqlalchemy.exc import OperationalError

from waybill.destinations import Destination, open_destination
from waybill.destinations.adapters.delta.lake import storage_options
from waybill.destinations.adapters.iceberg.lake import catalog_uri, io_properties
from waybill.destinations.per_table.files import folder_of
from waybill.destinations.per_table.table import type_name
from waybill.pipelines import TableSpec
from waybill.settings import DestinationSettings, S3Settings

Row = dict[str, Any]
_TOMBSTONES = ("waybill", "_waybill_tombstones")
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_SOURCE, _INTAKE = "_waybill_source_version", "_waybill_intake_version"


def _plain_table(found: pa.Table) -> pa.Table:
    plain = {
        pa.string_view(): pa.string(),
        pa.large_string(): pa.string(),
        pa.binary_view(): pa.binary(),
        pa.large_binary(): pa.binary(),
    }
    return found.cast(pa.schema([f.with_type(plain.get(f.type, f.type)) for f in found.schema]))


class LakeWarehouse(ABC):
    """What the formats have in common."""

    kind = ""
    takes_checks = False

    def __init__(self, settings: DestinationSettings, s3: S3Settings | None = None) -> None:
        self.settings = settings
        self.s3 = s3
        self._opened: list[Destination] = []

    def open(self, name: str = "warehouse") -> Destination:
        self._opened.append(open_destination(name, self.settings, self.s3))
        return self._opened[-1]

    def close(self) -> None:
        for destination in self._opened:
            destination.close()

    @abstractmethod
    def read(self, schema_name: str, name: str) -> pa.Table | None:
        """Return a table whole; None: it is not there."""

    def rows(self, spec: TableSpec, table: str | None = None) -> list[Row]:
        found = self.read(spec.schema_name, table or spec.name)
        return [] if found is None else found.to_pylist()

    def types(self, spec: TableSpec, table: str | None = None) -> dict[str, str]:
        found = self.read(spec.schema_name, table or spec.name)
        fields = [] if found is None else found.schema
        return {f.name: str(type_name(f.type)) for f in fields if not f.name.startswith("_waybill")}

    def tombstones(self, spec: TableSpec) -> dict[str, tuple[str, int, int]]:
        """Return the greatest of each key that has no newer row."""
        found = self.read(*_TOMBSTONES)
        if found is None:
            return {}
        target = f'"{spec.schema_name}"."{spec.name.replace(chr(34), chr(34) * 2)}"'
        best: dict[str, tuple[str, int, int]] = {}
        for row in found.filter(pc.equal(found["target"], target)).to_pylist():
            one = (row["_waybill_id"], row[_SOURCE], row[_INTAKE])
            if row["key"] not in best or one[1:] > best[row["key"]][1:]:
                best[row["key"]] = one
        for row in self.rows(spec):
            key = _key_text([row[name] for name in spec.key])
            if key in best and (row[_SOURCE], row[_INTAKE]) > best[key][1:]:
                del best[key]
        return best


def _key_text(values: list[Any]) -> str:
    return f"[{','.join(_part(value) for value in values)}]"


def _part(value: Any) -> str:
    if isinstance(value, bytes):
        return f'"{value.hex().upper()}"'
    if isinstance(value, datetime.datetime):
        return str((value - _EPOCH) // datetime.timedelta(microseconds=1))
    if isinstance(value, datetime.date):
        return str((value - _EPOCH.date()) // datetime.timedelta(microseconds=1))
    if isinstance(value, Decimal):
        text = format(value, "f")
        return text.rstrip("0").rstrip(".") if "." in text else text
    return json.dumps(value, ensure_ascii=False)


class DeltaWarehouse(LakeWarehouse):
    """A folder, or a bucket, of Delta tables."""

    kind = "delta"
    takes_checks = True

    def table(self, schema_name: str, name: str) -> DeltaTable:
        """Return a table as delta-rs opens it."""
        root = self.settings.dsn.get_secret_value()
        uri = f"{root}/{folder_of(schema_name)}/{folder_of(name)}"
        return DeltaTable(uri, storage_options=storage_options(self.s3))

    def read(self, schema_name: str, name: str) -> pa.Table | None:
        try:
            return _plain_table(pa.table(self.table(schema_name, name).scan()))
        except TableNotFoundError:
            return None

    def check(self, spec: TableSpec, condition: str) -> None:
        self.open().ensure_table(spec)
        table = self.table(spec.schema_name, spec.name)
        table.alter.add_constraint({"checked": condition})

    def remove_behind(self, spec: TableSpec, row_id: int) -> None:
        self.table(spec.schema_name, spec.name).delete(f"id = {row_id}")

    def remove_below(self, spec: TableSpec, row_id: int) -> None:
        self.table(spec.schema_name, spec.name).delete(f"id < {row_id}")


def delta_folder(_request: pytest.FixtureRequest, folder: Path) -> DeltaWarehouse:
    """Return an empty folder of Delta tables."""
    return DeltaWarehouse(DestinationSettings(kind="delta", dsn=str(folder / "lake")))


class IcebergWarehouse(LakeWarehouse):
    """A catalog of Iceberg tables."""

    kind = "iceberg"

    def catalog(self) -> SqlCatalog:
        """Return the catalog as pyiceberg opens it."""
        root = self.settings.dsn.get_secret_value()
        given = self.settings.options.get("catalog")
        uri = catalog_uri("", root, None if given is None else given.get_secret_value())
        return SqlCatalog("waybill", uri=uri, warehouse=root, **io_properties(self.s3))

    def read(self, schema_name: str, name: str) -> pa.Table | None:
        try:
            with closing(self.catalog()) as catalog:
                return _plain_table(catalog.load_table((schema_name, name)).scan().to_arrow())
        except (NoSuchTableError, OperationalError):
            return None

    def remove_behind(self, spec: TableSpec, row_id: int) -> None:
        self.catalog().load_table((spec.schema_name, spec.name)).delete(f"id == {row_id}")

    def remove_below(self, spec: TableSpec, row_id: int) -> None:
        self.catalog().load_table((spec.schema_name, spec.name)).delete(f"id < {row_id}")


def iceberg_folder(_request: pytest.FixtureRequest, folder: Path) -> IcebergWarehouse:
    """Return an empty folder of Iceberg tables, their catalog beside them."""
    return IcebergWarehouse(DestinationSettings(kind="iceberg", dsn=str(folder / "lake")))


def iceberg_bucket(request: pytest.FixtureRequest, _folder: Path) -> IcebergWarehouse:
    """Return a place of its own in a bucket, with Iceberg tables, their catalog in PostgreSQL."""
    s3 = request.getfixturevalue("s3").bucket("iceberg")
    catalog = request.getfixturevalue("postgres").database("catalog")
    settings = DestinationSettings(
        kind="iceberg", dsn=f"s3://{s3.bucket}/lake", options={"catalog": catalog}
    )
    return IcebergWarehouse(settings, s3)


def delta_bucket(request: pytest.FixtureRequest, _folder: Path) -> DeltaWarehouse:
    """Return a place of its own in a bucket, with Delta tables."""
    s3 = request.getfixturevalue("s3").bucket("delta")
    dsn = f"s3://{s3.bucket}/lake"
    return DeltaWarehouse(DestinationSettings(kind="delta", dsn=dsn), s3)
