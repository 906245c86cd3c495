"""Loads into ClickHouse, recorded from its own engine.

``python -m tests.unit.destinations.warehouses.clickhouse_scenarios``, where the package chdb is
installed, writes the recordings anew; read the difference before you keep it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.support.warehouse_wires import Fault, Recorder
from tests.unit.destinations.orders import Order, rows_of, spec_of, totals
from tests.unit.destinations.warehouses.scenarios import FOLDER, good_day, lost
from tests.unit.destinations.warehouses.standing_in import over

from waybill.destinations import Commit, CountLook, Destination
from waybill.pipelines import ChildTable, Column, TableSpec

LINES = ChildTable(name="lines", source="lines", columns=(Column(name="sku", type="string"),))


def counted(destination: Destination, spec: TableSpec | None = None) -> list[int]:
    """Return rows counted and expected."""
    return [
        number
        for one in destination.count_rows([CountLook(spec or spec_of())])
        for number in (one.counted, one.expected)
    ]


def day(destination: Destination) -> dict[str, object]:
    """A good day, and the rows at its end."""
    return good_day(destination) | {"counted": counted(destination)}


def died(destination: Destination) -> dict[str, object]:
    """A load that dies, and the next one."""
    return lost(destination) | {"counted": counted(destination)}


def beyond(destination: Destination) -> dict[str, object]:
    """A day that ClickHouse would store as another one."""
    spec = spec_of(
        "days", Column(name="id", type="int64", nullable=False), Column(name="day", type="date")
    )
    orders = [Order(1, 1, 1), Order(1, 2, 2), Order(2, 1, 1)]
    commit = Commit(1, (rows_of(orders, spec, day=[1, 500_000, None]),))
    parked: list[str] = []
    [found] = destination.load([commit], lambda rows: parked.extend(r.event_id for r in rows) or {})
    return totals([found]) | {"ids": parked, "counted": counted(destination, spec)}


def items(destination: Destination) -> dict[str, object]:
    """Items come, are replaced, and go; a soft delete stays and is revived."""
    spec = TableSpec(
        schema_name="shop", name="orders", columns=spec_of().columns, key=("id",),
        children=(LINES,), soft_delete=True,
    )  # fmt: skip

    def load(number, *orders):
        lines = [None if o[1] is None else [{"sku": s} for s in o[1]] for o in orders]
        rows = rows_of([order for order, _ in orders], spec, **{LINES.arrow_name: lines})
        return destination.load([Commit(number, (rows,))], lambda rows: {})

    found = load(1, (Order(1, 1, 1, "a"), ["x", "y"]), (Order(2, 1, 1, "b"), ["z"]))
    found += load(2, (Order(1, 2, 2, op="delete"), None), (Order(2, 1, 5, "b"), ["z"]))
    found += load(3, (Order(1, 1, 9, "late"), ["late"]))
    found += load(4, (Order(1, 3, 3, "back"), ["w"]))
    return totals(found) | {"counted": counted(destination, spec)}


def wider(destination: Destination) -> dict[str, object]:
    """A column comes, and another is widened."""
    one = Column(name="id", type="int64", nullable=False)
    narrow = spec_of("t", one, Column(name="n", type="int32"))
    wide = spec_of("t", one, Column(name="n", type="int64"), Column(name="m", type="json"))
    first = rows_of([Order(1, 1, 1)], narrow, n=[7])
    second = rows_of([Order(2, 1, 1)], wide, n=[2**40], m=["{}"])
    third = rows_of([Order(1, 1, 1)], narrow, n=[7])
    commits = [Commit(n, (rows,)) for n, rows in enumerate((first, second, third), 1)]
    return totals([o for commit in commits for o in destination.load([commit], lambda rows: {})])


_GONE = {"message": "the connection was lost", "fields": {"lost": True}}
SCENARIOS: Mapping[str, tuple[Callable[[Destination], dict[str, object]], Fault | None]] = {
    "good_day": (day, None),
    "died_before_the_intent": (died, Fault("INSERT `waybill`.`_waybill_loads`", **_GONE)),
    "died_after_the_intent": (
        died,
        Fault("INSERT `waybill`.`_waybill_loads`", after=True, **_GONE),
    ),
    "died_before_the_insert": (died, Fault("INSERT INTO `shop`", **_GONE)),
    "died_after_the_insert": (died, Fault("INSERT INTO `shop`", after=True, **_GONE)),
    "died_before_the_working_table_went": (died, Fault("DROP TABLE", **_GONE)),
    "beyond": (beyond, None),
    "items": (items, None),
    "wider": (wider, None),
}


def recording(name: str) -> Path:
    return FOLDER / "clickhouse" / f"{name}.jsonl"


def main() -> None:
    """Write all recordings."""
    from tests.support.chdb_wire import ChdbWire

    for name, (scenario, fault) in SCENARIOS.items():
        wire = ChdbWire()
        wire.fault = fault
        recorder = Recorder(wire)
        with (
            pytest.MonkeyPatch.context() as patch,
            over("clickhouse", recorder, patch) as destination,
        ):
            print(name, scenario(destination))
            held = "SELECT * EXCEPT (_waybill_loaded_at) FROM shop.orders FINAL ORDER BY id"
            if name == "items":
                print(wire.query(held).to_pylist())
                print(wire.query("SELECT id, sku, _waybill_id FROM shop.lines FINAL").to_pylist())
        recorder.write(recording(name))
        wire.close()


if __name__ == "__main__":
    main()
