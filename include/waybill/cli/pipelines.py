"""``waybill pipelines check|list|show|deploy|holds|hold|release``: from declared to running.

``history``, ``rollback`` and ``diff`` are in ``pipeline_versions``.

With ``--json`` standard output is one JSON value. Exit code 1: a declaration is
wrong, and all of it is listed; on standard error, but for ``check --json``.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from waybill.cli.command import DECLARED, DEPLOYED
from waybill.cli.exit_codes import ExitCode
from waybill.cli.options import AsJson, Who, Why, decision, takes
from waybill.cli.output import (
    counted,
    echo,
    echo_json,
    folded,
    folded_text,
    plain,
    print_folded,
    print_json,
    screen_width,
    terminal,
)
from waybill.cli.pipeline_versions import ActiveVersions, active_versions
from waybill.cli.tables import Cell, Column, Table, clock, print_facts, print_table
from waybill.errors import NotFoundError, RetryError
from waybill.nearest_name import hint, shown_name
from waybill.pipelines import (
    HOURLY,
    DeclarationError,
    DeployAllowances,
    NamesMissingError,
    Pipeline,
    Problem,
    RunEnvironment,
    check_sources,
    cron_schedule,
    load_pipelines,
    topic_of,
)
from waybill.pipelines import check as find_problems
from waybill.settings import Settings

if TYPE_CHECKING:
    from waybill.deployment import DeployReport
    from waybill.parking import Hold
    from waybill.pipelines import Column as DeclaredColumn
    from waybill.pipelines import EventDeclaration
    from waybill.services import DeepCheck

app = typer.Typer(no_args_is_help=True, help="Declared pipelines: from `new` to `deploy`.")

Directory = Annotated[
    Path | None,
    typer.Argument(
        metavar=DECLARED,
        help="Folder of pipelines, one pipeline's folder, or its name.",
        show_default=False,
    ),
]
From = Annotated[
    Path | None, typer.Option("--from", help="Folder of pipelines.", show_default=False)
]
_DECLARATION = "pipeline.yaml"
_SET_IN = "  "
_UNKNOWN = {"strict": "are parked", "ignore": "are left out", "evolve": "get one"}
HeldName = Annotated[str, typer.Argument(metavar=DEPLOYED, help="The pipeline, by name or id.")]
_RENEWED_S = 15.0
"""How long `deploy` waits for its DAG."""
_AIRFLOW_S = 10.0
"""How long one answer of Airflow may take meanwhile."""
_FINDER, _SENDER = "probe_held_pipelines", "replay"
"""The job of upkeep that finds what waits after a release, and the DAG that sends it back."""
_STREAM = "stream_default"
"""The DAG that processes and loads."""


@app.command()
def check(
    directory: Directory = None,
    *,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep", help="Try the destination too, and run the code over a sample of events."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find every mistake in declarations and transformations; runs no transformation.

    Imports are looked for as far as Python finds them here, and the destination among those of the
    settings, if these have any. No server is asked.

    With --deep, what has no such mistakes is tried: whether the destination answers and gives the
    rights that loads need, which leaves nothing behind; and what the code makes of the example
    events, or of the first 50 rows of the source, confined as always.
    """
    from waybill.ingestion.connectors import open_connector
    from waybill.mappings import TablePlaces

    folder, settings = _folder(directory), Settings()
    places = TablePlaces(settings.destinations)
    environment = RunEnvironment.of(settings.destinations, settings.spark.master, places.key)
    problems = find_problems(folder, settings.sources.roots_of, open_connector, environment)
    loaded = {} if problems else load_pipelines(folder)
    names = sorted(loaded)
    warnings = [*check_sources(folder, environment), *_closed(settings, loaded, folder)]
    tried = _tried(settings, folder) if deep and not problems else []
    problems = [*problems, *(found for one in tried for found in one.problems)]
    warnings = [*warnings, *(found for one in tried for found in one.warnings)]
    if as_json:
        said = {"problems": problems, "warnings": warnings}
        lists = {name: [one.to_json() for one in found] for name, found in said.items()}
        facts = (
            {"tried": {one.pipeline: [*one.facts, *one.untried] for one in tried}} if deep else {}
        )
        _print_json({"ok": not problems, "pipelines": names, **lists, **facts})
    else:
        _print_lines(warnings, label="warning: ", style="yellow")
        print_folded(
            f"{one.pipeline}: {fact}" for one in tried for fact in (*one.facts, *one.untried)
        )
        if problems:
            _print_problems(problems)
        else:
            terminal().print(
                Text(f"{counted(len(names), 'pipeline')}, no mistakes ({_few(names)})")
            )
    if problems:
        raise typer.Exit(ExitCode.INPUT)


def _closed(settings: Settings, loaded: Mapping[str, Pipeline], folder: Path) -> list[Problem]:
    """Return a warning for each address of a source that the settings close."""
    from waybill.pipelines import pipeline_directories
    from waybill.services import closed_sources

    @cache
    def folders() -> dict[str, Path]:
        return pipeline_directories(folder)

    def folder_of(name: str) -> Path:
        return folders().get(name, folder / name)  # renamed since: where it was, most likely

    return [
        warning
        for name, one in loaded.items()
        for warning in closed_sources(settings, one, partial(folder_of, name))
    ]


def _tried(settings: Settings, folder: Path) -> list[DeepCheck]:
    """Try each pipeline of a folder; user code prints to standard error."""
    from waybill.cli.output import user_code_printed
    from waybill.pipelines import pipeline_directories
    from waybill.services import deep_check

    folders = pipeline_directories(folder).values()
    with user_code_printed():
        return [deep_check(settings, one) for one in folders]


@app.command("list")
def list_pipelines(*, directory: From = None, as_json: AsJson = False) -> None:
    """List the declared pipelines, and what is active of each: another version, or none.

    What is deployed and declared in no folder is listed as well. Where the tracker does not answer,
    what is active is not known, and that is said.
    """
    pipelines = list(_load(directory).values())
    found = active_versions(pipelines, is_all=directory is None)
    if as_json:
        lines = [_summary(one) | found.to_json(one) for one in pipelines]
        _print_json(lines + [found.alone_json(one) for one in found.alone()])
        return
    said = [line for one in pipelines for line in found.lines(one)]
    said += [
        f"{one.name}: deployed, and declared in none of these folders; active is {one.active}"
        for one in found.alone()
    ]
    print_table(_pipeline_table(pipelines, found, _folder(directory)), said)
    if found.unknown:
        print_folded([f"which versions are active is not known: {found.unknown}"], err=True)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar=DEPLOYED, help="The pipeline's name.")],
    *,
    directory: From = None,
    as_json: AsJson = False,
) -> None:
    """Show one pipeline: where its events come from, what becomes of them, what is active of it."""
    pipelines = _load(directory)
    if name not in pipelines:
        there = f"{_folder(directory)} has {_few(list(pipelines)) or 'none'}"
        raise NotFoundError(f"no pipeline {name!r}: {there}{hint(name, pipelines)}")
    pipeline = pipelines[name]
    found = active_versions([pipeline])
    if as_json:
        _print_json({**pipeline.to_json(), "topic": topic_of(pipeline), **found.to_json(pipeline)})
        return
    print_facts(_facts(pipeline, found), f"pipeline {pipeline.name}", whole=("source",))
    if pipeline.source.options:
        echo("\n".join(["", "options of the source, as declared", *_as_yaml(pipeline)]))
    for event in pipeline.events.values():
        print_folded([""])
        print_table(
            _column_table(_title(pipeline, event.name), event.table.columns, event.table.key),
            declaration_facts(event),
        )
        for child in event.table.children:
            title = f"{event.table.schema_name}.{child.name}, of the items of {child.source!r}"
            print_folded([""])
            print_table(_column_table(title, child.columns, ()))
    if lines := found.lines(pipeline):
        print_folded(["", *lines])
    if found.unknown:
        print_folded([f"which version is active is not known: {found.unknown}"], err=True)


def _as_yaml(pipeline: Pipeline) -> list[str]:
    """Return the lines of a source's options, set in and folded as YAML allows."""
    import yaml

    options = pipeline.to_json()["source"]["options"]
    text: str = yaml.safe_dump(options, sort_keys=False, allow_unicode=True, width=math.inf)
    lines, width = (_SET_IN + plain(line) for line in text.splitlines()), screen_width()
    return [part for line in lines for part in folded(line, width, _deeper(line))]


def _deeper(line: str) -> str:
    """Return blanks to one step behind where a line of YAML begins, within its lists."""
    return " " * (len(line) - len(line.lstrip(" -")) + len(_SET_IN))


def _pipeline_table(pipelines: Sequence[Pipeline], found: ActiveVersions, folder: Path) -> Table:
    return Table(
        (
            Column("pipeline"),
            Column("team", spare=2),
            Column("schedule", spare=1),
            Column("source", spare=3),
            Column("events", "words", spare=4),
            Column("schema"),
            Column("version"),
            Column("active"),
        ),
        [
            (
                one.name,
                one.team,
                one.schedule or "by hand",
                one.source.connector,
                _few(list(one.events)),
                f"{one.destination}.{one.schema_name}",
                one.version,
                found.mark(one),
            )
            for one in pipelines
        ],
        f"no pipeline is declared in {folder}: `waybill pipelines new` makes one",
    )


def _column_table(title: str, columns: Sequence[DeclaredColumn], key: Sequence[str]) -> Table:
    return Table(
        (Column("column"), Column("type"), Column("null"), Column("from")),
        [
            (
                column.name,
                column.type,
                "key" if column.name in key else "yes" if column.nullable else "no",
                column.source or "(the item)",
            )
            for column in columns
        ],
        "no column is declared: `waybill mapping infer` proposes some",
        title,
    )


def _folder(directory: Path | None) -> Path:
    return Settings().pipelines_dir if directory is None else folder_named(directory)


def folder_named(given: Path) -> Path:
    """Return the folder that was given, or that of the declared pipeline of that name.

    Raises:
        NotFoundError: there is neither; says which pipelines there are.
    """
    if os.path.exists(given):
        return given
    settings = Settings()
    for root in (settings.pipelines_dir, *settings.more_pipelines_dirs):
        if len(given.parts) == 1 and os.path.isdir(root / given):
            return root / given
    raise _no_folder(given)


def existing_folder(name: str) -> Path:
    """Return the folder of a pipeline, by its path or its name.

    Raises:
        NotFoundError: there is none; says which there are.
    """
    folder = folder_named(Path(name))
    if os.path.isdir(folder):
        return folder
    raise _no_folder(folder)


def _no_folder(given: Path) -> NotFoundError:
    declared = Settings().pipelines_dir
    names = sorted(path.parent.name for path in declared.glob(f"[!._]*/{_DECLARATION}"))
    there = ", ".join(map(shown_name, names)) or "none"
    said = f"no folder and no declared pipeline {shown_name(str(given))!r}"
    return NotFoundError(f"{said}: {declared} has {there}{hint(given, names)}")


def _load(directory: Path | None) -> dict[str, Pipeline]:
    try:
        return load_pipelines(_folder(directory))
    except DeclarationError as error:
        _print_problems(error.problems)
        raise typer.Exit(ExitCode.INPUT) from error


def _print_problems(problems: Sequence[Problem]) -> None:
    _print_lines(problems)
    files = len({problem.file for problem in problems})
    words = f"{counted(len(problems), 'mistake')} in {counted(files, 'file')}"
    terminal(err=True).print(Text(words, style="red"))


def _print_lines(problems: Sequence[Problem], *, label: str = "", style: str = "") -> None:
    """Print problems on standard error; one that means the whole file names no field.

    On a terminal they are broken between words, as errors are.
    """
    console = terminal(err=True)
    width = screen_width(err=True) if console.is_terminal else None
    for problem in problems:
        place = Text(plain(f"{from_here(problem.file)}:{problem.line}"), style="bold")
        if problem.field:
            place.append(plain(f" {problem.field}"), style="cyan not bold")
        words = Text(plain(f"{_SET_IN}{label}{problem.message}"), style=style)
        for line in (place, *folded_text(words, width, _SET_IN * 2)):  # a path may have blanks
            console.print(line, soft_wrap=True)


def from_here(text: str) -> str:
    """Return a path, or a text that begins with one, by the current folder if it lies below it."""
    try:
        return text.removeprefix(f"{str(Path.cwd()).rstrip(os.sep)}{os.sep}")
    except OSError:  # the current folder is gone
        return text


def _print_json(value: Any) -> None:
    echo_json(json.dumps(value, ensure_ascii=False, indent=2))


def _summary(pipeline: Pipeline) -> dict[str, Any]:
    return {
        "id": pipeline.id,
        "name": pipeline.name,
        "team": pipeline.team,
        "owner": pipeline.owner,
        "schedule": pipeline.schedule,
        "connector": pipeline.source.connector,
        "events": list(pipeline.events),
        "destination": pipeline.destination,
        "schema": pipeline.schema_name,
        "topic": topic_of(pipeline),
        "version": pipeline.version,
    }


def _facts(pipeline: Pipeline, found: ActiveVersions) -> list[tuple[str, Cell]]:
    source = pipeline.source
    return [
        ("id", pipeline.id),
        ("team", pipeline.team),
        ("owner", pipeline.owner),
        ("schedule", _schedule(pipeline)),
        ("source", f"{source.connector} {source.path}".rstrip()),
        ("order by", ", ".join(source.order_by) or "as it comes"),
        ("topic", topic_of(pipeline)),
        ("destination", f"{pipeline.destination}, schema {pipeline.schema_name}"),
        *((("shared modules", ", ".join(pipeline.shared_code)),) if pipeline.shared_code else ()),
        ("keeps the source", pipeline.keep_source),
        ("opens connections", pipeline.network),
        ("version", f"{pipeline.version}, of the folder"),
        ("active", found.mark(pipeline)),
    ]


def _schedule(pipeline: Pipeline) -> str:
    if pipeline.schedule != HOURLY:
        return pipeline.schedule or "by hand"
    minute = (cron_schedule(pipeline.schedule, pipeline.id) or "").partition(" ")[0]
    return f"{HOURLY}, at minute {minute}"


def _title(pipeline: Pipeline, name: str) -> str:
    event = pipeline.events[name]
    table = f"{event.table.schema_name}.{event.table.name}"
    return f"event {name} to {table}; fields without a column {_UNKNOWN[event.policy]}"


def declaration_facts(event: EventDeclaration) -> Iterator[str]:
    """Yield what an event's declaration says beside its columns, in lines."""
    words = [f"policy {event.policy}", f"objects: {event.nested}"]
    words.append(f"arrays: {'tables' if event.arrays == 'child' else 'json'}")
    words.append(f"deletes: {'soft' if event.table.soft_delete else 'hard'}")
    yield "; ".join(words)
    yield f"version: {event.version or 'none'}"
    yield f"personal: {', '.join(event.personal) or 'none is declared'}"


def _few(names: list[str], most: int = 5) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


@takes(DeployAllowances)
def deploy(
    directory: Annotated[
        Path, typer.Argument(metavar=DECLARED, help="Folder with pipeline.yaml, or a name.")
    ],
    *,
    request: DeployAllowances,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep/--no-deep",
            help="Try destination and code first, as `check --deep` does; what cannot work is not "
            "deployed.",
        ),
    ] = True,
    unpause: Annotated[
        bool,
        typer.Option(
            "--unpause", help=f"Unpause its DAG, and {_STREAM}, which processes and loads."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a declaration and make it active; applications take it with their next batch.

    Before, its destination and its code are tried, as by `check --deep`: what cannot work is
    refused, of what may (a destination that is away, some events that park) it warns.

    Its DAG is there, or anew, within seconds. Where Airflow is away the deploy holds all the same.
    A folder that is behind what is active is refused: another version was deployed from elsewhere.
    So is another `version` of an event whose table has rows, as these keep theirs.
    Which other pipelines import shared modules of it that have changed is said.
    """
    from waybill.services import current_user, run_deploy
    from waybill.settings import Settings

    settings, folder = Settings(), folder_named(directory)
    who = current_user()
    report = _deployed(lambda: run_deploy(settings, folder, who=who, allows=request, deep=deep))
    dag_id = f"ingest_{report.pipeline}"
    is_pushed = report.is_pushed
    note, is_paused = ("", False) if is_pushed else _renew_dag(settings, folder.resolve(), dag_id)
    wanted = [_STREAM] if is_pushed else [_STREAM, dag_id]
    unpaused, absent = _unpause(settings, wanted) if unpause else ([], [])
    is_paused = is_paused and dag_id not in unpaused
    if as_json:
        dag = {"id": dag_id, "is_current": not note, "is_paused": is_paused, "note": note}
        said = {"dag": None if is_pushed else dag, "unpaused": unpaused}
        print_json(report.to_json() | said)
    else:
        _say_deployed(report)
    warnings = (f"warning: {from_here(warning)}" for warning in report.warnings)
    print_folded(warnings, err=True, style="yellow")
    if note:
        print_folded([f"note: {note}"], err=True)
    if not as_json:
        print_folded(_dag_lines(report.pipeline, pushed=is_pushed, note=note, paused=is_paused))
        print_folded(f"{name} is unpaused" for name in unpaused)
    if absent:
        raise RetryError(
            f"Airflow has no {' and no '.join(absent)} yet, so nothing unpaused it: the same"
            " command again does"
        )


def _dag_lines(name: str, *, pushed: bool, note: str, paused: bool) -> list[str]:
    """Return what is to be said of a pipeline's DAG, unless a note said it."""
    if note:
        return []
    if pushed:
        return [f"its source sends to `waybill collector`: POST /v1/{name}"]
    if paused:
        return [f"ingest_{name} is in Airflow, and paused: unpause it there, or deploy --unpause"]
    return [f"ingest_{name} is up to date in Airflow"]


def _unpause(settings: Settings, dag_ids: list[str]) -> tuple[list[str], list[str]]:
    """Unpause DAGs; return (those that were paused, those that are not there).

    Raises:
        WaybillError: Airflow does not answer, or refuses.
    """
    from waybill.services.airflow_client import AirflowClient

    unpaused, absent = [], []
    with AirflowClient(settings.airflow, patience_s=0.0, timeout_s=_AIRFLOW_S) as client:
        for dag_id in dag_ids:
            is_paused = client.is_paused(dag_id)
            if is_paused is None:
                absent.append(dag_id)
            elif is_paused:
                client.unpause(dag_id)
                unpaused.append(dag_id)
    return unpaused, absent


def _say_deployed(report: DeployReport) -> None:
    if report.changed:
        number = f"(number {report.number})"
        echo(f"{report.pipeline}: version {report.version} {number} is active")
    else:
        echo(f"{report.pipeline}: version {report.version} was active already")
    if report.replaced is not None:
        print_folded([f"  in place of {report.replaced}"])
    if report.tried:
        print_folded([f"  tried: {'; '.join(report.tried)}"])
    if report.touched:
        names, is_one = _few(list(report.touched)), len(report.touched) == 1
        said = f"import{'s' * is_one} shared modules of it, and run{'s' * is_one}"
        them = "it" if is_one else "them"
        print_folded([f"{names} {said} with other texts of these: deploy {them} as well"])


def _deployed(run: Callable[[], DeployReport]) -> DeployReport:
    """Deploy; print what is wrong, and where a name is not known or a trial failed how to go on."""
    from waybill.cli.output import user_code_printed
    from waybill.services import TrialFailedError

    try:
        with user_code_printed():
            return run()
    except DeclarationError as error:
        _print_problems(error.problems)
        if isinstance(error, NamesMissingError):
            echo("--missing-ok deploys it all the same", err=True)
        if isinstance(error, TrialFailedError):
            echo("it was tried and cannot work; --no-deep deploys it all the same", err=True)
        raise typer.Exit(ExitCode.INPUT) from error


def _renew_dag(settings: Settings, folder: Path, dag_id: str) -> tuple[str, bool]:
    """Have Airflow make a pipeline's DAG anew; return (when, "": now; is it paused)."""
    from waybill.errors import WaybillError
    from waybill.services.airflow_client import AirflowClient
    from waybill.stack.airflow import PARSE_INTERVAL_S

    roots = (settings.pipelines_dir, *settings.more_pipelines_dirs)
    is_declared = folder.parent in [root.resolve() for root in roots]
    try:
        with AirflowClient(settings.airflow, patience_s=0.0, timeout_s=_AIRFLOW_S) as client:
            found = client.renew_dag(
                folder.name,
                dag_id,
                limit_s=_RENEWED_S,
                absent_s=_RENEWED_S if is_declared else 0.0,
            )
            down = "" if found.is_current else " and ".join(client.unhealthy())
    except WaybillError as error:
        note = (
            f"Airflow makes {dag_id} anew when it next parses its files, "
            f"{_within(PARSE_INTERVAL_S)} where it runs as `waybill up` and compose set it; it was "
            f"not asked to do so now: {error}"
        )
        return note, False
    if found.is_current:
        return "", found.is_paused
    if not (found.exists or is_declared):
        note = (
            f"Airflow has no {dag_id}: it has DAGs for what is in its own WAYBILL_PIPELINES_DIR, "
            f"and looks there again {_within(found.interval_s)}"
        )
        return note, False
    why = f"; its {down} gives no sign of life" if down else ""
    note = (
        f"Airflow was asked to make {dag_id} anew and did not within {_RENEWED_S:.0f} s{why}; "
        f"it parses that file {_within(found.interval_s)} anyway"
    )
    return note, found.is_paused


def _within(seconds: int) -> str:
    return f"within {counted(math.ceil(seconds / 60), 'minute')}"


def holds(
    *,
    everything: Annotated[bool, typer.Option("--all", help="Include those that are over.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the pipelines that are held, and why.

    Messages about events of pipelines with personal fields are masked.
    """
    from waybill.services import opened_parked_events
    from waybill.settings import Settings

    with opened_parked_events(Settings()) as service:
        found = service.masked_holds(service.parking.holds(active=not everything))
    if as_json:
        print_json([hold.to_json() for hold in found])
        return
    for one in found:
        _show_hold(one)
    if not found:
        echo("No pipeline is held.")


def hold(name: HeldName, why: Why, who: Who = None, *, as_json: AsJson = False) -> None:
    """Hold a pipeline: its events wait, unprocessed, until somebody releases it."""
    _change_hold("hold", name, who, why, as_json=as_json)


def release(name: HeldName, why: Why, who: Who = None, *, as_json: AsJson = False) -> None:
    """Release a held pipeline; upkeep has what waits replayed."""
    _change_hold("release", name, who, why, as_json=as_json)


def _change_hold(verb: str, name: str, who: str | None, why: str, *, as_json: bool) -> None:
    from waybill.services import opened_parked_events
    from waybill.settings import Settings

    with opened_parked_events(Settings()) as service:
        changed: Hold = getattr(service.parking, verb)(name, decision(who, why))
        [done] = service.masked_holds([changed])
    if as_json:
        print_json(done.to_json())
    elif verb == "hold":
        echo(f"{done.pipeline}: held from its next batch on")
    else:
        first, *more = _goes_back()
        print_folded([f"{done.pipeline}: released; {first}", *more])


def _goes_back() -> list[str]:
    """Return when what waits goes back, by whether the DAGs and the job that do it run."""
    from waybill.services import DagWork, work_health
    from waybill.settings import Settings

    health = work_health(Settings(), DagWork((_SENDER,), (_FINDER,)))
    if health.hindrances:
        lines = ["what waits stays, until this is mended:", *(f"  {o}" for o in health.hindrances)]
        return [*lines, f"not all could be checked: {health.unknown}"] if health.unknown else lines
    if health.unknown:
        said = f"what waits goes back once upkeep has run its job {_FINDER}"
        return [f"{said}; whether it runs could not be checked: {health.unknown}"]
    return ["what waits goes back within a minute or two"]


def _show_hold(one: Hold) -> None:
    lines = [f"{one.pipeline}: held since {clock(one.held_at)} UTC by {one.held_by}"]
    lines += _hold_reason(one)
    if one.last_probe is not None:
        lines.append(f"  probe {one.probes}: {_probed(one.last_probe)}")
    if one.released_at is not None:
        lines.append(f"  released {clock(one.released_at)} UTC by {one.released_by}")
    print_folded(lines)


def _hold_reason(one: Hold) -> list[str]:
    cause = one.cause
    if not one.is_storm:
        return [f"  {cause['why']}", "  released only by hand: waybill pipelines release"]
    place = f" at {cause['place']}" if cause["place"] else ""
    return [
        f"  {cause['failed']:,} of {cause['events']:,} events would have been parked: "
        f"{cause['stage']}/{cause['error_type']}{place}",
        f"  {cause['message']}",
    ]


def _probed(said: dict[str, Any]) -> str:
    numbers = f"{said['would_pass']:,} of {said['events']:,} pass" if "events" in said else ""
    parts = (said["outcome"], numbers, said["version"], said.get("why", ""))
    return ", ".join(part for part in parts if part)
