"""Entries of the audit log as seals take them: in pages, each as one canonical line.

A line is JSON in ASCII, its names sorted, without blanks; the time is RFC 3339 in UTC with
microseconds. It is made of the values, so another release of PostgreSQL gives the same line.
Numbers of ``detail`` are exact: all their digits, never a float. 1 and 1.0 are different numbers
here, as ``jsonb`` keeps both as they were written.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from itertools import accumulate
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    Text,
    case,
    cast,
    extract,
    select,
)

from waybill.storage.tracker import audit_log

FIRST_ID, LAST_ID = -(2**63), 2**63 - 1
PAGE_ENTRIES = 1_000
_EARLIEST, _LATEST = datetime(2, 1, 1, tzinfo=UTC), datetime(9998, 12, 31, tzinfo=UTC)
_DEEPEST = 200
"""Deeper values, which Waybill never writes, are taken as PostgreSQL's text."""
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_STEPS = {"[": 1, "{": 1, "]": -1, "}": -1}


def moment_columns(moment: ColumnElement[Any]) -> list[ColumnElement[Any]]:
    """Return the columns ``moment`` and ``epoch`` of a time, for `moment_text`.

    A time outside of Python's years, or ``infinity``, can only come from somebody who altered the
    row, and must not stop who looks for that.
    """
    return [
        case((moment.between(_EARLIEST, _LATEST), moment)).label("moment"),
        cast(extract("epoch", moment), Text).label("epoch"),
    ]


def moment_text(row: RowMapping) -> str:
    """Return the time of a row that `moment_columns` read: RFC 3339 in UTC, with microseconds."""
    moment: datetime | None = row["moment"]
    if moment is None:
        return f"epoch {row['epoch']}"
    in_utc = moment.astimezone(UTC).replace(tzinfo=None)
    return in_utc.isoformat(timespec="microseconds") + "Z"


_ENTRIES = select(
    *(audit_log.c[name] for name in ("id", "who", "action", "target")),
    *moment_columns(audit_log.c.at),
    cast(audit_log.c.detail, Text).label("detail"),
).order_by(audit_log.c.id)


@dataclass(frozen=True, slots=True)
class AuditLine:
    """One entry."""

    id: int
    text: str
    """Canonical, without a line end."""


def read_page(connection: Connection, first: int, last: int) -> list[AuditLine]:
    """Return the next entries with ids from ``first`` to ``last``, at most ``PAGE_ENTRIES``."""
    if first > LAST_ID:
        return []
    page = _ENTRIES.where(audit_log.c.id >= first, audit_log.c.id <= last).limit(PAGE_ENTRIES)
    return [_line_of(row) for row in connection.execute(page).mappings()]


def audit_lines(
    read: Callable[[int, int], list[AuditLine]], first: int, last: int
) -> Iterator[AuditLine]:
    """Yield the entries with ids from ``first`` to ``last``.

    Args:
        read: `read_page`, on a connection of the caller's.
        first: id.
        last: id.
    """
    while True:
        page = read(first, last)
        yield from page
        if len(page) < PAGE_ENTRIES:
            return
        first = page[-1].id + 1


def digest_lines(lines: Iterable[AuditLine]) -> tuple[int, str]:
    """Return how many entries these are, and the digest that a seal has of them."""
    count, digest = 0, hashlib.sha256()
    for line in lines:
        count += 1
        digest.update(line.text.encode() + b"\n")
    return count, digest.hexdigest()


def canonical_json(value: Any) -> str:
    """Return JSON in ASCII of dicts, lists, texts and numbers; names sorted, numbers exact."""
    if isinstance(value, dict):
        items = sorted(value.items())
        return "{" + ",".join(f"{json.dumps(k)}:{canonical_json(v)}" for k, v in items) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(canonical_json, value)) + "]"
    if isinstance(value, Decimal):
        return format(value, "f")
    return json.dumps(value)


def exact_json(document: str | bytes) -> Any:
    """Return what JSON holds, numbers as Decimal: Python's int takes only 4,300 digits.

    Raises:
        ValueError: it is no JSON.
    """
    return json.loads(document, parse_int=Decimal, parse_float=Decimal)


def _line_of(row: RowMapping) -> AuditLine:
    fields = {name: row[name] for name in ("id", "who", "action", "target")}
    detail = _detail_of(row["detail"])
    return AuditLine(row["id"], canonical_json(fields | {"at": moment_text(row), "detail": detail}))


def _detail_of(document: str | None) -> Any:
    if document is None or _depth(document) > _DEEPEST:
        return document
    return exact_json(document)


def _depth(document: str) -> int:
    """Return how deep a JSON document is nested, without parsing it."""
    steps = (_STEPS.get(one, 0) for one in _STRING.sub("", document))
    return max(accumulate(steps), default=0)
