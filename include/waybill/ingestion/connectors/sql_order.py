"""Columns that rows can be read in the order of: which types keep one.

A page begins behind the last row of the page before, so that a value must compare as it sorts, and
a value that the driver gave must be equal to the column's own when it is given back.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql

from waybill.errors import InputError

_COMPARED = (
    sa.Integer,
    sa.Numeric,
    sa.Float,
    sa.String,
    sa.DateTime,
    sa.Date,
    sa.Uuid,
    sa.LargeBinary,
    postgresql.OID,
    sa.types.NullType,
)
"""What PostgreSQL compares with the driver's values as it sorts; ``NullType`` is not known here,
and the server says whether it does."""
_SINGLE = "is a number of single precision, which is not equal to what is read of it"
_AS_TEXT = "has one order, and is compared as text in another one"
_NONE = "keeps no order with values that were read of it"


def require_ordered(
    table: str, column: str, kind: sa.types.TypeEngine[Any], dialect: str, option: str
) -> None:
    """Raise where no page could begin behind a value of a column.

    Args:
        table: its name.
        column: its name.
        kind: the column's type, as SQLAlchemy reflects it.
        dialect: SQLAlchemy's name of the database.
        option: what the column is declared as: cursor, or key.

    Raises:
        InputError: rows would be left out, or read for ever; says what to do.
    """
    while isinstance(kind, postgresql.DOMAIN):
        kind = kind.data_type
    found = _unordered(kind, dialect)
    if found is not None:
        reason, cast = found
        raise InputError(
            f"source.options.{option}: column {column!r} of table {table!r} is {_shown(kind)}: it"
            f" {reason}; declare another column, or read a view that casts it to {cast}"
        )


def _unordered(kind: sa.types.TypeEngine[Any], dialect: str) -> tuple[str, str] | None:
    """Return why a type keeps no order, and what it can be cast to; None: it keeps one."""
    if dialect == "mysql":
        return _unordered_mysql(kind)
    if dialect == "postgresql":
        return _unordered_postgres(kind)
    return None


def _unordered_mysql(kind: sa.types.TypeEngine[Any]) -> tuple[str, str] | None:
    if isinstance(kind, mysql.FLOAT):
        return _SINGLE, "double"
    if isinstance(kind, sa.Enum | mysql.SET):
        return _AS_TEXT, "char"
    if isinstance(kind, mysql.BIT):
        return "is a number, and is compared as bytes", "unsigned"
    if isinstance(kind, sa.JSON | sa.Time):
        return _NONE, "char"
    return None


def _unordered_postgres(kind: sa.types.TypeEngine[Any]) -> tuple[str, str] | None:
    if isinstance(kind, sa.REAL):
        return _SINGLE, "double precision"
    if isinstance(kind, sa.Enum | postgresql.CITEXT):
        return _AS_TEXT, "text"
    if isinstance(kind, sa.Boolean):
        return _NONE, "integer"
    return None if isinstance(kind, _COMPARED) else (_NONE, "text")


def _shown(kind: sa.types.TypeEngine[Any]) -> str:
    return type(kind).__name__.upper()
