"""A destination's dsn: ``kind://user:password@host:port/part/part?option=value``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from waybill.errors import InputError
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
        raise _wrong(name, settings, form, "it is no URL") from None
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
    found = {
        f"it must begin with {' or '.join(s + '://' for s in form.schemes)}": scheme
        not in form.schemes,
        "it names no host": not address.host,
        f"its path has {len(address.parts)} parts": not low <= len(address.parts) <= high,
        f"it lacks {', '.join(sorted(missing))}": bool(missing),
        f"it has unknown options: {', '.join(sorted(unknown))}": bool(unknown),
    }
    return next((words for words, wrong in found.items() if wrong), "")


def _wrong(name: str, settings: DestinationSettings, form: Form, problem: str) -> InputError:
    return InputError(
        f"destination {name!r}, kind {settings.kind}: its dsn cannot be used: {problem}; it must "
        f"look like {form.shape} (docs/destinations.md)"
    )
