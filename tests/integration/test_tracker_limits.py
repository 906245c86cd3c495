"""The limits of the tracker's connections, as the server has them, and the errors they end in."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import text

from waybill.errors import AwayError, RetryError
from waybill.settings import TrackerSettings
from waybill.storage import TrackerStore

pytestmark = pytest.mark.serves
NAMES = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")


@pytest.fixture
def tracker(postgres):
    dsn = postgres.database("limits")
    with TrackerStore(TrackerSettings(dsn=dsn, lock_timeout_s=1)) as store:
        with store.transaction() as connection:
            connection.execute(text("CREATE TABLE t AS SELECT 1 AS n"))
        yield store


def limits(tracker, **given):
    with tracker.transaction(**given) as connection:
        return [connection.execute(text(f"SHOW {name}")).scalar() for name in NAMES]


def test_every_connection_has_limits_and_a_long_transaction_others_for_itself(tracker):
    assert limits(tracker) == ["1s", "5min", "20s"]
    assert limits(tracker, long_statements=True) == ["4h", "4h", "20s"]
    assert limits(tracker, long_idle=True) == ["1s", "5min", "15min"]
    assert limits(tracker) == ["1s", "5min", "20s"]


def test_a_lock_is_waited_for_no_longer_than_its_limit(tracker):
    with tracker.transaction() as holder:
        holder.execute(text("UPDATE t SET n = 2"))
        with pytest.raises(RetryError, match="lock_timeout_s"), tracker.transaction() as waiter:
            waiter.execute(text("UPDATE t SET n = 3"))


def test_a_statement_takes_no_longer_than_its_limit(tracker):
    with (
        pytest.raises(RetryError, match="statement_timeout_s"),
        tracker.transaction() as connection,
    ):
        connection.execute(text("SET LOCAL statement_timeout = '100ms'"))
        connection.execute(text("SELECT pg_sleep(60)"))


def test_other_transactions_in_the_way_are_a_reason_to_try_again(tracker):
    with pytest.raises(RetryError, match="other transactions"), tracker.transaction() as slow:
        slow.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        slow.execute(text("SELECT n FROM t"))
        with tracker.transaction() as fast:
            fast.execute(text("UPDATE t SET n = 4"))
        slow.execute(text("UPDATE t SET n = 5"))


@pytest.mark.parametrize("at", ["statement", "commit"])
def test_a_backend_that_is_ended_is_a_server_that_went_away(tracker, at):
    with pytest.raises(AwayError) as caught, tracker.transaction() as connection:
        connection.execute(text("UPDATE t SET n = 6"))
        pid = connection.execute(text("SELECT pg_backend_pid()")).scalar()
        with tracker.transaction() as other:
            other.execute(text("SELECT pg_terminate_backend(:pid, 60000)"), {"pid": pid})
        if at == "statement":
            connection.execute(text("SELECT 1"))
    assert caught.value.setting == "WAYBILL_TRACKER__DSN"
    with tracker.transaction() as connection:
        assert connection.execute(text("SELECT n FROM t")).scalar() == 1


def test_a_pool_without_a_free_connection_is_a_reason_to_try_again(postgres):
    dsn = postgres.database("limits_pool")
    with TrackerStore(TrackerSettings(dsn=dsn, pool_size=1)) as tracker:
        tracker.engine.pool._timeout = 0.2
        tracker.engine.pool._max_overflow = 0
        taken, over = threading.Event(), threading.Event()

        def hold():
            with tracker.transaction():
                taken.set()
                over.wait(240)

        holder = threading.Thread(target=hold)
        holder.start()
        try:
            assert taken.wait(120)
            with pytest.raises(RetryError, match="no connection was free"), tracker.transaction():
                pass
        finally:
            over.set()
            holder.join()
