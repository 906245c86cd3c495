"""Delete old runs of Waybill's own DAGs from Airflow's database."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook, BaseOperator
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSkipException,
)

from waybill_airflow.failures import as_task_failures, read_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Connection, Context

_CAMPAIGN_DAG_ID = "replay_parked_partitions"
_AT_ONCE = 500
"""DAG ids of one command: Linux takes 128 KiB in one argument."""
_ONLY_DEADLINES = "did not clean them: ['deadline']"
"""Airflow 3.3.2 asks that table for a column that it has not; its rows go with their runs."""
_DRIVERS = {"postgres": "postgresql+psycopg2", "mysql": "mysql+mysqldb"}


class CleanUpRunsOperator(BaseOperator):
    """Delete runs that began longer ago than ``airflow.keep_runs_days``, by ``airflow db clean``.

    With their tasks, results, and entries of its event log. Airflow keeps the newest scheduled
    run of each DAG; runs of campaigns stay while a campaign is at work, which may last for longer.
    Safe to kill, to retry and to run twice at once.

    :param dag_ids: of Waybill; those of deployed pipelines are added.
    :raises AirflowSkipException: the setting is empty.
    :raises AirflowFailException: there is no connection to Airflow's database, or of another kind.
    :raises waybill.errors.RetryError: the tracker did not answer, or the command failed.
    :returns: how many DAGs were cleaned.
    """

    def __init__(self, *, dag_ids: Sequence[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dag_ids = list(dag_ids)

    def execute(self, context: Context) -> int:
        """Clean up."""
        settings = read_settings()
        days = settings.airflow.keep_runs_days
        if days is None:
            raise AirflowSkipException(
                "WAYBILL_AIRFLOW__KEEP_RUNS_DAYS is empty: all runs are kept"
            )
        url = _database_url(settings.airflow.database_connection_id)
        with as_task_failures():
            from waybill.services import deployed_names, has_open_campaigns

            names = {*self.dag_ids, *(f"ingest_{name}" for name in deployed_names(settings))}
            if has_open_campaigns(settings):
                names.discard(_CAMPAIGN_DAG_ID)
            before = datetime.now(UTC) - timedelta(days=days)
            dag_ids = sorted(names)
            for start in range(0, len(dag_ids), _AT_ONCE):
                _clean(url, before, dag_ids[start : start + _AT_ONCE])
        return len(dag_ids)


def _database_url(name: str) -> str:
    """Return the URL of Airflow's own database; a task has none in its environment."""
    from sqlalchemy import URL

    setting = "WAYBILL_AIRFLOW__DATABASE_CONNECTION_ID"
    try:
        found: Connection = BaseHook.get_connection(name)
    except AirflowNotFoundException as error:
        raise AirflowFailException(
            f"there is no connection {name!r} ({setting}) to Airflow's own database"
        ) from error
    driver = _DRIVERS.get(found.conn_type or "")
    if driver is None:
        raise AirflowFailException(
            f"connection {name!r} ({setting}) is of type {found.conn_type!r}, not postgres or mysql"
        )
    query = {key: str(value) for key, value in found.extra_dejson.items()}
    url = URL.create(
        driver, found.login, found.password, found.host, found.port, found.schema, query
    )
    return url.render_as_string(hide_password=False)


def _clean(url: str, before: datetime, dag_ids: Sequence[str]) -> None:
    from airflow.providers.standard.hooks.subprocess import SubprocessHook

    from waybill.errors import RetryError

    words = ["db", "clean", "--yes", "--skip-archive", "--error-on-cleanup-failure"]
    words += ["--tables", "dag_run,log", "--clean-before-timestamp", before.isoformat()]
    command = [sys.executable, "-m", "airflow", *words, "--dag-ids", ",".join(dag_ids)]
    own = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url, "AIRFLOW__CORE__SQL_ALCHEMY_CONN": url}
    done = SubprocessHook().run_command(command, env={**os.environ, **own})
    if done.exit_code and _ONLY_DEADLINES not in done.output:
        raise RetryError(f"`airflow db clean` failed ({done.exit_code}): {done.output}")


__all__ = ["CleanUpRunsOperator"]
