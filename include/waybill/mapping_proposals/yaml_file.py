"""A proposed mapping as YAML, and put into a declaration that keeps its other bytes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import yaml

from waybill.errors import InputError
from waybill.mapping_proposals.inference import Proposal
from waybill.pipelines import ChildTable, Column, load_completed, read_document, yaml_text

DECLARATION = "pipeline.yaml"
_STEP = 2
_BY_NAME = "# by name; masked where people look: take out what is not personal"


def event_lines(proposal: Proposal, fields: frozenset[str]) -> dict[str, list[str]]:
    """Return the lines of an event's fields, by field, without indentation.

    Args:
        proposal: what is proposed.
        fields: those of ``key``, ``version``, ``personal``, ``columns`` that are wanted.
    """
    declaration = proposal.declaration
    lines: dict[str, list[str]] = {}
    if "key" in fields:
        lines["key"] = [f"key: [{', '.join(map(yaml_text, declaration.table.key))}]"]
    if "version" in fields and declaration.version is not None:
        lines["version"] = [f"version: {yaml_text(declaration.version)}"]
    if "personal" in fields and declaration.personal:
        names = ", ".join(map(yaml_text, declaration.personal))
        lines["personal"] = [_BY_NAME, f"personal: [{names}]"]
    if "columns" in fields:
        columns = _columns(
            declaration.table.columns, declaration.table.key, paths=declaration.nested == "flatten"
        )
        lines["columns"] = ["columns:", *_indented(columns)]
        if declaration.table.children:
            lines["children"] = ["children:", *_indented(_children(declaration.table.children))]
    return lines


def event_block(proposal: Proposal) -> list[str]:
    """Return the lines of an event that is not declared, its name among them."""
    lines = event_lines(proposal, frozenset({"key", "version", "personal", "columns"}))
    table = [f"table: {yaml_text(proposal.declaration.table.name)}"]
    order = [lines.pop("key"), lines.pop("version", []), table, *lines.values()]
    inside = [line for block in order for line in block]
    return [f"{yaml_text(proposal.event)}:", *_indented(inside)]


def _children(children: Sequence[ChildTable]) -> list[str]:
    lines = []
    for child in children:
        inside = [f"from: {yaml_text(child.source)}", "columns:"]
        inside += _indented(_columns(child.columns, (), paths=False))
        lines += [f"{yaml_text(child.name)}:", *_indented(inside)]
    return lines


def added_lines(proposal: Proposal) -> list[str]:
    """Return the lines of the columns that a proposal adds to those of its event."""
    return [f"{name}: {shape}" for name, shape in _added(proposal)]


def _added(proposal: Proposal) -> Iterator[tuple[str, str]]:
    declaration = proposal.declaration
    new = [one for one in declaration.table.columns if one.name in proposal.added]
    return _shapes(new, (), paths=declaration.nested == "flatten")


def _columns(columns: Sequence[Column], key: Sequence[str], *, paths: bool) -> list[str]:
    return [f"{name}: {shape}" for name, shape in _shapes(columns, key, paths=paths)]


def _shapes(
    columns: Sequence[Column], key: Sequence[str], *, paths: bool
) -> Iterator[tuple[str, str]]:
    """Yield each column's name and what is declared of it, as YAML has them."""
    for column in columns:
        required = not column.nullable and column.name not in key
        own = column.name.replace("\\", "\\\\").replace(".", "\\.") if paths else column.name
        if column.source == own:
            shape = column.type + (" not null" if required else "")
        else:
            kind = f'"{column.type}"' if "," in column.type else column.type
            null = ", nullable: false" if required else ""
            shape = f"{{type: {kind}{null}, from: {yaml_text(column.source)}}}"
        yield yaml_text(column.name), shape


def _indented(lines: Sequence[str], by: int = _STEP) -> list[str]:
    return [" " * by + line for line in lines]


def write(directory: Path, proposals: Sequence[Proposal]) -> Path:
    """Put proposals into a folder's declaration; every other byte of it stays.

    What is there is replaced whole, or not at all, whoever dies meanwhile.

    Raises:
        InputError: an event has its columns already, or is written in a way that cannot be added
            to; or the file cannot be written.
        DeclarationError: with what is proposed the declaration would have mistakes.
    """
    path = (directory / DECLARATION).resolve()
    content = path.read_bytes()
    text = content.decode("utf-8-sig")
    mark = content[: len(content) - len(text.encode())]
    before = read_document(text).value
    for proposal in proposals:
        text = _put(text, proposal)
    _check(directory, text, proposals, before)
    try:
        _replace(path, mark + text.encode())
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error
    return path


def append_line(path: Path, line: bytes) -> None:
    """Add a line at the end of a file; it is replaced whole, or not at all.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        content = path.read_bytes()
        end = b"" if not content or content.endswith(b"\n") else b"\n"
        _replace(path, content + end + line + b"\n")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error


def _replace(path: Path, content: bytes) -> None:
    with NamedTemporaryFile(dir=path.parent, prefix=".pipeline-", delete=False) as file:
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            shutil.copymode(path, file.name)
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def _check(directory: Path, text: str, proposals: Sequence[Proposal], before: Any) -> None:
    """Refuse a text that does not say what is proposed, or has mistakes.

    Of all else it must say what it said ``before``: what is written once may stand for several.
    """
    written = read_document(text)
    proposed = {proposal.event for proposal in proposals}
    if (
        written.faults
        or not isinstance(written.value, dict)
        or _others(written.value, proposed) != _others(before, proposed)
    ):
        raise _by_hand(next(iter(proposed)))
    pipeline = load_completed(directory, lambda _: written.value)
    for proposal in proposals:
        wanted, declared = proposal.declaration, pipeline.events[proposal.event]
        has_columns = proposal.added or "columns" in proposal.missing
        columns = wanted.table.columns if has_columns else declared.table.columns
        personal = wanted.personal if "personal" in proposal.missing else declared.personal
        if (wanted.key, columns, personal) != (
            declared.key,
            declared.table.columns,
            declared.personal,
        ):
            raise _by_hand(proposal.event)


def _others(declared: dict[str, Any], proposed: Collection[str]) -> dict[str, Any]:
    """Return what a declaration says of all but some of its events."""
    events = declared.get("events") or {}
    others = {name: event for name, event in events.items() if name not in proposed}
    return {**declared, "events": others}


def _by_hand(event: str) -> InputError:
    return InputError(
        f"event {event!r} is written in a way that --write cannot add to; paste what is printed "
        "without it"
    )


def _put(text: str, proposal: Proposal) -> str:
    """Return a declaration's text with the fields that a proposal adds."""
    if "event" in proposal.missing:
        return _add(text, event_block(proposal))
    if proposal.added:
        return _with_columns(text, proposal)
    if not proposal.missing & {"key", "columns"}:
        raise InputError(
            f"event {proposal.event!r} has its key and columns already; change them by hand: the "
            "lines to paste are printed without --write"
        )
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    event, key = _event_node(root, proposal.event)
    lines = event_lines(proposal, proposal.missing)
    newline = "\r\n" if "\r\n" in text else "\n"
    indent = event.start_mark.column if event.value else key.start_mark.column + _STEP
    edits: list[tuple[int, int, str]] = []
    for name, value in event.value or ():
        if name.value in lines:
            block = newline.join(_hanging(lines.pop(name.value), indent))
            edits.append((name.start_mark.index, _end(value), block))
    rest = [line for block in lines.values() for line in block]
    if rest:
        at = _line_end(text, max((_end(v) for _, v in event.value or ()), default=_end(key)))
        new = "".join(newline + line for line in _indented(rest, indent))
        edits.append((at, at, new))
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _add(text: str, block: list[str]) -> str:
    """Return a declaration's text with one event more, behind those that it has."""
    root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    newline = "\r\n" if "\r\n" in text else "\n"
    found = [(name, value) for name, value in root.value if name.value == "events"]
    if not found:
        lines = ["events:", *_indented(block)]
        end = "" if not text or text.endswith("\n") else newline
        return text + end + newline.join(lines) + newline
    [(name, events)] = found
    if isinstance(events, yaml.ScalarNode):  # `events:` and nothing behind it
        at, indent = _line_end(text, _end(name)), name.start_mark.column + _STEP
    elif events.flow_style:
        raise InputError(
            "events are written within braces; --write takes those that are written on lines of"
            " their own. Paste what is printed without --write"
        )
    else:
        at, indent = _line_end(text, _end(events)), events.start_mark.column
    return text[:at] + "".join(newline + line for line in _indented(block, indent)) + text[at:]


def _with_columns(text: str, proposal: Proposal) -> str:
    """Return a declaration's text with columns behind those that an event has."""
    columns: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    for name in ("events", proposal.event, "columns"):
        columns = next((value for key, value in columns.value if key.value == name), None)
        if columns is None:  # merged in from elsewhere
            raise _by_hand(proposal.event)
    if columns.flow_style:
        at = _end(columns.value[-1][1])
        shapes = (f", {name}: {_in_braces(shape)}" for name, shape in _added(proposal))
        return text[:at] + "".join(shapes) + text[at:]
    at = _line_end(text, _end(columns))
    newline = "\r\n" if "\r\n" in text else "\n"
    indent = columns.value[0][0].start_mark.column  # the map's own mark is that of its anchor
    lines = _indented(added_lines(proposal), indent)
    return text[:at] + "".join(newline + line for line in lines) + text[at:]


def _in_braces(shape: str) -> str:
    """Return a column's type as it stands within braces, where a comma ends a value."""
    return f'"{shape}"' if "," in shape and not shape.startswith("{") else shape


def _hanging(lines: Sequence[str], indent: int) -> list[str]:
    """Return lines of which the first stands in its place already."""
    return [lines[0], *_indented(lines[1:], indent)]


def _event_node(root: Any, event: str) -> tuple[Any, Any]:
    """Return the nodes of an event and of its name."""
    events = next(value for name, value in root.value if name.value == "events")
    key, node = next((name, value) for name, value in events.value if name.value == event)
    if events.flow_style or node.flow_style:
        raise InputError(
            f"event {event!r} is written within braces; --write takes one that is written on lines "
            "of its own. Paste what is printed without --write"
        )
    return node, key


def _end(node: Any) -> int:
    """Return where the text of a node ends, comments and empty lines behind it left out."""
    if isinstance(node, yaml.ScalarNode) or node.flow_style:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if isinstance(last, tuple) else last)


def _line_end(text: str, at: int) -> int:
    """Return the end of the line of a place, before what ends it."""
    if at and text[at - 1] == "\n":  # a block of text ends behind its last line
        at -= 1
    end = text.find("\n", at)
    end = len(text) if end < 0 else end
    return end - 1 if end and text[end - 1] == "\r" else end
