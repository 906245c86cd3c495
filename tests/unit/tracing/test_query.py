from __future__ import annotations

from dataclasses import astuple, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.unit.tracing.samples import NOON_US, batch, ids
from tests.unit.tracing_files.folder_store import FolderStore

from waybill.errors import InputError, RetryError
from waybill.settings import S3Settings, Settings, TraceSettings
from waybill.tracing import (
    MINUTE_SCHEMA,
    AthenaTraces,
    DuckDbTraces,
    Recorder,
    Trace,
    Watched,
    bucket_of,
    open_traces,
)
from waybill.tracing.athena_traces import literal
from waybill.tracing.layout import LAYOUT_KEY, Hour, Layout
from waybill.tracing.manifests import Manifest
from waybill.tracing.query import by_event, joined, spooled, tops
from waybill.tracing.sql import OBJECT_SCHEMA, Statement

NOON = datetime.fromtimestamp(NOON_US / 1_000_000, UTC)
ONE = Trace(
    "e", "p", "n", "mapping", "passed", "", "h", "t", 0, 5, "", "b", None, 0, "", None, "", NOON
)


class _Athena:
    """Gives the same rows whatever is asked."""

    def __init__(self, rows) -> None:
        self.rows = rows
        self.asked: list[Statement] = []

    def __call__(self, statement: Statement, watch):
        self.asked.append(statement)
        yield from self.rows


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    """A store that has traces, in 16 buckets."""
    made = FolderStore(tmp_path / "store")
    made.put(LAYOUT_KEY, Layout(16).encode())
    return made


def _naive_ms(trace: Trace) -> tuple:
    """A row as Athena gives it: no zone, milliseconds, null for nothing."""
    values = [None if value == "" else value for value in astuple(trace)]
    values[-1] = trace.at.replace(tzinfo=None, microsecond=trace.at.microsecond // 1000 * 1000)
    return tuple(values)


def test_athena_gets_values_as_parameters_and_gives_traces(store: FolderStore) -> None:
    hostile = "x' OR '1'='1"
    one = replace(ONE, event_id=hostile)
    athena = _Athena([_naive_ms(one)])
    query = AthenaTraces(athena, store, spool_dir=None)
    assert query.trail(hostile, since=NOON, until=NOON) == [one]
    (statement,) = athena.asked
    assert hostile not in statement.sql
    stamp = NOON.isoformat(timespec="microseconds")
    hour = f"{NOON:%Y-%m-%d/%H}"
    assert statement.values == (
        *(hostile, hostile + "0", f"{bucket_of(hostile, 16):03d}", "016"),
        *(f"{NOON:%Y-%m-%d}", hour, stamp, f"{NOON:%Y-%m-%d}", hour, stamp),
    )
    assert literal(hostile) == "'x'' OR ''1''=''1'"
    assert literal(5) == "5"


def test_athena_is_asked_for_a_hundred_ids_at_a_time_and_their_buckets(store: FolderStore) -> None:
    athena = _Athena([])
    wanted = ids(250)
    assert AthenaTraces(athena, store, spool_dir=None).trails(wanted) == {one: [] for one in wanted}
    assert [one.sql.count('"event_id" >= ?') for one in athena.asked] == [100, 100, 50]
    buckets = {value for one in athena.asked for value in one.values if len(str(value)) == 3}
    assert buckets == {f"{n:03d}" for n in {16, *(bucket_of(one, 16) for one in wanted)}}


def test_a_trace_in_spool_and_athena_is_one_though_athena_cuts_its_time(
    tmp_path: Path, store: FolderStore
) -> None:
    event = ids(1)[0]
    Recorder(tmp_path, host="h").write(
        [
            batch([event], at_us=NOON_US + 1_234_567),
            batch([event], at_us=NOON_US + 9_000_000, phase="destination", outcome="delivered"),
        ]
    )
    in_spool, _ = spooled(tmp_path, [event])
    athena = _Athena([_naive_ms(in_spool[0])])
    query = AthenaTraces(athena, store, spool_dir=tmp_path)
    assert [stop.phase for stop in query.trail(event)] == ["mapping", "destination"]


MINUTE_ROW = ("e", "mapping", "passed", "b", 0, 5, None, 0, None, NOON.replace(tzinfo=None))
MINUTE = {"since": NOON, "until": NOON + timedelta(minutes=5)}


def test_athenas_minute_leaves_out_what_a_compaction_writes(store: FolderStore) -> None:
    running = Manifest(Hour.of(NOON).path, "run-1", "writing", ("k",), ("dead-1",))
    other = Manifest(Hour.of(NOON - timedelta(hours=2)).path, "run-2", "writing", ("k",))
    for one in (running, other):
        store.put(one.key, one.encode())
    athena = _Athena([MINUTE_ROW] * 3)
    (found,) = AthenaTraces(athena, store, spool_dir=None).minute_traces("p", "n", 7, **MINUTE)
    assert found.num_rows == 3, "each trace as often as it is there"
    assert found.schema == MINUTE_SCHEMA
    assert found.column("at").to_pylist() == [NOON] * 3
    assert athena.asked[0].values[-2:] == ("%/run-1\\_%", "%/dead-1\\_%")


def test_athena_is_asked_for_the_traces_of_objects_by_parameters(store: FolderStore) -> None:
    row = ("parked/x", "e", "p", "n", "mapping", "parked", "cast_failed", 0, 5)
    athena, hostile = _Athena([row]), "parked/x' OR ''='"
    query = AthenaTraces(athena, store, spool_dir=None)
    (found,) = query.object_traces([hostile, "parked/x", hostile], **MINUTE)
    assert found.schema == OBJECT_SCHEMA
    assert found.column("event_id").to_pylist() == ["e"]
    [statement] = athena.asked
    assert hostile not in statement.sql
    assert statement.values[:2] == (hostile, "parked/x")


@pytest.mark.parametrize("state", ["writing", "deleting"])
def test_athenas_minute_is_no_answer_when_the_hour_was_compacted_meanwhile(
    store: FolderStore, state
) -> None:
    begun = Manifest(Hour.of(NOON).path, "run-1", state, ("k",))

    class _Meanwhile(_Athena):
        def __call__(self, statement, watch):
            store.put(begun.key, begun.encode())
            return super().__call__(statement, watch)

    query = AthenaTraces(_Meanwhile([MINUTE_ROW]), store, spool_dir=None)
    with pytest.raises(RetryError, match="ask again"):
        list(query.minute_traces("p", "n", 7, **MINUTE))


def test_a_trail_is_by_time_then_way() -> None:
    later = NOON + timedelta(seconds=1)
    stops = [
        replace(ONE, phase="destination", at=later),
        replace(ONE, phase="replay"),
        replace(ONE, phase="mapping"),
        replace(ONE, phase="ingestion"),
        replace(ONE, phase="mapping", attempt=1),
    ]
    trails = by_event(["e"], joined(stops[:4], stops), None, None)
    found = [(stop.phase, stop.attempt, stop.at) for stop in trails["e"]]
    assert found == [
        ("ingestion", 0, NOON),
        ("mapping", 0, NOON),
        ("mapping", 1, NOON),
        ("replay", 0, NOON),
        ("destination", 0, later),
    ]


def test_what_was_shipped_meanwhile_counts_once_and_what_was_written_twice_twice() -> None:
    later = replace(ONE, at=NOON + timedelta(seconds=1))
    assert joined([ONE, ONE], [ONE, ONE, later]) == [ONE, ONE, later]
    assert joined([ONE], []) == [ONE]
    assert joined([], [later, later]) == [later, later]


def test_a_trail_has_the_traces_of_children_and_of_none_that_only_begins_alike() -> None:
    names = ("a", "a/1", "a/1/0", "a-1", "ab", "a0", "/a")
    stops = [replace(ONE, event_id=name) for name in names]
    trails = by_event(["a", "a/1", "none"], stops, None, None)
    assert {one: [stop.event_id for stop in some] for one, some in trails.items()} == {
        "a": ["a", "a/1", "a/1/0"],
        "a/1": ["a/1", "a/1/0"],
        "none": [],
    }


def test_children_of_an_id_that_is_asked_for_need_not_be_asked_for() -> None:
    assert tops(["a/1", "b", "a", "a/1/0", "a-1", "b", "c/2"]) == ["b", "a", "a-1", "c/2"]


def test_the_spool_gives_children_too(tmp_path: Path) -> None:
    Recorder(tmp_path).write([batch(["a", "a/1", "a/1/0", "a-1", "ab"])])
    found, files = spooled(tmp_path, ["a/1", "ab"])
    assert sorted(trace.event_id for trace in found) == ["a/1", "a/1/0", "ab"]
    assert files == 1


def test_the_spool_is_searched_past_damaged_and_unfinished_files(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    paths = [recorder.write([batch(ids(50, seed))]) for seed in "ab"]
    assert paths[0] is not None
    paths[0].write_bytes(b"no parquet")
    wanted = ids(50, "b")[7]
    found, files = spooled(tmp_path, [wanted])
    assert [trace.event_id for trace in found] == [wanted]
    assert files == 2
    assert spooled(tmp_path, ["unknown"]) == ([], 2)
    assert spooled(tmp_path / "nowhere", [wanted]) == ([], 0)


def test_a_window_without_zone_or_the_wrong_way_round_is_refused(tmp_path: Path) -> None:
    query = DuckDbTraces(FolderStore(tmp_path), S3Settings(), spool_dir=None)
    with pytest.raises(InputError, match="no time zone"):
        query.trail("e", since=datetime(2026, 1, 1))
    with pytest.raises(InputError, match="later than"):
        query.trail("e", since=NOON, until=NOON - timedelta(seconds=1))


def test_an_empty_store_knows_nothing(tmp_path: Path) -> None:
    query = DuckDbTraces(FolderStore(tmp_path), S3Settings(), spool_dir=None)
    watch = Watched()
    assert query.trail("e", watch=watch) == []
    assert list(query.minute_traces("p", "n", 7, **MINUTE)) == []
    (searched,) = watch.searched
    assert searched.to_json() == {
        "backend": "duckdb",
        "since": None,
        "until": None,
        "hours": 0,
        "objects": 0,
        "spool_files": 0,
    }


@pytest.mark.parametrize(("name", "kind"), [("duckdb", DuckDbTraces), ("athena", AthenaTraces)])
def test_settings_choose_the_backend(tmp_path: Path, name, kind) -> None:
    settings = Settings(home=tmp_path, traces=TraceSettings(backend=name, spool_dir=tmp_path))
    assert isinstance(open_traces(settings), kind)
