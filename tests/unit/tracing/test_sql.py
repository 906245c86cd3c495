"""The statements and the DDL, word for word: what Athena gets is seen nowhere else."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from waybill.tracing.sql import minute_statement, projections, trails_statement

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
