"""How to reach a source: a declaration names a connection, and never holds a secret.

The name is looked up when the source is first read: in the settings
(``WAYBILL_SOURCES__CONNECTIONS__<NAME>``), then where the caller looks (under Airflow: its own
connections, with its secrets backends), then in the environment (``AIRFLOW_CONN_<NAME>``). What is
found is a URI or a JSON object, both in Airflow's form.

Who writes a declaration chooses the connection, and with dlt and Singer where its secrets go. So
one that was not made for sources, as those of the settings are, is closed to them: its extra says
which pipelines may use it (``waybill_pipelines``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

import orjson
from pydantic import SecretStr

from waybill.errors import InputError, NotFoundError

Lookup: TypeAlias = Callable[[str], str | None]
"""Returns a connection's URI or JSON by its name; None: it has none of this name."""
_SECRET_NAME = re.compile("pass|token|secret|key|credential|auth|private", re.IGNORECASE)
_LEAST_CHARACTERS = 4
HIDDEN = "***"
_PIPELINES = "waybill_pipelines"


@dataclass(frozen=True, slots=True)
class Connection:
    """One way to a server; its secrets are shown by nothing but their own attributes."""

    name: str
    kind: str
    """``postgres``, ``mysql``, ``aws``, ...: Airflow's ``conn_type``."""
    host: str = ""
    port: int | None = None
    login: str = ""
    password: SecretStr = field(default_factory=lambda: SecretStr(""))
    schema: str = ""
    """A database's name, mostly."""
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)
    pipelines: frozenset[str] | None = None
    """Folders' names of the pipelines that may use it, ``*``: all; None: it does not say."""

    @classmethod
    def parse(cls, name: str, text: str) -> Connection:
        """Return a connection from its URI or JSON.

        Raises:
            InputError: it is neither; the words show nothing of it.
        """
        try:
            return _of_json(name, text) if text.lstrip().startswith("{") else _of_uri(name, text)
        except (ValueError, TypeError, AttributeError, KeyError):
            raise InputError(
                f"connection {name!r} cannot be read: write scheme://user:password@host:port/name"
                "?option=value, with the characters @ : / ? # % of a password as %40 %3A %2F %3F"
                ' %23 %25; or JSON: {"conn_type": ..., "host": ..., "login": ..., "password": ...}'
            ) from None

    def require_open_to(self, pipeline: str) -> None:
        """Refuse a pipeline that may not use it.

        Raises:
            InputError: its extra does not name the pipeline.
        """
        if not {"*", pipeline} & (self.pipelines or frozenset()):
            raise InputError(
                f"connection {self.name!r} is not open to pipeline {pipeline!r}: who operates"
                " Waybill names the pipelines that may use it in its extra,"
                f' "{_PIPELINES}": "one, other" ("*": all)'
            )

    def hide(self, text: str) -> str:
        """Return a text, such as a driver's error, without this connection's secrets."""
        for secret in self._secrets():
            text = text.replace(secret, HIDDEN)
        return text

    def _secrets(self) -> list[str]:
        found = [self.password.get_secret_value()]
        found += [str(value) for name, value in self.extra.items() if _SECRET_NAME.search(name)]
        found += [written(one) for one in found for written in (_in_url, quote_plus)]
        return sorted({one for one in found if len(one) >= _LEAST_CHARACTERS}, key=len)[::-1]


def _in_url(text: str) -> str:
    return quote(text, safe="")


def _of_json(name: str, text: str) -> Connection:
    given = orjson.loads(text)
    extra = given.get("extra") or {}
    if isinstance(extra, str):
        extra = orjson.loads(extra)
    port = given.get("port")
    return Connection(
        name,
        _kind(str(given["conn_type"])),
        host=str(given.get("host") or ""),
        port=None if port in (None, "") else int(port),
        login=str(given.get("login") or ""),
        password=SecretStr(str(given.get("password") or "")),
        schema=str(given.get("schema") or ""),
        pipelines=_named(extra := dict(extra)),
        extra=extra,
    )


def _of_uri(name: str, text: str) -> Connection:
    url = urlsplit(text.strip())
    if not url.scheme or url.netloc.count("@") > 1 or ("@" in text and "@" not in url.netloc):
        raise ValueError
    extra: dict[str, Any] = dict(parse_qsl(url.query, keep_blank_values=True))
    if "__extra__" in extra:
        extra = dict(orjson.loads(extra["__extra__"]))
    host = unquote(url.hostname or "") or str(extra.pop("host", ""))  # a socket's folder
    return Connection(
        name,
        _kind(url.scheme),
        host=host,
        port=url.port,
        login=unquote(url.username or ""),
        password=SecretStr(unquote(url.password or "")),
        schema=unquote(url.path[1:]),
        pipelines=_named(extra),
        extra=extra,
    )


def _named(extra: dict[str, Any]) -> frozenset[str] | None:
    """Take the pipelines that an extra names out of it."""
    given = extra.pop(_PIPELINES, None)
    if given is None:
        return None
    names = given.split(",") if isinstance(given, str) else list(given)
    return frozenset(name.strip() for name in names)


def _kind(text: str) -> str:
    kind = text.lower().replace("-", "_")
    return {"postgresql": "postgres", "mariadb": "mysql", "s3": "aws"}.get(kind, kind)


_ALL = frozenset({"*"})


class Connections:
    """Finds connections by name.

    Args:
        given: those of the settings.
        lookup: looked up second; None: there is nothing beside settings and environment.
    """

    def __init__(
        self, given: Mapping[str, SecretStr] | None = None, lookup: Lookup | None = None
    ) -> None:
        self._given = {name.casefold(): text for name, text in (given or {}).items()}
        self._lookup = lookup

    def find(self, name: str, place: str = "source.connection") -> Connection:
        """Return a connection; errors say the place that names it.

        Raises:
            InputError: there is none of this name, or it cannot be read.
        """
        own = self._given.get(name.casefold())
        if own is not None:
            found = Connection.parse(name, own.get_secret_value())
            return found if found.pipelines is not None else replace(found, pipelines=_ALL)
        text = None
        if self._lookup is not None:
            text = self._lookup(name)
        if text is None:
            text = os.environ.get(f"AIRFLOW_CONN_{name.upper()}")
        if text is None:
            raise NotFoundError(
                f"{place}: there is no connection {name!r} here; make one in Airflow, or"
                f" set WAYBILL_SOURCES__CONNECTIONS__{name.upper()} or AIRFLOW_CONN_{name.upper()}"
                " to its URI"
            )
        return Connection.parse(name, text)
