"""A destination that is compared in a thread is closed by nobody, and compared by nobody after."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.servers import wait_for

from waybill.ledger import FencedError
from waybill.loading import LoadSizes, Patience
from waybill.loading.spark import consumers
from waybill.loading.spark.consumers import LoadingConsumer, Pauses


class Loader:
    """One whose comparisons take until they may go on."""

    name = "warehouse"
    consumer = "loading/warehouse"

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.error: Exception | None = None
        self.compared = 0

    def compare(self) -> None:
        self.begun.set()
        assert self.go_on.wait(300)
        if self.error is not None:
            raise self.error
        self.compared += 1


@pytest.fixture
def loader() -> Loader:
    return Loader()


@pytest.fixture
def patience(loader: Loader) -> Patience:
    return Patience(loader, park_after_s=None, wait=lambda _: False, compare_every_s=0.0)  # type: ignore[arg-type]


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch, loader: Any, patience: Patience) -> LoadingConsumer:
    monkeypatch.setattr(consumers, "load_position", lambda *_: 0)
    tracker: Any = None
    pauses = Pauses(0.5, 2.0)
    return LoadingConsumer(tracker, loader, patience, sizes=LoadSizes(), pauses=pauses)


def test_a_consumer_ends_once_its_destination_is_compared_and_it_is_not_compared_again(
    loader: Loader, patience: Patience, consumer: LoadingConsumer
) -> None:
    consumer.look()
    assert loader.begun.wait(300)
    assert not consumer.end()
    loader.go_on.set()
    wait_for(consumer.end)
    patience.compare()  # of a thread that was begun before, and came late
    assert loader.compared == 1


def test_a_comparison_that_was_fenced_is_told_by_the_next_look(
    loader: Loader, patience: Patience, consumer: LoadingConsumer
) -> None:
    loader.error = FencedError("consumer 'loading/warehouse' was taken over")
    loader.go_on.set()
    patience.compare()
    with pytest.raises(FencedError):
        consumer.look()
