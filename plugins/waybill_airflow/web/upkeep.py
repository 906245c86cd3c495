"""The route of upkeep: how the jobs that run each minute are.

They are paused and resumed by the command line; started by hand by their DAGs, where Airflow says
who may.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from fastapi import APIRouter
from pydantic import BaseModel, Field

from waybill.upkeep import JobRecord, read_jobs
from waybill_airflow.web.guard import Viewer
from waybill_airflow.web.services import parked_events

router = APIRouter(prefix="/api", tags=["upkeep"])


class JobOut(BaseModel):
    """A job of upkeep."""

    job: str
    state: Literal["ok", "running", "failing", "late", "paused"] = Field(
        description="late: it has not succeeded for five minutes."
    )
    started_at: str | None = Field(description="The last run's start,")
    ended_at: str | None = Field(description="the end of the last one that ended,")
    succeeded_at: str | None = Field(description="of the last one that succeeded,")
    failed_at: str | None = Field(description="and of the last one that failed.")
    failures: int = Field(description="In a row.")
    outcome: dict[str, Any] = Field(description="Counts of the last success.")
    error: str | None = Field(
        description="Of the last failure; null for who may not see all teams: it can name them, "
        "as texts of an outcome can."
    )
    holder: str = Field(description="Who runs it, or ran it last.")
    paused_at: str | None
    paused_by: str

    @classmethod
    def of(cls, found: JobRecord, *, whole: bool) -> Self:
        """Return a job; ``whole``: with its error, and with what its outcome has but numbers."""
        shown = found.to_json()
        if not whole:
            shown["error"] = None
            numbers = {n: v for n, v in found.outcome.items() if isinstance(v, int | float)}
            shown["outcome"] = numbers
        return cls(**{name: shown[name] for name in cls.model_fields})


class JobsOut(BaseModel):
    """The jobs of upkeep."""

    jobs: list[JobOut]


@router.get("/upkeep", summary="The jobs that run each minute")
def upkeep(access: Viewer) -> JobsOut:
    """Return each job's last success, outcome and error."""
    whole = access.teams("view") is None
    found = read_jobs(parked_events().tracker)
    return JobsOut(jobs=[JobOut.of(one, whole=whole) for one in found])
