"""Drivers that are not installed with Waybill: imported when a destination of their kind opens.

A destination's dsn: ``kind://user:password@host:port/part/part?option=value``.

What a warehouse says, and what the caller must do; what no rule names stops.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from waybill.errors import InputError, RetryError, StopError, WaybillError
from waybill.settings import DestinationSettings


@dataclass(frozen=True, slots=True)
class Address:
    """A dsn taken apart; what it holds may be secret."""

    user: str
    password: str
    host: str
    port: int | None
    parts: tuple[str, ...]
    """The path's parts."""
    options: Mapping[str, str]
    """The dsn's own, and over them the settings' options."""


@dataclass(frozen=True, slots=True)
class Form:
    """What a kind's dsn looks like."""

    shape: str
    """For the message: never with a real password."""
    schemes: tuple[str, ...]
    parts: tuple[int, int]
    """The least and the most parts of the path."""
    options: frozenset[str]
    needs: frozenset[str] = frozenset()
    """Options that must be there; "user", "password" are the URL's."""


def read_address(name: str, settings: DestinationSettings, form: Form) -> Address:
    """Take a destination's dsn apart.

    Raises:
        InputError: it is not of the kind's form; the message shows none of it.
    """
    try:
        url = urlsplit(settings.dsn.get_secret_value())
        port = url.port
        options = dict(parse_qsl(url.query, keep_blank_values=True, strict_parsing=bool(url.query)))
    except ValueError:
        raise _wrong(name, settings, form, "it is not a URL") from None
    options |= {key: value.get_secret_value() for key, value in settings.options.items()}
    parts = tuple(unquote(part) for part in url.path.split("/") if part)
    address = Address(
        unquote(url.username or ""), unquote(url.password or ""), url.hostname or "", port,
        parts, options,
    )  # fmt: skip
    problem = _problem(url.scheme, address, form)
    if problem:
        raise _wrong(name, settings, form, problem)
    return address


def _problem(scheme: str, address: Address, form: Form) -> str:
    low, high = form.parts
    given = {key for key in ("user", "password") if getattr(address, key)}
    missing = form.needs - given - address.options.keys()
    unknown = address.options.keys() - form.options - form.needs
    problems = {
        f"it must begin with {' or '.join(s + '://' for s in form.schemes)}": scheme
        not in form.schemes,
        "it names no host": not address.host,
        f"its path has {len(address.parts)} parts": not low <= len(address.parts) <= high,
        f"it lacks {', '.join(sorted(missing))}": bool(missing),
        f"it has unknown options: {', '.join(sorted(unknown))}": bool(unknown),
    }
    return next((problem for problem, wrong in problems.items() if wrong), "")


def _wrong(name: str, settings: DestinationSettings, form: Form, problem: str) -> InputError:
    return InputError(
        f"destination {name!r}, kind {settings.kind}: its dsn cannot be used: {problem}; it must "
        f"look like {form.shape} (docs/destinations.md)"
    )


def driver(module: str, package: str, kind: str) -> Any:
    """Import a driver.

    Args:
        module: what is imported.
        package: what pip calls it.
        kind: the kind of destination that needs it; the name of the extra too.

    Raises:
        InputError: it is not installed; says the command that does.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"a destination of kind {kind!r} needs {package}, which cannot be imported here "
            f"({error}); run: pip install '{package}'"
        ) from error


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
        message = error.message.lower()
        by_phrase = [code for phrase, code in self.phrases.items() if phrase in message]
        return [*by_phrase, error.code, error.state, error.state[:2]]


def _first(known: Mapping[str, str], codes: list[str]) -> str | None:
    return next((known[code] for code in codes if code and code in known), None)
