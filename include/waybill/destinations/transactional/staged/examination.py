"""Trying what loads need, step by step, in words."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pyarrow as pa

from waybill.destinations.drivers import WarehouseError
from waybill.destinations.merging import quoted
from waybill.destinations.model import Finding
from waybill.destinations.transactional.staged import books
from waybill.destinations.transactional.staged.schema import creation
from waybill.destinations.transactional.staged.session import WarehouseSession
from waybill.errors import WaybillError
from waybill.pipelines import Column, TableSpec

_PREFIX = "waybill_check_"


def examine(session: WarehouseSession, schema_name: str) -> list[Finding]:
    """Try all that loads need; the first step that fails ends it. Leaves the books behind."""
    title = session.dialect.title
    spec = TableSpec(
        schema_name=schema_name,
        name=f"{_PREFIX}{uuid.uuid4().hex[:12]}",
        columns=(Column(name="id", type="int64", nullable=False),),
        key=("id",),
    )
    steps: list[tuple[str, str, Callable[[], object]]] = [
        ("connect", f"{title} answers; this kind is experimental", session.refresh),
        ("make the books", "schema waybill and its tables are there",
         lambda: books.create_books(session)),
        ("create a table", f"schema {schema_name} takes tables", lambda: _create(session, spec)),
        ("load in bulk", "a working table was filled", lambda: _fill(session, spec)),
        ("merge in a transaction", "a row was merged and rolled back",
         lambda: _merge(session, spec)),
        ("drop a table", "nothing was left behind", lambda: _drop(session, spec)),
    ]  # fmt: skip
    found: list[Finding] = []
    for step, words, action in steps:
        try:
            with session.speaking():
                action()
        except WaybillError as error:
            return [*found, Finding(step, ok=False, words=str(error))]
        found.append(Finding(step, ok=True, words=words))
    return found


def _working(spec: TableSpec) -> str:
    return f"_waybill_work_{spec.name}"


def _create(session: WarehouseSession, spec: TableSpec) -> None:
    for statement in creation(session.dialect, spec):
        session.execute(statement)


def _fill(session: WarehouseSession, spec: TableSpec) -> None:
    rows = pa.table({"id": pa.array([1], pa.int64())})
    name = session.stage(_working(spec), [("id", "int64")], rows)
    session.execute(f"DROP TABLE IF EXISTS {session.dialect.working(name)}")


def _merge(session: WarehouseSession, spec: TableSpec) -> None:
    table = f"{quoted(spec.schema_name)}.{quoted(spec.name)}"
    session.execute(session.begin)
    try:
        session.lock()
        session.perform(f"DELETE FROM {table} WHERE id = 1")
    finally:
        session.abandon()


def _drop(session: WarehouseSession, spec: TableSpec) -> None:
    try:
        session.execute(f"DROP TABLE {session.dialect.table(spec.schema_name, spec.name)}")
    except WarehouseError as error:
        raise WarehouseError(
            f"{error.message}; table {spec.schema_name}.{spec.name} stays: drop it by hand",
            error.code,
            error.state,
        ) from error
