"""Kill a producing process again and again, at chosen moments; then count what Kafka holds.

What is allowed: nothing is lost, whatever happens. Where the producer may read its topic, nothing
is there twice. Where it may not, a record may have one copy more for each kill that it was in doubt
at: one not below the low watermark of the checkpoint that this kill left on the disk. Any other
copy counts as ``duplicates_outside_window``.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.producer_child import names_of_page
from tests.support import topics

from waybill.producer.checkpoint import Checkpoint, CheckpointFile
from waybill.producer.client import HEADER, read_stamp

CHILD = Path(__file__).with_name("producer_child.py")
MOMENTS = ("start", "recovery", "running", "checkpoint")
_SILENT_MOST_S = 120.0
_FINISH_PAGES, _FINISH_NUMBERS = 20, 200


@dataclass(frozen=True, slots=True)
class Variant:
    """How the child produces."""

    name: str
    marks: bool = False
    threads: int = 1
    readable: bool = True
    """The child may read the topic that it writes to."""
    column: int = 1
    """Messages of one ``produce_values``; 1: ``produce``."""


@dataclass(slots=True)
class Tally:
    """What came of a campaign."""

    kills: int = 0
    messages: int = 0
    """Different messages in the topic."""
    lost: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)
    """In the topic, but never produced."""
    disordered: list[str] = field(default_factory=list)
    """Keys whose messages (their first copies) are not in the order they were produced in."""
    duplicates: int = 0
    """Copies beside the first."""
    outside: int = 0
    """Those that no kill excuses."""
    largest_window: int = 0
    """Most records that a kill left in doubt."""
    moments: Counter[str] = field(default_factory=Counter)
    recoveries: Counter[str] = field(default_factory=Counter)
    """Sums of what the openings said: replayed, found, quarantined, unreadable (topics)."""


@dataclass(frozen=True, slots=True)
class Window:
    """The records in doubt after a kill: low <= lsn < end."""

    low: int
    end: int

    @property
    def records(self) -> int:
        return self.end - self.low


@dataclass(frozen=True, slots=True)
class Found:
    """One message of the topic."""

    name: str
    key: bytes | None
    lsn: int


class Campaign:
    """Lives and deaths of one log, over one topic.

    Args:
        kafka: what the child connects with.
        servers: for ourselves: may read all.
    """

    def __init__(
        self, variant: Variant, kafka: dict[str, object], servers: str, topic: str, home: Path
    ) -> None:
        self.variant = variant
        self.topic = topic
        self.home = home
        self.recoveries: Counter[str] = Counter()
        self.moments: Counter[str] = Counter()
        self._kafka = kafka
        self._servers = servers
        self._runs = 0
        self._windows: list[Window] = []
        home.mkdir(parents=True, exist_ok=True)

    # Lives

    def start(self, limit: int | None = None) -> subprocess.Popen[str]:
        """Start a child: without end, or up to so many pages (numbers a thread)."""
        plan = {
            "kafka": self._kafka,
            "topic": self.topic,
            "home": str(self.home),
            "run": self._runs,
            "marks": self.variant.marks,
            "threads": self.variant.threads,
            "column": self.variant.column,
            "limit": limit,
        }
        self._runs += 1
        path = os.pathsep.join(path for path in sys.path if path)
        return subprocess.Popen(
            [sys.executable, str(CHILD), json.dumps(plan)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            text=True,
        )

    def kill(self, moment: str, order: random.Random) -> None:
        """Start a child, let it come to the moment, kill it."""
        process = self.start()
        with _watched(process):
            self._come_to(moment, process, order)
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=600)
        assert process.returncode == -signal.SIGKILL, f"the child ended with {process.returncode}"
        self.moments[moment] += 1
        self.note_window()

    def checkpoint(self) -> Checkpoint:
        """Return the log's checkpoint as it is on disk."""
        checkpoint, damaged = CheckpointFile(self.home / "wal").load()
        assert not damaged, "a kill tore the checkpoint"
        return checkpoint

    def note_window(self) -> Window:
        """Take down what the log holds in doubt, now that its process is dead."""
        checkpoint = self.checkpoint()
        files = (self.home / name for name in ("said", "tracker"))  # messages and marks
        records = sum(file.read_bytes().count(b"\n") for file in files if file.exists())
        # appended, killed before it was said
        unsaid = self.variant.threads * self.variant.column * self._runs
        window = Window(checkpoint.low_lsn, 1 + records + unsaid)
        self._windows.append(window)
        return window

    def _come_to(self, moment: str, process: subprocess.Popen[str], order: random.Random) -> None:
        if moment == "start":
            time.sleep(order.uniform(0.0, 1.2))
        elif moment == "recovery":
            line = self._line(process)
            while line == "opening":
                line = self._line(process)  # the next is that records are in doubt, or ready
            time.sleep(order.uniform(0.0, 0.7))
        else:
            self.wait_ready(process)
            time.sleep(order.uniform(0.0, 0.5))
            if moment == "checkpoint":
                self.moments["caught in a checkpoint"] += self._wait_checkpoint()

    def wait_ready(self, process: subprocess.Popen[str]) -> None:
        """Wait for the end of the child's recovery."""
        while not self._line(process).startswith("ready"):
            pass

    def _line(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline().rstrip("\n")
        assert line, "the child died by itself, or said nothing for too long"
        if line.startswith("ready"):
            self.recoveries.update(json.loads(line.removeprefix("ready")))
        return line

    def _wait_checkpoint(self) -> bool:
        """Wait until the checkpoint's new file is there, at most a second."""
        new = str(self.home / "wal" / "checkpoint.new")
        limit = time.monotonic() + 1
        while time.monotonic() < limit:
            if os.access(new, os.F_OK):
                return True
        return False

    def finish(self) -> int:
        """Let a last child come to an end; return how many pages (numbers a thread) there are."""
        limit = _FINISH_NUMBERS
        if self.variant.marks:
            limit = len(self._lines("tracker")) + _FINISH_PAGES
        process = self.start(limit)
        with _watched(process):
            self.wait_ready(process)
            process.communicate(timeout=_SILENT_MOST_S)
        assert process.returncode == 0, f"the last child ended with {process.returncode}"
        return limit

    # Counts

    def said(self) -> list[str]:
        """Return the names of the messages whose ``produce`` returned."""
        return self._lines("said")

    def committed(self) -> list[int]:
        """Return the pages that the tracker holds, as they were committed."""
        return [int(line) for line in self._lines("tracker")]

    def _lines(self, name: str) -> list[str]:
        path = self.home / name
        return path.read_text().split() if path.exists() else []

    def tally(self, limit: int) -> Tally:
        """Read the topic and compare. ``limit``: what ``finish`` returned."""
        found = [_found(message) for message in topics.read_all(self._servers, self.topic)]
        copies = Counter(message.name for message in found)
        lost, strangers = self._compared(copies.keys(), limit)
        return Tally(
            kills=sum(self.moments[moment] for moment in MOMENTS),
            messages=len(copies),
            lost=sorted(lost),
            strangers=sorted(strangers),
            disordered=sorted(_disordered(found)),
            duplicates=sum(copies.values()) - len(copies),
            outside=self._outside(found),
            largest_window=max((window.records for window in self._windows), default=0),
            moments=self.moments,
            recoveries=self.recoveries,
        )

    def _compared(self, there: Any, limit: int) -> tuple[set[str], set[str]]:
        """Return what should be in the topic and is not, and what is and should not be."""
        expected = set(self.said())
        if self.variant.marks:
            expected |= {name.decode() for page in range(limit) for name in names_of_page(page)}
            return expected - there, there - expected
        return expected - there, there - expected - _next_of(expected, self._runs, self.variant)

    def _outside(self, found: Sequence[Found]) -> int:
        outside = 0
        for lsn, count in Counter(message.lsn for message in found).items():
            if count > 1:
                excused = 0
                if not self.variant.readable:
                    excused = sum(window.low <= lsn < window.end for window in self._windows)
                outside += max(0, count - 1 - excused)
        return outside


def run(campaign: Campaign, kills: int, order: random.Random) -> Tally:
    """Kill so often, each moment about equally often in random order; finish; count."""
    moments = [MOMENTS[number % len(MOMENTS)] for number in range(kills)]
    order.shuffle(moments)
    for moment in moments:
        campaign.kill(moment, order)
    return campaign.tally(campaign.finish())


@contextmanager
def _watched(process: subprocess.Popen[str]) -> Any:
    """Kill the child when it hangs, so that who waits for its words goes on."""
    watchdog = threading.Timer(_SILENT_MOST_S, process.kill)
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()
        if process.poll() is None:
            process.kill()
            process.wait()


def _found(message: Any) -> Found:
    stamps = [read_stamp(value) for name, value in message.headers() if name == HEADER]
    stamp = stamps[-1]
    assert stamp is not None
    return Found(message.value().split(b" ")[0].decode(), message.key(), stamp[2])


def _disordered(found: Sequence[Found]) -> set[str]:
    """Return the keys whose first copies do not follow each other as they were produced."""
    last: dict[bytes | None, tuple[int, ...]] = {}
    seen: set[str] = set()
    wrong = set()
    for message in found:
        if message.name in seen:
            continue
        seen.add(message.name)
        place = tuple(int(part) for part in message.name.split("."))
        if place < last.get(message.key, ()):
            wrong.add(str(message.key))
        last[message.key] = place
    return wrong


def _next_of(said: set[str], runs: int, variant: Variant) -> set[str]:
    """Return the names of each thread's last call, which may be there unsaid: killed in between."""
    numbers: Counter[str] = Counter(name.rpartition(".")[0] for name in said)
    return {
        f"{run}.{thread}.{numbers[f'{run}.{thread}'] + number}"
        for run in range(runs)
        for thread in range(variant.threads)
        for number in range(variant.column)
    }
