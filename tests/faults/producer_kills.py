"""``make faults-producer``: SIGKILL a producing process 200 times; count what is lost and doubled.

Four variants on one real broker: pages with marks, several threads, columns of messages, and a user
who may not read the topic, so that a producer cannot see what arrived. ``KILLS`` changes how often,
``QUICK=1`` is a short form, ``PRODUCER_SEED`` repeats the choice of moments (not the timing of the
machine). Ends with 1 when a message is lost, when a copy is there that the in-doubt windows do not
excuse (none is where the topic can be read), or out of order.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from dataclasses import dataclass
from typing import Any

from tests import servers
from tests.benchmarks.home import opened_home
from tests.faults.producer_campaign import MOMENTS, Campaign, Tally, Variant, run
from tests.support import guarded_kafka, topics

KILLS, QUICK_KILLS = 200, 12
PARTITIONS = 3
PAGES = Variant("pages with marks", marks=True)
THREADS = Variant("three threads", threads=3)
COLUMNS = Variant("columns of 40, two threads", threads=2, column=40)
BLIND = Variant("may not read", threads=2, readable=False)


@dataclass(frozen=True, slots=True)
class Share:
    """A variant and its part of the kills, in fifths."""

    variant: Variant
    fifths: int


SHARES = (Share(PAGES, 2), Share(THREADS, 1), Share(COLUMNS, 1), Share(BLIND, 1))


def open_campaign(variant: Variant, kafka: guarded_kafka.GuardedKafkaServer, home: Any) -> Campaign:
    """Make a topic and a campaign over it, with the rights that the variant has."""
    topic = topics.new_topic(kafka.bootstrap_servers, "kills", PARTITIONS)
    client: dict[str, object] = {"bootstrap.servers": kafka.bootstrap_servers}
    if not variant.readable:
        kafka.let_write(topic)
        client = kafka.writer
    return Campaign(variant, client, kafka.bootstrap_servers, topic, home)


def main() -> int:
    quick = os.environ.pop("QUICK", "") == "1"
    kills = int(os.environ.pop("KILLS", QUICK_KILLS if quick else KILLS))
    seed = int(os.environ.pop("PRODUCER_SEED", random.randrange(10**6)))
    began = time.monotonic()
    tallies = {}
    with opened_home() as (home, stack):
        kafka = stack.enter_context(servers.started(guarded_kafka.start, home))
        left = kills
        for number, share in enumerate(SHARES):
            part = left if number == len(SHARES) - 1 else kills * share.fifths // 5
            left -= part
            print(f"{share.variant.name}: {part} kills, seed {seed + number}", flush=True)
            campaign = open_campaign(share.variant, kafka, home / f"log-{number}")
            tallies[share.variant] = run(campaign, part, random.Random(seed + number))
    show(tallies)
    report = report_of(tallies, seed, time.monotonic() - began)
    print(json.dumps(report))
    wrong = report["lost"] or report["duplicates_outside_window"] or report["disordered_keys"]
    return 1 if wrong or report["strangers"] else 0


def report_of(tallies: dict[Variant, Tally], seed: int, seconds: float) -> dict[str, Any]:
    """Return the sums; ``duplicates_readable`` are those of variants that may read."""
    return {
        "kills": sum(t.kills for t in tallies.values()),
        "messages": sum(t.messages for t in tallies.values()),
        "lost": sum(len(t.lost) for t in tallies.values()),
        "duplicates": sum(t.duplicates for t in tallies.values()),
        "duplicates_outside_window": sum(t.outside for t in tallies.values()),
        "duplicates_readable": sum(t.duplicates for v, t in tallies.items() if v.readable),
        "strangers": sum(len(t.strangers) for t in tallies.values()),
        "disordered_keys": sum(len(t.disordered) for t in tallies.values()),
        "missed": {
            f"{variant.name}: {moment}": 1
            for variant, tally in tallies.items()
            for moment in MOMENTS
            if not tally.moments[moment]
        },
        "seed": seed,
        "seconds": round(seconds, 1),
    }


def show(tallies: dict[Variant, Tally]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for name in ("", *(variant.name for variant in tallies)):
        table.add_column(name, justify="right" if name else "left")

    def row(words: str, of: Any) -> None:
        table.add_row(words, *(f"{of(tally):,}" for tally in tallies.values()))

    row("kills", lambda t: t.kills)
    for moment in (*MOMENTS, "caught in a checkpoint"):
        row(f"  {moment}", lambda t, moment=moment: t.moments[moment])
    row("messages", lambda t: t.messages)
    for words in ("replayed", "found"):
        row(f"  {words}", lambda t, words=words: t.recoveries[words])
    row("largest window of a kill", lambda t: t.largest_window)
    row("lost", lambda t: len(t.lost))
    row("duplicates", lambda t: t.duplicates)
    row("  outside the windows", lambda t: t.outside)
    row("keys out of order", lambda t: len(t.disordered))
    Console(width=100).print(table)
    for tally in tallies.values():
        for name, what in (("lost", tally.lost), ("never produced", tally.strangers)):
            if what:
                print(f"{name}: {', '.join(what[:10])}")


if __name__ == "__main__":
    sys.exit(main())
