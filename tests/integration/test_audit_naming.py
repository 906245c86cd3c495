"""Breaches are named from traces on the real object store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers import S3Server
from tests.support.audited import PIPELINE, Way
from tests.support.books import open_books

from waybill.access import Decision
from waybill.loading.quarantine import note_lost
from waybill.reconciliation import (
    NamingLimits,
    NamingReport,
    close_breach,
    name_breaches,
    read_breaches,
)
from waybill.settings import TraceSettings
from waybill.storage import ObjectStore
from waybill.tracing import DuckDbTraces, Recorder, run_shipper, traces

pytestmark = pytest.mark.serves


class Traced:
    """A way whose traces are written, shipped and named."""

    def __init__(self, way: Way, bucket: Any, folder: Path) -> None:
        self.way, self._bucket = way, bucket
        self._settings = TraceSettings(spool_dir=folder / "spool", buckets=4, roll_s=0.2)
        self._query = DuckDbTraces(ObjectStore(bucket), bucket, spool_dir=None)
        self._recorder = Recorder(self._settings.spool_dir)
        self.minute = int(time.time() // 60) - 29_000_000

    def taken(self, *numbers: int, page: int = 1) -> None:
        """Take events in, as a run does that ends well."""
        self.way.begin(self.minute)
        self.way.page(len(numbers), self.minute, open_from=self.minute)
        self.way.end(self.minute)
        self.write(numbers, "ingestion", "accepted", f"intake:{PIPELINE}:{page}")

    def sent(self, *numbers: int) -> None:
        self.way.send(*(self.way.event(n, self.minute) for n in numbers))

    def through(self, *numbers: int, swallow: set[str] = frozenset()) -> None:
        """Process and load what was sent; ``numbers``: in the order it was sent."""
        self.way.process(swallow=swallow)
        self.way.load()
        batch, commit = self.way.batches[-1], len(self.way.batches)
        kept = [n for n in numbers if f"e{n}" not in swallow]
        for phase in ("transformation", "mapping"):
            self.write(kept, phase, "passed", batch, kafka_partition=0)
        seen: set[int] = set()
        outcomes = ["duplicate" if n in seen else (seen.add(n) or "delivered") for n in kept]
        self.write(kept, "destination", outcomes, f"load:warehouse:{commit}")

    def write(self, numbers: Any, phase: str, outcome: Any, batch: str, **more: Any) -> None:
        if not numbers:
            return
        made = traces(
            [f"e{n}" for n in numbers], pipeline_id=PIPELINE, event_name="order", phase=phase,
            outcome=outcome, batch=batch, at_us=time.time_ns() // 1000, attempt=0,
            kafka_offset=list(range(len(numbers))), intake_minute=29_000_000 + self.minute, **more,
        )  # fmt: skip
        self._recorder.write([made])

    def ship(self) -> None:
        run_shipper(self._settings, ObjectStore(self._bucket), lambda: True, drain_s=60)

    def name(self, **limits: Any) -> NamingReport:
        return name_breaches(self.way.tracker, self._query, NamingLimits(**limits))

    def audit(self) -> None:
        self.way.audit(compare_ids=True)

    def close(self) -> None:
        self._query.close()


@pytest.fixture
def traced(postgres: Any, kafka: Any, s3: S3Server, tmp_path: Path) -> Iterator[Traced]:
    with open_books(postgres, "naming") as tracker:
        made = Traced(Way(tracker, kafka, tmp_path), s3.bucket("naming"), tmp_path)
        yield made
        made.close()


def on_list(traced: Traced) -> list[Any]:
    return traced.way.query("SELECT state, ids FROM audit_minutes")


def test_missing_events_are_named_once_the_traces_are_in(traced: Traced) -> None:
    traced.taken(*range(6))
    traced.sent(*range(6))
    traced.through(*range(6), swallow={"e2", "e4"})
    traced.audit()
    assert traced.name().waiting == 1
    assert read_breaches(traced.way.tracker)[0].named_at is None
    traced.ship()
    report = traced.name()
    [named] = report.named
    assert (named.stage, named.missing, named.doubled, named.whole) == (
        "transformation", ["e2", "e4"], [], True,
    )  # fmt: skip
    [found] = read_breaches(traced.way.tracker)
    assert (found.state, found.gap, found.missing) == ("open", 2, ("e2", "e4"))
    assert traced.name().compared == 0
    told = traced.way.query("SELECT detail->>'breach' FROM notices WHERE kind = 'breach'")
    assert told == [("on_the_way, opened",), ("on_the_way, named",)]


def test_what_was_lost_with_a_staged_object_is_named_and_is_no_open_breach(traced: Traced) -> None:
    way = traced.way
    traced.taken(*range(6))
    traced.sent(0, 1)
    way.process()
    for phase in ("transformation", "mapping"):
        traced.write([0, 1], phase, "passed", way.batches[-1], kafka_partition=0)
    [(key,)] = way.query("SELECT key FROM staged_objects")
    way.load(lose=True, record=lambda c: note_lost(c, "warehouse", {key: "it is gone"}))
    way.query("UPDATE staged_objects SET not_recovered = 'Kafka has no more' WHERE key = :k", k=key)
    traced.sent(*range(2, 6))
    traced.through(*range(2, 6))
    traced.ship()
    traced.audit()
    [named] = traced.name().named
    assert (named.stage, named.missing, named.harmless) == ("destination", ["e0", "e1"], True)
    [found] = read_breaches(way.tracker)
    assert (found.state, found.missing) == ("explained", ("e0", "e1"))
    assert "lost with staged objects" in found.reason
    told = way.query("SELECT detail->>'breach' FROM notices WHERE kind = 'breach'")
    assert told == [("ids, explained",)]


def test_minutes_in_balance_are_compared_and_are_through(traced: Traced) -> None:
    traced.taken(*range(4))
    traced.sent(*range(4))
    traced.through(*range(4))
    traced.audit()
    assert on_list(traced) == [("balanced", "")]
    traced.ship()
    assert (traced.name().compared, on_list(traced)) == (1, [])
    assert read_breaches(traced.way.tracker) == []


def test_one_lost_and_one_doubled_are_found_though_the_sums_agree(traced: Traced) -> None:
    traced.taken(*range(4))
    traced.sent(0, 2, 2, 3)
    traced.through(0, 2, 2, 3)
    traced.ship()
    traced.audit()
    assert read_breaches(traced.way.tracker) == []
    traced.name()
    [found] = read_breaches(traced.way.tracker)
    assert (found.key.kind, found.key.stage, found.gap) == ("ids", "transformation", 0)
    assert (found.missing, found.doubled) == (("e1",), ("e2",))
    traced.audit()
    traced.name()
    assert [b.state for b in read_breaches(traced.way.tracker)] == ["open"]
    close_breach(traced.way.tracker, found.id, Decision("anna", "known"))
    for _ in range(2):
        traced.audit()
        traced.name()
    assert [b.state for b in read_breaches(traced.way.tracker)] == ["closed"]
    assert on_list(traced) == []


def test_a_copy_that_the_destination_recognised_is_explained(traced: Traced) -> None:
    traced.taken(*range(3))
    traced.sent(0, 1, 1, 2)
    traced.through(0, 1, 1, 2)
    traced.way.query(
        "UPDATE ledger SET counts = replace(counts::text, '[4, 0, 4, 0, 0, 0, 0, 0]',"
        " '[4, 0, 3, 0, 0, 0, 0, 1]')::jsonb WHERE reference LIKE 'load:%'"
    )
    traced.audit()
    [found] = read_breaches(traced.way.tracker)
    assert (found.state, found.gap) == ("open", -1)
    traced.ship()
    [named] = traced.name().named
    assert named.harmless and named.doubled == ["e1"]
    [found] = read_breaches(traced.way.tracker)
    assert (found.state, found.doubled) == ("explained", ("e1",))
    assert "1 copy of" in found.reason and "the destination recognised it" in found.reason
    for _ in range(2):
        traced.audit()
        traced.name()
    assert [b.state for b in read_breaches(traced.way.tracker)] == ["explained"]
    assert on_list(traced) == []


def test_after_the_time_limit_only_stages_whose_traces_are_in_are_named(traced: Traced) -> None:
    traced.taken(*range(3))
    traced.sent(*range(3))
    traced.through(*range(3), swallow={"e1"})
    traced.ship()
    traced.way.query(
        "UPDATE ledger SET counts = replace(counts::text, '[2, 0, 2,', '[2, 1, 3,')::jsonb"
        " WHERE reference LIKE 'load:%'"
    )
    traced.audit()
    assert traced.name().waiting == 1
    report = traced.name(patience_s=0.0)
    assert [(n.stage, n.missing) for n in report.named] == [("transformation", ["e1"])]
    assert on_list(traced) == [("breach", "in part")]


def test_lost_traces_of_a_minute_in_balance_name_nobody(traced: Traced) -> None:
    traced.way.begin(traced.minute)
    traced.way.page(3, traced.minute, open_from=traced.minute)
    traced.way.end(traced.minute)
    traced.sent(*range(3))
    traced.through(*range(3))
    traced.ship()
    traced.audit()
    assert traced.name().waiting == 1
    assert traced.name(patience_s=0.0).named == []
    assert read_breaches(traced.way.tracker) == []
    assert on_list(traced) == []


def test_names_that_stay_the_same_are_told_once(traced: Traced) -> None:
    traced.taken(*range(3))
    traced.sent(*range(3))
    traced.through(*range(3), swallow={"e1"})
    traced.ship()
    for _ in range(3):
        traced.audit()
        traced.name()
        traced.way.query("UPDATE audit_minutes SET changed = changed + 1")
    told = traced.way.query("SELECT detail->>'breach' FROM notices WHERE kind = 'breach'")
    assert told == [("on_the_way, opened",), ("on_the_way, named",)]


def test_traces_of_what_was_never_committed_name_nobody(traced: Traced) -> None:
    traced.taken(*range(3))
    traced.sent(*range(3))
    traced.through(*range(3))
    traced.write([0, 1], "transformation", "passed", "11111111-1111-1111-1111-111111111111")
    traced.ship()
    traced.audit()
    assert traced.name().named == []
    assert on_list(traced) == []


def test_minutes_of_long_ago_are_not_compared(traced: Traced) -> None:
    traced.minute -= 3 * 1440
    traced.taken(*range(2))
    traced.sent(*range(2))
    traced.through(*range(2))
    traced.audit()
    assert (traced.name().compared, on_list(traced)) == (0, [])
