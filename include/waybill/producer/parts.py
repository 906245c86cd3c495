"""The parts of one open producer: put together, recovered, taken apart."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

from waybill.errors import StopError
from waybill.producer.callbacks import Callbacks
from waybill.producer.checkpoint import Checkpoint, CheckpointFile, Offsets
from waybill.producer.client import CALLBACKS, producer_config
from waybill.producer.delivery import Deliveries
from waybill.producer.environment import Environment, Lock
from waybill.producer.maintenance import MaintenanceThread, Marks
from waybill.producer.model import FoundLog, Histogram, ProducerStats, Recovery
from waybill.producer.parking_place import ParkingPlace
from waybill.producer.recovery import Recoverer, survey
from waybill.producer.retry_log import RetryLog
from waybill.producer.retry_queue import OnUndeliverable, RetryQueue, WasTaken
from waybill.producer.sending import Sender
from waybill.producer.tail import TailReader
from waybill.producer.wal import DATA, Disk, WriteAheadLog, parse_segment
from waybill.settings import WalSettings

_LOG = logging.getLogger(__name__)
_LOOK_S = 0.1

Claim: TypeAlias = Callable[[FoundLog], bool]
"""Says whether a log may be sent."""


@dataclass(slots=True)
class Parts:
    """What a producer is made of."""

    directory_lock: Lock
    gate: threading.Lock
    """The append lock: appends and first hand-overs happen under it, in one order."""
    closing: threading.Event
    log: WriteAheadLog
    deliveries: Deliveries
    sender: Sender
    retry_queue: RetryQueue
    marks: Marks
    maintenance: MaintenanceThread
    client: Any
    tail: TailReader
    callbacks: Callbacks
    retry: RetryLog
    parking: ParkingPlace
    was_taken: WasTaken | None
    recovered: Recovery
    low_lsn: int
    """Of the checkpoint that was found."""
    first_lsn: int
    """Of the first record that this process appends."""

    def recover(self) -> None:
        """Settle what the log holds; then a first checkpoint."""
        recoverer = Recoverer(self.log, self.deliveries, self.tail, self.sender, self.retry_queue)
        taken = {*self.parking.lsns, *self.parking.settled, *self.retry.settled}
        self.parking.beside = lambda: -self.parking.size_bytes  # opening must not wait for room
        if self.was_taken is not None and (self.log.last_lsn >= self.low_lsn or self.retry):
            first_lsn = self.retry.least_lsn(self.low_lsn)
            taken.update(self.was_taken(self.log.wal_id.hex(), first_lsn))
        recoverer.recover(self.low_lsn, self.recovered, taken)
        self.maintenance.try_checkpoint()
        self.maintenance.ready = True
        self.parking.beside = lambda: self.log.size_bytes + self.retry.size_bytes

    def in_doubt(self) -> int:
        """Return how many records are not settled."""
        with self._looking():
            return self.deliveries.in_doubt(self.log.next_lsn) + self.retry_queue.retrying

    def settled(self, lsn: int) -> bool:
        """Tell whether all up to an lsn was settled when the maintenance looked last."""
        passed = self.deliveries.low > lsn  # first: a record is set aside before this passes it
        return passed and not self.retry_queue.retrying

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Hold the append lock, but not wait long for it.

        A ``produce`` that waits for librdkafka's full queue holds it; what is read then may miss a
        record whose ``produce`` has not returned.
        """
        held = self.gate.acquire(timeout=_LOOK_S)
        try:
            yield
        finally:
            if held:
                self.gate.release()

    def stats(self, latency: Histogram) -> ProducerStats:
        """Return counts and sizes of now."""
        in_doubt = self.in_doubt()
        with self._looking():
            appended = self.log.next_lsn - self.first_lsn - self.marks.written
            acknowledged = sum(epoch.acknowledged for epoch in list(self.deliveries.epochs))
            delivered = self.deliveries.delivered + acknowledged + self.retry_queue.delivered
        return ProducerStats(
            appended=appended,
            delivered=delivered,
            in_doubt=in_doubt,
            retrying=self.retry_queue.retrying,
            retried=self.retry_queue.retried,
            undeliverable=self.retry_queue.undeliverable,
            parked=len(self.parking),
            recovered=self.recovered.replayed,
            poisoned=self.log.poisoned,
            wal_bytes=self.log.size_bytes + self.log.others_bytes(),
            checkpoint_age_s=self.maintenance.age_s,
            append_latency=latency.copy(),
        )

    def close(self) -> int:
        """End the threads, write a last checkpoint, close all; return how much stays in doubt.

        Raises:
            StopError: the disk refused to keep what stays; all is closed all the same.
        """
        self.closing.set()
        self.maintenance.join()
        with self.gate:  # a produce of another thread that comes later finds no segment
            self.maintenance.stop(StopError("this producer is closed"), instead=True)
            self.log.retire()
        left = self.in_doubt()
        try:
            self._end()
        except OSError:
            _LOG.exception("files in %s stay for the next opening", self.log.directory)
        return left

    def _end(self) -> None:
        with ExitStack() as last_first:
            last_first.callback(self.directory_lock.release)
            last_first.callback(self.parking.close)
            last_first.callback(self.retry.close)
            last_first.callback(lambda: self.log.close(self.maintenance.floor_lsn))
            last_first.callback(self.sender.drop)
            last_first.callback(self.maintenance.end)
            if self.maintenance.ready:
                self.retry_queue.acknowledge()
                self.maintenance.try_checkpoint()


def open_parts(  # noqa: PLR0913, PLR0917 - what a producer is opened with
    settings: WalSettings,
    kafka: Mapping[str, object],
    folder: str,
    on_undeliverable: OnUndeliverable | None,
    was_taken: WasTaken | None,
    marks: bool,  # noqa: FBT001 - of one caller
    environment: Environment,
    claim: Claim | None = None,
) -> Parts:
    """Lock the directory, read checkpoint and log, make the client; nothing is sent yet.

    A log that ``claim`` refuses is moved aside, and a new one is begun, which is claimed in turn.

    Raises:
        ProducerBusyError: another live process has the directory.
        InputError: a setting cannot be used.
    """
    config = producer_config(kafka, settings)
    directory = settings.dir / folder
    lock, disk = environment.lock(directory), environment.disk
    superseded = 0
    try:
        opened = _open_files(directory, settings, disk, marks=marks)
        while claim is not None and not claim(_found(opened, directory)):
            superseded += _move_aside(disk, directory, opened)
            opened = _open_files(directory, settings, disk, marks=marks)
        file, start, retry, parking, log, damaged = opened
        recovered = survey(log, start)
        recovered.superseded = superseded
        log.others_bytes = lambda: retry.size_bytes + parking.size_bytes
        retry.beside = lambda: log.size_bytes + parking.size_bytes
        recovered.quarantined += damaged + retry.damaged + parking.damaged
        used = marks or start.marked or bool(recovered.marks)
        known = Marks(used, start.confirmed_lsn, start.synced_lsn)
        return _assemble(
            environment,
            lock,
            settings,
            kafka,
            config,
            log,
            file,
            start,
            known,
            recovered,
            retry,
            parking,
            on_undeliverable or parking.park,
            was_taken,
        )
    except BaseException:
        lock.release()
        raise


class _Files(NamedTuple):
    """What a directory holds, opened."""

    file: CheckpointFile
    start: Checkpoint
    retry: RetryLog
    parking: ParkingPlace
    log: WriteAheadLog
    damaged: bool


def _open_files(directory: Path, settings: WalSettings, disk: Disk, *, marks: bool) -> _Files:
    file = CheckpointFile(directory, disk)
    found, damaged = file.load()
    retry = RetryLog(directory / "retry", settings, disk, found.retry)
    parking = ParkingPlace(directory / "parked", settings, disk, found.parked)
    log = WriteAheadLog(
        directory,
        settings,
        wal_id=found.wal_id,
        next_lsn=max(found.low_lsn, retry.next_lsn, parking.next_lsn),
        next_segment=found.next_segment,
        disk=disk,
    )
    start = found
    if found.wal_id != log.wal_id:  # none was written yet, or it was damaged
        start = Checkpoint(wal_id=log.wal_id, low_lsn=log.first_lsn)
        if log.first_lsn == log.next_lsn:
            start = replace(start, marked=marks)
            file.save(start)  # a log has its id from the beginning, though it is killed here
    return _Files(file, start, retry, parking, log, damaged)


def _found(opened: _Files, directory: Path) -> FoundLog:
    log, start = opened.log, opened.start
    empty = log.first_lsn == log.next_lsn and not opened.retry
    return FoundLog(log.wal_id.hex(), directory, start.confirmed_lsn, empty, start.offsets)


def _move_aside(disk: Disk, directory: Path, opened: _Files) -> int:
    """Move a log to ``quarantine/<its id>/``; return how many records behind its last mark it held.

    The checkpoint, which names it, goes last: killed anywhere, the next opening finds the same log,
    and moves the rest.
    """
    log = opened.log
    behind = log.records(opened.start.confirmed_lsn + 1)
    held = sum(record.kind == DATA for record in behind)
    for one in (log, opened.retry, opened.parking):
        one.close()
    disk.make_directory(directory / "quarantine")
    target = directory / "quarantine" / log.wal_id.hex()
    disk.make_directory(target)
    for name in ("retry", "parked"):
        if name in disk.names(directory):
            disk.make_directory(target / name)
            _move_segments(disk, directory / name, target / name)
    _move_segments(disk, directory, target)
    _move_files(disk, directory, target, ["checkpoint"])
    _LOG.error(
        "log %s was taken over by another one, or settled by name: the %d records behind its last "
        "mark are not sent; they were moved to %s",
        *(log.wal_id.hex(), held, target),
    )
    return held


def _move_segments(disk: Disk, source: Path, target: Path) -> None:
    segments = [name for name in disk.names(source) if parse_segment(name) is not None]
    _move_files(disk, source, target, segments)


def _move_files(disk: Disk, source: Path, target: Path, names: list[str]) -> None:
    there = set(disk.names(target))
    for name in set(names) & set(disk.names(source)) - there:
        disk.link(source / name, target / name)
    disk.sync_directory(target)
    for name in names:
        disk.remove(source / name)
    disk.sync_directory(source)


def _assemble(  # noqa: PLR0913, PLR0917 - every part once
    environment: Environment,
    lock: Lock,
    settings: WalSettings,
    kafka: Mapping[str, object],
    config: dict[str, object],
    log: WriteAheadLog,
    file: CheckpointFile,
    start: Checkpoint,
    marks: Marks,
    recovered: Recovery,
    retry: RetryLog,
    parking: ParkingPlace,
    on_undeliverable: OnUndeliverable,
    was_taken: WasTaken | None,
) -> Parts:
    gate, closing = threading.Lock(), threading.Event()
    deliveries = Deliveries(_copy(start.offsets), _copy(start.retry_offsets))
    callbacks = Callbacks()
    for name in CALLBACKS & config.keys():
        config[name] = callbacks.guarded(cast("Callable[..., object]", config[name]))
    client = environment.client(config)
    sender = Sender(client, log, deliveries, gate, closing, callbacks)
    retry_queue = RetryQueue(
        log,
        retry,
        deliveries,
        environment.tail(kafka, log.wal_id, lambda: False),
        send=sender.again,
        send_alone=sender.alone,
        on_undeliverable=on_undeliverable,
        sync=lambda: log.sync(gate),
        interval_s=settings.retry_interval_ms / 1000,
    )
    sender.connect(retry_queue)
    background = environment.background(closing)
    maintenance = MaintenanceThread(
        settings, log, deliveries, marks, file, retry, parking, gate=gate, background=background
    )
    tail = environment.tail(kafka, log.wal_id, lambda: True)
    return Parts(
        directory_lock=lock,
        gate=gate,
        closing=closing,
        log=log,
        deliveries=deliveries,
        sender=sender,
        retry_queue=retry_queue,
        marks=marks,
        maintenance=maintenance,
        client=client,
        tail=tail,
        callbacks=callbacks,
        retry=retry,
        parking=parking,
        was_taken=was_taken,
        recovered=recovered,
        low_lsn=start.low_lsn,
        first_lsn=log.next_lsn,
    )


def _copy(offsets: Offsets) -> Offsets:
    return {topic: dict(at) for topic, at in offsets.items()}
