"""Made-up orders for the tests of the destinations: events with versions, and what must become of them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

import psycopg
import pyarrow as pa

from waybill.destinations import Commit, LoadOutcome, Rows
from waybill.pipelines import Column, TableSpec

_DATABASES: dict[int, str] = {}


def clean_database(postgres) -> str:
    """Return the DSN of a database without schemas; one a server, for a hundred cost a minute."""
    if id(postgres) not in _DATABASES:
        _DATABASES[id(postgres)] = postgres.database("destination", keep=True)
    dsn = _DATABASES[id(postgres)]
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        for schema in ("shop", "waybill"):
            connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    return dsn


PIPELINE = "shop-orders"
EVENT = "order"
MINUTE = 29_450_000


def spec_of(name: str = "orders", *columns: Column, schema: str = "shop") -> TableSpec:
    own = columns or (
        Column(name="id", type="int64", nullable=False),
        Column(name="what", type="string"),
        Column(name="price", type="decimal(10,2)"),
    )
    return TableSpec(schema_name=schema, name=name, columns=own, key=("id",))


SPEC = spec_of()


@dataclass(frozen=True)
class Order:
    """One event of an order."""

    id: int
    source: int
    intake: int
    what: str | None = "thing"
    price: Decimal | None = None
    op: str = "upsert"
    replayed: bool = False
    minute: int = MINUTE
    replay_id: str | None = None

    @property
    def event_id(self) -> str:
        return f"{self.id}/{self.source}/{self.intake}"

    @property
    def version(self) -> tuple[int, int]:
        return self.source, self.intake


def rows_of(orders: Sequence[Order], spec: TableSpec = SPEC, **columns: list) -> Rows:
    """Return orders as the mapping stages them; ``columns`` replace or add columns."""
    values = {
        "id": [o.id for o in orders],
        "what": [o.what for o in orders],
        "price": [o.price for o in orders],
        **columns,
    }
    own = [pa.array(values[f.name], f.type) for f in spec.arrow_schema()]
    system = {
        "_waybill_id": pa.array([o.event_id for o in orders], pa.string()),
        "_waybill_key": pa.array([f"[{o.id}]" for o in orders], pa.string()),
        "_waybill_source_version": pa.array([o.source for o in orders], pa.int64()),
        "_waybill_intake_version": pa.array([o.intake for o in orders], pa.int64()),
        "_waybill_intake_minute": pa.array([o.minute for o in orders], pa.int32()),
        "_waybill_op": pa.array([o.op for o in orders], pa.string()),
        "_waybill_replayed": pa.array([o.replayed for o in orders], pa.bool_()),
        "_waybill_replay": pa.array([o.replay_id for o in orders], pa.string()),
        "_waybill_attempt": pa.array([int(o.replayed) for o in orders], pa.int32()),
    }
    names = [f.name for f in spec.arrow_schema()]
    data = pa.table([*own, *system.values()], names=[*names, *system])
    return Rows(PIPELINE, EVENT, spec, data)


def commit_of(number: int, orders: Sequence[Order], spec: TableSpec = SPEC) -> Commit:
    return Commit(number, (rows_of(orders, spec),) if orders else ())


def totals(outcomes: Iterable[LoadOutcome]) -> dict[str, int]:
    """Sum the counts; checks that they add up."""
    names = ("in_first", "in_replayed", "delivered", "superseded", "duplicate", "parked")
    found = dict.fromkeys(names, 0)
    for outcome in outcomes:
        for count in outcome.counts:
            for name in names:
                found[name] += getattr(count, name)
            came = count.in_first + count.in_replayed
            assert came == (count.delivered + count.superseded + count.duplicate + count.parked)
    return found


def expected(orders: Iterable[Order]) -> tuple[dict[int, Order], dict[int, Order]]:
    """Return what must be at the end: (rows by key, tombstones by key)."""
    best: dict[int, Order] = {}
    for order in orders:
        kept = best.get(order.id)
        if kept is None or order.version > kept.version:
            best[order.id] = order
    rows = {key: o for key, o in best.items() if o.op == "upsert"}
    return rows, {key: o for key, o in best.items() if o.op == "delete"}


def some_orders(draw: random.Random, *, keys: int, events: int) -> list[Order]:
    """Return events of a few keys: equal source versions, deletes, same contents, exact copies.

    Contents follow from (key, source, intake), so that a copy of an event is a copy.
    """
    found = []
    for _ in range(events):
        if found and draw.random() < 0.15:
            found.append(replace(draw.choice(found), replayed=draw.random() < 0.5))
            continue
        key, source, intake = draw.randrange(keys), draw.randrange(3), draw.randrange(6)
        kind = random.Random(f"{key}/{source}/{intake}")
        what = kind.choice(["red", "green", None])
        op = "delete" if kind.random() < 0.25 else "upsert"
        price = None if op == "delete" else Decimal(source)
        found.append(Order(key, source, intake, None if op == "delete" else what, price, op))
    return found


def cut(draw: random.Random, items: Sequence[Order]) -> list[list[Order]]:
    """Return the items in consecutive parts of chance lengths."""
    parts, at = [], 0
    while at < len(items):
        size = draw.randint(1, 4)
        parts.append(list(items[at : at + size]))
        at += size
    return parts
