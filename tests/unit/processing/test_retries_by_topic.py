"""What one topic of a task spends on trying again is no neighbour's."""

from __future__ import annotations

from tests.support.evolving import kafka_records
from tests.unit.processing.batches_in_process import Application, messages
from tests.unit.processing.made import event, pipeline
from tests.unit.processing.test_sandbox import SPENDS

from waybill.events import encode
from waybill.processing import TopicOwner
from waybill.processing.spark.batches import read_descriptor
from waybill.processing.spark.tasks import StageTask, TaskPlan

FAILS_ONCE = """
TRIES = []
def transform(event):
    TRIES.append(event)
    if len(TRIES) == 1:
        raise ConnectionError("away for a moment")
    return event
"""


def test_a_team_that_says_it_spent_all_parks_no_event_of_another(monkeypatch):
    ours = pipeline(FAILS_ONCE, ident="p2").model_copy(update={"team": "ours"})
    app = Application(monkeypatch, greedy=pipeline(SPENDS % "1e300"), ours=ours)
    app.consumers["ours"]._owner = TopicOwner("ours")
    deployed = app.kept.read_mapped(["greedy", "ours"], lambda topic, ids: ids)
    plans = {topic: app.consumers[topic].plan(one) for topic, one in deployed.items()}
    task = StageTask(TaskPlan(plans, [], app.group._parts.executor_settings))
    records = [
        kafka_records("greedy", messages({})),
        kafka_records("ours", [encode(event(1, pipeline_id="p2", team="ours"))]),
    ]
    rows = [read_descriptor(*(c[0].as_py() for c in row.columns)) for row in task.run(records)]
    found = {row["topic"]: row for row in rows}
    assert found["greedy"]["staged"] is None
    assert found["ours"]["failures"] == []
    assert found["ours"]["staged"]["rows"] == 1
