"""A tracker, a bucket and ways to fill them, for the tests of parking."""

import os
import signal
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text
from tests.support import emptied
from tests.support.books import sessions_ended
from tests.support.children import forked, was_killed

from waybill.parking import Packer, ParkedEvent, Parking, new_key
from waybill.settings import TrackerSettings
from waybill.storage import ObjectStore, TrackerStore

START = datetime(2013, 1, 1, tzinfo=UTC)
SUMS = """
    SELECT p.id,
      ARRAY[p.parked, p.replaying, p.replayed, p.discarded, p.bytes] AS said,
      ARRAY[
        coalesce(sum(s.count) FILTER (WHERE s.state = 'parked' AND s.id > p.discarded_to), 0),
        coalesce(sum(s.count) FILTER (WHERE s.state = 'replaying'), 0),
        coalesce(sum(s.count) FILTER (WHERE s.state = 'replayed'
          OR s.state = 'deleted' AND s.replay_id IS NOT NULL), 0) + p.trimmed_replayed,
        coalesce(sum(s.count) FILTER (WHERE s.state = 'discarded'
          OR s.state = 'parked' AND s.id <= p.discarded_to
          OR s.state = 'deleted' AND s.replay_id IS NULL), 0) + p.trimmed_discarded,
        coalesce(sum(s.bytes) FILTER (
          WHERE s.state = 'replaying' OR s.state = 'parked' AND s.id > p.discarded_to), 0)
      ]::bigint[] AS is,
      ARRAY[p.first_event_at, p.last_event_at] AS said_span,
      ARRAY[least(min(s.first_event_at), p.trimmed_first_event_at),
        greatest(max(s.last_event_at), p.trimmed_last_event_at)] AS is_span
    FROM parked_partitions p LEFT JOIN segments s ON s.partition_id = p.id GROUP BY p.id
"""

KILL_STEPS = pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.campaign)])
"""Of how many points at which to kill one is tried."""


def make_event(n=0, name="flight", code="null_value", stage="transformation", **changes):
    at = (START + timedelta(hours=n)).isoformat().replace("+00:00", "Z")
    given = {
        "pipeline_id": "pl-1",
        "event_name": name,
        "stage": stage,
        "error_type": code,
        "message": f"message {n}",
        "where": "line 3",
        "stack_hash": "ab",
        "pipeline_version": "v1",
        "event_at": at,
        "parked_at": "2026-01-01T00:00:00Z",
        "topic": "events.a.b",
        "kafka_partition": 0,
        "kafka_offset": n,
        "attempt": 0,
        "value": b'{"n":%d}' % n,
    }
    return ParkedEvent(**(given | changes))


@dataclass
class ParkingLot:
    tracker: TrackerStore
    objects: ObjectStore
    parking: Parking
    settings: dict = field(default_factory=dict)

    def put(self, events):
        """Store an object that no row names."""
        packer = Packer()
        for event in events:
            packer.add(event)
        packed = packer.finish()
        key = new_key()
        self.objects.put(key, packed.body)
        return key, packed

    def park(self, events, number=1):
        """Store an object and record it, as a commit does."""
        key, packed = self.put(events)
        with self.tracker.transaction() as connection:
            self.parking.record(
                connection,
                key=key,
                size=len(packed.body),
                segments=packed.segments,
                scope="warehouse",
                commit_number=number,
            )
        return key

    def only(self):
        [partition] = self.parking.partitions()
        return partition

    def sql(self, statement, **values):
        with self.tracker.transaction() as connection:
            found = connection.execute(text(statement), values)
            return [tuple(row) for row in found] if found.returns_rows else found.rowcount

    def states(self):
        return dict(
            self.sql(
                "SELECT CASE WHEN s.state = 'parked' AND s.id <= p.discarded_to THEN 'discarded' "
                "ELSE s.state END, sum(s.count)::int FROM segments s "
                "JOIN parked_partitions p ON p.id = s.partition_id GROUP BY 1"
            )
        )

    def keys(self):
        return {item.key for prefix in ("parked/", "staged/") for item in self.objects.list(prefix)}

    def check(self):
        """Numbers are the sums of segments, and what is held is in the store."""
        for _, said, really, said_span, span in self.sql(SUMS):
            assert list(said) == list(really)
            assert list(said_span) == list(span)
        held = self.sql(
            "SELECT DISTINCT object_key FROM segments WHERE state NOT IN ('deleted', 'replaced')"
        )
        assert {row[0] for row in held} <= self.keys()
        stray = self.sql(
            "SELECT count(*) FROM segments s LEFT JOIN replays r ON r.id = s.replay_id "
            "WHERE s.state = 'replaying' AND (r.state IS NULL OR r.state <> 'running')"
        )
        assert stray == [(0,)]


@pytest.fixture(scope="module")
def opened_lots():
    """What this module opened: once, as migrating and making a bucket take a second."""
    lots = []
    yield lots
    for one in lots:
        one.tracker.close()


@pytest.fixture
def lot(opened_lots, postgres, s3):
    if not opened_lots:
        opened_lots.append(_open(postgres.tracker("parking"), s3.bucket("parking", keep=True)))
    [one] = opened_lots
    emptied.empty(one.sql, but={"deployment"})  # one row, made by the migration
    one.objects.delete(sorted(one.keys()))
    yield one
    one.check()


def _open(dsn, s3_settings):
    tracker = TrackerStore(TrackerSettings(dsn=dsn))
    tracker.migrate()
    objects = ObjectStore(s3_settings)
    given = {"dsn": dsn, "s3": s3_settings}
    return ParkingLot(tracker, objects, Parking(tracker, objects), given)


class Points:
    """Counts the points that a process passes, and kills it at one of them."""

    def __init__(self, kill_at):
        self.kill_at, self.passed = kill_at, 0

    def pass_one(self):
        self.passed += 1
        if self.passed == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


class TrackerWithPoints(TrackerStore):
    points = Points(0)

    @contextmanager
    def transaction(self, **limits):
        self.points.pass_one()
        with super().transaction(**limits) as connection:
            yield connection
            self.points.pass_one()
        self.points.pass_one()


class ObjectsWithPoints(ObjectStore):
    points = Points(0)

    def delete(self, keys):
        self.points.pass_one()
        super().delete(keys[: len(keys) // 2])
        self.points.pass_one()
        super().delete(keys[len(keys) // 2 :])
        self.points.pass_one()


def run_and_kill(lot, work, kill_at):
    """Do work in a child process that is killed at a point; True when it was."""

    def mortal():
        points = Points(kill_at)
        tracker = TrackerWithPoints(TrackerSettings(dsn=lot.settings["dsn"]))
        objects = ObjectsWithPoints(lot.settings["s3"])
        tracker.points = objects.points = points
        work(Parking(tracker, objects))

    with sessions_ended(lot.tracker):
        return was_killed(forked(mortal))
