"""``make faults-parking``: replays that are killed, and 1,000 random interleavings.

Kills: a replay of commits whose causes are mixed (so that their segments are cut by a limit, and go
out merged) is SIGKILLed 50 times; each event must be in the topic once, in source order for its
key. Interleavings: see ``interleavings``. ``KILLS`` and ``PLAYS`` change how many, ``QUICK=1`` is a
short form, ``PARKING_SEED`` repeats the choices (not the timing of the machine). Ends with 1 when
an event is lost, doubled or out of order, or when the warehouse is not that of a run without
faults.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from tests import servers
from tests.benchmarks.home import opened_home
from tests.faults.interleavings import Play, World
from tests.support import children, orders
from tests.support.parked_orders import order, parked
from tests.unit.destinations.orders import SPEC, Order, expected

from waybill import services
from waybill.destinations import open_destination
from waybill.events import Event, decode
from waybill.parking import Packer, ParkedEvent, Parking, new_key
from waybill.pipelines import load_pipeline
from waybill.settings import DestinationSettings, Settings, TrackerSettings
from waybill.storage import TrackerStore, open_log, open_objects, open_tracker

KILLS, PLAYS = 50, 1000
QUICK_KILLS, QUICK_PLAYS = 3, 20
COMMITS, EVENTS, KEYS = 20, 200, 50
MOST = COMMITS * EVENTS - EVENTS // 2
_CAUSES = ("no amount", "no shop", "no price")
_REPLAY = """
from waybill.replay import ReplayRequest
from waybill.services import run_replay
print(run_replay(settings, ReplayRequest(pipeline="orders", event_name="order", stage="transformation",
                 error_type="null_value", max_events={most!r}), who="test", run_id={run!r}))
"""


@dataclass(slots=True)
class Kills:
    """What came of the kills."""

    kills: int = 0
    rounds: int = 0
    events: int = 0
    """Different ones in the topic."""
    lost: int = 0
    duplicates: int = 0
    disordered: int = 0
    """Events before which a later one of their key was sent."""

    @property
    def wrong(self) -> int:
        return self.lost + self.duplicates + self.disordered


@dataclass(slots=True)
class Plays:
    """What came of the interleavings."""

    plays: int = 0
    events: int = 0
    rows: int = 0
    tombstones: int = 0
    wrong_rows: int = 0
    """Keys that are not as in a run without faults."""
    numbers: Counter[str] = field(default_factory=Counter)


# Kills


def prepare(settings: Settings) -> Settings:
    """Deploy the pipeline whose events are parked; returns the settings that know it."""
    folder = settings.home / "pipelines"
    orders.write_orders(folder, rows=1)
    known = settings.model_copy(update={"pipelines_dir": folder})
    services.migrate(known)
    services.run_deploy(known, folder / "orders", who="test")
    open_log(known.kafka).ensure_topic(orders.topic_of(folder))
    return known


def park(settings: Settings, first: int) -> None:
    """Park events as processing would: one object and one commit each, causes mixed."""
    team = orders.team_of(settings.pipelines_dir)
    objects = open_objects(settings.s3)
    with open_tracker(settings.tracker) as tracker:
        parking = Parking(tracker, objects)
        for commit in range(COMMITS):
            packer = Packer()
            for index in range(EVENTS):
                packer.add(_parked(first + commit * EVENTS + index, team))
            packed, key = packer.finish(), new_key()
            objects.put(key, packed.body)
            with tracker.transaction() as connection:
                parking.record(
                    connection,
                    key=key,
                    size=len(packed.body),
                    segments=packed.segments,
                    scope="warehouse",
                    commit_number=first + commit + 1,
                )


def _parked(number: int, team: str) -> ParkedEvent:
    event = order(number, team, note="x" * 200)
    event.key = f"[{number % KEYS}]"
    one = parked(event)
    one.message = _CAUSES[number * 7 % len(_CAUSES)]
    return one


def kill_replays(settings: Settings, kills: int, draw: random.Random) -> Kills:
    """Replay in rounds, each killed until it ends, until there were so many kills."""
    tally = Kills()
    while tally.kills < kills:
        park(settings, tally.rounds * COMMITS * EVENTS)
        for most in (MOST, None):
            code = _REPLAY.format(run=f"r{tally.rounds}-{most}", most=most)
            while tally.kills < kills:
                if not children.run_and_kill(settings, code, after_s=draw.uniform(0.1, 1.7)):
                    break
                tally.kills += 1
            children.run(settings, code)
        tally.rounds += 1
    return _counted(tally, _sent(settings))


def _sent(settings: Settings) -> list[Event]:
    log = open_log(settings.kafka)
    topic = log.describe(orders.topic_of(settings.pipelines_dir))
    return [decode(value) for value in log.read(topic.name, log.watermarks(topic))]


def _counted(tally: Kills, sent: list[Event]) -> Kills:
    copies = Counter(event.data["number"] for event in sent)
    wanted = range(tally.rounds * COMMITS * EVENTS)
    tally.events = len(copies)
    tally.lost = sum(number not in copies for number in wanted)
    tally.duplicates = sum(copies.values()) - len(copies)
    last: dict[str, int] = defaultdict(lambda: -1)
    for event in sent:
        tally.disordered += event.data["number"] < last[event.key]
        last[event.key] = max(last[event.key], event.data["number"])
    return tally


# Interleavings


def play(tracker_dsn: str, warehouse_dsn: str, plays: int, seed: int) -> Plays:
    """Play so many interleavings over one tracker and one warehouse; compare the warehouse."""
    tally = Plays(plays=plays)
    kept: list[Order] = []
    with ExitStack() as stack:
        tracker = TrackerStore(TrackerSettings(dsn=tracker_dsn))
        stack.callback(tracker.close)
        tracker.migrate()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pipeline = load_pipeline(orders.write_orders(folder, rows=1))
        settings = DestinationSettings(dsn=warehouse_dsn)  # type: ignore[arg-type]
        destination = stack.enter_context(open_destination("warehouse", settings))
        destination.ensure_table(SPEC)
        world = World(tracker, destination, pipeline)
        for number in range(plays):
            kept += Play(world, number, seed + number).go()
        tally.numbers = world.numbers
    tally.events = len(kept)
    return _compared(tally, warehouse_dsn, kept)


def _compared(tally: Plays, dsn: str, kept: list[Order]) -> Plays:
    rows, tombstones = expected(kept)
    wanted = {key: (o.what, o.price, o.event_id) for key, o in rows.items()}
    gone = {f"[{key}]": o.event_id for key, o in tombstones.items()}
    with psycopg.connect(dsn) as connection:
        found = {
            row[0]: row[1:]
            for row in connection.execute("SELECT id, what, price, _waybill_id FROM shop.orders")
        }
        dead = dict(
            connection.execute(
                "SELECT key, _waybill_id FROM waybill._waybill_tombstones"
            ).fetchall()
        )
    tally.rows, tally.tombstones = len(found), len(dead)
    tally.wrong_rows = len(set(wanted.items()) ^ set(found.items()))
    tally.wrong_rows += len(set(gone.items()) ^ set(dead.items()))
    return tally


# The command


def main() -> int:
    quick = os.environ.pop("QUICK", "") == "1"
    kills = int(os.environ.pop("KILLS", QUICK_KILLS if quick else KILLS))
    plays = int(os.environ.pop("PLAYS", QUICK_PLAYS if quick else PLAYS))
    seed = int(os.environ.pop("PARKING_SEED", random.randrange(10**6)))
    began = time.monotonic()
    print(f"{kills} kills, {plays} interleavings, seed {seed}", flush=True)
    with opened_home() as (home, stack):
        postgres = stack.enter_context(servers.started(servers.start_postgres, home))
        played = play(postgres.database("tracker"), postgres.database("warehouse"), plays, seed)
        kafka = stack.enter_context(servers.started(servers.start_kafka, home))
        s3 = stack.enter_context(servers.started(servers.start_s3, home))
        folder = home / "campaign"
        folder.mkdir()
        settings = prepare(servers.stack_settings(postgres, kafka, s3, folder))
        killed = kill_replays(settings, kills, random.Random(seed))
    show(killed, played)
    report = report_of(killed, played) | {
        "seed": seed,
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps(report))
    return 1 if killed.wrong or played.wrong_rows else 0


def report_of(killed: Kills, played: Plays) -> dict[str, Any]:
    """Return the figures of both."""
    figures = {name: value for name, value in asdict(killed).items() if name != "rounds"}
    return figures | {
        "interleavings": played.plays,
        "interleaved_events": played.events,
        "deaths": played.numbers["deaths"],
        "wrong_rows": played.wrong_rows,
    }


def show(killed: Kills, played: Plays) -> None:
    """Print a table for people."""
    from rich.console import Console
    from rich.table import Table

    table = Table("", "kills", "interleavings")
    lines = [
        ("runs", killed.kills, played.plays),
        ("events", killed.events, played.events),
        ("lost", killed.lost, ""),
        ("duplicates", killed.duplicates, ""),
        ("out of order", killed.disordered, ""),
        ("keys not as without faults", "", played.wrong_rows),
        ("rows and tombstones at the end", "", played.rows + played.tombstones),
    ]
    lines += [(f"  {name}", "", number) for name, number in sorted(played.numbers.items())]
    for line in lines:
        table.add_row(*(f"{cell:,}" if isinstance(cell, int) else cell for cell in line))
    Console(width=100).print(table)


if __name__ == "__main__":
    sys.exit(main())
