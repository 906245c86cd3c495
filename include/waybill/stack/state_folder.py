"""The state folder (``<home>``): private files, its lock, log files.

::

    <home>/run/         registry: one JSON and one mark file a process (see `processes`), the lock
    <home>/logs/        one log a service; the last one before is ``.1`` once 10 MiB are passed
    <home>/postgres/ kafka/ s3/ airflow/    data
    <home>/wal/ spark/ traces/              data of the other rooms
    <home>/declarations/                    what parses of DAGs keep
    <home>/jars/        what was downloaded; survives ``down --wipe``
    <home>/credentials.json, stack.env      generated keys, settings for every command; mode 0600

All of it may hold data of events, so ``<home>`` is its owner's alone (`make_private`).
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from waybill.errors import InputError, RetryError

LOG_BYTES = 10 * 1024**2


def make_private(home: Path, folders: Iterable[str] = ()) -> None:
    """Make the state folder; only its owner may enter it and the ``folders`` in it: mode 0700.

    For root it is 0710: root's PostgreSQL runs as a user of its own, in root's group.

    Raises:
        InputError: the folder belongs to somebody else.
    """
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        if os.geteuid() == 0:
            os.chown(home, -1, os.getegid())
        home.chmod(0o710 if os.geteuid() == 0 else 0o700)
        for folder in filter(Path.is_dir, (home / name for name in folders)):
            folder.chmod(0o700)
    except PermissionError:
        raise InputError(
            f"{home} belongs to another user: let WAYBILL_HOME name a folder of your own"
        ) from None


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.unlink(missing_ok=True)
    handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    scratch.replace(path)


@contextmanager
def exclusive(path: Path, timeout_s: float = 300.0) -> Iterator[None]:
    """Hold an exclusive lock on ``path``; it ends with the process, however that ends.

    Raises:
        RetryError: another process held it for ``timeout_s``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + timeout_s
    with path.open("a") as stream:
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RetryError(f"another command is at work here: {path} is locked") from None
                time.sleep(0.1)
        yield


def rotate(log: Path) -> None:
    """Set a log aside when it has grown large; called before its service starts."""
    if log.exists() and log.stat().st_size > LOG_BYTES:
        log.replace(log.with_name(log.name + ".1"))


def tail(log: Path, start: int = 0, lines: int = 20) -> str:
    """Return the last lines of a log written after byte ``start``."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(start, log.stat().st_size - 64 * 1024))
            text = stream.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.rstrip().splitlines()[-lines:])
