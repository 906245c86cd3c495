"""Virtual clusters: which serves which team, decided every minute; which have applications."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from waybill_airflow.failures import as_task_failures, read_settings

if TYPE_CHECKING:
    from airflow.sdk import Context


class ListClustersOperator(BaseOperator):
    """List the virtual clusters but ``default``, whose applications are to be supervised.

    :raises waybill.errors.RetryError: the tracker did not answer.
    :returns: their names.
    """

    def execute(self, context: Context) -> list[str]:
        """Return the names."""
        with as_task_failures():
            from waybill.services import other_clusters

            return other_clusters(read_settings())


class CoordinateOperator(BaseOperator):
    """Run one round of the coordinator: measure, assign teams, ask for capacity, grow topics.

    What it cannot do (no cluster has room, a topic does not answer) fails nothing: it is logged,
    and in the result. Safe to kill and to retry, and beside another round: they take turns.

    :raises waybill.errors.RetryError: the tracker or Kafka did not answer.
    :returns: the ``CoordinatorReport`` as a dict.
    """

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the round, log what it decided and could not do, and return the report."""
        with as_task_failures():
            from waybill.services import run_coordinator

            report = run_coordinator(read_settings())
        for move in report.moves:
            self.log.info("team %s: %s -> %s: %s", move.team, move.old, move.new, move.reason)
        for growth in report.growths:
            self.log.info("topic %s", growth)
        for problem in report.problems:
            self.log.warning("%s", problem)
        return report.to_json()
