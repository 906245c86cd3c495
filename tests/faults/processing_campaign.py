"""``make faults-processing``: two clusters' applications under load, killed and moved.

Four teams send events without a pause. Two virtual clusters, each with a real application, serve
them; in all but the shortest form a second one loads what is staged, of each team into a
destination of its own, which moves with its team. Meanwhile

- teams are moved between the clusters;
- topics grow, a partition at a time, and what comes next may meet the old generation while it
  drains;
- a driver is killed (SIGKILL) at each step of the commit protocol, or an application with all its
  processes at any moment; its checkpoint is deleted before it is started again;
- a loading driver is killed at each step of a load, in the same way;
- Python workers of Spark are killed amid a task, and processes of user code amid an event;
- an application is frozen (SIGSTOP) amid a transaction, before one, or at any moment, and woken up
  once the other one has its teams;
- the coordinator is killed amid its round, with a new team to place;
- events come whose transformation raises an error, ends its process, loops for ever, or takes
  all memory.

At the end every event must be staged exactly once, or parked exactly once under the error type of
what it did; what is staged must be in its team's table exactly once; each key's events must be
staged in the order in which they were sent; the books must balance; and each version of the
assignment must say exactly what it moved. ``QUICK=1`` is a short form; a field of `Size` in
capitals is another number of something, and ``PROCESSING_SEED`` repeats the choices. Ends with 1
where something is not as it must be.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import statistics
import sys
import threading
import time
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from itertools import cycle, groupby, pairwise, product
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import psutil
import pytest
from sqlalchemy import text
from tests import servers
from tests.benchmarks.home import opened_home
from tests.benchmarks.processing import all_started
from tests.faults import failpoints, loading_failpoints
from tests.faults.processing_failpoints import (
    ASLEEP,
    BATCH,
    BEFORE_TRANSACTION,
    FENCED,
    IN_TRANSACTION,
    SLEEPS,
    TASK,
)
from tests.faults.team_destinations import destination_of, loaded_numbers, with_destinations
from tests.support import children
from tests.support.clustered import assignment_versions
from tests.support.evolving import DECLARATION
from tests.support.processes import freeze, wake

from waybill import services
from waybill.access import Decision
from waybill.clusters import (
    ApplicationKind,
    Assignment,
    AssignmentWatcher,
    ClusterRequest,
    PlaceRequest,
)
from waybill.events import Event, decode, encode
from waybill.ledger import (
    IntakeCommit,
    LogIdentity,
    TopicGeneration,
    all_generations,
    commit_intake,
    follow_generation,
    generations_of,
    is_left,
    last_commit_number,
    load_position,
    register_log,
    tell_log,
)
from waybill.parking import Parking
from waybill.parking.reading import read_segment_events, segments_in_order
from waybill.processing import read_staged
from waybill.services import applications
from waybill.settings import Settings
from waybill.storage import (
    TrackerStore,
    librdkafka_config,
    open_log,
    open_objects,
    open_tracker,
)
from waybill.topics import GrowRequest

TEAMS = ("east", "north", "south", "west")
CLUSTERS = ("default", "second")
EACH_PER_S = 100
"""Events a second and team."""
KEYS = 20
"""Of each team's events, in turn: one of a key comes every 0.2 s."""
MEMORY_MB = 512
"""Of an executor, where Spark has any."""
_LOOK_S = 1.0
"""Between two looks for a new generation, as a run of ingestion has them."""
_WAIT_S = 900.0
_LONGEST_MOVE_S = 20.0
"""What 19 of 20 moves are shorter than."""
_MINUTE = 29_000_000
"""When all events were taken in, in minutes since 1970."""
ANN = Decision("ann", "the campaign")

RAISES, ENDS, LOOPS, HOARDS = range(1_000_001, 1_000_005)
"""Amounts of poison."""
POISON = {
    RAISES: "value_error",
    ENDS: "interpreter_crashed",
    LOOPS: "transformation_timeout",
    HOARDS: "memory_error",
}
CODE = f"""
import os
import time


def transform(event):
    amount = event.data["amount"]
    if amount == {RAISES}:
        raise ValueError("poison")
    if amount == {ENDS}:
        os._exit(9)
    while amount == {LOOPS}:
        pass
    held = []
    while amount == {HOARDS}:
        held.append(bytearray(1 << 24))
    if amount == {SLEEPS}:
        time.sleep(1.0)
    return event
"""
_ASLEEP_S = 0.3
"""Until an event sleeps, once its process was told of."""
_ANY_MOMENT = "any moment"
_Step = TypeVar("_Step")
Lease: TypeAlias = tuple[int, int]
"""Of a topic: its generation, and the epoch of that one's consumer."""
_COMMITS = text("""
SELECT generations.generation, batches.epoch, extract(epoch FROM batches.committed_at)
FROM topic_generations AS generations
JOIN batches ON batches.consumer = 'processing/' || generations.name
WHERE generations.topic = :topic ORDER BY batches.commit_number
""")
_SERVING = text("""
SELECT generations.generation, consumers.epoch FROM topic_generations AS generations
JOIN consumers ON consumers.name = 'processing/' || generations.name
WHERE generations.topic = :topic AND starts_with(consumers.holder, :cluster || ':') AND EXISTS (
  SELECT FROM batches WHERE consumer = consumers.name AND epoch = consumers.epoch)
""")
_READ = text("SELECT topic, sum(next_offset) FROM topic_offsets GROUP BY topic")
_LOADED_AT = text("""
SELECT destination, extract(epoch FROM max(loaded_at))::float FROM staged_objects
WHERE loaded_at IS NOT NULL GROUP BY destination
""")
_LOADING = text("""
SELECT epoch, split_part(holder, ':', 1) AS cluster,
  extract(epoch FROM min(loaded_at) FILTER (WHERE loaded_at >= acquired_at)
    - greatest(max(loaded_at) FILTER (WHERE loaded_at < acquired_at),
      min(committed_at) FILTER (WHERE loaded_at >= acquired_at)))::float AS pause_s
FROM consumers LEFT JOIN staged_objects ON destination = :destination
WHERE name = 'loading/' || CAST(:destination AS text) GROUP BY name
""")


@dataclass(frozen=True, slots=True)
class Size:
    """How much is done."""

    moves: int
    growths: int
    """Of topics, by a partition each."""
    kills: int
    """Of drivers, at each step of the commit protocol in turn, and of applications."""
    executor_kills: int
    """Of Spark's Python workers."""
    code_kills: int
    """Of processes of user code."""
    freezes: int
    """In a transaction, before one, at any moment, in turn."""
    coordinator_kills: int
    poison: int
    """Events, in fours."""
    loader_kills: int
    """Of drivers, at each step of a load in turn, and of applications; 0: nothing is loaded."""


FULL = Size(50, 12, 16, 6, 6, 6, 12, 200, 6)
QUICK = Size(4, 3, 8, 2, 2, 3, 6, 20, 6)
SHORTEST = Size(2, 1, 1, 1, 1, 1, 1, 4, 0)
Numbers: TypeAlias = Mapping[str, Sequence[int]]
"""Team to the numbers of events."""


@dataclass(slots=True)
class Tally:
    """What was done, and what came of it."""

    sent: Counter[str] = field(default_factory=Counter)
    poison: dict[tuple[str, int], str] = field(default_factory=dict)
    """(team, number) to the error type that it must park under."""
    staged: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Team to the numbers that are staged, in the order in which they were committed."""
    loaded: Numbers | None = None
    """Those in the team's table, in any order; None: nothing is loaded."""
    parked: Counter[tuple[str, int, str]] = field(default_factory=Counter)
    """(team, number, error type) to how often it is parked."""
    unaccounted: int = 0
    """Events that the books miss, or have too many."""
    miscounted: int = 0
    """By how much the books differ from what was sent, and from the rows of tables."""
    met_again: int = 0
    """Rows that a table had already, or a newer one of their key, as the books say."""
    moves: int = 0
    destination_moves: int = 0
    growths: int = 0
    kills: int = 0
    loader_kills: int = 0
    kills_at: Counter[str] = field(default_factory=Counter)
    executor_kills: int = 0
    code_kills: int = 0
    freezes: int = 0
    fenced: int = 0
    """Commits of applications that woke up too late, and were refused."""
    coordinator_kills: int = 0
    misplaced: int = 0
    """Versions of the assignment that are not what the one before and their moves make."""
    pauses_s: list[float] = field(default_factory=list)
    """Of each move: between the last commit here and the first there."""
    destination_pauses_s: list[float] = field(default_factory=list)
    """The same of its destination's loads, but for the time in which none was due."""

    @property
    def _ends(self) -> list[Counter[tuple[str, int]]]:
        """How often each event is staged or parked, and loaded or parked."""
        found = []
        for place in (self.staged, self.loaded):
            if place is not None:
                ends = Counter((team, n) for team, numbers in place.items() for n in numbers)
                for (team, number, _), count in self.parked.items():
                    ends[team, number] += count
                found.append(ends)
        return found

    @property
    def rows(self) -> int:
        """Rows of all tables."""
        return sum(map(len, (self.loaded or {}).values()))

    @property
    def lost(self) -> int:
        """Events that are not parked, and not staged or not loaded."""
        every = {(team, number) for team, count in self.sent.items() for number in range(count)}
        return len(set().union(*(every - ends.keys() for ends in self._ends)))

    @property
    def doubled(self) -> int:
        """How often an event is staged, loaded or parked beyond the first time."""
        return sum(count - 1 for ends in self._ends for count in ends.values())

    @property
    def poison_parked(self) -> int:
        """Poison that is parked as what it is."""
        return sum((*one, kind) in self.parked for one, kind in self.poison.items())

    @property
    def misparked(self) -> int:
        """Events that are parked, and should not be, or not so."""
        return sum(self.poison.get((team, n)) != kind for team, n, kind in self.parked)

    @property
    def disordered(self) -> int:
        """How often an event is staged behind a later one of its key."""
        wrong = 0
        for numbers in self.staged.values():
            last: dict[str, int] = {}
            for number in numbers:
                wrong += number < last.get(key_of(number), 0)
                last[key_of(number)] = number
        return wrong

    @property
    def is_good(self) -> bool:
        """Tell whether everything is as it must be."""
        wrong = self.lost + self.doubled + self.disordered + self.misparked + self.misplaced
        wrong += self.unaccounted + self.miscounted + self.met_again
        return not wrong and self.poison_parked == len(self.poison)

    @property
    def move_p95_s(self) -> float:
        """Return the pause of a move that one in twenty is longer than."""
        return p95(self.pauses_s)

    @property
    def destination_move_p95_s(self) -> float:
        """Return the same of destinations."""
        return p95(self.destination_pauses_s)


def p95(pauses_s: Sequence[float]) -> float:
    """Return what one in twenty is longer than."""
    if len(pauses_s) < 2:
        return max(pauses_s, default=0.0)
    return statistics.quantiles(pauses_s, n=20, method="inclusive")[-1]


class TeamLog:
    """A team's write-ahead log as the tracker knows it, by which its topic may grow.

    The campaign sends without one: kills of who sends are ``make faults-producer``'s.

    Args:
        tracker: the books.
        team: whose.
    """

    def __init__(self, tracker: TrackerStore, team: str) -> None:
        self._tracker = tracker
        self._wal_id = uuid.uuid4().hex
        self._due = 0.0
        self._pipeline_id = f"{team}-orders"
        place = f"ingest-{team}-orders", "campaign", "/campaign"
        identity = LogIdentity(
            self._wal_id, self._pipeline_id, "ingestion", *place, topic_of(team), rereadable=False
        )
        generation = register_log(tracker, identity)
        assert generation is not None
        self.topic = generation
        """The generation that is written to, as Kafka names it."""

    def follow(self, deliver: Callable[[], None]) -> None:
        """Go on with the newest generation, once Kafka has all that was sent to the one before."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _LOOK_S
        tell_log(self._tracker, self._wal_id, unsettled=0)
        if is_left(self._tracker, self.topic):
            deliver()
            self.topic = follow_generation(self._tracker, self._wal_id, self.topic, {})

    def close(self, sent: int) -> None:
        """Say that nothing more is sent, and count what was taken in."""
        tell_log(self._tracker, self._wal_id, unsettled=0, closed=True)
        rows = [["order", "ingestion", _MINUTE, [sent, 0, sent, sent, 0, 0, 0, 0]]]
        page = IntakeCommit(self._pipeline_id, 1, {}, sent, [(self._pipeline_id, rows)])
        commit_intake(self._tracker, page, lambda *_: None)


class Campaign:
    """The clusters, their applications, and those who send.

    Args:
        settings: over the real servers.
        seed: of all choices.
        loads: what is staged is loaded, too.
    """

    def __init__(self, settings: Settings, seed: int, *, loads: bool = False) -> None:
        self.loads = loads
        self._kinds: Sequence[ApplicationKind] = applications.KINDS if loads else ("processing",)
        self.settings = with_destinations(settings).model_copy(
            update={
                "pipelines_dir": settings.home / "pipelines",
                "dags_dir": Path(__file__).parent / "with_failpoints" / "dags",
                "spark": settings.spark.model_copy(
                    update={"trigger_ms": 200, "event_timeout_s": 3.0}
                ),
                # what hoards has it all long before its time is over, however busy the machine is
                "sandbox": settings.sandbox.model_copy(update={"memory_mb": 128}),
                "tracker": settings.tracker.model_copy(update={"idle_in_transaction_timeout_s": 5}),
            }
        )
        self.tally = Tally()
        self._random = random.Random(seed)
        self._kill_steps = in_turn((*BATCH, _ANY_MOMENT), seed)
        self._load_steps = in_turn((*loading_failpoints.LOAD, _ANY_MOMENT), seed)
        self._task_steps = in_turn(TASK, seed)
        self._freeze_steps = cycle((IN_TRANSACTION, BEFORE_TRANSACTION, (_ANY_MOMENT,)))
        self._round_steps = in_turn(failpoints.COORDINATOR, seed)
        self._special: dict[str, deque[int]] = {team: deque() for team in TEAMS}
        """By team: amounts of its next events."""
        self._tracker = open_tracker(self.settings.tracker)
        self._watcher = AssignmentWatcher(self._tracker, "default")
        self._kafka = open_log(self.settings.kafka)

    def last_words(self) -> Iterator[str]:
        """Yield what the applications last wrote to their logs."""
        for kind, cluster in product(("processing", "loading"), CLUSTERS):
            words = services.application_last_words(self.settings, kind, cluster, lines=80)
            yield f"--- {kind} {cluster}\n{words}"

    def at(self) -> dict[str, str]:
        """Return {team: its cluster}; a decision may place others too."""
        assignment = self._watcher.read()
        return {team: str(assignment.cluster_of(team)) for team in TEAMS}

    def prepare(self) -> None:
        """Make tables, pipelines, topics and the second cluster; start the applications."""
        services.migrate(self.settings)
        for team in TEAMS:
            services.run_deploy(self.settings, self._written(team), who="campaign")
            self._kafka.ensure_topic(topic_of(team))
        services.set_cluster(self.settings, cluster_of_size("default"), ANN)
        services.create_cluster(self.settings, cluster_of_size("second"), ANN)
        for cluster in CLUSTERS:
            self._start(cluster)
        lines = lambda: services.cluster_status(self.settings).clusters  # noqa: E731
        self._until(lambda: all(one.cluster.is_served for one in lines()), "both are at work")

    def _written(self, team: str) -> Path:
        home = self.settings.pipelines_dir / team
        home.mkdir(parents=True)
        declared = DECLARATION.format(team=team, policy="strict", amount="int32")
        declared = declared.replace("test-evolving", f"{team}-orders")
        own = f"{{name: {destination_of(team)}, schema: {team}}}"
        declared = declared.replace("{name: warehouse, schema: shop}", own)
        (home / "pipeline.yaml").write_text(declared.replace("name: evolving", f"name: {team}"))
        (home / "transformation.py").write_text(CODE)
        (home / "orders.csv").write_text("number,amount\n")
        return home

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Send events of all teams meanwhile."""
        over = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            sender = pool.submit(self._send, over)
            try:
                yield
            finally:
                over.set()
                sender.result()

    def _send(self, over: threading.Event) -> None:
        from confluent_kafka import Producer

        kafka = librdkafka_config(self.settings.kafka)
        producer = Producer({**kafka, "enable.idempotence": True})

        def deliver() -> None:
            assert producer.flush(60) == 0

        logs = {team: TeamLog(self._tracker, team) for team in TEAMS}
        while not over.wait(0.1):
            for team, log in logs.items():
                log.follow(deliver)
                for _ in range(EACH_PER_S // 10):
                    number = self.tally.sent[team]
                    value = order(team, number, self._next_amount(team, number))
                    producer.produce(log.topic, value, key_of(number).encode())
                    self.tally.sent[team] += 1
            producer.poll(0)
        deliver()
        for team, log in logs.items():
            log.close(self.tally.sent[team])

    def _next_amount(self, team: str, number: int) -> int:
        special = self._special[team]
        amount = special.popleft() if special else number % 1000
        if amount in POISON:
            self.tally.poison[team, number] = POISON[amount]
        return amount

    def _start(self, cluster: str) -> None:
        for kind in self._kinds:
            services.start_application(self.settings, kind, cluster)

    def _processes(
        self, cluster: str, kind: ApplicationKind = "processing"
    ) -> list[psutil.Process]:
        status = applications.application_status(self.settings, kind, cluster)
        assert status.pid is not None, f"{cluster} does not run"
        driver = psutil.Process(status.pid)
        return [driver, *driver.children(recursive=True)]

    def _until(self, condition: Any, what: str) -> None:
        limit = time.monotonic() + _WAIT_S
        while not condition():
            for cluster in CLUSTERS:
                self._start(cluster)  # as the supervisor does
            assert time.monotonic() < limit, f"{what}: did not happen within {_WAIT_S:.0f} s"
            time.sleep(0.2)

    def _commits(self, team: str) -> list[tuple[Lease, float]]:
        """Return the commits of a team's events, the oldest first: under what lease, and when."""
        with self._tracker.transaction() as connection:
            rows = connection.execute(_COMMITS, {"topic": topic_of(team)})
            return [((int(number), int(epoch)), float(at)) for number, epoch, at in rows]

    def _flows(self, team: str, after: float) -> bool:
        commits = self._commits(team)
        return bool(commits) and commits[-1][1] > after

    def _serving_lease(self, team: str, cluster: str) -> Lease | None:
        """Return the lease under which a cluster has committed events of a team; None: not yet."""
        asked = {"topic": topic_of(team), "cluster": cluster}
        with self._tracker.transaction() as connection:
            row = connection.execute(_SERVING, asked).first()
        return None if row is None else (int(row.generation), int(row.epoch))

    def _loading(self, team: str) -> tuple[int, str, float | None]:
        """Return who loads a team's destination: epoch, cluster, and the pause that it began with.

        Between the last load before it, or the first commit since then, and its first load; None:
        there is none yet.
        """
        asked = {"destination": destination_of(team)}
        with self._tracker.transaction() as connection:
            row = connection.execute(_LOADING, asked).first()
        return (0, "", None) if row is None else (int(row.epoch), row.cluster, row.pause_s)

    def _all_load(self, after: float) -> bool:
        """Tell whether each destination has had a load since then, if there are loads."""
        with self._tracker.transaction() as connection:
            rows = connection.execute(_LOADED_AT).all()
        at = {row[0]: float(row[1]) for row in rows}
        return not self.loads or all(at.get(destination_of(team), 0) > after for team in TEAMS)

    def flow(self) -> None:
        """Wait until something of every team was committed since now, and loaded."""
        now = self._now()

        def flows() -> bool:
            return all(self._flows(team, now) for team in TEAMS) and self._all_load(now)

        self._until(flows, "all teams flow")

    def _now(self) -> float:
        query = text("SELECT extract(epoch FROM clock_timestamp())::float")
        with self._tracker.transaction() as connection:
            return float(connection.execute(query).scalar_one())

    def move(self, teams: list[str], cluster: str) -> dict[str, Lease]:
        """Move teams to where they are not, and wait for a commit, and a load, of each there.

        Returns {team: the lease of that commit}.
        """
        before = {team: self._commits(team)[-1][0] for team in teams}
        epochs = {team: self._loading(team)[0] for team in teams}
        leases: dict[str, Lease] = {}
        for team in teams:
            services.move_team(self.settings, PlaceRequest(team=team, cluster=cluster), ANN)

        def serves_all() -> bool:
            for team in before.keys() - leases.keys():
                lease = self._serving_lease(team, cluster)
                if lease is not None and lease > before[team]:
                    leases[team] = lease
            return len(leases) == len(teams)

        self._until(serves_all, f"{cluster} serves {', '.join(teams)}")
        self.tally.moves += len(teams)
        if self.loads:
            self._until(
                lambda: all(self._loads_there(*one, cluster) for one in epochs.items()),
                f"{cluster} loads what is of {', '.join(teams)}",
            )
            self.tally.destination_moves += len(teams)
        return leases

    def _loads_there(self, team: str, before: int, cluster: str) -> bool:
        """Tell whether a cluster has loaded something of a team under a newer lease."""
        epoch, at, pause_s = self._loading(team)
        return epoch > before and at == cluster and pause_s is not None

    def move_any(self) -> None:
        """Move a team to where it is not."""
        team = self._random.choice(TEAMS)
        lease = self.move([team], other(self.at()[team]))[team]
        commits = self._commits(team)
        first = next(place for place, (own, _) in enumerate(commits) if own == lease)
        self.tally.pauses_s.append(commits[first][1] - commits[first - 1][1])
        pause_s = self._loading(team)[2]
        if self.loads and pause_s is not None:
            self.tally.destination_pauses_s.append(pause_s)

    def grow_any(self) -> None:
        """Have a topic grow by a partition, once its generation before has ended.

        Returns while the old one may drain still: what comes next meets that.
        """
        topic = topic_of(self._random.choice(TEAMS))
        self._until(lambda: len(self._live(topic)) == 1, f"{topic} can grow")
        [old] = self._live(topic)
        more = self._kafka.describe(old.name).partitions + 1
        plan = services.plan_growth(self.settings, GrowRequest(topic=topic, partitions=more))
        new = services.grow_topic(self.settings, plan, ANN)
        self._until(lambda: self._records(new.name) > 0, f"{new.name} is written to")
        self.tally.growths += 1

    def _live(self, topic: str) -> list[TopicGeneration]:
        """Return the generations of a topic that have not ended."""
        with self._tracker.transaction() as connection:
            return [one for one in generations_of(connection, topic) if one.state != "ended"]

    def _records(self, name: str) -> int:
        """Return how many records were ever written to a generation."""
        return sum(end for _, end in self._kafka.watermarks(self._kafka.describe(name)).values())

    def poison_all(self) -> None:
        """Send one event of each kind of poison, among the others."""
        for amount in POISON:
            self._special[self._random.choice(TEAMS)].append(amount)

    def _caught(self, role: str, failpoint: str) -> psutil.Process:
        """Arm a failpoint, and return the process that is told there."""
        failpoints.arm(role, failpoint)
        return self._told(role, failpoint)

    def _told(self, role: str, failpoint: str) -> psutil.Process:
        what = f"a process of {role} at {failpoint!r}"
        self._until(lambda: failpoints.caught(role, failpoint) is not None, what)
        pid = failpoints.caught(role, failpoint)
        assert pid is not None
        return psutil.Process(pid)

    def _stopped(self, role: str, failpoint: str) -> psutil.Process:
        """Arm a failpoint, and return the process that has stopped there."""
        process = self._caught(role, failpoint)
        servers.wait_for(lambda: process.status() == psutil.STATUS_STOPPED)
        return process

    def _serving(self) -> str:
        """Return a cluster that has teams."""
        return self._random.choice([one for one in CLUSTERS if one in self.at().values()])

    def kill(self) -> None:
        """Kill a driver at the next step, or a whole application, and delete its checkpoint."""
        cluster, step = self._serving(), next(self._kill_steps)
        self._kill("processing", cluster, cluster, step)
        self.tally.kills += 1
        self.tally.kills_at[step] += 1
        self.flow()

    def kill_loader(self) -> None:
        """Do the same to a driver that loads, at the next step of a load."""
        cluster, step = self._serving(), next(self._load_steps)
        self._kill("loading", cluster, loading_failpoints.role_of(cluster), step)
        self.tally.loader_kills += 1
        self.tally.kills_at[f"loading, {step}"] += 1
        self.flow()

    def _kill(self, kind: ApplicationKind, cluster: str, role: str, step: str) -> None:
        if step == _ANY_MOMENT:
            time.sleep(self._random.uniform(0, 2))
            send_all(signal.SIGKILL, self._processes(cluster, kind))
        else:
            self._stopped(role, step).kill()
        shutil.rmtree(self.settings.spark.work_dir / f"{kind}-{cluster}", ignore_errors=True)

    def kill_executor(self) -> None:
        """Kill a Python worker of Spark amid its task."""
        cluster = self._serving()
        worker = self._stopped(cluster, next(self._task_steps))
        assert worker in self._processes(cluster)[1:]
        worker.kill()
        self.tally.executor_kills += 1
        self.flow()

    def kill_code(self) -> None:
        """Kill a process of user code amid an event."""
        assert any(self._is_killed_asleep() for _ in range(10))
        self.tally.code_kills += 1
        self.flow()

    def _is_killed_asleep(self) -> bool:
        """Kill the process that sleeps in an event; False: it met poison before, and has ended."""
        team = self._random.choice(TEAMS)
        cluster = self.at()[team]
        failpoints.arm(cluster, ASLEEP)
        self._special[team].append(SLEEPS)
        try:
            process = self._told(cluster, ASLEEP)
            time.sleep(_ASLEEP_S)
            if process not in self._processes(cluster)[1:]:
                return False
            process.kill()
        except psutil.NoSuchProcess:
            return False
        return True

    def freeze(self) -> None:
        """Freeze an application until the other one has its teams, and wake it up."""
        cluster, step = self._serving(), self._random.choice(next(self._freeze_steps))
        if step == _ANY_MOMENT:
            time.sleep(self._random.uniform(0, 1))
        else:
            self._stopped(cluster, step)
        print(f"freeze {cluster}: {step}", file=sys.stderr, flush=True)
        frozen = self._processes(cluster)
        fenced = failpoints.noted(FENCED)
        pids = [one.pid for one in frozen]
        freeze(pids)
        try:
            self.move([team for team, at in self.at().items() if at == cluster], other(cluster))
        finally:
            wake(pids)  # else what is asleep outlives the campaign
        if step in IN_TRANSACTION:  # before one, it may find its connections gone, and try nothing
            self._until(lambda: failpoints.noted(FENCED) > fenced, "a late commit is refused")
        self.tally.freezes += 1
        self.flow()

    def kill_coordinator(self) -> None:
        """Kill the coordinator amid a round that has a team to place; then let it do two rounds."""
        team = f"late-{self.tally.coordinator_kills}"
        services.run_deploy(self.settings, self._written(team), who="campaign")
        known = len(assignment_versions(self._tracker))
        child = children.start(self.settings, failpoints.ROUND)
        try:
            self._stopped("coordinator", next(self._round_steps))
        finally:
            children.kill(child)
        for _ in range(2):
            services.run_coordinator(self.settings)
        self.tally.coordinator_kills += 1
        moved = Counter(
            move.team for one in assignment_versions(self._tracker)[known:] for move in one.moves
        )
        self.tally.misplaced += moved[team] != 1 or max(moved.values()) > 1

    def end(self) -> None:
        """Wait until all that was sent is committed, and loaded; stop; count what is there."""
        self._until(self._is_read, "all is read")
        if self.loads:
            self._until(self._is_loaded, "all is loaded")
        self._stop()
        self._count_staged()
        self._count_parked()
        if self.loads:
            self.tally.loaded = {team: loaded_numbers(self.settings, team) for team in TEAMS}
        self._compare_books()
        self.tally.fenced = failpoints.noted(FENCED)
        versions = pairwise(assignment_versions(self._tracker))
        self.tally.misplaced += sum(not follows(*pair) for pair in versions)

    def _stop(self) -> None:
        for cluster in CLUSTERS:
            for kind in self._kinds:
                applications.stop_application(self.settings, kind, cluster)

    def _is_read(self) -> bool:
        """Tell whether each topic's generations have ended but the newest, and that is read."""
        with self._tracker.transaction() as connection:
            read = {name: int(end) for name, end in connection.execute(_READ)}
            known = all_generations(connection)
        own = [one for team in TEAMS for one in known[topic_of(team)]]
        if any(one.state == "draining" for one in own):
            return False
        newest = [one.name for one in own if one.state == "writing"]
        return all(read.get(name, 0) == self._records(name) for name in newest)

    def _is_loaded(self) -> bool:
        names = map(destination_of, TEAMS)
        return all(
            load_position(self._tracker, name) == last_commit_number(self._tracker, name)
            for name in names
        )

    def _compare_books(self) -> None:
        """Hold the books against themselves, what was sent, and what tables have."""
        report = services.balance(self.settings)
        self.tally.unaccounted = report.unaccounted
        self.tally.miscounted = abs(report.ingested - sum(self.tally.sent.values()))
        if self.loads:
            self.tally.miscounted += abs(report.delivered - self.tally.rows) + report.in_flight
        self.tally.met_again = report.duplicate + report.superseded

    def _count_staged(self) -> None:
        """Count what is staged of all generations, in the order of the commits."""
        objects = open_objects(self.settings.s3)
        query = text("SELECT destination, commit_number, key FROM staged_objects ORDER BY 1, 2")
        with self._tracker.transaction() as connection:
            rows = connection.execute(query).all()
        for _, commit in groupby(rows, key=itemgetter(0, 1)):
            parts: defaultdict[str, list[list[int]]] = defaultdict(list)
            for row in commit:
                for frame in read_staged(objects.get(row.key)):
                    team = frame.pipeline_id.removesuffix("-orders")
                    parts[team].append(frame.data.column("number").to_pylist())
            for team, own in parts.items():
                self.tally.staged[team] += of_one_commit(own)

    def _count_parked(self) -> None:
        objects = open_objects(self.settings.s3)
        groups = {group.id: group for group in Parking(self._tracker, objects).partitions()}
        for segment in segments_in_order(self._tracker):
            group = groups[segment.partition_id]
            team = group.pipeline_id.removesuffix("-orders")
            for event in read_segment_events(self._tracker, objects, segment):
                number = decode(event.value).data["number"]
                self.tally.parked[team, number, group.error_type] += 1

    def close(self) -> None:
        """Stop what runs."""
        self._stop()
        self._tracker.close()


def topic_of(team: str) -> str:
    """Return a team's topic."""
    return f"events.{team}.{destination_of(team)}"


def cluster_of_size(name: str) -> ClusterRequest:
    """Return what is asked for a cluster."""
    return ClusterRequest(name=name, memory_mb=MEMORY_MB)


def key_of(number: int) -> str:
    """Return the key of an event."""
    return f"[{number % KEYS}]"


def of_one_commit(objects: Sequence[Sequence[int]]) -> list[int]:
    """Return the events of a commit's objects in an order that it may have.

    The objects have none: a partition is cut where a topic has more of them than tasks, and a load
    takes all that a commit has at once. So of each key the lower part comes first; where the parts
    of two objects overlap, or one is not in order itself, that is still seen.
    """
    parts: list[list[int]] = []
    for numbers in objects:
        own: defaultdict[str, list[int]] = defaultdict(list)
        for number in numbers:
            own[key_of(number)].append(number)
        parts += own.values()
    return [number for part in sorted(parts, key=itemgetter(0)) for number in part]


def other(cluster: str) -> str:
    """Return the other cluster."""
    return CLUSTERS[1 - CLUSTERS.index(cluster)]


def send_all(number: int, processes: Sequence[psutil.Process]) -> None:
    """Send a signal to those of the processes that have not ended."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def follows(older: Assignment, newer: Assignment) -> bool:
    """Tell whether a version is the one before and its moves, nothing else."""

    def cluster(version: Assignment, team: str) -> str | None:
        at = version.placements.get(team)
        return None if at is None else at.cluster

    teams = older.placements.keys() | newer.placements.keys()
    places = {team: (cluster(older, team), cluster(newer, team)) for team in teams}
    changed = {team: place for team, place in places.items() if place[0] != place[1]}
    moves = {move.team: (move.old, move.new) for move in newer.moves}
    in_order = newer.version == older.version + 1
    return in_order and moves == changed and len(moves) == len(newer.moves)


def order(team: str, number: int, amount: int) -> bytes:
    """Return one of a team's events."""
    return encode(
        Event(
            id=f"{team}-{number}", pipeline_id=f"{team}-orders", team=team, name="order",
            key=key_of(number), source_version=number, intake_version=number,
            intake_minute=_MINUTE, time="2026-01-01T00:00:00Z",
            data={"number": number, "amount": amount},
        )
    )  # fmt: skip


def in_turn(steps: Sequence[_Step], seed: int) -> Iterator[_Step]:
    """Yield one after the other, again and again; the seed says which is the first."""
    first = seed % len(steps)
    return cycle((*steps[first:], *steps[:first]))


def missed(size: Size, tally: Tally) -> dict[str, int]:
    """Return what was asked for and not done, by kind; a step at which nothing was killed is one,
    where there were kills enough for each.
    """
    numbers = ("moves", "growths", "kills", "loader_kills", "executor_kills", "code_kills")
    asked = (*numbers, "freezes", "coordinator_kills")
    found = {name: getattr(size, name) - getattr(tally, name) for name in asked}
    steps = [
        (size.kills, [*BATCH, _ANY_MOMENT]),
        (size.loader_kills, [f"loading, {n}" for n in (*loading_failpoints.LOAD, _ANY_MOMENT)]),
    ]
    for kills, names in steps:
        if kills >= len(names):
            found |= {f"kill: {name}": 1 for name in names if not tally.kills_at[name]}
    return {name: number for name, number in found.items() if number > 0}


def acts_of(size: Size, seed: int) -> list[str]:
    """Return the names of what is done, in an order."""
    numbers = {
        "move_any": size.moves,
        "grow_any": size.growths,
        "kill": size.kills,
        "kill_executor": size.executor_kills,
        "kill_code": size.code_kills,
        "freeze": size.freezes,
        "kill_coordinator": size.coordinator_kills,
        "poison_all": size.poison // len(POISON),
        "kill_loader": size.loader_kills,
    }
    acts = [act for act, number in numbers.items() for _ in range(number)]
    random.Random(seed).shuffle(acts)
    return acts


def run(settings: Settings, size: Size, *, seed: int) -> Tally:
    """Run the campaign and return what came of it.

    A frozen application's teams are moved, too: there are few moves beyond those asked for.
    """
    with pytest.MonkeyPatch.context() as patch:
        failpoints.put_up(patch, settings.home / "failpoints")
        campaign = Campaign(settings, seed, loads=size.loader_kills > 0)
        try:
            campaign.prepare()
            with campaign.sending():
                campaign.flow()
                for act in acts_of(size, seed):
                    if act == "move_any" and campaign.tally.moves >= size.moves:
                        continue
                    began = time.monotonic()
                    getattr(campaign, act)()
                    print(f"{act}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
            campaign.end()
        except Exception:
            print(f"seed {seed}; the applications' last words:", file=sys.stderr)
            print(*campaign.last_words(), sep="\n", file=sys.stderr, flush=True)
            raise
        finally:
            campaign.close()
    return campaign.tally


FIGURES = (
    "moves",
    "destination_moves",
    "growths",
    "kills",
    "loader_kills",
    "executor_kills",
    "code_kills",
    "freezes",
    "fenced",
    "coordinator_kills",
    "rows",
    "lost",
    "doubled",
    "disordered",
    "misparked",
    "misplaced",
    "unaccounted",
    "miscounted",
    "met_again",
)


def show(tally: Tally, seed: int, seconds: float) -> dict[str, Any]:
    """Print a table; return the figures."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{sum(tally.sent.values()):,} events of {len(TEAMS)} teams, seed {seed}")
    table.add_column("done")
    table.add_column("number", justify="right")
    for name in FIGURES:
        table.add_row(name.replace("_", " "), str(getattr(tally, name)))
    table.add_row("poison, parked", f"{len(tally.poison)}, {tally.poison_parked}")
    table.add_row("pause of a move, p95", f"{tally.move_p95_s:.1f} s")
    table.add_row("pause of a destination, p95", f"{tally.destination_move_p95_s:.1f} s")
    Console().print(table)
    return {
        **{name: getattr(tally, name) for name in FIGURES},
        "kills_at": dict(tally.kills_at),
        "poison": len(tally.poison),
        "poison_parked": tally.poison_parked,
        "move_p95_s": round(tally.move_p95_s, 2),
        "move_max_s": round(max(tally.pauses_s, default=0.0), 2),
        "destination_move_p95_s": round(tally.destination_move_p95_s, 2),
        "events": sum(tally.sent.values()),
        "seed": seed,
        "seconds": round(seconds, 1),
    }


def main() -> int:
    standard = QUICK if os.environ.pop("QUICK", "") == "1" else FULL
    size = Size(
        **{
            one.name: int(os.environ.pop(one.name.upper(), getattr(standard, one.name)))
            for one in fields(Size)
        }
    )
    seed = int(os.environ.pop("PROCESSING_SEED", random.randrange(10**6)))
    began = time.monotonic()
    with opened_home() as (home, stack):
        parts = all_started(servers, home, stack)
        folder = home / "work"
        folder.mkdir()
        tally = run(servers.stack_settings(*parts, folder), size, seed=seed)
    report = show(tally, seed, time.monotonic() - began) | {"missed": missed(size, tally)}
    sys.stdout.write(json.dumps(report) + "\n")
    as_asked = not report["missed"] and tally.fenced > 0
    pause_s = max(tally.move_p95_s, tally.destination_move_p95_s)
    return 0 if tally.is_good and as_asked and pause_s < _LONGEST_MOVE_S else 1


if __name__ == "__main__":
    sys.exit(main())
