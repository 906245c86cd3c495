"""The Chromium in which pages are opened."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

_INSTALL = "apt-get install -y chromium-headless-shell, or `make chromium`"
# One process for all pages of a user: it knows Airflow's scripts once it has compiled them.
_ARGUMENTS = ["--renderer-process-limit=1", *(["--no-sandbox"] if os.geteuid() == 0 else [])]


_START_MS = 300_000


@contextmanager
def opened_chromium() -> Iterator[Browser]:
    """Start Debian's Chromium: the one without windows, which draws none, or the whole browser.

    While Playwright runs, its event loop is the thread's, and ``asyncio.run`` is refused there.
    """
    path = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    assert path, f"no Chromium on PATH: {_INSTALL}"
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(
            executable_path=path, args=_ARGUMENTS, timeout=_START_MS
        ) as browser,
    ):
        yield browser
