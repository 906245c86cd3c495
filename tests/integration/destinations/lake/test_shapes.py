"""Lake tables follow their declarations; tables that others made are taken as they are."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pydantic import SecretStr
from tests.support.destined import Park, never_park
from tests.support.lake_warehouses import delta_bucket, delta_folder, iceberg_bucket, iceberg_folder
from tests.support.warehouses import kinds_of
from tests.unit.destinations.orders import Order, rows_of, spec_of, totals

from waybill.destinations import Commit, open_destination
from waybill.errors import InputError, RetryError
from waybill.pipelines import Column
from waybill.settings import DestinationSettings, S3Settings

pytestmark = pytest.mark.serves

ID = Column(name="id", type="int64", nullable=False)
FOLDERS = {"delta": delta_folder, "iceberg": iceberg_folder}


@pytest.fixture(params=kinds_of(FOLDERS))
def lake(request, tmp_path):
    made = FOLDERS[request.param](request, tmp_path)
    yield made
    made.close()


@pytest.fixture
def delta(request, tmp_path):
    made = delta_folder(request, tmp_path)
    yield made
    made.close()


def load(destination, number, spec, orders, park=never_park, **values):
    return destination.load([Commit(number, (rows_of(orders, spec, **values),))], park)


@pytest.mark.parametrize(
    ("narrow", "wide", "before", "after"),
    [
        ("int32", "int64", 7, 2**40),
        ("int64", "decimal(19,0)", 7, Decimal(2**40)),
        ("decimal(10,2)", "decimal(12,2)", Decimal("1.25"), Decimal("1234567890.25")),
        ("decimal(10,2)", "decimal(12,4)", Decimal("1.25"), Decimal("1.2525")),
        ("date", "timestamp", datetime.date(2026, 1, 2), datetime.datetime(2026, 1, 3, 4, tzinfo=datetime.UTC)),
    ],
)  # fmt: skip
def test_a_column_is_widened_in_place_of_its_rows_and_books(lake, narrow, wide, before, after):
    old, new = (spec_of("t", ID, Column(name="n", type=kind)) for kind in (narrow, wide))
    destination = lake.open()
    (first,) = load(destination, 1, old, [Order(1, 1, 1), Order(2, 1, 1)], n=[before, None])
    load(destination, 2, new, [Order(3, 1, 1)], n=[after])
    assert lake.types(new)["n"] == wide
    rows = {row["id"]: row["n"] for row in lake.rows(new)}
    if wide == "timestamp":
        before = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    assert rows == {1: before, 2: None, 3: after}
    (again,) = load(
        lake.open(),
        1,
        old,
        [Order(1, 1, 1), Order(2, 1, 1)],
        n=[Decimal(1) if "dec" in narrow else None, None],
    )
    assert totals([again]) == totals([first])
    (late,) = load(lake.open(), 3, old, [Order(1, 0, 5), Order(4, 1, 1)], n=[None, None])
    assert totals([late])["superseded"] == 1
    assert len(lake.rows(new)) == 4


def test_new_columns_are_added_and_dropped_ones_take_null(lake):
    strict = spec_of("t", ID, Column(name="what", type="string", nullable=False))
    destination = lake.open()
    load(destination, 1, strict, [Order(1, 1, 1)], what=["a"])
    load(
        destination,
        2,
        spec_of("t", ID, Column(name="note", type="string")),
        [Order(2, 1, 1)],
        note=["b"],
    )
    rows = {row["id"]: (row["what"], row["note"]) for row in lake.rows(strict)}
    assert rows == {1: ("a", None), 2: (None, "b")}


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (Column(name="n", type="string"), r"shop\.t, column 'n': found int64, expected string"),
        (Column(name="N", type="int64"), r"found column 'n', expected 'N'"),
        (Column(name="n", type="int64", nullable=False), "found nullable, expected NOT NULL"),
        (Column(name="more", type="int64", nullable=False), "has rows, and a new column of it"),
        (Column(name="_Waybill_x", type="int64"), "reserved"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_said_in_words(lake, column, words):
    load(lake.open(), 1, spec_of("t", ID, Column(name="n", type="int64")), [Order(1, 1, 1)], n=[1])
    with pytest.raises(InputError, match=words):
        lake.open().ensure_table(spec_of("t", ID, column))


def test_a_users_own_table_is_taken_over_and_its_rows_and_columns_give_way(delta):
    spec = spec_of()
    uri = f"{delta.settings.dsn.get_secret_value()}/shop/orders"
    theirs = pa.table({
        "id": pa.array([1, 2], pa.int64()), "what": ["old", "kept"],
        "price": pa.array([None, None], pa.decimal128(10, 2)), "mine": ["x", "y"],
    })  # fmt: skip
    DeltaTable.create(uri, theirs.schema)
    for mapped in (False, True):
        if mapped:  # no longer plain: merged by delta-rs
            DeltaTable(uri).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
        else:
            from deltalake import write_deltalake

            write_deltalake(uri, theirs, mode="append")
        n = 2 if mapped else 1
        (found,) = load(delta.open(), n, spec, [Order(1, n, n, f"v{n}"), Order(2 + n, n, n)])
        assert totals([found])["delivered"] == 2
        rows = {row["id"]: (row["what"], row["mine"]) for row in delta.rows(spec)}
        assert rows[1] == (f"v{n}", "x")
        assert rows[2] == ("kept", "y")
        assert rows[2 + n] == ("thing", None)
    (found,) = load(
        delta.open(), 3, spec, [Order(1, 2, 9, "v2"), Order(3, 5, 5, None, op="delete")]
    )
    assert found.rows["outcome"].to_pylist() == ["duplicate", "delivered"]
    assert {row["id"] for row in delta.rows(spec)} == {1, 2, 4}


def test_a_check_in_sparks_sql_parks_what_does_not_meet_it_and_null(delta):
    spec = spec_of()
    delta.check(spec, "what LIKE '___' AND id > 0")
    orders = [Order(1, 1, 1, "abc"), Order(2, 1, 1, "abcd"), Order(3, 1, 1, None)]
    park = Park()
    load(delta.open(), 1, spec, orders, park)
    assert park.codes == dict.fromkeys("23", "destination_check_violation")
    assert [row["id"] for row in delta.rows(spec)] == [1]


def test_hostile_column_names_need_column_mapping_where_the_table_is_there(delta):
    load(delta.open(), 1, spec_of("t", ID), [Order(1, 1, 1)])
    wild = spec_of("t", ID, Column(name="a b", type="string"))
    with pytest.raises(InputError, match=r"\['a b'\] have characters that Delta takes only"):
        delta.open().ensure_table(wild)


def test_a_store_that_is_away_is_waited_for_and_wrong_keys_are_said(request, tmp_path):
    for make in (delta_bucket, iceberg_bucket):
        lake = make(request, tmp_path)
        wrong = lake.s3.model_copy(update={"secret_key": SecretStr("wrong")})
        spec = spec_of()
        with open_destination("warehouse", lake.settings, wrong) as destination:
            with pytest.raises(InputError, match="does not allow it; grant"):
                load(destination, 1, spec, [Order(1, 1, 1)])
            last = destination.examine("shop")[-1]
            assert (last.ok, "does not allow it" in last.words) == (False, True)
        lake.close()


def test_a_store_that_does_not_answer_is_waited_for(tmp_path):
    keys = {"access_key": SecretStr("a"), "secret_key": SecretStr("b")}
    away = S3Settings(endpoint_url="http://127.0.0.1:9", **keys)
    settings = DestinationSettings(kind="delta", dsn="s3://nowhere/lake")
    with open_destination("warehouse", settings, away) as destination:
        with pytest.raises(RetryError, match="did not answer"):
            destination.check()


def test_settings_that_cannot_be_right_are_refused():
    for kind, dsn, options, words in (
        ("delta", "gs://x/y", {}, "dsn must be a folder or look like s3"),
        ("iceberg", "s3://b/x", {}, "need options.catalog"),
        ("iceberg", "s3://b/x", {"catalog": "mysql://x"}, "options.catalog must look like"),
        ("delta", "s3://", {}, "dsn must look like s3://bucket"),
    ):
        settings = DestinationSettings(kind=kind, dsn=dsn, options=options)
        with pytest.raises(InputError, match=words):
            open_destination("warehouse", settings)


def test_files_that_somebody_removed_are_said_in_words(delta, tmp_path):
    spec, destination = spec_of(), delta.open()
    load(destination, 1, spec, [Order(1, 1, 1)])
    gone = [path for path in tmp_path.rglob("orders/*.parquet")]
    assert gone
    for path in gone:
        path.unlink()
    with pytest.raises(RetryError) as raised:
        load(destination, 2, spec, [Order(1, 2, 2)])
    assert "lacks a table or a file" in str(raised.value)
    assert "\x1b" not in str(raised.value)
