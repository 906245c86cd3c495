"""The log and its checkpoint against a model, on a disk that dies, tears, reorders and refuses.

``PRODUCER_MODEL_EXAMPLES=20000 pytest tests/unit/producer/test_log_model.py`` runs for longer, on other
examples each time; else they are the same ones.
"""

import os
import random

import pytest
from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.support import memory_logs
from tests.support.memory_logs import FOLDER, checkpoint, open_log

from waybill.errors import RetryError, StopError
from waybill.producer.wal import DATA, MARK
from waybill.producer.wal.memory_disk import Killed, MemoryDisk

EXAMPLES = int(os.environ.get("PRODUCER_MODEL_EXAMPLES", "0"))
SIZES = st.sampled_from([0, 1, 100, 400, 460, 1000, 1500, 5000])
SEEDS = st.integers(0, 2**32)


class LogMachine(RuleBasedStateMachine):
    """``held`` is what a kill must leave, ``synced`` what a power cut must leave as well."""

    @initialize()
    def begin(self):
        self.disk = MemoryDisk()
        self.held = {}
        self.ever = {}
        self.synced = 0
        self.floor = 1
        self.damaged = set()
        self.count = 0
        self.stopped = self.tainted = False
        self.reopen()

    def reopen(self):
        self.log, self.file, found, put_aside = open_log(self.disk, durability="group")
        assert not put_aside
        self.stopped = False
        return found

    # What the producer does

    @precondition(lambda self: not self.stopped)
    @rule(size=SIZES, kind=st.sampled_from([DATA, DATA, MARK]))
    def append(self, size, kind):
        self.count += 1
        value = (b"%d." % self.count * size)[:size]
        expected = self.log.next_lsn
        try:
            lsn = self.log.append(kind, self.count, b"topic", None, value, b"")
        except RetryError:
            event("append refused")
            assert self.log.next_lsn == expected
            return
        assert lsn == expected
        name = (self.log.wal_id, self.log.segment_id, lsn)
        assert name not in self.ever, "one name for two records"
        self.held[lsn] = self.ever[name] = (self.log.segment_id, kind, self.count, value)

    @precondition(lambda self: not self.stopped)
    @rule()
    def sync(self):
        try:
            self.log.sync()
        except StopError:
            event("sync refused for ever")
            self.stopped = True
        else:
            assert self.log.synced_lsn == self.log.next_lsn - 1
        self.synced = max(self.synced, self.log.synced_lsn)

    @rule(back=st.integers(0, 8), retire=st.booleans())
    def checkpoint(self, back, retire):
        if retire and not back:
            self.log.retire()
        floor = max(self.floor, self.log.next_lsn - back)
        try:
            checkpoint(self.log, self.file, floor)
        except OSError:
            event("checkpoint refused")
            return
        self.floor = floor

    @rule()
    def note(self):
        self.log.note_position()

    @rule()
    def prepare(self):
        try:
            self.log.prepare()
        except (OSError, RetryError):
            event("prepare refused")

    # What the disk does

    @rule(
        what=st.sampled_from(
            ["make", "sync", "write", "rename", "sync_directory", "link", "remove"]
        ),
        times=st.integers(1, 3),
    )
    def refuse(self, what, times):
        self.disk.refuse(what, times)

    @rule(seed=SEEDS)
    def write_back(self, seed):
        self.disk.write_back(random.Random(seed))

    # The ends

    @rule()
    def kill(self):
        self.disk.kill()
        self.look(power=False)

    @rule(
        step=st.integers(1, 12),
        after=st.booleans(),
        what=st.sampled_from(["checkpoint", "sync", "append", "open", "close"]),
    )
    def kill_inside(self, step, after, what):
        """Die at some operation of the disk (or in peace after the call)."""
        self.disk.kill_at(step, after=after)
        try:
            {
                "checkpoint": lambda: self.checkpoint(2, retire=True),
                "sync": self.sync if not self.stopped else self.note,
                "append": lambda: self.append(1500, DATA) if not self.stopped else None,
                "open": self.reopen_twice,
                "close": self.close,
            }[what]()
        except Killed:
            event(f"killed in {what}")
        self.disk.kill()
        self.look(power=False)

    def reopen_twice(self):
        self.disk.kill()
        self.disk.kill_at(3)
        self.reopen()

    def close(self):
        try:
            self.log.close(self.floor)
        except (StopError, OSError):
            event("close refused")

    @rule(seed=SEEDS)
    def power_cut(self, seed):
        self.disk.power_cut(random.Random(seed))
        self.look(power=True)

    @rule()
    def close_and_open(self):
        self.close()
        self.disk.refuse("sync", 0)
        self.disk.kill()
        self.look(power=False)

    @precondition(lambda self: self.held)
    @rule(seed=SEEDS)
    def flip(self, seed):
        """Damage one record of a segment that nobody writes to; the machine is off meanwhile."""
        random_ = random.Random(seed)
        self.disk.kill()
        names = [FOLDER / name for name in memory_logs.names(self.disk)]
        if not names:
            self.look(power=False)
            return
        path = random_.choice(names)
        content = self.disk.read(path)
        segment = int(path.name.split("-")[2], 16)
        mine = [lsn for lsn, (its, *_) in self.held.items() if its == segment]
        used = len(content.rstrip(b"\0"))
        if used:
            self.disk.flip(path, random_.randrange(8 * used))
        self.look(power=False, flipped=mine)

    def look(self, *, power, flipped=()):
        found = self.reopen()
        self.floor = max(self.floor, found.low_lsn)
        log = self.log
        records = {r.lsn: (r.segment_id, r.kind, r.timestamp_ms, r.value) for r in log.records(1)}
        assert list(records) == sorted(records)
        for lsn, record in records.items():
            assert self.ever[log.wal_id, record[0], lsn] == record, (
                "a record that was never appended"
            )
        needed = [lsn for lsn in self.held if lsn >= self.floor and lsn not in self.damaged]
        if power:
            needed = [lsn for lsn in needed if lsn <= self.synced]
        missing = [lsn for lsn in needed if lsn not in records]
        assert len(missing) <= (1 if flipped else 0)
        assert set(missing) <= set(flipped)
        self.check_reports(power, flipped, missing)
        self.damaged |= set(missing)
        if power:
            event("power cut")
            self.held = {lsn: record for lsn, record in records.items()}
        assert log.next_lsn > max(records, default=0)
        assert log.next_lsn >= self.floor
        self.held = {lsn: r for lsn, r in self.held.items() if lsn in records or lsn >= self.floor}

    def check_reports(self, power, flipped, missing):
        self.tainted = self.tainted or power or bool(flipped)
        if not self.tainted:
            assert not self.log.damage
            assert not self.log.gaps
        if missing:
            event("damage found")
            assert self.log.damage

    def teardown(self):
        if hasattr(self, "disk"):
            self.disk.kill()
            self.look(power=False)


@pytest.mark.hypothesis  # make campaign-search
def test_whatever_dies_or_refuses_the_log_keeps_what_it_said():
    run_state_machine_as_test(
        LogMachine,
        settings=settings(
            max_examples=EXAMPLES or 150,
            stateful_step_count=40,
            deadline=None,
            derandomize=not EXAMPLES,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
