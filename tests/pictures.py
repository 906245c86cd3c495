"""``make pictures``: the pictures of docs/images, taken anew of a real stack that did real work.

In a copy of the checkout, on ports of its own: the two example pipelines, whose 363,000 events park by the
thousand; the tour's, with the refund that parks; a table that is followed by its log. What is parked is looked
at; then the flights are corrected, one group of them is replayed, and the way of one of these is asked for.

Ends with an exit code other than 0 where a page shows a problem, or anything else goes wrong. The stack is
ended and the copy is deleted in any case.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from playwright.sync_api import Browser, BrowserContext, expect
from tests import servers
from tests.benchmarks.home import opened_home
from tests.support.doc_blocks import blocks
from tests.support.fresh_checkout import copy_checkout, psql_folder, stack_variables
from tests.ui.browser import opened_chromium
from tests.ui.opened_page import OpenedPage, hash_of, sign_in
from tests.ui.trails_page import TrailsPage

from waybill.settings import Settings

FOLDER = servers.CHECKOUT / "docs" / "images"
_WIDTH, _NARROW = 1208, 390
_LEAST, _MOST, _MOST_OF_A_TRAIL, _MOST_NARROW = 300, 960, 1200, 820
"""Of heights, in pixels: what of a page lies further down is left out."""
_COMMAND_S = 900.0
_REST_S = 900.0
_LOOK_S = 3.0
_MEASURED_MS = 180_000
"""Upkeep measures lags each minute, and the page asks twice a minute."""
_MINUTES_MS = 300_000
"""Rates have minutes whose books are folded: those of two minutes ago."""
_READ_ONCE = ("flights", "weather", "sales")
_PIPELINES = len(_READ_ONCE) + 1
_SALES = """
waybill new sales --team shop --yes
echo 'A-3,2026-01-03T08:00:00Z,Refund,-1.00' >> include/pipelines/sales/records.csv
waybill pipelines deploy sales --unpause
waybill ingest sales --wait
"""
_GROUP = "flights --event-name flight --stage transformation --error-type null_value"


class _OverviewPage(OpenedPage):
    """The page "Overview"."""

    plugin, path, title = "/plugin/waybill-overview", "/waybill/overview", "Overview"


@dataclass(frozen=True)
class _Web:
    """The stack's Airflow."""

    url: str
    passwords: Mapping[str, str]


@dataclass(frozen=True)
class _Shell:
    """Runs commands in the copy of the checkout."""

    folder: Path
    env: Mapping[str, str]

    def run(self, text: str) -> None:
        """Run commands; the first that fails ends them.

        Raises:
            subprocess.CalledProcessError: one failed.
        """
        print(f"$ {text.strip()}", flush=True)
        self._bash(text, check=True)

    def ask(self, command: str) -> Any:
        """Return the JSON that a command prints, whatever its exit code."""
        return orjson.loads(self._bash(f"{command} --json", stdout=subprocess.PIPE).stdout)

    def _bash(
        self, text: str, *, check: bool = False, stdout: int | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["bash", "-euc", text],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            timeout=_COMMAND_S,
            check=check,
        )


@dataclass(frozen=True)
class _Camera:
    """Opens pages as Airflow's first user, and takes pictures of them."""

    web: _Web
    context: BrowserContext

    def open(self, kind: type[OpenedPage], view: str = "", *, dark: bool = False) -> OpenedPage:
        one = kind(self.web, self.context, dark=dark)
        one.goto(view)
        return one

    def take(self, one: OpenedPage, name: str, *, width: int = _WIDTH, most: int = _MOST) -> None:
        """Take a picture of a page, as high as the page is and `most` allows, in pixels; close the page.

        Raises:
            AssertionError: the page shows a problem, or its console does.
        """
        one.page.set_viewport_size({"width": width, "height": _LEAST})
        height = min(most, int(one.page.evaluate("document.documentElement.scrollHeight")))
        one.page.set_viewport_size({"width": width, "height": height})
        shown = one.page.locator(".problem, .notice.error").all_inner_texts()
        wrong = one.faults() + shown
        assert not wrong, f"{name}: {wrong}"
        one.page.screenshot(path=FOLDER / f"{name}.png")
        print(f"wrote docs/images/{name}.png, {width} x {height}", flush=True)
        one.close()


def main() -> None:
    with opened_home() as (home, ends):
        checkout = copy_checkout(home)
        ends.callback(servers.end_home, checkout / ".waybill")
        database = f"postgresql://postgres@/shop?host={checkout}/.waybill/postgres"
        path = os.pathsep.join(
            [str(Path(sys.executable).parent), os.environ["PATH"], str(psql_folder())]
        )
        connections = orjson.dumps({"shop_db": database}).decode()
        own = {"PATH": path, "WAYBILL_SOURCES__CONNECTIONS": connections}
        shell = _Shell(checkout, {**os.environ, **stack_variables(checkout), **own})
        try:
            shell.run("waybill up")
            _work(shell)
            with opened_chromium() as browser:
                _take_all(shell, _camera(checkout, browser))
        finally:
            shell.run("waybill down")


def _work(shell: _Shell) -> None:
    """Have four pipelines take in what they read, until all of it is delivered or parked."""
    shell.run(_SALES)
    page = servers.CHECKOUT / "docs" / "first-rows.md"
    shell.run("\n".join(one.text for one in blocks(page) if '"$pg ' in one.text))
    for name in ("flights", "weather"):  # last: they keep Spark busy
        shell.run(f"waybill pipelines deploy {name} --unpause")
    _wait("the sources are read", lambda: _all_read(shell))
    _wait_for_rest(shell)


def _all_read(shell: _Shell) -> bool:
    states = {one["pipeline"]: one["state"] for one in shell.ask("waybill sources status")}
    assert "failed" not in states.values(), states
    return all(states[name] == "success" for name in _READ_ONCE)


def _wait_for_rest(shell: _Shell) -> None:
    def rests() -> bool:
        report = shell.ask("waybill balance")
        return not report["in_flight"] and not report["unaccounted"]

    _wait("all is delivered or parked", rests)
    shell.run("waybill balance")


def _wait(what: str, happened: Callable[[], bool]) -> None:
    print(f"waiting until {what}", flush=True)
    deadline = time.monotonic() + _REST_S
    while not happened():
        assert time.monotonic() < deadline, f"{what}: not so within {_REST_S:.0f} s"
        time.sleep(_LOOK_S)


def _camera(checkout: Path, browser: Browser) -> _Camera:
    airflow = Settings(home=checkout / ".waybill").airflow
    assert airflow.password is not None, "stack.env has no password of Airflow"
    web = _Web(airflow.url, {airflow.user: airflow.password.get_secret_value()})
    return _Camera(web, sign_in(browser, web, airflow.user))


def _take_all(shell: _Shell, camera: _Camera) -> None:
    parked = camera.open(OpenedPage)
    expect(parked.rows().first).to_be_visible()
    camera.take(parked, "parked-events")
    [group] = shell.ask(f"waybill parked list {_GROUP}")
    one = camera.open(OpenedPage, hash_of(id=group["id"]))
    expect(one.frame.locator(".event-card")).to_be_visible()
    camera.take(one, "parked-group")
    [sample] = shell.ask(f"waybill parked sample {_GROUP} --number 1")
    shell.run("waybill pipelines deploy include/fixes/flights")
    shell.run(f"waybill parked replay {_GROUP} --wait 600")
    _wait_for_rest(shell)
    event_id = sample["event"]["id"]
    trails = camera.open(TrailsPage, hash_of(id=event_id))
    verdict = trails.frame.locator(f"article[data-event='{event_id}'] > header .verdict")
    expect(verdict).to_contain_text("Delivered")
    camera.take(trails, "trail", most=_MOST_OF_A_TRAIL)
    for dark in (False, True):
        overview = camera.open(_OverviewPage, dark=dark)
        lags = overview.frame.locator("td[data-label='Lag'] a")
        expect(lags).to_have_count(_PIPELINES, timeout=_MEASURED_MS)
        rates = overview.frame.locator("td[data-label='In/s'] a")
        expect(rates.first).not_to_have_text(re.compile("^0"), timeout=_MINUTES_MS)
        if dark:
            camera.take(overview, "overview-narrow", width=_NARROW, most=_MOST_NARROW)
        else:
            camera.take(overview, "overview")


if __name__ == "__main__":
    main()
