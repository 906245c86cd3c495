"""The demo's steps, in order, and its last line for machines."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import IO, TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.markup import escape

from waybill.cli.demo import check, progress
from waybill.cli.lazy import AWAY_ADVICE
from waybill.errors import AwayError, InputError, RetryError, StopError, WaybillError
from waybill.settings import Settings
from waybill.waiting import answered

if TYPE_CHECKING:
    from waybill.cli.airflow_client import AirflowClient

PIPELINES = ("flights", "weather")
WATCHING = ("audit", "watch", "compact_traces")
DAGS = {
    *("ingest_flights", "ingest_weather", "stream_default", "replay", "replay_parked_partitions"),
    *WATCHING,
}
_DAGS_KNOWN_S = 120.0
_RUN_S = 900.0
_INTERRUPTED = 130
_WAYS_ON = (
    "`make demo` resumes it where it is, `make demo ARGS=--fresh` deletes all data and starts "
    "clean, `make down` stops everything and keeps the data."
)
_WIDTH = 120
"""Columns of what is printed into a file or a pipe."""


@dataclass
class Demo:
    """One demo: where it shows, and what it stands on."""

    settings: Settings
    console: Console
    began: float = field(default_factory=time.monotonic)

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
            sys.stderr.write(line)


def demo(
    *,
    leave: Annotated[
        bool, typer.Option("--exit", help="Stop everything at the end; for scripts and CI.")
    ] = False,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Delete all data of this stack first, of any pipeline."),
    ] = False,
) -> None:
    """Run the main job on 336,776 flights and 26,115 weather readings; leave Airflow's UI up."""
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    began = time.monotonic()
    settings = Settings()
    _prepare(settings, console, fresh=fresh)
    settings = _up(settings, console)
    runner = Demo(settings, console, began)
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
    sys.stdout.write(orjson.dumps(result).decode() + "\n")


def _guarded(runner: Demo, result: dict[str, Any], *, leave: bool) -> int:
    """Run the main job into ``result``; return the exit code, having said what can be done."""
    settings, console = runner.settings, runner.console
    try:
        result |= _main_job(runner)
    except WaybillError as error:
        console.print(f"[bold red]The demo stopped:[/] {error}")
        console.print(f"Logs: {settings.home / 'logs'}. `waybill status` shows what runs.")
        console.print(_WAYS_ON)
        return 1
    except KeyboardInterrupt:
        console.print("\n[bold]Interrupted.[/] The stack and its pipelines run on.")
        console.print(_WAYS_ON)
        return _INTERRUPTED
    _remember(settings, "done")
    _say_where(runner, leave=leave)
    return 0


def _main_job(runner: Demo) -> dict[str, Any]:
    from waybill.cli.airflow_client import AirflowClient
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
    runner.run("balance")
    return answered(lambda: check.result(settings, PIPELINES), kind=RetryError)


def _deploy_first(runner: Demo) -> None:
    """Deploy the first versions, unless a demo that is resumed went past that."""
    from waybill.services import deployed_pipelines

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
    progress.follow(
        runner.settings,
        runner.console,
        airflow,
        PIPELINES,
        finished=lambda: all(progress.ended(airflow, f"ingest_{name}") for name in PIPELINES),
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
    progress.follow(
        runner.settings,
        runner.console,
        airflow,
        PIPELINES,
        finished=lambda: True,
        limit_s=_RUN_S,
    )


def _audit(runner: Demo, airflow: AirflowClient) -> None:
    """Let the auditor run each minute, once at once; it must find nothing."""
    for name in WATCHING:
        airflow.unpause(name)
    run_id = airflow.trigger("audit", f"demo__{int(time.time())}", {})
    state = airflow.follow("audit", run_id, limit_s=_RUN_S, told=runner.tell)
    if state != "success":
        raise StopError(f"run {run_id!r} of audit is {state}")
    runner.run("audit", "breaches")


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
    from waybill.services import deployed_pipelines
    from waybill.stack import Postgres

    postgres = Postgres(settings.home)
    started = postgres.start()
    try:
        return sorted({p.name for p in deployed_pipelines(settings).values()} - set(PIPELINES))
    finally:
        if started:
            postgres.stop()


def _up(settings: Settings, console: Console) -> Settings:
    console.rule("[bold]0  The embedded stack[/]", align="left")
    _cli("up")
    fresh = Settings()
    if not _state(settings):
        _remember(fresh, "running")
    return fresh


def _cli(*words: str) -> None:
    done = subprocess.run(  # noqa: S603 - our own CLI
        [sys.executable, "-m", "waybill.cli", *words], check=False
    )
    if done.returncode != 0:
        raise typer.Exit(done.returncode)


def _say_where(runner: Demo, *, leave: bool) -> None:
    if leave:
        return
    airflow = runner.settings.airflow
    password = airflow.password.get_secret_value() if airflow.password else ""
    runner.console.print()
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
    path = settings.home / "demo.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(orjson.dumps({**_state(settings), "state": state, **more}))
    temporary.replace(path)


def _environment(settings: Settings, width: int) -> dict[str, str]:
    import os

    kept = {name: value for name, value in os.environ.items() if not name.startswith("WAYBILL_")}
    return {**kept, "WAYBILL_HOME": str(settings.home.resolve()), "COLUMNS": str(width)}
