"""Partitions by name: an order that no single index has, as pipelines have names of their own.

The pipelines are listed by name, then each one's partitions come along the index of their names,
for a few pipelines at a time, and for more the longer nothing matches. Partitions of pipelines that
nobody deployed come after all others, by id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    Select,
    Text,
    cast,
    exists,
    func,
    select,
    true,
    tuple_,
)

from waybill.parking.browsing import FIELDS, JOINED
from waybill.parking.cursors import Value
from waybill.parking.model import PartitionFilter
from waybill.parking.names import storable
from waybill.storage.tracker import parked_partitions as partitions
from waybill.storage.tracker import pipelines

Sort = Literal["name", "parked", "bytes", "last_parked_at"]
NAMES_WITHIN = (partitions.c.event_name, partitions.c.stage, partitions.c.error_type)
"""The names of a partition within its pipeline."""
IS_UNKNOWN = pipelines.c.id.is_(None)
_STRIDES = (1, 8, 64, 512)
_Conditions = Sequence[ColumnElement[bool]]


@dataclass(frozen=True, slots=True)
class Order:
    """In which order a page comes, how long it is, and after what."""

    sort: Sort
    descending: bool
    limit: int
    after: tuple[Value, ...] | None

    def by(self, *columns: ColumnElement[Any]) -> list[ColumnElement[Any]]:
        """Return columns to order by."""
        return [column.desc() if self.descending else column.asc() for column in columns]

    def beyond(
        self, columns: Sequence[ColumnElement[Any]], values: Sequence[Any]
    ) -> ColumnElement[bool]:
        """Return the condition that columns come after values."""
        left, right = tuple_(*columns), tuple_(*values)
        return left < right if self.descending else left > right


def rows(connection: Connection, query: Select[Any]) -> list[tuple[Any, ...]]:
    """Return a query's rows."""
    return [tuple(row) for row in connection.execute(query)]


def walk(
    connection: Connection, wanted: PartitionFilter, conditions: _Conditions, order: Order
) -> Iterator[tuple[Any, ...]]:
    """Yield a page: all fields of a partition, then whether its pipeline is unknown."""
    left = order.limit
    for place in _places(wanted, order):
        for ids, beyond in _strides(connection, place, order, wanted.teams):
            found = _of_pipelines(connection, ids, [*conditions, *beyond], order, left)
            yield from found
            left -= len(found)
            if not left:
                return


def _places(wanted: PartitionFilter, order: Order) -> list[int]:
    """Return what is still to walk: 0, deployed pipelines; 1, the others, which have no team."""
    places = [0, 1] if wanted.teams is None else [0]
    places.sort(reverse=order.descending)
    after = None if order.after is None else order.after[0]
    return [
        one for one in places if after is None or one == after or (one == 1) != order.descending
    ]


def _strides(
    connection: Connection, place: int, order: Order, teams: tuple[str, ...] | None
) -> Iterator[tuple[list[str], list[ColumnElement[bool]]]]:
    """Yield ids of pipelines in order, some at a time, with a condition on their partitions."""
    start = None if order.after is None or order.after[0] != place else str(order.after[1])
    query = _unknown(order, start) if place else _deployed(order, start, teams)
    listed = rows(connection, query)
    if order.after is not None and start is not None and listed and listed[0][1] == start:
        yield [listed[0][0]], [order.beyond(NAMES_WITHIN, order.after[2:])]
        listed = listed[1:]
    done = 0
    while done < len(listed):
        stride = _STRIDES[min(done.bit_length() // 3, len(_STRIDES) - 1)]
        yield [row[0] for row in listed[done : done + stride]], []
        done += stride


def _deployed(order: Order, start: str | None, teams: tuple[str, ...] | None) -> Select[Any]:
    query = select(pipelines.c.id, pipelines.c.name)
    if teams is not None:
        query = query.where(pipelines.c.team.in_(map(storable, teams)))
    if start is not None:
        name = pipelines.c.name
        query = query.where(name <= start if order.descending else name >= start)
    return query.order_by(*order.by(pipelines.c.name))


def _unknown(order: Order, start: str | None) -> Select[Any]:
    """Return a query for the pipelines of partitions that are not deployed, by hops in an index."""
    lowest = select(func.min(partitions.c.pipeline_id).label("id")).cte("hops", recursive=True)
    following = (
        select(func.min(partitions.c.pipeline_id))
        .where(partitions.c.pipeline_id > lowest.c.id)
        .scalar_subquery()
    )
    hops = lowest.union_all(select(following).where(lowest.c.id.is_not(None)))
    query = select(hops.c.id, hops.c.id).where(
        hops.c.id.is_not(None), ~exists().where(pipelines.c.id == hops.c.id)
    )
    if start is not None:
        query = query.where(hops.c.id <= start if order.descending else hops.c.id >= start)
    return query.order_by(*order.by(hops.c.id))


def _of_pipelines(
    connection: Connection, ids: list[str], conditions: _Conditions, order: Order, limit: int
) -> list[tuple[Any, ...]]:
    """Return some pipelines' partitions, these pipelines in the order given."""
    given = (
        func.unnest(cast(ids, ARRAY(Text)))
        .table_valued("id", with_ordinality="place", name="given")
        .render_derived()
    )
    each = (
        select(*FIELDS, IS_UNKNOWN.label("unknown"))
        .select_from(JOINED)
        .where(partitions.c.pipeline_id == given.c.id, *conditions)
        .order_by(*order.by(*NAMES_WITHIN))
        .limit(limit)
        .lateral("each")
    )
    names = [each.c[column.name] for column in NAMES_WITHIN]
    query = select(each).select_from(given).join(each, true())
    return rows(connection, query.order_by(given.c.place, *order.by(*names)).limit(limit))
