"""``waybill up``, ``down``, ``status``, ``doctor``: the embedded stack."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waybill.cli.exit_codes import ExitCode
from waybill.cli.lazy import no_stack
from waybill.cli.options import AsJson
from waybill.cli.output import echo, plain, print_folded, print_json, shortened, terminal
from waybill.cli.tables import Column, Styled, Table, ago, clock, print_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from waybill.settings import Settings
    from waybill.stack import Check, ServiceStatus

MINUTE_S, HOUR_S = 60, 3600
_MOST_SOURCES, _ERROR_CHARS = 10, 300
_API_SERVER = "airflow-api-server"
PAGES = ("overview", "parked", "balance", "sources", "trails", "clusters", "capacity")
"""Waybill's pages in Airflow, by their addresses; the first is what ``/waybill/`` leads to."""
_UNPAUSE = "what they do is not done: unpause them in Airflow, unless it is on purpose"


class _Progress:
    """Says on standard error when a service changes."""

    def __init__(self) -> None:
        self.console = terminal(err=True)
        self.began: dict[str, float] = {}

    def __call__(self, name: str, what: str) -> None:
        """Be told of one change."""
        if what in {"starting", "stopping"}:
            self.began[name] = time.monotonic()
            if what == "starting":
                return
        took = time.monotonic() - self.began.get(name, time.monotonic())
        spent = f"  {took:.1f} s" if what == "up" else ""
        self.console.print(f"{name:<24} {what}{spent}", highlight=False)


def up(
    *,
    free_ports: Annotated[
        bool, typer.Option("--free-ports", help="Take other ports where the usual ones are in use.")
    ] = False,
    collector: Annotated[
        bool | None,
        typer.Option("--collector/--no-collector", help="Take events over HTTP too, from now on."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start the embedded stack, or the parts that are down. Later commands find it themselves.

    What is up stays as it is; settings that differ from those it was started with are named.
    """
    from waybill.services import migrate
    from waybill.settings import Settings
    from waybill.stack import Stack

    stack = Stack(Settings())
    if collector is not None:
        stack = stack.with_collector(wanted=collector)
    settings = stack.up(free_ports=free_ports, notice=_Progress())
    migrate(settings)
    if as_json:
        echo(json.dumps(_addresses(settings) | {"not_applied": stack.not_applied}))
        return
    airflow = settings.airflow
    password = airflow.password.get_secret_value() if airflow.password else ""
    echo(f"Airflow: {airflow.url}  user {airflow.user}  password {password}")
    for line in _ways_in(settings):
        echo(line)
    echo(f"Settings for every command, and passwords: {settings.home / 'stack.env'}")
    if stack.not_applied:
        print_folded(
            [
                f"Services that were up run with other values of {', '.join(stack.not_applied)}:"
                " `waybill down` and `waybill up` apply them to all; commands, and tasks that"
                " Airflow starts from now on, have them already"
            ]
        )


def _ways_in(settings: Settings) -> list[str]:
    """Return how to reach the pages, and each server but Airflow, without passwords."""
    addresses = _addresses(settings)
    lines = [
        f"Pages: {addresses['pages']}",
        f"  below it {', '.join(PAGES[:-1])} and {PAGES[-1]}",
        f"Kafka: {addresses['kafka']}",
        f"S3: {addresses['s3']}  bucket {settings.s3.bucket}",
        f"Tracker: {addresses['tracker']}",
    ]
    if settings.collector.embedded:
        lines.append(f"Collector: {addresses['collector']}/v1/<pipeline>")
    lines += [
        f"Destination {plain(name)}: waybill connect {plain(name)}, or waybill sql -d {plain(name)}"
        for name, one in sorted(settings.destinations.items())
        if one.kind in {"postgres", "duckdb"}
    ]
    return lines


def _collector_url(settings: Settings) -> str:
    return f"http://{settings.collector.host}:{settings.collector.port}"


def _addresses(settings: Settings) -> dict[str, Any]:
    from sqlalchemy import make_url

    collector = {"collector": _collector_url(settings)} if settings.collector.embedded else {}
    return collector | {
        "airflow": settings.airflow.url,
        "pages": f"{settings.airflow.url.rstrip('/')}/waybill/",
        "kafka": settings.kafka.bootstrap_servers,
        "s3": settings.s3.endpoint_url,
        "tracker": make_url(settings.tracker.dsn.get_secret_value()).render_as_string(),
        "env_file": str(settings.home / "stack.env"),
    }


def down(
    *,
    wipe: Annotated[
        bool, typer.Option("--wipe", help="Delete all data of the stack too; the jars are kept.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Stop everything that was started here, Spark applications too, and nothing else."""
    from waybill.settings import Settings
    from waybill.stack import Stack

    Stack(Settings()).down(wipe=wipe, notice=_Progress())
    if as_json:
        print_json({"down": True, "wiped": wipe})
    else:
        echo("down; data wiped" if wipe else "down; data kept")


def status(*, as_json: AsJson = False) -> None:
    """Show each service: process, memory, whether it answers. Exit code 4 if some or all are down.

    What else it names leaves the exit code as it is: destinations and topics that wait, sources
    whose last run failed, jobs of upkeep that fail, DAGs that are paused.
    """
    from waybill.settings import Settings
    from waybill.stack import Stack

    settings = Settings()
    lines = Stack(settings).status()
    if said := no_stack(settings.home):
        print_folded([said], err=True)
    if as_json:
        echo(json.dumps([line.to_json() for line in lines]))
    else:
        print_table(_status_table(lines), _troubles(lines))
        _show_ways_in(lines)
        if any(line.name == "postgres" and line.healthy for line in lines):
            _show_waiting()
            _show_sources()
            _show_jobs()
        if any(line.name == _API_SERVER and line.healthy for line in lines):
            _show_paused()
    if not all(line.healthy and not line.suspended for line in lines):
        raise typer.Exit(ExitCode.AWAY)


def _troubles(lines: Sequence[ServiceStatus]) -> list[str]:
    """Return what is to be said of services that are not as they should be."""
    ill = [line.name for line in lines if not line.healthy and not line.suspended]
    said = []
    if not any(line.pid for line in lines):
        said.append("nothing runs; `waybill up` starts the stack")
    elif ill:
        said.append(f"not up: {', '.join(ill)}; {_who_starts(lines)}")
    said += [
        f"{line.name} was suspended by a signal; `{line.resume}` resumes it"
        for line in lines
        if line.suspended
    ]
    return [*said, *(words for line in lines for words in _restarts(line))]


def _show_ways_in(lines: Sequence[ServiceStatus]) -> None:
    """Print how to reach each server of this stack, if one runs."""
    from waybill.settings import Settings

    if not any(line.pid for line in lines):
        return
    settings = Settings()
    echo(f"\nAirflow: {settings.airflow.url}  user {settings.airflow.user}")
    for line in _ways_in(settings):
        echo(line)
    echo("")


def _who_starts(lines: Sequence[ServiceStatus]) -> str:
    if any(line.name == "supervisor" and line.pid for line in lines):
        return "the supervisor restarts what died; `waybill up` does it now"
    return "`waybill up` starts them again"


def _restarts(line: ServiceStatus) -> Iterator[str]:
    """Yield whether the supervisor started a service again, and how that went."""
    if line.restarts:
        times = "once" if line.restarts == 1 else f"{line.restarts} times"
        yield f"{line.name} was started again {times}; last at {line.last_exit}"
    if line.problem:
        yield f"{line.name} did not come up: {line.problem}"


def _show_paused() -> None:
    """Print which DAGs of upkeep are paused."""
    check = _upkeep()
    if not check.ok:
        _say(f"DAGs {check.found}; {check.remedy}")


def _upkeep() -> Check:
    """Ask Airflow whether Waybill's DAGs are on; paused ones are fine where the settings say so."""
    from waybill.errors import WaybillError
    from waybill.services.airflow_client import AirflowClient
    from waybill.settings import Settings
    from waybill.stack import Check

    settings = Settings().airflow
    try:
        with AirflowClient(settings, patience_s=0.0) as client:
            paused = client.paused_upkeep()
    except WaybillError as error:
        return Check("DAGs", ok=False, found="not known", remedy=str(error))
    if not paused:
        return Check("DAGs", ok=True, found="upkeep is on")
    found = f"paused: {', '.join(paused)}"
    if settings.unpaused_dags == "none":
        return Check("DAGs", ok=True, found=found)
    return Check("DAGs", ok=False, found=found, remedy=_UNPAUSE)


def _jobs() -> Check:
    """Ask the tracker how the jobs of upkeep are; those that somebody paused are fine."""
    from waybill.cli.upkeep import problems
    from waybill.errors import WaybillError
    from waybill.services import upkeep_jobs
    from waybill.settings import Settings
    from waybill.stack import Check

    try:
        found = upkeep_jobs(Settings())
    except WaybillError as error:
        return Check("upkeep", ok=False, found="not known", remedy=str(error))
    said = "; ".join(problems(found))
    if not any(one.state in {"failing", "late"} for one in found):
        return Check("upkeep", ok=True, found=said or "each job succeeded lately")
    return Check("upkeep", ok=False, found=said, remedy="`waybill upkeep list` says more")


def _show_jobs() -> None:
    """Print which jobs of upkeep fail or are late, if any does."""
    check = _jobs()
    if not check.ok:
        _say(f"{check.found}; {check.remedy}")


def _pools() -> Check:
    """Ask Airflow whether the pools of ingestion and replays are there."""
    from waybill.errors import WaybillError
    from waybill.services.airflow_client import AirflowClient
    from waybill.settings import Settings
    from waybill.stack import Check
    from waybill.stack.airflow import pool_sizes

    settings = Settings().airflow
    sizes = pool_sizes(settings)
    try:
        with AirflowClient(settings, patience_s=0.0) as client:
            absent = sorted(set(sizes) - client.pools())
    except WaybillError as error:
        return Check("pools", ok=False, found="not known", remedy=str(error))
    if not absent:
        return Check("pools", ok=True, found=", ".join(sizes))
    made = "; ".join(f"airflow pools set {name} {sizes[name][0]} Waybill" for name in absent)
    found = f"{', '.join(absent)} missing: tasks of it wait for ever"
    return Check("pools", ok=False, found=found, remedy=made)


def _show_waiting() -> None:
    """Print a line for each destination that takes no loads, and each topic that is stopped."""
    from waybill.cli.destinations import waits
    from waybill.errors import WaybillError
    from waybill.services import stopped_topics, waiting_destinations
    from waybill.settings import Settings

    try:
        found = waiting_destinations(Settings())
        stopped = stopped_topics(Settings())
    except WaybillError as error:
        _say(f"destinations and topics: not known: {error}")
        return
    for one in found:
        _say(f"destination {one.destination} {waits(one)}")
    if found:
        _say("`waybill destination list` shows why")
    for stop in stopped:
        _say(f"topic {stop.topic} is not read since {clock(stop.found_at)} UTC")
    if stopped:
        _say("`waybill topics list` shows why; `waybill topics settle` resumes it")


def _show_sources() -> None:
    """Print a line for each of the first sources whose last run failed."""
    from waybill.errors import WaybillError
    from waybill.services import source_status
    from waybill.settings import Settings

    try:
        failed = source_status(Settings(), state="failed")
    except WaybillError as error:
        _say(f"sources: not known: {error}")
        return
    for one in failed[:_MOST_SOURCES]:
        said = shortened(one.error, _ERROR_CHARS)
        _say(f"the last run of source {one.pipeline} failed {ago(one.failed_at)}: {said}")
    if (more := len(failed) - _MOST_SOURCES) > 0:
        _say(f"so did those of {more:,} more")
    if failed:
        _say("`waybill sources status` shows how each source is read")


def _say(words: str) -> None:
    """Print a sentence, broken between words, with what is not printable written out."""
    print_folded([words])


def _status_table(lines: Sequence[ServiceStatus]) -> Table:
    """Return a line a service; a service that is down has its state only."""
    rows = []
    for line in lines:
        ill = "suspended" if line.suspended else "no answer"
        state = Styled("healthy", "green") if line.healthy else Styled(ill, "red")
        if line.pid is None or line.up_since is None:
            rows.append([line.name, Styled("down", "dim"), *(None,) * 4])
            continue
        rows.append(
            [
                line.name,
                state,
                str(line.pid),
                f"{line.memory_bytes / 1024**2:,.0f} MiB",
                _span(time.time() - line.up_since),
                " ".join(map(str, line.ports)) or None,
            ]
        )
    return Table(
        (
            Column("service"),
            Column("state"),
            *(Column(head, "number") for head in ("pid", "memory", "up for")),
            Column("ports", "words", least=11),
        ),
        rows,
        "the stack has no service",
    )


def _span(seconds: float) -> str:
    if seconds < MINUTE_S:
        return f"{seconds:.0f} s"
    if seconds < HOUR_S:
        return f"{seconds / MINUTE_S:.0f} min"
    return f"{seconds / HOUR_S:.1f} h"


def doctor(*, as_json: AsJson = False) -> None:
    """Check what Waybill needs on this machine; exit code 2 when something is missing."""
    from waybill.settings import Settings
    from waybill.stack import examine

    checks = examine(Settings())
    if any(check.name == _API_SERVER and check.ok for check in checks):
        checks += [_upkeep(), _jobs(), _pools()]
    if as_json:
        echo(json.dumps([check.to_json() for check in checks]))
    else:
        _show_checks(checks)
    if not all(check.ok for check in checks):
        raise typer.Exit(ExitCode.FOUND)


def _show_checks(checks: Sequence[Check]) -> None:
    """Print what was found as a table, and below it what to do: commands are never broken."""
    print_table(_check_table(checks))
    remedies = [plain(f"{check.name}: {check.remedy}") for check in checks if check.remedy]
    for line in ["", *remedies] if remedies else []:
        echo(line)


def _check_table(checks: Sequence[Check]) -> Table:
    ok, ill = Styled("ok", "green"), Styled("to do", "red")
    return Table(
        (Column("result"), Column("what"), Column("found", "words")),
        [(ok if check.ok else ill, check.name, check.found) for check in checks],
        "nothing was checked",
    )
