"""The page "Balance": the heat map, breaches in words, and the dialog that closes one."""

from __future__ import annotations

import re
from urllib.parse import parse_qs

import pytest
from playwright.sync_api import expect
from tests.ui.balanced_books import WEEK, Books
from tests.ui.opened_page import OpenedPage, hash_of

from waybill.reconciliation import BreachKey

HOSTILE = "<img src=x onerror=alert(1)>"
LOST = ["5a1e0000000000000000000000000001", "a/../b?id=2&x=<b>", ' 100%25 +"#é\u202e ']


class OpenedBalance(OpenedPage):
    """The page "Balance"."""

    plugin, path, title = "/plugin/waybill-balance", "/waybill/balance", "Balance"

    def row(self, name):
        return self.frame.locator("tbody tr", has=self.frame.get_by_role("rowheader", name=name))

    def card(self):
        return self.frame.locator(".cell-card")

    def breach(self, number):
        return self.frame.locator(f"article[data-id='{number}']")


@pytest.fixture(scope="module")
def books(web):
    books = Books(web.lot)
    books.pipeline("pl-b-orders", "b-orders")
    books.pipeline("pl-b-clicks", "b-clicks")
    books.pipeline("pl-b-idle", "b-idle")
    books.minutes("pl-b-orders", "order", list(range(4, WEEK, 7)))
    books.minutes("pl-b-orders", HOSTILE, [100], mean=60, lost=2)
    books.judge("pl-b-orders", HOSTILE, 100, "mapping", "breach", gap=2, why="2 were lost")
    books.on_the_way("pl-b-clicks", "click", [1])
    return books


@pytest.fixture
def open_balance(open_as, books):
    def open_one(view="", **how):
        one = open_as(OpenedBalance, view, **how)
        one.frame.locator("table.cells, .empty").first.wait_for()
        return one

    return open_one


def lose(books, ids=(), kind="on_the_way"):
    """Open a breach of a minute of its own."""
    lose.minutes += 1
    key = BreachKey("pl-b-orders", kind, "order", "mapping", books.now - 1000 - lose.minutes)
    gap = len(ids) or 2
    return books.breach(key, f"{gap} of 60 events did not come", gap=gap, missing=list(ids))


lose.minutes = 0


def test_each_minute_has_a_mark_of_its_verdict_and_its_numbers_in_words(open_balance, books):
    one = open_balance()
    expect(one.frame.get_by_role("heading", level=1)).to_have_text("Balance")
    [breach] = one.row("b-orders").locator("td.breach").all()
    expect(breach).to_have_attribute("aria-label", re.compile(r"breach, 2 missing or too many\. "))
    expect(one.row("b-clicks").locator("td.moving")).to_have_count(1)
    expect(one.row("b-idle").locator("td.nothing")).to_have_count(72)
    assert one.row("b-orders").locator("td.balanced").count() > 40
    shapes = {
        verdict: one.frame.locator(f"td.{verdict} > i").first.evaluate(
            "e => [e.offsetHeight, getComputedStyle(e).borderTopWidth]"
        )
        for verdict in ("balanced", "moving", "breach", "nothing")
    }
    assert len({tuple(shape) for shape in shapes.values()}) == 4, shapes
    breach.hover()
    expect(one.card()).to_contain_text("2 missing or too many")
    expect(one.card()).to_contain_text("mapping: 2 were lost")
    expect(one.card()).to_contain_text("2 did not come here")
    equation = one.card().locator("dd").first.inner_text()
    taken, passed = re.fullmatch(r"([\d,]+) in = ([\d,]+) passed on", equation).groups()
    assert taken == passed
    one.frame.get_by_role("heading", level=1).hover()
    expect(one.card()).to_be_hidden()


def test_what_parked_in_a_minute_is_called_ever_and_what_a_pipeline_has_parked_is_called_now(
    open_balance, books
):
    """As `waybill balance` calls them."""
    one = open_balance()
    cell = one.row("b-orders").locator("td[aria-label*='parked']").first
    expect(cell).to_have_attribute("aria-label", re.compile(r" \+ \d+ parked \(ever\)"))
    cell.hover()
    expect(one.card()).to_contain_text(re.compile(r" \+ \d+ parked \(ever\)"))
    expect(one.frame.locator(".totals")).to_contain_text("parked now")


def test_the_arrow_keys_walk_through_the_cells(open_balance):
    one = open_balance()
    cells = one.row("b-orders").locator("td[data-place]")
    cells.nth(70).focus()
    expect(one.card()).to_contain_text("b-orders")
    one.page.keyboard.press("ArrowLeft")
    expect(cells.nth(69)).to_be_focused()
    one.page.keyboard.press("Home")
    expect(cells.nth(0)).to_be_focused()
    one.page.keyboard.press("ArrowLeft")
    expect(cells.nth(0)).to_be_focused()
    one.page.keyboard.press("End")
    one.page.keyboard.press("ArrowUp")
    expect(cells.nth(71)).not_to_be_focused()
    one.page.keyboard.press("ArrowDown")
    expect(cells.nth(71)).to_be_focused()
    expect(one.frame.locator("td[tabindex='0']")).to_have_count(1)
    one.page.keyboard.press("Escape")
    expect(one.card()).to_be_hidden()


def test_a_range_is_chosen_kept_in_the_address_and_shared(open_balance):
    one = open_balance()
    for words, columns in (("1 h", 60), ("24 h", 96), ("7 d", 84)):
        one.frame.get_by_role("radio", name=words, exact=True).check(force=True)
        expect(one.row("b-orders").locator("td[data-place]")).to_have_count(columns)
    assert one.page.url.endswith("#span=7d")
    other = open_balance(hash_of(span="7d"), in_airflow=True, dark=True)
    expect(other.frame.locator("html.dark")).to_have_count(1)
    expect(other.row("b-orders").locator("td[data-place]")).to_have_count(84)
    judged = other.row("b-orders").locator("td.balanced, td.breach")
    expect(judged.nth(82)).to_be_visible()  # the last column is empty where a new hour began
    other.frame.get_by_role("radio", name="1 h", exact=True).check(force=True)
    expect(other.page).to_have_url(re.compile(r"/plugin/waybill-balance/waybill/balance#span=1h$"))


def test_a_pipelines_event_names_have_rows_of_their_own_and_names_are_text(open_balance):
    one = open_balance()
    one.frame.get_by_role("link", name="b-orders", exact=True).click()
    expect(one.frame.get_by_role("heading", level=1)).to_have_text("b-orders")
    headers = one.frame.get_by_role("rowheader")
    expect(headers).to_have_text([HOSTILE, "order"])
    expect(one.row(HOSTILE).locator("td.breach")).to_have_count(1)
    one.frame.get_by_role("link", name="All pipelines").click()
    expect(one.frame.get_by_role("heading", level=1)).to_have_text("Balance")


def test_a_pipeline_without_events_says_so(open_balance):
    one = open_balance(hash_of(pipeline="pl-b-idle"))
    expect(one.frame.locator(".empty")).to_contain_text("Nothing came in during the last 6 hours")
    expect(one.frame.get_by_role("grid")).to_be_hidden()


def test_an_auditor_that_does_not_look_is_told(open_balance, books):
    books.lot.sql("DELETE FROM audit_rounds")
    books.lot.sql("DELETE FROM upkeep_jobs")
    books.lot.sql(
        "INSERT INTO upkeep_jobs (job, succeeded_at, failures, error) VALUES "
        "('watch', clock_timestamp(), 4, '<b>Kafka</b> is away')"
    )
    one = open_balance()
    jobs = one.frame.locator(".upkeep details[open]")
    expect(jobs.locator("summary")).to_contain_text("audit is late, watch fails")
    expect(jobs.get_by_role("row")).to_have_count(11)
    expect(jobs.get_by_role("row", name="watch")).to_contain_text("<b>Kafka</b> is away")
    expect(one.frame.locator(".callout")).to_contain_text("The auditor has not looked yet")
    books.audited()
    one.frame.get_by_role("button", name="Refresh").click()
    expect(one.frame.locator(".audited")).to_contain_text(
        re.compile(r"The auditor looked (just now|\d+ minutes? ago)")
    )
    expect(one.frame.locator(".callout")).to_have_count(0)


def test_a_breach_names_its_events_with_links_to_their_trails(open_balance, books):
    number = lose(books, LOST)
    one = open_balance(hash_of(pipeline="pl-b-orders"))
    breach = one.breach(number)
    expect(breach.get_by_role("heading")).to_have_text("Lost on the way")
    expect(breach).to_contain_text("3 of 60 events did not come")
    links = breach.get_by_role("link")
    assert [one.text_content() for one in links.all()] == [*LOST, "Where are these 3 events?"]
    expect(links.last).to_have_attribute("href", f"trails#breach={number}")
    for place, lost in enumerate(LOST):
        page, _, view = links.nth(place).get_attribute("href").partition("#")
        assert (page, parse_qs(view)) == ("trails", {"id": [lost]})
    links.nth(2).press("Enter")
    expect(one.frame.get_by_role("heading", level=1)).to_have_text("Where is that event?")
    expect(one.frame.get_by_label("Event id")).to_have_value(LOST[2])
    expect(one.frame.locator(".absent-card")).to_contain_text("Not found")


def test_a_breach_of_parked_events_leads_to_them_and_a_pipeline_to_the_other_pages(
    open_balance, books
):
    name, event = 'b-"odd" <b>&id=9#?100%+é', "<i>a b</i>#&?%"
    books.pipeline("pl-b-odd &id=8#%", name)
    key = BreachKey("pl-b-odd &id=8#%", "parked_jump", event, "mapping")
    number = books.breach(key, "9 of 10 park", missing=[])
    one = open_balance(hash_of(pipeline="pl-b-odd &id=8#%"))
    expect(one.frame.get_by_role("heading", level=1)).to_have_text(name)
    links = one.frame.locator("nav.crumbs").get_by_role("link")
    found = [link.get_attribute("href").partition("#")[::2] for link in links.all()[1:]]
    assert [(page, parse_qs(view)) for page, view in found] == [
        ("parked", {"pipeline": [name]}), ("overview", {"words": [name]}),
    ]  # fmt: skip
    one.breach(number).get_by_role("link", name="Its parked events").click()
    expect(one.frame.get_by_label("Pipeline", exact=True)).to_have_value("pl-b-odd &id=8#%")
    expect(one.frame.get_by_label("Event name")).to_have_value(event)
    expect(one.frame.get_by_label("Stage")).to_have_value("mapping")
    expect(one.frame.locator(".empty")).to_contain_text("No group matches")
    books.lot.sql("DELETE FROM breaches WHERE id = :id", id=number)


def test_beyond_a_page_of_pipelines_or_breaches_each_is_reached_and_can_be_closed(
    open_balance, books
):
    books.lot.sql(
        "INSERT INTO pipelines (id, name, team) SELECT 'pl-a' || n, 'a-' || n, 'shop' "
        "FROM generate_series(101, 220) AS n"
    )
    books.lot.sql(
        "INSERT INTO breaches (pipeline_id, event_name, stage, minute, kind, detail) "
        "SELECT 'pl-b-clicks', '', '', n, 'on_the_way', jsonb_build_object('words', 'no ' || n) "
        "FROM generate_series(1, 205) AS n"
    )
    try:
        one = open_balance(hash_of(span="1h"))
        expect(one.frame.locator("table.cells tbody tr")).to_have_count(100)
        [[whole]] = books.lot.sql("SELECT count(*) FROM pipelines")
        expect(one.frame.locator(".shown")).to_have_text(f"100 pipelines of {whole}, by name")
        expect(one.frame.locator(".tile").first).to_have_text(f"{whole}pipelines")
        one.frame.get_by_role("button", name="Next page").click()
        expect(one.row("b-clicks")).to_have_count(1)
        expect(one.page).to_have_url(re.compile(r"#span=1h&after=a-200$"))
        one.frame.get_by_role("link", name="b-clicks", exact=True).click()
        expect(one.frame.get_by_role("heading", level=1)).to_have_text("b-clicks")
        expect(one.frame.locator(".tile").first).to_have_text("205open breaches")
        cards = one.frame.locator("article.finding:not(.over)")
        expect(cards).to_have_count(3)
        one.frame.get_by_role("button", name="Show 200 more of 205 open").press("Enter")
        expect(cards).to_have_count(203)
        expect(cards.nth(3).get_by_role("button", name="Close…")).to_be_focused()
        one.frame.get_by_role("button", name="Show 2 more open").click()
        expect(cards).to_have_count(205)
        expect(cards.last).to_contain_text("no 1")
        cards.last.get_by_role("button", name="Close…").click()
        one.frame.get_by_label("Why is it none?").fill("a test")
        one.confirm()
        expect(one.frame.locator(".tile").first).to_have_text("204open breaches")
    finally:
        books.lot.sql("DELETE FROM breaches WHERE pipeline_id = 'pl-b-clicks'")
        books.lot.sql("DELETE FROM pipelines WHERE id LIKE 'pl-a%'")


def test_a_breach_is_closed_with_a_reason_and_listed_as_ended(open_balance, books):
    number = lose(books)
    one = open_balance(hash_of(pipeline="pl-b-orders"))
    one.breach(number).get_by_role("button", name="Close…").click()
    one.confirm()
    expect(one.frame.locator("dialog")).to_be_visible()  # a reason is asked for
    one.frame.get_by_label("Why is it none?").fill("sent twice by hand")
    one.confirm()
    expect(one.frame.locator(".notice")).to_contain_text(f"Breach {number} is closed")
    expect(one.breach(number)).to_have_count(0)
    one.frame.get_by_text("Breaches that ended").click()
    expect(one.breach(number)).to_contain_text(
        re.compile(r"closed by name (just now|\d+ minutes? ago) \(admin\): sent twice by hand")
    )
    [[who, why]] = books.lot.sql(
        "SELECT who, detail ->> 'why' FROM audit_log WHERE target = :target",
        target=f"breach {number}",
    )
    assert (who, why) == ("admin", "sent twice by hand")


def test_who_may_only_look_is_told_why_nothing_can_be_closed(open_balance, books):
    number = lose(books)
    one = open_balance(hash_of(pipeline="pl-b-orders"), user="vera")
    button = one.breach(number).get_by_role("button", name="Close…")
    expect(button).to_have_attribute("aria-disabled", "true")
    button.click(force=True)
    expect(one.frame.locator("dialog")).to_have_count(0)
    button.hover()
    expect(one.breach(number).get_by_role("tooltip")).to_contain_text("permission “discard”")


def test_what_changes_is_shown_without_a_reload_and_the_keyboard_stays(open_balance, books):
    one = open_balance()
    cell = one.row("b-idle").locator("td[data-place]").nth(20)
    cell.focus()
    number = lose(books)
    ago = (71 - 30) * 5
    books.minutes("pl-b-idle", "late", [ago])
    one.frame.locator("main").evaluate(
        "() => document.dispatchEvent(new Event('visibilitychange'))"
    )
    expect(one.row("b-idle").locator("td.balanced")).to_have_count(1)
    expect(
        one.breach(number).or_(one.frame.get_by_role("button", name=re.compile("Show .* more")))
    ).not_to_have_count(0)
    expect(cell).to_be_focused()


def test_on_a_narrow_screen_the_page_does_not_scroll_sideways(open_balance):
    one = open_balance(dark=True)
    one.resize(400, 860)
    main = one.frame.locator("main")
    assert main.evaluate("e => document.documentElement.scrollWidth <= innerWidth")
    frame = one.frame.locator(".heat-frame")
    assert frame.evaluate("e => e.scrollWidth > e.clientWidth")
    one.row("b-orders").locator("td[data-place]").last.focus()
    box = one.card().bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= one.page.viewport_size["width"]


def test_a_screen_reader_finds_nothing_wrong(open_balance, books):
    number = lose(books, LOST)
    one = open_balance(hash_of(pipeline="pl-b-orders", span="1h"))
    expect(one.breach(number)).to_be_visible()
    one.look_over("balance")
