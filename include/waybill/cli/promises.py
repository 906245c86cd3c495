"""What commands promise that DAGs and jobs of upkeep do later; what they say where none does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from waybill.cli.output import print_folded

if TYPE_CHECKING:
    from waybill.settings import Settings


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
