"""``waybill trail|queries``: where events are, and the questions that were asked about them.

Ids, names and keys come from users: they are never read as markup, and control characters are
shown, not sent.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from waybill.cli.command import DEPLOYED, only_choice
from waybill.cli.exit_codes import ExitCode
from waybill.cli.options import AsJson, takes
from waybill.cli.output import counted, echo, folded_text, plain, print_json, screen_width, terminal
from waybill.cli.tables import Column, Table, print_table
from waybill.trails import TrailRequest

if TYPE_CHECKING:
    from waybill.trails import Asked, Question, TrailService
_MOST_FILE_BYTES = 4 * 1024**2
_STYLES = {
    "delivered": "green",
    "deleted": "green",
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
_COARSE_S = 0.1
_SECONDS_IN_DIGITS = 10
_NO_SCREEN = 10**6
_MOST_NUMBERED = 5
_INDENT = " " * 15
_LATE = (
    "~ a late mark: it was written after what it caused (a replay's is, once Kafka has the event), "
    "or by a clock that is ahead; shown is the time by which it had happened"
)
queries = typer.Typer(no_args_is_help=True, help="Questions about events: list, show, cancel.")
_Id = Annotated[str, typer.Argument(help="The question's id, or the beginning of it.")]


@takes(TrailRequest, argument="")
def trail(
    request: TrailRequest,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="Ids of events, up to 1,000.")
    ] = None,
    file: Annotated[
        str | None, typer.Option(metavar="FILE", help="A file of ids, one per line; -: stdin.")
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show where events are, or were: every stop in order, with time and place.

    Exit code 0: all were found; 3: some were not.
    """
    from waybill.cli.arrow import pandas_left_out
    from waybill.services import current_user, opened_trails
    from waybill.settings import Settings

    with pandas_left_out(), opened_trails(Settings()) as trails:
        if request.pipeline is None and not request.key:
            if request.event_name is not None:
                raise _needs_key("--event-name")
            if not ids and file is None:
                raise _needs_id()
            question = _of_ids([*(ids or ()), *_read(file)], request)
        else:
            _refuse_both(ids, file)
            question = _of_key(trails, request)
        asked = trails.run(question, who=current_user())
    _show_asked(asked, as_json=as_json)
    if asked.answer is None or asked.answer["missing"] or not asked.answer["trails"]:
        raise typer.Exit(ExitCode.ABSENT)


def _show_asked(asked: Asked, *, as_json: bool) -> None:
    """Print a question that has ended.

    Raises:
        InputError: it was cancelled.
        RetryError: it failed; says why.
    """
    from waybill.errors import InputError, RetryError

    if as_json:
        answer: dict[str, Any] = asked.answer or {}
        print_json({"query": asked.to_json(), **answer})
    elif asked.answer is None:
        error = InputError if asked.state == "cancelled" else RetryError
        raise error(f"the question is {asked.state}: {asked.error or 'there is no answer'}")
    else:
        _print_answer(asked.question, asked.answer)


def _of_ids(texts: list[str], request: TrailRequest) -> Question:
    from waybill.trails import ask_for_ids

    since, until = _edges(request)
    return ask_for_ids(texts, since=since, until=until)


def _of_key(trails: TrailService, request: TrailRequest) -> Question:
    from waybill.errors import NotFoundError
    from waybill.trails import ask_for_key

    pipeline, key = request.pipeline or only_choice(DEPLOYED), request.key
    if not key:
        raise _needs_key("--pipeline")
    found = trails.pipeline(pipeline)
    if found is None:
        raise NotFoundError(
            f"there is no pipeline {pipeline!r}; `waybill pipelines list` shows those there are"
        )
    since, until = _edges(request)
    return ask_for_key(found.id, key, event_name=request.event_name, since=since, until=until)


def _edges(request: TrailRequest) -> tuple[datetime | None, datetime | None]:
    from waybill.trails import parsed_moment

    return parsed_moment(request.since, "--since"), parsed_moment(request.until, "--until")


def _read(file: str | None) -> list[str]:
    """Return the ids of a file, or of what is piped in."""
    from waybill.errors import InputError, NotFoundError
    from waybill.trails import ids_in

    if file is None:
        return []
    try:
        if file == "-":
            body = sys.stdin.buffer.read(_MOST_FILE_BYTES + 1)
        else:
            with Path(file).open("rb") as opened:
                body = opened.read(_MOST_FILE_BYTES + 1)
        if len(body) > _MOST_FILE_BYTES:
            raise InputError(f"--file {file}: it has more than {_MOST_FILE_BYTES:,} bytes")
        return ids_in(body.decode("utf-8-sig"))
    except FileNotFoundError as error:
        raise NotFoundError(f"--file {file}: {error.strerror}") from error
    except OSError as error:
        raise InputError(f"--file {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"--file {file}: it is not UTF-8 text") from error


def _needs_id() -> Exception:
    from waybill.errors import InputError

    return InputError(
        "no event was named: give its id, `waybill trail ID`; ids in a file, --file FILE; or its "
        "primary key, `waybill trail --pipeline NAME --key VALUE`"
    )


def _needs_key(given: str) -> Exception:
    from waybill.errors import InputError

    return InputError(f"{given} says nothing alone; a key is asked for by --pipeline and --key")


def _refuse_both(ids: list[str] | None, file: str | None) -> None:
    from waybill.errors import InputError

    if ids or file is not None:
        raise InputError("give ids, or --pipeline and --key; not both")


def _print_answer(question: Question, answer: Mapping[str, Any]) -> None:
    """Print what was found, and of what was not, what is known near it."""
    console, width = terminal(), screen_width()
    for line in _lines(question, answer):
        begins = line.plain[: len(line.plain) - len(line.plain.lstrip(" │"))]
        set_in = begins if "│" in begins else f"{begins}  "
        for part in folded_text(line, width, set_in):
            console.print(part, soft_wrap=True)


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
    for one in answer["missing"]:
        for sentence in one["nearest"]:
            yield Text(plain(f"  {sentence}"))
    yield Text(plain(f"Tried: {'; '.join(tried)}"), "bright_black")


def _missing(answer: Mapping[str, Any]) -> Iterator[Text]:
    missing = answer["missing"]
    if answer["ways"] and not answer["trails"]:
        return
    for one in missing[:_MOST_MISSING]:
        yield Text(
            f"Not found: no event with the id {plain(one['id'])} was taken in",
            "bold",
        )
        for sentence in one["nearest"]:
            yield Text(plain(f"  {sentence}"))
    if len(missing) > _MOST_MISSING:
        yield Text(f"and of {len(missing) - _MOST_MISSING:,} more; --json names them")


def _trail(trail: Mapping[str, Any], indent: str = "") -> Iterator[Text]:
    style = _STYLES.get(trail["state"], "")
    name = f"{trail['pipeline'] or trail['pipeline_id']} / {trail['event_name'] or '(empty)'}"
    yield Text.assemble(indent, (plain(trail["event_id"]), "bold"), "  ", (plain(name), ""))
    yield Text(f"{indent}{plain(trail['said'])}", f"bold {style}".strip())
    if copies := max((int(stop.get("copy_number") or 0) for stop in trail["stops"]), default=0):
        times = {2: "twice"}.get(copies, f"{copies:,} times")
        yield Text(f"{indent}taken in {times}: each copy has its own way below", "bright_black")
    for copy, stops in groupby(trail["stops"], key=lambda stop: int(stop.get("copy_number") or 0)):
        if copies:
            yield _of_copy(trail, copy, indent)
        yield from _way(stops, indent)
    if any(_written(stop) > _shown_at(stop) for stop in trail["stops"]):
        yield Text(f"{indent}{_LATE}", "bright_black")
    yield from _rest(trail, indent)
    for child in trail["children"]:
        yield from _trail(child, indent + "  ")
    if not indent:
        yield Text()


def _of_copy(trail: Mapping[str, Any], copy: int, indent: str) -> Text:
    """Return what stands above the stops of a copy, or of those whose copy is not known."""
    if not copy:
        return Text(f"{indent}copy not known: a trace is missing, or not here yet", "bold")
    verdict = next((one for one in trail.get("copies", ()) if one["copy_number"] == copy), None)
    if verdict is None:
        return Text(f"{indent}copy {copy:,}", "bold")
    style = _STYLES.get(verdict["state"], "")
    return Text(f"{indent}copy {copy:,}: {plain(verdict['said'])}", f"bold {style}".strip())


def _way(stops: Iterable[Mapping[str, Any]], indent: str) -> Iterator[Text]:
    """Yield stops that follow each other, with their days and replays."""
    day, leg = "", 0
    before: _Shown | None = None
    for stop in stops:
        at = _shown_at(stop)
        if f"{at:%Y-%m-%d}" != day:
            day = f"{at:%Y-%m-%d}"
            yield Text(f"{indent}{day} (UTC)", "bright_black")
        if stop["leg"] != leg:
            leg = stop["leg"]
            if leg:
                yield Text(f"{indent}├─ {plain(_replay(stop))}", "cyan")
        shown = _Shown(at, is_coarse=bool(stop.get("coarse")))
        yield from _stop(stop, shown, _written(stop), before, indent)
        before = shown


def _written(stop: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(stop["at"])


def _shown_at(stop: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(stop.get("shown_at") or stop["at"])


@dataclass(frozen=True, slots=True)
class _Shown:
    """A time as it is shown."""

    at: datetime
    is_coarse: bool
    """Known to a tenth of a second only."""

    @property
    def clock(self) -> str:
        """Return "21:26:24.570"; "21:26:24.5  " where no more is known."""
        return f"{_clock(self.at)[:-2]}  " if self.is_coarse else _clock(self.at)


def _stop(
    stop: Mapping[str, Any],
    shown: _Shown,
    written: datetime,
    before: _Shown | None,
    indent: str,
) -> Iterator[Text]:
    at = shown.at
    style = _STYLES.get(stop["outcome"], "")
    why = f" ({stop['error_type']})" if stop["error_type"] else ""
    yield Text.assemble(
        f"{indent}● {shown.clock}{'~' if written > at else ' '}",
        (f"{_after(shown, before):>11}  ", "bright_black"),
        f"{plain(stop['phase'])}  ",
        (plain(stop["outcome"] + why), style),
        (_shared(stop), "bold"),
    )
    room = (screen_width() or _NO_SCREEN) - len(indent) - 1 - len(_INDENT)
    for place in _places(plain(stop["place"]), plain(stop["host"]), room):
        yield Text(f"{_set_in(place, room, indent)}{place}", "bright_black")
    if written > at:
        day = "" if written.date() == at.date() else f"{written:%Y-%m-%d} "
        yield Text(f"{indent}│{_INDENT}mark written at {day}{_clock(written)}", "bright_black")
    if decided := stop.get("decision"):
        why = f": {decided['why']}" if decided["why"] else ""
        yield Text(f"{indent}│{_INDENT}{plain('by ' + decided['who'] + why)}", "bright_black")
    if now := stop.get("parked"):
        yield Text(f"{indent}│{_INDENT}{plain(_now(now, stop))}", "yellow")


def _shared(stop: Mapping[str, Any]) -> str:
    """Return "  copies 1 and 2 together" of a trace that stands for several copies."""
    copies = stop.get("copies") or []
    if not copies[1:]:
        return ""
    *first, last = (f"{number:,}" for number in copies)
    if len(first) > _MOST_NUMBERED:
        return f"  {len(copies):,} copies together"
    return f"  copies {', '.join(first)} and {last} together"


def _clock(moment: datetime) -> str:
    return f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03}"


def _places(place: str, host: str, room: int) -> list[str]:
    """Return the lines that say where a stop was: each place with its host, or whole on its own.

    A place that is longer than the room is whole nevertheless: the terminal breaks it, a copy has
    all of it.
    """
    own = f"on {host}" if host else ""
    whole = "  ".join(part for part in (place, own) if part)
    if len(whole) <= room or not place:
        return [whole] if whole else []
    parts = place.split("  ")
    if own and len(parts[-1]) + len(own) + 2 <= room:
        return [*parts[:-1], f"{parts[-1]}  {own}"]
    return [*parts, *([own] if own else [])]


def _set_in(place: str, room: int, indent: str) -> str:
    """Return what stands before a place: less of it where that keeps the place on one line."""
    if len(place) <= room:
        return f"{indent}│{_INDENT}"
    return f"{indent}│ " if len(place) < room + len(_INDENT) else ""


def _after(shown: _Shown, before: _Shown | None) -> str:
    """Return the time since the stop before; marks of one moment have none to tell."""
    if before is None:
        return ""
    passed = (shown.at - before.at).total_seconds()
    if (shown.is_coarse or before.is_coarse) and passed < _SECONDS_IN_DIGITS:
        return f"+{passed:.1f} s" if passed >= _COARSE_S else "+<0.1 s"
    return f"+{span(passed)}" if passed >= _SHORTEST_S else "+<1 ms"


def _now(now: Mapping[str, Any], stop: Mapping[str, Any]) -> str:
    by = f" by {now['by']}" if now["by"] else ""
    run = (stop.get("replay") or {}).get("run_id")
    ran = f", run {run}" if run else ""
    return f"now {now['state']}{by}{ran} (parked group {now['partition_id']})"


def _replay(stop: Mapping[str, Any]) -> str:
    from waybill.trails import asked_by

    row = stop.get("replay") or {}
    who = f" by {asked_by(row['requested_by'])}" if row else ""
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


@queries.command("list")
def list_(
    by: Annotated[str | None, typer.Option(help="Only questions of this user.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="List at most this many.")] = 20,
    *,
    as_json: AsJson = False,
) -> None:
    """List the newest questions: who asked what, and how far the answer is."""
    from waybill.services import opened_trails
    from waybill.settings import Settings

    with opened_trails(Settings()) as trails:
        found = [
            trails.told(one, None, personal=False)
            for one in trails.newest(asked_by=by, limit=limit)
        ]
    if as_json:
        print_json([one.to_json() for one in found])
    else:
        print_table(_question_table(found))


@queries.command()
def show(query_id: _Id, *, as_json: AsJson = False) -> None:
    """Show the stored answer to a question."""
    from waybill.services import current_user, opened_trails
    from waybill.settings import Settings

    with opened_trails(Settings()) as trails:
        asked = trails.find(query_id)
        asked = trails.told(asked, None, personal=asked.asked_by == current_user())
    _show_asked(asked, as_json=as_json)


@queries.command()
def cancel(query_id: _Id, *, as_json: AsJson = False) -> None:
    """Cancel a question that is still being answered."""
    from waybill.errors import InputError
    from waybill.services import current_user, opened_trails
    from waybill.settings import Settings

    with opened_trails(Settings()) as trails:
        asked = trails.find(query_id)
        if asked.ended:
            raise InputError(f"question {asked.id} has ended already: {asked.state}")
        trails.cancel(asked.id, who=current_user())
    if as_json:
        print_json({"id": str(asked.id), "cancelled": True})
        return
    echo(f"question {asked.id} is told to end")


def _question_table(found: Sequence[Asked]) -> Table:
    rows = []
    for one in found:
        state: str = one.state
        if state == "running":
            state += f" {one.objects_read:,}/{one.objects:,}"
        rows.append((one.id, one.asked_at, one.asked_by, state, one.question.words))
    return Table(
        (
            Column("id"),
            Column("asked (UTC)", spare=1),
            Column("by", spare=2),
            Column("state"),
            Column("for", "words"),
        ),
        rows,
        "Nobody has asked for an event yet: `waybill trail ID`.",
    )
