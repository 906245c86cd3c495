"""The page "Where is that event?" in Chromium."""

from __future__ import annotations

from playwright.sync_api import Locator
from tests.ui.opened_page import OpenedPage


class TrailsPage(OpenedPage):
    """One browser window with the page."""

    plugin, path, title = "/plugin/waybill-trails", "/waybill/trails", "Where is that event?"

    def choose(self, way: str) -> None:
        self.frame.get_by_role("tab", name=way).click()

    def find(self) -> None:
        self.frame.get_by_role("button", name="Find").click()

    def trail(self, event_id: str) -> Locator:
        return self.frame.locator(f"article[data-event='{event_id}']")

    def queries(self) -> Locator:
        return self.frame.locator("[data-query]")
