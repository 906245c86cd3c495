"""The real DAG files, run task by task on real servers: what comes from payloads stays data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support import orders, refusals
from tests.support.dag_runs import AS_TRIGGERED, DagRuns
from tests.support.parked_orders import order, parked

from waybill import services
from waybill.access import Decision
from waybill.parking import Packer, Parking, new_key
from waybill.replay.auto_replay import mark_for_auto_replay
from waybill.settings import Settings
from waybill.storage import open_objects, open_tracker

pytestmark = [pytest.mark.serves, pytest.mark.campaign]
LAUNCHERS = ("replay_parked_partitions", "auto_replay", "probe_held_pipelines")


@pytest.fixture
def dag_runs(airflow_metadata: Any, tmp_path: Path, request: Any) -> Callable[[Settings], DagRuns]:
    """Return runs of the DAGs over settings."""

    def made(settings: Settings) -> DagRuns:
        home = tmp_path / "airflow"
        home.mkdir()
        return DagRuns(airflow_metadata.copy(f"airflow_{request.node.name}"[:60]), settings, home)

    return made


@pytest.fixture
def settings(stack_settings: Settings, tmp_path: Path) -> Settings:
    """The orders, deployed."""
    orders.write_orders(tmp_path / "pipelines", rows=1)
    settings = stack_settings.model_copy(update={"pipelines_dir": tmp_path / "pipelines"})
    services.migrate(settings)
    services.run_deploy(settings, tmp_path / "pipelines" / "orders", who="test")
    return settings


def park(settings: Settings, *names_and_codes: tuple[str, str]) -> dict[str, int]:
    """Park one event under each event name; return {event name: partition id}."""
    packer, key = Packer(), new_key()
    for number, (name, code) in enumerate(names_and_codes):
        event = order(number, orders.team_of(settings.pipelines_dir))
        event.name = name
        packer.add(replace(parked(event, code=code), event_name=name))
    packed = packer.finish()
    with open_tracker(settings.tracker) as tracker:
        parking = Parking(tracker, open_objects(settings.s3))
        open_objects(settings.s3).put(key, packed.body)
        with tracker.transaction() as connection:
            parking.record(
                connection,
                key=key,
                size=len(packed.body),
                segments=packed.segments,
                scope="warehouse",
                commit_number=1,
            )
        return {row.event_name: row.id for row in parking.partitions()}


def test_event_names_that_are_templates_reach_the_replays_as_they_are_and_run_nothing(
    settings: Settings, dag_runs: Any, tmp_path: Path
) -> None:
    touched = tmp_path / "touched"
    code = f"__import__('pathlib').Path('{touched}').touch()"
    call = f'macros.json.codecs.builtins.eval("{code}")'
    hostile = {
        "auto_replay": (f"{{{{ {call} }}}} auto", "null_value"),
        "probe_held_pipelines": (f"{{% if {call} %}}{{% endif %}} held", "pipeline_held"),
        "replay_parked_partitions": (f"{{{{ {call} }}}} planned", "type_error"),
    }
    partitions = park(settings, *hostile.values())
    with open_tracker(settings.tracker) as tracker:
        parking = Parking(tracker, open_objects(settings.s3))
        parking.hold("orders", Decision("ann", "looks odd"))
        parking.release("orders", Decision("ann", "was nothing"))
        marked = partitions[hostile["auto_replay"][0]]
        mark_for_auto_replay(
            tracker, parking, marked, Decision("ann"), on_change="any", healthy=lambda _name: True
        )
    source = settings.pipelines_dir / "orders" / "transformation.py"
    source.write_text(source.read_text() + "\n# mended\n")
    services.run_deploy(settings, source.parent, who="ann")

    wanted = {"error_type": "type_error"}
    airflow = dag_runs(settings)
    runs = airflow.test(
        *((dag_id, wanted if dag_id.startswith("replay") else {}) for dag_id in LAUNCHERS)
    )
    assert not touched.exists(), "an event's name ran code in the worker"
    assert [run["state"] for run in runs] == ["success"] * 3, airflow.output[-6000:]
    triggered = airflow.triggered("replay").values()
    assert {conf["event_name"]: conf["error_type"] for conf in triggered} == dict(hostile.values())
    assert all(conf["pipeline"] == "orders" for conf in triggered)
    paused = airflow.paused()
    assert {"audit", "tell_owners", "ingest_orders", "stream_default"} < set(paused)
    assert {dag_id for dag_id, is_paused in paused.items() if is_paused} == {
        "ingest_orders",
        "stream_clusters",
        "stream_default",
    }


def test_events_that_kafka_refused_are_replayed_by_the_dag_and_rows_that_are_none_are_not(
    stack_settings: Settings, dag_runs: Any, tmp_path: Path
) -> None:
    settings = refusals.with_a_big_order(stack_settings, tmp_path)
    assert services.run_ingest(settings, "orders").refused == 1
    [partition] = services.parked_partitions(settings)
    names = {
        "pipeline": "orders",
        "event_name": "order",
        "stage": "ingestion",
        "error_type": "delivery_too_large",
    }
    assert {name: partition.to_json()[name] for name in names} == names
    refusals.limit(settings, 1_000_000)

    airflow = dag_runs(settings)
    never_events = names | {"error_type": "source_row_malformed"}
    batched, by_hand, planned, replayed, refused = airflow.test(
        ("replay_parked_partitions", {"stage": "ingestion", "groups_per_run": 5}),
        ("replay", AS_TRIGGERED),
        ("replay_parked_partitions", {"stage": "ingestion"}),
        ("replay", AS_TRIGGERED),
        ("replay", never_events),
    )
    assert planned["tasks"] == {"campaign[-1]": "success"}, airflow.output
    of_batch, conf = airflow.triggered("replay").values()
    assert {name: conf[name] for name in names} == names
    assert of_batch == {**conf, "campaign": batched["run_id"], "batch": 0}
    assert (batched["state"], by_hand["state"]) == ("success", "failed")
    assert "only the campaign itself starts its runs" in airflow.output
    assert replayed["state"] == "success", airflow.output[-6000:]
    assert refused["state"] == "failed"
    assert "never were events: correct the source" in airflow.output
    *_, whole, failed = airflow.links("_link_ParkedGroupLink")
    assert "/plugin/waybill-parked/waybill/parked#pipeline=orders&event_name=order&" in whole
    assert "&error_type=source_row_malformed" in failed, "a run that fails has its link, too"

    [back] = [one for one in refusals.delivered(settings) if one.data["number"] == refusals.BIG]
    assert (back.stage, back.attempt) == ("transformation", 1)
    [partition] = services.parked_partitions(settings)
    assert (partition.parked, partition.replayed) == (0, 1)
    refusals.process(settings)
    report = services.balance(settings)
    assert (report.ingested, report.parked, report.replayed) == (refusals.ROWS, 0, 1)
    assert (report.in_flight, report.unaccounted) == (refusals.ROWS - 1, 0)  # one is filtered
