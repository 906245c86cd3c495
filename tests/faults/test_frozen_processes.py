"""A process that is frozen (SIGSTOP) inside a transaction of the tracker: others go on without it.

Each case stops a real process amid its commit, with locks on rows. The tracker ends its transaction
after ``idle_in_transaction_timeout_s``; when the process wakes up, nothing of its commit takes
effect.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support import children
from tests.support.books import batch, everything, nothing_parked, staged

from waybill.ledger import LoadCommit, acquire_lease, commit_batch, commit_load, last_commit_number
from waybill.settings import Settings, TrackerSettings
from waybill.storage import TrackerStore

pytestmark = [pytest.mark.serves]
CONSUMER, LOADER = "processing/events.t.w", "loading/w"
TAKEN_OVER_S = 60.0
"""Less than a minute, by the defaults; these tests end transactions after 5 s, the least."""
FREEZE = "import os, signal\nfreeze = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)\n"
COMMIT = (
    FREEZE
    + """
from tests.support.books import batch, counts, staged
from waybill.ledger import commit, commit_batch
from waybill.storage import TrackerStore

{before}
given = batch({epoch}, (0, 0, 10), counts=counts("mapping", passed=10), staged=staged("frozen"))
print("COMMITTED", commit_batch(TrackerStore(settings.tracker), given, {record}))
"""
)
AMID_ROWS = """
import psycopg
from psycopg.types.string import StrDumper

class Freezing(str):
    pass

class FreezingDumper(StrDumper):
    def dump(self, value):
        freeze()
        return super().dump(value)

psycopg.adapters.register_dumper(Freezing, FreezingDumper)

def write_rows(connection, number):
    keys = [f"k{{n}}" for n in range(100)]
    connection.execute({statement}, [{{"key": key}} for key in (*keys, Freezing("last"))])
"""
"""Freezes when a hundred of its rows went to the driver, and the last one is next."""
INSERTS = """commit.staged_objects.insert().values(
    destination="other", commit_number=1, rows=1, bytes=1, offsets=[])"""
UPDATES = """__import__("sqlalchemy").text(
    "UPDATE staged_objects SET destination = 'none' WHERE key = :key")"""
HOLDS_NUMBER = """
def frozen_after(*given, take=commit.next_commit_number):
    number = take(*given)
    freeze()
    return number

commit.next_commit_number = frozen_after
"""
LOAD = (
    FREEZE
    + """
from waybill.ledger import LoadCommit, commit_load
from waybill.storage import TrackerStore

load = LoadCommit("loading/w", {epoch}, "w", 0, 1)
commit_load(TrackerStore(settings.tracker), load, freeze)
print("COMMITTED")
"""
)


@pytest.fixture
def settings(postgres) -> Settings:
    dsn = postgres.database("frozen")
    return Settings(tracker=TrackerSettings(dsn=dsn, idle_in_transaction_timeout_s=5))


@pytest.fixture
def tracker(settings) -> Iterator[TrackerStore]:
    with TrackerStore(settings.tracker) as store:
        store.migrate()
        yield store


@contextmanager
def frozen(settings, code):
    """Run code until it has stopped itself; ``awake()`` lets it go on and returns its words."""
    child = children.start(settings, code)

    def awake() -> str:
        os.kill(child.pid, signal.SIGCONT)
        output, _ = child.communicate(timeout=600)
        return output.decode()

    try:
        children.wait_until(lambda: _is_stopped(child.pid), limit_s=600, what="it has stopped")
        yield awake
    finally:
        children.kill(child)


def _is_stopped(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    return stat.rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize(
    "given",
    [
        {"before": "", "record": "freeze"},
        {"before": HOLDS_NUMBER, "record": "lambda *_: None"},
        {"before": AMID_ROWS.format(statement=INSERTS), "record": "write_rows"},
        {"before": AMID_ROWS.format(statement=UPDATES), "record": "write_rows"},
    ],
    ids=[
        "holds the lease",
        "holds the lease and the commit number",
        "amid many rows",
        "amid many statements",
    ],
)
def test_another_takes_over_from_a_process_frozen_amid_its_commit(settings, tracker, given):
    epoch = acquire_lease(tracker, CONSUMER, holder="frozen")
    other = acquire_lease(tracker, "processing/other", holder="other")
    beside = {"consumer": "processing/other", "topic": "other", "topic_id": "t2"}
    with frozen(settings, COMMIT.format(epoch=epoch, **given)) as awake:
        began = time.monotonic()
        number = commit_batch(tracker, batch(other, (0, 0, 3), **beside), nothing_parked)
        mine = acquire_lease(tracker, CONSUMER, holder="me")
        taken = batch(mine, (0, 0, 10), staged=staged("mine"))
        assert (number, commit_batch(tracker, taken, nothing_parked)) == (1, 2)
        assert time.monotonic() - began < TAKEN_OVER_S
        before = everything(tracker)
        said = awake()
    assert "FencedError" in said, said
    assert "COMMITTED" not in said
    assert everything(tracker) == before
    assert last_commit_number(tracker, "w") == 2


def test_other_topics_do_not_wait_for_one_frozen_before_its_commit_number(postgres):
    dsn = postgres.database("frozen_beside")
    limits = TrackerSettings(dsn=dsn, idle_in_transaction_timeout_s=600, lock_timeout_s=5)
    settings = Settings(tracker=limits)
    with TrackerStore(settings.tracker) as tracker:
        tracker.migrate()
        epoch = acquire_lease(tracker, CONSUMER, holder="frozen")
        other = acquire_lease(tracker, "processing/other", holder="other")
        beside = {"consumer": "processing/other", "topic": "other", "topic_id": "t2"}
        with frozen(settings, COMMIT.format(epoch=epoch, before="", record="freeze")) as awake:
            assert commit_batch(tracker, batch(other, (0, 0, 3), **beside), nothing_parked) == 1
            said = awake()
        assert "COMMITTED 2" in said, said


def test_another_takes_over_from_a_loader_frozen_amid_its_commit(settings, tracker):
    epoch = acquire_lease(tracker, LOADER, holder="frozen")
    writer = acquire_lease(tracker, CONSUMER, holder="me")
    commit_batch(tracker, batch(writer, (0, 0, 5), staged=staged("a")), nothing_parked)
    with frozen(settings, LOAD.format(epoch=epoch)) as awake:
        began = time.monotonic()
        mine = acquire_lease(tracker, LOADER, holder="me")
        commit_load(tracker, LoadCommit(LOADER, mine, "w", 0, 1), lambda _: None)
        assert time.monotonic() - began < TAKEN_OVER_S
        before = everything(tracker)
        said = awake()
    assert "RetryError: tracker: rolled back" in said, said
    assert "COMMITTED" not in said
    assert everything(tracker) == before


def test_the_defaults_let_another_take_over_in_less_than_a_minute():
    limits = TrackerSettings()
    assert limits.idle_in_transaction_timeout_s <= TAKEN_OVER_S / 2
    assert limits.lock_timeout_s > limits.idle_in_transaction_timeout_s
