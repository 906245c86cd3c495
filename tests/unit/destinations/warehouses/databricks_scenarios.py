"""Loads into Databricks, recorded with DuckDB standing in for it.

``python -m tests.unit.destinations.warehouses.databricks_scenarios`` writes the recordings anew;
read the difference before you keep it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.support.databricks_wire import DatabricksWire
from tests.support.warehouse_wires import Fault, Recorder
from tests.unit.destinations.warehouses.clickhouse_scenarios import day, died, items, wider
from tests.unit.destinations.warehouses.scenarios import FOLDER
from tests.unit.destinations.warehouses.standing_in import over

from waybill.destinations import Destination

_GONE = {"message": "the connection was lost", "fields": {"lost": True}}
_CONFLICT = "[DELTA_CONCURRENT_APPEND] ConcurrentAppendException: Files were added to the table"
SCENARIOS: Mapping[str, tuple[Callable[[Destination], dict[str, object]], Fault | None]] = {
    "good_day": (day, None),
    "died_before_the_merge": (died, Fault("MERGE INTO `shop`", **_GONE)),
    "died_after_the_merge": (died, Fault("MERGE INTO `shop`", after=True, **_GONE)),
    "conflict": (died, Fault("MERGE INTO `shop`", _CONFLICT)),
    "items": (items, None),
    "wider": (wider, None),
}


def recording(name: str) -> Path:
    return FOLDER / "databricks" / f"{name}.jsonl"


def main() -> None:
    """Write all recordings."""
    for name, (scenario, fault) in SCENARIOS.items():
        wire = DatabricksWire("databricks", fault=fault)
        recorder = Recorder(wire)
        with (
            pytest.MonkeyPatch.context() as patch,
            over("databricks", recorder, patch) as destination,
        ):
            print(name, scenario(destination))
        recorder.write(recording(name))


if __name__ == "__main__":
    main()
