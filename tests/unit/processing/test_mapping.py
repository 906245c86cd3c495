"""Payloads become typed columns exactly, or a fault that names the column."""

from __future__ import annotations

import base64
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from tests.unit.processing.made import table

from waybill.events import CATALOGUE, dumps, loads
from waybill.pipelines import Column, TableSpec
from waybill.processing import map_rows

SEED = 7


def one(kind: str, value: Any) -> Any:
    """Map one value and return what its column holds, or the code of its fault."""
    batch, faults = map_rows(table(x=kind), [{"id": 1, "x": value}], policy="strict")
    if faults:
        assert batch.num_rows == 0
        assert faults[0].where == "x"
        assert faults[0].code in CATALOGUE
        return faults[0].code
    return batch.column("x")[0].as_py()


MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
FITS = [
    ("bool", True, True),
    ("bool", False, False),
    ("int32", -(2**31), -(2**31)),
    ("int32", 2**31 - 1, 2**31 - 1),
    ("int64", -(2**63), -(2**63)),
    ("int64", 2**63 - 1, 2**63 - 1),
    ("int64", 2**53 + 1, 2**53 + 1),
    ("int64", 5.0, 5),
    ("int64", Decimal("9223372036854775807"), 2**63 - 1),
    ("int64", Decimal("1E+3"), 1000),
    ("int64", Decimal("-0.00"), 0),
    ("float64", 1.5, 1.5),
    ("float64", 2, 2.0),
    ("float64", 2**60, float(2**60)),
    ("float64", -(2**53), -float(2**53)),
    ("float64", Decimal("0.1"), 0.1),
    ("float64", Decimal("1E-400"), 0.0),
    ("decimal(10,2)", "12345678.90", Decimal("12345678.90")),
    ("decimal(10,2)", 12345678, Decimal("12345678.00")),
    ("decimal(10,2)", 0.1, Decimal("0.10")),
    ("decimal(10,2)", Decimal("1.1000000"), Decimal("1.10")),
    ("decimal(38,0)", 10**38 - 1, Decimal(10**38 - 1)),
    ("decimal(38,38)", "0." + "1" * 38, Decimal("0." + "1" * 38)),
    ("decimal(5,2)", Decimal("0E-50"), Decimal("0.00")),
    ("string", "é💥", "é💥"),
    ("string", "", ""),
    ("timestamp", "2026-01-01T00:00:00Z", MOMENT),
    ("timestamp", "2026-01-01T05:30:00+05:30", MOMENT),
    ("timestamp", "2026-01-01", MOMENT),
    ("timestamp", "2026-01-01 00:00:00", MOMENT),
    ("timestamp", "2026-01-01T00:00:00.123456Z", MOMENT.replace(microsecond=123456)),
    ("timestamp", "2026-01-01T00:00:00.123456000Z", MOMENT.replace(microsecond=123456)),
    ("timestamp", MOMENT, MOMENT),
    ("timestamp", datetime(2026, 1, 1), MOMENT),
    ("timestamp", "0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
    ("timestamp", "9999-12-31T23:59:59.999999Z", datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)),
    ("date", "2026-01-31", date(2026, 1, 31)),
    ("date", date(2026, 1, 31), date(2026, 1, 31)),
    ("bytes", base64.b64encode(b"\0\xff").decode(), b"\0\xff"),
    ("bytes", b"\0\xff", b"\0\xff"),
    ("bytes", "", b""),
    ("json", {"a": [1, None, 2**70]}, '{"a":[1,null,1180591620717411303424]}'),
    ("json", "text", '"text"'),
    ("json", "\\u0000", '"\\\\u0000"'),
    ("json", False, "false"),
]
REFUSED = [
    ("bool", 1, "type_mismatch"),
    ("bool", "true", "type_mismatch"),
    ("int32", 2**31, "number_out_of_range"),
    ("int32", -(2**31) - 1, "number_out_of_range"),
    ("int64", 2**63, "number_out_of_range"),
    ("int64", 10**4000, "number_out_of_range"),
    ("int64", 10**5000, "number_out_of_range"),
    ("int64", 1e300, "number_out_of_range"),
    ("int64", Decimal("1E+999999999"), "number_out_of_range"),
    ("int64", 1.5, "type_mismatch"),
    ("int64", Decimal("1.5"), "type_mismatch"),
    ("int64", float("nan"), "type_mismatch"),
    ("int64", Decimal("NaN"), "type_mismatch"),
    ("int64", True, "type_mismatch"),
    ("int64", "5", "type_mismatch"),
    ("int32", [1], "type_mismatch"),
    ("float64", True, "type_mismatch"),
    ("float64", "1.5", "type_mismatch"),
    ("float64", 2**53 + 1, "number_out_of_range"),
    ("float64", 10**400, "number_out_of_range"),
    ("float64", Decimal("1E+400"), "number_out_of_range"),
    ("decimal(10,2)", "1.005", "precision_lost"),
    ("decimal(10,2)", 0.125, "precision_lost"),
    ("decimal(10,2)", Decimal("1E-999999"), "precision_lost"),
    ("decimal(10,2)", 10**8, "number_out_of_range"),
    ("decimal(38,0)", 10**38, "number_out_of_range"),
    ("decimal(10,2)", Decimal("1E+999999999"), "number_out_of_range"),
    ("decimal(10,2)", "NaN", "type_mismatch"),
    ("decimal(10,2)", Decimal("Infinity"), "type_mismatch"),
    ("decimal(10,2)", "1_0", "type_mismatch"),
    ("decimal(10,2)", "１", "type_mismatch"),  # noqa: RUF001 - a full-width digit is no digit
    ("decimal(10,2)", "", "type_mismatch"),
    ("decimal(10,2)", True, "type_mismatch"),
    ("string", 5, "type_mismatch"),
    ("string", True, "type_mismatch"),
    ("string", {"a": 1}, "type_mismatch"),
    ("string", "\ud800", "text_invalid"),
    ("string", "a\0b", "text_invalid"),
    ("json", {"deep": ["a\0b"]}, "text_invalid"),
    ("json", {"a\0b": 1}, "text_invalid"),
    ("json", "\ud83d", "text_invalid"),
    ("json", "\\\0", "text_invalid"),
    ("timestamp", "2026-13-01T00:00:00Z", "timestamp_invalid"),
    ("timestamp", "2026-01-01T24:00:00Z", "timestamp_invalid"),
    ("timestamp", "soon", "timestamp_invalid"),
    ("timestamp", "", "timestamp_invalid"),
    ("timestamp", "2026-01-01T00:00:00.1234567Z", "timestamp_invalid"),
    ("timestamp", "2026-01-01T00:00:00.1234567", "timestamp_invalid"),
    ("timestamp", "9999-12-31T23:59:59-12:00", "timestamp_invalid"),
    ("timestamp", "0001-01-01T00:00:00+12:00", "timestamp_invalid"),
    ("timestamp", 5, "type_mismatch"),
    ("timestamp", date(2026, 1, 1), "type_mismatch"),
    ("timestamp", "\ud800", "timestamp_invalid"),
    ("date", "2026-02-30", "timestamp_invalid"),
    ("date", "2026-01-01T00:00:00", "timestamp_invalid"),
    ("date", MOMENT, "type_mismatch"),
    ("date", 5, "type_mismatch"),
    ("bytes", "no base64!", "type_mismatch"),
    ("bytes", "é", "type_mismatch"),
    ("bytes", [1], "type_mismatch"),
    ("json", {"a": float("nan")}, "type_mismatch"),
    ("json", {1: 2}, "type_mismatch"),
    ("json", object(), "type_mismatch"),
]


@pytest.mark.parametrize(("kind", "value", "held"), FITS, ids=lambda v: str(v)[:24])
def test_a_value_that_fits_is_held_exactly(kind: str, value: Any, held: Any) -> None:
    found = one(kind, value)
    assert (type(found), found) == (type(held), held)


@pytest.mark.parametrize(
    ("kind", "value", "code"),
    REFUSED,
    ids=lambda v: "n" if isinstance(v, int) else "object" if type(v) is object else repr(v)[:24],
)
def test_a_value_that_does_not_fit_has_its_code(kind: str, value: Any, code: str) -> None:
    assert one(kind, value) == code


@pytest.mark.parametrize("kind", sorted({kind for kind, _, _ in FITS}))
def test_one_bad_value_never_changes_its_neighbours(kind: str) -> None:
    """All that fits and all that does not, in one column, in many orders."""
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    cases: list[tuple[Any, Any, str | None]] = [(v, h, None) for k, v, h in FITS if k == kind]
    cases += [(v, None, code) for k, v, code in REFUSED if k == kind]
    cases += [(None, None, None)]
    for _ in range(20):
        chance.shuffle(cases)
        rows = [{"id": n, "x": value} for n, (value, _, _) in enumerate(cases)]
        batch, faults = map_rows(table(x=kind), rows, policy="strict")
        assert {n: f.code for n, f in faults.items()} == {
            n: code for n, (_, _, code) in enumerate(cases) if code
        }
        assert batch.column("x").to_pylist() == [held for _, held, code in cases if not code]
        assert batch.column("id").to_pylist() == [n for n, c in enumerate(cases) if not c[2]]


@pytest.mark.parametrize("kind", sorted({kind for kind, _, _ in FITS}))
def test_null_fits_where_it_may_and_is_a_fault_where_not(kind: str) -> None:
    assert one(kind, None) is None
    rows: list[dict[str, Any]] = [{"id": 1, "x": None}, {"id": 2}]
    batch, faults = map_rows(table(x=f"{kind}!"), rows, policy="strict")
    assert batch.num_rows == 0
    assert [(n, f.code, f.where) for n, f in sorted(faults.items())] == [
        (0, "not_null_violation", "x"),
        (1, "not_null_violation", "x"),
    ]


def test_a_null_key_has_a_code_of_its_own() -> None:
    _, faults = map_rows(table(), [{"id": None}, {}, {"id": 1}], policy="strict")
    assert {n: f.code for n, f in faults.items()} == dict.fromkeys((0, 1), "mapped_key_missing")


def test_a_nullable_key_column_takes_no_null_either() -> None:
    spec = TableSpec(
        schema_name="s", name="t", columns=(Column(name="k", type="string"),), key=("k",)
    )
    _, faults = map_rows(spec, [{"k": None}], policy="strict")
    assert faults[0].code == "mapped_key_missing"


def test_an_unknown_column_is_parked_or_left_out_as_the_policy_says() -> None:
    rows = [{"id": 1, "more": 2}, {"id": 3}]
    batch, faults = map_rows(table(), rows, policy="strict")
    assert [(n, f.code, f.where) for n, f in faults.items()] == [(0, "unknown_column", "more")]
    assert batch.to_pylist() == [{"id": 3}]
    batch, faults = map_rows(table(), rows, policy="ignore")
    assert faults == {}
    assert batch.to_pylist() == [{"id": 1}, {"id": 3}]


@pytest.mark.parametrize("payload", [None, 5, "x", [{"id": 1}], b"\xff", True])
def test_a_payload_that_is_no_object_has_no_columns(payload: Any) -> None:
    batch, faults = map_rows(table(), [payload, {"id": 1}], policy="ignore")
    assert {n: f.code for n, f in faults.items()} == {0: "not_an_object"}
    assert batch.to_pylist() == [{"id": 1}]


def test_columns_are_read_from_their_source_field_and_by_name_in_a_replay() -> None:
    spec = TableSpec(
        schema_name="s",
        name="t",
        columns=(Column(name="id", type="int64", source="Ident"), Column(name="n", type="int64")),
        key=("id",),
    )
    assert map_rows(spec, [{"Ident": 1, "n": 2}], policy="strict")[0].to_pylist() == [
        {"id": 1, "n": 2}
    ]
    batch, _ = map_rows(spec, [{"id": 1, "n": 2}], policy="strict", by_column=True)
    assert batch.to_pylist() == [{"id": 1, "n": 2}]
    assert map_rows(spec, [{"id": 1}], policy="strict")[1][0].code == "unknown_column"


def test_many_faults_of_many_rows_and_columns_are_each_named_once() -> None:
    spec = table(a="int64!", b="timestamp", c="string")
    good = {"id": 1, "a": 1, "b": "2026-01-01T00:00:00Z", "c": "x"}
    changes: list[dict[str, Any]] = [
        {},
        {"a": None},
        {"b": "x"},
        {"c": 5},
        {"a": "x", "b": "x", "c": 5, "id": None},
        {"z": 1},
        {},
        {"id": "x"},
    ]
    rows = [{**good, **change} for change in changes] * 50
    batch, faults = map_rows(spec, rows, policy="strict")
    codes = [None, "not_null_violation", "timestamp_invalid", "type_mismatch"]
    codes += ["mapped_key_missing", "unknown_column", None, "type_mismatch"]
    assert {n: f.code for n, f in faults.items()} == {
        n: code for n, code in enumerate(codes * 50) if code
    }
    assert batch.num_rows == 100


def test_no_rows_are_an_empty_batch_of_the_right_types() -> None:
    batch, faults = map_rows(table(x="decimal(5,2)"), [], policy="strict")
    assert (batch.num_rows, faults) == (0, {})
    assert batch.schema == table(x="decimal(5,2)").arrow_schema()


def test_zones_may_be_mixed_in_one_column() -> None:
    texts = ["2026-01-01T00:00:00Z", "2026-01-01T00:00:00", "2026-01-01T01:00:00+01:00", None]
    rows = [{"id": n, "x": text} for n, text in enumerate(texts)]
    batch, faults = map_rows(table(x="timestamp"), rows, policy="strict")
    assert faults == {}
    assert batch.column("x").to_pylist() == [MOMENT, MOMENT, MOMENT, None]


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError

    def __index__(self) -> int:
        raise RuntimeError

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


@pytest.mark.parametrize("kind", sorted({kind for kind, _, _ in FITS}))
def test_whatever_a_transformation_put_into_a_payload_is_at_most_a_fault(kind: str) -> None:
    deep: Any = 1
    for _ in range(900):
        deep = [deep]
    rows = [{"id": 1, "x": Hostile()}, {"id": 2, "x": deep}, {"id": 3, "x": 10**5000}, {"id": 4}]
    batch, faults = map_rows(table(x=kind), rows, policy="strict")
    assert sorted(faults) == [0, 1, 2]
    assert all(len(fault.message) < 200 for fault in faults.values())
    assert batch.column("id").to_pylist() == [4]


@pytest.mark.parametrize(
    ("kind", "value"),
    [(k, v) for k, v, _ in FITS if not isinstance(v, bytes | date)],
    ids=lambda v: str(v)[:24],
)
def test_what_fits_before_the_wire_fits_after_it(kind: str, value: Any) -> None:
    """A parked event comes back from its bytes; it must map to the same row."""
    assert one(kind, loads(dumps(value))) == one(kind, value)


def test_floats_that_are_the_shortest_text_of_a_decimal_are_that_decimal() -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    for _ in range(2_000):
        digits = f"{chance.randrange(10**9)}.{chance.randrange(10**6):06d}"
        assert one("decimal(20,6)", float(digits)) == Decimal(digits)
