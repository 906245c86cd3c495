"""``waybill trail`` and ``waybill queries`` over real traces, tracker and store."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from tests.integration import parking_lot
from tests.integration.parking_lot import make_event
from tests.support import told_traces as told
from tests.support.books import nothing_parked
from tests.unit.tracing.samples import ids
from typer.testing import CliRunner

from waybill.access import Decision
from waybill.cli import app
from waybill.ingestion import PageTraces
from waybill.ledger import Refusal, commit_refusal
from waybill.parking import ParkedGroupFilter
from waybill.tracing import Recorder

pytestmark = pytest.mark.serves
lot, opened_lots = parking_lot.lot, parking_lot.opened_lots
ONE, TWO, THREE, UNKNOWN = ids(4)


@pytest.fixture
def spool(tmp_path):
    return tmp_path / "spool"


@pytest.fixture
def run(lot, monkeypatch, tmp_path, spool):
    s3 = lot.settings["s3"]
    lot.objects.delete([item.key for item in lot.objects.list("traces/")])
    for name, value in {
        "WAYBILL_HOME": str(tmp_path),
        "WAYBILL_TRACKER__DSN": lot.settings["dsn"],
        "WAYBILL_S3__ENDPOINT_URL": s3.endpoint_url,
        "WAYBILL_S3__BUCKET": s3.bucket,
        "WAYBILL_S3__ACCESS_KEY": s3.access_key.get_secret_value(),
        "WAYBILL_S3__SECRET_KEY": s3.secret_key.get_secret_value(),
        "WAYBILL_TRACES__SPOOL_DIR": str(spool),
        "COLUMNS": "80",
    }.items():
        monkeypatch.setenv(name, value)

    def call(*words, exit_code=0, answer=None):
        done = CliRunner().invoke(app, [str(word) for word in words], input=answer)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == exit_code, done.output
        return json.loads(done.output) if "--json" in words else done.output

    return call


@pytest.fixture
def flights(lot):
    lot.sql("INSERT INTO pipelines (id, name, team) VALUES ('pl-1', 'flights', 'aviation')")
    lot.sql(
        "INSERT INTO pipeline_versions (pipeline_id, number, version, declaration, deployed_by) "
        "VALUES ('pl-1', 1, 'v1', CAST(:declaration AS jsonb), 'test')",
        declaration=json.dumps({"events": {"flight": declared(), "leg": declared()}}),
    )


def flat(shown):
    return " ".join(shown.split())


def declared():
    return {"personal": [], "key": ["id"], "table": {"columns": []}}


def test_a_parked_event_is_shown_with_its_partition_and_then_its_replay(lot, run, spool, flights):
    key = lot.park([make_event()])
    told.way(lot, spool, [ONE], parked_key=key)
    told.ship(spool, lot.settings["s3"])
    shown = run("trail", f" {ONE.upper()} ")
    assert f"{ONE}  flights / flight" in shown
    assert "parked since" in shown
    assert "null_value; not replayed yet" in flat(shown)
    assert "events.aviation.warehouse/3@0" in shown
    assert "node-a" in shown
    assert f"now parked (parked group {lot.only().id})" in shown
    assert max(map(len, shown.splitlines())) <= 80

    replay = lot.parking.begin_replay(lot.only().id, who="ann", run_id="run-1")
    told.write(spool, [ONE], "replay", "replayed", 60, replay_id=str(replay.id))
    told.write(spool, [ONE], "mapping", "passed", 61, attempt=1, object_key="staged/y")
    [trail] = run("trail", ONE, "--json")["trails"]
    assert [(stop["leg"], stop["phase"]) for stop in trail["stops"]] == [
        (0, "ingestion"), (0, "transformation"), (1, "replay"), (1, "mapping"),
    ]  # fmt: skip
    assert (trail["state"], trail["pipeline"], trail["team"]) == (
        "in flight",
        "flights",
        "aviation",
    )
    assert trail["stops"][1]["parked"]["state"] == "replaying"
    assert "replay 1 by ann in Airflow, run run-1" in flat(run("trail", ONE))


def test_times_on_a_terminal_never_run_backwards_and_late_marks_are_named(lot, run, spool, flights):
    key = lot.park([make_event()])
    told.way(lot, spool, [ONE], parked_key=key)
    replay = lot.parking.begin_replay(lot.only().id, who="ann", run_id="run-1")
    told.write(spool, [ONE], "replay", "replayed", 63, replay_id=str(replay.id))
    batch = told.commit(lot)
    for phase in ("mapping", "transformation"):
        told.write(spool, [ONE], phase, "passed", 61, attempt=1, batch=batch)
    shown = run("trail", ONE)
    assert max(map(len, shown.splitlines())) <= 80
    marks = [line.split() for line in shown.splitlines() if line.startswith("●")]
    times = [mark[1].rstrip("~") for mark in marks]
    assert times == sorted(times)
    assert [mark[1][-1] == "~" for mark in marks] == [False, False, True, False, False]
    assert [" ".join(mark[2:]) for mark in marks[2:]] == [
        "+1 min 0 s replay replayed",
        "+<1 ms transformation passed",
        "+<1 ms mapping passed",
    ]
    assert "mark written at" in shown
    assert flat(shown).count("~ a late mark: it was written after what it caused") == 1
    told.ship(spool, lot.settings["s3"])


def test_no_shown_time_is_before_the_intake_stamp_and_names_are_whole(lot, run, spool, flights):
    page, stamp_us = PageTraces(), told.NOON_US + 24_570_700
    page.add(ONE, "[1]", 1, 7, stamp_us)
    Recorder(spool).write(page.batches("pl-1", "flight", topic="events.a.warehouse", batch=""))
    own = {"batch": told.commit(lot), "topic": "events.a.warehouse", "attempt": 0}
    own |= {"kafka_partition": 0, "kafka_offset": 850, "host": "vm"}
    name = f"staged/warehouse/{'0' * 40}e827e4.wbs"
    told.write(spool, [ONE], "mapping", "passed", 24.62, object_key=name, **own)
    shown = run("trail", ONE)
    taken, mapped = (line.split() for line in shown.splitlines() if line.startswith("●"))
    stamp = datetime.fromtimestamp(stamp_us / 1_000_000, UTC)
    assert f"{stamp:%H:%M:%S.%f}".startswith(taken[1]), taken
    assert taken[1].endswith(":24.5")
    assert mapped[1].endswith(":24.620"), mapped
    assert (mapped[2], mapped[3]) == ("+0.1", "s"), "a tenth is what is known"
    [beside] = [line for line in shown.splitlines() if "e827e4.wbs" in line]
    assert beside.endswith(f" {name}"), "whole: it is copied from here"
    assert max(map(len, shown.splitlines())) <= 80
    [trail] = run("trail", ONE, "--json")["trails"]
    assert [(stop["coarse"], stop["object_key"]) for stop in trail["stops"]] == [
        (True, ""),
        (False, name),
    ]


LOG = told.LOG


def test_each_stop_of_an_event_that_came_twice_and_parked_twice_says_of_which_copy_it_is(
    lot, run, spool, flights
):
    key = lot.park([make_event()])
    for number in (1, 2):
        told.write(spool, [ONE], "ingestion", "accepted", number, kafka_offset=number, batch="")
    batch = told.commit(lot)
    for offset in (11, 10):
        own = {"kafka_offset": offset, "batch": batch, "attempt": 0, "error_type": "null_value"}
        told.write(spool, [ONE], "transformation", "parked", 5, object_key=key, **LOG, **own)
    replay = str(lot.parking.begin_replay(lot.only().id, who="ann", run_id="run-1").id)
    told.write(spool, [ONE, ONE], "replay", "replayed", 60, object_key=key, replay_id=replay)
    batch = told.commit(lot)
    for offset in (21, 20):
        own = {"kafka_offset": offset, "batch": batch, "attempt": 1, "object_key": "staged/y"}
        told.write(spool, [ONE], "mapping", "passed", 61, **LOG, **own)
    for row, outcome in ((5, "duplicate"), (4, "delivered")):
        own = {"kafka_offset": row, "commit_number": 2}
        own |= {"object_key": "warehouse", "replay_id": replay}
        told.write(spool, [ONE], "destination", outcome, 62, **own)
    shown = run("trail", ONE)
    assert max(map(len, shown.splitlines())) <= 80
    lines = shown.splitlines()
    assert lines[1:3] == [
        "delivered (copy 1); copy 2 changed nothing",
        "taken in twice: each copy has its own way below",
    ]
    first, second = (
        next(n for n, x in enumerate(lines) if x.startswith(f"copy {c}: ")) for c in (1, 2)
    )
    for part, end in ((lines[first:second], "delivered"), (lines[second:], "duplicate")):
        stops = [" ".join(line.split()[-2:]) for line in part if line.startswith("●")]
        assert stops[-1] == f"destination {end}", shown
        assert len(stops) == 5, shown
    [trail] = run("trail", ONE, "--json")["trails"]
    by_copy = {
        number: [
            (one["phase"], one["outcome"], one["kafka_offset"])
            for one in trail["stops"]
            if one["copy_number"] == number
        ]
        for number in (0, 1, 2)
    }
    assert by_copy == {
        0: [],
        1: [
            ("ingestion", "accepted", 1),
            ("transformation", "parked", 10),
            ("replay", "replayed", None),
            ("mapping", "passed", 20),
            ("destination", "delivered", 4),
        ],
        2: [
            ("ingestion", "accepted", 2),
            ("transformation", "parked", 11),
            ("replay", "replayed", None),
            ("mapping", "passed", 21),
            ("destination", "duplicate", 5),
        ],
    }
    assert trail["state"] == "delivered"
    assert [(one["copy_number"], one["state"]) for one in trail["copies"]] == [
        (1, "delivered"),
        (2, "duplicate"),
    ]


def parked_twice(lot, spool) -> str:
    """Write the way of an event of which both copies parked in one object; return the object."""
    key = lot.park([make_event()])
    batch = told.commit(lot)
    for number in (1, 2):
        told.write(spool, [ONE], "ingestion", "accepted", number, kafka_offset=number, batch="")
        own = {"kafka_offset": 10 + number, "batch": batch, "error_type": "null_value"}
        own |= {"object_key": key, "attempt": 0} | LOG
        told.write(spool, [ONE], "transformation", "parked", 5, **own)
    return key


def test_a_mark_of_a_replay_that_sent_both_copies_stands_in_the_way_of_each_and_says_so(
    lot, run, spool, flights
):
    key = parked_twice(lot, spool)
    replay = str(lot.parking.begin_replay(lot.only().id, who="ann", run_id="run-1").id)
    told.write(spool, [ONE], "replay", "replayed", 60, object_key=key, replay_id=replay)
    batch = told.commit(lot)
    for offset in (20, 21):
        own = {"kafka_offset": offset, "batch": batch, "attempt": 1, "object_key": "staged/y"}
        told.write(spool, [ONE], "mapping", "passed", 61, **LOG, **own)
    shown = run("trail", ONE)
    assert shown.count("replay  replayed  copies 1 and 2 together") == 2, shown
    [trail] = run("trail", ONE, "--json")["trails"]
    marks = [stop for stop in trail["stops"] if stop["phase"] == "replay"]
    assert [(mark["copy_number"], mark["copies"]) for mark in marks] == [(1, [1, 2]), (2, [1, 2])]
    assert trail["said"] == "in flight (both copies)"


@pytest.mark.parametrize("parks", [False, True])
def test_a_copy_is_shown_at_its_own_times_whatever_was_replayed_before_it_came(
    lot, run, spool, flights, parks
):
    told.came_again(lot, spool, ONE, parks=parks)
    shown = run("trail", ONE)
    assert max(map(len, shown.splitlines())) <= 80
    assert "~" not in shown
    assert "mark written at" not in shown
    [trail] = run("trail", ONE, "--json")["trails"]
    assert all(stop["shown_at"] == stop["at"] for stop in trail["stops"])
    second = [stop for stop in trail["stops"] if stop["copy_number"] == 2]
    assert [stop["after_s"] for stop in second] == [None, 35.0, 1.0]


def test_a_trail_says_what_is_true_of_each_copy(lot, run, spool, flights):
    told.came_again(lot, spool, ONE, parks=True)
    shown = run("trail", ONE)
    assert "delivered (copy 2); copy 1 is parked" in shown
    assert "copy 1: parked since" in shown
    assert "; parked again by its replay" in flat(shown)
    assert "copy 2: delivered to warehouse at" in shown
    assert "after 36.0 s" in flat(shown), "since this copy was taken in"
    [trail] = run("trail", ONE, "--json")["trails"]
    assert (trail["state"], trail["said"]) == ("delivered", "delivered (copy 2); copy 1 is parked")
    assert [one["state"] for one in trail["copies"]] == ["parked", "delivered"]


def test_a_discard_of_both_copies_is_a_stop_of_each(lot, run, spool, flights):
    parked_twice(lot, spool)
    lot.parking.discard(ParkedGroupFilter(event_name="flight"), Decision("anna", "test data"))
    [trail] = run("trail", ONE, "--json")["trails"]
    assert trail["said"] == "discarded (both copies)"
    assert [stop["copy_number"] for stop in trail["stops"] if stop["phase"] == "discard"] == [1, 2]


def accepted(spool, number, after_s):
    told.write(spool, [ONE], "ingestion", "accepted", after_s, kafka_offset=number, batch="")


def parked(lot, spool, offset, after_s, *, attempt=0):
    """Park a copy; returns its object's key and the parked group's id."""
    key = lot.park([make_event()])
    own = {"kafka_offset": offset, "attempt": attempt, "batch": told.commit(lot)}
    own |= {"error_type": "null_value", "object_key": key}
    told.write(spool, [ONE], "transformation", "parked", after_s, **LOG, **own)
    return key, lot.sql("SELECT max(id) FROM parked_partitions")[0][0]


def mapped(lot, spool, offset, after_s, *, attempt=0):
    """Map a copy; returns the number of its commit."""
    own = {"kafka_offset": offset, "attempt": attempt, "batch": told.commit(lot)}
    told.write(spool, [ONE], "mapping", "passed", after_s, object_key="staged/x", **LOG, **own)
    return lot.sql("SELECT max(commit_number) FROM batches")[0][0]


def loaded(spool, commit, outcome, after_s, *, replay_id=None):
    own = {"commit_number": commit, "kafka_offset": 0}
    own |= {"replay_id": replay_id} if replay_id else {}
    told.write(spool, [ONE], "destination", outcome, after_s, object_key="warehouse", **own)


def by_copies(trail):
    """Return {copy: [(phase, outcome, seconds since noon as shown)]}."""
    ways = {}
    for stop in trail["stops"]:
        at = datetime.fromisoformat(stop["shown_at"]).timestamp() - told.NOON_US / 1_000_000
        ways.setdefault(stop["copy_number"], []).append((stop["phase"], stop["outcome"], at))
    return ways


def test_of_three_copies_the_one_delivered_counts_though_the_parked_ones_are_discarded(
    lot, run, spool, flights
):
    accepted(spool, 1, 0)
    parked(lot, spool, 10, 1)
    accepted(spool, 2, 100)
    parked(lot, spool, 11, 101)
    accepted(spool, 3, 200)
    loaded(spool, mapped(lot, spool, 12, 201), "delivered", 202)
    [trail] = run("trail", ONE, "--json")["trails"]
    assert trail["said"] == "delivered (copy 3); copies 1 and 2 are parked"
    lot.parking.discard(ParkedGroupFilter(event_name="flight"), Decision("root", "mended"))
    [trail] = run("trail", ONE, "--json")["trails"]
    assert trail["said"] == "delivered (copy 3); copies 1 and 2 were discarded"
    assert by_copies(trail)[3] == [
        ("ingestion", "accepted", 200.0), ("mapping", "passed", 201.0), ("destination", "delivered", 202.0),
    ]  # fmt: skip
    said = flat(run("trail", ONE))
    assert "copy 1: discarded by root" in said
    assert "copy 3: delivered to warehouse" in said


def test_a_copy_that_is_loaded_while_another_is_replayed_is_no_stop_of_the_replay(
    lot, run, spool, flights
):
    accepted(spool, 1, 0)
    key, group = parked(lot, spool, 10, 1)
    accepted(spool, 2, 100)
    second = mapped(lot, spool, 11, 101)
    replay = str(lot.parking.begin_replay(group, who="ann", run_id="run-1").id)
    told.write(spool, [ONE], "replay", "replayed", 102, object_key=key, replay_id=replay)
    loaded(spool, second, "delivered", 103)
    first = mapped(lot, spool, 20, 104, attempt=1)
    loaded(spool, first, "duplicate", 105, replay_id=replay)
    [trail] = run("trail", ONE, "--json")["trails"]
    assert by_copies(trail) == {
        1: [("ingestion", "accepted", 0.0), ("transformation", "parked", 1.0),
            ("replay", "replayed", 102.0), ("mapping", "passed", 104.0), ("destination", "duplicate", 105.0)],
        2: [("ingestion", "accepted", 100.0), ("mapping", "passed", 101.0), ("destination", "delivered", 103.0)],
    }  # fmt: skip
    assert trail["said"] == "delivered (copy 2); copy 1 changed nothing"


def test_a_copy_that_kafka_refused_is_no_other_copy_and_not_the_one_that_went_on(
    lot, run, spool, flights
):
    accepted(spool, 1, 0)
    own = {"error_type": "null_value", "object_key": lot.park([make_event()])}
    refusal = Refusal("w", 1, "aviation:pl-1", own["object_key"], ())
    commit_refusal(lot.tracker, refusal, nothing_parked)
    told.write(spool, [ONE], "ingestion", "parked", 1, attempt=0, batch="refused:w:1", **own)
    accepted(spool, 2, 100)
    loaded(spool, mapped(lot, spool, 11, 101), "delivered", 102)
    accepted(spool, 3, 200)
    [trail] = run("trail", ONE, "--json")["trails"]
    assert {copy: [stop[1] for stop in way] for copy, way in by_copies(trail).items()} == {
        1: ["accepted", "parked"], 2: ["accepted", "passed", "delivered"], 3: ["accepted"],
    }  # fmt: skip
    assert trail["said"] == "delivered (copy 2); copy 1 is parked; copy 3 is in flight"


def test_a_copy_whose_taking_in_is_not_seen_yet_is_neither_timed_nor_judged_by_another(
    lot, run, spool, flights
):
    accepted(spool, 1, 0)
    key, group = parked(lot, spool, 10, 1)
    replay = str(lot.parking.begin_replay(group, who="ann", run_id="run-1").id)
    told.write(spool, [ONE], "replay", "replayed", 30, object_key=key, replay_id=replay)
    parked(lot, spool, 20, 31, attempt=1)
    loaded(spool, mapped(lot, spool, 30, 75), "delivered", 76)
    [trail] = run("trail", ONE, "--json")["trails"]
    assert [stop[1:] for stop in by_copies(trail)[0]] == [
        ("accepted", 0.0), ("parked", 1.0), ("replayed", 30.0), ("parked", 31.0), ("passed", 75.0), ("delivered", 76.0),
    ]  # fmt: skip
    assert trail["said"].startswith("delivered to warehouse at")
    lot.parking.discard(ParkedGroupFilter(event_name="flight"), Decision("root", "mended"))
    [trail] = run("trail", ONE, "--json")["trails"]
    assert trail["state"] == "delivered"


def test_a_path_longer_than_the_terminal_is_one_line(lot, run, spool, flights):
    name = f"staged/2026/11/28/{'2ee7b5d4-a' * 8}.wbs"
    own = {"batch": told.commit(lot), "attempt": 0, "object_key": name, "host": "vm"}
    told.write(spool, [ONE], "mapping", "passed", 1, kafka_offset=4, **LOG, **own)
    lines = run("trail", ONE).splitlines()
    assert name in lines
    assert lines[lines.index(name) + 1].endswith("on vm")


def test_stops_whose_copy_cannot_be_told_stand_apart(lot, run, spool, flights):
    """Three records of an event that was taken in twice: a trace of its taking in is missing."""
    for number in (1, 2):
        told.write(spool, [ONE], "ingestion", "accepted", number, kafka_offset=number, batch="")
    for offset in (3, 4, 5):
        own = {"kafka_offset": offset, "batch": told.commit(lot), "object_key": "staged/x"}
        told.write(spool, [ONE], "mapping", "passed", offset, attempt=0, **LOG, **own)
    shown = run("trail", ONE)
    assert "copy 2" in shown.splitlines()
    assert shown.index("copy 2") < shown.index("copy not known")
    [trail] = run("trail", ONE, "--json")["trails"]
    assert (trail["copies"], trail["state"]) == ([], "in flight")
    assert [stop["copy_number"] for stop in trail["stops"]] == [1, 2, 0, 0, 0]


def test_a_discard_and_its_undoing_are_stops_with_who_and_why(lot, run, spool, flights):
    key = lot.park([make_event()])
    told.way(lot, spool, [ONE], parked_key=key)
    flight = ParkedGroupFilter(event_name="flight")
    lot.parking.discard(flight, Decision("anna", "test [red]data"))
    lot.parking.undo_discard(flight, Decision("bob", "it was not"))
    lot.parking.discard(flight, Decision("carl", "it was"))
    [trail] = run("trail", ONE, "--json")["trails"]
    stops = trail["stops"]
    assert [(stop["phase"], stop["outcome"]) for stop in stops] == [
        ("ingestion", "accepted"),
        ("transformation", "parked"),
        ("discard", "discarded"),
        ("discard", "put back"),
        ("discard", "discarded"),
    ]
    assert [stop["decision"]["who"] for stop in stops[2:]] == ["anna", "bob", "carl"]
    assert {stop["place"] for stop in stops[2:]} == {key}
    assert stops[2]["at"] <= stops[3]["at"] <= stops[4]["at"]
    assert trail["state"] == "discarded"
    assert trail["said"].startswith("discarded by carl at")
    shown = run("trail", ONE)
    assert "discard  discarded" in shown
    assert "by anna: test [red]data" in shown
    assert max(map(len, shown.splitlines())) <= 80
    lot.parking.clean_up(grace_s=0)
    [trail] = run("trail", ONE, "--json")["trails"]
    assert [stop["outcome"] for stop in trail["stops"][2:]] == [
        "discarded",
        "put back",
        "discarded",
    ]


def test_traces_of_a_batch_that_never_committed_are_left_out_and_said(lot, run, spool, flights):
    told.way(lot, spool, [ONE])
    never = "00000000-0000-4000-8000-000000000000"
    told.write(spool, [ONE], "mapping", "parked", 0.5, error_type="x_y", batch=never)
    [trail] = run("trail", ONE, "--json")["trails"]
    assert (trail["uncommitted"], len(trail["stops"])) == (1, 3)
    assert "1 trace of batches that did not commit left out" in flat(run("trail", ONE))


@pytest.mark.parametrize(("there", "asked"), [("[4711]", "4711"), ('["4711"]', "4711")])
def test_events_are_found_by_their_primary_key_number_or_text(
    lot, run, spool, flights, there, asked
):
    told.way(lot, spool, [ONE, TWO])
    told.keyed(spool, ONE, there)
    told.keyed(spool, TWO, there, after_s=5)
    told.ship(spool, lot.settings["s3"])
    found = run("trail", "--pipeline", "flights", "--key", asked, "--json")
    assert [trail["event_id"] for trail in found["trails"]] == [TWO, ONE], "newest first"
    assert found["ways"] == [{"event_name": "flight", "key": there, "events": 2}]
    shown = run("trail", "--pipeline", "pl-1", "--key", asked, "--event-name", "flight")
    assert f"2 events flight {there}" in shown
    wrong = run("trail", "--pipeline", "pl-1", "--key", asked, "--event-name", "leg", exit_code=3)
    assert "No event has this key" in wrong
    assert 'leg ["4711"]' in wrong


def test_many_ids_come_from_a_file_and_what_is_missing_is_named(lot, run, spool, flights, tmp_path):
    told.way(lot, spool, [ONE, TWO, THREE])
    file = tmp_path / "ids.txt"
    file.write_text(f"{ONE}\r\n\n  {TWO.upper()}\n{TWO}\n{UNKNOWN}\n")
    found = run("trail", "--file", file, "--json", exit_code=3)
    assert [trail["event_id"] for trail in found["trails"]] == [ONE, TWO]
    assert [one["id"] for one in found["missing"]] == [UNKNOWN]
    assert len(run("trail", THREE, "--file", "-", "--json", answer=f"{ONE}\n")["trails"]) == 2


def test_not_found_says_what_was_searched_and_what_is_near(lot, run, spool, flights):
    told.way(lot, spool, [ONE])
    told.keyed(spool, ONE, "[4711]")
    shown = run("trail", f"{ONE}/7", exit_code=3)
    assert shown.startswith(f"Not found: no event with the id {ONE}/7 was taken in"), shown
    assert "it would have been made from, is known" in flat(shown)
    assert "Looked through: the traces of all time that is kept." in shown
    for inner in ("objects read", "trace files", "shipped"):
        assert inner not in flat(shown)
    searched = run("trail", f"{ONE}/7", "--json", exit_code=3)["searched"]
    assert searched["spool_files"] == 4
    of_key = flat(run("trail", "4711", exit_code=3))
    assert "it is the primary key of an event 'flight'" in of_key
    assert "ask by key, `waybill trail --pipeline pl-1 --key 4711`" in of_key
    assert "31 hex digits" in run("trail", ONE[:-1], exit_code=3)
    late = run("trail", ONE, "--since", "2030-01-01", exit_code=3)
    assert "seen outside of the time" in late


def test_of_a_key_that_was_not_found_the_nearest_is_said(lot, run, spool, flights):
    told.way(lot, spool, [ONE])
    told.keyed(spool, ONE, "[4711]")
    of = ("trail", "--pipeline", "flights", "--key")
    late = run(*of, "4711", "--since", "2030-01-01", exit_code=3)
    assert "taken in outside of the time that was asked for" in flat(late)
    wrong = run(*of, "4711", "--event-name", "Flight", exit_code=3)
    assert "no event name 'Flight'; it has 'flight', 'leg'" in flat(wrong)
    short = run(*of, "UA", "--key", "1299", exit_code=3)
    assert "the key of 'flight' has one field (id); 2 values were given" in flat(short)
    assert flat(short).index("for several events give their ids") < flat(short).index("Tried:")
    assert "nearest" in run(*of, "nothing", "--json", exit_code=3)["missing"][0]


def test_of_a_key_that_was_not_found_it_is_said_that_records_parked_at_ingestion(
    lot, run, spool, flights
):
    told.way(lot, spool, [ONE])
    of = ("trail", "--pipeline", "flights", "--key", "4712")
    lot.park([make_event(3, stage="ingestion", code="delivery_failed")], 1)
    assert "parked at ingestion" not in flat(run(*of, exit_code=3)), "these are events"
    raw = make_event(4, stage="ingestion", code="source_version_invalid", value=b'{"id": 4712}')
    lot.park([raw], 2)
    shown = flat(run(*of, exit_code=3))
    assert "one record of this pipeline parked at ingestion and never became an event" in shown
    assert "`waybill parked sample pl-1 --stage ingestion` shows some" in shown
    assert "4712" in run("parked", "sample", "pl-1", "--stage", "ingestion")
    [missing] = run(*of, "--json", exit_code=3)["missing"]
    assert "parked at ingestion" in missing["nearest"][0]


def test_children_of_a_split_event_are_shown_below_it(lot, run, spool, flights):
    told.way(lot, spool, [ONE], staged=False)
    for index in (0, 10, 9):
        told.write(spool, [f"{ONE}/{index}"], "mapping", "passed", 1, object_key="staged/x")
    found = run("trail", ONE, "--json")["trails"][0]
    assert [child["event_id"] for child in found["children"]] == [f"{ONE}/{n}" for n in (0, 9, 10)]
    assert (found["state"], found["said"]) == ("split", "split into 3: 3 in flight")
    assert run("trail", f"{ONE}/9", "--json")["trails"][0]["children"] == []


def test_a_name_cannot_command_the_terminal(lot, run, spool, flights):
    told.write(spool, ["e\x1b[2J[red]"], "ingestion", "accepted", 0, event_name="[bold]\x1b[1m")
    shown = run("trail", "e\x1b[2J[red]")
    assert "\x1b" not in shown
    assert r"e\x1b[2J[red]  flights / [bold]\x1b[1m" in shown


def test_the_only_pipeline_is_meant_where_a_key_is_given_alone(lot, run, flights):
    head = {
        "id": "pl-1",
        "name": "flights",
        "team": "aviation",
        "owner": "ann@example.org",
        "source": {"connector": "csv", "path": "flights.csv", "event": "flight"},
        "destination": "warehouse",
        "schema_name": "aviation",
    }
    lot.sql(
        "UPDATE pipeline_versions SET declaration = declaration || CAST(:head AS jsonb)",
        head=json.dumps(head),
    )
    said = flat(run("trail", "--key", "1", exit_code=3))
    assert "pipeline: flights, the only one" in said
    assert "No event has this key." in said


def test_a_process_of_its_own_reads_spool_and_store_without_numpy_and_pandas(
    lot, run, spool, flights
):
    told.way(lot, spool, [ONE])
    told.ship(spool, lot.settings["s3"])
    told.way(lot, spool, [TWO])
    code = (
        "import sys; from waybill.cli import app; app(sys.argv[1:], standalone_mode=False); "
        "print({'numpy', 'pandas'} & {*sys.modules}, file=sys.stderr)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, "trail", ONE, TWO, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr.strip()) == (0, "set()"), ended.stderr
    assert [len(trail["stops"]) for trail in json.loads(ended.stdout)["trails"]] == [3, 3]


def test_what_cannot_be_asked_is_refused_with_words(lot, run, flights, tmp_path):
    for words, said in (
        ((), "no event was named: give its id, `waybill trail ID`"),
        (("--pipeline", "flights"), "--pipeline says nothing alone"),
        (("a", "--pipeline", "flights", "--key", "1"), "not both"),
        (("--pipeline", "nope", "--key", "1"), "there is no pipeline 'nope'"),
        (("--file", tmp_path / "none"), "No such file"),
        (("a", "--since", "yesterday"), "is not a time"),
        (("a", "--event-name", "x"), "--event-name says nothing alone"),
    ):
        code = 3 if "there is no" in said or "No such file" in said else 1
        assert said in flat(run("trail", *words, exit_code=code))
    assert told.questions(lot) == []


def test_a_question_is_listed_shown_again_and_cancelled_by_the_beginning_of_its_id(
    lot, run, spool, flights
):
    told.way(lot, spool, [ONE])
    asked = run("trail", ONE, "--json")["query"]
    assert (asked["state"], asked["error"]) == ("done", "")
    assert ONE in run("queries", "list")
    [listed] = run("queries", "list", "--json")
    assert (listed["id"], listed["words"]) == (asked["id"], ONE)
    again = run("queries", "show", asked["id"][:8], "--json")
    assert again["trails"][0]["event_id"] == ONE
    assert "has ended already: done" in run("queries", "cancel", asked["id"], exit_code=1)
    lot.sql("UPDATE trace_queries SET state = 'queued', answer = NULL")
    assert "is told to end" in run("queries", "cancel", asked["id"][:8])
    assert "is cancelled" in run("queries", "show", asked["id"], exit_code=1)
    unknown = "ffffffff-ffff-4fff-8fff-ffffffffffff"
    assert "no question" in run("queries", "show", unknown, exit_code=3)
