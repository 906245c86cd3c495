"""The commits of loads and of connectors' pages: each from exactly where it stood, once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import event
from tests.support.books import batch, counts, everything, nothing_parked, open_books, staged
from tests.support.lost_commits import answer_lost, commits_changed, killed_before

from waybill.errors import RetryError
from waybill.ledger import (
    FencedError,
    IntakeCommit,
    LoadCommit,
    OffsetsMovedError,
    Position,
    acquire_lease,
    commit_batch,
    commit_intake,
    commit_load,
    load_position,
    read_position,
    staged_after,
)
from waybill.storage import TrackerStore

pytestmark = pytest.mark.serves
CONSUMER = "processing/events.t.w"


@pytest.fixture
def tracker(postgres: Any) -> Iterator[TrackerStore]:
    with open_books(postgres, "positions") as books:
        yield books


def loaded(epoch: int, after: int, until: int, consumer: str = "loading/w") -> LoadCommit:
    numbers = range(after + 1, until + 1)
    return LoadCommit(
        consumer,
        epoch,
        "w",
        after,
        until,
        {n: counts("destination", in_first=5, passed=5) for n in numbers},
    )


@pytest.fixture
def three(tracker: TrackerStore) -> TrackerStore:
    """Three committed batches, an object each."""
    epoch = acquire_lease(tracker, CONSUMER, holder="me")
    for n in range(3):
        commit_batch(
            tracker, batch(epoch, (0, n, n + 1), staged=staged(f"s{n + 1}")), nothing_parked
        )
    return tracker


def test_a_load_moves_its_position_and_marks_its_objects(three: TrackerStore) -> None:
    epoch = acquire_lease(three, "loading/w", holder="me")
    assert load_position(three, "w") == 0
    commit_load(three, loaded(epoch, 0, 2), nothing_parked)
    assert load_position(three, "w") == 2
    rows = everything(three)
    assert [(r["key"], r["state"]) for r in rows["staged_objects"]] == [
        ("s1", "loaded"),
        ("s2", "loaded"),
        ("s3", "staged"),
    ]
    assert [r["reference"] for r in rows["ledger"]] == ["load:w:1", "load:w:2"]
    assert [s.key for s in staged_after(three, "w", after=2)] == ["s3"]
    assert [s.key for s in staged_after(three, "w", after=0, until=1)] == ["s1"]


def test_a_load_of_many_commits_writes_its_counts_in_a_few_statements(three: TrackerStore) -> None:
    """By a statement a commit, to acknowledge these took eight times as long."""
    epoch, statements = acquire_lease(three, "loading/w", holder="me"), list[str]()

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    event.listen(three.engine, "before_cursor_execute", note)
    try:
        commit_load(three, loaded(epoch, 0, 2_000), nothing_parked)
    finally:
        event.remove(three.engine, "before_cursor_execute", note)
    inserts = [one for one in statements if one.startswith("INSERT INTO ledger ")]
    assert len(inserts) == 2
    rows = everything(three)["ledger"]
    assert [row["reference"] for row in rows] == [f"load:w:{n}" for n in range(1, 2_001)]


def test_a_load_that_is_repeated_changes_nothing(three: TrackerStore) -> None:
    epoch = acquire_lease(three, "loading/w", holder="me")
    commit_load(three, loaded(epoch, 0, 2), nothing_parked)
    before = everything(three)

    def never(*_: Any) -> None:
        raise AssertionError("parked twice")

    commit_load(three, loaded(epoch, 0, 2), never)
    assert everything(three) == before


@pytest.mark.parametrize("span", [(0, 1), (0, 3), (1, 3), (3, 4)])
def test_a_load_from_elsewhere_is_refused(three: TrackerStore, span: tuple[int, int]) -> None:
    epoch = acquire_lease(three, "loading/w", holder="me")
    commit_load(three, loaded(epoch, 0, 2), nothing_parked)
    before = everything(three)
    with pytest.raises(OffsetsMovedError, match="stands at commit 2"):
        commit_load(three, loaded(epoch, *span), nothing_parked)
    assert everything(three) == before


def test_a_fenced_loader_acknowledges_nothing(three: TrackerStore) -> None:
    old = acquire_lease(three, "loading/w", holder="old")
    acquire_lease(three, "loading/w", holder="new")
    before = everything(three)
    with pytest.raises(FencedError):
        commit_load(three, loaded(old, 0, 1), nothing_parked)
    assert everything(three) == before


def test_a_load_whose_answer_was_lost_can_be_repeated(three: TrackerStore) -> None:
    epoch = acquire_lease(three, "loading/w", holder="me")
    with commits_changed(three, answer_lost), pytest.raises(RetryError):
        commit_load(three, loaded(epoch, 0, 2), nothing_parked)
    commit_load(three, loaded(epoch, 0, 2), nothing_parked)
    assert load_position(three, "w") == 2
    assert len(everything(three)["ledger"]) == 2


def page(sequence: int, **changes: Any) -> IntakeCommit:
    values: dict[str, Any] = {
        "pipeline_id": "p",
        "sequence": sequence,
        "cursor": {"line": sequence * 10},
        "rows": 10,
        "counts": counts("ingestion", in_first=10, passed=10, out=10),
    }
    return IntakeCommit(**{**values, **changes})


def test_pages_move_the_cursor_one_by_one(tracker: TrackerStore) -> None:
    numbers: list[int] = []
    assert read_position(tracker, "p") == Position(0, None, 0)
    for n in (1, 2):
        assert commit_intake(tracker, page(n), lambda _, number: numbers.append(number))
    assert read_position(tracker, "p") == Position(2, {"line": 20}, 20)
    assert numbers == [1, 2]


def test_a_page_committed_twice_counts_once(tracker: TrackerStore) -> None:
    commit_intake(tracker, page(1), nothing_parked)
    commit_intake(tracker, page(2), nothing_parked)
    before = everything(tracker)

    def never(*_: Any) -> None:
        raise AssertionError("parked twice")

    assert commit_intake(tracker, page(2), never) is False
    assert commit_intake(tracker, page(1), never) is False
    assert everything(tracker) == before


def test_a_page_that_skips_one_is_refused(tracker: TrackerStore) -> None:
    before = everything(tracker)
    with pytest.raises(OffsetsMovedError, match="stands at page 0, not at 1"):
        commit_intake(tracker, page(2), nothing_parked)
    assert everything(tracker) == before
    assert read_position(tracker, "p") == Position(0, None, 0)


def test_a_page_whose_answer_was_lost_can_be_repeated(tracker: TrackerStore) -> None:
    with commits_changed(tracker, answer_lost), pytest.raises(RetryError):
        commit_intake(tracker, page(1), nothing_parked)
    assert commit_intake(tracker, page(1), nothing_parked) is False
    with commits_changed(tracker, killed_before), pytest.raises(RetryError):
        commit_intake(tracker, page(2), nothing_parked)
    assert commit_intake(tracker, page(2), nothing_parked) is True
    assert len(everything(tracker)["ledger"]) == 2


def test_two_runs_of_a_connector_at_once_commit_a_page_once(tracker: TrackerStore) -> None:
    results: list[bool] = []
    threads = [
        threading.Thread(
            target=lambda: results.append(commit_intake(tracker, page(1), nothing_parked))
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(results) == [False, False, False, True]
    assert read_position(tracker, "p").rows_read == 10
