"""A destination for each team of a campaign: two of PostgreSQL, a DuckDB file, a Delta table.

Each team's pipeline loads ``<team>.orders`` of a destination of its own, which moves with the team
from one loading application to another. What tables hold is read as their other users would.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.lake_warehouses import DeltaWarehouse
from tests.support.warehouses import DuckWarehouse, PostgresWarehouse

from waybill.pipelines import Column, TableSpec
from waybill.settings import DestinationSettings, Settings

KINDS = {"east": "postgres", "north": "postgres", "south": "duckdb", "west": "delta"}
"""By team."""
_SHARED = "warehouse"
"""Of teams that send nothing."""
_SIZES = {"min_rows": 1_000, "max_wait_s": 1.0}
"""Some loads a second at most: the machine has other things to do."""


def destination_of(team: str) -> str:
    """Return the name of a team's destination."""
    return f"{_SHARED}-{team}" if team in KINDS else _SHARED


def with_destinations(settings: Settings) -> Settings:
    """Return settings with the teams' destinations, beside the one that is there.

    Large loads of one of PostgreSQL's are executors'.
    """
    shared = settings.destinations[_SHARED]
    lakes = settings.home / "lakes"
    lakes.mkdir()
    made = {
        "postgres": shared,
        "duckdb": DestinationSettings(kind="duckdb", dsn=str(lakes / "orders.duckdb")),
        "delta": DestinationSettings(kind="delta", dsn=str(lakes / "delta")),
    }
    own = {destination_of(team): made[k].model_copy(update=_SIZES) for team, k in KINDS.items()}
    own["warehouse-east"] = own["warehouse-east"].model_copy(update={"loaded_by": "executors"})
    return settings.model_copy(update={"destinations": {**settings.destinations, **own}})


def loaded_numbers(settings: Settings, team: str) -> list[int]:
    """Return the column ``number`` of a team's table, in any order; nobody may write to it."""
    found = settings.destinations[destination_of(team)]
    dsn = found.dsn.get_secret_value()
    warehouses: dict[str, Any] = {
        "postgres": lambda: PostgresWarehouse(dsn),
        "duckdb": lambda: DuckWarehouse(Path(dsn)),
        "delta": lambda: DeltaWarehouse(found),
    }
    number = Column(name="number", type="int64", nullable=False)
    spec = TableSpec(schema_name=team, name="orders", columns=(number,), key=("number",))
    return [row["number"] for row in warehouses[KINDS[team]]().rows(spec)]
