"""``waybill demo``: the main job on real data, done through Airflow and this very CLI.

The state of a demo is one small file in the state folder. A demo that was cut off is resumed: every
step can be done twice. One that ended is not built upon: its data is wiped and the demo starts
clean.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Thread
from typing import IO, TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import orjson
import typer
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from waybill.cli.exit_codes import exit_code
from waybill.cli.lazy import AWAY_ADVICE
from waybill.cli.options import AsJson
from waybill.cli.output import echo, plain, print_json
from waybill.cli.safe_console import SafeConsole
from waybill.cli.tables import Column, Table, table_lines
from waybill.errors import AwayError, InputError, RetryError, StopError, WaybillError
from waybill.services import balance, deployed_pipeline, deployed_pipelines, parked_partitions
from waybill.services.airflow_client import END_STATES, AirflowClient
from waybill.settings import Settings
from waybill.waiting import answered

if TYPE_CHECKING:
    from waybill.cli.demo_sources import Fleet
    from waybill.parking import ParkedGroup
    from waybill.reconciliation import PipelineBalance

PIPELINES = ("flights", "weather")
EXAMPLES = {"departures": "demo-departures", "planes": "demo-planes"}
"""What ``--sources`` adds: names of pipelines, and their ids."""
WATCHING = ("upkeep", "audit", "compact_traces")
DAGS = {
    *("ingest_flights", "ingest_weather", "stream_default", "replay", "replay_parked_partitions"),
    *WATCHING,
}
_BEARER = "DEPARTURES_TOKEN"
_DAGS_KNOWN_S = 120.0
_RUN_S = 900.0
_INTERRUPTED = 130
_WAYS_ON = (
    "`make demo` resumes it where it is, `make demo ARGS=--fresh` deletes all data and starts "
    "clean, `make down` stops everything and keeps the data."
)
_WIDTH = 120
"""Columns of what is printed into a file or a pipe."""
_ROUND_S = 0.2
"""Between two transactions that change the source's database."""
_STOPPED_S = 60.0
_LIMITS: dict[str, Any] = {"connect_timeout": 10, "options": "-c statement_timeout=300s"}
_LOOK_S = 1.0
_SHARE = 3
"""Looking at the books may take this part of the time at most."""
_SAY_S = 15.0
_HEALTH_S = 10.0


@dataclass
class Demo:
    """One demo: where it shows, and what it stands on."""

    settings: Settings
    console: Console
    began: float = field(default_factory=time.monotonic)
    sources: bool = False
    """Whether events are posted to the collector too, and a database is followed."""

    def tell(self, words: str) -> None:
        """Say that something is waited for."""
        self.console.print(f"[yellow]{escape(words)}[/]", highlight=False)

    def step(self, title: str) -> None:
        """Announce a step."""
        spent = time.monotonic() - self.began
        self.console.print()
        self.console.rule(f"[bold]{title}[/]  [dim]{spent:.0f} s[/]", align="left")

    def run(self, *words: str, quiet: bool = False) -> str:
        """Run this CLI as a user would, show what it said, and return it.

        Raises:
            StopError: it failed.
        """
        if not quiet:
            self.console.print(f"[bold]$ waybill {' '.join(words)}[/]", highlight=False)
        said = answered(lambda: self._run_once(words))
        if not quiet:
            self.console.print(said.rstrip(), markup=False, highlight=False, soft_wrap=True)
        return said

    def _run_once(self, words: tuple[str, ...]) -> str:
        """Run this CLI; what it waits for is shown while it waits. Each step may be done again.

        Raises:
            AwayError: a server went away while the command was at work.
            StopError: it failed.
        """
        heard: list[str] = []
        with subprocess.Popen(  # noqa: S603 - our own CLI
            [sys.executable, "-m", "waybill.cli", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=_environment(self.settings, self.console.width),
        ) as child:
            listener = Thread(target=_pass_on_waits, args=(child.stderr, heard), daemon=True)
            listener.start()
            output = "" if child.stdout is None else child.stdout.read()
            listener.join()
        if child.returncode == 0:
            return output
        problem = f"waybill {' '.join(words)} failed: {''.join(heard) or output}"
        if AWAY_ADVICE in problem:
            raise AwayError(problem, setting="WAYBILL_HOME")
        raise StopError(problem)


def _pass_on_waits(stream: IO[str], heard: list[str]) -> None:
    """Collect what a command says on standard error; pass on at once what it waits for."""
    for line in stream:
        heard.append(line)
        if line.startswith("waiting up to"):
            echo(line.rstrip("\n"), err=True)


def demo(
    *,
    leave: Annotated[
        bool, typer.Option("--exit", help="Stop everything at the end; for scripts and CI.")
    ] = False,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Delete all data of this stack first, of any pipeline."),
    ] = False,
    sources: Annotated[
        bool,
        typer.Option(
            "--sources",
            help="Then post 10,000 departures to the HTTP collector, and follow a table of another "
            "database while it changes.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run the main job on 336,776 flights and 26,115 weather readings; leave Airflow's UI up."""
    console = SafeConsole(width=None if sys.stdout.isatty() else _WIDTH, stderr=as_json)
    began = time.monotonic()
    settings = Settings()
    _prepare(settings, console, fresh=fresh)
    settings = _up(settings, console, sources=sources)
    runner = Demo(settings, console, began, sources)
    result: dict[str, Any] = {}
    try:
        code = _guarded(runner, result, leave=leave)
    finally:
        if leave:
            subprocess.run(
                [sys.executable, "-m", "waybill.cli", "down"], check=False, stdout=sys.stderr
            )
    if code:
        raise typer.Exit(code)
    result["seconds"] = round(time.monotonic() - began, 1)
    print_json(result)


def _guarded(runner: Demo, result: dict[str, Any], *, leave: bool) -> int:
    """Run the main job into ``result``; return the exit code, having said what can be done."""
    settings, console = runner.settings, runner.console
    try:
        result |= _main_job(runner)
        _remember(settings, "done")
        if leave and runner.sources:
            _leave_no_slot(runner)
    except WaybillError as error:
        console.print(f"[bold red]The demo stopped:[/] {escape(str(error))}")
        console.print(f"Logs: {settings.home / 'logs'}. `waybill status` shows what runs.")
        console.print(_WAYS_ON)
        return exit_code(error)
    except KeyboardInterrupt:
        console.print("\n[bold]Interrupted.[/] The stack and its pipelines run on.")
        console.print(_WAYS_ON)
        return _INTERRUPTED
    _say_where(runner, leave=leave)
    return 0


def _main_job(runner: Demo) -> dict[str, Any]:
    from waybill.services import migrate

    settings = runner.settings
    answered(lambda: migrate(settings))
    runner.step("1  Two pipelines of two teams, checked and deployed")
    _deploy_first(runner)
    with AirflowClient(settings.airflow, runner.tell) as airflow:
        airflow.wait_for_dags(DAGS, limit_s=_DAGS_KNOWN_S)
        runner.step("2  Airflow runs the stream and the connectors")
        _ingest(runner, airflow)
        event_id = _look(runner)
        runner.step("5  The corrected pipelines, tried on what is parked")
        for row in _partitions(runner):
            _dry_run(runner, row)
        runner.step("6  Deploy the corrections, replay what is parked")
        for name in PIPELINES:
            runner.run("pipelines", "deploy", str(_fixes(settings) / name))
        _replay(runner, airflow)
        runner.step("7  Where is that flight?")
        runner.run("trail", event_id)
        runner.step("8  The auditor, every minute from now on, and the books")
        _audit(runner, airflow)
        more = _more_sources(runner, airflow) if runner.sources else {}
    runner.run("balance")
    return answered(lambda: _result(settings, PIPELINES), kind=RetryError) | more


def _deploy_first(runner: Demo) -> None:
    """Deploy the first versions, unless a demo that is resumed went past that."""
    found = answered(lambda: deployed_pipelines(runner.settings))
    deployed = {p.name for p in found.values()}
    runner.run("pipelines", "check")
    for name in PIPELINES:
        if name not in deployed:
            runner.run("pipelines", "deploy", str(runner.settings.pipelines_dir / name))


def _ingest(runner: Demo, airflow: AirflowClient) -> None:
    """Unpause: the stream runs continuously, each connector once."""
    airflow.unpause("stream_default")
    for name in PIPELINES:
        airflow.unpause(f"ingest_{name}")
    follow(
        runner.settings,
        runner.console,
        airflow,
        PIPELINES,
        finished=lambda: all(_ended(airflow, f"ingest_{name}") for name in PIPELINES),
        limit_s=_RUN_S,
    )


def _look(runner: Demo) -> str:
    """Show what is parked and a sample; return the id of one parked flight."""
    runner.step("3  What could not go on is parked, by stage and error type")
    runner.run("parked", "list")
    runner.step("4  One of them, with its error")
    known = _state(runner.settings).get("event_id")
    if known:
        return str(known)
    words = ("parked", "sample", "flights", "--error-type", "null_value", "-n", "1")
    runner.run(*words)
    event_id = str(orjson.loads(runner.run(*words, "--json", quiet=True))[0]["event"]["id"])
    _remember(runner.settings, "running", event_id=event_id)
    return event_id


def _partitions(runner: Demo) -> list[dict[str, Any]]:
    rows = orjson.loads(runner.run("parked", "list", "--json", quiet=True))
    return [row for row in rows if row["parked"] and row["pipeline"] in PIPELINES]


def _dry_run(runner: Demo, row: dict[str, Any]) -> None:
    runner.run(
        "parked",
        "replay",
        row["pipeline"],
        "--event-name",
        row["event_name"],
        "--stage",
        row["stage"],
        "--error-type",
        row["error_type"],
        "--dry-run",
        "--proposed",
        str(_fixes(runner.settings) / row["pipeline"]),
    )


def _replay(runner: Demo, airflow: AirflowClient) -> None:
    airflow.unpause("replay")
    airflow.unpause("replay_parked_partitions")
    before = {run["dag_run_id"] for run in airflow.runs("replay")}
    for name in PIPELINES:
        run_id = f"demo__{name}__{int(time.time())}"
        airflow.trigger("replay_parked_partitions", run_id, {"pipeline": name})
        state = airflow.follow("replay_parked_partitions", run_id, limit_s=_RUN_S, told=runner.tell)
        if state != "success":
            raise StopError(f"run {run_id!r} of replay_parked_partitions is {state}")
    runs = [r for r in airflow.runs("replay") if (r["conf"] or {}).get("pipeline") in PIPELINES]
    for run_id in sorted({run["dag_run_id"] for run in runs} - before):
        state = airflow.follow("replay", run_id, limit_s=_RUN_S, told=runner.tell)
        runner.console.print(f"replay run {run_id}: {state}", highlight=False)
        if state != "success":
            raise StopError(f"replay run {run_id!r} is {state}")
    follow(
        runner.settings,
        runner.console,
        airflow,
        PIPELINES,
        finished=lambda: True,
        limit_s=_RUN_S,
    )


def _audit(runner: Demo, airflow: AirflowClient) -> None:
    """Let upkeep run, the auditor once at once; it must find nothing."""
    for name in WATCHING:
        airflow.unpause(name)
    run_id = airflow.trigger("audit", f"demo__{int(time.time())}", {})
    state = airflow.follow("audit", run_id, limit_s=_RUN_S, told=runner.tell)
    if state != "success":
        raise StopError(f"run {run_id!r} of audit is {state}")
    runner.run("audit", "breaches")


def _more_sources(runner: Demo, airflow: AirflowClient) -> dict[str, int]:
    """Take in events over HTTP and the changes of a database; return what was delivered of each.

    Raises:
        StopError: the warehouse does not hold what was posted, or what the database holds.
    """
    from waybill.cli.demo_sources import ROUNDS, Fleet, Sender, departures

    settings = runner.settings
    runner.step("9  Events over HTTP, and a table of another database")
    fleet = Fleet(_fleet_dsn(settings))
    answered(fleet.prepare)
    runner.run("pipelines", "check", str(_examples(settings)))
    for name in EXAMPLES:
        runner.run("pipelines", "deploy", str(_examples(settings) / name))
    airflow.wait_for_dags({"ingest_planes"}, limit_s=_DAGS_KNOWN_S)
    airflow.unpause("ingest_planes")
    events = departures()
    own = settings.collector
    url = f"http://{own.host}:{own.port}/v1/departures"
    with Sender(url, _token(settings)) as sender:
        requests = sender.send(events)
    said = f"{len(events):,} departures posted to {url}, in {requests} requests"
    runner.console.print(said, highlight=False)
    _arrive(runner, airflow, fleet, events)
    runner.step("10 The table changes while it is read")
    for number in range(ROUNDS):
        answered(partial(fleet.change, number))
        time.sleep(_ROUND_S)
    said = f"{ROUNDS} transactions inserted, updated and deleted rows of public.planes"
    runner.console.print(said, highlight=False)
    _arrive(runner, airflow, fleet, events)
    runner.run("sources", "status")
    runner.run("audit", "breaches")
    return answered(lambda: _sources_result(settings, fleet, events), kind=RetryError)


def _arrive(
    runner: Demo, airflow: AirflowClient, fleet: Fleet, events: Sequence[Mapping[str, Any]]
) -> None:
    """Follow the examples until the warehouse holds what was posted and what the table holds."""

    def arrived() -> bool:
        _ended(airflow, "ingest_planes")
        differences = answered(lambda: _differences(runner.settings, fleet, events))
        return not any(differences.values())

    for finished in (arrived, lambda: True):  # the books are closed a moment after the warehouse
        follow(
            runner.settings,
            runner.console,
            airflow,
            tuple(EXAMPLES),
            finished=finished,
            limit_s=_RUN_S,
        )


def _differences(
    settings: Settings, fleet: Fleet, events: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """Return how the warehouse's table of each example differs from its source; "": it does not."""
    from waybill.cli.demo_sources import departure_rows, difference, table_rows

    wanted = {"departures": departure_rows(events), "planes": fleet.rows()}
    found: dict[str, str] = {}
    for name, pipeline_id in EXAMPLES.items():
        pipeline = deployed_pipeline(settings, pipeline_id)
        dsn = settings.destinations[pipeline.destination].dsn.get_secret_value()
        [event] = pipeline.events.values()
        place = (event.table.schema_name, event.table.name)
        rows = table_rows(dsn, place, [column.name for column in event.table.columns])
        found[name] = difference(wanted[name], rows)
    return found


def _sources_result(
    settings: Settings, fleet: Fleet, events: Sequence[Mapping[str, Any]]
) -> dict[str, int]:
    """Return how many events of each example the books have as delivered.

    Raises:
        StopError: the books do not balance, or the warehouse is not as its sources are.
    """
    for name, words in _differences(settings, fleet, events).items():
        if words:
            raise StopError(f"the warehouse's table {name} differs from its source: {words}")
    delivered = {}
    for name in EXAMPLES:
        report = balance(settings, pipeline=name)
        if open_ := report.unaccounted + report.parked + report.in_flight:
            raise StopError(f"{name}: {open_} events are parked, on their way or not accounted for")
        delivered[name] = report.delivered
    if delivered["departures"] != len(events):
        raise StopError(
            f"{len(events)} departures are in the warehouse, the ledger says "
            f"{delivered['departures']}"
        )
    return {"collector_events": delivered["departures"], "cdc_events": delivered["planes"]}


def _leave_no_slot(runner: Demo) -> None:
    """End the reading of the database, and drop its slot: a server keeps its log for a slot.

    Raises:
        RetryError: somebody reads it on.
    """
    from waybill.cli.demo_sources import Fleet
    from waybill.cli.options import decision
    from waybill.services import stop_source

    settings = runner.settings
    fleet = Fleet(_fleet_dsn(settings))
    pipeline = answered(lambda: deployed_pipeline(settings, EXAMPLES["planes"]))
    slot = str(pipeline.source.options["slot"])
    with AirflowClient(settings.airflow, runner.tell) as airflow:
        airflow.pause("ingest_planes")
    deadline = time.monotonic() + _STOPPED_S
    while True:
        with suppress(InputError):  # no run reads just now
            answered(lambda: stop_source(settings, "planes", decision(None, "the demo ends")))
        if answered(lambda: fleet.drop_slot(slot)):
            break
        if time.monotonic() > deadline:
            raise RetryError(f"replication slot {slot!r} is read after {_STOPPED_S:.0f} s still")
        time.sleep(_LOOK_S)
    runner.console.print(f"replication slot {slot} is dropped", highlight=False)


def _examples(settings: Settings) -> Path:
    return settings.pipelines_dir.parent / "examples"


def _fleet_dsn(settings: Settings) -> str:
    from waybill.stack import Stack

    return Stack(settings).database("demo_fleet")


def _token(settings: Settings) -> str:
    """Return the secret that departures are posted with: that of the environment, or one drawn."""
    given = os.environ.get(_BEARER, "").split()
    return given[0] if given else str(_state(settings)["token"])


def _variables_of_sources(settings: Settings) -> dict[str, str]:
    """Return what the stack is to know of the examples; draws the token of the collector once."""
    if "token" not in _state(settings):
        _remember(settings, "running", token=secrets.token_urlsafe(32))
    folders = [*settings.more_pipelines_dirs, _examples(settings)]
    absolute = dict.fromkeys(str(folder.absolute()) for folder in folders)
    open_to = urlencode({"waybill_pipelines": "planes"})
    return {
        _BEARER: _token(settings),
        "WAYBILL_MORE_PIPELINES_DIRS": orjson.dumps(list(absolute)).decode(),
        "WAYBILL_SOURCES__CONNECTIONS__DEMO_FLEET": f"{_fleet_dsn(settings)}&{open_to}",
    }


def _fixes(settings: Settings) -> Path:
    return settings.pipelines_dir.parent / "fixes"


def _prepare(settings: Settings, console: Console, *, fresh: bool) -> None:
    """Resume a demo that was cut off; wipe one that ended, if nothing but the demo is there."""
    state = _state(settings).get("state")
    if fresh:
        console.print("All data of this stack is deleted: [bold]starting clean[/].")
        _cli("down", "--wipe")
    elif state == "running":
        console.print(
            "A demo was cut off here: [bold]resuming it[/] (--fresh deletes it and starts clean)."
        )
    elif state == "done":
        if others := _pipelines_of_others(settings):
            raise InputError(
                f"the demo ended here, and {', '.join(others)} live here now: starting it anew "
                "would delete their data. Give it a folder of its own (WAYBILL_HOME=<folder> make "
                "demo), or delete everything (make demo ARGS=--fresh)"
            )
        console.print("A demo ended here before: it is wiped, this one [bold]starts clean[/].")
        _cli("down", "--wipe")
    else:
        console.print("No demo ran here before: [bold]starting clean[/].")


def _pipelines_of_others(settings: Settings) -> list[str]:
    """Return what was deployed beside the demo's own; starts PostgreSQL to see, if need be."""
    from waybill.stack import Postgres

    postgres = Postgres(settings.home)
    started = postgres.start()
    try:
        mine = {*PIPELINES, *EXAMPLES.values()}
        return sorted(
            p.name for p in deployed_pipelines(settings).values() if not mine & {p.name, p.id}
        )
    finally:
        if started:
            postgres.stop()


def _up(settings: Settings, console: Console, *, sources: bool) -> Settings:
    console.rule("[bold]0  The embedded stack[/]", align="left")
    if sources:
        _cli("up", "--collector", variables=_variables_of_sources(settings))
    else:
        _cli("up")
    fresh = Settings()
    if not _state(settings):
        _remember(fresh, "running")
    return fresh


def _cli(*words: str, variables: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(  # noqa: S603 - our own CLI
        [sys.executable, "-m", "waybill.cli", *words],
        check=False,
        env={**os.environ, **(variables or {})},
    )
    if done.returncode != 0:
        raise typer.Exit(done.returncode)


def _say_where(runner: Demo, *, leave: bool) -> None:
    if leave:
        return
    airflow = runner.settings.airflow
    password = airflow.password.get_secret_value() if airflow.password else ""
    runner.console.print()
    if runner.sources:
        runner.console.print(
            f'What changes in the table planes arrives: psql "{_fleet_dsn(runner.settings)}"',
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    runner.console.print(
        f"Airflow is up at [bold]{airflow.url}[/]  user [bold]{airflow.user}[/]  password "
        f"[bold]{password}[/]\n`waybill parked --help`, `waybill status`; `make down` stops it all."
    )


def _state(settings: Settings) -> dict[str, Any]:
    try:
        found: dict[str, Any] = orjson.loads((settings.home / "demo.json").read_bytes())
    except FileNotFoundError:
        return {}
    return found


def _remember(settings: Settings, state: str, **more: str) -> None:
    from waybill.stack import state_folder

    text = orjson.dumps({**_state(settings), "state": state, **more}).decode()
    state_folder.write_private(settings.home / "demo.json", text)


def _environment(settings: Settings, width: int) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WAYBILL_")}
    return {**kept, "WAYBILL_HOME": str(settings.home.resolve()), "COLUMNS": str(width)}


def _result(settings: Settings, names: Collection[str]) -> dict[str, Any]:
    """Return the figures of the demo's pipelines, given by name.

    Raises:
        StopError: the warehouse and the ledger do not agree, or a key is there twice.
    """
    reports = [balance(settings, pipeline=name) for name in names]
    total = {
        name: sum(int(getattr(report, name)) for report in reports)
        for name in ("ingested", "delivered", "parked", "replayed", "unaccounted")
    }
    rows = _warehouse_rows(settings, names)
    if rows != total["delivered"]:
        raise StopError(f"the warehouse holds {rows} rows, the ledger says {total['delivered']}")
    return total


def _warehouse_rows(settings: Settings, names: Collection[str]) -> int:
    """Count rows and distinct keys of each pipeline's table, as any user could."""
    import psycopg
    from psycopg import sql

    total = 0
    mine = [p for p in deployed_pipelines(settings).values() if p.name in names]
    for pipeline in mine:
        dsn = settings.destinations[pipeline.destination].dsn.get_secret_value()
        with psycopg.connect(dsn, **_LIMITS) as connection:
            for event in pipeline.events.values():
                table = sql.Identifier(event.table.schema_name, event.table.name)
                keys = sql.SQL(", ").join(map(sql.Identifier, event.table.key))
                query = sql.SQL("SELECT count(*), count(DISTINCT ({keys})) FROM {table}")
                row = connection.execute(query.format(keys=keys, table=table)).fetchone()
                rows, distinct = (0, 0) if row is None else row
                if rows != distinct:
                    raise StopError(f"{event.table.name}: {rows} rows, {distinct} keys")
                total += rows
    return total


@dataclass(frozen=True)
class Figures:
    """Where the events of some pipelines are now."""

    groups: Sequence[PipelineBalance]
    partitions: Sequence[ParkedGroup]

    def _sum(self, *names: str) -> int:
        stages = [counts for group in self.groups for counts in group.stages.values()]
        return sum(int(getattr(counts, name)) for counts in stages for name in names)

    @property
    def ingested(self) -> int:
        """Events taken in."""
        return sum(group.stages["ingestion"].in_first for group in self.groups)

    @property
    def delivered(self) -> int:
        """Events in the warehouse."""
        return sum(group.stages["destination"].passed for group in self.groups)

    @property
    def replayed(self) -> int:
        """Events sent back by replays."""
        return sum(partition.replayed for partition in self.partitions)

    @property
    def parked(self) -> int:
        """Events parked now."""
        return sum(partition.parked + partition.replaying for partition in self.partitions)

    @property
    def in_flight(self) -> int:
        """Events on their way: measured, as of one moment."""
        return self._sum("in_flight", "in_flight_replayed")

    @property
    def unaccounted(self) -> str:
        """Events that the books miss, or have too many of, in words; empty: they balance."""
        gaps = [gap for group in self.groups for gap in group.breaches.values()]
        missing, extra = sum(gap for gap in gaps if gap > 0), -sum(gap for gap in gaps if gap < 0)
        words = ((missing, "missing"), (extra, "too many"))
        return ", ".join(f"{number:,} {word}" for number, word in words if number)

    @property
    def at_rest(self) -> bool:
        """Whether something came in, and nothing moves or is missing."""
        return bool(self.ingested) and not self.in_flight and not self.unaccounted

    def __str__(self) -> str:
        """Return one line."""
        wrong = f"  {self.unaccounted}: see waybill balance" if self.unaccounted else ""
        return (
            f"taken in {self.ingested:,}  delivered {self.delivered:,}  parked {self.parked:,}  "
            f"replayed {self.replayed:,}  on the way {self.in_flight:,}{wrong}"
        )


def follow(
    settings: Settings,
    console: Console,
    airflow: AirflowClient,
    names: Collection[str],
    *,
    finished: Callable[[], bool],
    limit_s: float,
) -> None:
    """Show the progress of some pipelines until ``finished`` and none of their events moves.

    Says so when a part of Airflow does not answer.

    Raises:
        RetryError: it takes longer than ``limit_s``.
    """
    deadline = time.monotonic() + limit_s
    said = asked = 0.0
    with Live(console=console, auto_refresh=False, transient=not console.is_terminal) as live:
        while True:
            began = time.monotonic()
            figures = answered(lambda: _figures(settings, names), kind=RetryError)
            if console.is_terminal:
                live.update(table(figures, console.width), refresh=True)
            elif began - said > _SAY_S:
                said = began
                console.print(str(figures), highlight=False)
            if began - asked > _HEALTH_S:
                asked = began
                _say_what_is_down(console, airflow)
            if finished() and figures.at_rest:
                break
            if began > deadline:
                raise RetryError(f"still in flight after {limit_s:.0f} s: {figures}")
            time.sleep(max(_LOOK_S, _SHARE * (time.monotonic() - began)))
    console.print(str(figures), highlight=False)


def _figures(settings: Settings, names: Collection[str]) -> Figures:
    return Figures(
        [group for group in balance(settings).pipelines if group.pipeline in names],
        [partition for partition in parked_partitions(settings) if partition.pipeline in names],
    )


def _say_what_is_down(console: Console, airflow: AirflowClient) -> None:
    if down := airflow.unhealthy():
        console.print(
            f"[yellow]Airflow's {' and '.join(down)} gives no sign of life: the stack's supervisor "
            "(or `waybill up` in another terminal) starts it again, and this goes on.[/]"
        )


def _ended(airflow: AirflowClient, dag_id: str) -> bool:
    """Tell whether a DAG's newest run ended well; False while there is none.

    Raises:
        StopError: it failed.
    """
    runs = airflow.runs(dag_id)
    if not runs:
        return False
    newest = runs[0]
    if newest["state"] == "failed":
        raise StopError(f"run {newest['dag_run_id']!r} of {dag_id!r} failed; see Airflow's log")
    return newest["state"] in END_STATES


def table(figures: Figures, width: int | None = None) -> Text:
    """Return the live view: a line a pipeline, and below them what is wrong with their sums."""
    wrong = []
    for group in figures.groups:
        if its := _figures_of(group, figures).unaccounted:
            wrong.append(f"{group.pipeline}: {its}; see waybill balance")
    shown = _event_table(figures)
    lines = table_lines(shown, width) if shown.rows else [Text(shown.empty)]
    return Text("\n").join([*lines, *(Text(plain(line), "bold red") for line in wrong)])


def _event_table(figures: Figures) -> Table:
    rows = []
    for group in figures.groups:
        its = _figures_of(group, figures)
        passed = (group.stages[stage].passed for stage in ("transformation", "mapping"))
        ends = (its.delivered, its.parked, its.in_flight)
        rows.append((group.pipeline, its.ingested, *passed, *ends))
    heads = ("taken in", "transformed", "mapped", "delivered", "parked", "on the way")
    return Table(
        (Column("pipeline"), *(Column(head, "number") for head in heads)),
        rows,
        "no event was taken in yet",
        "Events",
    )


def _figures_of(group: PipelineBalance, figures: Figures) -> Figures:
    theirs = [one for one in figures.partitions if one.pipeline == group.pipeline]
    return Figures([group], theirs)
