"""The page "Capacity": waits, tasks, nodes and workers over time, and each decision with its reasons."""

from __future__ import annotations

import time
from functools import partial

import pytest
from playwright.sync_api import expect
from tests.ui.opened_page import OpenedPage, hash_of

from waybill.capacity import (
    DelayReport,
    DryRunNodes,
    FixedThresholds,
    NodeReport,
    scale,
    write_report,
    write_waits,
)
from waybill.capacity.waits import WaitGroup

HOSTILE = "<img src=x onerror=alert(1)>"
TABLES = ("capacity_nodes", "task_waits", "capacity_rounds", "capacity_versions")


class OpenedCapacity(OpenedPage):
    """The page "Capacity"."""

    plugin, path, title = "/plugin/waybill-capacity", "/waybill/capacity", "Capacity"

    def plot(self, what):
        return self.frame.locator(f".plot[data-chart='{what}']")

    def refresh(self):
        self.frame.get_by_role("button", name="Refresh").click()


@pytest.fixture
def lot(web):
    def forget():
        for table in TABLES:
            web.lot.sql(f"DELETE FROM {table}")

    forget()
    yield web.lot
    forget()


def measured(lot):
    """Let tasks wait, one node report, and the coordinator decide; then the same a while ago."""
    groups = (
        WaitGroup("aviation", "csv_file", "default", 58, 4, 120.0, 150.0, 200.0),
        WaitGroup(HOSTILE, "csv_file", HOSTILE, 2, 0, 5.0, 6.0, 7.0),
    )
    report = NodeReport(6, 6, 0.42, 0.1, 0.3, f"5 -> 6 workers: {HOSTILE}")
    with lot.tracker.transaction() as connection:
        write_report(connection, "node-1", "ingestion", 4, report)
        write_waits(connection, DelayReport(time.time(), 60, 6, 1.0, 20, 20, 150, 200, groups))
    dry = {"ingestion": DryRunNodes(), "spark": DryRunNodes()}
    scale(lot.tracker, FixedThresholds({}), dry, units={"ingestion": 4, "spark": 2})


@pytest.fixture
def open_capacity(open_as):
    return partial(open_as, OpenedCapacity)


def test_waits_nodes_and_decisions_are_drawn_and_listed_with_their_reasons(open_capacity, lot):
    measured(lot)
    one = open_capacity()
    expect(one.frame.get_by_role("heading", level=1)).to_have_text("Capacity")
    expect(one.frame.locator(".totals")).to_contain_text("60")
    for what in ("waits", "tasks", "nodes ingestion", "units ingestion", "cpu ingestion"):
        assert one.plot(what).locator("path.line").first.get_attribute("d").startswith("M"), what
    expect(one.plot("nodes ingestion").locator(".happened")).to_have_count(1)
    expect(one.frame.locator("body")).to_contain_text(HOSTILE)
    expect(one.frame.locator("body")).to_contain_text("node-1")
    expect(one.frame.locator(".decisions li")).to_have_count(1)
    expect(one.frame.locator(".decisions")).to_contain_text("1 → 4 nodes")
    expect(one.frame.locator(".decisions")).to_contain_text("unit seconds wait")


def test_where_nothing_was_measured_the_page_says_which_job_to_look_at(open_capacity, lot):
    one = open_capacity()
    expect(one.frame.locator(".callout")).to_contain_text("measure_delays")
    measured(lot)
    one.refresh()
    expect(one.frame.locator(".callout")).to_have_count(0)


def test_a_range_is_kept_in_the_address_also_in_airflow_and_nothing_scrolls_sideways(
    open_capacity, lot
):
    measured(lot)
    one = open_capacity()
    one.frame.get_by_role("radio", name="1 h", exact=True).check(force=True)
    expect(one.plot("waits").locator("svg")).to_have_attribute("viewBox", "0 0 59 100")
    assert one.page.url.endswith("#span=1h")
    for width in (1440, 700, 400):
        one.resize(width, 860)
        wide = one.frame.locator("html").evaluate("e => e.scrollWidth - e.clientWidth")
        assert wide == 0, width
    other = open_capacity(hash_of(span="24h"), in_airflow=True, dark=True)
    expect(other.plot("waits").locator("svg")).to_have_attribute("viewBox", "0 0 95 100")
