"""Starts a tap, closed in, and ends it with all that it started when whoever wants it is gone.

Arguments: `Places` as JSON, then the tap's command. Standard input
is the lifeline: it ends when the connector closes it, or dies in whatever way.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from typing import NoReturn

import msgspec

from waybill.processing.sandbox import close_files, end_with_parent

_SIGNAL_BASE = 128


class Places(msgspec.Struct, frozen=True):
    """Files that a tap may use, beside its own folder."""

    readable: list[str]
    executable: list[str]
    """Read as well."""
    strict: bool
    """Do not start it where the machine cannot close the others."""


def main() -> NoReturn:
    """Run the tap; end with its status."""
    places = msgspec.json.decode(sys.argv[1], type=Places)
    command = sys.argv[2:]
    signal.signal(signal.SIGTERM, lambda *_: _end_all())
    end_with_parent(signal.SIGTERM)
    if not close_files(os.getcwd(), places.readable, places.executable):  # noqa: PTH109 - as it is named here
        sys.stderr.write("this machine does not close the files of a tap (Landlock)\n")
        if places.strict:
            sys.exit(1)
    threading.Thread(target=_end_with_lifeline, daemon=True).start()
    status = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)  # what the tap left behind
    os._exit(status if status >= 0 else _SIGNAL_BASE - status)


def _end_with_lifeline() -> None:
    while os.read(0, 1):
        pass
    _end_all()


def _end_all() -> None:
    shutil.rmtree(".", ignore_errors=True)  # secrets are among it; its owner may be gone
    os.killpg(0, signal.SIGKILL)
