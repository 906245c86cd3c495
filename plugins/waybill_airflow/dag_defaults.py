"""What Waybill's DAGs have in common.

Pools and priorities: ingest tasks take slots of ``waybill_ingest``, or of their connection's pool
where its runs are limited (``airflow.source_slots``), replays of ``waybill_replay``; pools are
made by ``waybill up`` and by compose. A task whose pool is not there waits for ever: Airflow warns
on the DAG's page, and so does ``waybill doctor``. Where slots of the executor are short, what keeps
promises goes first: upkeep and streams (10), replays (5), ingestion (1).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule

from waybill_airflow.notifiers.task_failed import TaskFailedNotifier

if TYPE_CHECKING:
    from waybill.settings import AirflowSettings, Settings

START = datetime(2026, 1, 1, tzinfo=UTC)
INGEST_POOL = "waybill_ingest"
REPLAY_POOL = "waybill_replay"
RETRIES = ExceptionRetryPolicy(
    rules=[
        RetryRule(
            "waybill.errors.RetryError",
            RetryAction.RETRY,
            reason="a server does not answer, or is busy; a retry goes on, nothing is lost",
        ),
        RetryRule(
            ["waybill.errors.InputError", "pydantic.ValidationError"],
            RetryAction.FAIL,
            reason="what was given is wrong, and would be again: no retry",
        ),
        RetryRule(
            "waybill.errors.SettleError",
            RetryAction.FAIL,
            reason="somebody has to settle by name what was found: no retry",
        ),
    ]
)
"""By ``waybill.errors``: what may pass is tried again, with the task's growing waits; what a person
has to mend is not. All else, ``StopError`` too, has the task's retries: each is a new process, in
which the library looks again."""
TASKS: dict[str, Any] = {
    "owner": "waybill",
    "on_failure_callback": TaskFailedNotifier(),
    "retry_policy": RETRIES,
    "retry_exponential_backoff": True,
    "max_retry_delay": timedelta(minutes=10),
}
"""``default_args`` of every DAG."""
FIRST: dict[str, Any] = {**TASKS, "priority_weight": 10, "weight_rule": "absolute"}
"""The same of upkeep and streams, which go before replays and ingestion."""
REPLAYS: dict[str, Any] = {**TASKS, "priority_weight": 5, "weight_rule": "absolute"}


def upkeep(*, timeout: timedelta, long: bool = False, **default_args: Any) -> dict[str, Any]:
    """Return the keywords of a scheduled DAG of upkeep: one run at a time, no catching up.

    :param timeout: of each task.
    :param long: a task runs for long, so failed ones are retried after 1, 2 and 4 minutes, not
        every 10 seconds.
    :param default_args: more of the DAG's ``default_args``.
    """
    retries: dict[str, Any] = {"retries": 3, "retry_delay": timedelta(seconds=10)}
    if long:
        retries |= {"retry_delay": timedelta(minutes=1)}
    return {
        "start_date": START,
        "catchup": False,
        "is_paused_upon_creation": paused_at_creation(),
        "max_active_runs": 1,
        "default_args": {
            **retries,
            **FIRST,
            "execution_timeout": timeout,
            **default_args,
        },
    }


def paused_at_creation(*, moves_data: bool = False) -> bool | None:
    """Return ``is_paused_upon_creation`` of a DAG, as the setting ``airflow.unpaused_dags`` says.

    Upkeep runs unless the setting turns it off: promises rest on it. What moves data begins when
    somebody unpauses it. Where the settings of this process are wrong, upkeep runs all the same:
    its tasks fail and name the setting, and a DAG that began paused would stay so.

    :param moves_data: the DAG takes data in or carries it on.
    :returns: ``None``: as Airflow's own ``dags_are_paused_at_creation`` says.
    """
    unpaused = _airflow_settings().unpaused_dags
    return False if unpaused == "all" or (unpaused == "upkeep" and not moves_data) else None


def source_pools() -> dict[str, tuple[str, int]]:
    """Return {connection: (pool, its slots)} of the connections whose runs are limited."""
    from waybill.settings import source_pool

    limited = _airflow_settings().source_slots
    return {name: (source_pool(name), slots) for name, slots in limited.items()}


def replays_at_once() -> int:
    """Return how many runs of the DAG ``replay`` go at once: as many as its pool has slots."""
    return _airflow_settings().replay_slots


def traces_in_athena() -> bool:
    """Say whether the environment names Athena for the traces; where its settings are wrong: no."""
    settings = _settings()
    return settings is not None and settings.traces.backend == "athena"


def _airflow_settings() -> AirflowSettings:
    """Return what the environment says of Airflow; the defaults where its settings are wrong."""
    from waybill.settings import AirflowSettings

    settings = _settings()
    return AirflowSettings() if settings is None else settings.airflow


def _settings() -> Settings | None:
    """Return the settings by the environment; ``None``: they are wrong."""
    from pydantic import ValidationError

    from waybill.settings import Settings

    try:
        return Settings()
    except ValidationError:
        return None


__all__ = [
    "FIRST",
    "INGEST_POOL",
    "REPLAYS",
    "REPLAY_POOL",
    "RETRIES",
    "START",
    "TASKS",
    "paused_at_creation",
    "replays_at_once",
    "source_pools",
    "traces_in_athena",
    "upkeep",
]
