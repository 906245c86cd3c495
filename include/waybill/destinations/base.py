"""What each way of committing has in common: how a load begins, and what an error leaves behind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from waybill.destinations.model import Commit, Expected, LoadOutcome, Note, Park
from waybill.errors import StopError, WaybillError


class BaseDestination(ABC):
    """A destination that loads a list of different commits, see ``Destination``."""

    name: str

    def load(
        self,
        commits: Sequence[Commit],
        park: Park,
        note: Note | None = None,
        *,
        expected: Expected | None = None,
    ) -> list[LoadOutcome]:
        """Load what is missing of the commits, report all; see the protocol."""
        if not commits:
            return []
        numbers = [commit.number for commit in commits]
        if len(set(numbers)) != len(numbers):
            raise StopError(f"destination {self.name!r}: a commit number is there twice: {numbers}")
        try:
            return self._take(commits, park, note, expected or Expected())
        except WaybillError:
            self._forget()
            raise

    @abstractmethod
    def _take(
        self, commits: Sequence[Commit], park: Park, note: Note | None, expected: Expected
    ) -> list[LoadOutcome]:
        """Load these commits; there is one at least, and no number twice."""

    @abstractmethod
    def _forget(self) -> None:
        """Forget how tables were: the next load looks."""

    @abstractmethod
    def close(self) -> None:
        """Let go of connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
