"""The shipper: carries finished spool files to the object store, exactly once each.

One shipment is in flight at a time. What a SIGKILL leaves, step by step:
  discover   a file is not in the books yet: found again.
  begin      the shipment is in the books, nothing is sent: sent by the next shipper.
  PUT        some objects are there: all are sent again under the same keys, with the same bytes.
  finish     all objects confirmed, the books say shipped, files still there: they are deleted when
             they are discovered again, and not sent again.
  delete     some are deleted: the rest likewise.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waybill.errors import RetryError
from waybill.files.manager import FileManager
from waybill.files.packer import Cargo, DamagedFileError, Packer
from waybill.files.records import FileRecord, Shipment
from waybill.files.spool import Abandoned, Spool, sync_directory
from waybill.files.store import FileStore, put_confirmed

if TYPE_CHECKING:
    from tenacity import RetryCallState

LOG = logging.getLogger(__name__)
BOOKS = "files.rocksdb"
"""Folder of the file manager's books, inside the spool."""
_SHIPMENT_BYTES = 8 * 1024**2
"""Most that one shipment takes, at least one file: about 480,000 traces, 200 MB while it is cut."""
_SHIPMENT_FILES = 2000
_KEEP_BOOKS_US = 24 * 3600 * 1_000_000
_PRUNE_EVERY_S = 600.0
_IDLE_S = 1.0
_BACK_OFF_MOST_S = 30.0


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
    """

    def __init__(
        self,
        spool: Spool,
        files: FileManager,
        store: FileStore,
        packer: Packer[Any],
        *,
        roll_s: float,
        roll_bytes: int,
    ) -> None:
        self._spool = spool
        self.files = files
        self._store = store
        self._packer = packer
        self.roll_s = roll_s
        self._roll_bytes = roll_bytes
        self._seen: set[str] = set()
        self._next_prune = 0.0

    def step(self, *, everything: bool = False) -> ShipReport | None:
        """Ship what is due, at most one shipment; None when nothing is.

        Args:
            everything: do not wait for age or size.

        Raises:
            RetryError: the store is away; the shipment stays in the books and is tried again.
            InputError: the store refuses, or the packer refuses the store.
        """
        self._discover()
        self._prune()
        started = self._resumed() or self._begun(everything=everything)
        if started is None:
            return None
        return self._send(*started)

    def postpone(self, error: BaseException, delay_s: float) -> None:
        """Note in the books that the shipment in flight failed and when it is tried again."""
        LOG.warning("files wait in the spool, next attempt in %.1f s: %s", delay_s, error)
        due_us = time.time_ns() // 1000 + int(delay_s * 1_000_000)
        for shipment in self.files.unfinished():
            self.files.postpone(shipment.id, error=str(error), next_attempt_us=due_us)

    def _discover(self) -> None:
        """Bring the books up to what is on the disk."""
        for one in self._spool.take_over():
            self._note_abandoned(one)
        found = [file for file in self._spool.files() if file.id not in self._seen]
        new = [FileRecord(f.id, f.created_us, "closed", size_bytes=f.size_bytes) for f in found]
        added = {record.id for record in self.files.add(new)}
        for file in found:
            record = None if file.id in added else self.files.get(file.id)
            if record is not None and record.state == "shipped":
                file.path.unlink(missing_ok=True)
            else:
                self._seen.add(file.id)

    def _note_abandoned(self, one: Abandoned) -> None:
        if one.finished:
            LOG.warning("file %s of a dead process is whole and taken over", one.id)
            return
        LOG.warning("file %s is torn (%d bytes): its writer died", one.id, one.size_bytes)
        reason = "torn: its writer died before its write returned; removed"
        self.files.add([FileRecord(one.id, one.created_us, "failed", one.size_bytes, error=reason)])

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
                cargo = self._packer.load(self._paths(file.id for file in chosen), plan)
            except DamagedFileError as error:
                LOG.error("%s; it stays where it is, as failed", error)  # noqa: TRY400
                self.files.update(error.path.stem, state="failed", error=str(error))
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
        waiting = list(self.files.files(state="closed"))
        if not waiting:
            return []
        age_s = time.time() - waiting[0].created_us / 1_000_000
        size = sum(file.size_bytes for file in waiting)
        if not (everything or age_s >= self.roll_s or size >= self._roll_bytes):
            return []
        return _first(waiting, max_bytes=min(self._roll_bytes, _SHIPMENT_BYTES))

    def _send(self, shipment: Shipment, cargo: Cargo) -> ShipReport:
        self._packer.check(self._store)
        self._packer.announce(self._store, cargo)
        sent_bytes = 0
        for key, body in cargo.objects(shipment.id):
            put_confirmed(self._store, key, body)
            sent_bytes += len(body)
        self.files.finish(shipment.id)
        for path in self._paths(shipment.files):
            path.unlink(missing_ok=True)
        sync_directory(self._spool.directory)
        self._seen.difference_update(shipment.files)
        return ShipReport(1, len(shipment.files), cargo.records, len(shipment.keys), sent_bytes)

    def _prune(self) -> None:
        """Forget shipped files after a day, once they are gone from the disk."""
        if time.monotonic() < self._next_prune:
            return
        self._next_prune = time.monotonic() + _PRUNE_EVERY_S
        until_us = time.time_ns() // 1000 - _KEEP_BOOKS_US
        old = [file.id for file in self.files.files(state="shipped", until_us=until_us)]
        gone = [i for i, path in zip(old, self._paths(old), strict=True) if not path.exists()]
        if gone:
            self.files.prune(gone)

    def _paths(self, ids: Iterable[str]) -> list[Path]:
        return [self._spool.path(file_id) for file_id in ids]


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
    left = shipper.files.counts()
    if left["closed"] + left["shipping"]:
        LOG.warning("stopped with files in the spool, shipped at the next start: %s", left)
    return total


def _step(
    shipper: Shipper, stop: Callable[[], bool], *, everything: bool = False
) -> ShipReport | None:
    """Ship one shipment, waiting out a store that is away; None also when stopped meanwhile."""
    from tenacity import (  # noqa: PLC0415
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


def _first(files: list[FileRecord], *, max_bytes: int) -> list[FileRecord]:
    """Return the first files up to so many bytes, at least one."""
    chosen: list[FileRecord] = []
    size = 0
    for file in files[:_SHIPMENT_FILES]:
        if chosen and size + file.size_bytes > max_bytes:
            break
        chosen.append(file)
        size += file.size_bytes
    return chosen


def _sleep(delay_s: float, stop: Callable[[], bool]) -> None:
    """Sleep, looking at ``stop`` five times a second."""
    deadline = time.monotonic() + delay_s
    while not stop() and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, 0.2))
