"""A loader that parks and is killed at a moment of it, in a process of its own."""

from __future__ import annotations

import os
import signal
from typing import Any

from tests.support.loads import Loads

from waybill.loading import delivery, loader


def park_and_die(parts: Any, last: int, moment: str) -> None:
    """Park what waits up to a commit number, and kill this process at a moment of it.

    Args:
        parts: ``Loads.parts`` of the test.
        last: commit number.
        moment: "before the object", "before the commit" or "after the commit".
    """
    loads = Loads.of_parts(parts)

    def die(*_given: Any, **_more: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if moment == "before the object":
        delivery.park_commits = die  # type: ignore[assignment]
    real = loader.commit_load

    def commit(*given: Any, **more: Any) -> None:
        if moment == "after the commit":
            real(*given, **more)
        die()

    loader.commit_load = commit  # type: ignore[assignment]
    loads.deliver(loads.patience(park_after_s=0.001), last)
