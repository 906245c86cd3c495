"""``waybill parked dry-run``: what would become of parked events; nothing is written.

Messages and values come from users: they are never read as markup, and control characters are
shown, not sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from waybill.cli.options import takes
from waybill.cli.parked_views import plain
from waybill.cli.words import counted
from waybill.replay import DryRunRequest

if TYPE_CHECKING:
    from waybill.replay import DryRunReport, GoodReport
    from waybill.settings import Settings

_MOST_GROUPS = 12
_MESSAGE_CHARS = 200
_VALUE_CHARS = 60
_ALL, _NONE = 1.0, 0.0
_WAY_OUT = (
    "what to do: each minute the DAG `watch` makes what is gone again from Kafka, and what a "
    "replay found damaged; `waybill parked lost` says what stays lost; restore those files, then "
    "`waybill parked recheck`"
)


@takes(
    DryRunRequest,
    flags={
        "event_name": ("--event-name", "-e"),
        "stage": ("--stage", "-s"),
        "error_type": ("--error-type", "-t"),
        "max_events": ("--limit",),
    },
)
def dry_run(
    request: DryRunRequest,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say how many parked events would pass, and what a new version would break."""
    from waybill.settings import Settings

    report_dry_run(Settings(), request, as_json=as_json)


def report_dry_run(settings: Settings, request: DryRunRequest, *, as_json: bool) -> None:
    """Run it and print the report; exit 1 where parked files could not be read."""
    import orjson

    from waybill.services import run_dry_run

    report = run_dry_run(settings, request)
    if as_json:
        typer.echo(orjson.dumps(report.to_json()).decode())
    else:
        show(report, request)
    if report.misses:
        raise typer.Exit(1)


def show(report: DryRunReport, request: DryRunRequest) -> None:
    """Print a report: the verdict, the ways to fail, the groups, the good events."""
    console = Console(highlight=False)
    _say(console, _verdict(report, request))
    for line in _ends(report, request.stage):
        _say(console, Text(line), indent=2)
    if len(report.by_fingerprint) > 1:
        _groups(console, report)
    if report.good.tried or report.good.examples:
        _good(console, report.good)
    console.print(Text("nothing was written", "dim"))


def _verdict(report: DryRunReport, request: DryRunRequest) -> Text:
    over = f"{request.event_name} {request.stage}/{request.error_type}"
    name = f"{report.pipeline} version {report.version} over {over}: "
    if not report.events and report.misses:
        return Text.assemble((plain(name), ""), ("none of it can be read", "bold red"))
    if not report.events:
        return Text(plain(f"{name}nothing that was asked for is parked"))
    style = "bold green" if report.would_pass == report.tried else "bold yellow"
    if report.tried == report.events:
        words = f"{report.would_pass:,} of {report.events:,} would pass"
        return Text.assemble((plain(name), ""), (words, style))
    words = f"{_percent(report.pass_rate)} of {report.events:,} would pass"
    detail = (
        f" ({_percent(report.low)} to {_percent(report.high)} with 95 % confidence; "
        f"{report.tried:,} tried)"
    )
    return Text.assemble((plain(name), ""), (words, style), (detail, "dim"))


def _ends(report: DryRunReport, stage: str) -> Iterator[str]:
    about = "" if report.tried == report.events else "about "
    if report.would_filter:
        yield f"{about}{report.expected_filter:,} would be filtered on purpose"
    for way, number in sorted(report.expected_fail.items(), key=lambda item: (-item[1], item[0])):
        message = plain(report.examples[way])[:_MESSAGE_CHARS]
        yield f"{about}{number:,} would fail: {way} — {message}"
    for one in report.unreadable:
        lost = counted(one["events"], "event")
        yield f"{lost} of {one['object_key']} could not be read: {one['reason']}"
    if report.quarantined:
        apart = counted(report.quarantined, "event")
        yield f"{apart} of this partition in quarantine: their files are damaged or gone"
    if report.damaged or report.quarantined:
        yield _WAY_OUT
    if stage == "destination" and report.would_pass:
        yield "the destination was not asked: it may refuse some of these again"


def _groups(console: Console, report: DryRunReport) -> None:
    """Print a group a row: its numbers and fingerprint, and its message below that."""
    grid = Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("events", "tried", "would pass"):
        grid.add_column(name, justify="right", no_wrap=True)
    grid.add_column("fingerprint, message")
    rows = list(report.by_fingerprint.items())
    for fingerprint, row in rows[:_MOST_GROUPS]:
        share = row["would_pass"] / row["tried"]
        style = {_ALL: "green", _NONE: "red"}.get(share, "yellow")
        message = plain(row["message"])[:_MESSAGE_CHARS]
        grid.add_row(
            Text(f"{row['events']:,}"),
            Text(f"{row['tried']:,}"),
            Text(_percent(share), style),
            Text(f"{plain(fingerprint)}\n{message}"),
        )
    console.print(grid)
    if len(rows) > _MOST_GROUPS:
        left = f"{counted(len(rows) - _MOST_GROUPS, 'smaller group')} not shown; --json has all"
        console.print(Text(left, "dim"))


def _good(console: Console, good: GoodReport) -> None:
    numbers = (
        (f"{good.same:,} the same", ""),
        (f"{good.changed:,} with other output", "yellow" if good.changed else ""),
        (f"{good.newly_broken:,} newly broken", "bold red" if good.newly_broken else ""),
    )
    line = Text(f"of {counted(good.tried, 'recent good event')}: ")
    for place, (words, style) in enumerate(numbers):
        line.append(", " if place else "").append(words, style)
    _say(console, line)
    for way, number in sorted(good.ways.items(), key=lambda item: (-item[1], item[0])):
        _say(console, Text(f"{number:,} newly broken: {way}"), indent=2)
    for kind in ("newly_broken", "changed"):
        found = next((one for one in good.examples if one["kind"] == kind), None)
        for words in _example(found) if found else ():
            _say(console, Text(words.lstrip()), indent=4 if words.startswith(" ") else 2)


def _say(console: Console, words: Text, indent: int = 0) -> None:
    """Print a sentence, broken between words; what is broken off stands two columns further in."""
    for number, line in enumerate(words.wrap(console, console.width - indent - 2)):
        line.rstrip()
        console.print(Text(" " * (indent + 2 * bool(number))).append_text(line))


def _example(found: dict[str, Any]) -> Iterator[str]:
    yield f"for example event {plain(found['event_id'])}:"
    if found["kind"] == "newly_broken":
        yield f"  {found['way']} — {plain(found['message'])[:_MESSAGE_CHARS]}"
    for column, (before, after) in found.get("columns", {}).items():
        yield f"  {plain(column)}: {_value(before)} → {_value(after)}"


def _value(value: object) -> str:
    text = plain(value) if isinstance(value, str) else "null" if value is None else str(value)
    return text if len(text) <= _VALUE_CHARS else f"{text[:_VALUE_CHARS]}…"


def _percent(share: float) -> str:
    """Return a share in per cent; what is not quite all, or none, is not called so."""
    percent = share * 100
    shown = round(percent, 1)
    if shown in {0.0, 100.0} and shown != percent:
        return "< 0.1 %" if not shown else "> 99.9 %"
    return f"{shown:g} %"
