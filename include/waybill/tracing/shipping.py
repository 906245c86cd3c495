"""Traces through the file manager: their spool, and how their files become objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waybill.tracing.files import (
    BOOKS,
    FileManager,
    FileStore,
    MakeBody,
    Shipper,
    ShipReport,
    Sound,
    Spool,
    ship_until,
)
from waybill.tracing.layout import Layout
from waybill.tracing.manifests import compacted_keys
from waybill.tracing.packing import TraceCargo, load
from waybill.tracing.parquet import is_whole
from waybill.tracing.store import TraceStore, settled_layout

if TYPE_CHECKING:
    from waybill.settings import TraceSettings

ENDING = ".parquet"
_SENT_AT_ONCE_S = 60.0
"""A shipment older than this may have been compacted: see ``TraceSettings.compact_after_s``."""


def trace_spool(directory: Path) -> Spool:
    """Return the spool of a node's trace files."""
    return Spool(directory, ending=ENDING, sound=_sound)


def _sound(path: Path) -> Sound:
    """Return all of a file or nothing: a trace file is written whole."""
    return Sound(path.stat().st_size if is_whole(path) else 0)


class TracePacker:
    """Cuts trace files by hour; see ``waybill.tracing`` for the keys.

    Args:
        store: where they go.
        buckets: number that was set for a new store; it must be the number of one that has traces.
    """

    def __init__(self, store: TraceStore, *, buckets: int | None) -> None:
        self._store = store
        self._configured = buckets
        self._layout: Layout | None = None

    def plan(self) -> dict[str, Any]:
        """Return the number of buckets, settled with the store; raises as ``settled_layout``."""
        if self._layout is None:
            self._layout = settled_layout(self._store, self._configured)
        return {"buckets": self._layout.buckets}

    def load(self, paths: Sequence[Path], plan: dict[str, Any]) -> ShippedCargo:
        """See ``waybill.tracing.packing.load``."""
        return ShippedCargo(load(paths, buckets=int(plan["buckets"])), self._store)

    def check(self, store: FileStore) -> None:
        """Hold the number of buckets, which never changes, against the store's; see ``plan``."""
        del store
        self.plan()

    def announce(self, store: FileStore, cargo: ShippedCargo) -> None:
        """Say nothing beforehand."""


class ShippedCargo:
    """A cargo whose objects are not sent again once they were compacted.

    A shipment that a death broke off is sent again under the same keys. By then compaction may have
    taken its objects up and deleted them: they would come back as doubles. What was compacted is
    noted for good before it is deleted, so it is looked up before such an object is sent; and
    after, for a compaction that came in between.
    """

    def __init__(self, cargo: TraceCargo, store: TraceStore) -> None:
        self._cargo = cargo
        self._store = store

    @property
    def records(self) -> int:
        """How many traces there are."""
        return self._cargo.records

    def keys(self, ship_id: str) -> tuple[str, ...]:
        """Return every object key."""
        return self._cargo.keys(ship_id)

    def objects(self, ship_id: str) -> Iterator[tuple[str, MakeBody]]:
        """Yield the objects that are to be sent; expects each to be sent before the next."""
        keys = set(self.keys(ship_id))
        gone = self._compacted(ship_id, keys)
        for key, body in self._cargo.objects(ship_id):
            if key not in gone:
                yield key, body
        self._compacted(ship_id, keys)

    def _compacted(self, ship_id: str, keys: set[str]) -> set[str]:
        """Return which of these objects were compacted; should they be back, they are deleted."""
        if _age_s(ship_id) <= _SENT_AT_ONCE_S:
            return set()
        gone = keys & compacted_keys(self._store, {part.hour for part in self._cargo.parts})
        if gone:
            self._store.delete(sorted(gone))
        return gone


def _age_s(ship_id: str) -> float:
    """Return the age of a shipment: its id begins with the time."""
    began = datetime.strptime(ship_id.partition("-")[0], "%Y%m%dT%H%M%S%f").replace(tzinfo=UTC)
    return (datetime.now(UTC) - began).total_seconds()


def run_shipper(
    settings: TraceSettings,
    store: TraceStore,
    stop: Callable[[], bool],
    *,
    drain_s: float = 20.0,
) -> ShipReport:
    """Ship traces until ``stop()`` is true, then what is left, for at most about ``drain_s``.

    A store that is away is waited out, with back-off up to 30 s.

    Raises:
        RetryError: another process ships this spool.
        InputError, StopError: going on makes no sense; see ``Shipper.step`` and ``FileManager``.
    """
    with FileManager(settings.spool_dir / BOOKS) as files:
        shipper = Shipper(
            trace_spool(settings.spool_dir),
            files,
            store,
            TracePacker(store, buckets=settings.buckets),
            roll_s=settings.roll_s,
            roll_bytes=settings.roll_bytes,
        )
        return ship_until(shipper, stop, drain_s=drain_s)
