"""What the delay monitor makes of tasks."""

from __future__ import annotations

from waybill.capacity import TaskTimes, summarise
from waybill.capacity.waits import MOST_GROUPS

NOW = 1_000_000.0


def test_waits_are_grouped_by_team_connector_and_queue_with_percentiles_and_the_oldest():
    waiting = [TaskTimes("web", "sql", "default", NOW - age) for age in (10, 20, 300)]
    began = [TaskTimes("ops", "csv_file", "slow", NOW - 40, NOW - 30)]
    report = summarise([*waiting, *began], NOW)
    web, ops = report.groups
    assert (web.team, web.connector, web.queue) == ("web", "sql", "default")
    assert (web.waiting, web.started, web.p50_s, web.p95_s, web.oldest_s) == (3, 0, 20, 300, 300)
    assert (ops.waiting, ops.started, ops.p50_s, ops.oldest_s) == (0, 1, 10, 0)
    assert (report.waiting, report.busy, report.p95_s, report.oldest_s) == (3, 1, 300, 300)


def test_demand_is_what_came_in_times_how_long_it_takes():
    ended = [TaskTimes("t", "k", "q", NOW - 100, NOW - 90, NOW - 70) for _ in range(60)]
    report = summarise(ended, NOW)
    assert (report.arrival_per_s, report.service_s, report.demand) == (0.5, 20.0, 10.0)
    assert report.backlog_s == 0


def test_a_wait_of_long_ago_is_not_in_the_percentiles():
    report = summarise([TaskTimes("t", "k", "q", NOW - 900, NOW - 400, NOW - 300)], NOW)
    assert (report.p95_s, report.groups) == (0, ())


def test_tasks_that_were_not_read_count_as_waiting_and_as_come_in():
    seen = [
        TaskTimes("t", "k", "q", NOW - 240),
        TaskTimes("t", "k", "q", NOW - 300, NOW - 290, NOW - 280),
    ]
    report = summarise(seen, NOW, unseen=1000)
    assert report.backlog_s == 1001 * 10
    assert round(report.arrival_per_s, 2) == round(1000 * (120 / 240) / 120, 2)


def test_times_that_lie_ahead_count_as_now():
    report = summarise(
        [TaskTimes("t", "k", "q", NOW + 50), TaskTimes("t", "k", "q", NOW, NOW + 9)], NOW
    )
    assert (report.p95_s, report.oldest_s, report.service_s) == (0, 0, 0)


def test_the_groups_that_wait_longest_are_named_however_many_there_are():
    tasks = [TaskTimes(f"team-{n}", "k", "q", NOW - n) for n in range(MOST_GROUPS + 50)]
    report = summarise(tasks, NOW)
    assert len(report.groups) == MOST_GROUPS
    assert report.groups[0].team == f"team-{MOST_GROUPS + 49}"
    assert report.waiting == MOST_GROUPS + 50


def test_nothing_to_see_is_a_report_as_well():
    report = summarise([], NOW)
    assert (report.waiting, report.p95_s, report.demand, report.groups) == (0, 0, 0, ())
