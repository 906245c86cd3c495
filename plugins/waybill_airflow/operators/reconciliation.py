"""Hold the books against each other, and look for what is out of the usual; every minute."""

from __future__ import annotations

from collections import Counter
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


class WatchOperator(BaseOperator):
    """Run the eager checks once: open a breach for what is found, end those that are over.

    Owners are told by the DAG ``tell_owners``; a breach does not fail the task, nor does a server
    that only one check needs. Safe to kill and to retry.

    :raises waybill.errors.RetryError: the tracker did not answer.
    :returns: ``found``: {kind: number}; ``problems``: why checks could not look.
    """

    def execute(self, context: Context) -> dict[str, Any]:
        """Look, log what is found and what could not be looked at, and return the report."""
        with as_task_failures():
            from waybill.services import watch

            watched = watch(read_settings())
        for one in watched.findings:
            self.log.warning("%s: %s", one.kind, one.words)
        for problem in watched.problems:
            self.log.error("a check could not look: %s", problem)
        found = Counter(one.kind for one in watched.findings)
        return {"found": dict(found), "problems": watched.problems}
