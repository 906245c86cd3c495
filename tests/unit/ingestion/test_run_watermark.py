"""Where a run of ingestion moves its watermark to: never above what may still be on its way."""

from __future__ import annotations

from typing import Any, cast

import pytest

from waybill.ingestion.run import RunWatermark
from waybill.ledger import PageMark
from waybill.producer import LosslessProducer


class Producer:
    """Knows how many events Kafka has not acknowledged."""

    def __init__(self) -> None:
        self.waiting = 0

    def __len__(self) -> int:
        return self.waiting


def counts(*minutes: int) -> list[tuple[str, list[list[Any]]]]:
    return [("p", [["order", "ingestion", minute, [1]] for minute in minutes])]


@pytest.fixture
def producer() -> Producer:
    return Producer()


@pytest.fixture
def begun(producer: Producer) -> Any:
    """Begin a run at minute 105; a dead one left the watermark open where ``left`` says."""

    def begin(left: int | None = None) -> RunWatermark:
        made = RunWatermark(cast("LosslessProducer", producer), lambda: 105)
        made.begin(left)
        return made

    return begin


def test_a_committed_page_moves_it_to_the_first_minute_that_is_not_counted(
    begun: Any, producer: Producer
) -> None:
    run = begun()
    producer.waiting = 7
    assert run.page([102, 103, None]) == PageMark(102, 7)
    assert run.page([None, 104]) == PageMark(104, 7)
    producer.waiting = 0
    assert run.page([]) == PageMark(105, 0)


def test_what_a_dead_run_left_keeps_it_until_a_page_of_this_run_is_committed(begun: Any) -> None:
    run = begun(left=60)
    assert run.recovered(counts(62)) == PageMark(60, 0)
    assert run.page([103]) == PageMark(103, 0)


def test_a_dead_runs_page_with_an_earlier_minute_lowers_it(begun: Any) -> None:
    run = begun(left=60)
    assert run.recovered(counts(58)) == PageMark(58, 0)
    assert run.recovered(counts(59)) == PageMark(58, 0)
