"""How each of a partition's replays stands, told from the tracker alone: for lists that are polled.

A replay is done once all of it is in the log again; what became of the events is known later, and
never by an estimate. ``outcome`` tells more, but has to read the log and the parked files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from sqlalchemy import select, text

from waybill.parking import Replay, read_replay
from waybill.replay import STEPS, became
from waybill.storage import TrackerStore
from waybill.storage.tracker import replays

Standing = Literal["running", "cancelled", "no next step", "moving", "parked again", "sent", "done"]
_MOST = 20
_LAST_STEP = STEPS[-1][0]
_IN_ORDER: tuple[tuple[str, Standing], ...] = (
    ("moving", "moving"),
    ("parked", "parked again"),
    ("held", "parked again"),
    ("passed_on", "sent"),
)
_HEARD = text("""
SELECT replay_id, split_part(outcome, '/', 1), sum(events) FROM replay_outcomes
WHERE replay_id = ANY(:ids) GROUP BY 1, 2
UNION ALL
SELECT replay_id, 'moving', greatest(0, sum(marked) - sum(came_in)) FROM replay_entries
WHERE replay_id = ANY(:ids) GROUP BY 1
""")


@dataclass(frozen=True, slots=True)
class ReplayStanding:
    """One replay, and what was heard of its events."""

    replay: Replay
    standing: Standing
    """Of a replay that is done: no next step (a canary's step after which none has begun: it
    stopped there, or waits to see what becomes of the events), moving, parked again (some), sent
    (not all was heard of), or done."""
    became: dict[str, int]
    """As ``outcome.became``; and moving: events that processing has not taken in; passed_on: taken
    in, and not loaded yet or filtered. An event may become several rows."""


def read_newest(tracker: TrackerStore, partition_id: int) -> list[Replay]:
    """Return a partition's newest replays, at most 20, the newest first."""
    fields = [replays.c[name] for name in Replay.__slots__]
    query = select(*fields).where(replays.c.partition_id == partition_id)
    query = query.order_by(replays.c.started_at.desc()).limit(_MOST)
    with tracker.transaction() as connection:
        return [Replay(*row) for row in connection.execute(query)]


def read_of_run(
    tracker: TrackerStore, partition_id: int, run_id: str
) -> tuple[Replay | None, dict[str, int]]:
    """Return the replay that a run began, if it did, and what became of its events so far."""
    found = replays.c.partition_id == partition_id, replays.c.run_id == run_id
    with tracker.transaction() as connection:
        replay = read_replay(connection, *found)
    return replay, became(tracker, partition_id, run_id)


def read_standings(tracker: TrackerStore, found: Sequence[Replay]) -> list[ReplayStanding]:
    """Return how replays stand, in their order. Cost: one statement that reads by primary keys.

    Args:
        tracker: the books.
        found: a partition's newest replays, the newest first.
    """
    heard: dict[UUID, dict[str, int]] = defaultdict(dict)
    if found:
        with tracker.transaction() as connection:
            for row in connection.execute(_HEARD, {"ids": [one.id for one in found]}):
                heard[row[0]][str(row[1])] = int(row[2])
    later: set[str] = set()
    standings = []
    for one in found:
        became = _became(one, heard[one.id])
        standings.append(
            ReplayStanding(one, _standing(one, became, went_on=one.run_id in later), became)
        )
        later.add(one.run_id)
    return standings


def _became(replay: Replay, heard: dict[str, int]) -> dict[str, int]:
    known = {name: number for name, number in heard.items() if number}
    passed_on = replay.sent - sum(known.values())
    return known | {"passed_on": passed_on} if passed_on > 0 else known


def _standing(replay: Replay, became: dict[str, int], *, went_on: bool) -> Standing:
    if replay.state != "done":
        return "running" if replay.state == "running" else "cancelled"
    if replay.step not in ("", _LAST_STEP) and not went_on:
        return "no next step"
    for name, standing in _IN_ORDER:
        if became.get(name):
            return standing
    return "done"
