from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.tracing.samples import NOON_US, batch, ids
from tests.unit.tracing_files.folder_store import FolderStore

from waybill.errors import InputError, RetryError
from waybill.settings import TraceSettings
from waybill.tracing import Recorder, TracePacker, run_shipper, trace_spool
from waybill.tracing.files import BOOKS, FileManager, FileReader, Shipper
from waybill.tracing.layout import LAYOUT_KEY, Layout
from waybill.tracing.manifests import Manifest

Make = Callable[..., Shipper]


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


@pytest.fixture
def spool_dir(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def files(spool_dir: Path) -> Iterator[FileManager]:
    with FileManager(spool_dir / BOOKS) as manager:
        yield manager


@pytest.fixture
def make(store: FolderStore, spool_dir: Path, files: FileManager) -> Make:
    def made(*, buckets: int | None = 4, roll_s: float = 0.0, roll_bytes: int = 10**9) -> Shipper:
        packer = TracePacker(store, buckets=buckets)
        return Shipper(
            trace_spool(spool_dir), files, store, packer, roll_s=roll_s, roll_bytes=roll_bytes
        )

    return made


def _shipped(store: FolderStore) -> pa.Table:
    paths = sorted((store.folder / "traces").rglob("*.parquet"))
    tables = [pq.ParquetFile(path).read() for path in paths]
    return pa.concat_tables(tables)


def test_files_become_one_fresh_object_an_hour_sorted_by_id(
    make: Make, store: FolderStore, spool_dir: Path
) -> None:
    recorder = Recorder(spool_dir)
    for hour in range(2):
        for part in range(3):
            recorder.write([batch(ids(100, f"{part}"), at_us=NOON_US + hour * 3_600_000_000)])
    report = make().step()
    assert report is not None
    assert (report.files, report.records, report.objects) == (6, 600, 2)
    objects = sorted((store.folder / "traces").rglob("*.parquet"))
    assert len(objects) == 2
    for path in objects:
        found = pq.ParquetFile(path).read().column("event_id").to_pylist()
        assert found == sorted(found)
        assert path.parents[2].name == "bucket=004"
    assert Counter(_shipped(store).column("event_id").to_pylist()) == Counter(
        {one: 2 for part in range(3) for one in ids(100, f"{part}")}
    )
    assert trace_spool(spool_dir).files() == []


def test_row_groups_carry_least_and_greatest_id(
    make: Make, store: FolderStore, spool_dir: Path
) -> None:
    Recorder(spool_dir).write([batch(ids(40_000))])
    make().step()
    (path,) = (store.folder / "traces").rglob("*.parquet")
    metadata = pq.ParquetFile(path).metadata
    spans = [
        metadata.row_group(number).column(0).statistics for number in range(metadata.num_row_groups)
    ]
    assert len(spans) == 3
    assert all(first.max < second.min for first, second in pairwise(spans))


def test_a_trace_takes_at_most_20_bytes_in_the_spool_and_shipped(
    make: Make, store: FolderStore, spool_dir: Path
) -> None:
    """The worst there is: one trace an event, ids without any order; one time a task, as it is."""
    count = 30_000
    for name in ("a", "b"):
        Recorder(spool_dir).write(
            [
                batch(
                    ids(count, name),
                    batch=f"0190a1b2-{name}",
                    object_key=f"staged/warehouse/{name}",
                    topic="events.team.warehouse",
                    kafka_partition=3,
                    kafka_offset=range(count),
                    intake_minute=NOON_US // 60_000_000,
                    at_us=NOON_US + len(name),
                )
            ]
        )
    waiting = sum(file.size_bytes for file in trace_spool(spool_dir).files())
    make().step()
    (info,) = store.list("traces/bucket=")
    assert info.size / (2 * count) <= 20
    assert waiting / (2 * count) <= 20


def test_files_wait_until_one_is_old_or_all_are_large(make: Make, spool_dir: Path) -> None:
    Recorder(spool_dir).write([batch(ids(5000))])
    assert make(roll_s=3600).step() is None
    assert len(trace_spool(spool_dir).files()) == 1
    assert make(roll_s=3600, roll_bytes=50_000).step() is not None
    Recorder(spool_dir).write([batch(ids(10))])
    time.sleep(0.05)
    assert make(roll_s=0.04).step() is not None


def test_a_large_backlog_goes_in_several_shipments(make: Make, spool_dir: Path) -> None:
    for _ in range(5):
        Recorder(spool_dir).write([batch(ids(2000))])
    shipper = make(roll_bytes=90_000)
    counts = []
    while report := shipper.step():
        counts.append(report.files)
    assert counts == [2, 2, 1]


@pytest.mark.parametrize("number", [1, 2])
def test_a_put_that_fails_is_done_again_under_the_same_key(
    make: Make, store: FolderStore, spool_dir: Path, files: FileManager, number: int
) -> None:
    Recorder(spool_dir).write([batch(ids(100))])
    store.fail_at = {number}
    shipper = make()
    with pytest.raises(RetryError):
        shipper.step()
    assert len(trace_spool(spool_dir).files()) == 1
    assert (shipper.step() or make().step()) is not None
    assert len(list((store.folder / "traces").rglob("*.parquet"))) == 1
    assert sorted(_shipped(store).column("event_id").to_pylist()) == sorted(ids(100))
    assert files.counts()["shipped"] == 1


def test_a_store_that_did_not_keep_the_bytes_is_not_believed(
    make: Make, store: FolderStore, spool_dir: Path
) -> None:
    Recorder(spool_dir).write([batch(ids(100))])
    store.lose_at = {2}
    with pytest.raises(RetryError, match="not in the store"):
        make().step()
    assert len(trace_spool(spool_dir).files()) == 1


def test_an_etag_that_is_no_md5_is_settled_by_reading_back(
    make: Make, store: FolderStore, spool_dir: Path
) -> None:
    store.opaque_etags = True
    Recorder(spool_dir).write([batch(ids(100))])
    assert make().step() is not None
    assert trace_spool(spool_dir).files() == []


def test_another_number_of_buckets_is_refused(make: Make, spool_dir: Path) -> None:
    Recorder(spool_dir).write([batch(ids(10))])
    make(buckets=4).step()
    Recorder(spool_dir).write([batch(ids(10))])
    with pytest.raises(InputError, match="begun with 4; unset it"):
        make(buckets=8).step()
    assert len(trace_spool(spool_dir).files()) == 1


@pytest.mark.parametrize(
    ("stated", "fresh"), [(None, 128), (Layout(16, early=True), 16), (Layout(4), 4)]
)
def test_what_the_store_states_wins_when_nothing_is_set(
    make: Make, store: FolderStore, spool_dir: Path, stated: Layout | None, fresh: int
) -> None:
    if stated is not None:
        store.put(LAYOUT_KEY, stated.encode())
    Recorder(spool_dir).write([batch(ids(10))])
    assert make(buckets=None).step() is not None
    (path,) = (store.folder / "traces").rglob("*.parquet")
    assert path.parents[2].name == f"bucket={fresh:03d}"
    assert Layout.decode(store.get(LAYOUT_KEY)) == (stated or Layout(128))


def _interrupted(make: Make, store: FolderStore, spool_dir: Path) -> str:
    """Ship an object whose confirmation is lost; return its key."""
    Recorder(spool_dir).write([batch(ids(50))])
    put = store.put

    def torn(key: str, body: bytes) -> str:
        tag = put(key, body)
        if key.endswith(".parquet"):
            raise RetryError("the answer was lost")
        return tag

    store.put = torn
    with pytest.raises(RetryError):
        make().step()
    store.put = put
    return store.puts[-1]


def _compacted(store: FolderStore, key: str) -> None:
    """Do to the books of an hour what a compaction does that replaced an object."""
    _, _, day, hour, _ = key.split("/")
    over = Manifest(f"{day}/{hour}", "run", "deleting", (key,))
    store.put(over.compacted_key, over.encode())


def _later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.tracing.shipping._SENT_AT_ONCE_S", -1.0)


def test_a_shipment_that_comes_back_after_its_compaction_is_not_sent_again(
    make: Make, store: FolderStore, spool_dir: Path, files: FileManager, monkeypatch
) -> None:
    key = _interrupted(make, store, spool_dir)
    _compacted(store, key)
    store.delete([key])
    _later(monkeypatch)
    assert make().step() is not None
    assert list((store.folder / "traces").rglob("*.parquet")) == []
    assert store.puts.count(key) == 1, "it was not even there for a moment"
    assert files.counts()["shipped"] == 1
    assert trace_spool(spool_dir).files() == []


def test_a_compaction_that_ends_while_a_shipment_is_sent_again_leaves_no_double(
    make: Make, store: FolderStore, spool_dir: Path, monkeypatch
) -> None:
    key = _interrupted(make, store, spool_dir)
    put = store.put

    def meanwhile(same: str, body: bytes) -> str:
        tag = put(same, body)
        _compacted(store, key)
        return tag

    monkeypatch.setattr(store, "put", meanwhile)
    _later(monkeypatch)
    monkeypatch.setattr("tests.unit.tracing.test_shipping._compacted", _once(_compacted))
    assert make().step() is not None
    assert list((store.folder / "traces").rglob("*.parquet")) == []


def _once(call: Callable[..., None]) -> Callable[..., None]:
    """Let a call through once: it stores by the same function that calls it."""
    called: list[bool] = []

    def first(*arguments: object) -> None:
        if not called:
            called.append(True)
            call(*arguments)

    return first


def test_a_damaged_file_is_set_aside_and_its_neighbours_go_on(
    make: Make, store: FolderStore, spool_dir: Path, files: FileManager
) -> None:
    paths = [Recorder(spool_dir).write([batch(ids(100, seed))]) for seed in "abc"]
    assert paths[1] is not None
    damaged = bytearray(paths[1].read_bytes())
    damaged[200] ^= 0xFF
    paths[1].write_bytes(damaged)
    report = make().step()
    assert report is not None
    assert report.records == 200
    (failed,) = files.files(state="failed")
    assert failed.id == paths[1].stem
    assert "damaged" in failed.error
    assert [file.id for file in trace_spool(spool_dir).files()] == [paths[1].stem]
    assert make().step() is None


def test_a_begun_shipment_whose_file_is_damaged_fails_as_a_whole_and_loses_nothing(
    make: Make, store: FolderStore, spool_dir: Path, files: FileManager
) -> None:
    paths = [Recorder(spool_dir).write([batch(ids(100, seed))]) for seed in "ab"]
    assert paths[0] is not None
    store.fail_at = {2}
    with pytest.raises(RetryError):
        make().step()
    paths[0].write_bytes(b"PAR1 no more")
    assert make().step() is None
    assert files.counts()["failed"] == 2
    assert len(trace_spool(spool_dir).files()) == 2
    Recorder(spool_dir).write([batch(ids(5, "later"))])
    assert make().step() is not None


def test_a_torn_file_is_in_the_books(make: Make, spool_dir: Path, files: FileManager) -> None:
    (spool_dir / "1790000000000000-4194304-1-abc.open").write_bytes(b"half")
    assert make().step() is None
    (torn,) = files.files(state="failed")
    assert "torn" in torn.error
    assert "4 bytes" in torn.error


def test_a_shipped_file_that_is_still_there_is_deleted_and_not_sent_again(
    make: Make, store: FolderStore, spool_dir: Path
) -> None:
    path = Recorder(spool_dir).write([batch(ids(10))])
    assert path is not None
    body = path.read_bytes()
    make().step()
    path.write_bytes(body)
    assert make().step() is None
    assert not path.exists()
    assert _shipped(store).num_rows == 10


def test_the_loop_waits_out_an_absent_store_and_drains_at_the_end(
    store: FolderStore, spool_dir: Path
) -> None:
    settings = TraceSettings(spool_dir=spool_dir, buckets=4, roll_s=0.05)
    Recorder(spool_dir).write([batch(ids(50, "a"))])
    store.fail_at = {1, 2, 4}
    deadline = time.monotonic() + 300

    def stop() -> bool:
        done = spool_dir.exists() and not trace_spool(spool_dir).files()
        return done or time.monotonic() > deadline

    assert run_shipper(settings, store, stop).records == 50
    Recorder(spool_dir).write([batch(ids(50, "b"))])
    assert run_shipper(settings, store, lambda: True).records == 50
    assert sorted(_shipped(store).column("event_id").to_pylist()) == sorted(
        ids(50, "a") + ids(50, "b")
    )


def test_the_end_is_bounded_when_the_store_stays_away_and_the_books_say_why(
    store: FolderStore, spool_dir: Path
) -> None:
    Recorder(spool_dir).write([batch(ids(50))])
    store.fail_at = set(range(2, 1000))
    began = time.monotonic()
    settings = TraceSettings(spool_dir=spool_dir, buckets=4)
    assert run_shipper(settings, store, lambda: True, drain_s=1).records == 0
    assert time.monotonic() - began < 300
    with FileReader(spool_dir / BOOKS) as books:
        (shipment,) = books.unfinished()
    assert shipment.attempts >= 1
    assert "away" in shipment.error
    store.fail_at = set()
    assert run_shipper(settings, store, lambda: True).records == 50


def test_one_shipper_a_spool(store: FolderStore, spool_dir: Path, files: FileManager) -> None:
    with pytest.raises(RetryError, match="another process"):
        run_shipper(TraceSettings(spool_dir=spool_dir), store, lambda: True)


def test_books_of_shipped_files_are_kept_a_day(
    make: Make, store: FolderStore, spool_dir: Path, files: FileManager, monkeypatch
) -> None:
    Recorder(spool_dir).write([batch(ids(10))])
    make().step()
    make().step()
    assert files.counts()["shipped"] == 1
    later = time.time_ns() + 25 * 3600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)
    make().step()
    assert files.counts()["shipped"] == 0
