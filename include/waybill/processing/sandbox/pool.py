"""Processes of user code, one an owner, as a task uses them: batches in, outcomes out.

Who is at fault when a process dies is known by the marker that it shares. The events before are run
again, then the one at fault alone, in a new process; if that dies too, the event is the culprit.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import math
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from ctypes import c_double, c_int64
from functools import cache
from mmap import mmap
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import psutil

from waybill import __version__
from waybill.errors import ParkError, RetryError, StopError
from waybill.events import Event, Heads
from waybill.processing.batch_form import row_of, table_markers
from waybill.processing.code_runner import Results, outcomes_of, read_payloads
from waybill.processing.event_tables import packed_facts
from waybill.processing.failures import Fault, TooLargeError, cut
from waybill.processing.field_types import MOST_ROWS
from waybill.processing.payload_columns import KeptPayloads, PayloadColumns
from waybill.processing.plan import Plan
from waybill.processing.results import TooMuchMadeError
from waybill.processing.sandbox.child import (
    PRINTED_CHARS,
    SHARED_BYTES,
    Load,
    Order,
    Run,
    TableOrder,
    request,
)
from waybill.processing.sandbox.confinement import Limits
from waybill.processing.sandbox.frames import (
    LARGEST_REPLY_BYTES,
    LENGTH,
    is_too_large,
    unpack,
    unpack_outcomes,
    unpack_payloads,
)
from waybill.processing.sandbox.reply_memory import LARGEST_MEMORY_BYTES
from waybill.processing.sandbox.server import End, Start, new_folder, remove_folder, start_command
from waybill.processing.sandbox.table_frames import TABLE, unpack_table
from waybill.processing.table_results import results_of
from waybill.processing.transformation import Outcome, Retries, TooSlowError
from waybill.settings import SandboxSettings, Settings

_LOG = logging.getLogger(__name__)
_PRINTED = logging.getLogger("waybill.user_code")
_FEW_PROCESSES, _MOST_PROCESSES = 64, 256
"""That wait for work at once, 4 MB each: always as many as the first, as the second while there is
memory. A worker meets the teams of all queries, in turn; the process that waits longest is ended
for another, which costs as much as some 1,000 events."""
_FREE_SHARE = 0.25
"""Of the machine's memory; with less, few processes wait."""
_REQUEST_BYTES = 16 * 1024**2
"""Of the messages that one request holds, unless one alone is larger."""
_GRACE = 3
"""Times the time-out of an event: then a process that does not answer is ended."""
_TICK_S = 0.25
_LONGEST_TICK_S = 1.0
"""What is beyond is no time of the code's: this process, or the machine, stood still."""
_FILE_BYTES = 4096
_LONGEST_PATH = 2048
"""Of a folder that code makes; below one with a longer path nothing could be counted."""
_MOST_THREADS = 512
_SLACK_MB = 32
"""Memory that `Limits.memory_mb` does not count: the stack, constants of libraries."""
_NO_RESULTS_BYTES = 1 << 40
"""More than all events of a request could give: what came is no length, but the code's doing."""
_CPU_S = 3600
_ARROW_MB = 128
"""That Arrow takes by itself; beside what user code may have."""
_START_S = 60.0
_MiB = 1024**2
_TICKS = os.sysconf("SC_CLK_TCK")


_ENDED = "the code ended the Python interpreter ({})"
_KILLED = _ENDED.format(f"signal {int(signal.SIGKILL)}")
_SERVER_ENDED = _ENDED.format("its server ended")


class EndedError(Exception):
    """A process of user code ended, or was ended, before it answered.

    Args:
        marker: what it worked on: the index of an event, ``LOADING``, or -1: neither.
        message: how it ended.
        timed_out: it was ended because nothing came for too long.
        too_large: it was ended because its results are more than may be held here.
    """

    def __init__(
        self, marker: int, message: str, *, timed_out: bool = False, too_large: bool = False
    ) -> None:
        super().__init__(message)
        self.marker = marker
        self.timed_out = timed_out
        self.too_large = too_large

    @property
    def server_ended(self) -> bool:
        """Return whether it ended with its server."""
        return str(self) == _SERVER_ENDED

    @property
    def killed(self) -> bool:
        """Return whether somebody may have killed it, as the OOM killer does."""
        return str(self) == _KILLED or self.server_ended

    @property
    def fault(self) -> Fault:
        """Return what the event at fault parks with."""
        code = "transformation_timeout" if self.timed_out else "interpreter_crashed"
        return Fault("result_invalid" if self.too_large else code, str(self))


_LoadKey: TypeAlias = tuple[str, bool, str]
"""Of code: its owner, whether the network is open, its own key."""


class _LoadFailure:
    """That code could not be loaded."""

    def __init__(self) -> None:
        self.message = ""
        self.tries = 0
        self.counts = False
        """There were enough tries: it is the code's fault."""
        self.took_s = 0.0
        self.until = 0.0
        """When it is forgotten, by ``time.monotonic``."""

    def add(self, message: str, *, most: int) -> None:
        """Add a try, of so many at most."""
        self.message = message
        self.tries += 1
        self.counts = self.tries >= most


class Sandbox:
    """Runs user code in processes that hold nothing of the platform's.

    Args:
        settings: limits, and who shares a process.
        timeout_s: longest time for one event, in seconds; its process is ended after three times as
            long where the code does not give up.

    Threads take turns. A fork of this process has none of its processes, and starts its own.

    Cost: a server and a process an owner, 30 MB each that they mostly share; 0.2 s for the first,
    5 ms for each other. An event: about 4 µs, and 60 µs a batch. Code that takes tables has a
    server and processes of its own: 130 MB, 1 s.
    """

    def __init__(self, settings: SandboxSettings, *, timeout_s: float) -> None:
        self._settings = settings
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._warned = False
        self._pid = os.getpid()
        self._servers: dict[bool, _Server] = {}
        """By whether Arrow is loaded; each is started for its first process."""
        self._processes: OrderedDict[tuple[str, bool, bool], _Process] = OrderedDict()
        self._failures: dict[_LoadKey, _LoadFailure] = {}
        self._cautious: set[str] = set()
        """Code whose answers were more than may be held here: it gets few events at once."""
        self.answered_bytes = 0
        """Of the last answer."""
        self._deadline = math.inf

    def _forget(self) -> None:
        """Have no processes; in a fork, leave those of the parent to it."""
        self._pid = os.getpid()
        for process in self._processes.values():
            process.leave()
        for server in self._servers.values():
            server.leave()
        self._servers.clear()
        self._processes.clear()
        self._failures.clear()
        self._cautious.clear()

    def run(
        self, plan: Plan, events: Sequence[Event], values: Sequence[bytes], retries: Retries | None
    ) -> Results:
        """Return what user code makes of events, in order; see ``CodeRunner``.

        Raises:
            RetryError: no process can be started.
            TooSlowError: the deadline of ``retries`` is over.
            TooMuchMadeError: the answers have more than its ``most_bytes``.
            StopError: the settings want user code to be confined more than this machine can.
        """
        with self._lock:
            if os.getpid() != self._pid:
                self._forget()
            retries = retries or Retries(0)
            self._deadline = retries.deadline
            return _Batch(self, plan, events, values, retries).results()

    def missing(self) -> list[str]:
        """Return in words what of the confinement this machine does not allow."""
        with self._lock:
            return self._process("", network=False).missing

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            mine = os.getpid() == self._pid
            servers = list(self._servers.values()) if mine else []
            self._forget()
            for server in servers:
                server.close()

    def process_of(self, plan: Plan) -> _Process:
        """Return the process for a pipeline's code."""
        network = plan.pipeline.network
        process = self._process(self._owner(plan), network=network, arrow=plan.takes_tables)
        process.deadline = self._deadline
        return process

    def _owner(self, plan: Plan) -> str:
        pipeline = plan.pipeline
        shared = self._settings.shared_by == "team"
        return f"team {pipeline.team}" if shared else f"pipeline {pipeline.id}"

    def _process(self, owner: str, *, network: bool, arrow: bool = False) -> _Process:
        key = owner, network, arrow
        found = self._processes.get(key)
        if found is not None and found.pid < 0:  # it was too slow
            del self._processes[key]
            found = None
        if found is None:
            if self._has_enough():
                _, oldest = self._processes.popitem(last=False)
                oldest.end()
            found = self._start(owner, network=network, arrow=arrow)
            self._processes[key] = found
        self._processes.move_to_end(key)
        return found

    def _has_enough(self) -> bool:
        count = len(self._processes)
        if count < _FEW_PROCESSES:
            return False
        memory = psutil.virtual_memory()
        return count >= _MOST_PROCESSES or memory.available < _FREE_SHARE * memory.total

    def _start(self, owner: str, *, network: bool, arrow: bool) -> _Process:
        settings = self._settings
        for attempt in (1, 2):
            server = self._servers.get(arrow)
            if server is None:
                server = self._servers[arrow] = _Server(arrow=arrow)
            try:
                order = Order(
                    server.folder(),
                    tuple(str(path) for path in settings.readable),
                    Limits(settings.memory_mb + server.own_mb, settings.file_mb, _CPU_S),
                    network,
                    owner,
                    self._timeout_s,
                )
                process = _Process(server, order)
                break
            except OSError as error:
                servers = list(self._servers.values())
                self._forget()
                for server in servers:
                    server.close()
                if attempt == 2:  # noqa: PLR2004
                    raise RetryError(f"no process for user code can be started: {error}") from error
        if process.missing and not self._warned:
            self._warned = True
            _LOG.warning("user code is not closed in: no %s", "; no ".join(process.missing))
        if settings.strict and process.missing:
            process.end()
            raise StopError(
                f"WAYBILL_SANDBOX__STRICT is set, and this machine lacks: "
                f"{'; '.join(process.missing)}"
            )
        return process

    def end(self, process: _Process) -> str:
        """End a process; return in words how it ended, if it had ended before."""
        for key, found in list(self._processes.items()):
            if found is process:
                del self._processes[key]
        return process.end()

    def retire(self, process: _Process) -> None:
        """End a process that has used half of what it may, before that hits an innocent event."""
        now = time.monotonic()
        if now - process.looked_at > _TICK_S:
            process.looked_at = now
            if process.is_worn():
                self.end(process)

    def most_events(self, plan: Plan) -> int:
        """Return how many events of a pipeline a request may hold."""
        return MOST_ROWS if plan.code_key in self._cautious else sys.maxsize

    def be_cautious(self, plan: Plan) -> None:
        """Have requests for a pipeline's code hold few events from now on."""
        if len(self._cautious) >= _MOST_CAUTIOUS:
            self._cautious.clear()
        self._cautious.add(plan.code_key)

    def load(self, plan: Plan) -> str:
        """Load a pipeline's code; return what is wrong with it, or nothing.

        What fails is loaded once more, in a new process: others may have broken the first. Then it
        is left for a minute, or longer where its failure took long.

        Raises:
            RetryError: the server of processes ended each time.
        """
        key = self._owner(plan), plan.pipeline.network, plan.code_key
        failure = self._failures.get(key)
        if failure is not None and time.monotonic() >= failure.until:
            failure = None
        if failure is not None and failure.counts:
            return failure.message
        if plan.code_key in self.process_of(plan).loaded:
            return ""
        failure = failure or _LoadFailure()
        began = time.monotonic()
        try:
            while not failure.counts:
                if self._is_loaded(plan, failure):
                    failure.tries = 0
                    return ""
        finally:
            failure.took_s += time.monotonic() - began
            self._remember(key, failure)
        return failure.message

    def _is_loaded(self, plan: Plan, failure: _LoadFailure) -> bool:
        """Load code; where that fails, end the process, and add to the failure."""
        pipeline, process = plan.pipeline, self.process_of(plan)
        code, shared = pipeline.transformation_code, pipeline.shared_code
        error = None
        try:
            message = _text(process.ask(Load(plan.code_key, pipeline.name, code, shared)))
        except EndedError as ended:
            message, error = f"loading the transformation of {pipeline.name!r}: {ended}", ended
        if not message:
            process.loaded.add(plan.code_key)
            return True
        self.end(process)
        if error is not None and error.killed:
            self._wait_for_memory(failure, error, message)
        else:
            failure.add(message, most=_MOST_LOADS)
        return False

    @staticmethod
    def _wait_for_memory(failure: _LoadFailure, error: EndedError, message: str) -> None:
        """Add that a process was killed to a failure, and wait: the OOM killer makes room."""
        failure.add(message, most=_MOST_KILLED_LOADS)
        if not failure.counts:
            time.sleep(_KILLED_WAIT_S * 2.0**failure.tries)
        elif error.server_ended:
            failure.tries, failure.counts = 0, False
            raise RetryError(message) from error

    def _remember(self, key: _LoadKey, failure: _LoadFailure) -> None:
        if not failure.tries:
            self._failures.pop(key, None)
            return
        failure.until = time.monotonic() + max(_REMEMBERED_S, _REMEMBERED_TIMES * failure.took_s)
        if len(self._failures) >= _MOST_FAILURES:
            self._failures.clear()
        self._failures[key] = failure

    def ask(self, process: _Process, asked: Run, body: Sequence[bytes]) -> tuple[Any, Any] | None:
        """Run loaded code; return what the process answers; None: a payload cannot be read."""
        try:
            content = process.ask(asked, body)
            self.answered_bytes = len(content)
            answer = unpack(content)
            if answer is None:
                return None
            kinds, bodies, printed = answer
        except (ValueError, TypeError) as error:
            raise EndedError(-1, f"the code broke its process: {error}") from error
        if printed and type(printed) is str:
            _PRINTED.info("%s printed: %r", process.owner, printed[:PRINTED_CHARS])
        return kinds, bodies


_MOST_LOADS, _MOST_KILLED_LOADS = 2, 5
"""Tries until a failure counts; the second where the process was killed."""
_KILLED_WAIT_S = 0.125
"""Doubled before each of these."""
_REMEMBERED_S, _REMEMBERED_TIMES = 60.0, 20
"""A failure is remembered for at least so long, and so many times as long as it took."""
_MOST_FAILURES = 1000
"""Codes that could not be loaded, remembered."""
_MOST_CAUTIOUS = 1000
"""Codes of which smaller requests are made, remembered."""


def shared_sandbox(settings: Settings) -> Sandbox:
    """Return this process's sandbox; ended with it."""
    return sandbox_with(settings.sandbox, settings.spark.event_timeout_s)


@cache
def sandbox_with(settings: SandboxSettings, timeout_s: float) -> Sandbox:
    """Return this process's sandbox with these limits; ended with it. See `Sandbox`."""
    sandbox = Sandbox(settings, timeout_s=timeout_s)
    atexit.register(sandbox.close)
    return sandbox


class _Batch:
    """Events of one pipeline on their way through its process."""

    def __init__(
        self,
        sandbox: Sandbox,
        plan: Plan,
        events: Sequence[Event],
        values: Sequence[bytes],
        retries: Retries,
    ) -> None:
        self._sandbox = sandbox
        self._plan = plan
        self._events = events
        self._values = values
        self._retries = retries
        self._found: list[Outcome] = []
        self._found_bytes = 0
        self._suspect = -1
        """Index of an event that a process died at, or that memory ran out at: it goes alone."""
        self._culprits: dict[int, Fault] = {}
        self._careful = False
        """A process died, and it is not known at which event."""
        self._most_rows = min(len(events), sandbox.most_events(plan))
        """Of a request: fewer once a process died at one, and more again after a culprit."""
        self._doubted = 0
        """The end of the last request that a process died at, if no culprit was found since."""
        self._by_message = False
        """A payload could not be read there: the others go as messages, once."""
        self._whole: PayloadColumns | KeptPayloads | None = None
        """Of all events, where one request was enough and none goes on as something else."""

    def results(self) -> Results:
        """Return what became of all events."""
        total = len(self._events)
        while self._whole is None and len(self._found) < total:
            at = len(self._found)
            if at in self._culprits:
                self._found.append(self._culprits[at])
            elif words := self._sandbox.load(self._plan):
                self._found += [Fault("code_invalid", words)] * (total - at)
            else:
                self._run_some(at, self._end_of_part(at, total))
        return self._found if self._whole is None else self._whole

    def _end_of_part(self, at: int, total: int) -> int:
        if at == self._suspect or self._careful:
            return at + 1
        stops = [index for index in (self._suspect, *self._culprits) if index > at]
        doubted = self._doubted - at
        most = self._most_rows if doubted <= 0 else max(1, doubted // 2)
        end = min(*stops, total, at + most)
        if sum(map(len, self._values[at:end])) <= _REQUEST_BYTES:
            return end
        size = 0
        for index in range(at, end):
            size += len(self._values[index])
            if size > _REQUEST_BYTES and index > at:
                return index
        return end

    def _run_some(self, at: int, end: int) -> None:
        process = self._sandbox.process_of(self._plan)
        if at == self._suspect and process.asked:  # others may have broken it
            self._sandbox.end(process)
            return  # what runs it loads the code first
        values = self._values[at:end]
        retries = self._retries
        events = self._events[at:end]
        by_column = isinstance(events, Heads) and not self._by_message
        tables, body = self._body(events, values, by_column=by_column)
        asked = Run(
            self._plan.code_key,
            len(events),
            b"" if by_column else array("I", map(len, values)).tobytes(),
            retries.attempts,
            retries.backoff_s,
            retries.budget_s - retries.spent_s,
            tables,
        )
        try:
            try:
                answer = self._sandbox.ask(process, asked, body)
            finally:
                retries.charge(process.spent.value)
            if answer is None and not self._by_message:
                faults = read_payloads(events, values)
                self._culprits |= {at + index: fault for index, fault in faults.items()}
                self._by_message = True
                return
            try:
                found = self._results(events, answer)
            except TooLargeError as error:
                raise EndedError(-1, str(error), too_large=True) from error
            except Exception as error:  # who runs user code may answer anything
                raise EndedError(-1, f"the code broke its process: {error!r}") from error
        except EndedError as error:
            self._sandbox.end(process)
            self._blame(error, at, end)
            return
        self._take(process, found, at)

    def _body(
        self, events: Sequence[Event], values: Sequence[bytes], *, by_column: bool
    ) -> tuple[TableOrder | None, Sequence[bytes]]:
        """Return how tables are made of events, if they are, and the events as they are sent."""
        plan, heads = self._plan, events if by_column and isinstance(events, Heads) else None
        if not plan.takes_tables:
            return None, values if heads is None else [heads.packed()]
        name, types = events[0].name, plan.types(events[0].name)
        if heads is None:
            return TableOrder(name, types, 0), values
        facts, payloads = packed_facts(heads), heads.payloads(MOST_ROWS)
        sizes = tuple(map(len, payloads))
        order = TableOrder(name, types, len(facts), sizes, heads.deletes)
        return order, [facts, *payloads]

    def _results(self, events: Sequence[Event], answer: Any) -> Results:
        """Read an answer: columns of payloads, or kinds and bodies of outcomes, or tables."""
        kinds, body = answer
        if self._plan.takes_tables:
            if kinds != TABLE:
                raise ValueError("tables are answered by tables")
            try:
                table = unpack_table(body, len(events))
            except ParkError as error:  # more rows than may be here: of fewer events there are less
                raise TooLargeError(error.message) from error
            return results_of(self._plan, events, table)
        if type(kinds) is list:
            return unpack_payloads(kinds, body, len(events))
        return unpack_outcomes(events, kinds, body)

    def _take(self, process: _Process, results: Results, at: int) -> None:
        self._found_bytes += self._sandbox.answered_bytes
        if self._found_bytes > self._retries.most_bytes:
            raise TooMuchMadeError(f"{self._found_bytes:,} bytes were answered for a group")
        size = results.count if isinstance(results, KeptPayloads) else len(results)
        if (
            isinstance(results, PayloadColumns | KeptPayloads)
            and size == len(self._events)
            and not _short_of_memory(results)
        ):
            self._whole = results
            self._sandbox.retire(process)
            return
        if not self._doubted:
            self._most_rows = min(2 * self._most_rows, self._sandbox.most_events(self._plan))
        found = outcomes_of(self._events[at : at + size], results)
        short = next((i for i, one in enumerate(found) if _is_out_of_memory(one)), None)
        if short is None or at + short == self._suspect:
            self._found += found
            self._sandbox.retire(process)
            return
        self._found += found[:short]  # others may have used it up: alone, in a new process
        self._suspect = at + short
        self._sandbox.end(process)

    def _blame(self, error: EndedError, at: int, end: int) -> None:
        """Decide who goes on alone after a process ended, or who is the culprit."""
        if error.too_large and end - at > MOST_ROWS:
            self._sandbox.be_cautious(self._plan)
        if error.too_large and end - at > 1:
            self._most_rows, self._doubted = (end - at) // 2, end
            return
        marker = row_of(error.marker) if self._plan.takes_tables else error.marker
        index = at + marker if 0 <= marker < end - at else -1
        if index < 0 and end - at == 1:
            index = at
        if index < 0 and self._plan.takes_tables and not error.timed_out:
            self._most_rows, self._doubted = (end - at) // 2, end
        elif index < 0:
            self._careful = True
        elif error.timed_out or error.too_large or (index == self._suspect and end - at == 1):
            self._culprits[index] = error.fault
            if self._plan.takes_tables or error.too_large:  # where one is, others are near
                self._most_rows, self._doubted = 1, 0
        else:
            self._suspect = index


def _markers_of(asked: Load | Run) -> range:
    """Return what a request's markers are, a step for each event, or table, that is done."""
    if isinstance(asked, Load):
        return range(0)
    if asked.tables is None:
        return range(asked.count)
    return table_markers(asked.count, asked.attempts)


def _short_of_memory(results: PayloadColumns | KeptPayloads) -> bool:
    return isinstance(results, KeptPayloads) and any(
        map(_is_out_of_memory, results.faults.values())
    )


def _is_out_of_memory(outcome: Outcome) -> bool:
    return type(outcome) is Fault and outcome.code == "memory_error"


def _text(content: bytes | bytearray) -> str:
    try:
        words = unpack(content)
    except ValueError:
        words = None
    return cut(words) if type(words) is str else "the code broke its process"


class _Server:
    """The warm process that the others are forked from.

    Args:
        arrow: with all that code that takes tables needs.
    """

    def __init__(self, *, arrow: bool) -> None:
        self.own_mb = _ARROW_MB if arrow else 0
        """Memory that its processes have beside what user code may have."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._folder = new_folder()
        kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                start_command(sys.path, number, str(self._folder), arrow=arrow),
                env=kept,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[number],
                start_new_session=True,
            )
        self._line = ours
        self._line.settimeout(_START_S)
        self._next = 0

    def folder(self) -> str:
        """Make a folder for a process."""
        self._next += 1
        folder = self._folder / str(self._next)
        folder.mkdir(mode=0o700)
        return str(folder)

    def start(self, order: Order, files: list[int]) -> int:
        """Start a process; return its pid."""
        message = msgspec.json.encode(Start(order))
        socket.send_fds(self._line, [message], files)
        return self._answer()

    def end(self, pid: int) -> int | None:
        """End a process; return its status, or None: the server has ended."""
        try:
            self._line.sendall(msgspec.json.encode(End(pid)))
            return self._answer()
        except OSError:
            self._line.close()  # a late answer would be taken for the next one's
            return None

    def leave(self) -> None:
        """Leave it to another process, or to its end."""
        self._line.close()

    def _answer(self) -> int:
        answer = self._line.recv(64)
        if not answer:
            raise OSError("the server of processes for user code has ended")
        return int(answer)

    def close(self) -> None:
        """End the server and all its processes."""
        self._line.close()
        try:
            self._process.wait(_START_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            remove_folder(str(self._folder))


def _started(server: _Server, order: Order, shared: int) -> tuple[int, socket.socket]:
    """Start a process; return its pid and the channel to it."""
    ours, theirs = socket.socketpair()
    try:
        return server.start(order, [theirs.fileno(), shared]), ours
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()


def _shared_memory() -> int:
    """Return a file in memory whose size nobody can change."""
    shared = os.memfd_create("waybill-marker", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(shared, SHARED_BYTES)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(shared, fcntl.F_ADD_SEALS, seals)
    return shared


class _Process:
    """One process of user code. It runs while it is asked, and is stopped all other time."""

    deadline = math.inf
    """When an answer has taken too long, by ``time.monotonic``."""

    def __init__(self, server: _Server, order: Order) -> None:
        self._server = server
        self._order = order
        self.loaded: set[str] = set()
        """Keys of the code that was loaded."""
        self.looked_at = time.monotonic()
        """When it was last seen how much it has used."""
        self.asked = 0
        """Batches that it was given."""
        self._markers = range(0)
        """Of the batch that it works on."""
        shared = _shared_memory()
        memory = mmap(shared, SHARED_BYTES)
        self._marker = c_int64.from_buffer(memory)
        self.spent = c_double.from_buffer(memory, 8)
        """Seconds that this request spent on trying again."""
        try:
            self.pid, self._channel = _started(server, order, shared)
        finally:
            os.close(shared)
        self._poll = select.poll()
        self._poll.register(self._channel, select.POLLIN)
        self._marker.value = -1
        self._handle = -1
        """Its pidfd: a signal by number could meet another process, once its server has died."""
        self.missing = [*self._greeting(), *self._watched()]

    def _greeting(self) -> list[str]:
        """Return in words what this machine does not allow of its confinement.

        Raises:
            OSError: it ended, or runs another release, which would read requests otherwise.
        """
        release: str
        missing: list[str]
        try:
            release, *missing = unpack(self._receive(_START_S)) or [""]
        except EndedError as error:
            raise OSError(str(error)) from error
        if release != __version__:
            self.end()
            raise OSError(
                f"it runs another release of Waybill than {__version__}, which runs here: what is "
                "installed was changed; start the application anew"
            )
        return missing

    def _watched(self) -> list[str]:
        """Stop it for the first time; return in words what this machine does not allow of that."""
        missing = []
        try:
            self._handle = os.pidfd_open(self.pid)
            signal.pidfd_send_signal(self._handle, signal.SIGSTOP)
        except ProcessLookupError:
            self.leave()
            raise
        except OSError:
            self._close_handle()
            missing.append("stop between its batches (pidfd, Linux 5.3 or newer)")
        try:
            Path(f"/proc/{self.pid}/fd/0").stat()
            Path(f"/proc/{self.pid}/maps").read_bytes()
        except PermissionError:
            missing.append("count of unlinked files (as root: CAP_SYS_PTRACE)")
        return missing

    def _send_signal(self, number: int) -> None:
        if self._handle >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    @property
    def owner(self) -> str:
        """Return whose it is, in words."""
        return self._order.owner

    def ask(self, asked: Load | Run, body: Sequence[bytes] = ()) -> bytearray:
        """Send a request; return the answer.

        Raises:
            EndedError: the process ended; it is gone.
            TooSlowError: the deadline is over.
        """
        self._refuse_late()
        self.asked += isinstance(asked, Run)
        self._markers = _markers_of(asked)
        self._marker.value = -1
        self.spent.value = 0.0
        limit_s = self._order.timeout_s * _GRACE
        if isinstance(asked, Run) and asked.attempts > 1:
            limit_s += max(0.0, asked.budget_s)
        self._channel.settimeout(limit_s)
        self._send_signal(signal.SIGCONT)
        try:
            self._channel.sendall(request(asked, body))
        except TimeoutError:
            raise self._ended(f"it took nothing for {limit_s:g} s", timed_out=True) from None
        except OSError:
            raise self._ended() from None
        most_s = math.inf
        if isinstance(asked, Run) and asked.tables is not None:
            most_s = limit_s * (asked.count + 2)  # the code may count up its marker by itself
        answer = self._receive(limit_s, most_s)
        self._send_signal(signal.SIGSTOP)
        return answer

    def _receive(self, limit_s: float, most_s: float = math.inf) -> bytearray:
        last = time.monotonic() + most_s
        (size,) = LENGTH.unpack(self._read(LENGTH.size, limit_s, last))
        if size > LARGEST_REPLY_BYTES:
            words = f"the result has {size:,} bytes; {LARGEST_REPLY_BYTES:,} may pass"
            raise self._ended(words, too_large=size < _NO_RESULTS_BYTES)
        content = self._read(size, limit_s, last)
        if is_too_large(content):
            most = LARGEST_MEMORY_BYTES
            words = f"the result has {size:,} bytes, but more than {most:,} once it is read"
            raise self._ended(words, too_large=True)
        return content

    def _read(self, size: int, limit_s: float, last: float) -> bytearray:
        content = bytearray(size)
        rest = memoryview(content)
        seen, since, looked = -1, time.monotonic(), time.monotonic()
        while rest:
            came = self._poll.poll(_TICK_S * 1000)
            now = time.monotonic()
            if now - looked >= _TICK_S:
                stood_still_s = max(0.0, now - looked - _LONGEST_TICK_S)
                since, last, looked = since + stood_still_s, last + stood_still_s, now
                if seen < (reached := self._reached()):  # only on is further
                    seen, since = reached, now
                self._check_limits(now - since, limit_s, answers=bool(came))
                if now > last:
                    self._marker.value = -1  # whatever it says
                    raise self._ended("its tables took too long together", timed_out=True)
            if not came:
                continue
            try:
                got = self._channel.recv_into(rest)
            except OSError:
                got = 0
            if not got:
                raise self._ended()
            rest = rest[got:]
        return content

    def _reached(self) -> int:
        """Return how far the process is; -1: nowhere that is known."""
        marker, known = self._marker.value, self._markers
        return (marker - known.start) // known.step if known.start <= marker < known.stop else -1

    def _check_limits(self, waited_s: float, limit_s: float, *, answers: bool) -> None:
        self._refuse_late()
        if waited_s > limit_s:
            words = f"no result within {self._order.timeout_s:g} s, and it did not give up"
            raise self._ended(words, timed_out=True)
        self._send_signal(signal.SIGSTOP)
        usage = self._usage()
        if words := usage.excess(self._order.limits, self._server.own_mb):
            raise self._ended(words)
        if usage.is_headless and not answers:  # all that is known of the others was its own
            raise self._ended()
        self._send_signal(signal.SIGCONT)

    def _refuse_late(self) -> None:
        if time.monotonic() > self.deadline:
            self.end()
            raise TooSlowError(
                f"user code of {self._order.owner} takes too long for its neighbours"
            )

    def _ended(
        self, words: str = "", *, timed_out: bool = False, too_large: bool = False
    ) -> EndedError:
        marker = -1 if too_large else self._marker.value
        how = self.end()
        return EndedError(marker, words or how, timed_out=timed_out, too_large=too_large)

    def end(self) -> str:
        """End the process; return in words how it ended, if it had before."""
        if self.pid < 0:
            return ""
        self.leave()
        status = self._server.end(self.pid)
        self.pid = -1
        if status is None:
            return _SERVER_ENDED
        if os.WIFSIGNALED(status):
            return _ENDED.format(f"signal {os.WTERMSIG(status)}")
        return _ENDED.format(f"exit status {os.WEXITSTATUS(status)}")

    def leave(self) -> None:
        """Leave it to another process, or to its end."""
        self._channel.close()
        self._close_handle()

    def _close_handle(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def is_worn(self) -> bool:
        """Tell whether it has used half of its memory, CPU time or threads, or all of its disk."""
        limits = self._order.limits
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return True
        cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS
        usage = self._usage()
        return (
            usage.is_headless
            or usage.private_bytes > (limits.memory_mb + self._server.own_mb) * _MiB / 2
            or cpu_s > limits.cpu_s / 2
            or usage.threads > _MOST_THREADS / 2
            or bool(usage.excess(limits, self._server.own_mb))
        )

    def _usage(self) -> _Usage:
        """Return what it uses now. It must be stopped, or it could hide what it moves about."""
        usage = _Usage()
        with suppress(FileNotFoundError, ProcessLookupError):
            usage.read_status(self.pid)
            usage.count_files(self.pid, self._order.folder, self._order.limits.file_mb * _MiB)
        return usage


class _Usage:
    """What one process uses of what no limit of the kernel bounds."""

    def __init__(self) -> None:
        self.private_bytes = 0
        """Memory as RLIMIT_DATA counts it."""
        self.held_bytes = 0
        """Memory that is there: also what is shared, or private and no longer writable; and page
        tables, which grow where memory is only mapped and read."""
        self.threads = 0
        self.is_headless = False
        """Its main thread has ended: nothing else of it can be seen."""
        self.written_bytes = 0.0

    def excess(self, limits: Limits, own_mb: int) -> str:
        """Say which limit it has passed, or nothing."""
        memory_mb = limits.memory_mb + own_mb + limits.file_mb + _SLACK_MB
        if self.held_bytes > memory_mb * _MiB:
            return f"it holds more than {limits.memory_mb} MiB of memory"
        if self.threads > _MOST_THREADS:
            return f"it has more than {_MOST_THREADS} threads"
        if self.written_bytes > limits.file_mb * _MiB:
            return f"it wrote more than {limits.file_mb} MiB"
        return ""

    def read_status(self, pid: int) -> None:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines()
        status = dict(line.partition(":")[::2] for line in lines)
        kib = {name: int(status[name].split()[0]) for name in _MEMORY if name in status}
        self.private_bytes = kib.get("VmData", 0) * 1024
        self.held_bytes = sum(kib.get(name, 0) for name in _MEMORY[1:]) * 1024
        self.threads = int(status["Threads"])
        self.is_headless = status["State"].split()[0] == "Z"

    def count_files(self, pid: int, folder: str, most: int) -> None:
        """Count what is in its folder, and what is in none any more but open or mapped.

        A file counts as 4 KiB at the least; one that is mapped only, whose size cannot be known, as
        ``most``; a folder that cannot be read, or is too deep, as more than any limit.
        """
        folders = [folder]
        while folders and self.written_bytes <= most:
            here = folders.pop()
            try:
                folders += self._count_folder(here)
            except PermissionError:
                self.written_bytes = math.inf
            except OSError:  # it is gone
                continue
        if self.written_bytes <= most:
            with suppress(PermissionError):  # ``missing`` tells
                self._count_unlinked(pid, folder.encode(), most)

    def _count_folder(self, folder: str) -> list[str]:
        if len(folder) > _LONGEST_PATH:
            self.written_bytes = math.inf
            return []
        with os.scandir(folder) as entries:
            found = [(entry, entry.stat(follow_symlinks=False)) for entry in entries]
        self.written_bytes += sum(max(_FILE_BYTES, facts.st_blocks * 512) for _, facts in found)
        return [entry.path for entry, facts in found if stat.S_ISDIR(facts.st_mode)]

    def _count_unlinked(self, pid: int, folder: bytes, most: int) -> None:
        unlinked: dict[int, int] = {}
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            facts = entry.stat()
            if not facts.st_nlink and stat.S_ISREG(facts.st_mode):
                unlinked[facts.st_ino] = max(_FILE_BYTES, facts.st_blocks * 512)
        for line in Path(f"/proc/{pid}/maps").read_bytes().splitlines():
            if line.endswith(b" (deleted)") and folder in line:
                unlinked.setdefault(int(line.split(None, 5)[4]), most)
        self.written_bytes += sum(unlinked.values())


_MEMORY = ("VmData", "RssAnon", "RssShmem", "VmSwap", "VmPTE")
