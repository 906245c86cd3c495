"""A KeyboardInterrupt at a chosen line of the producer's own modules."""

import linecache
import sys
from collections.abc import Callable
from pathlib import Path

import waybill.producer

_ROOM = str(Path(waybill.producer.__file__).parent)
_TEST_DOUBLE = "memory_disk.py"


def _opens_a_block(frame) -> bool:
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    return line.lstrip().startswith(("with ", "try:"))


def interrupted_at(line: int, call: Callable[[], object]) -> bool:
    """Call, and raise KeyboardInterrupt before the ``line``-th line (from 0) that runs.

    Not before a line of ``with`` or ``try``: no signal is served there (between a block and its
    ``__exit__``, and where a ``try`` begins), so that no interrupt leaves a lock held.

    Returns whether it came so far.
    """
    left = line
    raised = False

    def trace(frame, event, _given):
        nonlocal left, raised
        name = frame.f_code.co_filename
        if not name.startswith(_ROOM) or name.endswith(_TEST_DOUBLE):
            return None
        if event == "line" and not raised and not _opens_a_block(frame):
            if left == 0:
                raised = True
                raise KeyboardInterrupt
            left -= 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        assert raised
    finally:
        sys.settrace(before)
    return raised
