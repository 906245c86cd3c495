"""Writing notices, in the transaction that does what they tell of.

Whose pipelines they are: as the newest deployed declarations say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sqlalchemy import BigInteger, Connection, bindparam, cast, func, literal, select
from sqlalchemy.dialects.postgresql import ARRAY, insert

from waybill.storage.tracker import json_value, notices, pipeline_versions, pipelines, text_value
from waybill.storage.tracker import parked_partitions as partitions

NOBODY = ""
"""Owner of pipelines that nobody declared."""
_LONGEST_OWNER = 300


@dataclass(frozen=True, slots=True)
class Owned:
    """A pipeline's name and owner."""

    name: str
    owner: str


def owners(connection: Connection) -> dict[str, Owned]:
    """Return {pipeline id: name and owner} of all that are deployed."""
    newest = (
        select(
            pipeline_versions.c.pipeline_id, func.max(pipeline_versions.c.number).label("number")
        )
        .group_by(pipeline_versions.c.pipeline_id)
        .subquery()
    )
    query = (
        select(pipelines.c.id, pipelines.c.name, pipeline_versions.c.declaration["owner"].astext)
        .join(newest, newest.c.pipeline_id == pipelines.c.id)
        .join(
            pipeline_versions,
            (pipeline_versions.c.pipeline_id == newest.c.pipeline_id)
            & (pipeline_versions.c.number == newest.c.number),
        )
    )
    return {
        row[0]: Owned(row[1], (row[2] or NOBODY).strip()[:_LONGEST_OWNER])
        for row in connection.execute(query)
    }


def by_owner(pipeline_ids: Iterable[str], known: dict[str, Owned]) -> dict[str, list[str]]:
    """Return {owner: ids of the pipelines}, sorted."""
    found: dict[str, list[str]] = {}
    for pipeline_id in sorted(pipeline_ids):
        owned = known.get(pipeline_id)
        found.setdefault(owned.owner if owned else NOBODY, []).append(pipeline_id)
    return dict(sorted(found.items()))


Kind = Literal[
    "breach",
    "topic",
    "task",
    "hold",
    "missing",
    "damage",
    "destination",
    "log",
    "release",
    "replay",
    "digest",
    "first",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""What can be told, the most urgent first: a message names them in this order.

``breach``: the auditor found breaches of the books, named their events, or saw them end.
``topic``: one is not read any more until somebody settles it. ``task``: a run of ingestion failed
after its last try. ``hold``, ``release``: a pipeline was held, goes on. ``missing``, ``damage``: an
object is gone, a frame is broken. ``destination``: one takes no loads, or takes them again.
``log``: a write-ahead log was taken over. ``replay``: how one ended. ``digest``: numbers of what is
parked. ``first``: events parked where none were.
"""
_LONGEST_TEXT = 2000
_DEEPEST = 6


def write_first(connection: Connection, partition_ids: Sequence[int]) -> None:
    """Write that events parked where none were: a notice for each partition, in one statement.

    The caller has just parked them: the numbers and the message are those of the partitions now.
    Cost: nothing without partitions; else one statement, about 15 µs a partition.
    """
    if not partition_ids:
        return
    names = ("event_name", "stage", "error_type")
    shown = [(name, partitions.c[name]) for name in names]
    shown += [("message", partitions.c.last_message), ("count", partitions.c.parked)]
    query = (
        select(
            literal("first"),
            partitions.c.pipeline_id,
            partitions.c.id,
            func.jsonb_build_object(*[part for pair in shown for part in pair]),
        )
        .where(partitions.c.id == func.any(cast(bindparam("ids"), ARRAY(BigInteger))))
        .order_by(partitions.c.id)
    )
    columns = ["kind", "pipeline_id", "partition_id", "detail"]
    statement = notices.insert().from_select(columns, query)
    connection.execute(statement, {"ids": list(partition_ids)})


def write_notice(
    connection: Connection,
    *,
    kind: Kind,
    pipeline_id: str,
    partition_id: int | None = None,
    **detail: Any,
) -> None:
    """Write one notice; of a missing object that was told already, none.

    Args:
        connection: the transaction that does what the notice tells of.
        kind: one of ``KINDS``.
        pipeline_id: whose owner is told.
        partition_id: the parked partition that it is about, if one.
        detail: what is said, in the order given: ``message`` is cut out of messages where the
            settings say so, the rest is shown as ``name: value``. Texts longer than 2,000
            characters are cut; what SQL cannot hold is escaped: no value makes this fail.
    """
    connection.execute(
        insert(notices)
        .values(
            kind=kind,
            pipeline_id=text_value(pipeline_id, longest=_LONGEST_TEXT),
            partition_id=partition_id,
            detail=json_value(detail, deepest=_DEEPEST, longest=_LONGEST_TEXT),
        )
        .on_conflict_do_nothing()  # one a missing object
    )
