"""What a team keeps of its share of the cores beside a neighbour whose code goes wrong.

Two teams' topics, with the same backlog, in one application. A fair share is half of the cores:
what the team gets beside a neighbour whose code is as good as its own (A). In B some of the
neighbour's events (``FAULTS``) end up in an endless loop, end their process, take memory until there
is none, or raise. ``others_share_by_kind`` is B's events/s of the healthy team over A's, and
``others_share`` the least of them; A and B alternate, medians of the rounds.

The topics begin in one query, and have one each behind the first batch, which parks the first
culprits: they are found. The healthy team's clock runs from the first commit of its own query, while
both have something left; more culprits come all the time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks.application import Application

BAD, GOOD = "neighbour-bad", "neighbour-good"
"""Teams; a batch that both are in is committed in this order."""
EVENT_TIMEOUT_S = 1.0
_ROUND_LIMIT_S = 120.0
_LOOK_S = 0.1
_READ_SHARE = 0.85
"""Of the good team's backlog; so that neither topic runs dry while the clock runs."""


@dataclass(frozen=True)
class Fault:
    """What some of the neighbour's events make its code do."""

    code: str
    one_in: int
    """Of how many events one does it; 0: twelve of the backlog."""
    parks_as: tuple[str, ...]
    """Error types; memory may take longer than an event may."""


FAULTS = {
    "loops": Fault("while True: pass", 0, ("transformation_timeout",)),
    "dies": Fault(
        'os._exit(9) if order["number"] % 4_000 < 2_000 else ctypes.string_at(0)',
        2_000,
        ("interpreter_crashed",),
    ),
    "grows": Fault(
        'order["x"] = [b"x" * 2**20 for _ in count()]',
        0,
        ("memory_error", "transformation_timeout"),
    ),
    "raises": Fault("raise ValueError('one in five')", 5, ("value_error",)),
}


def measure_shares(
    spark: Any,
    new_settings: Callable[[str], Any],
    folder: Path,
    *,
    events: int,
    rounds: int,
) -> dict[str, Any]:
    """Return the shares, and events/s of the healthy team in A.

    Args:
        spark: a session.
        new_settings: returns settings with a tracker of their own, by a name.
        folder: for the pipelines.
        events: of each topic.
        rounds: of A and each B, there and back.
    """
    from tests.benchmarks.processing import fill

    from waybill.storage import open_log

    settings = new_settings("shares")
    log = open_log(settings.kafka)
    for team in (BAD, GOOD):
        log.ensure_topic(_topic(team))
        fill(settings, _topic(team), events, pipeline_id=team, team=team)
    pair = _Pair(spark, log, folder, events)
    kinds = list(FAULTS)
    kinds.insert(len(kinds) // 2, "healthy")  # near to each: the machine's speed changes
    per_s: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(rounds):
        for kind in kinds[:: -1 if number % 2 else 1]:
            per_s[kind].append(pair.events_per_s(new_settings(f"{kind}-{number}"), kind))
    healthy = per_s.pop("healthy")
    shares = {
        kind: round(statistics.median(b / a for a, b in zip(healthy, found, strict=True)), 3)
        for kind, found in per_s.items()
    }
    return {
        "others_share": min(shares.values()),
        "others_share_by_kind": shares,
        "fair_share_events_per_s": round(statistics.median(healthy)),
    }


class _Pair:
    """The two topics, and runs over them."""

    def __init__(self, spark: Any, log: Any, folder: Path, events: int) -> None:
        self._spark, self._log, self._events = spark, log, events
        self._good = _declared(folder / "good", GOOD)
        self._bad = {"healthy": _declared(folder / "healthy", BAD)}
        for kind, fault in FAULTS.items():
            one_in = fault.one_in or events // 12
            self._bad[kind] = _declared(folder / kind, BAD, fault.code, one_in)

    def events_per_s(self, settings: Any, kind: str) -> float:
        """Run an application over both topics until most of the good team's is read."""
        from waybill import services
        from waybill.processing.spark.topic_consumer import ProcessingParts
        from waybill.settings import SparkSettings
        from waybill.storage import open_objects, open_tracker

        usual = SparkSettings()
        spark = settings.spark.model_copy(
            update={
                "max_events_per_batch": min(usual.max_events_per_batch, self._events // 4),
                "trigger_ms": usual.trigger_ms,
                "event_timeout_s": EVENT_TIMEOUT_S,
            }
        )
        settings = settings.model_copy(update={"spark": spark})
        services.migrate(settings)
        for folder in (self._good, self._bad[kind]):
            services.run_deploy(settings, folder, who="bench")
        with open_tracker(settings.tracker) as tracker:
            parts = ProcessingParts.over(settings, tracker, self._log, open_objects(settings.s3))
            application = Application(self._spark, parts, settings.spark.work_dir, spread=1)
            read, until = partial(_commits, tracker), time.monotonic() + _ROUND_LIMIT_S
            while _total(read(GOOD)) < _READ_SHARE * self._events:
                if time.monotonic() > until:
                    raise SystemExit(f"{kind}: the good team is not through after a long time")
                application.rows()
                application.groups.look([_topic(BAD), _topic(GOOD)])
                time.sleep(_LOOK_S)
            application.groups.stop()
            rate = _rate(read(GOOD), read(BAD), self._events)
        _check_parked(kind, services.parked_partitions(settings))
        return rate


def _topic(team: str) -> str:
    return f"events.{team}.warehouse"


def _declared(folder: Path, team: str, fault: str = "", one_in: int = 0) -> Path:
    """Write a team's pipeline, whose code does this for some events."""
    from tests.benchmarks.processing import CODE, DECLARATION, PIPELINE_ID, TEAM, declared

    declaration = DECLARATION
    for before, after in (
        (f"id: {PIPELINE_ID}", f"id: {team}"),
        ("name: bench-orders", f"name: {team}"),
        (f"team: {TEAM}", f"team: {team}"),
        ("schema: bench", f"schema: {team.replace('-', '_')}"),
    ):
        assert before in declaration
        declaration = declaration.replace(before, after)
    code = "import ctypes, os\nfrom itertools import count\n" + CODE
    if fault:
        first = "order = event.data\n"
        assert first in code
        where = f'    if order["number"] % {one_in} == {one_in // 2}:\n        {fault}\n'
        code = code.replace(first, first + where)
    return declared(folder, code, declaration)


Commits = Sequence[tuple[float, int]]
"""When each was made, in seconds, and its events."""


def _commits(tracker: Any, team: str) -> Commits:
    from sqlalchemy import select

    from waybill.storage.tracker import batches

    query = select(batches.c.committed_at, batches.c.offsets)
    query = query.where(batches.c.consumer == f"processing/{_topic(team)}")
    with tracker.transaction() as connection:
        rows = connection.execute(query.order_by(batches.c.commit_number)).all()
    return [(at.timestamp(), sum(item[4] for item in offsets)) for at, offsets in rows]


def _total(commits: Commits) -> int:
    return sum(events for _, events in commits)


def _rate(good: Commits, bad: Commits, events: int) -> float:
    """Return the good team's events/s in a query of its own, while the bad one has something left."""
    found_at = bad[0][0]
    until = bad[-1][0] if _total(bad) == events else good[-1][0]
    counted = [(at, count) for at, count in good if found_at <= at <= until][1:]
    if len(counted) < 2:
        raise SystemExit(f"the good team has too few commits beside the bad one's: {good}, {bad}")
    return _total(counted[1:]) / (counted[-1][0] - counted[0][0])


def _check_parked(kind: str, parked: Sequence[Any]) -> None:
    """Refuse a run in which the neighbour's code did not do what it should."""
    found = {(one.pipeline, one.error_type) for one in parked}
    wanted = {(BAD, code) for code in FAULTS[kind].parks_as} if kind in FAULTS else set()
    if not found <= wanted or bool(found) != bool(wanted):
        raise SystemExit(f"{kind}: parked were {found}, not {wanted}")
