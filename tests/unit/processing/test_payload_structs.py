"""Payloads that are read into columns are those that are read as dicts."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.processing.made import event
from tests.unit.processing.test_batch_form import batch, given_pipeline
from tests.unit.processing.test_batch_form import payloads as odd_payloads

from waybill.events import Event, Heads, dumps_read, encode, loads, read_heads
from waybill.processing import Plan, outcomes_of
from waybill.processing.batch_form import BatchRun
from waybill.processing.event_tables import EventBatch, TableOrder, packed_facts
from waybill.processing.payload_structs import PayloadReader, StructPayloads
from waybill.processing.table_results import results_of
from waybill.processing.transformation import NoWatch

TYPES = {"n": "int64", "f": "float64", "s": "string"}
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([2**70, 1e300, "x", "é", "\U0001f600"])
    | st.decimals(allow_nan=False, allow_infinity=False, places=25, min_value=0, max_value=9)
)
values = (
    scalars | st.lists(scalars, max_size=2) | st.dictionaries(st.text("ab"), scalars, max_size=2)
)
objects = st.dictionaries(st.sampled_from(["n", "f", "s", "z", 'a"b', "", "é"]), values, max_size=5)


def normal(payload: Any) -> Any:
    """Return a payload as it comes from JSON, without what `read_heads` leaves to others."""
    return loads(re.sub(rb"\\+u", b"u", dumps_read(payload)))


def heads_of(some: list[Any]) -> Heads:
    groups = read_heads([encode(event(n, payload)) for n, payload in enumerate(some)])
    assert groups is not None
    [(heads, _)] = groups
    return heads


def packed(some: list[Any]) -> bytes:
    [content] = heads_of(some).payloads(len(some))
    return content


def checked(read: StructPayloads | list[Any], payloads: list[Any]) -> None:
    if not isinstance(read, StructPayloads):
        assert read == payloads
        return
    for name, kind in TYPES.items():
        found, expected = read.column(name), [payload.get(name) for payload in payloads]
        if kind == "float64":  # long decimals are floats, unless something else stood there before
            expected = [
                float(one) if isinstance(one, Decimal) and isinstance(value, float) else one
                for one, value in zip(expected, found, strict=True)
            ]
        assert list(found) == expected
    others = [{k: v for k, v in one.items() if k not in TYPES} for one in payloads]
    assert read.rest_objects() == others
    try:
        texts = read.rest()
    except OverflowError:
        assert re.search(rb"[0-9]{19}", dumps_read(others))  # msgspec writes 64 bits
    else:
        assert [None if text is None else loads(text.encode()) for text in texts] == [
            one or None for one in others
        ]


@settings(deadline=None)
@given(st.lists(st.lists(objects, min_size=1, max_size=4), min_size=1, max_size=4))
@example([[{"n": None, "f": None}], [{"f": []}], [{"f": "x"}]])
def test_slices_are_read_as_they_are_whatever_came_before(slices: list[list[Any]]) -> None:
    reader = PayloadReader(TYPES)
    for slice_ in slices:
        payloads = [loads(dumps_read(one)) for one in slice_]  # numbers as they come from JSON
        checked(reader.read(packed(payloads)), payloads)
        checked(reader.read(packed(payloads)), payloads)


def test_what_was_met_once_is_read_by_column() -> None:
    reader = PayloadReader(TYPES)
    payloads = [{"n": 1, "z": [1]}, {"z": None, "f": 1.5}, {"s": "x"}]
    assert isinstance(reader.read(packed(payloads)), list)
    read = reader.read(packed(payloads))
    assert isinstance(read, StructPayloads)
    assert read.rest() == ['{"z":[1]}', '{"z":null}', None]
    assert isinstance(reader.read(packed([{"n": 1}])), StructPayloads)
    assert isinstance(reader.read(packed([{"new": 1}])), list)
    assert isinstance(reader.read(packed([{"new": 1}])), StructPayloads)


def test_payloads_that_are_no_objects_or_have_endless_names_are_read_as_they_are() -> None:
    reader = PayloadReader(TYPES)
    for payloads in ([[1]], [{f"k{n}": n for n in range(300)}], [{"n": 1}], [{"n": 1}, 5]):
        for _ in range(2):
            assert reader.read(packed(payloads)) == payloads


def test_text_in_a_field_for_floats_is_read_by_column_from_then_on() -> None:
    reader = PayloadReader(TYPES)
    for payloads in ([{"f": 1.5}], [{"f": "1.5"}]):
        reader.read(packed(payloads))
    read = reader.read(packed([{"f": "x"}, {"f": 1.5}]))
    assert isinstance(read, StructPayloads)
    assert list(read.column("f")) == ["x", 1.5]


@settings(deadline=None)
@example([normal({"id": 0, "o": {"\\u": None, "\\\\u0041": 1}})], False)
@given(st.lists(odd_payloads.map(normal), min_size=1, max_size=6), st.booleans())
def test_tables_of_columns_are_those_of_dicts(data: list[Any], policy: bool) -> None:
    made = given_pipeline(batch("return table"), "ignore" if policy else "strict")
    plan = Plan(made)
    order = TableOrder.of(plan, "order")
    reader = PayloadReader(order.types)
    heads = heads_of(data)
    [body], facts = heads.payloads(len(data)), packed_facts(heads)
    expected = None
    for batches in (
        EventBatch.of_events([event(n, one) for n, one in enumerate(data)]),
        EventBatch.of_facts("order", facts, [reader.read(body)]),
        EventBatch.of_facts("order", facts, [reader.read(body)]),
        EventBatch.of_facts("order", facts, map(reader.read, heads.payloads(2))),
    ):
        made_of = BatchRun(lambda table: table, batches, order, NoWatch()).result()
        events = [event(n, one) for n, one in enumerate(data)]
        outcomes = outcomes_of(events, results_of(plan, events, made_of))
        told = [(one.data if isinstance(one, Event) else one) for one in outcomes]
        expected = told if expected is None else expected
        assert told == expected
