"""The groups of parked events (*partitions*): found by name, listed in pages, summed up.

A page of the list, at any number of partitions and segments. Sorted by a number or a time, it is
read along that column's index. Sorted by name it is walked, as no single index has that order,
pipelines having names of their own: the pipelines by name, each one's partitions along the index of
their names, for a few pipelines at a time, and for more the longer nothing matches. Partitions of
pipelines that nobody deployed come last, by id. A filter that few partitions match is looked up
first, and then what it found is sorted.

A window or a fingerprint asks of segments. What few segments match, is looked up among them by
time. For the others each partition is asked, in the order of the page, until it is full: its own
times often tell already, else one probe of an index does.

A cursor says where to go on, never what may be seen: the filter is applied again, so a made-up one
shows nothing that a page would not. It is base64url of JSON ``[sort, descending, values...]``.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal

import orjson
from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    ColumnElement,
    Connection,
    Double,
    Select,
    Text,
    and_,
    any_,
    cast,
    exists,
    false,
    func,
    literal_column,
    or_,
    select,
    true,
    tuple_,
    union_all,
)

from waybill.errors import InputError, NotFoundError
from waybill.events import CATALOGUE, STAGES, instant, rfc3339, window_edge
from waybill.nearest_name import nearest_or_all
from waybill.parking.model import FailureCause, ParkedGroup, ParkedGroupFilter, ParkedGroupPage
from waybill.parking.names import storable
from waybill.parking.selection import (
    IS_HELD,
    IS_KEPT,
    LONGEST_COMMIT,
    in_window,
    matches,
    overlaps,
    parked_with,
    segment_matches,
    spans_touch,
)
from waybill.parking.states import HAS_MARK, IS_UNMARKED, IS_UNMARKED_ALONE, no_group, now_in
from waybill.storage import TrackerStore
from waybill.storage.tracker import parked_partitions as partitions
from waybill.storage.tracker import pipelines, segments

_MOST_NAMES = 5_000
_PIPELINE_NAME = func.coalesce(pipelines.c.name, partitions.c.pipeline_id)
_COMPUTED = {
    "pipeline": _PIPELINE_NAME,
    "team": func.coalesce(pipelines.c.team, ""),
}
FIELDS = tuple(
    (_COMPUTED[name] if name in _COMPUTED else partitions.c[name]).label(name)
    for name in ParkedGroup.__slots__
)
JOINED = partitions.outerjoin(pipelines, pipelines.c.id == partitions.c.pipeline_id)
_MOST_BUCKETS = 1000
_MOST_CAUSES = 500
_LARGEST_CHARS = 8192
_LARGEST_NUMBER = 2**63 - 1
Value = int | str | datetime
Sort = Literal["name", "parked", "bytes", "last_parked_at"]
NAMES_WITHIN = (partitions.c.event_name, partitions.c.stage, partitions.c.error_type)
"""The names of a partition within its pipeline."""
IS_UNKNOWN = pipelines.c.id.is_(None)
_STRIDES = (1, 8, 64, 512)
_Where = Sequence[ColumnElement[bool]]
SORTS: tuple[Sort, ...] = ("name", "parked", "bytes", "last_parked_at")
LARGEST_PAGE = 1000
_FEW = 30_000
"""Partitions, or segments, that are looked up and sorted rather than walked."""
_LONG: ColumnElement[bool] = literal_column(
    "segments.last_event_at - segments.first_event_at > interval '1 hour'", Boolean
)
_SHORT = timedelta(hours=1)
_FULL_NAME = (IS_UNKNOWN, FIELDS[1], *NAMES_WITHIN)


def _select(*conditions: ColumnElement[bool]) -> Select[Any]:
    return select(*FIELDS).select_from(JOINED).where(*conditions)


def read_groups(
    tracker: TrackerStore, wanted: ParkedGroupFilter, *, limit: int | None
) -> list[ParkedGroup]:
    """Return the partitions that match, by name."""
    if wanted.kept and not _any(tracker, [*matches(wanted), partitions.c.quarantined > 0]):
        wanted = replace(wanted, kept=False, held=True)  # which indexes serve
    query = _select(*matches(wanted), *in_window(wanted)).order_by(
        _PIPELINE_NAME, partitions.c.event_name, partitions.c.stage, partitions.c.error_type
    )
    with tracker.transaction() as connection:
        return [ParkedGroup(*row) for row in connection.execute(query.limit(limit))]


def read_group(tracker: TrackerStore, partition_id: int) -> ParkedGroup:
    """Return one partition."""
    with tracker.transaction() as connection:
        row = connection.execute(_select(partitions.c.id == partition_id)).first()
    if row is None:
        raise no_group(partition_id)
    return ParkedGroup(*row)


def read_groups_of(tracker: TrackerStore, ids: Sequence[int]) -> list[ParkedGroup]:
    """Return the partitions with these ids, by id; see ``Parking.partitions_of``."""
    if not ids:
        return []
    given = any_(cast(list(ids), ARRAY(BigInteger)))
    query = _select(partitions.c.id == given).order_by(partitions.c.id)
    with tracker.transaction() as connection:
        return [ParkedGroup(*row) for row in connection.execute(query)]


def find_group(
    tracker: TrackerStore, pipeline: str, *, event_name: str, stage: str, error_type: str
) -> ParkedGroup:
    """Return the partition with these names; see ``Parking.find``."""
    names = {"event_name": event_name, "stage": stage, "error_type": error_type}
    exact = find_exactly(tracker, pipeline, **names)
    if exact is not None:
        return exact
    conditions: list[ColumnElement[bool]] = []
    columns = partitions.c
    asked = (
        ("pipeline", _is_pipeline(pipeline), _PIPELINE_NAME, pipeline),
        ("event name", None, columns.event_name, event_name),
        ("stage", None, columns.stage, stage),
        ("error type", None, columns.error_type, error_type),
    )
    within = ""
    for what, special, column, value in asked:
        known = _names(tracker, column, conditions)
        conditions.append(_is(column, value) if special is None else special)
        if not _any(tracker, conditions):
            raise _nothing(what, value, known, within)
        within += f"{' / ' if within else ' of '}{value}"
    with tracker.transaction() as connection:  # parked since the first look
        return ParkedGroup(*connection.execute(_select(*conditions)).one())


def find_exactly(
    tracker: TrackerStore, pipeline: str, *, event_name: str, stage: str, error_type: str
) -> ParkedGroup | None:
    """Return the partition with these names; see ``Parking.find_exactly``."""
    columns = partitions.c
    given = select(pipelines.c.id).where(
        or_(pipelines.c.name == storable(pipeline), pipelines.c.id == storable(pipeline))
    )
    with tracker.transaction() as connection:
        ids = {str(row[0]) for row in connection.execute(given)} | {storable(pipeline)}
        query = _select(
            columns.pipeline_id.in_(sorted(ids)),
            _is(columns.event_name, event_name),
            _is(columns.stage, stage),
            _is(columns.error_type, error_type),
        )
        rows = connection.execute(query).all()
    _refuse_ambiguous(pipeline, {row.pipeline_id for row in rows})
    return ParkedGroup(*rows[0]) if rows else None


def resolve_pipeline(tracker: TrackerStore, name: str) -> str:
    """Return the id of a pipeline given by name or id; see ``Parking.pipeline_id``."""
    query = select(pipelines.c.id).where(or_(pipelines.c.name == name, pipelines.c.id == name))
    parked = select(partitions.c.pipeline_id).where(_is(partitions.c.pipeline_id, name)).limit(1)
    with tracker.transaction() as connection:
        found = set(connection.scalars(query)) | set(connection.scalars(parked))
        _refuse_ambiguous(name, found)
        if found:
            return str(found.pop())
        known = [str(row[0]) for row in connection.execute(select(pipelines.c.name))]
    raise NotFoundError(
        f"there is no pipeline {name!r}; {nearest_or_all(name, known, none='none is deployed')}"
    )


def _refuse_ambiguous(name: str, ids: Collection[str]) -> None:
    """Refuse what is the name of one pipeline and the id of another, from before deploys did."""
    if len(ids) > 1:
        [other] = set(ids) - {storable(name)}
        raise InputError(
            f"{name!r} is the id of one pipeline and the name of another, {other!r}; name the"
            " latter by its id, or deploy it under another name first"
        )


def require_names(
    tracker: TrackerStore, stage: str | None, error_type: str | None, event_name: str | None = None
) -> None:
    """Refuse names that nothing parks under; see ``Parking.require_names``."""
    asked: tuple[tuple[str, str | None, Collection[str], ColumnElement[str]], ...] = (
        ("parked event name", event_name, (), partitions.c.event_name),
        ("stage", stage, STAGES, partitions.c.stage),
        ("error type", error_type, CATALOGUE, partitions.c.error_type),
    )
    for what, name, catalogued, column in asked:
        if name is None or name in catalogued or _any(tracker, [_is(column, name)]):
            continue
        known = sorted({*catalogued, *_names(tracker, column, [])})
        raise NotFoundError(f"there is no {what} {name!r}; {nearest_or_all(name, known)}")


def _is_pipeline(name: str) -> ColumnElement[bool]:
    return or_(pipelines.c.name == storable(name), _is(partitions.c.pipeline_id, name))


def _is(column: ColumnElement[Any], value: str) -> ColumnElement[bool]:
    return column == storable(value)


def _any(tracker: TrackerStore, conditions: Sequence[ColumnElement[bool]]) -> bool:
    with tracker.transaction() as connection:
        return connection.execute(_select(*conditions).limit(1)).first() is not None


def _names(
    tracker: TrackerStore, column: ColumnElement[Any], conditions: Sequence[ColumnElement[bool]]
) -> list[str]:
    query = select(column).select_from(JOINED).where(*conditions).distinct().limit(_MOST_NAMES)
    with tracker.transaction() as connection:
        return [str(row[0]) for row in connection.execute(query)]


def _nothing(what: str, value: str, known: Sequence[str], within: str) -> InputError:
    hint = nearest_or_all(value, known, none="nothing is parked there")
    return NotFoundError(f"nothing is parked{within} for {what} {value!r}; {hint}")


def read_object_keys(tracker: TrackerStore, partition_id: int, *, limit: int) -> list[str]:
    """Return objects that hold a partition's events; see ``Parking.object_keys``."""
    held = now_in(("parked", "replaying", "quarantined"))
    query = (
        select(segments.c.object_key)
        .where(segments.c.partition_id == partition_id, *held)
        .group_by(segments.c.object_key)
        .order_by(func.max(segments.c.id).desc())
        .limit(limit)
    )
    with tracker.transaction() as connection:
        return [str(row[0]) for row in connection.execute(query)]


def read_causes(tracker: TrackerStore, partition_id: int) -> list[FailureCause]:
    """Return a partition's largest causes, the largest first; see ``Parking.causes``."""
    own = segments.c
    each = (
        select(
            own.fingerprint,
            func.max(own.id).label("newest"),
            func.sum(own.count).label("events"),
            func.count().label("segments"),
            func.min(own.parked_at).label("first_at"),
            func.max(own.parked_at).label("last_at"),
        )
        .where(own.partition_id == partition_id, IS_HELD, IS_UNMARKED_ALONE)
        .group_by(own.fingerprint)
        .subquery()
    )
    found = each.c
    query = (
        select(
            found.fingerprint,
            own.last_message,
            found.events,
            found.segments,
            found.first_at,
            found.last_at,
        )
        .select_from(each.join(segments, own.id == found.newest))
        .order_by(found.events.desc(), found.fingerprint)
        .limit(_MOST_CAUSES)
    )
    with tracker.transaction() as connection:
        rows = connection.execute(query).all()
    return [FailureCause(row[0], row[1], int(row[2]), *row[3:]) for row in rows]


def read_timelines(
    tracker: TrackerStore,
    ids: Sequence[int],
    *,
    since: datetime | str,
    until: datetime | str,
    buckets: int,
) -> dict[int, list[int]]:
    """Return the numbers of events parked, in equal steps of time; see ``Parking.timelines``."""
    start, end = window_edge(since, "since"), window_edge(until, "until")
    if start is None or end is None or end <= start:
        raise InputError("a timeline needs a window: `since` before `until`")
    if not 1 <= buckets <= _MOST_BUCKETS:
        raise InputError(f"buckets: {buckets} is not from 1 to {_MOST_BUCKETS}")
    own = segments.c
    age_s = cast(func.extract("epoch", own.parked_at - start), Double)
    step = func.floor(age_s / ((end - start).total_seconds() / buckets))
    query = (
        select(own.partition_id, step, func.sum(own.count))
        .where(
            own.partition_id.in_(list(ids)),
            own.parked_at >= start,
            own.parked_at < end,
            own.state != "replaced",
        )
        .group_by(own.partition_id, step)
    )
    counts = {partition_id: [0] * buckets for partition_id in ids}
    with tracker.transaction() as connection:
        for partition_id, index, number in connection.execute(query):
            counts[partition_id][min(int(index), buckets - 1)] += int(number)
    return counts


def to_cursor(sort: str, values: Sequence[Value], *, descending: bool) -> str:
    """Return the cursor of a page that ended at these values."""
    plain = [rfc3339(value) if isinstance(value, datetime) else value for value in values]
    return base64.urlsafe_b64encode(orjson.dumps([sort, descending, *plain])).decode()


def from_cursor(
    text: str, sort: str, kinds: Sequence[type[Value]], *, descending: bool
) -> list[Value]:
    """Return the values of a cursor.

    Raises:
        InputError: it is none, or one of a page in another order.
    """
    if len(text) > _LARGEST_CHARS:
        raise _no_cursor()
    try:
        found = orjson.loads(base64.b64decode(text.encode(), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error) as error:
        raise _no_cursor() from error
    if not isinstance(found, list) or len(found) != len(kinds) + 2:
        raise _no_cursor()
    if found[0] != sort or found[1] is not descending:
        raise InputError(
            "`after` belongs to a page in another order; start from the first page of this one"
        )
    return [_value(value, kind) for value, kind in zip(found[2:], kinds, strict=True)]


def _value(value: object, kind: type[Value]) -> Value:
    if kind is datetime:
        moment = instant(value)
        if moment is not None:
            return moment
    elif type(value) is int and kind is int:
        if abs(value) <= _LARGEST_NUMBER:
            return value
    elif isinstance(value, str) and kind is str and "\x00" not in value:
        return value
    raise _no_cursor()


def _no_cursor() -> InputError:
    return InputError("`after` is not the `next` of any page; start from the first page")


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
    connection: Connection, wanted: ParkedGroupFilter, conditions: _Where, order: Order
) -> Iterator[tuple[Any, ...]]:
    """Yield a page: all fields of a partition, then whether its pipeline is unknown."""
    remaining = order.limit
    for part in _parts(wanted, order):
        for ids, beyond in _strides(connection, part, order, wanted.teams):
            page = _of_pipelines(connection, ids, [*conditions, *beyond], order, remaining)
            yield from page
            remaining -= len(page)
            if not remaining:
                return


def _parts(wanted: ParkedGroupFilter, order: Order) -> list[int]:
    """Return what is still to walk: 0, deployed pipelines; 1, the others, which have no team."""
    parts = [0, 1] if wanted.teams is None else [0]
    parts.sort(reverse=order.descending)
    after = None if order.after is None else order.after[0]
    return [
        part for part in parts if after is None or part == after or (part == 1) != order.descending
    ]


def _strides(
    connection: Connection, part: int, order: Order, teams: tuple[str, ...] | None
) -> Iterator[tuple[list[str], list[ColumnElement[bool]]]]:
    """Yield ids of pipelines in order, some at a time, with a condition on their partitions."""
    start = None if order.after is None or order.after[0] != part else str(order.after[1])
    query = _unknown(order, start) if part else _deployed(order, start, teams)
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
    connection: Connection, ids: list[str], conditions: _Where, order: Order, limit: int
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


def read_page(
    tracker: TrackerStore,
    wanted: ParkedGroupFilter,
    *,
    sort: Sort,
    descending: bool,
    limit: int,
    after: str | None,
) -> ParkedGroupPage:
    """Return one page; see ``Parking.page``."""
    if sort not in SORTS:
        raise InputError(f"sort: {sort!r} is not one of {', '.join(SORTS)}")
    if not 1 <= limit <= LARGEST_PAGE:
        raise InputError(f"limit: {limit} is not from 1 to {LARGEST_PAGE}")
    kinds = _kinds(sort)
    cursor = None if after is None else from_cursor(after, sort, kinds, descending=descending)
    order = Order(sort, descending, limit + 1, None if cursor is None else tuple(cursor))
    with tracker.transaction() as connection:
        conditions = _conditions(connection, wanted)
        if sort != "name":
            found = _by_number(connection, conditions, order)
        elif _few_match(connection, wanted, conditions):
            found = _sorted(connection, conditions, order)
        else:
            found = list(walk(connection, wanted, conditions.all, order))
    page = tuple(ParkedGroup(*row[:-1]) for row in found[:limit])
    if len(found) <= limit:
        return ParkedGroupPage(page, None)
    values = _values(page[-1], sort, known=not found[limit - 1][-1])
    return ParkedGroupPage(page, to_cursor(sort, values, descending=descending))


def read_totals(tracker: TrackerStore, wanted: ParkedGroupFilter) -> tuple[int, int, int]:
    """Return sums over the partitions that match; see ``Parking.totals``."""
    numbers = (func.count(), func.sum(partitions.c.parked), func.sum(partitions.c.bytes))
    with tracker.transaction() as connection:
        query = select(*numbers).where(*_conditions(connection, wanted).all)
        row = connection.execute(query).one()
    return int(row[0]), int(row[1] or 0), int(row[2] or 0)


@dataclass(frozen=True, slots=True)
class _Conditions:
    all: list[ColumnElement[bool]]
    looked_up: bool
    """True: what matches is a list of ids."""


def _conditions(connection: Connection, wanted: ParkedGroupFilter) -> _Conditions:
    """Return the conditions on a partition's row, windows and fingerprint included."""
    own = [*matches(wanted), *spans_touch(wanted)]
    some = segment_matches(wanted)
    if not some:
        return _Conditions(own, looked_up=False)
    if wanted.held:
        some += [IS_HELD, IS_UNMARKED]
    if wanted.kept:
        some += [IS_KEPT, IS_UNMARKED]
    probe = select(true()).where(segments.c.partition_id == partitions.c.id, *some).limit(1)
    asked = probe.correlate(partitions).scalar_subquery().is_not(None)
    if wanted.held:
        number, ids = connection.execute(_matching_segments(wanted)).one()
        if number <= _FEW:
            chosen = partitions.c.id == any_(cast(ids or [], ARRAY(BigInteger)))
            return _Conditions([*own, chosen, or_(~HAS_MARK, asked)], looked_up=True)
    return _Conditions([*own, or_(_certain(wanted), asked)], looked_up=False)


def _matching_segments(wanted: ParkedGroupFilter) -> Select[Any]:
    """Return a query: how many held segments match, at most ``_FEW`` + 1, and their partitions.

    Those that end in the window, and those that reach beyond its end: short ones end soon after it,
    long ones have an index of their own.
    """
    since, until = wanted.window
    same = [IS_HELD, *parked_with(wanted)]
    ends = segments.c.last_event_at
    parts = [[*same, *([] if since is None else [ends >= since])]]
    if until is not None:
        parts[0].append(ends < until)
        beyond = [*same, ends >= until, *overlaps(since, until)]
        parts.append([*beyond, ends <= until + _SHORT, ~_LONG])
        parts.append([*beyond, _LONG])
    of_each = [select(segments.c.partition_id).where(*part).limit(_FEW + 1) for part in parts]
    found = union_all(*[select(one.subquery().c.partition_id) for one in of_each]).subquery()
    few = select(found.c.partition_id).limit(_FEW + 1).subquery()
    ids: Any = func.array_agg(few.c.partition_id.distinct())
    return select(func.count(), ids)


def _certain(wanted: ParkedGroupFilter) -> ColumnElement[bool]:
    """Return a condition on a partition's row that holds only where a segment matches."""
    event, parked = wanted.window, wanted.parked_window
    one_kind = (event == (None, None)) != (parked == (None, None))
    if wanted.fingerprint is not None or not one_kind:
        return false()
    own = partitions.c
    if event == (None, None):
        since, until = parked
        until = None if until is None else until - LONGEST_COMMIT
        edges = (own.first_parked_at, own.last_parked_at)
    else:
        since, until = event
        edges = (own.first_event_at, own.last_event_at)
    inside = or_(*[_within(edge, since, until) for edge in edges])
    decided = own.replayed + own.discarded
    if wanted.held:
        return and_(inside, decided + own.quarantined == 0)
    return and_(inside, decided == 0) if wanted.kept else inside


def _within(
    edge: ColumnElement[Any], since: datetime | None, until: datetime | None
) -> ColumnElement[bool]:
    conditions = [] if since is None else [edge >= since]
    return and_(*conditions, *([] if until is None else [edge < until]))


def _few_match(connection: Connection, wanted: ParkedGroupFilter, conditions: _Conditions) -> bool:
    """Tell whether it is better to sort what matches than to walk all in order."""
    if conditions.looked_up or wanted.pipeline_id is not None:
        return True
    if wanted.event_name is None and wanted.error_type is None:
        return False
    some = select(partitions.c.id).where(*matches(wanted)).limit(_FEW + 1).subquery()
    number = connection.execute(select(func.count()).select_from(some)).scalar_one()
    return int(number) <= _FEW


def _kinds(sort: Sort) -> tuple[type[Value], ...]:
    if sort == "name":
        return (int, str, str, str, str)
    return (datetime if sort == "last_parked_at" else int, int)


def _values(last: ParkedGroup, sort: Sort, *, known: bool) -> list[Value]:
    if sort == "name":
        place = 0 if known else 1
        return [place, last.pipeline, last.event_name, last.stage, last.error_type]
    return [getattr(last, sort), last.id]


def _by_number(
    connection: Connection, conditions: _Conditions, order: Order
) -> list[tuple[Any, ...]]:
    columns = (partitions.c[order.sort], partitions.c.id)
    beyond = [] if order.after is None else [order.beyond(columns, order.after)]
    query = select(*FIELDS, IS_UNKNOWN).select_from(JOINED).where(*conditions.all, *beyond)
    return rows(connection, query.order_by(*order.by(*columns)).limit(order.limit))


def _sorted(connection: Connection, conditions: _Conditions, order: Order) -> list[tuple[Any, ...]]:
    """Return a page of few partitions: all of them are sorted."""
    beyond = []
    if order.after is not None:
        beyond.append(order.beyond(_FULL_NAME, (bool(order.after[0]), *order.after[1:])))
    query = select(*FIELDS, IS_UNKNOWN).select_from(JOINED).where(*conditions.all, *beyond)
    return rows(connection, query.order_by(*order.by(*_FULL_NAME)).limit(order.limit))
