"""What became of replays' events, added up as it is committed: by processing, and by loads.

Both parking and ledger write it, so the statement is here. Locks: rows here are written after those
of partitions, in the order of replay and outcome.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from uuid import UUID

from sqlalchemy import Connection, text

AT_THE_DESTINATION = ("delivered", "superseded", "duplicate", "parked")
"""Outcomes of rows that were loaded, or refused there."""
COPY = "duplicate/parked"
"""Outcome of an event that would have parked again, and is parked there already."""
HELD_AGAIN = "held"
"""Outcome of an event that waits because its pipeline was held meanwhile."""

_ADD = text("""
INSERT INTO replay_outcomes (replay_id, outcome, events)
SELECT replays.id, given.outcome, given.number
FROM unnest(CAST(:ids AS uuid[]), CAST(:outcomes AS text[]), CAST(:numbers AS bigint[]))
  AS given (id, outcome, number)
JOIN replays ON replays.id = given.id
ORDER BY 1, 2
ON CONFLICT (replay_id, outcome)
  DO UPDATE SET events = replay_outcomes.events + excluded.events
""")


def parked_before(stage: str) -> str:
    """Return the outcome of an event that parked again before the destination: "parked/mapping"."""
    return f"parked/{stage}"


def add_outcomes(connection: Connection, found: Mapping[str, Mapping[str, int]]) -> None:
    """Add to what became of replays; of those that this tracker knows. Cost: one statement.

    Args:
        connection: the transaction that commits what became of the events.
        found: replay id to outcome to number.
    """
    numbers: Counter[tuple[UUID, str]] = Counter()
    for written, outcomes in found.items():  # one id may be written in several ways
        if (replay_id := _uuid(written)) is not None:
            for outcome, number in outcomes.items():
                numbers[replay_id, outcome] += number
    if numbers:
        given = {
            "ids": [replay_id for replay_id, _ in numbers],
            "outcomes": [outcome for _, outcome in numbers],
            "numbers": list(numbers.values()),
        }
        connection.execute(_ADD, given)


def _uuid(replay_id: str) -> UUID | None:
    try:
        return UUID(replay_id)
    except ValueError:
        return None
