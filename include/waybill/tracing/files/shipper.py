"""The shipper: carries finished files to the object store, exactly once each.

One shipment is in flight at a time. What a SIGKILL leaves, step by step:
  discover   see ``waybill.tracing.files.manager``.
  begin      the shipment is in the books, nothing is sent: sent by the next shipper.
  PUT        some objects are there: all are sent again under the same keys, with the same bytes.
  finish     all objects confirmed, the books say shipped, files still there: they are deleted when
             they are discovered again, and not sent again.
  delete     some are deleted: the rest likewise.
  prune      files that are gone are forgotten, or not: forgotten by the next shipper.

How fast objects are sent: as fast as they go, until the store asks for less.

Additive increase, multiplicative decrease, as TCP does it (Chiu and Jain, 1989): each refusal
halves the rate, each second without one adds to it. Limiters with a fixed rate, which is what
libraries have, do not follow what the store says.

The shipper's loop: until it is stopped, through outages, and what is left at the end.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waybill.errors import RetryError, ThrottledError
from waybill.tracing.files.books import FileRecord, Shipment
from waybill.tracing.files.manager import Discovery, FileManager
from waybill.tracing.files.packer import (
    Cargo,
    DamagedFileError,
    FilePacker,
    FileStore,
    MakeBody,
    put_confirmed,
)
from waybill.tracing.files.spool import Spool

if TYPE_CHECKING:
    from tenacity import RetryCallState


_GROWTH_PER_S = 5.0
"""Objects a second that a second without refusal adds."""
_LEAST_PER_S = 0.2


class Pace:
    """The rate of one sender. Not for several threads.

    Args:
        most_per_s: objects a second that are never exceeded.
        clock: seconds, as ``time.monotonic``.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        *,
        most_per_s: float = 1000.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._most_per_s = most_per_s
        self._clock = clock
        self._sleep = sleep
        self.rate_per_s = most_per_s
        """What may be sent at present."""
        self.refusals = 0
        self._next_at = clock()
        self._sent_at = self._next_at
        self._seen_per_s = most_per_s

    def wait(self) -> None:
        """Wait until the next object may be sent."""
        now = self._clock()
        if self._next_at > now:
            self._sleep(self._next_at - now)
            now = self._clock()
        self._note_speed(now)
        self._next_at = max(now, self._next_at) + 1 / self.rate_per_s

    def sent(self) -> None:
        """Note that an object was taken: the rate grows by a little."""
        grown = self.rate_per_s + _GROWTH_PER_S / self.rate_per_s
        self.rate_per_s = min(self._most_per_s, grown)

    def refused(self) -> None:
        """Note that the store asks for less: half of what was really sent, from now on."""
        self.refusals += 1
        self.rate_per_s = max(_LEAST_PER_S, min(self.rate_per_s, self._seen_per_s) / 2)
        self._next_at = self._clock() + 1 / self.rate_per_s

    def _note_speed(self, now: float) -> None:
        """Follow the rate at which objects really go: its mean over about the last five."""
        gap_s = max(now - self._sent_at, 1 / self._most_per_s)
        self._sent_at = now
        self._seen_per_s += 0.2 * (1 / gap_s - self._seen_per_s)


LOG = logging.getLogger(__name__)
BOOKS = "files.rocksdb"
"""Folder of the file manager's books, inside the spool."""
_SHIPMENT_BYTES = 8 * 1024**2
"""Most that one shipment takes, at least one file: about 480,000 traces, 200 MB while it is cut."""
_SHIPMENT_FILES = 2000
_KEEP_BOOKS_US = 24 * 3600 * 1_000_000
_PRUNE_EVERY_S = 600.0
_PRUNE_AT_ONCE = 2000
_REFUSALS_IN_A_ROW = 5
"""Of one object, before its shipment is put off."""


@dataclass(frozen=True, slots=True)
class ShipReport:
    """What was shipped."""

    shipments: int = 0
    files: int = 0
    records: int = 0
    """As the packer counts them."""
    objects: int = 0
    sent_bytes: int = 0

    def plus(self, other: ShipReport) -> ShipReport:
        """Return the sum of two reports."""
        return ShipReport(
            self.shipments + other.shipments,
            self.files + other.files,
            self.records + other.records,
            self.objects + other.objects,
            self.sent_bytes + other.sent_bytes,
        )


class Shipper:
    """Ships the files of one spool. One process a node: it owns the file manager.

    Args:
        spool: where the finished files are.
        files: the books.
        store: the object store.
        packer: makes objects of files.
        roll_s: longest a finished file waits.
        roll_bytes: finished files of so many bytes do not wait.
        pace: how fast objects are sent.
    """

    def __init__(  # noqa: PLR0913 - all by name but the four that it is made of
        self,
        spool: Spool,
        files: FileManager,
        store: FileStore,
        packer: FilePacker[Any],
        *,
        roll_s: float,
        roll_bytes: int,
        pace: Pace | None = None,
    ) -> None:
        self._spool = spool
        self._store = store
        self._packer = packer
        self._roll_bytes = roll_bytes
        self._pace = pace or Pace()
        self._discovery = Discovery(spool, files)
        self._confirmed: tuple[str, set[str]] = ("", set())
        self._next_prune = 0.0
        self._pruned_to_us = 0
        self.files = files
        self.roll_s = roll_s

    def step(self, *, everything: bool = False) -> ShipReport | None:
        """Ship what is due, at most one shipment; None when nothing is.

        Args:
            everything: do not wait for age or size.

        Raises:
            RetryError: the store is away; the shipment stays in the books and is tried again.
            InputError: the store refuses, or the packer refuses the store.
        """
        self._discovery.run()
        self._prune()
        started = self._resumed() or self._begun(everything=everything)
        while started is None and not self._discovery.is_complete:
            self._discovery.go_on()
            started = self._begun(everything=everything)
        return None if started is None else self._send(*started)

    def postpone(self, error: BaseException, delay_s: float) -> None:
        """Note in the books that the shipment in flight failed and when it is tried again."""
        LOG.warning("files wait in the spool, next attempt in %.1f s: %s", delay_s, error)
        due_us = time.time_ns() // 1000 + int(delay_s * 1_000_000)
        for shipment in self.files.unfinished():
            self.files.postpone(shipment.id, error=str(error), next_attempt_us=due_us)

    def _resumed(self) -> tuple[Shipment, Cargo] | None:
        """Return the shipment that a death or an absent store broke off."""
        for shipment in self.files.unfinished():
            try:
                return shipment, self._reloaded(shipment)
            except DamagedFileError as error:
                LOG.error("shipment %s cannot be sent again: %s", shipment.id, error)  # noqa: TRY400
                self.files.fail(shipment.id, error=str(error))
        return None

    def _reloaded(self, shipment: Shipment) -> Cargo:
        cargo: Cargo = self._packer.load(self._paths(shipment.files), shipment.plan)
        if cargo.keys(shipment.id) != shipment.keys:
            raise DamagedFileError(self._spool.directory, "holds other records than were noted")
        return cargo

    def _begun(self, *, everything: bool) -> tuple[Shipment, Cargo] | None:
        """Record a new shipment of the oldest files, when they are due."""
        while chosen := self._due(everything=everything):
            try:
                plan = self._packer.plan()
                cargo: Cargo = self._packer.load(self._paths(file.id for file in chosen), plan)
            except DamagedFileError as error:
                LOG.error("%s; it stays where it is, as failed", error)  # noqa: TRY400
                damaged = self._spool.id_of(error.path)
                gone = {} if error.path.exists() else {"size_bytes": 0}
                self.files.update(damaged, state="failed", error=str(error), **gone)
                continue
            self._packer.check(self._store)
            ship_id = f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{uuid.uuid4().hex[:12]}"
            shipment = Shipment(
                id=ship_id,
                created_us=time.time_ns() // 1000,
                files=tuple(file.id for file in chosen),
                keys=cargo.keys(ship_id),
                plan=plan,
                records=cargo.records,
            )
            self.files.begin(shipment)
            return shipment, cargo
        return None

    def _due(self, *, everything: bool) -> list[FileRecord]:
        """Return what the next shipment takes; costs the same however many files wait."""
        waiting = self.files.totals()["closed"]
        oldest = next(self.files.files(state="closed"), None) if waiting.files else None
        if oldest is None:
            return []
        age_s = time.time() - oldest.created_us / 1_000_000
        large = waiting.size_bytes >= self._roll_bytes
        if not (everything or large or age_s >= self.roll_s):
            return []
        return _first(
            self.files.files(state="closed"), max_bytes=min(self._roll_bytes, _SHIPMENT_BYTES)
        )

    def _send(self, shipment: Shipment, cargo: Cargo) -> ShipReport:
        self._packer.check(self._store)
        self._packer.announce(self._store, cargo)
        sent_bytes = 0
        confirmed = self._confirmed_of(shipment)
        for key, make in cargo.objects(shipment.id):
            if key not in confirmed:
                sent_bytes += self._put(key, make)
                confirmed.add(key)
        self.files.finish(shipment.id)
        self._spool.remove(shipment.files)
        self._discovery.state_tracked()
        return ShipReport(1, len(shipment.files), cargo.records, len(shipment.keys), sent_bytes)

    def _confirmed_of(self, shipment: Shipment) -> set[str]:
        """Return the keys that this process saw confirmed in earlier attempts; not sent again."""
        if self._confirmed[0] != shipment.id:
            self._confirmed = (shipment.id, set())
        return self._confirmed[1]

    def _put(self, key: str, make: MakeBody) -> int:
        """Send one object as fast as the store takes it, and return its bytes."""
        body = make()
        for number in range(1, _REFUSALS_IN_A_ROW + 1):
            self._pace.wait()
            try:
                put_confirmed(self._store, key, body)
            except ThrottledError:
                self._pace.refused()
                if number == _REFUSALS_IN_A_ROW:
                    raise
            else:
                break
        self._pace.sent()
        return len(body)

    def _prune(self) -> None:
        """Forget files shipped a day ago that are gone from the disk, some at a time."""
        if time.monotonic() < self._next_prune:
            return
        shipped = self.files.files(state="shipped", since_us=self._pruned_to_us)
        looked_at = list(islice(shipped, _PRUNE_AT_ONCE))
        until_us = time.time_ns() // 1000 - _KEEP_BOOKS_US
        old = [file.id for file in looked_at if (file.changed_us or file.created_us) <= until_us]
        gone = [i for i, path in zip(old, self._paths(old), strict=True) if not path.exists()]
        if gone:
            self.files.prune(gone)
        if len(looked_at) == _PRUNE_AT_ONCE:
            self._pruned_to_us = looked_at[-1].created_us + 1
        else:
            self._pruned_to_us = 0
            self._next_prune = time.monotonic() + _PRUNE_EVERY_S

    def _paths(self, ids: Iterable[str]) -> list[Path]:
        return [self._spool.path(file_id) for file_id in ids]


def _first(files: Iterable[FileRecord], *, max_bytes: int) -> list[FileRecord]:
    """Return the first files up to so many bytes, at least one."""
    chosen: list[FileRecord] = []
    size = 0
    for file in islice(files, _SHIPMENT_FILES):
        if chosen and size + file.size_bytes > max_bytes:
            break
        chosen.append(file)
        size += file.size_bytes
    return chosen


_IDLE_S = 1.0
_BACK_OFF_MOST_S = 30.0


def ship_until(
    shipper: Shipper,
    stop: Callable[[], bool],
    *,
    drain_s: float = 20.0,
) -> ShipReport:
    """Ship until ``stop()`` is true, then what is left, for at most about ``drain_s``.

    A store that is away is waited out, with back-off up to 30 s.

    Raises:
        InputError, StopError: going on makes no sense; see ``Shipper.step`` and ``FileManager``.
    """
    total = ShipReport()
    while not stop():
        report = _step(shipper, stop)
        if report is None:
            _sleep(min(_IDLE_S, shipper.roll_s / 2), stop)
        else:
            total = total.plus(report)
    return total.plus(_drain(shipper, drain_s))


def _drain(shipper: Shipper, drain_s: float) -> ShipReport:
    deadline = time.monotonic() + drain_s
    total = ShipReport()
    while time.monotonic() < deadline:
        report = _step(shipper, lambda: time.monotonic() >= deadline, everything=True)
        if report is None:
            break
        total = total.plus(report)
    counts = shipper.files.counts()
    if counts["closed"] + counts["shipping"]:
        LOG.warning("stopped with files in the spool, shipped at the next start: %s", counts)
    return total


def _step(
    shipper: Shipper, stop: Callable[[], bool], *, everything: bool = False
) -> ShipReport | None:
    """Ship one shipment, waiting out a store that is away; None also when stopped meanwhile."""
    from tenacity import (
        Retrying,
        retry_if_exception_type,
        wait_random_exponential,
    )

    def note(state: RetryCallState) -> None:
        if state.outcome is not None and state.next_action is not None:
            shipper.postpone(state.outcome.exception() or RetryError(), state.next_action.sleep)

    retrying = Retrying(
        retry=retry_if_exception_type(RetryError),
        wait=wait_random_exponential(multiplier=0.5, max=_BACK_OFF_MOST_S),
        stop=lambda _: stop(),
        sleep=lambda delay_s: _sleep(delay_s, stop),
        before_sleep=note,
        reraise=True,
    )
    try:
        return retrying(shipper.step, everything=everything)
    except RetryError as error:
        shipper.postpone(error, 0.0)
        return None


def _sleep(delay_s: float, stop: Callable[[], bool]) -> None:
    """Sleep, looking at ``stop`` five times a second."""
    deadline = time.monotonic() + delay_s
    while not stop() and (remaining_s := deadline - time.monotonic()) > 0:
        time.sleep(min(remaining_s, 0.2))
