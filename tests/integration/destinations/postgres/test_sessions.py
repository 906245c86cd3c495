"""PostgreSQL's sessions: loaders that wait for each other, connections lost, servers that go away."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest
from tests.unit.destinations.orders import Order, clean_database, commit_of, totals

from waybill.destinations import open_destination
from waybill.errors import RetryError
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


def without_rows(outcomes):
    return [replace(o, rows=None) for o in outcomes]


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
        assert self.reached.wait(240)

    def _park(self, refused):
        self.reached.set()
        assert self.go_on.wait(240)
        return {"key": "frozen", "rows": len(refused)}

    def end(self):
        self.go_on.set()
        self._pool.shutdown()


def refusing_table(destination, dsn):
    destination.ensure_table(commit_of(1, [Order(1, 1, 1)]).rows[0].table)
    ask(dsn, "ALTER TABLE shop.orders ADD CONSTRAINT no CHECK (what <> 'refused')")


def wait_for_lock(dsn):
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    end = time.monotonic() + 240
    while ask(dsn, query) == [(0,)]:
        assert time.monotonic() < end, "nobody waits"
        time.sleep(0.02)


def test_a_second_loader_waits_for_one_in_mid_load_and_reports_its_outcome(opened, dsn):
    refusing_table(opened(), dsn)
    commits = commits_of([Order(1, 1, 1), Order(2, 1, 1, "refused")], [Order(3, 1, 1)])
    frozen = Frozen(opened(), commits)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(opened().load, commits, never_park)
        wait_for_lock(dsn)
        assert not second.done()
        assert whole_table(dsn) == []
        frozen.end()
        assert second.result() == without_rows(frozen.result.result())
    assert second.result()[0].parked == ({"key": "frozen", "rows": 1},)
    assert second.result()[1].parked == ()
    assert [row[2] for row in whole_table(dsn)] == [1, 3]


def test_a_second_loader_takes_over_when_the_first_dies_in_mid_load(opened, dsn):
    refusing_table(opened(), dsn)
    commits = commits_of([Order(1, 1, 1), Order(2, 1, 1, "refused")])
    frozen = Frozen(opened(), commits)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(opened().load, commits, lambda refused: {"key": "second"})
        wait_for_lock(dsn)
        end_idle_loader(dsn)
        assert second.result()[0].parked == ({"key": "second"},)
    before = whole_table(dsn)
    frozen.end()
    with pytest.raises(RetryError):
        frozen.result.result()
    assert whole_table(dsn) == before


def end_idle_loader(dsn):
    ended = ask(
        dsn,
        "SELECT pg_terminate_backend(pid, 120000) FROM pg_stat_activity WHERE "
        "datname = current_database() AND state = 'idle in transaction'",
    )
    assert ended == [(True,)]


def test_a_connection_lost_in_mid_load_leaves_nothing_and_the_next_load_is_whole(opened, dsn):
    destination = opened()
    refusing_table(destination, dsn)
    commits = commits_of([Order(1, 1, 1), Order(2, 1, 1, "refused")])

    def lose_connection(refused):
        end_idle_loader(dsn)
        return {"key": "garbage"}

    with pytest.raises(RetryError):
        destination.load(commits, lose_connection)
    assert whole_table(dsn) == []
    assert ask(dsn, "SELECT * FROM waybill._waybill_commits") == []
    (found,) = destination.load(commits, lambda refused: {"key": "kept"})
    assert (found.parked, len(whole_table(dsn))) == (({"key": "kept"},), 1)


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
