"""SIGKILL of the Spark applications: what arrives is exact, whatever dies, whenever."""

from __future__ import annotations

import os
import random
import signal
import time

import psutil
import pytest
from tests.support import children, orders, streams
from tests.support.recorded import assert_traces_agree_with_the_books
from tests.support.replays import run_replay

from waybill import services
from waybill.services import applications

pytestmark = [pytest.mark.serves, pytest.mark.slow, pytest.mark.campaign]
SEED = 7
ROWS = 4_000
MANY_ROWS = 20_000
KILLED = ("processing", "loading")


@pytest.fixture
def settings(request, stack_settings, tmp_path):
    rows = getattr(request, "param", ROWS)
    made = streams.with_orders(stack_settings, tmp_path, rows=rows, max_events_per_batch=1_500)
    with streams.stopped_at_end(made):
        yield made


def kill_one(settings, chance, kind):
    """SIGKILL one application: its Python driver, its JVM, or all of its session."""
    pid = applications.application_status(settings, kind, "default").pid
    if pid is None:
        return
    way = chance.choice(("driver", "jvm", "session"))
    print(f"SIGKILL to the {way} of {kind}")
    if way == "session":
        os.killpg(pid, signal.SIGKILL)
        return
    jvms = [c for c in psutil.Process(pid).children() if c.name() == "java"]
    victim = jvms[0].pid if way == "jvm" and jvms else pid
    os.kill(victim, signal.SIGKILL)


def has_moved_on(settings, before, rows):
    streams.keep_running(settings)
    now = delivered(settings)
    return now > before or now > rows * 0.8


def delivered(settings):
    return services.balance(settings).delivered


def test_kills_of_both_applications_change_no_count(settings):
    kill_each(settings, KILLED, ROWS)


@pytest.mark.parametrize("settings", [MANY_ROWS], indirect=True)
def test_more_kills_of_both_applications_change_no_count(settings):
    kill_each(settings, 2 * KILLED, MANY_ROWS)


def kill_each(settings, kinds, rows):
    chance = random.Random(SEED)
    print(f"seed {SEED}")
    services.run_ingest(settings, "orders")
    for kind in kinds:
        before = delivered(settings)
        children.wait_until(
            lambda before=before: has_moved_on(settings, before, rows), limit_s=300.0, what="a load"
        )
        time.sleep(chance.uniform(0.0, 1.0))
        kill_one(settings, chance, kind)
    report = streams.rest_of(settings, rows=rows)
    fates = orders.expected(rows)
    parked = {p.error_type: p.parked for p in services.parked_partitions(settings)}
    good = rows - sum(fates.values())
    assert report.filtered == fates.pop("filtered")
    assert parked == fates
    assert report.delivered == good
    streams.assert_once_each(settings, orders.good_numbers(rows))
    assert_traces_agree_with_the_books(settings)
    replay_all_and_check(settings, rows)


def replay_all_and_check(settings, rows):
    """The second half of the story: the fix, the replays, and everything is there once."""
    orders.write_orders(settings.pipelines_dir, rows=rows, fixed=True)
    services.run_deploy(settings, settings.pipelines_dir / "orders", who="test")
    for partition in services.parked_partitions(settings):
        report = run_replay(
            settings,
            pipeline=partition.pipeline,
            event_name=partition.event_name,
            stage=partition.stage,
            error_type=partition.error_type,
            who="test",
            run_id="r1",
        )
        assert report.sent == partition.parked
    end = streams.rest_of(settings, rows=rows)
    assert end.parked == 0
    assert end.delivered == rows - orders.expected(rows)["filtered"]
    fixed = [number for number in range(rows) if number % 50 != orders.FILTERED]
    streams.assert_once_each(settings, fixed)
    assert_traces_agree_with_the_books(settings)
