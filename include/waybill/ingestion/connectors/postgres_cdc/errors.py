"""What PostgreSQL says, sorted by what the caller must do.

Anything that may pass by itself is a ``RetryError``: a server that is away, starts, stops, or has
no connection to spare; a query that was cancelled. All else needs somebody: an ``InputError``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from waybill.errors import InputError, RetryError, WaybillError
from waybill.ingestion.connectors.connections import Connection

_TRANSIENT = ("08", "40", "53", "55006", "55P03", "57")
"""Beginnings of SQLSTATEs: connections, conflicts, resources, a slot in use, locks, operators."""
_PASSING = (
    "starting up",
    "shutting down",
    "in recovery mode",
    "not yet accepting",
    "too many",
    "remaining connection slots",
)
"""Of a refused login, which has no SQLSTATE."""
_ADVICE = {
    "28": "correct its user, its password, or the server's pg_hba.conf",
    "3D000": "correct the database's name",
    "42501": "grant the right",
    "53400": "raise max_replication_slots or max_wal_senders of the server",
}


class ServerError(Exception):
    """What a server answered outside of SQL, with its SQLSTATE where it gave one."""

    def __init__(self, message: str, state: str = "") -> None:
        super().__init__(message)
        self.state = state


@contextmanager
def answered(connection: Connection, doing: str = "") -> Iterator[None]:
    """Turn what PostgreSQL says into an error of Waybill's.

    Args:
        connection: whose secrets are not shown.
        doing: what was tried, as in "to create publication x".

    Raises:
        RetryError: it may pass.
        InputError: somebody has to do something.
    """
    try:
        yield
    except psycopg.Error as error:
        raise _sorted(connection, str(error), error.sqlstate or "", doing) from None
    except ServerError as error:
        raise _sorted(connection, str(error), error.state, doing) from None


def _sorted(connection: Connection, said: str, state: str, doing: str) -> WaybillError:
    words = " ".join(connection.hide(said).split())
    message = f"PostgreSQL of connection {connection.name!r}{doing and f', {doing}'}: {words}"
    if state == "53400":
        return InputError(f"{message}; {_ADVICE[state]}")
    if _passes(said, state):
        return RetryError(message)
    advice = next((text for start, text in _ADVICE.items() if state.startswith(start)), "")
    return InputError(f"{message}{advice and f'; {advice}'}")


def _passes(said: str, state: str) -> bool:
    if state:
        return state.startswith(_TRANSIENT)
    return "FATAL" not in said or any(part in said for part in _PASSING)
