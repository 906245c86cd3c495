"""A process that reads a source, as the connector holds it: its output, its log, its end.

Standard output carries what was read, standard error what the process says: each line of that goes
into the log, cut, escaped, without secrets. The process begins with an environment of its own.

Who dies when: whoever made the process holds a pipe that the process, or its launcher, reads; so
whatever ends the one, SIGKILL too, ends the other with all that it started.
"""

from __future__ import annotations

import logging
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from waybill.errors import RetryError

_LOG = logging.getLogger("waybill.source_process")
_CHUNK_BYTES = 256 * 1024
_LINE_CHARS = 2000
"""Of one line in the log; the rest is left out."""
_MOST_LINES = 10_000
"""That one process may write into the log."""
_LAST_LINES = 5
_END_S = 10.0
_PREFIX = "waybill-source-"


class SourceProcess:
    """A process that reads a source.

    Args:
        name: for the log.
        command: with all its arguments; secrets are not among them.
        folder: its own; it is removed at the end.
        environment: all of it.
        given: written to its standard input, which is kept open until the end.
        hide: returns a text without secrets.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        *,
        environment: Mapping[str, str],
        given: bytes = b"",
        hide: Callable[[str], str],
    ) -> None:
        self._name, self._hide, self._folder = name, hide, folder
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        try:
            self._process = subprocess.Popen(
                list(command),
                env=dict(environment),
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            remove_source_folder(folder)
            raise RetryError(f"{name} cannot be started: {error}") from error
        self._listener = threading.Thread(target=self._listen, name=f"log of {name}", daemon=True)
        self._listener.start()
        self._give(given)

    def _give(self, given: bytes) -> None:
        if (stdin := self._process.stdin) is not None:
            with suppress(BrokenPipeError):  # it ended at once; its status says so
                stdin.write(given)
                stdin.flush()

    def chunks(self, quiet_s: float) -> Iterator[bytes | None]:
        """Yield what the process reads, and None after each second without any, until it ends.

        Raises:
            RetryError: nothing came for ``quiet_s`` seconds.
        """
        if (output := self._process.stdout) is None:
            return
        last = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while True:
                if not selector.select(1.0):
                    if time.monotonic() - last > quiet_s:
                        raise RetryError(
                            f"{self._name} gave nothing for {quiet_s:.0f} s; it is ended"
                        )
                    yield None
                    continue
                chunk = os.read(output.fileno(), _CHUNK_BYTES)
                if not chunk:
                    return
                yield chunk
                last = time.monotonic()  # whoever takes the chunk may take long

    def status(self) -> int:
        """Return the status of a process that has ended its output: 0, or as ``subprocess`` has it.

        Raises:
            RetryError: it goes on all the same.
        """
        try:
            status = self._process.wait(_END_S)
        except subprocess.TimeoutExpired as error:
            raise RetryError(f"{self._name} closed its output, and does not end") from error
        self._listener.join(_END_S)
        return status

    @property
    def last_words(self) -> str:
        """The last lines that the process said, without secrets."""
        return " | ".join(self._last)

    def close(self) -> None:
        """End the process with all that it started, and remove its folder; again does nothing."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._listener.join(_END_S)
        remove_source_folder(self._folder)

    def _listen(self) -> None:
        if (stream := self._process.stderr) is None:
            return
        lines = 0
        with stream:
            while line := stream.readline(_LINE_CHARS * 4):
                text = self._hide(line.decode("utf-8", "backslashreplace").rstrip())[:_LINE_CHARS]
                self._last.append(text)
                lines += 1
                if lines <= _MOST_LINES:
                    _LOG.info("%s: %s", self._name, ascii(text)[1:-1])
                elif lines == _MOST_LINES + 1:
                    _LOG.warning(
                        "%s says more than %d lines; the rest is left out", self._name, lines
                    )


def new_source_folder() -> Path:
    """Return a new folder that only this user may enter."""
    return Path(tempfile.mkdtemp(prefix=_PREFIX))


def remove_source_folder(folder: Path) -> None:
    """Remove a folder and all in it; what cannot be removed is told."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        _LOG.warning("the folder %s of a source's process stays: %s", folder, error)
