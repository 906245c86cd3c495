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
Ends with 1 where a group was launched twice, is lost or stuck.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
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
from waybill.storage import TrackerStore, open_log, open_tracker

DAG, RUN = "replay_parked_partitions", "faults"
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
_TASK_WITHIN_S = 180.0
_STALLED_S = 420.0
"""After so long without a launch or an end it is stuck: a retry waits for ten seconds or twenty."""
_LATE_S = NOTICED_S + 15.0


@dataclass(frozen=True, slots=True)
class Size:
    """How many groups, and how often each kind of process is killed or frozen."""

    groups: int
    each: int
    """Kills of each kind."""
    kinds: tuple[str, ...] = KILLS
    freezes: tuple[str, ...] = FREEZES


FULL = Size(200, 4)
QUICK = Size(16, 1, freezes=("frozen replay",))
SHORTEST = Size(6, 1, kinds=("scheduler", "triggerer", "campaign"), freezes=())


@dataclass(slots=True)
class Tally:
    """What was done with one executor, and what came of it."""

    executor: str
    groups: int
    seconds: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)
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
    def wrong(self) -> int:
        return self.launched_twice + self.lost + self.stuck


def park(stack_settings: Settings, groups: int) -> Settings:
    """Deploy the orders, and park two of each event name; return the settings that know them."""
    folder = stack_settings.home / "pipelines"
    orders.write_orders(folder, rows=1)
    settings = stack_settings.model_copy(update={"pipelines_dir": folder})
    services.migrate(settings)
    services.run_deploy(settings, folder / "orders", who="test")
    open_log(settings.kafka).ensure_topic(orders.topic_of(folder))
    packer = Packer()
    for number in range(groups * EVENTS):
        event = order(number, orders.team_of(folder))
        event.name = _name(number // EVENTS)
        packer.add(replace(parked(event), event_name=event.name))
    parked_orders.park(settings, packer)
    return settings


def _name(group: int) -> str:
    return f"order {group}"


class _OverError(Exception):
    """There is no task any more that could be killed."""


class Faults:
    """Kills and freezes processes of an Airflow.

    Args:
        airflow: whose.
        draw: which.
    """

    def __init__(self, airflow: RealAirflow, draw: random.Random) -> None:
        self._airflow, self._draw = airflow, draw
        self.done: Counter[str] = Counter()

    def do(self, kind: str) -> None:
        """Kill or freeze one of a kind, and have all run again behind it."""
        own: dict[str, Callable[[], None]] = {
            "campaign": self._campaign,
            "replay": lambda: kill(self._task("replay")[1:]),
            "supervisor": lambda: kill(self._task("replay")[:1]),
            "worker": lambda: kill(self._members(self._draw.choice(self._airflow.workers()))),
            "frozen campaign": lambda: self._frozen_task(DAG),
            "frozen replay": lambda: self._frozen_task("replay"),
            "frozen scheduler": lambda: self._frozen("scheduler"),
            "frozen triggerer": lambda: self._frozen("triggerer"),
        }
        with suppress(_OverError):
            own.get(kind, lambda: kill(self._members(kind)[-1:]))()
            self.done[kind] += 1
        for component in self._airflow.components.values():
            component.start()  # nothing happens to one that runs

    def _members(self, name: str) -> list[psutil.Process]:
        return self._airflow.members(name)

    def _task(self, dag_id: str) -> tuple[psutil.Process, ...]:
        """Return a task's supervisor and its process."""
        return tuple(
            self._draw.choice(servers.wait_for(lambda: self._tasks(dag_id), _TASK_WITHIN_S))
        )

    def _tasks(self, dag_id: str) -> list[tuple[psutil.Process, psutil.Process]]:
        if self._airflow.run_state(DAG, RUN) in ENDED:
            raise _OverError
        return self._airflow.tasks(dag_id)

    def _campaign(self) -> None:
        """Kill the campaign's task at some moment of its second of work.

        Each time that it had ended by then, the moment is drawn earlier: a short campaign has few.
        """
        latest_s = 2.0
        while True:
            task = self._task(DAG)[1:]
            time.sleep(self._draw.uniform(0, latest_s))
            if task[0].is_running():
                return kill(task)
            latest_s /= 4

    def _frozen_task(self, dag_id: str) -> None:
        task = self._task(dag_id)
        freeze(task)
        time.sleep(_LATE_S)  # how late it is, is the fault
        wake(task)

    def _frozen(self, name: str) -> None:
        """Freeze a component with all it started; another one is there meanwhile, and goes again."""
        frozen = self._airflow.members(name)
        freeze(frozen)
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


def run(
    stack_settings: Settings,
    metadata: AirflowMetadata,
    size: Size,
    *,
    seed: int,
    executor: Executor = "LocalExecutor",
) -> Tally:
    """Park, have it replayed under faults, and judge."""
    draw = random.Random(seed)
    tally = Tally(executor, size.groups)
    settings = park(stack_settings, size.groups)
    with (
        started(settings, metadata, executor) as airflow,
        open_tracker(settings.tracker) as tracker,
    ):
        began = time.monotonic()
        airflow.trigger(DAG, RUN, governed=False, max_unfinished=max(1, min(8, size.groups // 6)))
        faults = Faults(airflow, draw)
        _play(airflow, tracker, faults, _drawn(size, executor, draw))
        tally.seconds = round(time.monotonic() - began, 1)
        tally.kills = faults.done
        _judge(tally, airflow, tracker, settings)
    return tally


def _drawn(size: Size, executor: str, draw: random.Random) -> list[tuple[float, str]]:
    """Return what is done, behind which share of the groups' launches and ends."""
    kinds = [*size.kinds, *(["worker"] if executor == "CeleryExecutor" else [])]
    faults = [*kinds * size.each, *size.freezes]
    draw.shuffle(faults)
    return list(zip(sorted(draw.uniform(0.02, 0.9) for _ in faults), faults, strict=True))


def _play(
    airflow: RealAirflow,
    tracker: TrackerStore,
    faults: Faults,
    drawn: Sequence[tuple[float, str]],
) -> None:
    """Do each fault when the campaign is so far; return when it is over, or stuck."""
    waiting, last, moved_s = list(drawn), (0, 0), time.monotonic()
    while airflow.run_state(DAG, RUN) not in ENDED:
        found = next(iter(read_campaigns(tracker, limit=1)), None)
        reached = (found.launched, found.ended) if found else last
        if reached != last:
            last, moved_s = reached, time.monotonic()
        if found and waiting and sum(reached) >= waiting[0][0] * 2 * found.groups:
            kind = waiting.pop(0)[1]
            print(f"{found.launched} launched, {found.ended} ended: {kind}", flush=True)
            faults.do(kind)
            moved_s = time.monotonic()
        if time.monotonic() - moved_s > _STALLED_S:
            return
        time.sleep(0.2)


def _judge(tally: Tally, airflow: RealAirflow, tracker: TrackerStore, settings: Settings) -> None:
    runs: dict[str, list[str]] = {}
    for conf, state in airflow.sql("SELECT conf, state FROM dag_run WHERE dag_id = 'replay'"):
        runs.setdefault(conf["event_name"], []).append(state)
    groups = {
        str(row[0]): row[1:]
        for row in _rows(
            tracker,
            "SELECT event_name, count(r.id), max(p.parked + p.replaying), max(p.replayed), "
            "max(g.state) FROM parked_partitions p LEFT JOIN replays r ON r.partition_id = p.id "
            "LEFT JOIN campaign_groups g ON g.partition_id = p.id GROUP BY 1",
        )
    }
    sent = Counter((event.name, event.id) for event in refusals.delivered(settings))
    events_of = Counter(name for name, _ in sent)
    for group in range(tally.groups):
        name = _name(group)
        replays, left, replayed, state = groups.get(name, (0, EVENTS, 0, ""))
        states = runs.get(name, [])
        tally.launched_twice += len(states) > 1 or replays > 1
        tally.lost += events_of[name] != EVENTS or (left, replayed) != (0, EVENTS)
        tally.stuck += state != "ended" or any(one != "success" for one in states)
    tally.sent_twice = sent.total() - len(sent)
    tally.stuck += not tally.stuck and airflow.run_state(DAG, RUN) != "success"
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
    kinds = sorted({kind for one in tallies for kind in one.kills})
    rows: dict[str, Callable[[Tally], Any]] = {
        "groups": lambda one: one.groups,
        **{
            kind if kind in FREEZES else f"killed: {kind}": lambda one, kind=kind: one.kills[kind]
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
    for one in tallies:
        kills += one.kills
    return {
        "executor": "+".join(one.executor for one in tallies),
        "seed": seed,
        **{name: round(sum(getattr(one, name) for one in tallies), 1) for name in names},
        "kills": dict(sorted(kills.items())),
    }


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
            tallies.append(run(settings, metadata, size, seed=seed, executor=executor))  # type: ignore[arg-type]
    show(tallies, seed)
    print(json.dumps(report_of(tallies, seed)))
    return 1 if sum(one.wrong for one in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
