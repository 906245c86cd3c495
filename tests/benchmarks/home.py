"""Where a benchmark's servers live, for as long as it runs: however it ends, they end with it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

_BY_SIGTERM = 128 + signal.SIGTERM


@contextmanager
def opened_home() -> Iterator[tuple[Path, ExitStack]]:
    """Give a state folder, and a stack that is closed before the folder's servers are ended.

    From here on SIGTERM ends the process by SystemExit, as Ctrl-C does, so that what is on the stack
    is closed; a second one changes nothing. Settings from outside are put away.
    """
    for name in [name for name in os.environ if name.startswith("WAYBILL_")]:
        del os.environ[name]
    from tests import servers

    signal.signal(signal.SIGTERM, _end)
    with ExitStack() as stack:
        home = servers.new_home()
        stack.callback(servers.end_home, home)
        yield home, stack


def _end(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would break the ending off
    raise SystemExit(_BY_SIGTERM)
