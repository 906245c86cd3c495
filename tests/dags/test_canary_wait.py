"""A canary that waits: without a slot, for what its first look said, and not for ever."""

from __future__ import annotations

import time
from typing import Any

import pytest
from airflow.sdk.serde import deserialize, serialize
from tests.dags import test_operators
from tests.dags.test_operators import PARTITION, Run, context
from tests.support.triggers import completed, fired

from waybill.errors import RetryError
from waybill.replay import AwaitedEnds, CanaryWait, CanaryWaitError
from waybill.replay.outcome import TopicEnds
from waybill_airflow.operators.replay import ReplayParkedPartitionOperator
from waybill_airflow.triggers import replays
from waybill_airflow.triggers.replays import ReplayTrigger

calls = test_operators.calls
ENDS = AwaitedEnds((TopicEnds("events.t.w", "c", "i", {0: 7, 1: 0}),), "w")
LOADING = AwaitedEnds(ENDS.topics, "w", last_commit=3)


def waits(step="1%", **ends):
    def fails():
        error = CanaryWaitError(f"the canary's {step} step waits. The next try", step)
        error.ends = {step: ENDS, **ends}
        raise error

    return fails


def deferred(call: Any) -> Any:
    from airflow.sdk.exceptions import TaskDeferred

    with pytest.raises(TaskDeferred) as caught:
        call()
    return caught.value


def test_it_waits_in_the_triggerer_and_goes_on_with_what_was_waited_for(calls):
    task, run = ReplayParkedPartitionOperator(task_id="t", request=PARTITION), Run()
    calls.record("run_replay", waits())
    first = deferred(lambda: task.execute(context(ti=run)))
    for kept in (first.kwargs, first.trigger.serialize()[1]):
        assert deserialize(serialize(kept)) == kept, "it is another after Airflow has kept it"
    assert AwaitedEnds.from_json(first.trigger.ends) == ENDS
    assert 300 < first.trigger.until_s - time.time() <= 600
    go_on = getattr(task, first.method_name)

    calls.record("run_replay", waits("10%", **{"1%": LOADING}))
    event = {"ends": LOADING.to_json()}
    second = deferred(lambda: go_on(context(ti=run), event=event, **first.kwargs))
    assert calls.made[-1][2]["canary_wait"] == CanaryWait(5.0, {"1%": LOADING})
    assert second.trigger.until_s > first.trigger.until_s, "each step has its time"
    assert second.kwargs["ends"].keys() == {"1%", "10%"}

    report = test_operators.Report({"events": 300, "sent": 300, "resumed": 0})
    calls.record("run_replay", report)
    event = {"ends": second.trigger.ends}
    assert go_on(context(ti=run), event=event, **second.kwargs)["sent"] == 300
    assert run.pushed == {}, "a wait is no reason for a failure"


def test_a_step_that_is_waited_for_too_long_fails_the_try_and_says_why(calls):
    task, run = ReplayParkedPartitionOperator(task_id="t", request=PARTITION), Run()
    calls.record("run_replay", waits())
    first = deferred(lambda: task.execute(context(ti=run)))
    late = {**first.kwargs, "until_s": time.time() - 1}
    with pytest.raises(RetryError, match="1% step waits"):
        task.go_on(context(ti=run), event={"ends": ENDS.to_json()}, **late)
    assert "1% step waits" in run.pushed["reason"]


# The trigger -------------------------------------------------------------------------------------


@pytest.fixture
def rows(monkeypatch):
    """Answers of the tracker, each for one look, the last for ever; None: it is away."""
    answers: list[Any] = []

    class Rows:
        async def read(self, _max_age_s):
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            if answer in (None, {}):
                return answer
            [key] = replays._AWAITED
            return {key: answer}

    monkeypatch.setattr(replays, "ROWS", Rows())
    return answers


def test_it_fires_once_all_is_reached_and_says_which_commit_it_waited_for(rows):
    rows[:] = [{}, None, (ENDS, False), (LOADING, False), None, (LOADING, True)]
    trigger = ReplayTrigger(ENDS.to_json(), time.time() + 600, poll_s=0)
    assert completed(fired(trigger)) == {"ends": LOADING.to_json()}
    assert rows == [(LOADING, True)]
    assert not replays._AWAITED


def test_it_fires_when_its_time_is_over(rows):
    rows[:] = [(ENDS, False)]
    trigger = ReplayTrigger(ENDS.to_json(), time.time() + 0.05, poll_s=0.01)
    assert completed(fired(trigger)) == {"ends": ENDS.to_json()}


def test_what_was_read_for_a_trigger_before_answers_none_that_has_its_place_in_memory(monkeypatch):
    kept: dict[int, Any] = {}

    class Rows:
        async def read(self, _max_age_s):
            if not kept:
                kept.update(dict.fromkeys(replays._AWAITED, (LOADING, True)))
            return kept

    monkeypatch.setattr(replays, "ROWS", Rows())
    trigger = ReplayTrigger(ENDS.to_json(), time.time() + 600, poll_s=0.01)

    async def once() -> Any:
        async for event in trigger.run():
            return event.payload

    assert completed(once()) == {"ends": LOADING.to_json()}
    trigger.until_s = time.time() + 0.05  # the same object stands for a new one at its address
    assert completed(once()) == {"ends": ENDS.to_json()}, "another's answer"
