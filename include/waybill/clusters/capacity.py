"""The cores that a cluster needs for its lag objective, and to whom they are asked for.

What comes in keeps so many cores busy: the peak of the next quarter of an hour, from the cluster's
own history (after a move it follows the new level within some ten minutes). Micro-batches wait for
cores where more than four fifths are busy, so that much is asked for and a fifth more. What waits
already must be gone within the lag objective: its core seconds over the objective's seconds are
added, as far as it is more than what one minute brings in anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any, Protocol

from waybill.clusters.forecast import forecast
from waybill.clusters.model import TeamLoad, VirtualCluster

_LOG = logging.getLogger(__name__)
HORIZON_MINUTES = 15
DAY_MINUTES = 1440
_BUSY = 0.8
"""Share of the cores that may be busy before batches wait for them."""


@dataclass(frozen=True, slots=True)
class ClusterCapacity:
    """What one cluster needs."""

    cluster: str
    cores: int | None
    """Its limit; None: it has none."""
    needed_cores: int
    """For its lag objective."""
    demand_cores: float
    """What comes in now keeps so many busy."""
    forecast_cores: float
    """What comes in within a quarter of an hour."""
    backlog_core_s: float
    """Core seconds of what waits."""
    lag_s: float
    """Of its oldest unread event."""
    lag_objective_s: float

    @property
    def is_short(self) -> bool:
        """Tell whether it needs more than its limit."""
        return self.cores is not None and self.needed_cores > self.cores

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self) | {"is_short": self.is_short}


@dataclass(frozen=True, slots=True)
class CapacityDemand:
    """What all clusters need, as one number and one by one."""

    clusters: tuple[ClusterCapacity, ...]

    @property
    def cores(self) -> int:
        """Return the sum."""
        return sum(one.needed_cores for one in self.clusters)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"cores": self.cores, "clusters": [one.to_json() for one in self.clusters]}


class InfraCoordinator(Protocol):
    """Who gives machines to clusters."""

    def request(self, demand: CapacityDemand) -> None:
        """Ask for so many cores; asked each minute, the newest counts.

        Raises:
            RetryError: it does not answer; the next minute asks again.
        """


class DryRunInfra:
    """Says what it would ask for, in the log, and gives nothing."""

    def __init__(self) -> None:
        self.requests: list[CapacityDemand] = []

    def request(self, demand: CapacityDemand) -> None:
        """Write the demand down."""
        self.requests.append(demand)
        each = ", ".join(f"{one.cluster} {one.needed_cores}" for one in demand.clusters)
        _LOG.info("dry run: %d cores would be asked for (%s)", demand.cores, each)


def capacity(
    cluster: VirtualCluster, loads: Sequence[TeamLoad], history: Sequence[float]
) -> ClusterCapacity:
    """Return what a cluster needs.

    Args:
        cluster: with its lag objective.
        loads: of the teams that it serves.
        history: the cores that its teams kept busy, by minute, the oldest first.
    """
    demand = sum(load.demand_cores for load in loads)
    backlog = sum(load.backlog_core_s for load in loads)
    peak = max(demand, forecast(history, steps=HORIZON_MINUTES, season=DAY_MINUTES).peak)
    draining = max(0.0, backlog - 60 * demand) / cluster.lag_objective_s
    return ClusterCapacity(
        cluster.name,
        cluster.cores,
        needed_cores=ceil(peak / _BUSY + draining) if loads else 0,
        demand_cores=demand,
        forecast_cores=peak,
        backlog_core_s=backlog,
        lag_s=max((load.lag_s for load in loads), default=0.0),
        lag_objective_s=cluster.lag_objective_s,
    )
