"""What a connection must do, and what an error of the engine says."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

_SHOWN_CHARACTERS = 500


class SqlError(Exception):
    """What the engine, or the way to it, said.

    Args:
        message: in the engine's words.
        refused_code: the error type when a row is at fault, else None.
    """

    def __init__(self, message: str, refused_code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self._refused_code = refused_code

    @property
    def refused_code(self) -> str | None:
        """Return the error type when a row is at fault, else None."""
        return self._refused_code

    @property
    def words(self) -> str:
        """Return the message for people, not too long."""
        return shortened(self.message)


Refused = dict[int, SqlError]
"""Ordinal to what the engine said."""


def shortened(text: str) -> str:
    """Return a text of a length that may be shown."""
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


class Session(Protocol):
    """A connection to one destination; connects when needed."""

    def held(self) -> AbstractContextManager[None]:
        """Keep the connection for several transactions; what it costs to connect is paid once."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """One transaction; on any error nothing of it is there.

        Raises:
            RetryError, InputError, StopError: as the engine's error says.
        """
        ...

    def execute(self, statement: str) -> int:
        """Run a statement; return the count of rows it changed (-1: not known).

        Raises:
            SqlError: the engine refuses it.
        """
        ...

    def query(self, statement: str) -> pa.Table:
        """Run a query and return its rows.

        Raises:
            SqlError: the engine refuses it.
        """
        ...

    def append(self, table: str, rows: pa.Table) -> None:
        """Put rows into a working table by the bulk path, columns by name.

        Raises:
            SqlError: the engine refuses a value.
        """
        ...

    def close(self) -> None:
        """Close the connection, whatever state it is in."""
        ...
