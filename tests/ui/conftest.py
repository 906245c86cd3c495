"""Fixtures: the real web server with parked events, once a session; Chromium; a page signed in."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from playwright.sync_api import Browser, BrowserContext
from tests.ui import web_server
from tests.ui.browser import opened_chromium
from tests.ui.opened_page import OpenedPage, sign_in
from tests.ui.web_server import Web


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
    """It ends with this folder's tests: ``asyncio.run`` of other tests would be refused while it runs."""
    with opened_chromium() as browser:
        yield browser


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
