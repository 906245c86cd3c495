"""How many events were parked when: a few numbers a partition, for a small drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Double, cast, func, select

from waybill.parking.instants import rfc3339
from waybill.storage.tracker import TrackerStore
from waybill.storage.tracker.tables import segments

STEPS = 24


@dataclass(frozen=True, slots=True)
class Timeline:
    """Events parked in ``STEPS`` equal steps from ``since`` to ``until``, by parked time."""

    since: datetime
    until: datetime
    step_s: float
    parked: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the timeline as JSON."""
        times = {"since": rfc3339(self.since), "until": rfc3339(self.until)}
        return asdict(self) | times | {"parked": list(self.parked)}


def read_timelines(
    tracker: TrackerStore, partition_ids: Sequence[int], *, since: datetime, until: datetime
) -> dict[int, Timeline]:
    """Return a timeline for each partition: of all events, whatever became of them since.

    Cost: one scan of these partitions' segments.
    """
    since, until = since.astimezone(UTC), until.astimezone(UTC)
    step_s = (until - since).total_seconds() / STEPS
    age_s = func.extract("epoch", segments.c.parked_at - since)
    step = func.floor(cast(age_s, Double) / step_s)
    query = (
        select(segments.c.partition_id, step, func.sum(segments.c.count))
        .where(
            segments.c.partition_id.in_(list(partition_ids)),
            segments.c.parked_at >= since,
            segments.c.parked_at < until,
        )
        .group_by(segments.c.partition_id, step)
    )
    counts = {partition_id: [0] * STEPS for partition_id in partition_ids}
    with tracker.transaction() as connection:
        for partition_id, index, number in connection.execute(query):
            counts[partition_id][min(int(index), STEPS - 1)] += int(number)
    return {
        partition_id: Timeline(since, until, step_s, tuple(parked))
        for partition_id, parked in counts.items()
    }
