"""Operators call the library with what was declared, and sort its errors for Airflow."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from waybill.errors import InputError, NotDeletedError
from waybill.replay import CanaryWait, ReplayRequest, replay_run_id
from waybill_airflow.hooks.waybill import connection_text
from waybill_airflow.operators.ingest import IngestOperator
from waybill_airflow.operators.maintenance import (
    CleanUpParkedFilesOperator,
    CompactTracesOperator,
    RefreshTrackerOperator,
)
from waybill_airflow.operators.replay import ReplayParkedPartitionOperator

PARTITION = {
    "pipeline": "flights",
    "event_name": "flight",
    "stage": "transformation",
    "error_type": "null_value",
}


class Run:
    """The part of Airflow's task instance that the plan asks: which runs are there."""

    def __init__(self, failed=()):
        self.failed, self.pushed = set(failed), {}

    def xcom_push(self, key, value):
        self.pushed[key] = value

    def get_dr_count(self, *, dag_id, run_ids, states):
        assert dag_id == "replay"
        assert states == ["failed"]
        return len(self.failed & set(run_ids))


def context(*, user=None, run_id="manual__1", ti=None) -> Any:
    run = SimpleNamespace(triggering_user_name=user, dag_id="replay", run_id=run_id)
    return {"dag_run": run, "run_id": run_id, "ti": ti or Run(), "params": {}}


# What they hand to the library -------------------------------------------------------------------


@dataclass
class Report:
    content: dict[str, Any]
    problem: str = ""
    stopped: str = ""
    read: int = 0

    def to_json(self):
        return self.content


@pytest.fixture
def calls(monkeypatch):
    """Record the calls of the services; its own behaviour is tested where it lives."""
    from waybill import services

    made: list[tuple[str, tuple, dict]] = []

    def record(name, answer):
        def call(_settings, *arguments, **options):
            made.append((name, arguments, options))
            return answer() if callable(answer) else answer

        monkeypatch.setattr(services, name, call)

    for name in ("run_ingest", "clean_up_parked_files", "refresh_tracker"):
        record(name, Report({"did": name}))
    record("run_replay", Report({"events": 1, "sent": 1, "resumed": 0}))
    record("finish_drops", [Report({"pipeline": "orders"})])
    made.clear()
    return SimpleNamespace(made=made, record=record)


def test_ingest_names_its_pipeline_and_returns_the_report(calls):
    assert IngestOperator(task_id="t", pipeline="flights").execute(context()) == {
        "did": "run_ingest"
    }
    [(name, pipelines, options)] = calls.made
    assert (name, pipelines) == ("run_ingest", ("flights",))
    turn = options.pop("turn")
    assert (turn.is_ended(), turn.before, turn.kafka_wait_s) == (False, None, 20.0)
    assert options == {"lookup": connection_text, "asked": None}


def test_a_stopped_ingest_is_skipped_and_leaves_its_report_for_who_follows_it(calls):
    from airflow.sdk.exceptions import AirflowSkipException

    counts = {"read": 1200, "stopped": "mia"}
    calls.record("run_ingest", Report(counts, stopped="mia", read=1200))
    run = Run()
    with pytest.raises(AirflowSkipException, match="stopped by mia after 1,200 rows"):
        IngestOperator(task_id="t", pipeline="flights").execute(context(ti=run))
    assert run.pushed == {"return_value": counts}


def test_ingest_takes_the_params_of_its_run_where_it_is_to_and_refuses_what_is_none(calls):
    task = IngestOperator(task_id="t", pipeline="flights", from_params=True)
    given = {"full": False, "from": "{{ 1/0 }}", "put_back": False, "why": "x", "who": None}
    task.execute(context(user="ann") | {"params": given})
    [(_, _, options)] = calls.made
    asked = options["asked"]
    assert (asked.request.begin, asked.run_id, asked.user) == ("{{ 1/0 }}", "manual__1", "ann")
    from airflow.sdk.exceptions import AirflowFailException

    with pytest.raises(AirflowFailException, match="ful: "):
        task.execute(context() | {"params": {"ful": True}})
    assert len(calls.made) == 1


@pytest.mark.parametrize("grace_s", [None, 0, 60.5])
def test_maintenance_passes_its_grace(calls, grace_s):
    CleanUpParkedFilesOperator(task_id="t", grace_s=grace_s).execute(context())
    done = RefreshTrackerOperator(task_id="t", grace_s=grace_s).execute(context())
    assert done == {"did": "refresh_tracker", "drops": [{"pipeline": "orders"}]}
    assert [(name, options) for name, _, options in calls.made] == [
        ("clean_up_parked_files", {"grace_s": grace_s}),
        ("refresh_tracker", {"grace_s": grace_s}),
        ("finish_drops", {}),
    ]


def test_drops_are_finished_though_an_object_could_not_be_deleted(calls):
    def fails():
        raise NotDeletedError({"parked/x": "AccessDenied"})

    calls.record("refresh_tracker", fails)
    with pytest.raises(NotDeletedError, match="parked/x"):
        RefreshTrackerOperator(task_id="t").execute(context())
    assert [name for name, _, _ in calls.made] == ["refresh_tracker", "finish_drops"]


def test_compacting_returns_its_report_and_fails_at_once_where_an_object_is_damaged(calls):
    from airflow.sdk.exceptions import AirflowFailException

    from waybill.tracing import CompactionReport

    calls.record("compact_traces", CompactionReport(hours=2))
    assert CompactTracesOperator(task_id="t").execute(context())["hours"] == 2
    calls.record("compact_traces", CompactionReport(damaged=("traces/x is damaged",)))
    with pytest.raises(AirflowFailException, match="traces/x"):
        CompactTracesOperator(task_id="t").execute(context())


def test_a_replay_is_asked_for_by_the_user_and_known_by_its_run(calls):
    ReplayParkedPartitionOperator(
        task_id="t",
        request={
            **PARTITION,
            "since": "2013-01-01T00:00:00Z",
            "parked_until": "2013-01-02T00:00:00Z",
            "fingerprint": "00ff00ff00ff00ff",
            "max_events": 5,
            "rate_per_s": 10,
            "governed": False,
            "dry_run": True,
            "sample": 40,
            "enter": "transformation",
        },
    ).execute(context(user="ada", run_id="replay__7"))
    [(name, (request,), options)] = calls.made
    asked = {"who": "ada", "run_id": "replay__7", "canary_wait": CanaryWait(5.0)}
    assert (name, options) == ("run_replay", asked)
    assert request.model_dump() == {
        **PARTITION,
        "since": datetime(2013, 1, 1, tzinfo=UTC),
        "until": None,
        "parked_since": None,
        "parked_until": datetime(2013, 1, 2, tzinfo=UTC),
        "fingerprint": "00ff00ff00ff00ff",
        "max_events": 5,
        "rate_per_s": 10,
        "canary": False,
        "governed": False,
        "dry_run": True,
        "sample": 40,
        "enter": "transformation",
    }


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_replay_logs_its_counts_and_where_to_look(calls, monkeypatch, dry_run):
    said = []
    counts = {"events": 9, "sent": 4, "resumed": 5}
    calls.record("run_replay", Report(counts))
    task = ReplayParkedPartitionOperator(task_id="t", request=PARTITION | {"dry_run": dry_run})
    monkeypatch.setattr(task.log, "info", lambda words, *values: said.append(words % values))
    assert task.execute(context()) == counts
    sent = [words for words in said if "9 of 9 events are in the log again" in words]
    assert len(sent) == (0 if dry_run else 1)


def test_a_replay_that_met_damaged_files_fails_with_their_words_and_without_a_retry(calls):
    from airflow.sdk.exceptions import AirflowFailException

    counts = {"events": 9, "sent": 9, "resumed": 0}
    calls.record("run_replay", Report(counts, problem="3 events are quarantined"))
    with pytest.raises(AirflowFailException, match="3 events are quarantined"):
        ReplayParkedPartitionOperator(task_id="t", request=PARTITION).execute(
            context(ti=(run := Run()))
        )
    assert run.pushed == {"return_value": counts, "reason": "3 events are quarantined"}


def test_a_replay_that_a_schedule_asked_for_names_the_run_as_who(calls):
    ReplayParkedPartitionOperator(task_id="t", request=PARTITION).execute(
        context(run_id="scheduled__1")
    )
    assert calls.made[0][2]["who"] == "replay/scheduled__1"


@pytest.mark.parametrize("text", ["2013-01-01", "2013-01-01T02:00:00+02:00", "2013-01-01 00:00"])
def test_times_without_an_offset_are_utc(text):
    request = ReplayRequest.of(PARTITION | {"since": text})
    assert request.since == datetime(2013, 1, 1, tzinfo=UTC)


def test_what_is_no_time_is_refused_by_name():
    with pytest.raises(InputError, match="until: 'tomorrow'"):
        ReplayRequest.of(PARTITION | {"until": "tomorrow"})


def test_run_ids_are_safe_whatever_the_names():
    name = "../\0 emoji 🐦 " + "x" * 300
    run_id = replay_run_id(3, {"pipeline": name}, [1])
    assert run_id.isascii()
    assert run_id.replace("_", "").isalnum()
