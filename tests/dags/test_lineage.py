"""OpenLineage: which datasets a task names; without its provider nothing of it is imported."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from waybill.deployment import LoadedTable
from waybill_airflow.operators.ingest import IngestOperator
from waybill_airflow.operators.replay import ReplayParkedPartitionOperator
from waybill_airflow.operators.spark_application import SparkApplicationOperator

GROUP = {"pipeline": "orders", "stage": "mapping", "error_type": "null_value"}
HOSTILE = "a/b#{{ 7*7 }}"


@pytest.fixture
def library(monkeypatch):
    """Stand in for the services."""
    from waybill import services

    pipeline = SimpleNamespace(name="orders", team="shop", destination="warehouse")
    report = {"accepted": 7, "sent": 5, "resumed": 0, "events": 5}
    done = SimpleNamespace(to_json=lambda: report, stopped="")
    tables = [LoadedTable("shop", "orders", "warehouse", name) for name in ("items", "orders")]
    monkeypatch.setattr(services, "deployed_pipeline", lambda *_: pipeline)
    monkeypatch.setattr(services, "run_ingest", lambda *_, **__: done)
    monkeypatch.setattr(services, "run_replay", lambda *_, **__: done)
    monkeypatch.setattr(services, "tables_loaded_by", lambda _, cluster: tables * (cluster == "a"))
    monkeypatch.setenv("WAYBILL_KAFKA__BOOTSTRAP_SERVERS", "kafka-1:9092, kafka-2:9092")


def context(**params):
    run = SimpleNamespace(triggering_user_name="ann", dag_id="replay", run_id="r")
    return {"dag_run": run, "run_id": "r", "params": params, "ti": SimpleNamespace()}


def named(datasets):
    return [(one.namespace, one.name) for one in datasets]


def test_tasks_end_without_the_provider(library):
    task = IngestOperator(task_id="t", pipeline="orders")
    assert task.execute(context())["accepted"] == 7
    ReplayParkedPartitionOperator(task_id="t").execute(context(**GROUP, event_name="e"))
    if "airflow.providers.openlineage" not in sys.modules:
        assert not [name for name in sys.modules if name.startswith("openlineage")]


def test_ingest_replay_and_loading_name_their_datasets(library):
    pytest.importorskip("airflow.providers.openlineage")
    topic = ("kafka://kafka-1:9092", "events.shop.warehouse")
    task = IngestOperator(task_id="t", pipeline="orders")
    task.execute(context())
    found = task.get_openlineage_facets_on_complete(None)
    assert named(found.inputs) == [("waybill://shop", "orders/source")]
    assert named(found.outputs) == [topic]
    assert found.outputs[0].outputFacets["outputStatistics"].rowCount == 7

    task = ReplayParkedPartitionOperator(task_id="t")
    assert task.get_openlineage_facets_on_complete(None) is None, "it has replayed nothing"
    task.execute(context(**GROUP, event_name=HOSTILE))
    found = task.get_openlineage_facets_on_complete(None)
    encoded = "a%2Fb%23%7B%7B%207%2A7%20%7D%7D"
    assert named(found.inputs) == [
        ("waybill://shop", f"orders/parked/{encoded}/mapping/null_value")
    ]
    assert (named(found.outputs), found.outputs[0].outputFacets["outputStatistics"].rowCount) == (
        [topic],
        5,
    )

    for kind, cluster, tables in (
        ("loading", "a", 2),
        ("loading", "b", 0),
        ("processing", "a", None),
    ):
        task = SparkApplicationOperator(task_id="t", kind=kind, virtual_cluster=cluster)
        found = task.get_openlineage_facets_on_complete(None)
        assert (found is None) if tables is None else (len(found.outputs) == tables)
        if tables:
            assert named(found.inputs) == [topic]
            assert named(found.outputs) == [
                ("waybill://shop", "orders/items"),
                ("waybill://shop", "orders/orders"),
            ]
