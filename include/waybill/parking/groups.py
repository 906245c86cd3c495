"""Inside partitions: groups of events with one fingerprint, and how many were parked when."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Double, cast, func, select

from waybill.errors import InputError
from waybill.events import window_edge
from waybill.parking.marks import IS_UNMARKED_ALONE
from waybill.parking.model import FingerprintGroup
from waybill.parking.selection import IS_HELD
from waybill.storage import TrackerStore
from waybill.storage.tracker import segments

_MOST_BUCKETS = 1000
_MOST_GROUPS = 500


def read_groups(tracker: TrackerStore, partition_id: int) -> list[FingerprintGroup]:
    """Return a partition's largest groups, the largest first; see ``Parking.groups``."""
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
        .limit(_MOST_GROUPS)
    )
    with tracker.transaction() as connection:
        rows = connection.execute(query).all()
    return [FingerprintGroup(row[0], row[1], int(row[2]), *row[3:]) for row in rows]


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
