"""What a warehouse says, and what the caller must do; what no rule names stops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from waybill.errors import InputError, RetryError, StopError, WaybillError

_SHOWN_CHARACTERS = 500


class WarehouseError(Exception):
    """What the warehouse, or the way to it, said.

    Args:
        message: its words.
        code: its own code, as its error map has it; "" when there is none.
        state: SQLSTATE, where the engine has such.
        away: there was no answer: the connection failed, or broke.
    """

    def __init__(
        self, message: str, code: str = "", state: str = "", *, away: bool = False
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.state = state
        self.away = away

    @property
    def words(self) -> str:
        """Return the message in one line for people, cut to a readable length."""
        text = " ".join(self.message.split())
        return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


@dataclass(frozen=True)
class ErrorMap:
    """One engine's codes, sorted; a code may be its SQLSTATE, or the class (two characters)."""

    retry: Mapping[str, str]
    """Code to words of why it may pass by itself."""
    advice: Mapping[str, str]
    """Code to what the user can do."""
    refused: Mapping[str, str]
    """Code to the error type of a row that is at fault."""
    phrases: Mapping[str, str] = field(default_factory=dict)
    """Words of a message, in small letters, to a code: where the engine's code says too little."""

    def refused_code(self, error: WarehouseError) -> str | None:
        """Return the error type when a row is at fault, else None."""
        return _first(self.refused, self._codes(error))

    def sorted(self, error: WarehouseError, destination: str) -> WaybillError:
        """Return the error to raise: RetryError, InputError or StopError, in words."""
        where = f"destination {destination!r}"
        codes = self._codes(error)
        shown = f" ({error.code or error.state})" if error.code or error.state else ""
        advice = _first(self.advice, codes)
        if advice is not None:
            return InputError(f"{where}: {error.words}{shown}; {advice}")
        reason = _first(self.retry, codes)
        if reason is not None:
            return RetryError(f"{where}: {reason}: {error.words}{shown}")
        if error.away:
            return RetryError(f"{where} did not answer: {error.words}{shown}")
        return StopError(f"{where}: {error.words}{shown}")

    def _codes(self, error: WarehouseError) -> list[str]:
        """Return the codes of an error, the most exact first."""
        words = error.message.lower()
        said = [code for phrase, code in self.phrases.items() if phrase in words]
        return [*said, error.code, error.state, error.state[:2]]


def _first(known: Mapping[str, str], codes: list[str]) -> str | None:
    return next((known[code] for code in codes if code and code in known), None)


Translate = Callable[[BaseException], WarehouseError | None]
"""A driver's exception as ours; None: it is none of the driver's."""
