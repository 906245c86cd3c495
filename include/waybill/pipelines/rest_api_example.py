"""What a new pipeline declares of a REST API, by the address of its records.

Parameters of the address whose names are known as those of secrets refer to a connection: their
values are written nowhere. The path, and all other parameters, stand in the declaration as given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from waybill.errors import InputError
from waybill.pipelines.document import yaml_text
from waybill.pipelines.source_examples import SourceExample, connection_advice, connection_name

if TYPE_CHECKING:
    from waybill.egress import EgressGuard

_MOST_NAME = 63
_UNSAFE = frozenset("{}\\<>^`|\"' ")
"""dlt fills in what stands in braces; the others are no part of an address."""
_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+(?![a-z])")
_SECRET = re.compile(
    r"(?:key|token|secret|password|passwd|passphrase|pwd|auth|authorization|signature|sig"
    r"|credentials?|jwt|bearer|session|sessionid|appid)[0-9]*$|^(?:pass|pw|pat|hash)[0-9]*$"
)
"""What a word of a parameter's name ends with, or is, where its value is a secret: ``api_key``,
``apikey2``, ``accessToken``. Too many are no harm: a connection has their values."""


@dataclass(frozen=True, slots=True)
class RestApi:
    """Where records are fetched: ``base_url`` and ``path`` behind it, with its parameters."""

    base_url: str
    path: str
    params: tuple[tuple[str, str], ...]
    name: str
    """Of the resource, and so of the event."""
    closed_host: str
    """``host:port`` where sources reach it only if the settings let them; "": they may."""

    @property
    def secrets(self) -> dict[str, str]:
        """Return the name of each parameter that is a secret, by its place in a connection."""
        names = [name for name, _ in self.params if _is_secret(name)]
        places = ["password", *(f"extra.secret_{number}" for number in range(2, len(names) + 1))]
        return dict(zip(places, names, strict=False))

    def advice(self, connection: str) -> str:
        """Return what is the user's to do first, in lines."""
        lines = []
        if self.secrets:
            names = ", ".join(dict.fromkeys(self.secrets.values()))
            lines.append(
                f"a declaration holds no secret: {names} will be read from connection {connection}"
            )
            lines.append(connection_advice(connection, _connection_json(self.secrets)))
        if len(self.params) > len(self.secrets) or ";" in self.base_url + self.path:
            lines.append(
                "the path and all other parameters stand in pipeline.yaml as given: see that none"
                " is a secret"
            )
        if self.closed_host:
            hosts = json.dumps([self.closed_host])
            lines.append("sources reach the public internet only; to open this address:")
            lines.append(f"  WAYBILL_EGRESS__ALLOWED_HOSTS='{hosts}'")
        return "\n".join(lines)


def rest_example(
    url: str, name: str, key: tuple[str, ...], egress: EgressGuard | None = None
) -> SourceExample:
    """Return the source of a new pipeline that reads a REST API.

    Args:
        url: of its records.
        name: of the pipeline.
        key: fields of the primary key; empty: they are not known.
        egress: where sources may connect to; None: to the public internet.

    Raises:
        InputError: the address is none, or holds a user and password.
    """
    api, connection = read_address(url, egress), connection_name(name, "api")
    lines = tuple(_source_lines(api, key, connection))
    return SourceExample(lines, event=api.name, advice=api.advice(connection))


def _is_secret(name: str) -> bool:
    return name.lower() == "code" or any(
        _SECRET.search(word.lower()) for word in _WORD.findall(name)
    )


def _connection_json(secrets: dict[str, str]) -> str:
    """Return an example of a connection, in quotes of a shell, with names for values."""
    named = {place: f"<{re.sub('[^A-Za-z0-9_.-]', '_', name)}>" for place, name in secrets.items()}
    extra = {place[6:]: name for place, name in named.items() if place.startswith("extra.")}
    value = {"conn_type": "http", "password": named["password"]} | (
        {"extra": extra} if extra else {}
    )
    return f"'{json.dumps(value)}'"


def read_address(url: str, egress: EgressGuard | None = None) -> RestApi:
    """Return what an address of records says.

    Raises:
        InputError: it is no http address with a path, or holds a secret.
    """
    wanted = "expected an address such as https://api.example.com/v1/loans"
    shown = repr(re.split("[?#]", url, maxsplit=1)[0][:200])  # what follows may be a secret
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InputError(f"--rest-api: {wanted}; {error}; found {shown}") from error
    host, path = parts.hostname or "", parts.path.strip("/")
    if "@" in parts.netloc:
        raise InputError(
            "--rest-api: leave user and password out: a declaration holds no secret; it names a"
            " connection (docs/connectors.md#connections-and-secrets)"
        )
    is_odd = not url.isascii() or not url.isprintable() or bool(_UNSAFE & set(url))
    if parts.scheme not in {"http", "https"} or not host or not path or is_odd or parts.fragment:
        also = ", and what follows it" if {"?", "#"} & set(url) else ""
        raise InputError(f"--rest-api: {wanted}; found {shown}{also}")
    before, slash, last = path.rstrip("/").rpartition("/")
    base = f"{parts.scheme}://{parts.netloc}/{before}{slash}"
    name = re.sub("[^a-z0-9]+", "_", last.lower()).strip("_")[:_MOST_NAME]
    name = name if name[:1].isalpha() else f"records_{name}"[:_MOST_NAME].rstrip("_")
    at = port or {"http": 80, "https": 443}[parts.scheme]
    closed = f"{host}:{at}" if _is_closed(host) and not _is_opened(egress, host, at) else ""
    end = "/" if parts.path.endswith("/") else ""
    params = tuple(parse_qsl(parts.query, keep_blank_values=True))
    return RestApi(base, last + end, params, name, closed)


def _is_closed(host: str) -> bool:
    try:
        return not ip_address(host).is_global
    except ValueError:
        return "." not in host or host.endswith((".localhost", ".local", ".internal"))


def _is_opened(egress: EgressGuard | None, host: str, port: int) -> bool:
    if egress is None:
        return False
    try:
        return egress.is_named(host, port) or egress.is_open(host)
    except ValueError:  # a name, which is not looked up here
        return False


_NUMBERED_PAGES = "type: page_number, base_page: 1, page_param: page, total_path: pages"


def _source_lines(api: RestApi, key: tuple[str, ...], connection: str) -> Iterator[str]:
    """Yield the lines below ``source.connector``."""
    if api.secrets:
        yield f"  connection: {connection} # has the secrets that the options refer to"
    yield "  options:"
    yield "    rest_api: # what dlt's rest_api takes; docs/connectors.md#dlt has an example"
    yield f"      client: {{ base_url: {_quoted(api.base_url)} }}"
    yield "      # an API key in a header: `connection: <name>` beside `options`, and in `client`"
    yield "      #   auth: { type: api_key, name: X-Api-Key, location: header,"
    yield '      #     api_key: "${connection.password}" }'
    yield "      resources:"
    yield f"        - name: {yaml_text(api.name)}"
    if key:
        yield f"          primary_key: [{', '.join(map(yaml_text, key))}]"
    yield "          endpoint:"
    yield f"            path: {_quoted(api.path)}"
    names = (name for name, _ in api.params)
    params = [f"{_literal(name)}: {_value(api, name)}" for name in dict.fromkeys(names)]
    if params:
        yield f"            params: {{ {', '.join(params)} }}"
    yield "            # where records stand in an answer, and how the next page is asked for, if"
    yield "            # dlt does not find it (it does not where an answer has a number of pages):"
    yield "            # data_selector: data"
    yield "            # paginator: { type: cursor, cursor_path: next, cursor_param: cursor }"
    yield f"            # paginator: {{ {_NUMBERED_PAGES} }}"
    above = " (params in place of those above)" if params else ""
    yield f"            # only what changed since, if the API can be asked for it{above}:"
    changed = ", ".join([*params, 'since: "{incremental.start_value}"'])
    yield f"            # params: {{ {changed} }}"
    start = 'initial_value: "2024-01-01T00:00:00Z", row_order: asc'
    yield f"            # incremental: {{ cursor_path: updated_at, {start} }}"


def _value(api: RestApi, name: str) -> str:
    """Return a parameter's value, or its values where it is there several times, as YAML."""
    places = [place for place, secret in api.secrets.items() if secret == name]
    values = [yaml_text(f"${{connection.{place}}}") for place in places]
    values = values or [_literal(value) for given, value in api.params if given == name]
    return values[0] if len(values) == 1 else f"[{', '.join(values)}]"


def _literal(text: str) -> str:
    """Return a parameter's text as YAML; dlt takes what stands in single braces for its own."""
    return yaml_text(text.replace("{", "{{").replace("}", "}}"))


def _quoted(text: str) -> str:
    return json.dumps(text)
