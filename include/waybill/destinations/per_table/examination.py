"""All that loads need, tried on a table of its own that is dropped at the end."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from waybill.destinations.examination import Step, run_steps
from waybill.destinations.model import Finding
from waybill.destinations.per_table.table import (
    FILE,
    OP,
    UPSERT,
    Changes,
    Lake,
    LakeTable,
    RowStamp,
)

if TYPE_CHECKING:
    from waybill.destinations.model import Destination

_SHAPE = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])


def examine(
    destination: Destination,
    lake: Lake,
    schema_name: str,
    speaking: Callable[[], AbstractContextManager[None]],
) -> list[Finding]:
    """Return what each step found; the first that fails ends it; nothing is left behind."""
    table = lake.table(schema_name, f"waybill_check_{secrets.token_hex(6)}")
    steps: list[Step] = [
        ("connect", lambda: _connect(destination)),
        ("create a table", lambda: _create(table)),
        ("write and merge", lambda: _merge(table)),
        ("read", lambda: _read(table)),
        ("drop a table", lambda: _drop(table)),
    ]
    return run_steps(steps, speaking)


def _connect(destination: Destination) -> str:
    destination.check()
    return "it answers"


def _create(table: LakeTable) -> str:
    table.create(_SHAPE)
    table.refresh()
    return f"{table.schema_name}.{table.name}"


def _merge(table: LakeTable) -> str:
    rows = pa.table({"id": pa.array([1, 2]), "text": ["a", "b"]})
    ops = pa.array([UPSERT, UPSERT])
    table.commit(
        Changes(rows.append_column(OP, ops), ("id",), np.array([], np.int64), frozenset()),
        RowStamp("", 0, None),
    )
    changed = pa.table({"id": pa.array([2, 3]), "text": ["c", "d"]}).append_column(OP, ops)
    table.refresh()
    files = frozenset(table.scan(["id"], {}).read_all()[FILE].to_pylist())
    table.commit(Changes(changed, ("id",), np.array([0]), files), RowStamp("", 0, None))
    return "two rows added, one of them changed, one more added"


def _read(table: LakeTable) -> str:
    table.refresh()
    rows = table.scan(["id", "text"], {}).read_all()
    texts = dict(zip(rows["id"].to_pylist(), rows["text"].to_pylist(), strict=True))
    report = f"{len(texts)} rows, as they were written"
    if texts != {1: "a", 2: "c", 3: "d"}:
        report = f"found {texts}, expected other rows: does another process write to it?"
    return report


def _drop(table: LakeTable) -> str:
    table.drop()
    return "nothing is left"
