import inspect
import subprocess
import sys

from waybill.parking import Parking


def test_what_parking_can_do_is_this():
    methods = {n for n, _ in inspect.getmembers(Parking, inspect.isfunction) if n[0] != "_"}
    assert methods == {
        "begin_replay",
        "cancel_replay",
        "check_objects",
        "clean_up",
        "count_parked",
        "decide_entry",
        "discard",
        "draw",
        "events",
        "files",
        "find",
        "find_exactly",
        "finish_replay",
        "causes",
        "hold",
        "holds",
        "knows",
        "mark_replayed",
        "newest",
        "object_keys",
        "page",
        "partition",
        "partitions",
        "partitions_of",
        "replayed_group",
        "pipeline_id",
        "quarantine",
        "quarantine_damaged",
        "read",
        "read_slice",
        "read_slices",
        "recheck",
        "record",
        "record_objects",
        "record_once",
        "refresh",
        "release",
        "replay_slices",
        "replay_segments",
        "replay_size",
        "replay_step",
        "require_names",
        "sample",
        "timelines",
        "totals",
        "undo_discard",
    }


def test_importing_it_brings_no_heavy_module():
    heavy = "{'boto3', 'pyspark', 'pandas', 'duckdb', 'confluent_kafka', 'rocksdict', 'airflow'}"
    code = f"import sys, waybill.parking; print({heavy} & set(sys.modules) or 'none')"
    path = next(p for p in sys.path if p.endswith("include"))
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": path}, check=True, capture_output=True
    )
    assert done.stdout.decode().strip() == "none"
