"""What users ask of capacity."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from waybill.request import Request

_THRESHOLDS = "JSON of thresholds; {}: at most 60 nodes, 16 at a step, else the defaults."
_RIVAL = "What to judge instead: as many nodes as at first, or a plain autoscaler."


class SimulationRequest(Request):
    """A workload, and what is to be judged by it."""

    workload: Literal["homogeneous", "bursty", "seasonal", "storm"] = Field(
        "storm", description="What comes in."
    )
    rival: Literal["none", "fixed", "threshold"] = Field("none", description=_RIVAL)
    thresholds: str = Field("{}", max_length=10_000, description=_THRESHOLDS)
    hours: float = Field(6.0, ge=0.1, le=72, description="Simulated.")
    seed: int = Field(1, ge=0, le=2**31 - 1, description="Of what is drawn at random.")
