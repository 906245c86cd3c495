"""What every connector offers, and what it may offer beside that."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

Cursor = Mapping[str, Any]
"""A position in a source, JSON-able; only the connector that made it knows what is in it."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A record that cannot become a row."""

    raw: bytes
    """The record as it stands in the source, without the end of its line."""
    line: int
    """1-based, where the record begins; 0 where ``where`` says it."""
    code: str
    """An error type of stage ingestion: ``source_row_malformed``, ..."""
    message: str
    where: str = ""
    """Its place in words, at most some hundred characters; "": its line."""

    @property
    def place(self) -> str:
        """Return where the record is, as people read it."""
        return self.where or f"line {self.line}"


class Record(msgspec.Struct, frozen=True):
    """A row of which a source says more than its values.

    A plain dict is the same as ``Record(data)``, and costs less.
    """

    data: dict[str, Any]
    """Of a delete: the key's fields at least."""
    event: str | None = None
    """An event name of the pipeline; None: the one that ``source.event`` declares."""
    op: Literal["upsert", "delete"] = "upsert"
    version: int | None = None
    """Rises with each change of the row, 64 bits, such as a position in the source's log; None: the
    event's declared version field has it, if there is one. What has a key and a version of an
    earlier event is that event, read again."""


Row: TypeAlias = "dict[str, Any] | Record"


@dataclass(frozen=True, slots=True)
class Page:
    """Some records of a source, in order."""

    rows: list[Row] | list[dict[str, Any]]
    bad: list[BadRow]
    cursor: dict[str, Any]
    """The position after this page."""
    start: dict[str, Any] | None
    """The position before it; None: the beginning."""
    place: Callable[[int], str] | None = None
    """Says where in the source a row stands, by its index in ``rows``; None: the source has no
    places. Called for rows that are parked."""
    origin: str | None = None
    """What may be read again with its records at other places, such as a file: in it, a record that
    is parked is known by its bytes. None: it is known by its bytes and its place."""
    finite: bool = False
    """No number in ``rows`` is NaN or infinite: they are not looked for, which has its cost."""


class Connector(Protocol):
    """A source, opened.

    It may also be a ``CountingConnector``, a ``ConfirmedConnector`` and a ``ClosableConnector``.
    """

    def read(self, cursor: Cursor | None) -> Iterator[Page | None]:
        """Yield the pages from a position on; end at the end of the source.

        A source without an end is waited for: None is yielded at least each second meanwhile, so
        that pages are committed that were read before; and the pages end when nothing came for a
        time, or after a time (``Patience``), so that a run does.

        Raises:
            InputError: the source is not there, or not what its declaration says.
            RetryError: it did not answer.
        """
        ...

    def count(self) -> int | None:
        """Return the number of records, bad ones included; None: the source cannot say."""
        ...


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a position stands in its source, and how far behind the source's end that is."""

    position: str
    """In words, for people; no values of rows but those of a cursor's column."""
    behind: float | None = None
    """How much is left; None: it cannot be said."""
    unit: str = ""
    """Of ``behind``: rows, messages, bytes, seconds, …"""


@runtime_checkable
class StandingConnector(Protocol):
    """A source that can say how far behind its end a position is."""

    def standing(self, cursor: Cursor) -> Standing | None:
        """Return where a position of this run stands; None: it cannot say now.

        Called between two pages of ``read`` and after the last one, each ten seconds at most; it
        may ask the source, shortly.

        Raises:
            RetryError, InputError: the source did not answer; the run goes on.
        """
        ...


@runtime_checkable
class WaitingConnector(Protocol):
    """A source that may leave something to the next run, such as files that are being written."""

    def waiting(self) -> str:
        """Return what the last ``read`` left to the next run, and why; empty: nothing."""
        ...


def waiting_in(connector: object) -> str:
    """Return what a connector left to the next run; empty: nothing, or it never does."""
    return connector.waiting() if isinstance(connector, WaitingConnector) else ""


@runtime_checkable
class KeyKeepingConnector(Protocol):
    """A source that keeps keys in the object store, to find those that are gone."""

    def keys_prefix(self) -> str | None:
        """Return what the names of their objects begin with; None: it keeps none, as declared."""
        ...


@runtime_checkable
class SeekingConnector(Protocol):
    """A source that can be read from a value on that people know, such as a time."""

    def cursor_at(self, value: str, stands: Cursor | None) -> dict[str, Any]:
        """Return the cursor from which ``read`` yields what is at a value, and all behind it.

        Args:
            value: as a person gives it.
            stands: where the last run stopped; nothing behind that is left out. None: nothing was
                read.

        Raises:
            InputError: the value is not of the cursor's type, or lies behind ``stands``; or this
                source has no such place.
            RetryError: the source did not answer.
        """
        ...


@runtime_checkable
class FormCheckingConnector(Protocol):
    """A kind of source of whose values of ``SeekingConnector`` the form is known without it."""

    @staticmethod
    def check_value(name: str, value: str) -> None:
        """Refuse a value that no source of this kind can be read from; nothing is opened.

        Args:
            name: what it was given as, ``from`` or ``to``.
            value: as a person gives it.

        Raises:
            InputError: its form is wrong.
        """
        ...


@runtime_checkable
class BoundedConnector(Protocol):
    """A source of which what lies between two values can be read again, apart from its position.

    ``read`` first yields what is in the ranges of the cursor's list ``rereads``, and takes each out
    of it at its end; the rest of the cursor stays what it is.
    """

    def reread_between(self, begin: str, end: str, stands: Cursor | None) -> dict[str, Any]:
        """Return such a range, as the list has it.

        Args:
            begin: the first value, as a person gives it; what has it is read.
            end: the last one; what has it is read.
            stands: where the last run stopped.

        Raises:
            InputError: a value is not of the cursor's type, ``begin`` is behind ``end``, nothing
                was read yet, or this source has no such places.
            RetryError: the source did not answer.
        """
        ...


@runtime_checkable
class CountingConnector(Protocol):
    """A source that can count its own records, apart from how they are read."""

    def count_between(self, start: Cursor | None, end: Cursor | None) -> int | None:
        """Return the number of records between two positions, bad ones included.

        Args:
            start: where to begin; None: the beginning.
            end: where to end; None: the end of the source.

        Returns:
            None: it cannot say, as where a position is of a source that is gone.
        """
        ...


@runtime_checkable
class ConfirmedConnector(Protocol):
    """A source that is told how far it was read, such as a replication slot."""

    def confirm(self, cursor: Cursor) -> None:
        """Take note that all up to a position is committed, and is never asked for again.

        Called between two pages, after the tracker's commit, with rising positions, not with each.
        A run that died before this call is not made up for; the next ``read(cursor)`` is of the
        committed position, so a connector may confirm that first.

        Raises:
            RetryError: the source did not answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class HeldLog:
    """What a source keeps for a connector that has not confirmed it."""

    words: str
    """What it is, and how much, for people."""
    held_bytes: int
    limit_bytes: int
    """More than this is told to the pipeline's owner."""
    lost: bool = False
    """The source has given it up: it cannot be read any more."""


@runtime_checkable
class HoldingConnector(Protocol):
    """A source that keeps its log until it is confirmed, and may fill its disk with it."""

    def held(self) -> HeldLog | None:
        """Return what it keeps now; None: nothing is kept for this connector.

        Raises:
            RetryError: the source did not answer.
            InputError: it refuses.
        """
        ...


@runtime_checkable
class ClosableConnector(Protocol):
    """A connector that holds connections or files open."""

    def close(self) -> None:
        """Give all back; again changes nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Discovered:
    """What a source says of one kind of its records, before any is read."""

    name: str
    """In the source: of a table, a resource, a stream."""
    event: str
    """The event name that its records have."""
    key: tuple[str, ...] = ()
    """Empty: the source knows none."""
    cursor: str | None = None
    """The field that new and changed records are found by; None: it is read whole."""
    types: Mapping[str, str] = field(default_factory=dict)
    """Of the fields that are known, in the source's own words."""
    versions_itself: bool = False
    """Its records have a version of the source's own, so no field of theirs is to be one."""
    table: str = ""
    """What the destination's table may be called; "": as the event."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Column types that the source's schema gives to fields, as a declaration writes them."""
    never_null: frozenset[str] = frozenset()
    """Fields that the source's schema lets never be null."""

    @property
    def version(self) -> str | None:
        """The cursor where it may be the event's version: a field that rises with each change."""
        is_field = self.cursor is not None and self.cursor.isidentifier()
        return self.cursor if is_field and self.cursor not in self.key else None


@runtime_checkable
class DiscoveringConnector(Protocol):
    """A source that knows what it has."""

    def discover(self) -> list[Discovered]:
        """Return what there is to be read, of what the declaration selects.

        Raises:
            InputError, RetryError: as ``read``.
        """
        ...

    def only(self, name: str) -> Connector:
        """Return a connector of one kind of the source's records, by its name in the source."""
        ...


@runtime_checkable
class PreviewingConnector(Protocol):
    """A source that ``read`` changes, as by a replication slot, or that it waits long for."""

    def preview(self) -> Iterator[Page | None]:
        """Yield some first pages; nothing at the source changes. Their cursors are not used.

        Raises:
            InputError, RetryError: as ``read``.
        """
        ...


@runtime_checkable
class NotingConnector(Protocol):
    """A source of which more is to be said than its records, after some were read."""

    def notes(self) -> list[str]:
        """Return lines for people, such as which schemas the records had."""
        ...


def first_pages(connector: Connector) -> Iterator[Page]:
    """Yield a source's first pages, to be looked at; nothing at the source changes."""
    if isinstance(connector, PreviewingConnector):
        pages = connector.preview()
    else:
        pages = connector.read(None)
    return (page for page in pages if page is not None)


def reads_again(connector: Connector) -> bool:
    """Tell whether a source can be read again from its beginning; a connector says ``reads_again``.

    False: what was confirmed is gone from the source, and a run can only go on from the committed
    position.
    """
    return bool(getattr(connector, "reads_again", True))


class Patience:
    """Tells when a source without an end has been read long enough for one run.

    Args:
        idle_s: so long without a record, seconds.
        limit_s: so long in all, seconds.
        now: a clock that never goes back, seconds.
    """

    def __init__(
        self, idle_s: float, limit_s: float, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._idle_s, self._now = idle_s, now
        self._last = now()
        self._end = self._last + limit_s

    def met(self) -> None:
        """Take note that records came."""
        self._last = self._now()

    @property
    def over(self) -> bool:
        """Whether the run is to end."""
        now = self._now()
        return now >= self._end or now - self._last >= self._idle_s


class RateLimit:
    """Tells when the next records may be read, so that there are no more than so many a second.

    Args:
        per_s: records a second; None: there is no limit.
        now: a clock that never goes back, seconds.
    """

    def __init__(self, per_s: float | None, *, now: Callable[[], float] = time.monotonic) -> None:
        self._per_s, self._now = per_s, now
        self._due = now()

    def met(self, records: int) -> None:
        """Take note of records that were read just now."""
        if self._per_s is not None:
            self._due = max(self._due, self._now()) + records / self._per_s

    @property
    def wait_s(self) -> float:
        """How long to wait yet, seconds; 0: no longer."""
        return max(0.0, self._due - self._now())
