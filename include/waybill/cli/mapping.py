"""``waybill mapping infer|show|diff``: what events become in a destination.

Names come from users and from payloads: they are never read as markup, and control characters are
shown, not sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from waybill.cli.command import DECLARED, DEPLOYED
from waybill.cli.options import AsJson
from waybill.cli.output import counted, echo, plain, print_folded, print_json, terminal
from waybill.cli.pipelines import declaration_facts, existing_folder
from waybill.cli.source_values import shown_value
from waybill.cli.tables import Column, Styled, Table, print_table

if TYPE_CHECKING:
    from waybill.mapping_proposals import (
        MappingDifference,
        MixedColumn,
        Proposal,
        Sample,
        ShownMapping,
    )
    from waybill.mappings import Difference
    from waybill.pipelines import Column as DeclaredColumn
    from waybill.pipelines import EventDeclaration

app = typer.Typer(
    no_args_is_help=True, help="Mappings from events to tables: infer, show, compare."
)

_SAMPLE = 1_000
_MOST_SAMPLE = 100_000
_SHARE_HEAD = "in"
_NAME_INDENT, _EVENT_INDENT, _COLUMN_INDENT = 2, 4, 6
_DECLARATION = "pipeline.yaml"
_MOST_TIMES = 3
"""Fields that are named where no version is proposed."""

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
    from waybill.services import infer_mappings, write_examples, write_mappings
    from waybill.settings import Settings

    folder = existing_folder(pipeline)
    proposals, taken = infer_mappings(Settings(), folder, event, sample)
    written = write_mappings(folder, proposals) if write else None
    samples = {one.event: taken for one in proposals}
    examples = write_examples(Settings(), folder, proposals, samples) if write else {}
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
    for proposal in proposals:
        show_proposal(proposal, pasted=written is None)
        echo("")
    print_folded(_sample_lines(taken), style="dim")
    if written is not None:
        print_folded([f"written to {written}", *example_lines(examples)])


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
    for number, one in enumerate(found):
        if number:
            echo("")
        _show_mapping(one)


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


def example_lines(examples: Mapping[str, str]) -> Iterator[str]:
    """Yield what is said of records of a source that became example events, or did not."""
    if events := [event for event, problem in examples.items() if not problem]:
        yield (
            f"an example event of {', '.join(events)} was added to events.jsonl: a record of the"
            " source, letters and digits replaced in fields that are personal; see that nothing"
            " else in it is"
        )
    for event, problem in examples.items():
        if problem:
            yield f"no example event of {event} was added to events.jsonl: {plain(problem)}"


def proposal_json(proposal: Proposal) -> dict[str, Any]:
    """Return a proposal with its lines of YAML."""
    return {**proposal.to_json(), "yaml": "\n".join(_yaml(proposal))}


def _yaml(proposal: Proposal) -> list[str]:
    from waybill.mapping_proposals import added_lines, event_block, event_lines

    if "event" in proposal.missing:
        return event_block(proposal)
    if proposal.added:
        return added_lines(proposal)
    wanted = proposal.missing or frozenset({"columns"})
    blocks = event_lines(proposal, wanted)
    return [line for block in blocks.values() for line in block]


def show_proposal(proposal: Proposal, *, pasted: bool) -> None:
    """Print what is proposed for an event; ``pasted``: with the lines for the declaration."""
    found = proposal.declaration
    title = f"event {proposal.event} to {found.table.schema_name}.{found.table.name}"
    print_folded([title], style="bold")
    print_folded(_proposed_words(proposal))
    known = set() if proposal.declared is None else _columns_of(proposal.declared)
    notes = {column.name: _share(proposal, column) for column in found.table.columns}
    _print_columns(found, {_SHARE_HEAD: notes}, new=known)
    if not pasted:
        return
    if proposal.declared == found:
        print_folded(["the declaration has all of this"], style="green")
        return
    indent, inside = _NAME_INDENT, ""
    if "event" not in proposal.missing:
        indent, inside = _EVENT_INDENT, f", in {proposal.event}"
    if proposal.added:
        indent, inside = _COLUMN_INDENT, f"{inside}, behind its other columns"
    print_folded([f"to paste under events{inside}:"], style="dim")
    for line in _yaml(proposal):
        echo(" " * indent + line)


def _proposed_words(proposal: Proposal) -> Iterator[str]:
    if proposal.added:
        names = ", ".join(map(plain, proposal.added))
        yield f"not declared: {names}; a field without a column parks its event (policy: strict)"
    yield from _key_words(proposal)
    if proposal.personal:
        yield from _personal(proposal)
    for one in proposal.mixed:
        yield _mixed(one, hidden=one.source in proposal.masked)


def _key_words(proposal: Proposal) -> Iterator[str]:
    found = proposal.declaration
    if "key" in proposal.by_source:
        yield f"key {', '.join(found.table.key)}: as the source has it (a key never changes)"
    elif "key" in proposal.missing:
        events = counted(proposal.events, "event")
        key = ", ".join(found.table.key)
        yield f"key {key}: proposed; it tells the {events} of the sample apart"
        yield "  (see that it always will: a key never changes)"
    if "version" in proposal.by_source:
        yield f"version {found.version}: the cursor that the source is read by"
    elif "version" in proposal.missing and found.version is not None:
        yield f"version {found.version}: proposed, by its name; it must rise with each change"
    elif "version" in proposal.missing:
        yield from _no_version(proposal)


def _no_version(proposal: Proposal) -> Iterator[str]:
    yield "version: none found by name, as updated_at: of one key, what is taken in later wins"
    times = [
        column.source
        for column in proposal.declaration.table.columns
        if column.type == "timestamp" and proposal.present.get(column.source) == proposal.events
    ]
    some = f" ({', '.join(times[:_MOST_TIMES])}?)" if times else ""
    yield f"  to declare: `version: <field>`, one that rises with each change{some}"


def _personal(proposal: Proposal) -> Iterator[str]:
    names = ", ".join(proposal.personal)
    if "personal" in proposal.missing:
        yield f"personal {names}: proposed, by name; masked wherever people look"
        yield "  (take out of the declaration what is not personal)"
    else:
        yield f"personal by name, and not declared so: {names}"
        yield "  (declare them with `personal: […]`, or say with `personal: []` that none is)"


_KINDS = {"boolean": "true or false", "object": "objects or lists", "bytes": "bytes"}
"""Kinds of values that are not counted in the plural of their name."""
_EXAMPLE_CHARS = 40


def _mixed(one: MixedColumn, *, hidden: bool) -> str:
    """Return what a column holds beside the values of the type that most have."""
    from waybill.access import MASK

    counts = ", ".join(
        f"{number:,} {_KINDS[kind]}" if kind in _KINDS else counted(number, kind)
        for kind, number in one.counts.items()
    )
    example = MASK if hidden else _example_text(one.example)
    said = f"{one.name}: {counts} (as {example}): {one.type}"
    if one.parks:
        return f"{said} is proposed, and would park {one.parks:,} of these"
    return f"{said}, which takes all of them" + (" as they are" if one.type == "json" else "")


def _example_text(value: object) -> str:
    """Return a value as text of at most 40 characters, in quotes where it is text."""
    text = repr(value) if isinstance(value, str) else shown_value(value)
    return text if len(text) <= _EXAMPLE_CHARS else f"{text[: _EXAMPLE_CHARS - 1]}…"


def _share(proposal: Proposal, column: DeclaredColumn) -> str:
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


def _tables(declaration: EventDeclaration) -> dict[str, Sequence[DeclaredColumn]]:
    children = {child.name: child.columns for child in declaration.table.children}
    return {declaration.table.name: declaration.table.columns, **children}


def _show_mapping(one: ShownMapping) -> None:
    declaration = one.declaration
    title = f"event {one.event} to {one.destination}: "
    title += f"{declaration.table.schema_name}.{declaration.table.name}"
    print_folded([title], style="bold")
    print_folded(_facts(one))
    origins = {
        table: {column.name: one.origin(table, column.name) for column in columns}
        for table, columns in _tables(declaration).items()
    }
    main = origins[declaration.table.name]
    children = {name: marks for name, marks in origins.items() if name != declaration.table.name}
    _print_columns(declaration, {"origin": main}, children=children)


def _facts(one: ShownMapping) -> Iterator[str]:
    if one.number:
        state = "in force" if one.number == one.newest else f"version {one.newest} is in force"
        when = f"{one.at[:16].replace('T', ' ')} UTC" if one.at.endswith("+00:00") else one.at
        yield f"version {one.number} ({state}), {when} by {one.author}: {one.reason}"
    else:
        yield "as declared; no version is kept yet"
    yield from declaration_facts(one.declaration)


def _print_columns(
    declaration: EventDeclaration,
    marks: Mapping[str, Mapping[str, str]],
    *,
    new: set[tuple[str, str, str]] | None = None,
    children: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """Print a table's columns, and those of each child table."""
    ((head, own),) = marks.items()
    table = declaration.table
    print_table(_column_table(table.name, table.columns, (head, own), key=table.key, known=new))
    for child in table.children:
        print_folded([f"items of {child.source} to {table.schema_name}.{child.name}"], style="bold")
        told = head if children else "", (children or {}).get(child.name, {})
        print_table(_column_table(child.name, child.columns, told, known=new))


def _column_table(
    table: str,
    columns: Sequence[DeclaredColumn],
    marks: tuple[str, Mapping[str, str]],
    *,
    key: Sequence[str] = (),
    known: set[tuple[str, str, str]] | None = None,
) -> Table:
    """Return a table's columns.

    Args:
        table: its name.
        columns: of it.
        marks: head and cells, by column, of what is said of each.
        key: names of the key's columns.
        known: what is not new: table, column and type; none or None: nothing is marked as new.
    """
    head, own = marks
    rows = []
    for column in columns:
        mark = own.get(column.name, "")
        is_new = bool(known) and (table, column.name, column.type) not in (known or ())
        style = "green" if is_new or mark == "learned" else ""
        null = "key" if column.name in key else "yes" if column.nullable else "no"
        row = [Styled(column.name, style), column.type, null, column.source or "(the item)"]
        rows.append([*row, Styled(mark, style)] if head else row)
    shown = [Column(one) for one in ("column", "type", "null", "from")]
    more = [Column(head, "number" if head == _SHARE_HEAD else "name")] if head else []
    return Table(shown + more, rows, "no column yet: events bring them")


def _difference_lines(one: MappingDifference) -> Iterator[Text]:
    before = "new" if one.before == "nothing" else f"{one.before} to"
    head = f"event {plain(one.event)}: {before} {one.after}"
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
