"""The page "Where is that event?": three ways to ask, the line of stops, questions so far."""

from __future__ import annotations

import json
import re
from functools import partial

import pytest
from playwright.sync_api import expect
from tests.integration.parking_lot import make_event
from tests.support import told_traces as told
from tests.ui.trails_page import TrailsPage
from tests.unit.tracing.samples import ids

from waybill.access import Decision
from waybill.parking import ParkedGroupFilter
from waybill.reconciliation import BreachKey, open_breach
from waybill.trails import queries as trace_queries
from waybill.trails.question import ask_for_ids

DELIVERED, PARKED, SPLIT, UNKNOWN, LATE, DISCARDED, TWICE, *MANY = ids(19, "trails page")
PIPELINE = "pl-trails"
RUN = "manual__2026-11-22T10:00:00+00:00"


@pytest.fixture(scope="module")
def events(web, tmp_path_factory):
    """A delivered event that was replayed once, a parked one, one that was split, many others."""
    lot, spool = web.lot, tmp_path_factory.mktemp("spool")
    own = {"pipeline_id": PIPELINE, "event_name": "order"}
    lot.sql("INSERT INTO pipelines (id, name, team) VALUES (:p, 'orders', 'sales')", p=PIPELINE)
    key = lot.park([make_event(n, "order", pipeline_id=PIPELINE) for n in range(2)])
    [[partition]] = lot.sql("SELECT id FROM parked_partitions WHERE pipeline_id = :p", p=PIPELINE)
    replay = lot.parking.begin_replay(partition, who="anna", run_id=RUN)
    for one in (DELIVERED, PARKED):
        told.way(lot, spool, [one], parked_key=key, **own)
    sent = {"replay_id": str(replay.id), "topic": "events.sales.warehouse"}
    told.write(spool, [DELIVERED], "replay", "replayed", 3_600, host="airflow-1", **sent, **own)
    told.write(spool, [DELIVERED], "mapping", "passed", 3_601.2, attempt=1, **own)
    done = {"object_key": "warehouse", "replay_id": str(replay.id)}
    told.write(spool, [DELIVERED], "destination", "delivered", 3_604, **done, **own)
    told.way(lot, spool, [SPLIT], staged=False, **own)
    for index, outcome in enumerate(("delivered", "superseded")):
        told.write(
            spool, [f"{SPLIT}/{index}"], "destination", outcome, 4, object_key="warehouse", **own
        )
    told.way(lot, spool, [LATE], **own)
    told.write(spool, [LATE], "replay", "replayed", 63, replay_id="r-1", **own)
    told.write(spool, [LATE], "destination", "delivered", 61, **done | {"replay_id": "r-1"}, **own)
    lost = lot.park([make_event(9, "refund", pipeline_id=PIPELINE)], 2)
    told.way(lot, spool, [DISCARDED], parked_key=lost, **own | {"event_name": "refund"})
    refunds = ParkedGroupFilter(event_name="refund")
    lot.parking.discard(refunds, Decision("anna", "a <b>test</b>"))
    told.way(lot, spool, MANY, **own)
    told.came_again(lot, spool, TWICE, parks=True)
    told.keyed(spool, DELIVERED, "[4711]", name="order", pipeline_id=PIPELINE)
    told.ship(spool, lot.settings["s3"])
    return partition


@pytest.fixture
def open_trails(open_as):
    return partial(open_as, TrailsPage)


def test_an_event_is_found_by_its_id_and_drawn_with_its_replay_as_a_branch(events, open_trails):
    one = open_trails()
    one.frame.get_by_label("Event id").fill(f"  {DELIVERED.upper()} ")
    one.find()
    trail = one.trail(DELIVERED)
    expect(trail.locator(".verdict")).to_contain_text("Delivered to warehouse at")
    expect(trail.locator(".leg")).to_have_count(2)
    expect(trail.locator(".leg.branch h3")).to_contain_text("Replay 1 by anna")
    expect(trail.locator(".leg").first.locator(".stop")).to_have_count(2)
    expect(trail.locator(".leg.branch .stop")).to_have_count(3)
    expect(trail).to_contain_text("events.aviation.warehouse/3@0")
    expect(trail).to_contain_text("node-a")
    expect(trail.locator(".after").nth(1)).to_have_text("59 min 59 s")
    assert "#query=" in one.page.url, "the answer's address can be shared"

    again = open_trails(one.page.url.partition("#")[1] + one.page.url.partition("#")[2])
    expect(again.trail(DELIVERED).locator(".verdict")).to_contain_text("Delivered")


def test_a_stop_leads_to_the_parked_partition_and_to_the_run(events, open_trails):
    one = open_trails(f"#id={PARKED}", in_airflow=True, dark=True)
    expect(one.frame.locator("html.dark")).to_have_count(1)
    trail = one.trail(PARKED)
    expect(trail.locator(".now")).to_contain_text("replaying")
    expect(one.page).to_have_url(re.compile(r"/plugin/waybill-trails/waybill/trails#query="))
    paths = [link.get_attribute("data-path") for link in trail.locator("[data-path]").all()]
    assert "dags/ingest_orders/runs" in paths
    assert any(path.startswith("dags/replay/runs/manual__2026") for path in paths)
    trail.get_by_role("button", name="Parked group").click()
    parked = one.page.frame_locator("iframe[title='Parked events']")
    expect(parked.get_by_role("heading", level=1)).to_contain_text("null")
    assert one.page.url.endswith(f"#id={events}")


def test_a_mark_that_came_late_is_shown_at_the_time_of_what_it_caused(events, open_trails):
    one = open_trails(f"#id={LATE}")
    trail = one.trail(LATE)
    stops = trail.locator(".leg.branch .stop")
    expect(stops).to_have_count(2)
    times = [text.rstrip("~") for text in stops.locator(".stop-time strong").all_inner_texts()]
    assert times[0] == times[1], times
    expect(stops.first.locator(".late")).to_have_text("~")
    expect(stops.first).to_contain_text("mark written at ")
    expect(stops.last.locator(".late")).to_have_count(0)
    expect(trail.locator(".trail-notes")).to_contain_text("~ a late mark")


def test_an_event_that_was_taken_in_twice_has_a_way_for_each_copy(events, open_trails):
    one = open_trails(f"#id={TWICE}")
    trail = one.trail(TWICE)
    expect(trail.locator(".verdict")).to_have_text("Delivered (copy 2); copy 1 is parked.")
    ways = trail.locator(".copy-way")
    expect(ways).to_have_count(2)
    expect(ways.first.locator("h3").first).to_contain_text("Copy 1Parked since")
    expect(ways.last.locator("h3")).to_contain_text("Copy 2Delivered to warehouse at")
    expect(ways.last.locator(".stop")).to_have_count(3)
    expect(trail.locator(".late")).to_have_count(0)


def test_a_discard_is_a_stop_with_who_and_why(events, open_trails):
    one = open_trails(f"#id={DISCARDED}")
    last = one.trail(DISCARDED).locator(".stop").last
    expect(last.locator(".what")).to_have_text("discarddiscarded")
    expect(last).to_contain_text("by anna: a <b>test</b>")


def test_an_event_is_found_by_its_primary_key(events, open_trails):
    one = open_trails()
    one.choose("Primary key")
    one.frame.get_by_label("Pipeline").fill("orders")
    one.frame.get_by_label("Event name").fill("order")
    one.frame.get_by_label("Key", exact=True).fill("4711")
    one.find()
    expect(one.frame.locator(".hits")).to_contain_text("1 event order [4711]")
    expect(one.trail(DELIVERED)).to_be_visible()
    one.frame.get_by_label("Key", exact=True).fill("4712")
    one.find()
    expect(one.frame.locator(".absent-card")).to_contain_text("No event has this key")
    expect(one.frame.locator(".absent-card")).to_contain_text('order ["4712"]')


def test_many_ids_are_pasted_counted_and_opened_one_by_one(events, open_trails, tmp_path):
    one = open_trails()
    one.choose("Many ids")
    file = tmp_path / "ids.txt"
    file.write_text("\n".join([*MANY, *MANY, "", UNKNOWN, f"{SPLIT}/7"]))
    one.frame.locator("input[type=file]").set_input_files(file)
    expect(one.frame.locator(".told")).to_have_text(f"{len(MANY) + 2} different ids")
    one.find()
    rows = one.frame.locator(".folded details")
    expect(rows).to_have_count(len(MANY))
    rows.nth(3).locator("summary").click()
    expect(one.trail(MANY[3]).locator(".stop")).to_have_count(3)
    missing = one.frame.locator(".absent-card")
    expect(missing).to_contain_text("2 ids not found")
    expect(missing).to_contain_text("which it would have been made from, is known")
    expect(one.frame.locator(".searched")).to_contain_text(
        "Looked through: the traces of all time that is kept"
    )


def test_children_of_a_split_event_are_drawn_below_it(events, open_trails):
    one = open_trails(f"#id={SPLIT}")
    expect(one.trail(SPLIT).locator("> header .verdict")).to_contain_text(
        "Split into 2: 1 delivered, 1 superseded"
    )
    expect(one.trail(SPLIT).locator(".trail.child")).to_have_count(2)


def test_a_question_that_runs_shows_how_far_it_is_and_can_be_cancelled(web, events, open_trails):
    tracker = web.lot.tracker
    asked = trace_queries.ask(tracker, ask_for_ids([UNKNOWN]), who="admin", runner="elsewhere")
    said = trace_queries.Beat(objects_read=30, objects=120, bytes_scanned=5_000_000)
    trace_queries.beat(tracker, asked, said, runner="elsewhere")
    one = open_trails(f"#query={asked}")
    expect(one.frame.locator(".waiting")).to_contain_text("30 of 120 objects read, 5.0 MB")
    row = one.frame.locator(f"[data-query='{asked}']")
    expect(row).to_contain_text("running 30 of 120")
    row.get_by_role("button", name="Cancel this question").click()
    expect(row).to_contain_text("ending")
    assert trace_queries.beat(tracker, asked, said, runner="elsewhere") is True
    trace_queries.finish(tracker, asked, runner="elsewhere", state="cancelled")
    expect(one.frame.locator(".result")).to_contain_text("The question was cancelled")
    expect(row.locator(".state")).to_have_text("cancelled")


def test_a_past_question_is_opened_again_with_what_was_asked(events, open_trails):
    one = open_trails(f"#id={PARKED}")
    expect(one.trail(PARKED)).to_be_visible()
    one.frame.get_by_label("Event id").fill(UNKNOWN)
    one.find()
    expect(one.frame.locator(".absent-card")).to_contain_text("Not found")
    one.frame.locator(".query", has_text=PARKED).first.click()
    expect(one.trail(PARKED)).to_be_visible()
    expect(one.frame.get_by_label("Event id")).to_have_value(PARKED)


def test_what_users_named_is_text_and_never_markup(web, events, open_trails, tmp_path):
    name = "<img src=x onerror=alert(1)>"
    hostile = "<b>id</b>"
    told.write(tmp_path, [hostile], "ingestion", "accepted", 0, event_name=name, host=name)
    told.ship(tmp_path, web.lot.settings["s3"])
    one = open_trails(f"#id={hostile}")
    expect(one.frame.locator(".who h2")).to_have_text(hostile)
    expect(one.frame.locator(".who p")).to_contain_text(name)
    assert one.frame.locator("main img").count() == 0


@pytest.mark.parametrize("dark", [False, True])
def test_nothing_is_cut_off_at_any_width_in_either_mode(events, open_trails, dark):
    one = open_trails(f"#id={DELIVERED}", dark=dark)
    expect(one.trail(DELIVERED)).to_be_visible()
    expect(one.frame.locator("html.dark")).to_have_count(int(dark))
    for way in ("Event id", "Primary key", "Many ids"):
        one.choose(way)
        for width in (1280, 900, 400):
            one.resize(width)
            wide = one.frame.locator("html").evaluate("e => e.scrollWidth - e.clientWidth")
            assert wide == 0, (way, width)


def test_a_breach_leads_to_the_trails_of_its_events_and_a_trail_to_its_parked_group(
    events, open_trails, web
):
    with web.lot.tracker.transaction() as connection:
        key = BreachKey(PIPELINE, "on_the_way", "order", "mapping", 1)
        breach = open_breach(connection, key, words="w", gap=1, tell=False)
    web.lot.sql(
        "UPDATE breaches SET ids = jsonb_build_object('missing', CAST(:ids AS jsonb)) "
        "WHERE id = :id",
        ids=json.dumps([PARKED, DELIVERED]), id=breach.id,
    )  # fmt: skip
    one = open_trails(f"#breach={breach.id}")
    expect(one.frame.locator(".tally")).to_contain_text("2 events")
    assert "#query=" in one.page.url
    single = open_trails(f"#id={PARKED}")
    single.trail(PARKED).get_by_role("button", name="Parked group").first.click()
    expect(single.page).to_have_url(re.compile(f"waybill/parked#id={events}$"))
    gone = open_trails("#breach=999999")
    gone.expected.append("404")
    expect(gone.frame.locator(".problem")).to_contain_text("there is no breach 999999")


def test_a_screen_reader_finds_nothing_wrong(events, open_trails):
    one = open_trails(f"#id={DELIVERED}")
    expect(one.trail(DELIVERED)).to_be_visible()
    one.look_over("trails")
