import sys
from datetime import date

import pyarrow as pa
import pytest
from tests.unit.destinations.orders import Order, rows_of, spec_of
from tests.unit.destinations.warehouses.golden import DIALECTS
from tests.unit.destinations.warehouses.standing_in import KINDS, settings_of

from waybill.destinations import Commit, open_destination
from waybill.destinations.batch import batches_of
from waybill.destinations.drivers import WarehouseError
from waybill.destinations.limits import ValueLimits, beyond
from waybill.destinations.transactional.warehouse import key_texts
from waybill.destinations.transactional.warehouse_tables import WarehouseColumn, check_names, plan
from waybill.errors import InputError, RetryError, StopError
from waybill.events import CATALOGUE
from waybill.pipelines import Column, TableSpec
from waybill.settings import DestinationSettings

ID = Column(name="id", type="int64", nullable=False)


@pytest.mark.parametrize(
    ("kind", "code", "state", "words", "expected"),
    [
        ("snowflake", "000625", "57014", "has locked table", RetryError),
        ("snowflake", "000630", "57014", "statement timeout", RetryError),
        ("snowflake", "", "40P01", "Deadlock detected", RetryError),
        ("snowflake", "003001", "42501", "Insufficient privileges", InputError),
        ("snowflake", "002003", "02000", "does not exist or not authorized", InputError),
        ("snowflake", "390100", "08001", "Incorrect username or password", InputError),
        ("snowflake", "001003", "42000", "SQL compilation error: syntax error", StopError),
        ("bigquery", "rateLimitExceeded", "", "Exceeded rate limits", RetryError),
        ("bigquery", "quotaExceeded", "", "Quota exceeded", RetryError),
        ("bigquery", "invalidQuery", "", "Session has expired", RetryError),
        ("bigquery", "accessDenied", "", "Access Denied: Dataset", InputError),
        ("bigquery", "authError", "", "no credentials", InputError),
        ("bigquery", "notFound", "", "Dataset x was not found in location US", InputError),
        ("bigquery", "notFound", "", "Not found: Table", RetryError),
        ("bigquery", "invalidQuery", "", "Syntax error", StopError),
        ("redshift", "", "40001", "could not serialize", RetryError),
        ("redshift", "", "57014", "cancelled", RetryError),
        ("redshift", "", "53100", "disk full", RetryError),
        ("redshift", "", "28000", "password authentication failed", InputError),
        ("redshift", "", "42501", "permission denied", InputError),
        ("redshift", "", "XX000", "S3ServiceException:Access Denied,Status 403", InputError),
        ("redshift", "", "42601", "syntax error", StopError),
    ],
)
def test_an_engines_error_says_what_the_caller_must_do(kind, code, state, words, expected):
    error = DIALECTS[kind].errors.sorted(WarehouseError(words, code, state), "warehouse")
    assert type(error) is expected
    assert "'warehouse'" in str(error)
    assert words in str(error)
    assert expected is not InputError or "; " in str(error)


@pytest.mark.parametrize("kind", KINDS)
def test_a_connection_that_is_lost_is_tried_again(kind):
    error = DIALECTS[kind].errors.sorted(WarehouseError("reset by peer", away=True), "warehouse")
    assert type(error) is RetryError


@pytest.mark.parametrize("kind", KINDS)
def test_error_types_of_refused_rows_are_in_the_catalogue(kind):
    known = {item.code for item in CATALOGUE.values()}
    assert set(DIALECTS[kind].errors.refused.values()) <= known


def test_a_serialisation_conflict_of_redshift_is_told_by_its_words():
    said = WarehouseError("1023 DETAIL: Serializable isolation violation on table", state="XX000")
    assert type(DIALECTS["redshift"].errors.sorted(said, "w")) is RetryError


@pytest.mark.parametrize("kind", KINDS)
def test_a_driver_that_is_not_installed_is_named_with_its_command(kind, monkeypatch):
    for name in ("snowflake", "snowflake.connector", "google.cloud.bigquery", "redshift_connector"):
        monkeypatch.setitem(sys.modules, name, None)
    with open_destination("warehouse", settings_of(kind)) as destination:
        with pytest.raises(InputError, match="pip install '"):
            destination.check()


@pytest.mark.parametrize(
    ("kind", "dsn", "words"),
    [
        ("snowflake", "snowflake://u:secret@acme/db", "lacks warehouse"),
        ("snowflake", "postgresql://u:secret@acme/db?warehouse=w", "must begin with snowflake://"),
        ("snowflake", "snowflake://u:secret@acme/?warehouse=w", "path has 0 parts"),
        ("snowflake", "snowflake://u:secret@acme/db?warehouse=w&wharehouse=w", "unknown options"),
        ("bigquery", "bigquery:///x", "names no host"),
        ("redshift", "redshift://u:secret@h/db?iam_role=r", "lacks staging"),
        ("redshift", "redshift://u:secret@h/db?iam_role=r&staging=/tmp", "staging folder"),
        ("redshift", "redshift://u:secret@h:port/db", "is not a URL"),
    ],
)
def test_a_dsn_of_another_form_is_refused_without_its_secret(kind, dsn, words):
    with pytest.raises(InputError, match="docs/destinations.md") as caught:
        open_destination("warehouse", DestinationSettings(kind=kind, dsn=dsn))
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


def found(dialect, **kinds):
    return {name: WarehouseColumn(text, not_null=False) for name, text in kinds.items()}


@pytest.mark.parametrize(
    ("kind", "was", "declared", "statement"),
    [
        ("snowflake", "NUMBER(10,0)", "int64", 'ALTER COLUMN "n" SET DATA TYPE NUMBER(19, 0)'),
        ("snowflake", "NUMBER(10,2)", "decimal(12,2)", "SET DATA TYPE NUMBER(12, 2)"),
        ("bigquery", "INT64", "decimal(10,2)", "SET DATA TYPE NUMERIC(21, 2)"),
        ("bigquery", "NUMERIC(21, 2)", "decimal(25,12)", "SET DATA TYPE BIGNUMERIC(31, 12)"),
    ],
)
def test_a_column_is_widened_where_the_engine_can(kind, was, declared, statement):
    spec = spec_of("t", ID, Column(name="n", type=declared))
    changes = plan(DIALECTS[kind], spec, found(DIALECTS[kind], id=_int(kind), n=was))
    assert statement in changes[0]


def _int(kind):
    return {"snowflake": "NUMBER(19,0)", "bigquery": "INT64", "redshift": "bigint"}[kind]


@pytest.mark.parametrize(
    ("kind", "was", "declared"),
    [
        ("snowflake", "NUMBER(10,2)", "decimal(12,4)"),
        ("snowflake", "DATE", "timestamp"),
        ("bigquery", "DATE", "timestamp"),
        ("redshift", "integer", "int64"),
    ],
)
def test_where_it_cannot_the_statements_to_run_are_said(kind, was, declared):
    spec = spec_of("t", ID, Column(name="n", type=declared))
    with pytest.raises(InputError, match="does not alter a column so.*ADD COLUMN.*RENAME COLUMN"):
        plan(DIALECTS[kind], spec, found(DIALECTS[kind], id=_int(kind), n=was))


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_is_wider_than_declared_stays(kind):
    wide = {"snowflake": "NUMBER(38,2)", "bigquery": "NUMERIC(38, 2)", "redshift": "numeric(38,2)"}
    spec = spec_of("t", ID, Column(name="n", type="decimal(10,2)"))
    changes = plan(DIALECTS[kind], spec, found(DIALECTS[kind], id=_int(kind), n=wide[kind]))
    assert not [change for change in changes if '"n"' in change or "`n`" in change]


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_of_another_type_is_named(kind):
    spec = spec_of("t", ID, Column(name="n", type="bool"))
    text = {"snowflake": "TEXT", "bigquery": "STRING", "redshift": "character varying"}[kind]
    with pytest.raises(InputError, match=f"shop.t, column 'n': found {text}, expected BOOL"):
        plan(DIALECTS[kind], spec, found(DIALECTS[kind], id=_int(kind), n=text))


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("snowflake", "x" * 256, "256 bytes"),
        ("redshift", "é" * 64, "128 bytes"),
        ("bigquery", "a.b", "character '.'"),
        ("snowflake", "_waybill_x", "Waybill's own"),
        ("redshift", "", "0 bytes"),
    ],
)
def test_a_name_that_the_engine_does_not_take_is_said(kind, name, words):
    with pytest.raises(InputError, match=words):
        check_names(DIALECTS[kind], spec_of("t", ID, Column(name=name or "", type="bool")))


def test_names_that_differ_in_case_alone_are_one_where_the_engine_folds():
    spec = spec_of("t", ID, Column(name="ID", type="bool"))
    check_names(DIALECTS["snowflake"], spec)
    with pytest.raises(InputError, match="two of the column names"):
        check_names(DIALECTS["redshift"], spec)


def batch_of(kind, values):
    spec = spec_of("t", ID, Column(name="v", type=kind))
    orders = [Order(i, 1, 1) for i in range(len(values))]
    [batch] = batches_of([Commit(1, (rows_of(orders, spec, v=values),))])
    return batch


@pytest.mark.parametrize(
    ("kind", "values", "limits"),
    [
        ("string", ["ok", None, "é" * 3], ValueLimits(text_bytes=5)),
        ("string", ["ok", None, "a\0b"], ValueLimits(takes_nul=False)),
        ("bytes", [b"ok", None, b"x" * 6], ValueLimits(binary_bytes=5)),
        ("date", [0, None, 2_932_897], ValueLimits()),
        ("timestamp", [0, None, 253_402_300_800_000_000], ValueLimits()),
        ("timestamp", [0, None, -1], ValueLimits(first_day=date(1970, 1, 1))),
    ],
)
def test_values_beyond_the_limits_are_found_one_by_one(kind, values, limits):
    reasons = beyond(batch_of(kind, values), limits)
    assert list(reasons) == [2]
    assert reasons[2][0] == "destination_value_refused"


def test_the_last_value_within_the_limits_is_taken():
    values = [2_932_896, -719_162]
    assert beyond(batch_of("date", values), ValueLimits()) == {}
    assert beyond(batch_of("timestamp", [253_402_300_799_999_999]), ValueLimits()) == {}


def test_a_keys_text_outlives_the_widening_of_its_columns():
    def texts(kinds, *values):
        columns = tuple(Column(name=str(i), type=kind) for i, kind in enumerate(kinds))
        spec = TableSpec(
            schema_name="s", name="t", columns=columns, key=tuple(c.name for c in columns)
        )
        arrays = [pa.array([v], f.type) for v, f in zip(values, spec.arrow_schema(), strict=True)]
        return key_texts(spec, pa.table(arrays, schema=spec.arrow_schema())).to_pylist()

    from datetime import UTC, datetime
    from decimal import Decimal

    assert texts(["int32"], 10) == texts(["int64"], 10) == texts(["decimal(22,2)"], Decimal(10))
    assert texts(["date"], date(2026, 1, 2)) == texts(
        ["timestamp"], datetime(2026, 1, 2, tzinfo=UTC)
    )
    assert texts(["string", "string"], "a:1", "b") != texts(["string", "string"], "a", "1:b")
    assert texts(["bytes"], b"\x00\xff") == ["4:00ff"]


def test_texts_are_quoted_as_each_engine_reads_them():
    hostile = "it's \\ 'so' \n `"
    for kind, dialect in DIALECTS.items():
        import sqlglot

        tree = sqlglot.parse_one(f"SELECT {dialect.literal(hostile)}", read=dialect.sqlglot)
        assert tree.expressions[0].this == hostile, kind


def test_json_is_text_for_it_must_stay_exact():
    for dialect in DIALECTS.values():
        assert dialect.sql_type("json") == dialect.sql_type("string")
