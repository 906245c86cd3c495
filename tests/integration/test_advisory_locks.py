"""Jobs that have nothing to do with each other do not wait for each other's locks."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
from sqlalchemy import select
from tests.support.books import open_books

from waybill.parking.quarantine import raise_alarm
from waybill.reconciliation.queue import take_turn
from waybill.settings import TrackerSettings
from waybill.storage import TrackerStore
from waybill.storage.advisory_locks import AdvisoryLock
from waybill.storage.tracker.tables import audit_log

pytestmark = pytest.mark.serves


def test_an_alarm_of_a_missing_object_does_not_wait_for_a_round_of_the_auditor(postgres: Any):
    with open_books(postgres, "locks") as tracker, tracker.transaction() as turn:
        assert take_turn(turn)
        url = tracker.engine.url.set(drivername="postgresql")
        impatient = url.update_query_dict({"options": "-c lock_timeout=10000"})
        dsn = impatient.render_as_string(hide_password=False)
        with TrackerStore(TrackerSettings(dsn=dsn)) as other:
            raise_alarm(other, ["parked/2026/01/01/gone.jsonl.zst"])
    with tracker.transaction() as connection:
        told = select(audit_log.c.target).where(audit_log.c.action == "object_missing")
        assert connection.execute(told).scalars().all() == ["parked/2026/01/01/gone.jsonl.zst"]
    tracker.close()


def test_all_locks_can_be_held_at_once(postgres: Any):
    with open_books(postgres, "locks", pool_size=20) as tracker, ExitStack() as held:
        for lock in AdvisoryLock:
            assert lock.try_take(held.enter_context(tracker.engine.begin()))
        for lock in AdvisoryLock:
            assert lock.try_take(held.enter_context(tracker.engine.begin()), "scope")
        with tracker.transaction() as other:
            assert not any(lock.try_take(other) for lock in AdvisoryLock)
            assert not AdvisoryLock.MAPPING_VERSION.try_take(other, "scope")
