"""The page "Where is that event?" as a user has it: inside Airflow, in Chromium."""

from __future__ import annotations

from playwright.sync_api import FrameLocator, Locator
from tests.ui.opened_page import OpenedPage

PLUGIN = "/plugin/waybill-trails"
PAGE = "/waybill/trails"


class TrailsPage(OpenedPage):
    """One browser window with the page in Airflow's frame."""

    @property
    def frame(self) -> FrameLocator:
        return self.page.frame_locator("iframe[title='Where is that event?']")

    def goto(self, view: str) -> None:
        self.page.goto(f"{self.web.url}{PLUGIN}{PAGE if view else ''}{view}")
        self.frame.locator("main:not([aria-busy])").wait_for()

    def choose(self, way: str) -> None:
        self.frame.get_by_role("tab", name=way).click()

    def find(self) -> None:
        self.frame.get_by_role("button", name="Find").click()

    def trail(self, event_id: str) -> Locator:
        return self.frame.locator(f"article[data-event='{event_id}']")

    def queries(self) -> Locator:
        return self.frame.locator("[data-query]")
