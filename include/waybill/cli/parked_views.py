"""How parked partitions and events look on a terminal.

Names and messages come from users: they are never read as markup, and control characters are shown,
not sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

import orjson
import typer
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from waybill.cli.words import counted
from waybill.events import error_type
from waybill.parking import (
    DiscardReport,
    FailureCause,
    ParkedEvent,
    ParkedGroup,
    ParkedGroupFilter,
)

_MESSAGE_CHARS = 160
_STEPS = 1024.0
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def plain(text: str) -> str:
    """Return a text with what is not printable written out: no terminal command gets through."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


_STATES = (
    ("parked", "bold yellow"),
    ("replaying", "cyan"),
    ("replayed", "green"),
    ("quarantined", "bold red"),
    ("discarded", "dim"),
)
_WIDE = 130
"""From this width on, times and the last message have their place."""
_NAME_WIDTH = 18
_WAY_OUT = "`waybill parked recheck` once their files are back"
_MOST_CAUSES = 16
MOST_KEYS = 3
"""Objects of a partition that are shown."""


def table(found: Sequence[ParkedGroup]) -> None:
    """Print partitions, one a line, and their sum; columns that say nothing are left out."""
    console = Console(highlight=False)
    wide = console.width >= _WIDE
    shown = [
        (name, style)
        for name, style in _STATES
        if name == "parked" or any(getattr(partition, name) for partition in found)
    ]
    grid = Table(title="Parked partitions", title_justify="left", header_style="bold")
    for name in ("pipeline / event", "stage / error type"):
        grid.add_column(name, overflow="fold", min_width=_NAME_WIDTH if wide else None)
    for name, _ in shown:
        grid.add_column(name, justify="right", no_wrap=True)
    grid.add_column("size", justify="right", no_wrap=True)
    if wide:
        grid.add_column("taken in (UTC)", no_wrap=True)
        grid.add_column("last message", max_width=50, overflow="ellipsis")
    for partition in found:
        grid.add_row(*_row(partition, shown, wide=wide))
    console.print(grid)
    parked = sum(partition.parked for partition in found)
    apart = sum(partition.quarantined for partition in found)
    ways = f", {apart:,} quarantined: {_WAY_OUT}" if apart else ""
    console.print(
        f"{counted(parked, 'event')} parked in {counted(len(found), 'partition')}{ways}. "
        "`waybill parked show PIPELINE` says what to do."
    )


def _row(partition: ParkedGroup, shown: Sequence[tuple[str, str]], *, wide: bool) -> list[Text]:
    numbers = [(getattr(partition, name), style) for name, style in shown]
    cells = [
        Text(plain(f"{partition.pipeline} / {partition.event_name or '(empty)'}")),
        Text(plain(f"{partition.stage} / {partition.error_type}")),
        *(Text(f"{n:,}" if n else "·", style if n else "dim") for n, style in numbers),
        Text(size(partition.bytes)),
    ]
    if wide:
        first, last = _minute(partition.first_event_at), _minute(partition.last_event_at)
        cells.append(Text(first if first == last else f"{first} to {last[-5:]}"))
        cells.append(Text(plain(partition.last_message)))
    return cells


def panel(partition: ParkedGroup, causes: Sequence[FailureCause], keys: Sequence[str]) -> None:
    """Print one partition with what its error means, its causes, and the objects it is in."""
    meaning = error_type(partition.error_type)
    kind = "transient: may pass later by itself" if meaning.transient else "permanent"
    lines = [
        (f"{meaning.title} ({kind})", "bold"),
        (f"What to do: {meaning.advice}", ""),
        ("", ""),
        (
            f"{partition.parked:,} parked, {partition.replaying:,} replaying, "
            f"{partition.replayed:,} replayed, {partition.discarded:,} discarded"
            f"{_quarantined(partition)}; {size(partition.bytes)}",
            "",
        ),
        (
            f"events from {_minute(partition.first_event_at)} to "
            f"{_minute(partition.last_event_at)}, last parked "
            f"{_minute(partition.last_parked_at)} (UTC)",
            "",
        ),
        (f"last message: {plain(partition.last_message)}", "yellow"),
        *((line, "") for line in _causes(causes)),
        *((line, "") for line in _objects(keys)),
    ]
    if partition.quarantined:
        lines.append((f"quarantined, as their files are damaged or gone: {_WAY_OUT}", "bold red"))
    body = Text("\n").join(Text(words, style) for words, style in lines)
    Console(highlight=False).print(
        Panel(body, title=Text(plain(partition.name)), title_align="left")
    )


def _quarantined(partition: ParkedGroup) -> str:
    return f", {partition.quarantined:,} quarantined" if partition.quarantined else ""


def _causes(causes: Sequence[FailureCause]) -> Iterator[str]:
    """Yield a line for each cause: its fingerprint, as `--fingerprint` takes it, first."""
    if causes:
        yield "causes, by fingerprint:"
    for cause in causes[:_MOST_CAUSES]:
        name = cause.fingerprint or "several causes  "
        message = plain(cause.message)[:_MESSAGE_CHARS]
        yield f"{name}  {counted(cause.events, 'event')}: {message}"
    if len(causes) > _MOST_CAUSES:
        yield f"and {len(causes) - _MOST_CAUSES} more; `--json` shows them"


def _objects(keys: Sequence[str]) -> Iterator[str]:
    if keys:
        yield "objects, the newest first:"
    yield from map(plain, keys[:MOST_KEYS])
    if len(keys) > MOST_KEYS:
        yield "and more; `--json` shows them"


def event(parked: ParkedEvent) -> None:
    """Print one event under its error."""
    console = Console(highlight=False)
    head = f"{parked.stage}/{parked.error_type}  {parked.pipeline_id}/{parked.event_name}"
    console.print(Text(plain(head), "bold"))
    place = f"  ({_cut(parked.where)})" if parked.where else ""
    console.print(Text(plain(_cut(parked.message) + place), "yellow"))
    when = f"event time {parked.event_at}, parked {parked.parked_at}"
    if parked.kafka_partition >= 0:
        when += f", {parked.topic}/{parked.kafka_partition}@{parked.kafka_offset}"
    console.print(Text(plain(f"{when}, attempt {parked.attempt}"), "dim"))
    console.print(Text(_pretty(parked.value)))
    console.print()


def _cut(message: str) -> str:
    return message if len(message) <= _MESSAGE_CHARS else message[:_MESSAGE_CHARS] + "…"


def _pretty(value: bytes) -> str:
    try:
        orjson.loads(value)
        text = value.decode()
    except ValueError:
        text = value.decode("utf-8", "backslashreplace")
    return plain(text)


def nothing(wanted: ParkedGroupFilter, *, everything: bool) -> None:
    """Say that nothing is parked, or nothing that matches."""
    console = Console(highlight=False)
    if wanted.names_nothing:
        console.print("[green]Nothing is parked.[/] Every event went on, or was dealt with.")
    else:
        console.print(
            "No parked partition matches. `waybill parked list` shows all that is parked."
        )
    if not everything:
        console.print("[dim]`--all` also lists partitions that were replayed or discarded.[/]")


def size(number: float) -> str:
    """Return bytes in words."""
    for unit in _UNITS:
        if number < _STEPS or unit == _UNITS[-1]:
            break
        number /= _STEPS
    return f"{number:,.0f} {unit}" if unit == "B" else f"{number:,.1f} {unit}"


def _minute(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M}"


def decided(report: DiscardReport, what: str, left: str) -> None:
    """Print what a discard or its undoing did, and what it left."""
    typer.echo(
        f"{counted(report.events, 'event')} {what}, in {counted(report.segments, 'segment')} of "
        f"{counted(report.partitions, 'partition')}"
    )
    if report.left_segments:
        numbers = counted(report.left_events, "event"), counted(report.left_segments, "segment")
        typer.echo(left.format(*numbers))
