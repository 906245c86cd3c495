"""SIGKILL at each step of a batch's transaction: nothing of it is there, and it is committed anew."""

from __future__ import annotations

import pytest
from tests import servers
from tests.faults import failpoints
from tests.faults.processing_failpoints import IN_TRANSACTION
from tests.support import children
from tests.support.books import batch, everything, nothing_parked, staged

from waybill.ledger import acquire_lease, commit_batch
from waybill.settings import Settings, TrackerSettings
from waybill.storage import open_tracker

pytestmark = [pytest.mark.serves]
CONSUMER = "processing/events.t.w"
COMMIT = """
from tests.faults.processing_failpoints import in_processing
from tests.support.books import batch, counts, nothing_parked, staged
from waybill.ledger import commit_batch
from waybill.storage import open_tracker
in_processing("driver")
given = batch({epoch}, (0, 0, 10), counts=counts("mapping", passed=10), staged=staged("killed"))
with open_tracker(settings.tracker) as tracker:
    commit_batch(tracker, given, nothing_parked)
"""


@pytest.fixture
def settings(postgres, tmp_path, monkeypatch):
    failpoints.put_up(monkeypatch, tmp_path / "failpoints")
    return Settings(tracker=TrackerSettings(dsn=postgres.tracker("commit_kills")))


@pytest.mark.parametrize("failpoint", IN_TRANSACTION)
def test_a_driver_killed_amid_its_transaction_leaves_nothing_of_it(settings, failpoint):
    with open_tracker(settings.tracker) as tracker:
        epoch = acquire_lease(tracker, CONSUMER, holder="killed")
        before = everything(tracker)
        failpoints.arm("driver", failpoint)
        child = children.start(settings, COMMIT.format(epoch=epoch))
        try:
            pid = servers.wait_for(lambda: failpoints.caught("driver", failpoint))
            assert pid == child.pid
        finally:
            children.kill(child)
        assert everything(tracker) == before
        mine = acquire_lease(tracker, CONSUMER, holder="next")
        again = batch(mine, (0, 0, 10), staged=staged("next"))
        assert commit_batch(tracker, again, nothing_parked) == 1
