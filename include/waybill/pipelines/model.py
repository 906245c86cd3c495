"""A pipeline as the rest of Waybill sees it: frozen, complete, unchanged by a trip through JSON."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from waybill.errors import InputError
from waybill.pipelines.column_types import ColumnType, arrow_type

if TYPE_CHECKING:
    import pyarrow as pa

VERSION_DIGITS = 12
CHILD_PREFIX = "_waybill_items_"
PUSHED = "http"
"""The connector whose source sends by itself."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; ``from_json`` takes them back."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return what ``to_json`` gave.

        Raises:
            InputError: the value is of another shape; says where.
        """
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise InputError(f"stored {cls.__name__} cannot be read: {error}") from error


class Column(_Model):
    """One column of a destination table."""

    name: str
    type: ColumnType
    nullable: bool = True
    source: str = ""
    """The payload field it is read from; when it is left out, the column's own name. Of an event
    whose nested fields are flattened: a path (``mappings.flattening``). ``""``: of a child table,
    the item itself."""

    @model_validator(mode="before")
    @classmethod
    def _default_source(cls, value: Any) -> Any:
        if isinstance(value, dict) and "source" not in value:
            return {**value, "source": value.get("name")}
        return value


class ChildTable(_Model):
    """A table of its own for the items of an array: as many rows for an event as it has items.

    Its rows have the parent's key columns, ``_waybill_item`` (place in the array, from 0; with them
    the key), the parent's id and versions, and these columns. They are replaced as a whole when the
    parent's row is, and gone when that is.
    """

    name: str
    source: str
    """The payload field with the array."""
    columns: tuple[Column, ...] = Field(min_length=1)
    """Read from the items; of items that are no objects there is one column, with source ``""``."""

    @property
    def arrow_name(self) -> str:
        """Return the name of the items' column (a list of structs) beside the parent's columns."""
        return f"{CHILD_PREFIX}{self.name}"


class TableSpec(_Model):
    """One destination table."""

    schema_name: str
    name: str
    columns: tuple[Column, ...] = Field(min_length=1)
    key: tuple[str, ...] = Field(min_length=1)
    """Names of the columns that make a row one of its kind."""
    children: tuple[ChildTable, ...] = ()
    soft_delete: bool = False
    """A delete leaves the row and sets its ``_waybill_deleted_at``."""

    @model_validator(mode="after")
    def _key_is_of_columns(self) -> Self:
        missing = set(self.key) - {column.name for column in self.columns}
        if missing:
            raise ValueError(f"key columns {sorted(missing)} are not columns of {self.name!r}")
        return self

    def arrow_schema(self) -> pa.Schema:
        """Return the Arrow schema, columns in declared order, then children; made once."""
        return self._arrow_schema

    @cached_property
    def _arrow_schema(self) -> pa.Schema:
        import pyarrow as pa

        def fields(columns: tuple[Column, ...]) -> list[pa.Field]:
            return [pa.field(c.name, arrow_type(c.type), nullable=c.nullable) for c in columns]

        items = [
            pa.field(child.arrow_name, pa.list_(pa.struct(fields(child.columns))))
            for child in self.children
        ]
        return pa.schema([*fields(self.columns), *items])


class EventDeclaration(_Model):
    """One event name of a pipeline."""

    name: str
    key: tuple[str, ...] = Field(min_length=1)
    """Payload fields of the primary key, in order; the table's key columns are read from them."""
    version: str | None = None
    """The payload field that rises with each change of a record; None: the source has none."""
    table: TableSpec
    policy: Literal["strict", "ignore", "evolve"] = "strict"
    """A payload field that no column takes: strict parks the event, ignore leaves the field out,
    evolve adds a column, and widens the type of one that a value does not fit."""
    nested: Literal["json", "flatten"] = "json"
    """Objects in the payload: a JSON column each, or a column for each of their fields."""
    depth: int = Field(8, ge=1, le=32)
    """Levels that are flattened; what lies deeper is a JSON column."""
    arrays: Literal["json", "child"] = "json"
    """Arrays in the payload: a JSON column each, or a table of their items."""
    personal: tuple[str, ...] = ()
    """Payload fields (``a.b``: a field inside another) that only some people may see."""


def brings_deletes(connector: str, options: Mapping[str, Any]) -> bool:
    """Tell whether a source is declared to bring deletes; see ``Source.brings_deletes``."""
    if connector == "sql":
        return options.get("deletes") is not None
    if connector == "kafka":
        return options.get("format") == "debezium"
    return connector == "postgres_cdc"


class Source(_Model):
    """Where a pipeline's records come from."""

    connector: str
    event: str
    path: str = ""
    """Of a file; "": the connector reads none."""
    page_rows: int = Field(10_000, ge=1)
    order_by: tuple[str, ...] = ()
    null_values: tuple[str, ...] = ("",)
    """Text that stands for null."""
    columns: dict[str, ColumnType] | None = None
    """Types of the source's columns; a column that is not here gets the type its values suggest."""
    connection: str | None = None
    """Name of the connection that says how to reach the source; None: it needs none."""
    options: dict[str, JsonValue] = {}
    """What the connector asks for; shown as it is, so no place for secrets."""

    @property
    def brings_deletes(self) -> bool:
        """Tell whether it is declared to bring deletes of which only the key is sure to be there.

        A message of Kafka without a value is one as well; whether such come the topic alone says.
        """
        return brings_deletes(self.connector, self.options)

    @property
    def event_names(self) -> tuple[str, ...]:
        """Return the event names that its records get by what is declared of it."""
        named = self.options.get("tables", self.options.get("topics"))
        return tuple(named) if isinstance(named, dict) else (self.event,)


class PipelineHead(_Model):
    """A pipeline without its event names and its code: all that does not grow with them."""

    id: str
    """Immutable; event ids and the tracker hold it."""
    name: str
    team: str
    owner: str
    schedule: str | None = None
    """None: by hand; a preset such as ``@once``; or five cron fields, UTC."""
    source: Source
    destination: str
    schema_name: str
    keep_source: bool = False
    network: bool = False
    """Whether its code may open connections."""
    version: str = ""
    """12 hex digits of the SHA-256 over all of the pipeline; filled in when left out."""


class Pipeline(PipelineHead):
    """One source, its transformation, its mapping, one destination, one owner team."""

    events: dict[str, EventDeclaration]
    transformation_code: str
    """Source text of the transformation."""
    shared_code: dict[str, str] = {}
    """Source texts of the shared modules that it imports, and that these import, by their path
    (``shared/money.py``)."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; releases that know no shared modules read what has none."""
        value = super().to_json()
        if not self.shared_code:
            del value["shared_code"]
        return value

    @model_validator(mode="after")
    def _fill_in_version(self) -> Self:
        if not self.version:
            content = self.model_dump(mode="json", exclude={"version"})
            if not content["shared_code"]:  # versions without stay what they were
                del content["shared_code"]
            _without_defaults(content["source"], Source)
            if not content["network"]:  # versions of before there was one stay
                del content["network"]
            for event in content["events"].values():
                _without_defaults(event, EventDeclaration)
                _without_defaults(event["table"], TableSpec)
            digest = hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS))
            object.__setattr__(self, "version", digest.hexdigest()[:VERSION_DIGITS])
        return self


_LATER_FIELDS = frozenset(
    {"personal", "nested", "depth", "arrays", "children", "soft_delete", "options", "connection"}
)
"""Fields that declarations did not always have: versions from before them stay."""


def _without_defaults(content: dict[str, Any], model: type[BaseModel]) -> None:
    """Leave later fields out that say what was so before there were such fields."""
    for name in _LATER_FIELDS & content.keys():
        default = model.model_fields[name].default
        if content[name] == (list(default) if isinstance(default, tuple) else default):
            del content[name]


def topic_of(pipeline: PipelineHead) -> str:
    """Return the Kafka topic of a pipeline's events."""
    return topic_name(pipeline.team, pipeline.destination)


def topic_name(team: str, destination: str) -> str:
    """Return the Kafka topic: ``events.<team>.<destination>``."""
    return f"{_PREFIX}.{team}.{destination}"


_PREFIX = "events"
_LATER = re.compile(r"events-g([1-9][0-9]{0,8})\.([A-Za-z0-9_-]{1,63}\.[A-Za-z0-9_-]{1,63})")


def generation_name(topic: str, number: int) -> str:
    """Return the name that a generation of a topic has in Kafka.

    The first has the topic's own name, the second is ``events-g2.<team>.<destination>``. No team
    and destination give such a name, nor, of the first generation, one that Kafka refuses beside it
    (it takes "." and "_" for one character there): all of those begin with ``events.``.

    Raises:
        InputError: the topic is not ``events.<team>.<destination>``, so it has one generation only.
    """
    if number == 1:
        return topic
    prefix, _, rest = topic.partition(".")
    name = f"{prefix}-g{number}.{rest}"
    if prefix != _PREFIX or _LATER.fullmatch(name) is None:
        raise InputError(f"{topic!r} is not named events.<team>.<destination>")
    return name


def generation_of(name: str) -> tuple[str, int]:
    """Return the topic and the number of the generation that has this name in Kafka."""
    match = _LATER.fullmatch(name)
    if match is None or match[1] == "1":
        return name, 1
    return f"{_PREFIX}.{match[2]}", int(match[1])


def team_of(name: str) -> str:
    """Return the team whose events are in a topic: ``events.<team>.<destination>``."""
    return name.split(".")[1]


def base_topic(name: str) -> str:
    """Return the topic of which this is the name of a generation."""
    return generation_of(name)[0]
