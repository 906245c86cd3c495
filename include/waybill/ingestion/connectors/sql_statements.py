"""Statements of a database's driver: their rows, and their end from another thread."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

_LOG = logging.getLogger(__name__)
_CANCEL_S = 5.0


def fetched(session: sa.Connection, statement: sa.Select[Any]) -> Sequence[Any]:
    """Return a statement's rows as the driver gives them: no column has a type of SQLAlchemy's.

    Raises:
        sqlalchemy.exc.DBAPIError: the database did not answer, or gave a value that the driver has
            no form for.
    """
    with session.execute(statement) as result:
        cursor = result.cursor
        if cursor is None:
            return []
        errors = session.dialect.loaded_dbapi.Error
        try:
            return list(cursor.fetchall())
        except errors as error:
            raise DBAPIError.instance(str(statement), None, error, errors) from error


def cancel(engine: sa.Engine, connection: Any) -> None:
    """End what a connection runs, which another thread waits for; nothing, if it runs nothing.

    Args:
        engine: that the connection is of. MySQL is told by another one.
        connection: the driver's.
    """
    errors = engine.dialect.loaded_dbapi.Error
    try:
        if engine.dialect.driver == "psycopg":
            connection.cancel_safe(timeout=_CANCEL_S)
        elif engine.dialect.driver == "pymysql":
            with closing(engine.raw_connection()) as other, closing(other.cursor()) as cursor:
                cursor.execute("KILL QUERY %s", (connection.thread_id(),))
        else:
            connection.interrupt()
    except (DBAPIError, errors) as error:
        _LOG.warning("a statement at the source was not cancelled: %s", error)
