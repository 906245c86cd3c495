from __future__ import annotations

from pathlib import Path

import pytest

GOOD = """\
id: shop-orders
name: orders
team: shop
owner: shop@example.com
schedule: "@hourly"
source:
  connector: csv
  path: orders.csv
  event: order
  order_by: [placed]
  columns:
    number: int64
    placed: timestamp
    total: decimal(10,2)
    changed: int64
events:
  order:
    key: [number]
    version: changed
    table: orders
    policy: ignore
    columns:
      number: int64
      placed_at: {type: timestamp, nullable: false, from: placed}
      total: decimal(10,2) not null
      note: string
transformation: transformation.py
destination: {name: warehouse, schema: shop}
"""
CODE = "def transform(event):\n    return event\n"


class Folder:
    """A folder of pipelines that tests write into."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, name: str = "orders", *, text: str = GOOD, code: str | None = CODE) -> Path:
        directory = self.root / name
        directory.mkdir(parents=True)
        (directory / "pipeline.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
        if code is not None:
            (directory / "transformation.py").write_text(code)
        return directory


@pytest.fixture
def folder(tmp_path) -> Folder:
    root = tmp_path / "pipelines"
    root.mkdir()
    return Folder(root)


@pytest.fixture
def good() -> str:
    return GOOD
