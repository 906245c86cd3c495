"""What must not be shown of the settings, and what an address may hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, SecretStr

_LEAST_CHARACTERS = 4
"""Shorter texts are no secrets that anybody could hide: they stand in other words too."""
_IN_URL = re.compile(r"://[^/@\s:]*:(.+)@")
_IN_WORDS = re.compile(
    r"(?:password|passwd|token|secret|key)=('(?:[^'\\]|\\.)*'|[^\s&]+)", re.IGNORECASE
)
_SECRET_NAME = re.compile("pass|token|secret|key|credential", re.IGNORECASE)


def secret_values(settings: BaseModel) -> frozenset[str]:
    """Return every secret that settings hold; of a destination's address, its login.

    For whoever can hide them where text leaves the process; never to be shown itself.
    """
    found = (part for name, text in _secret_texts("", settings) for part in _parts(name, text))
    return frozenset(part for part in found if len(part) >= _LEAST_CHARACTERS)


def _secret_texts(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, SecretStr):
        yield name, value.get_secret_value()
    elif isinstance(value, BaseModel | dict):
        for inner, part in dict(value).items():
            yield from _secret_texts(f"{name}.{inner}", part)


def _parts(name: str, text: str) -> Iterator[str]:
    """Yield what is secret in a setting: all of it, but for an address without a login."""
    logins = [*_IN_URL.findall(text), *(word.strip("'") for word in _IN_WORDS.findall(text))]
    last = name.rpartition(".")[2]
    address = last == "dsn" or (".options." in name and not _SECRET_NAME.search(last))
    if logins or not address:
        yield text
        yield text.partition("://")[2].partition("/")[2]  # as errors quote a webhook's address
    lines = text.splitlines()
    yield from (line for line in lines if len(lines) > 1 and not line.startswith("-----"))
    for login in logins:
        yield login
        yield unquote(login)


def require_url(dsn: SecretStr) -> SecretStr:
    """Return an address that is a URL as its reader will understand it.

    A password with characters that URLs use would be cut, and a driver would show its rest as the
    name of a host or a database.

    Raises:
        ValueError: it is none; the words show nothing of it.
    """
    text = dsn.get_secret_value()
    try:
        url = urlsplit(text)
        _ = url.port
        sound = url.netloc.count("@") <= 1 and ("@" in url.netloc or "@" not in text)
    except ValueError:
        sound = False
    if not sound:
        raise ValueError(
            "it cannot be read: write postgresql://user:password@host:5432/database, and the"
            " characters @ : / ? # % of a password as %40 %3A %2F %3F %23 %25"
        ) from None
    return dsn


def require_no_login(address: str | None) -> str | None:
    """Return an address that is shown in messages, and so must hold no user and password.

    Raises:
        ValueError: it does; the words show nothing of it.
    """
    if address is not None and "@" in address:
        raise ValueError(
            "an address with a user or password is shown in messages; leave them out of it: they"
            " have settings of their own"
        )
    return address
