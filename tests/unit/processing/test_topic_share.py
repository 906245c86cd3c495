"""A topic that takes too long, or makes too much, is given up, amid its events if need be."""

from __future__ import annotations

import math
import time
from typing import Any

import orjson
import pytest
from tests.support.evolving import kafka_records
from tests.unit.processing.made import event, pipeline

from waybill.errors import RetryError
from waybill.events import encode
from waybill.processing import Chain, Plan, Retries, shared_sandbox
from waybill.processing.spark.task_output import TaskOutput
from waybill.processing.spark.tasks import TopicShare, gathered, keep_within
from waybill.settings import Settings
from waybill.storage import Records, Unread

SAME = "def transform(event):\n    return event\n"
SLEEPS = "import time\ndef transform(event):\n    time.sleep(0.4)\n    return event\n"


class Objects:
    """Keeps what is put."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def put_waiting(self, key: str, body: bytes, *, limit_s: float) -> None:
        self.keys.append(key)


def share(code: str, limit_s: float, limit_bytes: float = math.inf) -> TopicShare:
    plans, retries = {"p1": Plan(pipeline(code, n="int64", note="string"))}, Retries(1)
    chain = Chain(plans, code=shared_sandbox(Settings()), retries=retries)
    chain.result.most_bytes = limit_bytes
    output = TaskOutput(topic="t", batch_id="b", known=plans, traced=True)
    return TopicShare(chain, output, retries, learned=list, limit_s=limit_s)


def told(given: TopicShare, objects: Any) -> dict[str, Any]:
    batch = given.write("t", objects)
    answer: dict[str, Any] = orjson.loads(batch.column(0)[0].as_py())
    return answer


def rows(number: int) -> Any:
    return kafka_records("t", [encode(event(n)) for n in range(number)])


@pytest.mark.parametrize("number", [1, 200])
def test_a_slow_topic_is_given_up_with_nothing_written(number):
    objects, given, began = Objects(), share(SLEEPS, 0.1), time.monotonic()
    given.take(rows(number))
    given.take(rows(number))
    assert time.monotonic() - began < 60
    assert told(given, objects) == {"topic": "t", "gave_up": True, "parked": None}
    assert objects.keys == []
    assert given.traces == []


def test_what_comes_after_one_that_was_given_up_is_not_harmed():
    share(SLEEPS, 0.1).take(rows(50))
    objects, given = Objects(), share(SAME, math.inf)
    given.take(rows(50))
    descriptor = told(given, objects)
    assert descriptor["staged"]["rows"] == 50
    assert len(objects.keys) == 1


def some(topic: str, *offsets: int, size: int = 1) -> Records:
    count = len(offsets)
    return Records(topic, [0] * count, [b"x"] * count, list(offsets), [0] * count, size)


def test_records_wait_for_more_of_their_topic_as_long_as_more_are_wanted():
    given = [some("a", 1), some("b", 1), some("a", 2, 3), some("a", 4), some("b", 2)]
    most = {"a": 3, "b": 9}
    found = gathered(given, lambda one: len(one.offsets) >= most[one.topic])
    found = [(one.topic, one.offsets) for one in found]
    assert found == [("a", [1, 2, 3]), ("a", [4]), ("b", [1, 2])]


def test_what_waits_is_bounded_and_goes_with_a_topic_that_cannot_be_read():
    much = 20 * 1024**2
    given = [some(topic, 1, size=much) for topic in "abc"]
    found = gathered(iter(given), lambda _: False)
    assert next(found).topic == "a", "more than 24 MiB would wait"
    assert [one.topic for one in found] == ["b", "c"]
    unread = Unread("a", 0, RetryError("away"))
    assert [*gathered([some("a", 1), unread], lambda _: False)] == [unread]


WIDE = "def transform(event):\n    event.data[%r] = 'a' * 10_000\n    return event\n"


@pytest.mark.parametrize("field", ["note", "n"], ids=["rows", "parked at mapping"])
def test_a_topic_that_makes_too_much_of_small_events_is_given_up_amid_its_records(field):
    """A chunk has many slices: what comes of all of them is never held."""
    objects, given = Objects(), share(WIDE % field, math.inf, 60e6)
    given.take(rows(20_000))
    assert told(given, objects) == {"topic": "t", "gave_up": True, "parked": None}
    assert given.is_through
    assert given.made_bytes == 0, "its rows are let go of"
    assert (objects.keys, given.traces) == ([], [])


def test_answers_for_one_group_of_events_are_not_piled_up_beyond_the_limit(monkeypatch):
    """4,096 events of one name are a group; what is made of it is known behind it only."""
    mapped = []
    monkeypatch.setattr(Chain, "_map_children", lambda *given: mapped.append(given))
    objects, given = Objects(), share(WIDE % "note", math.inf, 20e6)
    given.take(rows(4_096))
    assert told(given, objects)["gave_up"] is True
    assert mapped == []


def test_a_topic_within_its_bytes_tells_what_it_made():
    objects, given = Objects(), share(WIDE % "note", math.inf, 60e6)
    given.take(rows(100))
    descriptor = told(given, objects)
    assert descriptor["staged"]["row_bytes"] == descriptor["made_bytes"]
    assert 100 * 10_000 < descriptor["made_bytes"] < 100 * 12_000
    assert descriptor["staged"]["bytes"] < 100_000


def test_of_a_tasks_topics_the_one_that_made_the_most_is_given_up():
    wide, plain = share(WIDE % "note", math.inf), share(SAME, math.inf)
    for given in (plain, wide):
        given.take(rows(100))
    keep_within(2e6, [plain, wide])
    assert not wide.is_through
    keep_within(5e5, [plain, wide])
    assert wide.is_through
    assert not plain.is_through
