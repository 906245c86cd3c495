"""``waybill parked``: look at what is parked and where, take it out, discard it, take that back.

Every command takes the same filters. With ``--json`` standard output is one JSON value.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import orjson
import typer
from pydantic import Field

from waybill.cli.exit_codes import ExitCode
from waybill.cli.options import (
    PARTITION_FLAGS,
    AllPipelines,
    AsJson,
    Reason,
    Who,
    Yes,
    ask,
    decision,
    require_scope,
    takes,
)
from waybill.cli.output import (
    counted,
    echo,
    echo_json,
    indented,
    plain,
    print_folded,
    print_json,
    print_line,
    readable_size,
)
from waybill.cli.promises import tell_hindrances
from waybill.cli.tables import Cell, Column, Styled, Table, clock, print_facts, print_table
from waybill.events import error_type
from waybill.parking import ParkedFilter

if TYPE_CHECKING:
    from waybill.inspection import NewestEvents, ParkedEventsService
    from waybill.parking import (
        Damage,
        DiscardReport,
        FailureCause,
        ParkedEvent,
        ParkedFile,
        ParkedFiles,
        ParkedGroup,
        ParkedGroupFilter,
        Parking,
    )
    from waybill.replay import Remedy

app = typer.Typer(
    no_args_is_help=True,
    help="Parked events: list, show, sample, files, download, replay, discard.",
)
_MOST_SHOWN = 20
_MOST_FILES = 100_000
_MOST_SAMPLED = 100
"""Events that are proposed to be shown at once."""
_MOST_KEYS = 100
"""Objects of a partition, the newest, in JSON."""
_FLAGS = {
    **PARTITION_FLAGS,
    "fingerprint": ("--fingerprint", "-f"),
}
_GROUP_NAMES = ("pipeline", "event_name", "stage", "error_type")
_WINDOW = ("since", "until")
_PARKED_WINDOW = ("parked_since", "parked_until")
Unmasked = Annotated[
    bool, typer.Option("--personal", help="Unmask personal fields; this goes to the audit log.")
]
_MESSAGE_CHARS = 160
_STATES = (
    ("parked", "bold yellow"),
    ("replaying", "cyan"),
    ("replayed", "green"),
    ("quarantined", "bold red"),
    ("discarded", "dim"),
)
_SPARE = {"discarded": 6, "replayed": 5}
"""States whose numbers are left out where there is no room."""
_EVER = {"replayed", "discarded"}
"""States whose numbers are of all times: an event that was sent back may have parked again."""
_WAY_OUT = "`waybill parked recheck` once their files are back"
_MOST_CAUSES = 16
_STEPS = ("step 1", "step 2", "step 3", "step 4")
"""Names of the commands that a remedy takes."""
_KEYS_SHOWN = 3
"""Objects of a partition that are shown."""


def _opened_parking() -> AbstractContextManager[Parking]:
    from waybill.services import opened_parking
    from waybill.settings import Settings

    return opened_parking(Settings())


def _opened_service() -> AbstractContextManager[ParkedEventsService]:
    from waybill.services import opened_parked_events
    from waybill.settings import Settings

    return opened_parked_events(Settings())


@app.command("list")
@takes(ParkedFilter, flags=_FLAGS)
def list_partitions(
    request: ParkedFilter,
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="Include groups with nothing left to decide.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the groups that hold parked or quarantined events, with their numbers.

    Messages about events with personal fields are masked as in `sample`; after 50 such groups they
    are hidden whole.
    """
    with _opened_service() as service:
        wanted = _filter(service.parking, request, kept=not everything)
        found = service.masked(service.parking.partitions(wanted))
    if as_json:
        print_json([partition.to_json() for partition in found])
    elif found:
        print_table(_group_table(found), _group_notes(found))
        _tell_masked_groups((partition, [partition.last_message]) for partition in found)
    else:
        _print_nothing(wanted, everything=everything)


@app.command()
@takes(ParkedFilter, flags=_FLAGS, without=(*_PARKED_WINDOW, "fingerprint"))
def show(
    request: ParkedFilter,
    *,
    as_json: AsJson = False,
) -> None:
    """Show parked groups one by one: causes, objects, what the error means and what to do.

    Messages about events with personal fields are masked as in `sample`.
    """
    with _opened_service() as service:
        wanted = _filter(service.parking, request)
        found = _some(service.parking, wanted)
        shown = service.masked_by_event(found if as_json else found[:_MOST_SHOWN])
        causes = service.causes(shown)
        most = _MOST_KEYS if as_json else _KEYS_SHOWN + 1
        keys = {one.id: service.parking.object_keys(one.id, limit=most) for one in shown}
        remedies = service.remedies(shown)
        newest = service.newest(found[:_MOST_SHOWN])
    if as_json:
        print_json(
            [
                partition.to_json()
                | {"error": asdict(error_type(partition.error_type))}
                | {"causes": [cause.to_json() for cause in causes[partition.id]]}
                | {
                    "objects": keys[partition.id],
                    "remedies": [asdict(one) for one in remedies.get(partition.id, ())],
                }
                | _newest_json(newest.get(partition.id))
                for partition in shown
            ]
        )
        return
    printed: dict[Remedy, str] = {}
    for number, partition in enumerate(shown):
        if number:
            echo("")
        advice = list(_advice(partition, remedies.get(partition.id, ()), printed))
        reasons = [
            *_copies(partition, newest.get(partition.id)),
            *_deletes(partition, newest.get(partition.id)),
            *_causes(causes[partition.id]),
        ]
        _print_group(partition, reasons, keys[partition.id], advice)
    if len(found) > _MOST_SHOWN:
        echo(f"and {len(found) - _MOST_SHOWN} more; narrow the filters")
    _tell_masked_groups(
        (partition, [partition.last_message, *(one.message for one in causes[partition.id])])
        for partition in shown
    )


@app.command()
@takes(ParkedFilter, flags=_FLAGS, without=(*_WINDOW, *_PARKED_WINDOW))
def sample(
    request: ParkedFilter,
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="How many.")] = 5,
    *,
    personal: Unmasked = False,
    as_json: AsJson = False,
) -> None:
    """Show some parked events next to their errors, spread over what is parked.

    Fields that the pipeline declares as personal are masked, also where messages quote them.
    """
    from waybill.parking import Damage

    with _opened_service() as service:
        found = _some(service.parking, _filter(service.parking, request, held=True))
        damage = Damage()
        events = service.sampled(
            found,
            number,
            who=_user(),
            personal=personal,
            damage=damage,
            fingerprint=request.fingerprint,
        )
    if as_json:
        echo_json(b"[" + b",".join(event.to_line() for event in events) + b"]")
    else:
        for event in events:
            _print_event(event)
        _tell_rest(found, len(events), number, request.fingerprint)
        _tell_masked(one.message + one.value.decode("utf-8", "replace") for one in events)
    _tell_damage(damage)


def _tell_masked(texts: Iterable[str]) -> None:
    """Say how what is masked in these texts can be seen; nothing where nothing is."""
    from waybill.access import MASK

    if any(MASK in text for text in texts):
        line = (
            f"{MASK} hides what may be personal: `waybill parked sample PIPELINE --personal` shows "
            "it, and the audit log says who looked"
        )
        print_folded([line], style="dim")


def _tell_masked_groups(found: Iterable[tuple[ParkedGroup, list[str]]]) -> None:
    """Say how what is masked in messages of groups can be seen, or that it cannot any more."""
    from waybill.access import MASK

    texts: dict[bool, list[str]] = {True: [], False: []}
    for group, messages in found:
        texts[group.held > 0] += messages
    _tell_masked(texts[True])
    if any(MASK in text for text in texts[False]):
        line = f"{MASK} of a group without parked events hides what nobody can look up any more"
        print_folded([line], style="dim")


def _tell_rest(
    found: Sequence[ParkedGroup], shown: int, number: int, fingerprint: str | None
) -> None:
    """Say how many events the sample left out; of one cause that is not counted."""
    if fingerprint is None and shown < number:
        return
    if fingerprint is not None:
        if shown < number and len(found) == 1:
            return
        print_folded([f"{counted(shown, 'event')}; --number shows more, if there are"], style="dim")
        return
    there = sum(group.parked + group.replaying for group in found)
    if there > shown:
        ways = f"--number {there} shows all"
        if there > _MOST_SAMPLED:
            ways = "--number shows more, `waybill parked download` takes all"
        print_folded([f"{shown:,} of {counted(there, 'event')}; {ways}"], style="dim")


@app.command("files")
@takes(ParkedFilter, flags=_FLAGS, without=(*_WINDOW, *_PARKED_WINDOW, "fingerprint"))
def list_files(
    request: ParkedFilter,
    number: Annotated[
        int, typer.Option("--number", "-n", min=1, max=_MOST_FILES, help="How many are listed.")
    ] = 20,
    price: Annotated[
        float | None,
        typer.Option(min=0, help="Of a GB (1,000,000,000 bytes) and month, to say what they cost."),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """List the objects that parked events are in: how large, what they hold, when they go.

    An object is shared by what one task parked at once, and goes whole: once none of its events
    is parked, replaying or quarantined any more. The store itself is not asked.
    """
    from waybill.settings import Settings

    settings = Settings()
    with _opened_parking() as parking:
        found = parking.files(_filter(parking, request), limit=number)
    if as_json:
        cost = {} if price is None else {"cost_a_month": _cost(found.bytes, price)}
        print_json(found.to_json() | {"kept_s": settings.parking.clean_up_grace_s} | cost)
        return
    grace = timedelta(seconds=settings.parking.clean_up_grace_s)
    for file in found.files:
        print_line(file.key)
        print_folded([f"  {readable_size(file.bytes)}; {_held(file)}; {_end_of(file, grace)}"])
    print_folded(_sums(found, price))
    if found.finished:
        tell_hindrances(settings, "finished files are not deleted", dags=["clean_up_parked_files"])


def _held(file: ParkedFile) -> str:
    numbers = [(getattr(file, name), name) for name, _ in _STATES]
    return ", ".join(f"{number:,} {name}" for number, name in numbers if number) or "no events"


def _end_of(file: ParkedFile, grace: timedelta) -> str:
    """Say when a file goes."""
    if file.finished_at is None:
        return "stays"
    return f"goes with the first clean-up after {clock(file.finished_at + grace)} UTC"


def _sums(found: ParkedFiles, price: float | None) -> Iterator[str]:
    shown = len(found.files)
    if shown < found.number:
        yield f"and {counted(found.number - shown, 'older file')}; -n shows more"
    sizes = f"{counted(found.number, 'file')}, {readable_size(found.bytes)}"
    if found.finished:
        sizes += (
            f"; {found.finished:,} of them, {readable_size(found.finished_bytes)}, are finished"
        )
    yield sizes
    if price is not None:
        yield f"{_cost(found.bytes, price):,.2f} a month, at {price:g} for a GB and month"


def _cost(size: int, price: float) -> float:
    return size / 10**9 * price


@app.command()
@takes(ParkedFilter, flags=_FLAGS, without=_PARKED_WINDOW)
def download(
    request: ParkedFilter,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File: .jsonl.zst, .jsonl or .csv.")
    ],
    *,
    personal: Unmasked = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write parked events, with their errors, to a file.

    Fields that the pipeline declares as personal are masked, also where messages quote them. All
    other events keep their own bytes; with --personal, so do these. What cannot be read is named
    at the end of the file and on standard error; the exit code is then 2.
    """
    from waybill.parking import Damage, export

    with _opened_service() as service:
        found = _some(service.parking, _filter(service.parking, request, held=True))
        damage = Damage()
        events = service.taken_out(
            found,
            who=_user(),
            personal=personal,
            since=request.since,
            until=request.until,
            damage=damage,
            fingerprint=request.fingerprint,
        )
        report = export(output, events, overwrite=force, damage=damage)
    if as_json:
        print_json(asdict(report))
    else:
        echo(f"{report.path}: {counted(report.events, 'event')}, {report.bytes:,} bytes")
    _tell_damage(damage)


def _tell_damage(damage: Damage) -> None:
    """Say on standard error what was left out, and exit with 2; nothing where nothing was."""
    for one in damage.listed:
        echo(one.words, err=True)
    if damage.segments:
        raise typer.Exit(ExitCode.FOUND)


class _DecisionRequest(ParkedFilter):
    """What is discarded or parked again, or the dry run of that."""

    dry_run: bool = Field(
        default=False, description="Say which groups it would take; change nothing."
    )


def _decision(
    verb: Literal["discard", "undo_discard"], question: str, done: str, left: str
) -> Callable[..., None]:
    """Return the command that decides on what matches, or takes the decision back."""
    state: Literal["parked", "discarded"] = "parked" if verb == "discard" else "discarded"

    @takes(_DecisionRequest, flags=_FLAGS)
    def decide(
        request: _DecisionRequest,
        why: Reason = "",
        who: Who = None,
        *,
        all_pipelines: AllPipelines = False,
        yes: Yes = False,
        as_json: AsJson = False,
    ) -> None:

        require_scope(request.pipeline, all_pipelines=all_pipelines)
        if request.dry_run:
            _foresee(request, state, as_json=as_json)
            return
        _require_why(why)
        with _opened_parking() as parking:
            wanted = _filter(parking, request)
            if not yes:
                number = sum(getattr(one, state) for one in _some(parking, wanted))
                if number or as_json:
                    ask(question.format(counted(number, f"{state} event")), as_json=as_json)
            report = getattr(parking, verb)(wanted, decision(who, why))
        if as_json:
            print_json(report.to_json())
        else:
            _print_decided(report, done, left)
            _tell_clean_up(verb, report)

    return decide


def _foresee(
    request: ParkedFilter, state: Literal["parked", "discarded"], *, as_json: bool
) -> None:
    """Say how many events of which groups are in a state, at most, of what matches."""
    with _opened_parking() as parking:
        found = _some(parking, _filter(parking, request))
    rows = [(one, getattr(one, state)) for one in found if getattr(one, state)]
    total = sum(number for _, number in rows)
    if as_json:
        groups = [
            {name: getattr(one, name) for name in _GROUP_NAMES} | {"events": number}
            for one, number in rows
        ]
        print_json({"groups": groups, "events": total, "dry_run": True})
        return
    for one, number in rows:
        print_folded([f"{one.name}: {counted(number, f'{state} event')}"])
    print_folded([f"up to {counted(total, 'event')} in {counted(len(rows), 'group')}"])
    if any(getattr(request, name) for name in (*_WINDOW, *_PARKED_WINDOW, "fingerprint")):
        line = "groups are counted whole here: the window or the fingerprint may take fewer"
        print_folded([line], style="dim")
    print_folded(["nothing was written"], style="dim")


def _require_why(why: str) -> None:
    from waybill.errors import InputError

    if not why:
        raise InputError("--why is missing: give the reason, for the audit log")


def _tell_clean_up(verb: str, report: DiscardReport) -> None:
    """Say what keeps discarded events in the bucket, if anything does."""
    from waybill.settings import Settings

    if verb != "discard" or not report.events:
        return

    dags = ["clean_up_parked_files"]
    tell_hindrances(Settings(), "files of discarded events are not deleted", dags=dags)


app.command("discard", help="Discard parked events; can be undone until the clean-up has run.")(
    _decision(
        "discard",
        "Discard up to {}?",
        "discarded",
        "left {} as they are: damaged where the window cuts through, or parked meanwhile",
    )
)
app.command("undo-discard", help="Undo a discard, for events that are not cleaned up yet.")(
    _decision(
        "undo_discard",
        "Park up to {} again?",
        "parked again",
        "came too late for {}: a clean-up has claimed or deleted them, or they are damaged "
        "where the window cuts through",
    )
)


def _filter(
    parking: Parking, request: ParkedFilter, *, held: bool = False, kept: bool = False
) -> ParkedGroupFilter:
    parking.require_names(request.stage, request.error_type)
    name = request.pipeline
    pipeline_id = None if name is None else parking.pipeline_id(name)
    return request.partitions(pipeline_id, held=held, kept=kept)


def _some(parking: Parking, wanted: ParkedGroupFilter) -> list[ParkedGroup]:
    """Return the partitions that match.

    Raises:
        InputError: none does; names the names that were given.
    """
    from waybill.errors import InputError

    found = parking.partitions(wanted)
    if not found:
        given = ", ".join(
            f"{name.removesuffix('_id').replace('_', ' ')} {value}"
            for name, value in wanted.to_json().items()
            if name != "held"
        )
        what = "nothing is parked now" if wanted.held else "nothing was ever parked"
        raise InputError(
            f"{what} of {given or 'any pipeline'}; `waybill parked list --all` shows what there was"
        )
    return found


def _user() -> str:
    from waybill.services import current_user

    return current_user()


def _group_table(found: Sequence[ParkedGroup]) -> Table:
    """Return a line a partition; states that no event is in are left out."""
    shown = [
        (name, style)
        for name, style in _STATES
        if name == "parked" or any(getattr(partition, name) for partition in found)
    ]
    return Table(
        (
            *(Column(name) for name in ("pipeline", "event", "stage", "error type")),
            *(Column(_head(name), "number", _SPARE.get(name, 0)) for name, _ in shown),
            Column("size", "number", spare=3),
            Column("first (UTC)", spare=4),
            Column("last (UTC)", spare=2),
            Column("last message", "text", spare=1),
        ),
        [_row(partition, shown) for partition in found],
        "Nothing is parked.",
    )


def _head(state: str) -> str:
    return f"{state} (ever)" if state in _EVER else state


def _row(partition: ParkedGroup, shown: Sequence[tuple[str, str]]) -> list[Cell]:
    numbers = [(getattr(partition, name), style) for name, style in shown]
    return [
        partition.pipeline,
        partition.event_name or "(empty)",
        partition.stage,
        partition.error_type,
        *(Styled(number, style if number else "dim") for number, style in numbers),
        readable_size(partition.bytes),
        partition.first_event_at,
        partition.last_event_at,
        partition.last_message,
    ]


def _group_notes(found: Sequence[ParkedGroup]) -> list[str]:
    """Return the sum, what was replayed before, and what to do next."""
    parked = sum(partition.parked for partition in found)
    apart = sum(partition.quarantined for partition in found)
    ways = f", {apart:,} quarantined: {_WAY_OUT}" if apart else ""
    replayed = sum(partition.replayed for partition in found)
    before = (
        [
            f"Events of these groups were replayed {counted(replayed, 'time')} before; what parked "
            "again is among the parked, too."
        ]
        if replayed
        else []
    )
    if not (parked or apart):
        sum_ = f"Nothing is parked now: {counted(len(found), 'group')} had events before."
    else:
        sum_ = (
            f"{counted(parked, 'event')} parked in {counted(len(found), 'group')}{ways}. "
            "`waybill parked show PIPELINE` says what to do."
        )
    return [
        sum_,
        *before,
    ]


def _print_group(
    partition: ParkedGroup,
    causes: Sequence[tuple[str, Cell]],
    keys: Sequence[str],
    advice: Sequence[tuple[str, Cell]],
) -> None:
    """Print one partition with what its error means, its causes, and the objects it is in."""
    meaning = error_type(partition.error_type)
    kind = "transient: may pass later by itself" if meaning.transient else "permanent"
    facts: list[tuple[str, Cell]] = [
        ("error", f"{meaning.title} ({kind})"),
        *advice,
        (
            "events now",
            f"{partition.parked:,} parked, {partition.replaying:,} replaying"
            f"{_quarantined(partition)}; {readable_size(partition.bytes)}",
        ),
        ("ever", f"{partition.replayed:,} replayed, {partition.discarded:,} discarded"),
        ("first (UTC)", partition.first_event_at),
        ("last (UTC)", partition.last_event_at),
        ("parked (UTC)", partition.last_parked_at),
        ("last message", Styled(partition.last_message, "yellow")),
        *causes,
        *_objects(keys),
    ]
    if partition.quarantined:
        words = f"their files are damaged or gone: {_WAY_OUT}"
        facts.append(("quarantined", Styled(words, "bold red")))
    print_facts(facts, partition.name, whole=("object", *_STEPS))


def _advice(
    partition: ParkedGroup, remedies: Sequence[Remedy], printed: dict[Remedy, str]
) -> Iterator[tuple[str, Cell]]:
    """Yield what to do, and a fact for each command.

    Args:
        partition: the group.
        remedies: of it.
        printed: those of the groups before, and where they stand; these are added.
    """
    from waybill.cli.replays import order_of

    if not remedies:
        advice = _nothing_to_do(partition) or error_type(partition.error_type).advice
        yield "what to do", advice
        return
    if order := order_of(remedies):
        yield "what to do", order
    for number, remedy in enumerate(remedies, 1):
        name = f"way {number}" if len(remedies) > 1 else "what to do"
        if remedy in printed:
            yield name, f"the same commands as {printed[remedy]}, run once for all of these groups"
            continue
        if remedy.discards:
            printed[remedy] = f"{name} of {partition.name}"
        yield name, remedy.advice
        yield from zip(_STEPS, remedy.commands, strict=False)


def _nothing_to_do(partition: ParkedGroup) -> str:
    """Say why nothing is to be decided on; "" where events are parked."""
    if partition.parked:
        return ""
    if partition.replaying:
        return "nothing now: a replay sends its events back"
    if partition.quarantined:
        return _WAY_OUT
    undone = "; `waybill parked undo-discard` takes a discard back, until the clean-up has run"
    return f"nothing: no event is parked here any more{undone if partition.discarded else ''}"


def _quarantined(partition: ParkedGroup) -> str:
    return f", {partition.quarantined:,} quarantined" if partition.quarantined else ""


def _newest_json(newest: NewestEvents | None) -> dict[str, list[int] | None]:
    """Return deletes and distinct events, each beside the number of events that were looked at."""
    if newest is None:
        return {"deletes_of_newest": None, "distinct_of_newest": None}
    return {
        "deletes_of_newest": [newest.deletes, newest.events],
        "distinct_of_newest": [newest.events - newest.copies, newest.events],
    }


def _copies(partition: ParkedGroup, newest: NewestEvents | None) -> Iterator[tuple[str, Cell]]:
    """Yield a fact where events that were parked last are copies of each other.

    Most often their source was read again; a producer that was killed may have sent some twice.
    """
    if newest is None or not newest.copies:
        return
    which = "parked" if newest.events == partition.parked else "parked last"
    events = counted(newest.events - newest.copies, "event")
    yield (
        "copies",
        f"the {newest.events:,} {which} are {events}: some came more than once, as when a source "
        "is read again; a replay sends all, the table has each once",
    )


def _deletes(partition: ParkedGroup, newest: NewestEvents | None) -> Iterator[tuple[str, Cell]]:
    """Yield a fact where events that were parked last are deletes."""
    number = newest.deletes if newest else 0
    if newest is None or not number:
        return
    which = f"{number:,} of the {counted(newest.events, 'event')} parked last"
    advice = ""
    if partition.stage == "transformation":
        advice = ': `if event.op == "delete": return event` at its beginning lets them pass'
    yield "deletes", f"{which} {_ARE[number == 1]} (its key, no other field is sure){advice}"


_ARE = {True: "is a delete", False: "are deletes"}


def _causes(causes: Sequence[FailureCause]) -> Iterator[tuple[str, Cell]]:
    """Yield a fact for each cause: its fingerprint, as `--fingerprint` takes it, first."""
    for cause in causes[:_MOST_CAUSES]:
        name = cause.fingerprint or "several causes"
        message = cause.message[:_MESSAGE_CHARS]
        yield "cause", f"{name}  {counted(cause.events, 'event')}: {message}"
    if len(causes) > _MOST_CAUSES:
        yield "", f"and {len(causes) - _MOST_CAUSES} more; `--json` shows them"


def _objects(keys: Sequence[str]) -> Iterator[tuple[str, Cell]]:
    """Yield a fact for each object, the newest first."""
    yield from (("object", key) for key in keys[:_KEYS_SHOWN])
    if len(keys) > _KEYS_SHOWN:
        yield "", "and more; `--json` shows them"


def _print_event(parked: ParkedEvent) -> None:
    """Print one event under its error."""
    head = f"{parked.stage}/{parked.error_type}  {parked.pipeline_id}/{parked.event_name}"
    print_folded([head], style="bold")
    place = f"  ({_cut(parked.where)})" if parked.where else ""
    print_folded([_cut(parked.message) + place], style="yellow")
    when = f"event time {parked.event_at}, parked {parked.parked_at}"
    if parked.kafka_partition >= 0:
        when += f", {parked.topic}/{parked.kafka_partition}@{parked.kafka_offset}"
    print_folded([f"{when}, attempt {parked.attempt}"], style="dim")
    _print_payload(parked.value)
    echo("")


def _cut(message: str) -> str:
    return message if len(message) <= _MESSAGE_CHARS else message[:_MESSAGE_CHARS] + "…"


def _print_payload(value: bytes) -> None:
    """Print a payload as it is; a terminal gets JSON a line a field, folded to its width."""
    try:
        orjson.loads(value)
        text = value.decode()
    except ValueError:
        echo(plain(value.decode("utf-8", "backslashreplace")))
        return
    if sys.stdout.isatty():
        print_folded(indented(text))
    else:
        echo(plain(text))


def _print_nothing(wanted: ParkedGroupFilter, *, everything: bool) -> None:
    """Say that nothing is parked, or nothing that matches."""
    if wanted.names_nothing:
        print_folded(["Nothing is parked. Every event went on, or was dealt with."], style="green")
    else:
        print_folded(["No parked group matches. `waybill parked list` shows all that is parked."])
    if not everything:
        words = "`--all` also lists groups that were replayed or discarded."
        print_folded([words], style="dim")


def _print_decided(report: DiscardReport, what: str, left: str) -> None:
    """Print what a discard or its undoing did, and what it left."""
    groups = counted(report.partitions, "group")
    print_folded([f"{counted(report.events, 'event')} {what}, in {groups}"])
    if report.left_segments:
        print_folded([left.format(counted(report.left_events, "event"))])
