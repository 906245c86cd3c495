"""Loads on good days and bad ones: run on an engine to be recorded, and over the recordings.

``python -m tests.unit.destinations.warehouses.scenarios`` writes the recordings anew, with DuckDB
standing in for each warehouse; read the difference before you keep it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.support.warehouse_wires import DuckWire, Fault, Recorder
from tests.unit.destinations.orders import Order, commit_of, rows_of, spec_of, totals
from tests.unit.destinations.warehouses.standing_in import KINDS, over

from waybill.destinations import Commit, Destination
from waybill.errors import WaybillError
from waybill.pipelines import Column

FOLDER = Path(__file__).parent / "recordings"
CONFLICTS = {
    "snowflake": {"code": 625, "state": "57014"},
    "bigquery": {"reason": "invalidQuery"},
    "redshift": {"state": "XX000"},
}
_WORDS = {
    "snowflake": "Statement 'x' has locked table '_WAYBILL_LOCKS' in transaction 1 and this lock has "
    "not yet been released.",
    "bigquery": "Transaction is aborted due to concurrent update against table waybill._waybill_locks",
    "redshift": "1023 DETAIL: Serializable isolation violation on table - 100073",
}
_LOCKING = {"redshift": "LOCK"}
PARKED = {"key": "parked/1"}
SPEC = spec_of()

FIRST = [
    Order(1, 1, 1, "a"),
    Order(2, 1, 1, "b"),
    Order(2, 2, 2, "c"),
    Order(3, 1, 1, "it's \\ %s"),
]
SECOND = [Order(1, 2, 3, None, op="delete"), Order(2, 1, 9, "old"), Order(3, 1, 4, "it's \\ %s")]
THIRD = [Order(1, 1, 8, "late"), Order(1, 3, 9, "back")]


def park(refused):
    return PARKED | {"ids": [row.event_id for row in refused]}


def said(action: Callable[[], object]) -> str:
    """Return the name of the error that is raised, with its words."""
    try:
        action()
    except WaybillError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def good_day(destination: Destination) -> dict[str, object]:
    """Load three commits in two loads, then all again, as another process would."""
    commits = [commit_of(1, FIRST), commit_of(2, SECOND), commit_of(3, THIRD)]
    found = destination.load(commits[:2], park)
    found += destination.load(commits[2:], park)
    again = destination.load(commits, park)
    assert [o.counts for o in again] == [o.counts for o in found]
    assert [o.rows for o in again] == [None] * 3
    return totals(found)


def refused_rows(destination: Destination) -> dict[str, object]:
    """Load a row that no type holds, and one that the table's CHECK refuses; both have losers."""
    spec = spec_of(
        "days", Column(name="id", type="int64", nullable=False), Column(name="day", type="date")
    )
    orders = [Order(1, 1, 1), Order(1, 2, 2), Order(2, 1, 1), Order(2, 2, 2), Order(3, 1, 1)]
    days = [1, 5_000_000, 2, 13, 3]
    commit = Commit(1, (rows_of(orders, spec, day=days),))
    [found] = destination.load([commit], park)
    return totals([found]) | {"parked": found.parked}


def lost(destination: Destination) -> dict[str, object]:
    """Lose the connection at COMMIT, then load again."""
    first = said(lambda: destination.load([commit_of(1, FIRST)], park))
    return totals(destination.load([commit_of(1, FIRST)], park)) | {"said": first}


def conflict(destination: Destination) -> dict[str, object]:
    """Meet another load at the lock, then load again."""
    return lost(destination)


def overtaken(destination: Destination) -> dict[str, object]:
    """Another loader takes the first of two commits while this one stages them."""
    found = destination.load([commit_of(1, FIRST), commit_of(2, SECOND)], park)
    return totals(found) | {"rows": [None if o.rows is None else o.rows.num_rows for o in found]}


def _checked(wire: DuckWire) -> None:
    """Make the table that refuses a day, before Waybill does."""
    wire.connection.execute("CREATE SCHEMA shop")
    kept = (
        "_waybill_id TEXT, _waybill_source_version BIGINT, _waybill_intake_version BIGINT, "
        "_waybill_loaded_at TIMESTAMPTZ"
    )
    wire.connection.execute(
        f"CREATE TABLE shop.days (id BIGINT, day DATE CHECK (day <> '1970-01-14'), {kept})"
    )
    spelt = {
        "snowflake": ("NUMBER(19,0)", "DATE", "TEXT", "TIMESTAMP_TZ"),
        "bigquery": ("INT64", "DATE", "STRING", "TIMESTAMP"),
        "redshift": ("bigint", "date", "character varying", "timestamp with time zone"),
    }[wire.dialect]
    number, day, text, time = spelt
    wire.columns["shop", "days"] = {
        "id": [number, True],
        "day": [day, False],
        "_waybill_id": [text, False],
        "_waybill_source_version": [number, False],
        "_waybill_intake_version": [number, False],
        "_waybill_loaded_at": [time, False],
    }


def _taken(wire: DuckWire) -> None:
    """Load the first commit from elsewhere."""
    counts = '{"rows":[["shop-orders","order",29450000,4,0,3,1,0,0]],"replays":{}}'
    wire.connection.execute("ROLLBACK")
    wire.connection.execute(
        "INSERT INTO waybill._waybill_commits VALUES ('warehouse', 1, ?, NULL, now(), NULL)",
        [counts],
    )
    wire.connection.execute("BEGIN")


def _locking(kind: str) -> str:
    return _LOCKING.get(
        kind, "_waybill_locks` SET" if kind == "bigquery" else '_waybill_locks" SET'
    )


def fault_of(kind: str, name: str) -> Fault | None:
    """Return what goes wrong in a scenario."""
    gone = "the connection was lost"
    return {
        "lost_before_commit": Fault("COMMIT", gone, {"lost": True}),
        "lost_after_commit": Fault("COMMIT", gone, {"lost": True}, after=True),
        "conflict": Fault(_locking(kind), _WORDS[kind], CONFLICTS[kind]),
        "overtaken": Fault(_locking(kind), then=_taken),
    }.get(name)


SCENARIOS: Mapping[str, Callable[[Destination], dict[str, object]]] = {
    "good_day": good_day,
    "refused_rows": refused_rows,
    "lost_before_commit": lost,
    "lost_after_commit": lost,
    "conflict": conflict,
    "overtaken": overtaken,
}


def recording(kind: str, name: str) -> Path:
    return FOLDER / kind / f"{name}.jsonl"


def main() -> None:
    """Write all recordings."""
    for kind in KINDS:
        for name, scenario in SCENARIOS.items():
            wire = DuckWire(kind, fault=fault_of(kind, name))
            if name == "refused_rows":
                _checked(wire)
            recorder = Recorder(wire)
            with pytest.MonkeyPatch.context() as patch, over(kind, recorder, patch) as destination:
                print(kind, name, scenario(destination))
            recorder.write(recording(kind, name))


if __name__ == "__main__":
    main()
