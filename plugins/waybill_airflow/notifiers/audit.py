"""Who hears that nobody looks for breaches: those whom the settings of notices name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waybill_airflow.notifiers.task_failed import TaskFailedNotifier, reason

if TYPE_CHECKING:
    from airflow.sdk import Context


class AuditFailedNotifier(TaskFailedNotifier):
    """Say that the audit fails, as `TaskFailedNotifier` does."""

    kind = "breach"

    def words(self, context: Context) -> str:
        """Return what it means."""
        return (
            f"the audit failed ({reason(context)}): until it succeeds nobody looks for "
            "breaches; then it looks at all that it missed"
        )
