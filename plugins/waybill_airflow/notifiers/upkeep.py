"""Who hears that upkeep as a whole stands still: those whom the settings of notices name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waybill_airflow.notifiers.task_failed import TaskFailedNotifier, reason

if TYPE_CHECKING:
    from airflow.sdk import Context


class UpkeepFailedNotifier(TaskFailedNotifier):
    """Say that the shift of upkeep fails, as `TaskFailedNotifier` does.

    That a single job fails is told by the shift itself.
    """

    kind = "upkeep"

    def words(self, context: Context) -> str:
        """Return what it means."""
        return (
            f"upkeep failed ({reason(context)}): until it succeeds nobody looks for breaches, "
            "tells owners, or releases held pipelines; then it looks at all that it missed"
        )
