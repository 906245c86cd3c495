"""Compaction: whatever dies, whoever reads meanwhile, every trace is there once."""

from __future__ import annotations

import contextlib
import hashlib
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache

import pyarrow as pa
import pytest
from tests.unit.tracing.samples import NOON_US, batch, ids

from waybill.errors import NotDeletedError, RetryError
from waybill.storage import ObjectInfo, ObjectMissingError
from waybill.tracing import Compactor, bucket_of
from waybill.tracing.layout import EARLY_PREFIX, LAYOUT_KEY, Hour, Layout, object_key, place_of
from waybill.tracing.manifests import Manifest, read_manifests, visible
from waybill.tracing.parquet import read_whole, sorted_body

BUCKETS = 3
NOON = Hour.of(datetime.fromtimestamp(NOON_US / 1_000_000, UTC))
NOW = -3600.0
"""``after_s`` by which every object is old enough."""


class _Died(BaseException):
    """What a SIGKILL is to the store: no later call comes."""


class _MortalStore:
    """In memory. Calls ``seen`` after each change; ends its caller after ``lives`` changes."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}
        self.lives = 10**9
        self.seen: Callable[[], None] = lambda: None
        self.listed: Callable[[], None] = lambda: None
        self.kept: set[str] = set()
        """Keys of objects that a policy keeps."""

    def put(self, key: str, body: bytes) -> str:
        self.bodies[key] = body
        self._changed()
        return _tag(body)

    def get(self, key: str) -> bytes:
        return self.get_tagged(key)[0]

    def get_tagged(self, key: str) -> tuple[bytes, str]:
        if key not in self.bodies:
            raise ObjectMissingError(key)
        return self.bodies[key], _tag(self.bodies[key])

    def swap(self, key: str, body: bytes, *, expected: str | None) -> str | None:
        there = _tag(self.bodies[key]) if key in self.bodies else None
        return self.put(key, body) if there == expected else None

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            if key not in self.kept:
                self.bodies.pop(key, None)
            self._changed()
        if kept := self.kept.intersection(keys):
            raise NotDeletedError(dict.fromkeys(kept, "AccessDenied"))

    def list(self, prefix: str) -> list[ObjectInfo]:
        self.listed()
        return [
            ObjectInfo(key, len(body), datetime.now(UTC))
            for key, body in sorted(self.bodies.items())
            if key.startswith(prefix)
        ]

    def _changed(self) -> None:
        self.seen()
        self.lives -= 1
        if self.lives == 0:
            raise _Died


def _tag(body: bytes) -> str:
    return hashlib.md5(body).hexdigest()


def _fill(store: _MortalStore, hours: int = 1, seed: str = "") -> Counter[str]:
    """Ship some objects, with children and a trace that is there twice; return how often each is."""
    if LAYOUT_KEY not in store.bodies:
        store.put(LAYOUT_KEY, Layout(BUCKETS).encode())
    for hour in range(hours):
        for number in range(2):
            event_ids = [*ids(30, f"{seed}{hour}{number}"), f"a{seed}/1", f"a{seed}", f"a{seed}"]
            at_us = NOON_US + hour * 3_600_000_000
            _ship(store, NOON.number + hour, f"{seed}ship-{number}", event_ids, at_us)
    return _counted(store)


def _ship(store: _MortalStore, hour: int, name: str, event_ids: list[str], at_us: int) -> str:
    key = object_key(BUCKETS, Hour(hour), name)
    table = pa.Table.from_batches([batch(event_ids, at_us=at_us)])
    store.put(key, sorted_body(table))
    return key


def _counted(store: _MortalStore) -> Counter[str]:
    """What a reader sees: each event id of each hour, as often as it is there."""
    found: Counter[str] = Counter()
    for one in visible(store, Layout(BUCKETS), range(BUCKETS + 1), None, None, each=map):
        names = _names(store.get(one.key))
        assert list(names) == sorted(names)
        if one.place.bucket < BUCKETS:
            assert {bucket_of(name, BUCKETS) for name in names} == {one.place.bucket}
        found.update(f"{one.place.hour.path}/{name}" for name in names)
    return found


@cache
def _names(body: bytes) -> tuple[str, ...]:
    return tuple(read_whole(pa.BufferReader(body)).column("event_id").to_pylist())


def _compactor(store: _MortalStore, *, kept_s: float = 600.0, lease_s: float = 0.0) -> Compactor:
    return Compactor(store, after_s=NOW, kept_s=kept_s, lease_s=lease_s)


def _objects(store: _MortalStore) -> list[str]:
    return [info.key for info in store.list("traces/") if place_of(info.key) is not None]


@pytest.fixture
def store() -> _MortalStore:
    return _MortalStore()


def test_fresh_objects_become_one_for_each_bucket(store: _MortalStore) -> None:
    before = _fill(store, hours=2)
    report = _compactor(store).run()
    assert (report.hours, report.objects_before, report.objects_after) == (2, 4, 2 * BUCKETS)
    assert report.traces == before.total() == 2 * 2 * 33
    assert _counted(store) == before
    assert _compactor(store).run().hours == 0, "what is replaced is not compacted again"
    assert _compactor(store, kept_s=0).run().deleted == 4
    assert _counted(store) == before
    assert len(_objects(store)) == 2 * BUCKETS
    assert read_manifests(store) == ()


def test_late_objects_are_merged_with_what_is_compacted(store: _MortalStore) -> None:
    _fill(store)
    _compactor(store).run()
    _compactor(store, kept_s=0).run()
    before = _fill(store, seed="late")
    assert _compactor(store).run().objects_before == BUCKETS + 2
    assert _compactor(store, kept_s=0).run().deleted == BUCKETS + 2
    assert _counted(store) == before
    assert len(_objects(store)) == BUCKETS


def test_while_an_hour_goes_on_only_fresh_objects_are_moved(store: _MortalStore) -> None:
    store.put(LAYOUT_KEY, Layout(BUCKETS).encode())
    now = Hour.of(datetime.now(UTC) + timedelta(hours=2)).number
    for name in ("one", "two"):
        _ship(store, now, name, ids(40, name), now * 3_600_000_000)
        assert _compactor(store).run().objects_before == 1
        _compactor(store, kept_s=0).run()
    assert len(_objects(store)) == 2 * BUCKETS
    assert _counted(store).total() == 80


def test_a_run_that_dies_at_any_change_leaves_every_trace_once_and_the_next_one_finishes() -> None:
    for lives in range(1, 100):
        store = _MortalStore()
        before = _fill(store)

        def unchanged(store: _MortalStore = store, before: Counter[str] = before) -> None:
            assert _counted(store) == before

        store.seen = unchanged
        store.lives = lives
        died = False
        try:
            _compactor(store).run()
            _compactor(store, kept_s=0).run()
        except _Died:
            died = True
        store.lives = 10**9
        _compactor(store, kept_s=0).run()
        _compactor(store, kept_s=0).run()
        assert len(_objects(store)) == BUCKETS, lives
        assert read_manifests(store) == ()
        assert _counted(store) == before
        if not died:
            break
    assert lives > 8, "claim, outputs, done, note, deleting, objects, manifest"


@pytest.mark.parametrize("written", [1, 2, BUCKETS])
def test_a_run_that_was_thought_dead_and_wakes_up_changes_nothing(
    store: _MortalStore, written: int
) -> None:
    before = _fill(store)
    slow, quick = (_compactor(store, lease_s=0) for _ in range(2))
    woken: list[int] = []

    def overtaken() -> None:
        assert _counted(store) == before
        outputs = [key for key in _objects(store) if "_0000" in key]
        if len(outputs) == written and not woken:
            woken.append(1)
            assert quick.run().hours == 1

    store.seen = overtaken
    assert slow.run().hours == 0
    assert woken
    assert _counted(store) == before
    _compactor(store, kept_s=0).run()
    assert len(_objects(store)) == BUCKETS
    assert _counted(store) == before


def test_two_runs_that_clear_one_hour_end_it_once(store: _MortalStore) -> None:
    before = _fill(store, hours=2)
    _compactor(store).run()
    others: list[int] = []

    def overtaken() -> None:
        if not others and read_manifests(store)[0].state == "deleting":
            others.append(0)
            others.append(_compactor(store, kept_s=0).run().deleted)

    store.seen = overtaken
    assert _compactor(store, kept_s=0).run().deleted == 2, "the other has cleared the second hour"
    assert others == [0, 4]
    assert read_manifests(store) == ()
    assert _counted(store) == before


def test_an_hour_that_another_run_compacts_is_left_alone(store: _MortalStore) -> None:
    before = _fill(store)
    theirs = Manifest(NOON.path, "run-1", "writing", ()).beaten()
    store.put(theirs.key, theirs.encode())
    assert _compactor(store, lease_s=3600).run().hours == 0
    assert read_manifests(store) == (theirs,)
    assert _counted(store) == before


def test_an_hour_whose_replaced_objects_cannot_be_deleted_holds_no_other_up(
    store: _MortalStore,
) -> None:
    before = _fill(store, hours=3)
    _compactor(store).run()
    _ship(store, NOON.number + 3, "late", ids(30, "late"), NOON_US + 3 * 3_600_000_000)
    after = _counted(store)
    assert after.total() == before.total() + 30
    store.kept = {object_key(BUCKETS, NOON, "ship-1")}
    with pytest.raises(NotDeletedError, match="ship-1"):
        _compactor(store, kept_s=0).run()
    hours = [manifest.at.number - NOON.number for manifest in read_manifests(store)]
    assert hours == [0, 3], "it is hidden still; the next two are over, and the last is compacted"
    assert _counted(store) == after
    store.kept = set()
    _compactor(store, kept_s=0).run()
    assert read_manifests(store) == ()
    assert _counted(store) == after


class _Beside:
    """A compaction in a thread, which goes on by some changes at each listing of the reader."""

    def __init__(self, store: _MortalStore, seed: int) -> None:
        self._chance = random.Random(seed)
        self._steps, self.waits, self.done = (
            threading.Semaphore(0),
            threading.Event(),
            threading.Event(),
        )
        self._reader = threading.get_ident()
        self._thread = threading.Thread(target=self._run, args=(store,), daemon=True)
        store.seen, store.listed = self._wait, self._go_on
        self._thread.start()

    def _run(self, store: _MortalStore) -> None:
        try:
            _compactor(store, lease_s=3600).run()
        finally:
            self.done.set()
            self.waits.set()

    def _wait(self) -> None:
        self.waits.set()
        assert self._steps.acquire(timeout=600)

    def _go_on(self) -> None:
        if threading.get_ident() != self._reader:
            return
        for _ in range(self._chance.choice([0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 5])):
            self._let_it_come()
            self.waits.clear()
            self._steps.release()
        self._let_it_come()

    def _let_it_come(self) -> None:
        """Wait until it is at its next change, or over."""
        while not (self.done.is_set() or self.waits.wait(0.02)):
            pass

    def end(self) -> None:
        self._steps.release(1000)
        self._thread.join(600)


@pytest.mark.parametrize("seed", range(12))
def test_a_reader_beside_a_compaction_sees_every_trace_once(store: _MortalStore, seed: int) -> None:
    before = _fill(store, hours=3)
    beside = _Beside(store, seed)
    answers = 0
    while not beside.done.is_set():
        with contextlib.suppress(RetryError):  # compacted all the time: that is no answer
            assert _counted(store) == before
            answers += 1
    beside.end()
    assert answers >= 1
    assert _counted(store) == before


def test_a_damaged_object_keeps_its_hour_as_it_is_and_no_other(store: _MortalStore) -> None:
    _fill(store, hours=2)
    key = object_key(BUCKETS, NOON, "ship-0")
    body = bytearray(store.get(key))
    body[200] ^= 0xFF
    store.put(key, bytes(body))
    report = _compactor(store).run()
    assert (report.hours, len(report.damaged)) == (1, 1)
    assert key in report.damaged[0]
    assert [one.hour for one in read_manifests(store)] == [Hour(NOON.number + 1).path]
    assert store.get(key) == body


def test_only_the_hour_that_is_named_is_compacted(store: _MortalStore) -> None:
    _fill(store, hours=2)
    assert _compactor(store).run(Hour(NOON.number + 1)).hours == 1
    assert _compactor(store, kept_s=0).run(NOON).deleted == 0
    assert len(read_manifests(store)) == 2


def test_a_store_of_the_first_format_is_taken_over(store: _MortalStore) -> None:
    store.put(LAYOUT_KEY, Layout(BUCKETS, early=True).encode())
    table = pa.Table.from_batches([batch(ids(50))])
    store.put(f"{EARLY_PREFIX[:-3]}{NOON.path}/bucket=001/old.parquet", sorted_body(table))
    assert _compactor(store).run().traces == 50
    assert _compactor(store, kept_s=0).run().deleted == 1
    assert _counted(store).total() == 50
    assert Layout.decode(store.get(LAYOUT_KEY)) == Layout(BUCKETS)


def test_nothing_is_compacted_where_there_are_no_traces(store: _MortalStore) -> None:
    assert _compactor(store).run().hours == 0
