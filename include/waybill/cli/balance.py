"""``waybill balance``: the books."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from waybill.cli.command import DEPLOYED
from waybill.cli.exit_codes import ExitCode
from waybill.cli.options import AsJson
from waybill.cli.output import print_folded, print_json
from waybill.cli.tables import Cell, Column, Styled, Table, print_table

if TYPE_CHECKING:
    from waybill.reconciliation import BalanceReport, PipelineBalance

_STAGES = ("ingestion", "transformation", "mapping", "destination")
_COUNTERS = (
    ("in_first", "in"),
    ("in_replayed", "replayed in"),
    ("passed", "passed"),
    ("filtered", "filtered"),
    ("parked", "parked (ever)"),
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
_ALARM = "bold red"
_VERDICTS = {"balanced": "in balance", "moving": "on the way", "breach": "with a breach"}
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
    if not report.pipelines:
        print_folded([f"Nothing was taken in{' that matches' if narrowed else ' yet'}."])
        return
    for group in report.pipelines:
        print_table(_stage_table(group))
        print_folded([""])
    if minutes:
        print_table(_minute_table(report))
        print_folded([""])
    print_folded([_equation(report), *_notes(report)])
    if not report.unaccounted and (report.quarantined or report.unrecoverable):
        print_folded([f"in balance; {_lost(report)}"], style="yellow")
    elif report.unaccounted:
        print_folded([f"{report.unaccounted:,} unaccounted for"], style=_ALARM)
    elif report.accounted:
        words = "in balance but for what was explained or closed by name"
        print_folded([words], style="green")
    else:
        print_folded(["in balance"], style="bold green")


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
        said = [f"{report.verdicts.get(name, 0):,} {words}" for name, words in _VERDICTS.items()]
        yield f"minutes by stage: {', '.join(said)}"
    for pipeline, why in report.settling.items():
        yield f"moving: {pipeline}: {why}"
    if report.accounted:
        yield f"{report.accounted:,} explained or closed by name: `waybill audit breaches --all`"
    for one in report.open_breaches[:_MOST_BREACHES]:
        yield f"breach {one['id']}: {one['pipeline']} / {one['event_name']}: {one['words']}"
    if len(report.open_breaches) > _MOST_BREACHES:
        yield f"and {len(report.open_breaches) - _MOST_BREACHES:,} more: `waybill audit breaches`"


def _stage_table(group: PipelineBalance) -> Table:
    """Return one event name's books: a column for each stage, a line for each counter in use."""
    rows: list[list[Cell]] = []
    for name, title in _COUNTERS:
        numbers = [_count(group, stage, name) for stage in _STAGES]
        if name == "unaccounted":
            rows.append([title, *map(_gap, numbers)])
        elif any(numbers) or name in _ALWAYS:
            rows.append([title, *(Styled(n, "" if n else "dim") for n in numbers)])
    return Table(
        (Column("events"), *(Column(stage, "number") for stage in _STAGES)),
        rows,
        "nothing was counted",
        f"{group.pipeline} / {group.event_name}",
    )


def _gap(number: int) -> Styled:
    return Styled(number, _ALARM if number else "green")


def _equation(report: BalanceReport) -> str:
    """Return what was taken in as the sum of what became of it; what is 0 is left out."""
    parts = [f"{report.delivered:,} delivered"]
    for name in _ENDS:
        if number := getattr(report, name):
            words = "parked now" if name == "parked" else name.replace("_", " ")
            parts.append(f"{number:,} {words}")
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


def _minute_table(report: BalanceReport) -> Table:
    names = {group.pipeline_id: group.pipeline for group in report.pipelines}
    return Table(
        (
            Column("minute (UTC)"),
            Column("pipeline"),
            Column("event"),
            *(Column(head, "number") for head in ("taken in", "delivered", "unaccounted")),
        ),
        [
            (
                datetime.fromtimestamp(row.minute * 60, UTC),
                names.get(row.pipeline_id, row.pipeline_id),
                row.event_name,
                row.stage("ingestion").in_first,
                row.stage("destination").passed,
                _gap(sum(map(abs, row.breaches().values()))),
            )
            for row in report.minutes
        ],
        "no intake minute has counts of its own",
        "By intake minute",
    )
