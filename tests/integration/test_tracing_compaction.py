"""Compaction on the real object store, by processes that die: look-ups answer the same throughout."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from tests.integration import tracing_child
from tests.servers import CHECKOUT, S3Server
from tests.unit.tracing.samples import NOON_US, batch, ids
from typer.testing import CliRunner

from waybill.cli.traces import app
from waybill.settings import S3Settings, TraceSettings, TrackerSettings
from waybill.storage import ObjectStore, open_tracker
from waybill.tracing import Compactor, DuckDbTraces, Recorder, Watched, run_shipper
from waybill.tracing.manifests import read_manifests

pytestmark = pytest.mark.serves

PROCESSES = multiprocessing.get_context("forkserver")
PRELOAD = ["tests.integration.tracing_child", "boto3", "pyarrow.parquet", "pyarrow.compute"]
BUCKETS = tracing_child.BUCKETS
MINUTE = NOON_US // 60_000_000
NOON = datetime.fromtimestamp(NOON_US / 1_000_000, UTC)
DONE = 2
_time = time.time
POINTS = [("put", 2, "before"), ("swap", DONE, "after")]
CLEARING = [("delete", 1, "after")]
"""Every step is killed in memory: tests/unit/tracing/test_compaction.py."""


@pytest.fixture(scope="module", autouse=True)
def _quick_processes() -> None:
    """Start the server that processes are forked from, with everything imported once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(CHECKOUT / "include"), str(CHECKOUT)]))
        PROCESSES.set_forkserver_preload(PRELOAD)
        forkserver.ensure_running()


@pytest.fixture
def shipped(s3: S3Server, tmp_path: Path) -> S3Settings:
    """A store with three fresh objects: 200 events, one of them twice, one with children."""
    bucket = s3.bucket("compaction")
    settings = TraceSettings(spool_dir=tmp_path / "spool", buckets=BUCKETS, roll_s=0.1)
    for number in range(3):
        event_ids = [*ids(66, f"{number}"), f"a/{number}"]
        event_ids += ["twice", "twice"] if number == 0 else []
        Recorder(settings.spool_dir, host="h").write([batch(event_ids, intake_minute=MINUTE)])
        run_shipper(settings, ObjectStore(bucket), lambda: True, drain_s=60)
    return bucket


@pytest.fixture
def query(shipped: S3Settings) -> Iterator[DuckDbTraces]:
    made = DuckDbTraces(ObjectStore(shipped), shipped, spool_dir=None)
    yield made
    made.close()


def _seen(query: DuckDbTraces) -> tuple[Counter[str], dict[str, int]]:
    """What a full count and look-ups see."""
    window = {"since": NOON, "until": NOON + timedelta(minutes=1)}
    rows: Counter[str] = Counter()
    for some in query.minute_traces("p1", "flight", MINUTE, **window):
        rows.update(some.column("event_id").to_pylist())
    trails = query.trails(["a", "twice"])
    return rows, {one: len(stops) for one, stops in trails.items()}


def _compact(s3: S3Settings, point: tuple[str, int, str] | None, kept_s: float) -> int | None:
    process = PROCESSES.Process(target=tracing_child.compact, args=(s3, point, kept_s))
    process.start()
    process.join(240)
    return process.exitcode


@pytest.mark.parametrize("point", [*POINTS, *CLEARING], ids=lambda point: "-".join(map(str, point)))
def test_a_compaction_that_is_killed_changes_no_answer_and_the_next_one_ends_it(
    shipped: S3Settings, query: DuckDbTraces, point: tuple[str, int, str]
) -> None:
    before = _seen(query)
    assert before[0]["twice"] == before[1]["twice"] == 2
    assert (before[1]["a"], before[0].total()) == (3, 203)
    kept_s = 600.0
    if point in CLEARING:
        assert _compact(shipped, None, kept_s) == 0
        kept_s = 0.0
    assert _compact(shipped, point, kept_s) == -signal.SIGKILL
    assert _seen(query) == before, "after the death"
    assert _compact(shipped, None, 0.0) == 0
    assert _seen(query) == before, "after the next run"
    assert _compact(shipped, None, 0.0) == 0
    assert _seen(query) == before, "after the last deletion"
    store = ObjectStore(shipped)
    assert read_manifests(store) == ()
    assert len(list(store.list("traces/bucket="))) == BUCKETS


def test_two_compactions_at_once_do_the_work_once(shipped: S3Settings, query: DuckDbTraces) -> None:
    before = _seen(query)
    both = [
        PROCESSES.Process(target=tracing_child.compact, args=(shipped, None, 600.0, 300.0))
        for _ in range(2)
    ]
    for one in both:
        one.start()
    for one in both:
        one.join(240)
    assert [one.exitcode for one in both] == [0, 0]
    assert _seen(query) == before
    assert len(read_manifests(ObjectStore(shipped))) == 1


def test_two_compactions_that_clear_one_hour_both_end(
    shipped: S3Settings, query: DuckDbTraces, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both find it being cleared: what they store is the same, and so is its ETag."""
    before = _seen(query)
    Compactor(ObjectStore(shipped), after_s=-60, kept_s=600).run()
    store = ObjectStore(shipped)
    [done] = read_manifests(store)
    store.put(done.key, replace(done, state="deleting").encode())
    others: list[int] = []
    delete = store.delete

    def overtaken(keys: Sequence[str]) -> None:
        delete(keys)
        if not others:
            other = Compactor(ObjectStore(shipped), after_s=-60, kept_s=0)
            others.append(other.run().deleted)

    monkeypatch.setattr(store, "delete", overtaken)
    assert Compactor(store, after_s=-60, kept_s=0).run().deleted == 3
    assert others == [3]
    assert read_manifests(store) == ()
    assert _seen(query) == before


def test_a_look_up_reads_its_bucket_alone_once_all_is_compacted(
    shipped: S3Settings, query: DuckDbTraces
) -> None:
    for kept_s in (600.0, 0.0):
        Compactor(ObjectStore(shipped), after_s=-60, kept_s=kept_s).run()
    watch = Watched()
    assert len(query.trail("twice", watch=watch)) == 2
    assert watch.objects_read == 1


def test_the_commands_compact_an_hour_and_print_the_tables(
    shipped: S3Settings, postgres: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shipped.access_key is not None
    assert shipped.secret_key is not None
    dsn = postgres.database("compaction")
    with open_tracker(TrackerSettings(dsn=SecretStr(dsn))) as tracker:
        tracker.migrate()
    for name, value in {
        "TRACKER__DSN": dsn,
        "HOME": str(tmp_path),
        "S3__ENDPOINT_URL": shipped.endpoint_url or "",
        "S3__BUCKET": shipped.bucket,
        "S3__ACCESS_KEY": shipped.access_key.get_secret_value(),
        "S3__SECRET_KEY": shipped.secret_key.get_secret_value(),
    }.items():
        monkeypatch.setenv(f"WAYBILL_{name}", value)
    monkeypatch.setattr("waybill.tracing.compaction.time.time", lambda: _time() + 300)
    other = CliRunner().invoke(app, ["compact", "--hour", "2026-01-01T05:00:00"])
    assert (other.exit_code, json.loads(other.output)["hours"]) == (0, 0)
    done = CliRunner().invoke(app, ["compact", "--hour", f"{NOON:%Y-%m-%dT%H:%M:%S}"])
    assert (done.exit_code, json.loads(done.output)["objects_before"]) == (0, 3)
    tables = CliRunner().invoke(app, ["ddl"]).output
    assert f"'projection.dt.range' = '{NOON:%Y-%m-%d},NOW+1DAYS'" in tables
    assert f"'projection.bucket.range' = '0,{BUCKETS}'" in tables
    assert tables.count("CREATE EXTERNAL TABLE") == tables.count(";") == 2
    assert (
        "'2025-05-01,NOW+1DAYS'" in CliRunner().invoke(app, ["ddl", "--since", "2025-05-01"]).output
    )
