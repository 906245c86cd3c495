"""Virtual clusters: which have applications to be supervised."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
