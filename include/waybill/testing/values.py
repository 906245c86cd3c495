"""Values of rows as JSON has them, and back."""

from __future__ import annotations

import base64
import math
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from waybill.events import loads, rfc3339
from waybill.pipelines import arrow_type
from waybill.processing import convert


def json_value(value: Any) -> Any:
    """Return a value as example events write it: times, decimals and bytes (base64) are text.

    So are NaN and Infinity, which are no JSON.
    """
    if isinstance(value, dict):
        return {name: json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, date):
        return rfc3339(value) if isinstance(value, datetime) else value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return str(value) if isinstance(value, Decimal) else value


def python_value(kind: str, value: Any) -> Any:
    """Return a column's value as Python has it: what a ``json`` column holds is parsed."""
    return loads(value.encode()) if kind == "json" and value is not None else value


def converted(kind: str, value: Any) -> Any:
    """Return what a column of a type makes of a JSON value.

    Raises whatever a value makes it raise, where the column does not take it.
    """
    return python_value(kind, convert(kind, [value], arrow_type(kind)).to_pylist()[0])
