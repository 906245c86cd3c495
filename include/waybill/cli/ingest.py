"""``waybill ingest``: start a pipeline's ingestion in Airflow, and follow it.

Exit code: 0, the run is started, or with ``--wait`` has ended well; 1, it was refused; 2, it failed
or was stopped; 130, nobody follows it any more, and it goes on. With ``--json`` standard output is
one JSON value.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waybill.cli.command import DEPLOYED
from waybill.cli.exit_codes import ExitCode
from waybill.cli.options import AsJson, Who, Yes, ask, decision, takes
from waybill.cli.output import counted, echo, plain, print_folded, print_json, shortened
from waybill.cli.promises import tell_hindrances
from waybill.cli.tables import clock
from waybill.errors import InputError, NotFoundError
from waybill.ingestion import IngestRequest

if TYPE_CHECKING:
    from waybill.pipelines import Pipeline
    from waybill.services.airflow_client import AirflowClient
    from waybill.settings import Settings

_TASK = "ingest"
_SAY_S = 5.0
_LONGEST_S = 7 * 24 * 3600.0
_INTERRUPTED = 130
_REASON = "reason"
_ERROR_CHARS = 300
_QUEUED, _RUNNING = "queued", "running"
_COMPARES = (
    "no row comes now: with `deletes: compare` a run reads the keys of the whole table once the new"
    " rows are in, and finds by them which rows are gone; a delete that it finds counts as a row"
)


@takes(
    IngestRequest,
    argument="",
    flags={"begin": ("--from",), "end": ("--to",), "why": ("--why", "--reason")},
    without=("who",),
)
def ingest(
    request: IngestRequest,
    pipeline: Annotated[str, typer.Argument(metavar=DEPLOYED, help="The pipeline, by name or id.")],
    who: Who = None,
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the run to its end.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Start a run of a pipeline's ingestion, from where the last one stopped.

    --full and --from read the source again, --to only up to a value. Records that are read again
    have the same ids, so tables stay as they are; what they lack arrives. The cursor that stood
    there is kept: --put-back goes on from it. Each of these needs --why.
    """
    from waybill.services import check_values, ingestible_pipeline
    from waybill.services.airflow_client import AirflowClient
    from waybill.settings import Settings

    settings = Settings()
    known = ingestible_pipeline(settings, pipeline)
    check_values(known, request)
    asked = request.model_copy(update={"who": decision(who).who}) if request.moves_cursor else None
    if asked is not None and not yes:
        print_folded([_warning(known.name, request)], err=True)
        ask("Go on?", as_json=as_json)
    dag_id = f"ingest_{known.name}"
    with AirflowClient(settings.airflow, _tell) as airflow:
        _require_running(airflow, known, dag_id)
        run_id = f"cli__{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}__{secrets.token_hex(4)}"
        conf = {} if asked is None else asked.model_dump(by_alias=True, exclude_none=True)
        start = _progress(settings, known)
        airflow.trigger(dag_id, run_id, conf)
        outcome = {"pipeline": known.name, "dag_id": dag_id, "run_id": run_id}
        if not wait:
            _say_started(outcome, as_json=as_json)
            if not as_json:
                tell_hindrances(settings, "the run waits", dags=[dag_id], is_asked_for=True)
            return
        sayer = _Sayer(
            lambda: _progress(settings, known),
            start,
            to_stderr=as_json,
            compares=known.source.options.get("deletes") == "compare",
        )
        ended = _follow(airflow, outcome, sayer, as_json=as_json)
    _say_ended(outcome | ended, as_json=as_json)
    if ended["state"] != "success":
        raise typer.Exit(ExitCode.FOUND)


def _follow(
    airflow: AirflowClient, outcome: dict[str, str], sayer: _Sayer, *, as_json: bool
) -> dict[str, Any]:
    """Wait for the run's end; return its state, its report, and why it failed."""
    run = outcome["dag_id"], outcome["run_id"]
    print_folded([f"run {outcome['run_id']} of {outcome['dag_id']}"], err=as_json)
    try:
        state = airflow.follow(*run, limit_s=_LONGEST_S, told=_tell, seen=sayer)
    except KeyboardInterrupt:
        _tell("no longer followed: the run goes on in Airflow")
        raise typer.Exit(_INTERRUPTED) from None
    if state != "success":
        return {"state": state, "report": None, "reason": airflow.left(*run, _TASK, _REASON)}
    report = airflow.left(*run, _TASK, "return_value")
    if report and (who := report.get("stopped")):
        number = report["read"]
        when = f"after {counted(number, 'row')}, which are delivered or parked"
        when = when if number else "before it had read a row"
        reason = f"by {who}, {when}; the next run goes on"
        return {"state": "stopped", "report": report, "reason": reason}
    return {"state": state, "report": report, "reason": None}


def _warning(name: str, request: IngestRequest) -> str:
    if request.put_back:
        return f"{name}: the cursor goes to where it stood before it was moved last."
    where = "its beginning" if request.begin is None else plain(repr(request.begin))
    until = "on" if request.end is None else f"up to {plain(repr(request.end))}"
    return (
        f"{name}: its source is read again from {where} {until}. What the tables have already is"
        " counted as duplicate there."
    )


def _require_running(airflow: AirflowClient, pipeline: Pipeline, dag_id: str) -> None:
    """Refuse to start a run that nobody would run.

    Raises:
        InputError: the pipeline has no DAG, or it is paused.
    """
    from waybill.pipelines import PUSHED

    if pipeline.source.connector == PUSHED:
        raise InputError(
            f"{pipeline.name}: its source sends to `waybill collector`; there is nothing to fetch"
        )
    paused = airflow.is_paused(dag_id)
    if paused is None:
        raise NotFoundError(
            f"Airflow has no DAG {dag_id!r}: `waybill pipelines deploy` has it made from the"
            " declaration, which must be there"
        )
    if paused:
        raise InputError(
            f"DAG {dag_id!r} is paused: a run would wait until somebody unpauses it. Do that in"
            f" Airflow first, or by `waybill pipelines deploy {pipeline.name} --unpause`; its"
            " schedule begins with it"
        )


def _progress(settings: Settings, pipeline: Pipeline) -> Any:
    from waybill.services import ingest_progress
    from waybill.waiting import answered

    return answered(lambda: ingest_progress(settings, pipeline))


class _Sayer:
    """Says each few seconds how far a run is; at once where its state changed."""

    def __init__(
        self, read: Callable[[], Any], start: Any, *, to_stderr: bool, compares: bool = False
    ) -> None:
        self._read, self._to_stderr = read, to_stderr
        self._compares = compares
        """The source finds deletes by comparing keys, and that was not said yet."""
        self._began = self._said = time.monotonic()
        self._before = self._rows = start.rows
        """Rows of the runs before this one; rows at the last look, this run's with them."""
        self._failed_at = start.failed_at
        """When a try failed last, of which it was said, or which is of a run before."""
        self._state = ""
        self._is_held = False

    def __call__(self, state: str) -> None:
        now = time.monotonic()
        if state == self._state and now - self._said < _SAY_S:
            return
        seen = self._read()
        if seen.is_held and not self._is_held:
            self._say("the pipeline is held: what is read waits until it is released")
        self._is_held = seen.is_held
        if state == _QUEUED:  # what another run reads until this one begins is not this one's
            self._before = self._rows = seen.rows
            self._failed_at = seen.failed_at
        if seen.rows < self._rows:  # the source is read from its beginning, or counted anew
            self._before = self._rows = 0
        is_still = state == self._state and seen.rows == self._rows
        rate = (seen.rows - self._rows) / max(0.001, now - self._said)
        self._rows, self._state, self._said = seen.rows, state, now
        read = seen.rows - self._before
        waits = f"  {counted(seen.unsettled, 'event')} behind" if seen.unsettled else ""
        self._say(f"{now - self._began:.0f} s  {state}  {read:,} rows  {rate:,.0f}/s{waits}")
        if seen.failed_at != self._failed_at:
            self._failed_at = seen.failed_at
            self._say_failure(seen)
        if is_still and self._compares and state == _RUNNING:
            self._compares = False
            self._say(_COMPARES)

    def _say_failure(self, seen: Any) -> None:
        if seen.failed_at is not None:
            said = shortened(seen.error, _ERROR_CHARS)
            self._say(f"a try failed at {clock(seen.failed_at)} UTC: {said}")

    def _say(self, words: str) -> None:
        print_folded([words], err=self._to_stderr)


def _tell(words: str) -> None:
    echo(plain(words), err=True)


def _say_started(outcome: dict[str, str], *, as_json: bool) -> None:
    if as_json:
        print_json(outcome | {"state": "queued"})
        return
    print_folded(
        [
            f"run {outcome['run_id']} of {outcome['dag_id']} is started; a run that is on ends"
            " first. --wait follows it"
        ]
    )


def _say_ended(ended: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(ended)
    elif ended["state"] != "success":
        why = ended["reason"] or "the log of its task in Airflow says why"
        print_folded([f"{ended['state']}: {why}"], err=True)
    else:
        report = ended["report"] or {}
        taken = report.get("accepted", 0)
        lines = [
            f"done: {counted(report.get('read', 0), 'row')} read, {counted(taken, 'event')} taken"
            f" in, {report.get('parked', 0):,} parked at ingestion, in"
            f" {report.get('seconds', 0):,} s"
        ]
        if waiting := report.get("waiting"):
            lines.append(plain(waiting))
        if taken:
            lines.append(
                "rows follow within a minute or so, or events park then:"
                f" `waybill balance {ended['pipeline']}` tells"
            )
        print_folded(lines)
