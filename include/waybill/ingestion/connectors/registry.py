"""From a declaration to its connector: Waybill's own, or one that another package brings.

A package brings a connector by an entry point of the group ``waybill.connectors``: its name is what
declarations say as ``source.connector``, its object is called with an ``Opening`` and returns a
``Connector``. What it asks for stands in ``source.options``; secrets, in a connection.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from waybill.errors import InputError, WaybillError
from waybill.ingestion.connectors.base import ClosableConnector, Connector
from waybill.ingestion.connectors.connections import Connections
from waybill.ingestion.connectors.opening import Opening
from waybill.pipelines import CONNECTORS, EventDeclaration, Source, brought_connectors
from waybill.settings import Settings

Opener: TypeAlias = Callable[[Opening], Connector]


def open_connector(
    source: Source,
    base_dir: Path,
    roots: Sequence[Path] = (),
    *,
    events: Mapping[str, EventDeclaration] | None = None,
    connections: Connections | None = None,
    settings: Settings | None = None,
) -> Connector:
    """Return the connector of a source; nothing is read or connected to yet.

    Args:
        source: the declaration.
        base_dir: the pipeline's folder, which relative paths start from.
        roots: folders outside of it that sources may lie in (``sources.roots`` of the settings).
        events: of the pipeline.
        connections: finds what ``source.connection`` names; None: in the environment alone.
        settings: for connectors that start processes.

    Raises:
        InputError: no such connector, the package that brings it cannot be imported, or it refuses
            the declaration.
    """
    opening = Opening(source, base_dir, roots, events or {}, connections or Connections(), settings)
    return connector_of(opening)


def connector_of(opening: Opening) -> Connector:
    """Return the connector of an opening: see ``open_connector``."""
    source = opening.source
    own = connector_class(source.connector)
    if own is not None:
        return own(opening)
    opener = _brought(source.connector)
    try:
        return opener(opening)
    except WaybillError:
        raise
    except Exception as error:
        raise InputError(
            f"source.options: connector {source.connector!r} refuses them: {error!r}"
        ) from error


def connector_class(kind: str) -> Opener | None:
    """Return the class of one of Waybill's own connectors; None: a package brings it, or nobody."""
    place = CONNECTORS.get(kind)
    if place is None:
        return None
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]


@contextmanager
def closing_connector(connector: Connector) -> Iterator[Connector]:
    """Close a connector at the end, if it is one to be closed."""
    try:
        yield connector
    finally:
        if isinstance(connector, ClosableConnector):
            connector.close()


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
