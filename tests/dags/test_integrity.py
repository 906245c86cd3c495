"""Every DAG file loads, says what it is documented to say, and is safe to schedule."""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import product

import pytest
from tests.dags.conftest import ROOT, load_dags

from waybill.events import CATALOGUE, STAGES
from waybill.upkeep import JOBS

PARTITION = {"pipeline", "event_name", "stage", "error_type"}
INGEST = {"full", "from", "to", "put_back", "why", "who"}
PARAMS = {
    "replay": PARTITION
    | {"since", "until", "parked_since", "parked_until", "fingerprint", "max_events"}
    | {"rate_per_s", "governed", "canary", "dry_run", "sample", "enter"}
    | {"campaign", "batch"},
    "replay_parked_partitions": PARTITION
    | {"since", "until", "rate_per_s", "governed", "canary", "dry_run", "limit"}
    | {"max_unfinished", "groups_per_run", "enter", "why", "who"},
    "upkeep": set(),
    "auto_replay": set(),
    "apply_retention": set(),
    "clean_up_runs": set(),
    "clean_up_parked_files": {"grace_s"},
    "refresh_tracker": {"grace_s"},
    "compact_traces": set(),
    "make_trace_tables": set(),
    "probe_held_pipelines": set(),
    "tell_owners": set(),
    "audit": set(),
    "watch": set(),
    "coordinate": set(),
    "measure_delays": set(),
    "share_slots": set(),
    "scale_nodes": set(),
    "seal_audit_log": set(),
    "stream_default": set(),
    "stream_clusters": set(),
    "ingest_flights": INGEST,
    "ingest_weather": INGEST,
}
SCHEDULES = {
    "replay": "None",
    "replay_parked_partitions": "None",
    "upkeep": "* * * * *",
    "auto_replay": "None",
    "apply_retention": "0 0 * * *",
    "clean_up_runs": "0 0 * * *",
    "clean_up_parked_files": "0 0 * * *",
    "refresh_tracker": "0 * * * *",
    "compact_traces": "*/15 * * * *",
    "make_trace_tables": "0 0 * * *",
    "probe_held_pipelines": "None",
    "tell_owners": "None",
    "audit": "None",
    "watch": "None",
    "coordinate": "None",
    "measure_delays": "None",
    "share_slots": "None",
    "scale_nodes": "None",
    "seal_audit_log": "None",
    "stream_default": "@continuous",
    "stream_clusters": "* * * * *",
}


@pytest.fixture(scope="module")
def bag(module_environment):
    return load_dags(ROOT / "dags")


@pytest.fixture(scope="module")
def module_environment():
    """The per-test environment comes too late for a bag that is shared by a module.

    With Athena, which has a DAG of its own.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WAYBILL_PIPELINES_DIR", str(ROOT / "include" / "pipelines"))
        patch.setenv("WAYBILL_TRACES__BACKEND", "athena")
        yield


@pytest.fixture
def dags(bag):
    return bag.dags


def test_no_file_has_an_import_error(bag):
    assert bag.import_errors == {}


def test_the_documented_dags_are_there_and_no_others(dags):
    assert set(dags) == set(PARAMS)


@pytest.mark.parametrize("backend", ["", "duckdb", "neither"])
def test_without_athena_nothing_makes_its_tables(monkeypatch, backend):
    monkeypatch.setenv("WAYBILL_TRACES__BACKEND", backend or "duckdb")
    if not backend:
        monkeypatch.delenv("WAYBILL_TRACES__BACKEND")
    bag = load_dags(ROOT / "dags" / "make_trace_tables.py")
    assert (bag.dags, bag.import_errors) == ({}, {})


def test_a_files_stem_is_its_dag_or_its_family():
    for dag_id, dag in load_dags(ROOT / "dags").dags.items():
        stem = dag.fileloc.rsplit("/", 1)[-1].removesuffix(".py")
        family = stem.rstrip("0123456789_")
        by_hand = family == "upkeep" and dag_id in {job.name for job in JOBS}
        of_family = family in {"ingest", "stream"} and dag_id.startswith(f"{family}_")
        assert dag_id == stem or by_hand or of_family


def test_runs_of_each_own_dag_are_cleaned_up_and_of_no_other_file_of_the_folder(dags):
    """The operator adds those of deployed pipelines."""
    [task] = dags["clean_up_runs"].tasks
    assert sorted(task.dag_ids) == sorted(one for one in dags if not one.startswith("ingest_"))


def test_each_job_of_upkeep_has_a_dag_that_runs_it_by_hand_and_no_other_is_so_tagged(dags):
    by_hand = {dag_id: dag for dag_id, dag in dags.items() if "by-hand" in dag.tags}
    assert set(by_hand) == {job.name for job in JOBS}
    assert all(dag.get_task(name).job == name for name, dag in by_hand.items())
    longest = max(job.limit_s for job in JOBS)
    for dag in (dags["upkeep"], *by_hand.values()):
        [task] = dag.tasks
        shift_s = task.shift.total_seconds() if dag.dag_id == "upkeep" else 0
        assert task.execution_timeout.total_seconds() > shift_s + longest


@pytest.mark.parametrize("dag_id", sorted(PARAMS))
def test_params_are_the_documented_ones_and_their_defaults_pass_their_schema(dags, dag_id):
    params = dags[dag_id].params
    assert set(params) == PARAMS[dag_id]
    for name in params:
        param = params.get_param(name)
        assert param.schema.get("type"), name
        if param.has_value:
            param.resolve()


@pytest.mark.parametrize("dag_id", sorted(SCHEDULES))
def test_schedules_are_the_documented_ones(dags, dag_id):
    from airflow.serialization.serialized_objects import DagSerialization

    dag = DagSerialization.from_dict(DagSerialization.to_dict(dags[dag_id]))
    assert dag.timetable.summary == SCHEDULES[dag_id]


def test_each_dag_is_tagged_documented_and_never_catches_up(dags):
    for dag_id, dag in dags.items():
        assert "waybill" in dag.tags, dag_id
        assert dag.catchup is False, dag_id
        assert dag.doc_md, dag_id
        assert dag.doc_md.strip(), dag_id


def test_each_task_has_retries_and_a_timeout(dags):
    for dag_id, dag in dags.items():
        assert dag.tasks, dag_id
        for task in dag.tasks:
            assert task.retries >= 3, (dag_id, task.task_id)
            assert task.execution_timeout, (dag_id, task.task_id)


def test_each_task_is_retried_by_the_error_tree_with_growing_waits(dags):
    from waybill_airflow.dag_defaults import RETRIES

    for dag_id, dag in dags.items():
        for task in dag.tasks:
            own = task.partial_kwargs if task.is_mapped else vars(task)
            policy = own["retry_policy"]
            if dag_id.startswith("stream_"):
                assert policy is None, "whatever hinders a start can be mended meanwhile"
            else:
                assert policy.serialize() == RETRIES.serialize(), (dag_id, task.task_id)
            assert own["retry_exponential_backoff"], (dag_id, task.task_id)
            assert timedelta(0) < own["max_retry_delay"] <= timedelta(minutes=10)


def test_each_task_has_an_owner_and_somebody_hears_when_it_fails(dags):
    from waybill_airflow.notifiers.task_failed import TaskFailedNotifier

    for dag_id, dag in dags.items():
        for task in dag.tasks:
            assert task.owner not in {"", "airflow"}, (dag_id, task.task_id)
            heard = task.partial_kwargs.get("on_failure_callback") if task.is_mapped else task.on_failure_callback  # fmt: skip
            assert [type(one) for one in heard if isinstance(one, TaskFailedNotifier)], dag_id


def test_ingestion_and_replays_have_pools_that_the_stack_makes_and_upkeep_goes_first(dags):
    from waybill.settings import AirflowSettings
    from waybill.stack.airflow import pool_sizes

    sizes = pool_sizes(AirflowSettings(ingest_slots=7, replay_slots=3))
    assert {name: slots for name, (slots, _) in sizes.items()} == {
        "waybill_ingest": 7,
        "waybill_replay": 3,
    }
    for dag_id, dag in dags.items():
        for task in dag.tasks:
            ingests = dag_id.startswith("ingest_")
            pool = "waybill_ingest" if ingests else "waybill_replay" if dag_id == "replay" else "default_pool"  # fmt: skip
            weight = 1 if ingests else 5 if dag_id.startswith("replay") else 10
            assert (task.pool, task.priority_weight) == (pool, weight), (dag_id, task.task_id)
            if ingests:
                assert task.max_active_tis_per_dag == 1


def test_as_many_replays_go_at_once_as_their_pool_has_slots(monkeypatch):
    monkeypatch.setenv("WAYBILL_AIRFLOW__REPLAY_SLOTS", "9")
    assert load_dags(ROOT / "dags" / "replay.py").dags["replay"].max_active_runs == 9


def test_what_must_not_run_twice_at_once_has_one_active_run(dags):
    for dag_id in set(PARAMS) - {"replay", "replay_parked_partitions"}:
        assert dags[dag_id].max_active_runs == 1, dag_id


def test_each_dag_survives_serialization_and_has_the_same_form_at_every_parse(dags, monkeypatch):
    from airflow.serialization.serialized_objects import DagSerialization

    monkeypatch.setenv("WAYBILL_TRACES__BACKEND", "athena")
    again = load_dags(ROOT / "dags").dags
    for dag_id, dag in dags.items():
        first = DagSerialization.to_dict(dag)
        assert DagSerialization.from_dict(first).dag_id == dag_id
        second = DagSerialization.to_dict(again[dag_id])
        # Otherwise each parse would make a new version of the DAG.
        assert json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)


@pytest.fixture
def replay():
    """A DAG of its own: Airflow writes the values of a run into the DAG's params."""
    return load_dags(ROOT / "dags" / "replay.py").dags["replay"]


def test_replay_takes_the_params_that_the_cli_sends(replay):
    from airflow.sdk.definitions.param import process_params

    conf = {
        "pipeline": "flights",
        "event_name": "flight",
        "stage": "transformation",
        "error_type": "null_value",
    }
    task = replay.get_task("replay")
    params = process_params(replay, task, conf, suppress_exception=False)
    assert params["pipeline"] == "flights"
    assert params["rate_per_s"] is None
    assert params["governed"] is True
    assert params["dry_run"] is False


def test_replay_takes_every_stage_and_error_type(replay):
    """Which of them can be replayed is said by the library, with the reason."""
    from airflow.sdk.definitions.param import process_params

    task, names = replay.get_task("replay"), {"pipeline": "p", "event_name": "e"}
    for stage, code in product(STAGES, CATALOGUE):
        conf = names | {"stage": stage, "error_type": code}
        params = process_params(replay, task, conf, suppress_exception=False)
        assert (params["stage"], params["error_type"]) == (stage, code)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stage", "somewhere"),
        ("rate_per_s", 0),
        ("rate_per_s", "fast"),
        ("since", "yesterday"),
        ("parked_until", "tomorrow"),
        ("fingerprint", "no amount"),
        ("max_events", 0),
        ("dry_run", "maybe"),
        ("governed", "a little"),
        ("pipeline", ""),
        ("pipeline", None),
        ("campaign", ""),
        ("campaign", ["manual__1"]),
        ("batch", -1),
        ("batch", "first"),
    ],
)
def test_replay_refuses_wrong_params(replay, name, value):
    from airflow.sdk.definitions.param import process_params
    from airflow.sdk.exceptions import ParamValidationError

    conf = {"pipeline": "p", "event_name": "e", "stage": "mapping", "error_type": "x", name: value}
    with pytest.raises(ParamValidationError, match=name):
        process_params(replay, replay.get_task("replay"), conf, suppress_exception=False)


@pytest.mark.parametrize("value", [0, 1_001, -1, 1.5, "all", None, [5]])
def test_groups_a_run_are_a_number_within_limits(dags, value):
    from airflow.sdk.definitions.param import process_params
    from airflow.sdk.exceptions import ParamValidationError

    dag = dags["replay_parked_partitions"]
    with pytest.raises(ParamValidationError, match="groups_per_run"):
        process_params(
            dag, dag.get_task("campaign"), {"groups_per_run": value}, suppress_exception=False
        )


def test_replay_names_each_param_that_is_missing(replay):
    from airflow.sdk.definitions.param import process_params
    from airflow.sdk.exceptions import ParamValidationError

    with pytest.raises(ParamValidationError, match="pipeline"):
        process_params(replay, replay.get_task("replay"), {}, suppress_exception=False)


def test_names_with_quotes_braces_and_digits_reach_the_service_as_they_are(replay, monkeypatch):
    """Rendering as text would turn "123" into a number and run what looks like a template."""
    from types import SimpleNamespace

    from waybill import services

    names = {
        "pipeline": "123",
        "event_name": "{{ 7*7 }} \"'",
        "stage": "mapping",
        "error_type": "None",
    }
    conf = {**names, "rate_per_s": 250, "governed": False, "dry_run": True, "sample": 40}
    empty = dict.fromkeys(set(replay.params) - set(conf))
    task = replay.get_task("replay").prepare_for_execution()
    run = SimpleNamespace(conf=conf, triggering_user_name="ada")
    context = {"dag_run": run, "run_id": "r", "params": conf | empty}
    made = []
    report = SimpleNamespace(to_json=dict)
    monkeypatch.setattr(
        services, "run_replay", lambda _, request, **__: made.append(request) or report
    )
    task.render_template_fields(context)
    task.execute(context)
    [request] = made
    assert request.names == names
    assert request.rate_per_s == 250
    assert (request.governed, request.dry_run, request.sample) == (False, True, 40)
    assert request.since is None


@pytest.mark.parametrize("name", ["since", "until", "rate_per_s", "governed", "dry_run"])
def test_both_replay_dags_take_the_same_conditions(dags, name):
    one, many = (
        dags[dag_id].params.get_param(name) for dag_id in ("replay", "replay_parked_partitions")
    )
    kept = [{k: v for k, v in param.schema.items() if k != "section"} for param in (one, many)]
    assert kept[0] == kept[1]
    assert one.value == many.value
