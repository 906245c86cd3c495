"""Books to look at: pipelines whose minutes are balanced, on the way, or breached."""

from __future__ import annotations

import json
import random
import time

from tests.integration.parking_lot import ParkingLot

from waybill.reconciliation import BreachKey, open_breach

WEEK = 7 * 24 * 60
_COUNTS = "in_first, in_replayed, passed, out, parked, filtered, superseded, duplicate"


class Books:
    """Fills a tracker's books under names of its own; minutes count back from now."""

    def __init__(self, lot: ParkingLot) -> None:
        self.lot = lot
        self.now = int(time.time() // 60)

    def pipeline(self, pipeline_id: str, name: str, team: str = "shop") -> None:
        """Deploy a pipeline, in as far as looking needs it."""
        self.lot.sql(
            "INSERT INTO pipelines (id, name, team) VALUES (:id, :name, :team) "
            "ON CONFLICT DO NOTHING",
            id=pipeline_id, name=name, team=team,
        )  # fmt: skip

    def minutes(
        self, pipeline_id: str, event: str, minutes: list[int], *, mean: int = 400, lost: int = 0
    ) -> None:
        """Let events go all the way in some minutes, each so many minutes ago; ``lost`` in one."""
        r = random.Random(f"{pipeline_id} {event}")
        rows = []
        for ago in minutes:
            taken = max(5, int(r.gauss(mean, mean / 3)))
            bad, left_out = r.choice((0, 0, 0, 3)), r.choice((0, 0, 2))
            passed = taken - bad - left_out
            rows += [
                ("ingestion", ago, [taken, 0, taken, taken, 0, 0, 0, 0]),
                ("transformation", ago, [taken, 0, passed, passed, bad, left_out, 0, 0]),
                ("mapping", ago, [passed - lost, 0, passed - lost, passed - lost, 0, 0, 0, 0]),
                ("destination", ago, [passed - lost, 0, passed - lost, 0, 0, 0, 0, 0]),
            ]
        self._write(pipeline_id, event, rows)

    def on_the_way(
        self, pipeline_id: str, event: str, minutes: list[int], taken: int = 300
    ) -> None:
        """Let events wait in the log, as the auditor has seen."""
        rows = [("ingestion", ago, [taken, 0, taken, taken, 0, 0, 0, 0]) for ago in minutes]
        self._write(pipeline_id, event, rows)
        for ago in minutes:
            self.judge(pipeline_id, event, ago, "transformation", "moving", why="in the log")

    def judge(
        self,
        pipeline_id: str,
        event: str,
        ago: int,
        stage: str,
        verdict: str,
        *,
        gap: int = 0,
        why: str = "",
    ) -> None:
        """Say what the auditor says of a minute."""
        said = {stage: {"verdict": verdict, "gap": gap, "why": why}}
        self.lot.sql(
            "INSERT INTO audit_minutes (pipeline_id, event_name, minute, changed, audited, stages) "
            "VALUES (:pipeline, :event, :minute, 1, 1, CAST(:said AS jsonb))",
            pipeline=pipeline_id, event=event, minute=self.now - ago, said=json.dumps(said),
        )  # fmt: skip

    def audited(self) -> None:
        """Say that the auditor has just looked."""
        self.lot.sql("INSERT INTO audit_rounds DEFAULT VALUES")

    def breach(self, key: BreachKey, words: str, *, gap: int = 0, missing: list[str]) -> int:
        """Open a breach."""
        with self.lot.tracker.transaction() as connection:
            opened = open_breach(connection, key, words=words, gap=gap, tell=False)
        assert opened is not None
        self.lot.sql(
            "UPDATE breaches SET ids = jsonb_build_object('missing', CAST(:ids AS jsonb)) "
            "WHERE id = :id",
            ids=json.dumps(missing), id=opened.id,
        )  # fmt: skip
        return opened.id

    def _write(self, pipeline_id: str, event: str, rows: list[tuple[str, int, list[int]]]) -> None:
        given = [[stage, self.now - ago, *counts] for stage, ago, counts in rows]
        fields = ", ".join(f"(row->>{n + 2})::bigint" for n in range(8))
        self.lot.sql(
            f"INSERT INTO ledger_minutes (pipeline_id, event_name, stage, minute, {_COUNTS}) "
            f"SELECT :pipeline, :event, row->>0, (row->>1)::int, {fields} "
            "FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS row",
            pipeline=pipeline_id, event=event, rows=json.dumps(given),
        )  # fmt: skip
