"""What is private of Airflow is in one module, and is there in the Airflow that is installed."""

from __future__ import annotations

import ast
import inspect

import pytest
from tests.dags.conftest import ROOT

from waybill_airflow import airflow_internals

OWN = ROOT / "plugins" / "waybill_airflow" / "airflow_internals.py"
PUBLIC = (
    "airflow.sdk",
    "airflow.providers.amazon.aws.hooks.base_aws",
    "airflow.providers.apache.spark.hooks.spark_submit",
    "airflow.providers.apache.spark.operators.spark_submit",
    "airflow.providers.openlineage.extractors.base",
    "airflow.providers.standard.hooks.subprocess",
    "airflow.plugins_manager",
    "airflow.triggers.base",
    # What `BaseEventTrigger` asks a trigger to return, in 3.3.
    "airflow.triggers.shared_stream",
    "airflow.providers.common.compat.openlineage.facet",
    "airflow.providers.amazon.aws.operators",
    # The interface of auth managers, which others write.
    "airflow.api_fastapi.auth.managers.models.base_user",
)
"""Airflow's public interface, as far as it is used: docs, "Public Interface of Airflow"."""


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names)


def is_private(module):
    named = module == "airflow" or module.startswith("airflow.")
    public = any(module == one or module.startswith(f"{one}.") for one in PUBLIC)
    inner = module.startswith("airflow.sdk.execution_time")
    return named and (not public or inner or "._" in module)


def test_no_other_module_imports_what_is_private_of_airflow():
    paths = [
        path for place in ("plugins", "dags", "include") for path in (ROOT / place).rglob("*.py")
    ]
    found = {
        str(path.relative_to(ROOT)): private
        for path in paths
        if path != OWN and (private := [one for one in imported(path) if is_private(one)])
    }
    assert found == {}
    assert [one for one in imported(OWN) if is_private(one)], "the rule finds what it looks for"


def test_the_api_server_tells_who_asks():
    """Else our pages start for nobody."""
    from airflow.api_fastapi.core_api.security import bearer_scheme, get_user, oauth2_scheme

    assert len(inspect.signature(get_user).parameters) == 3, "request, token, bearer"
    assert (oauth2_scheme.auto_error, bearer_scheme.auto_error) == (False, False)


def test_the_api_server_gives_its_own_application():
    """Else no page starts a replay. Its argument must be the server's: see the call in its source."""
    from airflow.api_fastapi import app, main

    assert inspect.signature(app.cached_app).parameters["apps"].default == "all"
    assert 'cached_app(apps=os.environ.get("AIRFLOW_API_APPS", "all"))' in inspect.getsource(main)


@pytest.fixture
def spark(monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_WAYBILL_SPARK", '{"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster", "namespace": "n"}}')  # fmt: skip


def test_sparks_provider_says_what_a_connection_resolved_to_and_the_command(spark):
    """Else no application starts by a connection of Spark."""
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    hook = SparkSubmitHook(conn_id="waybill_spark", application_args=["--epoch", "3"])
    found = airflow_internals.spark_connection(hook)
    assert {"master", "deploy_mode", "namespace"} <= set(found)
    assert (found["master"], found["deploy_mode"]) == ("yarn", "cluster")
    command = airflow_internals.spark_submit_command(hook, "/x/processing.py")
    assert command[-3:] == ["/x/processing.py", "--epoch", "3"]


@pytest.mark.parametrize(
    ("external_id", "field", "kept"),
    [
        ("application_1_2", "_yarn_application_id", "application_1_2"),
        ("waybill:driver-7", "_kubernetes_driver_pod", "driver-7"),
    ],
)
def test_sparks_provider_kills_what_another_process_submitted(
    spark, monkeypatch, external_id, field, kept
):
    """Else an application that should end does so only when it reads its row."""
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

    operator = SparkSubmitOperator(task_id="operator", application="x.py", conn_id="waybill_spark")
    assert hasattr(operator._backend.hook, field)
    killed = []
    monkeypatch.setattr(
        SparkSubmitOperator,
        "on_kill",
        lambda self: killed.append(getattr(self._backend.hook, field)),
    )
    airflow_internals.kill_submitted(operator, external_id)
    assert killed == [kept]


def test_the_dag_processor_takes_the_requests_that_are_written():
    """Else a deploy has its DAG only with the next parse of the file."""
    from airflow.dag_processing import manager
    from airflow.models.dag import DagModel
    from airflow.models.dagbag import DagPriorityParsingRequest

    one = DagPriorityParsingRequest("dags-folder", "ingest_00.py")
    assert (one.bundle_name, one.relative_fileloc) == ("dags-folder", "ingest_00.py")
    assert DagModel.bundle_name and DagModel.relative_fileloc
    claiming = inspect.getsource(manager.DagFileProcessorManager._claim_priority_files)
    assert "select(DagPriorityParsingRequest)" in claiming
    assert "session.delete(request)" in claiming


def test_airflow_says_who_may_change_a_dag():
    """Else nobody can ask for a parse."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.base_auth_manager import BaseAuthManager
    from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails

    assert callable(get_auth_manager)
    assert DagDetails(id="ingest_orders").id == "ingest_orders"
    asked = inspect.signature(BaseAuthManager.is_authorized_dag).parameters
    assert {"method", "user", "details"} <= asked.keys()


def test_airflow_says_who_may_change_a_pool():
    """Else nobody can have slots shared."""
    from airflow.api_fastapi.auth.managers.base_auth_manager import BaseAuthManager
    from airflow.api_fastapi.auth.managers.models.resource_details import PoolDetails

    assert PoolDetails(name="waybill_ingest").name == "waybill_ingest"
    asked = inspect.signature(BaseAuthManager.is_authorized_pool).parameters
    assert {"method", "user", "details"} <= asked.keys()


def test_the_scheduler_goes_by_the_priority_that_a_waiting_task_has_in_its_row():
    """Else teams have no shares: which of their tasks go first is written there."""
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
    from airflow.models.taskinstance import TaskInstance

    deciding = inspect.getsource(SchedulerJobRunner._executable_task_instances_to_queued)
    assert ".order_by(-TI.priority_weight, DR.logical_date, TI.map_index)" in deciding
    assert "refresh_from_task" not in deciding
    columns = set(TaskInstance.__table__.columns.keys())
    assert {"pool", "priority_weight", "queued_dttm", "scheduled_dttm", "start_date"} <= columns
