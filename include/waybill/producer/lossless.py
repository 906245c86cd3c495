"""The producer that callers open: see ``waybill.producer`` for the guarantees."""

from __future__ import annotations

import logging
import os
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

from zlib_ng.zlib_ng import crc32

from waybill.errors import InputError, RetryError, StopError
from waybill.producer import forks
from waybill.producer.batches import (
    Message,
    Row,
    Run,
    as_bytes,
    as_column,
    checked_batch,
    checked_callable,
    integer,
    uniform_run,
)
from waybill.producer.client import HEADER, pack_stamp
from waybill.producer.components import (
    REAL,
    Claim,
    Components,
    Environment,
    Options,
    open_components,
)
from waybill.producer.delivery import OnDelivery
from waybill.producer.forks import ProducerBusyError
from waybill.producer.model import Histogram, ProducerStats, Recovery, Undelivered
from waybill.producer.retry_queue import WasTaken
from waybill.producer.sender import HandOver
from waybill.producer.wal import (
    DATA,
    MARK,
    HeaderList,
    HeadersIn,
    WalFullError,
    encode_headers,
    frame_bytes,
)
from waybill.producer.wal.frame import (
    PREFIX_BYTES,
    TERMINATOR,
    TERMINATOR_BYTES,
    join,
    pack_prefix_into,
    run_head,
)
from waybill.settings import WalSettings

if TYPE_CHECKING:
    from typing import Self

_POLL_S = 0.05
_NAME_MOST_BYTES = 200
_TOPIC_MOST_BYTES = 0xFFFF
_LATENCY_MASK = 63
_WARN_EVERY = 600
"""Of _POLL_S each: half a minute."""
_LOG = logging.getLogger(__name__)
_now_ns = time.time_ns
_clock_ns = time.perf_counter_ns


class LosslessProducer:
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

    _environment: Environment = REAL

    def __init__(  # noqa: PLR0913 - what the caller may choose
        self,
        settings: WalSettings,
        kafka: Mapping[str, object],
        *,
        name: str,
        on_undeliverable: Callable[[Undelivered], None] | None = None,
        was_taken: WasTaken | None = None,
        marks: bool = False,
        claim: Claim | None = None,
    ) -> None:
        self._settings = settings
        self._options = Options(
            settings,
            dict(kafka),
            self._environment,
            on_undeliverable,
            was_taken,
            claim,
            marks,
            self._while_waiting,
        )
        self._name = name
        self._folder = _folder_name(name)
        self._closed = False
        self._forked = self._opening = False
        self._own_lock = threading.RLock()
        self._shut_lock = threading.RLock()
        self._shut_components = False
        self._adopted: list[Components] = []
        """Logs of dead forks of which records are still tried again."""
        self._components: Components | None = None
        self._open(self._folder)
        forks.watch(self)
        try:
            self._take_over_forks()
        except BaseException:
            self._shut()
            raise

    def _while_waiting(self, mark: int) -> None:
        """Let a wait for Kafka, or for room in the log, go on; a subclass ends it by raising.

        Called some times a second while opening or ``produce`` waits, which end with what is
        raised; by the caller's thread where one thread produces. What was appended is in the log:
        the next opening sends it.

        Args:
            mark: a number that is another one once something has moved.
        """

    # Opening

    def _open(self, folder: str) -> None:
        components = open_components(self._options, folder)
        topics: dict[str, bytes] = {}
        try:
            components.recover()
            components.maintenance.start(
                components.sender, components.retry_queue, components.callbacks, lambda: set(topics)
            )
        except BaseException:
            components.close()
            raise
        self._topics = topics
        self._latency = Histogram()
        self._gate = components.gate
        self._log = components.log
        self._writer = components.log.writer
        self._sender = components.sender
        self._each = self._settings.durability == "each"
        self._batching: set[int] = set()
        """Threads that append a batch, which is synced at its end."""
        self._components = components
        self._maintenance = (
            components.maintenance
        )  # last: until then the old one's trouble keeps all others out

    def _take_over_forks(self) -> None:
        """Settle what forks of this producer left that are dead."""
        for folder in forks.left_folders(self._settings.dir, self._folder):
            try:
                components = open_components(self._options, folder)
            except ProducerBusyError:
                continue  # it lives
            try:
                components.recover()
                self.recovered.add(components.recovered)
                if components.retry_queue.retrying:
                    components.maintenance.start(
                        components.sender, components.retry_queue, components.callbacks, set
                    )
                    self._adopted.append(components)
            finally:
                if components not in self._adopted:
                    components.close()

    def after_fork_in_child(self) -> object:
        """Let go of what belongs to the parent; called by the fork itself."""
        kept = [*self._adopted, *([] if self._components is None else [self._components])]
        self._components, self._adopted = None, []
        self._forked = True
        self._own_lock, self._shut_lock = threading.RLock(), threading.RLock()
        for components in kept:
            components.callbacks.abandon()
            components.maintenance.abandoned = True
            components.maintenance.stop(StopError("opened by another process"), instead=True)
        return kept

    def _open_own(self) -> None:
        """After a fork: open the first log of a fork that nobody has."""
        if self._options.marks or self._closed:
            raise StopError(
                f"this producer was opened by process {os.getppid()} and does not work after a "
                "fork; open one in each process"
            )
        with self._own_lock:
            if not self._forked:
                return
            if self._opening:
                raise StopError("this producer is just being opened: on_undeliverable waits for it")
            self._opening = True
            try:
                self._open_first_free()
            finally:
                self._opening = False

    def _open_first_free(self) -> None:
        for folder in forks.own_folders(self._folder):
            try:
                self._open(folder)
            except ProducerBusyError:
                continue
            self._forked = False
            return

    @property
    def components(self) -> Components:
        """What this producer is made of; not for callers."""
        if self._components is None:
            self._check()
        components = self._components
        if components is None:
            raise StopError(f"the producer {self._name!r} is not open")
        return components

    @property
    def name(self) -> str:
        """The name it was opened under; a fork's copy has the same."""
        return self._name

    @property
    def closed(self) -> bool:
        """Tell whether it was closed."""
        return self._closed

    @property
    def inherited(self) -> bool:
        """Tell whether it is the parent's, in a fork that has not used it yet."""
        return self._forked

    @property
    def recovered(self) -> Recovery:
        """What opening found, and did about it."""
        return self.components.recovered

    @property
    def wal_id(self) -> str:
        """Id of this log, 32 hex digits: lsns count within it. A new directory is a new log."""
        return self.components.log.wal_id.hex()

    @property
    def capacity_bytes(self) -> int:
        """Most that the log may take on disk."""
        return self._settings.disk_threshold_bytes

    @property
    def offsets(self) -> Mapping[str, Mapping[int, int]]:
        """{topic: {partition: offset}} before which nothing stands that is appended from now on.

        Partitions of which nothing is known are not named. Asked by the thread that appends.
        """
        return {topic: dict(at) for topic, at in list(self.components.deliveries.offsets.items())}

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
                    if lsn < sender.step_lsn and not sender.held:
                        stamped: HeaderList = [(HEADER, pack_stamp(sender.prefix, lsn))]
                        if pairs:
                            stamped = pairs + stamped
                        if on_delivery is None:
                            report = sender.report
                        elif (reporter := sender.reporter) and reporter.on_delivery is on_delivery:
                            report = sender.reporter_of[lsn] = reporter
                        else:
                            report = sender.reporter_for(on_delivery)
                            sender.reporter_of[lsn] = report
                        # by position (callback twice: it has two names): by name costs 0.2 µs more
                        sender.produce(
                            topic, value, key, partition, report, report, timestamp_ms, stamped
                        )
                    else:
                        sender.send_first(
                            HandOver(lsn, topic, key, value, pairs, partition, timestamp_ms),
                            on_delivery,
                        )
                    return lsn  # noqa: TRY300 - the fast path
                except BaseException as error:  # noqa: BLE001 - raised again there, but for three
                    record = HandOver(lsn, topic, key, value, pairs, partition, timestamp_ms)
                    full = self._handle_produce_error(error, record)
                    if full is None:
                        return lsn
            self._make_room(full, tries)
            tries += 1

    def _handle_produce_error(self, error: BaseException, record: HandOver) -> WalFullError | None:
        """Return the error when the log is full; None when the record goes its way all the same."""
        sender = self._sender
        if isinstance(error, WalFullError):
            return error
        if isinstance(error, struct.error):
            raise InputError(f"too large for the log, or no partition: {error}") from error
        try:
            if isinstance(error, BufferError):
                sender.wait_and_produce(record)
                return None
            if sender.took_refusal(record.lsn, record.topic, record.key, error):
                return None
        except BaseException as broken:
            self._stop_unless_sent(record.lsn, broken)
            raise
        self._stop_unless_sent(record.lsn, error)
        raise error

    def produce_values(  # noqa: PLR0913 - the arguments of ``produce``
        self,
        topic: str,
        values: Sequence[bytes | str | None],
        keys: Sequence[bytes | str | None] | None = None,
        *,
        headers: HeadersIn = None,
        on_delivery: OnDelivery | None = None,
        partition: int = -1,
        timestamp: int = 0,
    ) -> list[int]:
        """Append many messages of one topic in their order, hand them over, return their lsns.

        Args:
            values: bytes, text (as UTF-8) or None, one a message.
            keys: the same, as many; None: no message has a key.
            headers, on_delivery, partition, timestamp: as ``produce`` takes them, for all of them.
                Without a timestamp up to 256 messages have the same one.

        All are checked before the first is appended. With durability ``each`` the disk is asked
        once, for all of them.

        Raises:
            InputError, TypeError: one is not a message (says which); nothing was appended.
            WalFullError: as ``produce``; those before it were appended, its ``appended`` says how
                many.
            StopError: as ``produce``.

        Cost: less than ``produce`` for each; ``make bench-producer`` measures it.
        """
        column = as_column("value", values)
        run = Run(
            topic,
            column,
            [None] * len(column) if keys is None else as_column("key", keys),
            headers=encode_headers(headers),
            on_delivery=checked_callable(on_delivery),
            partition=integer("partition", partition, 31),
            timestamp=integer("timestamp", timestamp, 63),
        )
        return self._appended(partial(self._append_run, run))

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

        Cost: that of ``produce_values`` and 0.1 µs a message, where the messages are dicts of
        values and keys; that of ``produce`` and a check of its arguments, where they have more.
        """
        given = list(messages)
        run = uniform_run(topic, given, on_delivery, partition)
        if run is not None:
            return self._appended(partial(self._append_run, run))
        rows = checked_batch(given, on_delivery, partition)
        return self._appended(partial(self._append_rows, topic, rows))

    def _appended(self, append: Callable[[list[int]], None]) -> list[int]:
        """Return the lsns that ``append`` adds to the list it is given; all are synced at once."""
        lsns: list[int] = []
        thread = threading.get_ident()
        self._batching.add(thread)
        try:
            append(lsns)
        except RetryError as error:
            full = error if isinstance(error, WalFullError) else WalFullError(str(error))
            full.appended = len(lsns)
            raise full from error.__cause__
        finally:
            self._batching.discard(thread)
            if self._each and lsns:
                self._sync_all()
        return lsns

    def _append_rows(self, topic: str, rows: Iterable[Row], lsns: list[int]) -> None:
        for row in rows:
            lsns.append(self.produce(topic, *row))

    def _append_run(self, run: Run, lsns: list[int]) -> None:
        """Append a run in slices; between two the gate is free, and one record goes the long way.

        That one begins an epoch or a segment, polls, or waits behind its key.
        """
        while len(lsns) < len(run):
            if self._maintenance.trouble is not None:
                self._check()
            topic_bytes = self._topics.get(run.topic) or self._learn(run.topic)
            with self._gate:
                count = self._sender.step_lsn - self._writer.next_lsn
                if count > 0:
                    self._append_slice(run, topic_bytes, count, lsns)
            if len(lsns) < len(run):
                lsns.append(self.produce(run.topic, *run.row(len(lsns))))

    def _append_slice(  # noqa: PLR0915 - as ``produce``
        self, run: Run, topic_bytes: bytes, count: int, lsns: list[int]
    ) -> None:
        """Append and hand over at most ``count`` records, under the gate; add their lsns.

        The lines of ``FrameWriter.write`` and ``produce``, without a call for each record. Their
        order is the guarantee: the frame's body, its prefix, ``end`` and ``next_lsn``, and only
        then the hand-over. ``end`` and ``next_lsn`` are stored for each record, with no call in
        between: an interrupt that came before a write-back at the end would give lsns twice.
        """
        sender, writer = self._sender, self._writer
        topic, partition, (pairs, header_bytes) = run.topic, run.partition, run.headers
        timestamp_ms = run.timestamp if run.timestamp > 0 else _now_ns() // 1_000_000
        reporter = None if run.on_delivery is None else sender.reporter_for(run.on_delivery)
        report, reporter_of = reporter or sender.report, sender.reporter_of
        pack_head, first, last = run_head(writer.tag, topic_bytes, partition, timestamp_ms)
        header_size, tail = len(header_bytes), header_bytes + TERMINATOR
        stamped: HeaderList = [*pairs, (HEADER, None)]
        data, at, size = writer.data, writer.end, writer.size - TERMINATOR_BYTES
        produce, prefix, held = sender.produce, sender.prefix, sender.held
        begin = lsn = writer.next_lsn
        try:
            for value, key in run.pairs(len(lsns), count):
                try:
                    began_ns = 0 if lsn & _LATENCY_MASK else _clock_ns()
                    key_size = -1 if key is None else len(key)
                    value_size = -1 if value is None else len(value)
                    head = pack_head(first, key_size, value_size, header_size, lsn, last)
                    body = join((head, key or b"", value or b"", tail))
                    length = len(body) - TERMINATOR_BYTES
                    end = at + PREFIX_BYTES + length
                    if end > size or held:
                        break
                    data[at + PREFIX_BYTES : end + TERMINATOR_BYTES] = body
                    pack_prefix_into(data, at, crc32(body, length), length)
                    writer.end = at = end
                    writer.next_lsn = lsn + 1
                    if began_ns:
                        self._latency.add(_clock_ns() - began_ns)
                    if reporter is not None:
                        reporter_of[lsn] = reporter
                    stamped[-1] = (HEADER, pack_stamp(prefix, lsn))
                    produce(topic, value, key, partition, report, report, timestamp_ms, stamped)
                except BaseException as error:
                    record = HandOver(lsn, topic, key, value, pairs, partition, timestamp_ms)
                    if self._handle_produce_error(error, record) is not None:
                        raise
                lsn = writer.next_lsn
        finally:
            lsns.extend(range(begin, lsn))

    def sync(self) -> None:
        """Return when the disk has every record appended before the call.

        Other threads may append meanwhile: one call serves all whose ``produce`` had returned.

        Raises:
            StopError: the disk refused, or the producer is closed.
        """
        self._check()
        self._sync_all()

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

    def _stop_unless_sent(self, lsn: int, error: BaseException) -> None:
        """Stop when a record is in the log, but not known to be handed over (an interrupt)."""
        if self._log.next_lsn != lsn:
            if (
                not self.components.deliveries.epochs
            ):  # one must count it, or the watermark passes it
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
        if tries % _WARN_EVERY == _WARN_EVERY - 1:
            _LOG.warning("produce waits: %s", full)
        if tries and not self._maintenance.is_this_thread:
            self._while_waiting(self._log.next_lsn)
        self._sender.poller.poll(_POLL_S if tries else 0.0)
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
                    self._log.append(MARK, _now_ns() // 1_000_000, b"", None, payload, b"")
                    self._sender.place(lsn, self._log.segment_id)
                    self.components.deliveries.pass_over()
                    self.components.marks.used = True
                    self.components.marks.written += 1
                    break
                except WalFullError as error:
                    full = error
                except BaseException as error:
                    self._stop_unless_sent(lsn, error)
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
        self.components.marks.used = True
        self.components.marks.confirmed_lsn = max(self.components.marks.confirmed_lsn, lsn)

    # What Kafka refused, where the caller takes nothing

    @property
    def parked(self) -> list[Undelivered]:
        """The undeliverable messages in the parking place beside the log, in order."""
        return self.components.parking.messages(self.wal_id)

    def replay_parked(self, lsns: Iterable[int] | None = None) -> int:
        """Produce parked messages again (all, or those named), in order; return how many.

        Each leaves the parking place once the log has it, as a new message with a new lsn: killed
        in between, it is in both. One that is refused again is parked again.

        Raises:
            InputError: one of them is not parked.
            WalFullError, StopError: as ``produce``.
        """
        parking = self.components.parking
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
        parking = self.components.parking
        wanted = parking.chosen(lsns)
        parking.settle(wanted)
        parking.sync()
        self._maintenance.try_checkpoint()  # gives their room free
        return len(wanted)

    # State

    def poll(self, timeout: float = 0.0) -> int:
        """Call the ``on_delivery`` callables that are due; return how many were called.

        Nobody has to call this: delivery goes on without it, and callables that nobody asks for
        are called from the producer's own thread within a tenth of a second. They run outside
        librdkafka, one at a time: they may produce, poll and flush; they must not ``close``.

        Args:
            timeout: seconds to wait for the first report.

        Raises:
            Exception: what a callable raised, now or in the producer's own thread.
        """
        self._check()
        limit = time.monotonic() + timeout
        self._sender.poller.poll(min(timeout, _POLL_S))
        while not (called := self.components.callbacks.serve()) and time.monotonic() < limit:
            self._sender.poller.poll(min(max(0.0, limit - time.monotonic()), _POLL_S))
        return called

    def flush(self, timeout: float | None = None) -> int:
        """Wait until every record is settled and reported; return how many records are in doubt.

        Inside a callable that the producer's own thread calls it does not wait: it would wait for
        what only that thread does.

        Args:
            timeout: most seconds to wait; None or negative: for ever.

        Raises:
            StopError: ``on_undeliverable`` failed for a record, or the disk fails.
            Exception: what an ``on_delivery`` callable raised.
        """
        limit = None if timeout is None or timeout < 0 else time.monotonic() + timeout
        while True:
            self._check()
            in_doubt = self.components.in_doubt()
            self.components.callbacks.serve()
            if self._maintenance.is_this_thread:
                return in_doubt
            wait_s = _POLL_S if limit is None else limit - time.monotonic()
            if not in_doubt or wait_s <= 0:
                return in_doubt
            self._sender.poller.poll(min(_POLL_S, wait_s))

    def settled(self, lsn: int) -> bool:
        """Tell whether all up to an lsn is settled, and nothing waits to be tried again.

        As after a ``flush``, but records behind the lsn may be in doubt. Does not wait; what was
        settled in the last tenth of a second may not be known yet.
        """
        self._check()
        self._sender.poller.poll()
        return self.components.settled(lsn)

    @property
    def is_confirmed(self) -> bool:
        """Whether the log holds no record behind the last confirmed mark, and none is in doubt."""
        log, marks = self._log, self.components.marks
        last = log.next_lsn - 1
        return not len(self) and (log.first_lsn > last or marks.confirmed_lsn >= last)

    def __len__(self) -> int:
        """Return how many records are in doubt."""
        return self.components.in_doubt()

    def __bool__(self) -> bool:
        """Return True: a producer with nothing in doubt is one too."""
        return True

    @property
    def stats(self) -> ProducerStats:
        """Counts and sizes of now."""
        return self.components.stats(self._latency)

    def _refuse_when_stopped(self) -> None:
        """Under the append lock: append nothing more to a log that was closed meanwhile."""
        if self._maintenance.stopped:
            raise StopError(str(self._maintenance.trouble)) from self._maintenance.trouble

    def _check(self) -> None:
        if self._forked:
            self._open_own()
        trouble = self._maintenance.trouble
        if trouble is not None:
            raise StopError(str(trouble)) from trouble

    # The end

    def close(self, timeout: float | None = 30.0) -> int:
        """Wait for what is in doubt, at most ``timeout`` s; close; return how much stays in doubt.

        Without a limit when ``timeout`` is None or negative.

        They are in the log: the next opening settles them. Calling it again does nothing. Whether
        the last records can be delivered or not, it raises no StopError for them: ask ``flush``
        before.

        Raises:
            StopError: called from ``on_delivery`` or ``on_undeliverable``.
            Exception: what an ``on_delivery`` callable raised; it is closed all the same.
        """
        components = self._components
        if self._closed or components is None:
            self._closed = True
            return 0
        if self._maintenance.is_this_thread:
            raise StopError("close() was called from a callable of the producer's own thread")
        wait_s = float("inf") if timeout is None or timeout < 0 else timeout
        limit = time.monotonic() + wait_s
        while (
            components.in_doubt() and self._maintenance.trouble is None and time.monotonic() < limit
        ):
            self._sender.poller.poll(min(_POLL_S, wait_s))
            components.callbacks.serve_aside()
        in_doubt = self._shut()
        components.callbacks.serve_aside()
        components.callbacks.serve()
        return in_doubt

    def _shut(self) -> int:
        with self._shut_lock:  # two that close at once: the second waits, and finds nothing to do
            self._closed = True
            forks.unwatch(self)
            components = None if self._shut_components else self._components
            self._shut_components = True
            adopted, self._adopted = self._adopted, []
            in_doubt = sum(fork.close() for fork in adopted)
            return in_doubt + (0 if components is None else components.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _folder_name(name: str) -> str:
    folder = quote(name, safe="").replace(".", "%2E")
    if not folder or len(folder) > _NAME_MOST_BYTES:
        raise InputError(
            f"{name[:40]!r} cannot name a log: 1 to {_NAME_MOST_BYTES} bytes when quoted"
        )
    return folder
