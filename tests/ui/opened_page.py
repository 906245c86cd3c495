"""A page in Chromium, signed in, with all that went wrong noted down.

Airflow shows our pages in a frame of its own page, whose scripts cost seconds of CPU at each load. Tests
open the address that the frame has, and Airflow around it where they say ``in_airflow``: once a page at least.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol
from urllib.parse import urlencode, urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, FrameLocator, Locator, Page, expect

PLUGIN = "/plugin/waybill-parked"
PAGE = "/waybill/parked"
_MENU_WIDTH, _MARGIN_HEIGHT = 72, 8
"""What Airflow's own page takes of a window, in pixels."""
_AXE = Axe()
_RULES = {"rules": {"target-size": {"enabled": True}}}  # 24 pixels, or room around; off by default
_TIMEOUT_MS = 300_000
expect.set_options(timeout=_TIMEOUT_MS)


class Served(Protocol):
    """Airflow's web server with our pages."""

    @property
    def url(self) -> str: ...

    @property
    def passwords(self) -> Mapping[str, str]:
        """By user."""
        ...


def sign_in(browser: Browser, web: Served, user: str) -> BrowserContext:
    """Sign in by Airflow's own page; a tab stays open, and with it the process that has its scripts.

    Nothing moves in these pages: the CPU would draw each frame of an animation.
    """
    context = browser.new_context(accept_downloads=True, reduced_motion="reduce")
    context.set_default_timeout(_TIMEOUT_MS)
    page = context.new_page()
    page.goto(f"{web.url}/auth/login/")
    page.get_by_label("Username").fill(user)
    page.locator("input[type=password]").fill(web.passwords[user])
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(lambda url: "/auth/login" not in url)
    page.goto(f"{web.url}/waybill/api/me")
    return context


def hash_of(**view: object) -> str:
    """Return the part of the address behind `#` for a view."""
    return f"#{urlencode(view)}"


class OpenedPage:
    """One browser window with the page, by itself or in Airflow's frame."""

    plugin, path, title = PLUGIN, PAGE, "Parked events"

    def __init__(
        self, web: Served, context: BrowserContext, *, dark: bool = False, in_airflow: bool = False
    ) -> None:
        self.web = web
        self.in_airflow = in_airflow
        self.expected: list[str] = []
        """Parts of console lines that a test provokes."""
        self._said: list[str] = []
        self._elsewhere: list[str] = []
        self.context = context
        self.page = context.new_page()
        self.resize(1440, 950)
        self.page.emulate_media(color_scheme="dark" if dark else "light")
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self._said.append(f"uncaught: {error}"))
        self.page.on("request", self._check)
        self.page.on("dialog", self._dialog)

    @property
    def frame(self) -> FrameLocator | Page:
        """Where our page is."""
        if not self.in_airflow:
            return self.page
        return self.page.frame_locator(f"iframe[title='{self.title}']")

    def goto(self, view: str) -> None:
        """Open the page with what stands behind `#`, as from a shared link."""
        around = self.plugin if self.in_airflow else ""
        inner = self.path if view or not self.in_airflow else ""
        self.page.goto(f"{self.web.url}{around}{inner}{view}")
        self.frame.locator("main:not([aria-busy])").wait_for()

    def resize(self, width: int, height: int = 900) -> None:
        """Give the page the room that it has in Airflow in a window of this size, in pixels."""
        if not self.in_airflow:
            width, height = width - _MENU_WIDTH, height - _MARGIN_HEIGHT
        self.page.set_viewport_size({"width": width, "height": height})

    def look_over(self, name: str) -> None:
        """Fail where axe finds something wrong, or the page scrolls sideways: wide and light, narrow and dark.

        With ``SHOTS_OF_PAGES``, a folder, in all four ways, and a picture of each is left there.
        """
        shots = os.environ.get("SHOTS_OF_PAGES")
        ways = [(1280, False), (390, True)] + ([(1280, True), (390, False)] if shots else [])
        for width, dark in ways:
            self.page.emulate_media(color_scheme="dark" if dark else "light")
            self.resize(width, 860)
            found = _AXE.run(self.page, options=_RULES)
            assert found.violations_count == 0, (width, dark, found.generate_report())
            wide = self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, (width, dark)
            if shots:
                look = "dark" if dark else "light"
                self.page.screenshot(path=Path(shots) / f"{name}-{width}-{look}.png")

    def rows(self) -> Locator:
        return self.frame.locator("tr[data-id]")

    def number(self, name: str) -> Locator:
        """One of the partition's numbers, such as `waiting`."""
        return self.frame.locator(f"[data-number='{name}'] dd").first

    def action(self, name: str) -> Locator:
        return self.frame.locator(f"[data-action='{name}']")

    def confirm(self) -> None:
        """Click the dialog's last button."""
        self.frame.locator("dialog button[type=submit]").click()

    def run_path(self, run: Locator) -> str:
        """Return where Airflow's own API has a run that the page follows."""
        return f"{self.web.url}/api/v2/dags/replay/dagRuns/{run.get_attribute('data-run')}"

    def end_run(self, run: Locator, report: dict, *, state: str = "success") -> None:
        """End a run as its task would: a report, then the state."""
        path, ask = self.run_path(run), self.context.request
        entry = {"key": "return_value", "value": report}
        made = ask.post(f"{path}/taskInstances/replay/xcomEntries", data=entry)
        assert made.ok, made.text()
        answer = ask.patch(path, data={"state": state})
        assert answer.ok, answer.text()

    def close(self) -> None:
        self.page.close()

    def faults(self) -> list[str]:
        """Return errors of the console that no test expected, and requests to other hosts."""
        said = [line for line in self._said if not any(part in line for part in self.expected)]
        return said + [f"asked another host: {url}" for url in self._elsewhere]

    def _note(self, message) -> None:
        if message.type == "error" or "Content Security Policy" in message.text:
            self._said.append(f"{message.text} ({message.location.get('url')})")

    def _check(self, request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in ("data", "blob"):
            return
        if f"{parts.scheme}://{parts.netloc}" != self.web.url:
            self._elsewhere.append(request.url)

    def _dialog(self, dialog) -> None:
        self._said.append(f"a script opened a dialog: {dialog.message}")
        dialog.dismiss()
