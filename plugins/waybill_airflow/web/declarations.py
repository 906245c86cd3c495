"""The route by which `waybill deploy` has Airflow parse the file that has a pipeline's DAG.

Airflow's own `PUT /api/v2/parseDagFile` takes only files that have a DAG already: not the file of
the first pipeline of a shard.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from airflow.sdk.configuration import conf
from fastapi import APIRouter, HTTPException, Path, status
from pydantic import BaseModel, Field

from waybill.events import rfc3339
from waybill.pipelines import shard_of
from waybill_airflow.airflow_internals import may_change_dag, request_parse
from waybill_airflow.operators.replay import REPLAY_DAG_ID
from waybill_airflow.web.guard import UserDep, Viewer
from waybill_airflow.web.models import problems

router = APIRouter(prefix="/api", tags=["declarations"])


class ParseOut(BaseModel):
    """A parse that was asked for."""

    file: str = Field(description="The DAG file.")
    asked_at: str = Field(description="By the clock of the API server.")
    interval_s: int = Field(description="How often the file is parsed without being asked for.")


@router.post(
    "/declarations/{name}/parse",
    status_code=202,
    responses=problems(_409="Airflow has not parsed Waybill's DAG files yet; it is about to."),
    summary="Have a declaration's DAG made anew",
)
def parse(
    _access: Viewer,
    user: UserDep,
    name: Annotated[
        str, Path(pattern=r"^[^\x00]{1,300}$", description="The folder of the declaration.")
    ],
) -> ParseOut:
    """Have Airflow parse the file with the DAG of a declaration next: within seconds.

    It needs Airflow's right to change the DAG. Asked twice before it is parsed, it is parsed once.
    """
    if not may_change_dag(user, f"ingest_{name}"):
        raise HTTPException(
            status.HTTP_403_FORBIDDEN,
            f"Airflow does not let {user.get_name()!r} change the DAG of {name[:80]!r}",
        )
    asked_at = datetime.now(UTC)
    file = f"ingest_{shard_of(name):02}.py"
    if not request_parse(file, beside=REPLAY_DAG_ID):
        raise HTTPException(
            status.HTTP_409_CONFLICT,
            f"Airflow does not know the DAG {REPLAY_DAG_ID} yet, beside which {file} lies",
        )
    interval_s = conf.getint("dag_processor", "min_file_process_interval")
    return ParseOut(file=file, asked_at=rfc3339(asked_at), interval_s=interval_s)


__all__ = ["router"]
