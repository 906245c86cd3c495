"""What Waybill's DAGs have in common."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

START = datetime(2026, 1, 1, tzinfo=UTC)


def upkeep(*, timeout: timedelta, long: bool = False, **default_args: Any) -> dict[str, Any]:
    """Return the keywords of a scheduled DAG of upkeep: one run at a time, no catching up.

    :param timeout: of each task.
    :param long: a task runs for long, so failed ones are retried after 1, 2 and 4 minutes, not
        every 10 seconds.
    :param default_args: more of the DAG's ``default_args``.
    """
    retries: dict[str, Any] = {"retries": 3, "retry_delay": timedelta(seconds=10)}
    if long:
        retries |= {"retry_delay": timedelta(minutes=1), "retry_exponential_backoff": True}
    return {
        "start_date": START,
        "catchup": False,
        "is_paused_upon_creation": paused_at_creation(),
        "max_active_runs": 1,
        "default_args": {**retries, "execution_timeout": timeout, **default_args},
    }


def paused_at_creation(*, moves_data: bool = False) -> bool | None:
    """Return ``is_paused_upon_creation`` of a DAG, as the setting ``airflow.unpaused_dags`` says.

    Upkeep runs unless the setting turns it off: promises rest on it. What moves data begins when
    somebody unpauses it. Where the settings of this process are wrong, upkeep runs all the same:
    its tasks fail and name the setting, and a DAG that began paused would stay so.

    :param moves_data: the DAG takes data in or carries it on.
    :returns: ``None``: as Airflow's own ``dags_are_paused_at_creation`` says.
    """
    from pydantic import ValidationError

    from waybill.settings import Settings

    try:
        unpaused = Settings().airflow.unpaused_dags
    except ValidationError:
        unpaused = "upkeep"
    return False if unpaused == "all" or (unpaused == "upkeep" and not moves_data) else None


__all__ = ["START", "paused_at_creation", "upkeep"]
