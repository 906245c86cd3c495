"""The warm process that processes of user code are forked from; it never holds a secret.

It is started with an empty environment and no inherited files, loads what user code needs, and
forks on request. It does what its children's owner may not do once they have users of their own:
it ends them, and removes their folders. It ends, with all children, when nobody listens any more.
"""

from __future__ import annotations

import fcntl
import gc
import os
import secrets
import signal
import socket
import sys
import tempfile
import time
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
_PREFIX = "waybill-user-code-"
_YOUNG_S = 60.0
"""So long the server of a new folder may take until it holds its lock."""
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
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
    lock = os.open(folder, _OPEN_FOLDER)
    fcntl.flock(lock, fcntl.LOCK_EX)  # nobody takes it for one that a dead server left
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
                answer = _start(asked.order, files, line, lock)
                children[answer] = asked.order.folder
            line.sendall(str(answer).encode())
    except OSError:  # the other side died meanwhile
        return
    finally:
        for pid, own in children.items():
            _end(pid, own)
        remove_folder(folder)


def _start(order: Order, files: list[int], line: socket.socket, lock: int) -> int:
    server = os.getpid()
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
        os.close(lock)
        channel, shared = files
        numpy_random = sys.modules.get("numpy.random")
        if numpy_random is not None:
            numpy_random.seed()  # or each child would draw the same numbers
        main(channel, shared, order, server)
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
    remove_folder(folder)
    return status


def new_folder() -> Path:
    """Make the folder of a server, and remove those of servers that were killed."""
    root = os.path.realpath(tempfile.gettempdir())  # as the kernel names it in maps of memory
    with os.scandir(root) as entries:
        left = [entry.path for entry in entries if entry.name.startswith(_PREFIX)]
    for path in left:
        with suppress(OSError):  # somebody else's, or another process removes it just now
            _remove_left(path)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
    folder.chmod(0o711)
    return folder


def _remove_left(folder: str) -> None:
    lock = os.open(folder, _OPEN_FOLDER)
    try:
        facts = os.fstat(lock)
        if facts.st_uid == os.geteuid() and time.time() - facts.st_mtime > _YOUNG_S:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_folder(folder)
    finally:
        os.close(lock)


def remove_folder(folder: str) -> None:
    """Remove a folder and all that is in it, however deep; what cannot be removed stays.

    Folders in folders are moved up into the first, as no path may be as long as theirs together.
    Whoever wrote there has ended.
    """
    with suppress(OSError):
        top = os.open(folder, _OPEN_FOLDER)
        try:
            prefix = secrets.token_hex(8)
            folders = _emptied(top, top, prefix, 0)
            for name in folders:  # it grows
                with suppress(OSError):
                    here = os.open(name, _OPEN_FOLDER, dir_fd=top)
                    try:
                        folders += _emptied(here, top, prefix, len(folders))
                    finally:
                        os.close(here)
            for name in folders:
                with suppress(OSError):
                    os.rmdir(name, dir_fd=top)
        finally:
            os.close(top)
        Path(folder).rmdir()


def _emptied(here: int, top: int, prefix: str, count: int) -> list[str]:
    """Remove a folder's files, and move its folders into the top one; return their names there."""
    folders: list[str] = []
    with os.scandir(here) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        with suppress(OSError):
            if not is_folder:
                os.unlink(name, dir_fd=here)
                continue
            moved = f"{prefix}-{count + len(folders)}"
            os.chmod(name, 0o700, dir_fd=here)  # as another user than root, it has to be open
            os.rename(name, moved, src_dir_fd=here, dst_dir_fd=top)
            folders.append(moved)
    return folders


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
