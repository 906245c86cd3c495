"""An ingest run that gives its slot back: it waits in the triggerer, goes on in the same try, not for ever."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from uuid import UUID

import pytest
from airflow.sdk.serde import deserialize, serialize
from tests.dags import test_operators
from tests.dags.test_operators import Run, context
from tests.support.triggers import completed, fired

from waybill.errors import RetryError
from waybill.ingestion import IngestReport, RunSoFar, TurnEndedError
from waybill.ledger import RunFigures
from waybill_airflow.operators import ingest
from waybill_airflow.operators.ingest import IngestOperator
from waybill_airflow.triggers import ingest as trigger
from waybill_airflow.triggers.ingest import IngestTurnTrigger, SharedKafka

calls = test_operators.calls
RUN = UUID(int=7)
NOW_S = 1_800_000_000.0


@pytest.fixture
def stopped_clock(monkeypatch):
    """What the clock shows: ``NOW_S``, however long the machine takes."""
    monkeypatch.setattr(time, "time", lambda: NOW_S)


def so_far(pages: int) -> RunSoFar:
    report = IngestReport("flights", 100 * pages, 90 * pages, 10 * pages, 0, 0, pages, 1.5)
    figures = RunFigures(read=100 * pages, pages=pages, total=900, position="row 5", unit="rows")
    return RunSoFar(RUN, report, figures)


def ends(waits_for: Any, pages: int) -> Any:
    def raised() -> None:
        raise TurnEndedError(waits_for, f"waits for {waits_for}", so_far(pages))

    return raised


def deferred(call: Any) -> Any:
    from airflow.sdk.exceptions import TaskDeferred

    with pytest.raises(TaskDeferred) as caught:
        call()
    kept = caught.value.kwargs
    assert deserialize(serialize(kept)) == kept, "it is another after Airflow has kept it"
    return caught.value


@pytest.mark.usefixtures("stopped_clock")
def test_a_run_over_its_teams_share_comes_back_soon_and_goes_on_with_what_it_did(calls):
    task, run = IngestOperator(task_id="t", pipeline="flights"), Run()
    calls.record("run_ingest", ends("share", 3))
    first = deferred(lambda: task.execute(context(ti=run)))
    assert first.trigger.serialize()[1] == {
        "run": str(RUN),
        "not_before_s": NOW_S + 2,
        "asks_kafka": False,
        "poll_s": 2.0,
        "not_after_s": None,
    }
    report = test_operators.Report({"read": 900})
    calls.record("run_ingest", report)
    go_on = getattr(task, first.method_name)
    assert go_on(context(ti=run), event={}, **first.kwargs) == {"read": 900}
    assert calls.made[-1][2]["turn"].before == so_far(3)
    assert run.pushed == {}, "a wait is no reason for a failure"


@pytest.mark.usefixtures("stopped_clock")
def test_each_turn_in_which_kafka_takes_nothing_stays_away_twice_as_long_until_a_page_is_settled(
    calls,
):
    task = IngestOperator(task_id="t", pipeline="flights")
    pauses, found = [], None
    for pages in (1, 1, 1, 1, 2, 2):
        calls.record("run_ingest", ends("kafka", pages))
        call = task.execute if found is None else task.go_on
        given: Any = {} if found is None else {"event": {}, **found.kwargs}
        found = deferred(lambda call=call, given=given: call(context(), **given))
        assert found.trigger.asks_kafka
        pauses.append(found.trigger.not_before_s - NOW_S)
    assert pauses == [5, 10, 20, 40, 5, 10]


def test_a_kafka_that_takes_nothing_for_half_an_hour_fails_the_try_and_says_why(calls, monkeypatch):
    task, run = IngestOperator(task_id="t", pipeline="flights"), Run()
    calls.record("run_ingest", ends("kafka", 1))
    first = deferred(lambda: task.execute(context(ti=run)))
    late = {**first.kwargs["wait"], "since_s": time.time() - ingest._KAFKA_AWAY_S - 1}
    with pytest.raises(RetryError, match="waits for kafka"):
        task.go_on(context(ti=run), event={}, so_far=first.kwargs["so_far"], wait=late)
    assert "waits for kafka" in run.pushed["reason"]


def test_the_half_hour_ends_the_wait_for_a_kafka_that_does_not_answer_at_all(calls, monkeypatch):
    kafka = SharedKafka()
    monkeypatch.setattr(kafka, "_ask", lambda: False)
    monkeypatch.setattr(trigger, "KAFKA", kafka)
    task = IngestOperator(task_id="t", pipeline="flights")
    calls.record("run_ingest", ends("kafka", 1))
    found = deferred(lambda: task.execute(context())).trigger
    assert found.not_after_s == pytest.approx(time.time() + ingest._KAFKA_AWAY_S, abs=300)
    end_s = time.time() + 0.3
    late = IngestTurnTrigger(str(RUN), 0.0, asks_kafka=True, poll_s=0.05, not_after_s=end_s)
    assert completed(asyncio.wait_for(fired(late), 300)) == {}, "the next turn fails the try"
    assert time.time() >= end_s


def test_a_task_that_is_ended_does_not_defer(calls):
    task = IngestOperator(task_id="t", pipeline="flights")
    calls.record("run_ingest", ends("share", 1))
    task.on_kill()
    with pytest.raises(RetryError, match="the task was ended"):
        task.execute(context())


# The trigger -------------------------------------------------------------------------------------


def test_it_fires_at_its_time_and_asks_kafka_nothing_where_it_need_not(monkeypatch):
    monkeypatch.setattr(SharedKafka, "_ask", lambda _self: pytest.fail("asked"))
    not_before_s = time.time() + 0.2
    assert completed(fired(IngestTurnTrigger(str(RUN), not_before_s, asks_kafka=False))) == {}
    assert time.time() >= not_before_s


def test_triggers_that_wait_for_kafka_share_each_look_and_look_less_often_while_it_is_away(
    monkeypatch,
):
    answers = [False, False, True]
    kafka = SharedKafka()

    def ask() -> bool:
        kafka.looks += 1
        return answers.pop(0) if len(answers) > 1 else answers[0]

    monkeypatch.setattr(kafka, "_ask", ask)
    monkeypatch.setattr(trigger, "_FIRST_S", 0.1)
    monkeypatch.setattr(trigger, "_FRESH_S", 300.0)  # all of them see the third look
    monkeypatch.setattr(trigger, "KAFKA", kafka)

    async def all_fired() -> list[Any]:
        made = [IngestTurnTrigger(str(RUN), 0.0, asks_kafka=True, poll_s=0.01) for _ in range(50)]
        return await asyncio.gather(*(fired(one) for one in made))

    began = time.monotonic()
    assert completed(all_fired()) == [{}] * 50
    assert kafka.looks == 3
    assert time.monotonic() - began >= 0.3, "0.1 s after the first look, 0.2 s after the second"
