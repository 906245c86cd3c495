"""Where traces lie in the object store: buckets, hours, keys; and the layout that the store states.

A compacted bucket's number is CRC-32 (IEEE, as in zlib) of the id's root modulo the number of
buckets; the root is the text before the first "/", so that an event's children lie beside it. The
same in Python (0.3 µs an id) and in Athena
(``crc32(to_utf8(split_part(event_id, '/', 1))) % 128``).
The bucket whose number is the number of buckets is the fresh one: what nodes shipped and compaction
has not cut yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol
from zlib import crc32

import orjson
import pyarrow as pa

from waybill.errors import InputError, RetryError
from waybill.storage import ObjectInfo, ObjectMissingError
from waybill.tracing.files import FileStore

PREFIX = "traces/"
LAYOUT_KEY = "traces/_layout.json"
EARLY_PREFIX = "traces/dt="
"""Objects of the first format, ``traces/dt=…/hour=…/bucket=…``, cut by the whole id's CRC-32. They
are read like fresh ones, and compacted."""
COMPACTIONS_PREFIX = "traces/_compactions/"
"""Manifests of compactions that are not over."""
COMPACTED_PREFIX = "traces/_compacted/"
"""Which shipped objects were compacted: for a shipper that comes back."""
NEW_BUCKETS = 128
"""Of a new store: a look-up reads 1/128 of its objects."""
HOUR_US = 3_600_000_000
_HOUR = timedelta(hours=1)
_DAYS_LISTED = 7


@dataclass(frozen=True, slots=True, order=True)
class Hour:
    """One hour of UTC, as hours since 1970."""

    number: int

    @classmethod
    def of(cls, moment: datetime) -> Hour:
        """Return the hour that holds a moment (with a time zone)."""
        return cls(int(moment.timestamp() // 3600))

    @classmethod
    def at(cls, path: str) -> Hour:
        """Return the hour of a ``path``.

        Raises:
            ValueError: it is none.
        """
        return cls.of(datetime.strptime(path, "dt=%Y-%m-%d/hour=%H").replace(tzinfo=UTC))

    @property
    def start(self) -> datetime:
        """First moment of the hour."""
        return datetime.fromtimestamp(self.number * 3600, UTC)

    @property
    def end(self) -> datetime:
        """First moment after it."""
        return self.start + _HOUR

    @property
    def path(self) -> str:
        """``dt=2026-01-31/hour=07``."""
        return f"{self.start:dt=%Y-%m-%d/hour=%H}"


@dataclass(frozen=True, slots=True)
class TracePlace:
    """What the key of a trace object says."""

    bucket: int
    hour: Hour
    name: str
    """Last part, without the ending."""


def root_of(event_id: str) -> str:
    """Return the id of the event that this one is a child of, at whatever depth; else itself."""
    return event_id.partition("/")[0]


def line_of(event_id: str) -> Iterator[str]:
    """Yield an id and those of all it is a child of: a/2/7, a/2, a."""
    parent, mark = event_id, "/"
    while mark:
        yield parent
        parent, mark, _ = parent.rpartition("/")


def bucket_of(event_id: str, buckets: int) -> int:
    """Return the bucket of an event id: 0 to ``buckets`` - 1."""
    return crc32(root_of(event_id).encode()) % buckets


def hashes_of(ids: pa.Array | pa.ChunkedArray) -> list[int]:
    """Return the CRC-32 of each id's root. Cost: 0.3 µs an id."""
    return [crc32(text.partition("/")[0].encode()) for text in ids.to_pylist()]


def hour_prefix(bucket: int, hour: Hour) -> str:
    """Return the prefix of the objects that hold a bucket of an hour."""
    return f"{bucket_prefix(bucket)}{hour.path}/"


def bucket_prefix(bucket: int) -> str:
    """Return the prefix of a bucket's objects."""
    return f"{PREFIX}bucket={bucket:03d}/"


def object_key(bucket: int, hour: Hour, name: str) -> str:
    """Return the key of one object."""
    return f"{hour_prefix(bucket, hour)}{name}.parquet"


def place_of(key: str) -> TracePlace | None:
    """Return what a key says; None: it is no trace object's."""
    parts = key.removeprefix(PREFIX).split("/")
    if len(parts) != 4 or not parts[3].endswith(".parquet"):  # noqa: PLR2004
        return None
    if key.startswith(EARLY_PREFIX):
        parts = [parts[2], *parts[:2], parts[3]]
    bucket, dt, hour, name = parts
    try:
        number = int(bucket.removeprefix("bucket="))
        return TracePlace(number, Hour.at(f"{dt}/{hour}"), name.removesuffix(".parquet"))
    except ValueError:
        return None


def prefixes(bucket: int, since: datetime | None, until: datetime | None) -> list[str]:
    """Return what to list to see a bucket's objects of a time: by hour or day when it is short."""
    if since is None or until is None or until - since > timedelta(days=_DAYS_LISTED):
        return [bucket_prefix(bucket)]
    hours = list(hours_between(since, until))
    if len(hours) == 1:
        return [hour_prefix(bucket, hours[0])]
    days = dict.fromkeys(f"{hour.start:dt=%Y-%m-%d}" for hour in hours)
    return [f"{bucket_prefix(bucket)}{day}/" for day in days]


def hours_between(since: datetime, until: datetime) -> Iterator[Hour]:
    """Yield the hours that hold moments from ``since`` to ``until``, both included."""
    moment = Hour.of(since).start
    while moment <= until:
        yield Hour.of(moment)
        moment += _HOUR


def holds(hour: Hour, since: datetime | None, until: datetime | None) -> bool:
    """Tell whether an hour holds moments of a window."""
    return (since is None or hour.end > since) and (until is None or hour.start <= until)


def in_hours(places: Iterable[TracePlace]) -> int:
    """Return in how many hours the places are."""
    return len({place.hour for place in places})


@dataclass(frozen=True, slots=True)
class Layout:
    """How a store's traces are cut; the layout object holds it."""

    buckets: int
    """Without the fresh one. Never changes."""
    early: bool = False
    """There may be objects of the first format."""

    @property
    def fresh(self) -> int:
        """Number of the fresh bucket."""
        return self.buckets

    def encode(self) -> bytes:
        """Return the layout object's content."""
        if self.early:
            return orjson.dumps({"buckets": self.buckets, "hash": "crc32", "format": 1})
        return orjson.dumps({"buckets": self.buckets, "hash": "crc32-root", "format": 2})

    @classmethod
    def decode(cls, body: bytes) -> Layout:
        """Return the layout that an object states.

        Raises:
            InputError: it was written by a later release, or is damaged.
        """
        try:
            stated = orjson.loads(body)
            early = {(1, "crc32"): True, (2, "crc32-root"): False}.get(
                (stated["format"], stated["hash"])
            )
            if early is not None:
                return cls(int(stated["buckets"]), early)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{LAYOUT_KEY} is damaged: {body[:200]!r}") from error
        raise InputError(f"{LAYOUT_KEY} is of a later release: {body[:200]!r}")


class TraceStore(FileStore, Protocol):
    """An object store, as far as traces need one; ``waybill.storage.ObjectStore`` is one."""

    def list(self, prefix: str) -> Iterable[ObjectInfo]:
        """Yield the objects below a prefix; RetryError."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, some of which may be gone; RetryError."""
        ...

    def get_tagged(self, key: str) -> tuple[bytes, str]:
        """Return an object and its ETag; ObjectMissingError, RetryError."""
        ...

    def swap(self, key: str, body: bytes, *, expected: str | None) -> str | None:
        """Store an object if the store has what is expected (an ETag, or nothing); else None."""
        ...


def stated_layout(store: TraceStore) -> Layout | None:
    """Return how the store's traces are cut; None: there are none yet.

    Raises:
        RetryError: the store is away.
        InputError: the layout object is damaged or of a later release.
    """
    try:
        return Layout.decode(store.get(LAYOUT_KEY))
    except ObjectMissingError:
        return None


def settled_layout(store: TraceStore, configured: int | None) -> Layout:
    """Return how the store's traces are cut; decided now, and for ever, when there are none.

    Args:
        store: where they are.
        configured: number of buckets that was set, if one was.

    Raises:
        RetryError: the store is away.
        InputError: another number is set than the traces were begun with.
    """
    stated = stated_layout(store)
    if stated is None:
        store.swap(LAYOUT_KEY, Layout(configured or NEW_BUCKETS).encode(), expected=None)
        stated = stated_layout(store)  # another node may have been first
    if stated is None:
        raise RetryError(f"{LAYOUT_KEY} was stored and is not in the store")
    if configured is not None and configured != stated.buckets:
        raise InputError(
            f"WAYBILL_TRACES__BUCKETS is {configured}, but the traces in the store were begun "
            f"with {stated.buckets}; unset it, or use another bucket of the store"
        )
    return stated


class KnownLayout:
    """The layout that a store states, read until it is there, then never again."""

    def __init__(self, store: TraceStore) -> None:
        self._store = store
        self._stated: Layout | None = None

    def get(self) -> Layout | None:
        """Return it; None: there are no traces yet. Raises as ``stated_layout``."""
        if self._stated is None or self._stated.early:
            self._stated = stated_layout(self._store)
        return self._stated
