"""Who hears that nobody looks for breaches: those whom the settings of notices name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk.bases.notifier import BaseNotifier

if TYPE_CHECKING:
    from airflow.sdk import Context


class AuditFailedNotifier(BaseNotifier):
    """Say by the log, the webhook and mail, as the settings say, that the audit fails.

    Once, when a run fails after one that did not: not each minute for as long as a server is away.
    """

    def notify(self, context: Context) -> None:
        """Send the word; what a sink does not take is logged."""
        before = context["ti"].get_previous_dagrun()
        if before is not None and str(before.state) == "failed":
            return
        from waybill.services import tell_audit_failed
        from waybill_airflow.failures import read_settings

        tell_audit_failed(
            read_settings(),
            f"the audit failed ({context.get('exception')}): until it succeeds nobody looks for "
            "breaches; then it looks at all that it missed",
        )
