"""The DAGs of the ``ingest`` family: one for each declared pipeline that is read, in 16 files.

What its source sends by itself (connector ``http``) needs no DAG.

Which file has a pipeline's DAG is a hash of its folder's name, so that a parse makes a sixteenth of
them. What the declarations say is kept between parses (``waybill.pipelines.index``).

A declaration that is broken must neither hide the other pipelines nor vanish. Airflow knows import
errors only by file: one error in the family's file marks *every* DAG of that file as stale and
stops scheduling it. So the broken pipeline keeps its DAG, under the id it would have, as a
*notice*: named and tagged as broken, with the problem (file, line, field, what to do) as its
documentation, and with one task that fails with that text. It runs hourly, so that whoever watches
failed runs hears of it; once the declaration is right again, the next parse brings the DAG back.
"""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, BaseOperator, get_parsing_context
from airflow.sdk.exceptions import AirflowFailException, AirflowTimetableInvalid

from waybill_airflow.dag_defaults import INGEST_POOL, START, TASKS, paused_at_creation, source_pools
from waybill_airflow.operators.ingest import IngestOperator
from waybill_airflow.params import params_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import TypeAlias

    from airflow.sdk import Context

    from waybill.pipelines import DeclarationIndex, DeclaredPipeline

    _Pools: TypeAlias = Mapping[str, tuple[str, int]]

_PREFIX = "ingest_"
_INGEST_DOC = """
# Ingest {name}

Fetches what is new at the source of pipeline {name} (team {team}, owner {owner}), and sends
it to Kafka through the lossless producer. Each run goes on where the last one stopped; killing it,
or running it twice, loses and doubles nothing. See `waybill pipelines show`. Its params, or
`waybill ingest`, have a run begin elsewhere; what is read again has the same ids.
{hourly}"""
_HOURLY_DOC = """
Declared `@hourly`: it runs at `{}`. Each pipeline has its own minute, so that not all begin at
once; five cron fields in the declaration set another.
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


def ingest_shard(number: int) -> dict[str, DAG]:
    """Return the DAGs of one file of the family, by id.

    A task needs one DAG: where Airflow parses for a task, that one alone is made, by the file that
    has it.

    :param number: of the shard, 0 to ``SHARDS`` - 1.
    :raises waybill.errors.InputError: there is no folder of declarations.
    """
    indexes = _indexes()
    wanted = get_parsing_context().dag_id
    if wanted is not None:
        for at, index in enumerate(indexes):
            declared = _wanted(index, number, wanted)
            if declared is None or declared.pushed or _is_claimed(indexes[:at], wanted):
                continue
            pools = source_pools() if declared.connection else {}
            return {wanted: _dag_of(index, declared, wanted, pools)}
        return {}
    named = [
        (dag_id, index, declared)
        for at, index in enumerate(indexes)
        for dag_id, declared in _named(index, number)
        if not declared.pushed and not _is_claimed(indexes[:at], dag_id)
    ]
    pools = source_pools() if any(one.connection for _, _, one in named) else {}
    dags = {dag_id: _dag_of(index, declared, dag_id, pools) for dag_id, index, declared in named}
    paused = paused_at_creation(moves_data=True) if dags else None
    for dag in dags.values():
        dag.is_paused_upon_creation = paused
    return dags


def _indexes() -> list[DeclarationIndex]:
    """Return an index of each folder of declarations, the first of which has to be there.

    :raises waybill.errors.InputError: it is not.
    """
    from waybill.errors import InputError
    from waybill.pipelines import DeclarationIndex

    root, home, more = _folders()
    if not root.is_dir():
        raise InputError(f"{root}: no such folder; set WAYBILL_PIPELINES_DIR to the declarations")
    found = [DeclarationIndex(root, home)]
    for number, folder in enumerate(more, start=1):
        if folder.is_dir():
            found.append(DeclarationIndex(folder, home, f"{number}-"))
        else:  # an error would take the DAGs of the other folders with it
            warnings.warn(f"WAYBILL_MORE_PIPELINES_DIRS: {folder}: no such folder", stacklevel=2)
    return found


def _folders() -> tuple[Path, Path, tuple[Path, ...]]:
    """Return the folder of declarations, the state folder and further folders of declarations.

    Where the environment names the first two, as in compose, it is asked itself: the settings take
    45 ms to import, in each parse of each file of the family.
    """
    names = ("WAYBILL_PIPELINES_DIR", "WAYBILL_HOME")
    given = [os.environ.get(name, "") for name in names]
    if all(given) and "WAYBILL_MORE_PIPELINES_DIRS" not in os.environ:
        return Path(given[0]), Path(given[1]), ()
    from waybill.settings import Settings

    settings = Settings()
    return settings.pipelines_dir, settings.home, settings.more_pipelines_dirs


def _is_claimed(indexes: list[DeclarationIndex], dag_id: str) -> bool:
    """Tell whether one of some folders of declarations has a pipeline of this DAG."""
    name = dag_id.removeprefix(_PREFIX)
    for index in indexes:
        namesake = index.folder(name)
        if namesake is not None and (namesake.problem or namesake.name == name):
            return True
        if any(one.name == name for one in index.renamed()):
            return True
    return False


def _wanted(index: DeclarationIndex, number: int, wanted: str) -> DeclaredPipeline | None:
    """Return what is declared for one DAG of a shard; None: it has no such DAG.

    Nearly always the DAG's id names the folder, and no other has to be read.
    """
    from waybill.pipelines import shard_of

    name = wanted.removeprefix(_PREFIX)
    if name == wanted:
        return None
    if shard_of(name) == number:
        declared = index.folder(name)
        if declared is not None and (declared.problem or declared.name == name):
            return declared
    return dict(_named(index, number)).get(wanted)


def _named(index: DeclarationIndex, number: int) -> Iterator[tuple[str, DeclaredPipeline]]:
    """Yield the DAG ids of a shard, each with its declaration, or what is wrong with that.

    A name belongs to the folder of that name, unless its declaration says another one; else to the
    first folder that claims it. Ids and tables that two claim concern no DAG: a run uses what was
    deployed, and ``waybill pipelines check`` names them.
    """
    shard = index.shard(number)
    owners = _owners(index, shard)
    for declared in shard:
        folder, name, problem = declared.folder, declared.name, declared.problem
        if not problem and name != folder and owners.get(name) != folder:
            problem = f"{index.file(folder)}: name: {name!r} is the name of another pipeline"
        if problem:
            dag_id = _safe_id(f"{_PREFIX}{folder}", taken=folder in owners)
            yield dag_id, replace(declared, problem=problem)
        else:
            yield f"{_PREFIX}{name}", declared


def _owners(index: DeclarationIndex, shard: list[DeclaredPipeline]) -> dict[str, str]:
    """Return {name: folder} of pipelines that have not their folder's name, as far as it matters.

    Only where the shard has such a pipeline are the other shards asked.
    """
    renamed = [one for one in shard if not one.problem and one.name != one.folder]
    if not renamed:
        return {}
    matter = {name for one in renamed for name in (one.name, one.folder)}
    own = {one.folder for one in shard}
    renamed += [one for one in index.renamed() if one.folder not in own and one.name in matter]
    owners: dict[str, str] = {}
    for one in sorted(renamed, key=lambda one: one.folder):
        namesake = index.folder(one.name)
        if namesake is None or not (namesake.problem or namesake.name == one.name):
            owners.setdefault(one.name, one.folder)
    return owners


def _dag_of(index: DeclarationIndex, declared: DeclaredPipeline, dag_id: str, pools: _Pools) -> DAG:
    if declared.problem:
        return _notice(dag_id, declared.folder, declared.problem)
    try:
        return _ingest_dag(declared, pools)
    except (AirflowTimetableInvalid, ValueError) as error:
        problem = f"{index.file(declared.folder)}: schedule: {error}"
        return _notice(dag_id, declared.folder, problem)


def _ingest_dag(declared: DeclaredPipeline, pools: _Pools) -> DAG:
    from waybill.ingestion import IngestRequest
    from waybill.pipelines import HOURLY, cron_schedule

    schedule = cron_schedule(declared.schedule, declared.id)
    dag = DAG(
        f"{_PREFIX}{declared.name}",
        schedule=schedule,
        start_date=START,
        catchup=False,
        max_active_runs=1,
        default_args={
            **TASKS,
            "owner": declared.owner,
            "retries": 5,
            "retry_delay": timedelta(seconds=10),
            "execution_timeout": timedelta(hours=6),
        },
        tags={"waybill", "ingest", declared.team},
        doc_md=_INGEST_DOC.format(
            name=_code(declared.name),
            team=_code(declared.team),
            owner=_code(declared.owner),
            hourly=_HOURLY_DOC.format(schedule) if declared.schedule == HOURLY else "",
        ),
        params=params_of(IngestRequest),
        auto_register=False,
    )
    pool, slots = pools.get(declared.connection or "", (INGEST_POOL, 1))
    IngestOperator(
        task_id="ingest",
        pipeline=declared.name,
        from_params=True,
        pool=pool,
        pool_slots=min(slots, declared.connections),
        dag=dag,
    )
    dag.validate()
    return dag


def _notice(dag_id: str, folder: str, problem: str) -> DAG:
    # The name of a folder may be no UTF-8, which Airflow could not store.
    name, problem = (
        text.encode("utf-8", "backslashreplace").decode() for text in (folder, problem)
    )
    warnings.warn(f"pipeline {name}: {problem}", stacklevel=2)
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


def _safe_id(wanted: str, *, taken: bool) -> str:
    """Return an id that Airflow allows; changed or taken ones get a short hash, so stay unique."""
    safe = re.sub(r"[^A-Za-z0-9_.-]", "_", wanted)[:200]
    if safe == wanted and not taken:
        return safe
    return f"{safe}_{hashlib.sha256(os.fsencode(wanted)).hexdigest()[:8]}"


__all__ = ["BrokenDeclarationOperator", "ingest_shard"]
