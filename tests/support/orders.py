"""A small pipeline of made-up orders, written into a folder: source, declaration, transformation.

Of every 50 orders one has no amount (null_value), one an amount of -1 (record_invalid), one is
filtered on purpose, and one violates NOT NULL in the mapping.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

DECLARATION = """
id: test-orders
name: orders
team: {team}
owner: shop@example.com
schedule: null
source:
  connector: csv
  path: orders.csv
  event: order
  page_rows: {page_rows}
  order_by: [number]
  null_values: [""]
  columns: {{number: int64, amount: int64, note: string}}
events:
  order:
    key: [number]
    version: null
    table: orders
    policy: strict
    columns:
      number: int64
      amount: int64
      note: string{not_null}
      doubled: int64
transformation: transformation.py
destination: {{name: warehouse, schema: shop}}
"""

FIRST = """
from waybill.errors import ParkError


def transform(event):
    order = event.data
    if order["number"] % 50 == 3:
        return None
    if order["amount"] == -1:
        raise ParkError("record_invalid", "a negative amount")
    order["doubled"] = order["amount"] * 2
    return event
"""

FIXED = """
def transform(event):
    order = event.data
    if order["number"] % 50 == 3:
        return None
    amount = order["amount"]
    order["doubled"] = None if amount is None else abs(amount) * 2
    return event
"""

NULL_AMOUNT, NEGATIVE, FILTERED, NO_NOTE = 1, 2, 3, 4


def write_orders(
    folder: Path, *, rows: int, page_rows: int = 500, fixed: bool = False, code: str | None = None
) -> Path:
    """Write the pipeline into ``folder / "orders"`` and return that folder.

    The team is named after the folder, so that tests which share a Kafka have topics of their own.
    """
    home = folder / "orders"
    home.mkdir(parents=True, exist_ok=True)
    lines = ["number,amount,note"]
    for number in range(rows):
        kind = number % 50
        amount = {NULL_AMOUNT: "", NEGATIVE: "-1"}.get(kind, str(number * 3))
        note = "" if kind == NO_NOTE else f"note {number}"
        lines.append(f"{number},{amount},{note}")
    (home / "orders.csv").write_text("\n".join(lines) + "\n")
    text = DECLARATION.format(
        page_rows=page_rows, not_null="" if fixed else " not null", team=team_of(folder)
    )
    (home / "pipeline.yaml").write_text(text)
    (home / "transformation.py").write_text(code or (FIXED if fixed else FIRST))
    return home


def team_of(folder: Path) -> str:
    """Return the team of the pipeline in a folder."""
    return f"shop-{hashlib.sha256(str(folder).encode()).hexdigest()[:10]}"


def topic_of(folder: Path) -> str:
    """Return the topic of the pipeline in a folder."""
    return f"events.{team_of(folder)}.warehouse"


def good_numbers(rows: int) -> list[int]:
    """Return the numbers of the orders that pass the first version."""
    odd = {NULL_AMOUNT, NEGATIVE, FILTERED, NO_NOTE}
    return [number for number in range(rows) if number % 50 not in odd]


def expected(rows: int) -> dict[str, int]:
    """Return how many of the orders each fate meets in the first version."""
    kinds = [number % 50 for number in range(rows)]
    return {
        "null_value": kinds.count(NULL_AMOUNT),
        "record_invalid": kinds.count(NEGATIVE),
        "filtered": kinds.count(FILTERED),
        "not_null_violation": kinds.count(NO_NOTE),
    }
