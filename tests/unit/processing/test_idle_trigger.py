"""How often a query without data looks for some; that Spark heeds it is in the test of topic groups."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.protocol import Py4JError

from waybill.processing.spark import idle_trigger
from waybill.processing.spark.idle_trigger import IDLE_AFTER_S, IdleTrigger, staggered_ms


class Query:
    """A query of Spark as Py4J shows it, down to the field; and the clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        self.set: list[int] = []
        self.has_field = True
        monkeypatch.setattr(idle_trigger.time, "monotonic", lambda: self.now_s)

    @property
    def _jsq(self) -> Query:
        return self

    def streamingQuery(self) -> Query:
        return self

    def triggerExecutor(self) -> Query:
        return self

    def getClass(self) -> Query:
        return self

    def getDeclaredField(self, name: str) -> Query:
        if not self.has_field:
            raise Py4JError(f"NoSuchFieldException: {name}\n\tat java.lang.Class")
        assert name == "intervalMs"
        return self

    def setAccessible(self, flag: bool) -> None:
        assert flag

    def setLong(self, executor: Any, interval_ms: int) -> None:
        assert executor is self
        self.set.append(interval_ms)


@pytest.fixture
def query(monkeypatch: pytest.MonkeyPatch) -> Query:
    return Query(monkeypatch)


def started(query: Any, usual_ms: int = 500, idle_ms: int = 2_000) -> IdleTrigger:
    trigger = IdleTrigger(usual_ms, idle_ms)
    trigger.watch(query)
    return trigger


def test_a_query_looks_less_often_once_nothing_came_for_a_while_and_as_usual_with_the_first_data(
    query: Query,
) -> None:
    trigger = started(query)
    query.now_s += IDLE_AFTER_S - 1
    trigger.look()
    trigger.worked()
    query.now_s += IDLE_AFTER_S - 1
    trigger.look()
    assert query.set == [], "data came meanwhile"
    query.now_s += 1
    trigger.look()
    trigger.look()
    assert query.set == [2_000]
    trigger.worked()
    trigger.worked()
    assert query.set == [2_000, 500]
    query.now_s += IDLE_AFTER_S
    trigger.look()
    assert query.set == [2_000, 500, 2_000]
    trigger.watch(query)  # started anew, with the declared interval
    trigger.worked()
    assert query.set == [2_000, 500, 2_000]


@pytest.mark.parametrize(("usual_ms", "idle_ms"), [(0, 2_000), (500, 500), (500, 0), (3_000, 2_000)])  # fmt: skip
def test_a_query_that_never_pauses_or_pauses_longer_anyway_stays_as_it_is(
    query: Query, usual_ms: int, idle_ms: int
) -> None:
    trigger = started(query, usual_ms, idle_ms)
    query.now_s += 2 * IDLE_AFTER_S
    trigger.look()
    trigger.worked()
    assert query.set == []


def test_another_spark_is_left_alone_and_the_log_says_so_once(
    query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    query.has_field = False
    trigger = started(query)
    for _ in range(3):
        query.now_s += IDLE_AFTER_S
        trigger.look()
        trigger.worked()
    assert query.set == []
    assert [record.getMessage() for record in caplog.records] == [
        "the query looks for data as often as before: NoSuchFieldException: intervalMs"
    ]


def test_queries_of_an_application_have_intervals_that_differ_a_little():
    intervals = [staggered_ms(500, number) for number in range(1, 9)]
    assert intervals == [500, 507, 514, 521, 528, 535, 542, 549]
    assert staggered_ms(500, 9) == 500, "however many there are, none waits for much longer"


@pytest.mark.parametrize(
    ("usual_ms", "intervals"), [(0, [0, 0]), (63, [63, 63]), (200, [200, 203])]
)
def test_a_short_interval_is_made_longer_by_less_and_none_stays_none(
    usual_ms: int, intervals: list[int]
) -> None:
    assert [staggered_ms(usual_ms, number) for number in (1, 2)] == intervals
