"""Traces through the file manager: their spool, and how their files become objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waybill.errors import InputError
from waybill.files import (
    BOOKS,
    FileManager,
    FileStore,
    Shipper,
    ShipReport,
    Sound,
    Spool,
    put_confirmed,
    ship_until,
)
from waybill.tracing.layout import LAYOUT_KEY, Hour, layout_body
from waybill.tracing.packing import Cargo, load
from waybill.tracing.parquet import is_whole
from waybill.tracing.store import stated_buckets

if TYPE_CHECKING:
    from waybill.settings import TraceSettings

ENDING = ".parquet"


def trace_spool(directory: Path) -> Spool:
    """Return the spool of a node's trace files."""
    return Spool(directory, ending=ENDING, sound=_sound)


def _sound(path: Path) -> Sound:
    """Return all of a file or nothing: a trace file is written whole."""
    return Sound(path.stat().st_size if is_whole(path) else 0)


class TracePacker:
    """Cuts trace files by hour and bucket; see ``waybill.tracing`` for the keys.

    Args:
        buckets: as the layout object states, or will state.
    """

    def __init__(self, *, buckets: int) -> None:
        self._buckets = buckets
        self._marked: set[Hour] = set()
        self._checked = False

    def plan(self) -> dict[str, Any]:
        """Return the number of buckets."""
        return {"buckets": self._buckets}

    def load(self, paths: Sequence[Path], plan: dict[str, Any]) -> Cargo:
        """See ``waybill.tracing.packing.load``."""
        return load(paths, buckets=int(plan["buckets"]))

    def check(self, store: FileStore) -> None:
        """Hold the number of buckets, which never changes, against the store's.

        Raises:
            RetryError: the store is away.
            InputError: the store's traces were begun with another number.
        """
        if self._checked:
            return
        stated = stated_buckets(store)
        if stated is None:
            put_confirmed(store, LAYOUT_KEY, layout_body(self._buckets))
        elif stated != self._buckets:
            raise InputError(
                f"WAYBILL_TRACES__BUCKETS is {self._buckets}, but the traces in the store were "
                f"begun with {stated}; set it to {stated}, or use another bucket of the store"
            )
        self._checked = True

    def announce(self, store: FileStore, cargo: Cargo) -> None:
        """Tell look-ups that these hours have objects, before their first one."""
        for hour in sorted({part.hour for part in cargo.parts} - self._marked):
            put_confirmed(store, hour.marker_key, b"{}")
            self._marked.add(hour)


def run_shipper(
    settings: TraceSettings,
    store: FileStore,
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
            TracePacker(buckets=settings.buckets),
            roll_s=settings.roll_s,
            roll_bytes=settings.roll_bytes,
        )
        return ship_until(shipper, stop, drain_s=drain_s)
