"""Rewriting mostly dead objects: byte for byte, killed anywhere, beside discards and replays."""

import pytest
from tests.integration import parking_lot
from tests.integration.parking_lot import make_event, run_and_kill
from tests.support import emptied

from waybill.access import Decision
from waybill.parking import ParkedGroupFilter, read_directory
from waybill.storage import ObjectStore

pytestmark = pytest.mark.serves
lot, opened_lots = parking_lot.lot, parking_lot.opened_lots

BY = Decision("ann", "known")
DEAD = ParkedGroupFilter(event_name="dead")
LIVE = ("live 0", "live 1")


def park_mostly_dead(lot):
    """Park two live segments between three large dead ones; return the object's key."""
    noise = bytes(range(256)) * 40
    events = []
    for index in range(3):
        value = b"".join(bytes([b ^ index * 37 & 0xFF]) for b in noise)
        events += [make_event(n, "dead", f"c{index}", value=value) for n in range(3)]
        events += [make_event(n, f"live {index}", value=b"\xff%d" % n) for n in (7, 3)][
            : 4 * (index < 2)
        ]
    key = lot.park(events, 5)
    lot.parking.discard(DEAD, BY)
    return key


def tidy(parking):
    return parking.clean_up(grace_s=0, rewrite_below=0.9)


def live_events(lot):
    found = lot.sql("SELECT id, event_name FROM parked_partitions ORDER BY event_name")
    return {
        name: [(e.kafka_offset, e.value) for e in lot.parking.events(partition_id)]
        for partition_id, name in found
        if name != "dead"
    }


def columns(lot):
    return lot.sql(
        "SELECT partition_id, length, count, bytes, sha256, first_event_at, last_event_at, scope, "
        "commit_number, kafka_partition, first_offset, fingerprint, last_message, ids, copies, "
        "parked_at FROM segments WHERE state = 'parked' ORDER BY partition_id"
    )


def test_what_is_parked_moves_byte_for_byte_and_the_rest_goes(lot):
    key = park_mostly_dead(lot)
    before, rows, partitions = live_events(lot), columns(lot), lot.parking.partitions()
    frames = lot.sql("SELECT sha256 FROM segments WHERE state = 'parked' ORDER BY position")
    report = tidy(lot.parking)
    assert (report.objects, report.rewritten, report.moved_segments) == (0, 1, 2)
    assert (live_events(lot), columns(lot), lot.parking.partitions()) == (before, rows, partitions)
    [(moved,)] = lot.sql("SELECT DISTINCT object_key FROM segments WHERE state = 'parked'")
    assert lot.keys() == {key, moved}
    body = lot.objects.get(moved)
    assert [(one.sha256,) for one in read_directory(body)] == frames
    assert lot.sql(
        "SELECT s.sha256 = n.sha256 FROM segments n JOIN segments s ON s.id = n.source_id "
        "AND s.state = 'replaced'"
    ) == [(True,), (True,)]
    report = tidy(lot.parking)
    assert (report.objects, report.rewritten) == (1, 0)
    assert lot.keys() == {moved}
    assert lot.states() == {"parked": 4, "replaced": 4, "deleted": 9}
    assert lot.parking.refresh(grace_s=0).aggregates_corrected == 0
    assert (live_events(lot), lot.parking.partitions()) == (before, partitions)


@pytest.mark.parametrize(
    "given",
    [
        {"rewrite_below": 0.001},
        {"rewrite_below": 0.9, "rewrite_from_bytes": 10**6},
        {"rewrite_below": 0.9, "grace_s": 60},
        {},
    ],
    ids=["not dead enough", "small", "young", "off"],
)
def test_an_object_that_is_not_worth_it_stays(lot, given):
    key = park_mostly_dead(lot)
    report = lot.parking.clean_up(**({"grace_s": 0} | given))
    assert (report.rewritten, lot.keys()) == (0, {key})


def test_an_object_that_a_replay_holds_is_not_rewritten(lot):
    key = park_mostly_dead(lot)
    [live, _] = [p for p in lot.parking.partitions() if p.event_name in LIVE]
    replay = lot.parking.begin_replay(live.id, who="ann", run_id="r")
    assert tidy(lot.parking).rewritten == 0
    lot.parking.cancel_replay(replay.id, who="ann")
    assert (lot.keys(), tidy(lot.parking).rewritten) == ({key}, 1)


@pytest.mark.parametrize("happens", ["discard", "replay", "clean-up"])
def test_what_changes_between_copy_and_swap_wins(lot, monkeypatch, happens):
    key = park_mostly_dead(lot)
    before = live_events(lot)
    live = next(p for p in lot.parking.partitions() if p.event_name == "live 0")
    put = lot.objects.put

    def overtaken(target, body):
        put(target, body)
        monkeypatch.undo()
        if happens == "discard":
            lot.parking.discard(ParkedGroupFilter(event_name="live 0"), BY)
        elif happens == "replay":
            lot.parking.begin_replay(live.id, who="ann", run_id="r")
        else:
            assert tidy(lot.parking).rewritten == 1

    monkeypatch.setattr(lot.objects, "put", overtaken)
    report = tidy(lot.parking)
    assert report.moved_segments == 0
    [stray] = lot.keys() - {row[0] for row in lot.sql("SELECT key FROM parked_objects")}
    assert lot.parking.refresh(grace_s=0).garbage_deleted == (happens == "clean-up")
    if happens == "clean-up":
        assert live_events(lot) == before
        return
    assert stray in lot.keys(), "its first segment may still be parked again, and the swap done"
    if happens == "discard":
        lot.parking.undo_discard(ParkedGroupFilter(event_name="live 0"), BY)
        assert live_events(lot) == before
        assert tidy(lot.parking).rewritten == 1
        assert lot.parking.refresh(grace_s=0).garbage_deleted == 1
        assert live_events(lot) == before
    else:
        assert lot.keys() == {key, stray}


@pytest.mark.parametrize("what", ["frame", "directory"])
def test_a_damaged_object_is_left_alone(lot, what):
    key = park_mostly_dead(lot)
    body = bytearray(lot.objects.get(key))
    [(position,)] = lot.sql(
        "SELECT position FROM segments WHERE state = 'parked' ORDER BY position LIMIT 1"
    )
    body[position + 9 if what == "frame" else -20] ^= 0xFF
    lot.objects.put(key, bytes(body))
    report = tidy(lot.parking)
    assert (report.rewritten, lot.keys()) == (0, {key})
    assert lot.states() == {"parked": 4, "discarded": 9}


def test_many_frames_move_in_portions(lot, monkeypatch):
    monkeypatch.setattr("waybill.parking.cleanup.LARGEST_MOVE_BYTES", 1)
    park_mostly_dead(lot)
    before = live_events(lot)
    report = tidy(lot.parking)
    assert (report.rewritten, report.moved_segments) == (1, 2)
    assert live_events(lot) == before
    assert tidy(lot.parking).objects == 1
    assert len(lot.keys()) == 2


class StoreWithPoints(parking_lot.ObjectsWithPoints):
    def put(self, key, body):
        self.points.pass_one()
        etag = ObjectStore.put(self, key, body)
        self.points.pass_one()
        return etag


@parking_lot.KILL_STEPS
def test_a_rewriting_killed_at_any_point_is_finished_by_the_next(lot, monkeypatch, step):
    """Points: before, at the end of, and after each transaction; around each PUT and deletion."""
    monkeypatch.setattr(parking_lot, "ObjectsWithPoints", StoreWithPoints)
    killed_at = 0
    for kill_at in range(1, 100, step):
        park_mostly_dead(lot)
        before = live_events(lot)
        if not run_and_kill(lot, tidy, kill_at):
            break
        killed_at = kill_at
        assert live_events(lot) == before
        tidy(lot.parking)
        tidy(lot.parking)
        assert live_events(lot) == before
        report = lot.parking.refresh(grace_s=0)
        assert (report.missing, report.aggregates_corrected) == ((), 0)
        [(moved,)] = lot.sql("SELECT DISTINCT object_key FROM segments WHERE state = 'parked'")
        assert lot.keys() == {moved}
        lot.check()
        lot.sql(
            emptied.without_triggers(
                "TRUNCATE segments, parked_partitions, parked_objects, replays, audit_log CASCADE"
            )
        )
        lot.objects.delete([moved])
    assert 32 - step < killed_at <= 32  # ten transactions, three points each, and one PUT
