"""Transformations that take tables: the same rows, parks, filters and children as one by one."""

from __future__ import annotations

import ast
import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.benchmarks.processing import BATCH_CODE, CODE
from tests.support.user_code import sandbox
from tests.unit.processing.made import (
    chained,
    check_books,
    chunk,
    event,
    faults,
    pipeline,
    rows,
    table,
    total,
)

from waybill.events import Event, decode, encode
from waybill.mappings import rules_of
from waybill.pipelines import (
    ChildTable,
    Column,
    EventDeclaration,
    Pipeline,
    TableSpec,
    code_check,
    takes_tables,
)
from waybill.processing import Chain, ChainResult, LocalLearner, Plan, Retries
from waybill.processing.field_types import RESERVED, types_of
from waybill.processing.transformation import load_code

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
    """Return a pipeline of which ``other`` has a column ``z``, that ``order`` has not."""
    made = pipeline(code, policy=policy, events=("order", "other"), **TYPES)
    other = made.events["other"].model_copy(update={"table": table("other", **TYPES, z="json")})
    return made.model_copy(update={"events": made.events | {"other": other}})


def told(result: ChainResult) -> list[Any]:
    """Return all that a chain made, in one order; of payloads that park, what has no column."""
    check_books(result)
    others = {
        f.event_id + f.event_name: {n: v for n, v in data.items() if n not in (*TYPES, "id")}
        for f in result.failures
        if f.stage == "mapping" and isinstance(data := decode(f.value).data, dict)
    }
    return [
        sorted(rows(result), key=lambda row: (row["_waybill_id"], row["_waybill_key"])),
        sorted(
            (f.offset, f.event_id, f.event_name, f.stage, f.fault.code, f.fault.message, f.fault.others)
            for f in result.failures
        ),
        result.counts.to_json(),
        others,
    ]  # fmt: skip


def compared(events: list[Event], policy: str) -> None:
    """Compare the two forms of each function: the events take as long to draw as to compare."""
    for way, (one, many) in SAME.items():
        expected = told(chained(given_pipeline(single(one), policy), events))
        assert told(chained(given_pipeline(batch(many), policy), events)) == expected, way


@settings(max_examples=30, deadline=None)
@given(
    data=st.lists(payloads, min_size=1, max_size=9), policy=st.sampled_from(["strict", "ignore"])
)
@example(
    data=[{"id": 1, "n": 1}, {"id": 2, "n": "x"}, {"id": 3}, {"id": 4, "n": 2**70}], policy="strict"
)
@example(data=[{"id": 1, "s": "\0"}, {"id": 2, "t": "no"}, {"id": 3, "z": None}], policy="strict")
@example(data=[{"id": 1, "_op": "x", "z": [1]}, {"id": 2}], policy="ignore")
@example(data=[{"id": 1, "n": "x", "z": [1], "new": 1}, {"z": 5}], policy="ignore")
def test_tables_become_what_events_do_one_by_one(data: list[dict[str, Any]], policy: str) -> None:
    compared([event(n + 1, one) for n, one in enumerate(data)], policy)


@settings(max_examples=30, deadline=None)
@given(data=st.lists(payloads, min_size=3, max_size=9), most=st.integers(1, 3))
@example(data=[{"id": 1}, {"id": 2, "n": "x"}, {"id": 3}, {"id": 4, "s": "a", "n": 2**70}], most=2)
def test_events_of_several_tables_become_what_they_do_one_by_one(
    data: list[dict[str, Any]], most: int
) -> None:
    events = [event(n + 1, one) for n, one in enumerate(data)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("waybill.processing.event_tables.MOST_ROWS", most)
        for policy in ("strict", "ignore"):
            compared(events, policy)


def test_the_fields_of_a_payload_come_in_an_order_that_its_neighbours_do_not_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of columns that are all null in one table, or of another type, as in a slice by itself."""
    body = (
        "odd = pc.equal(pc.bit_wise_and(table['id'], 1), 1)\n"
        "first = pc.if_else(odd, 'x', pa.scalar(None, pa.string()))\n"
        "last = pa.repeat(len(table), len(table))\n"
        "return pa.table({'first': first, 's': table['s'], 'id': table['id'], 'last': last, "
        "'_row': table['_row']})"
    )
    events = [event(n, {"id": n, "s": f"v{n}"}) for n in (0, 2, 4, 1, 6, 3)]
    monkeypatch.setattr("waybill.processing.event_tables.MOST_ROWS", 2)
    together = chained(given_pipeline(batch(body)), events)
    alone = [chained(given_pipeline(batch(body)), events[n : n + 2]) for n in (0, 2, 4)]
    parked = [f.value for result in alone for f in result.failures]
    assert [failure.value for failure in together.failures] == parked
    assert [[*decode(value).data] for value in parked[:1] + parked[3:4]] == [
        ["s", "id", "last"],
        ["first", "s", "id", "last"],
    ]


def test_a_field_that_only_the_new_name_has_a_column_for_is_in_its_row() -> None:
    """Whatever the mapping of the name that the event came with leaves out."""
    for way in ("has children", "renames and deletes"):
        made = given_pipeline(batch(SAME[way][1]), "ignore")
        result = chained(made, [event(4, {"id": 4, "z": {"a": 1}})], code=sandbox())
        assert [row["z"] for row in rows(result) if "z" in row] == ['{"a":1}']


def test_what_parks_at_the_mapping_keeps_the_fields_that_it_ignores() -> None:
    made = given_pipeline(batch("return table"), "ignore")
    data = {"id": 1, "n": "x", "more": {"a": [2**70]}}
    result = chained(made, [event(0), event(1, data)], code=sandbox())
    [failure] = result.failures
    assert (failure.stage, decode(failure.value).data) == ("mapping", data)


def test_fields_that_the_code_puts_into_the_rest_reach_their_columns() -> None:
    body = (
        "at = table.schema.get_field_index('_rest')\n"
        """rest = pa.repeat('{"n":7,"s":"rest"}', len(table))\n"""
        "return table.drop_columns(['_rest', 'n']).append_column('_rest', rest)"
    )
    for policy in ("strict", "ignore"):
        result = chained(given_pipeline(batch(body), policy), [event(1, {"id": 1, "s": "own"})])
        assert [(row["n"], row["s"]) for row in rows(result)] == [(7, "own")]


def test_a_renamed_row_is_read_with_the_types_that_its_table_was_written_with() -> None:
    made = given_pipeline(batch(SAME["renames and deletes"][1]))
    types = {"order": {"v": "string", "w": "json"}, "other": {"v": "json", "w": "json"}}
    events = {
        name: declared.model_copy(update={"table": table(name, **types[name])})
        for name, declared in made.events.items()
    }
    made = made.model_copy(update={"events": events})
    result = chained(made, [event(1, {"id": 1, "v": "5", "w": "5"})], code=sandbox())
    assert [(row["v"], row["w"]) for row in rows(result)] == [('"5"', '"5"')]


def ends(code: str, events: list[Event], **options: Any) -> list[tuple[int, str, str]]:
    """Return (offset, stage, error type) of what parks; all else must become rows."""
    result = chained(given_pipeline(code), events, **options)
    check_books(result)
    parked = {offset for offset, _, _ in faults(result)}
    assert len(rows(result)) == len(events) - len(parked)
    return faults(result)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return None", "returned NoneType"),
        ("return table.to_pylist()", "returned list"),
        ("return table.to_batches()[0]", "returned RecordBatch"),
        ("return table.drop_columns(['_row'])", "without the column '_row'"),
        ("return table.set_column(0, '_row', table['_row'])", "two columns '_row'"),
        ("return table.append_column('n', table['n'])", "two columns 'n'"),
        ("return pa.table({'_row': pa.nulls(len(table), pa.int64())})", "changed the column '_row'"),
        ("return pa.table({'_row': ['0'] * len(table)})", "changed the column '_row'"),
        ("return pa.table({'_row': [7] * len(table)})", "_row 7, which is of none"),
        ("return pa.table({'_row': [-1] * len(table)})", "_row -1, which is of none"),
        ("return table.append_column('_error', table['_row'])", "'_error' of int64; it holds text"),
        (
            "return table.drop_columns('_op').append_column('_op', table['_row'])",
            "'_op' of int64; it holds text",
        ),
    ],
)  # fmt: skip
def test_a_result_that_is_no_table_of_its_events_parks_each_and_says_why(
    body: str, words: str
) -> None:
    result = chained(given_pipeline(batch(body)), [event(n) for n in range(3)])
    assert faults(result) == [(n, "transformation", "result_invalid") for n in range(3)]
    assert all(words in failure.fault.message for failure in result.failures)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("_event_name", "'\\0'", "no NUL"),
        ("_event_name", "'n' * 600", "512 bytes"),
        ("_op", "'merge'", "'upsert' or 'delete'"),
        ("_rest", "'[1]'", "takes a JSON object"),
        ("_rest", "'{'", "takes JSON text"),
        ("j", "'{'", "column 'j' takes JSON text"),
        ("t", "pa.scalar(10**18, pa.timestamp('us'))", "outside the years 1 to 9999"),
        ("t", "pa.scalar(1, pa.timestamp('ns'))", "lose data"),
        ("day", "pa.scalar(10**8, pa.date32())", "outside the years 1 to 9999"),
    ],
)
def test_a_value_that_is_none_parks_its_event_alone(name: str, value: str, words: str) -> None:
    body = (
        f"wrong = {value}\n"
        "wrong = wrong if isinstance(wrong, pa.Scalar) else pa.scalar(wrong)\n"
        "nothing = pa.scalar(None, wrong.type)\n"
        "column = pc.if_else(pc.equal(table['id'], 1), wrong, nothing)\n"
        f"return table.set_column(table.schema.get_field_index({name!r}), {name!r}, column)"
    )
    result = chained(given_pipeline(batch(body)), [event(n) for n in range(3)])
    assert faults(result) == [(1, "transformation", "result_invalid")]
    assert words in result.failures[0].fault.message
    assert len(rows(result)) == 2


def test_an_unknown_error_type_is_named() -> None:
    body = "return table.append_column('_error_type', pa.repeat('mine', len(table)))"
    [failure] = chained(given_pipeline(batch(body)), [event(1)]).failures
    assert (failure.fault.code, failure.fault.message) == ("unexpected_error", "mine: ")


def test_a_payload_that_is_no_object_never_meets_the_code() -> None:
    events = [event(1, [1]), event(2), event(3, "x"), event(4, b"\xff")]
    assert ends(batch("return table.filter(pc.greater(table['id'], 0))"), events) == [
        (n, "transformation", "type_error") for n in (0, 2, 3)
    ]


def test_a_payload_that_is_too_deep_for_text_parks_alone() -> None:
    for field in ("z", "j", "n"):  # without a column, with one for JSON, with one for numbers
        value = encode(event(1)).replace(b'"n":1', f'"{field}":{"[" * 260}{"]" * 260}'.encode())
        result = chained(given_pipeline(batch("return table")), [event(0), value, event(2)])
        assert faults(result) == [(1, "transformation", "value_error")]
        assert "more than 254 levels deep" in result.failures[0].fault.message
        assert len(rows(result)) == 2


def test_a_table_has_the_declared_types_and_what_the_events_are() -> None:
    body = "raise ValueError(str(table.schema.to_string()) + str(table.to_pylist()))"
    [failure] = chained(given_pipeline(batch(body)), [event(1, {"id": 1, "z": [2**70]})]).failures
    said = failure.fault.message
    for line in (
        "id: int64", "n: int64", "small: int32", "s: string", "f: double", "d: decimal128(8, 2)",
        "t: timestamp[us, tz=UTC]", "day: date32[day]", "y: binary", "j: string", "o: bool",
        "_rest: string", "_row: int64", "_event_id: string", "_event_name: string", "_key: string",
        "_op: string", "_source_version: int64", "_intake_version: int64", "_time: string",
    ):  # fmt: skip
        assert f"\n{line}\n" in f"\n{said.replace('ValueError: ', '').replace('[{', chr(10))}\n", (
            line
        )
    assert '{"z":[1180591620717411303424]}' in said


def test_values_of_another_type_come_in_tables_of_their_own() -> None:
    """One sees what kinds there are by what the code makes of the column's type."""
    body = (
        "kind = pa.repeat(str(table.schema.field('n').type), len(table))\n"
        "return table.set_column(table.schema.get_field_index('s'), 's', kind)"
    )
    data = [1, "x", 2.5, True, None, [1], 2**70, {"a": 1}]
    events = [event(n, {"id": n, "j": 1, "n": value}) for n, value in enumerate(data)]
    result = chained(given_pipeline(batch(f"{body}.drop_columns('n')")), events)
    assert [row["s"] for row in rows(result)] == [
        "int64", "string", "double", "bool", "int64", "string", "string", "string"
    ]  # fmt: skip
    assert [failure.offset for failure in chained(given_pipeline(batch(body)), events).failures] == [
        1, 2, 3, 5, 6, 7
    ]  # fmt: skip


def test_what_a_source_declares_of_a_field_comes_before_the_mapping() -> None:
    body = (
        "cents = pc.cast(pc.replace_substring(table['n'], '.', ''), pa.int64())\n"
        "return table.set_column(table.schema.get_field_index('n'), 'n', cents)"
    )
    made = given_pipeline(batch(body))
    made = made.model_copy(
        update={"source": made.source.model_copy(update={"columns": {"n": "string"}})}
    )
    result = chained(made, [event(1, {"id": 1, "n": "12.50"}), event(2, {"id": 2, "n": "x.5"})])
    assert [row["n"] for row in rows(result)] == [1250]
    assert faults(result) == [(1, "transformation", "value_error")]


def test_json_fields_are_text_in_the_table_and_may_come_back_as_text_or_as_structs() -> None:
    events = [event(n, {"id": n, "j": {"a": [n, 2**70, "é"]}}) for n in range(3)]
    same = rows(chained(given_pipeline(batch("return table")), events))
    assert [json.loads(row["j"])["a"] for row in same] == [[n, 2**70, "é"] for n in range(3)]
    body = (
        "at = table.schema.get_field_index('j')\n"
        "nested = pa.array([{'b': [i, None]} for i in table['id'].to_pylist()])\n"
        "return table.set_column(at, 'j', nested)"
    )
    nested = rows(chained(given_pipeline(batch(body)), events))
    assert [json.loads(row["j"]) for row in nested] == [{"b": [n, None]} for n in range(3)]


SEVEN = datetime(1970, 1, 1, 0, 0, 7, tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "array", "expected"),
    [
        ("n", "pa.array([7], pa.uint8())", 7),
        ("n", "pa.array([7], pa.uint64())", 7),
        ("n", "pa.array([7]).dictionary_encode()", 7),
        ("n", "pa.array([7.0])", 7),
        ("n", "pa.array([Decimal('7')], pa.decimal128(5, 0))", 7),
        ("small", "pa.array([7])", 7),
        ("small", "pa.array([7], pa.int16())", 7),
        ("f", "pa.array([7.5], pa.float16())", 7.5),
        ("f", "pa.array([7.5], pa.float32())", 7.5),
        ("f", "pa.array([7])", 7.0),
        ("f", "pa.array([Decimal('7.5')])", 7.5),
        ("d", "pa.array([Decimal('7.50')], pa.decimal256(40, 2))", Decimal("7.50")),
        ("d", "pa.array([Decimal('7.500')], pa.decimal128(20, 3))", Decimal("7.50")),
        ("d", "pa.array([7.5])", Decimal("7.50")),
        ("d", "pa.array([7])", Decimal("7.00")),
        ("d", "pa.array(['7.5'])", Decimal("7.50")),
        ("s", "pa.array(['é'], pa.large_string())", "é"),
        ("s", "pa.array(['é'], pa.string_view())", "é"),
        ("s", "pa.array(['é']).dictionary_encode()", "é"),
        ("t", "pa.array([7], pa.timestamp('s'))", SEVEN),
        ("t", "pa.array([7000], pa.timestamp('ms', 'Europe/Berlin'))", SEVEN),
        ("t", "pa.array([7 * 10**9], pa.timestamp('ns', 'UTC'))", SEVEN),
        ("t", "pa.array(['1970-01-01T01:00:07+01:00'])", SEVEN),
        ("day", "pa.array([0], pa.date32()).cast(pa.date64())", date(1970, 1, 1)),
        ("day", "pa.array(['1970-01-01'])", date(1970, 1, 1)),
        ("y", "pa.array([b'7'], pa.large_binary())", b"7"),
        ("y", "pa.array([b'7'], pa.binary(1))", b"7"),
        ("y", "pa.array([b'7'], pa.binary_view())", b"7"),
        ("y", "pa.array(['Nw=='])", b"7"),
        ("j", "pa.array([b'7'])", '"Nw=="'),
        ("j", "pa.array([[7, None]])", "[7,null]"),
        ("j", "pa.array([7], pa.timestamp('s'))", '"1970-01-01T00:00:07Z"'),
        ("j", "pa.array([' [1.0, 1e400]'])", "[1.0,1E+400]"),
        ("o", "pa.array([True]).dictionary_encode()", True),
        ("s", "pa.nulls(1)", None),
        ("j", "pa.nulls(1, pa.list_(pa.int8()))", None),
    ],
)
def test_a_type_of_arrow_becomes_what_its_value_is(name: str, array: str, expected: Any) -> None:
    body = (
        "from decimal import Decimal\n"
        f"return table.set_column(table.schema.get_field_index({name!r}), {name!r}, {array})"
    )
    result = chained(given_pipeline(batch(body)), [event(1)])
    assert [failure.fault.message for failure in result.failures] == []
    assert rows(result)[0][name] == expected


def test_an_array_that_is_too_large_or_of_odd_numbers_loses_nothing() -> None:
    """Out of int64, of int32, of the decimal; not whole; too long for a double."""
    for name, made, code in (
        ("n", "pa.array([2**63], pa.uint64())", "number_out_of_range"),
        ("n", "pa.array([1.5])", "type_mismatch"),
        ("small", "pa.array([2**31])", "number_out_of_range"),
        ("f", "pa.array([2**53 + 1])", "number_out_of_range"),
        ("d", "pa.array([Decimal('1.234')], pa.decimal128(9, 3))", "precision_lost"),
        ("d", "pa.array([10**7])", "number_out_of_range"),
        ("s", "pa.array([5])", "type_mismatch"),
        ("s", "pa.array(['a\\0'])", "text_invalid"),
        ("day", "pa.array([1], pa.timestamp('us'))", "timestamp_invalid"),
    ):
        body = (
            "from decimal import Decimal\n"
            f"return table.set_column(table.schema.get_field_index({name!r}), {name!r}, {made})"
        )
        result = chained(given_pipeline(batch(body)), [event(1)])
        assert faults(result) == [(0, "mapping", code)], made


def test_bytes_that_park_are_base64_text_again() -> None:
    result = chained(given_pipeline(batch("return table")), [event(1, {"y": "/wA="})])
    [failure] = result.failures
    assert (failure.stage, failure.fault.code) == ("mapping", "mapped_key_missing")
    assert decode(failure.value).data == {"y": "/wA="}


@pytest.mark.parametrize(
    ("declared", "column", "value"),
    [
        ("timestamp", "string", "2026-01-02T03:04:05Z"),
        ("timestamp", "string", "2026-01-02T03:04:05.000006Z"),
        ("timestamp", "json", "2026-01-02T03:04:05Z"),
        ("date", "string", "2026-01-02"),
        ("date", "timestamp", "2026-01-02"),
        ("date", "json", "2026-01-02"),
        ("timestamp", "int64", "2026-01-02T03:04:05Z"),
        ("date", "bool", "2026-01-02"),
    ],
)
def test_times_that_no_column_takes_as_such_are_the_text_that_they_were(
    declared: str, column: str, value: str
) -> None:
    """In a row, and in what parks."""
    ends = []
    for code in (single("return event"), batch("return table")):
        made = pipeline(code, v=column)
        source = made.source.model_copy(update={"columns": {"v": declared}})
        made = made.model_copy(update={"source": source})
        result = chained(made, [event(1, {"id": 1, "v": value}), event(2, {"id": 2, "v": None})])
        ends.append((told(result), [decode(failure.value).data for failure in result.failures]))
    assert ends[0] == ends[1]


def test_new_fields_are_learned_and_then_have_columns() -> None:
    code = batch("return table")
    made = pipeline(code, policy="evolve", n="int64")
    plan = Plan(made, learner=LocalLearner(rules_of("postgres")))
    chain = Chain({made.id: plan})
    data = [{"id": n, "n": n, "new": f"v{n}", "more": [n]} for n in range(4)]
    for start in (0, 2):
        messages = [encode(event(n, data[n])) for n in range(start, start + 2)]
        chain.process(chunk(messages, first=start))
        assert plan.types("order")["new"] == "string"
    assert chain.result.failures == []
    made_rows = {
        row["id"]: row for _, table in chain.result.staged.tables() for row in table.to_pylist()
    }
    assert [(made_rows[n]["new"], json.loads(made_rows[n]["more"])) for n in range(4)] == [
        (f"v{n}", [n]) for n in range(4)
    ]


def test_an_event_name_that_is_not_declared_parks_as_one_by_one() -> None:
    events = [event(1, name="strange"), event(2)]
    assert ends(batch("return table"), events) == [(0, "mapping", "event_name_unknown")]


def test_children_that_are_one_row_park_their_parent() -> None:
    twice = batch("return pa.concat_tables([table, table])")
    result = chained(given_pipeline(twice), [event(1)])
    assert faults(result) == [(0, "transformation", "result_invalid")]
    assert "the same row" in result.failures[0].fault.message


def test_of_a_thousand_rows_the_one_that_raises_parks_with_its_words() -> None:
    body = "if 617 in table['id'].to_pylist(): raise LookupError(f'no {len(table)}')\nreturn table"
    result = chained(given_pipeline(batch(body)), [event(n) for n in range(1000)])
    assert faults(result) == [(617, "transformation", "lookup_failed")]
    [failure] = result.failures
    assert failure.fault.message == "LookupError: no 1"  # of its table of one row
    assert failure.fault.where.endswith("transformation.py:4 in transform_batch")
    assert [row["id"] for row in rows(result)] == [n for n in range(1000) if n != 617]


def test_a_transient_error_is_met_again_by_its_row_alone() -> None:
    code = (
        f"{HEAD}TRIES = []\n"
        "def transform_batch(table):\n"
        "    if 1 in table['id'].to_pylist():\n"
        "        TRIES.append(len(table))\n"
        "        if TRIES.count(1) < 3: raise ConnectionError('away')\n"
        "    return table.drop_columns('n').append_column('n', pa.repeat(len(TRIES), len(table)))\n"
    )
    retries = Retries(3, backoff_s=0.001)
    result = chained(given_pipeline(code), [event(n) for n in range(4)], retries=retries)
    assert result.failures == []
    assert [row["n"] for row in rows(result) if row["id"] == 1] == [5]  # tables of 4, 2, 1, 1, 1
    parks = chained(given_pipeline(code), [event(1)], retries=Retries(2, backoff_s=0.001))
    assert parks.failures[0].fault.message.endswith("(attempts: 2)")


def test_a_transient_error_type_of_a_row_is_met_again_too() -> None:
    code = (
        f"{HEAD}TRIES = []\n"
        "def transform_batch(table):\n"
        "    TRIES.append(table['id'].to_pylist())\n"
        "    away = [i == 1 and len(TRIES) < 3 for i in table['id'].to_pylist()]\n"
        "    kinds = pa.array(['io_error' if one else None for one in away], pa.string())\n"
        "    return table.append_column('_error_type', kinds)\n"
    )
    for attempts, parked in ((3, []), (2, [(1, "transformation", "io_error")])):
        retries = Retries(attempts, backoff_s=0.001)
        result = chained(given_pipeline(code), [event(n) for n in range(3)], retries=retries)
        assert faults(result) == parked
        assert [row["id"] for row in rows(result)] == [
            n for n in range(3) if parked == [] or n != 1
        ]


def test_rows_of_one_key_keep_the_order_of_their_events() -> None:
    body = "return table.sort_by([('n', 'descending')])"
    odd = [event(n, {"id": 1, "n": n, "s": 5 if n % 3 == 0 else "x"}) for n in range(9)]
    result = chained(given_pipeline(batch(body + ".drop_columns('s')")), odd)
    assert [row["n"] for row in rows(result)] == list(range(9))


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def other(t): return t\n", "has no function transform, nor transform_batch"),
        ("transform_batch = 5\n", "has no function"),
    ],
)
def test_code_has_one_of_the_two_forms(code: str, words: str) -> None:
    result = chained(given_pipeline(code), [event(1)])
    assert faults(result) == [(0, "transformation", "code_invalid")]
    assert words in result.failures[0].fault.message


def test_the_form_is_known_from_the_text_alone() -> None:
    assert takes_tables(batch("return table"))
    assert takes_tables("from x import transform_batch\n")
    assert not takes_tables(single("return event"))
    assert not takes_tables("def transform_batch(t): ...\ndef transform(e): ...\n")
    assert not takes_tables("def transform_batch(:")
    assert load_code(batch("return table"), "x").transform is None


def test_only_text_that_names_the_batch_form_is_parsed_and_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed: list[str] = []

    def parse(code: str) -> ast.Module:
        parsed.append(code)
        return ast.parse(code)

    monkeypatch.setattr(code_check, "ast", SimpleNamespace(**vars(ast) | {"parse": parse}))
    many = batch("return table  # parsed once")
    for _ in range(3):
        assert not Plan(pipeline("x = 1\n" * 22_000 + batch("return table"))).takes_tables
        assert not Plan(pipeline(single("return event"))).takes_tables
        assert Plan(pipeline(many)).takes_tables
    assert parsed == [many]


def test_a_filter_is_counted_and_noted() -> None:
    keep = "return table.filter(pc.less(table['id'], 2))"
    result = chained(given_pipeline(batch(keep)), [event(n) for n in range(5)])
    assert total(result, "transformation") == {"in_first": 5, "passed": 2, "out": 2, "filtered": 3}
    assert result.mapped["p1", "order", "filtered"].ids == ["e2", "e3", "e4"]


def test_fields_with_names_of_other_columns_are_in_the_rest_and_come_back() -> None:
    for policy in ("strict", "ignore"):
        made = pipeline(batch("return table"), policy=policy, _op="string", _row="json", n="int64")
        result = chained(made, [event(1, {"id": 1, "_op": "mine", "_row": [2**70], "n": 1})])
        assert faults(result) == []
        [row] = rows(result)
        assert (row["_op"], row["_row"], row["_waybill_op"]) == ("mine", f"[{2**70}]", "upsert")


def test_what_is_flattened_and_arrays_of_child_tables_are_json_in_the_table() -> None:
    columns = (
        Column(name="id", type="int64", nullable=False),
        Column(name="city", type="string", source="address.city"),
        Column(name="x", type="int64", source="a\\.b"),
    )
    child = ChildTable(name="items", source="items", columns=(Column(name="sku", type="string"),))
    spec = TableSpec(
        schema_name="s", name="orders", columns=columns, key=("id",), children=(child,)
    )
    declared = EventDeclaration(name="order", key=("id",), table=spec, nested="flatten")
    data = {"id": 1, "address": {"city": "Bonn"}, "a.b": 7, "items": [{"sku": "x"}, {"sku": None}]}
    types = {"id": "int64", "address": "json", "a.b": "int64", "items": "json"}
    for code in (batch("return table"), single("return event")):
        made = pipeline(code).model_copy(update={"events": {"order": declared}})
        assert Plan(made).types("order") == types
        result = chained(made, [event(1, data), event(2, data | {"id": 2, "address": 5})])
        assert faults(result) == [(1, "mapping", "unknown_column")]
        [row] = rows(result)
        assert (row["city"], row["x"]) == ("Bonn", 7)
        assert row["_waybill_items_items"] == [{"sku": "x"}, {"sku": None}]


def test_a_field_that_two_columns_read_has_a_type_that_holds_what_both_take() -> None:
    def types(*kinds: str) -> str:
        columns = [Column(name="id", type="int64", nullable=False)]
        columns += [Column(name=f"c{n}", type=kind, source="v") for n, kind in enumerate(kinds)]
        spec = TableSpec(schema_name="s", name="orders", columns=tuple(columns), key=("id",))
        return types_of(EventDeclaration(name="order", key=("id",), table=spec), {})["v"]

    assert types("int32", "int64") == "int64"
    assert types("int64", "decimal(8,2)") == "decimal(21,2)"
    assert types("string", "timestamp") == "json"
    assert types("json", "json") == "json"


def test_the_example_of_the_documentation_runs() -> None:
    page = (Path(__file__).parents[3] / "docs" / "pipelines.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(import pyarrow as pa\n.*?)```", page, re.DOTALL)
    made = pipeline(code, amount="decimal(8,2)", doubled="decimal(8,2)", test="bool")
    made_of_test = made.events["order"].table
    columns = tuple(column for column in made_of_test.columns if column.name != "test")
    table = made_of_test.model_copy(update={"columns": columns})
    declared = made.events["order"].model_copy(update={"table": table})
    source = made.source.model_copy(update={"columns": {"test": "bool"}})
    made = made.model_copy(update={"events": {"order": declared}, "source": source})
    amounts = [("1.50", False), ("-1", None), ("2", True), (None, None)]
    data = [{"id": n, "amount": a, "test": t} for n, (a, t) in enumerate(amounts)]
    result = chained(made, [event(n, one) for n, one in enumerate(data)])
    assert [(f.offset, f.fault.code, f.fault.message) for f in result.failures] == [
        (1, "record_invalid", "a negative amount")
    ]
    assert {row["id"]: row["doubled"] for row in rows(result)} == {0: Decimal("3.00"), 3: None}
    assert result.mapped["p1", "order", "filtered"].ids == ["e2"]


def test_both_forms_of_the_benchmark_make_the_same_rows() -> None:
    kinds = {"number": "int64", "customer": "string", "amount": "float64", "currency": "string"}
    kinds |= {"status": "string", "placed_at": "timestamp", "cents": "int64"}
    data = [
        {"id": n, "number": n, "customer": f"c{n}", "amount": n / 100, "currency": "EUR",
         "status": "placed", "placed_at": "2026-03-01T12:30:45Z", "channel": "web"}
        for n in range(300)
    ]  # fmt: skip
    events = [event(n, one) for n, one in enumerate(data)]
    one, many = (told(chained(pipeline(code, **kinds), events)) for code in (CODE, BATCH_CODE))
    assert many == one
    assert len(one[0]) == 300
