"""``waybill balance`` and ``waybill trail``: the books, and the way of one event."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from waybill.operations.balancing import BalanceReport, PipelineBalance
    from waybill.operations.trails import Trail

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
    ("unaccounted", "unac-\ncounted"),
)
_ALWAYS = ("in_first", "passed", "parked", "unaccounted")


def balance(
    pipeline: Annotated[str | None, typer.Option(help="Only this pipeline (name or id).")] = None,
    since: Annotated[
        datetime | None, typer.Option(help="Only intake minutes from this time on (UTC).")
    ] = None,
    *,
    minutes: Annotated[bool, typer.Option(help="One line for each intake minute.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Show that what went in came out: per pipeline, event name and stage. Exit code 2 if not."""
    import orjson  # noqa: PLC0415

    from waybill.settings import Settings  # noqa: PLC0415
    from waybill.wiring import balance as read  # noqa: PLC0415

    moment = None if since is None else since.replace(tzinfo=UTC)
    report = read(Settings(), pipeline=pipeline, since=moment)
    if as_json:
        typer.echo(orjson.dumps(report.to_json()).decode())
    else:
        _show_balance(report, minutes=minutes)
    if report.unaccounted and not report.in_flight:
        raise typer.Exit(2)


def trail(
    event_id: Annotated[str, typer.Argument(help="The event's id, as parked and trace lines say.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Show where an event was: every stop in order, with time and place."""
    import orjson  # noqa: PLC0415

    from waybill.settings import Settings  # noqa: PLC0415
    from waybill.wiring import trail as read  # noqa: PLC0415

    found = read(Settings(), event_id)
    if as_json:
        typer.echo(orjson.dumps(found.to_json()).decode())
    else:
        _show_trail(found)
    if not found.stops:
        raise typer.Exit(1)


def _show_balance(report: BalanceReport, *, minutes: bool) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    console = Console()
    if not report.pipelines:
        console.print("Nothing was taken in yet.")
        return
    shown = [
        (name, title)
        for name, title in _COUNTERS
        if name in _ALWAYS
        or any(_count(group, s, name) for group in report.pipelines for s in _STAGES)
    ]
    table = Table(title="Ledger", title_justify="left", header_style="bold")
    table.add_column("stage", no_wrap=True)
    for _, title in shown:
        table.add_column(title, justify="right")
    for group in report.pipelines:
        table.add_section()
        table.add_row(f"[bold]{group.pipeline} / {group.event_name}[/]")
        for stage in _STAGES:
            table.add_row(*_stage_cells(group, stage, [name for name, _ in shown]))
    console.print(table)
    if minutes:
        _show_minutes(report)
    state = "in balance" if not report.unaccounted else f"{report.unaccounted:,} unaccounted for"
    style = "bold green" if not report.unaccounted else "bold red"
    console.print(
        f"{report.ingested:,} taken in = {report.delivered:,} delivered + {report.parked:,} parked "
        f"+ {report.discarded:,} discarded + {report.filtered:,} filtered + {report.superseded:,} "
        f"superseded + {report.duplicate:,} duplicate + {report.in_flight:,} in flight",
        highlight=False,
    )
    console.print(state, style=style)


def _stage_cells(group: PipelineBalance, stage: str, names: list[str]) -> list[str]:
    cells = [f"  {stage}"]
    for name in names:
        number = _count(group, stage, name)
        if name == "unaccounted":
            cells.append("[green]0[/]" if not number else f"[bold red]{number:,}[/]")
        else:
            cells.append(f"{number:,}" if number else "·")
    return cells


def _count(group: PipelineBalance, stage: str, name: str) -> int:
    counts = group.stages[stage]
    if name == "in_flight":
        return counts.in_flight + counts.in_flight_replayed
    if name == "unaccounted":
        return sum(
            abs(gap)
            for place, gap in group.breaches.items()
            if place == stage or place.startswith(f"{stage} (")
        )
    return int(getattr(counts, name))


def _show_minutes(report: BalanceReport) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    names = {group.pipeline_id: group.pipeline for group in report.pipelines}
    table = Table(title="By intake minute (UTC)", title_justify="left", header_style="bold")
    for name in ("minute", "pipeline / event"):
        table.add_column(name)
    for name in ("taken in", "delivered", "unaccounted"):
        table.add_column(name, justify="right")
    for row in report.minutes:
        moment = datetime.fromtimestamp(row.minute * 60, UTC)
        gap = sum(map(abs, row.breaches().values()))
        table.add_row(
            f"{moment:%Y-%m-%d %H:%M}",
            f"{names.get(row.pipeline_id, row.pipeline_id)} / {row.event_name}",
            f"{row.stage('ingestion').in_first:,}",
            f"{row.stage('destination').passed:,}",
            "[green]0[/green]" if not gap else f"[red]{gap:,}[/red]",
        )
    Console().print(table)


def _show_trail(found: Trail) -> None:
    from rich.console import Console  # noqa: PLC0415

    console = Console()
    if not found.stops:
        console.print(
            f"No trace of [bold]{found.event_id}[/bold]: looked in the trace store and in this "
            "machine's files that are not shipped yet. Ids are 32 hex digits, children "
            "`id/index`; `waybill parked sample` shows ids of parked events."
        )
        return
    first = found.stops[0]
    console.print(f"[bold]{found.event_id}[/bold]  {first.pipeline_id} / {first.event_name}")
    before: datetime | None = None
    for stop in found.stops:
        since = "" if before is None else f"+{(stop.at - before).total_seconds():.1f} s"
        before = stop.at
        style = {"parked": "yellow", "replayed": "cyan", "delivered": "green"}.get(
            stop.outcome, "white"
        )
        place = _place(stop.topic, stop.kafka_partition, stop.kafka_offset, stop.object_key)
        why = f" [{style}]({stop.error_type})[/]" if stop.error_type else ""
        console.print(
            f"  {stop.at:%Y-%m-%d %H:%M:%S.%f} {since:>9}  {stop.phase:<14} "
            f"[{style}]{stop.outcome}[/]{why}  [dim]{place}[/]",
            highlight=False,
            soft_wrap=True,
        )
    if found.uncommitted:
        console.print(f"  {found.uncommitted} traces of batches that ran again are left out")


def _place(topic: str | None, partition: int | None, offset: int | None, key: str | None) -> str:
    parts = []
    if topic:
        where = f"{topic}" if offset is None or offset < 0 else f"{topic}/{partition}@{offset}"
        parts.append(where)
    if key:
        parts.append(key)
    return "  ".join(parts)
