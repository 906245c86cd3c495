"""What every connector offers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

Cursor = Mapping[str, Any]
"""A position in a source, JSON-able; only the connector that made it knows what is in it."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A record that cannot become a row."""

    raw: bytes
    """The record as it stands in the source, without the end of its line."""
    line: int
    """1-based, where the record begins."""
    code: str
    """An error type of stage ingestion: ``source_row_malformed``, ..."""
    message: str


@dataclass(frozen=True, slots=True)
class Page:
    """Some records of a source, in order."""

    rows: list[dict[str, Any]]
    bad: list[BadRow]
    cursor: dict[str, Any]
    """The position after this page."""
    start: dict[str, Any] | None
    """The position before it; None: the beginning."""


class Connector(Protocol):
    """A source, opened."""

    def read(self, cursor: Cursor | None) -> Iterator[Page]:
        """Yield the pages from a position on; nothing when it is the end.

        Raises:
            InputError: the source is not there, or not what its declaration says.
            RetryError: it did not answer.
        """
        ...

    def count(self) -> int | None:
        """Return the number of records, bad ones included; None: the source cannot say."""
        ...


@runtime_checkable
class CountingConnector(Protocol):
    """A source that can count its own records, apart from how they are read."""

    def count_between(self, start: Cursor | None, end: Cursor | None) -> int | None:
        """Return the number of records between two positions, bad ones included.

        Args:
            start: where to begin; None: the beginning.
            end: where to end; None: the end of the source.

        Returns:
            None: it cannot say, as where a position is of a source that is gone.
        """
        ...
