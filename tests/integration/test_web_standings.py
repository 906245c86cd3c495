"""What became of each replay of a partition, as the page and the API tell it."""

from __future__ import annotations

import pytest
from sqlalchemy import event as happening
from tests.integration.parking_lot import make_event
from tests.support import web_app

from waybill.events import HELD_ERROR
from waybill.parking import ANY_REPLAY, ObjectDescriptor, Packer, ReplayConditions, identify

pytestmark = pytest.mark.serves
airflow_app, web = web_app.airflow_app, web_app.web


@pytest.fixture
def partition(web):
    """Forty parked events; the partition's id."""
    web.deploy("pl-1", "flights", "aviation")
    for number in range(4):
        web.lot.park([make_event(10 * number + n) for n in range(10)], number + 1)
    return web.lot.only().id


def sent(web, partition, run_id, events, step=""):
    """Begin a replay, send it all and end it; return its id."""
    conditions = ReplayConditions(max_events=events)
    parking = web.lot.parking
    replay = parking.begin_replay(
        partition, who="uma", run_id=run_id, conditions=conditions, step=step
    )
    parking.mark_replayed(replay.id, [one.id for one in parking.replay_segments(replay.id)])
    parking.finish_replay(replay.id)
    return replay.id


def heard(web, replay_id, **outcomes):
    for outcome, events in outcomes.items():
        web.lot.sql(
            "INSERT INTO replay_outcomes VALUES (:id, :outcome, :events)",
            id=replay_id, outcome=outcome.replace("__", "/"), events=events,
        )  # fmt: skip


def taken_in(web, replay_id, came_in, marked):
    web.lot.sql(
        "INSERT INTO replay_entries VALUES (:id, 'flight', 'transformation', :came, :marked)",
        id=replay_id, came=came_in, marked=marked,
    )  # fmt: skip


def standings(web, partition):
    shown = web.get("uma", f"/api/partitions/{partition}")["replays"]
    return [(one["standing"], one["became"]) for one in shown]


def test_a_replay_is_done_only_when_all_of_it_was_heard_of(web, partition):
    one = sent(web, partition, "r1", 10)
    taken_in(web, one, 4, 10)
    assert standings(web, partition) == [("moving", {"moving": 6, "passed_on": 4})]
    web.lot.sql("UPDATE replay_entries SET came_in = 12")  # some were sent twice
    heard(web, one, delivered=7)
    assert standings(web, partition) == [("sent", {"delivered": 7, "passed_on": 3})]
    heard(web, one, superseded=2, duplicate=1)
    assert standings(web, partition) == [
        ("done", {"delivered": 7, "superseded": 2, "duplicate": 1})
    ]


def test_a_replay_whose_events_parked_again_is_not_done(web, partition):
    heard(web, sent(web, partition, "r1", 10), delivered=7, parked=1, parked__mapping=2)
    heard(web, sent(web, partition, "r2", 10), delivered=9, held=1)
    assert standings(web, partition) == [
        ("parked again", {"delivered": 9, "held": 1}),
        ("parked again", {"delivered": 7, "parked": 3}),
    ]


def test_the_step_at_which_a_canary_stopped_is_not_done(web, partition):
    heard(web, sent(web, partition, "r1", 1, "1%"), delivered=1)
    assert [name for name, _ in standings(web, partition)] == ["no next step"]
    heard(web, sent(web, partition, "r1", 9, "10%"), delivered=2, parked__transformation=7)
    assert [name for name, _ in standings(web, partition)] == ["no next step", "done"]
    heard(web, sent(web, partition, "r2", 10), delivered=10)
    assert [name for name, _ in standings(web, partition)] == ["done", "no next step", "done"]
    heard(web, sent(web, partition, "r3", 20, "100%"), delivered=20)
    assert standings(web, partition)[0][0] == "done"


def test_what_goes_on_and_what_was_cancelled_says_what_it_sent_too(web, partition):
    running = web.lot.parking.begin_replay(partition, who="uma", run_id="r1").id
    first = web.lot.parking.replay_segments(running)[0]
    web.lot.parking.mark_replayed(running, [first.id])
    heard(web, running, delivered=9, parked__mapping=1)
    assert standings(web, partition) == [("running", {"delivered": 9, "parked": 1})]
    web.lot.parking.cancel_replay(running, who="uma")
    assert standings(web, partition) == [("cancelled", {"delivered": 9, "parked": 1})]


def test_a_cancel_says_that_its_number_may_grow_and_the_list_has_what_it_grew_to(web, partition):
    running = web.lot.parking.begin_replay(partition, who="uma", run_id="r1").id
    segments = [one.id for one in web.lot.parking.replay_segments(running)]
    web.lot.parking.mark_replayed(running, segments[:1])
    said = web.post("uma", f"/api/partitions/{partition}/cancel")
    assert (said["state"], said["sent"], said["final"]) == ("cancelled", 10, False)
    assert "10 of 40 events were marked as sent by now" in said["said"]
    assert "on their way in this moment are added" in said["said"]
    web.lot.parking.mark_replayed(running, segments[1:2])  # it was in the log already
    [found] = web.get("uma", f"/api/partitions/{partition}")["replays"]
    assert (found["state"], found["sent"]) == ("cancelled", 20)


def test_a_cancel_of_what_was_sent_whole_says_that_too(web, partition):
    running = web.lot.parking.begin_replay(partition, who="uma", run_id="r1").id
    segments = web.lot.parking.replay_segments(running)
    web.lot.parking.mark_replayed(running, [one.id for one in segments])
    said = web.post("uma", f"/api/partitions/{partition}/cancel")
    assert (said["sent"], said["final"]) == (40, True)
    assert "all 40 events" in said["said"]


def test_many_replays_cost_as_many_statements_as_one(web, partition):
    from waybill_airflow.web.services import parked_events

    asked = []

    def note(_connection, _cursor, statement, parameters, _context, _many):
        asked.append((statement, parameters))

    engine = parked_events()._tracker.engine

    def statements():
        asked.clear()
        happening.listen(engine, "before_cursor_execute", note)
        try:
            web.get("uma", f"/api/partitions/{partition}")
        finally:
            happening.remove(engine, "before_cursor_execute", note)
        return len(asked)

    heard(web, sent(web, partition, "r0", 1), delivered=1)
    with_one = statements()
    for number in range(1, 25):
        heard(web, sent(web, partition, f"r{number}", 1), delivered=1)
    assert statements() == with_one
    assert len(standings(web, partition)) == 20
    [(statement, parameters)] = [one for one in asked if "replay_outcomes" in one[0]]
    with engine.begin() as connection:
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        plan = connection.exec_driver_sql(f"EXPLAIN {statement}", parameters).scalars().all()
    assert len([line for line in plan if "Index Cond: (replay_id = ANY" in line]) == 2, plan


def recorded(web, number, replay, events, copies=0, scope="warehouse"):
    """Record parked events as processing does; the last ones came with a replay."""
    packer = Packer()
    for n, (event, own) in enumerate(events):
        who = identify(
            f"id{event.kafka_offset}",
            source_version=1,
            intake_version=1,
            minute=n % 2,
            replay_id=own and (str(replay).upper() if n % 3 else str(replay)),
        )
        packer.add(event, who)
    done = packer.finish()
    item = ObjectDescriptor(f"parked/{number}", len(done.body), done.segments)
    with web.lot.tracker.transaction() as connection:
        found = web.lot.parking.record_once(connection, [item], scope=scope, commit_number=number)
    assert sum(found.values()) == copies


def test_what_processing_parks_again_is_added_to_its_replay(web, partition):
    one = sent(web, partition, "r1", 10)
    events = [(make_event(n, stage="mapping"), n > 2) for n in range(6)]
    events += [(make_event(10 + n, code=HELD_ERROR, stage="ingestion"), True) for n in range(4)]
    at_the_end = {"stage": "destination", "code": "unique_violation"}
    events += [(make_event(20, **at_the_end), True)]  # it entered there, and could not be read
    recorded(web, 90, one, events)
    refused_there = [(make_event(21, **at_the_end, kafka_partition=-1), True)]
    recorded(web, 1, one, refused_there, scope="load/warehouse")  # the load tells of it itself
    assert standings(web, partition) == [("parked again", {"parked": 4, "held": 4, "passed_on": 2})]
    not_taken = [(make_event(22, **at_the_end, kafka_partition=-1), True)]
    recorded(web, 2, one, not_taken, scope="ingestion/p1")  # Kafka refused it
    assert standings(web, partition) == [("parked again", {"parked": 5, "held": 4, "passed_on": 1})]
    other = sent(web, partition, "r2", 10)
    # the first two are copies of what is parked
    recorded(web, 91, other, [(make_event(n, stage="mapping"), True) for n in (0, 1, 7)], copies=2)
    heard = {"parked": 1, "duplicate": 2, "passed_on": 7}
    assert standings(web, partition)[0] == ("parked again", heard)
    again = [(make_event(30, stage="mapping"), False), (make_event(31, stage="mapping"), True)]
    recorded(web, 92, ANY_REPLAY, again)
    assert standings(web, partition)[0] == ("parked again", heard)


def test_a_destination_that_is_added_while_the_server_runs_is_shown(web):
    from waybill_airflow.web.services import OPENED

    def kinds():
        found = web.get("ann", "/api/destinations")["destinations"]
        return {one["name"]: one["kind"] for one in found}

    before = kinds()
    file = OPENED.settings().home / "stack.env"
    assert not file.exists()
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        file.write_text(
            'WAYBILL_DESTINATIONS=\'{"added": {"kind": "duckdb", "dsn": "/tmp/added.duckdb"}}\'\n'
        )
        assert kinds() == {**before, "added": "duckdb"}
    finally:
        file.unlink()
    assert kinds() == before
