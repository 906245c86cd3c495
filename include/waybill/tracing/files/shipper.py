"""The shipper: carries finished files to the object store, exactly once each.

One shipment is in flight at a time. What a SIGKILL leaves, step by step:
  discover   see ``waybill.tracing.files.discovery``.
  begin      the shipment is in the books, nothing is sent: sent by the next shipper.
  PUT        some objects are there: all are sent again under the same keys, with the same bytes.
  finish     all objects confirmed, the books say shipped, files still there: they are deleted when
             they are discovered again, and not sent again.
  delete     some are deleted: the rest likewise.
  prune      files that are gone are forgotten, or not: forgotten by the next shipper.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from waybill.errors import ThrottledError
from waybill.tracing.files.discovery import Discovery
from waybill.tracing.files.manager import FileManager
from waybill.tracing.files.pace import Pace
from waybill.tracing.files.packer import Cargo, DamagedFileError, MakeBody, Packer
from waybill.tracing.files.records import FileRecord, Shipment
from waybill.tracing.files.spool import Spool
from waybill.tracing.files.store import FileStore, put_confirmed

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
        packer: Packer[Any],
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
