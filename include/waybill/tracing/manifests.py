"""What compactions are under way: an hour's manifest says which objects count while one is.

A run writes new objects in place of others; there must be no moment at which a reader sees a trace
twice, or not at all. So each object is hidden or shown by the manifest, and what a reader lists
counts only when the manifests were the same before and after (``visible``):
  none       every object counts.
  writing    the run's outputs are hidden.
  done       what the run replaced is hidden; it is deleted some minutes later, since readers who
             listed before may still read it.
  deleting   as done, while that happens.
A run's id stands in the names of its outputs and is never used again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Literal, TypeVar

import orjson

from waybill.errors import RetryError
from waybill.storage import ObjectMissingError
from waybill.tracing.layout import (
    COMPACTED_PREFIX,
    COMPACTIONS_PREFIX,
    EARLY_PREFIX,
    Hour,
    Layout,
    TracePlace,
    TraceStore,
    holds,
    place_of,
    prefixes,
)

_TRIES = 6
_LISTING_S = 240.0
"""Longest a listing may take: replaced objects are deleted ten minutes after they are replaced."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Manifest:
    """One hour's compaction."""

    hour: str
    """``dt=…/hour=…``."""
    run: str
    state: Literal["writing", "done", "deleting"]
    replaces: tuple[str, ...]
    """Keys."""
    abandoned: tuple[str, ...] = ()
    """Runs of this hour that died while writing: their outputs never count."""
    changed_us: int = 0
    """When the state became this."""
    beat_us: int = field(default=0, compare=False)
    """When its run was last heard of, while it writes."""

    @property
    def at(self) -> Hour:
        """The hour."""
        return Hour.at(self.hour)

    @property
    def key(self) -> str:
        """Where it lies."""
        return f"{COMPACTIONS_PREFIX}{self.hour}.json"

    @property
    def compacted_key(self) -> str:
        """Where it is kept for shippers, without an end."""
        return f"{COMPACTED_PREFIX}{self.hour}/{self.run}.json"

    def finished(self) -> Manifest:
        """Return it as it is once every output is in the store."""
        return replace(self, state="done", changed_us=time.time_ns() // 1000)

    def beaten(self) -> Manifest:
        """Return it as its run says now that it lives."""
        return replace(self, beat_us=time.time_ns() // 1000)

    def encode(self) -> bytes:
        """Return it as it is stored."""
        return orjson.dumps(asdict(self))

    @classmethod
    def decode(cls, body: bytes) -> Manifest:
        """Return what ``encode`` stored."""
        values = orjson.loads(body)
        lists = {name: tuple(values[name]) for name in ("replaces", "abandoned")}
        return cls(**{**values, **lists})


def output_name(run: str, number: int) -> str:
    """Return the name of an output; a shipment's id has no "_"."""
    return f"{run}_{number:04d}"


def run_of(place: TracePlace) -> str | None:
    """Return which run wrote an object; None: a shipper did."""
    run, mark, _ = place.name.rpartition("_")
    return run if mark else None


class Shown:
    """Tells which objects count, by the manifests of one moment."""

    def __init__(self, manifests: Iterable[Manifest]) -> None:
        self._hidden: set[str] = set()
        self._hidden_runs: set[str] = set()
        for one in manifests:
            self._hidden_runs.update(one.abandoned)
            if one.state == "writing":
                self._hidden_runs.add(one.run)
            else:
                self._hidden.update(one.replaces)

    def __call__(self, key: str, place: TracePlace) -> bool:
        """Tell whether an object counts."""
        return key not in self._hidden and run_of(place) not in self._hidden_runs


@dataclass(frozen=True, slots=True)
class TraceObject:
    """One object that counts."""

    key: str
    place: TracePlace
    size: int
    """Bytes."""

    @property
    def early(self) -> bool:
        """It is of the first format."""
        return self.key.startswith(EARLY_PREFIX)


def read_manifests(store: TraceStore) -> tuple[Manifest, ...]:
    """Return the manifests there are. Cost: one listing, and one read each."""
    manifests = []
    for info in store.list(COMPACTIONS_PREFIX):
        try:
            manifests.append(Manifest.decode(store.get(info.key)))
        except ObjectMissingError:
            continue  # the run ended meanwhile
    return tuple(sorted(manifests, key=lambda one: one.hour))


def compacted_keys(store: TraceStore, hours: Iterable[Hour]) -> set[str]:
    """Return the keys of the shipped objects of some hours that were compacted.

    Cost: a listing an hour, and one read for each time that it was compacted.
    """
    keys: set[str] = set()
    for hour in hours:
        for info in store.list(f"{COMPACTED_PREFIX}{hour.path}/"):
            keys.update(Manifest.decode(store.get(info.key)).replaces)
    return keys


def steady(store: TraceStore, ask: Callable[[tuple[Manifest, ...]], T]) -> T:
    """Return an answer during which no compaction began or ended.

    Raises:
        RetryError: one always did, or asking took too long; or the store is away.
    """
    before = read_manifests(store)
    for _ in range(_TRIES):
        began = time.monotonic()
        answer = ask(before)
        after = read_manifests(store)
        if after == before and time.monotonic() - began < _LISTING_S:
            return answer
        before = after
    raise RetryError("traces are being compacted; ask again in a minute")


def visible(
    store: TraceStore,
    layout: Layout,
    buckets: Iterable[int],
    since: datetime | None,
    until: datetime | None,
    *,
    each: Callable[[Callable[[str], list[TraceObject]], list[str]], Iterable[list[TraceObject]]],
) -> list[TraceObject]:
    """Return the objects of some buckets, and of a time, that count.

    Args:
        store: where they are.
        layout: the store's.
        buckets: numbers, the fresh one among them where it is wanted.
        since: None: from the first on.
        until: None: to the last.
        each: maps a listing over prefixes, perhaps several at once.

    Cost: two listings, and one for each bucket when the time is open or lies within a day.
    """
    wanted = [p for bucket in buckets for p in prefixes(bucket, since, until)]
    wanted += [EARLY_PREFIX] * layout.early

    def listed(prefix: str) -> list[TraceObject]:
        return [
            TraceObject(info.key, place, info.size)
            for info in store.list(prefix)
            if (place := place_of(info.key)) is not None and holds(place.hour, since, until)
        ]

    def shown(manifests: tuple[Manifest, ...]) -> list[TraceObject]:
        counts = Shown(manifests)
        found = [one for some in each(listed, wanted) for one in some]
        return [one for one in found if counts(one.key, one.place)]

    return steady(store, shown)
