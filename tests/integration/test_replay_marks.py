"""Marks of replays that wait for Kafka while the next events go: a small log, cancels, errors."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.integration.test_replay_outcome import NAMES
from tests.support import orders
from tests.support.books_beside_a_log import Books
from tests.support.parked_orders import order, parked
from tests.support.replays import run_replay

from waybill import services
from waybill.errors import InputError, RetryError
from waybill.parking import Parking
from waybill.producer import LosslessProducer

pytestmark = pytest.mark.serves
COMMITS, EACH = 30, 100
ALL = COMMITS * EACH


@pytest.fixture
def books(stack_settings: Any, tmp_path: Any) -> Any:
    orders.write_orders(tmp_path / "pipelines", rows=1)
    wal = stack_settings.wal.model_copy(
        update={"segment_bytes": 64 * 1024, "disk_threshold_bytes": 1024**2}
    )
    settings = stack_settings.model_copy(
        update={"pipelines_dir": tmp_path / "pipelines", "wal": wal}
    )
    services.migrate(settings)
    services.run_deploy(settings, tmp_path / "pipelines" / "orders", who="test")
    books = Books(settings, orders.team_of(settings.pipelines_dir))
    for commit in range(COMMITS):
        numbers = range(commit * EACH, commit * EACH + EACH)
        events = [parked(order(n, books.team, note="x" * 500)) for n in numbers]
        books.park(events, commit + 1)
    yield books
    books.tracker.close()


def run(books: Books, run_id: str = "r1") -> Any:
    return run_replay(books.settings, **NAMES, who="ann", run_id=run_id)


def sent(books: Books) -> Counter[int]:
    return Counter(event.data["number"] for event in books.sent())


def states(books: Books) -> tuple[int, int, int]:
    [partition] = services.parked_partitions(books.settings)
    return partition.parked, partition.replaying, partition.replayed


@pytest.mark.parametrize("when_full", ["wait", "raise"])
def test_more_is_replayed_than_the_log_may_hold(books: Books, when_full: str) -> None:
    wal = books.settings.wal.model_copy(update={"when_full": when_full})
    books.settings = books.settings.model_copy(update={"wal": wal})
    report = run(books)
    assert (report.state, report.sent, report.resumed) == ("done", ALL, 0)
    assert sent(books) == Counter(range(ALL))
    assert states(books) == (0, 0, ALL)


def test_a_cancel_amid_a_replay_marks_what_was_sent_and_loses_nothing(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Parking.mark_replayed

    def cancelling(parking: Parking, replay_id: Any, *rest: Any) -> bool:
        parking.cancel_replay(replay_id, who="bob")
        return real(parking, replay_id, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Parking, "mark_replayed", cancelling)
        with pytest.raises(InputError, match="was cancelled"):
            run(books)
    went = sum(sent(books).values())
    assert 0 < went < ALL
    assert states(books) == (ALL - went, 0, went)
    assert run(books, "r2").sent == ALL - went
    assert sent(books) == Counter(range(ALL))
    assert books.parking.refresh(grace_s=0).aggregates_corrected == 0


def test_an_error_amid_a_replay_leaves_marks_and_the_next_run_goes_on(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = LosslessProducer.produce, [0]

    def failing(*given: Any) -> int:
        calls[0] += 1
        if calls[0] == ALL // 2:
            raise RetryError("the store is away")
        return real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(LosslessProducer, "produce", failing)
        with pytest.raises(RetryError, match="away"):
            run(books)
    went = ALL // 2 - 1
    parked_, replaying, replayed = states(books)
    assert (parked_, replaying + replayed) == (0, ALL)
    assert 0 < replayed <= went
    report = run(books)
    assert (report.sent, report.resumed) == (ALL - went, went - replayed)
    assert sent(books) == Counter(range(ALL))
    assert [event.data["number"] for event in books.sent() if event.key == "[7]"] == [7]
