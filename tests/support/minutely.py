"""What runs each minute or oftener on the tracker, by name; for the tests of plans and the benchmark."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy import text
from tests.support import orders
from tests.support.books import batch, counts, joined, nothing_parked, staged
from tests.support.many_batches import MINUTE, ManyBatches, fill

from waybill.clusters import DryRunInfra, coordinate
from waybill.deployment import deploy
from waybill.ledger import (
    LoadCommit,
    acquire_lease,
    commit_batch,
    commit_load,
    committed,
    fold,
    last_commit_number,
    load_position,
    staged_after,
)
from waybill.ledger.positions import commit_age_s, consumer_progress, staged_sums
from waybill.loading.sizes import MOST_COMMITS
from waybill.loading.status import destination_lines
from waybill.pipelines import load_pipeline, topic_of
from waybill.reconciliation import AuditLimits, audit
from waybill.reconciliation.balance_report import balance
from waybill.reconciliation.checks import run
from waybill.reconciliation.checks.limits import WatchLimits
from waybill.reconciliation.service import BalanceFilter, BalanceService, BreachFilter
from waybill.settings import AuditSettings
from waybill.storage import KafkaLog, TrackerStore

PIPELINE = "test-orders"
DESTINATION = "warehouse"
NOW = datetime.fromtimestamp((MINUTE + 24 * 60) * 60, UTC)


class Minutely:
    """A filled tracker, and what is asked of it.

    Args:
        tracker: migrated and empty.
        log: without the pipeline's topic.
        folder: for the pipeline.
        commits: of its destination; all but ``waiting`` are loaded and audited.
        waiting: commits that wait to be loaded.
    """

    def __init__(
        self, tracker: TrackerStore, log: KafkaLog, folder: Path, *, commits: int, waiting: int
    ) -> None:
        self.tracker, self.log = tracker, log
        home = orders.write_orders(folder, rows=1)
        deploy(tracker, home, who="ann")
        self.topic = topic_of(load_pipeline(home))
        self.consumer = f"processing/{self.topic}"
        self.commits = commits
        self.loaded = commits - waiting
        many = ManyBatches(PIPELINE, DESTINATION, self.topic, commits, self.loaded, loads=False)
        fill(tracker, many)
        with tracker.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("ANALYZE"))
        self._audited()
        self._epoch = acquire_lease(tracker, self.consumer, holder="test")
        self._loader = acquire_lease(tracker, f"loading/{DESTINATION}", holder="test")

    def _audited(self) -> None:
        """Say that the auditor has looked at the ranges of what is loaded."""
        reached = {"after": {DESTINATION: self.loaded}, "ends": {f"{self.topic}/0": self.loaded}}
        with self.tracker.transaction() as connection:
            said = {"report": json.dumps({"ranges": reached})}
            insert = "INSERT INTO audit_rounds (report) VALUES (CAST(:report AS jsonb))"
            connection.execute(text(insert), said)
            place = {"topic": self.topic, "next": self.commits}
            insert = (
                "INSERT INTO topic_offsets (cluster_id, topic_id, partition, topic, next_offset) "
                "VALUES ('c1', 't1', 0, :topic, :next)"
            )
            connection.execute(text(insert), place)

    def jobs(self) -> dict[str, Callable[[], Any]]:
        """Return what is to be run, by name; each may be run again."""
        return {
            "audit": self.audit,
            "watch": self.watch,
            "coordinate": lambda: coordinate(self.tracker, self.log, DryRunInfra()),
            "balance": lambda: balance(self.tracker, self.log),
            "processing_commit": self.process,
            "latest_offset": self.latest_offset,
            "load_commit": self.load,
            "pages": self.pages,
        }

    def audit(self) -> Any:
        return audit(self.tracker, self.log, AuditLimits())

    def watch(self) -> Any:
        fold(self.tracker)
        limits = WatchLimits.of(AuditSettings())
        return run.watch(run.WatchParts(self.tracker, self.log, {}, limits), NOW)

    def process(self) -> int:
        """Commit a batch of one event."""
        one: dict[str, Any] = {"in_first": 1, "passed": 1, "out": 1}
        parts = [
            counts(stage, pipeline=PIPELINE, minute=MINUTE + 10**6, **numbers)
            for stage, numbers in (
                ("ingestion", one), ("transformation", one), ("mapping", one),
                ("staged", {"in_first": 1}),
            )
        ]  # fmt: skip
        values = {
            "consumer": self.consumer,
            "topic": self.topic,
            "destination": DESTINATION,
            "counts": joined(*parts),
            "staged": staged(f"staged/{uuid4()}"),
        }
        done = batch(self._epoch, (0, self.commits, self.commits + 1), **values)
        commit_batch(self.tracker, done, nothing_parked)
        self.commits += 1
        return self.commits

    def latest_offset(self) -> None:
        """Ask what the source of loading asks before each load."""
        stands = load_position(self.tracker, DESTINATION)
        assert last_commit_number(self.tracker, DESTINATION) >= stands
        sums = staged_sums(self.tracker, DESTINATION, after=stands, most=MOST_COMMITS)
        commit_age_s(self.tracker, DESTINATION, sums[0].commit_number)
        staged_after(self.tracker, DESTINATION, after=stands, until=sums[0].commit_number)

    def load(self) -> None:
        """Commit the load of the first commit that waits."""
        what = counts("destination", pipeline=PIPELINE, minute=MINUTE + (self.loaded // 60),
                      in_first=1, passed=1, out=1)  # fmt: skip
        stands = self.loaded
        commit = LoadCommit(
            f"loading/{DESTINATION}", self._loader, DESTINATION, stands, stands + 1,
            {stands + 1: what},
        )  # fmt: skip
        commit_load(self.tracker, commit, nothing_parked)
        self.loaded += 1

    def pages(self) -> None:
        """Ask what the pages of balance and destinations, and the governor, ask again and again."""
        desk = BalanceService(self.tracker)
        desk.overview(BalanceFilter(), "24h", now=NOW)
        desk.event_names(PIPELINE, "24h", limit=100, now=NOW)
        desk.breaches(BreachFilter(), limit=100)
        destination_lines(self.tracker, {})
        consumer_progress(self.tracker, self.consumer, DESTINATION, after=0, limit=200)
        committed(self.tracker, [str(uuid4()), f"load:{DESTINATION}:{self.loaded}"])
