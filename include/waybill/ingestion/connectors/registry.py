"""From a declaration to its connector."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from waybill.errors import InputError
from waybill.ingestion.connectors.base import Connector
from waybill.ingestion.connectors.csv_file import CsvConnector
from waybill.pipelines import Source

CONNECTORS: Mapping[str, Callable[[Source, Path, Sequence[Path]], Connector]] = {
    "csv": CsvConnector
}


def open_connector(source: Source, base_dir: Path, roots: Sequence[Path] = ()) -> Connector:
    """Return the connector of a source; nothing is read yet.

    Args:
        source: the declaration.
        base_dir: the pipeline's folder, which relative paths start from.
        roots: folders outside of it that sources may lie in (``sources.roots`` of the settings).

    Raises:
        InputError: no such connector.
    """
    make = CONNECTORS.get(source.connector)
    if make is None:
        known = ", ".join(sorted(CONNECTORS))
        raise InputError(f"source.connector: expected one of {known}; found {source.connector!r}")
    return make(source, base_dir, roots)
