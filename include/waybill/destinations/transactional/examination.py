"""All that loads need, tried on a table of its own that is dropped at the end."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress

import pyarrow as pa

from waybill.destinations.batch import batches_of
from waybill.destinations.drivers import WarehouseError
from waybill.destinations.examination import Step, run_steps, saying
from waybill.destinations.merging import quoted
from waybill.destinations.model import Commit, Finding, Rows
from waybill.destinations.specs import with_children
from waybill.destinations.transactional.books import WarehouseBooks
from waybill.destinations.transactional.dialect import WORKING_PREFIX
from waybill.destinations.transactional.engine import Engine
from waybill.destinations.transactional.session import WarehouseSession
from waybill.destinations.transactional.table_load import TableLoad
from waybill.destinations.transactional.tables import Table
from waybill.destinations.transactional.warehouse_tables import creation
from waybill.errors import WaybillError
from waybill.pipelines import Column, TableSpec


def examine(
    engine: Engine, check: Callable[[], None], make_books: Callable[[], None], schema_name: str
) -> list[Finding]:
    """Try each step, in order; the first that fails ends it."""
    spec = _own_table(schema_name)
    findings = run_steps(
        [
            ("connect", saying("it answers", check)),
            ("make Waybill's own tables", saying("they are in schema waybill", make_books)),
            (
                "create a table",
                saying(f"in schema {schema_name}", lambda: engine.ensure([spec])),
            ),
            (
                "load and merge rows",
                saying("two rows, then one again", lambda: _load(engine, spec)),
            ),
            ("drop the table", saying("nothing is left of it", lambda: _drop(engine, spec))),
        ]
    )
    if [finding.step for finding in findings if not finding.ok] == ["load and merge rows"]:
        with suppress(WaybillError):  # the table is there
            _drop(engine, spec)
    return findings


def dry_run(engine: Engine, check: Callable[[], None], specs: Sequence[TableSpec]) -> list[Finding]:
    """Try each step, in order, in one transaction that is rolled back; the first failure ends it.

    Args:
        engine: with its session.
        check: asks for an answer.
        specs: the tables of a pipeline, each once.
    """
    findings = run_steps([("connect", saying("it answers", check))])
    if not findings[-1].ok:
        return findings
    steps: list[Step] = [
        (
            "make Waybill's own tables",
            saying("schema waybill takes them", lambda: engine.books.create(engine.session)),
        )
    ]
    for schema_name in sorted({spec.schema_name for spec in specs}):
        steps += _own_steps(engine, _own_table(schema_name))
    shown = ", ".join(f"{spec.schema_name}.{spec.name}" for spec in specs)
    steps += [
        (
            "bring the pipeline's tables to their declarations",
            saying(shown, lambda: engine.ensure(specs)),
        ),
        ("write to the pipeline's tables", saying(shown, lambda: _write(engine, specs))),
    ]
    with engine.session.rolled_back():
        return findings + run_steps(steps)


def _own_table(schema_name: str) -> TableSpec:
    return TableSpec(
        schema_name=schema_name,
        name=f"waybill_examined_{secrets.token_hex(4)}",
        columns=(
            Column(name="id", type="int64", nullable=False),
            Column(name="words", type="string"),
        ),
        key=("id",),
    )


def _own_steps(engine: Engine, spec: TableSpec) -> list[Step]:
    return [
        (
            f"create a table in schema {spec.schema_name}",
            saying("a table of its own", lambda: engine.ensure([spec])),
        ),
        (
            f"load and merge rows in schema {spec.schema_name}",
            saying("two rows, then one again", lambda: _load(engine, spec)),
        ),
        (
            f"drop the table in schema {spec.schema_name}",
            saying("it is gone", lambda: _drop(engine, spec)),
        ),
    ]


def _write(engine: Engine, specs: Sequence[TableSpec]) -> None:
    """Insert, update and delete no row of each table, which asks for the rights to do so."""
    with engine.session.transaction():
        for spec in (table for one in specs for table in with_children(one)):
            table = f"{quoted(spec.schema_name)}.{quoted(spec.name)}"
            columns = ", ".join(quoted(column.name) for column in spec.columns)
            key = quoted(spec.key[0])
            engine.session.execute(
                f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {table} WHERE false"
            )
            engine.session.execute(f"UPDATE {table} SET {key} = {key} WHERE false")
            engine.session.execute(f"DELETE FROM {table} WHERE false")


def _load(engine: Engine, spec: TableSpec) -> None:
    for number in (1, 2):
        (batch,) = batches_of([Commit(number, (_rows(spec, number),))])
        with engine.session.transaction():
            engine.take_tables([batch])
            label = f"{spec.name.removeprefix('waybill_')}_{number}"
            load = TableLoad(engine, batch, Table(spec), label)
            load.stage()
            load.run()
            for error in load.refused.values():
                raise error


def _drop(engine: Engine, spec: TableSpec) -> None:
    with engine.session.transaction():
        engine.drop(spec)


def _rows(spec: TableSpec, version: int) -> Rows:
    ids = [1, 2] if version == 1 else [1]
    count = len(ids)
    columns = {
        "id": pa.array(ids, pa.int64()),
        "words": pa.array(["examined"] * count),
        "_waybill_id": pa.array([f"examined/{one}/{version}" for one in ids]),
        "_waybill_key": pa.array([f"[{one}]" for one in ids]),
        "_waybill_source_version": pa.repeat(pa.scalar(version, pa.int64()), count),
        "_waybill_intake_version": pa.repeat(pa.scalar(version, pa.int64()), count),
        "_waybill_intake_minute": pa.repeat(pa.scalar(0, pa.int32()), count),
        "_waybill_op": pa.array(["upsert"] * count),
        "_waybill_replayed": pa.repeat(pa.scalar(value=False), count),
    }
    return Rows("examined", "examined", spec, pa.table(columns))


def examine_warehouse(
    session: WarehouseSession, books: WarehouseBooks, schema_name: str
) -> list[Finding]:
    """Try all that loads need; the first step that fails ends it. Leaves the books behind."""
    title = session.dialect.title
    spec = TableSpec(
        schema_name=schema_name,
        name=f"waybill_check_{uuid.uuid4().hex[:12]}",
        columns=(Column(name="id", type="int64", nullable=False),),
        key=("id",),
    )
    return run_steps(
        [
            ("connect", saying(f"{title} answers; this kind is experimental", session.refresh)),
            (
                "make the books",
                saying("schema waybill and its tables are there", lambda: books.create(session)),
            ),
            (
                "create a table",
                saying(f"schema {schema_name} takes tables", lambda: _create(session, spec)),
            ),
            ("load in bulk", saying("a working table was filled", lambda: _fill(session, spec))),
            (
                "merge in a transaction",
                saying("a row was merged and rolled back", lambda: _merge(session, spec)),
            ),
            (
                "drop a table",
                saying("nothing was left behind", lambda: _drop_by_name(session, spec)),
            ),
        ],
        session.speaking,
    )


def _create(session: WarehouseSession, spec: TableSpec) -> None:
    for statement in creation(session.dialect, spec):
        session.execute_native(statement)


def _fill(session: WarehouseSession, spec: TableSpec) -> None:
    rows = pa.table({"id": pa.array([1], pa.int64())})
    name = session.stage(f"{WORKING_PREFIX}{spec.name}", [("id", "int64")], rows)
    session.execute_native(f"DROP TABLE IF EXISTS {session.dialect.working(name)}")


def _merge(session: WarehouseSession, spec: TableSpec) -> None:
    table = f"{quoted(spec.schema_name)}.{quoted(spec.name)}"
    session.execute_native(session.begin)
    try:
        session.lock()
        session.execute(f"DELETE FROM {table} WHERE id = 1")
    finally:
        session.abandon()


def _drop_by_name(session: WarehouseSession, spec: TableSpec) -> None:
    try:
        session.execute_native(f"DROP TABLE {session.dialect.table(spec.schema_name, spec.name)}")
    except WarehouseError as error:
        raise WarehouseError(
            f"{error.message}; table {spec.schema_name}.{spec.name} stays: drop it by hand",
            error.code,
            error.state,
        ) from error
