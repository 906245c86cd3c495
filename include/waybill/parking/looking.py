"""Looking at what is parked: partitions, events, samples. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from waybill.parking import (
    browsing,
    groups,
    pages,
    sampling,
)
from waybill.parking.damage import Damage
from waybill.parking.event import ParkedEvent
from waybill.parking.model import (
    FingerprintGroup,
    Partition,
    PartitionFilter,
    PartitionPage,
    Segment,
)
from waybill.parking.sampling import EventChoice, EventSample
from waybill.parking.walking import Sort
from waybill.storage import ObjectStore, TrackerStore


class Looking:
    """The part of ``Parking`` that only looks.

    Args:
        tracker: the books.
        objects: the parked files.
    """

    def __init__(self, tracker: TrackerStore, objects: ObjectStore) -> None:
        self._tracker = tracker
        self._objects = objects

    def partitions(
        self, wanted: PartitionFilter | None = None, *, limit: int | None = None
    ) -> list[Partition]:
        """Return the partitions that match, sorted by name; without a filter all of them."""
        return browsing.read_partitions(self._tracker, wanted or PartitionFilter(), limit=limit)

    def page(
        self,
        wanted: PartitionFilter | None = None,
        *,
        sort: Sort = "name",
        descending: bool = False,
        limit: int = 50,
        after: str | None = None,
    ) -> PartitionPage:
        """Return some of the partitions that match, in an order, and where the next ones begin.

        Args:
            wanted: which; without it all.
            sort: by names, events parked now, bytes held now, or when something was last parked.
            descending: the last first.
            limit: how many at most, up to 1,000.
            after: ``next`` of the page before.

        Cost: a few ms to some tens of ms at 500,000 partitions and 5,000,000 segments; seconds for
        a window without ``held`` that few of them match.

        Raises:
            InputError: a cursor that is none or of another order, a wrong limit, sort or time.
        """
        return pages.read_page(
            self._tracker,
            wanted or PartitionFilter(),
            sort=sort,
            descending=descending,
            limit=limit,
            after=after,
        )

    def totals(self, wanted: PartitionFilter | None = None) -> tuple[int, int, int]:
        """Return (partitions, events parked in them, bytes held in them) of all that match.

        Cost: a look at each partition that matches; 0.1 s at 500,000.
        """
        return pages.read_totals(self._tracker, wanted or PartitionFilter())

    def groups(self, partition_id: int) -> list[FingerprintGroup]:
        """Return a partition's parked and replaying events by fingerprint, most events first."""
        return groups.read_groups(self._tracker, partition_id)

    def object_keys(self, partition_id: int, *, limit: int) -> list[str]:
        """Return objects that hold what is parked, replaying or quarantined, the newest first."""
        return browsing.read_object_keys(self._tracker, partition_id, limit=limit)

    def timelines(
        self,
        ids: Sequence[int],
        since: datetime | str,
        until: datetime | str,
        buckets: int = 24,
    ) -> dict[int, list[int]]:
        """Return, for each partition id, how many events were parked in each step of the window.

        By the time of parking; whatever became of the events since.

        Raises:
            InputError: an edge is no time, or the window is empty.
        """
        return groups.read_timelines(self._tracker, ids, since=since, until=until, buckets=buckets)

    def partition(self, partition_id: int) -> Partition:
        """Return one partition.

        Raises:
            InputError: there is none with this id.
        """
        return browsing.read_partition(self._tracker, partition_id)

    def find(self, pipeline: str, *, event_name: str, stage: str, error_type: str) -> Partition:
        """Return the partition with these names.

        Args:
            pipeline: the pipeline's name or id.
            event_name: as parked.
            stage: the stage that parked.
            error_type: code of the catalogue.

        Raises:
            InputError: there is none; names the first name that is wrong, and the nearest right
            one.
        """
        return browsing.find_partition(
            self._tracker, pipeline, event_name=event_name, stage=stage, error_type=error_type
        )

    def find_exactly(
        self, pipeline: str, *, event_name: str, stage: str, error_type: str
    ) -> Partition | None:
        """Return the partition with these names, as ``find`` does; None: there is none.

        Cost: two look-ups by index, however much is parked.
        """
        return browsing.find_exactly(
            self._tracker, pipeline, event_name=event_name, stage=stage, error_type=error_type
        )

    def pipeline_id(self, name: str) -> str:
        """Return the id of a pipeline given by name or id.

        Raises:
            InputError: there is none; names the nearest.
        """
        return browsing.resolve_pipeline(self._tracker, name)

    def require_names(self, stage: str | None, error_type: str | None) -> None:
        """Refuse a stage or error type that is neither Waybill's own nor ever parked anything.

        Raises:
            InputError: there is none; names the nearest.
        """
        browsing.require_names(self._tracker, stage, error_type)

    def events(  # noqa: PLR0913 - conditions of one partition's events
        self,
        partition_id: int,
        *,
        states: Sequence[str] = ("parked",),
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        limit: int | None = None,
        damage: Damage | None = None,
        fingerprint: str | None = None,
    ) -> Iterator[ParkedEvent]:
        """Yield a partition's events in replay order, segment by segment.

        The window is exact: on each event's own time. Memory: one segment. A segment that a
        clean-up took meanwhile is left out. With a fingerprint only segments of that cause. With
        ``damage``, what is damaged is noted there.

        Raises:
            CorruptSegmentError: without ``damage``: a segment is damaged, or its object is gone
                though its row stands.
        """
        return browsing.read_events(
            self._tracker,
            self._objects,
            partition_id,
            states=states,
            since=since,
            until=until,
            limit=limit,
            damage=damage,
            fingerprint=fingerprint,
        )

    def sample(
        self,
        partition_id: int,
        n: int,
        *,
        states: Sequence[str] = ("parked",),
        damage: Damage | None = None,
        fingerprint: str | None = None,
    ) -> list[ParkedEvent]:
        """Return up to ``n`` events, spread over the partition's segments and inside each.

        What is damaged raises or is noted as of ``events``.

        Cost: one read of the store for each of at most ``n`` segments.
        """
        return browsing.read_sample(
            self._tracker,
            self._objects,
            partition_id,
            n,
            states=states,
            damage=damage,
            fingerprint=fingerprint,
        )

    def draw(
        self,
        partition_id: int,
        choice: EventChoice | None = None,
        *,
        n: int | None = None,
        seed: int | None = None,
    ) -> EventSample:
        """Return a partition's parked events to try: all, or ``n`` stratified by fingerprint.

        Damaged segments are left out and counted. ``seed`` makes a sample repeatable.

        Cost: of a sample, two passes over the rows of the partition's segments (about 2 µs a row;
        memory: the events' places), then one read of the store for each of at most ``n`` segments,
        10 ms each. Of all: each segment once. Memory: one segment.

        Raises:
            InputError: an edge of a window is no time.
        """
        return sampling.draw(
            self._tracker, self._objects, partition_id, choice or EventChoice(), n, seed
        )

    def read(self, segment: Segment) -> Iterator[ParkedEvent]:
        """Yield one segment's events, checked by its SHA-256 before the first.

        Raises:
            CorruptSegmentError: it is damaged, or its object is gone though its row stands.
        """
        return browsing.read(self._tracker, self._objects, segment)
