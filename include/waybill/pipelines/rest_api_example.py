"""What a new pipeline declares of a REST API, by the address of its records.

Their fields are not known yet: the declaration has no columns, which ``waybill sources discover
--write`` fills in, and transformation, test and example events fit any.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import parse_qsl, urlsplit

from waybill.errors import InputError
from waybill.pipelines.document import yaml_text

_MOST_NAME = 63
_UNSAFE = frozenset("{}\\<>^`|\"' ")
"""dlt fills in what stands in braces; the others are no part of an address."""


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
    def advice(self) -> str:
        """Return what is the user's to do first, in lines."""
        lines = ["its columns are not known yet: the first `next` below fills them in"]
        if self.closed_host:
            hosts = json.dumps([self.closed_host])
            lines.append("sources reach the public internet only; to open this address:")
            lines.append(f"  WAYBILL_EGRESS__ALLOWED_HOSTS='{hosts}'")
        return "\n".join(lines)


def read_address(url: str) -> RestApi:
    """Return what an address of records says.

    Raises:
        InputError: it is no http address with a path, or holds a secret.
    """
    wanted = "expected an address such as https://api.example.com/v1/loans"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InputError(f"--rest-api: {wanted}; {error}") from error
    host, path = parts.hostname or "", parts.path.strip("/")
    if "@" in parts.netloc:
        raise InputError(
            "--rest-api: leave user and password out: a declaration holds no secret; it names a"
            " connection (docs/connectors.md#connections-and-secrets)"
        )
    is_odd = not url.isascii() or not url.isprintable() or bool(_UNSAFE & set(url))
    if parts.scheme not in {"http", "https"} or not host or not path or is_odd or parts.fragment:
        raise InputError(f"--rest-api: {wanted}; found {url[:200]!r}")
    before, _, last = path.rpartition("/")
    base = f"{parts.scheme}://{parts.netloc}/{before}{'/' if before else ''}"
    name = re.sub("[^a-z0-9]+", "_", last.lower()).strip("_")[:_MOST_NAME]
    name = name if name[:1].isalpha() else f"records_{name}"[:_MOST_NAME].rstrip("_")
    at = port or {"http": 80, "https": 443}[parts.scheme]
    closed = f"{host}:{at}" if _is_closed(host) else ""
    return RestApi(base, last, tuple(parse_qsl(parts.query, keep_blank_values=True)), name, closed)


def _is_closed(host: str) -> bool:
    try:
        return not ip_address(host).is_global
    except ValueError:
        return "." not in host or host.endswith((".localhost", ".local", ".internal"))


def source_lines(api: RestApi, key: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines below ``source.connector``."""
    yield "  options:"
    yield "    rest_api: # what dlt's rest_api takes; docs/connectors.md#dlt has an example"
    yield f"      client: {{ base_url: {_quoted(api.base_url)} }}"
    yield "      resources:"
    yield f"        - name: {yaml_text(api.name)}"
    yield f"          primary_key: [{', '.join(map(yaml_text, key))}]"
    yield "          endpoint:"
    yield f"            path: {_quoted(api.path)}"
    if api.params:
        given = ", ".join(f"{_quoted(name)}: {_quoted(value)}" for name, value in api.params)
        yield f"            params: {{ {given} }}"
    yield "            # where records stand in an answer, and how the next page is asked for, if"
    yield "            # dlt does not find it:"
    yield "            # data_selector: data"
    yield "            # paginator: { type: cursor, cursor_path: next, cursor_param: cursor }"


def _quoted(text: str) -> str:
    return json.dumps(text)


def event_lines(table: str, key: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines of the event, without version and columns."""
    yield f"key: [{', '.join(map(yaml_text, key))}]"
    yield f"table: {yaml_text(table)}"
    yield "policy: strict # a field without a column parks the event"


CODE = '''\
"""What is done to each record before it becomes a row; docs/pipelines.md says what it may do."""


def transform(event):
    return event  # event.data is one record of the API, a dict; it goes on as it came
'''
BATCH_CODE = '''\
"""What is done to records before they become rows; docs/pipelines.md says what it may do."""


def transform_batch(table):
    return table  # a row is a record of the API; it goes on as it came
'''
EXAMPLES_TEXT = '{"note": "a record without its key parks", "data": {}, "parked": "key_missing"}\n'


def own_test(name: str, table: str) -> str:
    """Return the pipeline's test, which fits whatever columns are declared."""
    return f'''\
"""Run by `waybill test {name}`, or by pytest, once `waybill sources discover {name} --write` has
declared its columns. docs/pipelines.md has more ways to test."""

from pathlib import Path

from waybill.testing import declared_event, run_pipeline

FOLDER = Path(__file__).parent


def test_a_record_with_the_declared_fields_becomes_a_row():
    result = run_pipeline(FOLDER, [declared_event(FOLDER)])
    assert result.parked == []
    assert len(result.rows["{table}"]) == 1
'''
