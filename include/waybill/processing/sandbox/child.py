"""The process that runs user code: confined, then one request after the other until it is ended."""

from __future__ import annotations

import gc
import io
import mmap
import os
import socket
import sys
import tempfile
from array import array
from collections.abc import Callable, Iterator, Sequence
from ctypes import c_double, c_int64
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import msgspec

from waybill import __version__
from waybill.errors import ParkError
from waybill.events import Event, decode, unpack_events
from waybill.processing.clock import Clock
from waybill.processing.failures import Fault
from waybill.processing.payload_columns import payloads_of
from waybill.processing.payload_structs import PayloadReader, StructPayloads
from waybill.processing.sandbox.confinement import OFFLINE_ERRNO, Confinement, Limits
from waybill.processing.sandbox.frames import (
    LENGTH,
    pack,
    pack_outcomes,
    pack_payloads,
    pack_reply,
)
from waybill.processing.transformation import (
    Again,
    Code,
    Outcome,
    Retries,
    load_code,
    run,
)

if TYPE_CHECKING:
    from waybill.processing.event_tables import EventBatch

SHARED_BYTES = 16
"""The marker (int64), and the seconds spent on trying again (double)."""
LOADING = 1 << 40
"""As a marker: code is being loaded."""
PRINTED_CHARS = 4096
"""Of what user code prints while a request is worked on; the rest is dropped."""
_MOST_READERS = 1000
"""Of payloads, one for each event name."""
_YOUNG_OBJECTS = 50_000
"""Before the collector looks for cycles among them: payloads have none."""
OutcomeT = TypeVar("OutcomeT", bound="Outcome")
_OFFLINE = f"[Errno {OFFLINE_ERRNO}]"


class Order(msgspec.Struct, frozen=True):
    """How a child is made."""

    folder: str
    readable: tuple[str, ...]
    limits: Limits
    network: bool
    owner: str
    timeout_s: float


class TableOrder(msgspec.Struct, frozen=True):
    """As ``event_tables.TableOrder``, which needs Arrow; and how the events come."""

    name: str
    """Of the events."""
    types: dict[str, str]
    facts_bytes: int
    """Where events come by column: the size of ``packed_facts``; behind them are payloads."""
    payloads_bytes: tuple[int, ...] = ()
    """Of these: the size of each JSON array, of ``MOST_ROWS`` payloads, the last of fewer."""
    deletes: Sequence[int] = ()
    """Indices of the events that delete their row, where events come by column."""


class Load(msgspec.Struct, frozen=True, tag="load"):
    """Load code. The answer is empty, or says what is wrong with it."""

    key: str
    name: str
    code: str
    shared: dict[str, str] = {}
    """Texts of the shared modules that it imports, by path."""


class Run(msgspec.Struct, frozen=True, tag="run"):
    """Run loaded code over the messages that follow; ``attempts``: 0: none is tried again."""

    key: str
    count: int
    lengths: bytes
    """Of the messages, in bytes, as an array of unsigned 32-bit numbers. Empty: what follows is
    `Heads.packed`, or, for tables, as `TableOrder` says. The answer is None where a payload cannot
    be read."""
    attempts: int
    backoff_s: float
    budget_s: float
    tables: TableOrder | None = None
    """How tables are made of the events, for code that takes tables."""


def main(channel: int, shared: int, order: Order, server: int) -> NoReturn:
    """Confine this process and serve, until its server ends. Never returns."""
    status = 1
    try:
        child = _Child(channel, shared, order)
        if os.getppid() == server:  # or it ended before this process was bound to end with it
            child.serve()
        status = 0
    finally:
        os._exit(status)


class _Child:
    def __init__(self, channel: int, shared: int, order: Order) -> None:
        memory = mmap.mmap(shared, SHARED_BYTES)
        os.close(shared)
        self._spent = c_double.from_buffer(memory, 8)
        self._clock = Clock(timeout_s=order.timeout_s, marker=c_int64.from_buffer(memory))
        self._network = order.network
        self._codes: dict[str, Code] = {}
        self._readers: dict[tuple[tuple[str, str], ...], PayloadReader] = {}
        self._printed = _Printed()
        _leave_the_platform(order.folder, self._printed)
        confinement = Confinement(
            order.folder, order.readable, order.limits, order.network, order.owner
        )
        missing = confinement.apply()
        self._channel = socket.socket(fileno=channel)
        self._requests = self._channel.makefile("rb", buffering=0)
        self._decode = msgspec.msgpack.Decoder(Load | Run).decode
        self._send(pack([__version__, *missing]))

    def serve(self) -> None:
        self._clock.arm()
        while True:
            head = self._receive(2 * LENGTH.size)
            if head is None:
                return
            request = self._receive(LENGTH.unpack_from(head)[0])
            body = self._receive(LENGTH.unpack_from(head, LENGTH.size)[0])
            if request is None or body is None:
                return
            asked = self._decode(request)
            answer = self._load(asked) if isinstance(asked, Load) else self._run(asked, body)
            self._send(answer)

    def _load(self, asked: Load) -> bytes:
        self._clock.begin()
        marker = self._clock.marker
        marker.value = LOADING
        try:
            self._codes[asked.key] = load_code(asked.code, asked.name, asked.shared)
        except ParkError as error:
            return pack(error.message.encode("utf-8", "backslashreplace").decode())
        finally:
            marker.value = -1
        return pack("")

    def _run(self, asked: Run, body: bytearray) -> bytes:
        retries = Retries(
            asked.attempts,
            backoff_s=asked.backoff_s,
            budget_s=asked.budget_s,
            spent=self._spent,
        )
        try:
            if asked.tables is not None:
                return self._run_tables(asked, asked.tables, body, retries)
            return self._run_events(asked, body, retries)
        except _UnreadableError:
            return pack(None)

    def _run_events(self, asked: Run, body: bytearray, retries: Retries) -> bytes:
        fresh: Callable[[int], Event]
        try:
            if asked.lengths:
                values = _split(body, asked.lengths)
                events = [decode(value) for value in values]
                fresh = partial(_fresh, values)
            else:
                events = unpack_events(body)
                fresh = partial(_fresh_of, body)
        except (ParkError, ValueError, RecursionError) as error:
            raise _UnreadableError from error
        again = Again(retries, fresh) if asked.attempts else None
        transform = self._codes[asked.key].transform
        if transform is None:
            outcomes: list[Outcome] = [_OTHER_FORM] * len(events)
        else:
            outcomes = list(run(transform, events, self._clock, again))
        payloads = payloads_of(events, outcomes)
        printed = self._printed.take()
        if payloads is not None and (reply := pack_payloads(payloads, printed)) is not None:
            return reply
        if not self._network:
            outcomes = [_offline(outcome) for outcome in outcomes]
        return pack_reply(*pack_outcomes(events, outcomes), printed)

    def _run_tables(
        self, asked: Run, order: TableOrder, body: bytearray, retries: Retries
    ) -> bytes:
        from waybill.processing.batch_form import BatchRun, is_intact
        from waybill.processing.event_tables import TableOrder as Tables
        from waybill.processing.sandbox.table_frames import pack_table
        from waybill.processing.table_results import TableResult

        batches = self._batches(asked, order, body)
        function = self._codes[asked.key].transform_batch
        if function is None:
            faults = dict.fromkeys(range(sum(len(one.payloads) for one in batches)), _OTHER_FORM)
            return pack_table(TableResult(asked.count, [], [], faults), self._printed.take())
        result = BatchRun(
            function,
            batches,
            Tables(order.types),
            self._clock,
            retries if asked.attempts else None,
        ).result()
        if not is_intact():
            raise RuntimeError("the code broke what tables need; a new process finds its row")
        if not self._network:
            result.faults = {index: _offline(fault) for index, fault in result.faults.items()}
        return pack_table(result, self._printed.take())

    def _batches(self, asked: Run, order: TableOrder, body: bytearray) -> Iterator[EventBatch]:
        """Yield the events of a request, read when their turn comes: in the processor's cache.

        Raises:
            _UnreadableError: the payloads of the next cannot be read.
        """
        from waybill.processing.event_tables import EventBatch

        try:
            if asked.lengths:
                events = [decode(value) for value in _split(body, asked.lengths)]
                yield from EventBatch.of_events(events)
            else:
                facts = memoryview(body)[: order.facts_bytes]
                payloads = self._payloads(order, body)
                yield from EventBatch.of_facts(order.name, facts, payloads, order.deletes)
        except (ParkError, ValueError, RecursionError) as error:
            raise _UnreadableError from error

    def _payloads(
        self, order: TableOrder, body: bytearray
    ) -> Iterator[Sequence[Any] | StructPayloads]:
        reader, content, at = self._reader(order.types), memoryview(body), order.facts_bytes
        for size in order.payloads_bytes:
            yield reader.read(content[at : at + size])
            at += size

    def _reader(self, types: dict[str, str]) -> PayloadReader:
        key = tuple(types.items())
        reader = self._readers.get(key)
        if reader is None:
            if len(self._readers) >= _MOST_READERS:
                self._readers.clear()
            reader = self._readers[key] = PayloadReader(types)
        return reader

    def _receive(self, size: int) -> bytearray | None:
        """Return so many bytes; None: there is nobody any more."""
        content = bytearray(size)
        rest = memoryview(content)
        while rest:
            got = self._requests.readinto(rest)
            if not got:
                return None
            rest = rest[got:]
        return content

    def _send(self, content: bytes) -> None:
        self._channel.sendall(LENGTH.pack(len(content)) + content)


def _fresh(values: Sequence[bytes], index: int) -> Event:
    return decode(values[index])


def _fresh_of(body: bytearray, index: int) -> Event:
    return unpack_events(body)[index]


def _split(body: bytearray, lengths: bytes) -> list[bytes]:
    values, start = list[bytes](), 0
    for length in array("I", lengths):
        values.append(bytes(body[start : start + length]))
        start += length
    return values


class _UnreadableError(Exception):
    """A payload cannot be read here."""


_OTHER_FORM = Fault("code_invalid", "the code has the other form than its text says")


def _offline(outcome: OutcomeT) -> OutcomeT | Fault:
    """Say what to do where code met the closed network."""
    if isinstance(outcome, Fault) and _OFFLINE in outcome.message:
        words = f"{outcome.message}; declare `network: true` in pipeline.yaml if it needs one"
        return Fault("network_closed", words, outcome.where, outcome.stack_hash)
    return outcome


def _leave_the_platform(folder: str, printed: io.TextIOBase) -> None:
    """Have nothing of the platform's about: environment, streams, folders."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(HOME=folder, TMPDIR=folder, LANG="C.UTF-8")
    tempfile.tempdir = folder
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    sys.stdout = sys.stderr = printed
    sys.argv[:] = [""]
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])


class _Printed(io.TextIOBase):
    """Where user code prints: the first characters of each request are kept."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._chars = 0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._chars < PRINTED_CHARS:
            self._parts.append(text[: PRINTED_CHARS - self._chars])
            self._chars += len(text)
        return len(text)

    def take(self) -> str:
        """Return what was printed since."""
        text = "".join(self._parts)
        self._parts.clear()
        self._chars = 0
        return text.encode("utf-8", "backslashreplace").decode()


def request(asked: Load | Run, body: Sequence[bytes] = ()) -> bytes:
    """Return a request as it is sent; its body in parts."""
    head: Any = msgspec.msgpack.encode(asked)
    lengths = LENGTH.pack(len(head)) + LENGTH.pack(sum(map(len, body)))
    return b"".join((lengths, head, *body))
