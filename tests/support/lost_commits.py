"""What can befall a COMMIT on its way to the tracker and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from waybill.storage import TrackerStore


@contextmanager
def commits_changed(
    tracker: TrackerStore, change: Callable[[Any, Callable[[], None]], None]
) -> Iterator[None]:
    """Let ``change(psycopg connection, really_commit)`` stand in for the first COMMIT."""
    dialect = tracker.engine.dialect
    real, left = dialect.do_commit, [1]

    def do_commit(connection: Any) -> None:
        if left:
            left.pop()
            change(connection.dbapi_connection, lambda: real(connection))
        else:
            real(connection)

    dialect.do_commit = do_commit  # type: ignore[method-assign]
    try:
        yield
    finally:
        dialect.do_commit = real  # type: ignore[method-assign]


def answer_lost(connection: psycopg.Connection[Any], really: Callable[[], None]) -> None:
    """The server commits; then the connection breaks, before the answer is read."""
    really()
    kill_backend(connection)
    connection.execute("SELECT 1")


def killed_before(connection: psycopg.Connection[Any], really: Callable[[], None]) -> None:
    """The backend dies before COMMIT reaches it."""
    kill_backend(connection)
    really()


def kill_backend(connection: psycopg.Connection[Any]) -> None:
    """End the backend of a connection; it is gone when this returns."""
    ended = "SELECT pg_terminate_backend(%s, 120000)"
    with psycopg.connect(connection.info.dsn, password=connection.info.password or None) as other:
        assert other.execute(ended, [connection.info.backend_pid]).fetchone() == (True,)
