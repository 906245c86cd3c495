"""Traces to test with."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from waybill.tracing import traces

NOON_US = 1_790_000_000_000_000 // 3_600_000_000 * 3_600_000_000
"""Start of an hour of UTC."""


def ids(count: int, seed: str = "") -> list[str]:
    """Event ids as the product makes them: 32 hexadecimal digits, the same for the same seed."""
    return [
        hashlib.blake2b(f"{seed}{n}".encode(), digest_size=16).hexdigest() for n in range(count)
    ]


def batch(event_ids: Sequence[str], **columns: Any) -> pa.RecordBatch:
    given = {
        "pipeline_id": "p1",
        "event_name": "flight",
        "phase": "mapping",
        "outcome": "passed",
        "at_us": NOON_US,
        **columns,
    }
    return traces(event_ids, **given)
