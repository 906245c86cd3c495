"""What tests of destinations ask again and again: loads of made-up orders, and what is held then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.support.warehouses import Warehouse
from tests.unit.destinations.orders import SPEC, Order, commit_of, expected

from waybill.destinations import Commit, Destination, LoadOutcome, RefusedRow
from waybill.pipelines import TableSpec

VERSIONS = ("_waybill_id", "_waybill_source_version", "_waybill_intake_version")


def never_park(refused: Sequence[RefusedRow]) -> None:
    """Fail: no row must be refused."""
    raise AssertionError(f"refused: {refused}")


class Park:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.calls: list[list[RefusedRow]] = []

    def __call__(self, refused: Sequence[RefusedRow]) -> Mapping[str, object]:
        self.calls.append(list(refused))
        return {"key": f"parked-{len(self.calls)}"}

    @property
    def rows(self) -> list[RefusedRow]:
        (rows,) = self.calls
        return rows

    @property
    def codes(self) -> dict[str, str]:
        """The order's id to the error type."""
        return {row.event_id.partition("/")[0]: row.error_code for row in self.rows}


def commits_of(*batches: Sequence[Order], start: int = 1, spec: TableSpec = SPEC) -> list[Commit]:
    """Return a commit a batch, numbered from ``start``."""
    return [commit_of(start + i, orders, spec) for i, orders in enumerate(batches)]


def load(
    destination: Destination,
    *batches: Sequence[Order],
    start: int = 1,
    park: Any = never_park,
    spec: TableSpec = SPEC,
) -> list[LoadOutcome]:
    """Load a commit a batch, in one load."""
    return destination.load(commits_of(*batches, start=start, spec=spec), park)


def words(outcome: LoadOutcome) -> list[str]:
    """Return each row's outcome."""
    return outcome.rows.column("outcome").to_pylist()


def without_rows(outcomes: Iterable[LoadOutcome]) -> list[LoadOutcome]:
    """Return outcomes as a repeat reports them."""
    return [replace(outcome, rows=None) for outcome in outcomes]


def held(warehouse: Warehouse, spec: TableSpec = SPEC) -> dict[Any, tuple[Any, ...]]:
    """Return id to the other columns in declared order, then event id and versions."""
    names = [c.name for c in spec.columns if c.name != "id"]
    found = warehouse.rows(spec)
    assert len({row["id"] for row in found}) == len(found), "a key has two rows"
    return {row["id"]: tuple(row[name] for name in (*names, *VERSIONS)) for row in found}


def assert_ends_right(
    warehouse: Warehouse, orders: Iterable[Order], spec: TableSpec = SPEC
) -> None:
    """Check rows and tombstones against the model."""
    rows, deleted = expected(orders)
    assert held(warehouse, spec) == {
        key: (o.what, o.price, o.event_id, o.source, o.intake) for key, o in rows.items()
    }
    assert warehouse.tombstones(spec) == {
        f"[{key}]": (o.event_id, o.source, o.intake) for key, o in deleted.items()
    }
