"""What pages and APIs ask of parked events: look at them, and decide about them.

Whether a user may call it is checked before, by ``access``. Here lists are limited to the user's
teams, personal fields are masked unless the user may see them, and each look at unmasked values,
each download and each decision is written to the audit log before anything is returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import select

from waybill.access import (
    Access,
    AccessLog,
    Decision,
    Personal,
    access_of,
    personal_of,
    read_audit,
    write_audit,
)
from waybill.deployment import active_version, deployed_names, keeps_source
from waybill.errors import InputError
from waybill.events import rfc3339
from waybill.inspection import status
from waybill.inspection.messages import (
    Explained,
    HeldMessages,
    Messages,
    NewestEvents,
    newest_events,
)
from waybill.parking import (
    HELD,
    KINDS,
    AutoReplay,
    Damage,
    DiscardReport,
    FailureCause,
    Hold,
    ParkedEvent,
    ParkedGroup,
    ParkedGroupFilter,
    Parking,
    Replay,
    Unreadable,
    contents,
    masked_event,
    matches,
    read_event_page,
    read_mark,
    release,
    remove_mark,
)
from waybill.settings import DestinationSettings, S3Settings
from waybill.storage import ObjectStore, TrackerStore
from waybill.storage.tracker import parked_partitions as partitions

if TYPE_CHECKING:
    from waybill.replay import Remedy

_TIMELINE = timedelta(days=1)
_STEPS = 24
MOST_CUTS = 200
"""Segments that a decision may cut in two while somebody waits: 2-4 s."""
_MOST_READ = 50
"""Groups of a list whose messages are masked by their events."""
_LIST_BYTES = 256 * 1024
"""Of a group's newest segment, read for that."""
_DETAIL_BYTES = 4 * 1024**2
"""The same where a group is looked at."""
_MOST_SEGMENTS = 8
"""Of a group that is looked at, the newest, to find deletes and copies among them."""
_NOBODY = access_of((), "", ())
_NAMES = ("pipeline_id", "event_name", "stage", "error_type", "team")


@dataclass(frozen=True, slots=True)
class ShownEvent:
    """One event as a user may see it."""

    event: ParkedEvent
    masked: tuple[str, ...]
    """Fields that were masked; ``*``: all."""


@dataclass(frozen=True, slots=True)
class ShownPage:
    """A page of a group's events."""

    events: tuple[ShownEvent, ...]
    next: str | None
    """The cursor of the page after it; None: this was the last."""
    damaged: tuple[Unreadable, ...]
    """What lay on this page and could not be read."""


class ParkedEventsService:
    """Parked events for a user. Safe for several threads."""

    def __init__(
        self,
        tracker: TrackerStore,
        objects: ObjectStore,
        destinations: Mapping[str, DestinationSettings],
        s3: S3Settings | None = None,
    ) -> None:
        self.tracker = self._tracker = tracker
        self._objects = objects
        self.destinations, self._s3 = destinations, s3
        self._looks = AccessLog()
        self.parking = Parking(tracker, objects)

    def partition(self, partition_id: int) -> ParkedGroup:
        """Return one partition, its last message as parked.

        Raises:
            InputError: there is none with this id.
        """
        return self.parking.partition(partition_id)

    def shown(self, access: Access, found: Sequence[ParkedGroup]) -> list[ParkedGroup]:
        """Return partitions with their last messages as this person may see them."""
        messages = self._messages(access, found)
        shown = [messages.partition(partition) for partition in found]
        messages.write_down()
        return shown

    def masked(self, found: Sequence[ParkedGroup]) -> list[ParkedGroup]:
        """Return partitions with their messages masked as in a sample of their events, for anybody.

        Cost: a read of the store, of 256 KiB at most, for each of the first 50 with personal
        fields; of those after them, and where nobody said what is personal, what is not in
        Waybill's own words is hidden whole.
        """
        personal = personal_of(self._tracker, {one.pipeline_id for one in found})
        masked = [one.id for one in found if one.last_message and personal.of(one)]
        read = set(masked[:_MOST_READ])
        by_event = self._messages(_NOBODY, found, by_event=True, most_bytes=_LIST_BYTES)
        hidden = self._messages(_NOBODY, found)
        return [(by_event if one.id in read else hidden).partition(one) for one in found]

    def masked_holds(self, found: Sequence[Hold]) -> list[Hold]:
        """Return holds with their messages as ``masked`` leaves those of partitions."""
        messages = self._messages(_NOBODY, found)
        return [messages.hold(one, "") for one in found]

    def masked_by_event(self, found: Sequence[ParkedGroup]) -> list[ParkedGroup]:
        """Return partitions with their messages masked as in a sample of their events, for anybody.

        Cost: a read of the store for each of those with personal fields; for a long list take
        ``masked``.
        """
        messages = self._messages(_NOBODY, found, by_event=True)
        return [messages.partition(partition) for partition in found]

    def causes(self, found: Sequence[ParkedGroup]) -> dict[int, list[FailureCause]]:
        """Return {partition id: its held events by cause}, messages as of ``masked_by_event``."""
        messages = self._messages(_NOBODY, found, by_event=True)
        return {one.id: messages.causes(one, self.parking.causes(one.id)) for one in found}

    def newest(self, found: Sequence[ParkedGroup]) -> dict[int, NewestEvents]:
        """Return {partition id: what is known of the events that it has parked last}.

        Those where nothing is parked, or whose newest events cannot be read now, are left out.

        Cost: up to 8 reads of the store for each, of 4 MiB together.
        """
        held = HeldMessages(self.parking, _DETAIL_BYTES)
        newest = {
            one.id: held.newest(one.id, ("parked",), most_segments=_MOST_SEGMENTS)
            for one in found
            if one.parked
        }
        return {ident: newest_events(events) for ident, events in newest.items() if events}

    def _messages(
        self,
        access: Access,
        found: Sequence[ParkedGroup | Hold],
        *,
        by_event: bool = False,
        most_bytes: int = _DETAIL_BYTES,
    ) -> Messages:
        held = HeldMessages(self.parking, most_bytes) if by_event else None
        ids = [one.pipeline_id for one in found]
        return Messages(self._tracker, access, ids, self._looks, held)

    def explained(self, access: Access, partition: ParkedGroup) -> Explained:
        """Return a partition, its events by cause and its pipeline's hold.

        For who may not see what is personal, messages are masked as they are beside their events.
        """
        messages = self._messages(access, [partition], by_event=True)
        causes = self.parking.causes(partition.id)
        holds = [h for h in self.parking.holds() if h.pipeline_id == partition.pipeline_id]
        explained = Explained(
            messages.partition(partition),
            messages.causes(partition, causes),
            messages.hold(holds[0], partition.team) if holds else None,
        )
        messages.write_down()
        return explained

    def events(
        self,
        access: Access,
        partition: ParkedGroup,
        *,
        after: str | None,
        limit: int,
        fingerprint: str | None = None,
    ) -> ShownPage:
        """Return a page of a partition's held events, with what of it could not be read.

        Raises:
            InputError: the cursor is none.
        """
        page = read_event_page(
            self._tracker,
            self._objects,
            partition.id,
            after=after,
            limit=limit,
            fingerprint=fingerprint,
        )
        fields = self._fields(access, partition, "see_personal", events=len(page.events))
        shown = tuple(ShownEvent(*masked_event(event, fields)) for event in page.events)
        return ShownPage(shown, page.next, page.damaged)

    def download(
        self,
        access: Access,
        partition: ParkedGroup,
        *,
        kind: str,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
    ) -> Iterator[bytes]:
        """Return the bytes of a file with a partition's held events, a piece at a time.

        What cannot be read stands at its end, see ``exporting``.

        Raises:
            InputError: there is no such kind, or an edge of the window is no time.
        """
        begin, end = ParkedGroupFilter(since=since, until=until).window
        edges = {"since": begin, "until": end}
        asked = {"kind": kind} | {n: rfc3339(at) for n, at in edges.items() if at is not None}
        if kind not in KINDS:
            raise InputError(f"{kind!r} is not a file type; choose one of {', '.join(KINDS)}")
        fields = self._fields(access, partition, "download_personal", **asked)
        self.audit(access.user, "download", partition, **asked)
        damage = Damage()
        found = self.parking.events(
            partition.id, states=HELD, since=begin, until=end, damage=damage
        )
        return contents(kind, (masked_event(event, fields)[0] for event in found), damage)

    def taken_out(
        self,
        found: Sequence[ParkedGroup],
        *,
        who: str,
        personal: bool,
        damage: Damage,
        **chosen: Any,
    ) -> Iterator[ParkedEvent]:
        """Return the held events of partitions, one after the other, for a file.

        Args:
            who: the name for the audit log.
            personal: leave personal fields as they are, which is written down before.
            damage: takes what cannot be read.
            chosen: window and fingerprint, as of ``Parking.events``.
        """
        declared = personal_of(self._tracker, {partition.pipeline_id for partition in found})
        for one in found:
            fields = self._unless(declared, one, "download_personal", who=who, personal=personal)
            held = self.parking.events(one.id, states=HELD, damage=damage, **chosen)
            yield from (masked_event(event, fields)[0] for event in held)

    def _unless(
        self,
        declared: Personal,
        partition: ParkedGroup,
        action: str,
        *,
        who: str,
        personal: bool,
        **detail: object,
    ) -> tuple[str, ...] | None:
        """Return what to mask; nothing where that is asked for, which is written down."""
        fields = declared.of(partition)
        if fields == () or not personal:
            return fields
        known = ["*"] if fields is None else list(fields)
        self.audit(who, action, partition, fields=known, **detail)
        return ()

    def _fields(
        self, access: Access, partition: ParkedGroup, action: str, **detail: object
    ) -> tuple[str, ...] | None:
        """Return what to mask; a look at what is personal is written down instead."""
        declared = personal_of(self._tracker, [partition.pipeline_id])
        may = access.may("personal", partition.team)
        return self._unless(declared, partition, action, who=access.user, personal=may, **detail)

    def sampled(
        self,
        found: Sequence[ParkedGroup],
        number: int,
        *,
        who: str,
        personal: bool,
        damage: Damage,
        **chosen: Any,
    ) -> list[ParkedEvent]:
        """Return some held events, shared out over partitions as evenly as they hold events.

        At most ``number``. ``who``, ``personal``, ``damage``: as of ``taken_out``; ``chosen``: a
        fingerprint, as of ``Parking.sample``.
        """
        declared = personal_of(self._tracker, {partition.pipeline_id for partition in found})
        taken: list[ParkedEvent] = []
        planned = 0
        for partition, own in zip(found, _shares(found, number), strict=True):
            planned += own
            share = planned - len(taken)  # with what those before had less of
            if not share:
                continue
            fields = self._unless(
                declared, partition, "sample_personal", who=who, personal=personal, events=share
            )
            events = self.parking.sample(partition.id, share, states=HELD, damage=damage, **chosen)
            taken += [masked_event(one, fields)[0] for one in events]
        return taken

    def timelines(
        self,
        teams: tuple[str, ...] | None,
        partition_ids: Sequence[int],
        *,
        since: datetime | str | None,
        until: datetime | str | None,
    ) -> dict[int, dict[str, Any]]:
        """Return when events were parked, for those of the partitions that these teams own.

        Raises:
            InputError: an edge of the window is no time, or it ends before it begins.
        """
        begin, end = ParkedGroupFilter(parked_since=since, parked_until=until).parked_window
        end = end or datetime.now(UTC)
        begin = begin or end - _TIMELINE
        if begin >= end:
            raise InputError("parked_since must be before parked_until")
        wanted = matches(ParkedGroupFilter(teams=teams))
        wanted.append(partitions.c.id.in_(list(partition_ids)))
        with self._tracker.transaction() as connection:
            own = connection.execute(select(partitions.c.id).where(*wanted)).scalars().all()
        parked = self.parking.timelines(own, begin, end, _STEPS)
        said = {
            "since": rfc3339(begin),
            "until": rfc3339(end),
            "step_s": (end - begin).total_seconds() / _STEPS,
        }
        return {partition_id: said | {"parked": line} for partition_id, line in parked.items()}

    def replays(self, partition_id: int) -> list[Replay]:
        """Return a partition's newest replays, the newest first."""
        return status.read_newest(self._tracker, partition_id)

    def standings(self, partition_id: int) -> list[status.ReplayStanding]:
        """Return how a partition's newest replays stand, the newest first: two statements."""
        return status.read_standings(self._tracker, self.replays(partition_id))

    def of_run(self, partition_id: int, run_id: str) -> tuple[Replay | None, dict[str, int]]:
        """Return the replay that a run began, if it did, and what became of its events so far."""
        return status.read_of_run(self._tracker, partition_id, run_id)

    def active_version(self, pipeline_id: str) -> str | None:
        """Return the version of a pipeline that is deployed now."""
        return active_version(self._tracker, pipeline_id)

    def check_entry(self, partition: ParkedGroup, enter: str | None) -> None:
        """Refuse a replay that is to enter where it cannot.

        Raises:
            InputError: says where it can.
        """
        if enter and partition.stage != enter and not self.can_enter_earlier(partition):
            raise InputError(
                f"events of {partition.name} cannot enter at the {enter}: only events parked at "
                "mapping can, in a pipeline that keeps sources (`keep_source: true`)"
            )

    def can_enter_earlier(self, partition: ParkedGroup) -> bool:
        """Tell whether a partition's events can enter before the stage that parked them."""
        return partition.stage == "mapping" and keeps_source(self._tracker, partition.pipeline_id)

    def remedies(self, found: Sequence[ParkedGroup]) -> dict[int, tuple[Remedy, ...]]:
        """Return {partition id: what delivers its events}, as of ``replay.read_remedies``."""
        from waybill.replay import read_remedies

        return read_remedies(self._tracker, self.parking, found)

    def mark(self, partition: ParkedGroup, *, on_change: str, who: str) -> AutoReplay:
        """Mark a partition to be replayed when its cause changes; asks its destination now.

        Raises:
            InputError: what it holds never was an event, or its pipeline is not deployed.
        """
        from waybill.replay import answering, mark_for_auto_replay

        return mark_for_auto_replay(
            self._tracker,
            self.parking,
            partition.id,
            Decision(who),
            on_change=on_change,
            healthy=answering(self.destinations, self._s3),
        )

    def unmark(self, partition: ParkedGroup, *, who: str) -> bool:
        """Take a partition's mark away; False: it had none."""
        return remove_mark(self._tracker, partition.id, Decision(who))

    def marked(self, partition: ParkedGroup) -> AutoReplay | None:
        """Return a partition's mark."""
        return read_mark(self._tracker, partition.id)

    def cancel(self, partition: ParkedGroup, *, who: str) -> Replay:
        """Cancel the replay that runs on a partition.

        Raises:
            InputError: none runs.
        """
        for replay in self.replays(partition.id):
            if replay.state == "running":
                return self.parking.cancel_replay(replay.id, who=who)
        raise InputError(f"no replay of {partition.name} is running; there is nothing to cancel")

    def decide(
        self,
        verb: Literal["discard", "undo_discard"],
        partition: ParkedGroup,
        decision: Decision,
        **chosen: Any,
    ) -> DiscardReport:
        """Discard a partition's parked events, or take that back; the library writes it down.

        Raises:
            InputError: the decision says not why, or an edge of a window is no time.
            TooManyCutsError: the window cuts through more than ``MOST_CUTS`` segments.
        """
        names = {name: getattr(partition, name) for name in _NAMES if name != "team"}
        wanted = replace(ParkedGroupFilter(**names), **chosen)
        act = self.parking.discard if verb == "discard" else self.parking.undo_discard
        return act(wanted, decision, most_cuts=MOST_CUTS)

    def release(self, access: Access, pipeline_id: str, team: str, *, why: str) -> Hold:
        """End a pipeline's hold; what waited is replayed within a minute or so.

        Raises:
            InputError: it is not held.
        """
        ended = release(self._tracker, pipeline_id, Decision(access.user, why))
        messages = self._messages(access, [ended])
        shown = messages.hold(ended, team)
        messages.write_down()
        return shown

    def team(self, pipeline_id: str) -> str | None:
        """Return the team of a deployed pipeline; None: there is no such pipeline."""
        return next((p["team"] for p in self.names(None) if p["id"] == pipeline_id), None)

    def names(self, teams: tuple[str, ...] | None) -> list[dict[str, str]]:
        """Return the deployed pipelines of these teams, by name; None: of all."""
        return deployed_names(self._tracker, teams)

    def audit(self, who: str, action: str, partition: ParkedGroup, **detail: object) -> None:
        """Write what somebody did with a partition."""
        said = {name: getattr(partition, name) for name in _NAMES}
        said |= {name: value for name, value in detail.items() if value is not None}
        target = f"partition {partition.id}"
        with self._tracker.transaction() as connection:
            write_audit(connection, who=who, action=action, target=target, **said)

    def audit_entries(self, teams: tuple[str, ...] | None, *, limit: int) -> list[dict[str, Any]]:
        """Return the newest entries of the audit log about these teams; None: all there are."""
        return read_audit(self._tracker, teams, limit=limit)


def _shares(found: Sequence[ParkedGroup], number: int) -> list[int]:
    """Return how many events of each group are taken: all of small ones, the rest evenly.

    Where there are more groups than events, the first ones give one each.
    """
    if len(found) >= number:
        return [int(index < number) for index in range(len(found))]
    held = [group.parked + group.replaying for group in found]
    shares, left = [0] * len(held), number
    by_size = sorted(range(len(held)), key=held.__getitem__)
    for place, index in enumerate(by_size):
        shares[index] = min(held[index], -(-left // (len(held) - place)))
        left -= shares[index]
    return shares
