"""Whether a DAG runs from the moment Airflow first sees it."""

from __future__ import annotations


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


__all__ = ["paused_at_creation"]
