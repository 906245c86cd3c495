"""What a connector is opened with, and how the options of its declaration are checked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from waybill.errors import InputError
from waybill.ingestion.connectors.connections import Connection, Connections
from waybill.nearest_name import hint, shown_name
from waybill.pipelines import EventDeclaration, Source
from waybill.settings import Settings

_LOGIN = re.compile(r"://([^/@\s]*)@")
"""A user and perhaps a password; one class alone, so that no text is gone through twice."""


class Options(BaseModel):
    """Options of one kind of connector: its model inherits from this one.

    A field's ``description`` completes the sentence "expected ...".
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


Given = TypeVar("Given", bound=Options)


@dataclass(frozen=True, slots=True)
class Opening:
    """A source's declaration, and what stands around it. Nothing is read yet."""

    source: Source
    folder: Path
    """The pipeline's own, which relative paths start from."""
    roots: Sequence[Path] = ()
    """Folders outside of it that sources may lie in (``sources.roots`` of the settings)."""
    events: Mapping[str, EventDeclaration] = field(default_factory=dict)
    """The pipeline's event names; empty where only the source is looked at."""
    connections: Connections = field(default_factory=Connections)
    settings: Settings | None = None
    """For connectors that start processes; None: those of the environment."""
    declared_key: tuple[str, ...] = ()
    """The key of the source's own event, where ``events`` is empty and the declaration has one."""

    def options(self, model: type[Given]) -> Given:
        """Return the declared options, checked.

        Raises:
            InputError: says all that is wrong; shows no value that holds a login.
        """
        if held := sorted(_logins(self.source.options, "source.options")):
            raise InputError(
                f"{held[0]}: a user and password do not belong into a declaration; name a"
                " connection in source.connection"
            )
        try:
            return model.model_validate(self.source.options)
        except ValidationError as error:
            details = error.errors(include_url=False)
        raise InputError("; ".join(_said(detail, model) for detail in details[:5]))

    def refuse(self, *fields: str) -> None:
        """Refuse fields of the declaration that the connector has no use for.

        Raises:
            InputError: one of them was given.
        """
        for name in fields:
            if getattr(self.source, name) != Source.model_fields[name].default:
                raise InputError(
                    f"source.{name}: connector {self.source.connector!r} has no use for it; see its"
                    " options in docs/connectors.md"
                )

    def connection(self, *kinds: str) -> Connection:
        """Return the connection that the source names, of one of these kinds (none: of any).

        Raises:
            InputError: the declaration names none, there is none of this name, it is not open to
                this pipeline, or of another kind.
        """
        self.require_connection()
        found = self.other_connection(self.source.connection or "", "source.connection")
        if kinds and found.kind not in kinds:
            raise InputError(
                f"connection {found.name!r}: expected one of kind {' or '.join(kinds)}; found"
                f" {shown_name(found.kind)!r}"
            )
        return found

    def other_connection(self, name: str, place: str) -> Connection:
        """Return a connection that an option names.

        Args:
            name: of the connection.
            place: where the declaration names it.

        Raises:
            InputError: there is none of this name, or it is not open to this pipeline.
        """
        found = self.connections.find(name, place)
        found.require_open_to(self.folder.name)
        return found

    def require_connection(self) -> None:
        """Refuse a source that names no connection.

        Raises:
            InputError: it does not.
        """
        if not self.source.connection:
            raise InputError(
                f"source.connection: connector {self.source.connector!r} needs one: the name of a"
                " connection of Airflow, or of the settings (WAYBILL_SOURCES__CONNECTIONS__<NAME>)"
            )

    @property
    def event(self) -> EventDeclaration | None:
        """The declaration of the source's own event name; None where it is not known."""
        return self.events.get(self.source.event)

    @property
    def key(self) -> tuple[str, ...]:
        """The key's fields of the source's own event; empty where none is declared."""
        return self.declared_key if self.event is None else self.event.key


def with_options(opening: Opening, **options: Any) -> Opening:
    """Return an opening of which some options are others."""
    source = opening.source.model_copy(update={"options": {**opening.source.options, **options}})
    return replace(opening, source=source)


def _has_password(login: str) -> bool:
    return bool(login.partition(":")[2])


def _logins(value: Any, place: str) -> Iterator[str]:
    if isinstance(value, str) and any(map(_has_password, _LOGIN.findall(value))):
        yield place
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _logins(inner, f"{place}.{shown_name(name)}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _logins(inner, f"{place}.{number}")


def _said(detail: Any, model: type[Options]) -> str:
    loc = detail["loc"]
    place = ".".join(["source.options", *(shown_name(str(part)) for part in loc)])
    fields = {info.alias or name: info for name, info in model.model_fields.items()}
    if detail["type"] == "extra_forbidden" and len(loc) == 1:
        known = ", ".join(fields) or "none"
        return f"{place}: there is no such option (there are {known}){hint(loc[-1], list(fields))}"
    info = fields.get(str(loc[0])) if loc else None
    expected = info.description if info is not None and info.description else detail["msg"]
    if detail["type"] == "missing":
        return f"{place}: expected {expected}; it is missing"
    because = f" ({detail['ctx']['error']})" if "error" in detail.get("ctx", {}) else ""
    if not loc:
        return f"source.options: {detail['ctx']['error'] if because else detail['msg']}"
    return f"{place}: expected {expected}; found {shown_name(repr(detail['input']))}{because}"
