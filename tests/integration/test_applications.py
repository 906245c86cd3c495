"""The life of an application in the real tracker: epochs, reports, supervisors that look at once."""

from __future__ import annotations

import runpy
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from tests.support import children
from tests.support.books import open_books

from waybill.access import Decision, read_audit
from waybill.back_off import BackOff
from waybill.clusters import (
    Application,
    ApplicationLease,
    ClusterRequest,
    Heartbeat,
    Look,
    application_state,
    create_cluster,
    delete_cluster,
    process_state,
    read_application,
    read_applications,
    restart_cluster,
    start_cluster,
    stop_cluster,
    supervise,
    want_application,
)
from waybill.clusters.applications import HEARTBEAT_S, begin_start, why_unserved
from waybill.clusters.serving import HeldConsumer, Serving
from waybill.clusters.supervision import Word
from waybill.errors import InputError, RetryError, StopError
from waybill.ledger import FencedError, check_lease
from waybill.loading import Loader
from waybill.loading.spark import run_loading
from waybill.processing.spark import run_processing
from waybill.processing.spark.topic_consumer import ProcessingParts, TopicConsumer
from waybill.settings import Settings, SparkSettings, TrackerSettings
from waybill.storage import TopicInfo, TrackerStore

pytestmark = pytest.mark.serves
ANN = Decision("ann", "to see")
AT_ONCE = BackOff(0.0, 0.0)


class Died(BaseException):
    """The supervisor was killed: nothing of it runs on."""


class Machine:
    """A backend in memory: what runs, by epoch, and what is said of it."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.alive: set[int] = set()
        self.word: Word | None = None
        """Said of all, in place of the truth."""
        self.dies: str = ""
        """Where a supervisor is killed: before or after the start."""
        self.error: Exception | None = None
        self.stopped: list[str] = []
        self.meanwhile: list[Callable[[], object]] = []
        """Done while a supervisor waits for an answer."""

    def start(self, application: Application) -> str:
        if self.dies == "before":
            raise Died
        if self.error:
            raise self.error
        self.starts.append(application.epoch)
        self.alive.add(application.epoch)
        if self.dies == "after":
            raise Died
        return f"m-{application.epoch}"

    def ask(self, application: Application) -> Word:
        word = self._word(application)
        if self.meanwhile:
            self.meanwhile.pop()()
        return word

    def _word(self, application: Application) -> Word:
        if self.word == "no answer":
            raise RetryError("the machine does not answer")
        if self.word:
            return self.word
        if not application.external_id:
            return "unknown"
        return "alive" if application.epoch in self.alive else "dead"

    def stop(self, application: Application) -> None:
        self.stopped.append("stop")
        self.alive.discard(application.epoch)

    def kill(self, application: Application) -> None:
        self.stopped.append("kill")
        self.alive.discard(application.epoch)

    def last_words(self, application: Application) -> str:
        return f"the end of {application.epoch}"


@pytest.fixture
def tracker(postgres: Any) -> Iterator[TrackerStore]:
    with open_books(postgres, "applications", pool_size=12) as books:
        yield books


@pytest.fixture
def machine() -> Machine:
    return Machine()


def look(
    tracker: TrackerStore, machine: Machine, back_off: BackOff = AT_ONCE, *, on: str = "machine"
) -> Look:
    return supervise(
        tracker, {on: machine}, "processing", "default", start_on=on, back_off=back_off
    )


def row(tracker: TrackerStore, cluster: str = "default") -> Application:
    with tracker.transaction() as connection:
        return read_application(connection, "processing", cluster)


def lease(tracker: TrackerStore, epoch: int | None = None) -> ApplicationLease:
    return ApplicationLease.acquire(tracker, "processing", "default", epoch=epoch)


@contextmanager
def signals_kept() -> Iterator[None]:
    """Have the signals handled as before, whatever an application in this process says."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def sql(tracker: TrackerStore, statement: str) -> None:
    with tracker.transaction() as connection:
        connection.execute(text(statement))


def is_waiting(tracker: TrackerStore) -> bool:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0"
    with tracker.transaction() as connection:
        return bool(connection.execute(text(waiting)).scalar_one())


# Starting


def test_supervisors_that_look_at_once_start_one_application(
    tracker: TrackerStore, machine: Machine
) -> None:
    together = threading.Barrier(8)

    def one(_: int) -> Look:
        together.wait()
        return look(tracker, machine)

    with ThreadPoolExecutor(8) as pool:
        looks = list(pool.map(one, range(8)))
    assert machine.starts == [1]
    assert sorted(one.action for one in looks) == ["start", *["wait"] * 7]
    machine.alive.clear()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(8)))
    assert machine.starts == [1, 2]
    assert (row(tracker).epoch, row(tracker).failures, row(tracker).external_id) == (2, 1, "m-2")


def test_a_death_that_another_supervisor_answered_meanwhile_starts_nothing(
    tracker: TrackerStore, machine: Machine
) -> None:
    look(tracker, machine)
    machine.alive.clear()
    machine.meanwhile.append(lambda: look(tracker, machine))
    assert look(tracker, machine).action == "wait"
    assert machine.starts == [1, 2]
    assert (row(tracker).epoch, row(tracker).ended_s) == (2, None)


def test_one_that_comes_while_a_supervisor_gives_it_up_is_kept(
    tracker: TrackerStore, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waybill.clusters.applications.LEASE_S", 0.0)
    machine.dies = "after"
    with pytest.raises(Died):
        look(tracker, machine)
    machine.dies = ""
    arrived: list[ApplicationLease] = []
    machine.meanwhile.append(lambda: arrived.append(lease(tracker, 1)))
    assert look(tracker, machine).action == "wait"
    assert arrived[0].renew(), "its lease is as it was"
    assert (row(tracker).epoch, row(tracker).ended_s) == (1, None)


def test_a_start_is_of_the_report_it_was_decided_on(
    tracker: TrackerStore, machine: Machine
) -> None:
    look(tracker, machine)
    own = lease(tracker, 1)
    seen = row(tracker)
    assert begin_start(tracker, replace(seen, wanted="running"), backend="machine") == 2
    with pytest.raises(FencedError):
        own.renew()
    newer = lease(tracker, 2)
    seen = row(tracker)
    newer.renew()
    assert begin_start(tracker, seen, backend="machine") is None


def test_an_older_application_may_not_report_and_one_that_comes_late_does_not_begin(
    tracker: TrackerStore, machine: Machine
) -> None:
    look(tracker, machine)
    older = lease(tracker, 1)
    assert older.renew(at_work=True)
    machine.alive.clear()
    look(tracker, machine)
    with pytest.raises(FencedError, match="epoch 1 is over"):
        older.renew()
    with pytest.raises(FencedError, match="epoch 1 is over"):
        lease(tracker, 1)
    assert not row(tracker).at_work
    newer = lease(tracker, 2)
    by_hand = lease(tracker)
    assert by_hand.epoch == 3
    with pytest.raises(FencedError):
        newer.renew()


def test_what_an_application_serves_is_in_its_row_until_another_start(
    tracker: TrackerStore, machine: Machine
) -> None:
    look(tracker, machine)
    nothing_runs = Serving.of(7, 2, [HeldConsumer.of("a", RetryError("no leader"), "")] * 2)
    one_runs = Serving.of(8, 2, [HeldConsumer.of("b", None, "for its turn")])
    with Heartbeat(lease(tracker, 1), every_s=0.05) as heartbeat:
        heartbeat.beat()
        assert row(tracker).serving is None
        heartbeat.beat(serving=nothing_runs)
        assert row(tracker).serving == nothing_runs
        words = "its application of processing can read none of its topics: RetryError: no leader"
        assert why_unserved(row(tracker)) == words
        sql(tracker, "UPDATE applications SET report = '{}'")  # it was restored
        children.wait_until(lambda: row(tracker).serving == nothing_runs, what="another report")
        heartbeat.beat(serving=one_runs)
        assert (row(tracker).serving, why_unserved(row(tracker))) == (one_runs, "")
        by_hand = lease(tracker)
        assert row(tracker).serving is None
    assert (row(tracker).epoch, row(tracker).end) == (by_hand.epoch, None)  # not its row any more


def test_a_report_that_is_held_up_does_not_write_over_a_newer_one(
    tracker: TrackerStore, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    look(tracker, machine)
    old, new = Serving.of(7, 2, []), Serving.of(8, 2, [])
    on_its_way, goes_on = threading.Event(), threading.Event()
    written, renew = list[Serving | None](), ApplicationLease.renew

    def held_up(self: ApplicationLease, **said: Any) -> bool:
        if threading.current_thread().name == "heartbeat" and said["serving"] == old:
            on_its_way.set()
            assert goes_on.wait(120)
        done = renew(self, **said)
        written.append(said["serving"])
        return done

    monkeypatch.setattr(ApplicationLease, "renew", held_up)
    with Heartbeat(lease(tracker, 1), every_s=0.05) as heartbeat:
        heartbeat.beat(serving=old)
        assert on_its_way.wait(120)
        loop = threading.Thread(target=lambda: heartbeat.beat(serving=new))
        loop.start()
        loop.join(0.3)  # were it not held up as well, it would be over by now
        goes_on.set()
        loop.join(120)
    assert old not in written[written.index(new) :]


def test_an_application_says_why_it_ends_and_the_next_one_shows_it(
    tracker: TrackerStore, machine: Machine
) -> None:
    look(tracker, machine)
    error = StopError("Spark on spark://ann:hunter2@m has ended\x1b[2J\n\tat org.apache.Spark")
    with pytest.raises(StopError), Heartbeat(lease(tracker, 1)) as heartbeat:
        heartbeat.beat(serving=Serving.of(7, 1, []))
        raise error
    found = row(tracker)
    said = "StopError: Spark on spark://ann:***@m has ended\\x1b[2J at org.apache.Spark"
    assert found.end is not None
    assert (found.end.epoch, found.end.why) == (1, said)
    assert (found.at_work, found.reported, found.is_stale) == (False, None, False)
    assert application_state(found) == "ended"
    machine.alive.clear()
    look(tracker, machine)
    assert (row(tracker).epoch, row(tracker).last_end) == (2, found.end)
    with Heartbeat(lease(tracker, 2)):
        pass
    again = row(tracker).last_end
    assert again is not None
    assert (again.epoch, again.why) == (2, "it was asked to end")


def test_an_older_application_that_wakes_up_takes_no_consumer_from_a_newer_one(
    tracker: TrackerStore,
) -> None:
    nothing: Any = None  # it asks the tracker first, and no other
    parts = ProcessingParts.over(Settings(_env_file=None), tracker, nothing, nothing)
    topic = TopicInfo("events.t.w", "cluster", "id", 1)

    def read(by: ApplicationLease) -> None:
        TopicConsumer(parts, topic, destination="w", holder="default:x", check=by.check)

    def load(by: ApplicationLease) -> None:
        Loader(tracker, nothing, nothing, name="w", application=by)

    older = lease(tracker)  # it is frozen while it opens its topics
    newer = lease(tracker)
    for take, consumer in ((read, "processing/events.t.w"), (load, "loading/w")):
        take(newer)
        with pytest.raises(FencedError, match=f"epoch {older.epoch} is over"):
            take(older)
        with tracker.transaction() as connection:
            check_lease(connection, consumer, 1)  # the newer one goes on
    take(newer)


def test_a_start_comes_before_a_takeover_by_the_older_application_or_after_it(
    tracker: TrackerStore,
) -> None:
    older = lease(tracker)
    with ThreadPoolExecutor() as pool:
        with tracker.transaction() as connection:
            older.check(connection)  # and takes the consumer over next
            newer = pool.submit(lease, tracker)
            children.wait_until(lambda: is_waiting(tracker), what="a start that waits")
        assert newer.result(120).epoch == older.epoch + 1


def test_an_epoch_that_a_restored_tracker_gives_out_again_is_of_one_application(
    tracker: TrackerStore,
) -> None:
    before = lease(tracker)
    sql(tracker, "DELETE FROM applications")  # the backup is of before its start
    after = lease(tracker)
    assert before.epoch == after.epoch == 1
    assert after.renew()
    with pytest.raises(FencedError):
        before.renew()


@pytest.mark.parametrize("run", [run_processing, run_loading])
def test_one_that_comes_late_leaves_the_checkpoints_of_the_one_that_runs(
    tracker: TrackerStore, tmp_path: Path, run: Callable[..., None]
) -> None:
    lease(tracker)
    ApplicationLease.acquire(tracker, "loading", "default")
    checkpoint = tmp_path / "processing-default" / "of-epoch-1"
    checkpoint.mkdir(parents=True)
    settings = Settings(
        _env_file=None,
        tracker=TrackerSettings(dsn=tracker.dsn),
        spark=SparkSettings(work_dir=tmp_path),
    )
    with signals_kept(), pytest.raises(FencedError, match="epoch 0 is over"):
        run(settings, cluster="default", epoch=0)
    assert checkpoint.is_dir()


@pytest.mark.parametrize("kind", ["processing", "loading"])
def test_an_entry_point_names_the_clusters_that_there_are(
    tracker: TrackerStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    own = Settings(_env_file=None, home=tmp_path, tracker=TrackerSettings(dsn=tracker.dsn))
    for name, value in own.to_env().items():
        monkeypatch.setenv(name, value)
    script = Path(__file__).parents[2] / "spark_jobs" / f"{kind}.py"
    monkeypatch.setattr("sys.argv", [str(script), "--cluster", "nope"])
    with signals_kept(), pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert str(ended.value.code).startswith(
        f"{kind} stops: there is no cluster 'nope'; there are default. `waybill clusters create`"
    )
    with tracker.transaction() as connection:
        assert read_applications(connection) == {}


def test_an_application_of_an_earlier_release_cannot_start_beside(tracker: TrackerStore) -> None:
    values = "VALUES ('application/processing/default', 1, 'older')"
    with pytest.raises(IntegrityError, match="ck_consumers_name"):
        sql(tracker, f"INSERT INTO consumers (name, epoch, holder) {values}")


def test_a_start_by_hand_is_adopted(tracker: TrackerStore) -> None:
    taken = lease(tracker)
    found = row(tracker)
    assert (found.epoch, found.backend) == (1, "process")
    assert process_state(found.external_id) == "alive"
    assert taken.renew()


@pytest.mark.parametrize("dies", ["before", "after"])
def test_a_supervisor_killed_amid_a_start_leaves_the_lease_to_decide(
    tracker: TrackerStore, machine: Machine, dies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.dies = dies
    with pytest.raises(Died):
        look(tracker, machine)
    machine.dies = ""
    assert (row(tracker).epoch, row(tracker).external_id) == (1, "")
    assert look(tracker, machine).action == "wait", "nobody knows yet whether it comes"
    monkeypatch.setattr("waybill.clusters.applications.LEASE_S", 0.0)
    assert look(tracker, machine).action == "wait", "its end is written down, and may be taken back"
    monkeypatch.setattr("waybill.clusters.supervision.STALE_S", 0.0)
    assert look(tracker, machine).action == "start"
    assert row(tracker).epoch == 2
    with pytest.raises(FencedError):
        lease(tracker, 1)


def test_one_on_a_backend_that_is_not_known_here_is_replaced_after_its_lease(
    tracker: TrackerStore, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    look(tracker, machine, on="elsewhere")
    problem = "nothing is known here of the backend 'elsewhere'"
    assert (look(tracker, machine).action, look(tracker, machine).problem) == ("wait", problem)
    monkeypatch.setattr("waybill.clusters.applications.LEASE_S", 0.0)
    assert look(tracker, machine).action == "wait"
    sql(tracker, "UPDATE applications SET ended_at = now() - interval '15 seconds'")
    assert look(tracker, machine).action == "start"
    assert (row(tracker).epoch, row(tracker).backend) == (2, "machine")


def test_a_report_of_before_the_clock_was_set_back_delays_a_takeover_by_a_lease_only(
    tracker: TrackerStore, machine: Machine
) -> None:
    look(tracker, machine)
    lease(tracker, 1)
    sql(tracker, "UPDATE applications SET heartbeat_at = now() + interval '1 hour'")
    machine.word = "unknown"
    assert look(tracker, machine).action == "wait"
    assert 0 <= row(tracker).silence_s < HEARTBEAT_S * 10


def test_an_application_whose_starter_was_killed_says_itself_who_it_is(
    tracker: TrackerStore, machine: Machine
) -> None:
    machine.dies = "after"
    with pytest.raises(Died):
        look(tracker, machine)
    arrived = lease(tracker, 1)
    found = row(tracker)
    assert (found.epoch, found.external_id.count(":")) == (1, 5)
    assert why_unserved(row(tracker)) == "its application of processing is not at work"
    assert arrived.renew(at_work=True)
    assert why_unserved(row(tracker)) == ""


def test_reports_that_stay_away_start_nothing_while_the_machine_says_alive_or_nothing(
    tracker: TrackerStore, machine: Machine
) -> None:
    look(tracker, machine)
    sql(tracker, "UPDATE applications SET heartbeat_at = now() - interval '20 minutes'")
    machine.word = "alive"
    assert look(tracker, machine).action == "wait"
    machine.word = "no answer"
    silent = look(tracker, machine)
    assert (silent.action, silent.problem) == ("wait", "the machine does not answer")
    assert machine.starts == [1]


def test_a_start_of_which_nobody_knows_whether_it_came_through_waits_for_its_lease(
    tracker: TrackerStore, machine: Machine
) -> None:
    machine.error = RetryError("no answer after it was submitted")
    failed = look(tracker, machine)
    assert (failed.action, failed.problem) == ("wait", "no answer after it was submitted")
    machine.error = None
    assert look(tracker, machine).action == "wait"
    assert lease(tracker, 1).renew(), "it came through"
    assert machine.starts == []


def test_wrong_input_is_raised_counted_and_tried_again(
    tracker: TrackerStore, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.error = InputError("no Java")
    with pytest.raises(InputError, match="no Java"):
        look(tracker, machine)
    assert row(tracker).failures == 1
    machine.error = None
    monkeypatch.setattr("waybill.clusters.supervision.STALE_S", 0.0)
    assert look(tracker, machine).action == "start"
    assert row(tracker).epoch == 2


def test_each_death_is_told_once_and_waits_grow_in_the_row(
    tracker: TrackerStore, machine: Machine
) -> None:
    slow = BackOff(3_600.0, 18_000.0)
    look(tracker, machine, slow)
    machine.alive.clear()
    first = look(tracker, machine, slow)
    assert (first.action, first.words, first.application.failures) == ("wait", "the end of 1", 1)
    again = look(tracker, machine, slow)
    assert (again.action, again.words, again.application.failures) == ("wait", "", 1)
    assert 3_000 < again.application.waits_s(slow) <= 3_600
    assert machine.starts == [1]


def test_an_end_by_a_signal_as_of_waybill_down_is_no_death(
    tracker: TrackerStore, machine: Machine
) -> None:
    look(tracker, machine)
    with Heartbeat(lease(tracker, 1)):
        pass  # SIGTERM ends the loop
    machine.alive.clear()
    assert look(tracker, machine).action == "start"
    assert row(tracker).failures == 0
    machine.alive.clear()
    look(tracker, machine)
    assert (row(tracker).epoch, row(tracker).failures) == (3, 1), "one that says nothing died"
    with pytest.raises(StopError), Heartbeat(lease(tracker, 3)):
        raise StopError("Spark has ended")
    machine.alive.clear()
    look(tracker, machine)
    with Heartbeat(lease(tracker, 4)):
        pass
    machine.alive.clear()
    look(tracker, machine)
    assert row(tracker).failures == 2, "deaths before it count as before"


# Ending


def test_a_stop_is_read_by_the_application_and_kept_until_it_is_to_run_again(
    tracker: TrackerStore, machine: Machine
) -> None:
    look(tracker, machine)
    own = lease(tracker, 1)
    ended = threading.Event()
    with Heartbeat(own, ended.set, every_s=0.02):
        assert not ended.wait(0.2)
        assert stop_cluster(tracker, "default", ANN)
        assert ended.wait(120), "its report tells it"
    assert not stop_cluster(tracker, "default", ANN)
    assert look(tracker, machine).action == "stop"
    assert [look(tracker, machine).action for _ in range(3)] == ["wait"] * 3
    assert row(tracker).failures == 0
    assert start_cluster(tracker, "default", ANN)
    assert look(tracker, machine).action == "start"
    assert machine.starts == [1, 2]
    actions = [one["action"] for one in read_audit(tracker, None, limit=9)]
    assert sorted(actions) == ["start_cluster", "stop_cluster"]


def test_one_that_is_fenced_while_its_loop_waits_ends(tracker: TrackerStore) -> None:
    older = lease(tracker)
    ended = threading.Event()
    with Heartbeat(older, ended.set, every_s=0.02):
        lease(tracker)
        assert ended.wait(120), "its report is refused"


def test_what_a_person_stopped_is_not_the_variables_to_start(tracker: TrackerStore) -> None:
    with tracker.transaction() as connection:
        want_application(connection, "processing", "default", "stopped", by="the variable")
        assert want_application(connection, "processing", "default", "stopped", by="ann")
    assert row(tracker).wanted_by == "ann"


def test_one_that_does_not_end_is_killed(
    tracker: TrackerStore, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    look(tracker, machine)
    stop_cluster(tracker, "default", ANN)
    machine.word = "alive"
    assert look(tracker, machine).action == "stop"
    monkeypatch.setattr("waybill.clusters.supervision.KILL_S", 0.0)
    assert look(tracker, machine).action == "kill"
    assert machine.stopped == ["stop", "kill"]


def test_a_restart_is_for_the_start_that_runs_and_done_once(
    tracker: TrackerStore, machine: Machine
) -> None:
    assert restart_cluster(tracker, "default", ANN) == []
    look(tracker, machine)
    older = lease(tracker, 1)
    assert restart_cluster(tracker, "default", ANN) == ["processing"]
    assert restart_cluster(tracker, "default", ANN) == []
    assert not older.renew()
    assert [look(tracker, machine).action for _ in range(3)] == ["stop", "start", "wait"]
    assert lease(tracker, 2).renew()


def test_an_application_of_older_code_is_replaced_and_one_of_newer_code_is_not(
    tracker: TrackerStore, machine: Machine
) -> None:
    look(tracker, machine, on="process")
    sql(tracker, "UPDATE applications SET code_version = '999.0.0'")
    assert look(tracker, machine, on="process").action == "wait"
    sql(tracker, "UPDATE applications SET code_version = '0.0.9'")
    actions = [look(tracker, machine, on="process").action for _ in range(3)]
    assert actions == ["stop", "start", "wait"]


def test_a_submitted_application_of_older_code_is_not_replaced_by_the_same_image_for_ever(
    tracker: TrackerStore, machine: Machine
) -> None:
    look(tracker, machine)
    sql(tracker, "UPDATE applications SET code_version = '0.0.9'")
    assert look(tracker, machine).action == "wait"
    assert machine.starts == [1]


def test_deleting_a_cluster_fences_and_a_new_one_of_its_name_goes_on_from_the_epochs(
    tracker: TrackerStore,
) -> None:
    create_cluster(tracker, ClusterRequest(name="brief"), ANN)
    frozen = ApplicationLease.acquire(tracker, "processing", "brief")
    sql(tracker, "UPDATE applications SET heartbeat_at = now() - interval '1 hour'")
    assert delete_cluster(tracker, "brief", ANN)
    with pytest.raises(FencedError):
        frozen.renew()
    assert (row(tracker, "brief").wanted, row(tracker, "brief").external_id) == ("stopped", "")
    create_cluster(tracker, ClusterRequest(name="brief"), ANN)
    assert (row(tracker, "brief").wanted, row(tracker, "brief").epoch) == ("running", 2)
    with pytest.raises(FencedError):
        frozen.renew()
