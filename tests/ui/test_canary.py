"""A replay with a canary: how it is asked for, and how its end is drawn."""

from __future__ import annotations

from uuid import uuid4

import pytest
from playwright.sync_api import expect
from tests.integration.parking_lot import make_event
from tests.ui.opened_page import hash_of
from tests.unit.processing.made import pipeline

from waybill.parking import ReplayConditions

WAY = "mapping/type_mismatch"


@pytest.fixture
def partition(web):
    """Forty events parked at mapping, by a pipeline that keeps sources; the partition's id."""
    name = f"pl-canary-{uuid4().hex[:6]}"
    web.lot.sql("INSERT INTO pipelines (id, name, team) VALUES (:id, :id, 'sales')", id=name)
    declared = pipeline(ident=name).model_copy(update={"keep_source": True})
    web.lot.sql(
        "INSERT INTO pipeline_versions (pipeline_id, number, version, declaration, deployed_by) "
        "VALUES (:id, 1, 'v1', CAST(:declared AS jsonb), 'test')",
        id=name,
        declared=declared.model_dump_json(),
    )
    given = {"pipeline_id": name, "stage": "mapping", "code": "type_mismatch"}
    web.lot.park([make_event(n, "order", **given) for n in range(40)])
    [row] = web.lot.sql("SELECT id FROM parked_partitions WHERE pipeline_id = :p", p=name)
    return row[0]


def step(name, events, again=0):
    ways = {WAY: again} if again else {}
    return {"step": name, "events": events, "parked_again": again, "share": 0.0, "ways": ways}


def report(steps, state, problem=""):
    sent = sum(one["events"] for one in steps)
    counts = {"events": sent, "sent": sent, "resumed": 0, "refused": 0, "quarantined": 0}
    names = {"partition_id": 1, "replay_id": "r", "state": state, "seconds": 1.0}
    return {**names, **counts, "steps": steps, "problem": problem}


def asked(one, *switches):
    """Ask for a replay, these switches turned; return its run on the page."""
    one.action("replay").click()
    for label, on in switches:
        one.frame.get_by_label(label).set_checked(on)
    one.confirm()
    run = one.frame.locator(".run[data-kind='replay']").first  # the newest
    expect(run.locator(".state")).to_have_text("queued")
    return run


def steps_of(run):
    return run.get_by_role("list", name="Steps of the canary").get_by_role("listitem")


def test_a_canary_that_stopped_and_one_that_passed_are_drawn_with_their_steps(partition, open_page):
    one = open_page(hash_of(id=partition))
    run = asked(one, ("Leave room for live traffic", False), ("Enter at the transformation", True))
    conf = one.context.request.get(one.run_path(run)).json()["conf"]
    wanted = {"canary": True, "governed": False, "enter": "transformation"}
    assert {name: conf[name] for name in wanted} == wanted
    problem = f"the canary stopped: of 4 events 3 are parked again (3 {WAY}), more than 5.0%"
    one.end_run(run, report([step("1%", 1), step("10%", 4, 3)], "stopped", problem), state="failed")
    expect(run.locator(".state")).to_have_text("failed")
    expect(run).to_contain_text("5 events went back into the pipeline, the rest is parked")
    expect(run).to_contain_text(f"The canary stopped: of 4 events 3 are parked again (3 {WAY})")
    expect(steps_of(run)).to_have_text([
        "1 %1 event sentnone parked again",
        f"10 %4 events sent3 parked again (75 %)3 {WAY}",
        "100 %not begun",
    ])  # fmt: skip
    expect(steps_of(run).nth(1)).to_have_class("bad")
    expect(run).not_to_contain_text("The run's log in Airflow says why")

    run = asked(one)
    conf = one.context.request.get(one.run_path(run)).json()["conf"]
    assert (conf["canary"], conf["governed"], conf["enter"]) == (True, True, None)
    steps = [step("1%", 1), step("10%", 3), step("100%", 36)]
    one.end_run(run, report(steps, "done"))
    expect(run.locator(".state")).to_have_text("success")
    expect(run).to_contain_text("The canary went through: 40 events went back into the pipeline.")
    expect(steps_of(run)).to_have_count(3)
    expect(steps_of(run).last).to_have_text("100 %36 events sentnot waited for")
    assert run.locator(".canary .bad, .canary .never").count() == 0


def test_a_replay_that_failed_says_why_and_what_became_of_what_it_sent(partition, open_page):
    one = open_page(hash_of(id=partition))
    run = asked(one)
    path, ask = one.run_path(run), one.context.request
    entry = {"key": "reason", "value": "replay r1 was cancelled after 20 of 40 events"}
    assert ask.post(f"{path}/taskInstances/replay/xcomEntries", data=entry).ok
    assert ask.patch(path, data={"state": "failed"}).ok
    expect(run.locator(".state")).to_have_text("failed")
    expect(run).to_contain_text("Replay r1 was cancelled after 20 of 40 events.")
    expect(run).to_contain_text("Nothing is lost")
    expect(run).not_to_contain_text("The run's log in Airflow says why")


def test_a_cancel_says_that_what_is_on_its_way_is_added_to_its_number(partition, open_page, web):
    web.lot.parking.begin_replay(partition, who="ann", run_id="r1")
    one = open_page(hash_of(id=partition))
    one.action("cancel").click()
    one.confirm()
    said = one.frame.get_by_text("The replay is cancelled: 0 of 40 events were marked as sent")
    expect(said).to_contain_text("on their way in this moment are added to the number")
    state = one.frame.locator(".history tbody tr .state")
    expect(state).to_have_text("cancelled")


def test_the_step_that_stopped_is_told_among_the_replays_so_far(partition, open_page, web):
    parking = web.lot.parking
    for step, events, parked_again in (("1%", 1, 0), ("10%", 3, 2)):
        asked_for = ReplayConditions(max_events=events)
        one = parking.begin_replay(
            partition, who="ann", run_id="r1", conditions=asked_for, step=step
        )
        parking.mark_replayed(one.id, [own.id for own in parking.replay_segments(one.id)])
        parking.finish_replay(one.id)
        for outcome, number in (("delivered", events - parked_again), ("parked/x", parked_again)):
            row = "INSERT INTO replay_outcomes VALUES (:id, :outcome, :number)"
            web.lot.sql(row, id=one.id, outcome=outcome, number=number)
    rows = open_page(hash_of(id=partition)).frame.locator(".history tbody tr")
    expect(rows).to_have_count(2)
    stopped, passed = rows.nth(0), rows.nth(1)
    expect(stopped.locator(".state")).to_have_text("no next step")
    expect(stopped.locator(".state")).to_have_class("state warned")
    expect(stopped).to_contain_text("1 delivered, 2 parked again")
    expect(passed.locator(".state")).to_have_class("state done")
    expect(passed).to_contain_text("1 delivered")
    expect(passed).to_contain_text("canary 1%")
