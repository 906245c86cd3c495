"""Every test here runs on each kind of warehouse that can run for real, half of them per commit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.warehouses import MAKERS, Warehouse, kinds_of


@pytest.fixture(params=kinds_of(MAKERS))
def warehouse(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Warehouse]:
    """An empty warehouse of each kind."""
    made = MAKERS[request.param](request, tmp_path)
    yield made
    made.close()


@pytest.fixture
def destination(warehouse: Warehouse):
    """A destination on the warehouse."""
    return warehouse.open()
