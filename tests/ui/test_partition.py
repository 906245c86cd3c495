"""One partition: what it holds is shown as it is, and what can be done with it."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect
from tests.integration.parking_lot import make_event
from tests.ui.opened_page import hash_of
from tests.ui.web_server import VIEWER

HOSTILE = "</script><img src=x onerror=alert(1)><svg/onload=alert(2)>javascript:alert(3)"


@pytest.fixture
def put(web, request):
    """Park events in a partition of the test's own; return its id."""

    def put_one(events, **changes):
        name = f"pl-{request.node.name}"
        web.lot.park(
            [make_event(n, pipeline_id=name, **changes, **one) for n, one in enumerate(events)]
        )
        [found] = web.lot.sql(
            "SELECT max(id) FROM parked_partitions WHERE pipeline_id = :name", name=name
        )
        return found[0]

    return put_one


def test_a_hostile_payload_and_hostile_names_are_text(put, open_page):
    payload = {"note": HOSTILE, HOSTILE: [HOSTILE], "__proto__": {"x": HOSTILE}}
    events = [{"value": json.dumps(payload).encode(), "where": HOSTILE, "message": HOSTILE}]
    partition = put(events, name=HOSTILE)
    listed = open_page(hash_of(event_name=HOSTILE))
    expect(listed.rows().first).to_contain_text(HOSTILE)
    listed.rows().first.get_by_role("link").click()
    shown = listed.frame.get_by_label("Payload", exact=True)
    expect(shown).to_contain_text('"note": "</script><img src=x onerror=alert(1)>')
    expect(listed.frame.locator(".errors")).to_contain_text(HOSTILE)
    assert shown.locator("img, script, svg").count() == 0
    assert f"id={partition}" in listed.page.url


def test_bytes_that_are_no_json_are_shown_as_text(put, open_page):
    partition = put([{"value": b"\xff<b>\x00 not json"}])
    one = open_page(hash_of(id=partition))
    expect(one.frame.get_by_label("Payload", exact=True)).to_contain_text("<b>")
    assert one.frame.locator("pre b").count() == 0


def test_the_failing_field_is_marked_and_numbers_stay_as_written(put, open_page):
    value = b'{"order":{"amount":null,"other":1},"amounts":12345678901234567890,"price":1.10}'
    partition = put([{"value": value, "where": "amount"}, {"value": b"{}", "where": "line 3"}])
    one = open_page(hash_of(id=partition))
    expect(one.frame.locator("mark")).to_have_text('"amount": null')
    expect(one.frame.get_by_label("Payload", exact=True)).to_contain_text("12345678901234567890")
    one.frame.locator(".event-row").nth(1).click()
    expect(one.frame.locator("mark")).to_have_count(0)


def test_a_discard_and_its_undoing_change_the_numbers(put, open_page, web):
    partition = put([{}] * 7)
    one = open_page(hash_of(id=partition))
    expect(one.number("waiting")).to_have_text("7")
    one.action("discard").click()
    one.frame.get_by_label("Why").fill("test data")
    one.confirm()
    expect(one.number("waiting")).to_have_text("0")
    expect(one.number("discarded")).to_have_text("7")
    expect(one.frame.get_by_role("status")).to_contain_text("7 events")
    expect(one.action("discard")).to_have_attribute("aria-disabled", "true")
    assert web.lot.parking.partition(partition).discarded == 7

    one.action("undo-discard").click()
    one.frame.get_by_label("Why").fill("needed after all")
    one.confirm()
    expect(one.number("waiting")).to_have_text("7")
    assert web.lot.parking.partition(partition).parked == 7
    said = web.lot.sql(
        "SELECT action, who FROM audit_log WHERE detail::text LIKE '%needed after all%'"
    )
    assert [who for _, who in said] == ["admin"]


def test_a_dialog_that_is_closed_changes_nothing(put, open_page, web):
    partition = put([{}] * 2)
    one = open_page(hash_of(id=partition))
    one.action("discard").click()
    one.frame.get_by_label("Why").fill("test data")
    one.page.keyboard.press("Escape")
    expect(one.frame.locator("dialog")).to_have_count(0)
    expect(one.action("discard")).to_be_focused()
    one.action("discard").click()
    one.confirm()
    expect(one.frame.locator("dialog")).to_have_count(1)  # the reason is missing
    assert web.lot.parking.partition(partition).parked == 2


def test_a_download_gives_a_file_of_each_kind(put, open_page):
    partition = put([{"value": b'{"n":"a word"}'}] * 3)
    one = open_page(hash_of(id=partition))
    contents = {}
    for kind in ("jsonl.zst", "jsonl", "csv"):
        one.action("download").click()
        one.frame.locator(f"input[value='{kind}']").check()
        with one.page.expect_download() as begun:
            one.confirm()
        contents[kind] = begun.value.path().read_bytes()
        assert begun.value.suggested_filename == f"parked-{partition}.{kind}"
    assert contents["jsonl.zst"][:4] == b"\x28\xb5\x2f\xfd"
    assert contents["jsonl"].count(b"a word") == contents["csv"].count(b"a word") == 3


def test_a_replay_is_followed_until_its_end(put, open_page, web):
    partition = put([{}] * 4)
    one = open_page(hash_of(id=partition), in_airflow=True)
    one.action("replay").click()
    one.confirm()
    run = one.frame.locator(".run[data-kind='replay']")
    expect(run.locator(".state")).to_have_text("queued")
    name = run.get_attribute("data-run")
    answer = one.context.request.patch(
        f"{web.url}/api/v2/dags/replay/dagRuns/{name}", data={"state": "failed"}
    )
    assert answer.ok, answer.text()
    expect(run.locator(".state")).to_have_text("failed")
    expect(run).to_contain_text("Nothing is lost")
    run.get_by_role("button", name="Open the run").click()
    expect(one.page).to_have_url(f"{web.url}/dags/replay/runs/{name}")


def test_what_the_server_refuses_is_said_in_its_words(open_page):
    one = open_page(hash_of(id=987654321))
    one.expected.append("404")
    expect(one.frame.get_by_role("alert")).to_contain_text("987654321")
    one.frame.get_by_role("link", name="Parked events").click()
    expect(one.frame.get_by_role("heading", level=1)).to_have_text("Parked events")


def test_who_may_only_look_sees_why_an_action_is_disabled(put, open_page):
    partition = put(
        [{"value": b'{"email":"ada@example.com"}', "message": "ada@example.com is wrong"}]
    )
    one = open_page(hash_of(id=partition), user=VIEWER)
    for name in ("replay", "dry-run", "download", "discard"):
        expect(one.action(name)).to_have_attribute("aria-disabled", "true")
    one.action("discard").focus()
    expect(one.frame.locator("#why-discard")).to_be_visible()
    expect(one.frame.locator("#why-discard")).to_contain_text("permission “discard”")
    one.page.keyboard.press("Enter")
    expect(one.frame.locator("dialog")).to_have_count(0)
    expect(one.frame.locator(".masked-note")).to_be_visible()
    assert "ada@example.com" not in one.frame.locator("body").inner_text()


def enveloped(event_id):
    return json.dumps({"specversion": "1.0", "id": event_id, "data": {"n": 1}}).encode()


def test_an_event_leads_to_its_trail(put, open_page):
    partition = put([{"value": enveloped("e-1")}, {}])
    one = open_page(hash_of(id=partition))
    card = one.frame.get_by_role("article", name="Event e-1")
    link = card.locator(".facts").get_by_role("link", name="e-1")
    expect(link).to_have_attribute("href", "trails#id=e-1")
    one.frame.locator(".event-row").last.click()
    nameless = one.frame.get_by_role("article", name="Event (no id)")
    expect(nameless.locator(".facts")).not_to_contain_text("Event id")


def test_an_event_with_a_hostile_id_leads_to_the_question_for_it_and_its_pipeline_to_its_balance(
    web, open_page
):
    hostile, pipeline_id = ' é <b>"#?&id=1 100%25+ ', "pl-hostile &pipeline=pl-x#%"
    web.lot.sql(
        "INSERT INTO pipelines (id, name, team) VALUES (:id, :name, 'shop')",
        id=pipeline_id, name=HOSTILE,
    )  # fmt: skip
    web.lot.park([make_event(0, pipeline_id=pipeline_id, value=enveloped(hostile))])
    one = open_page(hash_of(pipeline=HOSTILE))
    one.rows().first.get_by_role("link").press("Enter")
    heading = one.frame.get_by_role("heading", level=1)
    expect(heading).to_be_focused()
    link = one.frame.locator(".facts").get_by_role("link")
    assert link.text_content() == hostile
    one.frame.locator(".identity").get_by_role("link").click()
    expect(heading).to_have_text(HOSTILE)
    assert f"#{hash_of(pipeline=pipeline_id)[1:]}" in one.page.url
    one.page.go_back()
    link.press("Enter")
    expect(heading).to_have_text("Where is that event?")
    expect(one.frame.get_by_label("Event id")).to_have_value(hostile)
    web.lot.sql("DELETE FROM pipelines WHERE id = :id", id=pipeline_id)


def test_a_screen_reader_finds_nothing_wrong(put, open_page):
    value = b'{"order":{"amount":null,"note":"a long text that needs room on a narrow screen"}}'
    errors = [{"value": value, "where": "amount", "message": f"way {n % 3}"} for n in range(30)]
    partition = put(errors)
    one = open_page(hash_of(id=partition))
    expect(one.frame.locator(".event-card")).to_be_visible()
    one.look_over("parked-group")
    one.action("discard").click()
    one.look_over("parked-dialog")
