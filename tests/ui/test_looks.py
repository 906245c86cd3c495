"""How the page looks: Airflow's light and dark mode, and small windows."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect
from tests.integration.parking_lot import make_event
from tests.ui.opened_page import hash_of

PIPELINE = "pl-looks"


@pytest.fixture(scope="module")
def partition(web):
    web.lot.park([make_event(n, "order", pipeline_id=PIPELINE, where="n") for n in range(30)])
    [found] = web.lot.sql("SELECT id FROM parked_partitions WHERE pipeline_id = :p", p=PIPELINE)
    return found[0]


def background(one):
    inner = one.frame.locator("html").evaluate("e => getComputedStyle(e).backgroundColor")
    outer = one.page.evaluate("() => getComputedStyle(document.documentElement).backgroundColor")
    return inner, outer


def test_the_page_follows_airflows_own_dark_and_light_mode(partition, open_page):
    one = open_page(hash_of(pipeline=PIPELINE), dark=True, in_airflow=True)
    expect(one.rows()).to_have_count(1)
    expect(one.frame.locator("html.dark")).to_have_count(1)
    inner, outer = background(one)
    assert inner == outer
    one.page.evaluate("""() => {
        document.documentElement.classList.remove("dark");
        document.documentElement.classList.add("light");
    }""")
    expect(one.frame.locator("html:not(.dark)")).to_have_count(1)
    light, outer = background(one)
    assert light == outer != inner


def test_airflows_menu_leads_to_each_page_and_the_frame_has_the_room_that_tests_give(open_page):
    one = open_page(in_airflow=True)
    for title in ("Balance", "Clusters", "Overview", "Where is that event?", "Parked events"):
        if title == "Overview":  # in the menu itself
            one.page.get_by_role("link", name=title).click()
        else:
            one.page.get_by_role("button", name="Browse").click()
            expect(one.page.get_by_role("menuitem", name="Pipelines", exact=True)).to_have_count(0)
            one.page.get_by_role("menuitem", name=title).click()
        one.title = title  # of the frame that is looked into from now on
        expect(one.frame.get_by_role("heading", level=1)).to_have_text(one.title)
    by_itself = open_page()
    for width in (1440, 400):
        rooms = set()
        for opened in (one, by_itself):
            opened.resize(width)
            room = opened.frame.locator("html").evaluate("() => [innerWidth, innerHeight]")
            rooms.add(tuple(room))
        assert len(rooms) == 1, rooms


def test_nothing_is_cut_off_at_any_width(partition, open_page):
    one = open_page(hash_of(pipeline=PIPELINE))
    for ready in ("tr[data-id] .sparkline", ".event-card"):
        one.frame.locator(ready).first.wait_for()
        for width in (1440, 1000, 700, 400):
            one.resize(width)
            wide = one.frame.locator("html").evaluate("e => e.scrollWidth - e.clientWidth")
            assert wide == 0, (ready, width)
        one.rows().first.get_by_role("link").click() if one.rows().count() else None


def test_no_dialog_is_cut_off_or_has_fields_over_each_other(partition, open_page):
    one = open_page(hash_of(id=partition))
    for name in ("replay", "dry-run", "discard", "download", "auto-replay"):
        for width in (1440, 700, 400):
            one.resize(width)
            one.action(name).click()
            dialog = one.frame.get_by_role("dialog")
            wide = dialog.evaluate("e => e.scrollWidth - e.clientWidth")
            over = dialog.evaluate("""e => {
                const boxes = [...e.querySelectorAll("input, select")].map((one) => one.getBoundingClientRect());
                return boxes.some((a, i) => boxes.some((b, j) => i < j && a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom));
            }""")
            assert (wide, over) == (0, False), (name, width)
            assert one.frame.get_by_label("Enter at the transformation").count() == 0, "no sources"
            one.page.keyboard.press("Escape")
