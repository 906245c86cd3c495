from __future__ import annotations

import threading
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.unit.tracing.samples import batch, ids

from waybill.errors import RetryError
from waybill.settings import TraceSettings
from waybill.tracing import THROUGH, Recorder, open_recorder, trace_spool
from waybill.tracing.parquet import read_events, read_whole


def test_batches_of_one_call_become_one_finished_file(tmp_path: Path) -> None:
    path = Recorder(tmp_path / "new" / "spool").write(
        [batch(ids(10), topic="a"), batch(ids(5), topic="b"), batch([])]
    )
    assert path is not None
    table = read_whole(path)
    assert table.column("topic").to_pylist() == ["a"] * 10 + ["b"] * 5
    assert [file.path for file in trace_spool(path.parent).files()] == [path]


def test_what_all_traces_of_a_file_share_is_written_once_and_read_back(tmp_path: Path) -> None:
    shared = {
        "topic": "a \u2028'\"",
        "attempt": 0,
        "kafka_partition": 3,
        "at_us": 1_795_705_441_203_165,
    }
    batches = [
        batch(["a"], **shared, kafka_offset=[7], batch="x", intake_minute=[5], replay_id="r"),
        batch(["b", "c"], **shared, kafka_offset=[8, 9], batch="y", intake_minute=[5, 6]),
    ]
    path = Recorder(tmp_path, host="node-1").write(batches)
    own = {"event_id", "batch", "kafka_offset", "intake_minute", "replay_id"}
    assert set(pq.read_metadata(path).schema.names) == own
    filled = [one.drop_columns("host").to_pylist() for one in batches]
    expected = [{**row, "host": "node-1"} for rows in filled for row in rows]
    for table in (read_whole(path), read_events(path, ["a", "b", "c"])):
        assert table.to_pylist() == [
            {name: row[name] for name in table.column_names} for row in expected
        ]


def test_nothing_to_write_writes_nothing(tmp_path: Path) -> None:
    assert Recorder(tmp_path).write([]) is None
    assert Recorder(tmp_path).write([batch([])]) is None
    assert list(tmp_path.iterdir()) == []


def test_the_host_is_filled_in_where_none_is_given(tmp_path: Path) -> None:
    path = Recorder(tmp_path, host="node-7").write([batch(["a"]), batch(["b"], host="node-1")])
    assert path is not None
    assert read_whole(path).column("host").to_pylist() == ["node-7", "node-1"]


def test_a_full_spool_makes_the_writer_wait_and_then_go_on(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, disk_threshold_bytes=100_000, full_wait_s=300)
    first = recorder.write([batch(ids(5000))])
    assert first is not None
    room = threading.Timer(0.6, first.unlink)
    began = time.monotonic()
    room.start()
    assert recorder.write([batch(ids(5000))]) is not None
    assert time.monotonic() - began > 0.4
    room.join()


def test_a_spool_that_stays_full_is_a_clear_error_and_drops_nothing(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, disk_threshold_bytes=100_000, full_wait_s=0.1)
    recorder.write([batch(ids(5000))])
    with pytest.raises(RetryError, match="waybill traces ship"):
        recorder.write([batch(ids(5000))])
    assert len(trace_spool(tmp_path).files()) == 1


def test_a_recorder_sees_what_other_processes_wrote(tmp_path: Path) -> None:
    other = Recorder(tmp_path)
    recorder = Recorder(tmp_path, disk_threshold_bytes=100_000, full_wait_s=0.1)
    recorder.write([batch(["a"])])
    other.write([batch(ids(5500))])
    with pytest.raises(RetryError, match="holds"):
        for _ in range(40):
            recorder.write([batch(ids(500))])


def test_the_configured_recorder_writes_where_settings_say(tmp_path: Path) -> None:
    path = open_recorder(TraceSettings(spool_dir=tmp_path)).write([batch(["a"])])
    assert path is not None
    assert path.parent == tmp_path


def test_a_line_that_stands_for_two_is_read_as_two(tmp_path) -> None:
    columns = {"object_key": "staged/x", "kafka_offset": [1, 2], "intake_minute": 29_000_000}
    through = batch(["a", "b"], phase=THROUGH, outcome="passed", **columns)
    other = batch(["c"], phase="destination", outcome="delivered")
    path = Recorder(tmp_path).write([through, other])
    expected = [
        ("a", "mapping", "staged/x", 1), ("a", "transformation", None, 1),
        ("b", "mapping", "staged/x", 2), ("b", "transformation", None, 2),
    ]  # fmt: skip
    names = ["event_id", "phase", "object_key", "kafka_offset"]

    def rows(table):
        return sorted(tuple(row[name] for name in names) for row in table.to_pylist())

    assert rows(read_whole(path)) == [*expected, ("c", "destination", None, None)]
    assert rows(read_events(path, ["b"])) == expected[2:]
    assert {row["outcome"] for row in read_events(path, ["b"]).to_pylist()} == {"passed"}
