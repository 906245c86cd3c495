"""The poison corpus, all in one go, through real Kafka, the processing application and S3."""

from __future__ import annotations

import csv
from collections import Counter

import pytest
from confluent_kafka import Producer
from tests.support import orders, poison, streams

from waybill import services
from waybill.errors import ParkError
from waybill.events import decode, decode_head
from waybill.parking import Parking
from waybill.parking.reading import read_segment_events, segments_in_order
from waybill.storage import open_objects, open_tracker

pytestmark = [pytest.mark.serves, pytest.mark.slow, pytest.mark.campaign]
GOOD = 300
CODE = """
def transform(event):
    note = event.data["note"]
    if note is None or not note.startswith("note "):
        raise ValueError(note)
    event.data["doubled"] = 0
    return event
"""


def is_no_event(message: bytes) -> bool:
    """Tell whether not even the envelope can be read.

    With one that can, but a payload that cannot, it is an event: of whoever the envelope says, and
    counted by nobody when it was taken in, as its producer would have refused it.
    """
    try:
        decode_head(message)
    except ParkError:
        return True
    return False


NO_EVENTS = [message for message in poison.messages() if is_no_event(message)]
NOTES = [name for name in poison.NAMES if name and not any("\ud800" <= c < "\ue000" for c in name)]


@pytest.fixture
def settings(stack_settings, tmp_path):
    made = streams.with_orders(stack_settings, tmp_path, rows=GOOD)
    home = orders.write_orders(made.pipelines_dir, rows=GOOD, code=CODE)
    notes = [f"note {n}" for n in range(GOOD)] + NOTES
    with (home / "orders.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["number", "amount", "note"])
        writer.writerows([n, n, note] for n, note in enumerate(notes))
    services.run_deploy(made, home, who="test")
    with streams.stopped_at_end(made):
        yield made


def send(settings, messages):
    producer = Producer({"bootstrap.servers": settings.kafka.bootstrap_servers})
    topic = orders.topic_of(settings.pipelines_dir)
    for message in messages:
        producer.produce(topic, message)
    assert producer.flush(300) == 0


def parked_values(settings):
    """Return {error type's stage: bytes of what is parked}, each as often as it is there."""
    found = {}
    with open_tracker(settings.tracker) as tracker:
        objects = open_objects(settings.s3)
        stages = {p.id: p.stage for p in Parking(tracker, objects).partitions()}
        for segment in segments_in_order(tracker):
            kept = found.setdefault(stages[segment.partition_id], Counter())
            kept.update(event.value for event in read_segment_events(tracker, objects, segment))
    return found


def test_all_of_it_is_parked_once_with_its_bytes_and_the_neighbours_arrive(settings):
    assert len(NO_EVENTS) > 100
    assert len(NOTES) > 100
    services.run_ingest(settings, "orders")
    send(settings, NO_EVENTS)
    report = streams.rest_of(settings, rows=GOOD + len(NOTES) + len(NO_EVENTS))
    assert sorted(streams.warehouse_numbers(settings)) == list(range(GOOD))
    assert report.delivered == GOOD
    values = parked_values(settings)
    rows, junk = Counter(), Counter()
    for value, number in values["transformation"].items():
        (junk if is_no_event(value) else rows)[value] += number
    assert junk == Counter(NO_EVENTS)
    at_once = values.get("ingestion", Counter())
    assert rows.total() + at_once.total() == len(NOTES)
    notes = {decode(value).data["note"] for value in rows}
    assert notes <= set(NOTES)
    assert len(notes) == rows.total(), "each once"
    assert at_once.total() < len(NOTES) // 10
