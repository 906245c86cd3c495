"""The components of one open producer: put together, recovered, taken apart.

``Environment`` is where they meet the outside: disk, lock, Kafka, threads. Tests bring their own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

from waybill.errors import StopError
from waybill.producer.checkpoint import Offsets
from waybill.producer.client import CALLBACKS, producer_config
from waybill.producer.delivery import Callbacks, Deliveries
from waybill.producer.forks import DirectoryLock, note_client
from waybill.producer.maintenance import Background, MaintenanceThread, Marks, Threads
from waybill.producer.model import FoundLog, Histogram, ProducerStats, Recovery
from waybill.producer.recovery import Files, Recoverer, move_aside, open_files, survey
from waybill.producer.retry_log import ParkingPlace, RetryLog
from waybill.producer.retry_queue import OnUndeliverable, RetryQueue, WasTaken
from waybill.producer.sender import Sender
from waybill.producer.tail import Tail, TailReader
from waybill.producer.wal import Disk, RealDisk, WriteAheadLog
from waybill.settings import WalSettings

_LOG = logging.getLogger(__name__)
_GATE_WAIT_S = 0.1

Claim: TypeAlias = Callable[[FoundLog], bool]
"""Says whether a log may be sent."""
WhileWaiting: TypeAlias = Callable[[int], None]
"""Called while records wait for Kafka or for room, with a number that changes once one moved."""


class Lock(Protocol):
    """One live process a directory."""

    def release(self) -> None:
        """Let the next one in."""


def wait_on(_mark: int) -> None:
    """Let a wait go on."""


MakeTail: TypeAlias = Callable[[Mapping[str, object], bytes, Callable[[], bool]], TailReader]


def _client(config: dict[str, object]) -> Any:
    from confluent_kafka import Producer

    note_client()
    return Producer(config)


def _lock(directory: Path) -> Lock:
    directory.mkdir(parents=True, exist_ok=True)
    return DirectoryLock(directory)


@dataclass(frozen=True, slots=True)
class Environment:
    """How the things outside are got; each call returns a new one."""

    disk: Disk = field(default_factory=RealDisk)
    lock: Callable[[Path], Lock] = _lock
    """Makes the directory and locks it; raises ``ProducerBusyError``."""
    client: Callable[[dict[str, object]], Any] = _client
    """Of librdkafka's settings: what ``Sender`` uses of a ``confluent_kafka.Producer``."""
    tail: MakeTail = Tail
    background: Callable[[threading.Event], Background] = Threads


REAL = Environment()


@dataclass(slots=True)
class Components:
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
        with self._gate_if_free():
            return self.deliveries.in_doubt(self.log.next_lsn) + self.retry_queue.retrying

    def settled(self, lsn: int) -> bool:
        """Tell whether all up to an lsn was settled when the maintenance looked last."""
        passed = self.deliveries.low > lsn  # first: a record is set aside before this passes it
        return passed and not self.retry_queue.retrying

    @contextmanager
    def _gate_if_free(self) -> Iterator[None]:
        """Hold the append lock, but not wait long for it.

        A ``produce`` that waits for librdkafka's full queue holds it; what is read then may miss a
        record whose ``produce`` has not returned.
        """
        held = self.gate.acquire(timeout=_GATE_WAIT_S)
        try:
            yield
        finally:
            if held:
                self.gate.release()

    def stats(self, latency: Histogram) -> ProducerStats:
        """Return counts and sizes of now."""
        in_doubt = self.in_doubt()
        with self._gate_if_free():
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
        in_doubt = self.in_doubt()
        try:
            self._end()
        except OSError:
            _LOG.exception("files in %s stay for the next opening", self.log.directory)
        return in_doubt

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


@dataclass(frozen=True, slots=True)
class Options:
    """What a producer is opened with; see ``LosslessProducer``."""

    settings: WalSettings
    kafka: Mapping[str, object]
    environment: Environment
    on_undeliverable: OnUndeliverable | None = None
    was_taken: WasTaken | None = None
    claim: Claim | None = None
    marks: bool = False
    while_waiting: WhileWaiting = wait_on


def open_components(options: Options, folder: str) -> Components:
    """Lock the directory, read checkpoint and log, make the client; nothing is sent yet.

    A log that ``claim`` refuses is moved aside, and a new one is begun, which is claimed in turn.

    Raises:
        ProducerBusyError: another live process has the directory.
        InputError: a setting cannot be used.
    """
    settings, claim, disk = options.settings, options.claim, options.environment.disk
    config = producer_config(options.kafka, settings)
    directory = settings.dir / folder
    lock = options.environment.lock(directory)
    superseded = 0
    try:
        files = open_files(directory, settings, disk, marks=options.marks)
        while not _claimed(claim, files):
            superseded += move_aside(disk, directory, files)
            files = open_files(directory, settings, disk, marks=options.marks)
        recovered = survey(files.log, files.start)
        recovered.superseded = superseded
        return _assemble(options, lock, config, files, recovered)
    except BaseException:
        lock.release()
        raise


def _claimed(claim: Claim | None, files: Files) -> bool:
    try:
        return claim is None or claim(files.found_log())
    except BaseException:
        files.close()  # who tries again and again must not run out of file descriptors
        raise


def _assemble(
    options: Options, lock: Lock, config: dict[str, object], files: Files, recovered: Recovery
) -> Components:
    settings, environment = options.settings, options.environment
    _, start, retry, parking, log, damaged = files
    log.others_bytes = lambda: retry.size_bytes + parking.size_bytes
    retry.beside = lambda: log.size_bytes + parking.size_bytes
    recovered.quarantined += damaged + retry.damaged + parking.damaged
    used = options.marks or start.marked or bool(recovered.marks)
    marks = Marks(used, start.confirmed_lsn, start.synced_lsn)
    gate, closing = threading.Lock(), threading.Event()
    deliveries = Deliveries(_copy(start.offsets), _copy(start.retry_offsets))
    callbacks = Callbacks()
    for name in CALLBACKS & config.keys():
        config[name] = callbacks.guarded(cast("Callable[..., object]", config[name]))
    client = environment.client(config)
    sender = Sender(client, log, deliveries, gate, closing, callbacks)
    sender.while_waiting = options.while_waiting
    retry_queue = RetryQueue(
        log,
        retry,
        deliveries,
        environment.tail(options.kafka, log.wal_id, lambda: False),
        sender=sender,
        on_undeliverable=options.on_undeliverable or parking.park,
        interval_s=settings.retry_interval_ms / 1000,
    )
    sender.connect(retry_queue)
    background = environment.background(closing)
    maintenance = MaintenanceThread(
        settings, files, deliveries, marks, gate=gate, background=background
    )
    tail = environment.tail(options.kafka, log.wal_id, lambda: _goes_on(options.while_waiting))
    return Components(
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
        was_taken=options.was_taken,
        recovered=recovered,
        low_lsn=start.low_lsn,
        first_lsn=log.next_lsn,
    )


def _goes_on(while_waiting: WhileWaiting) -> bool:
    while_waiting(0)
    return True


def _copy(offsets: Offsets) -> Offsets:
    return {topic: dict(at) for topic, at in offsets.items()}
