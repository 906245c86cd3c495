"""What users ask of virtual clusters."""

from __future__ import annotations

from pydantic import Field

from waybill.request import Request

_MOST = 2**31 - 1
_CONSUMERS = "Most consumers (topics) that it serves; 0: no limit."
_CORES = "Cores that its applications take at most; 0: as the settings say."
_MEMORY = "Memory of an executor, in MiB; 0: as the settings say."
_LAG = "Longest that an event should wait to be processed, in seconds."
_POOL = "Spark's scheduler pool of its queries."
_CONF = "More of Spark's configuration, as name=value; an empty value takes a name away."


class ClusterRequest(Request):
    """A virtual cluster, and those of its settings that are given."""

    name: str = Field(description="The cluster.", max_length=100)
    max_consumers: int | None = Field(None, ge=0, le=_MOST, description=_CONSUMERS)
    cores: int | None = Field(None, ge=0, le=_MOST, description=_CORES)
    memory_mb: int | None = Field(None, ge=0, le=_MOST, description=_MEMORY)
    lag_objective_s: float | None = Field(None, ge=1, description=_LAG)
    scheduler_pool: str | None = Field(None, max_length=100, description=_POOL)
    spark_conf: list[str] = Field(default=[], description=_CONF)


class PlaceRequest(Request):
    """A team, and the cluster that is to serve it."""

    team: str = Field(min_length=1, description="The team.")
    cluster: str = Field(description="The cluster.", max_length=100)


class DrainRequest(Request):
    """A cluster whose teams are to leave, or may stay again."""

    name: str = Field(description="The cluster.", max_length=100)
    undo: bool = Field(default=False, description="Let teams come in again.")
