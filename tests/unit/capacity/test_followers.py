"""Who is to acknowledge the announced nodes, and who is late."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from waybill.capacity import Node, NodeReport
from waybill.capacity.followers import LATE_S, followers_of
from waybill.clusters import Acknowledgement, Application

NOW = 1_000_000.0
NODE = Node("a", "spark", "active", 4, NodeReport(4, 0, 0.1, 0.0, 0.3), True, None)
RUNS = Application(
    "default", "processing", NOW, epoch=3, started_s=NOW - 500, heartbeat_s=NOW - 2
)  # fmt: skip


def said(version: int, *, epoch: int = 3, ago_s: float = 10.0) -> Acknowledgement:
    return Acknowledgement(version, datetime.fromtimestamp(NOW - ago_s, UTC), epoch)


def found(acknowledged, *applications, nodes=(), version=7, waited_s=90.0):
    rows = {(one.cluster, one.kind): one for one in applications}
    given = {"version": version, "waited_s": waited_s, "now_s": NOW}
    return followers_of(list(nodes), rows, acknowledged, **given)


def test_who_runs_and_has_not_acknowledged_in_time_is_late_and_who_has_is_not():
    [late] = found({"processing of default": said(6)}, RUNS)
    assert (late.name, late.version, late.waits_s, late.is_late) == (
        "processing of default", 6, 90.0, True,
    )  # fmt: skip
    [soon] = found({"processing of default": said(6)}, RUNS, waited_s=LATE_S)
    assert not soon.is_late
    [done] = found({"processing of default": said(7)}, RUNS)
    assert (done.version, done.is_late) == (7, False)


def test_what_another_start_acknowledged_does_not_count_and_one_just_started_has_its_time():
    [late] = found({"processing of default": said(7, epoch=2)}, RUNS)
    assert (late.version, late.at, late.is_late) == (0, None, True)
    [new] = found({}, replace(RUNS, started_s=NOW - 5))
    assert (new.version, new.waits_s, new.is_late) == (0, 5.0, False)


def test_applications_that_are_not_heard_of_have_ended_or_never_ran_are_no_followers():
    silent = replace(RUNS, heartbeat_s=NOW - 100)
    ended = replace(RUNS, kind="loading", ended_s=NOW)
    never = Application("second", "processing", NOW)
    acknowledged = {"processing of default": said(7), "loading of default": said(7)}
    assert found(acknowledged, silent, ended, never) == ()


def test_enhancers_of_nodes_that_report_are_followers_and_others_for_a_day():
    silent = replace(NODE, name="b", is_heard=False)
    acknowledged = {
        "enhancer of b": said(7, epoch=0),
        "lake": said(5, epoch=0),
        "old lake": said(5, epoch=0, ago_s=90_000),
    }
    names = [one.name for one in found(acknowledged, nodes=[NODE, silent])]
    assert names == ["enhancer of a", "lake"]


def test_where_nothing_was_announced_nobody_is_late():
    [one] = found({}, RUNS, version=0, waited_s=0.0)
    assert (one.version, one.waits_s, one.is_late) == (0, 0.0, False)


def test_a_clock_that_was_set_back_makes_nobody_late():
    [one] = found({}, replace(RUNS, started_s=NOW + 400), waited_s=-300.0)
    assert (one.waits_s, one.is_late) == (0.0, False)
