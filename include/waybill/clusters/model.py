"""What the coordinator decides about: virtual clusters, the load of teams, where teams are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

from waybill.errors import InputError

DEFAULT_CLUSTER = "default"
"""The cluster that is there from the start; it serves the teams that no assignment names yet."""
CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_LONGEST_LAG_S = 86_400

SET_BY_WAYBILL: Mapping[str, str] = {
    "spark.cores.max": "--cores",
    "spark.executor.memory": "--memory-mb",
    "spark.master": "WAYBILL_SPARK__MASTER",
    "spark.driver.memory": "WAYBILL_SPARK__DRIVER_MEMORY",
    "spark.driver.host": "WAYBILL_SPARK__DRIVER_HOST",
    "spark.driver.bindAddress": "WAYBILL_SPARK__DRIVER_HOST",
    "spark.local.dir": "WAYBILL_SPARK__WORK_DIR",
    "spark.sql.warehouse.dir": "WAYBILL_SPARK__WORK_DIR",
    "spark.jars": "WAYBILL_SPARK__JARS_DIR",
    "spark.ui.enabled": "",
    "spark.ui.showConsoleProgress": "",
    "spark.scheduler.mode": "",
    "spark.speculation": "",
    "spark.task.maxFailures": "",
    "spark.python.daemon.module": "",
    "spark.python.worker.reuse": "",
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "",
    "spark.sql.shuffle.partitions": "",
    "spark.sql.streaming.checkpointFileManagerClass": "",
    "spark.sql.streaming.checkpointLocation": "",
    "spark.sql.streaming.metricsEnabled": "",
    "spark.sql.streaming.minBatchesToRetain": "",
    "spark.sql.streaming.stopTimeout": "",
    "spark.yarn.maxAppAttempts": "",
}
"""What Waybill sets of Spark's configuration, and a cluster cannot: by which option or variable it
is set instead; empty: by none. All that an application sets is here."""

ClusterState = Literal["active", "draining"]
MoveKind = Literal["new", "pin", "gone", "drain", "hot", "load", "asked"]
"""Why a team came into its cluster: ``new`` team, ``pin``, its cluster is ``gone`` or is drained,
it is ``hot``, for the ``load`` of the cluster it was in, or a person ``asked`` for it."""


@dataclass(frozen=True, slots=True)
class VirtualCluster:
    """One virtual cluster and its settings.

    Raises:
        InputError: a setting is out of its range, or the name is not one.
    """

    name: str
    max_consumers: int | None = None
    """Most topics that it serves; None: no limit."""
    cores: int | None = None
    """Cores that its applications take at most (``spark.cores.max``); None: as the settings say,
    and the packing takes it as never full."""
    lag_objective_s: float = 60.0
    """Longest that an event should wait to be processed."""
    state: ClusterState = "active"
    """``draining``: its teams are moved away, no team comes in."""
    memory_mb: int | None = None
    """Memory of an executor; None: as the settings say."""
    scheduler_pool: str = ""
    """Spark's scheduler pool of its queries and loads; empty: one for each group of consumers, and
    each destination."""
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    """More of Spark's configuration; of names in ``SET_BY_WAYBILL`` nothing has an effect."""
    is_served: bool = True
    """An application of it is at work; else no team comes in. Measured, no setting."""
    unserved: str = ""
    """Why not. Measured, no setting."""
    is_unable: bool = False
    """Why not is that its application is at work and can read nothing. Measured, no setting."""

    def __post_init__(self) -> None:
        """Check what was given."""
        if not CLUSTER_NAME.fullmatch(self.name):
            raise InputError(
                f"cluster {self.name[:120]!r}: a name is made of 1 to 100 letters, digits, '-', "
                "'_' or '.', and begins with a letter or a digit"
            )
        least = {"max_consumers": 1, "cores": 1, "memory_mb": 512}
        for name, lowest in least.items():
            given = getattr(self, name)
            if given is not None and given < lowest:
                raise InputError(
                    f"cluster {self.name!r}: {name} must be at least {lowest}, not {given}"
                )
        if not 1 <= self.lag_objective_s <= _LONGEST_LAG_S:
            raise InputError(
                f"cluster {self.name!r}: lag_objective_s must be from 1 to {_LONGEST_LAG_S}, not "
                f"{self.lag_objective_s}"
            )

    def share(self, demand_cores: float) -> float:
        """Return which share of its cores a demand is; 0 where it has no limit."""
        return 0.0 if self.cores is None else demand_cores / self.cores

    def has_room(self, consumers: int) -> bool:
        """Tell whether it may serve so many consumers."""
        return self.max_consumers is None or consumers <= self.max_consumers

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self) | {"spark_conf": dict(self.spark_conf)}


@dataclass(frozen=True, slots=True)
class TeamLoad:
    """What a team asks of the cluster that serves it, as measured."""

    team: str
    consumers: int
    """Its topics."""
    arrival_per_s: float = 0.0
    """Events that come in, in a second; what lasts, not a peak of one minute."""
    core_s_per_event: float = 0.0
    """Core seconds that processing an event takes."""
    waiting: int = 0
    """Events that are not processed yet."""
    lag_s: float = 0.0
    """For how long the oldest of them waits."""
    unseen: Mapping[str, str] = field(default_factory=dict)
    """{topic that did not answer: why}; what is said here is what was known of it last."""

    @property
    def demand_cores(self) -> float:
        """Return the cores that processing what comes in keeps busy."""
        return self.arrival_per_s * self.core_s_per_event

    @property
    def backlog_core_s(self) -> float:
        """Return the core seconds that processing what waits takes."""
        return self.waiting * self.core_s_per_event


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a team is, since when and why."""

    cluster: str
    since_s: float
    """When it came there, in seconds since the epoch."""
    kind: MoveKind
    reason: str
    """For people."""
    hot: bool = False
    """It takes so much of its cluster that it is better alone there."""
    old: str | None = None
    """Where it was before."""


@dataclass(frozen=True, slots=True)
class Move:
    """One decision: a team changes its cluster."""

    team: str
    old: str | None
    """None: it was in none."""
    new: str
    kind: MoveKind
    reason: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """Which cluster serves which team, by version."""

    version: int
    placements: Mapping[str, Placement]
    """By team."""
    moves: tuple[Move, ...] = ()
    """What is other than in the version before."""
    waiting: tuple[str, ...] = ()
    """Teams that no cluster has room for: none serves them."""
    problems: tuple[str, ...] = ()
    """What could not be done, and what would help; of the round that made it."""

    def teams_of(self, cluster: str) -> frozenset[str]:
        """Return the teams that a cluster serves."""
        return frozenset(team for team, at in self.placements.items() if at.cluster == cluster)

    def cluster_of(self, team: str) -> str | None:
        """Return the cluster that serves a team: ``default``, where no version names it yet.

        None: no cluster has room for it.
        """
        if team in self.waiting:
            return None
        at = self.placements.get(team)
        return DEFAULT_CLUSTER if at is None else at.cluster

    def same_places(self, other: Assignment) -> bool:
        """Tell whether both say the same of each team."""
        return dict(self.placements) == dict(other.placements) and self.waiting == other.waiting

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "version": self.version,
            "placements": {team: asdict(at) for team, at in sorted(self.placements.items())},
            "moves": [asdict(move) for move in self.moves],
            "waiting": list(self.waiting),
            "problems": list(self.problems),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read what ``to_json`` gave."""
        return cls(
            int(value["version"]),
            {team: Placement(**at) for team, at in value["placements"].items()},
            tuple(Move(**move) for move in value["moves"]),
            tuple(value["waiting"]),
            tuple(value["problems"]),
        )


NO_ASSIGNMENT = Assignment(0, {})
"""What there is before the coordinator ran for the first time."""
