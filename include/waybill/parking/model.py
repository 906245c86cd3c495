"""What the tracker says of parked events: groups, segments, replays, and reports.

The parked events of one pipeline, event name, stage and error type are a *parked group*. Columns,
JSON and ids call it a partition, which it was called first; it has nothing to do with those of
Kafka, which are ``kafka_partition`` here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any
from uuid import UUID

from waybill.events import rfc3339, window
from waybill.parking.event import ParkedEvent
from waybill.parking.fingerprints import fingerprint_of, require_fingerprint


class _Windows:
    """A window on event time, and one on the time of parking."""

    __slots__ = ()
    since: datetime | str | None
    until: datetime | str | None
    parked_since: datetime | str | None
    parked_until: datetime | str | None

    @property
    def window(self) -> tuple[datetime | None, datetime | None]:
        """Return the edges of the window on event time, in UTC.

        Raises:
            InputError: one is no time, or the window holds nothing.
        """
        return window(self.since, self.until)

    @property
    def parked_window(self) -> tuple[datetime | None, datetime | None]:
        """Return the edges of the window on the time of parking, in UTC.

        Raises:
            InputError: one is no time, or the window holds nothing.
        """
        return window(self.parked_since, self.parked_until, prefix="parked_")


class _Row:
    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        fields_ = asdict(self)  # type: ignore[call-overload]
        return {name: _plain(value) for name, value in fields_.items()}


@dataclass(frozen=True, slots=True)
class ParkedGroupFilter(_Windows):
    """Which parked groups; a field that is None matches all.

    Windows go from ``since`` to before ``until``; a time without a zone is UTC. With a window or a
    fingerprint a group matches when one segment of it does.
    """

    pipeline_id: str | None = None
    event_name: str | None = None
    stage: str | None = None
    error_type: str | None = None
    since: datetime | str | None = None
    """On event time."""
    until: datetime | str | None = None
    held: bool = False
    """Only groups, and in the window only segments, with events parked or replaying now."""
    parked_since: datetime | str | None = None
    """On the time of parking."""
    parked_until: datetime | str | None = None
    fingerprint: str | None = None
    teams: tuple[str, ...] | None = None
    """Only pipelines of these teams; of none, those without a team too."""
    kept: bool = False
    """As ``held``, or quarantined: whatever nobody has decided on."""

    @property
    def names_nothing(self) -> bool:
        """True: it matches every group there is, or every one of these teams."""
        own = (field.name for field in fields(self) if field.name not in ("held", "kept", "teams"))
        return all(getattr(self, name) is None for name in own)

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are set, as JSON."""
        given = {name: value for name, value in asdict(self).items() if value not in (None, False)}
        return {name: _plain(value) for name, value in given.items()}


@dataclass(frozen=True, slots=True)
class ParkedGroup(_Row):
    """The parked events of one pipeline, event name, stage and error type, in numbers."""

    id: int
    pipeline: str
    """The pipeline's name; its id where no such pipeline is known."""
    pipeline_id: str
    team: str
    event_name: str
    stage: str
    error_type: str
    parked: int
    """Events that wait for somebody to decide."""
    replaying: int
    replayed: int
    """Events sent back, ever; what was cleaned up since is counted. One that parked again and was
    sent back again counts twice, and once more in ``parked`` where it has parked again."""
    discarded: int
    """Events discarded, ever; what was cleaned up since is counted."""
    quarantined: int
    """Events in segments whose frames are damaged: kept, and left out of replays."""
    bytes: int
    """Uncompressed bytes of what is parked or replaying."""
    first_event_at: datetime
    """Over all events that were ever parked here."""
    last_event_at: datetime
    first_parked_at: datetime
    last_parked_at: datetime
    last_message: str

    @property
    def held(self) -> int:
        """Return the events parked or replaying."""
        return self.parked + self.replaying

    @property
    def name(self) -> str:
        """Return all four names, for messages."""
        return f"{self.pipeline}/{self.event_name or '(empty)'}/{self.stage}/{self.error_type}"


@dataclass(frozen=True, slots=True)
class ParkedGroupPage:
    """Some parked groups of a list, in its order."""

    partitions: tuple[ParkedGroup, ...]
    next: str | None
    """What to give as ``after`` for those that follow; None: there are none."""


@dataclass(frozen=True, slots=True)
class FailureCause(_Row):
    """A cause: the events of one group that are parked or replaying with one fingerprint."""

    fingerprint: str
    """Empty: mixed ones, or parked by a release that knew none."""
    message: str
    """Of the last one parked."""
    events: int
    segments: int
    first_parked_at: datetime
    last_parked_at: datetime


@dataclass(frozen=True, slots=True)
class ParkedFile(_Row):
    """An object of parked events: of one task of a batch, of all groups that it parked."""

    key: str
    bytes: int
    """As it is stored, compressed."""
    committed_at: datetime
    parked: int
    """Events that wait for somebody to decide."""
    replaying: int
    quarantined: int
    replayed: int
    discarded: int
    finished_at: datetime | None
    """Since when none of its events is wanted; None: some are, so it stays."""


@dataclass(frozen=True, slots=True)
class ParkedFiles:
    """Some parked files, the newest first, and the sums of all that match."""

    files: tuple[ParkedFile, ...]
    number: int
    bytes: int
    finished: int
    """Files of which no event is wanted any more."""
    finished_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        sums = ("number", "bytes", "finished", "finished_bytes")
        files = [file.to_json() for file in self.files]
        return {"files": files} | {name: getattr(self, name) for name in sums}


@dataclass(frozen=True, slots=True)
class Segment:
    """One parked group's byte range in one parked object."""

    id: int
    partition_id: int
    object_key: str
    position: int
    length: int
    count: int
    bytes: int
    sha256: str
    first_event_at: datetime
    last_event_at: datetime
    state: str
    scope: str
    commit_number: int
    kafka_partition: int
    first_offset: int
    replay_id: UUID | None
    fingerprint: str
    """Of all its events; empty: they are mixed, or of a release that knew none."""
    copies: tuple[int, ...]
    """Lines of the frame that are copies of parked events: never counted, never given."""


@dataclass(frozen=True, slots=True)
class ReplayConditions(_Windows):
    """Which parked events of a group a replay takes, or a dry run; what is None takes all.

    A time without a zone is UTC; windows go from their first edge to before their second.
    """

    since: datetime | str | None = None
    """Event time."""
    until: datetime | str | None = None
    parked_since: datetime | str | None = None
    """Time of parking, in the tracker: one for all events of a commit."""
    parked_until: datetime | str | None = None
    fingerprint: str | None = None
    max_events: int | None = None
    """The first so many, in the order of replay."""
    about: bool = False
    """``max_events`` may be exceeded by half of it where that saves cutting a segment."""

    def event_filter(self) -> Callable[[ParkedEvent], bool]:
        """Return what tells whether an event is wanted, by its own time and its fingerprint.

        One whose time cannot be read is.
        """
        since, until = self.window
        cause = self.fingerprint

        def is_wanted(event: ParkedEvent) -> bool:
            if cause is not None and fingerprint_of(event) != cause:
                return False
            return event.is_within(since, until) is not False

        return is_wanted

    def check(self) -> None:
        """Raise ``InputError`` where an edge, a window or the fingerprint is none."""
        _ = self.window, self.parked_window
        if self.fingerprint is not None:
            require_fingerprint(self.fingerprint)


@dataclass(frozen=True, slots=True)
class Replay(_Row):
    """One parked group's way back, from its beginning to its end."""

    id: UUID
    partition_id: int
    state: str
    """running, done, cancelled."""
    requested_by: str
    run_id: str
    since: datetime | None
    until: datetime | None
    rate_per_s: int | None
    fingerprint: str | None
    max_events: int | None
    step: str
    """Of a canary; empty: all at once."""
    entry: str | None
    """Where its events enter, decided before the first is sent: ``as_parked``, ``transformation``;
    empty: not decided yet. ``None``: an older release began it, as it was asked or as parked."""
    events: int
    """Events in the segments that it took."""
    sent: int
    """Events in the segments that are marked replayed."""
    quarantined: int
    """Events in segments of it that turned out to be damaged."""
    started_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class ObjectDescriptor:
    """A packed object that was stored."""

    key: str
    size: int
    """Bytes."""
    segments: Iterable[Any]
    """``SegmentDescriptor`` of each."""


@dataclass(frozen=True, slots=True)
class DiscardReport(_Row):
    """What a discard, or its undoing, changed."""

    partitions: int
    segments: int
    events: int
    bytes: int
    left_segments: int
    """As they were: damaged where the window cuts through, parked meanwhile, or claimed or taken by
    a clean-up."""
    left_events: int


@dataclass(frozen=True, slots=True)
class ObjectState:
    """How one parked object was found."""

    object_key: str
    state: str
    """present, missing or damaged."""
    events: int
    """That are to be in it: parked, replaying or quarantined ones."""
    reason: str
    """Why it cannot be read; empty: it can."""

    @property
    def words(self) -> str:
        """Return it as a sentence for people."""
        noun = "event" if self.events == 1 else "events"
        why = f": {self.reason}" if self.reason else ""
        return f"{self.object_key} is {self.state}, {self.events:,} {noun}{why}"


@dataclass(frozen=True, slots=True)
class RecheckReport(_Row):
    """What another look at quarantined segments found."""

    segments: int
    """Parked again: their bytes are those that were parked."""
    events: int
    left_segments: int
    """Still damaged, or their objects still gone."""
    left_events: int
    reasons: dict[str, int]
    """Why, with the number of segments."""
    objects: tuple[ObjectState, ...] = ()
    """The one that was asked for; else those that are gone, and not quarantined yet."""


@dataclass(frozen=True, slots=True)
class CleanUpReport(_Row):
    """What a clean-up deleted."""

    objects: int
    bytes: int
    """Of the objects, as stored."""
    segments: int
    rewritten: int = 0
    """Mostly dead objects whose parked segments moved to others; deleted by a later clean-up."""
    moved_segments: int = 0


@dataclass(frozen=True, slots=True)
class RefreshReport(_Row):
    """What a comparison of tracker and bucket found."""

    missing: tuple[str, ...]
    """Keys that rows name and the store does not have: an alarm. The rows stay."""
    garbage_deleted: int
    """Objects that no row names and none will ever name."""
    garbage_kept_young: int
    """Objects that no row names, younger than the grace."""
    garbage_kept_undecided: int
    """Older ones that a commit may still name: see ``Parking.refresh``."""
    aggregates_corrected: int
    """Partitions whose numbers were not the sum of their segments. Never seen is the hope."""
    staged_deleted: int
    """Staged objects deleted because they were loaded longer than the grace ago."""
    missing_more: int = 0
    """Missing objects beyond the thousand that ``missing`` names."""


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return rfc3339(value)
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, UUID) else value
