"""The page "Sources": how the last run of each source is, and stopping one at its next page."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import expect
from tests.ui.opened_page import OpenedPage, hash_of

from waybill.ledger import RunFigures, begin_run, end_run, tell_run, wait_run

HOSTILE = "so-<img src=x onerror=alert(1)>"


class OpenedSources(OpenedPage):
    """The page "Sources"."""

    plugin, path, title = "/plugin/waybill-sources", "/waybill/sources", "Sources"

    def line(self, pipeline_id):
        return self.frame.locator(f"tr[data-id='{pipeline_id}']")


@pytest.fixture(scope="module")
def lines(web):
    lot, tracker = web.lot, web.lot.tracker
    for key, name, connector in (
        ("a", "so-orders", "sql"),
        ("b", "so-parts", "csv"),
        ("c", "so-new", "files"),
        ("d", "so-waits", "kafka"),
        ("x", HOSTILE, "kafka"),
    ):
        deploy(lot, f"pl-so-{key}", name, "so-<b>team", connector)
    run = begin_run(tracker, "pl-so-a", node="node-7")
    going = RunFigures(
        read=41_200, settled=40_000, parked=3, pages=40, rate_per_s=1234.5,
        position="updated_at 2026-11-21T10:00:00Z", behind=7260, unit="seconds",
    )  # fmt: skip
    tell_run(tracker, "pl-so-a", run, going)
    # a minute without a word is silence: these tests may take longer
    lot.sql(
        "UPDATE source_runs SET told_at = now() + interval '1 hour' WHERE pipeline_id = 'pl-so-a'"
    )
    run = begin_run(tracker, "pl-so-b", node="node-7")
    end_run(tracker, "pl-so-b", run, RunFigures(read=20, pages=1, behind=0, unit="rows"), state="success")  # fmt: skip
    run = begin_run(tracker, "pl-so-d", node="node-7")
    wait_run(tracker, "pl-so-d", run, RunFigures(read=700, pages=7), waits_for="share")
    run = begin_run(tracker, "pl-so-x", node=HOSTILE)
    odd = RunFigures(position=f"file {HOSTILE}", behind=12_000_000, unit="bytes")
    end_run(tracker, "pl-so-x", run, odd, state="failed", error=f"no topic {HOSTILE}")
    yield lot
    lot.sql("DELETE FROM source_runs WHERE pipeline_id LIKE 'pl-so-%'")
    lot.sql("DELETE FROM pipeline_versions WHERE pipeline_id LIKE 'pl-so-%'")
    lot.sql("DELETE FROM pipelines WHERE id LIKE 'pl-so-%'")


def deploy(lot, pipeline_id, name, team, connector):
    lot.sql(
        "INSERT INTO pipelines (id, name, team) VALUES (:id, :name, :team)",
        id=pipeline_id, name=name, team=team,
    )  # fmt: skip
    lot.sql(
        "INSERT INTO pipeline_versions (pipeline_id, number, version, declaration, deployed_by) "
        "VALUES (:id, 1, 'v1', :declaration, 'test')",
        id=pipeline_id,
        declaration=json.dumps({"source": {"connector": connector}, "schedule": "30 4 * * *"}),
    )


@pytest.fixture
def open_sources(open_as):
    return partial(open_as, OpenedSources)


def test_each_source_shows_its_run_what_is_left_and_when_it_succeeded_and_failed(
    open_sources, lines
):
    one = open_sources(hash_of(words="so-"))
    expect(one.frame.get_by_role("heading", level=1)).to_have_text("Sources")
    expect(one.rows()).to_have_count(5)
    going = one.line("pl-so-a")
    for words in (
        "running",
        "41,200",
        "3 parked",
        "40,000 settled",
        "1,235",
        "2 h 1 min",
        "node-7",
    ):
        expect(going).to_contain_text(words)
    expect(going).to_contain_text("updated_at 2026-11-21T10:00:00Z")
    expect(going).to_contain_text("04:30")
    expect(one.line("pl-so-b")).to_contain_text("0 rows")
    expect(one.line("pl-so-b").get_by_role("button")).to_have_count(0)
    expect(one.line("pl-so-c")).to_contain_text("never")
    waits = one.line("pl-so-d")
    for words in ("waiting", "waits: its team is over its share", "700", "for "):
        expect(waits).to_contain_text(words)
    expect(waits.get_by_role("button", name="Stop")).to_have_count(1)
    failed = one.line("pl-so-x")
    for words in (HOSTILE, f"no topic {HOSTILE}", f"file {HOSTILE}", "12 MB"):
        expect(failed).to_contain_text(words)
    if place := os.environ.get("SHOTS_OF_PAGES"):
        one.page.screenshot(path=Path(place) / "sources.png", full_page=True)
        one.resize(400, 860)
        one.page.screenshot(path=Path(place) / "sources-narrow.png", full_page=True)


def test_sources_are_found_by_words_and_state_and_an_empty_answer_says_what_to_do(
    open_sources, lines
):
    one = open_sources(hash_of(words="so-", state="failed"), in_airflow=True, dark=True)
    expect(one.rows()).to_have_count(1)
    one.frame.get_by_role("radio", name="running", exact=True).check(force=True)
    expect(one.line("pl-so-a")).to_have_count(1)
    expect(one.line("pl-so-x")).to_have_count(0)
    one.frame.get_by_role("searchbox").fill("nothing like it")
    expect(one.frame.locator(".empty")).to_contain_text("No source matches.")


def test_nothing_scrolls_sideways_however_narrow_the_window_is(open_sources, lines):
    one = open_sources(hash_of(words="so-"))
    for width in (1440, 700, 400):
        one.resize(width, 860)
        wide = one.frame.locator("html").evaluate("e => e.scrollWidth - e.clientWidth")
        assert wide == 0, width


def test_a_run_is_stopped_with_a_reason(open_sources, lines):
    one = open_sources(hash_of(words="so-orders"))
    one.line("pl-so-a").get_by_role("button", name="Stop").click()
    one.frame.get_by_label("Reason").fill("the source is too slow")
    one.confirm()
    expect(one.line("pl-so-a")).to_contain_text("stopping")
    expect(one.line("pl-so-a")).to_contain_text("stopped by")
    expect(one.line("pl-so-a").get_by_role("button")).to_have_count(0)
    [[asked_by]] = lines.sql("SELECT stop_asked_by FROM source_runs WHERE pipeline_id = 'pl-so-a'")
    assert asked_by
