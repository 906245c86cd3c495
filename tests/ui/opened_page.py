"""The page as a user has it: inside Airflow, in Chromium, with all that went wrong noted down."""

from __future__ import annotations

from urllib.parse import urlencode, urlsplit

from playwright.sync_api import Browser, BrowserContext, FrameLocator, Locator, expect
from tests.ui.web_server import Web

PLUGIN = "/plugin/waybill-parked"
PAGE = "/waybill/parked"
_TIMEOUT_MS = 60_000
expect.set_options(timeout=_TIMEOUT_MS)


def sign_in(browser: Browser, web: Web, user: str) -> BrowserContext:
    """Sign in by Airflow's own page."""
    context = browser.new_context(viewport={"width": 1440, "height": 950}, accept_downloads=True)
    context.set_default_timeout(_TIMEOUT_MS)
    page = context.new_page()
    page.goto(f"{web.url}/auth/login/")
    page.get_by_label("Username").fill(user)
    page.locator("input[type=password]").fill(web.passwords[user])
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(lambda url: "/auth/login" not in url)
    page.close()
    return context


def hash_of(**view: object) -> str:
    """Return the part of the address behind `#` for a view."""
    return f"#{urlencode(view)}"


class OpenedPage:
    """One browser window with the page in Airflow's frame."""

    plugin, path, title = PLUGIN, PAGE, "Parked events"

    def __init__(self, web: Web, context: BrowserContext, *, dark: bool) -> None:
        self.web = web
        self.expected: list[str] = []
        """Parts of console lines that a test provokes."""
        self._said: list[str] = []
        self._elsewhere: list[str] = []
        self.context = context
        self.page = context.new_page()
        self.page.emulate_media(color_scheme="dark" if dark else "light")
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self._said.append(f"uncaught: {error}"))
        self.page.on("request", self._check)
        self.page.on("dialog", self._dialog)

    @property
    def frame(self) -> FrameLocator:
        return self.page.frame_locator(f"iframe[title='{self.title}']")

    def goto(self, view: str) -> None:
        """Open the page with what stands behind `#`, as from a shared link."""
        self.page.goto(f"{self.web.url}{self.plugin}{self.path if view else ''}{view}")
        self.frame.locator("main:not([aria-busy])").wait_for()

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
