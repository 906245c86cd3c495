"""The page "Pipelines": a line each, found by words, with rates behind the lines."""

from __future__ import annotations

import json
import re
import time
from functools import partial

import pytest
from playwright.sync_api import expect
from tests.ui.opened_page import OpenedPage, hash_of

HOSTILE = "li-<img src=x onerror=alert(1)>"
LINES = 120


class OpenedPipelines(OpenedPage):
    """The page "Pipelines"."""

    plugin, path, title = "/plugin/waybill-pipelines", "/waybill/pipelines", "Pipelines"

    def find(self, words):
        self.frame.get_by_role("searchbox").fill(words)

    def line(self, name):
        return self.frame.locator("tr[data-id]", has=self.frame.get_by_role("link", name=name, exact=True))  # fmt: skip


@pytest.fixture(scope="module")
def lines(web):
    lot = web.lot
    for number in range(LINES):
        deploy(lot, f"pl-li-{number:03d}", f"li-{number:03d}", "li-team")
    deploy(lot, "pl-li-x", HOSTILE, "li-<b>")
    lot.sql(
        "INSERT INTO topic_looks (topic, at, written, read, lag_s) VALUES "
        "('events.li-team.warehouse', now() - interval '20 minutes', 9, 4, 4000)"
    )
    lot.sql(
        "INSERT INTO parked_partitions (pipeline_id, event_name, stage, error_type, parked, "
        "replaying, last_message, last_parked_at) VALUES "
        "('pl-li-x', '<i>order</i>', 'mapping', 'type_mismatch', 1234, 2, 'secret@example.com', "
        "now() - interval '3 hours')"
    )
    lot.sql(
        "INSERT INTO pipeline_holds (pipeline_id, cause, held_by) VALUES ('pl-li-x', :cause, 'w')",
        cause=json.dumps({"kind": "storm"}),
    )
    minute = int(time.time() // 60)
    lot.sql(
        "INSERT INTO ledger_minutes (pipeline_id, event_name, stage, minute, in_first, passed) "
        "SELECT 'pl-li-x', 'order', stage, :minute - n, 6000, 6000 FROM generate_series(0, 70) AS n, "
        "unnest(ARRAY['ingestion', 'mapping']) AS stage",
        minute=minute,
    )
    lot.sql(
        "INSERT INTO delivered_minutes (pipeline_id, minute, delivered) "
        "SELECT 'pl-li-x', :minute - n, 3000 FROM generate_series(0, 70) AS n",
        minute=minute,
    )
    yield lot
    for table in (
        "ledger_minutes",
        "delivered_minutes",
        "pipeline_holds",
        "parked_partitions",
        "pipeline_versions",
    ):
        lot.sql(f"DELETE FROM {table} WHERE pipeline_id LIKE 'pl-li-%'")
    lot.sql("DELETE FROM pipelines WHERE id LIKE 'pl-li-%'")


def deploy(lot, pipeline_id, name, team):
    lot.sql(
        "INSERT INTO pipelines (id, name, team) VALUES (:id, :name, :team)",
        id=pipeline_id, name=name, team=team,
    )  # fmt: skip
    lot.sql(
        "INSERT INTO pipeline_versions (pipeline_id, number, version, declaration, deployed_by) "
        "VALUES (:id, 1, 'v1', '{\"destination\": \"warehouse\"}', 'test')",
        id=pipeline_id,
    )


@pytest.fixture
def open_pipelines(open_as, lines):
    return partial(open_as, OpenedPipelines)


def test_a_line_says_what_comes_in_goes_out_waits_parks_and_failed_last(open_pipelines):
    one = open_pipelines(hash_of(words=HOSTILE))
    line = one.line(HOSTILE)
    expect(line.locator("[data-rate=in]")).to_have_text("100")
    expect(line.locator("[data-rate=out]")).to_have_text("50")
    label = line.locator(".spark-line").get_attribute("aria-label")
    assert label.startswith("360,000 events taken in within an hour"), label
    assert label.endswith("180,000 delivered"), label
    for words in ("held just now", "1,234", "2 replaying", "3 hours ago", "<i>order</i>", "li-<b> → warehouse"):  # fmt: skip
        expect(line).to_contain_text(words)
    expect(line.get_by_role("link", name="1,234")).to_have_attribute(
        "href", "parked#pipeline=li-%3Cimg+src%3Dx+onerror%3Dalert%281%29%3E"
    )
    expect(one.frame.locator("main")).not_to_contain_text("secret@example.com")
    expect(one.frame.locator("main img, main b, main i")).to_have_count(0)


def test_a_lag_says_how_old_it_is(open_pipelines):
    one = open_pipelines(hash_of(words="li-000"))
    expect(one.line("li-000")).to_contain_text("1 h 6 min")
    expect(one.line("li-000")).to_contain_text("as of 20 minutes ago")


def test_pages_go_by_name_there_and_back(open_pipelines):
    one = open_pipelines(hash_of(words="li-team"))
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


def test_what_needs_attention_is_found_and_kept_in_the_address(open_pipelines):
    one = open_pipelines(hash_of(words="li-00"), in_airflow=True, dark=True)
    expect(one.frame.locator("html.dark")).to_have_count(1)
    expect(one.frame.locator("tr[data-id]")).to_have_count(10)
    one.find("LI-")
    one.frame.get_by_role("checkbox").check()
    expect(one.frame.locator("tr[data-id]")).to_have_count(1)
    expect(one.frame.locator(".tile.warn")).to_contain_text("1")
    expect(one.page).to_have_url(
        re.compile(r"/plugin/waybill-pipelines/waybill/pipelines#words=LI-&attention=true$")
    )
    one.find("nothing like this")
    expect(one.frame.locator(".empty")).to_contain_text("No pipeline matches")


def test_lines_stay_where_rates_do_not_come(open_pipelines):
    one = open_pipelines()
    one.expected.append("503")
    one.page.route(
        "**/api/pipeline-rates*",
        lambda route: route.fulfill(status=503, json={"detail": "it took too long"}),
    )
    one.find("li-00")
    expect(one.frame.locator("tr[data-id]")).to_have_count(10)
    expect(one.frame.locator(".notice")).to_contain_text(
        "Rates are not known now: it took too long"
    )


def test_on_a_narrow_screen_the_page_does_not_scroll_sideways(open_pipelines):
    one = open_pipelines(hash_of(words="li-"), dark=True)
    one.frame.locator(".spark-line").first.wait_for()
    for width in (1440, 1000, 700, 400):
        one.resize(width, 860)
        wide = one.frame.locator("html").evaluate("e => e.scrollWidth - e.clientWidth")
        assert wide == 0, width
