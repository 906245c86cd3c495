"""A pipeline whose every step is taken by hand, on the real PostgreSQL and Kafka, with sabotage."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

from sqlalchemy import text
from tests.support import orders
from tests.support.books import batch, counts, joined, nothing_parked, staged

from waybill.deployment import deploy
from waybill.events import Event, decode, encode
from waybill.ledger import (
    IntakeCommit,
    LoadCommit,
    PageMark,
    acquire_lease,
    commit_batch,
    commit_intake,
    commit_load,
    topic_positions,
)
from waybill.ledger.commit import PackedCounts
from waybill.ledger.watermarks import close_watermark, open_watermark
from waybill.pipelines import load_pipeline, topic_of
from waybill.reconciliation import AuditLimits, AuditReport, audit, minute_states
from waybill.settings import KafkaSettings
from waybill.storage import TrackerStore, open_log

PIPELINE = "test-orders"
MINUTE = 29_000_000


class Way:
    """One pipeline's way, step by step. Minutes are relative to ``MINUTE``."""

    def __init__(self, tracker: TrackerStore, kafka: Any, folder: Path) -> None:
        self.tracker = tracker
        self.log = open_log(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers))
        home = orders.write_orders(folder, rows=1)
        deploy(tracker, home, who="ann")
        self.topic = self.log.ensure_topic(topic_of(load_pipeline(home)))
        self._servers = kafka.bootstrap_servers
        self._pages = self._commits = self._loaded = 0
        self._staged: list[PackedCounts] = []
        self.batches: list[str] = []

    def event(self, number: int, minute: int = 0, **changes: Any) -> Event:
        values = {"stage": "transformation", "attempt": 0, **changes}
        when = MINUTE + minute
        return Event(
            f"e{number}", PIPELINE, "t", "order", f"[{number}]", 0, 1, when, "2026", {}, **values
        )

    def send(self, *events: Event) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self._servers})
        for event in events:
            producer.produce(self.topic.name, encode(event), partition=0)
        assert producer.flush(300) == 0

    def begin(self, minute: int = 0) -> None:
        with self.tracker.transaction() as connection:
            open_watermark(connection, PIPELINE, minute=MINUTE + minute)

    def page(
        self, number: int, minute: int = 0, *, open_from: int | None = None, waiting: int = 0,
        counted: tuple[int, int] = (0, 0), **more: int,
    ) -> None:  # fmt: skip
        """Count a page of events; ``open_from``: where it moves the watermark to."""
        self._pages += 1
        numbers = {"in_first": number, "passed": number, "out": number, **more}
        packed = counts("ingestion", pipeline=PIPELINE, minute=MINUTE + minute, **numbers)
        mark = None if open_from is None else PageMark(MINUTE + open_from, waiting, *counted)
        commit = IntakeCommit(PIPELINE, self._pages, {}, number, packed, mark)
        commit_intake(self.tracker, commit, nothing_parked)

    def end(self, minute: int = 0, *, left: int | None = None) -> None:
        with self.tracker.transaction() as connection:
            close_watermark(connection, PIPELINE, minute=MINUTE + minute, left=left)

    def process(self, *, swallow: Collection[str] = (), most: int | None = None) -> None:
        """Commit what is in the log; the events ``swallow`` names get lost before they count."""
        ends = {n: high for n, (_, high) in self.log.watermarks(self.topic).items()}
        known = topic_positions(
            self.tracker,
            cluster_id=self.topic.cluster_id,
            topic_id=self.topic.topic_id,
            topic=self.topic.name,
        )
        ranges = {n: (known.get(n, 0), end) for n, end in ends.items() if end > known.get(n, 0)}
        if most is not None:
            ranges = {n: (start, min(end, start + most)) for n, (start, end) in ranges.items()}
        found = [decode(value) for value in self.log.read(self.topic.name, ranges)]
        minutes = Counter(e.intake_minute for e in found if e.id not in swallow)
        parts = [
            counts(stage, pipeline=PIPELINE, minute=minute, **numbers)
            for minute, n in minutes.items()
            for stage, numbers in (
                ("transformation", {"in_first": n, "passed": n, "out": n}),
                ("mapping", {"in_first": n, "passed": n, "out": n}),
                ("staged", {"in_first": n}),
            )
        ]
        self._commit([(n, start, end) for n, (start, end) in ranges.items()], parts)
        self._staged.append(
            joined(*(counts("destination", pipeline=PIPELINE, minute=m, in_first=n, passed=n)
                     for m, n in minutes.items()))
        )  # fmt: skip

    def _commit(self, ranges: list[tuple[int, int, int]], parts: list[PackedCounts]) -> None:
        self._commits += 1
        consumer = f"processing/{self.topic.name}"
        done = batch(
            acquire_lease(self.tracker, consumer, holder="test"),
            *ranges,
            consumer=consumer,
            cluster_id=self.topic.cluster_id,
            topic_id=self.topic.topic_id,
            topic=self.topic.name,
            destination="warehouse",
            counts=joined(*parts),
            staged=staged(f"{self.topic.name}-{self._commits}"),
        )
        commit_batch(self.tracker, done, nothing_parked)
        self.batches.append(str(done.batch_id))

    def load(self, *, lose: bool = False, record: Any = nothing_parked) -> None:
        """Load all that was committed; ``lose``: its rows are counted nowhere.

        ``record``: what is written in the same transaction.
        """
        epoch = acquire_lease(self.tracker, "loading/warehouse", holder="test")
        what = {} if lose else dict(enumerate(self._staged[self._loaded :], self._loaded + 1))
        commit = LoadCommit(
            "loading/warehouse", epoch, "warehouse", self._loaded, self._commits, what
        )
        commit_load(self.tracker, commit, record)
        self._loaded = self._commits

    def audit(self, **limits: Any) -> AuditReport:
        return audit(self.tracker, self.log, AuditLimits(**{"compare_ids": False, **limits}))

    def verdicts(self, minute: int = 0) -> dict[str, str]:
        when = MINUTE + minute
        return {s.stage: s.verdict for s in minute_states(self.tracker, PIPELINE, when, when + 1)}

    def why(self, minute: int = 0) -> dict[str, str]:
        when = MINUTE + minute
        return {s.stage: s.why for s in minute_states(self.tracker, PIPELINE, when, when + 1)}

    def query(self, sql: str, **values: Any) -> list[Any]:
        with self.tracker.transaction() as connection:
            found = connection.execute(text(sql), values)
            return [tuple(row) for row in found] if found.returns_rows else []


def wait_for(true: Any, *, limit_s: float = 300.0) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)
