"""``waybill pipelines undeploy``: a pipeline that is not to be read any more.

Names come from users: they are never read as markup, and control characters are shown. With
``--json`` standard output is one JSON value, and nothing is asked.
"""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

import typer

from waybill.cli.options import AsJson, Who, Yes, ask, decision, takes, told_how_to_answer
from waybill.cli.output import plain, print_folded, print_json
from waybill.undeployment import UndeployRequest

if TYPE_CHECKING:
    from waybill.services import UndeployReport
    from waybill.settings import Settings

_DRAINS = 2
_AIRFLOW_S = 10.0


@takes(
    UndeployRequest,
    flags={
        "drop_tables": ("--drop-tables",),
        "keep_tables": ("--keep-tables",),
        "leave_parked": ("--leave-parked",),
        "why": ("--why", "--reason"),
    },
)
def undeploy(
    request: UndeployRequest, who: Who = None, *, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Undeploy a pipeline: end reading its source, and wait until what is on its way is loaded.

    Its tables stay, or are dropped with --drop-tables. Books, versions and parked events stay; a
    deploy makes it active again, and goes on where reading stopped, or, where tables were dropped,
    at the source's beginning.

    Exit code 2: something is on its way still; the same command again goes on. So it does after
    it was killed, at whatever step. Where it was undeployed so before, that is said, with exit
    code 0. Where the destination refuses to drop its tables, the DAG refresh_tracker tries it each
    hour; --keep-tables ends it, and they stay.
    """
    from waybill.services import UndeployWatch, run_undeploy, undeployable
    from waybill.settings import Settings

    settings, decided = Settings(), decision(who, request.why)
    decided.require_why()
    found = undeployable(settings, request)
    name, tables, report = found.pipeline.name, found.tables, found.ended
    if report is None:
        if request.drop_tables:
            _confirm_drop(name, tables, request.confirm, as_json=as_json)
        elif not yes:
            _confirm(name, tables, as_json=as_json)
        watch = UndeployWatch(
            begun=lambda: print_folded([_pause(settings, f"ingest_{name}")], err=True),
            waits=lambda words: print_folded([f"waits: {words}"], err=True),
        )
        report = run_undeploy(settings, request, decided, watch)
    if as_json:
        print_json(report.to_json())
    else:
        print_folded(_lines(report, request))
    if not report.is_done:
        raise typer.Exit(_DRAINS)


def _lines(report: UndeployReport, request: UndeployRequest) -> list[str]:
    name = report.pipeline
    if not report.is_done:
        return [
            f"{name}: its source is not read any more; on its way are still:",
            *(f"  {one}" for one in report.waits_for),
            "the same command again goes on; `waybill pipelines deploy` takes it back",
        ]
    done = f"{name}: it {report.already} already" if report.already else f"{name}: undeployed"
    if report.dropped:
        return [
            f"{done}; dropped are {', '.join(report.dropped)}",
            "once it is deployed again, its source is read from its beginning",
        ]
    kept = " and its parked events" if request.leave_parked else ""
    if report.reads_again:
        return [
            f"{done}; its tables{kept} stay, as far as they were not dropped before",
            "once it is deployed again, its source is read from its beginning",
        ]
    return [
        f"{done}; its tables{kept} stay",
        "once it is deployed again, it is read on from where it stopped",
    ]


def _confirm(name: str, tables: tuple[str, ...], *, as_json: bool) -> None:
    stay = "stays as it is" if len(tables) == 1 else "stay as they are"
    said = f"{name} will not be read any more; {', '.join(tables)} {stay}"
    print_folded([said], err=True)
    ask("Undeploy it?", as_json=as_json)


def _confirm_drop(name: str, tables: tuple[str, ...], given: str | None, *, as_json: bool) -> None:
    """Have the pipeline's name typed.

    Raises:
        InputError: it is another one.
    """
    from waybill.errors import InputError

    if given is None:
        if as_json:
            raise InputError("--json asks no questions: add --confirm with the pipeline's name")
        print_folded([f"dropped, with all rows, are: {', '.join(tables)}"], err=True)
        with told_how_to_answer(f"--confirm {quote(name)}"):
            given = typer.prompt(f"Type {plain(name)} to drop them", err=True)
    if given != name:
        raise InputError(f"nothing was done: expected {name!r}, found {given!r}")


def _pause(settings: Settings, dag_id: str) -> str:
    """Pause a pipeline's DAG; return what came of it."""
    from waybill.errors import WaybillError
    from waybill.services.airflow_client import AirflowClient

    try:
        with AirflowClient(settings.airflow, patience_s=0.0, timeout_s=_AIRFLOW_S) as client:
            is_paused = client.is_paused(dag_id)
            if is_paused is False:
                client.pause(dag_id)
    except WaybillError as error:
        return f"note: {dag_id} was not paused, its runs are refused from now on: {error}"
    if is_paused is None:
        return f"note: Airflow has no {dag_id}"
    return f"{dag_id} is paused; remove the pipeline's folder, and it is gone"
