"""The parts of one open producer: put together, recovered, taken apart."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from waybill.errors import StopError
from waybill.producer.checkpoint import Checkpoint, CheckpointFile
from waybill.producer.client import producer_config
from waybill.producer.delivery import Deliveries
from waybill.producer.keeper import Keeper, Marks
from waybill.producer.lock import DirectoryLock
from waybill.producer.model import Recovery
from waybill.producer.recovery import Recoverer, survey
from waybill.producer.redo import OnUndeliverable, Redo
from waybill.producer.sending import Sender
from waybill.producer.tail import Tail
from waybill.producer.wal import WriteAheadLog
from waybill.settings import WalSettings


@dataclass(slots=True)
class Parts:
    """What a producer is made of."""

    directory_lock: DirectoryLock
    gate: threading.Lock
    """The append lock: appends and first hand-overs happen under it, in one order."""
    closing: threading.Event
    log: WriteAheadLog
    deliveries: Deliveries
    sender: Sender
    redo: Redo
    marks: Marks
    keeper: Keeper
    client: Any
    tail: Tail
    recovered: Recovery
    low_lsn: int
    """Of the checkpoint that was found."""

    def recover(self) -> None:
        """Settle what the log holds; then a first checkpoint."""
        recoverer = Recoverer(self.log, self.deliveries, self.tail, self.sender, self.redo)
        recoverer.recover(self.low_lsn, self.recovered)
        self.keeper.try_checkpoint()
        self.keeper.ready = True

    def close(self) -> int:
        """End the threads, write a last checkpoint, close all; return how much stays in doubt."""
        self.closing.set()
        self.keeper.join()
        with self.gate:
            left = self.deliveries.in_doubt(self.log.next_lsn)
        if self.keeper.ready:
            self.keeper.try_checkpoint()
        self.keeper.stop(StopError("this producer is closed"), instead=True)
        self.sender.drop()
        self.log.close(self.keeper.floor_lsn)
        self.directory_lock.release()
        return left


def open_parts(
    settings: WalSettings,
    kafka: Mapping[str, object],
    folder: str,
    on_undeliverable: OnUndeliverable | None,
    marks: bool,  # noqa: FBT001 - of one caller
) -> Parts:
    """Lock the directory, read checkpoint and log, make the client; nothing is sent yet.

    Raises:
        ProducerBusyError: another live process has the directory.
        InputError: a setting cannot be used.
    """
    config = producer_config(kafka, settings)
    directory = settings.dir / folder
    directory.mkdir(parents=True, exist_ok=True)
    lock = DirectoryLock(directory)
    try:
        file = CheckpointFile(directory)
        found, damaged = file.load()
        log = WriteAheadLog(
            directory,
            settings,
            wal_id=found.wal_id,
            next_lsn=found.low_lsn,
            next_segment=found.next_segment,
        )
        start = found
        if found.wal_id != log.wal_id:  # none was written yet, or it was damaged
            start = Checkpoint(wal_id=log.wal_id, low_lsn=log.first_lsn)
        recovered = survey(log, start)
        recovered.quarantined += damaged
        used = marks or start.marked or bool(recovered.marks)
        known = Marks(used, start.confirmed_lsn, start.synced_lsn)
        return _assemble(
            lock, settings, kafka, config, log, file, start, known, recovered, on_undeliverable
        )
    except BaseException:
        lock.release()
        raise


def _assemble(  # noqa: PLR0913, PLR0917 - every part once
    lock: DirectoryLock,
    settings: WalSettings,
    kafka: Mapping[str, object],
    config: dict[str, object],
    log: WriteAheadLog,
    file: CheckpointFile,
    start: Checkpoint,
    marks: Marks,
    recovered: Recovery,
    on_undeliverable: OnUndeliverable | None,
) -> Parts:
    from confluent_kafka import Producer

    gate, closing = threading.Lock(), threading.Event()
    deliveries = Deliveries({topic: dict(at) for topic, at in start.offsets.items()})
    client = Producer(config)
    sender = Sender(client, log, deliveries, gate, closing)
    redo = Redo(
        log,
        deliveries,
        Tail(kafka, log.wal_id, lambda: False),
        send=sender.again,
        send_alone=sender.alone,
        on_undeliverable=on_undeliverable,
        interval_s=settings.retry_interval_ms / 1000,
    )
    keeper = Keeper(settings, log, deliveries, marks, file, gate=gate, closing=closing)
    tail = Tail(kafka, log.wal_id, lambda: True)
    return Parts(
        directory_lock=lock,
        gate=gate,
        closing=closing,
        log=log,
        deliveries=deliveries,
        sender=sender,
        redo=redo,
        marks=marks,
        keeper=keeper,
        client=client,
        tail=tail,
        recovered=recovered,
        low_lsn=start.low_lsn,
    )
