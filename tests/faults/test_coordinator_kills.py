"""SIGKILL of the coordinator amid its round: a decision is there as a whole, once, or not at all."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests import servers
from tests.faults import failpoints
from tests.faults.processing_campaign import follows
from tests.support import children
from tests.support.clustered import LogInMemory, assignment_versions, deploy_teams

from waybill.access import Decision
from waybill.clusters import ClusterRequest, DryRunInfra, coordinate, create_cluster
from waybill.settings import Settings, TrackerSettings
from waybill.storage import open_tracker

pytestmark = [pytest.mark.serves]
ROUND = """
from tests.faults import failpoints
from tests.support.clustered import LogInMemory
from waybill.clusters import DryRunInfra, coordinate
from waybill.storage import open_tracker
failpoints.in_coordinator()
with open_tracker(settings.tracker) as tracker:
    coordinate(tracker, LogInMemory(), DryRunInfra())
"""


@pytest.fixture
def settings(postgres, tmp_path, monkeypatch):
    failpoints.put_up(monkeypatch, tmp_path / "failpoints")
    return Settings(tracker=TrackerSettings(dsn=postgres.tracker("coordinator_kills")))


@pytest.fixture
def tracker(settings, tmp_path):
    with open_tracker(settings.tracker) as books:
        deploy_teams(books, tmp_path, "red", "green")
        create_cluster(books, ClusterRequest(name="second"), Decision("ann", "a test"))
        yield books


def killed_at(settings, failpoint):
    """Kill a round at a failpoint that it comes to."""
    failpoints.arm("coordinator", failpoint)
    child = children.start(settings, ROUND)
    try:
        pid = servers.wait_for(lambda: failpoints.caught("coordinator", failpoint))
        assert pid == child.pid
    finally:
        children.kill(child)


def test_a_kill_anywhere_in_a_round_leaves_the_decision_to_the_next_one_and_moves_nobody_twice(
    settings, tracker, tmp_path
):
    coordinate(tracker, LogInMemory(), DryRunInfra())
    deploy_teams(tracker, tmp_path, "late")
    [before] = assignment_versions(tracker)
    *amid, last = sorted(failpoints.COORDINATOR, key="decision committed".__eq__)
    for failpoint in amid:
        killed_at(settings, failpoint)
        assert assignment_versions(tracker) == [before], failpoint
    killed_at(settings, last)
    reports = [coordinate(tracker, LogInMemory(), DryRunInfra()) for _ in range(2)]
    [_, after] = assignment_versions(tracker)
    assert [move.team for move in after.moves] == ["late"]
    assert [report.moves for report in reports] == [(), ()]
    assert all(follows(*pair) for pair in pairwise(assignment_versions(tracker)))
