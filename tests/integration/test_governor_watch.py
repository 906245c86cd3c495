"""What a governor sees of a real topic and its ledger; and that a replay asks for it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support import orders
from tests.support.books import batch, counts, nothing_parked
from tests.support.books_beside_a_log import Books
from tests.support.parked_orders import order, parked
from tests.support.replays import run_replay

from waybill import services
from waybill.errors import RetryError
from waybill.ledger import acquire_lease, commit_batch, consumer_progress
from waybill.replay.throttle import TopicWatch
from waybill.settings import TrackerSettings
from waybill.storage import open_tracker

pytestmark = pytest.mark.serves
NAMES = {
    "pipeline": "orders",
    "event_name": "order",
    "stage": "transformation",
    "error_type": "null_value",
}


@pytest.fixture
def books(stack_settings: Any, tmp_path: Any) -> Any:
    orders.write_orders(tmp_path / "pipelines", rows=1)
    settings = stack_settings.model_copy(update={"pipelines_dir": tmp_path / "pipelines"})
    services.migrate(settings)
    services.run_deploy(settings, tmp_path / "pipelines" / "orders", who="test")
    books = Books(settings, orders.team_of(settings.pipelines_dir))
    books.park([parked(order(n, books.team)) for n in range(10)])
    yield books
    books.tracker.close()


def commit(books: Books, end: int, *, start: int = 0, live: int = 0, took_ms: int | None) -> int:
    consumer = f"processing/{books.topic.name}"
    done = batch(
        acquire_lease(books.tracker, consumer, holder="test"),
        (0, start, end),
        consumer=consumer,
        cluster_id=books.topic.cluster_id,
        topic_id=books.topic.topic_id,
        topic=books.topic.name,
        destination="warehouse",
        took_ms=took_ms,
        counts=counts("transformation", in_first=live, in_replayed=end - start - live),
    )
    return commit_batch(books.tracker, done, nothing_parked)


def watch_of(books: Books, tracker: Any = None) -> TopicWatch:
    return TopicWatch(
        books.log,
        tracker or books.tracker,
        books.topic,
        destination="warehouse",
        batch_events=1000,
    )


def test_a_look_tells_the_backlog_and_each_batch_once(books: Books) -> None:
    run_replay(books.settings, **NAMES, who="ann", run_id="r1")
    watch = watch_of(books)
    first = watch.look()
    assert (first.backlog, first.batches) == (10, ())
    in_first_partition = books.log.watermarks(books.topic)[0][1]
    commit(books, 1, live=1, took_ms=250)
    commit(books, in_first_partition, start=1, took_ms=None)
    second = watch.look()
    assert second.backlog == 10 - in_first_partition
    assert [(b.events, b.live, b.took_s) for b in second.batches] == [
        (1, 1, 0.25),
        (in_first_partition - 1, 0, None),
    ]
    assert abs(second.batches[0].committed_s - second.now_s) < 10
    assert watch.look().batches == ()


def test_progress_is_the_newest_of_one_consumer(books: Books) -> None:
    numbers = [commit(books, n + 1, start=n, took_ms=n) for n in range(5)]
    name = f"processing/{books.topic.name}"
    found = consumer_progress(books.tracker, name, "warehouse", after=0, limit=2)
    assert [b.commit_number for b in found.batches] == numbers[-2:]
    assert not consumer_progress(books.tracker, "another", "warehouse", after=0, limit=2).batches


def test_a_tracker_that_is_away_is_a_matter_of_trying_again(books: Books) -> None:
    nowhere = TrackerSettings(dsn="postgresql+psycopg://nobody@127.0.0.1:1/none")
    with open_tracker(nowhere) as away, pytest.raises(RetryError):
        watch_of(books, away).look()


@pytest.mark.parametrize("governed", [True, False])
def test_a_replay_is_governed_unless_asked_otherwise(
    books: Books, monkeypatch: pytest.MonkeyPatch, governed: bool
) -> None:
    looks = []
    look = TopicWatch.look
    monkeypatch.setattr(TopicWatch, "look", lambda self: looks.append(1) or look(self))
    options = {} if governed else {"governed": False}
    report = run_replay(books.settings, **NAMES, **options, who="ann", run_id="r1")
    assert report.to_json()["sent"] == 10
    assert len(looks) == (1 if governed else 0)
