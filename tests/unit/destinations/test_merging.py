"""The statements as rendered, and run in another dialect's engine: one definition, two engines."""

from __future__ import annotations

import random

import pytest
import sqlglot
from tests.unit.destinations.orders import Order, cut, expected, some_orders, spec_of

from waybill.destinations.merging import MergeStatements, literal, quoted
from waybill.pipelines import Column

SPEC = spec_of("t", Column(name="id", type="int64"), Column(name='a "b"', type="string"))
DIALECTS = ("postgres", "duckdb", "snowflake", "bigquery", "databricks", "redshift")


def test_the_merge_for_postgresql_is_this():
    merge = MergeStatements(SPEC, "stage", "verdict").merge(judged=False)
    newer = (
        "(t._waybill_source_version IS NULL OR "
        "s._waybill_source_version > t._waybill_source_version OR "
        "(s._waybill_source_version = t._waybill_source_version AND "
        "s._waybill_intake_version > t._waybill_intake_version))"
    )
    versions = ", ".join(
        f'"{name}" = s."{name}"'
        for name in ("_waybill_id", "_waybill_source_version", "_waybill_intake_version")
    )
    assert merge == (
        'MERGE INTO "shop"."t" AS t USING (SELECT s.*, FALSE AS _waybill_touch FROM "stage" AS s) AS s '
        'ON t."id" = s."id" '
        f"WHEN MATCHED AND s._waybill_op = 'delete' AND {newer} THEN DELETE "
        f"WHEN MATCHED AND s._waybill_touch AND {newer} THEN UPDATE SET {versions} "
        f'WHEN MATCHED AND {newer} THEN UPDATE SET "a ""b""" = s."a ""b""", {versions}, '
        "_waybill_loaded_at = CURRENT_TIMESTAMP "
        "WHEN NOT MATCHED AND s._waybill_op = 'upsert' THEN INSERT "
        '("id", "a ""b""", "_waybill_id", "_waybill_source_version", "_waybill_intake_version", '
        '_waybill_loaded_at) VALUES (s."id", s."a ""b""", s."_waybill_id", '
        's."_waybill_source_version", s."_waybill_intake_version", CURRENT_TIMESTAMP)'
    )


def every_statement(dialect):
    made = MergeStatements(SPEC, "stage", "verdict", dialect)
    return [
        made.find_losers("losers"),
        made.judge_losers("losers"),
        made.find_met("met"),
        made.judge_met("met"),
        made.merge(judged=True),
        made.merge(judged=False),
        made.reopen("other"),
        made.forget_verdicts(),
    ]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_reads_what_is_rendered_for_it(dialect):
    for statement in every_statement(dialect):
        again = sqlglot.parse_one(statement, read=dialect).sql(dialect)
        assert again == statement


def test_names_and_texts_are_quoted():
    assert quoted('a"b') == '"a""b"'
    assert literal("it's \\ 'so'") == "'it''s \\ ''so'''"


class DuckLoad:
    """The same judging and merging on DuckDB, without tombstones and refusals."""

    def __init__(self):
        import duckdb

        self.run = duckdb.connect().execute
        self.run("CREATE SCHEMA shop")
        self.run(
            "CREATE TABLE shop.t (id BIGINT PRIMARY KEY, what TEXT, _waybill_id TEXT, "
            "_waybill_source_version BIGINT, _waybill_intake_version BIGINT, "
            "_waybill_loaded_at TIMESTAMPTZ)"
        )
        spec = spec_of("t", Column(name="id", type="int64"), Column(name="what", type="string"))
        self.statements = MergeStatements(spec, "stage", "verdict", "duckdb")

    def load(self, orders):
        run, made = self.run, self.statements
        run(
            "CREATE OR REPLACE TEMP TABLE stage (_waybill_n BIGINT, id BIGINT, what TEXT, "
            "_waybill_id TEXT, _waybill_source_version BIGINT, _waybill_intake_version BIGINT, "
            "_waybill_op TEXT)"
        )
        run(
            "CREATE OR REPLACE TEMP TABLE verdict (n BIGINT, outcome INT, winner BIGINT, touch BOOL)"
        )
        run("CREATE OR REPLACE TEMP TABLE losers (n BIGINT, winner BIGINT, prev BIGINT)")
        run("CREATE OR REPLACE TEMP TABLE met (n BIGINT)")
        for n, o in enumerate(orders):
            row = [n, o.id, o.what, o.event_id, o.source, o.intake, o.op]
            run("INSERT INTO stage VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        run(made.find_losers("losers"))
        run(made.judge_losers("losers"))
        run(made.find_met("met"))
        run(made.judge_met("met"))
        run(made.merge(judged=True))

    def rows(self):
        found = self.run("SELECT id, what, _waybill_id FROM shop.t").fetchall()
        return {row[0]: row[1:] for row in found}


@pytest.mark.parametrize("seed", range(5))
def test_another_engine_ends_in_the_same_table_by_the_same_definition(seed):
    draw = random.Random(seed)
    orders = [o for o in some_orders(draw, keys=4, events=30) if o.op == "upsert"]
    engine = DuckLoad()
    for part in cut(draw, orders):
        engine.load(part)
    rows, _ = expected(orders)
    assert engine.rows() == {key: (order.what, order.event_id) for key, order in rows.items()}


def test_another_engine_deletes_by_the_same_definition():
    engine = DuckLoad()
    engine.load([Order(1, 1, 1, "a"), Order(2, 1, 1, "b")])
    engine.load([Order(1, 2, 2, None, op="delete"), Order(2, 0, 9, None, op="delete")])
    assert engine.rows() == {2: ("b", "2/1/1")}
