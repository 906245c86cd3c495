"""The producer that callers open: see ``waybill.producer`` for the guarantees."""

from __future__ import annotations

import logging
import struct
import threading
import time
from collections.abc import Iterable
from typing import TypeAlias

from waybill.errors import InputError, RetryError, StopError
from waybill.producer.batch import Message, as_bytes, checked_batch
from waybill.producer.callbacks import OnDelivery
from waybill.producer.client import HEADER, pack_stamp
from waybill.producer.model import Undelivered
from waybill.producer.opening import POLL_S, OpenProducer
from waybill.producer.wal import (
    DATA,
    MARK,
    HeaderList,
    HeadersIn,
    WalFullError,
    encode_headers,
    frame_bytes,
)

_TOPIC_MOST_BYTES = 0xFFFF
_LATENCY_MASK = 63
_SAY_EVERY = 600
"""Of POLL_S each: half a minute."""
_LOG = logging.getLogger(__name__)
_now_ns = time.time_ns
_clock_ns = time.perf_counter_ns


_Fields: TypeAlias = tuple[
    int, str, bytes | None, bytes | None, HeaderList | None, int, int
]  # lsn, topic, key, value, headers, partition, timestamp in ms


class LosslessProducer(OpenProducer):
    """A Kafka producer that loses nothing when its process dies. Safe for several threads.

    Opening takes the directory ``settings.dir / name`` over from whoever died, and settles what is
    in doubt there before it returns (``recovered`` says what): at once when nothing is, else it
    waits for Kafka. After a fork the child's copy opens a log of its own with its first use.

    Args:
        settings: where the log lies, and its limits.
        kafka: settings of librdkafka; ``bootstrap.servers`` at least. ``acks`` and
            ``enable.idempotence`` are ours.
        name: of this log; one live producer a name.
        on_undeliverable: takes a record that Kafka will never take. Called from the producer's own
            thread (while opening: from the caller's), one at a time; may ``produce``, must not
            ``flush`` or ``close``. The record is settled when it returns, and may come again after
            a kill; a RetryError has it come again later. Without it such records are parked beside
            the log: see ``parked``, ``replay_parked``, ``discard_parked``.
        was_taken: goes with ``on_undeliverable`` where that keeps records in a store of its own:
            called while opening with (WAL id, lsn), returns the lsns from there on that the store
            has, so that a record is not sent after it was taken, whenever the process died.
        claim: called while opening, before anything is sent, with the log that was found (a
            ``FoundLog``); True: it is this caller's to send. False: somebody else has taken its
            place; it is moved to ``quarantine/``, unsent, and a new log is begun and claimed.
        marks: this log will have marks: keep every record until a confirmed mark covers it, from
            the first record on. Else that begins with the first mark. It does not work in a fork.

    Raises:
        ProducerBusyError: another live process has it open.
        InputError: a setting or the name cannot be used.
        StopError: recovery met a record that cannot be delivered, and ``on_undeliverable`` failed.
    """

    # Producing

    def produce(  # noqa: C901, PLR0912, PLR0913, PLR0915, PLR0917 - fast: a call more is 5 % of it
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        headers: HeadersIn = None,
        on_delivery: OnDelivery | None = None,
        partition: int = -1,
        timestamp: int = 0,
        *,
        callback: OnDelivery | None = None,
    ) -> int:
        """Append a message to the log, hand it to librdkafka, return its lsn.

        Args:
            topic: where to; one that is not there is found undeliverable after 30 s.
            value, key: bytes, text (as UTF-8) or None; null and empty are kept apart.
            headers: name and value pairs; ``waybill-wal`` (WAL id, segment, lsn) is added.
            on_delivery: called once with (None, message) when Kafka has the message, or with
                (KafkaError, message) when it was given up; see ``poll``. Not after a kill. One
                callable for many messages is cheapest. ``callback`` is its other name.
            partition: -1: the partitioner's choice.
            timestamp: ms since epoch; 0 or less: now.

        Returns when the log has the message (``durability`` says what that survives). Waits while
        librdkafka's queue is full, and while the log is full unless ``when_full`` is ``raise``.

        Raises:
            WalFullError: the log is full; nothing was appended.
            StopError: ``on_undeliverable`` failed for an earlier message, the disk fails, or the
                producer is closed.
            InputError, TypeError: not a message; nothing was appended.

        Cost: a few microseconds for 1 KB; ``make bench-producer`` measures it.
        """
        if not (value is None or type(value) is bytes):
            value = as_bytes("value", value)
        if not (key is None or type(key) is bytes):
            key = as_bytes("key", key)
        pairs: HeaderList | None = None
        header_bytes = b""
        if headers is not None:
            pairs, header_bytes = encode_headers(headers)
        timestamp_ms = timestamp if timestamp > 0 else _now_ns() // 1_000_000
        if callback is not None:
            on_delivery = callback
        if on_delivery is not None and not callable(on_delivery):
            raise TypeError(f"on_delivery is a callable, not {type(on_delivery).__name__}")
        tries = 0
        while True:
            if self._maintenance.trouble is not None:
                self._check()
            topic_bytes = self._topics.get(topic) or self._learn(topic)
            sender, writer = self._sender, self._writer
            with self._gate:  # an interrupt between acquire() and try would leave it held
                lsn = writer.next_lsn
                try:
                    began_ns = 0 if lsn & _LATENCY_MASK else _clock_ns()
                    if not writer.write(
                        DATA, timestamp_ms, topic_bytes, key, value, header_bytes, partition
                    ):
                        self._new_segment(topic_bytes, key, value, header_bytes)
                        writer.write(
                            DATA, timestamp_ms, topic_bytes, key, value, header_bytes, partition
                        )
                    if self._each:
                        self._sync_one()
                    if began_ns:
                        self._latency.add(_clock_ns() - began_ns)
                    if lsn < sender.step_lsn and on_delivery is None and not sender.held:
                        stamped: HeaderList = [(HEADER, pack_stamp(sender.prefix, lsn))]
                        if pairs:
                            stamped = pairs + stamped
                        report = sender.report
                        # by position (callback twice: it has two names): by name costs 0.2 µs more
                        sender.produce(
                            topic, value, key, partition, report, report, timestamp_ms, stamped
                        )
                    else:
                        sender.first(
                            lsn, topic, key, value, pairs, partition, timestamp_ms, on_delivery
                        )
                    return lsn  # noqa: TRY300 - the fast path
                except BaseException as error:  # noqa: BLE001 - raised again there, but for three
                    fields = (lsn, topic, key, value, pairs, partition, timestamp_ms)
                    full = self._not_simple(error, fields)
                    if full is None:
                        return lsn
            self._make_room(full, tries)
            tries += 1

    def _not_simple(self, error: BaseException, fields: _Fields) -> WalFullError | None:
        """Return the error when the log is full; None when the record goes its way all the same."""
        sender, (lsn, topic, key, *_) = self._sender, fields
        if isinstance(error, WalFullError):
            return error
        if isinstance(error, struct.error):
            raise InputError(f"too large for the log, or no partition: {error}") from error
        try:
            if isinstance(error, BufferError):
                sender.wait_and_produce(*fields)
            elif not sender.took_refusal(lsn, topic, key, error):
                raise error  # noqa: TRY301 - whatever it was
        except BaseException as broken:
            self._broken_off(lsn, broken)
            raise
        return None

    def produce_batch(
        self,
        topic: str,
        messages: Iterable[Message],
        on_delivery: OnDelivery | None = None,
        partition: int = -1,
    ) -> list[int]:
        """Append many messages to the log in their order, hand them over, return their lsns.

        Args:
            messages: mappings with ``value``, ``key``, ``headers``, ``on_delivery``, ``partition``,
                ``timestamp``, each optional, as ``produce`` takes them. All are checked before the
                first is appended.
            on_delivery, partition: for the messages that name none.

        With durability ``each`` the disk is asked once, for all of them.

        Raises:
            InputError, TypeError: one is not a message (says which); nothing was appended.
            WalFullError: as ``produce``; those before it were appended, its ``appended`` says how
                many.
            StopError: as ``produce``.
        """
        rows = checked_batch(messages, on_delivery, partition)
        lsns: list[int] = []
        self._batching.add(threading.get_ident())
        try:
            for row in rows:
                lsns.append(self.produce(topic, *row))
        except RetryError as error:
            full = error if isinstance(error, WalFullError) else WalFullError(str(error))
            full.appended = len(lsns)
            raise full from error.__cause__
        finally:
            self._batching.discard(threading.get_ident())
            if self._each and lsns:
                self._sync_all()
        return lsns

    def _sync_all(self) -> None:
        try:
            self._log.sync(self._gate)
        except StopError as error:
            self._maintenance.stop(error)
            raise

    def _sync_one(self) -> None:
        if threading.get_ident() not in self._batching:
            self._log.sync()

    def _learn(self, topic: str) -> bytes:
        if not isinstance(topic, str):
            raise TypeError(f"a topic's name is text, not {type(topic).__name__}")
        name = as_bytes("topic", topic)
        if not 0 < len(name) <= _TOPIC_MOST_BYTES or b"\0" in name:
            raise InputError(f"{topic[:40]!r} cannot be a topic's name")
        self._topics[topic] = name
        return name

    def _new_segment(
        self, topic: bytes, key: bytes | None, value: bytes | None, headers: bytes
    ) -> None:
        self._refuse_when_stopped()  # closing takes the segment away from those that come late
        self._log.roll(frame_bytes(topic, key, value, headers))
        self._sender.new_segment()

    def _broken_off(self, lsn: int, error: BaseException) -> None:
        """Stop when a record is in the log, but not known to be handed over (an interrupt)."""
        if self._log.next_lsn != lsn:
            if not self.parts.deliveries.epochs:  # one must count it, or the watermark passes it
                self._sender.place(lsn, self._log.segment_id)
            self._maintenance.stop(
                StopError(
                    f"record {lsn} is in the log, its way to Kafka broke off ({error!r}); "
                    "close the producer and open it again: recovery sends it"
                )
            )

    def _make_room(self, full: WalFullError, tries: int) -> None:
        """Give free what is settled; then wait for more, or raise ``full``."""
        if tries and (self._settings.when_full == "raise" or self._maintenance.is_this_thread):
            raise full
        if tries % _SAY_EVERY == _SAY_EVERY - 1:
            _LOG.warning("produce waits: %s", full)
        self._sender.poller.poll(POLL_S if tries else 0.0)
        state = self._maintenance.try_checkpoint()
        if state is None:
            return
        if tries and state.floor_lsn < state.low_lsn == self._log.next_lsn:
            raise full  # all is settled: only confirm() can make room, perhaps by this very thread
        with self._gate:
            unused = state.floor_lsn == self._log.next_lsn
            if unused:
                self._log.retire()
        if unused:
            self._maintenance.try_checkpoint()

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
            with self._gate:
                self._refuse_when_stopped()
                lsn = self._log.next_lsn
                try:
                    self._log.append(MARK, int(time.time() * 1000), b"", None, payload, b"")
                    self._sender.place(lsn, self._log.segment_id)
                    self.parts.deliveries.pass_over()
                    self.parts.marks.used = True
                    self.parts.marks.written += 1
                    break
                except WalFullError as error:
                    full = error
                except BaseException as error:
                    self._broken_off(lsn, error)
                    raise
            self._make_room(full, tries)
            tries += 1
        self._sync_all()
        return lsn

    def confirm(self, lsn: int) -> None:
        """Say that the caller's own store holds the mark at ``lsn``: what it covers may go.

        A lower lsn than before changes nothing. Stored with the next checkpoint: after a kill,
        confirmed marks may be in ``recovered.marks`` again.

        Raises:
            InputError: this log never had that lsn.
        """
        self._check()
        if not isinstance(lsn, int):
            raise TypeError(f"an lsn is an integer, not {type(lsn).__name__}")
        if lsn >= self._log.next_lsn:
            raise InputError(f"lsn {lsn} is not of this log ({self.wal_id}), which ends before it")
        self.parts.marks.used = True
        self.parts.marks.confirmed_lsn = max(self.parts.marks.confirmed_lsn, lsn)

    # What Kafka refused, where the caller takes nothing

    @property
    def parked(self) -> list[Undelivered]:
        """The undeliverable messages in the parking place beside the log, in order."""
        return self.parts.parking.messages(self.wal_id)

    def replay_parked(self, lsns: Iterable[int] | None = None) -> int:
        """Produce parked messages again (all, or those named), in order; return how many.

        Each leaves the parking place once the log has it, as a new message with a new lsn: killed
        in between, it is in both. One that is refused again is parked again.

        Raises:
            InputError: one of them is not parked.
            WalFullError, StopError: as ``produce``.
        """
        parking = self.parts.parking
        wanted = parking.chosen(lsns)
        sent: list[int] = []
        try:
            for lsn in wanted:
                record, _ = parking.get(lsn)
                self.produce(
                    record.topic,
                    record.value,
                    record.key,
                    record.headers,
                    None,
                    record.partition,
                    record.timestamp_ms,
                )
                sent.append(lsn)
        finally:
            self._sync_all()  # first there, then gone from here
            parking.settle(sent)
            parking.sync()
        return len(wanted)

    def discard_parked(self, lsns: Iterable[int] | None = None) -> int:
        """Delete parked messages for ever (all, or those named); return how many.

        Raises:
            InputError: one of them is not parked.
        """
        parking = self.parts.parking
        wanted = parking.chosen(lsns)
        parking.settle(wanted)
        parking.sync()
        self._maintenance.try_checkpoint()  # gives their room free
        return len(wanted)
