"""``make faults-processing``: two clusters' processing applications under load, killed and moved.

Four teams send events without a pause. Two virtual clusters, each with a real application, serve
them. Meanwhile teams are moved between the clusters, applications are killed with SIGKILL (driver,
JVM and workers at once) and their checkpoints with them, and one is frozen (SIGSTOP) until the
other has taken its teams over, and woken up. At the end every event must be staged exactly once.
``QUICK=1`` is a short form; ``MOVES``, ``KILLS`` and ``FREEZES`` are other numbers, and
``PROCESSING_SEED`` repeats the choices. Ends with 1 where an event is lost or doubled.
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
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import text
from tests import servers
from tests.benchmarks.home import opened_home
from tests.benchmarks.processing import all_started
from tests.support.evolving import DECLARATION, PASSES

from waybill import services
from waybill.access import Decision
from waybill.clusters import AssignmentWatcher, ClusterRequest, PlaceRequest
from waybill.events import Event, encode
from waybill.processing import read_staged
from waybill.services import applications
from waybill.settings import Settings
from waybill.storage import open_log, open_objects, open_tracker

TEAMS = ("east", "north", "south", "west")
CLUSTERS = ("default", "second")
EACH_PER_S = 100
"""Events a second and team."""
_WAIT_S = 180.0
ANN = Decision("ann", "the campaign")


@dataclass(frozen=True, slots=True)
class Size:
    """How much is done."""

    moves: int
    kills: int
    freezes: int


FULL, QUICK = Size(50, 10, 4), Size(6, 2, 1)


@dataclass(slots=True)
class Tally:
    """What was done, and what came of it."""

    sent: Counter[str] = field(default_factory=Counter)
    staged: Counter[tuple[str, int]] = field(default_factory=Counter)
    """(team, number) to how often it is staged."""
    moves: int = 0
    kills: int = 0
    freezes: int = 0
    fenced: int = 0
    """Commits of applications that woke up too late, and were refused."""
    pauses_s: list[float] = field(default_factory=list)
    """Of each move: between the last commit here and the first there."""

    @property
    def lost(self) -> int:
        """Events that are staged nowhere."""
        every = {(team, number) for team, count in self.sent.items() for number in range(count)}
        return len(every - self.staged.keys())

    @property
    def doubled(self) -> int:
        """Events that are staged more than once."""
        return sum(count - 1 for count in self.staged.values())

    @property
    def move_p95_s(self) -> float:
        """Return the pause of a move that one in twenty is longer than."""
        if len(self.pauses_s) < 2:
            return max(self.pauses_s, default=0.0)
        return statistics.quantiles(self.pauses_s, n=20, method="inclusive")[-1]


class Campaign:
    """The clusters, their applications, and those who send.

    Args:
        settings: over the real servers.
        seed: of all choices.
    """

    def __init__(self, settings: Settings, seed: int) -> None:
        self.settings = settings.model_copy(
            update={
                "pipelines_dir": settings.home / "pipelines",
                "dags_dir": Path(__file__).parents[2] / "dags",
                "spark": settings.spark.model_copy(update={"trigger_ms": 200}),
            }
        )
        self.tally = Tally()
        self._random = random.Random(seed)
        self._tracker = open_tracker(self.settings.tracker)
        self._watcher = AssignmentWatcher(self._tracker, "default")

    def at(self) -> dict[str, str]:
        """Return {team: its cluster}; a decision may place others too."""
        assignment = self._watcher.read()
        return {team: str(assignment.cluster_of(team)) for team in TEAMS}

    def prepare(self) -> None:
        """Make tables, pipelines, topics and the second cluster; start the applications."""
        services.migrate(self.settings)
        for team in TEAMS:
            services.run_deploy(self.settings, self._written(team), who="campaign")
            open_log(self.settings.kafka).ensure_topic(topic_of(team))
        services.create_cluster(self.settings, ClusterRequest(name="second"), ANN)
        for cluster in CLUSTERS:
            self._start(cluster)
        lines = lambda: services.cluster_status(self.settings).clusters  # noqa: E731
        self._until(lambda: all(one.cluster.is_served for one in lines()), "both are at work")

    def _written(self, team: str) -> Path:
        home = self.settings.pipelines_dir / team
        home.mkdir(parents=True)
        declared = DECLARATION.format(team=team, policy="strict", amount="int32")
        declared = declared.replace("test-evolving", f"{team}-orders")
        (home / "pipeline.yaml").write_text(declared.replace("name: evolving", f"name: {team}"))
        (home / "transformation.py").write_text(PASSES)
        (home / "orders.csv").write_text("number,amount\n")
        return home

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Send events of all teams meanwhile."""
        over = threading.Event()
        sender = threading.Thread(target=self._send, args=(over,))
        sender.start()
        try:
            yield
        finally:
            over.set()
            sender.join()

    def _send(self, over: threading.Event) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {"bootstrap.servers": self.settings.kafka.bootstrap_servers, "acks": "all"}
        )
        while not over.wait(0.1):
            for team in TEAMS:
                for _ in range(EACH_PER_S // 10):
                    number = self.tally.sent[team]
                    producer.produce(topic_of(team), order(team, number), str(number).encode())
                    self.tally.sent[team] += 1
            producer.poll(0)
        assert producer.flush(60) == 0

    def _start(self, cluster: str) -> None:
        services.start_application(self.settings, "processing", cluster)

    def _processes(self, cluster: str) -> list[psutil.Process]:
        status = applications.application_status(self.settings, "processing", cluster)
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

    def _newest(self, team: str) -> tuple[int, float]:
        """Return the epoch of a team's newest commit, and when it was."""
        rows = self._commits(team)
        return rows[-1] if rows else (0, 0.0)

    def _commits(self, team: str) -> list[tuple[int, float]]:
        query = text(
            "SELECT epoch, extract(epoch FROM committed_at)::float FROM batches "
            "WHERE consumer = :consumer ORDER BY commit_number"
        )
        with self._tracker.transaction() as connection:
            rows = connection.execute(query, {"consumer": f"processing/{topic_of(team)}"})
            return [(int(epoch), float(at)) for epoch, at in rows]

    def _flows(self, team: str, after: float) -> bool:
        return self._newest(team)[1] > after

    def flow(self) -> None:
        """Wait until something of every team was committed since now."""
        now = self._now()
        self._until(lambda: all(self._flows(team, now) for team in TEAMS), "all teams flow")

    def _now(self) -> float:
        query = text("SELECT extract(epoch FROM clock_timestamp())::float")
        with self._tracker.transaction() as connection:
            return float(connection.execute(query).scalar_one())

    def move(self, team: str, cluster: str) -> None:
        """Move a team, and wait until its new cluster has committed something."""
        epoch = self._newest(team)[0]
        services.move_team(self.settings, PlaceRequest(team=team, cluster=cluster), ANN)
        self._until(lambda: self._newest(team)[0] > epoch, f"{cluster} serves {team}")
        commits = self._commits(team)
        first = next(place for place, (one, _) in enumerate(commits) if one > epoch)
        self.tally.pauses_s.append(commits[first][1] - commits[first - 1][1])
        self.tally.moves += 1

    def move_any(self) -> None:
        """Move a team to where it is not."""
        team = self._random.choice(TEAMS)
        self.move(team, other(self.at()[team]))

    def kill_any(self) -> None:
        """Kill an application with all its processes, sometimes its checkpoint too."""
        cluster = self._random.choice(CLUSTERS)
        time.sleep(self._random.uniform(0, 2))
        for process in self._processes(cluster):
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        if self._random.random() < 0.5:
            folder = self.settings.spark.work_dir / f"processing-{cluster}"
            shutil.rmtree(folder, ignore_errors=True)
        self.tally.kills += 1
        self.flow()

    def freeze_any(self) -> None:
        """Freeze an application until the other one has its teams, and wake it up."""
        cluster = self._random.choice([one for one in CLUSTERS if one in self.at().values()])
        time.sleep(self._random.uniform(0, 1))
        frozen = self._processes(cluster)
        for process in frozen:
            process.suspend()
        for team in [team for team, at in self.at().items() if at == cluster]:
            self.move(team, other(cluster))
            self.tally.pauses_s.pop()  # it waited for one that cannot let go
        for process in frozen:
            try:
                process.resume()
            except psutil.NoSuchProcess:
                continue
        self.tally.freezes += 1
        self.flow()

    def end(self) -> None:
        """Wait until all that was sent is committed; stop; count what is staged."""
        log, objects = open_log(self.settings.kafka), open_objects(self.settings.s3)

        def is_read() -> bool:
            query = text("SELECT topic, sum(next_offset)::bigint FROM topic_offsets GROUP BY 1")
            with self._tracker.transaction() as connection:
                read = dict(tuple(row) for row in connection.execute(query))
            ends = {team: log.watermarks(log.describe(topic_of(team))) for team in TEAMS}
            return all(
                read.get(topic_of(team)) == sum(end for _, end in marks.values())
                for team, marks in ends.items()
            )

        self._until(is_read, "all is read")
        for cluster in CLUSTERS:
            applications.stop_application(self.settings, "processing", cluster)
        with self._tracker.transaction() as connection:
            keys = connection.execute(text("SELECT key FROM staged_objects")).scalars().all()
        for key in keys:
            for frame in read_staged(objects.get(key)):
                team = frame.pipeline_id.removesuffix("-orders")
                for number in frame.data.column("number").to_pylist():
                    self.tally.staged[team, number] += 1
        for cluster in CLUSTERS:
            path = self.settings.home / "logs"
            for log_file in path.glob(f"spark-processing-{cluster}.log*"):
                self.tally.fenced += log_file.read_text(errors="replace").count("was taken over")

    def close(self) -> None:
        """Stop what runs."""
        for cluster in CLUSTERS:
            applications.stop_application(self.settings, "processing", cluster)
        self._tracker.close()


def topic_of(team: str) -> str:
    """Return a team's topic."""
    return f"events.{team}.warehouse"


def other(cluster: str) -> str:
    """Return the other cluster."""
    return CLUSTERS[1 - CLUSTERS.index(cluster)]


def order(team: str, number: int) -> bytes:
    """Return one of a team's events."""
    return encode(
        Event(
            id=f"{team}-{number}", pipeline_id=f"{team}-orders", team=team, name="order",
            key=f"[{number}]", source_version=number, intake_version=number,
            intake_minute=29_000_000, time="2026-01-01T00:00:00Z",
            data={"number": number, "amount": number % 1000},
        )
    )  # fmt: skip


def run(settings: Settings, size: Size, *, seed: int) -> Tally:
    """Run the campaign and return what came of it."""
    campaign = Campaign(settings, seed)
    try:
        campaign.prepare()
        acts = ["move_any"] * size.moves + ["kill_any"] * size.kills + ["freeze_any"] * size.freezes
        random.Random(seed).shuffle(acts)
        with campaign.sending():
            campaign.flow()
            for act in acts:
                getattr(campaign, act)()
        campaign.end()
    finally:
        campaign.close()
    return campaign.tally


def show(tally: Tally, seed: int, seconds: float) -> dict[str, Any]:
    """Print a table; return the figures."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{sum(tally.sent.values()):,} events of {len(TEAMS)} teams, seed {seed}")
    table.add_column("done")
    table.add_column("number", justify="right")
    rows = ("moves", "kills", "freezes", "fenced", "lost", "doubled")
    for name in rows:
        table.add_row(name, str(getattr(tally, name)))
    table.add_row("pause of a move, p95", f"{tally.move_p95_s:.1f} s")
    Console().print(table)
    return {
        **{name: getattr(tally, name) for name in rows},
        "move_p95_s": round(tally.move_p95_s, 2),
        "move_max_s": round(max(tally.pauses_s, default=0.0), 2),
        "events": sum(tally.sent.values()),
        "seed": seed,
        "seconds": round(seconds, 1),
    }


def main() -> int:
    standard = QUICK if os.environ.pop("QUICK", "") == "1" else FULL
    size = Size(
        int(os.environ.pop("MOVES", standard.moves)),
        int(os.environ.pop("KILLS", standard.kills)),
        int(os.environ.pop("FREEZES", standard.freezes)),
    )
    seed = int(os.environ.pop("PROCESSING_SEED", random.randrange(10**6)))
    began = time.monotonic()
    with opened_home() as (home, stack):
        parts = all_started(servers, home, stack)
        folder = home / "work"
        folder.mkdir()
        tally = run(servers.stack_settings(*parts, folder), size, seed=seed)
    report = show(tally, seed, time.monotonic() - began)
    sys.stdout.write(json.dumps(report) + "\n")
    return 1 if tally.lost or tally.doubled else 0


if __name__ == "__main__":
    sys.exit(main())
