"""From a declaration to its connector: Waybill's own, or one that another package brings.

A package brings a connector by an entry point of the group ``waybill.connectors``: its name is what
declarations say as ``source.connector``, its object is called with (source, the pipeline's folder,
folders of the settings that sources may lie in) and returns a ``Connector``. What it asks for
stands in ``source.options``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from waybill.errors import InputError, WaybillError
from waybill.ingestion.connectors.base import Connector
from waybill.ingestion.connectors.csv_file import CsvConnector
from waybill.ingestion.connectors.http_source import PushedSource
from waybill.pipelines import Source, brought_connectors

Opener: TypeAlias = Callable[[Source, Path, Sequence[Path]], Connector]
CONNECTORS: Mapping[str, Opener] = {"csv": CsvConnector, "http": PushedSource}


def open_connector(source: Source, base_dir: Path, roots: Sequence[Path] = ()) -> Connector:
    """Return the connector of a source; nothing is read yet.

    Args:
        source: the declaration.
        base_dir: the pipeline's folder, which relative paths start from.
        roots: folders outside of it that sources may lie in (``sources.roots`` of the settings).

    Raises:
        InputError: no such connector, the package that brings it cannot be imported, or it refuses
            the declaration.
    """
    own = CONNECTORS.get(source.connector)
    if own is not None:
        return own(source, base_dir, roots)
    opener = _brought(source.connector)
    try:
        return opener(source, base_dir, roots)
    except WaybillError:
        raise
    except Exception as error:
        raise InputError(
            f"source.options: connector {source.connector!r} refuses them: {error!r}"
        ) from error


def _brought(name: str) -> Opener:
    brought = brought_connectors()
    if name not in brought:
        known = ", ".join(sorted({*CONNECTORS, *brought}))
        raise InputError(f"source.connector: expected one of {known}; found {name!r}")
    try:
        return brought[name].load()  # type: ignore[no-any-return]
    except Exception as error:
        raise InputError(
            f"source.connector: {name!r} is brought by {brought[name].value}, which cannot be "
            f"imported: {error!r}"
        ) from error
