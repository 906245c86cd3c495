"""Replays that were killed, cancelled and asked for anew: the books balance at each step.

What a killed replay has sent and not marked is in the log beside what the next one sends.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.integration import test_replay_from_source as from_source
from tests.integration.test_replay_from_source import MENDED, ROWS, World, parked_children
from tests.support import refusals
from tests.support.children import killed

from waybill import services
from waybill.access import Decision
from waybill.errors import InputError, StopError
from waybill.events import decode
from waybill.ingestion import source_rows
from waybill.ingestion.refused_messages import Undeliverable
from waybill.parking import ParkedGroupFilter, Parking
from waybill.producer import LosslessProducer

pytestmark = pytest.mark.serves
world = from_source.world
BY = Decision("ann", "test")
AMID_A_GROUP = (LosslessProducer, "produce", 3)
BEFORE_ITS_MARK = (LosslessProducer, "mark", 1)
BEHIND_ITS_MARK = (LosslessProducer, "settled", 1)
BEFORE_THE_TRACKER_KNOWS = (Parking, "mark_replayed", 1)
BEFORE_IT_IS_CONFIRMED = (LosslessProducer, "confirm", 1)


def killed_replay(world: World, run: str, point: tuple[type, str, int], **changes: Any) -> None:
    """Replay in a child process that is killed before the n-th call of a method."""
    killed(point, lambda: world.replay(run, **changes))


def cancel(world: World) -> None:
    """Cancel the replay that runs; there is none when the run died before it began."""
    for (replay_id,) in world.sql("SELECT id FROM replays WHERE state = 'running'"):
        world.parking.cancel_replay(replay_id, who="ann")


def came_in(world: World) -> int:
    """Return how many messages of replays were taken in, by the books of each replay."""
    return int(world.sql("SELECT coalesce(sum(came_in), 0) FROM replay_entries")[0][0])


@pytest.mark.parametrize(
    ("enter", "deaths"),
    [
        ("mapping", (BEFORE_ITS_MARK, BEHIND_ITS_MARK, BEFORE_IT_IS_CONFIRMED, AMID_A_GROUP)),
        pytest.param(
            "transformation",
            (AMID_A_GROUP, BEHIND_ITS_MARK, BEFORE_THE_TRACKER_KNOWS),
            marks=pytest.mark.campaign,
        ),
    ],
)
def test_the_books_balance_whatever_was_sent_without_a_mark(
    world: World, enter: str, deaths: tuple[Any, ...]
) -> None:
    parked_children(world)
    for number, point in enumerate(deaths):
        killed_replay(world, f"r{number}", point, enter=enter)
        world.books()
        if number % 2:
            world.process()
            world.books()
        cancel(world)
        world.books()
    world.deploy(MENDED)
    done = world.replay("last", enter=enter)
    assert (done.state, done.quarantined) == ("done", 0)
    assert world.books().sent_unmarked > 0
    world.process()
    world.books()
    world.load()
    report = world.books()
    assert report.in_flight == 0
    assert came_in(world) == len(world.sent_back())
    if enter == "transformation":
        assert report.parked == 0
        assert world.warehouse_notes() == {"ok": ROWS, "mended": 2 * ROWS}


def test_a_cancelled_replay_that_nobody_follows_leaves_balanced_books(world: World) -> None:
    parked_children(world)
    killed_replay(world, "r1", AMID_A_GROUP, enter="mapping")
    cancel(world)
    sent = len(world.sent_back())
    assert sent == 2
    report = world.books()
    assert (report.parked, report.replayed, report.sent_unmarked) == (2 * ROWS, 0, sent)
    world.parking.discard(ParkedGroupFilter(stage="mapping"), BY)
    world.process()
    assert world.books().sent_unmarked == sent


def test_only_what_a_replay_had_left_to_send_is_taken_for_sent(world: World) -> None:
    """A message too many of one that is done, or more than it had at all, is a breach still."""
    parked_children(world)
    world.replay("r1", enter="mapping")
    world.process()
    world.sql("UPDATE replay_entries SET came_in = came_in + 5 RETURNING 1")
    world.books()
    world.sql(
        "UPDATE ledger_minutes SET in_replayed = in_replayed + 1, parked = parked + 1 "
        "WHERE stage = 'mapping' RETURNING 1"
    )
    assert services.balance(world.settings).pipelines[0].breaches["mapping (replays)"] < 0
    world.sql("UPDATE replays SET state = 'cancelled' RETURNING 1")
    report = services.balance(world.settings)
    assert report.pipelines[0].breaches["mapping (replays)"] < 0
    assert report.sent_unmarked == 0


def test_a_mark_that_is_settled_late_finds_what_was_cut_since(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(source_rows, "_AT_ONE_TIME", 1)  # so that their times differ
        parked_children(world)
    killed_replay(world, "r1", BEFORE_THE_TRACKER_KNOWS, enter="mapping")
    cancel(world)
    sent = {event.id for event in world.sent_back()}
    [(first, last)] = world.sql("SELECT min(first_event_at), max(last_event_at) FROM segments")
    half = ParkedGroupFilter(stage="mapping", until=(first + (last - first) / 2).isoformat())
    discarded = world.parking.discard(half, BY).events
    assert world.states()["replaced"] > 0, "segments are cut"
    world.books()
    [partition] = services.parked_partitions(world.settings)
    decided = world.parking.events(partition.id, states=("discarded",))
    lost = sum(decode(event.value).id in sent for event in decided)
    done = world.replay("r2", enter="mapping")
    assert done.events == 2 * ROWS - discarded - (len(sent) - lost), "what is marked goes no more"
    assert world.states()["replayed"] == 2 * ROWS - discarded
    assert world.books().sent_unmarked == lost


def test_parents_that_were_left_and_refused_are_parked_where_they_were_to_enter(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run from the mapping opens the log of one from the transformation."""
    parked_children(world)
    refusals.limit(world.settings, 100)

    def dies(*_: Any) -> None:
        raise StopError("the process dies")

    with monkeypatch.context() as patch:
        patch.setattr(Undeliverable, "park", dies)
        with pytest.raises((StopError, InputError)):
            world.replay("r1")
    cancel(world)
    world.books()
    done = world.replay("r2", enter="mapping")
    parents = done.refused - done.events
    assert parents > 0
    report = world.books()
    assert report.pipelines[0].stages["transformation"].parked == parents
    assert (report.replayed, report.in_flight) == (2 * ROWS, 0)
    refusals.limit(world.settings, 1_000_000)
    world.process()
    world.books()
