"""The page "Overview": a line a pipeline, found by words, and from each number what is behind it."""

from __future__ import annotations

import json
import re
import time
from functools import partial
from urllib.parse import parse_qsl

import pytest
from playwright.sync_api import expect
from tests.integration.parking_lot import make_event
from tests.ui.opened_page import OpenedPage, hash_of

from waybill.ledger import RunFigures, begin_run, end_run
from waybill.reconciliation import BreachKey, open_breach

HOSTILE = "li-<img src=x onerror=alert(1)>&id=7#x?y=100%25+'\"é\u202e"
LINES = 120


class OpenedOverview(OpenedPage):
    """The page "Overview"."""

    plugin, path, title = "/plugin/waybill-overview", "/waybill/overview", "Overview"

    def find(self, words):
        self.frame.get_by_role("searchbox").fill(words)

    def line(self, name):
        return self.frame.get_by_role("row", name=name)

    def cell(self, name, label):
        return self.line(name).locator(f"td[data-label='{label}']")

    def behind(self, name, label):
        """Where the first link of a cell leads: a page, and what it shows."""
        href = self.cell(name, label).get_by_role("link").first.get_attribute("href")
        page, _, view = href.partition("#")
        return page, dict(parse_qsl(view))


class OpenedAtItsOldAddress(OpenedOverview):
    """The same page, as links kept since before have it."""

    plugin, path = "/plugin/waybill-pipelines", "/waybill/pipelines"


@pytest.fixture(scope="module")
def lines(web):
    lot = web.lot
    for number in range(LINES):
        deploy(lot, f"pl-li-{number:03d}", f"li-{number:03d}", "li-team")
    deploy(lot, "pl-li-x", HOSTILE, "li-<b>")
    lot.sql(
        "INSERT INTO topic_looks (topic, at, written, read, lag_s) VALUES "
        "('events.li-team.warehouse', now() - interval '20 minutes', 9, 4, 4000), "
        "('events.li-<b>.warehouse', now(), 9, 4, 3)"
    )
    of = {"name": "<i>order</i>", "stage": "mapping", "pipeline_id": "pl-li-x"}
    for error, number, replaying, hours in (
        ("type_mismatch", 1194, 2, 3),
        ("pipeline_held", 40, 0, 5),
    ):
        given = {"code": error, "message": "secret@example.com", **of}
        lot.park([make_event(n, **given) for n in range(number)], hours)
        lot.sql(
            "UPDATE parked_partitions SET replaying = :replaying, "
            "last_parked_at = now() - :hours * interval '1 hour' "
            "WHERE pipeline_id = 'pl-li-x' AND error_type = :error",
            error=error, replaying=replaying, hours=hours,
        )  # fmt: skip
    lot.sql(
        "INSERT INTO pipeline_holds (pipeline_id, cause, held_by) VALUES ('pl-li-x', :cause, 'w')",
        cause=json.dumps({"kind": "storm"}),
    )
    with lot.tracker.transaction() as connection:
        for kind in ("quiet", "late"):
            key = BreachKey("pl-li-x", kind)
            open_breach(connection, key, words=f"{HOSTILE} is {kind}", tell=False)
    for name, state in (("x", "failed"), ("001", "success")):
        run = begin_run(lot.tracker, f"pl-li-{name}", node="n")
        end_run(lot.tracker, f"pl-li-{name}", run, RunFigures(), state=state, error="secret")
    begin_run(lot.tracker, "pl-li-002", node="n")
    keep_running(lot)
    minute = int(time.time() // 60)
    lot.sql(
        "INSERT INTO ledger_minutes (pipeline_id, event_name, stage, minute, in_first, passed) "
        "SELECT 'pl-li-x', 'order', stage, :minute - n, 6000, 6000 FROM generate_series(-30, 70) AS n, "
        "unnest(ARRAY['ingestion', 'mapping']) AS stage",
        minute=minute,
    )
    lot.sql(
        "INSERT INTO delivered_minutes (pipeline_id, minute, delivered) "
        "SELECT 'pl-li-x', :minute - n, 3000 FROM generate_series(-30, 70) AS n",
        minute=minute,
    )
    yield lot
    lot.sql(
        "DELETE FROM segments USING parked_partitions AS p WHERE p.id = partition_id "
        "AND p.pipeline_id LIKE 'pl-li-%'"
    )
    for table in (
        "ledger_minutes",
        "delivered_minutes",
        "pipeline_holds",
        "parked_partitions",
        "breaches",
        "source_runs",
        "pipeline_versions",
    ):
        lot.sql(f"DELETE FROM {table} WHERE pipeline_id LIKE 'pl-li-%'")
    lot.sql("DELETE FROM pipelines WHERE id LIKE 'pl-li-%'")


def keep_running(lot):
    lot.sql(
        "UPDATE source_runs SET told_at = now() + interval '1 hour' WHERE pipeline_id = 'pl-li-002'"
    )


def deploy(lot, pipeline_id, name, team):
    lot.sql(
        "INSERT INTO pipelines (id, name, team) VALUES (:id, :name, :team)",
        id=pipeline_id, name=name, team=team,
    )  # fmt: skip
    lot.sql(
        "INSERT INTO pipeline_versions (pipeline_id, number, version, declaration, deployed_by) "
        "VALUES (:id, 1, 'v1', '{\"events\": {}, \"destination\": \"warehouse\"}', 'test')",
        id=pipeline_id,
    )


@pytest.fixture
def open_overview(open_as, lines):
    return partial(open_as, OpenedOverview)


SHARE_OF_A_MINUTE = {100: re.compile(r"\b1([01][0-9]|20)\b"), 50: re.compile(r"\b(5[0-9]|60)\b")}
"""Rates to what the page shows: the minute that is on has all its events from the beginning."""


def test_a_line_says_how_its_pipeline_is_and_each_number_leads_to_what_is_behind_it(open_overview):
    one = open_overview(hash_of(words=HOSTILE))
    line = one.line(HOSTILE)
    held = re.compile(r"nearly all would park, (just now|\d+ minutes? ago)")
    for words in (held, "li-<b> → warehouse", "2 replaying", "3 hours ago"):  # fmt: skip
        expect(line).to_contain_text(words)
    parked = {"pipeline": HOSTILE}
    for label, shown, page, view in (
        ("In/s", SHARE_OF_A_MINUTE[100], "balance", {"span": "1h", "pipeline": "pl-li-x"}),
        ("Out/s", SHARE_OF_A_MINUTE[50], "balance", {"span": "1h", "pipeline": "pl-li-x"}),
        ("Lag", "3 s", "clusters", {"team": "li-<b>"}),
        ("Parked", "1,234", "parked", parked),
        ("Held", "40", "parked", parked | {"error_type": "pipeline_held"}),
        ("Breaches", "2", "balance", {"pipeline": "pl-li-x"}),
    ):
        expect(one.cell(HOSTILE, label).get_by_role("link").first).to_contain_text(shown)
        assert one.behind(HOSTILE, label) == (page, view), label
    label = line.get_by_role("img").get_attribute("aria-label")
    assert label.startswith("360,000 events taken in within 60 minutes"), label
    assert label.endswith("180,000 delivered"), label
    assert line.locator(".spark-line path").count() == 3
    for secret in ("secret@example.com", "secret"):
        expect(one.frame.locator("main")).not_to_contain_text(secret)
    expect(one.frame.locator("main img, main b, main i, main script")).to_have_count(0)


def test_links_show_the_parked_events_and_the_breaches_of_that_pipeline(open_overview):
    one = open_overview(hash_of(words=HOSTILE))
    one.cell(HOSTILE, "Held").get_by_role("link").click()
    expect(one.frame.get_by_label("Pipeline", exact=True)).to_have_value(HOSTILE)
    expect(one.rows()).to_have_count(1)
    expect(one.rows()).to_contain_text("40")
    one.goto(hash_of(words=HOSTILE))
    one.cell(HOSTILE, "Breaches").get_by_role("link").click()
    expect(one.frame.get_by_role("heading", level=1)).to_have_text(HOSTILE)
    expect(one.frame.locator("article.finding:not(.over)")).to_have_count(2)


def test_the_last_run_is_opened_in_airflow(open_overview):
    one = open_overview(hash_of(words="li-001"), in_airflow=True)
    asked = []

    def answer(route):
        asked.append(route.request.url.partition("/waybill/")[2])
        route.fulfill(json={"dag_id": "ingest_li-001", "run_id": "manual__1+2/3"})

    one.page.route("**/last-run", answer)
    one.cell("li-001", "Last run").get_by_role("button").press("Enter")
    expect(one.page).to_have_url(re.compile(r"/dags/ingest_li-001/runs/manual__1%2B2%2F3$"))
    assert asked == ["api/pipelines/pl-li-001/last-run"]
    one.expected.append("404")  # Airflow of this test has no such DAG


def test_a_run_that_airflow_does_not_have_is_said(open_overview, lines):
    one = open_overview(hash_of(words="li-00"))
    one.expected.append("404")
    expect(one.cell("li-002", "State")).to_contain_text("running")
    expect(one.cell("li-003", "Last run")).to_have_text("none yet")
    one.cell("li-002", "Last run").get_by_role("button").click()
    expect(one.frame.locator(".notice")).to_contain_text("ingest_li-002")


def test_a_lag_says_how_old_it_is(open_overview, lines):
    lines.sql(
        "UPDATE topic_looks SET at = now() - interval '20 minutes' "
        "WHERE topic = 'events.li-team.warehouse'"
    )
    one = open_overview(hash_of(words="li-000"))
    expect(one.cell("li-000", "Lag")).to_contain_text("1 h 6 min")
    expect(one.cell("li-000", "Lag")).to_contain_text("as of 20 minutes ago")


def test_what_is_silent_stopped_or_away_is_counted_above_the_lines(open_overview, lines):
    lines.sql("UPDATE source_runs SET told_at = now() - interval '1 hour' WHERE pipeline_id = 'pl-li-002'")  # fmt: skip
    lines.sql("INSERT INTO destination_states (destination, waiting_since) VALUES ('warehouse', now())")  # fmt: skip
    try:
        one = open_overview(hash_of(words="li-00", attention="true"))
        expect(one.frame.locator("tr[data-id]")).to_have_count(10)
        expect(one.frame.locator(".tile")).to_have_text(
            ["10pipelines", "0held", "0open breaches", "0with a failed run",
             "1with a silent run", "10with a destination away"]
        )  # fmt: skip
        expect(one.cell("li-003", "State")).to_contain_text("destination away")
    finally:
        lines.sql("DELETE FROM destination_states WHERE destination = 'warehouse'")
        keep_running(lines)


def test_the_keyboard_turns_pages_and_stays_at_the_button(open_overview):
    one = open_overview(hash_of(words="li-team"))
    rows = one.frame.locator("tr[data-id]")
    expect(rows).to_have_count(50)
    forth = one.frame.get_by_role("button", name="Next page")
    forth.focus()
    one.page.keyboard.press("Enter")
    expect(rows.first).to_have_attribute("data-id", "pl-li-050")
    expect(forth).to_be_focused()
    assert forth.evaluate("e => getComputedStyle(e).outlineStyle") == "solid"
    one.page.keyboard.press("Space")
    expect(rows).to_have_count(20)
    expect(one.frame.get_by_role("button", name="First page")).to_be_focused()
    one.frame.get_by_role("button", name="Refresh").press("Enter")
    expect(one.frame.locator(".table-frame:not([aria-busy])")).to_have_count(1)
    expect(one.frame.get_by_role("button", name="Refresh")).to_be_focused()


def test_pages_go_by_name_there_and_back(open_overview):
    one = open_overview(hash_of(words="li-team"))
    rows = one.frame.locator("tr[data-id]")
    expect(rows).to_have_count(50)
    expect(one.frame.locator(".shown")).to_have_text(f"50 pipelines of {LINES}, by name")
    first = rows.first.get_attribute("data-id")
    one.frame.get_by_role("button", name="Next page").click()
    expect(rows.first).to_have_attribute("data-id", "pl-li-050")
    one.frame.get_by_role("button", name="Next page").click()
    expect(rows).to_have_count(20)
    expect(one.frame.get_by_role("button", name="Next page")).to_be_disabled()
    one.frame.get_by_role("button", name="Previous page").click()
    expect(rows.first).to_have_attribute("data-id", "pl-li-050")
    one.frame.get_by_role("button", name="First page").click()
    expect(rows.first).to_have_attribute("data-id", first)


def test_what_needs_a_look_is_found_and_kept_in_the_address(open_overview):
    one = open_overview(hash_of(words="li-00"), in_airflow=True, dark=True)
    expect(one.frame.locator("html.dark")).to_have_count(1)
    expect(one.frame.locator("tr[data-id]")).to_have_count(10)
    one.find("LI-")
    one.frame.get_by_role("checkbox").check()
    expect(one.frame.locator("tr[data-id]")).to_have_count(1)
    expect(one.frame.locator(".tile.warn")).to_contain_text("1")
    expect(one.frame.locator(".tile.bad")).to_have_text(["2open breaches", "1with a failed run"])
    expect(one.page).to_have_url(
        re.compile(r"/plugin/waybill-overview/waybill/overview#words=LI-&attention=true$")
    )
    one.find("nothing like this")
    expect(one.frame.locator(".empty")).to_contain_text("No pipeline matches")


def test_an_old_link_into_airflow_shows_the_page_with_its_view(open_as, lines):
    one = open_as(OpenedAtItsOldAddress, hash_of(words="li-00"), in_airflow=True)
    expect(one.frame.get_by_role("heading", level=1)).to_have_text("Overview")
    expect(one.frame.locator("tr[data-id]")).to_have_count(10)
    expect(one.page).to_have_url(
        re.compile(r"/plugin/waybill-overview/waybill/overview#words=li-00$")
    )
    alone = open_as(OpenedAtItsOldAddress, hash_of(words="li-00"))
    expect(alone.frame.locator("tr[data-id]")).to_have_count(10)


def test_the_keyboard_reaches_every_number_and_stays_where_it_is_when_lines_are_drawn_anew(open_overview):  # fmt: skip
    one = open_overview(hash_of(words=HOSTILE))
    one.frame.get_by_role("checkbox").focus()
    reached = []
    for _ in range(9):
        one.page.keyboard.press("Tab")
        reached.append(one.page.evaluate("document.activeElement.closest('td, th')?.dataset.label"))
    assert reached == [None, "In/s", "Out/s", "Lag", "Parked", "Parked", "Held", "Breaches", "Last run"]  # fmt: skip
    one.page.evaluate("() => document.dispatchEvent(new Event('visibilitychange'))")
    expect(one.frame.locator(".table-frame:not([aria-busy])")).to_have_count(1)
    expect(one.cell(HOSTILE, "Last run").get_by_role("button")).to_be_focused()


def test_a_screen_reader_finds_nothing_wrong_and_nothing_scrolls_sideways(open_overview):
    one = open_overview(hash_of(words="li-00"))
    one.find("li-")
    expect(one.frame.locator("tr[data-id]")).to_have_count(50)
    one.frame.get_by_role("checkbox").check()
    expect(one.frame.locator("tr[data-id]")).to_have_count(1)
    one.look_over("overview")
    expect(one.frame.get_by_role("cell")).to_have_count(9)  # as cards, too
    expect(one.frame.get_by_role("columnheader")).to_have_count(10)
    for width in (1440, 1000, 768):
        one.resize(width, 860)
        wide = one.frame.locator("html").evaluate("e => e.scrollWidth - e.clientWidth")
        assert wide == 0, width
    one.find("nothing like this")
    expect(one.frame.locator(".empty")).to_contain_text("No pipeline matches")
