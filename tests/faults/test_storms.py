"""A pipeline that fails on everything is held; its neighbour on the topic flows; nothing is lost."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest
from tests.support import children, orders, streams
from tests.support.replays import run_replay

from waybill import services
from waybill.storage import open_objects, open_tracker
from waybill.storage.tracker.tables import METADATA

pytestmark = [pytest.mark.serves, pytest.mark.slow, pytest.mark.campaign]
ROWS = 3_000
BREAKS = "def transform(event):\n    return {}[event.id]\n"
DIES = """
import os, signal
from waybill.processing.spark import topic_consumer, topic_group
from waybill.processing.spark.application import run_processing

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def die_if(found):
    if found:
        die()
    return found

find_storms, commit_batch = topic_group.find_storms, topic_consumer.commit_batch
"""
RUN = 'run_processing(settings, cluster="default")\n'
KILLS = {
    "after the first action, which found the storm": """
topic_group.find_storms = lambda *given, **named: die_if(find_storms(*given, **named))
""",
    "after the second action, before the commit": "topic_consumer.commit_batch = lambda *_: die()\n",
    "after the commit": "topic_consumer.commit_batch = lambda *given: (commit_batch(*given), die())\n",
}


@pytest.fixture
def settings(stack_settings, tmp_path):
    """Two pipelines of one topic: `orders`, and `other`, whose code breaks on all events."""
    parking = stack_settings.parking.model_copy(update={"storm_min_events": ROWS // 2})
    made = stack_settings.model_copy(update={"parking": parking})
    made = streams.with_orders(made, tmp_path, rows=ROWS)
    orders.write_orders(made.pipelines_dir, rows=ROWS, fixed=True)
    services.run_deploy(made, made.pipelines_dir / "orders", who="test")
    write_other(made, code=BREAKS)
    with streams.stopped_at_end(made):
        yield made


def write_other(settings, *, code=None):
    """Write and deploy the second pipeline: its own id, name and schema; the same topic."""
    home = settings.pipelines_dir / "other"
    home.mkdir(exist_ok=True)
    again = settings.pipelines_dir / "orders"
    for name in ("pipeline.yaml", "transformation.py"):
        (home / name).write_text((again / name).read_text())
    text = (home / "pipeline.yaml").read_text()
    for old, new in (
        ("id: test-orders", "id: test-other"),
        ("name: orders\nteam", "name: other\nteam"),
        ("schema: shop", "schema: other"),
    ):
        assert old in text
        text = text.replace(old, new)
    (home / "pipeline.yaml").write_text(text)
    if code is not None:
        (home / "transformation.py").write_text(code)
    services.run_deploy(settings, home, who="test")


def ingest(settings, *, first=0):
    """Take in ``ROWS`` rows of each pipeline, numbered from ``first`` on."""
    numbers = range(first, first + ROWS)
    lines = ["number,amount,note", *(f"{n},{n},note {n}" for n in numbers)]
    for name in ("orders", "other"):
        (settings.pipelines_dir / name / "orders.csv").write_text("\n".join(lines) + "\n")
        services.run_ingest(settings, name)


def rows_of(settings, statement):
    with open_tracker(settings.tracker) as tracker, tracker.transaction() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(statement)]


def held_numbers(settings):
    """Return {(pipeline, event name, stage, error type): parked}."""
    found = services.parked_partitions(settings)
    return {(p.pipeline, p.event_name, p.stage, p.error_type): p.parked for p in found}


HELD = ("other", "order", "transformation", "pipeline_held")


def good(rows):
    """Return how many of the rows are not filtered on purpose."""
    return rows - orders.expected(rows)["filtered"]


def test_a_storm_is_held_neighbours_flow_and_a_fix_brings_all_of_it_back_once(settings):
    ingest(settings)
    first = streams.rest_of(settings, rows=2 * ROWS)
    assert held_numbers(settings) == {HELD: ROWS}
    assert first.delivered == good(ROWS)
    ingest(settings, first=ROWS)  # while it is held
    held = streams.rest_of(settings, rows=4 * ROWS)
    assert held_numbers(settings) == {HELD: 2 * ROWS}
    assert (held.delivered, held.parked) == (good(2 * ROWS), 2 * ROWS)
    assert sorted(streams.warehouse_numbers(settings)) == [
        n for n in range(2 * ROWS) if n % 50 != orders.FILTERED
    ]
    [(objects,)] = rows_of(settings, "SELECT count(*) FROM parked_objects")
    [(batches,)] = rows_of(settings, "SELECT count(*) FROM batches")
    assert objects <= 2 * batches, "one a task at most"
    [(cause, kind)] = rows_of(
        settings, "SELECT cause, (SELECT kind FROM notices WHERE kind = 'hold') FROM pipeline_holds"
    )
    assert (cause["error_type"], cause["place"], cause["failed"], kind) == (
        "field_missing",
        "other/transformation.py:2 in transform",
        ROWS,
        "hold",
    )
    bring_back(settings)
    end = streams.rest_of(settings, rows=4 * ROWS)
    assert (end.parked, end.delivered) == (0, 2 * good(2 * ROWS))
    assert (end.duplicate, end.superseded) == (0, 0)
    [others] = warehouse(settings, "SELECT count(*), count(DISTINCT number) FROM other.orders")
    assert others == (good(2 * ROWS), good(2 * ROWS))


def bring_back(settings):
    """Deploy the fix; the probe passes, and its replays are run as their DAG runs would."""
    write_other(settings)
    report = services.probe_held_pipelines(settings)
    assert [probe.released for probe in report.probes] == [True]
    for partition in report.to_replay:
        sent = run_replay(
            settings,
            pipeline=partition.pipeline,
            event_name=partition.event_name,
            stage=partition.stage,
            error_type=partition.error_type,
            who="probe",
            run_id="r1",
        )
        assert sent.sent == 2 * ROWS


def warehouse(settings, statement):
    import psycopg

    dsn = settings.destinations["warehouse"].dsn.get_secret_value()
    with psycopg.connect(dsn) as connection:
        return connection.execute(statement).fetchall()


def test_a_kill_at_any_line_between_the_storm_and_its_hold_leaves_only_garbage(settings):
    ingest(settings)
    before = {name: 0 for name in ("pipeline_holds", "batches", "segments")}
    assert before.keys() <= METADATA.tables.keys()
    for line, patch in KILLS.items():
        assert counted(settings, before) == before, f"before the kill {line}"
        assert end_of(children.start(settings, DIES + patch + RUN)) == -signal.SIGKILL, line
    after = counted(settings, before)
    assert (after["pipeline_holds"], after["batches"]) == (1, 1)
    assert rows_of(settings, "SELECT count(*) FROM notices WHERE kind = 'hold'") == [(1,)]
    assert held_numbers(settings) == {HELD: ROWS}
    named = {key for (key,) in rows_of(settings, "SELECT key FROM parked_objects")}
    named |= {key for (key,) in rows_of(settings, "SELECT key FROM staged_objects")}
    there = stored(settings)
    assert named < there, "what the kills left"
    services.refresh_tracker(settings, grace_s=0)
    assert stored(settings) == named
    end = streams.rest_of(settings, rows=2 * ROWS)
    assert (end.parked, end.delivered) == (ROWS, good(ROWS))


def end_of(child):
    """Wait until a driver has ended; take its JVM and workers down with it. Return its code."""
    try:
        return child.wait(timeout=600)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()


def counted(settings, names):
    return {name: number_of(settings, name) for name in names}


def number_of(settings, table):
    return rows_of(settings, f"SELECT count(*) FROM {table}")[0][0]


def stored(settings):
    objects = open_objects(settings.s3)
    return {item.key for prefix in ("parked/", "staged/") for item in objects.list(prefix)}
