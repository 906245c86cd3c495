"""A loader in a process of its own, to be killed: loads the same made-up commits each time.

``python -m tests.support.loader_child PLACE FOLDER SEED [STEP AT]``: PLACE is JSON with kind, dsn,
options and the object store's settings; prints a line before each load; what is refused is written
to FOLDER, a file a load, as the object store would have it. With STEP (park, note) it kills itself
at that step of the AT-th load that comes there.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.unit.destinations.orders import Order, rows_of, some_orders, spec_of

from waybill.destinations import Commit, Destination, RefusedRow, open_destination
from waybill.pipelines import Column
from waybill.settings import DestinationSettings, S3Settings

COMMITS = 16
A_COMMIT = 800
REFUSED = "refused"
"""A ``what`` whose row has no value in the column that takes no null."""
KILLED_SPEC = spec_of(
    "orders",
    Column(name="id", type="int64", nullable=False),
    Column(name="what", type="string"),
    Column(name="price", type="decimal(10,2)"),
    Column(name="must", type="string", nullable=False),
)


def made_orders(seed: int) -> list[list[Order]]:
    """Return the events of all commits; each has some that are refused."""
    draw = random.Random(seed)
    orders = some_orders(draw, keys=1_500, events=COMMITS * A_COMMIT)
    bad = {order.event_id for order in draw.sample(orders, 60) if order.op == "upsert"}
    orders = [replace(o, what=REFUSED) if o.event_id in bad else o for o in orders]
    return [orders[i : i + A_COMMIT] for i in range(0, len(orders), A_COMMIT)]


def made_commits(seed: int) -> list[Commit]:
    """Return the commits, numbered from 1."""
    return [
        Commit(i + 1, (rows_of(part, KILLED_SPEC, must=_must(part)),))
        for i, part in enumerate(made_orders(seed))
    ]


def _must(orders: Sequence[Order]) -> list[str | None]:
    return [None if order.what == REFUSED else "so" for order in orders]


def park_in(folder: Path) -> Callable[[Sequence[RefusedRow]], dict[str, object]]:
    """Return a ``park`` that writes a file and describes it."""

    def park(refused: Sequence[RefusedRow]) -> dict[str, object]:
        key = f"{uuid.uuid4()}.json"
        (folder / key).write_text(json.dumps([row.event_id for row in refused]))
        return {"key": key, "rows": len(refused)}

    return park


def place_of(settings: DestinationSettings, s3: S3Settings | None) -> str:
    """Return what a child must know to open the destination."""
    options = {name: value.get_secret_value() for name, value in settings.options.items()}
    place: dict[str, Any] = {
        "settings": {
            "kind": settings.kind, "dsn": settings.dsn.get_secret_value(), "options": options,
        },
        "s3": None,
    }  # fmt: skip
    if s3 is not None:
        place["s3"] = s3.model_dump(mode="json") | {
            name: getattr(s3, name).get_secret_value()
            for name in ("access_key", "secret_key")
            if getattr(s3, name) is not None
        }
    return json.dumps(place)


def opened(place: str) -> Destination:
    """Open the destination that ``place_of`` described."""
    found = json.loads(place)
    s3 = None if found["s3"] is None else S3Settings(**found["s3"])
    return open_destination("warehouse", DestinationSettings(**found["settings"]), s3)


def dying(step: str, wanted: str, at: int) -> Callable[[], None]:
    """Return what kills this process when it is called for the ``at``-th time."""
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += step == wanted
        if calls == at and step == wanted:
            os.kill(os.getpid(), signal.SIGKILL)

    return call


def main(place: str, folder: Path, seed: int, step: str = "", at: int = 0) -> None:
    """Load everything, two commits at a time."""
    commits, park = made_commits(seed), park_in(folder)
    at_park, at_note = dying("park", step, at), dying("note", step, at)

    def parked(refused: Sequence[RefusedRow]) -> dict[str, object]:
        descriptor = park(refused)
        at_park()
        return descriptor

    with opened(place) as destination:
        for number in range(0, len(commits), 2):
            print("load", number, flush=True)
            destination.load(commits[number : number + 2], parked, lambda _outcomes: at_note())
    print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:5], *map(int, sys.argv[5:6]))
