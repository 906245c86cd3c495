"""``waybill balance``: the books."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from waybill.cli.command import DEPLOYED
from waybill.cli.exit_codes import ExitCode
from waybill.cli.options import AsJson
from waybill.cli.output import plain, print_json, terminal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from waybill.reconciliation import BalanceReport, PipelineBalance

_STAGES = ("ingestion", "transformation", "mapping", "destination")
_COUNTERS = (
    ("in_first", "in"),
    ("in_replayed", "replayed in"),
    ("passed", "passed"),
    ("filtered", "filtered"),
    ("parked", "parked"),
    ("superseded", "superseded"),
    ("duplicate", "duplicate"),
    ("in_flight", "in flight"),
    ("unrecoverable", "unrecoverable"),
    ("unaccounted", "unaccounted"),
)
_ENDS = (
    "parked",
    "quarantined",
    "unrecoverable",
    "discarded",
    "filtered",
    "superseded",
    "duplicate",
    "in_flight",
)
_ALWAYS = ("in_first", "passed", "parked")
_UNLIMITED = 10_000
_VERDICTS = ("balanced", "moving", "breach")
_MOST_BREACHES = 10


def balance(
    pipeline: Annotated[
        str | None, typer.Argument(metavar=DEPLOYED, help="Only this one, by name or id.")
    ] = None,
    since: Annotated[
        datetime | None, typer.Option(help="Only intake minutes from this time on (UTC).")
    ] = None,
    *,
    minutes: Annotated[bool, typer.Option(help="One line for each intake minute.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check that what went in came out, per pipeline, event name and stage. Exit code 2 if not."""
    from waybill.services import balance as read
    from waybill.settings import Settings

    moment = None if since is None else since.replace(tzinfo=since.tzinfo or UTC)
    report = read(Settings(), pipeline=pipeline, since=moment)
    if as_json:
        print_json(report.to_json())
    else:
        _show_balance(report, minutes=minutes, narrowed=pipeline is not None or since is not None)
    if report.unaccounted:
        raise typer.Exit(ExitCode.FOUND)


def _show_balance(report: BalanceReport, *, minutes: bool, narrowed: bool) -> None:

    console = terminal()
    if not report.pipelines:
        console.print(f"Nothing was taken in{' that matches' if narrowed else ' yet'}.")
        return
    alarm = "bold red"
    for group in report.pipelines:
        _print_whole(console, _stage_table(group, alarm))
    if minutes:
        _print_whole(console, _minute_table(report, alarm))
    console.print(_equation(report))
    for line in _notes(report):
        console.print(line, markup=False, soft_wrap=True)
    if not report.unaccounted and (report.quarantined or report.unrecoverable):
        console.print(f"in balance; {_lost(report)}", style="yellow")
    elif report.unaccounted:
        console.print(f"{report.unaccounted:,} unaccounted for", style=alarm)
    elif report.accounted:
        console.print("in balance but for what was explained or closed by name", style="green")
    else:
        console.print("in balance", style="bold green")


def _lost(report: BalanceReport) -> str:
    """Return what is quarantined or unrecoverable, and what to do about it."""
    said = []
    if report.quarantined:
        said.append(
            f"{report.quarantined:,} quarantined: `waybill parked recheck` once their files are "
            "back"
        )
    if report.unrecoverable:
        said.append(
            f"{report.unrecoverable:,} unrecoverable: `waybill parked lost` and `waybill "
            "destination lost` name them"
        )
    return "; ".join(said)


def _notes(report: BalanceReport) -> Iterator[str]:
    """Yield what is not in the sums: what moves, what was accounted for, what is open."""
    if report.verdicts:
        said = [f"{report.verdicts.get(name, 0):,} {name}" for name in _VERDICTS]
        yield f"stages of intake minutes: {', '.join(said)}"
    for pipeline, why in report.settling.items():
        yield plain(f"moving: {pipeline}: {why}")
    if report.accounted:
        yield f"{report.accounted:,} explained or closed by name: `waybill audit breaches --all`"
    for one in report.open_breaches[:_MOST_BREACHES]:
        yield plain(f"breach {one['id']}: {one['pipeline']} / {one['event_name']}: {one['words']}")
    if len(report.open_breaches) > _MOST_BREACHES:
        yield f"and {len(report.open_breaches) - _MOST_BREACHES:,} more: `waybill audit breaches`"


def _print_whole(console: Console, table: Table) -> None:
    """Print a table as wide as its numbers, even where the terminal is narrower: none is cut."""
    from rich.measure import Measurement

    unlimited = console.options.update(max_width=_UNLIMITED)
    least, most = Measurement.get(console, unlimited, table)
    table.width = min(max(least, console.width), most)
    console.print(table, crop=False)


def _stage_table(group: PipelineBalance, alarm: str) -> Table:
    """Return one event name's books: a column for each stage, a line for each counter in use."""
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(plain(f"{group.pipeline} / {group.event_name}")),
        title_justify="left",
        title_style="bold",
        header_style="bold",
    )
    table.add_column("", no_wrap=True)
    for stage in _STAGES:
        table.add_column(stage, justify="right", no_wrap=True)
    for name, title in _COUNTERS:
        numbers = [_count(group, stage, name) for stage in _STAGES]
        if name == "unaccounted":
            table.add_row(title, *(_gap(number, alarm) for number in numbers), end_section=True)
        elif any(numbers) or name in _ALWAYS:
            table.add_row(title, *(f"{number:,}" if number else "·" for number in numbers))
    return table


def _gap(number: int, alarm: str) -> str:
    return f"[{alarm}]{number:,}[/]" if number else "[green]0[/]"


def _equation(report: BalanceReport) -> str:
    """Return what was taken in as the sum of what became of it; what is 0 is left out."""
    parts = [f"{report.delivered:,} delivered"]
    for name in _ENDS:
        if number := getattr(report, name):
            parts.append(f"{number:,} {name.replace('_', ' ')}")
    made = f" + {report.made:,} made by transformations" if report.made else ""
    if report.sent_unmarked:
        made += f" + {report.sent_unmarked:,} sent by replays that were cancelled, and not marked"
    if report.uncounted > 0:
        made += f" + {report.uncounted:,} in the log that ingestion counts with its page"
    if report.uncounted < 0:
        parts.append(f"{-report.uncounted:,} on the way to the log")
    if report.missed > 0:
        parts.append(f"{report.missed:,} missing")
    if report.missed < 0:
        made += f" + {-report.missed:,} too many"
    return f"{report.ingested:,} taken in{made} = {' + '.join(parts)}"


def _count(group: PipelineBalance, stage: str, name: str) -> int:
    counts = group.stages[stage]
    if name == "in_flight":
        return counts.in_flight + counts.in_flight_replayed
    if name == "unrecoverable":
        return group.unrecoverable.get(stage, 0)
    if name == "unaccounted":
        return sum(
            abs(gap)
            for place, gap in group.breaches.items()
            if place == stage or place.startswith(f"{stage} (")
        )
    return int(getattr(counts, name))


def _minute_table(report: BalanceReport, alarm: str) -> Table:
    from rich.table import Table
    from rich.text import Text

    names = {group.pipeline_id: group.pipeline for group in report.pipelines}
    table = Table(title="By intake minute (UTC)", title_justify="left", header_style="bold")
    table.add_column("minute", no_wrap=True)
    table.add_column("pipeline / event", overflow="fold")
    for name in ("taken in", "delivered", "unaccounted"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in report.minutes:
        moment = datetime.fromtimestamp(row.minute * 60, UTC)
        table.add_row(
            f"{moment:%Y-%m-%d %H:%M}",
            Text(plain(f"{names.get(row.pipeline_id, row.pipeline_id)} / {row.event_name}")),
            f"{row.stage('ingestion').in_first:,}",
            f"{row.stage('destination').passed:,}",
            _gap(sum(map(abs, row.breaches().values())), alarm),
        )
    return table
