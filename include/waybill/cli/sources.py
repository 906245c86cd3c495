"""``waybill sources``: a source looked at before anything runs; how its runs are, stopping one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waybill.cli.command import DECLARED, DEPLOYED
from waybill.cli.exit_codes import ExitCode
from waybill.cli.mapping import example_lines, proposal_json, show_proposal
from waybill.cli.options import AsJson, Reason, Who, decision
from waybill.cli.output import counted, plain, print_folded, print_json, shortened
from waybill.cli.pipelines import existing_folder
from waybill.cli.source_values import nothing_read, said_if_slow, shown_value
from waybill.cli.tables import Column, Styled, Table, ago, clock, print_table

if TYPE_CHECKING:
    from waybill.ledger import RunFigures, SourceLine
    from waybill.mapping_proposals import Sample
    from waybill.services.sources import SourceDiscovery, SourceTrial

app = typer.Typer(
    no_args_is_help=True,
    help="Sources: kinds, discovery, a first page; how runs are, stopping one.",
)

_FOLDER = typer.Argument(metavar=DECLARED, help="A pipeline's folder, or its name.")
_SAMPLE, _MOST_SAMPLE = 1_000, 100_000
_VALUE_CHARS = 200
_ERROR_CHARS = 300
_MOST_NAMES = 100
_GOING = frozenset({"running", "silent", "waiting"})
"""States of a run that has not ended: what is known of its trouble is the try before."""
_COLOURS = {"success": "green", "running": "green", "failed": "bold red", "silent": "bold red"}
_Deployed = typer.Argument(metavar=DEPLOYED, help="A deployed pipeline's name or id.")


@app.command("list")
def list_kinds(*, as_json: AsJson = False) -> None:
    """List the kinds of sources that pipelines here can have."""
    from waybill.services import source_kinds
    from waybill.settings import Settings

    kinds = source_kinds(Settings())
    if as_json:
        print_json([{"kind": kind, "from": place, "does": words} for kind, place, words in kinds])
        return
    print_table(_kind_table(kinds))


def _kind_table(kinds: Sequence[tuple[str, str, str]]) -> Table:
    columns = (Column("kind"), Column("from", spare=1), Column("does", "words"))
    return Table(columns, kinds, "no kind of source is known")


@app.command()
def discover(
    pipeline: Annotated[str, _FOLDER],
    sample: Annotated[
        int, typer.Option(min=1, max=_MOST_SAMPLE, help="Records to read of each event at most.")
    ] = _SAMPLE,
    *,
    write: Annotated[
        bool, typer.Option("--write", help="Put it into pipeline.yaml; the rest of the file stays.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a source has; propose event names, keys, cursor and columns."""
    from waybill.services import discover_source, write_examples, write_mappings
    from waybill.settings import Settings

    folder = existing_folder(pipeline)
    with said_if_slow():
        found = discover_source(Settings(), folder, sample)
    written, examples = None, {}
    if write and found.proposals:
        written = write_mappings(folder, found.proposals)
        new = [one for one in found.proposals if not one.added]
        examples = write_examples(Settings(), folder, new, found.samples)
    if as_json:
        print_json(
            {
                "found": [_found_json(one) for one in found.found],
                "proposals": [proposal_json(one) for one in found.proposals],
                "unknown": found.unknown,
                "notes": found.notes,
                "refused": {event: dict(one.faults) for event, one in found.samples.items()},
                "written": None if written is None else str(written),
            }
        )
        return
    is_described = any(one.key or one.cursor or one.types for one in found.found)
    if is_described or not found.found:
        print_table(_found_table(found))
    for number, proposal in enumerate(found.proposals):
        if number or is_described:
            print_folded([""])
        show_proposal(proposal, pasted=written is None)
    ending = _ending(found, None if written is None else str(written), sample)
    print_folded(["", *ending, *example_lines(examples)])


def _found_json(one: Any) -> dict[str, Any]:
    return {
        "name": one.name,
        "event": one.event,
        "key": list(one.key),
        "cursor": one.cursor,
        "types": dict(one.types),
    }


def _found_table(found: SourceDiscovery) -> Table:
    return Table(
        (
            Column("in the source"),
            Column("event"),
            Column("key"),
            Column("cursor"),
            Column("fields", "number", spare=1),
        ),
        [
            (
                one.name,
                one.event,
                ", ".join(one.key) or None,
                one.cursor or None,
                len(one.types) or None,
            )
            for one in found.found
        ],
        "nothing is there to be read: no table, no file, no record that the options select",
    )


def _ending(found: SourceDiscovery, written: str | None, most: int) -> Iterator[str]:
    yield from (plain(note) for note in found.notes)
    for event, reason in found.unknown.items():
        yield f"nothing is proposed for {event}: {reason}"
        if event in found.samples and not found.samples[event].read:
            yield f"  {nothing_read(found.connector)}"
    for proposal in found.proposals:
        yield from _refused(proposal.event, found.samples[proposal.event])
    if written is not None:
        yield f"written to {written}; `waybill test` of its folder comes next"
    elif not found.proposals and not found.unknown:
        yield (
            "nothing to propose: every event is declared, with its key and a column for each field"
            f" that its first records have{_what_was_read(found, most)}; what is taken out of an"
            " event of pipeline.yaml is proposed anew"
        )
    elif found.proposals:
        yield "--write puts it into pipeline.yaml"


def _what_was_read(found: SourceDiscovery, most: int) -> str:
    """Say how many records were read of which event, and how more are, where there may be more."""
    if not found.samples:
        return ""
    numbers = (
        f"{counted(one.read, 'record')} of {plain(event)}" for event, one in found.samples.items()
    )
    read = f" ({', '.join(numbers)})"
    if all(one.read < most for one in found.samples.values()) or most == _MOST_SAMPLE:
        return read
    return (
        f"{read}. A field that only later records have, such as one that was parked as"
        f" unknown_column, is found with --sample {_MOST_SAMPLE}"
    )


def _refused(event: str, sample: Sample) -> Iterator[str]:
    """Yield what of a sample is in no proposal, since it did not come through."""
    if sample.bad:
        yield (
            f"{sample.bad:,} of {counted(sample.read, 'record')} of {event} cannot become events:"
            " `waybill sources test` says why"
        )
    if failed := sample.faults.total():
        code, message = next(iter(sample.examples.items()))
        yield plain(
            f"{failed:,} of {counted(sample.read, 'record')} of {event} did not pass the"
            f" transformation (first: {code}: {message}); what is proposed is without them"
        )


@app.command()
def test(
    pipeline: Annotated[str, _FOLDER],
    rows: Annotated[
        int, typer.Option(min=0, max=100, help="Rows to show at most, of each event.")
    ] = 3,
    *,
    as_json: AsJson = False,
) -> None:
    """Connect to a source and read its first page; take nothing in. Personal fields are masked.

    Ends with 2 where a row of the page would park at ingestion.
    """
    from waybill.services import try_source
    from waybill.settings import Settings

    with said_if_slow():
        trial = try_source(Settings(), existing_folder(pipeline), rows)
    if as_json:
        print_json(_trial_json(trial))
    else:
        print_folded(_trial_lines(trial))
    if trial.parked:
        raise typer.Exit(ExitCode.FOUND)


def _trial_json(trial: SourceTrial) -> dict[str, Any]:
    return {
        "seconds": round(trial.seconds, 3),
        "rows": dict(trial.rows),
        "parked": [
            {"event": event, "error_type": code, "rows": number, "example": example}
            for (event, code), number in trial.parked.items()
            for example in [trial.reasons[event, code]]
        ],
        "absent": trial.absent,
        "shown": [{"event": event, "row": row} for event, row in trial.shown],
        "masked_by_name": {event: [*names] for event, names in trial.guessed.items() if names},
        "notes": trial.notes,
    }


def _trial_lines(trial: SourceTrial) -> Iterator[str]:
    total = trial.rows.total()
    first = f"a first page of {counted(total, 'row')} in {trial.seconds:.1f} s"
    yield f"the source can be read: {first}"
    if not total:
        yield f"  {nothing_read(trial.connector)}"
    elif trial.connector == "dlt":
        yield (
            f"  such a page has as many answers of the source as go into {trial.page_rows:,} rows"
            " (source.page_rows)"
        )
    else:
        yield f"  such a page has {trial.page_rows:,} rows at most (source.page_rows)"
    for event, number in trial.rows.items():
        yield f"  {event}: {counted(number, 'row')}"
    for (event, code), number in trial.parked.items():
        reason = trial.reasons[event, code]
        yield (
            f"  {counted(number, 'row')} of {plain(event)} would park at ingestion: {code}:"
            f" {plain(reason)}"
        )
    yield from (f"  {plain(line)}" for line in (*trial.absent, *trial.notes))
    yield from _row_lines(trial)


def _row_lines(trial: SourceTrial) -> Iterator[str]:
    for event in sorted(trial.unshown):
        yield (
            f"rows of {event} are not shown: it is not declared, so nobody said what of them is"
            " personal"
        )
    for event, fields in trial.guessed.items():
        if fields:
            names = ", ".join(islice(fields, _MOST_NAMES))
            more = f" and {len(fields) - _MOST_NAMES:,} more" if len(fields) > _MOST_NAMES else ""
            yield (
                f"{names}{more} of {event}: masked for the name, as nobody said what is personal;"
                f" say so with `personal: [{names}]`, or with `personal: []` that none is"
            )
    for event, row in trial.shown:
        yield f"{event}:"
        for name, value in row.items():
            yield f"  {name}: {shown_value(value)[:_VALUE_CHARS]}"


@app.command()
def status(pipeline: Annotated[str | None, _Deployed] = None, *, as_json: AsJson = False) -> None:
    """Show how the runs of sources are: rows, rate, what is left, last success and error."""
    from waybill.services import source_status
    from waybill.settings import Settings

    found = source_status(Settings(), pipeline)
    if as_json:
        print_json([one.to_json() for one in found])
    elif pipeline is not None:
        print_folded(_status_lines(found[0]))
    else:
        _show_status(found)


@app.command()
def stop(
    pipeline: Annotated[str, _Deployed],
    who: Who = None,
    why: Reason = "",
    *,
    as_json: AsJson = False,
) -> None:
    """Have a run end at its next page; what it read is delivered, and the next run goes on."""
    from waybill.services import stop_source
    from waybill.settings import Settings

    node = stop_source(Settings(), pipeline, decision(who, why))
    if as_json:
        print_json({"pipeline": pipeline, "node": node})
        return
    print_folded([f"the run of {plain(pipeline)} on {plain(node)} ends at its next page"])


def _show_status(found: list[SourceLine]) -> None:
    from waybill.ledger import WAITS_FOR

    notes = []
    for one in found:
        if one.state == "failed":
            notes.append(f"{one.pipeline}: {one.error}")
        elif one.state in _GOING and one.failed_since:
            said = shortened(one.error, _ERROR_CHARS)
            notes.append(f"{one.pipeline}: the last try failed {ago(one.failed_at)}: {said}")
        if one.waits_for:
            notes.append(f"{one.pipeline} waits: {WAITS_FOR[one.waits_for]}")
    print_table(_status_table(found), notes)


def _status_table(found: list[SourceLine]) -> Table:
    return Table(
        (
            Column("pipeline"),
            Column("state"),
            Column("rows", "number"),
            Column("rows/s", "number", spare=1),
            Column("behind", "number"),
            Column("last success"),
        ),
        [
            (
                one.pipeline,
                Styled(one.state, _COLOURS.get(one.state, "yellow")),
                one.figures.read,
                f"{one.figures.rate_per_s:,.1f}",
                _behind(one.figures) or None,
                ago(one.succeeded_at),
            )
            for one in found
        ],
        "no pipeline is deployed: `waybill pipelines deploy` does",
    )


def _rows_of(read: int, total: int | None) -> str:
    return counted(read, "row") if total is None else f"{read:,} of {counted(total, 'row')}"


def _status_lines(one: SourceLine) -> Iterator[str]:
    from waybill.ledger import WAITS_FOR

    figures, due = one.figures, one.next_run(datetime.now(UTC))
    on = f" on {one.node}" if one.node else ""
    yield plain(f"{one.pipeline} ({one.connector}, team {one.team}): {one.state}{on}")
    if one.waits_for:
        yield f"  waits without a slot: {WAITS_FOR[one.waits_for]}; it goes on at the same page"
    if one.stop_asked_by:
        done = "stopped" if one.state in {"stopping", "stopped"} else "a stop was asked for"
        yield plain(f"  {done} by {one.stop_asked_by}")
    yield (
        f"  {counted(figures.read, 'row')} read, {figures.settled:,} settled,"
        f" {figures.parked:,} parked, {counted(figures.pages, 'page')},"
        f" {figures.rate_per_s:,.1f} rows/s"
    )
    yield (
        f"  {_rows_of(one.rows_read, figures.total)} by all runs since the source was begun, or"
        " begun again by --full or --from"
    )
    if figures.position:
        yield plain(f"  position: {figures.position}")
    if behind := _behind(figures):
        yield plain(f"  {behind} behind the source")
    yield f"  last success {ago(one.succeeded_at)}, next run {_at(due)}"
    if one.failed_at is not None:
        yield plain(f"  last failure {ago(one.failed_at)}: {one.error}")


def _behind(figures: RunFigures) -> str:
    return "" if figures.behind is None else f"{figures.behind:,.0f} {figures.unit}"


def _at(moment: datetime | None) -> str:
    return "by hand" if moment is None else f"{clock(moment)} UTC"
