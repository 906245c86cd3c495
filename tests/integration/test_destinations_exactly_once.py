"""A commit number is loaded once: repeats, second loaders, SIGKILL, servers that go away."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest
from tests.unit.destinations.loader_child import (
    COMMITS,
    REFUSED,
    made_commits,
    made_orders,
    park_in,
)
from tests.unit.destinations.orders import Order, clean_database, commit_of, expected, totals

from waybill.destinations import open_destination
from waybill.errors import RetryError, StopError
from waybill.settings import DestinationSettings

pytestmark = pytest.mark.serves


@pytest.fixture
def dsn(postgres):
    return clean_database(postgres)


@pytest.fixture
def opened(dsn):
    """Open destinations of one name on the same database."""
    found = []

    def open_one(name="warehouse"):
        found.append(open_destination(name, DestinationSettings(dsn=dsn)))
        return found[-1]

    yield open_one
    for destination in found:
        destination.close()


def never_park(refused):
    raise AssertionError(f"refused: {refused}")


def ask(dsn, query, *values):
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(query, values)
        return cursor.fetchall() if cursor.description else []


def whole_table(dsn):
    """Return every row with its place and the transaction that wrote it."""
    return ask(dsn, "SELECT ctid, xmin, * FROM shop.orders ORDER BY id")


def commits_of(*batches, start=1):
    return [commit_of(start + i, orders) for i, orders in enumerate(batches)]


TWO = ([Order(1, 1, 1), Order(2, 1, 2)], [Order(1, 0, 3, "old"), Order(3, 1, 4)])


def without_rows(outcomes):
    return [replace(o, rows=None) for o in outcomes]


def test_a_repeat_changes_nothing_and_reports_the_same(opened, dsn):
    first = opened().load(commits_of(*TWO), never_park)
    before = whole_table(dsn)
    again = opened().load(commits_of(*TWO), never_park)
    assert whole_table(dsn) == before
    assert [o.rows for o in again] == [None, None]
    assert again == without_rows(first)


def test_only_what_is_missing_is_loaded_and_all_is_reported(opened, dsn):
    destination = opened()
    batches = [[Order(i, 1, i)] for i in range(1, 6)]
    commits = commits_of(*batches)
    destination.load([commits[1], commits[3]], never_park)
    found = destination.load(commits, never_park)
    assert [o.commit_number for o in found] == [1, 2, 3, 4, 5]
    assert [o.rows is None for o in found] == [False, True, False, True, False]
    assert totals(found)["delivered"] == 5
    assert len(whole_table(dsn)) == 5


def test_what_a_load_will_have_done_is_told_before_it_is_done(opened, dsn):
    """So that traces are on disk before the commit; one that fails is told of again."""
    destination, told = opened(), []

    def note(outcomes):
        assert ask(dsn, "SELECT count(*) FROM shop.orders") == [(0,)]
        told.append([(o.commit_number, o.rows.num_rows) for o in outcomes])
        if len(told) == 1:
            raise RetryError("the spool is full")

    with pytest.raises(RetryError, match="spool"):
        destination.load(commits_of(*TWO), never_park, note)
    found = destination.load(commits_of(*TWO), never_park, note)
    assert told == [[(1, 2), (2, 2)]] * 2
    assert totals(found)["delivered"] == 3
    assert len(whole_table(dsn)) == 3
    destination.load(commits_of(*TWO), never_park, note)
    assert len(told) == 2, "nothing is told of what was loaded before"


def test_destinations_of_different_names_do_not_share_commit_numbers(opened, dsn):
    opened("one").load(commits_of([Order(1, 1, 1)]), never_park)
    (found,) = opened("other").load(commits_of([Order(2, 1, 1)]), never_park)
    assert found.rows is not None
    assert len(whole_table(dsn)) == 2


def test_a_commit_number_with_other_contents_stops(opened):
    opened().load(commits_of(*TWO), never_park)
    changed = commits_of([Order(1, 1, 1)], TWO[1])
    with pytest.raises(StopError, match=r"commit 1 was loaded at .* with other events"):
        opened().load(changed, never_park)


def test_a_commit_number_given_twice_stops(opened):
    with pytest.raises(StopError, match="twice"):
        opened().load([*commits_of(*TWO), commits_of(*TWO)[0]], never_park)


def test_two_loaders_of_the_same_commits_load_them_once(opened, dsn):
    orders = [Order(i, 1, i) for i in range(20_000)]
    commits = commits_of(orders[:10_000], orders[10_000:])
    start = threading.Barrier(3)

    def load(_):
        destination = opened()
        start.wait()
        return destination.load(commits, never_park)

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(load, range(3)))
    assert sorted(o[0].rows is None for o in found) == [False, True, True]
    assert without_rows(found[0]) == without_rows(found[1]) == without_rows(found[2])
    assert len(whole_table(dsn)) == 20_000
    assert len({row[1] for row in whole_table(dsn)}) == 1, "one transaction wrote all"


class Frozen:
    """A loader that stands still in mid-load: in ``park``, its rows merged, nothing committed."""

    def __init__(self, destination, commits):
        self.reached, self.go_on = threading.Event(), threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self.result = self._pool.submit(destination.load, commits, self._park)
        assert self.reached.wait(60)

    def _park(self, refused):
        self.reached.set()
        assert self.go_on.wait(60)
        return {"key": "frozen", "rows": len(refused)}

    def end(self):
        self.go_on.set()
        self._pool.shutdown()


def refusing_table(destination, dsn):
    destination.ensure_table(commit_of(1, [Order(1, 1, 1)]).rows[0].table)
    ask(dsn, f"ALTER TABLE shop.orders ADD CONSTRAINT no CHECK (what <> '{REFUSED}')")


def wait_for_lock(dsn):
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    end = time.monotonic() + 60
    while ask(dsn, query) == [(0,)]:
        assert time.monotonic() < end, "nobody waits"
        time.sleep(0.02)


def test_a_second_loader_waits_for_one_in_mid_load_and_reports_its_outcome(opened, dsn):
    refusing_table(opened(), dsn)
    commits = commits_of([Order(1, 1, 1), Order(2, 1, 1, REFUSED)], [Order(3, 1, 1)])
    frozen = Frozen(opened(), commits)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(opened().load, commits, never_park)
        wait_for_lock(dsn)
        assert not second.done()
        assert whole_table(dsn) == []
        frozen.end()
        assert second.result() == without_rows(frozen.result.result())
    assert second.result()[0].parked == {"key": "frozen", "rows": 1}
    assert second.result()[1].parked is None
    assert [row[2] for row in whole_table(dsn)] == [1, 3]


def test_a_second_loader_takes_over_when_the_first_dies_in_mid_load(opened, dsn):
    refusing_table(opened(), dsn)
    commits = commits_of([Order(1, 1, 1), Order(2, 1, 1, REFUSED)])
    frozen = Frozen(opened(), commits)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(opened().load, commits, lambda refused: {"key": "second"})
        wait_for_lock(dsn)
        end_idle_loader(dsn)
        assert second.result()[0].parked == {"key": "second"}
    before = whole_table(dsn)
    frozen.end()
    with pytest.raises(RetryError):
        frozen.result.result()
    assert whole_table(dsn) == before


def end_idle_loader(dsn):
    ended = ask(
        dsn,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE "
        "datname = current_database() AND state = 'idle in transaction'",
    )
    assert ended == [(True,)]


def test_a_connection_lost_in_mid_load_leaves_nothing_and_the_next_load_is_whole(opened, dsn):
    destination = opened()
    refusing_table(destination, dsn)
    commits = commits_of([Order(1, 1, 1), Order(2, 1, 1, REFUSED)])

    def lose_connection(refused):
        end_idle_loader(dsn)
        return {"key": "garbage"}

    with pytest.raises(RetryError):
        destination.load(commits, lose_connection)
    assert whole_table(dsn) == []
    assert ask(dsn, "SELECT * FROM waybill._waybill_commits") == []
    (found,) = destination.load(commits, lambda refused: {"key": "kept"})
    assert (found.parked, len(whole_table(dsn))) == ({"key": "kept"}, 1)


def test_a_park_that_fails_leaves_nothing(opened, dsn):
    destination = opened()
    refusing_table(destination, dsn)
    commits = commits_of([Order(1, 1, 1), Order(2, 1, 1, REFUSED)])

    def store_is_away(refused):
        raise RetryError("the object store is away")

    with pytest.raises(RetryError, match="object store"):
        destination.load(commits, store_is_away)
    assert whole_table(dsn) == []
    (found,) = destination.load(commits, lambda refused: {"key": "kept"})
    assert totals([found])["parked"] == 1


def test_a_server_that_restarts_is_found_again(opened, dsn, postgres):
    destination = opened()
    destination.load(commits_of([Order(1, 1, 1)]), never_park)
    postgres.stop()
    try:
        with pytest.raises(RetryError, match="warehouse"):
            destination.load(commits_of([Order(2, 1, 1)], start=2), never_park)
    finally:
        postgres.start()
    (found,) = destination.load(commits_of([Order(2, 1, 1)], start=2), never_park)
    assert totals([found])["delivered"] == 1
    postgres.stop()
    postgres.start()
    (found,) = destination.load(commits_of([Order(3, 1, 1)], start=3), never_park)
    assert totals([found])["delivered"] == 1, "a connection that died while idle is made anew"
    assert len(whole_table(dsn)) == 3


KILLS = 6


def test_kills_at_any_moment_leave_a_table_as_if_nothing_had_happened(opened, dsn, tmp_path):
    seed = 20_260
    refusing_table(opened(), dsn)
    draw = random.Random()
    killed_in_mid_load = 0
    for _ in range(KILLS):
        killed_in_mid_load += kill_a_loader(dsn, tmp_path, seed, draw)
    assert killed_in_mid_load, "no kill hit a load"
    found = finish(opened(), seed, tmp_path)
    orders = [order for part in made_orders(seed) for order in part]
    sums = totals(found)
    assert sums["in_first"] + sums["in_replayed"] == len(orders)
    refused = {o.event_id for o in orders if o.what == REFUSED}
    assert parked_ids(found, tmp_path) <= refused
    held = {row[0]: row[1:] for row in ask(dsn, "SELECT id, _waybill_id FROM shop.orders")}
    rows, deleted = expected(o for o in orders if o.what != REFUSED)
    assert held == {key: (order.event_id,) for key, order in rows.items()}
    buried = ask(dsn, "SELECT key FROM waybill._waybill_tombstones")
    assert {row[0] for row in buried} == {f"[{key}]" for key in deleted}


def finish(destination, seed, folder):
    """Load what is left, in batches of another size; returns the outcomes of all commits."""
    commits, found = made_commits(seed), []
    assert len(commits) == COMMITS
    for at in range(0, len(commits), 5):
        found += destination.load(commits[at : at + 5], park_in(folder))
    return found


def kill_a_loader(dsn, folder, seed, draw):
    """Start a loader, kill it some time after it began a load; returns whether it was in one."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.unit.destinations.loader_child", dsn, str(folder), str(seed)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["include", "."])},
    )
    line = ""
    for _ in range(draw.randint(1, 4)):
        line = child.stdout.readline()
    time.sleep(draw.uniform(0, 0.25))
    in_load = line.startswith("load") and child.poll() is None
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    return in_load


def parked_ids(outcomes, folder):
    """Return the ids in the parked files that the outcomes name; checks the counts."""
    named = {o.parked["key"]: o.parked for o in outcomes if o.parked is not None}
    ids = [i for key in named for i in json.loads((folder / key).read_text())]
    assert len(ids) == totals(outcomes)["parked"] > 0
    return set(ids)
