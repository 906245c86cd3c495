"""Cursors: where a page ended, as text that a caller hands back.

A cursor says where to go on, never what may be seen: the filter is applied again, so a made-up one
shows nothing that a page would not. It is base64url of JSON ``[sort, descending, values...]``.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from datetime import datetime

import orjson

from waybill.errors import InputError
from waybill.events import instant, rfc3339

_LARGEST_CHARS = 8192
_LARGEST_NUMBER = 2**63 - 1
Value = int | str | datetime


def to_cursor(sort: str, values: Sequence[Value], *, descending: bool) -> str:
    """Return the cursor of a page that ended at these values."""
    plain = [rfc3339(value) if isinstance(value, datetime) else value for value in values]
    return base64.urlsafe_b64encode(orjson.dumps([sort, descending, *plain])).decode()


def from_cursor(
    text: str, sort: str, kinds: Sequence[type[Value]], *, descending: bool
) -> list[Value]:
    """Return the values of a cursor.

    Raises:
        InputError: it is none, or one of a page in another order.
    """
    if len(text) > _LARGEST_CHARS:
        raise _no_cursor()
    try:
        found = orjson.loads(base64.b64decode(text.encode(), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error) as error:
        raise _no_cursor() from error
    if not isinstance(found, list) or len(found) != len(kinds) + 2:
        raise _no_cursor()
    if found[0] != sort or found[1] is not descending:
        raise InputError(
            "`after` is of a page in another order; ask for the first page of this one"
        )
    return [_value(value, kind) for value, kind in zip(found[2:], kinds, strict=True)]


def _value(value: object, kind: type[Value]) -> Value:
    if kind is datetime:
        moment = instant(value)
        if moment is not None:
            return moment
    elif type(value) is int and kind is int:
        if abs(value) <= _LARGEST_NUMBER:
            return value
    elif isinstance(value, str) and kind is str and "\x00" not in value:
        return value
    raise _no_cursor()


def _no_cursor() -> InputError:
    return InputError("`after` is no page's `next`; ask for the first page")
