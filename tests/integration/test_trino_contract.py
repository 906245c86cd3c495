"""The statements that Athena gets, run unchanged by Trino 476 (its dialect) over the same objects.

Trino takes Athena's place behind ``AthenaTraces``: same SQL, same parameters, tables with the very
properties of our DDL. Its answers must be DuckDB's. Skipped where `make trino` was not called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from tests.servers import S3Server
from tests.support import trino
from tests.unit.tracing.samples import batch, ids

from waybill.settings import S3Settings, TraceSettings
from waybill.storage import ObjectStore
from waybill.tracing import (
    MINUTE_SCHEMA,
    AthenaTraces,
    Compactor,
    DuckDbTraces,
    Recorder,
    Trace,
    TraceQuery,
    run_shipper,
)
from waybill.tracing.athena_traces import Row
from waybill.tracing.manifests import read_manifests
from waybill.tracing.sql import BY_ID, BY_TIME, Projection, projections

pytestmark = pytest.mark.serves

BUCKETS = 3
START = (datetime.now(UTC) - timedelta(hours=4)).replace(minute=0, second=0, microsecond=0)
START_US = int(START.timestamp()) * 1_000_000
MINUTE = START_US // 60_000_000
HOUR_US = 3_600_000_000
ODD = ["a", "a/1", "a/1/0", "a-1", "it's 100 % \\ é🛫 -- ?"]
WANTED = [*ids(60), *ODD, "unknown"]
SPANS = [
    (None, None),
    (START, START + timedelta(minutes=30)),
    (START + timedelta(hours=1), None),
    (None, START + timedelta(hours=1)),
]
FINE_US = START_US + 3 * HOUR_US + 1_600
"""A time that no millisecond is: 1.6 ms after an hour."""


@dataclass(frozen=True)
class Engines:
    """Both over the same objects."""

    duckdb: DuckDbTraces
    athena: AthenaTraces
    trino: trino.Trino
    tables: tuple[Projection, Projection]
    store: ObjectStore


@pytest.fixture(scope="module")
def bucket(_s3: S3Server) -> S3Settings:
    if reason := trino.why_not():
        pytest.skip(reason)
    _s3.ensure()
    return _s3.bucket("contract", keep=True)


@pytest.fixture(scope="module")
def engines(bucket: S3Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    spool = tmp_path_factory.mktemp("spool")
    _record(Recorder(spool, host="h"))
    settings = TraceSettings(spool_dir=spool, buckets=BUCKETS, roll_s=0.1)
    store = ObjectStore(bucket)
    run_shipper(settings, store, lambda: True, drain_s=60)
    tables = projections(bucket.bucket, buckets=BUCKETS, since_day=f"{START:%Y-%m-%d}")
    server = trino.Trino(tmp_path_factory.mktemp("trino"), bucket)
    duckdb = DuckDbTraces(store, bucket, spool_dir=None)
    try:
        _all(server, f"CREATE SCHEMA {trino.SCHEMA}")
        for table in tables:
            _all(server, trino.ddl(table))
        athena = AthenaTraces(server, store, spool_dir=None)
        yield Engines(duckdb, athena, server, tables, store)
    finally:
        duckdb.close()
        server.stop()


def _record(recorder: Recorder) -> None:
    """Three hours of the ways of some events, in several objects; one trace is there twice."""
    event_ids = [*ids(60), *ODD]
    offsets = list(range(len(event_ids)))
    for hour, phase, more in (
        (0, "ingestion", {"outcome": "accepted", "topic": "t", "kafka_offset": offsets}),
        (0, "mapping", {"outcome": "parked", "error_type": "wrong_type", "object_key": "p/x"}),
        (1, "mapping", {"attempt": 1, "replay_id": "r", "kafka_partition": 7}),
        (2, "destination", {"outcome": "delivered", "commit_number": 1 << 40}),
    ):
        at_us = START_US + hour * HOUR_US + offsets[-1] * 1000
        more |= {"phase": phase, "at_us": at_us, "intake_minute": MINUTE, "batch": f"b{hour}"}
        recorder.write([batch(event_ids, **more)])
    for at_us in (START_US, START_US + 1_800_000_000, START_US + HOUR_US):
        recorder.write([batch(["a", "edge"], at_us=at_us, intake_minute=MINUTE)])
    recorder.write([batch(["twice", "twice"], at_us=START_US, intake_minute=MINUTE)])
    recorder.write([batch(["old", "other"], at_us=START_US, intake_minute=[None, MINUTE + 1])])
    recorder.write([batch(["fine"], at_us=FINE_US, intake_minute=MINUTE)])
    recorder.write([batch(["no"], at_us=START_US, intake_minute=MINUTE, pipeline_id="p2")])


def _all(server: trino.Trino, sql: str) -> list[Row]:
    return list(server.run(sql))


def _trails(
    query: TraceQuery, since: datetime | None, until: datetime | None
) -> dict[str, list[Trace]]:
    """What is found of each event; traces of one moment have no order."""
    found = query.trails(WANTED, since=since, until=until)
    return {one: sorted(some, key=repr) for one, some in found.items()}


def _minute(query: TraceQuery, since: datetime, until: datetime) -> list[dict[str, Any]]:
    found = query.minute_traces("p1", "flight", MINUTE, since=since, until=until)
    rows = pa.Table.from_batches(list(found), MINUTE_SCHEMA).to_pylist()
    return sorted(rows, key=lambda row: (row["event_id"], row["at"], row["phase"]))


def _compare(engines: Engines) -> None:
    """Every look-up gives the same answer, and not an empty one."""
    counts = []
    for since, until in SPANS:
        found = _trails(engines.athena, since, until)
        assert found == _trails(engines.duckdb, since, until), (since, until)
        assert found["a"], (since, until)
        counts.append(len(found["a"]))
    assert counts == [15, 8, 7, 9]
    for hours in (0, 3):
        until = START + timedelta(hours=hours)
        rows = _minute(engines.athena, START, until)
        assert rows == _minute(engines.duckdb, START, until), until
        assert Counter(row["event_id"] for row in rows)["twice"] == 2
    objects = [
        sorted(
            row["event_id"]
            for some in query.object_traces(["p/x", "none"], since=START, until=until)
            for row in some.to_pylist()
        )
        for query in (engines.athena, engines.duckdb)
    ]
    assert objects[0] == objects[1] != []


def test_the_properties_of_our_ddl_are_understood(engines: Engines) -> None:
    for table in engines.tables:
        ((made,),) = _all(engines.trino, f"SHOW CREATE TABLE {table.table}")
        assert "partition_projection_enabled = true" in made
        assert f"partition_projection_location_template = '{table.template}'" in made
        for one in table.partitions:
            rules = ", ".join(sorted(_in_trinos_words(*rule) for rule in one.rules))
            assert f"{one.name} varchar WITH ({rules})" in made, made


def _in_trinos_words(rule: str, value: str) -> str:
    shown = {
        "type": f"'{value.upper()}'",
        "range": "ARRAY['" + value.replace(",", "','") + "']",
        "digits": value,
    }
    return f"partition_projection_{rule} = {shown.get(rule, repr(value))}"


def test_a_statement_that_names_no_bucket_is_refused(engines: Engines) -> None:
    with pytest.raises(AssertionError, match="bucket"):
        _all(engines.trino, f"TABLE {BY_ID}")
    rows = _all(engines.trino, f"TABLE {BY_TIME}")
    assert len(rows) == 4 * (60 + len(ODD)) + 3 * 2 + 2 + 2 + 1 + 1


def test_both_answer_alike_before_while_and_after_compaction(engines: Engines) -> None:
    _compare(engines)
    Compactor(engines.store, after_s=-60, kept_s=600).run()
    assert {one.state for one in read_manifests(engines.store)} == {"done"}
    _compare(engines)
    Compactor(engines.store, after_s=-60, kept_s=0).run()
    assert read_manifests(engines.store) == ()
    _compare(engines)


def test_a_trace_that_was_written_twice_is_one_stop_of_athenas_trail(engines: Engines) -> None:
    (once,) = engines.athena.trail("twice")
    assert engines.duckdb.trail("twice") == [once, once]


def test_a_time_is_read_to_the_millisecond(engines: Engines) -> None:
    (exact,) = engines.duckdb.trail("fine")
    (read,) = engines.athena.trail("fine")
    assert exact.at == START + timedelta(hours=3, microseconds=1_600)
    assert read == replace(exact, at=START + timedelta(hours=3, milliseconds=2))
    for query, found in ((engines.duckdb, [exact]), (engines.athena, [read])):
        assert query.trail("fine", since=exact.at, until=exact.at) == found, "at its own time"
    ids_then = [row["event_id"] for row in _minute(engines.athena, exact.at, exact.at)]
    assert ids_then == ["fine"]
