"""Transformations that take tables: the same rows, parks, filters and children as one by one."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.unit.processing.made import chained, check_books, event, faults, pipeline, rows, total

from waybill.events import Event, decode
from waybill.mappings import rules_of
from waybill.pipelines import Pipeline, takes_tables
from waybill.processing import Chain, ChainResult, DryRunLearner, Plan, Retries
from waybill.processing.field_types import RESERVED
from waybill.processing.transformation import load_code
from tests.unit.processing.made import chunk
from waybill.events import encode

HEAD = "import pyarrow as pa\nimport pyarrow.compute as pc\n"


def batch(body: str) -> str:
    """Return code of the batch form with this body."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"{HEAD}def transform_batch(table):\n{lines}"


def single(body: str) -> str:
    """Return code of the event form with this body."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"from waybill.errors import ParkError\ndef transform(event):\n{lines}"


SAME = {
    "passes": ("return event", "return table"),
    "filters": (
        "return None if event.source_version % 3 == 0 else event",
        "keep = [v % 3 != 0 for v in table['_source_version'].to_pylist()]\n"
        "return table.filter(pa.array(keep, pa.bool_()))",
    ),
    "turns round": ("return event", "return table.take(list(range(len(table)))[::-1])"),
    "has children": (
        "if event.source_version % 2: return event\n"
        "return [event.child(0, event.data), event.child(1, event.data, name='other')]",
        "odd = [v % 2 == 1 for v in table['_source_version'].to_pylist()]\n"
        "at = table.schema.get_field_index('_event_name')\n"
        "others = table.filter(pa.array([not one for one in odd], pa.bool_()))\n"
        "others = others.set_column(at, '_event_name', pa.repeat('other', len(others)))\n"
        "return pa.concat_tables([table, others])",
    ),
    "renames and deletes": (
        "if event.source_version % 3 == 1: event.name = 'other'\n"
        "if event.source_version % 3 == 2: event.op = 'delete'\n"
        "return event",
        "n = table['_source_version'].to_pylist()\n"
        "names = pa.array(['other' if v % 3 == 1 else None for v in n], pa.string())\n"
        "ops = pa.array(['delete' if v % 3 == 2 else 'upsert' for v in n], pa.string())\n"
        "table = table.drop_columns(['_event_name', '_op'])\n"
        "return table.append_column('_event_name', names).append_column('_op', ops)",
    ),
    "refuses": (
        "if event.source_version % 4 == 1: raise ParkError('record_incomplete', 'of ' + event.id)\n"
        "if event.source_version % 4 == 2: raise ParkError('record_invalid', 'no')\n"
        "return event",
        "n = table['_source_version'].to_pylist()\n"
        "ids = table['_event_id'].to_pylist()\n"
        "words = ['of ' + i if v % 4 == 1 else 'no' if v % 4 == 2 else None for i, v in zip(ids, n)]\n"
        "kinds = ['record_incomplete' if v % 4 == 1 else None for v in n]\n"
        "table = table.append_column('_error', pa.array(words, pa.string()))\n"
        "return table.append_column('_error_type', pa.array(kinds, pa.string()))",
    ),
    "raises": (
        "if event.source_version % 4 == 1: raise ValueError('no')\nreturn event",
        "if 1 in [v % 4 for v in table['_source_version'].to_pylist()]: raise ValueError('no')\n"
        "return table",
    ),
    "adds": (
        "event.data['n'] = event.source_version * 7\nreturn event",
        "n = pc.multiply(table['_source_version'], 7)\n"
        "return table.drop_columns(['n']).append_column('n', n)",
    ),
}
"""The same function in both forms."""
TYPES = {
    "n": "int64", "small": "int32", "s": "string", "f": "float64", "d": "decimal(8,2)",
    "t": "timestamp", "day": "date", "y": "bytes", "j": "json", "o": "bool",
}  # fmt: skip

texts = st.one_of(
    st.sampled_from(
        ["", "x", "12", "1.25", "1.255", "2026-01-02", "2026-01-02T03:04:05Z", "2026-01-02T03:04",
         "2026-01-02T03:04:05.1234567Z", "YQ==", "é", "\0", "\U0001f600", "9999-12-31T23:59:59.999999Z"]
    ),
    st.text(max_size=4),
)  # fmt: skip
numbers = st.one_of(
    st.sampled_from(
        [0, 1, -1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**40, 0.1, 1.0, 1.25, 1e300,
         Decimal("0.1234567890123456789"), Decimal("1E+400"), Decimal("99999999999.5")]
    ),
    st.integers(), st.floats(allow_nan=False, allow_infinity=False),
)  # fmt: skip
anything = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
payloads = st.fixed_dictionaries(
    {}, optional={"id": st.integers(0, 9) | anything, **dict.fromkeys(TYPES, anything)}
) | st.dictionaries(st.sampled_from(["id", "n", "z", *sorted(RESERVED)]), anything, max_size=4)


def given_pipeline(code: str, policy: str = "strict") -> Pipeline:
    return pipeline(code, policy=policy, events=("order", "other"), **TYPES)


def told(result: ChainResult) -> list[Any]:
    """Return all that a chain made, in one order."""
    check_books(result)
    return [
        sorted(rows(result), key=lambda row: (row["_waybill_id"], row["_waybill_key"])),
        sorted(
            (f.offset, f.event_id, f.event_name, f.stage, f.fault.code, f.fault.message, f.fault.others)
            for f in result.failures
        ),
        result.counts.to_json(),
    ]  # fmt: skip


def compared(way: str, events: list[Event], policy: str) -> None:
    one, many = SAME[way]
    expected = told(chained(given_pipeline(single(one), policy), events))
    assert told(chained(given_pipeline(batch(many), policy), events)) == expected


@pytest.mark.parametrize("way", SAME)
@given(
    data=st.lists(payloads, min_size=1, max_size=9), policy=st.sampled_from(["strict", "ignore"])
)
@example(
    data=[{"id": 1, "n": 1}, {"id": 2, "n": "x"}, {"id": 3}, {"id": 4, "n": 2**70}], policy="strict"
)
@example(data=[{"id": 1, "s": "\0"}, {"id": 2, "t": "no"}, {"id": 3, "z": None}], policy="strict")
@example(data=[{"id": 1, "_op": "x", "z": [1]}, {"id": 2}], policy="ignore")
def test_tables_become_what_events_do_one_by_one(
    way: str, data: list[dict[str, Any]], policy: str
) -> None:
    compared(way, [event(n + 1, one) for n, one in enumerate(data)], policy)
