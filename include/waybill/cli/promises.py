"""What commands promise that DAGs and jobs of upkeep do later; what they say where none does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from waybill.cli.output import counted, print_folded
from waybill.errors import InputError, NotFoundError

if TYPE_CHECKING:
    from waybill.services.airflow_client import AirflowClient
    from waybill.settings import Settings

UNPAUSE = (
    "Unpause the DAGs that do it, where they are paused: all runs of them that wait begin, whoever "
    "asked for them."
)
"""What ``--unpause`` does."""
_WAITING = ("queued", "running")


def tell_hindrances(
    settings: Settings,
    promise: str,
    *,
    dags: Sequence[str] = (),
    jobs: Sequence[str] = (),
    is_asked_for: bool = False,
) -> None:
    """Say on standard error what keeps a promise from being kept, or that it is not known.

    Args:
        settings: all.
        promise: what is not done then: "nobody sends these notices".
        dags: that do it.
        jobs: of upkeep, that do it.
        is_asked_for: runs of these DAGs were just asked for.
    """
    from waybill.services import DagWork, work_health

    health = work_health(settings, DagWork(tuple(dags), tuple(jobs), is_asked_for))
    if health.hindrances:
        print_folded([f"{promise}:", *(f"  {one}" for one in health.hindrances)], err=True)
    if health.unknown:
        said = f"whether that is done could not be checked: {health.unknown}"
        print_folded([said], err=True)


def require_unpaused(client: AirflowClient, dag_ids: Sequence[str], *, unpause: bool) -> None:
    """Refuse to start runs of DAGs that are paused; with ``unpause``, unpause them and say so.

    To unpause a DAG is a decision about all its runs that wait, whoever asked for them.

    Raises:
        InputError: one is paused, and ``unpause`` was not asked for; nothing was changed.
        NotFoundError: Airflow has no such DAG.
    """
    states = {dag_id: client.is_paused(dag_id) for dag_id in dag_ids}
    if absent := [dag_id for dag_id, is_paused in states.items() if is_paused is None]:
        raise NotFoundError(
            f"Airflow has no DAG {' and no '.join(absent)}: see its import errors, and whether its "
            "DAG processor runs (`waybill doctor`)"
        )
    paused = {
        dag_id: counted(client.count_runs(dag_id, _WAITING), "unfinished run")
        for dag_id, is_paused in states.items()
        if is_paused
    }
    if paused and not unpause:
        listed = [f"the DAG {dag_id} is paused, with {runs}" for dag_id, runs in paused.items()]
        raise InputError(
            "\n".join(
                [*listed, "nothing was started; --unpause unpauses, and all runs that wait begin"]
            )
        )
    for dag_id, runs in paused.items():
        client.unpause(dag_id)
        print_folded([f"the DAG {dag_id} was paused, with {runs}; it is unpaused now"], err=True)
