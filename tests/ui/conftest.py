"""Fixtures: the real web server with parked events, once a session; Chromium; a page signed in."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import partial

import pytest
from playwright.sync_api import Browser, BrowserContext, sync_playwright
from tests.ui import web_server
from tests.ui.opened_page import OpenedPage, sign_in
from tests.ui.web_server import Web

INSTALL = "apt-get install -y chromium-headless-shell, or `make chromium`"
# One process for all pages of a user: it knows Airflow's scripts once it has compiled them.
_ARGUMENTS = ["--renderer-process-limit=1", *(["--no-sandbox"] if os.geteuid() == 0 else [])]


@pytest.fixture(scope="session")
def web(servers_home, _postgres, airflow_metadata, _s3) -> Iterator[Web]:
    """The web server; tests park what they need, under names of their own."""
    _postgres.ensure()
    _s3.ensure()
    lot = web_server.open_lot(_postgres.database("ui", keep=True), _s3.bucket("ui", keep=True))
    home = servers_home / "airflow-web"
    home.mkdir(mode=0o755)
    running, service = web_server.start(home, airflow_metadata, lot)
    yield running
    service.stop()
    lot.tracker.close()


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """Debian's Chromium: the one without windows, which draws none, or the whole browser.

    It ends with this folder's tests: while Playwright runs, its event loop is the thread's, and
    ``asyncio.run`` of other tests would be refused.
    """
    path = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    assert path, f"no Chromium on PATH: {INSTALL}"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def signed_in(web: Web, chromium: Browser) -> dict[str, BrowserContext]:
    """A browser of each user, signed in; tests share it, so that Airflow's scripts load once."""
    return {name: sign_in(chromium, web, name) for name in web.passwords}


@pytest.fixture
def open_as(web, signed_in):
    """Open a page of a kind; at the end of the test nothing may have gone wrong in it."""
    opened: list[OpenedPage] = []

    def open_one(kind, view: str = "", *, user: str = "admin", **how) -> OpenedPage:
        one = kind(web, signed_in[user], **how)
        opened.append(one)
        one.goto(view)
        return one

    yield open_one
    for one in opened:
        one.close()
    assert [fault for one in opened for fault in one.faults()] == []


@pytest.fixture
def open_page(open_as):
    """Open the page "Parked events"."""
    return partial(open_as, OpenedPage)
