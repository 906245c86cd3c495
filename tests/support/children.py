"""Child processes that do one use case, to be killed at any moment."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from tests.support.warm_python import WarmPopen

from waybill.settings import Settings


def environment(settings: Settings) -> dict[str, str]:
    """Return the environment of a child that is to see exactly these settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WAYBILL_")}
    return {**kept, **settings.to_env()}


def start(settings: Settings, code: str) -> subprocess.Popen[bytes]:
    """Start Python code in a session of its own; ``settings`` is ready in it."""
    text = f"from waybill.settings import Settings\nsettings = Settings()\n{code}"
    return WarmPopen(text, environment(settings))


def run(settings: Settings, code: str, *, limit_s: float = 600.0) -> str:
    """Run code to its end and return what it printed; an error fails the test with its words."""
    child = start(settings, code)
    try:
        output, _ = child.communicate(timeout=limit_s)
    finally:
        kill(child)
    text = output.decode("utf-8", "replace")
    assert child.returncode == 0, text
    return text


def run_and_kill(settings: Settings, code: str, after_s: float) -> bool:
    """Run code and SIGKILL it after a time; False when it had ended by then."""
    child = start(settings, code)
    try:
        child.wait(timeout=after_s)
    except subprocess.TimeoutExpired:
        return True
    finally:
        kill(child)
    return False


def was_killed(pid: int) -> bool:
    """Wait for a forked child. True: it died of SIGKILL; False: it went to its end.

    Any other end (a segmentation fault, an exception) fails the test: it is neither.
    """
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in {-signal.SIGKILL, 0}, f"the child ended with {code}"
    return code != 0


def kill(child: subprocess.Popen[bytes]) -> None:
    """SIGKILL the child's whole session, if it is still there, and reap it."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def wait_until(true: Callable[[], bool], *, limit_s: float = 600.0, what: str) -> None:
    """Wait for a condition, or fail with what was waited for.

    The limit is for what never comes, not for how long it may take: a machine can be slow.
    What waits long looks seldom: to look at the books costs 40 ms of CPU, and as much in servers.
    """
    began = time.monotonic()
    while not true():
        waited_s = time.monotonic() - began
        assert waited_s < limit_s, f"not within {limit_s:.0f} s: {what}"
        time.sleep(min(1.0, 0.1 + waited_s / 20))


Point = tuple[Any, str, int]
"""A function's owner, its name, n: the n-th call of it."""


def forked(work: Callable[[], Any]) -> int:
    """Work in a child process; return its pid.

    It ends with 0 once it has worked; with 1, and its words on the standard error, if it failed.
    """
    child = os.fork()
    if child:
        return child
    gc.freeze()  # what the parent left to collect has threads that are not here
    code = 1
    try:
        work()
        code = 0
    except Exception:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _dying(point: Point, work: Callable[[], Any]) -> Callable[[], Any]:
    owner, name, at = point
    real, calls = getattr(owner, name), itertools.count(1)

    def dying(*given: Any, **more: Any) -> Any:
        if next(calls) == at:
            if name in {"produce", "mark"}:
                given[0].flush(120)  # what was sent before is in the log
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*given, **more)

    def patched() -> Any:
        setattr(owner, name, dying)
        return work()

    return patched


def dies_at(point: Point, work: Callable[[], Any]) -> bool:
    """Work in a child process that is killed before the n-th call of a function.

    What a producer had sent before is in Kafka.

    Returns:
        False: it ended before.
    """
    return was_killed(forked(_dying(point, work)))


def dies_after(after_s: float, work: Callable[[], Any]) -> bool:
    """Work in a child process that is killed after a time; False: it had ended by then."""
    child, until_s = forked(work), time.monotonic() + after_s
    while time.monotonic() < until_s:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            assert status == 0, f"the child ended with {os.waitstatus_to_exitcode(status)}"
            return False
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    return was_killed(child)


def killed(point: Point, work: Callable[[], Any]) -> None:
    """Work in a child process that is killed before the n-th call of a function: see `dies_at`."""
    assert dies_at(point, work), f"it was to be killed at {point}"
