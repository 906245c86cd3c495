"""A loader that is killed at any moment leaves nothing half; KILLS=20 kills more often.

``DESTINATIONS_SEED`` repeats the choices (not the timing of the machine).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from tests.support.destined import never_park
from tests.support.loader_child import (
    COMMITS,
    KILLED_SPEC,
    REFUSED,
    made_commits,
    made_orders,
    park_in,
    place_of,
)
from tests.unit.destinations.orders import expected, totals

pytestmark = [pytest.mark.serves, pytest.mark.campaign]

KILLS = int(os.environ.get("KILLS", "4"))
STEPS = ("note", "park")
"""Steps at which a loader kills itself; all other kills come at any moment."""


def states(seed):
    """Return the ids of events whose rows are there after each count of commits."""
    seen, found = [], [{}]
    for part in made_orders(seed):
        seen += [order for order in part if order.what != REFUSED]
        found.append({key: order.event_id for key, order in expected(seen)[0].items()})
    return found


def test_kills_at_any_moment_leave_a_table_as_if_nothing_had_happened(warehouse, tmp_path):
    seed = int(os.environ.get("DESTINATIONS_SEED") or random.randrange(10**6))
    print("seed", seed)
    draw, prefixes = random.Random(seed), states(seed)
    warehouse.open().ensure_table(KILLED_SPEC)
    killed_in_mid_load = 0
    for number in range(KILLS):
        step = STEPS[number] if number < len(STEPS) else None
        killed_in_mid_load += kill_a_loader(warehouse, tmp_path, seed, draw, step)
        assert visible(warehouse) in prefixes[::2], "half a load is visible"
    assert killed_in_mid_load, "no kill hit a load"
    found = finish(warehouse.open(), seed, tmp_path)
    orders = [order for part in made_orders(seed) for order in part]
    sums = totals(found)
    assert sums["in_first"] + sums["in_replayed"] == len(orders)
    assert parked_ids(found, tmp_path) <= {o.event_id for o in orders if o.what == REFUSED}
    assert visible(warehouse) == prefixes[-1]
    _, deleted = expected(o for o in orders if o.what != REFUSED)
    assert set(warehouse.tombstones(KILLED_SPEC)) == {f"[{key}]" for key in deleted}
    again = warehouse.open().load(made_commits(seed), never_park)
    assert totals(again) == sums


def visible(warehouse):
    """Return id to event id."""
    return {row["id"]: row["_waybill_id"] for row in warehouse.rows(KILLED_SPEC)}


def finish(destination, seed, folder):
    """Load what is left, in batches of another size; returns the outcomes of all commits."""
    commits, found = made_commits(seed), []
    assert len(commits) == COMMITS
    for at in range(0, len(commits), 5):
        found += destination.load(commits[at : at + 5], park_in(folder))
    return found


def kill_a_loader(warehouse, folder, seed, draw, step):
    """Have a loader killed; returns whether it was in a load."""
    dies = [] if step is None else [step, "1"]
    place = place_of(warehouse.settings, warehouse.s3)
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.support.loader_child", place, str(folder), str(seed), *dies],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["include", "."])},
    )
    line = ""
    if step is None:
        for _ in range(draw.randint(1, 3)):
            line = child.stdout.readline()
        time.sleep(draw.uniform(0, 0.25))
    in_load = line.startswith("load") and child.poll() is None
    if step is None:
        child.send_signal(signal.SIGKILL)
    ended = child.wait()
    child.stdout.close()
    assert step is None or ended == -signal.SIGKILL, f"it did not come to {step}"
    return in_load or step is not None


def parked_ids(outcomes, folder):
    """Return the ids in the parked files that the outcomes name; checks the counts."""
    named = {item["key"]: item for o in outcomes for item in o.parked}
    ids = [i for key in named for i in json.loads((folder / key).read_text())]
    assert len(ids) == totals(outcomes)["parked"] > 0
    return set(ids)
