"""``waybill run --local`` and ``waybill dev``: a pipeline from its source to rows on the screen.

No server of Waybill's is asked, and nothing is written. The user's code runs in the sandbox.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from waybill.cli.options import AsJson
from waybill.cli.output import (
    counted,
    echo,
    echo_json,
    plain,
    print_folded,
    print_json,
    screen_width,
    terminal,
    user_code_printed,
)
from waybill.cli.pipelines import existing_folder
from waybill.cli.source_values import nothing_read, said_if_slow, shown_value
from waybill.cli.tables import Cell, Column, Styled, Table, kind_of, print_table
from waybill.errors import InputError, NotFoundError, RetryError, WaybillError
from waybill.nearest_name import shown_name
from waybill.pipelines import SHARED, has_shared, load_pipeline, root_of

if TYPE_CHECKING:
    from waybill.pipelines import Pipeline
    from waybill.settings import Settings
    from waybill.testing import EventResult, Sample, SampleResult

_FOUND_PARKED = 2
_VALUE_CHARS = 200
_MESSAGE_CHARS = 400
_POLL_S = 0.3
_SETTLE_S = 3.0
"""So long at most a change is waited for to be whole; a file may be written to for ever."""
_ROWS, _MOST_ROWS = 20, 10_000
_BLOCKS = 5
"""Rows that are shown, each as a block of lines, unless somebody said how many."""
_DECLARATION_BYTES = 16 * 1024**2
_PASSED_OVER = frozenset({"__pycache__", "node_modules"})
_SHARED_PREFIX = f"..{os.sep}{SHARED}{os.sep}"
"""How files of shared modules are named beside those of the pipeline's own folder."""

Folder = Annotated[
    str, typer.Argument(metavar="PIPELINE", help="A pipeline's folder, or its name.")
]
Rows = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=_MOST_ROWS,
        help="Records of the source to read at most. Left out: 20; and where a table is wider than"
        " the terminal, its first 5 rows are shown.",
        show_default=False,
    ),
]
Events = Annotated[
    str | None,
    typer.Option(
        help="Where events come from: source, examples (events.jsonl), a file with a JSON object a"
        " line, or - for standard input. Left out: the source; of http, kafka and postgres_cdc the"
        " examples.",
        show_default=False,
    ),
]


def run(
    pipeline: Folder,
    *,
    local: Annotated[
        bool, typer.Option("--local", help="From the source to the screen; nothing is written.")
    ] = False,
    rows: Rows = None,
    events: Events = None,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline over the first records of its source, and show the rows; needs no servers.

    What would be parked is shown with its stage, error type, message and place; no cursor moves.
    Personal fields are masked. Exit code 2: something would be parked.
    """
    from waybill.settings import Settings
    from waybill.testing import read_sample, run_sample

    folder = existing_folder(pipeline)
    if not local:
        raise InputError(
            f"say --local: it shows what becomes of the first records, and writes nothing. A run"
            f" of the deployed pipeline is started by `waybill ingest {shown_name(folder.name)}`"
        )
    settings, declared = Settings(), load_pipeline(folder)
    try:
        with said_if_slow():
            sample = read_sample(settings, folder, declared, rows or _ROWS, events)
    except WaybillError as error:
        raise _advised(error, folder, events) from error
    with user_code_printed():
        result = run_sample(settings, declared, sample)
    if as_json:
        print_json(_json(declared, result))
    else:
        _show(declared, result, all_rows=rows is not None)
    if result.parked:
        raise typer.Exit(_FOUND_PARKED)


def _advised(error: WaybillError, folder: Path, events: str | None) -> WaybillError:
    """Return the error of a source, with what can be run without it."""
    from waybill.pipelines import EXAMPLES

    if (
        events is None
        and type(error) in (InputError, NotFoundError, RetryError)
        and (folder / EXAMPLES).exists()
    ):
        return type(error)(f"{error}\n--events examples runs the events of {EXAMPLES} instead")
    return error


def _json(pipeline: Pipeline, result: SampleResult) -> dict[str, Any]:
    from waybill.testing import json_value

    deleted = {table: result.deleted(table) for table in result.tables}
    return {
        "pipeline": pipeline.name,
        "from": result.sample.origin,
        "read": len(result.sample.events),
        "more": result.sample.has_more,
        "rows": {table: json_value(result.rows(table)) for table in result.tables},
        "deleted": {table: json_value(rows) for table, rows in deleted.items() if rows},
        "filtered": result.filtered,
        "parked": [
            {
                "at": event.place,
                "stage": cause.stage,
                "error_type": cause.error_type,
                "message": cause.message,
                "where": cause.where,
                "others": list(cause.others),
            }
            for event, outcome in result.events
            for cause in outcome.parked
        ],
        "notes": list(result.sample.notes),
    }


def _show(pipeline: Pipeline, result: SampleResult, *, all_rows: bool) -> None:
    sample = result.sample
    print_folded([f"{pipeline.name}: {counted(len(sample.events), 'record')} of {sample.origin}"])
    if sample.has_more:
        print_folded([f"  there are more: --rows N reads the first N, {_MOST_ROWS:,} at most"])
    if not sample.events:
        is_source = sample.origin.startswith("its source")
        print_folded([f"  {nothing_read(pipeline.source.connector if is_source else '')}"])
    for table in result.tables:
        print_table(_row_table(table, result.rows(table), all_rows=all_rows))
        if deleted := result.deleted(table):
            print_table(_row_table(f"{table}, deleted", deleted, all_rows=all_rows))
    if result.filtered:
        print_folded([f"filtered on purpose: {counted(result.filtered, 'record')}"])
    if result.parked:
        print_folded([f"would be parked: {counted(result.parked, 'record')}"], style="bold red")
        print_folded(line for pair in result.events for line in _parked_lines(*pair))
    print_folded(sample.notes)
    print_folded(["nothing was written"])


def _row_table(title: str, rows: Sequence[Mapping[str, Any]], *, all_rows: bool = False) -> Table:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return Table(
        [Column(name, kind_of(row.get(name) for row in rows)) for name in names],
        [[_cell(row[name]) if name in row else "" for name in names] for row in rows],
        "  no record became one of its rows",
        f"{title}: {counted(len(rows), 'row')}",
        most_blocks=0 if all_rows else _BLOCKS,
        more=f"--rows {_ROWS}",
    )


def _cell(value: Any) -> Cell:
    """Return a value as people read it: null, text as it is, all else as JSON.

    A long one is shortened on a terminal, and whole in a file or a pipe.
    """
    return Styled("null", "dim") if value is None else _shortened(shown_value(value))


def _shortened(text: str) -> str:
    is_whole = len(text) <= _VALUE_CHARS or screen_width() is None
    return text if is_whole else f"{text[:_VALUE_CHARS]}…"


def _parked_lines(event: Any, outcome: EventResult) -> Iterator[str]:
    for cause in outcome.parked:
        message = cause.message
        if len(message) > _MESSAGE_CHARS:
            message = f"{message[:_MESSAGE_CHARS]}…"
        yield f"  {event.place}: {cause.way}: {message}"
        if cause.where and cause.where != event.place:
            yield f"    where: {cause.where}"
        yield from (f"    also {other}" for other in cause.others)


def dev(
    pipeline: Folder,
    *,
    rows: Rows = None,
    events: Events = None,
    as_json: AsJson = False,
) -> None:
    """Watch a pipeline's folder: with each change, run a sample again and show what differs.

    As `run --local`, until Ctrl-C. Shared modules that it imports are watched as well. Mistakes in
    your files are shown, and the next change is tried. The source is read again where more than
    code changed. With --json each run is a line: what `run --local --json` prints, or {"error": …}.
    """
    from waybill.settings import Settings
    from waybill.testing.samples import STANDARD_INPUT

    folder = existing_folder(pipeline)
    if events == STANDARD_INPUT:
        raise InputError("--events: standard input can be read once; name a file")
    session = _Session(Settings(), folder, rows, events, as_json=as_json)
    try:
        session.watch()
    except KeyboardInterrupt:
        echo("\nstopped; nothing was written", err=as_json)


Signature = dict[str, tuple[int, int]]
"""File to (time of its last change in ns, bytes)."""


@dataclass
class _Session:
    """What `dev` knows from one change to the next."""

    settings: Settings
    folder: Path
    rows: int | None
    events: str | None
    as_json: bool = False
    sample: Sample | None = None
    code_file: str = ""
    """That of the transformation, whose change does not change the sample."""
    version: str = ""
    """That was run last; "": it could not be."""
    shown: _Lines | None = None
    """What became of the sample that was shown last."""
    seen: Signature = field(default_factory=dict)

    def watch(self) -> None:
        """Look for changes until a signal comes; a file that is being written is waited for.

        What changes while a sample runs has it run once more: somebody may have saved a file. What
        changes while it runs for that, too, is taken as written by the pipeline's own code.
        """
        self.seen = self._look()
        changed: list[str] | None = None
        is_again = False  # it runs for what changed while it ran before
        while True:
            self._run(changed)
            now = self._look()
            made = self._changed(now)
            if made and is_again:
                self.seen = now
                self._say_passed_over(made)
            is_again = bool(made) and not is_again
            changed = self._next_change()

    def _next_change(self) -> list[str]:
        """Wait for a change, and until it is whole; return the files."""
        while True:
            now = self._look()
            if now == self.seen:
                time.sleep(_POLL_S)
                continue
            end = time.monotonic() + _SETTLE_S
            while time.monotonic() < end:
                time.sleep(_POLL_S)
                settled, now = now, self._look()
                if settled == now:
                    break
            changed = self._changed(now)
            self.seen = now
            if changed and not self._is_others(changed):
                return changed

    def _changed(self, now: Signature) -> list[str]:
        return sorted(name for name in {*self.seen, *now} if self.seen.get(name) != now.get(name))

    def _say_passed_over(self, made: list[str]) -> None:
        said = (
            f"{_few(made)} changed while the sample ran, twice in a row: the pipeline's own code "
            "seems to write there, so it is not run again for that. Save once more what you changed"
        )
        print_folded([said], err=self.as_json)

    def _is_others(self, changed: list[str]) -> bool:
        """Tell whether all that changed are shared modules that the pipeline does not import."""
        if not self.version or not all(name.startswith(_SHARED_PREFIX) for name in changed):
            return False
        with suppress(WaybillError):
            return load_pipeline(self.folder).version == self.version
        return False

    def _look(self) -> Signature:
        found = dict(_signature(self.folder))
        root = root_of(self.folder)
        if has_shared(root):
            found |= {
                f"{_SHARED_PREFIX}{name}": seen
                for name, seen in _signature(root / SHARED)
                if name.endswith(".py")
            }
        with suppress(OSError, ValueError):  # it is not there now, or is no name of a file
            stat = Path(self.events or "").stat()
            if S_ISREG(stat.st_mode):
                found[self.events or ""] = (stat.st_mtime_ns, stat.st_size)
        return found

    def _run(self, changed: list[str] | None) -> None:
        """Run the sample and show it, or what is wrong; ``changed``: None at the beginning."""
        if changed is not None and not self.as_json:
            print_folded([f"{datetime.now().astimezone():%H:%M:%S} {_few(changed)}"])
        self.version = ""
        try:
            pipeline, result = self._result(changed)
        except WaybillError as error:
            if self.as_json:
                _print_line({"error": str(error)})
                return
            console = terminal(err=True)
            for line in str(error).split("\n"):
                console.print(Text(plain(line), "red"), soft_wrap=True)
            print_folded(["waiting for a change"], err=True)
            return
        if self.as_json:
            _print_line(_json(pipeline, result))
            return
        lines = _lines(pipeline, result)
        if self.shown is None:
            _show(pipeline, result, all_rows=self.rows is not None)
            print_folded([f"watching {self.folder}; Ctrl-C ends it"])
        else:
            _show_difference(self.shown, lines)
        self.shown = lines

    def _result(self, changed: list[str] | None) -> tuple[Pipeline, SampleResult]:
        from waybill.testing import read_sample, run_sample

        if changed is None or not all(map(self._is_code, changed)):
            self.sample = None
        pipeline = load_pipeline(self.folder)
        self.code_file = _code_file(self.folder)
        if self.sample is None:
            rows = self.rows or _ROWS
            self.sample = read_sample(self.settings, self.folder, pipeline, rows, self.events)
        with user_code_printed():
            result = run_sample(self.settings, pipeline, self.sample)
        self.version = pipeline.version
        return pipeline, result

    def _is_code(self, name: str) -> bool:
        return name == self.code_file or name.startswith(_SHARED_PREFIX)


_MOST_NAMED = 3


def _few(names: list[str]) -> str:
    """Return the first names of files, and how many more there are."""
    more = len(names) - _MOST_NAMED
    said = ", ".join(map(shown_name, names[:_MOST_NAMED]))
    return f"{said} and {more} more" if more > 0 else said


def _print_line(value: dict[str, Any]) -> None:
    from waybill.events import dumps

    echo_json(dumps(value))


def _code_file(folder: Path) -> str:
    """Return the name of the transformation's file, as the declaration gives it."""
    from waybill.pipelines import read_document, read_inside

    text, _ = read_inside(folder, "pipeline.yaml", _DECLARATION_BYTES)  # None: gone since
    value = read_document(text or "").value
    name = value.get("transformation") if isinstance(value, dict) else None
    return name if isinstance(name, str) else "transformation.py"


def _signature(folder: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the files of a folder; what begins with a dot, or editors leave, is passed over."""
    for place, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if not f.startswith(".") and f not in _PASSED_OVER]
        for name in files:
            if name.startswith(".") or name.endswith(("~", ".pyc", ".swp", ".tmp")):
                continue
            path = Path(place, name)
            try:
                stat = path.stat()
            except OSError:  # gone since, or a link that leads nowhere
                continue
            yield str(path.relative_to(folder)), (stat.st_mtime_ns, stat.st_size)


_Values = Mapping[str, Any]
_LineId = tuple[str, str, int]
"""Table or kind, key or text, and which of those that have both."""


@dataclass(frozen=True, slots=True)
class _Line:
    """What became of a record: a row, a delete, or a sentence."""

    head: str
    """Its table, or what became of it."""
    text: str = ""
    values: _Values = field(default_factory=dict)
    key: tuple[str, ...] = ()
    """Columns that tell rows of one table from each other."""

    @property
    def name(self) -> str:
        """Return what tells it from the others of its table, or the sentence."""
        return _listed({name: self.values.get(name) for name in self.key}) or self.text


_Lines = dict[_LineId, _Line]


def _lines(pipeline: Pipeline, result: SampleResult) -> _Lines:
    """Return what becomes of a sample: rows, deletes, what would be parked, a count."""
    found: _Lines = {}
    seen: Counter[tuple[str, str]] = Counter()
    for line in _each_line(pipeline, result):
        name = line.head, line.name
        found[(*name, seen[name])] = line
        seen[name] += 1
    return found


def _each_line(pipeline: Pipeline, result: SampleResult) -> Iterator[_Line]:
    keys = _keys(pipeline)
    for table in result.tables:
        key = keys.get(table, ())
        yield from (_Line(table, values=row, key=key) for row in result.rows(table))
        deleted = f"{table}  deleted"
        yield from (_Line(deleted, values=row, key=tuple(row)) for row in result.deleted(table))
    for event, outcome in result.events:
        for cause in outcome.parked:
            where = f" ({cause.where})" if cause.where else ""
            yield _Line("parked", f"{event.place}: {cause.way}: {cause.message}{where}")
    if result.filtered:
        yield _Line("filtered", counted(result.filtered, "record"))


def _keys(pipeline: Pipeline) -> dict[str, tuple[str, ...]]:
    """Return the key columns of each table; of a child's those of its parent, and the place."""
    from waybill.testing.runs import ITEM

    tables = [event.table for event in pipeline.events.values()]
    children = {child.name: (*one.key, ITEM) for one in tables for child in one.children}
    return {one.name: one.key for one in tables} | children


def _show_difference(before: _Lines, after: _Lines) -> None:
    """Print what is gone, what is new, and of what changed the key and the changed columns."""
    gone = [(f"- {_whole(line)}", "red") for name, line in before.items() if name not in after]
    shown = [*gone, *_changes(before, after)]
    for line, style in shown or [("no row differs", "")]:
        print_folded([line], style=style)


def _changes(before: _Lines, after: _Lines) -> Iterator[tuple[str, str]]:
    """Yield lines of what is new or changed, each with its style."""
    for name, line in after.items():
        old = before.get(name)
        if old is None:
            yield f"+ {_whole(line)}", "green"
        elif changed := list(_changed_columns(old.values, line.values)):
            yield f"~ {line.head}  {line.name}  {', '.join(changed)}", "yellow"


def _whole(line: _Line) -> str:
    return f"{line.head}  {_listed(line.values) or line.text}"


def _listed(values: _Values) -> str:
    return ", ".join(f"{name}: {_shortened(shown_value(one))}" for name, one in values.items())


def _changed_columns(old: _Values, new: _Values) -> Iterator[str]:
    """Yield "column: old → new" of those that differ; with their types, where they look alike."""
    for name in dict.fromkeys((*old, *new)):
        before, after = _look(old, name), _look(new, name)
        kinds = [type(row.get(name)).__name__ for row in (old, new)]
        if before != after:
            yield f"{name}: {_shortened(before)} → {_shortened(after)}"
        elif kinds[0] != kinds[1]:
            yield f"{name}: {_shortened(before)} ({kinds[0]}) → {_shortened(after)} ({kinds[1]})"


def _look(row: _Values, name: str) -> str:
    return shown_value(row[name]) if name in row else "no such column"
