"""What a declaration says of a source that is read by logical replication."""

from __future__ import annotations

import re
from typing import Annotated, Any

from psycopg.conninfo import make_conninfo
from pydantic import Field, StringConstraints, field_validator

from waybill.errors import InputError
from waybill.ingestion.connectors.connections import Connection
from waybill.ingestion.connectors.opening import Opening, Options
from waybill.ingestion.connectors.postgres_cdc.column_values import SESSION

_TABLE = re.compile(r'(?:("(?:[^"]|"")+"|[^".]+)\.)?("(?:[^"]|"")+"|[^".]+)')
_LONGEST_NAME = 63
_SLOT = r"^[a-z0-9_]{1,63}$"
_EXTRAS = frozenset(
    "host hostaddr sslmode sslrootcert sslcert sslkey sslcrl sslnegotiation channel_binding"
    " gssencmode krbsrvname keepalives keepalives_idle keepalives_interval keepalives_count"
    " tcp_user_timeout target_session_attrs require_auth".split()
)
"""What a connection's extra may say to libpq; all else there is for others."""
CONNECT_S = 10
_LIMITS = {
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""A server that is gone is noticed; the connection's extra may say otherwise."""
_STATEMENT = " -c statement_timeout=3600000"
"""An hour: to make a slot waits for all transactions that are open."""

SlotName = Annotated[str, StringConstraints(pattern=_SLOT)]
Identifier = Annotated[str, StringConstraints(min_length=1, max_length=_LONGEST_NAME)]


class CdcOptions(Options):
    """``source.options`` of ``postgres_cdc``."""

    slot: SlotName = Field(
        description="the name of this pipeline's own replication slot: a-z, 0-9, _; it is made"
    )
    tables: dict[str, str] = Field(
        min_length=1, description="for each event name its table, as schema.table"
    )
    publication: Identifier | None = Field(
        None, description="a publication that is there; left out: one named as the slot, made"
    )
    idle_s: float = Field(
        5.0, ge=0, le=3600, description="seconds without a change after which a run ends"
    )
    run_s: float = Field(300.0, ge=1, le=86400, description="seconds after which a run ends")
    slot_limit_mb: int = Field(
        10_240, ge=1, description="MiB of log that the slot may hold back before it is told"
    )

    @field_validator("tables")
    @classmethod
    def _are_tables(cls, value: dict[str, str]) -> dict[str, str]:
        seen = [table_name(text) for text in value.values()]
        if len(set(seen)) < len(seen):
            raise ValueError("a table is named twice")
        return value


class TableName(tuple[str, str]):
    """A table's schema and name."""

    __slots__ = ()

    @property
    def schema(self) -> str:
        """Its schema."""
        return self[0]

    @property
    def name(self) -> str:
        """Its name in the schema."""
        return self[1]

    def __str__(self) -> str:
        """Return it as people read it."""
        return ".".join(self)


def table_name(text: str) -> TableName:
    """Return the table that a text names: ``orders``, ``shop.orders``, ``"My.Shop"."Orders"``.

    Raises:
        ValueError: it names none.
    """
    match = _TABLE.fullmatch(text)
    parts = [_unquoted(part) for part in match.groups(default="public")] if match else []
    if not all(0 < len(part.encode()) <= _LONGEST_NAME and "\0" not in part for part in parts):
        parts = []
    if not parts:
        raise ValueError(f"{text[:100]!r} is no table: write schema.table")
    return TableName(parts)


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part


def read_options(opening: Opening) -> CdcOptions:
    """Return the options of a declaration.

    Raises:
        InputError: they are wrong, or do not fit the pipeline's event names.
    """
    opening.refuse("path", "order_by", "null_values", "columns")
    opening.require_connection()
    options = opening.options(CdcOptions)
    for event, declared in opening.events.items():
        if event in options.tables and declared.version is not None:
            raise InputError(
                f"events.{event}.version: connector postgres_cdc gives each change its position in"
                " the log as its version; leave the field out"
            )
    unknown = sorted(set(options.tables) - set(opening.events))
    if opening.events and unknown:
        raise InputError(
            f"source.options.tables: {unknown[0]!r} is not under `events`; there are "
            + ", ".join(opening.events)
        )
    return options


def conninfo(connection: Connection, *, replication: bool = False) -> str:
    """Return libpq's words for a connection; they hold its password."""
    parts: dict[str, Any] = _LIMITS | {
        name: str(value)
        for name, value in connection.extra.items()
        if name in _EXTRAS and value is not None
    }
    given = {
        "host": connection.host,
        "port": connection.port,
        "user": connection.login,
        "password": connection.password.get_secret_value(),
        "dbname": connection.schema,
    }
    parts |= {name: value for name, value in given.items() if value}
    parts |= {
        "options": SESSION if replication else SESSION + _STATEMENT,
        "application_name": "waybill",
        "connect_timeout": CONNECT_S,
        "client_encoding": "UTF8",
    }
    if replication:
        parts["replication"] = "database"
    return make_conninfo("", **parts)
