"""Objectives and thresholds of the eager checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from waybill.settings import AuditSettings, WaitingStage


@dataclass(frozen=True, slots=True)
class JumpLimits:
    """When a share is a jump."""

    share: float = 0.05
    """No jump below this share, whatever was usual."""
    times: float = 3.0
    """No jump below this multiple of the usual share."""
    events: int = 50
    """A window with fewer events says nothing."""


@dataclass(frozen=True, slots=True)
class DriftLimits:
    """How often tables are counted."""

    every_s: float = 600.0
    small_rows: int = 5_000_000
    exact_every_s: float = 86_400.0


@dataclass(frozen=True, slots=True)
class WatchLimits:
    """What the settings say."""

    quiet_after_s: float = 1200.0
    """A shorter silence is never an alarm."""
    late_after_s: Mapping[WaitingStage, float] = field(
        default_factory=lambda: {"ingestion": 1800.0, "transformation": 600.0, "destination": 900.0}
    )
    """How long an event may wait before each stage, a run be overdue."""
    late_of_pipelines: Mapping[str, Mapping[WaitingStage, float]] = field(default_factory=dict)
    """Other objectives, by a pipeline's name or id."""
    log_unseen_s: float = 600.0
    """How long a write-ahead log that holds events may go unseen."""
    jump: JumpLimits = field(default_factory=JumpLimits)
    drift: DriftLimits = field(default_factory=DriftLimits)

    @classmethod
    def of(cls, settings: AuditSettings) -> Self:
        """Return the limits of the settings."""
        return cls(
            quiet_after_s=settings.quiet_after_s,
            late_after_s={
                "ingestion": settings.late_ingestion_s,
                "transformation": settings.late_transformation_s,
                "destination": settings.late_destination_s,
            },
            late_of_pipelines=settings.late_of_pipelines,
            log_unseen_s=settings.log_unseen_s,
            jump=JumpLimits(
                settings.parked_jump_share,
                settings.parked_jump_times,
                settings.parked_jump_events,
            ),
            drift=DriftLimits(
                settings.drift_every_s,
                settings.drift_small_rows,
                settings.drift_exact_every_s,
            ),
        )

    def late_after(self, stage: WaitingStage, *names: str) -> float:
        """Return the objective of a stage, for a pipeline by its name or id."""
        own = [self.late_of_pipelines[name] for name in names if name in self.late_of_pipelines]
        return next((one[stage] for one in own if stage in one), self.late_after_s[stage])
