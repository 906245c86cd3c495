"""A campaign's task: what it hands to the library, when it waits, and its way to Airflow."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.triggers import completed, fired

from waybill.errors import RetryError, StopError
from waybill.replay import Campaign, CampaignRequest, OpenCampaign
from waybill_airflow.operators.campaign import ReplayCampaignOperator
from waybill_airflow.replay_runs import TaskReplayRuns, count_unfinished, is_paused

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BEGUN = Campaign(
    *(7, "manual__1", "ann", NOW, {}, ("aviation",), 8, "running", "", None, 3, 0, 0, 0),
    *({"held": 2}, None, None, 0, 0.0),
)
DONE = replace(BEGUN, state="done", launched=3, ended=3, failed=1, ended_at=NOW)
CONF = {"pipeline": "{{ 1/0 }}", "event_name": "e", "stage": "mapping", "error_type": "null_value"}


@pytest.fixture
def library(monkeypatch):
    """Stand in for the services; their own behaviour is tested where it lives."""
    from waybill import services

    asked: list[Any] = []
    answers = [replace(BEGUN, launched=3), DONE]

    def freeze(_settings, request, *, who, run_id):
        asked.append((request, who, run_id))
        return BEGUN

    def advance(_settings, campaign_id, runs):
        assert isinstance(runs, TaskReplayRuns)
        asked.append(campaign_id)
        return answers.pop(0)

    monkeypatch.setattr(services, "freeze_campaign", freeze)
    monkeypatch.setattr(services, "advance_campaign", advance)
    monkeypatch.setattr("waybill_airflow.operators.campaign.is_paused", lambda: True)
    return asked


def context(**params):
    run = SimpleNamespace(
        triggering_user_name="ann", dag_id="replay_parked_partitions", run_id="manual__1"
    )
    return {"dag_run": run, "run_id": "manual__1", "params": params}


def test_it_freezes_launches_waits_without_a_slot_and_returns_the_report(library, capsys):
    from airflow.sdk.exceptions import TaskDeferred

    task = ReplayCampaignOperator(task_id="campaign")
    with pytest.raises(TaskDeferred) as waits:
        task.execute(context(stage="mapping", limit=None, max_unfinished=8))
    assert library == [(CampaignRequest(stage="mapping"), "ann", "manual__1"), 7]
    said = capsys.readouterr().out
    assert "2 groups left out: their pipelines are held" in said
    assert "the DAG `replay` is paused" in said
    deferred = waits.value
    go_on = getattr(task, deferred.method_name)
    assert deferred.kwargs is None
    report = go_on({}, {"campaign_id": 7})
    assert (report["state"], report["ended"], report["failed"]) == ("done", 3, 1)


def test_the_reason_and_names_of_a_request_are_taken_as_they_are(library):
    from airflow.sdk.exceptions import TaskDeferred

    task = ReplayCampaignOperator(task_id="campaign").prepare_for_execution()
    given = context(**CONF, why="{{ 7*7 }} {% raw %}\x1b[2J", who="{{ 1/0 }}")
    task.render_template_fields(given)
    with pytest.raises(TaskDeferred):
        task.execute(given)
    [(request, _, _), _] = library
    assert request.why == "{{ 7*7 }} {% raw %}\x1b[2J"
    assert (request.pipeline, request.who) == (CONF["pipeline"], "{{ 1/0 }}")


def test_what_names_nothing_fails_at_once(monkeypatch):
    from airflow.sdk.exceptions import AirflowFailException

    with pytest.raises(AirflowFailException, match="until: 'tomorrow'"):
        ReplayCampaignOperator(task_id="campaign").execute(context(until="tomorrow"))


def test_no_value_of_a_run_is_rendered_and_each_passes_the_schema_of_the_replay_dag():
    from airflow.sdk.definitions.param import process_params
    from tests.dags.conftest import ROOT, load_dags

    dag = load_dags(ROOT / "dags" / "replay.py").dags["replay"]
    asked = {"since": "2013-01-01", "rate_per_s": 9, "canary": True, "enter": "transformation"}
    request = CampaignRequest.of(asked)
    conf = request.of_group(CONF)
    params = process_params(dag, dag.get_task("replay"), conf, suppress_exception=False)
    assert params["since"] == "2013-01-01T00:00:00Z"
    assert params["pipeline"] == "{{ 1/0 }}"
    assert params["enter"] == "transformation"
    assert request.of_group({**CONF, "stage": "destination"})["enter"] is None
    campaign = load_dags(ROOT / "dags" / "replay_parked_partitions.py").dags
    assert "enter" in campaign["replay_parked_partitions"].params
    assert not ReplayCampaignOperator.template_fields


# Its trigger -------------------------------------------------------------------------------------


@pytest.fixture
def rows(monkeypatch):
    """Stand in for the tables and for Airflow: answers, each for one look, the last for ever."""
    from waybill_airflow.triggers import campaigns

    found, unfinished, looks, ages_s = [], [], [], []

    async def read(max_age_s):
        looks.append(len(found))
        ages_s.append(max_age_s)
        return found.pop(0) if len(found) > 1 else found[0]

    def count(_run_ids):
        answer = unfinished.pop(0) if len(unfinished) > 1 else unfinished[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(campaigns, "ROWS", SimpleNamespace(read=read))
    monkeypatch.setattr(campaigns, "count_unfinished", count)
    return SimpleNamespace(found=found, unfinished=unfinished, looks=looks, ages_s=ages_s)


def refusal(detail=None):
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
    from airflow.sdk.execution_time.comms import ErrorResponse

    return AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail=detail))


def test_the_trigger_waits_while_tracker_or_api_are_away_and_fires_when_runs_have_ended(rows):
    from waybill_airflow.triggers.campaigns import CampaignTrigger

    open_one = OpenCampaign("running", 2, waiting=True, run_ids=("a", "b"))
    rows.found[:] = [None, {}, None, {7: open_one}]
    rows.found[1] = {7: open_one}
    rows.unfinished[:] = [refusal(), 2, 1]
    assert completed(fired(CampaignTrigger(7, 0.0))) == {"campaign_id": 7}
    assert (rows.found, rows.unfinished) == ([{7: open_one}], [1])


@pytest.mark.parametrize(
    ("run_ids", "unfinished", "late", "due"),
    [
        ("abcdefgh", 8, True, False),
        ("abcdefg", 7, False, False),
        ("abcdefg", 7, True, True),  # the eighth has left with its last group: there is room
        ("abcdefgh", 7, True, True),
        ("abcdefgh", 4, False, True),
    ],
)
def test_a_run_of_many_groups_that_has_left_makes_room_after_a_minute(
    run_ids, unfinished, late, due
):
    running = OpenCampaign("running", 8, waiting=True, run_ids=tuple(run_ids))
    assert running.is_due(unfinished, late=late) is due
    paused = replace(running, state="paused")
    assert paused.is_due(len(run_ids), late=late) is False


def test_the_trigger_of_a_campaign_that_has_ended_fires_at_once(rows):
    from waybill_airflow.triggers.campaigns import CampaignTrigger

    rows.found[:] = [{}]
    assert completed(fired(CampaignTrigger(7, 3600.0))) == {"campaign_id": 7}
    assert rows.ages_s[0] < 60, "what was read before it deferred says nothing of what it launched"


# Its way to Airflow: what is private there -------------------------------------------------------


@pytest.fixture
def supervisor(monkeypatch):
    """Stand in for the process that a task's messages go to."""
    from airflow.sdk.execution_time import task_runner

    told, answers = [], []

    def send(msg):
        told.append(msg)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", SimpleNamespace(send=send), raising=False)
    return SimpleNamespace(told=told, answers=answers)


def test_a_run_is_started_with_what_it_is_given_and_one_that_is_there_is_kept(supervisor):
    from airflow.sdk.exceptions import ErrorType
    from airflow.sdk.execution_time.comms import ErrorResponse, OKResponse

    there = ErrorResponse(error=ErrorType.DAGRUN_ALREADY_EXISTS)
    supervisor.answers[:] = [OKResponse(ok=True), there]
    for _ in range(2):
        TaskReplayRuns().start("replay__1", CONF)
    first, second = supervisor.told
    assert first == second
    assert (first.dag_id, first.run_id, first.conf) == ("replay", "replay__1", CONF)
    assert (first.logical_date, first.reset_dag_run) == (None, False)


def test_a_launch_clears_a_run_that_failed_and_keeps_one_that_is_there_otherwise(supervisor):
    """What upkeep launches is asked for again, under the same id, until it is seen to."""
    from airflow.sdk.execution_time.comms import DRCount, OKResponse

    supervisor.answers[:] = [DRCount(count=0), OKResponse(ok=True), DRCount(count=1), OKResponse(ok=True)]  # fmt: skip
    for _ in range(2):
        TaskReplayRuns().launch("replay__1", CONF)
    asked, first, _, again = supervisor.told
    assert (asked.run_ids, asked.states) == (["replay__1"], ["failed"])
    assert [first.reset_dag_run, again.reset_dag_run] == [False, True]
    assert again.conf == CONF
    supervisor.answers[:] = [refusal()]
    with pytest.raises(RetryError, match="did not answer"):
        TaskReplayRuns().launch("replay__1", CONF)


@pytest.mark.parametrize(
    ("detail", "error", "words"),
    [
        ({"status_code": 500, "message": "boom"}, RetryError, "did not answer.*replay__1"),
        ({"message": "connection refused"}, RetryError, "connection refused"),
        (None, RetryError, "did not answer"),
        ({"status_code": 404, "message": "no Dag"}, StopError, r"refused.*\(404\).*no Dag"),
        ({"status_code": 400, "message": "import_errors"}, StopError, "import_errors"),
    ],
)
def test_what_airflow_answers_is_sorted_by_what_to_do(supervisor, detail, error, words):
    supervisor.answers[:] = [refusal(detail)]
    with pytest.raises(error, match=words):
        TaskReplayRuns().start("replay__1", CONF)


def test_a_run_that_was_deleted_has_no_state(supervisor):
    from airflow.sdk.execution_time.comms import DagRunStateResult, DRCount

    gone = refusal({"status_code": 404, "message": "not found"})
    supervisor.answers[:] = [DagRunStateResult(state="failed"), gone, refusal(), DRCount(count=2)]
    runs = TaskReplayRuns()
    assert [runs.state("a"), runs.state("b")] == ["failed", None]
    with pytest.raises(RetryError):
        runs.state("c")
    assert count_unfinished(["a", "b", "c"]) == 2
    assert supervisor.told[-1].states == ["queued", "running"]


def test_a_dag_that_is_not_there_is_named(supervisor):
    from airflow.sdk.execution_time.comms import DagResult

    supervisor.answers[:] = [
        DagResult.model_construct(is_paused=True),
        refusal({"status_code": 404}),
    ]
    assert is_paused()
    with pytest.raises(StopError, match="refused the DAG `replay`"):
        is_paused()
