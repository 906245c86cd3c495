"""The statements and the DDL, word for word: what Athena gets is seen nowhere else."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlglot
from tests.support.memory_objects import MemoryObjects

from waybill.errors import InputError
from waybill.settings import Settings
from waybill.storage import ObjectInfo
from waybill.tracing.sql import (
    minute_statement,
    projections,
    table_statements,
    table_updates,
    trails_statement,
)

GOLDEN = Path(__file__).parent / "golden"
FROM = datetime(2026, 1, 31, 23, 5, tzinfo=UTC)
TO = datetime(2026, 2, 1, 0, 10, tzinfo=UTC)

STATEMENTS = {
    "trail": trails_statement("athena", ["e"], [7, 128], None, None),
    "trail_of_a_time": trails_statement("athena", ["e"], [7, 128], FROM, TO),
    "trail_since": trails_statement("athena", ["e"], [7, 128], FROM, None),
    "trails": trails_statement("athena", ["e", "f"], [7, 9, 128], None, TO),
    "minute": minute_statement("athena", ("p", "n"), 5, (FROM, TO)),
    "minute_while_compacting": minute_statement("athena", ("p", "n"), 5, (FROM, TO), ["run"]),
    "trail_of_a_time.duckdb": trails_statement("duckdb", ["e"], [7, 128], FROM, TO),
    "trails.duckdb": trails_statement("duckdb", ["e", "f"], [7, 9, 128], None, TO),
    "minute.duckdb": minute_statement("duckdb", ("p", "n"), 5, (FROM, TO)),
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_the_statement_is_this(name: str) -> None:
    assert STATEMENTS[name].sql + "\n" == (GOLDEN / f"{name}.sql").read_text()
    assert STATEMENTS[name].sql.count("?") == len(STATEMENTS[name].values) + ("duckdb" in name)


@pytest.mark.parametrize("number", [0, 1])
def test_the_ddl_is_this(number: int) -> None:
    table = projections("waybill", buckets=128, since_day="2026-01-01")[number]
    assert table.ddl("waybill") + "\n" == (GOLDEN / f"{table.table}.sql").read_text()


class NoTraces(MemoryObjects):
    def list(self, prefix: str) -> list[ObjectInfo]:
        assert not self.bodies, prefix
        return []


@pytest.mark.parametrize("number", [0, 1])
def test_an_update_sets_the_very_properties_of_the_ddl_and_is_a_statement(number: int) -> None:
    table = projections("waybill", buckets=128, since_day="2026-01-01")[number]
    made, updated = table.ddl("waybill"), table.update("waybill")
    assert made.partition("TBLPROPERTIES")[2] == updated.partition("TBLPROPERTIES")[2]
    assert updated.startswith(f"ALTER TABLE `waybill`.`{table.table}` SET TBLPROPERTIES (")
    for text in (made, updated):
        sqlglot.parse_one(text, read="athena")  # else an error


def test_both_tables_are_made_and_updated_in_this_order() -> None:
    store, settings = NoTraces(), Settings(_env_file=None)
    tables = projections("waybill", buckets=128, since_day=f"{datetime.now(UTC):%Y-%m-%d}")
    each = [(table.ddl("waybill"), table.update("waybill")) for table in tables]
    assert table_updates(settings, store) == [*each[0], *each[1]]
    assert table_statements(settings, store) == [each[0][0], each[1][0]]


@pytest.mark.parametrize("name", ["a`b", "a' OR '1", "{{ 7 * 7 }}", "a\nb", "a b", "", "ü", "a;b"])
@pytest.mark.parametrize(
    ("section", "key", "words"),
    [("traces", "athena_database", "TRACES__ATHENA_DATABASE"), ("s3", "bucket", "S3__BUCKET")],
)
def test_a_name_that_could_end_its_quotes_is_refused_by_its_setting(
    section: str, key: str, words: str, name: str
) -> None:
    settings = Settings(_env_file=None)
    changed = getattr(settings, section).model_copy(update={key: name})
    with pytest.raises(InputError, match=words):
        table_updates(settings.model_copy(update={section: changed}), NoTraces())
