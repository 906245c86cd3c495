"""The shape of ``pipeline.yaml``: what each field may hold, and the messages for what it may not.

``description`` completes the sentence "expected ..."; ``examples`` are the valid choices, from
which the nearest is offered. ``check_shape`` puts pydantic's findings into a user's words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo

from waybill.nearest_name import hint, nearest
from waybill.pipelines.column_types import COLUMN_TYPES, ColumnType
from waybill.pipelines.model import PUSHED
from waybill.pipelines.problems import Path, shown

PRESETS = (
    "@once",
    "@continuous",
    "@hourly",
    "@daily",
    "@weekly",
    "@monthly",
    "@quarterly",
    "@yearly",
)
_FIELDS = 5
_CHARACTERS = re.compile(r"[0-9A-Za-z*/,\-# ]{1,200}")


def check_schedule(text: str) -> str:
    """Return the schedule.

    Raises:
        ValueError: no preset and no cron expression, or a time that never comes.
    """
    if text in PRESETS:
        return text
    if text.startswith("@"):
        raise ValueError(f"the presets are {', '.join(PRESETS)}")
    if len(text.split(" ")) != _FIELDS or not _CHARACTERS.fullmatch(text):
        raise ValueError("cron has five fields, one space between: minute hour day month weekday")
    _refuse_impossible(text)
    return text


def _refuse_impossible(text: str) -> None:
    from croniter import (  # type: ignore[import-untyped]
        CroniterBadDateError,
        CroniterError,
        croniter,
    )

    try:
        croniter(text).get_next()
    except CroniterBadDateError as error:
        raise ValueError("this time never comes") from error
    except (CroniterError, ValueError, KeyError, IndexError, OverflowError) as error:
        raise ValueError(f"not a cron expression: {error}") from error


CONNECTORS: Mapping[str, str] = {
    "csv": "waybill.ingestion.connectors.csv_file:CsvConnector",
    "http": "waybill.ingestion.connectors.http_source:PushedSource",
    "dlt": "waybill.ingestion.connectors.dlt_source:DltConnector",
    "singer": "waybill.ingestion.connectors.singer_tap:SingerConnector",
    "files": "waybill.ingestion.connectors.files:FilesConnector",
    "sql": "waybill.ingestion.connectors.sql_table:SqlConnector",
    "kafka": "waybill.ingestion.connectors.kafka_topics.connector:KafkaConnector",
    "postgres_cdc": "waybill.ingestion.connectors.postgres_cdc.connector:PostgresCdcConnector",
}
"""Those that are part of Waybill, each with what opens one: imported when one is opened."""
OF_FILES = ("csv",)
"""Those of them that read a file: they have a path, all others have options."""
ENTRY_POINTS = "waybill.connectors"
"""Group under which other packages bring connectors."""
PACKAGE = "package:"
"""Begins the path of a file in an installed package."""
_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
RESERVED_PREFIX = "_waybill_"
UNKNOWN_PIPELINE = "unknown"
"""The id under which messages are parked that cannot be read, and so say no pipeline."""
_NOT_NULL = re.compile(r"(.+?)\s+not\s+null", re.IGNORECASE)
CSV_TYPES = tuple(name for name in COLUMN_TYPES if name not in ("bytes", "json"))
MAX_IDENTIFIER_BYTES = 63


def _identifier(text: str) -> str:
    """Refuse what no warehouse takes as the name of a table, schema or column."""
    if not text.isprintable() or text != text.strip():
        raise ValueError("it has characters that cannot be seen")
    if len(text.encode()) > MAX_IDENTIFIER_BYTES:
        raise ValueError(f"it has more than {MAX_IDENTIFIER_BYTES} bytes")
    if text.lower().startswith(RESERVED_PREFIX):
        raise ValueError(f"names that begin with {RESERVED_PREFIX} belong to Waybill")
    return text


def _own_id(text: str) -> str:
    """Refuse the id under which events are parked that name no pipeline."""
    if text == UNKNOWN_PIPELINE:
        raise ValueError("events whose envelope cannot be read are parked under this id")
    return text


def _readable(text: str) -> str:
    if not text.isprintable() or text != text.strip():
        raise ValueError("it has characters that cannot be seen")
    return text


def _location(text: str) -> str:
    if "\0" in text:
        raise ValueError("it holds a NUL")
    if _URL.match(text):
        raise ValueError("it is a URL; a source is a file here: fetch it, and name the file")
    if text.startswith(PACKAGE):
        package, _, rest = text.removeprefix(PACKAGE).partition("/")
        parts = rest.split("/")
        if not package.isidentifier() or ".." in parts or not all(parts):
            raise ValueError("a file of a package is package:<name>/<path inside it>")
    return text


def brought_connectors() -> dict[str, EntryPoint]:
    """Return the connectors that installed packages bring; each has a name that can be written."""
    return {one.name: one for one in entry_points(group=ENTRY_POINTS)}


def _connector(name: str) -> str:
    if name not in CONNECTORS and name not in (brought := brought_connectors()):
        known = ", ".join((*CONNECTORS, *brought))
        raise ValueError(f"there is no such connector; there are {known}")
    return name


def _csv_type(text: str) -> str:
    if text not in CSV_TYPES and not text.startswith("decimal("):
        raise ValueError("a CSV file holds none of this type")
    return text


PART = "text of 1 to 63 letters, digits, - and _"
PART_PATTERN = r"^[A-Za-z0-9_-]{1,63}$"
Part = Annotated[str, StringConstraints(pattern=PART_PATTERN)]
"""A part of a topic's name: no dots, they separate the parts."""
Identifier = Annotated[str, StringConstraints(min_length=1), AfterValidator(_identifier)]
Words = Annotated[str, StringConstraints(min_length=1, max_length=200), AfterValidator(_readable)]
FieldName = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
PROPOSED = "`waybill sources discover … --write` proposes what is missing, by the source"
COLUMNS = (
    "columns with a type each: 'string', 'string not null', or {type, nullable, from}; names of at"
    " most 63 bytes"
)
Types = f"one of {', '.join(COLUMN_TYPES)}"


class _Form(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ColumnForm(_Form):
    """A column: ``string``, ``string not null``, or all its fields."""

    type: ColumnType = Field(description=Types, examples=list(COLUMN_TYPES))
    nullable: bool | None = Field(None, description="true or false")
    source: FieldName | None = Field(
        None, alias="from", description="a field of the payload (text)"
    )

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        match = _NOT_NULL.fullmatch(value)
        return {"type": value} if match is None else {"type": match[1], "nullable": False}


class ItemColumnForm(ColumnForm):
    """A column of a child table; ``from: ""`` is the item itself."""

    source: Annotated[str, StringConstraints(max_length=1000)] | None = Field(
        None, alias="from", description='a field of the items (text); "" is the item itself'
    )


class ChildForm(_Form):
    """A table of the items of an array."""

    source: FieldName = Field(alias="from", description="the field of the payload with the list")
    columns: dict[Identifier, ItemColumnForm] = Field(min_length=1, description=COLUMNS)


class EventForm(_Form):
    """An event name's key, version and table."""

    key: list[str] = Field(
        min_length=1,
        description="a list of one or more columns",
        json_schema_extra={"missing": PROPOSED},
    )
    version: FieldName | None = Field(None, description="a field of the payload, or null")
    table: Identifier = Field(description="a table's name (text of at most 63 bytes)")
    policy: Literal["strict", "ignore", "evolve"] = Field(
        "strict",
        description="strict, ignore or evolve",
        examples=["strict", "ignore", "evolve"],
    )
    personal: list[FieldName] = Field(
        default=[], description="a list of payload fields (a.b: a field inside another)"
    )
    nested: Literal["json", "flatten"] = Field(
        "json", description="json or flatten", examples=["json", "flatten"]
    )
    depth: int = Field(8, ge=1, le=32, description="a number from 1 to 32")
    arrays: Literal["json", "child"] = Field(
        "json", description="json or child", examples=["json", "child"]
    )
    deletes: Literal["hard", "soft"] = Field(
        "hard", description="hard or soft", examples=["hard", "soft"]
    )
    columns: dict[Identifier, ColumnForm] = Field(
        min_length=1,
        description=COLUMNS,
        json_schema_extra={"missing": PROPOSED},
    )
    children: dict[Identifier, ChildForm] = Field(
        default={}, description="tables of the items of arrays: {<table>: {from, columns}}"
    )


class SourceForm(_Form):
    """Where the records come from."""

    connector: Annotated[str, AfterValidator(_connector)] = Field(
        description=f"a connector: {', '.join(CONNECTORS)}, or an installed package's",
        examples=list(CONNECTORS),
    )
    event: str = Field(description="an event name of this pipeline")
    path: Annotated[
        str, StringConstraints(min_length=1, max_length=4000), AfterValidator(_location)
    ] = Field("", description="a file's path, or package:<name>/<path inside it>")
    page_rows: int = Field(10_000, ge=1, le=1_000_000, description="a number from 1 to 1000000")
    order_by: list[FieldName] = Field(default=[], description="a list of the source's columns")
    null_values: list[str] = Field(default=[""], description="a list of texts that mean null")
    columns: dict[FieldName, Annotated[ColumnType, AfterValidator(_csv_type)]] | None = Field(
        None,
        description=f"for each column one of {', '.join(CSV_TYPES)}",
        examples=list(CSV_TYPES),
    )
    connection: Part | None = Field(
        None, description=f"the name of a connection: {PART}; addresses and secrets stand there"
    )
    options: dict[FieldName, JsonValue] = Field(
        default={}, max_length=100, description="what the connector asks for"
    )

    @model_validator(mode="after")
    def _check_own(self) -> Self:
        """Refuse fields that the built-in connector lacks, or has no use for."""
        if self.connector in OF_FILES and not self.path:
            raise ValueError("path is missing: a file's path, or package:<name>/<path inside it>")
        if self.connector in OF_FILES and self.options:
            raise ValueError(f"connector {self.connector} has no options")
        if self.connector in OF_FILES and self.connection is not None:
            raise ValueError(f"connector {self.connector} needs no connection")
        if self.connector == PUSHED and self.path:
            raise ValueError(f"connector {self.connector} reads no file: leave path out")
        return self


class DestinationForm(_Form):
    """Where the rows go."""

    name: Part = Field(description=PART)
    schema_name: Identifier = Field(
        alias="schema", description="a schema's name (text of at most 63 bytes)"
    )


class PipelineForm(_Form):
    """A whole ``pipeline.yaml``."""

    id: Annotated[
        str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{2,62}$"), AfterValidator(_own_id)
    ] = Field(
        description="an id that never changes: 3 to 63 small letters, digits and -, no - first"
    )
    name: Part = Field(description=PART)
    team: Part = Field(description=PART)
    owner: Words = Field(description="who to ask: a name or an address")
    schedule: Annotated[str, AfterValidator(check_schedule)] | None = Field(
        None,
        description="null, a preset such as @hourly, or five cron fields",
        examples=list(PRESETS),
    )
    source: SourceForm = Field(description="a mapping: the source")
    events: dict[Words, EventForm] = Field(
        min_length=1, description="a mapping of event names to their key, table and columns"
    )
    transformation: str = Field(
        "transformation.py", description="a file in the pipeline's own folder"
    )
    destination: DestinationForm = Field(description="a mapping with name and schema")
    keep_source: bool = Field(default=False, description="true or false")
    network: bool = Field(default=False, description="true or false")


Finding = tuple[Path, str]
"""(place, message)."""


def check_shape(value: Any) -> tuple[PipelineForm | None, list[Finding]]:
    """Return the form, or None and all that keeps the value from being one."""
    try:
        return PipelineForm.model_validate(value), []
    except ValidationError as error:
        details = error.errors(include_url=False)
    if value is None:
        return None, [((), "expected a mapping of fields; the file is empty")]
    typed_wrong = {_meant(detail) for detail in details if detail["type"] == "extra_forbidden"}
    return None, [
        _finding(detail, value)
        for detail in details
        if detail["type"] != "missing" or _in_document(detail["loc"]) not in typed_wrong
    ]


def _meant(detail: Any) -> Path:
    """Return the place of the field that an unknown one was meant to be: a typo is told once."""
    path = _in_document(detail["loc"])
    name = nearest(path[-1], _names(_place(path)[0]))
    return path if name is None else (*path[:-1], name)


def _finding(detail: Any, document: Any) -> Finding:
    path = _in_document(detail["loc"])
    form, info = _place(path)
    kind, found = detail["type"], detail["input"]
    if kind == "extra_forbidden":
        names = _names(form)
        message = f"expected one of {', '.join(names)}; found {shown(path[-1])}"
        return path, message + hint(path[-1], names)
    expected = info.description if info is not None and info.description else "a mapping of fields"
    if kind == "missing":
        return path, f"expected {expected}; it is missing{_instead(info)}"
    reason = detail.get("ctx", {}).get("error")
    because = f" ({reason})" if reason is not None else ""
    choices = info.examples if info is not None and info.examples else []
    near = hint(found, choices) if isinstance(found, str) else ""
    return _existing(path, document), f"expected {expected}; found {shown(found)}{because}{near}"


def _instead(info: FieldInfo | None) -> str:
    """Return what to do about a field that is missing, where its form says it."""
    extra = None if info is None else info.json_schema_extra
    return f": {extra['missing']}" if isinstance(extra, dict) and "missing" in extra else ""


def _in_document(loc: tuple[str | int, ...]) -> Path:
    """Return a location without pydantic's own marks."""
    return tuple(part for part in loc if part != "[key]")


def _existing(path: Path, value: Any) -> Path:
    """Return the part of a path that the document has: a short form has no ``type`` of its own."""
    for depth, part in enumerate(path):
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            return path[:depth]
    return path


def _names(form: type[BaseModel]) -> list[str]:
    return [info.alias or name for name, info in form.model_fields.items()]


def _place(path: Path) -> tuple[type[BaseModel], FieldInfo | None]:
    """Return the form that holds the last part of a path, and the deepest field on the way."""
    form: type[BaseModel] = PipelineForm
    info: FieldInfo | None = None
    inside: type[BaseModel] | None = PipelineForm
    skip = False
    for part in path:
        if skip:  # a key that users choose: an event name, a column
            skip = False
            continue
        if inside is None:
            break
        form = inside
        field = _field(form, str(part))
        if field is None:
            break
        info = field
        inside, skip = _next_form(field.annotation)
    else:
        if inside is not None and not skip:
            form = inside
    return form, info


def _field(form: type[BaseModel], name: str) -> FieldInfo | None:
    for own, info in form.model_fields.items():
        if (info.alias or own) == name:
            return info
    return None


def _next_form(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """Return the form inside a field's type, and whether it is behind a key of the user's."""
    for candidate in _flat(annotation):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate, candidate is not annotation
    return None, False


def _flat(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in get_args(annotation):
        yield from _flat(part)
