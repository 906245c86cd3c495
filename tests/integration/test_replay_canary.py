"""A canary over real parked files, log and books: what re-parks stops it, the rest stays parked."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support import orders
from tests.support.books_beside_a_log import Books
from tests.support.cut_logs import send_at_once
from tests.support.parked_orders import order, parked
from tests.support.replays import run_replay

from waybill import services
from waybill.access import Decision
from waybill.errors import InputError
from waybill.events import encode
from waybill.replay import CanaryWait, CanaryWaitError, ReplayRequest, read_awaited
from waybill.replay.outcome import ReplayOutcome, ReplayWatch

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
    for number in range(3):
        events = [parked(order(number * 100 + n, books.team)) for n in range(100)]
        books.park(events, number + 1)
    yield books
    books.tracker.close()


def run(books: Books, monkeypatch: pytest.MonkeyPatch, *, fails: bool) -> Any:
    """Replay with a canary; each step is processed and loaded when it is looked at."""
    wait = ReplayWatch.wait
    done: list[int] = []

    def wait_after_processing(watch: ReplayWatch, *, limit_s: float) -> ReplayOutcome:
        sent = books.sent()
        new = sent[len(done) :]
        done.extend(range(len(new)))
        books.process(new[:1] if fails else [])
        books.load()
        return wait(watch, limit_s=limit_s)

    monkeypatch.setattr(ReplayWatch, "wait", wait_after_processing)
    return run_replay(books.settings, **NAMES, canary=True, who="ann", run_id="r1")


def test_all_goes_out_once_in_order_when_nothing_parks_again(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = run(books, monkeypatch, fails=False)
    assert (report.state, report.events, report.sent, report.problem) == ("done", 300, 300, "")
    assert [(step.step, step.events) for step in report.steps] == [
        ("1%", 3),
        ("10%", 27),
        ("100%", 270),
    ]
    sent = books.sent()
    assert sorted(event.id for event in sent) == sorted(order(n, books.team).id for n in range(300))
    [partition] = books.parking.partitions()
    assert (partition.parked, partition.replayed) == (0, 300)
    again = run_replay(books.settings, **NAMES, canary=True, who="ann", run_id="r1")
    assert len(books.sent()) == 300
    assert again.events == 300


def test_a_step_that_parks_again_leaves_the_rest_parked_and_says_so(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = run(books, monkeypatch, fails=True)
    assert report.state == "stopped"
    assert "1 mapping/not_null_violation" in report.problem
    assert len(books.sent()) == 3
    numbers = {p.stage: (p.parked, p.replayed) for p in books.parking.partitions()}
    assert numbers == {"transformation": (297, 3), "mapping": (1, 0)}


def test_a_canary_that_waits_elsewhere_goes_on_where_it_was_whatever_comes_meanwhile(
    books: Books,
) -> None:
    """As a deferred task does: each call is a new process, which knows what was waited for."""
    wait = CanaryWait(0.0)
    waited: list[tuple[str, int]] = []

    def waiting(wait: CanaryWait) -> Any:
        request = ReplayRequest(**NAMES, canary=True)
        return services.run_replay(
            books.settings, request, who="ann", run_id="r1", canary_wait=wait
        )

    def is_reached(error: CanaryWaitError) -> bool:
        with books.tracker.transaction() as connection:
            ends, reached = read_awaited(connection, {1: error.ends[error.step]})[1]
        error.ends = {**error.ends, error.step: ends}
        return reached

    for _ in range(2):
        with pytest.raises(CanaryWaitError) as caught:
            waiting(wait)
        error = caught.value
        waited.append((error.step, len(books.sent())))
        assert not is_reached(error), "not processed"
        books.process([])
        assert not is_reached(error), "not loaded"
        books.load()
        live = encode(order(900 + len(waited), books.team))
        send_at_once(books.settings.kafka.bootstrap_servers, books.topic.name, [live])
        # Nobody reads it: the canary does not wait for what came after it.
        assert is_reached(error)
        wait = CanaryWait(0.0, error.ends)
    report = waiting(wait)
    assert waited == [("1%", 3), ("10%", 31)]
    assert (report.state, report.events, [s.events for s in report.steps]) == (
        "done",
        300,
        [3, 27, 270],
    )


@pytest.mark.parametrize("canary", [True, False])
def test_into_a_held_pipeline_nothing_is_sent_nor_taken(books: Books, canary: bool) -> None:
    books.parking.hold("orders", Decision("ann", "migration"))
    for run_id in ("r1", "r1"):
        with pytest.raises(InputError, match="is held since"):
            run_replay(books.settings, **NAMES, canary=canary, who="ann", run_id=run_id)
    with pytest.raises(InputError, match="is held since"):
        services.replayable(books.settings, ReplayRequest(**NAMES))
    tried = services.run_dry_run(books.settings, ReplayRequest(**NAMES).as_dry_run())
    assert tried.events == 300
    assert (books.sent(), books.parking.partitions()[0].parked) == ([], 300)
    books.parking.release("orders", Decision("ann", "done"))
    report = run_replay(books.settings, **NAMES, who="ann", run_id="r1")
    assert report.sent == 300
