"""Loads carried out by executors: as the driver's, once whatever dies, and without the books."""

from __future__ import annotations

import json
import logging
import os
import pickle
import subprocess
import sys
from dataclasses import replace

import psycopg
import pyarrow as pa
import pyspark
import pytest
from deltalake import DeltaTable
from pyspark import cloudpickle
from tests.support import children
from tests.support.executed_loads import (
    Delivered,
    SpiedExecutors,
    executor_at,
    frozen,
    held_at_commit,
    kill_executors,
    let_go,
    real_executors,
    wait_for_backend,
)
from tests.support.loads import opened_loads, some
from tests.unit.destinations.orders import Order, clean_database, spec_of

from waybill.destinations import open_destination
from waybill.destinations.adapters.delta.lake import storage_options
from waybill.ledger import staged_after
from waybill.loading import LoadPlan, StoppedError, loader
from waybill.loading.failures import NotTakenError
from waybill.loading.plans import PlannedObject
from waybill.loading.quarantine import lost_objects
from waybill.loading.spark.tasks import LoadTask
from waybill.parking import ParkedGroupFilter, Parking, read_segment
from waybill.pipelines import Column
from waybill.processing.spark import ExecutorSettings
from waybill.settings import DestinationSettings, Settings
from waybill.storage import deployment_of

pytestmark = [pytest.mark.serves, pytest.mark.slow]
STRICT = spec_of(
    "strict",
    Column(name="id", type="int64", nullable=False),
    Column(name="what", type="string", nullable=False),
)


@pytest.fixture(scope="module")
def spark(request, tmp_path_factory):
    """One executor; two where the campaign runs, in which one is frozen and the other goes on."""
    items = [item for item in request.session.items if item.path == request.path]
    freezes = any(item.get_closest_marker("campaign") for item in items)
    count, silence_s = (2, 8) if freezes else (1, 30)
    with real_executors(tmp_path_factory.mktemp("spark"), count, silence_s) as session:
        yield session


@pytest.fixture(autouse=True)
def all_loads_are_large(monkeypatch):
    monkeypatch.setattr(loader, "is_small", lambda _rows, _size: False)


@pytest.fixture
def loads(postgres, s3):
    with opened_loads(postgres, s3, clean_database(postgres)) as opened:
        yield opened


@pytest.fixture
def executed(loads, spark, tmp_path):
    """What has executors load."""
    return SpiedExecutors(loads, spark, tmp_path)


@pytest.fixture
def lake(loads, s3, monkeypatch):
    """The same, but the destination is Delta tables in a bucket."""
    loads.settings = DestinationSettings(kind="delta", dsn=f"s3://{loads.s3.bucket}/lake")

    def opening():
        loads.opened.append(open_destination(loads.name, loads.settings, loads.s3))
        return loads.opened[-1]

    monkeypatch.setattr(loads, "open", opening)
    return loads


def lake_ids(loads, spec) -> list[int]:
    table = DeltaTable(
        f"s3://{loads.s3.bucket}/lake/{spec.schema_name}/{spec.name}",
        storage_options=storage_options(loads.s3),
    )
    return sorted(table.to_pyarrow_table(columns=["id"])["id"].to_pylist())


def parked_lines(loads) -> list[dict]:
    """Return what is parked at the destination, without when."""
    found = []
    for key, position, length, sha256 in loads.sql(
        "SELECT o.key, s.position, s.length, s.sha256 FROM segments s "
        "JOIN parked_objects o ON o.key = s.object_key ORDER BY 1, 2"
    ):
        body = loads.objects.get(key, position=position, length=length)
        for event in read_segment(body, sha256=sha256, key=key, position=position):
            line = {name: getattr(event, name) for name in event.__slots__}
            line.pop("parked_at")
            found.append(line)
    return sorted(found, key=str)


REFUSED = Order(900, 1, 900, what="nul \0 in it")


def die(*_given, **_more):
    raise StoppedError("it died here")


def test_executors_workers_import_the_installed_pyspark_and_not_its_archive(spark):
    def told(numbers):
        import sys
        from zipimport import zipimporter

        import pyspark

        finders = sys.path_importer_cache.items()
        archives = [entry for entry, finder in finders if isinstance(finder, zipimporter)]
        for _ in numbers:
            columns = {"file": [pyspark.__file__], "archives": [archives]}
            yield pa.RecordBatch.from_pydict(columns)

    frame = spark.range(0, 1, 1, 1).mapInArrow(told, "file string, archives array<string>")
    [row] = frame.collect()
    assert (row.file, row.archives) == (pyspark.__file__, [])


def test_a_load_by_executors_is_what_the_drivers_is(loads, executed, postgres, s3):
    with opened_loads(postgres, s3, postgres.database("driven")) as driven:
        for each in (loads, driven):
            each.stage([*some(1, 6), REFUSED])
            each.stage([Order(1, 2, 20, "newer"), Order(2, 1, 2), Order(3, 2, 30, op="delete")])
            last = each.stage([])
            carried = executed if each is loads else None
            each.deliver(each.patience(executors=carried), last)
        assert executed.plans[0].rows == 10
        assert loads.ids() == driven.ids() == [1, 2, 4, 5, 6]
        assert loads.counts() == driven.counts()
        assert loads.counts()["parked"] == 1
        assert loads.parked() == driven.parked() == {"destination_value_refused": 1}
        assert parked_lines(loads) == parked_lines(driven) != []
        assert loads.position == driven.position == last
        taken = "SELECT commit_number, taken FROM staged_objects ORDER BY 1"
        assert loads.sql(taken) == driven.sql(taken)


def test_a_load_again_changes_nothing_and_parks_nothing_twice(loads, executed, monkeypatch):
    last = loads.stage([*some(1, 6), REFUSED])
    with monkeypatch.context() as patched:
        patched.setattr(loader, "commit_load", die)
        with pytest.raises(StoppedError):
            loads.deliver(loads.patience(executors=executed), last)
    loads.deliver(loads.patience(executors=executed), last)
    assert loads.counts() == {"in_first": 7, "passed": 6, "parked": 1}
    assert loads.parked() == {"destination_value_refused": 1}
    assert len(parked_lines(loads)) == 1


def test_each_table_of_a_lake_is_a_task_of_its_own(lake, spark, tmp_path):
    executed = SpiedExecutors(lake, spark, tmp_path)
    orders, lines = spec_of(), spec_of("lines")
    refused = Order(9, 1, 9, what=None)
    lake.stage(some(1, 3), orders)
    last = lake.stage_tables((orders, some(4, 3)), (lines, some(1, 4)), (STRICT, [refused]))
    lake.deliver(lake.patience(executors=executed), last)
    places = [("shop", "lines"), ("shop", "orders"), ("shop", "strict")]
    assert list(executed.plans[0].tables) == places
    assert [list(report.tables) for report in executed.reports] == [[place] for place in places]
    assert lake_ids(lake, orders) == [1, 2, 3, 4, 5, 6]
    assert lake_ids(lake, lines) == [1, 2, 3, 4]
    assert lake.counts() == {"in_first": 11, "passed": 10, "parked": 1}
    assert lake.parked() == {"destination_not_null_violation": 1}
    found = lake.sql("SELECT table_name, last_commit FROM loaded_tables ORDER BY 1")
    assert found == [("lines", last), ("orders", last), ("strict", last)]


def test_a_table_that_was_loaded_before_its_neighbours_died_is_loaded_once(lake, spark, tmp_path):
    orders, lines = spec_of(), spec_of("lines")
    last = lake.stage_tables((orders, some(1, 3)), (lines, some(1, 4)))
    executed = SpiedExecutors(lake, spark, tmp_path)

    def lines_alone(plan):
        executed(replace(plan, tables=(("shop", "lines"),)))
        die()

    with pytest.raises(StoppedError):
        lake.deliver(lake.patience(executors=lines_alone), last)
    assert lake_ids(lake, lines) == [1, 2, 3, 4]
    lake.deliver(lake.patience(executors=executed), last)
    assert (lake_ids(lake, orders), lake_ids(lake, lines)) == ([1, 2, 3], [1, 2, 3, 4])
    assert lake.counts() == {"in_first": 7, "passed": 7}


def test_executors_killed_amid_the_commit_have_it_done_once(loads, executed):
    loads.deliver(loads.patience(executors=executed), loads.stage(some(1, 1)))
    last = loads.stage([*some(2, 50), REFUSED])
    with held_at_commit(loads) as lock:
        running = Delivered(loads, loads.patience(executors=executed), last)
        wait_for_backend(lock)
        kill_executors()
        wait_for_backend(lock, "transactionid")  # the next attempt waits for the first
        let_go(lock)
        running.end()
    assert loads.ids() == list(range(1, 52))
    assert loads.counts() == {"in_first": 52, "passed": 51, "parked": 1}
    assert loads.parked() == {"destination_value_refused": 1}
    assert len(parked_lines(loads)) == 1
    assert loads.ask("SELECT count(*) FROM waybill._waybill_commits") == [(2,)]


@pytest.mark.campaign
def test_an_executor_that_froze_amid_a_load_and_wakes_later_changes_nothing(loads, executed):
    loads.deliver(loads.patience(), loads.stage(some(1, 1)))
    last = loads.stage(some(2, 50))
    with held_at_commit(loads) as lock:
        running = Delivered(loads, loads.patience(executors=executed), last)
        pid = wait_for_backend(lock)
        with frozen(executor_at(loads.gate.port)):
            wait_for_backend(lock, "transactionid")  # lost to Spark: another executor tries
            lock.execute("SELECT pg_terminate_backend(%s)", (pid,))  # as its limit would
            let_go(lock)
            running.end()
            counts, ids = loads.counts(), loads.ids()
    assert ids == list(range(1, 52))
    assert counts == {"in_first": 51, "passed": 51}
    again = loads.stage(some(60, 5))
    loads.deliver(loads.patience(executors=executed), again)
    assert loads.counts() == {"in_first": 56, "passed": 56}


def test_a_lost_object_is_noted_and_the_others_are_loaded(loads, executed):
    for first in (1, 11, 21):
        last = loads.stage(some(first, 5))
    keys = [row[0] for row in loads.sql("SELECT key FROM staged_objects ORDER BY commit_number")]
    loads.objects.delete([keys[0]])
    body = loads.objects.get(keys[1])
    loads.objects.put(keys[1], body[:40] + b"?" + body[41:])
    loads.deliver(loads.patience(executors=executed), last)
    assert loads.ids() == [21, 22, 23, 24, 25]
    assert {one.key for one in lost_objects(loads.tracker)} == set(keys[:2])
    assert loads.position == last


def test_a_damaged_frame_of_one_table_is_lost_for_all_tables_of_its_object(lake, spark, tmp_path):
    orders, lines = spec_of(), spec_of("lines")
    lake.stage_tables((orders, some(1, 3)), (lines, some(1, 4)))
    last = lake.stage_tables((orders, some(11, 3)), (lines, some(11, 4)))
    [key, _] = [r[0] for r in lake.sql("SELECT key FROM staged_objects ORDER BY commit_number")]
    body = lake.objects.get(key)
    lake.objects.put(key, body[:40] + b"?" + body[41:])
    lake.deliver(lake.patience(executors=SpiedExecutors(lake, spark, tmp_path)), last)
    assert lake_ids(lake, orders) == [11, 12, 13]
    assert lake_ids(lake, lines) == [11, 12, 13, 14]
    assert [one.rows for one in lost_objects(lake.tracker)] == [7]


def test_a_destination_that_hangs_is_told_while_spark_waits(loads, executed, monkeypatch, caplog):
    loads.deliver(loads.patience(executors=executed), loads.stage(some(1, 1)))
    monkeypatch.setattr(loader, "_LONG_S", 0.2)
    last = loads.stage(some(2, 5))
    with caplog.at_level(logging.WARNING), held_at_commit(loads) as lock:
        running = Delivered(loads, loads.patience(executors=executed), last)
        wait_for_backend(lock)
        children.wait_until(
            lambda: f"a load of commits {last} to {last} (5 rows) has been going on" in caplog.text,
            limit_s=180, what="a warning",
        )  # fmt: skip
        let_go(lock)
        running.end()
    assert loads.counts() == {"in_first": 6, "passed": 6}


def test_a_cancelled_job_ends_the_query_and_its_load_is_done_once(loads, executed, spark):
    loads.deliver(loads.patience(executors=executed), loads.stage(some(1, 1)))
    last = loads.stage(some(2, 5))
    with held_at_commit(loads) as lock:
        running = Delivered(loads, loads.patience(executors=executed), last)
        wait_for_backend(lock)
        spark.sparkContext.cancelAllJobs()
        with pytest.raises(StoppedError):
            running.end()
        let_go(lock)
    loads.deliver(loads.patience(executors=executed), last)
    assert loads.counts() == {"in_first": 6, "passed": 6}


def test_a_destination_that_speaks_of_cancelled_jobs_is_waited_for(loads, executed):
    loads.deliver(loads.patience(executors=executed), loads.stage(some(1, 1)))
    loads.ask(
        "CREATE FUNCTION shop.no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION "
        "'[SPARK_JOB_CANCELLED] FencedError: Job 3 cancelled' USING ERRCODE = '53100'; END $$"
    )
    loads.ask("CREATE TRIGGER no BEFORE INSERT ON shop.orders EXECUTE FUNCTION shop.no()")
    last = loads.stage(some(2, 5))
    made = loads.loader(executors=executed)
    found = staged_after(loads.tracker, loads.name, after=last - 1, until=last)
    with pytest.raises(NotTakenError, match="SPARK_JOB_CANCELLED") as caught:
        made.load(found, after=last - 1, until=last)
    assert (caught.value.code, caught.value.by_hand_only) == ("destination_full", False)
    loads.ask("DROP TRIGGER no ON shop.orders")
    assert made.load(found, after=last - 1, until=last) == 5


def test_commits_that_nobody_waits_for_are_parked_by_the_driver(loads, executed):
    last = loads.stage(some(1, 5))
    loads.gate.shut()
    loads.deliver(loads.patience(executors=executed, park_after_s=0.001), last)
    assert [plan for plan in executed.plans if plan.park is not None] == []
    assert loads.parked() == {"destination_unreachable": 5}
    assert loads.counts() == {"in_first": 5, "parked": 5}


def test_a_task_that_loads_reads_no_settings_and_cannot_reach_the_books(loads, tmp_path):
    last = loads.stage([*some(1, 5), REFUSED])
    canary = DestinationSettings(dsn="postgresql://u:canary-of-another@h/d")
    settings = Settings(
        _env_file=None,
        s3=loads.s3,
        tracker=loads.tracker_settings,
        destinations={loads.name: loads.settings, "other": canary},
    )
    sent = ExecutorSettings.of(settings, deployment_of(loads.tracker), loads=loads.name)
    [(key, rows, size)] = loads.sql("SELECT key, rows, bytes FROM staged_objects")
    plan = LoadPlan(loads.name, (last,), (PlannedObject(last, key, rows, size, 999, "b"),))
    whole = cloudpickle.dumps(LoadTask(plan, sent))
    dsn = loads.tracker_settings.dsn.get_secret_value()
    assert dsn.encode() not in whole
    assert b"canary-of-another" not in whole
    (tmp_path / "task").write_bytes(pickle.dumps(LoadTask(plan, sent)))
    given = {
        "WAYBILL_TRACKER__DSN": "postgresql://canary",
        "WAYBILL_AIRFLOW__PASSWORD": "canary",
        "WAYBILL_DESTINATIONS__OTHER__DSN": "postgresql://canary",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.load_child", str(tmp_path / "task")],
        env={**os.environ, **given, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    [row] = found["told"]
    assert row["failure"] == ""
    report = json.loads(row["report"])
    assert report["rows"] == 6
    assert (found["read"], found["loaded"]) == ([], [])
    assert loads.ids() == [1, 2, 3, 4, 5]


def test_parking_is_listed_as_from_the_driver(loads, executed):
    loads.deliver(loads.patience(executors=executed), loads.stage([*some(1, 3), REFUSED]))
    [group] = Parking(loads.tracker, loads.objects).partitions(ParkedGroupFilter())
    assert (group.stage, group.error_type, group.parked) == (
        "destination", "destination_value_refused", 1,
    )  # fmt: skip
    with psycopg.connect(loads.dsn) as connection:
        assert connection.execute("SELECT count(*) FROM shop.orders").fetchone() == (3,)
