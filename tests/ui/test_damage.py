"""What cannot be read, and names that are empty, are seen on the page."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect
from tests.integration.parking_lot import make_event
from tests.ui.opened_page import hash_of

PIPELINE = "pl-damage"


@pytest.fixture(scope="module")
def hurt(web):
    """A partition with an empty event name, of whose seven events five are gone; (id, key)."""
    gone = web.lot.park([make_event(n, "", pipeline_id=PIPELINE) for n in range(5)])
    web.lot.park([make_event(n, "", pipeline_id=PIPELINE, attempt=n - 5) for n in (5, 6)], 2)
    web.lot.objects.delete([gone])
    [found] = web.lot.sql("SELECT id FROM parked_partitions WHERE pipeline_id = :p", p=PIPELINE)
    return found[0], gone


@pytest.mark.parametrize("dark", [False, True])
def test_what_is_gone_is_said_beside_what_can_be_read(hurt, open_page, dark):
    partition, key = hurt
    one = open_page(hash_of(id=partition), dark=dark)
    expect(one.frame.locator(".event-row")).to_have_count(2)
    note = one.frame.locator(".damage")
    expect(note).to_contain_text("5 events could not be read")
    expect(note.locator("code")).to_have_text(key)
    expect(note).to_contain_text("gone from the store")


@pytest.mark.parametrize("dark", [False, True])
def test_an_empty_name_is_shown_as_empty(hurt, open_page, dark):
    partition, _ = hurt
    one = open_page(hash_of(pipeline=PIPELINE), dark=dark)
    name = one.rows().first.locator("[data-label='Event'] .muted")
    expect(name).to_have_text("(empty)")
    one = open_page(hash_of(id=partition), dark=dark)
    expect(one.frame.locator(".identity strong .muted")).to_have_text("(empty)")


def test_the_attempt_is_the_number_that_files_have(hurt, open_page):
    one = open_page(hash_of(id=hurt[0]))
    facts = one.frame.locator(".facts")
    expect(facts).to_contain_text("Attempt0 (no replay sent it yet)")
    expect(one.frame.locator(".event-row").nth(1)).to_contain_text("attempt 1")
    one.frame.locator(".event-row").nth(1).click()
    expect(facts.locator("dt:text-is('Attempt') + dd")).to_have_text("1")
