"""``Parking``: all that can be done with parked events once they are stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, exists, select

from waybill.access import Decision
from waybill.events import window
from waybill.parking import (
    cleanup,
    discards,
    files,
    groups,
    holds,
    quarantine,
    reading,
    refreshing,
    replays,
    sampling,
)
from waybill.parking.cleanup import Rewriting
from waybill.parking.event import ParkedEvent
from waybill.parking.groups import Sort
from waybill.parking.holds import Hold
from waybill.parking.model import (
    CleanUpReport,
    DiscardReport,
    FailureCause,
    ObjectDescriptor,
    ParkedFiles,
    ParkedGroup,
    ParkedGroupFilter,
    ParkedGroupPage,
    RecheckReport,
    RefreshReport,
    Replay,
    ReplayConditions,
    Segment,
)
from waybill.parking.packed import CorruptSegmentError, SegmentDescriptor
from waybill.parking.reading import Damage, SliceReading
from waybill.parking.refreshing import ObjectCheck
from waybill.parking.replays import Beside
from waybill.parking.sampling import EventSample
from waybill.parking.states import IS_UNMARKED_ALONE
from waybill.storage import ObjectStore, TrackerStore
from waybill.storage.tracker import parked_objects, segments

if TYPE_CHECKING:
    from waybill.parking.copies import CopyKey


class Parking:
    """The parked events of one tracker and one bucket. Safe for several threads and processes.

    Args:
        tracker: the books.
        objects: the parked files.

    Each method that changes something is one tracker transaction, but for the cuts before a
    replay or discard, and ``clean_up`` and ``refresh``, which go in batches and are resumed by
    calling them again. All raise RetryError while the tracker or the store is away; nothing is half
    done then.
    """

    def __init__(self, tracker: TrackerStore, objects: ObjectStore) -> None:
        self._tracker = tracker
        self._objects = objects

    # Reading

    def partitions(
        self, wanted: ParkedGroupFilter | None = None, *, limit: int | None = None
    ) -> list[ParkedGroup]:
        """Return the partitions that match, sorted by name; without a filter all of them."""
        return groups.read_groups(self._tracker, wanted or ParkedGroupFilter(), limit=limit)

    def page(
        self,
        wanted: ParkedGroupFilter | None = None,
        *,
        sort: Sort = "name",
        descending: bool = False,
        limit: int = 50,
        after: str | None = None,
    ) -> ParkedGroupPage:
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
        return groups.read_page(
            self._tracker,
            wanted or ParkedGroupFilter(),
            sort=sort,
            descending=descending,
            limit=limit,
            after=after,
        )

    def totals(self, wanted: ParkedGroupFilter | None = None) -> tuple[int, int, int]:
        """Return (partitions, events parked in them, bytes held in them) of all that match.

        Cost: a look at each partition that matches; 0.1 s at 500,000.
        """
        return groups.read_totals(self._tracker, wanted or ParkedGroupFilter())

    def causes(self, partition_id: int) -> list[FailureCause]:
        """Return a partition's parked and replaying events by fingerprint, most events first."""
        return groups.read_causes(self._tracker, partition_id)

    def object_keys(self, partition_id: int, *, limit: int) -> list[str]:
        """Return objects that hold what is parked, replaying or quarantined, the newest first."""
        return groups.read_object_keys(self._tracker, partition_id, limit=limit)

    def files(self, wanted: ParkedGroupFilter | None = None, *, limit: int = 50) -> ParkedFiles:
        """Return the newest objects that hold something of some partitions, and their sums.

        Args:
            wanted: which partitions, by their names; without it all. An object's numbers are of all
                that it holds, as it is deleted whole.
            limit: how many objects; the sums are of all that match.

        Cost: a look at each segment of these objects; seconds at 5,000,000. The store is not asked.
        """
        return files.read_files(self._tracker, wanted or ParkedGroupFilter(), limit=limit)

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

    def partition(self, partition_id: int) -> ParkedGroup:
        """Return one partition.

        Raises:
            InputError: there is none with this id.
        """
        return groups.read_group(self._tracker, partition_id)

    def partitions_of(self, ids: Sequence[int]) -> list[ParkedGroup]:
        """Return the partitions with these ids, by id, in one query; an id of none is left out."""
        return groups.read_groups_of(self._tracker, ids)

    def find(self, pipeline: str, *, event_name: str, stage: str, error_type: str) -> ParkedGroup:
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
        return groups.find_group(
            self._tracker, pipeline, event_name=event_name, stage=stage, error_type=error_type
        )

    def find_exactly(
        self, pipeline: str, *, event_name: str, stage: str, error_type: str
    ) -> ParkedGroup | None:
        """Return the partition with these names, as ``find`` does; None: there is none.

        Cost: two look-ups by index, however much is parked.
        """
        return groups.find_exactly(
            self._tracker, pipeline, event_name=event_name, stage=stage, error_type=error_type
        )

    def pipeline_id(self, name: str) -> str:
        """Return the id of a pipeline given by name or id.

        Raises:
            InputError: there is none; names the nearest.
        """
        return groups.resolve_pipeline(self._tracker, name)

    def require_names(
        self, stage: str | None, error_type: str | None, event_name: str | None = None
    ) -> None:
        """Refuse a name that is neither Waybill's own nor ever parked anything.

        Raises:
            InputError: there is none; names the nearest.
        """
        groups.require_names(self._tracker, stage, error_type, event_name)

    def events(  # noqa: PLR0913 - each may be left out
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
        return reading.read_events(
            self._tracker,
            self._objects,
            partition_id,
            reading.Wanted(states, *window(since, until), limit, fingerprint),
            damage,
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
        return sampling.read_sample(
            self._tracker,
            self._objects,
            partition_id,
            n,
            states=states,
            damage=damage,
            fingerprint=fingerprint,
        )

    def newest(
        self,
        partition_id: int,
        *,
        states: Sequence[str],
        fingerprint: str | None = None,
        most_segments: int = 1,
        most_bytes: int,
    ) -> list[ParkedEvent]:
        """Return the events of the segments that were parked last, in order.

        None where the last one is too large. Cost: a read of the store for each segment.

        Args:
            partition_id: of the partition.
            states: only of segments in these states.
            fingerprint: only of this cause.
            most_segments: that are read.
            most_bytes: of all of them, packed.

        Raises:
            CorruptSegmentError, RetryError: it cannot be read; the store is away.
        """
        return sampling.read_newest(
            self._tracker,
            self._objects,
            partition_id,
            reading.Wanted(states, fingerprint=fingerprint),
            most_segments=most_segments,
            most_bytes=most_bytes,
        )

    def draw(
        self,
        partition_id: int,
        choice: ReplayConditions | None = None,
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
            self._tracker, self._objects, partition_id, choice or ReplayConditions(), n, seed
        )

    def read(self, segment: Segment) -> Iterator[ParkedEvent]:
        """Yield one segment's events, checked by its SHA-256 before the first.

        Raises:
            CorruptSegmentError: it is damaged, or its object is gone though its row stands.
        """
        return reading.read_segment_events(self._tracker, self._objects, segment)

    # Changes

    def record(
        self,
        connection: Connection,
        *,
        key: str,
        size: int,
        segments: Sequence[SegmentDescriptor],
        scope: str,
        commit_number: int,
    ) -> None:
        """Record one stored object in the caller's transaction.

        Args:
            connection: the transaction that commits what the events came from.
            key: where the object is.
            size: its bytes.
            segments: as ``Packer.finish`` gave them.
            scope: whose sequence the commit number is of.
            commit_number: the order in which things were written.
        """
        item = ObjectDescriptor(key, size, tuple(segments))
        self.record_objects(connection, [item], scope=scope, commit_number=commit_number)

    def record_objects(
        self,
        connection: Connection,
        objects: Sequence[ObjectDescriptor],
        *,
        scope: str,
        commit_number: int,
    ) -> None:
        """Record all objects of one commit: better than one by one, as partitions are locked once.

        Cost: three statements; about 55 µs a segment with a partition of its own.

        Raises:
            StopError: a segment has no events.
        """
        from waybill.parking.recording import record_objects

        record_objects(connection, objects, scope=scope, commit_number=commit_number)

    def record_once(
        self,
        connection: Connection,
        objects: Sequence[ObjectDescriptor],
        *,
        scope: str,
        commit_number: int,
    ) -> Counter[CopyKey]:
        """Like ``record_objects``, but for copies of what is parked: see ``copies``.

        Returns:
            {(pipeline id, event name, stage, intake minute): copies}, which the caller's
            transaction counts as duplicates instead of parked.
        """
        from waybill.parking.recording import record_objects

        return record_objects(
            connection, objects, scope=scope, commit_number=commit_number, once=True
        )

    def knows(self, connection: Connection, key: str) -> bool:
        """Tell whether an object is recorded, whatever became of it."""
        query = select(exists().where(parked_objects.c.key == key))
        return bool(connection.execute(query).scalar())

    def begin_replay(
        self,
        partition_id: int,
        *,
        who: str,
        run_id: str,
        conditions: ReplayConditions | None = None,
        rate_per_s: int | None = None,
        step: str = "",
    ) -> Replay:
        """Take a partition's parked events for a replay: exactly those that the conditions name.

        A segment that a condition cuts through is cut in two. Events parked after the call began
        stay. The same run id (and step, of a canary) again returns the same replay, running or
        done, whatever the conditions: that is how a run resumes.

        Raises:
            RetryError: another run replays this partition; says which.
            InputError: no such partition; this run's replay was cancelled; who or run is empty; a
                time is none; a limit below 1.
        """
        asked = replays.ReplayAsked(
            partition_id, who, run_id, conditions or ReplayConditions(), rate_per_s, step
        )
        return replays.begin_replay(self._tracker, self._objects, asked)

    def decide_entry(self, replay_id: UUID, entry: str) -> str:
        """Write down where a replay's events enter, before any is sent; return what holds.

        What was decided first stays.
        """
        return replays.decide_entry(self._tracker, replay_id, entry)

    def replay_step(self, partition_id: int, run_id: str, step: str) -> Replay | None:
        """Return a run's replay of one step that began; None: it did not."""
        return replays.read_step(self._tracker, partition_id, run_id, step)

    def replayed_group(self, replay_id: UUID) -> ParkedGroup:
        """Return the partition that a replay is of.

        Raises:
            InputError: there is no such replay.
        """
        with self._tracker.transaction() as connection:
            found = replays.read_known(connection, replay_id)
        return self.partition(found.partition_id)

    def count_parked(self, partition_id: int, conditions: ReplayConditions) -> int:
        """Count the parked events that a replay may take; a segment that is cut counts whole."""
        return replays.count_parked(self._tracker, partition_id, conditions)

    def replay_size(self, replay_id: UUID) -> int:
        """Return how many segments a replay took; of those cut or rewritten since, the parts."""
        return reading.count_segments(self._tracker, *_own(replay_id))

    def replay_slices(self, replay_id: UUID) -> Iterator[list[Segment]]:
        """Yield what a replay has still to send: slices of segments whose events go out merged.

        In replay order. Memory: a page of rows, and one slice's.
        """
        own = segments.c.replay_id == replay_id, segments.c.state == "replaying"
        return reading.slices(reading.segments_in_order(self._tracker, *own))

    def read_slice(self, some: Sequence[Segment]) -> SliceReading:
        """Read a slice, each segment checked whole before the first event is given.

        Memory: the slice's frames, compressed, and the lines of segments that overlap.
        """
        return reading.read_slice(self._tracker, self._objects, some)

    def read_slices(self, slices: Iterable[list[Segment]]) -> Generator[SliceReading]:
        """Yield slices as ``read_slice`` reads them; a few are read ahead, side by side.

        To be closed when it is not read to its end. Memory: the frames of the next slice, whatever
        its size, and of more slices up to 8 MiB.
        """
        return reading.read_slices(self._tracker, self._objects, slices)

    def quarantine(
        self, replay_id: UUID, damaged: Sequence[tuple[Segment, CorruptSegmentError]]
    ) -> int:
        """Set damaged segments of a running replay apart, alarm their owner; return their events.

        Again changes nothing.
        """
        return quarantine.quarantine_all(self._tracker, replay_id, damaged)

    def recheck(
        self, pipeline_id: str | None, decision: Decision, *, object_key: str | None = None
    ) -> RecheckReport:
        """Park quarantined segments again whose bytes are right, as after a restore.

        Says of an object how it is, or of all which are gone; what is gone is quarantined by the
        look of each minute, not by this.

        Args:
            pipeline_id: of one pipeline; None: of all.
            decision: goes into the audit log; it need not say why.
            object_key: only of this object, which is read whole.

        Cost: a listing of the folders in which something is parked, or a read of the object.

        Raises:
            InputError: nothing is parked in the object.
        """
        return quarantine.recheck(
            self._tracker, self._objects, pipeline_id, decision, object_key=object_key
        )

    def replay_segments(self, replay_id: UUID) -> list[Segment]:
        """Return a replay's segments with their states, in the order in which they were written.

        Of those that were cut or rewritten since, the parts.
        """
        return list(reading.segments_in_order(self._tracker, *_own(replay_id)))

    def mark_replayed(
        self, replay_id: UUID, segment_ids: Sequence[int], beside: Beside | None = None
    ) -> bool:
        """Mark segments whose events are all acknowledged; again changes nothing.

        After a cancel it still marks a segment that went back to parked and that nobody took or
        discarded since, or its parts: the events are on their way, and sending them again would be
        for nothing.

        Args:
            replay_id: whose.
            segment_ids: whose events are all acknowledged.
            beside: called in the transaction with the number of events that it marks; also when
                that is 0, and again with each repeat.

        Returns:
            True while the replay runs; False when it was cancelled: stop sending.
        """
        return replays.mark_replayed(self._tracker, replay_id, segment_ids, beside)

    def finish_replay(self, replay_id: UUID) -> Replay:
        """End a replay; again changes nothing.

        Raises:
            RetryError: segments are still to send.
            InputError: it was cancelled.
        """
        return replays.finish_replay(self._tracker, replay_id)

    def cancel_replay(self, replay_id: UUID, *, who: str) -> Replay:
        """Stop a replay; what is not marked replayed is parked again. Again changes nothing.

        Raises:
            InputError: it is done already, or ``who`` is empty.
        """
        return replays.cancel_replay(self._tracker, replay_id, who=who)

    def discard(
        self,
        wanted: ParkedGroupFilter,
        decision: Decision,
        *,
        most_cuts: int | None = None,
    ) -> DiscardReport:
        """Mark parked events as not wanted: exactly those that the filter names.

        Segments that the window on event time cuts through are cut first, each in a transaction of
        its own (a read and a PUT, 10-20 ms); the marking is one statement.

        Raises:
            InputError: the filter is empty, or the decision says not why.
            TooManyCutsError: the window cuts through more than ``most_cuts`` segments.
        """
        return discards.decide(
            self._tracker, self._objects, "discard", wanted, decision, most_cuts=most_cuts
        )

    def undo_discard(
        self,
        wanted: ParkedGroupFilter,
        decision: Decision,
        *,
        most_cuts: int | None = None,
    ) -> DiscardReport:
        """Park discarded events again, as far as no clean-up has claimed their objects.

        Segments are cut where the window cuts through them, as by a discard; the clean-up's grace
        begins anew for the part that stays discarded.

        Raises:
            InputError: the filter is empty, or the decision says not why.
            TooManyCutsError: the window cuts through more than ``most_cuts`` segments.
        """
        return discards.decide(
            self._tracker, self._objects, "undo_discard", wanted, decision, most_cuts=most_cuts
        )

    def hold(self, pipeline: str, decision: Decision) -> Hold:
        """Hold a pipeline, by name or id: from the next batch on its events wait as they came.

        Only a person releases what a person held.

        Raises:
            InputError: there is no such pipeline, it is held already, or the decision says not why.
        """
        return holds.hold(self._tracker, self.pipeline_id(pipeline), decision)

    def release(self, pipeline: str, decision: Decision) -> Hold:
        """End the hold of a pipeline, by name or id; what waits is replayed within a minute or so.

        Raises:
            InputError: it is not held, or the decision says not why.
        """
        return holds.release(self._tracker, self.pipeline_id(pipeline), decision)

    def holds(self, *, active: bool = True) -> list[Hold]:
        """Return the holds that are active, or all there ever were, the oldest first."""
        return holds.read_holds(self._tracker, active=active)

    def clean_up(
        self,
        *,
        grace_s: float,
        now: datetime | None = None,
        rewrite_below: float = 0.0,
        rewrite_from_bytes: int = 0,
    ) -> CleanUpReport:
        """Delete the objects whose segments are all replayed or discarded for ``grace_s`` seconds.

        Killed anywhere, the next call goes on. Cost: a look at each dead segment that is not
        cleaned up yet; what is alive costs nothing.

        Args:
            grace_s: seconds.
            now: the tracker's clock if not given.
            rewrite_below: what is parked in an object moves to another when it is less than this
                share of the object's bytes; the object is deleted after one more grace.
            rewrite_from_bytes: of objects at least this large.

        Raises:
            NotDeletedError: the store did not delete some; all else is done.
        """
        return cleanup.clean_up(
            self._tracker,
            self._objects,
            grace_s=grace_s,
            now=now,
            rewriting=Rewriting(rewrite_below, rewrite_from_bytes),
        )

    def check_objects(self, now: datetime) -> ObjectCheck:
        """Raise the alarm for parked objects whose rows are live and which the store lacks.

        Looks at the objects of today and yesterday, and of one older day, another one each minute:
        a few seconds at 100,000 objects a day. ``refresh`` looks at all of them. Nothing is read:
        what may be damaged is returned.
        """
        return refreshing.check_objects(self._tracker, self._objects, now)

    def quarantine_damaged(self, keys: Sequence[str], *, who: str) -> int:
        """Read parked events of these objects; set apart what is damaged, and return its events.

        Their owners are told. Cost: each object's parked segments are read whole.
        """
        return quarantine.quarantine_damaged(self._tracker, self._objects, keys, who=who)

    def refresh(
        self, *, grace_s: float, staged_kept_s: float = refreshing.STAGED_KEPT_S
    ) -> RefreshReport:
        """Compare tracker and bucket, delete garbage older than ``grace_s``, report what is gone.

        Staged objects go ``staged_kept_s`` after they were loaded.

        Cost: one listing of ``parked/`` and ``staged/``, one pass over segments.

        Raises:
            NotDeletedError: the store did not delete some; all else is done.
        """
        return refreshing.refresh(
            self._tracker, self._objects, grace_s=grace_s, staged_kept_s=staged_kept_s
        )


def _own(replay_id: UUID) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions on a replay's segments: where their events are now.

    What a cancelled one gave back is its own no more once it is discarded.
    """
    own = segments.c.replay_id == replay_id
    return own, segments.c.state != "replaced", IS_UNMARKED_ALONE
