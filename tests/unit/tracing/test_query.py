from __future__ import annotations

from dataclasses import astuple, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.unit.files.folder_store import FolderStore
from tests.unit.tracing.samples import NOON_US, batch, ids

from waybill.errors import InputError
from waybill.settings import S3Settings, Settings, TraceSettings
from waybill.tracing import AthenaTraces, DuckDbTraces, Recorder, Trace, bucket_of, open_traces
from waybill.tracing.lookup import lookup_sql
from waybill.tracing.query import arranged, spooled

NOON = datetime.fromtimestamp(NOON_US / 1_000_000, UTC)
ONE = Trace(
    "e", "p", "n", "mapping", "passed", "", "h", "t", 0, 5, "", "b", None, 0, "", None, "", NOON
)

COLUMNS = (
    '"event_id", "pipeline_id", "event_name", "phase", "outcome", "error_type", "host", "topic", '
    '"kafka_partition", "kafka_offset", "object_key", "batch", "commit_number", "attempt", '
    '"replay_id", "at"'
)
ATHENA = f'SELECT DISTINCT {COLUMNS} FROM "traces" WHERE "event_id" = ? AND "bucket" = ?'  # noqa: S608
ATHENA_SINCE = ' AND "dt" >= ? AND "at" >= FROM_ISO8601_TIMESTAMP(?)'
ATHENA_UNTIL = ' AND "dt" <= ? AND "at" <= FROM_ISO8601_TIMESTAMP(?)'


def test_athenas_statement_is_this() -> None:
    assert lookup_sql("athena", since=False, until=False) == ATHENA
    assert lookup_sql("athena", since=True, until=False) == ATHENA + ATHENA_SINCE
    assert lookup_sql("athena", since=False, until=True) == ATHENA + ATHENA_UNTIL
    assert lookup_sql("athena", since=True, until=True) == ATHENA + ATHENA_SINCE + ATHENA_UNTIL


class _Athena:
    def __init__(self, rows) -> None:
        self.rows = rows
        self.asked: list[tuple[str, list[str]]] = []

    def __call__(self, sql: str, literals: list[str]):
        self.asked.append((sql, literals))
        return self.rows


def _naive_ms(trace: Trace) -> tuple:
    """A row as Athena gives it: no zone, milliseconds, null for nothing."""
    values = [None if value == "" else value for value in astuple(trace)]
    values[-1] = trace.at.replace(tzinfo=None, microsecond=trace.at.microsecond // 1000 * 1000)
    return tuple(values)


def test_athena_gets_values_as_parameters_and_gives_traces(tmp_path: Path) -> None:
    athena = _Athena([_naive_ms(ONE)])
    query = AthenaTraces(athena, FolderStore(tmp_path), buckets=16, spool_dir=None)
    hostile = "x' OR '1'='1"
    assert query.trail(hostile, since=NOON, until=NOON) == [ONE]
    ((sql, literals),) = athena.asked
    assert hostile not in sql
    bucket = bucket_of(hostile, 16)
    stamp = NOON.isoformat(timespec="microseconds")
    day = f"{NOON:%Y-%m-%d}"
    assert literals == [
        "'x'' OR ''1''=''1'",
        f"'{bucket:03d}'",
        *(f"'{day}'", f"'{stamp}'", f"'{day}'", f"'{stamp}'"),
    ]


def test_a_trace_in_spool_and_athena_is_one_though_athena_cuts_its_time(tmp_path: Path) -> None:
    event = ids(1)[0]
    Recorder(tmp_path, host="h").write(
        [
            batch([event], at_us=NOON_US + 1_234_567),
            batch([event], at_us=NOON_US + 9_000_000, phase="destination", outcome="delivered"),
        ]
    )
    in_spool = spooled(tmp_path, event)
    athena = _Athena([_naive_ms(in_spool[0])])
    query = AthenaTraces(athena, FolderStore(tmp_path / "s"), buckets=16, spool_dir=tmp_path)
    assert [stop.phase for stop in query.trail(event)] == ["mapping", "destination"]


def test_a_trail_is_by_time_then_way_and_holds_each_trace_once() -> None:
    later = NOON + timedelta(seconds=1)
    stops = [
        replace(ONE, phase="destination", at=later),
        replace(ONE, phase="replay"),
        replace(ONE, phase="mapping"),
        replace(ONE, phase="ingestion"),
        replace(ONE, phase="mapping", attempt=1),
        ONE,
    ]
    found = [(stop.phase, stop.attempt, stop.at) for stop in arranged(stops, None, None)]
    assert found == [
        ("ingestion", 0, NOON),
        ("mapping", 0, NOON),
        ("mapping", 1, NOON),
        ("replay", 0, NOON),
        ("destination", 0, later),
    ]


def test_the_spool_is_searched_past_damaged_and_unfinished_files(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    paths = [recorder.write([batch(ids(50, seed))]) for seed in "ab"]
    assert paths[0] is not None
    paths[0].write_bytes(b"no parquet")
    wanted = ids(50, "b")[7]
    assert [trace.event_id for trace in spooled(tmp_path, wanted)] == [wanted]
    assert spooled(tmp_path, "unknown") == []
    assert spooled(tmp_path / "nowhere", wanted) == []


def test_a_window_without_zone_or_the_wrong_way_round_is_refused(tmp_path: Path) -> None:
    query = DuckDbTraces(FolderStore(tmp_path), S3Settings(), buckets=16, spool_dir=None)
    with pytest.raises(InputError, match="no time zone"):
        query.trail("e", since=datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(InputError, match="later than"):
        query.trail("e", since=NOON, until=NOON - timedelta(seconds=1))


def test_an_empty_store_knows_nothing(tmp_path: Path) -> None:
    query = DuckDbTraces(FolderStore(tmp_path), S3Settings(), buckets=16, spool_dir=None)
    assert query.trail("e") == []


@pytest.mark.parametrize(("name", "kind"), [("duckdb", DuckDbTraces), ("athena", AthenaTraces)])
def test_settings_choose_the_backend(tmp_path: Path, name, kind) -> None:
    settings = Settings(home=tmp_path, traces=TraceSettings(backend=name, spool_dir=tmp_path))
    assert isinstance(open_traces(settings), kind)
