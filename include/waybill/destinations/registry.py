"""Kinds of destinations: those that are part of Waybill, and those that other packages bring.

A package brings a kind by an entry point of the group ``waybill.destinations``: its name is what
settings say as ``kind``, its object is called as ``open_destination`` is, with (name, settings,
s3), and returns a ``Destination``. It is experimental unless it says ``experimental = False``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from waybill.errors import InputError
from waybill.settings import DestinationSettings, S3Settings, brought_kinds

if TYPE_CHECKING:
    from waybill.destinations.model import Destination

Opener: TypeAlias = "Callable[[str, DestinationSettings, S3Settings | None], Destination]"
_ADAPTERS = "waybill.destinations.adapters"


@dataclass(frozen=True, slots=True)
class Adapter:
    """One kind."""

    place: str
    """Module and object that opens one, below ``adapters``: imported when one is opened."""
    live_tested: bool = False
    """A real server was tested. The others are experimental: only statements and calls were."""


BUILT_IN: Mapping[str, Adapter] = {
    "postgres": Adapter("postgres.engine:open_postgres", live_tested=True),
    "duckdb": Adapter("duckdb.destination:open_duckdb", live_tested=True),
    "delta": Adapter("delta.lake:open_delta", live_tested=True),
    "iceberg": Adapter("iceberg.lake:open_iceberg", live_tested=True),
    "snowflake": Adapter("snowflake.session:open_snowflake"),
    "bigquery": Adapter("bigquery.session:open_bigquery"),
    "redshift": Adapter("redshift.session:open_redshift"),
    "databricks": Adapter("databricks.table:open_databricks"),
    "clickhouse": Adapter("clickhouse.table:open_clickhouse"),
}


def open_destination(
    name: str, settings: DestinationSettings, s3: S3Settings | None = None
) -> Destination:
    """Open a destination; it connects on first use.

    Args:
        name: the destination's name, as pipelines give it; commit numbers are kept under it.
        settings: how to reach it.
        s3: how to reach the object store, for kinds whose tables are objects there.

    Raises:
        InputError: the settings cannot be right, whatever the server says; or the package that
            brings its kind cannot be imported.
    """
    return _opener(name, settings.kind)(name, settings, s3)


def is_experimental(kind: str) -> bool:
    """Tell whether no real server of a kind was tested. Imports what a package brings."""
    if kind in BUILT_IN:
        return not BUILT_IN[kind].live_tested
    return bool(getattr(_opener(kind, kind), "experimental", True))


def _opener(name: str, kind: str) -> Opener:
    adapter = BUILT_IN.get(kind)
    if adapter is not None:
        module, _, attribute = adapter.place.partition(":")
        opener: Opener = getattr(importlib.import_module(f"{_ADAPTERS}.{module}"), attribute)
        return opener
    brought: Mapping[str, Any] = brought_kinds()
    if kind not in brought:
        known = ", ".join(sorted({*BUILT_IN, *brought}))
        raise InputError(f"destination {name!r}: there is no kind {kind!r}; there are {known}")
    point = brought[kind]
    try:
        return point.load()  # type: ignore[no-any-return]
    except Exception as error:
        raise InputError(
            f"destination {name!r}: kind {kind!r} is provided by {point.value}, which cannot be "
            f"imported: {error!r}"
        ) from error
