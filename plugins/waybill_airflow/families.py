"""The DAGs of the ``ingest`` family: one for each declared pipeline.

A declaration that is broken must neither hide the other pipelines nor vanish. Airflow knows import
errors only by file: one error in the family's file marks *every* DAG of that file as stale and
stops scheduling it. So the broken pipeline keeps its DAG, under the id it would have, as a
*notice*: named and tagged as broken, with the problem (file, line, field, what to do) as its
documentation, and with one task that fails with that text. It runs hourly, so that whoever watches
failed runs hears of it; once the declaration is right again, the next parse brings the DAG back.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowTimetableInvalid

from waybill_airflow.dag_defaults import START, TASKS, paused_at_creation
from waybill_airflow.operators.ingest import IngestOperator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Context

    from waybill.pipelines import Pipeline

_INGEST_DOC = """
# Ingest {name}

Fetches what is new at the source of pipeline {name} (team {team}, owner {owner}), and sends
it to Kafka through the lossless producer. Each run goes on where the last one stopped; killing it,
or running it twice, loses and doubles nothing. See `waybill pipelines show`.
"""
_NOTICE_DOC = """
# The declaration of {name} is broken

Nothing is ingested for this pipeline until it is mended. What was ingested before is safe.

{fence}
{problem}
{fence}

Check with `waybill pipelines check`. This DAG turns back into the pipeline's own at the next parse.
"""


class BrokenDeclarationOperator(BaseOperator):
    """Fail with what is wrong with a pipeline's declaration.

    :param problem: file, line, field, what was expected.
    :raises AirflowFailException: always, with the problem.
    """

    def __init__(self, *, problem: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.problem = problem

    def execute(self, context: Context) -> None:
        """Fail."""
        raise AirflowFailException(self.problem)


def ingest_dags(root: Path) -> dict[str, DAG]:
    """Return the family by DAG id; a broken declaration gives its notice.

    :param root: folder of the declarations, ``<root>/<name>/pipeline.yaml``.
    :raises waybill.errors.InputError: there is no such folder.
    """
    from waybill.errors import InputError

    if not root.is_dir():
        raise InputError(f"{root}: no such folder; set WAYBILL_PIPELINES_DIR to the declarations")
    dags: dict[str, DAG] = {}
    paused = paused_at_creation(moves_data=True)
    for folder, declared in _declared(root):
        dag = _dag_of(folder, declared, dags)
        dag.is_paused_upon_creation = paused
        dags[dag.dag_id] = dag
    return dags


def _declared(root: Path) -> list[tuple[Path, Pipeline | str]]:
    """Return each folder with its pipeline, or with what is wrong with its declaration.

    A pipeline that has its folder's name comes first, so that it keeps that name when another
    folder's declaration claims it by mistake. Ids and tables that two claim concern no DAG: a run
    uses what was deployed, and ``waybill pipelines check`` names them.
    """
    from waybill.errors import InputError
    from waybill.pipelines import load_pipeline

    found: list[tuple[Path, Pipeline | str]] = []
    for folder in sorted(root.iterdir()):
        if folder.is_dir() and not folder.name.startswith((".", "_")):
            try:
                found.append((folder, load_pipeline(folder)))
            except InputError as error:
                found.append((folder, str(error)))
    return sorted(found, key=lambda one: isinstance(one[1], str) or one[1].name != one[0].name)


def _dag_of(folder: Path, declared: Pipeline | str, taken: Mapping[str, DAG]) -> DAG:
    if isinstance(declared, str):
        return _notice(folder.name, declared, taken)
    where = f"{folder / 'pipeline.yaml'}"
    if f"ingest_{declared.name}" in taken:
        problem = f"{where}: name: {declared.name!r} is the name of another pipeline"
        return _notice(folder.name, problem, taken)
    try:
        return _ingest_dag(declared)
    except (AirflowTimetableInvalid, ValueError) as error:
        return _notice(folder.name, f"{where}: schedule: {error}", taken)


def _ingest_dag(pipeline: Pipeline) -> DAG:
    dag = DAG(
        f"ingest_{pipeline.name}",
        schedule=pipeline.schedule,
        start_date=START,
        catchup=False,
        max_active_runs=1,
        default_args={
            **TASKS,
            "owner": pipeline.owner,
            "retries": 5,
            "retry_delay": timedelta(seconds=10),
            "retry_exponential_backoff": True,
            "max_retry_delay": timedelta(minutes=10),
            "execution_timeout": timedelta(hours=6),
        },
        tags={"waybill", "ingest", pipeline.team},
        doc_md=_INGEST_DOC.format(
            name=_code(pipeline.name),
            team=_code(pipeline.team),
            owner=_code(pipeline.owner),
        ),
        auto_register=False,
    )
    IngestOperator(task_id="ingest", pipeline=pipeline.name, dag=dag)
    dag.validate()
    return dag


def _notice(name: str, problem: str, taken: Mapping[str, DAG]) -> DAG:
    warnings.warn(f"pipeline {name}: {problem}", stacklevel=2)
    dag_id = _safe_id(f"ingest_{name}", taken)
    dag = DAG(
        dag_id,
        dag_display_name=f"{dag_id} (declaration broken)",
        description=problem.splitlines()[0][:200],
        schedule="@hourly",
        start_date=START,
        catchup=False,
        max_active_runs=1,
        default_args={**TASKS, "retries": 0, "execution_timeout": timedelta(minutes=5)},
        tags={"waybill", "ingest", "broken"},
        doc_md=_NOTICE_DOC.format(name=_code(name), problem=problem, fence=_fence(problem, 3)),
        auto_register=False,
    )
    BrokenDeclarationOperator(task_id="declaration", problem=problem, dag=dag)
    return dag


def _fence(text: str, shortest: int) -> str:
    """Return more backticks than stand side by side anywhere in a text: it cannot end the code."""
    return "`" * max(shortest, 1 + max(map(len, re.findall("`+", text)), default=0))


def _code(text: str) -> str:
    """Return a name as code inside a line of Markdown."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    fence = _fence(shown, 1)
    return f"{fence} {shown} {fence}" if "`" in shown else f"{fence}{shown}{fence}"


def _safe_id(wanted: str, taken: Mapping[str, DAG]) -> str:
    """Return an id that Airflow allows; changed or taken ones get a short hash, so stay unique."""
    safe = re.sub(r"[^A-Za-z0-9_.-]", "_", wanted)[:200]
    if safe == wanted and safe not in taken:
        return safe
    return f"{safe}_{hashlib.sha256(wanted.encode()).hexdigest()[:8]}"


__all__ = ["BrokenDeclarationOperator", "ingest_dags"]
