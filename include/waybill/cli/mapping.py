"""``waybill mapping infer|show|diff``: what events become in a destination.

Names come from users and from payloads: they are never read as markup, and control characters are
shown, not sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from waybill.cli.command import DECLARED, DEPLOYED
from waybill.cli.options import AsJson
from waybill.cli.output import counted, plain, print_json, terminal
from waybill.cli.pipelines import existing_folder

if TYPE_CHECKING:
    from waybill.mapping_proposals import MappingDifference, Proposal, Sample, ShownMapping
    from waybill.mappings import Difference
    from waybill.pipelines import Column, EventDeclaration

app = typer.Typer(
    no_args_is_help=True, help="Mappings from events to tables: infer, show, compare."
)

_SAMPLE = 1_000
_MOST_SAMPLE = 100_000
_NAME_INDENT, _EVENT_INDENT = 2, 4
_DECLARATION = "pipeline.yaml"

Event = Annotated[str | None, typer.Option("--event", "-e", help="Only this event name.")]
Name = Annotated[str, typer.Argument(metavar=DEPLOYED, help="A deployed pipeline, by name or id.")]


@app.command()
def infer(
    pipeline: Annotated[
        str, typer.Argument(metavar=DECLARED, help="A pipeline's folder, or its name.")
    ],
    event: Event = None,
    sample: Annotated[
        int, typer.Option(min=1, max=_MOST_SAMPLE, help="Records of the source to read at most.")
    ] = _SAMPLE,
    *,
    write: Annotated[
        bool, typer.Option("--write", help="Put it into pipeline.yaml; the rest of the file stays.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Propose tables from a source's first events; columns and key need not be declared."""
    from waybill.services import infer_mappings, write_mappings
    from waybill.settings import Settings

    folder = existing_folder(pipeline)
    proposals, taken = infer_mappings(Settings(), folder, event, sample)
    written = write_mappings(folder, proposals) if write else None
    if as_json:
        print_json(
            {
                "read": taken.read,
                "bad": taken.bad,
                "filtered": taken.filtered,
                "failed": dict(taken.faults),
                "proposals": [proposal_json(one) for one in proposals],
                "written": None if written is None else str(written),
            }
        )
        return
    console = terminal()
    for proposal in proposals:
        show_proposal(console, proposal, pasted=written is None)
    for line in _sample_lines(taken):
        console.print(Text(plain(line), "dim"), soft_wrap=True)
    if written is not None:
        console.print(Text(f"written to {plain(str(written))}"), soft_wrap=True)


@app.command()
def show(
    name: Name,
    event: Event = None,
    version: Annotated[int | None, typer.Option(min=1, help="An earlier version.")] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show the mappings in force: tables, columns, and what of them was learned from events."""
    from waybill.services import shown_mappings
    from waybill.settings import Settings

    found = shown_mappings(Settings(), name, event, version)
    if as_json:
        print_json([one.to_json() for one in found])
        return
    console = terminal()
    for number, one in enumerate(found):
        if number:
            console.print()
        _show_mapping(console, one)


@app.command()
def diff(
    pipeline: Annotated[
        str,
        typer.Argument(
            metavar=DECLARED,
            help="A deployed pipeline; or a folder: what its deploy would change.",
        ),
    ],
    event: Event = None,
    first: Annotated[
        int | None, typer.Option("--from", min=0, help="A version; 0: nothing.")
    ] = None,
    last: Annotated[int | None, typer.Option("--to", min=1, help="A version.")] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Compare two versions; by default the newest and the one before."""
    from waybill.errors import InputError
    from waybill.services import mapping_differences
    from waybill.settings import Settings

    folder = Path(pipeline)
    is_folder = "/" in pipeline or (folder / _DECLARATION).is_file()
    if is_folder and (first is not None or last is not None):
        raise InputError("a folder is compared with what is in force: leave --from and --to out")
    found = mapping_differences(
        Settings(), folder if is_folder else pipeline, event, first=first, last=last
    )
    if as_json:
        print_json([one.to_json() for one in found])
        return
    console = terminal()
    for one in found:
        for line in _difference_lines(one):
            console.print(line, soft_wrap=True)


def proposal_json(proposal: Proposal) -> dict[str, Any]:
    """Return a proposal with its lines of YAML."""
    return {**proposal.to_json(), "yaml": "\n".join(_yaml(proposal))}


def _yaml(proposal: Proposal) -> list[str]:
    from waybill.mapping_proposals import event_block, event_lines

    if "event" in proposal.missing:
        return event_block(proposal)
    wanted = proposal.missing or frozenset({"columns"})
    blocks = event_lines(proposal, wanted)
    return [line for block in blocks.values() for line in block]


def show_proposal(console: Console, proposal: Proposal, *, pasted: bool) -> None:
    """Print what is proposed for an event; ``pasted``: with the lines for the declaration."""
    found = proposal.declaration
    title = f"event {proposal.event} to {found.table.schema_name}.{found.table.name}"
    console.print(Text(plain(title), "bold"), soft_wrap=True)
    for line in _proposed_words(proposal):
        console.print(Text(plain(line)))
    known = set() if proposal.declared is None else _columns_of(proposal.declared)
    notes = {column.name: _share(proposal, column) for column in found.table.columns}
    _print_columns(console, found, {"in": notes}, new=known)
    if not pasted:
        return
    if proposal.declared == found:
        console.print(Text("the declaration has all of this", "green"))
        return
    inside = "" if "event" in proposal.missing else f", in {proposal.event}"
    indent = " " * (_EVENT_INDENT if inside else _NAME_INDENT)
    console.print(Text(plain(f"to paste under events{inside}:"), "dim"))
    for line in _yaml(proposal):
        console.print(Text(indent + line), soft_wrap=True)


def _proposed_words(proposal: Proposal) -> Iterator[str]:
    found = proposal.declaration
    if "key" in proposal.missing:
        events = counted(proposal.events, "event")
        key = ", ".join(found.table.key)
        yield f"key {key}: proposed; it tells the {events} of the sample apart"
        yield "  (see that it always will: a key never changes)"
    if "version" in proposal.missing and found.version is not None:
        yield f"version {found.version}: proposed, by its name; it must rise with each change"


def _share(proposal: Proposal, column: Column) -> str:
    share = 100 * proposal.present.get(column.source, 0) / proposal.events
    return "100 %" if share == 100 else f"{min(share, 99.9):.3g} %"  # noqa: PLR2004 - all of them


def _sample_lines(sample: Sample) -> Iterator[str]:
    words = [counted(sample.read, "record") + " read"]
    words += [f"{sample.bad:,} unreadable"] if sample.bad else []
    words += [f"{sample.filtered:,} filtered"] if sample.filtered else []
    yield ", ".join(words)
    for code, number in sample.faults.most_common():
        yield f"{number:,} failed in the transformation: {code}: {sample.examples[code]}"


def _columns_of(declaration: EventDeclaration) -> set[tuple[str, str, str]]:
    return {
        (table, column.name, column.type)
        for table, columns in _tables(declaration).items()
        for column in columns
    }


def _tables(declaration: EventDeclaration) -> dict[str, Sequence[Column]]:
    children = {child.name: child.columns for child in declaration.table.children}
    return {declaration.table.name: declaration.table.columns, **children}


def _show_mapping(console: Console, one: ShownMapping) -> None:
    declaration = one.declaration
    title = f"event {one.event} to {one.destination}: "
    title += f"{declaration.table.schema_name}.{declaration.table.name}"
    console.print(Text(plain(title), "bold"), soft_wrap=True)
    for line in _facts(one):
        console.print(Text(plain(line)), soft_wrap=True)
    origins = {
        table: {column.name: one.origin(table, column.name) for column in columns}
        for table, columns in _tables(declaration).items()
    }
    main = origins[declaration.table.name]
    children = {name: marks for name, marks in origins.items() if name != declaration.table.name}
    _print_columns(console, declaration, {"origin": main}, children=children)


def _facts(one: ShownMapping) -> Iterator[str]:
    if one.number:
        state = "in force" if one.number == one.newest else f"version {one.newest} is in force"
        when = f"{one.at[:16].replace('T', ' ')} UTC" if one.at.endswith("+00:00") else one.at
        yield f"version {one.number} ({state}), {when} by {one.author}: {one.reason}"
    else:
        yield "as declared; no version is kept yet"
    declaration = one.declaration
    words = [f"policy {declaration.policy}", f"objects: {declaration.nested}"]
    words.append(f"arrays: {'tables' if declaration.arrays == 'child' else 'json'}")
    words.append(f"deletes: {'soft' if declaration.table.soft_delete else 'hard'}")
    yield "; ".join(words)
    yield f"source version: {declaration.version or 'none'}"


def _print_columns(
    console: Console,
    declaration: EventDeclaration,
    marks: Mapping[str, Mapping[str, str]],
    *,
    new: set[tuple[str, str, str]] | None = None,
    children: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """Print a table's columns, and those of each child table."""
    ((title, own),) = marks.items()
    table = declaration.table
    grid = _grid(title)
    for column in table.columns:
        null = "key" if column.name in table.key else "yes" if column.nullable else "no"
        _row(grid, table.name, column, (null, own.get(column.name, "")), new)
    console.print(grid)
    for child in table.children:
        words = f"items of {child.source} to {table.schema_name}.{child.name}"
        console.print(Text(plain(words), "bold"), soft_wrap=True)
        told = (children or {}).get(child.name, {})
        grid = _grid(title if children else "")
        for column in child.columns:
            null = "yes" if column.nullable else "no"
            _row(grid, child.name, column, (null, told.get(column.name, "")), new)
        console.print(grid)


def _grid(title: str) -> Table:
    grid = Table(header_style="bold")
    grid.add_column("column", overflow="fold")
    grid.add_column("type", no_wrap=True)
    grid.add_column("null", no_wrap=True)
    grid.add_column("from", overflow="fold")
    grid.add_column(title, no_wrap=True)
    return grid


def _row(
    grid: Table,
    table: str,
    column: Column,
    marks: tuple[str, str],
    known: set[tuple[str, str, str]] | None,
) -> None:
    fresh = bool(known) and (table, column.name, column.type) not in (known or ())
    style = "green" if fresh or marks[1] == "learned" else ""
    source = plain(column.source) or "(the item)"
    grid.add_row(
        Text(plain(column.name), style), column.type, marks[0], Text(source), Text(marks[1], style)
    )


def _difference_lines(one: MappingDifference) -> Iterator[Text]:
    head = f"event {plain(one.event)}: {one.before} to {one.after}"
    if not one.differences:
        yield Text(f"{head}: nothing differs")
        return
    yield Text(head, "bold")
    for difference in one.differences:
        yield _difference_line(difference)


def _difference_line(one: Difference) -> Text:
    place = plain(f"{one.table}.{one.name}" if one.name else one.table)
    if one.before is None:
        return Text(f"  + {one.what} {place}: {plain(one.after or '')}", "green")
    if one.after is None:
        return Text(f"  - {one.what} {place}: {plain(one.before)}", "red")
    return Text(f"  ~ {place} {one.what}: {plain(one.before)} -> {plain(one.after)}", "yellow")
