"""A loader in a process of its own, to be killed: loads the same made-up commits each time.

``python -m tests.unit.destinations.loader_child DSN FOLDER SEED``: prints a line before each load; what
is refused is written to FOLDER, a file a load, as the object store would have it.
"""

from __future__ import annotations

import json
import random
import sys
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.unit.destinations.orders import Order, commit_of, some_orders, spec_of

from waybill.destinations import Commit, RefusedRow, open_destination
from waybill.settings import DestinationSettings

COMMITS = 24
A_COMMIT = 1_500
REFUSED = "refused"
"""A ``what`` that the table's check constraint does not take."""


def made_orders(seed: int) -> list[list[Order]]:
    """Return the events of all commits."""
    draw = random.Random(seed)
    orders = some_orders(draw, keys=4_000, events=COMMITS * A_COMMIT)
    bad = {order.event_id for order in draw.sample(orders, 40) if order.op == "upsert"}
    orders = [replace(o, what=REFUSED) if o.event_id in bad else o for o in orders]
    return [orders[i : i + A_COMMIT] for i in range(0, len(orders), A_COMMIT)]


def made_commits(seed: int) -> list[Commit]:
    """Return the commits, numbered from 1."""
    return [commit_of(i + 1, part, spec_of()) for i, part in enumerate(made_orders(seed))]


def park_in(folder: Path):
    """Return a ``park`` that writes a file and describes it."""

    def park(refused: Sequence[RefusedRow]) -> dict[str, object]:
        key = f"{uuid.uuid4()}.json"
        (folder / key).write_text(json.dumps([row.event_id for row in refused]))
        return {"key": key, "rows": len(refused)}

    return park


def main(dsn: str, folder: Path, seed: int) -> None:
    """Load everything, two commits at a time."""
    commits = made_commits(seed)
    with open_destination("warehouse", DestinationSettings(dsn=dsn)) as destination:
        for at in range(0, len(commits), 2):
            print("load", at, flush=True)
            destination.load(commits[at : at + 2], park_in(folder))
    print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
