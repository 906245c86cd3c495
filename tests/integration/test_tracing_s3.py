"""Traces on the real object store: shipped, looked up, through outages, from the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import SecretStr
from tests.servers import CHECKOUT, PostgresServer, S3Server, wait_for
from tests.unit.tracing.samples import NOON_US, batch, ids

from waybill import services
from waybill.errors import RetryError
from waybill.settings import S3Settings, Settings, TraceSettings, TrackerSettings
from waybill.storage import ObjectInfo, ObjectStore
from waybill.tracing import (
    MINUTE_SCHEMA,
    DuckDbTraces,
    QueryCancelledError,
    Recorder,
    Searched,
    Watched,
    bucket_of,
    open_traces,
    run_shipper,
    trace_spool,
)
from waybill.tracing.files import ShipReport
from waybill.tracing.sql import OBJECT_SCHEMA

pytestmark = pytest.mark.serves

HOUR_US = 3_600_000_000
NOON = datetime.fromtimestamp(NOON_US / 1_000_000, UTC)
BUCKETS = 8


class _WatchedStore(ObjectStore):
    """The real store; notes what is listed."""

    def __init__(self, settings: S3Settings) -> None:
        super().__init__(settings)
        self.listed: list[str] = []

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self.listed.append(prefix)
        yield from super().list(prefix)


@pytest.fixture
def bucket(s3: S3Server) -> S3Settings:
    return s3.bucket("traces")


@pytest.fixture
def settings(tmp_path: Path) -> TraceSettings:
    return TraceSettings(spool_dir=tmp_path / "spool", buckets=BUCKETS, roll_s=0.2)


@pytest.fixture
def query(bucket: S3Settings, settings: TraceSettings) -> Iterator[DuckDbTraces]:
    made = DuckDbTraces(_WatchedStore(bucket), bucket, spool_dir=settings.spool_dir)
    yield made
    made.close()


def _ship(settings: TraceSettings, bucket: S3Settings) -> ShipReport:
    return run_shipper(settings, ObjectStore(bucket), lambda: True, drain_s=60)


def _way(recorder: Recorder, event_ids: list[str]) -> None:
    """An event that is parked, replayed after two days, and delivered."""
    days_2 = 48 * HOUR_US
    for phase, outcome, at_us, more in (
        ("ingestion", "accepted", 0, {"topic": "events.a.b"}),
        ("mapping", "parked", 1, {"error_type": "wrong_type", "object_key": "parked/x"}),
        ("replay", "replayed", days_2, {"replay_id": "r1"}),
        ("mapping", "passed", days_2 + 1, {"attempt": 1, "kafka_offset": range(len(event_ids))}),
        ("destination", "delivered", days_2 + HOUR_US, {"commit_number": 12}),
    ):
        recorder.write(
            [batch(event_ids, phase=phase, outcome=outcome, at_us=NOON_US + at_us, **more)]
        )


def test_a_trail_is_the_same_before_while_and_after_shipping(
    bucket: S3Settings, settings: TraceSettings, query: DuckDbTraces
) -> None:
    event_ids = [*ids(500), "parent/3", "é🛫 ' OR 1=1 --", ""]
    _way(Recorder(settings.spool_dir), event_ids)
    before = {one: query.trail(one) for one in event_ids[-20:]}
    assert [stop.phase for stop in before[event_ids[-1]]] == [
        *("ingestion", "mapping", "replay", "mapping", "destination"),
    ]
    assert _ship(settings, bucket).records == 5 * len(event_ids)
    assert trace_spool(settings.spool_dir).files() == []
    for one, trail in before.items():
        assert query.trail(one) == trail
    assert before[event_ids[490]][3].kafka_offset == 490
    assert query.trail("never seen") == []


def test_only_the_objects_of_the_hours_asked_for_are_listed_and_read(
    bucket: S3Settings, settings: TraceSettings, query: DuckDbTraces
) -> None:
    event_ids = ids(300)
    _way(Recorder(settings.spool_dir), event_ids)
    _ship(settings, bucket)
    one = event_ids[0]
    cut, fresh = (f"traces/bucket={n:03d}/" for n in (bucket_of(one, BUCKETS), BUCKETS))
    store = query._store
    assert isinstance(store, _WatchedStore)

    watch = Watched()
    assert len(query.trail(one, watch=watch)) == 5
    assert sorted(store.listed) == [*["traces/_compactions/"] * 2, cut, fresh]
    (searched,) = watch.searched
    assert (searched.hours, searched.objects, searched.spool_files) == (3, 3, 0)
    assert (watch.objects, watch.objects_read) == (3, 3)
    assert 0 < watch.bytes_scanned < 300_000

    store.listed.clear()
    found = query.trail(one, since=NOON, until=NOON + timedelta(minutes=5), watch=watch)
    assert [stop.outcome for stop in found] == ["accepted", "parked"]
    hour = f"{NOON:dt=%Y-%m-%d/hour=%H}/"
    assert sorted(store.listed[1:-1]) == [cut + hour, fresh + hour]
    assert watch.objects_read == 4

    after = query.trail(one, since=NOON + timedelta(seconds=1))
    assert [stop.phase for stop in after] == ["replay", "mapping", "destination"]
    until = query.trail(one, until=NOON + timedelta(microseconds=1))
    assert [stop.outcome for stop in until] == ["accepted", "parked"]


@pytest.mark.parametrize("many", [3, 250])
def test_the_trails_of_many_ids_are_those_of_each(
    bucket: S3Settings, settings: TraceSettings, query: DuckDbTraces, many: int
) -> None:
    event_ids = [*ids(300), "a", "a/1", "a/1/0", "a-1"]
    _way(Recorder(settings.spool_dir), event_ids)
    wanted = [*event_ids[-many:], "unknown"]
    before = query.trails(wanted)
    _ship(settings, bucket)
    assert query.trails(wanted) == before
    family = query.trails(["a", "a/1", "a-1", "unknown"])
    assert [len(family[one]) for one in ("a", "a/1", "a-1", "unknown")] == [15, 10, 5, 0]
    assert query.trail("a/1") == before["a/1"]


def test_a_minutes_traces_come_as_often_as_they_were_written(
    bucket: S3Settings, settings: TraceSettings, query: DuckDbTraces
) -> None:
    recorder = Recorder(settings.spool_dir)
    minute = NOON_US // 60_000_000
    recorder.write([batch(["a", "b", "b"], intake_minute=minute, kafka_offset=[1, 2, 2])])
    recorder.write([batch(["c"], intake_minute=minute, at_us=NOON_US + HOUR_US)])
    recorder.write([batch(["d"], intake_minute=minute + 1)])
    recorder.write([batch(["e"], intake_minute=minute, pipeline_id="p2")])
    recorder.write([batch(["f"], intake_minute=minute, event_name="other")])
    recorder.write([batch(["g"], intake_minute=minute, at_us=NOON_US + 2 * HOUR_US)])
    _ship(settings, bucket)
    end = NOON + timedelta(hours=1)
    batches = list(query.minute_traces("p1", "flight", minute, since=NOON, until=end))
    assert {one.schema for one in batches} == {MINUTE_SCHEMA}
    rows = pa.Table.from_batches(batches).to_pylist()
    assert sorted(row["event_id"] for row in rows) == ["a", "b", "b", "c"]
    (first,) = [row for row in rows if row["event_id"] == "a"]
    assert (first["kafka_offset"], first["phase"], first["at"]) == (1, "mapping", NOON)


def test_the_traces_that_name_an_object_are_found_in_its_hours(
    bucket: S3Settings, settings: TraceSettings, query: DuckDbTraces
) -> None:
    recorder = Recorder(settings.spool_dir)
    parked = {"outcome": "parked", "error_type": "cast_failed", "topic": "t"}
    recorder.write([batch(["a", "b"], object_key="parked/1", kafka_offset=[1, 2], **parked)])
    recorder.write([batch(["c"], object_key="parked/2", at_us=NOON_US + HOUR_US, **parked)])
    recorder.write([batch(["d"], object_key="parked/3", **parked)])
    recorder.write([batch(["late"], object_key="parked/1", at_us=NOON_US + 2 * HOUR_US, **parked)])
    _ship(settings, bucket)
    window = {"since": NOON, "until": NOON + timedelta(hours=1)}
    batches = list(query.object_traces(["parked/1", "parked/2", "none"], **window))
    assert {one.schema for one in batches} == {OBJECT_SCHEMA}
    rows = pa.Table.from_batches(batches).to_pylist()
    assert sorted((row["object_key"], row["event_id"], row["kafka_offset"]) for row in rows) == [
        ("parked/1", "a", 1), ("parked/1", "b", 2), ("parked/2", "c", None),
    ]  # fmt: skip


def test_a_cancelled_query_ends_and_the_next_one_answers(
    bucket: S3Settings, settings: TraceSettings, query: DuckDbTraces
) -> None:
    Recorder(settings.spool_dir).write([batch(ids(100))])
    _ship(settings, bucket)

    class _Impatient(Watched):
        def searching(self, searched: Searched) -> None:
            super().searching(searched)
            self.cancel()

    for cancelled in (_Impatient(), _Impatient()):
        with pytest.raises(QueryCancelledError):
            query.trail(ids(1)[0], watch=cancelled)
    assert len(query.trail(ids(1)[0])) == 1


def test_a_store_that_is_away_is_waited_out_and_nothing_is_lost(
    s3: S3Server, bucket: S3Settings, settings: TraceSettings, query: DuckDbTraces
) -> None:
    recorder = Recorder(settings.spool_dir)
    recorder.write([batch(ids(100, "before"))])
    done = threading.Event()
    reports: list[ShipReport] = []
    shipper = threading.Thread(
        target=lambda: reports.append(run_shipper(settings, ObjectStore(bucket), done.is_set))
    )
    shipper.start()
    _wait_until_empty(settings.spool_dir)
    s3.stop()
    recorder.write([batch(ids(100, "during"))])
    time.sleep(3)
    assert len(trace_spool(settings.spool_dir).files()) == 1
    with pytest.raises(RetryError):
        query.trail(ids(1, "during")[0])
    s3.start()
    _wait_until_empty(settings.spool_dir)
    done.set()
    shipper.join(240)
    assert [report.records for report in reports] == [200]
    for seed in ("before", "during"):
        assert len(query.trail(ids(1, seed)[0])) == 1


def _wait_until_empty(spool_dir: Path) -> None:
    deadline = time.monotonic() + 300
    while trace_spool(spool_dir).files():
        assert time.monotonic() < deadline, "the spool was not shipped"
        time.sleep(0.1)


def test_the_configured_query_reads_the_embedded_store(bucket: S3Settings, tmp_path: Path) -> None:
    settings = Settings(
        _env_file=None,
        home=tmp_path,
        s3=bucket,
        traces=TraceSettings(spool_dir=tmp_path / "spool", buckets=3),
    )
    Recorder(settings.traces.spool_dir).write([batch(ids(10))])
    _ship(settings.traces, bucket)
    others = settings.model_copy(
        update={"traces": settings.traces.model_copy(update={"buckets": 5})}
    )
    for each in (settings, others):
        assert len(open_traces(each).trail(ids(10)[4])) == 1, "by the buckets that the store states"


def test_the_command_ships_until_sigterm_and_lists_files_meanwhile(
    bucket: S3Settings, settings: TraceSettings, tmp_path: Path, postgres: PostgresServer
) -> None:
    tracker = TrackerSettings(dsn=SecretStr(postgres.database("tracker")))
    services.migrate(Settings(_env_file=None, home=tmp_path, s3=bucket, tracker=tracker))
    assert bucket.access_key is not None
    assert bucket.secret_key is not None
    environment = {
        **os.environ,
        "PYTHONPATH": str(CHECKOUT / "include"),
        "WAYBILL_HOME": str(tmp_path),
        "WAYBILL_S3__ENDPOINT_URL": bucket.endpoint_url or "",
        "WAYBILL_S3__BUCKET": bucket.bucket,
        "WAYBILL_S3__ACCESS_KEY": bucket.access_key.get_secret_value(),
        "WAYBILL_S3__SECRET_KEY": bucket.secret_key.get_secret_value(),
        "WAYBILL_TRACKER__DSN": tracker.dsn.get_secret_value(),
        "WAYBILL_TRACES__SPOOL_DIR": str(settings.spool_dir),
        "WAYBILL_TRACES__ROLL_S": "0.2",
    }
    command = [sys.executable, "-m", "waybill.cli"]
    recorder = Recorder(settings.spool_dir)
    recorder.write([batch(ids(100))])
    ship = subprocess.Popen(
        [*command, "traces", "ship"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        _wait_until_empty(settings.spool_dir)
        listed = [*command, "files", "list", "--json", "--state", "shipped"]
        (record,) = wait_for(
            lambda: json.loads(
                subprocess.run(listed, env=environment, capture_output=True, check=True).stdout
            )
        )
        assert record["state"] == "shipped"
        assert len(record["shipment"]["keys"]) == 1
        table = subprocess.run(
            [*command, "files", "list"], env=environment, capture_output=True, check=True
        )
        assert b"shipped 1" in table.stdout
        recorder.write([batch(ids(100, "last"))])
        ship.send_signal(signal.SIGTERM)
        out, log = ship.communicate(timeout=240)
    finally:
        ship.kill()
    assert ship.returncode == 0, log.decode()
    assert json.loads(out)["traces"] == 200
    assert trace_spool(settings.spool_dir).files() == []
