"""The list of partitions: filters, window, pages, an address that can be shared."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect
from tests.integration.parking_lot import make_event
from tests.ui.opened_page import hash_of

from waybill.replay import CampaignRequest, freeze_campaign, read_campaign

PIPELINE = "pl-filters"
MANY = "pl-many"
EVENTS = [
    *(make_event(n, "order", pipeline_id=PIPELINE) for n in range(5)),
    *(
        make_event(100 + n, "refund", "type_mismatch", "mapping", pipeline_id=PIPELINE)
        for n in range(2)
    ),
    make_event(200, "order", "type_mismatch", "mapping", pipeline_id=PIPELINE),
]


@pytest.fixture(scope="module")
def parked(web):
    web.lot.park(EVENTS)
    web.lot.park([make_event(n, f"name-{n:02}", pipeline_id=MANY) for n in range(60)])


def tiles(one):
    return one.frame.locator(".tile strong")


def test_each_filter_narrows_the_list_and_a_shared_link_shows_the_same(parked, open_page):
    one = open_page()
    one.frame.get_by_label("Pipeline", exact=True).fill(PIPELINE)
    expect(one.rows()).to_have_count(3)
    expect(tiles(one).nth(1)).to_have_text("8")

    one.frame.get_by_label("Stage").select_option("mapping")
    expect(one.rows()).to_have_count(2)
    expect(tiles(one).nth(1)).to_have_text("3")
    one.frame.get_by_label("Event name").fill("refund")
    expect(one.rows()).to_have_count(1)
    expect(one.rows().first).to_contain_text("A value does not fit its column's type")
    one.frame.get_by_label("Error type").select_option("type_mismatch")
    expect(one.rows()).to_have_count(1)

    shared = one.page.url
    view = parse_qs(urlsplit(shared).fragment)
    assert view == {
        "pipeline": [PIPELINE],
        "stage": ["mapping"],
        "event_name": ["refund"],
        "error_type": ["type_mismatch"],
    }
    other = open_page(f"#{urlsplit(shared).fragment}", in_airflow=True)
    expect(other.rows()).to_have_count(1)
    expect(other.frame.get_by_label("Event name")).to_have_value("refund")

    other.frame.get_by_role("button", name="Clear filters").click()
    expect(other.rows()).not_to_have_count(1)
    expect(other.page).to_have_url(re.compile(r"/plugin/waybill-parked/waybill/parked$"))


def test_a_window_on_event_time_shows_only_what_lies_in_it(parked, open_page):
    one = open_page(hash_of(pipeline=PIPELINE))
    expect(one.rows()).to_have_count(3)
    one.frame.get_by_label("From (UTC)").fill("2013-01-05T00:00")
    one.frame.get_by_label("From (UTC)").blur()
    expect(one.rows()).to_have_count(2)
    one.frame.get_by_label("To (UTC)").fill("2013-01-06T00:00")
    one.frame.get_by_label("To (UTC)").blur()
    expect(one.rows()).to_have_count(1)
    expect(one.rows().first).to_contain_text("refund")
    one.frame.get_by_label("To (UTC)").fill("2013-01-05T00:01")
    one.frame.get_by_label("To (UTC)").blur()
    expect(one.frame.locator(".empty")).to_contain_text("No group matches these filters")


def test_pages_go_forth_and_back_and_show_each_partition_once(parked, open_page):
    one = open_page(hash_of(pipeline=MANY, limit=25, sort="name", descending="false"))
    expect(one.frame.locator(".shown")).to_have_text("1 to 25 of 60 groups")
    expect(one.frame.get_by_label("Rows")).to_have_value("25")
    seen = one.rows().locator("td:nth-child(2)").all_inner_texts()
    forth, back = (
        one.frame.get_by_role("button", name=f"{way} page") for way in ("Next", "Previous")
    )
    expect(back).to_be_disabled()
    forth.click()
    expect(one.frame.locator(".shown")).to_have_text("26 to 50 of 60 groups")
    seen += one.rows().locator("td:nth-child(2)").all_inner_texts()
    forth.click()
    expect(one.frame.locator(".shown")).to_have_text("51 to 60 of 60 groups")
    seen += one.rows().locator("td:nth-child(2)").all_inner_texts()
    expect(forth).to_be_disabled()
    assert seen == [f"name-{n:02}" for n in range(60)]
    back.click()
    expect(one.rows().first).to_contain_text("name-25")
    one.frame.get_by_role("button", name="First page").click()
    expect(one.rows().first).to_contain_text("name-00")


def test_sorting_by_a_column_turns_with_each_click(parked, open_page):
    one = open_page(hash_of(pipeline=PIPELINE))
    most = one.frame.get_by_role("button", name="Parked", exact=False).first
    most.click()
    expect(one.rows().first).to_contain_text("null_value")
    expect(one.frame.locator("th[aria-sort]")).to_have_attribute("aria-sort", "descending")
    most.press("Enter")
    expect(one.rows().last).to_contain_text("null_value")
    expect(most).to_be_focused()
    expect(one.frame.locator("th[aria-sort]")).to_have_attribute("aria-sort", "ascending")


def test_the_keyboard_alone_opens_a_partition_and_comes_back(parked, open_page):
    one = open_page(hash_of(pipeline=PIPELINE, stage="transformation"))
    link = one.rows().first.get_by_role("link")
    link.focus()
    one.page.keyboard.press("Shift+Tab")
    one.page.keyboard.press("Tab")
    expect(link).to_be_focused()
    assert link.evaluate("e => getComputedStyle(e).outlineStyle") == "solid"
    one.page.keyboard.press("Enter")
    expect(one.frame.get_by_role("heading", level=1)).to_have_text(
        "The code met a null it did not expect"
    )
    one.page.go_back()
    expect(one.rows()).to_have_count(1)
    expect(one.rows().first.get_by_role("link")).to_be_focused()


def test_a_campaign_shows_its_progress_and_is_paused_resumed_and_cancelled(parked, web, open_page):
    request = CampaignRequest(event_name="refund")
    tracker = web.lot.tracker
    campaign = freeze_campaign(tracker, request, None, who="ann", run_id="manual__ui").id
    one = open_page()
    card = one.frame.locator(f"[data-campaign='{campaign}']")
    expect(card).to_contain_text("of ann is running: 0 of 1 groups ended")
    card.get_by_role("button", name="Pause").click()
    expect(card).to_contain_text("is paused")
    card.get_by_role("button", name="Resume").click()
    expect(card).to_contain_text("is running")
    card.get_by_role("button", name="Cancel").click()
    one.confirm()
    expect(card).to_have_count(0)
    assert read_campaign(tracker, campaign).state == "cancelled"


def test_a_campaign_that_ended_says_what_parked_again(parked, web, open_page):
    tracker, sql = web.lot.tracker, web.lot.sql
    request = CampaignRequest(event_name="refund")
    campaign = freeze_campaign(tracker, request, None, who="ann", run_id="manual__again").id
    own = {"id": campaign}
    sql(
        "UPDATE campaigns SET state = 'done', launched = 1, ended = 1, ended_at = now() WHERE id = :id",
        **own,
    )
    sql(
        "UPDATE campaign_groups SET state = 'ended', outcome = 'success', run_id = 'r' WHERE campaign_id = :id",
        **own,
    )
    sql(
        "INSERT INTO replays (id, partition_id, state, requested_by, run_id, events, sent) SELECT "
        "gen_random_uuid(), partition_id, 'done', 'ann', 'r', 3, 3 FROM campaign_groups "
        "WHERE campaign_id = :id",
        **own,
    )
    sql(
        "INSERT INTO replay_outcomes SELECT id, 'parked/mapping', 2 FROM replays WHERE run_id = 'r'"
    )
    one = open_page()
    card = one.frame.locator(f"[data-campaign='{campaign}']")
    expect(card).to_contain_text("is done: 1 of 1 groups ended")
    expect(card).to_contain_text("3 events sent back, 0 delivered, 2 parked again at mapping")
    expect(card.get_by_role("button")).to_have_count(0)
    later = freeze_campaign(tracker, request, None, who="ann", run_id="manual__later").id
    sql(
        "UPDATE campaigns SET state = 'done', launched = 1, ended = 1, "
        "ended_at = now() + interval '1 second' WHERE id = :id",
        id=later,
    )
    one = open_page()
    newest = one.frame.locator(f"[data-campaign='{later}']")
    expect(newest).to_contain_text("is done: 1 of 1 groups ended")
    expect(newest).to_contain_text("shown for a day, until another ends")
    expect(card).to_have_count(0)
    sql(
        "UPDATE campaigns SET ended_at = now() - interval '2 days' WHERE id IN (:id, :later)",
        later=later,
        **own,
    )


def test_a_screen_reader_finds_nothing_wrong_in_the_list(parked, open_page):
    one = open_page(hash_of(pipeline=PIPELINE))
    expect(one.frame.locator("tr[data-id] .sparkline")).to_have_count(3)
    one.look_over("parked")
