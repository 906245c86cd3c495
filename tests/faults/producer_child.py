"""The process that is killed: it produces numbered messages for ever, or up to a limit.

    python producer_child.py '{"kafka": {...}, "topic": ..., "home": ..., "run": 3, ...}'

With ``marks`` it works as ingestion does: pages, and a file that stands for the tracker, one line a
committed page. Without, threads count for themselves. What ``produce`` returned for is written to
``said`` at once, by a system call: that survives a SIGKILL. Standard output: ``opening`` before the
producer is opened, ``log …`` for what the library warns of (while opening: that records are in
doubt), ``ready`` with what recovery did.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from waybill.producer import LosslessProducer
from waybill.settings import WalSettings

PAUSE_EVERY = 50
PAUSE_S = 0.005


def names_of_page(page: int) -> list[bytes]:
    """Return the names of a page's messages."""
    return [b"%d.%d" % (page, row) for row in range(1 + page * 7 % 60)]


class Child:
    """One life."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.topic: str = plan["topic"]
        home = Path(plan["home"])
        self.tracker_path = home / "tracker"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self.tracker = os.open(self.tracker_path, flags)
        self.said = os.open(home / "said", flags)
        self.settings = WalSettings(
            dir=home,
            segment_bytes=256 * 1024,
            disk_floor_bytes=0,
            checkpoint_interval_ms=100,
        )

    def live(self) -> None:
        marks = self.plan["marks"]
        print("opening", flush=True)
        with LosslessProducer(
            self.settings, {**self.plan["kafka"], "linger.ms": 20}, name="wal", marks=marks
        ) as producer:
            found = producer.recovered
            counts = {name: getattr(found, name) for name in ("replayed", "found", "quarantined")}
            unreadable = len(found.unreadable)
            print("ready", json.dumps({**counts, "unreadable": unreadable}), flush=True)
            if marks:
                self.produce_pages(producer)
            else:
                self.produce_in_threads(producer)
            assert producer.flush(60) == 0

    # Pages, with marks

    def commit(self, page: int) -> None:
        os.write(self.tracker, b"%d\n" % page)

    def committed(self) -> int:
        lines = self.tracker_path.read_bytes().split(b"\n")
        return int(lines[-2]) if len(lines) > 1 else -1

    def produce_pages(self, producer: LosslessProducer) -> None:
        for lsn, payload in producer.recovered.marks:
            page = json.loads(payload)["page"]
            if page > self.committed():
                self.commit(page)
            producer.confirm(lsn)
        there = {(record.value or b"").split(b" ")[0] for record in producer.recovered.unmarked}
        limit = self.plan["limit"]
        pages = itertools.count() if limit is None else range(limit)
        for page in itertools.islice(pages, self.committed() + 1, None):
            for row, name in enumerate(names_of_page(page)):
                if name not in there:
                    value = name + b" " * (page * 13 % 900)
                    producer.produce(self.topic, value, b"%d" % (row % 7))
                    os.write(self.said, name + b"\n")
            lsn = producer.mark(json.dumps({"page": page}).encode())
            self.commit(page)
            producer.confirm(lsn)

    # Numbers, without

    def produce_in_threads(self, producer: LosslessProducer) -> None:
        threads = [
            threading.Thread(target=self.produce_numbers, args=(producer, number))
            for number in range(self.plan["threads"])
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def produce_numbers(self, producer: LosslessProducer, thread: int) -> None:
        limit, size = self.plan["limit"], self.plan["column"]
        for first in itertools.count(0, size) if limit is None else range(0, limit, size):
            numbers = range(first, first + size if limit is None else min(limit, first + size))
            names = [b"%d.%d.%d" % (self.plan["run"], thread, number) for number in numbers]
            values = [
                name + b" " * (number * 13 % 900)
                for name, number in zip(names, numbers, strict=True)
            ]
            keys = [b"%d.%d" % (thread, number % 3) for number in numbers]
            if size == 1:
                producer.produce(self.topic, values[0], keys[0])
            else:
                producer.produce_values(self.topic, values, keys)
            os.write(self.said, b"".join(name + b"\n" for name in names))
            if first % PAUSE_EVERY + size >= PAUSE_EVERY:
                time.sleep(PAUSE_S)


def die(failed: threading.ExceptHookArgs) -> None:
    """End the process with a thread that failed: the others never end."""
    threading.__excepthook__(failed)
    os._exit(3)


if __name__ == "__main__":
    threading.excepthook = die
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="log %(message)s")
    Child(json.loads(sys.argv[1])).live()
