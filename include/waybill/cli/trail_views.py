"""How trails look on a terminal: a line of stops, with times, durations and places.

Ids, names and keys come from users: they are never read as markup, and control characters are
shown, not sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from waybill.cli.parked_views import plain
from waybill.cli.words import counted

if TYPE_CHECKING:
    from waybill.trails import Question

_STYLES = {
    "delivered": "green",
    "parked": "yellow",
    "replaying": "cyan",
    "replayed": "cyan",
    "in flight": "cyan",
    "quarantined": "bold red",
    "discarded": "bright_black",
    "filtered": "bright_black",
}
_MOST_MISSING = 50
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_SHORTEST_S = 0.001
_INDENT = " " * 15
_LATE = (
    "~ a late mark: it was written after what it caused (a replay's is, once Kafka has the event), "
    "or by a clock that is ahead; shown is the time by which it had happened"
)


def print_answer(question: Question, answer: Mapping[str, Any]) -> None:
    """Print what was found, and of what was not, what is known near it."""
    console = Console(highlight=False)
    for line in _lines(question, answer):
        console.print(line, soft_wrap=False, overflow="fold")


def _lines(question: Question, answer: Mapping[str, Any]) -> Iterator[Text]:
    if question.key is not None:
        yield from _ways(answer)
    for trail in answer["trails"]:
        yield from _trail(trail)
    if answer["more"]:
        yield Text(f"{counted(answer['more'], 'older event')} of this key are not shown.", "dim")
    yield from _missing(answer)
    if answer["missing"] or not answer["trails"]:
        for sentence in answer["searched_said"]:
            yield Text(plain(sentence), "bright_black")


def _ways(answer: Mapping[str, Any]) -> Iterator[Text]:
    hits = [way for way in answer["ways"] if way["events"]]
    for way in hits:
        yield Text(plain(f"{counted(way['events'], 'event')} {way['event_name']} {way['key']}"))
    if hits:
        yield Text()
        return
    tried = [f"{way['event_name']} {way['key']}" for way in answer["ways"][:_MOST_MISSING]]
    yield Text("No event has this key.", "bold")
    yield Text(plain(f"Tried: {'; '.join(tried)}"))


def _missing(answer: Mapping[str, Any]) -> Iterator[Text]:
    missing = answer["missing"]
    for one in missing[:_MOST_MISSING]:
        if answer["trails"] or not answer["ways"]:
            yield Text.assemble(("No trace of ", "bold"), (plain(one["id"]), "bold"))
        for sentence in one["nearest"]:
            yield Text(plain(f"  {sentence}"))
    if len(missing) > _MOST_MISSING:
        yield Text(f"and of {len(missing) - _MOST_MISSING:,} more; --json names them")


def _trail(trail: Mapping[str, Any], indent: str = "") -> Iterator[Text]:
    style = _STYLES.get(trail["state"], "")
    name = f"{trail['pipeline'] or trail['pipeline_id']} / {trail['event_name'] or '(empty)'}"
    yield Text.assemble(indent, (plain(trail["event_id"]), "bold"), "  ", (plain(name), ""))
    yield Text(f"{indent}{plain(trail['said'])}", f"bold {style}".strip())
    day, leg, before = "", 0, None
    times = [datetime.fromisoformat(stop["at"]) for stop in trail["stops"]]
    for number, (stop, written) in enumerate(zip(trail["stops"], times, strict=True)):
        at = min(times[number:])  # whatever caused it, it had happened by then
        if f"{at:%Y-%m-%d}" != day:
            day = f"{at:%Y-%m-%d}"
            yield Text(f"{indent}{day} (UTC)", "bright_black")
        if stop["leg"] != leg:
            leg = stop["leg"]
            yield Text(f"{indent}├─ {plain(_replay(stop))}", "cyan")
        yield from _stop(stop, at, written, before, indent)
        before = at
    if times != sorted(times):
        yield Text(f"{indent}{_LATE}", "bright_black")
    yield from _rest(trail, indent)
    for child in trail["children"]:
        yield from _trail(child, indent + "  ")
    if not indent:
        yield Text()


def _stop(
    stop: Mapping[str, Any],
    at: datetime,
    written: datetime,
    before: datetime | None,
    indent: str,
) -> Iterator[Text]:
    style = _STYLES.get(stop["outcome"], "")
    why = f" ({stop['error_type']})" if stop["error_type"] else ""
    yield Text.assemble(
        f"{indent}● {_clock(at)}{'~' if written > at else ' '}",
        (f"{_after(at, before):>11}  ", "bright_black"),
        f"{plain(stop['phase'])}  ",
        (plain(stop["outcome"] + why), style),
    )
    host = f"on {stop['host']}" if stop["host"] else ""
    places = [plain(part) for part in (stop["place"], host) if part]
    if places:
        yield Text(f"{indent}│{_INDENT}{'  '.join(places)}", "bright_black")
    if written > at:
        day = "" if written.date() == at.date() else f"{written:%Y-%m-%d} "
        yield Text(f"{indent}│{_INDENT}mark written at {day}{_clock(written)}", "bright_black")
    if now := stop.get("parked"):
        yield Text(f"{indent}│{_INDENT}{plain(_now(now, stop))}", "yellow")


def _clock(moment: datetime) -> str:
    return f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03}"


def _after(at: datetime, before: datetime | None) -> str:
    """Return the time since the stop before; marks of one moment have none to tell."""
    if before is None:
        return ""
    passed = (at - before).total_seconds()
    return f"+{span(passed)}" if passed >= _SHORTEST_S else "+<1 ms"


def _now(now: Mapping[str, Any], stop: Mapping[str, Any]) -> str:
    by = f" by {now['by']}" if now["by"] else ""
    run = (stop.get("replay") or {}).get("run_id")
    ran = f", run {run}" if run else ""
    return f"now {now['state']}{by}{ran} (partition {now['partition_id']})"


def _replay(stop: Mapping[str, Any]) -> str:
    row = stop.get("replay") or {}
    who = f" by {row['requested_by']}" if row else ""
    run = f", run {row['run_id']}" if row.get("run_id") else ""
    return f"replay {stop['leg']}{who}{run}"


def _rest(trail: Mapping[str, Any], indent: str) -> Iterator[Text]:
    if trail["left_out"]:
        yield Text(f"{indent}{counted(trail['left_out'], 'stop')} left out", "dim")
    if trail["uncommitted"]:
        number = counted(trail["uncommitted"], "trace")
        yield Text(f"{indent}{number} of batches that did not commit left out", "dim")
    if trail["more"]:
        yield Text(f"{indent}{counted(trail['more'], 'more event')} made of it", "dim")


def span(seconds: float) -> str:
    """Return "0.042 s", "12.3 s", "3 min 5 s", "2 h 10 min", "3 d 4 h"."""
    whole = round(seconds)
    if seconds < _MINUTE:
        return f"{seconds:.3f} s" if seconds < 10 else f"{seconds:.1f} s"  # noqa: PLR2004
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR} h"
