"""The page "Clusters": how each is, over time, its teams, and each decision with its reason."""

from __future__ import annotations

import json
import re
from functools import partial

import pytest
from playwright.sync_api import expect
from tests.ui.clustered_teams import ClusteredTeams
from tests.ui.opened_page import OpenedPage, hash_of

HOSTILE = "cl-<img src=x onerror=alert(1)>"
HOT = {"topic": "events.cl-red.warehouse", "partition": 3, "waiting": 90_000, "share": 0.97}


class OpenedClusters(OpenedPage):
    """The page "Clusters"."""

    plugin, path, title = "/plugin/waybill-clusters", "/waybill/clusters", "Clusters"

    def cluster(self, name):
        return self.frame.get_by_role("article", name=f"Cluster {name}", exact=True)

    def plot(self, cluster, what):
        return self.frame.locator(f".plot[data-chart='{what} {cluster}']")

    def refresh(self):
        self.frame.get_by_role("button", name="Refresh").click()


@pytest.fixture(scope="module")
def teams(web):
    made = ClusteredTeams(web.lot)
    made.forget()
    made.cluster("default")
    made.cluster("second", cores=2)
    made.cluster("idle", cores=None, served=False)
    made.team("cl-red", cores=1.5, lag_s=40, hot=[HOT])
    made.team("cl-green", cores=0.4, lag_s=2)
    made.team(HOSTILE, cores=0.2, lag_s=3)
    for n in range(60):
        made.team(f"cl-small-{n:02d}", cores=0.001, lag_s=1)
    made.measured("default", lag_s=12, cores=1.2)
    spot = {"team": "cl-red", "topic": HOT["topic"], "partition": 3}
    made.measured("second", lag_s=45, cores=1.8, limit=2, hot=json.dumps([spot]))
    held = [
        {"name": "events.cl-red.warehouse", "kind": "fails", "why": "RetryError: no leader"},
        {"name": f"events.{HOSTILE}.x", "kind": "waits", "why": "for <b>its</b> turn"},
    ]
    serving = {"version": 2, "wanted": 50, "running": 47, "failing": 1, "stopped": 1, "held": held}
    made.reports("second", serving)
    places = {"cl-red": "second", "cl-green": "default", HOSTILE: "second"}
    places |= {f"cl-small-{n:02d}": "default" for n in range(60)}
    made.decided(
        places,
        [{"team": "cl-red", "old": "default", "new": "second", "kind": "hot",
          "reason": "hot: it took 1.50 of 4 cores of default; alone in second"}],
        by="coordinator", ago=90,
    )  # fmt: skip
    made.decided(
        places,
        [{"team": HOSTILE, "old": None, "new": "second", "kind": "asked",
          "reason": "moved by ann: <b>slow</b>"}],
        by="ann", ago=30,
    )  # fmt: skip
    made.grew("cl-red", ago=120)
    yield made
    made.forget()


@pytest.fixture
def open_clusters(open_as, teams):
    return partial(open_as, OpenedClusters)


def test_each_cluster_has_its_numbers_its_charts_and_its_largest_teams(open_clusters, teams):
    one = open_clusters()
    expect(one.frame.get_by_role("heading", level=1)).to_have_text("Clusters")
    expect(one.frame.get_by_role("article")).to_have_count(3)
    second = one.cluster("second")
    for words in ("40 s of 1 min", "at work", "1.7 of 2, needs 3", "cl-red", "partition 3: 90,000 events waiting"):  # fmt: skip
        expect(second).to_contain_text(words)
    expect(one.cluster("idle")).to_contain_text("no application")
    expect(one.cluster("default").locator(".team-lines li")).to_have_count(6)
    expect(one.cluster("default")).to_contain_text(f"{56 + teams.others()} more teams")
    for what in ("lag", "speed", "cores"):
        path = one.plot("second", what).locator("path.line").first.get_attribute("d")
        assert path.count("M") == 2, "a gap where nobody looked"
    expect(one.plot("second", "lag").locator(".happened")).to_have_count(2)


def test_what_is_not_served_is_told_with_why_and_hot_times_are_drawn(open_clusters, teams):
    one = open_clusters()
    second = one.cluster("second")
    told = second.locator(".serving")
    for words in ("processing: serving 47 of 50 topics; 1 fails, 1 stopped, 1 waits", "events.cl-red.warehouse fails: RetryError: no leader", "waits for <b>its</b> turn"):  # fmt: skip
        expect(told).to_contain_text(words)
    expect(one.cluster("default").locator(".serving")).to_have_count(0)
    plot = one.plot("second", "lag")
    assert plot.locator(".hot-times").get_attribute("d").count("M") in (7, 8)
    assert "hot at times: events.cl-red.warehouse/3" in plot.get_attribute("aria-label")
    plot.focus()
    one.page.keyboard.press("End")
    for _ in range(21):  # of five minutes each
        one.page.keyboard.press("ArrowLeft")
    expect(plot.locator(".hot-names")).to_have_text("hot: events.cl-red.warehouse/3")
    expect(one.plot("second", "cores").locator(".hot-times")).to_have_attribute("d", "")
    nothing = {"version": 2, "wanted": 1, "running": 0, "failing": 1, "stopped": 0, "held": []}
    end = {"epoch": 1, "at_s": 1.7e9, "why": "StopError: Spark has had no executor"}
    teams.reports("default", nothing, end)
    one.refresh()
    expect(one.cluster("default")).to_contain_text("reads nothing")
    teams.reports("default", nothing | {"running": 1, "failing": 0})
    one.refresh()
    expect(one.cluster("default").locator(".serving")).to_have_count(0)


def test_the_pointer_and_the_arrow_keys_read_a_chart(open_clusters):
    one = open_clusters()
    plot = one.plot("second", "cores")
    value = one.cluster("second").locator(".chart", has=plot).locator(".chart-value")
    plot.hover()
    expect(value).to_contain_text("UTC: busy")
    plot.focus()
    one.page.keyboard.press("End")
    expect(value).to_contain_text("needed 3, limit 2")
    last = value.inner_text()
    one.page.keyboard.press("ArrowLeft")
    expect(value).not_to_have_text(last)
    one.page.keyboard.press("Escape")
    expect(value).to_be_empty()


def test_each_decision_says_who_what_and_why_and_names_are_text(open_clusters):
    one = open_clusters()
    newest, before, grown = one.frame.locator(".decisions > li").all()
    expect(newest).to_contain_text(HOSTILE)
    expect(newest).to_contain_text("nowhere → second")
    expect(newest).to_contain_text("moved by ann: <b>slow</b>")
    expect(newest).to_contain_text("ann, version 2")
    expect(before).to_contain_text("hot: it took 1.50 of 4 cores of default; alone in second")
    expect(grown).to_contain_text(
        "events.cl-red.warehouse has 4 partitions in place of 2: it is full"
    )
    expect(grown).to_contain_text("more partitions")
    expect(one.frame.locator("img, b")).to_have_count(0)


def test_a_clusters_teams_are_a_table_with_their_lag_over_time(open_clusters, teams):
    one = open_clusters()
    one.frame.get_by_role("link", name="default", exact=True).click()
    expect(one.frame.get_by_role("heading", level=1)).to_have_text("default")
    rows = one.frame.locator("tr[data-team]")
    expect(rows).to_have_count(50)
    expect(rows.first).to_contain_text("cl-green")
    expect(rows.first).to_contain_text("of cl-green")
    expect(one.frame.locator("tr[data-team] .spark-line")).to_have_count(50)
    one.frame.get_by_role("button", name=f"Show {11 + teams.others()} more teams").click()
    expect(one.frame.locator("tr[data-team] .spark-line")).to_have_count(61)
    one.refresh()
    expect(rows).to_have_count(61 + teams.others())
    one.frame.get_by_role("link", name="All clusters").click()
    expect(one.frame.get_by_role("article")).to_have_count(3)


def test_a_range_is_chosen_kept_in_the_address_and_shared(open_clusters):
    one = open_clusters()
    one.frame.get_by_role("radio", name="1 h", exact=True).check(force=True)
    plot = one.plot("default", "lag").locator("svg")
    expect(plot).to_have_attribute("viewBox", "0 0 59 100")
    assert one.page.url.endswith("#span=1h")
    other = open_clusters(hash_of(span="24h", cluster="second"), in_airflow=True, dark=True)
    expect(other.frame.locator("html.dark")).to_have_count(1)
    expect(other.plot("second", "lag").locator("svg")).to_have_attribute("viewBox", "0 0 95 100")
    expect(other.frame.locator("tr[data-team]")).to_have_count(2)
    other.frame.get_by_role("radio", name="1 h", exact=True).check(force=True)
    expect(other.page).to_have_url(
        re.compile(r"/plugin/waybill-clusters/waybill/clusters#.*span=1h.*")
    )


def test_a_coordinator_that_does_not_look_and_a_cluster_that_is_gone_are_told(open_clusters, teams):
    one = open_clusters(hash_of(cluster="third"))
    expect(one.frame.locator(".empty")).to_contain_text("There is no such cluster any more")
    teams.lot.sql("UPDATE cluster_loads SET at = at - interval '40 minutes 7 seconds'")
    one.refresh()
    expect(one.frame.locator(".callout")).to_contain_text("did not look for ten minutes")
    teams.lot.sql("UPDATE cluster_loads SET at = at + interval '40 minutes 7 seconds'")


def test_on_a_narrow_screen_the_page_does_not_scroll_sideways(open_clusters):
    for view in ("", hash_of(cluster="second")):
        one = open_clusters(view, dark=True)
        one.frame.locator(".chart").first.wait_for()
        for width in (1440, 1000, 700, 400):
            one.resize(width, 860)
            wide = one.frame.locator("html").evaluate("e => e.scrollWidth - e.clientWidth")
            assert wide == 0, (view, width)


def test_a_clusters_applications_are_stopped_and_started_on_its_page(open_clusters, teams):
    one = open_clusters(hash_of(cluster="default"))
    bar = one.frame.get_by_role("toolbar", name="Applications of default")
    expect(bar.get_by_role("button")).to_have_text(["Restart", "Stop"])
    bar.get_by_role("button", name="Stop").click()
    dialog = one.frame.get_by_role("dialog")
    expect(dialog).to_contain_text("nothing is lost")
    dialog.get_by_label("Why").fill("the broker is <b>replaced</b>")
    dialog.get_by_role("button", name="Stop").click()
    expect(one.frame.get_by_text("default: Its applications end.")).to_be_visible()
    expect(bar.get_by_role("button")).to_have_text(["Start"])
    bar.get_by_role("button", name="Start").click()
    dialog.get_by_label("Why").fill("it is back")
    dialog.get_by_role("button", name="Start").click()
    expect(bar.get_by_role("button")).to_have_text(["Restart", "Stop"])
