"""Fixtures: the real web server with parked events, once a session; Chromium; a page signed in."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, sync_playwright
from tests.ui import web_server
from tests.ui.opened_page import OpenedPage, sign_in
from tests.ui.web_server import Web

INSTALL = "apt-get install -y chromium, or `make chromium`"
_SANDBOX = ["--no-sandbox"] if os.geteuid() == 0 else []


@pytest.fixture(scope="session")
def web(servers_home, _postgres, _s3) -> Iterator[Web]:
    """The web server; tests park what they need, under names of their own."""
    _postgres.start()
    _s3.start()
    lot = web_server.open_lot(_postgres.database("ui"), _s3.bucket("ui", keep=True))
    home = servers_home / "airflow-web"
    home.mkdir(mode=0o755)
    running, service = web_server.start(home, _postgres, lot)
    yield running
    service.stop()
    lot.tracker.close()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Debian's Chromium, without a window."""
    path = shutil.which("chromium")
    assert path, f"no `chromium` on PATH: {INSTALL}"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_SANDBOX)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def signed_in(web: Web, chromium: Browser) -> dict[str, BrowserContext]:
    """A browser of each user, signed in; tests share it, so that Airflow's scripts load once."""
    return {name: sign_in(chromium, web, name) for name in web.passwords}


@pytest.fixture
def takes(web, signed_in):
    """Skip a test of what this version's API does not offer yet: a parameter of a route."""

    def check(path: str, parameter: str) -> None:
        [token] = [one["value"] for one in signed_in["admin"].cookies() if one["name"] == "_token"]
        headers = {"Authorization": f"Bearer {token}"}
        described = httpx.get(f"{web.url}/waybill/api/openapi.json", headers=headers).json()
        names = {one["name"] for one in described["paths"][path]["get"]["parameters"]}
        if parameter not in names:
            pytest.skip(f"{path} does not take {parameter!r}, and the page hides it")

    return check


@pytest.fixture
def open_page(web, signed_in):
    """Open the page inside Airflow; at the end of the test nothing may have gone wrong in it."""
    opened: list[OpenedPage] = []

    def open_one(view: str = "", *, user: str = "admin", dark: bool = False) -> OpenedPage:
        one = OpenedPage(web, signed_in[user], dark=dark)
        opened.append(one)
        one.goto(view)
        return one

    yield open_one
    for one in opened:
        one.close()
    assert [fault for one in opened for fault in one.faults()] == []
