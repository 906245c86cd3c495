"""All that loads need, tried on a table of its own that is dropped at the end."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa

from waybill.destinations.batch import batches_of
from waybill.destinations.model import Commit, Finding, Rows
from waybill.destinations.transactional.engine import Engine, Table
from waybill.destinations.transactional.table_load import TableLoad
from waybill.errors import WaybillError
from waybill.pipelines import Column, TableSpec


def examine(
    engine: Engine, check: Callable[[], None], make_books: Callable[[], None], schema_name: str
) -> list[Finding]:
    """Try each step, in order; the first that fails ends it."""
    spec = TableSpec(
        schema_name=schema_name,
        name=f"waybill_examined_{secrets.token_hex(4)}",
        columns=(
            Column(name="id", type="int64", nullable=False),
            Column(name="words", type="string"),
        ),
        key=("id",),
    )
    steps: list[tuple[str, str, Callable[[], object]]] = [
        ("connect", "it answers", check),
        ("make Waybill's own tables", "schema waybill has them", make_books),
        ("create a table", f"in schema {schema_name}", lambda: engine.ensure([spec])),
        ("load and merge rows", "two rows, then one again", lambda: _load(engine, spec)),
        ("drop the table", "nothing is left of it", lambda: _drop(engine, spec)),
    ]
    found: list[Finding] = []
    for step, words, action in steps:
        try:
            action()
        except WaybillError as error:
            found.append(Finding(step, ok=False, words=str(error)))
            break
        found.append(Finding(step, ok=True, words=words))
    if len(found) == len(steps) - 1:  # the merge failed: its table is there
        with suppress(WaybillError):
            _drop(engine, spec)
    return found


def _load(engine: Engine, spec: TableSpec) -> None:
    for number in (1, 2):
        (batch,) = batches_of([Commit(number, (_rows(spec, number),))])
        with engine.session.transaction():
            engine.take_tables([batch])
            for error in TableLoad(engine, batch, Table(spec), f"examined_{number}").run().values():
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
