"""The books of one test beside a real log, and what the Spark applications would do to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.support import orders
from tests.support.books import batch, nothing_parked
from tests.support.parked_orders import parked

from waybill.events import Event, decode
from waybill.ledger import (
    LoadCommit,
    acquire_lease,
    commit_batch,
    commit_load,
    last_commit_number,
    load_position,
    topic_positions,
)
from waybill.parking import Identity, Packer, ParkedEvent, Parking, identify, new_key
from waybill.storage import open_log, open_objects, open_tracker
from waybill.storage.tracker import add_outcomes


class Books:
    """The tracker, bucket and log of one test, and what the Spark applications would do there."""

    def __init__(self, settings: Any, team: str) -> None:
        self.settings, self.team = settings, team
        self.log, self.objects = open_log(settings.kafka), open_objects(settings.s3)
        self.tracker = open_tracker(settings.tracker)
        self.parking = Parking(self.tracker, self.objects)
        self.topic = self.log.ensure_topic(orders.topic_of(settings.pipelines_dir))

    def park(self, events: Sequence[ParkedEvent], number: int = 1) -> None:
        with self.tracker.transaction() as connection:
            self.record(events)(connection, number)

    def record(self, events: Sequence[ParkedEvent]) -> Any:
        packer, key = Packer(), new_key()
        for one in events:
            packer.add(one, _who(one))
        packed = packer.finish()
        self.objects.put(key, packed.body)

        def write(connection: Any, number: int) -> None:
            self.parking.record(
                connection,
                key=key,
                size=len(packed.body),
                segments=packed.segments,
                scope="warehouse",
                commit_number=number,
            )

        return write

    def sent(self) -> list[Event]:
        values = self.log.read(self.topic.name, self.log.watermarks(self.topic))
        return [decode(value) for value in values]

    def process(self, parked_again: Sequence[Event]) -> None:
        """Commit all that is in the log, and park some of it again, at the mapping."""
        epoch = acquire_lease(self.tracker, f"processing/{self.topic.name}", holder="test")
        ends = self.log.watermarks(self.topic)
        known = topic_positions(
            self.tracker,
            cluster_id=self.topic.cluster_id,
            topic_id=self.topic.topic_id,
            topic=self.topic.name,
        )
        ranges = ((number, known.get(number, 0), high) for number, (_, high) in ends.items())
        done = batch(
            epoch,
            *((number, start, high) for number, start, high in ranges if high > start),
            consumer=f"processing/{self.topic.name}",
            cluster_id=self.topic.cluster_id,
            topic_id=self.topic.topic_id,
            topic=self.topic.name,
            destination="warehouse",
        )
        bad = [parked(event, stage="mapping", code="not_null_violation") for event in parked_again]
        commit_batch(self.tracker, done, self.record(bad) if bad else nothing_parked)

    def load(self, became: Mapping[str, Mapping[str, int]] | None = None) -> None:
        """Load all that is processed; ``became``: replay id to what became of its rows."""
        epoch = acquire_lease(self.tracker, "loading/warehouse", holder="test")
        after = load_position(self.tracker, "warehouse")
        until = last_commit_number(self.tracker, "warehouse")
        commit = LoadCommit("loading/warehouse", epoch, "warehouse", after, until, {})
        commit_load(self.tracker, commit, nothing_parked)
        with self.tracker.transaction() as connection:
            add_outcomes(connection, became or {})


def _who(one: ParkedEvent) -> Identity | None:
    event = decode(one.value)
    return identify(
        event.id,
        source_version=event.source_version,
        intake_version=event.intake_version,
        minute=event.intake_minute,
        replay_id=event.replay_id,
    )
