"""What can be chosen of a partition, clicked through: causes, windows, holds, auto-replay, reports."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect
from tests.integration.parking_lot import make_event
from tests.ui.opened_page import hash_of
from tests.unit.processing.made import pipeline

from waybill.events import HELD_ERROR
from waybill.parking.holds import record_storm

ERRORS = [
    {"error_type": "null_value", "message": "amount is null", "where": "amount"},
    {"error_type": "type_mismatch", "message": "'x' is no number", "where": "count"},
]
CAUSE = {
    "version": "v1",
    "stage": "mapping",
    "error_type": "type_mismatch",
    "place": "amount",
    "message": "'many' is no number",
    "failed": 950,
    "events": 1_000,
}


@pytest.fixture
def deployed(web, request):
    """The id of a pipeline of the test's own, deployed."""
    name = f"pl-{request.node.name}"
    web.lot.sql("INSERT INTO pipelines (id, name, team) VALUES (:id, :id, 'sales')", id=name)
    web.lot.sql(
        "INSERT INTO pipeline_versions (pipeline_id, number, version, declaration, deployed_by) "
        "VALUES (:id, 1, 'v1', CAST(:declared AS jsonb), 'test')",
        id=name,
        declared=pipeline(ident=name).model_dump_json(),
    )
    return name


def partition_of(web, name):
    [row] = web.lot.sql("SELECT id FROM parked_partitions WHERE pipeline_id = :p", p=name)
    return row[0]


@pytest.fixture
def two_causes(web, deployed):
    """Five events of one cause and two of another, parked two days later; the partition's id."""
    first = [make_event(n, "order", pipeline_id=deployed, errors=ERRORS) for n in range(5)]
    given = {"pipeline_id": deployed, "message": "the list is empty", "where": "items"}
    second = [make_event(n, "order", **given) for n in range(5, 7)]
    for number, events in enumerate((first, second), 1):
        web.lot.park(events, number)
    parked_at = (
        "UPDATE segments SET parked_at = :at FROM parked_partitions p "
        "WHERE p.id = partition_id AND p.pipeline_id = :pipeline AND segments.last_message LIKE :said"
    )
    for at, said in (("2026-01-01T12:00Z", "message %"), ("2026-01-03T12:00Z", "the list %")):
        assert web.lot.sql(parked_at, at=at, pipeline=deployed, said=said)
    return partition_of(web, deployed)


def test_one_kind_of_error_is_looked_at_and_discarded_alone(two_causes, open_page, web):
    one = open_page(hash_of(id=two_causes))
    groups = one.frame.get_by_role("group", name="Kinds of error").get_by_role("button")
    expect(groups).to_have_count(3)
    expect(one.frame.locator(".event-row")).to_have_count(7)
    expect(one.frame.get_by_role("heading", name="All 2 errors")).to_be_visible()
    expect(one.frame.locator(".errors li")).to_have_text([r for r in (
        "null_valueamount is nullat amount", "type_mismatch'x' is no numberat count",
    )])  # fmt: skip
    groups.filter(has_text="the list is empty").click()
    expect(one.frame.locator(".event-row")).to_have_count(2)
    expect(one.frame.locator(".errors")).to_contain_text("the list is empty")
    one.action("discard").click()
    expect(one.frame.get_by_label("Kind of error")).to_contain_text("the list is empty · 2 events")
    assert one.frame.get_by_label("Kind of error").input_value() != ""
    one.frame.get_by_label("Why").fill("test data")
    one.confirm()
    expect(one.number("waiting")).to_have_text("5")
    expect(one.frame.get_by_role("status")).to_contain_text("2 events")
    assert web.lot.parking.partition(two_causes).discarded == 2


def test_a_window_on_parked_time_narrows_the_list_and_a_discard(
    two_causes, deployed, open_page, web
):
    one = open_page(hash_of(pipeline=deployed))
    one.frame.get_by_label("Window on").select_option("parked time")
    one.frame.get_by_label("From (UTC)").fill("2026-01-04T00:00")
    one.frame.get_by_label("From (UTC)").blur()
    expect(one.frame.locator(".empty")).to_contain_text("No group matches")
    one.frame.get_by_label("From (UTC)").fill("2026-01-02T00:00")
    one.frame.get_by_label("From (UTC)").blur()
    expect(one.rows()).to_have_count(1)
    expect(one.frame.locator("th").last).to_have_text("In the window")
    assert "clock=parked" in one.page.url
    one.rows().first.get_by_role("link").click()
    one.action("discard").click()
    dialog = one.frame.get_by_role("dialog")
    dialog.get_by_label("Window on").select_option("parked time")
    dialog.get_by_label("To (UTC)").fill("2026-01-02T00:00")
    dialog.get_by_label("Why").fill("test data")
    one.confirm()
    expect(one.number("waiting")).to_have_text("2")
    assert web.lot.parking.partition(two_causes).discarded == 5


def test_auto_replay_is_turned_on_and_off(two_causes, open_page, web):
    one = open_page(hash_of(id=two_causes))
    one.action("auto-replay").click()
    one.frame.get_by_label("a new version of the pipeline is deployed").check()
    one.confirm()
    expect(one.frame.locator(".auto")).to_contain_text("when a new version of the pipeline")
    expect(one.frame.locator(".auto")).to_contain_text("set by admin")
    marks = "SELECT on_change FROM auto_replays WHERE partition_id = :id"
    assert web.lot.sql(marks, id=two_causes) == [("version",)]
    one.action("auto-replay").click()
    one.confirm()
    expect(one.frame.locator(".auto")).to_have_count(0)
    assert web.lot.sql(marks, id=two_causes) == []


def test_a_hold_is_explained_and_released(web, deployed, open_page):
    with web.lot.tracker.transaction() as connection:
        assert record_storm(connection, deployed, CAUSE)
    web.lot.park([make_event(n, "order", HELD_ERROR, pipeline_id=deployed) for n in range(3)])
    one = open_page(hash_of(id=partition_of(web, deployed)))
    banner = one.frame.locator(".callout.warning")
    expect(banner).to_contain_text("950 of 1,000 events would have parked for one cause")
    expect(banner).to_contain_text("'many' is no number")
    one.action("release").click()
    one.confirm()
    expect(one.frame.get_by_role("dialog")).to_be_visible()  # the reason is missing
    one.frame.get_by_label("Why").fill("the source is mended")
    one.confirm()
    expect(banner).to_have_count(0)
    expect(one.frame.get_by_role("status")).to_contain_text("is released")
    assert deployed not in {hold.pipeline_id for hold in web.lot.parking.holds()}


REPORT = {
    "pipeline": "orders",
    "version": "v2",
    "events": 7,
    "tried": 4,
    "would_pass": 3,
    "would_filter": 0,
    "would_fail": {"mapping/null_value": 1},
    "pass_rate": 0.75,
    "low": 0.4,
    "high": 0.9,
    "examples": {"mapping/null_value": "amount is null"},
    "by_fingerprint": {},
}


def test_a_dry_run_of_a_sample_is_followed_to_its_report(two_causes, open_page, web):
    one = open_page(hash_of(id=two_causes))
    one.action("dry-run").click()
    one.frame.get_by_label("Try a sample of so many").fill("4")
    one.frame.get_by_label("Kind of error").select_option(index=1)
    one.confirm()
    run = one.frame.locator(".run[data-kind='dry_run']")
    expect(run.locator(".state")).to_have_text("queued")
    one.end_run(run, REPORT)
    expect(run.locator(".state")).to_have_text("success")
    expect(run.locator(".prediction")).to_contain_text(
        "Predicted to pass: 75 % of 7 events (from 40 % to 90 % in 95 of 100 samples)"
    )
    expect(run).to_contain_text("amount is null")
    [(detail,)] = web.lot.sql(
        "SELECT detail FROM audit_log WHERE action = 'ask_dry_run' AND target = :target",
        target=f"partition {two_causes}",
    )
    assert detail["sample"] == 4
    assert len(detail["fingerprint"]) == 16
