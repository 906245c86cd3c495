"""Processes of user code for tests: a few of them, ended with the session."""

from __future__ import annotations

import atexit
from functools import cache

from waybill.processing.sandbox import Sandbox
from waybill.settings import SandboxSettings


@cache
def sandbox(timeout_s: float = 100.0, **settings: object) -> Sandbox:
    """Return a sandbox with these settings."""
    made = Sandbox(SandboxSettings.model_validate(settings), timeout_s=timeout_s)
    atexit.register(made.close)
    return made
