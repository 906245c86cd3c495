"""Hold the books against each other, every minute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from waybill_airflow.failures import as_task_failures, read_settings

if TYPE_CHECKING:
    from airflow.sdk import Context


class AuditOperator(BaseOperator):
    """Run one round of the audit: judge all that changed and moves, open breaches, name events.

    Owners are told of breaches by the DAG ``tell_owners``; a breach does not fail the task. Safe to
    kill and to retry, and beside another round, which then does the work.

    :raises waybill.errors.RetryError: the tracker or Kafka did not answer.
    :returns: what the round saw, and ``naming``: what was named.
    """

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the round, log what is new, and return the report without the ids."""
        with as_task_failures():
            from waybill.services import run_audit

            report = run_audit(read_settings())
        for words in report["opened"]:
            self.log.error("breach: %s", words)
        naming = report["naming"]
        named = len(naming["named"]) if naming else 0
        return {
            **report,
            "opened": len(report["opened"]),
            "naming": naming and {**naming, "named": named},
        }
