"""A new pipeline's folder, written whole or not at all.

The files are written into a folder beside it whose name begins with a dot, which nothing takes for
a pipeline, and that folder is renamed. What dies on the way leaves the dotted folder: delete it.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from waybill.errors import InputError, NotFoundError
from waybill.nearest_name import hint, shown_name
from waybill.pipelines.document import read_document, yaml_text
from waybill.pipelines.folder import DECLARATION, SHARED
from waybill.pipelines.form import CONNECTORS, brought_connectors, check_shape
from waybill.pipelines.model import Pipeline
from waybill.pipelines.problems import Path as Place
from waybill.pipelines.rest_api_example import rest_example
from waybill.pipelines.rules import check_rules
from waybill.pipelines.source_examples import (
    EXAMPLE_CONNECTORS,
    ExampleColumns,
    SourceExample,
    files_source,
    source_example,
)
from waybill.pipelines.validation import (
    TableKey,
    as_spelled,
    check,
    find_collisions,
    load_pipeline,
)
from waybill.request import Request
from waybill.settings import SourceSettings

if TYPE_CHECKING:
    from waybill.egress import EgressGuard

EXAMPLES = "events.jsonl"
"""The file with a pipeline's example events, in its folder."""
DEFAULT_DESTINATION = "warehouse"
"""That of the embedded stack."""
_EXAMPLE_KEY = "id"
_MOST_NAME = 63
_COLUMNS = ("changed_at", "status", "amount")
"""Of the table that is written, beside its key: version, text, number."""
_OPTION_OF = {
    ("name",): "name",
    ("events", "record", "table"): "name",
    ("destination", "schema"): "--team",
    ("events",): "--key",
    ("source",): "--key",
    ("rest_api",): "--rest-api",
}
"""What a field of the declaration is made from, where that is not the option of its name."""


NO_SOURCES = SourceSettings()


class NewPipeline(Request):
    """What a new pipeline is to be; fields left out get defaults that run."""

    name: Annotated[str, Field(description="Name of the pipeline and of its folder.")]
    team: Annotated[str, Field(description="Team that owns it.")] = "team"
    owner: Annotated[str | None, Field(description="Who to ask; the team, if left out.")] = None
    id: Annotated[
        str | None, Field(description="Id, which never changes; by default <team>-<name>.")
    ] = None
    destination: Annotated[
        str | None, Field(description="Destination, as the settings name it.")
    ] = None
    connector: Annotated[str, Field(description="Connector of its source.")] = next(
        iter(CONNECTORS)
    )
    rest_api: Annotated[
        str | None,
        Field(
            description="With connector dlt: address of a REST API's records, as "
            "https://api.example.com/v1/loans."
        ),
    ] = None
    path: Annotated[
        str | None,
        Field(
            description="With connector files: which, as inbox/*.jsonl; * is any part of a name."
        ),
    ] = None
    key: Annotated[
        str | None,
        Field(
            description="Columns of the primary key, with commas between them; left out: what"
            " `waybill sources discover` finds, of connectors csv and http id."
        ),
    ] = None
    schedule: Annotated[
        str | None, Field(description="@hourly, @daily or cron; left out: by hand.")
    ] = None
    batch: Annotated[
        bool, Field(description="The transformation takes Arrow tables, not one event at a time.")
    ] = False

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Return the columns of the primary key, of a key that is not given the example's."""
        key = _EXAMPLE_KEY if self.key is None else self.key
        return tuple(part.strip() for part in key.split(","))

    @property
    def has_examples(self) -> bool:
        """Whether it begins with an example's columns; else those of its source are discovered."""
        return self.connector in EXAMPLE_CONNECTORS


@dataclass(frozen=True, slots=True)
class WrittenPipeline:
    """A pipeline's folder that was written."""

    folder: Path
    id: str
    team: str
    destination: str
    files: tuple[str, ...]
    """Paths of the files in it."""
    advice: str = ""
    """What is to be done before its source can be read, in lines; "": nothing."""
    is_finished: bool = True
    """Its declaration is whole; False: ``waybill sources discover --write`` fills in the rest."""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "pipeline": self.folder.name,
            "id": self.id,
            "team": self.team,
            "destination": self.destination,
            "folder": str(self.folder),
            "files": list(self.files),
            "advice": self.advice,
            "is_finished": self.is_finished,
        }


def write_new(
    root: Path,
    new: NewPipeline,
    destinations: Collection[str] = (),
    sources: SourceSettings = NO_SOURCES,
    *,
    egress: EgressGuard | None = None,
    table_key: TableKey = as_spelled,
) -> WrittenPipeline:
    """Write a pipeline's folder into a folder of pipelines.

    Args:
        root: the folder of pipelines.
        new: what it is to be.
        destinations: names that the settings have; none: that of the embedded stack.
        sources: what the settings let sources read.
        egress: where sources may connect to; None: to the public internet.
        table_key: which tables are one in these destinations.

    Raises:
        InputError: a value that a declaration refuses, something of the name is there already,
            another pipeline has its id or table, or the folder cannot be written. Nothing is left.
    """
    _refuse(_no_text(new))
    destination = _destination(new.destination, destinations)
    columns = _columns(new.key_columns)
    source = _source(new, columns, sources, egress)
    declaration = _declaration(new, destination, columns, source)
    whole = declaration.replace(_NOT_KNOWN, _key_lines(new))
    _refuse(_mistakes(whole, new))
    folder = root / new.name
    if os.path.lexists(folder):
        raise InputError(f"{folder} is there already; nothing was written. Choose another name")
    if not root.is_dir() or (root / DECLARATION).is_file():
        raise InputError(
            f"{root} is no folder of pipelines: make that folder, or name yours in the variable "
            "WAYBILL_PIPELINES_DIR"
        )
    files = dict(_files(new, declaration, columns, source))
    try:
        pipeline = _write(root, folder, files, whole, table_key)
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from error
    return WrittenPipeline(
        folder=folder,
        id=pipeline.id,
        team=pipeline.team,
        destination=pipeline.destination,
        files=tuple(files),
        advice=source.advice,
        is_finished=new.has_examples,
    )


def _source(
    new: NewPipeline,
    columns: ExampleColumns,
    sources: SourceSettings = NO_SOURCES,
    egress: EgressGuard | None = None,
) -> SourceExample:
    if new.rest_api is not None:
        key = () if new.key is None else new.key_columns
        return rest_example(new.rest_api, new.name, key, egress)
    if new.path is not None:
        return files_source(new.path, sources.roots)
    return source_example(new.connector, new.name, _table(new), columns, sorted(sources.taps))


def wrong_value(field: str, value: str) -> str:
    """Return what a declaration refuses of one value of a new pipeline; "": nothing.

    Args:
        field: of ``NewPipeline``.
        value: of it; all else is as by default.
    """
    new = NewPipeline.of({"name": "new", field: value})
    mistakes = _no_text(new)
    if not mistakes:
        columns = _columns(new.key_columns)
        declaration = _declaration(new, DEFAULT_DESTINATION, columns, _source(new, columns))
        mistakes = _mistakes(declaration.replace(_NOT_KNOWN, _key_lines(new)), new)
    option = "name: " if field == "name" else f"--{field}: "
    return next((one.removeprefix(option) for one in mistakes if one.startswith(option)), "")


def _refuse(mistakes: Sequence[str]) -> None:
    if mistakes:
        raise InputError("\n".join(mistakes))


def _no_text(new: NewPipeline) -> list[str]:
    """Return what cannot be written down: a shell may give bytes that are no text."""
    mistakes = []
    for name, value in new.model_dump(exclude_none=True, exclude={"batch"}).items():
        try:
            value.encode()
        except UnicodeEncodeError:
            shown = shown_name(value)
            mistakes.append(f"{_option((name,))}: expected text in UTF-8; found {shown!r}")
    if new.name == SHARED:
        said = f"expected another name; {SHARED!r} is the folder of modules that pipelines share"
        mistakes.append(f"{_option(('name',))}: {said}")
    if not all(new.key_columns):
        mistakes.append(f"--key: expected names with commas between them; found {new.key!r}")
    if new.rest_api is not None and new.connector != "dlt":
        mistakes.append(f"--rest-api: goes with --connector dlt, not {shown_name(new.connector)}")
    if new.path is not None and (new.connector != "files" or not new.path.strip()):
        mistakes.append("--path: expected the files of --connector files, as inbox/*.jsonl")
    return mistakes


def _destination(name: str | None, known: Collection[str]) -> str:
    known = sorted(known) or [DEFAULT_DESTINATION]
    if name is None and DEFAULT_DESTINATION in known:
        return DEFAULT_DESTINATION
    if name is None and len(known) == 1:
        return known[0]
    if name is not None and name in known:
        return name
    there = f"the settings have {', '.join(map(shown_name, known))}"
    if name is None:
        raise InputError(f"--destination: say which; {there}")
    raise NotFoundError(
        f"--destination: there is no {shown_name(name)!r}; {there}{hint(name, known)}"
    )


def _mistakes(declaration: str, new: NewPipeline) -> list[str]:
    """Return what a declaration refuses of the options, in its own words."""
    known = (*CONNECTORS, *brought_connectors())
    if new.connector not in known:
        there = f"there are {', '.join(map(shown_name, known))}"
        connector = shown_name(new.connector)
        return [f"--connector: there is no {connector!r}; {there}{hint(new.connector, known)}"]
    document = read_document(declaration)
    _, findings = check_shape(document.value)
    if not findings:
        findings = list(check_rules(document.value))
    findings += [(place, message) for _, place, message in document.faults]
    mistakes: dict[str, str] = {}
    for place, message in findings:
        mistakes.setdefault(_option(place), message)
    if new.id is None and len(mistakes) > 1:
        mistakes.pop("--id", None)  # it is made from the others
    if new.name.startswith("_"):
        mistakes.setdefault("name", "folders whose names begin with _ are passed over")
    return [f"{option}: {message}" for option, message in mistakes.items()]


def _option(place: Place) -> str:
    """Return the option that a place of the declaration is made from."""
    for length in range(len(place), 0, -1):
        if option := _OPTION_OF.get(tuple(map(str, place[:length]))):
            return option
    return f"--{place[0]}" if place else "name"


def _write(
    root: Path, folder: Path, files: dict[str, str], whole: str, table_key: TableKey
) -> Pipeline:
    """Write the files; ``whole``: the declaration with all that is filled in later, to be checked.

    Returns:
        What that declares.
    """
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".new", dir=root))
    try:
        for name, text in (files | {DECLARATION: whole}).items():
            (part / name).parent.mkdir(exist_ok=True)
            _write_file(part / name, text)
        problems = [*check(part), *find_collisions(root, part, table_key)]
        _refuse([f"{_option(tuple(one.field.split('.')))}: {one.message}" for one in problems])
        pipeline = load_pipeline(part)
        if whole != files[DECLARATION]:
            _write_file(part / DECLARATION, files[DECLARATION])
        part.chmod(0o777 & ~_umask())
        for inner in {(part / name).parent for name in files}:
            _sync(inner)
        part.rename(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    _sync(root)
    return pipeline


def _write_file(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _columns(key: Sequence[str]) -> ExampleColumns:
    """Return the key's columns and others beside it, none of which the key has."""
    taken = {name.casefold() for name in key}
    return ExampleColumns(tuple(key), *(_free(name, taken) for name in _COLUMNS))


def _free(name: str, taken: Collection[str]) -> str:
    return _free(f"{name}_2", taken) if name in taken else name


def _table(new: NewPipeline) -> str:
    return new.name.replace("-", "_")


_NOT_KNOWN = "    # what is not here of key, version, columns: `waybill sources discover --write`\n"
"""In place of what is not known of an event yet."""


def _declaration(
    new: NewPipeline, destination: str, columns: ExampleColumns, source: SourceExample
) -> str:
    plain = f"{new.team}-{new.name}".lower().replace("_", "-").lstrip("-")
    schedule = "null # by hand" if new.schedule is None else yaml_text(new.schedule)
    event = _example_event(new, columns) if new.has_examples else _event(new)
    return f"""\
# What each field may be: docs/pipelines.md. `waybill pipelines check` finds mistakes.
id: {yaml_text(new.id or plain[:_MOST_NAME])} # never changes: event ids and the books hold it
name: {yaml_text(new.name)}
team: {yaml_text(new.team)}
owner: {yaml_text(new.owner or new.team)}
schedule: {schedule}

source:
  connector: {yaml_text(new.connector)}
{_lines(0, source.lines)}
  event: {yaml_text(source.event)}

events:
  {yaml_text(source.event)}:
{event}

transformation: transformation.py
# keep_source: true # what parks at mapping keeps its source record: a replay may run changed code
destination: {{ name: {yaml_text(destination)}, schema: {yaml_text(new.team.replace("-", "_"))} }}
"""


_POLICY = "policy: strict # a field without a column parks the event"


def _example_event(new: NewPipeline, columns: ExampleColumns) -> str:
    keys = [yaml_text(name) for name in columns.key]
    lines = [
        f"key: [{', '.join(keys)}]",
        f"version: {columns.changed} # rises with each change of a record: the newest wins",
        f"table: {yaml_text(_table(new))}",
        _POLICY,
        "columns:",
        *(f"  {name}: string" for name in keys),
        f"  {columns.changed}: timestamp not null",
        f"  {columns.status}: string not null",
        f"  {columns.amount}: decimal(10,2)",
    ]
    return _lines(4, lines)


def _event(new: NewPipeline) -> str:
    """Return an event's fields without those that are to be discovered."""
    key = [] if new.key is None else [_key_line(new)]
    return _NOT_KNOWN + _lines(4, [*key, f"table: {yaml_text(_table(new))}", _POLICY])


def _key_line(new: NewPipeline) -> str:
    return f"key: [{', '.join(map(yaml_text, new.key_columns))}]"


def _key_lines(new: NewPipeline) -> str:
    """Return lines with which a declaration is whole, so that it can be checked."""
    key = [_key_line(new)] if new.key is None else []
    columns = ["columns:", *(f"  {yaml_text(name)}: string" for name in new.key_columns)]
    return _lines(4, [*key, *columns]) + "\n"


def _lines(indent: int, lines: Sequence[str]) -> str:
    return "\n".join(" " * indent + line for line in lines)


def _files(
    new: NewPipeline, declaration: str, columns: ExampleColumns, source: SourceExample
) -> Iterator[tuple[str, str]]:
    yield DECLARATION, declaration
    own_test = f"test_{new.name}.py"
    if not new.has_examples:
        yield "transformation.py", _passed_on(new)
        yield from source.files.items()
        yield EXAMPLES, _OTHER_NAME
        yield own_test, _general_test(new.name, _table(new))
        return
    code = _batch_code if new.batch else _code
    yield "transformation.py", code(columns.status, columns.amount)
    no_status = "record_invalid" if new.batch else "null_value"
    yield from source.files.items()
    examples = _examples(columns, _table(new), no_status)
    lines = (json.dumps(example, ensure_ascii=False) + "\n" for example in examples)
    yield EXAMPLES, "".join(lines)
    yield own_test, _test(new.name, _table(new), columns, no_status)


_PASSED_ON = '''\
"""What is done to each record before it becomes a row; docs/pipelines.md says what it may do."""


def transform(event):
    return event  # event.data is one record of the source, a dict; it goes on as it came
'''
_WITH_DELETES = frozenset({"kafka", "postgres_cdc", "sql"})
"""Connectors whose deletes have little more than their key."""
_PASSED_ON_WITH_DELETES = '''\
"""What is done to each record before it becomes a row; docs/pipelines.md says what it may do."""


def transform(event):
    if event.op == "delete":
        return event  # its row is gone at the source: of event.data only the key is sure
    return event  # event.data is one record of the source, a dict; it goes on as it came
'''
_PASSED_ON_IN_BATCHES = '''\
"""What is done to records before they become rows; docs/pipelines.md says what it may do."""


def transform_batch(table):
    return table  # a row is a record; of a delete (`_op`) all but its key may be null
'''


def _passed_on(new: NewPipeline) -> str:
    """Return a transformation that changes nothing."""
    if new.batch:
        return _PASSED_ON_IN_BATCHES
    return _PASSED_ON_WITH_DELETES if new.connector in _WITH_DELETES else _PASSED_ON


_OTHER_NAME = (
    '{"note": "its event name is not declared", "event": "not_declared", "data": {},'
    ' "parked": "event_undeclared"}\n'
)
"""An example event that is right whatever key, version and columns are declared."""


def _general_test(name: str, table: str) -> str:
    """Return a pipeline's test, which fits whatever columns are declared."""
    return f'''\
"""Run by `waybill test {name}`, or by pytest, once `waybill sources discover {name} --write` has
declared its columns. docs/pipelines.md has more ways to test."""

from pathlib import Path

from waybill.testing import example_event, run_pipeline

FOLDER = Path(__file__).parent


def test_a_record_becomes_a_row():
    # the first of events.jsonl that is to: `discover --write` puts one of the source's there
    result = run_pipeline(FOLDER, [example_event(FOLDER)])
    assert result.parked == []
    assert len(result.rows["{table}"]) == 1
'''


def _examples(columns: ExampleColumns, table: str, no_status: str) -> Iterator[dict[str, Any]]:
    status, amount = columns.status, columns.amount
    record: dict[str, Any] = {**columns.record(1)}
    row = record | {status: "paid"}
    yield {"note": "becomes a row", "data": record, "rows": {table: [row]}}
    yield {"note": "is left out", "data": record | {status: "Test"}, "filtered": True}
    yield {"note": "parks", "data": record | {amount: "-1.00"}, "parked": "record_invalid"}
    yield {"note": "parks", "data": record | {status: None}, "parked": no_status}


def _code(status: str, amount: str) -> str:
    return f'''\
"""What is done to each record before it becomes a row; docs/pipelines.md says what it may do."""

from decimal import Decimal

from waybill.errors import ParkError


def transform(event):
    record = event.data  # one record of the source, a dict
    record["{status}"] = record["{status}"].lower()
    if record["{status}"] == "test":
        return None  # filtered on purpose, and counted
    if Decimal(record["{amount}"]) < 0:
        raise ParkError("record_invalid", "the amount is negative", where="{amount}")
    return event
'''


def _batch_code(status: str, amount: str) -> str:
    return f'''\
"""What is done to records before they become rows; docs/pipelines.md says what it may do."""

import pyarrow.compute as pc


def transform_batch(table):
    # a row is a record; columns have their declared types, and what is done to null gives null
    status = pc.utf8_lower(table["{status}"])
    table = table.set_column(table.column_names.index("{status}"), "{status}", status)
    wrong = pc.make_struct(pc.is_null(status), pc.less(table["{amount}"], 0))
    error = pc.case_when(wrong, "the status is missing", "the amount is negative")
    table = table.append_column("_error", error)  # a record with an error parks, the others do not
    is_test = pc.fill_null(pc.equal(status, "test"), False)
    return table.filter(pc.invert(is_test))  # filtered on purpose, and counted
'''


def _test(name: str, table: str, columns: ExampleColumns, no_status: str) -> str:
    status = columns.status
    record = "\n".join(
        f"    {json.dumps(field, ensure_ascii=False)}: {json.dumps(value)},"
        for field, value in columns.record(1).items()
    )
    return f'''\
"""Run by `waybill test {name}`, or by pytest. docs/pipelines.md has more ways to test."""

from pathlib import Path

from waybill.testing import Event, run_pipeline

FOLDER = Path(__file__).parent
RECORD = Event({{
{record}
}})


def test_a_status_is_written_in_small_letters():
    result = run_pipeline(FOLDER, [RECORD])
    assert [row["{status}"] for row in result.rows["{table}"]] == ["paid"]


def test_a_record_without_a_status_parks():
    result = run_pipeline(FOLDER, [RECORD.with_fields({status}=None)])
    assert [parked.error_type for parked in result.parked] == ["{no_status}"]
'''
