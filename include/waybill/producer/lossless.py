"""The producer that callers open: see ``waybill.producer`` for the guarantees."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import quote

from waybill.errors import InputError, StopError
from waybill.producer.model import ProducerStats, Recovery, Undelivered
from waybill.producer.parts import open_parts
from waybill.producer.wal import DATA, MARK, WalFullError
from waybill.producer.wal.record import HeaderList, HeadersIn, encode_headers
from waybill.settings import WalSettings

if TYPE_CHECKING:
    from typing import Self

_BYTES = (bytes, type(None))
_POLL_S = 0.05
_NAME_MOST_BYTES = 200
_TOPIC_MOST_BYTES = 0xFFFF


class LosslessProducer:
    """A Kafka producer that loses nothing when its process dies. Safe for several threads.

    Opening takes the directory ``settings.dir / name`` over from whoever died, and settles what is
    in doubt there before it returns (``recovered`` says what): at once when nothing is, else it
    waits for Kafka.

    Args:
        settings: where the log lies, and its limits.
        kafka: settings of librdkafka; ``bootstrap.servers`` at least. ``acks`` and
            ``enable.idempotence`` are ours.
        name: of this log; one live producer a name.
        on_undeliverable: takes a record that Kafka will never take. Called from the producer's own
            thread (while opening: from the caller's), one at a time; may ``produce``, must not
            ``flush`` or ``close``. The record is settled when it returns, and may come again after
            a kill. Without it such a record stops the producer.
        marks: this log will have marks: keep every record until a confirmed mark covers it, from
            the first record on. Else that begins with the first mark.

    Raises:
        ProducerBusyError: another live process has it open.
        InputError: a setting or the name cannot be used.
        StopError: recovery met a record that cannot be delivered, and nobody takes it.
    """

    def __init__(
        self,
        settings: WalSettings,
        kafka: Mapping[str, object],
        *,
        name: str,
        on_undeliverable: Callable[[Undelivered], None] | None = None,
        marks: bool = False,
    ) -> None:
        self._settings = settings
        self._topics: dict[str, bytes] = {}
        self._appended = 0
        self._closed = False
        self._parts = parts = open_parts(
            settings, kafka, _folder_name(name), on_undeliverable, marks
        )
        self._lock = parts.gate
        self._log = parts.log
        self._append = parts.log.append
        self._sender = parts.sender
        self._redo = parts.redo
        self._deliveries = parts.deliveries
        self._keeper = parts.keeper
        self._each = settings.durability == "each"
        _OPEN.add(self)
        try:
            parts.recover()
            parts.keeper.start(self._sender, self._redo, lambda: set(self._topics))
        except BaseException:
            self._shut()
            raise

    @property
    def recovered(self) -> Recovery:
        """What opening found, and did about it."""
        return self._parts.recovered

    @property
    def wal_id(self) -> str:
        """Id of this log, 32 hex digits: lsns count within it. A new directory is a new log."""
        return self._log.wal_id.hex()

    # Producing

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: HeadersIn = None,
        timestamp_ms: int = 0,
    ) -> int:
        """Append a message to the log, hand it to librdkafka, return its lsn.

        Args:
            topic: where to; one that is not there is found undeliverable after 30 s.
            value, key: bytes or None; null and empty are kept apart.
            headers: name and value pairs; ``waybill-wal`` (WAL id, segment, lsn) is added.
            timestamp_ms: since epoch; 0 or less: now.

        Returns when the log has the message (``durability`` says what that survives). Waits while
        librdkafka's queue is full, and while the log is full unless ``when_full`` is ``raise``.

        Raises:
            WalFullError: the log is full; nothing was appended.
            StopError: an earlier message cannot be delivered, the disk fails, or after a fork.
            InputError, TypeError: not a message; nothing was appended.

        Cost: a few microseconds for 1 KB.
        """
        topic_bytes, pairs, header_bytes = self._checked(topic, value, key, headers)
        if timestamp_ms <= 0:
            timestamp_ms = int(time.time() * 1000)
        log, keeper = self._log, self._keeper
        tries = 0
        while True:
            if keeper.trouble is not None:
                self._complain()
            with self._lock:
                lsn = log.next_lsn
                try:
                    self._append(DATA, timestamp_ms, topic_bytes, key, value, header_bytes)
                    if self._each:
                        log.sync()
                    self._sender.first(self._redo, lsn, topic, key, value, pairs, timestamp_ms)
                    self._appended += 1
                    return lsn  # noqa: TRY300 - the fast path
                except WalFullError as error:
                    full = error
                except BaseException as error:
                    self._broken_off(lsn, error)
                    raise
            self._make_room(full, tries)
            tries += 1

    def _checked(
        self, topic: str, value: bytes | None, key: bytes | None, headers: HeadersIn
    ) -> tuple[bytes, HeaderList, bytes]:
        if not (isinstance(value, _BYTES) and isinstance(key, _BYTES)):
            raise TypeError(f"value and key are bytes or None, not {type(value)}, {type(key)}")
        topic_bytes = self._topics.get(topic) or self._learn(topic)
        if not headers:
            return topic_bytes, [], b""
        return topic_bytes, *encode_headers(headers)

    def _learn(self, topic: str) -> bytes:
        name = topic.encode()
        if not 0 < len(name) <= _TOPIC_MOST_BYTES or b"\0" in name:
            raise InputError(f"{topic[:40]!r} cannot be a topic's name")
        self._topics[topic] = name
        return name

    def _broken_off(self, lsn: int, error: BaseException) -> None:
        """Stop when a record is in the log, but not known to be handed over (an interrupt)."""
        if self._log.next_lsn != lsn:
            self._keeper.stop(
                StopError(
                    f"record {lsn} is in the log, its way to Kafka broke off ({error!r}); "
                    "close the producer and open it again: recovery sends it"
                )
            )

    def _make_room(self, full: WalFullError, tries: int) -> None:
        """Give free what is settled; then wait for more, or raise ``full``."""
        if tries and self._settings.when_full == "raise":
            raise full
        self._sender.poller.poll(_POLL_S if tries else 0.0)
        state = self._keeper.try_checkpoint()
        if state is None:
            return
        if tries and state.floor_lsn < state.low_lsn == self._log.next_lsn:
            raise full  # all is settled: only confirm() can make room, perhaps by this very thread
        with self._lock:
            unused = state.floor_lsn == self._log.next_lsn
            if unused:
                self._log.retire()
        if unused:
            self._keeper.try_checkpoint()

    # Marks

    def mark(self, payload: bytes) -> int:
        """Append a mark (not sent to Kafka), have the disk keep all up to it, return its lsn.

        The records since the mark before it and this mark are one unit: after a death
        ``recovered.marks`` has the mark, or ``recovered.unmarked`` has the records. From the first
        mark on, records stay in the log until a ``confirm`` of a mark behind them.

        Raises:
            WalFullError, StopError: as ``produce``. After a StopError of the disk the mark may be
                there.
        """
        if not isinstance(payload, bytes):
            raise TypeError(f"a mark's payload is bytes, not {type(payload)}")
        tries = 0
        while True:
            self._check()
            with self._lock:
                lsn = self._log.next_lsn
                try:
                    self._log.append(MARK, int(time.time() * 1000), b"", None, payload, b"")
                    self._sender.place(lsn, self._log.segment_id)
                    self._deliveries.pass_over()
                    self._parts.marks.used = True
                    break
                except WalFullError as error:
                    full = error
                except BaseException as error:
                    self._broken_off(lsn, error)
                    raise
            self._make_room(full, tries)
            tries += 1
        try:
            self._log.sync()
        except StopError as error:
            self._keeper.stop(error)
            raise
        return lsn

    def confirm(self, lsn: int) -> None:
        """Say that the caller's own store holds the mark at ``lsn``: what it covers may go.

        A lower lsn than before changes nothing. Stored with the next checkpoint: after a kill,
        confirmed marks may be in ``recovered.marks`` again.

        Raises:
            InputError: this log never had that lsn.
        """
        self._check()
        if lsn >= self._log.next_lsn:
            raise InputError(f"lsn {lsn} is not of this log ({self.wal_id}), which ends before it")
        self._parts.marks.used = True
        self._parts.marks.confirmed_lsn = max(self._parts.marks.confirmed_lsn, lsn)

    # State

    def flush(self, timeout_s: float) -> int:
        """Wait until all is settled, at most ``timeout_s``; return how many records are in doubt.

        Raises:
            StopError: a record cannot be delivered and nobody takes it, or the disk fails.
        """
        limit = time.monotonic() + timeout_s
        while True:
            self._check()
            left = self._doubt()
            wait_s = limit - time.monotonic()
            if not left or wait_s <= 0:
                return left
            self._sender.poller.poll(min(_POLL_S, wait_s))

    @property
    def stats(self) -> ProducerStats:
        """Counts and sizes now."""
        with self._lock:
            in_doubt = self._deliveries.in_doubt(self._log.next_lsn)
            acknowledged = sum(epoch.acknowledged for epoch in self._deliveries.epochs)
            delivered = self._deliveries.delivered + acknowledged + self._redo.delivered
        return ProducerStats(
            appended=self._appended,
            delivered=delivered,
            in_doubt=in_doubt,
            retried=self._redo.retried,
            undeliverable=self._redo.undeliverable,
            recovered=self._parts.recovered.replayed,
            wal_bytes=self._log.size_bytes,
            checkpoint_age_s=self._keeper.age_s,
        )

    def _doubt(self) -> int:
        with self._lock:
            return self._deliveries.in_doubt(self._log.next_lsn)

    def _check(self) -> None:
        if self._keeper.trouble is not None:
            self._complain()

    def _complain(self) -> None:
        trouble = self._keeper.trouble
        if trouble is not None:
            raise StopError(str(trouble)) from trouble

    # The end

    def close(self, timeout_s: float = 30.0) -> int:
        """Wait for what is in doubt, at most ``timeout_s``; close; return how much stays in doubt.

        They are in the log: the next opening settles them. Calling it again does nothing. Whether
        the last records can be delivered or not, it raises no StopError for them: ask ``flush``
        before.
        """
        if self._closed:
            return 0
        limit = time.monotonic() + timeout_s
        while self._doubt() and self._keeper.trouble is None and time.monotonic() < limit:
            self._sender.poller.poll(min(_POLL_S, timeout_s))
        return self._shut()

    def _shut(self) -> int:
        self._closed = True
        left = self._parts.close()
        _OPEN.discard(self)
        return left

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _abandon(self) -> None:
        """In a forked child: the log and the client belong to the parent."""
        self._closed = True
        self._keeper.stop(
            StopError(
                f"this producer was opened by process {os.getppid()} and does not work after a "
                "fork; open one in each process"
            ),
            instead=True,
        )
        self._parts.directory_lock.release()
        _KEPT.append(self)


def _folder_name(name: str) -> str:
    folder = quote(name, safe="").replace(".", "%2E")
    if not folder or len(folder) > _NAME_MOST_BYTES:
        raise InputError(
            f"{name[:40]!r} cannot name a log: 1 to {_NAME_MOST_BYTES} bytes when quoted"
        )
    return folder


_OPEN: weakref.WeakSet[LosslessProducer] = weakref.WeakSet()
_KEPT: list[LosslessProducer] = []
"""Of a parent, in its child: destroying a client whose threads are gone would hang."""


def _abandon_all() -> None:
    for producer in list(_OPEN):
        producer._abandon()  # noqa: SLF001 - this module's own class


os.register_at_fork(after_in_child=_abandon_all)
