"""``make faults-tracker``: single events dropped and doubled by sabotage, all found by the auditor.

Two pipelines, each of so many events, go through real Kafka, Spark processing and loading, S3 and
PostgreSQL, one after the other. Nothing is done to the first: there the auditor must find nothing.
Of the second 40 events are dropped and 40 doubled, at seven places inside the real processes (see
``sabotage``). Then the traces are shipped and the auditor runs until it is through with both: it
must name all 80 and nobody else. ``QUICK=1`` is a short form, ``EVENTS`` another number of events,
``TRACKER_SEED`` repeats the choices. Ends with 1 when one is not named, or there is a false alarm.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests import servers
from tests.benchmarks.home import opened_home
from tests.benchmarks.processing import all_started
from tests.faults import sabotage
from tests.faults.tracker_run import (
    CLEAN,
    SABOTAGED,
    pipeline_id,
    prepare,
    running,
    sound_orders,
    through,
)

from waybill.reconciliation import Breach, audit, name_breaches, read_breaches
from waybill.settings import Settings
from waybill.storage import open_log, open_objects, open_tracker
from waybill.tracing import open_traces, run_shipper

EVENTS, QUICK_EVENTS = 1_000_000, 100_000
REMOVED = DOUBLED = 40
_LIMIT_S = 1_800.0
_AUDIT_LIMIT_S = 300.0


@dataclass(slots=True)
class Tally:
    """What was done, and what the auditor says was."""

    events: int
    """Of each of the two pipelines."""
    done: dict[str, set[str]] = field(default_factory=dict)
    """Place to the ids of the events that were dropped or doubled there."""
    missing: set[str] = field(default_factory=set)
    """Ids that breaches of the sabotaged pipeline name as missing."""
    doubled: set[str] = field(default_factory=set)
    clean: list[str] = field(default_factory=list)
    """Breaches of the pipeline to which nothing was done, in words."""
    breaches: list[str] = field(default_factory=list)
    """Those of the other one, in words."""

    @property
    def removed_ids(self) -> set[str]:
        """Return what was dropped."""
        return {one for place in sabotage.REMOVED for one in self.done.get(place, ())}

    @property
    def doubled_ids(self) -> set[str]:
        """Return what was doubled."""
        return {one for place in sabotage.DOUBLED for one in self.done.get(place, ())}

    @property
    def named(self) -> int:
        """How many are named as what they are."""
        return len(self.removed_ids & self.missing) + len(self.doubled_ids & self.doubled)

    @property
    def false_alarms(self) -> int:
        """Breaches where nothing was done, and events named to which it was not."""
        others = (self.missing - self.removed_ids) | (self.doubled - self.doubled_ids)
        return len(self.clean) + len(others)

    def named_at(self, place: str) -> int:
        """How many of those of one place are named."""
        named = self.missing if place in sabotage.REMOVED else self.doubled
        return len(self.done.get(place, set()) & named)


def run(settings: Settings, *, events: int, seed: int) -> Tally:
    """Send both pipelines through, sabotage the second, audit both."""
    known = prepare(settings, events=events)
    plan = known.home / "sabotage.json"
    sabotage.write_plan(
        plan,
        pipeline_id=pipeline_id(SABOTAGED),
        numbers=sound_orders(events),
        removed=REMOVED,
        doubled=DOUBLED,
        seed=seed,
    )
    with running(known, plan):
        for name in (CLEAN, SABOTAGED):
            through(known, name, limit_s=_LIMIT_S)
    tally = Tally(events, sabotage.done(plan))
    audited(known, tally)
    return tally


def audited(settings: Settings, tally: Tally) -> None:
    """Ship the traces, let the auditor run until it is through, and note what it says."""
    run_shipper(settings.traces, open_objects(settings.s3), lambda: True, drain_s=_LIMIT_S)
    traces = open_traces(settings)
    log = open_log(settings.kafka)
    limit = time.monotonic() + _AUDIT_LIMIT_S
    with open_tracker(settings.tracker) as tracker:
        while True:
            report = audit(tracker, log)
            naming = name_breaches(tracker, traces)
            if not report.moving and not naming.waiting and not naming.compared:
                break
            assert time.monotonic() < limit, f"not through: {report}, {naming}"
        clean = read_breaches(tracker, pipeline_ids=[pipeline_id(CLEAN)])
        found = read_breaches(tracker, pipeline_ids=[pipeline_id(SABOTAGED)])
    _note(tally, clean, found)


def _note(tally: Tally, clean: Sequence[Breach], found: Sequence[Breach]) -> None:
    tally.clean = [breach.words for breach in clean]
    tally.breaches = [breach.words for breach in found]
    tally.missing = {one for breach in found for one in breach.missing}
    tally.doubled = {one for breach in found for one in breach.doubled}


def main() -> int:
    quick = os.environ.pop("QUICK", "") == "1"
    events = int(os.environ.pop("EVENTS", QUICK_EVENTS if quick else EVENTS))
    seed = int(os.environ.pop("TRACKER_SEED", random.randrange(10**6)))
    began = time.monotonic()
    print(f"2 x {events:,} events, seed {seed}", flush=True)
    with opened_home() as (home, stack):
        tally = _on_servers(home, stack, events, seed)
    show(tally)
    print(json.dumps(report_of(tally, seed) | {"seconds": round(time.monotonic() - began, 1)}))
    return 0 if tally.named == REMOVED + DOUBLED and not tally.false_alarms else 1


def _on_servers(home: Path, stack: ExitStack, events: int, seed: int) -> Tally:
    parts = all_started(servers, home, stack)
    work = home / "campaign"
    work.mkdir()
    return run(servers.stack_settings(*parts, work), events=events, seed=seed)


def report_of(tally: Tally, seed: int) -> dict[str, int]:
    """Return the figures."""
    return {
        "removed": len(tally.removed_ids),
        "doubled": len(tally.doubled_ids),
        "named": tally.named,
        "false_alarms": tally.false_alarms,
        "events": tally.events,
        "seed": seed,
    }


def show(tally: Tally) -> None:
    """Print a table for people, and what the breaches say."""
    from rich.console import Console
    from rich.table import Table

    table = Table("", "done", "named")
    for place in (*sabotage.REMOVED, *sabotage.DOUBLED):
        table.add_row(place, str(len(tally.done.get(place, ()))), str(tally.named_at(place)))
    console = Console()
    console.print(table)
    for words in (*tally.clean, *tally.breaches):
        console.print(words, markup=False, highlight=False)


if __name__ == "__main__":
    sys.exit(main())
