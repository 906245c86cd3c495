"""The warm process that processes of user code are forked from; it never holds a secret.

It is started with an empty environment and no inherited files, loads what user code needs, and
forks on request. It does what its children's owner may not do once they have users of their own:
it ends them, and removes their folders. It ends, with all children, when nobody listens any more.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import msgspec

from waybill.processing.sandbox.child import Order, main

_WARM = ("datetime", "decimal", "hashlib", "json", "math", "random", "re", "uuid", "zoneinfo")
_ARROW = ("pyarrow.compute", "waybill.processing.batch_form", f"{__package__}.table_frames")
"""What code that takes tables needs. A server of its own has it: it would change what memory other
code may have."""
_ARROW_ENVIRONMENT = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OPENBLAS_NUM_THREADS": "1"}
"""Its own pool would reserve 1 GiB at its first use, all that a process may have."""
_LARGEST_ORDER = 1 << 20
_SHARED = 2
"""Files that come with an order: the channel and the shared memory."""


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Start a child; the answer is its pid. Its channel and shared memory come with it."""

    order: Order


class End(msgspec.Struct, frozen=True, tag="end"):
    """End a child, if it has not ended; the answer is its status, as of ``os.waitpid``."""

    pid: int


def serve(control: int, folder: str, *, arrow: bool) -> None:
    """Serve until the other side of the control socket is closed; then remove the folder."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _load(arrow=arrow)
    line = socket.socket(fileno=control)
    decode = msgspec.json.Decoder(Start | End).decode
    children: dict[int, str] = {}
    try:
        while True:
            message, files, _, _ = socket.recv_fds(line, _LARGEST_ORDER, _SHARED)
            if not message:
                return
            asked = decode(message)
            if isinstance(asked, End):
                answer = _end(asked.pid, children.pop(asked.pid))
            else:
                answer = _start(asked.order, files, line)
                children[answer] = asked.order.folder
            line.sendall(str(answer).encode())
    except OSError:  # the other side died meanwhile
        return
    finally:
        for pid, own in children.items():
            _end(pid, own)
        with suppress(RecursionError):
            shutil.rmtree(folder, ignore_errors=True)


def _start(order: Order, files: list[int], line: socket.socket) -> int:
    pid = os.fork()
    if pid:
        for number in files:
            os.close(number)
        return pid
    status = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        line.close()
        channel, shared = files
        numpy_random = sys.modules.get("numpy.random")
        if numpy_random is not None:
            numpy_random.seed()  # or each child would draw the same numbers
        main(channel, shared, order)
    finally:
        os._exit(status)


def _load(*, arrow: bool) -> None:
    for name in _WARM:
        import_module(name)
    if arrow:
        os.environ.update(_ARROW_ENVIRONMENT)
        compute, *_ = [import_module(name) for name in _ARROW]
        compute.sum(compute.cast(["1"], "int64"))  # loads pandas, where it is, as any first array
    gc.collect()
    gc.freeze()


def _end(pid: int, folder: str) -> int:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    with suppress(RecursionError):  # folders in folders: they stay
        shutil.rmtree(folder, ignore_errors=True)
    return status


def start_command(path: list[str], control: int, folder: str, *, arrow: bool) -> list[str]:
    """Return the command that starts a server.

    Args:
        path: where Python finds modules.
        control: the number of its socket.
        folder: of its processes' folders; it removes it.
        arrow: whether its processes are to run code that takes tables.
    """
    entries = [str(Path(entry).resolve()) for entry in path if entry]
    code = (
        "import sys; sys.path[:] = sys.argv[3:]; "
        "from waybill.processing.sandbox.server import serve; "
        f"serve(int(sys.argv[1]), sys.argv[2], arrow={arrow})"
    )
    return [sys.executable, "-I", "-c", code, str(control), folder, *entries]
