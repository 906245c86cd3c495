"""A schema registry with Confluent's API: schemas by the ids that messages have.

It is asked through the egress guard, follows no redirect, and its answers have limits: what a
declaration names may be any server. Rules that a schema brings are not run.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote
from uuid import UUID

import orjson
import requests
from urllib3.exceptions import HTTPError

from waybill.egress import EgressGuard, guarded_session
from waybill.errors import InputError, ParkError, RetryError, WaybillError
from waybill.ingestion.connectors.connections import Connection

SCHEMA_UNKNOWN = "source_schema_unknown"
_CONNECT_S, _READ_S, _ANSWER_S = 5.0, 10.0, 30.0
_MOST_BYTES = 4 * 1024 * 1024
"""Of one answer."""
_MOST_REFERENCES = 200
"""Of one schema, theirs included."""
_NOT_THERE = frozenset({40401, 40402, 40403})
_LATER = frozenset({408, 425, 429})
_OK, _SERVER_ERRORS, _NOT_FOUND = 200, 500, 404
_CHUNK = 64 * 1024

SchemaId = int | UUID
"""A number, in Confluent's frame; a UUID, in a header."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A schema that another one uses."""

    name: str
    """How the other one calls it: a type's name in Avro, an imported file in Protobuf."""
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """What a registry says of one schema."""

    kind: str
    """``AVRO``, ``PROTOBUF`` or ``JSON``."""
    text: str
    """Of Protobuf: a FileDescriptorProto in base64."""
    references: tuple[Reference, ...] = ()


class SchemaRegistry:
    """Asks one registry; keeps nothing.

    Args:
        connection: of kind http or https; with a login, user and password; with a password alone, a
            bearer token.
        guard: what may be connected to.

    Raises:
        InputError: the connection names no host, or is of another kind.
    """

    def __init__(self, connection: Connection, guard: EgressGuard) -> None:
        self._connection, self._guard = connection, guard
        self._address = _address(connection)
        self._session: requests.Session | None = None

    def close(self) -> None:
        """Give the connections back; the next question makes new ones."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def schema(self, schema_id: SchemaId) -> Schema:
        """Return a schema by its id.

        Raises:
            ParkError: the registry has none of this id, or one that is no schema.
            RetryError: the registry does not answer.
            InputError: it refuses, or is no registry.
        """
        kind = "guids" if isinstance(schema_id, UUID) else "ids"
        return self._schema(f"schemas/{kind}/{schema_id}", f"schema {schema_id}")

    def referenced(self, schema: Schema) -> Iterator[tuple[Reference, Schema]]:
        """Yield what a schema refers to, each once, before what refers to it.

        Raises:
            ParkError: more than 200, or in a circle; else as ``schema``.
        """
        done: set[tuple[str, int]] = set()
        yield from self._referenced(schema, done, ())

    def _referenced(
        self, schema: Schema, done: set[tuple[str, int]], above: tuple[tuple[str, int], ...]
    ) -> Iterator[tuple[Reference, Schema]]:
        for reference in schema.references:
            at = reference.subject, reference.version
            where = f"subject {reference.subject[:100]!r}, version {reference.version}"
            if at in above:
                raise ParkError(SCHEMA_UNKNOWN, f"{where} refers to itself, over others")
            if at in done:
                continue
            done.add(at)
            if len(done) > _MOST_REFERENCES:
                raise ParkError(
                    SCHEMA_UNKNOWN, f"the schema refers to more than {_MOST_REFERENCES} others"
                )
            subject = quote(reference.subject, safe="")
            found = self._schema(f"subjects/{subject}/versions/{reference.version}", where)
            yield from self._referenced(found, done, (*above, at))
            yield reference, found

    def subjects(self, schema_id: SchemaId) -> list[str]:
        """Return the subjects that have a schema, of an id that is a number.

        Raises:
            ParkError, RetryError, InputError: as ``schema``.
        """
        if isinstance(schema_id, UUID):
            return []
        found = self._asked(f"schemas/ids/{schema_id}/subjects", f"schema {schema_id}")
        return [str(name) for name in found] if isinstance(found, list) else []

    def _schema(self, path: str, what: str) -> Schema:
        answer = self._asked(f"{path}?format=serialized", what)
        try:
            text, kind = answer["schema"], answer.get("schemaType") or "AVRO"
            references = tuple(
                Reference(str(one["name"]), str(one["subject"]), int(one["version"]))
                for one in answer.get("references") or ()
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InputError(f"{self._name}: what it says of {what} is no schema") from None
        if not isinstance(text, str) or not isinstance(kind, str):
            raise InputError(f"{self._name}: what it says of {what} is no schema")
        return Schema(kind, text, references)

    @property
    def _name(self) -> str:
        return f"the schema registry of connection {self._connection.name!r}"

    def _asked(self, path: str, what: str) -> Any:
        try:
            status, body = self._answer(path)
        except (OSError, HTTPError) as error:
            words = self._connection.hide(str(error))[:300]
            raise RetryError(f"{self._name} does not answer: {words}") from None
        if status >= _SERVER_ERRORS or status in _LATER:
            raise RetryError(f"{self._name} answers {status}")
        if body is None:
            raise ParkError(
                SCHEMA_UNKNOWN, f"{what}: the registry's answer has more than {_MOST_BYTES} bytes"
            )
        try:
            answer = orjson.loads(body)
        except ValueError:
            answer = None
        if status != _OK or answer is None:
            raise self._refusal(status, answer, what)
        return answer

    def _refusal(self, status: int, answer: Any, what: str) -> WaybillError:
        if status == _NOT_FOUND and isinstance(answer, dict):
            code = answer.get("error_code")
            if isinstance(code, int) and code in _NOT_THERE:
                return ParkError(SCHEMA_UNKNOWN, f"{what} is not in the registry")
        if status in {401, 403}:
            return InputError(
                f"{self._name} answers {status} to {what}: correct the connection's login and"
                " password (of a bearer token, the password alone), or grant it the right to read"
            )
        return InputError(
            f"{self._name}: what answers there ({status}) is no schema registry with Confluent's"
            " API; correct the connection's address"
        )

    def _answer(self, path: str) -> tuple[int, bytes | None]:
        """Return an answer's status and body; None: it is too long."""
        if self._session is None:
            self._session = self._opened()
        ends = time.monotonic() + _ANSWER_S
        with self._session.get(
            f"{self._address}/{path}",
            timeout=(_CONNECT_S, _READ_S),
            stream=True,
            allow_redirects=False,
        ) as response:
            body = bytearray()
            while chunk := response.raw.read1(_CHUNK, decode_content=False):
                body += chunk
                if len(body) > _MOST_BYTES:
                    return response.status_code, None
                if time.monotonic() > ends:
                    raise TimeoutError(f"no whole answer in {_ANSWER_S:.0f} s")
            return response.status_code, bytes(body)

    def _opened(self) -> requests.Session:
        session = guarded_session(self._guard)
        session.headers["Accept"] = "application/vnd.schemaregistry.v1+json, application/json"
        session.headers["Accept-Encoding"] = "identity"
        password = self._connection.password.get_secret_value()
        if self._connection.login:
            pair = f"{self._connection.login}:{password}".encode()
            session.headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        elif password:
            session.headers["Authorization"] = f"Bearer {password}"
        if authority := self._connection.extra.get("ssl.ca.location"):
            session.verify = str(authority)
        return session


def _address(connection: Connection) -> str:
    if connection.kind not in {"http", "https"}:
        raise InputError(
            f"source.options.registry: connection {connection.name!r} is of kind"
            f" {connection.kind[:50]!r}; a registry's is https://user:password@host:port/path"
        )
    scheme, path = connection.kind, connection.schema
    if path in {"http", "https"}:  # as Airflow has it for its own
        scheme, path = path, str(connection.extra.get("path") or "")
    host = connection.host
    if not host or set(host) & set("/@?#\\ "):
        raise InputError(f"connection {connection.name!r}: its host is no name of a host")
    host = f"[{host}]" if ":" in host else host
    port = f":{connection.port}" if connection.port else ""
    return f"{scheme}://{host}{port}/{path.strip('/')}".rstrip("/")
