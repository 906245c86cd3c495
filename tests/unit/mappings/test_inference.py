"""Types of values: exact, and with room to grow."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from waybill.events import dumps, loads
from waybill.mappings import type_of, type_of_all
from waybill.mappings.inference import proposed_type, type_needed
from waybill.pipelines import Column, TableSpec, widened
from waybill.processing.mapping import map_rows

SEED = 11


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("true", "bool"),
        ("1", "int64"),
        ("9223372036854775807", "int64"),
        ("9223372036854775808", "decimal(29,0)"),
        ("-9223372036854775809", "decimal(29,0)"),
        ("1" + "0" * 30, "decimal(31,0)"),
        ("9" * 38, "decimal(38,0)"),
        ("1" + "0" * 38, "json"),
        ("1.5", "decimal(28,9)"),
        ("12345678901234567.89", "decimal(28,9)"),  # no double is this number
        ("0.123456789012", "decimal(31,12)"),
        ("0.30000000000000004", "float64"),
        ("73.98765432109876", "float64"),
        ("1e300", "float64"),
        ("1e-20", "float64"),
        ("0.12345678901234567890123", "decimal(38,23)"),
        ("0." + "1" * 40, "json"),
        ('"text"', "string"),
        ('"2013-01-31"', "date"),
        ('"2013-02-30"', "string"),
        ('"2013-01-31T05:17:00Z"', "timestamp"),
        ('"2013-01-31t05:17:00.123456000+01:00"', "timestamp"),
        ('"2013-01-31T05:17:00.1234567Z"', "string"),
        ('"2013-01-31T05:17:00"', "string"),
        ('"0001-01-01T00:00:00+14:00"', "string"),
        ('"\uff12\uff10\uff11\uff13-01-31"', "string"),
        ("{}", "json"),
        ("[1]", "json"),
        ("null", None),
    ],
)
def test_what_json_holds(text, kind):
    value = loads(text.encode())
    assert type_of(value) == kind
    if kind is not None:
        assert fits(kind, value)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (b"x", "bytes"),
        (datetime(2013, 1, 31, tzinfo=UTC), "timestamp"),
        (date(2013, 1, 31), "date"),
        (Decimal("1.50"), "decimal(28,9)"),
        (float("nan"), "float64"),
        ((1, 2), "json"),
        ({1, 2}, None),
    ],
)
def test_what_python_holds(value, kind):
    assert type_of(value) == kind


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None, 2], "int64"),
        ([1, 1.5], "decimal(28,9)"),
        ([10**19, 0.5], "decimal(29,9)"),
        ([10**30, 0.1234567], "decimal(38,7)"),
        ([10**30, 0.123456789], "json"),
        ([5, 0.30000000000000004], "float64"),
        ([2**60, 0.30000000000000004], "decimal(36,17)"),
        ([True, 1], "json"),
        ([1, "1"], "json"),
        (["2013-01-31", "2013-01-31T00:00:00Z"], "timestamp"),
        (["2013-01-31", "n/a"], "string"),
        ([{}, 1], "json"),
        ([None, None], None),
        ([], None),
    ],
)
def test_what_holds_them_all(values, kind):
    assert type_of_all(values) == kind
    assert type_of_all(reversed(values)) == kind


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([0.25, 12.95, None], "decimal(18,2)"),
        ([1, 1.5], "decimal(18,2)"),
        ([Decimal("1.005")], "decimal(18,4)"),
        ([0.000001, 123456789.5], "decimal(18,6)"),
        ([0.000001, 1234567890.5], "decimal(28,9)"),  # no room before the point
        ([9999999999999.5], "decimal(18,2)"),
        ([99999999999999.5], "decimal(28,9)"),
        ([0.1234567], "decimal(28,9)"),
        ([1, 2], "int64"),
        ([2**63], "decimal(29,0)"),
        ([0.30000000000000004], "float64"),
        ([1.5, "x"], "json"),
        ([None], None),
    ],
)
def test_a_decimal_is_proposed_as_wide_as_what_was_seen(values, kind):
    assert proposed_type(values) == kind
    assert all(fits(kind, value) for value in values if kind and value is not None)


def fits(kind: str, value: object) -> bool:
    """Tell whether a column takes a value, and holds it exactly."""
    column = Column(name="v", type=kind, source="v")
    key = Column(name="k", type="int64", nullable=False)
    spec = TableSpec(schema_name="s", name="t", columns=(key, column), key=("k",))
    batch, faults = map_rows(spec, [{"k": 1, "v": value}], policy="strict")
    if faults:
        return False
    if kind.startswith(("int", "decimal", "float")):
        written = Decimal(repr(value)) if isinstance(value, float) else value
        return bool(batch.column(1)[0].as_py() == written or kind == "float64")
    if kind == "json":
        return loads(batch.column(1)[0].as_py().encode()) == value
    return True


def number(draw: random.Random) -> object:
    digits = "".join(draw.choices("0123456789", k=draw.randint(1, 24))).lstrip("0") or "0"
    if draw.random() < 0.6:
        digits += "." + "".join(draw.choices("0123456789", k=draw.randint(1, 20)))
    if draw.random() < 0.1:
        digits += f"e{draw.randint(-30, 30)}"
    return loads(digits.encode())


def test_an_inferred_type_holds_every_value_that_it_was_inferred_from():
    print("seed", SEED)
    draw = random.Random(SEED)
    for _ in range(400):
        values = [number(draw) for _ in range(draw.randint(1, 5))]
        kind = type_of_all(values)
        assert kind is not None
        for value in values:
            assert fits(kind, value), (kind, values)
            if kind == "float64":
                assert loads(dumps(float(value))) == value, (kind, values)


@pytest.mark.parametrize(
    ("column", "value", "needed", "wider"),
    [
        ("int32", 5, None, None),
        ("int32", 2**40, "int64", "int64"),
        ("int64", 5.0, None, None),
        ("int64", 2**63, "decimal(19,0)", "decimal(19,0)"),
        ("int64", 1.5, "decimal(2,1)", "decimal(20,1)"),
        ("decimal(10,2)", 1.005, "decimal(4,3)", "decimal(11,3)"),
        ("decimal(10,2)", 10**30, "decimal(31,0)", "decimal(33,2)"),
        ("decimal(38,9)", Decimal("0.1234567891"), "decimal(10,10)", None),
        ("date", "2013-01-31T05:17:00Z", "timestamp", "timestamp"),
        ("timestamp", "2013-01-31", None, None),
        ("string", 5, None, None),
        ("int64", "5", None, None),
        ("bool", 1, None, None),
        ("int64", True, None, None),
        ("float64", 1.5, None, None),
        ("int64", float("inf"), None, None),
    ],
)
def test_what_a_value_needs_that_its_column_lacks(column, value, needed, wider):
    assert type_needed(column, value) == needed
    if needed is not None:
        assert widened(column, needed) == wider
