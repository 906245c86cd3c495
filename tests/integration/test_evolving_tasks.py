"""Batches that bring what their mapping has no room for: one version, whoever meets it, or dies."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from functools import partial
from typing import Any, cast

import pytest
from tests.support import children, evolving
from tests.support.evolving import (
    deployed_now,
    order,
    plan_of,
    run_batch,
    run_task,
    sent,
    staged,
    staged_rows,
)

from waybill import services
from waybill.access.personal import personal_of
from waybill.deployment import ActivePipelines, active_pipeline
from waybill.errors import InputError
from waybill.ledger import FencedError
from waybill.mappings import rules_of
from waybill.mappings.versions import history, in_force
from waybill.parking import read_directory
from waybill.pipelines import load_pipeline, topic_of
from waybill.processing import DryRunner, InProcess, LocalLearner, mappings_once_deployed
from waybill.processing.spark.topic_consumer import ProcessingParts, TopicConsumer
from waybill.settings import DestinationSettings, Settings, TraceSettings, TrackerSettings
from waybill.storage import KafkaLog, TopicInfo, TrackerStore, open_objects, open_tracker

pytestmark = pytest.mark.serves
NAME = ("test-evolving", "order")


@pytest.fixture
def settings(postgres: Any, s3: Any, tmp_path: Any) -> Settings:
    folder = tmp_path / "pipelines"
    made = Settings(
        _env_file=None,
        home=tmp_path,
        pipelines_dir=folder,
        s3=s3.bucket("waybill"),
        tracker=TrackerSettings(dsn=postgres.tracker()),
        traces=TraceSettings(spool_dir=tmp_path / "traces"),
        destinations={"warehouse": DestinationSettings(dsn=postgres.database("warehouse"))},
    )
    services.migrate(made)
    services.run_deploy(made, evolving.write_evolving(folder), who="ann")
    return made


@pytest.fixture
def tracker(settings: Settings) -> Any:
    with open_tracker(settings.tracker) as opened:
        yield opened


def versions(tracker: TrackerStore) -> list[tuple[int, str, str]]:
    """Return number, author and reason of all versions, the first one first."""
    found = history(tracker, *NAME)
    return [(one.number, one.author.partition(".")[0], one.reason) for one in reversed(found)]


def columns(tracker: TrackerStore) -> dict[str, str]:
    table = in_force(tracker)[NAME].declaration.table
    return {column.name: column.type for column in table.columns}


def child(settings: Settings, *said: object) -> subprocess.Popen[str]:
    """Start a task in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.evolving", *map(str, said)],
        env=children.environment(settings),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def at_gate(task: subprocess.Popen[str], gate: str) -> None:
    """Wait until a task is at its gate."""
    assert task.stdout is not None
    assert task.stdout.readline().strip() == gate


def test_two_drivers_that_meet_a_new_field_at_once_add_one_column(settings, tracker):
    both = [child(settings, first, "weight", "learn") for first in (1, 11)]
    for task in both:
        at_gate(task, "learn")  # it knows that there is something to learn
    for task in both:
        assert task.stdin is not None
        task.stdin.write("go\n")
        task.stdin.flush()
    told = [json.loads(task.communicate(timeout=300)[0]) for task in both]
    assert versions(tracker) == [
        (1, "ann", "deployed"),
        (2, "processing/events", "new column weight"),
    ]
    frames = [frame for one in told for frame in staged(settings, one)]
    assert frames[0].table == frames[1].table == in_force(tracker)[NAME].declaration.table
    assert [row["weight"] for row in staged_rows(frames)] == [2**40 + n for n in (0, 1, 2)] * 2


def test_two_tasks_of_a_batch_that_meet_different_fields_lose_neither(settings, tracker):
    shares = [[order(1, **{name: 1})] for name in ("weight", "height")]
    told = run_batch(settings, *shares)
    assert versions(tracker)[1:] == [(2, "processing/events", "new columns weight, height")]
    assert list(columns(tracker)) == ["number", "amount", "weight", "height"]
    for one in told:
        [frame] = staged(settings, one)
        assert [column.name for column in frame.table.columns] == list(columns(tracker))


def test_a_task_that_learns_writes_nothing_anywhere(settings, tracker):
    told = run_task(settings, [order(1, amount="many"), order(2, weight=2**40)])
    [(pipeline_id, name, (_, fields))] = told["learned"]
    assert ((pipeline_id, name), fields) == (NAME, [[None, "weight", "int64"]])
    assert (told["parked"], told.get("staged")) == (None, None)
    assert [list(open_objects(settings.s3).list(prefix)) for prefix in ("staged/", "parked/")] == [
        [],
        [],
    ]
    assert list(settings.traces.spool_dir.glob("*.parquet")) == []
    assert len(versions(tracker)) == 1


def test_a_kill_between_learning_and_writing_leaves_only_a_column(settings, tracker):
    _, before = deployed_now(settings)
    task = child(settings, 1, "weight", "put")
    at_gate(task, "put")
    task.send_signal(signal.SIGKILL)
    task.wait()
    assert versions(tracker)[1:] == [(2, "processing/events", "new column weight")]
    assert list(open_objects(settings.s3).list("staged/")) == []
    values = [order(1 + n, weight=2**40 + n) for n in range(3)]
    [told] = run_batch(settings, values, deployed=before)  # as it was before anything was learned
    assert len(versions(tracker)) == 2
    assert [row["weight"] for row in staged_rows(staged(settings, told))] == [
        2**40 + n for n in range(3)
    ]
    assert told["parked"] is None


def test_a_batch_goes_on_with_the_version_in_force_and_with_what_it_taught(settings, tracker):
    [told] = run_batch(settings, [order(1), order(2, amount=2**40), order(3, weight=1.5)])
    frames = staged(settings, told)
    assert [row["number"] for row in staged_rows(frames)] == [1, 2, 3]
    assert columns(tracker) == {
        "number": "int64",
        "amount": "int64",
        "weight": "decimal(28,9)",
    }
    told = run_task(settings, [order(4, weight=2)], plan_of(settings))
    [frame] = staged(settings, told)
    assert frame.table == in_force(tracker)[NAME].declaration.table
    assert len(versions(tracker)) == 2


def test_a_worker_maps_by_what_it_was_sent_whatever_it_learned_before(settings, monkeypatch):
    old = plan_of(settings)
    again: list[Any] = []
    twice = partial(_twice, evolving.again, again, old)
    monkeypatch.setattr("tests.support.evolving.again", twice)
    assert run_task(settings, [order(1, weight=1)], old)["learned"]
    [frame] = staged(settings, again[0])
    assert [column.name for column in frame.table.columns] == ["number", "amount"]


def _twice(run: Any, again: list[Any], old: Any, *args: Any) -> Any:
    first = run(*args)
    again.append(run([order(2)], old))
    return first


def test_what_a_batch_that_taught_something_stages_keeps_the_logs_order(settings):
    """More events than a slice has, so that rows were mapped before the column was learned."""
    values = [order(n) for n in range(1_200)] + [order(n, weight=1) for n in range(1_200, 1_300)]
    [told] = run_batch(settings, values)
    frames = staged(settings, told)
    assert [row["number"] for row in staged_rows(frames)] == list(range(1_300))
    assert {len(frame.table.columns) for frame in frames} == {3}


def test_without_learning_a_field_parks_beside_what_fits(settings, tracker):
    plan = sent(settings, *deployed_now(settings), learns=False)
    told = run_task(settings, [order(1), order(2, weight=1)], plan)
    assert [row["number"] for row in staged_rows(staged(settings, told))] == [1]
    body = open_objects(settings.s3).get(told["parked"]["key"])
    assert [(s.stage, s.error_type) for s in read_directory(body)] == [
        ("mapping", "unknown_column")
    ]
    assert len(versions(tracker)) == 1


def test_what_no_type_holds_parks_and_the_rest_goes_on(settings, tracker):
    [told] = run_batch(settings, [order(1, amount="x"), order(2, new="y")])
    assert [row["new"] for row in staged_rows(staged(settings, told))] == ["y"]
    body = open_objects(settings.s3).get(told["parked"]["key"])
    assert [(s.stage, s.error_type) for s in read_directory(body)] == [("mapping", "type_mismatch")]
    assert len(versions(tracker)) == 2


def test_a_deploy_keeps_what_was_learned_and_says_what_it_cannot_keep(settings, tracker):
    run_batch(settings, [order(1, amount=2**40, note="x")])
    folder = settings.pipelines_dir
    services.run_deploy(settings, evolving.write_evolving(folder, amount="int64"), who="bob")
    assert columns(tracker) == {"number": "int64", "amount": "int64", "note": "string"}
    before = versions(tracker), active_pipeline(tracker, "evolving").version
    home = evolving.write_evolving(folder, amount="bool")
    with pytest.raises(InputError, match="column 'amount': expected int64.*found bool"):
        services.run_deploy(settings, home, who="bob")
    assert (versions(tracker), active_pipeline(tracker, "evolving").version) == before


def test_learning_leaves_the_pipelines_version_and_is_read_once(settings, tracker):
    version = active_pipeline(tracker, "evolving").version
    reader = ActivePipelines(tracker)
    topic = topic_of(reader.read()[NAME[0]])
    mappings = reader.read_mapped([topic])[topic].mappings
    assert mappings[NAME].number == 1
    run_batch(settings, [order(1, note="x")])
    pipelines, later, _ = reader.read_mapped([topic])[topic]
    assert (pipelines[NAME[0]].version, later[NAME].number) == (version, 2)
    assert reader.read_mapped([topic])[topic].mappings[NAME] is later[NAME]
    nothing = reader.read_mapped(["events.other.topic"])["events.other.topic"]
    assert nothing == ({}, {}, frozenset())


def test_a_pipeline_that_was_deployed_before_there_were_mappings_works_and_learns(
    settings, tracker
):
    with tracker.transaction() as connection:
        connection.exec_driver_sql("DELETE FROM mapping_versions")
    [topic_plan] = plan_of(settings).topics.values()
    assert [text.mappings for text in topic_plan.pipelines.values()] == [()]
    [told] = run_batch(settings, [order(1), order(2, amount=5)])
    assert len(staged_rows(staged(settings, told))) == 2
    assert history(tracker, *NAME) == []
    run_batch(settings, [order(3, note="x")])
    assert columns(tracker) == {"number": "int64", "amount": "int32", "note": "string"}


def test_what_is_personal_is_hidden_in_the_columns_that_it_was_learned_to_have(settings, tracker):
    home = evolving.write_evolving(settings.pipelines_dir)
    text = (home / "pipeline.yaml").read_text()
    text = text.replace("policy: evolve", "policy: evolve\n    personal: [who, items.mail]")
    (home / "pipeline.yaml").write_text(text)
    services.run_deploy(settings, home, who="ann")
    run_batch(settings, [order(1, who={"mail": "a"}, items=[{"mail": "b", "n": 1}])])
    found = personal_of(tracker, [NAME[0]])
    assert found.fields(*NAME) == (
        "_waybill_items_orders__items.mail",
        "items.mail",
        "who",
        "who__mail",
    )


def test_a_trial_of_a_proposed_version_maps_as_its_deploy_will(settings, tracker):
    run_batch(settings, [order(1, amount=2**40, note="x")])
    before = versions(tracker)
    home = evolving.write_evolving(settings.pipelines_dir, amount="decimal(20,0)")
    active, proposed = active_pipeline(tracker, "evolving"), load_pipeline(home)
    tried = mappings_once_deployed(tracker, active, proposed)["order"]
    runner = DryRunner(
        proposed,
        code=InProcess(),
        rows=True,
        mappings={"order": tried},
        learner=LocalLearner(rules_of("postgres")),
    )
    [fate] = runner.fates([order(2, amount=5, note="y", new=[1])])
    assert (fate.faults, fate.rows[0].values["note"]) == ({}, "y")
    assert versions(tracker) == before
    services.run_deploy(settings, home, who="bob")
    deployed = in_force(tracker)[NAME]
    assert (deployed.number, deployed.declaration) == (tried.number, tried.declaration)
    assert mappings_once_deployed(tracker, proposed, proposed)["order"].number == tried.number


def test_an_application_whose_topic_was_taken_over_keeps_nothing_of_what_its_tasks_learned(
    settings: Settings, tracker: TrackerStore
) -> None:
    nowhere = cast("KafkaLog", None)  # nobody asks it
    parts = ProcessingParts.over(settings, tracker, nowhere, open_objects(settings.s3))
    name, deployed = deployed_now(settings)
    topic = TopicInfo(name, "cluster", "topic", 1)
    late, new = (
        TopicConsumer(parts, topic, destination="warehouse", holder=holder)
        for holder in ("late", "new")
    )
    told = [run_task(settings, [order(1, amount=1, note="new")])]
    before = versions(tracker)
    with pytest.raises(FencedError):
        late.learn(deployed, told)
    assert versions(tracker) == before
    assert new.learn(deployed, told)
    assert columns(tracker)["note"] == "string"
