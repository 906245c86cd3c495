"""SIGKILL during a replay: run again with its run id, each parked event goes back exactly once."""

from __future__ import annotations

import random

import pytest
from tests.support import children, orders
from tests.support.parked_orders import order, parked

from waybill import wiring
from waybill.events import decode
from waybill.parking import Packer, Parking, new_key
from waybill.storage import open_log, open_objects, open_tracker

pytestmark = pytest.mark.serves
SEED = 99
SEGMENTS, EVENTS = 30, 200
KILLS = 5
REPLAY = """
from waybill.wiring import run_replay
print(run_replay(settings, pipeline="orders", event_name="order", stage="transformation",
                 error_type="null_value", who="test", run_id="r1"))
"""


@pytest.fixture
def settings(stack_settings, tmp_path):
    orders.write_orders(tmp_path / "pipelines", rows=10)
    settings = stack_settings.model_copy(update={"pipelines_dir": tmp_path / "pipelines"})
    wiring.migrate(settings)
    wiring.run_deploy(settings, tmp_path / "pipelines" / "orders", who="test")
    park(settings)
    return settings


def park(settings):
    """Park segments as processing would: one object and one commit each."""
    team = orders.team_of(settings.pipelines_dir)
    objects = open_objects(settings.s3)
    with open_tracker(settings.tracker) as tracker:
        parking = Parking(tracker, objects)
        for segment in range(SEGMENTS):
            packer = Packer()
            for index in range(EVENTS):
                packer.add(parked(order(segment * EVENTS + index, team, note="x" * 200)))
            packed, key = packer.finish(), new_key()
            objects.put(key, packed.body)
            with tracker.transaction() as connection:
                parking.record(
                    connection,
                    key=key,
                    size=len(packed.body),
                    segments=packed.segments,
                    scope="warehouse",
                    commit_number=segment + 1,
                )


def sent_events(settings):
    log = open_log(settings.kafka)
    topic = log.describe(orders.topic_of(settings.pipelines_dir))
    return [decode(value) for value in log.read(topic.name, log.watermarks(topic))]


def test_a_killed_replay_resumes_and_sends_each_event_once(settings):
    chance = random.Random(SEED)
    print(f"seed {SEED}")
    children.run(settings, "from waybill.storage import open_log\n" + ensure_topic(settings))
    killed = sum(
        children.run_and_kill(settings, REPLAY, after_s=chance.uniform(0.8, 2.2))
        for _ in range(KILLS)
    )
    children.run(settings, REPLAY)
    sent = sent_events(settings)
    assert killed > 0, "no run was killed: the machine is too fast for this test's times"
    assert sorted(event.id for event in sent) == [f"{n:032x}" for n in range(SEGMENTS * EVENTS)]
    assert {(event.attempt, event.stage) for event in sent} == {(1, "transformation")}
    (partition,) = wiring.parked_partitions(settings)
    assert (partition.parked, partition.replaying) == (0, 0)
    assert partition.replayed == SEGMENTS * EVENTS


def ensure_topic(settings):
    topic = orders.topic_of(settings.pipelines_dir)
    return f"open_log(settings.kafka).ensure_topic({topic!r})"
