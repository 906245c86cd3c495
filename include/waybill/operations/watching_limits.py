"""Objectives and thresholds of the eager checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from waybill.operations.watching_ages import Stage
from waybill.operations.watching_drift import DriftLimits
from waybill.operations.watching_parked import JumpLimits


@dataclass(frozen=True, slots=True)
class WatchLimits:
    """What the settings say."""

    quiet_after_s: float = 1200.0
    """A shorter silence is never an alarm."""
    late_after_s: Mapping[Stage, float] = field(
        default_factory=lambda: {"ingestion": 1800.0, "transformation": 600.0, "destination": 900.0}
    )
    """How long an event may wait before each stage, a run be overdue."""
    jump: JumpLimits = field(default_factory=JumpLimits)
    drift: DriftLimits = field(default_factory=DriftLimits)
