"""A table of a pipeline as an asset: runs of a DAG start when rows are loaded into it.

``DAG(schedule=[table_asset("shop", "orders", "order_lines")])`` is all there is to write: the
asset brings its watcher. See docs/airflow.md and ADR 26.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote_to_bytes

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from airflow.sdk import Asset

SCHEME = "waybill"
WATCHER = "waybill_loads"
_SHAPE = "waybill://<team>/<pipeline>/<table>"


def table_asset(team: str, pipeline: str, table: str) -> Asset:
    """Return a table, watched: Airflow gets an event when rows are loaded into it.

    The event's ``extra["payload"]`` has ``rows``, ``position``, ``after``, ``version``. Declare a
    table by this function in each DAG that is scheduled on it: a file that declares it without its
    watcher takes that away.

    :param team: which owns the pipeline.
    :param pipeline: its name.
    :param table: the destination's name of it, without the schema.
    :raises ValueError: a name is empty, or no text.
    """
    from airflow.sdk import Asset, AssetWatcher

    from waybill_airflow.triggers.tables import TableTrigger

    trigger = TableTrigger(team, pipeline, table)
    return Asset(
        uri=table_uri(team, pipeline, table),
        watchers=[AssetWatcher(name=WATCHER, trigger=trigger)],
    )


def table_uri(team: str, pipeline: str, table: str) -> str:
    """Return a table's URI; whatever the names have in them, they stay three, and can be read back.

    :raises ValueError: a name is empty, or no text.
    """
    return f"{SCHEME}://" + "/".join(map(_segment, (team, pipeline, table)))


def _segment(name: str) -> str:
    if not isinstance(name, str) or not name:
        raise ValueError(f"{name!r} is no name: an asset of Waybill is {_SHAPE}")
    try:
        segment = quote(name, safe="")
    except UnicodeEncodeError as error:  # a lone surrogate
        raise ValueError(f"{name!r} is no name: no text in UTF-8") from error
    return segment if name.strip(".") else segment.replace(".", "%2E")  # "..": not the parent


def sanitize_uri(parts: SplitResult) -> SplitResult:
    """Return the normal form of a URI that somebody wrote by hand; Airflow calls it.

    :raises ValueError: it is not a team, a pipeline and a table.
    """
    _, *path = parts.path.split("/")
    with suppress(UnicodeDecodeError):
        match [unquote_to_bytes(segment).decode("utf-8") for segment in (parts.netloc, *path)]:
            case [team, pipeline, table] if team and pipeline and table and not parts.query:
                normal = [_segment(name) for name in (team, pipeline, table)]
                return parts._replace(netloc=normal[0], path="/" + "/".join(normal[1:]))
    raise ValueError(f"{parts.geturl()!r} is no asset of Waybill: {_SHAPE}")


def to_openlineage(asset: Asset, lineage_context: Any) -> Any:
    """Return the asset as a dataset of OpenLineage: namespace ``waybill://<team>``."""
    from airflow.providers.common.compat.openlineage.facet import Dataset

    namespace, _, name = asset.uri.removeprefix(f"{SCHEME}://").partition("/")
    return Dataset(namespace=f"{SCHEME}://{namespace}", name=name)


__all__ = ["sanitize_uri", "table_asset", "table_uri", "to_openlineage"]
