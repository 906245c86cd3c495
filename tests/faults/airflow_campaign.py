"""``make faults-airflow``: a campaign of 200 replays on a real Airflow whose processes are killed.

Parked groups on the real tracker, object store and Kafka are replayed by the DAG
``replay_parked_partitions``, each by a run of the DAG ``replay``. Meanwhile, at moments drawn over
the whole campaign, one of these is SIGKILLed and started again as the supervisor of ``waybill up``
does: scheduler, triggerer, API server, DAG processor, the campaign's task, a replay's, what
supervises one (of the LocalExecutor its worker), and a worker of Celery with all that it runs. Others are frozen (SIGSTOP)
until Airflow has taken them for dead, and wake up late: a task beside its retry; a scheduler and a
triggerer, with all they started, beside another one.

At the end each group must have had one run and one replay, and each of its events must be in Kafka
once. ``AIRFLOW_SEED`` repeats the choices (not the timing of the machine); ``EXECUTORS``,
``REPLAYS`` and ``KILLS`` change what is done; ``QUICK=1`` is a short form, with the LocalExecutor.

A fault whose turn does not come before the campaign ends is done in another campaign, over more
groups. Ends with 1 where a group was launched twice, is lost or stuck; with 2 where all went well,
but not each fault that was asked for was done: they are named.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import psutil
from sqlalchemy import text
from tests import servers
from tests.benchmarks.home import opened_home
from tests.support import orders, parked_orders, refusals
from tests.support.airflow_metadata import AirflowMetadata
from tests.support.parked_orders import order, parked
from tests.support.real_airflow import (
    NOTICED_S,
    Executor,
    RealAirflow,
    fetch_celery,
    freeze,
    kill,
    started,
    wake,
)

from waybill import services
from waybill.parking import Packer
from waybill.replay import read_campaigns
from waybill.settings import Settings
from waybill.stack.airflow import COMPONENTS
from waybill.storage import TrackerStore, open_log, open_tracker

DAG = "replay_parked_partitions"
ROUNDS = 4
"""Campaigns at most: those after the first do the faults that were missed."""
EVENTS = 2
"""Parked in each group."""
FREEZES = ("frozen campaign", "frozen replay", "frozen scheduler", "frozen triggerer")
KILLS = (
    "scheduler",
    "triggerer",
    "api-server",
    "dag-processor",
    "campaign",
    "replay",
    "supervisor",
)
ENDED = ("success", "failed")
_TASK_WITHIN_S = 900.0
"""A fault for which there is no task for so long is missed."""
_STALLED_S = 1_200.0
"""After so long without a launch or an end it is stuck: the longest wait for a retry is shorter."""
_LATE_S = NOTICED_S + 15.0


@dataclass(frozen=True, slots=True)
class Size:
    """How many groups, and how often each kind of process is killed or frozen."""

    groups: int
    each: int
    """Kills of each kind."""
    kinds: tuple[str, ...] = KILLS
    freezes: tuple[str, ...] = FREEZES
    components: tuple[str, ...] = tuple(COMPONENTS)

    def faults(self, executor: str) -> list[str]:
        """Return what is to be done."""
        own = ("worker",) if executor == "CeleryExecutor" else ()
        return [*(*self.kinds, *own) * self.each, *self.freezes]


FULL = Size(200, 4)
QUICK = Size(16, 1, freezes=("frozen replay",))
SHORTEST = Size(
    4,
    1,
    kinds=("scheduler", "triggerer", "campaign"),
    freezes=(),
    components=("api-server", "scheduler", "triggerer"),
)


@dataclass(slots=True)
class Tally:
    """What was done with one executor, and what came of it."""

    executor: str
    asked: Counter[str]
    """Faults, by kind."""
    groups: int = 0
    rounds: int = 0
    seconds: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)
    """What was done of them."""
    launched_twice: int = 0
    """Groups with more than one run, or more than one replay."""
    lost: int = 0
    """Groups that have an event which is not in Kafka again, or still parked."""
    stuck: int = 0
    """Groups whose run has not ended well, or which the campaign still waits for."""
    sent_twice: int = 0
    """Events of one replay that are in Kafka more than once: consumers know them by their ids."""
    retries: int = 0
    """Tries of tasks beyond the first."""

    @property
    def missed(self) -> Counter[str]:
        """Faults that were asked for and not done."""
        return self.asked - self.kills

    @property
    def wrong(self) -> int:
        return self.launched_twice + self.lost + self.stuck


def prepare(stack_settings: Settings) -> Settings:
    """Deploy the orders; return the settings that know them."""
    folder = stack_settings.home / "pipelines"
    orders.write_orders(folder, rows=1)
    settings = stack_settings.model_copy(update={"pipelines_dir": folder})
    services.migrate(settings)
    services.run_deploy(settings, folder / "orders", who="test")
    open_log(settings.kafka).ensure_topic(orders.topic_of(folder))
    return settings


def park(settings: Settings, groups: Iterable[int]) -> None:
    """Park two of each event name."""
    packer = Packer()
    for number in (group * EVENTS + place for group in groups for place in range(EVENTS)):
        event = order(number, orders.team_of(settings.pipelines_dir))
        event.name = _name(number // EVENTS)
        packer.add(replace(parked(event), event_name=event.name))
    parked_orders.park(settings, packer)


def _name(group: int) -> str:
    return f"order {group}"


class _MissedError(Exception):
    """There is no process any more that could be killed."""


class Faults:
    """Kills and freezes processes of an Airflow.

    Args:
        airflow: whose.
        draw: which.
    """

    def __init__(self, airflow: RealAirflow, draw: random.Random) -> None:
        self._airflow, self._draw = airflow, draw
        self.run_id = ""
        """Of the campaign."""
        self.done: Counter[str] = Counter()

    def do(self, kind: str) -> bool:
        """Kill or freeze one of a kind, and have all run again behind it.

        Returns:
            False: the campaign was over, or no such process ran: nothing was done.
        """
        own: dict[str, Callable[[], None]] = {
            "campaign": self._campaign,
            "replay": lambda: self._kill_task("replay", slice(1, None)),
            "supervisor": lambda: self._kill_task("replay", slice(1)),
            "worker": lambda: _kill(self._members(self._draw.choice(self._airflow.workers()))),
            "frozen campaign": lambda: self._frozen_task(DAG),
            "frozen replay": lambda: self._frozen_task("replay"),
            "frozen scheduler": lambda: self._frozen("scheduler"),
            "frozen triggerer": lambda: self._frozen("triggerer"),
        }
        try:
            own.get(kind, lambda: _kill(self._members(kind)[-1:]))()
            self.done[kind] += 1
        except _MissedError:
            return False
        finally:
            for component in self._airflow.components.values():
                component.start()  # nothing happens to one that runs
        return True

    def _members(self, name: str) -> list[psutil.Process]:
        return self._airflow.members(name)

    def _task(self, dag_id: str) -> tuple[psutil.Process, ...]:
        """Return a task's supervisor and its process."""
        found = self._airflow.wait_for_tasks(dag_id, _TASK_WITHIN_S, self.is_over)
        if not found:
            raise _MissedError
        return tuple(self._draw.choice(found))

    def is_over(self) -> bool:
        """Say whether the campaign has ended."""
        return self._airflow.run_state(DAG, self.run_id) in ENDED

    def _kill_task(self, dag_id: str, which: slice) -> None:
        while not kill(self._task(dag_id)[which]):
            pass  # it had ended by then

    def _campaign(self) -> None:
        """Kill the campaign's task at some moment of its second of work.

        Each time that it had ended by then, the moment is drawn earlier: a short campaign has few.
        """
        latest_s = 2.0
        while True:
            task = self._task(DAG)[1:]
            time.sleep(self._draw.uniform(0, latest_s))
            if kill(task):
                return
            latest_s /= 4

    def _frozen_task(self, dag_id: str) -> None:
        while not freeze(task := self._task(dag_id)):
            pass  # it had ended by then
        time.sleep(_LATE_S)  # how late it is, is the fault
        wake(task)

    def _frozen(self, name: str) -> None:
        """Freeze a component with all it started; another one is there meanwhile, and goes again."""
        frozen = self._members(name)
        if not freeze(frozen):
            raise _MissedError
        spare = self._airflow.spare(name)
        try:
            spare.start()
            time.sleep(_LATE_S)
        finally:
            wake(frozen)
        time.sleep(5)  # both at work
        record = spare.running()
        kill(record.members() if record else [])
        spare.stop()


def _kill(processes: Sequence[psutil.Process]) -> None:
    if not kill(processes):
        raise _MissedError


@contextmanager
def played(
    stack_settings: Settings,
    metadata: AirflowMetadata,
    size: Size,
    *,
    seed: int,
    executor: Executor = "LocalExecutor",
) -> Iterator[tuple[Tally, RealAirflow]]:
    """Park, have it replayed under faults, and judge; that Airflow runs within the block."""
    draw = random.Random(seed)
    faults = size.faults(executor)
    tally = Tally(executor, Counter(faults))
    settings = prepare(stack_settings)
    with (
        started(settings, metadata, executor, size.components) as airflow,
        open_tracker(settings.tracker) as tracker,
    ):
        began = time.monotonic()
        doer, groups = Faults(airflow, draw), size.groups
        tally.kills = doer.done
        while True:
            tally.rounds += 1
            doer.run_id = f"faults_{tally.rounds}"
            park(settings, range(tally.groups, tally.groups + groups))
            tally.groups += groups
            most = max(1, min(8, groups // 6))
            airflow.trigger(DAG, doer.run_id, governed=False, max_unfinished=most)
            faults = _play(airflow, tracker, doer, _drawn(faults, draw))
            tally.seconds = round(time.monotonic() - began, 1)
            _judge(tally, airflow, tracker, settings)
            if not faults or tally.wrong or tally.rounds == ROUNDS:
                break
            print(f"the campaign is over: {', '.join(faults)} in another one", flush=True)
            groups = max(4, 3 * len(faults))
        yield tally, airflow


def _drawn(faults: list[str], draw: random.Random) -> list[tuple[float, str]]:
    """Return what is done, behind which share of the groups' launches and ends."""
    draw.shuffle(faults)
    return list(zip(sorted(draw.uniform(0.02, 0.9) for _ in faults), faults, strict=True))


def _play(
    airflow: RealAirflow,
    tracker: TrackerStore,
    faults: Faults,
    drawn: Sequence[tuple[float, str]],
) -> list[str]:
    """Do each fault when the campaign is so far; return those missed, once it is over or stuck."""
    waiting, missed, last, moved_s = list(drawn), [], (0, 0), time.monotonic()
    while not faults.is_over():
        newest = next(iter(read_campaigns(tracker, limit=1)), None)
        found = newest if newest and newest.run_id == faults.run_id else None
        reached = (found.launched, found.ended) if found else last
        if reached != last:
            last, moved_s = reached, time.monotonic()
        if found and waiting and sum(reached) >= waiting[0][0] * 2 * found.groups:
            kind = waiting.pop(0)[1]
            print(f"{found.launched} launched, {found.ended} ended: {kind}", flush=True)
            if not faults.do(kind):
                missed.append(kind)
            moved_s = time.monotonic()
        if time.monotonic() - moved_s > _STALLED_S:
            break
        airflow.keep_up()
        time.sleep(0.5)  # a look costs 3 ms of CPU
    return [*missed, *(kind for _, kind in waiting)]


def _judge(tally: Tally, airflow: RealAirflow, tracker: TrackerStore, settings: Settings) -> None:
    runs: dict[str, list[str]] = {}
    for conf, state in airflow.sql("SELECT conf, state FROM dag_run WHERE dag_id = 'replay'"):
        runs.setdefault(conf["event_name"], []).append(state)
    groups = {
        str(row[0]): row[1:]
        for row in _rows(
            tracker,
            "SELECT event_name, count(DISTINCT r.id), max(p.parked + p.replaying), "
            "max(p.replayed), bool_or(g.state = 'ended') FROM parked_partitions p LEFT JOIN replays r ON r.partition_id = p.id "
            "LEFT JOIN campaign_groups g ON g.partition_id = p.id GROUP BY 1",
        )
    }
    sent = Counter((event.name, event.id) for event in refusals.delivered(settings))
    events_of = Counter(name for name, _ in sent)
    tally.launched_twice = tally.lost = tally.stuck = 0
    for group in range(tally.groups):
        name = _name(group)
        replays, left, replayed, ended = groups.get(name, (0, EVENTS, 0, False))
        states = runs.get(name, [])
        tally.launched_twice += len(states) > 1 or replays > 1
        tally.lost += events_of[name] != EVENTS or (left, replayed) != (0, EVENTS)
        tally.stuck += not ended or any(one != "success" for one in states)
    tally.sent_twice = sent.total() - len(sent)
    campaigns = airflow.sql(f"SELECT state FROM dag_run WHERE dag_id = '{DAG}'")
    tally.stuck += not tally.stuck and campaigns != [("success",)] * tally.rounds
    [(retries,)] = airflow.sql("SELECT sum(greatest(try_number - 1, 0)) FROM task_instance")
    tally.retries = int(retries)


def _rows(tracker: TrackerStore, query: str) -> list[Any]:
    with tracker.transaction() as connection:
        return list(connection.execute(text(query)))


def show(tallies: Sequence[Tally], seed: int) -> None:
    """Print a table for people."""
    from rich.console import Console
    from rich.table import Table

    table = Table(f"seed {seed}", *(one.executor for one in tallies))
    kinds = sorted({kind for one in tallies for kind in one.asked})
    rows: dict[str, Callable[[Tally], Any]] = {
        "groups": lambda one: one.groups,
        "campaigns": lambda one: one.rounds,
        **{
            kind if kind in FREEZES else f"killed: {kind}": lambda one, kind=kind: (
                f"{one.kills[kind]} of {one.asked[kind]}"
            )
            for kind in kinds
        },
        "tries beyond the first": lambda one: one.retries,
        "launched twice": lambda one: one.launched_twice,
        "lost": lambda one: one.lost,
        "stuck": lambda one: one.stuck,
        "events in Kafka more than once": lambda one: one.sent_twice,
        "seconds": lambda one: one.seconds,
    }
    for words, value in rows.items():
        table.add_row(words, *(str(value(one)) for one in tallies))
    Console().print(table)


def report_of(tallies: Sequence[Tally], seed: int) -> dict[str, Any]:
    """Return the figures: sums over the executors."""
    names = ("groups", "launched_twice", "lost", "stuck", "sent_twice", "retries", "seconds")
    kills: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    for one in tallies:
        kills += one.kills
        missed += one.missed
    return {
        "executor": "+".join(one.executor for one in tallies),
        "seed": seed,
        **{name: round(sum(getattr(one, name) for one in tallies), 1) for name in names},
        "kills": dict(sorted(kills.items())),
        "missed": dict(sorted(missed.items())),
    }


def exit_code(tallies: Sequence[Tally]) -> int:
    """Return how the command ends, and say why on the standard error: see the module."""
    for one in tallies:
        if one.wrong:
            print(
                f"{one.executor}: of {one.groups} groups {one.launched_twice} launched twice, "
                f"{one.lost} lost, {one.stuck} stuck",
                file=sys.stderr,
            )
        for kind, number in sorted(one.missed.items()):
            asked = one.asked[kind]
            print(
                f"{one.executor}: {kind}: {number} of {asked} asked for not done", file=sys.stderr
            )
    if any(one.wrong for one in tallies):
        return 1
    return 2 if any(one.missed for one in tallies) else 0


def main() -> int:
    quick = os.environ.pop("QUICK", "") == "1"
    size = QUICK if quick else FULL
    size = replace(
        size,
        groups=int(os.environ.pop("REPLAYS", size.groups)),
        each=int(os.environ.pop("KILLS", size.each)),
    )
    given = "LocalExecutor" if quick else "LocalExecutor,CeleryExecutor"
    executors = os.environ.pop("EXECUTORS", given).split(",")
    seed = int(os.environ.pop("AIRFLOW_SEED", random.randrange(10**6)))
    print(f"{size.groups} groups, seed {seed}: {', '.join(executors)}", flush=True)
    if "CeleryExecutor" in executors:
        fetch_celery()
    tallies = []
    with opened_home() as (home, stack):
        postgres = stack.enter_context(servers.started(servers.start_postgres, home))
        (home / "airflow-original").mkdir(mode=0o755)
        metadata = AirflowMetadata(postgres, home / "airflow-original")
        stack.callback(metadata.end)
        kafka = stack.enter_context(servers.started(servers.start_kafka, home))
        s3 = stack.enter_context(servers.started(servers.start_s3, home))
        for executor in executors:
            own = home / executor
            own.mkdir()
            settings = servers.stack_settings(postgres, kafka, s3, own)
            with played(settings, metadata, size, seed=seed, executor=executor) as (tally, _):  # type: ignore[arg-type]
                tallies.append(tally)
    show(tallies, seed)
    print(json.dumps(report_of(tallies, seed)))
    return exit_code(tallies)


if __name__ == "__main__":
    sys.exit(main())
