"""The books: folded exactly, and any mistake in them found."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text
from tests.support import children
from tests.support.books import MINUTE, batch, counts, joined, nothing_parked, open_books, staged

from waybill.ledger import (
    BalanceRow,
    IntakeCommit,
    LoadCommit,
    acquire_lease,
    commit_batch,
    commit_intake,
    commit_load,
    fold,
    read_balance,
)
from waybill.ledger.commit import write_counts
from waybill.storage import TrackerStore
from waybill.storage.tracker.tables import COUNT_COLUMNS

pytestmark = pytest.mark.serves
SEED = 3
KEY = ("p", "order", MINUTE)
IN_LOG = {(KEY, "transformation", False): 1, (KEY, "mapping", True): 2}


@pytest.fixture
def tracker(postgres: Any) -> Iterator[TrackerStore]:
    with open_books(postgres, "balance", pool_size=8) as books:
        yield books


@pytest.fixture
def kept(tracker: TrackerStore) -> TrackerStore:
    return keep(tracker)


def keep(tracker: TrackerStore) -> TrackerStore:
    """Make books in balance, with something of every kind.

    Ten taken in, one of them parked, one still in the log; a transformation that made children;
    replays at three stages; two commits, one of them loaded.
    """
    commit_intake(
        tracker,
        IntakeCommit(
            "p", 1, {"line": 10}, 10, counts("ingestion", in_first=10, passed=9, out=9, parked=1)
        ),
        nothing_parked,
    )
    epoch = acquire_lease(tracker, "processing/events.t.w", holder="me")
    first = joined(
        counts("transformation", in_first=5, passed=3, out=6, filtered=1, parked=1),
        counts("mapping", in_first=6, passed=5, out=5, parked=1),
        counts("staged", in_first=5),
    )
    second = joined(
        counts("transformation", in_first=3, in_replayed=1, passed=4, out=4),
        counts("mapping", in_first=4, in_replayed=1, passed=4, out=4, parked=1),
        counts("staged", in_first=4, in_replayed=2),
    )
    commit_batch(tracker, batch(epoch, (0, 0, 5), counts=first, staged=staged("a")), nothing_parked)
    commit_batch(
        tracker, batch(epoch, (0, 5, 10), counts=second, staged=staged("b")), nothing_parked
    )
    loader = acquire_lease(tracker, "loading/w", holder="me")
    load = counts("destination", in_first=5, passed=2, out=2, superseded=1, duplicate=1, parked=1)
    commit_load(tracker, LoadCommit("loading/w", loader, "w", 0, 1, {1: load}), nothing_parked)
    return tracker


def only(tracker: TrackerStore) -> BalanceRow:
    ((row,), _) = read_balance(tracker, in_log=IN_LOG)
    return row


def test_books_in_balance_have_no_breach_before_and_after_folding(kept: TrackerStore) -> None:
    before = only(kept)
    assert before.breaches() == {}
    assert fold(kept) == 4
    assert only(kept).to_json() == before.to_json()
    destination = before.stage("destination")
    assert (destination.in_flight, destination.in_flight_replayed) == (4, 2)
    assert before.stage("transformation").in_flight == 1
    assert before.stage("mapping").in_flight_replayed == 2
    assert "staged" not in before.stages


EQUATIONS = [
    (stage, name)
    for stage, names in {
        "ingestion": ("in_first", "in_replayed", "passed", "out", "parked", "filtered"),
        "transformation": ("in_first", "in_replayed", "passed", "out", "parked", "filtered"),
        "mapping": ("in_first", "in_replayed", "passed", "out", "parked"),
        "destination": ("in_first", "in_replayed", "passed", "parked", "superseded", "duplicate"),
    }.items()
    for name in names
]


@pytest.mark.parametrize(("stage", "name"), EQUATIONS)
@pytest.mark.parametrize("change", [-1, 1, -3, 1000])
def test_any_count_that_is_wrong_is_a_breach(
    kept_once: TrackerStore, stage: str, name: str, change: int
) -> None:
    update = f"UPDATE ledger_minutes SET {name} = {name} + :change WHERE stage = :stage"
    with kept_once.transaction() as connection:
        connection.execute(text(update), {"change": change, "stage": stage})
    try:
        breaches = only(kept_once).breaches()
    finally:
        with kept_once.transaction() as connection:
            connection.execute(text(update), {"change": -change, "stage": stage})
    following = {
        "ingestion": "transformation",
        "transformation": "mapping",
        "mapping": "destination",
    }
    where = following[stage] if name == "out" else stage
    assert set(breaches) == {where}
    assert abs(breaches[where]) == abs(change)


@pytest.fixture(scope="module")
def kept_once(request: pytest.FixtureRequest) -> Iterator[TrackerStore]:
    """Books in balance that every test leaves as they were; made once."""
    postgres = request.getfixturevalue("_postgres")
    postgres.ensure()
    with open_books(postgres, "kept_once") as books:
        fold(keep(books))
        yield books


def test_losses_at_two_places_of_a_stage_add_up_and_never_cancel() -> None:
    row = BalanceRow("p", "n", 1)
    row.stage("ingestion").in_first = row.stage("ingestion").passed = row.stage("ingestion").out = (
        10
    )
    mine = row.stage("transformation")
    mine.in_first, mine.passed = 8, 7
    assert row.breaches() == {"transformation": 3}, "two lost on the way, one within"
    mine.in_first, mine.passed = 8, 9
    assert row.breaches() == {"transformation": 2}, "two lost on the way, one too many within"
    mine.in_first, mine.passed = 11, 10
    assert row.breaches() == {"transformation": -1}, "one that nobody took in, and that got lost"


def test_what_is_in_flight_is_measured_and_never_made_up(kept: TrackerStore) -> None:
    """Without the look into the log, the event that is still there is missing."""
    ((row,), _) = read_balance(kept)
    assert row.breaches() == {"transformation": 1}
    with kept.transaction() as connection:  # a loader that skipped a commit
        connection.execute(text("UPDATE load_positions SET last_commit = 2"))
    assert only(kept).breaches() == {"destination": 4}


def test_only_the_asked_for_pipeline_and_minutes_are_read(tracker: TrackerStore) -> None:
    with tracker.transaction() as connection:
        for pipeline, minute in (("p", 1), ("p", 2), ("q", 2)):
            write_counts(
                connection,
                f"{pipeline}{minute}",
                counts("mapping", pipeline=pipeline, minute=minute, in_first=1, passed=1),
            )
    fold(tracker)

    def found(**asked: Any) -> list[tuple[str, int]]:
        return [(row.pipeline_id, row.minute) for row in read_balance(tracker, **asked)[0]]

    assert found() == [("p", 1), ("p", 2), ("q", 2)]
    assert found(pipeline_id="p") == [("p", 1), ("p", 2)]
    assert found(since_minute=2) == [("p", 2), ("q", 2)]
    assert found(pipeline_id="q", since_minute=3) == []


def test_parked_events_are_read_by_pipeline_name_and_stage(tracker: TrackerStore) -> None:
    row = "('{}', 'order', 'mapping', '{}', {}, {}, {}, {})"
    with tracker.transaction() as connection:
        connection.execute(
            text(
                "INSERT INTO parked_partitions (pipeline_id, event_name, stage, error_type, parked, "
                f"replaying, replayed, discarded) VALUES {row.format('p', 'a', 1, 2, 3, 4)}, "
                f"{row.format('p', 'b', 10, 0, 5, 0)}, {row.format('q', 'a', 7, 0, 0, 0)}"
            )
        )
    _, parked = read_balance(tracker)
    mine = parked[("p", "order", "mapping")]
    assert (mine.recorded, mine.replayed) == (25, 8)
    assert set(read_balance(tracker, pipeline_id="q")[1]) == {("q", "order", "mapping")}


def write_many(tracker: TrackerStore, number: int) -> Counter[tuple[str, ...]]:
    """Write ledger rows of random keys; return the sums they must fold into."""
    chance = random.Random(SEED)
    print(f"seed {SEED}")
    sums: Counter[tuple[str, ...]] = Counter()
    with tracker.transaction() as connection:
        for _ in range(number):
            pipeline, event, minute = chance.choice("pq"), chance.choice("ab"), chance.randrange(3)
            stage = chance.choice(["mapping", "destination"])
            numbers = {name: chance.randrange(1, 9) for name in chance.sample(COUNT_COLUMNS, 3)}
            row = counts(stage, pipeline=pipeline, event=event, minute=minute, **numbers)
            write_counts(connection, str(uuid4()), row)
            for name, value in numbers.items():
                sums[(pipeline, event, stage, str(minute), name)] += value
    return sums


def folded(tracker: TrackerStore) -> Counter[tuple[str, ...]]:
    with tracker.transaction() as connection:
        rows = connection.execute(text("SELECT * FROM ledger_minutes")).mappings().all()
    return Counter(
        {
            (r["pipeline_id"], r["event_name"], r["stage"], str(r["minute"]), name): r[name]
            for r in rows
            for name in COUNT_COLUMNS
            if r[name]
        }
    )


def test_folding_is_exact_in_pieces_and_when_it_is_run_again(tracker: TrackerStore) -> None:
    sums = write_many(tracker, 60)
    assert fold(tracker, most=7) == 60
    assert folded(tracker) == sums
    assert fold(tracker) == 0
    assert folded(tracker) == sums


def test_folding_is_exact_when_many_fold_while_others_write(tracker: TrackerStore) -> None:
    errors: list[BaseException] = []

    def folds() -> None:
        try:
            for _ in range(12):
                fold(tracker, most=5)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=folds) for _ in range(4)]
    for thread in threads:
        thread.start()
    sums = write_many(tracker, 40) + write_many(tracker, 40)
    for thread in threads:
        thread.join(240)
    assert errors == []
    fold(tracker)
    assert folded(tracker) == sums


def test_reading_while_others_fold_sees_every_count_once(tracker: TrackerStore) -> None:
    sums = write_many(tracker, 60)
    total = sum(sums.values())
    done = threading.Event()
    thread = threading.Thread(target=lambda: (fold(tracker, most=2), done.set()))
    thread.start()
    looks = 0
    while not done.is_set() or looks == 0:
        rows, _ = read_balance(tracker)
        found = sum(getattr(c, n) for r in rows for c in r.stages.values() for n in COUNT_COLUMNS)
        assert found == total
        looks += 1
    thread.join(240)


def test_a_fold_that_is_killed_leaves_books_that_fold_exactly(tracker: TrackerStore) -> None:
    sums = write_many(tracker, 60)
    program = (
        "import os, sys\n"
        "from waybill.ledger import fold\n"
        "from waybill.settings import TrackerSettings\n"
        "from waybill.storage import TrackerStore\n"
        "tracker = TrackerStore(TrackerSettings(dsn=sys.argv[1]))\n"
        "real = tracker.engine.dialect.do_commit\n"
        "left = [3]\n"
        "def do_commit(connection):\n"
        "    left[0] -= 1\n"
        "    if not left[0]: os.kill(os.getpid(), 9)\n"
        "    real(connection)\n"
        "tracker.engine.dialect.do_commit = do_commit\n"
        "fold(tracker, most=10)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, tracker.dsn.get_secret_value()],
        env={"PYTHONPATH": "include"},
        check=False,
    )
    assert run.returncode == -9
    assert 0 < sum(folded(tracker).values()) < sum(sums.values())

    def is_folded() -> bool:
        fold(tracker)  # which leaves the rows that the dead one's session still holds
        return folded(tracker) == sums

    children.wait_until(is_folded, what="all is folded")
