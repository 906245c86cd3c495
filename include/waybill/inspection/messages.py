"""Error messages as a user may see them: of parked groups, of their causes, of holds.

They quote values of events that are not at hand. One rule holds wherever a message is shown: where
the pipeline has personal fields, their values are masked in it, as they are beside its event in a
sample. So the event is fetched (``HeldMessages``), as long as its file is there, also once it was
replayed or discarded. Where that is impossible or would cost too much (a page that lists many
groups, which asks every few seconds; a hold), the message is hidden whole, but for what is in
Waybill's own words (``own_words``). For a user who may see what is personal, nothing is masked, and
the look is written to the audit log, once a look and team (see ``AccessLog``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from waybill.access import (
    ANY_EVENT,
    MASK,
    Access,
    AccessLog,
    Personal,
    look_at,
    personal_of,
    write_audit,
)
from waybill.errors import ParkError, RetryError
from waybill.events import DELETE, Event, decode_head
from waybill.parking import (
    HELD,
    CorruptSegmentError,
    FailureCause,
    Hold,
    ParkedEvent,
    ParkedGroup,
    Parking,
    masked_event,
    own_words,
    summary,
)
from waybill.storage import TrackerStore

_MESSAGE = "message"
_STORED = (*HELD, "replayed", "discarded")
"""States of events whose file is there, until the clean-up takes it."""
_MOST_CAUSES = 10
"""Of a group, for each of which a parked file is read."""


@dataclass(frozen=True, slots=True)
class Explained:
    """A parked group with all that is said of its errors, as a user may see it."""

    partition: ParkedGroup
    causes: list[FailureCause]
    hold: Hold | None


class HeldMessages:
    """Masks messages of parked groups by the values of the events that they are of.

    Cost: for each message that may be personal one read of the store, of ``most_bytes``. One whose
    event is not in the newest segment, or cannot be read now, is hidden whole. Once the store is
    away it is not asked again.
    """

    def __init__(self, parking: Parking, most_bytes: int) -> None:
        self._parking = parking
        self._most_bytes = most_bytes
        self._is_store_away = False

    def masked(
        self,
        partition: ParkedGroup,
        message: str,
        personal: Sequence[str] | None,
        fingerprint: str | None = None,
    ) -> str:
        """Return a group's message, or that of one of its causes, without personal values."""
        states = _STORED if fingerprint is None else HELD  # causes are of what is held
        for event in reversed(self.newest(partition.id, states, fingerprint)):
            if summary(event.message) == message:
                return summary(masked_event(event, personal)[0].message)
        return MASK

    def newest(
        self,
        partition_id: int,
        states: Sequence[str] = HELD,
        fingerprint: str | None = None,
        *,
        most_segments: int = 1,
    ) -> list[ParkedEvent]:
        """Return the events of a group, or of one of its causes, that were parked last.

        None where they cannot be read now, or take more than ``most_bytes``.
        """
        if self._is_store_away:
            return []
        try:
            return self._parking.newest(
                partition_id,
                states=states,
                fingerprint=fingerprint,
                most_segments=most_segments,
                most_bytes=self._most_bytes,
            )
        except CorruptSegmentError:
            return []
        except RetryError:
            self._is_store_away = True
            return []


@dataclass(frozen=True, slots=True)
class NewestEvents:
    """What is known of the events that a group has parked last."""

    events: int
    """How many were read."""
    deletes: int
    """Of these are deletes."""
    copies: int
    """Of these have the id of another one: they came more than once."""


def newest_events(parked: Sequence[ParkedEvent]) -> NewestEvents:
    """Return what is known of some parked events.

    What is no event, such as a line of a file, is neither a delete nor a copy.
    """
    heads = [head for head in map(_head, parked) if head is not None]
    deletes = sum(head.op == DELETE for head in heads)
    return NewestEvents(len(parked), deletes, len(heads) - len({head.id for head in heads}))


def _head(parked: ParkedEvent) -> Event | None:
    try:
        return decode_head(parked.value)
    except ParkError:
        return None


@dataclass(slots=True)
class _Seen:
    """What of one team was shown that may be personal."""

    pipelines: set[str] = field(default_factory=set)
    partitions: set[int] = field(default_factory=set)
    texts: list[tuple[str, str, str]] = field(default_factory=list)
    """What kind of message, of which partition or pipeline, and the message."""


class Messages:
    """Shows messages to one user, and notes what was shown that is personal.

    Args:
        tracker: where personal fields are declared, and the audit log.
        access: who looks.
        pipeline_ids: whose messages may be shown.
        looks: those that go on, and are not written again.
        held: masks messages by the events they are of; None: they are hidden whole.
    """

    def __init__(
        self,
        tracker: TrackerStore,
        access: Access,
        pipeline_ids: Sequence[str],
        looks: AccessLog,
        held: HeldMessages | None = None,
    ) -> None:
        self._held = held
        self._tracker = tracker
        self._access = access
        self._looks = looks
        self._personal: Personal = personal_of(tracker, pipeline_ids)
        self._seen: dict[str, _Seen] = defaultdict(_Seen)
        """By team."""

    def partition(self, partition: ParkedGroup) -> ParkedGroup:
        """Return a partition with its last message as this person may see it."""
        if not partition.last_message or not self._personal.are_in(partition):
            return partition
        if self._may_see(partition, "last", [partition.last_message]):
            return partition
        return replace(partition, last_message=self._masked(partition, partition.last_message))

    def causes(self, partition: ParkedGroup, causes: list[FailureCause]) -> list[FailureCause]:
        """Return a partition's causes with their messages as this person may see them."""
        if not causes or not self._personal.are_in(partition):
            return causes
        if self._may_see(partition, "cause", [cause.message for cause in causes]):
            return causes
        read = causes[:_MOST_CAUSES]
        masked = [self._masked(partition, one.message, one.fingerprint or None) for one in read]
        masked += [self._own_words(partition, one.message) for one in causes[len(read) :]]
        return [replace(one, message=text) for one, text in zip(causes, masked, strict=True)]

    def _masked(self, partition: ParkedGroup, message: str, fingerprint: str | None = None) -> str:
        if self._held is not None and message:
            personal = self._personal.of(partition)
            masked = self._held.masked(partition, message, personal, fingerprint=fingerprint)
            if masked != MASK:
                return masked
        return self._own_words(partition, message)

    def _own_words(self, partition: ParkedGroup, message: str) -> str:
        columns = self._personal.columns(partition.pipeline_id)
        return own_words(partition.stage, message, columns)

    def hold(self, hold: Hold, team: str) -> Hold:
        """Return a hold; any event name of the pipeline may be the one that its message quotes."""
        if _MESSAGE not in hold.cause or not self._personal.are_there(hold.pipeline_id, ANY_EVENT):
            return hold
        if self._access.may("personal", team):
            seen = self._seen[team]
            seen.pipelines.add(hold.pipeline_id)
            seen.texts.append(("hold", hold.pipeline_id, str(hold.cause[_MESSAGE])))
            return hold
        return replace(hold, cause=hold.cause | {_MESSAGE: MASK})

    def _may_see(self, partition: ParkedGroup, kind: str, texts: Sequence[str]) -> bool:
        if not self._access.may("personal", partition.team):
            return False
        seen = self._seen[partition.team]
        seen.pipelines.add(partition.pipeline_id)
        seen.partitions.add(partition.id)
        seen.texts += [(kind, str(partition.id), text) for text in texts]
        return True

    def write_down(self) -> None:
        """Write to the audit log what was shown; nothing if nothing was, or the look goes on."""
        user = self._access.user
        looks = {team: look_at(user, team, seen.texts) for team, seen in self._seen.items()}
        new = sorted(team for team, look in looks.items() if not self._looks.goes_on(look))
        if not new:
            return
        with self._tracker.transaction() as connection:
            for team in new:
                write_audit(
                    connection,
                    who=user,
                    action="see_personal_messages",
                    target="error messages",
                    team=team,
                    pipeline_ids=sorted(self._seen[team].pipelines),
                    partitions=sorted(self._seen[team].partitions),
                )
        for team in new:
            self._looks.written(looks[team])
