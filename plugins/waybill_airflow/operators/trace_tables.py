"""The tables over the traces in Athena, by the amazon provider's operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.providers.amazon.aws.operators.athena import AthenaOperator
from airflow.sdk.exceptions import AirflowSkipException

from waybill_airflow.failures import as_task_failures, read_settings
from waybill_airflow.hooks.waybill import WaybillHook

if TYPE_CHECKING:
    from airflow.sdk import Context


class TraceTablesOperator(AthenaOperator):
    """Make the two tables over the traces in Athena, or bring them up to date.

    The statements are the library's; nothing of them is a template. Safe to kill and to retry: each
    one does no harm when it runs again, and a task that is killed stops the one that runs.

    Database, workgroup, region and folder of results are those of the settings; keys come from the
    connection ``WAYBILL_S3__CONNECTION_ID`` of type ``aws``, else from the usual AWS chain.

    :param sleep_time: seconds between two looks at a statement.
    :raises AirflowSkipException: ``WAYBILL_TRACES__BACKEND`` is not ``athena``.
    :raises AirflowFailException: a setting is wrong, or keeps its keys where this cannot find them.
    :raises waybill.errors.RetryError: the object store did not answer.
    :raises AirflowException: Athena refused a statement; its reason is in the error.
    :returns: the ids of Athena's executions.
    """

    template_fields = ()
    template_ext = ()

    def __init__(self, *, sleep_time: int = 2, **kwargs: Any) -> None:
        super().__init__(
            query="", aws_conn_id=None, sleep_time=sleep_time, deferrable=False, **kwargs
        )

    def execute(self, context: Context) -> list[str]:
        """Run the statements, one after the other."""
        settings = read_settings()
        if settings.traces.backend != "athena":
            raise AirflowSkipException("WAYBILL_TRACES__BACKEND is not athena")
        with as_task_failures():
            from waybill.services import trace_table_updates

            self.aws_conn_id = WaybillHook().aws_connection_id()
            statements = trace_table_updates(settings)
        self.region_name = settings.s3.region
        self.workgroup = settings.traces.athena_workgroup
        self.database = settings.traces.athena_database
        self.output_location = settings.traces.athena_results or None
        return [self._run(context, statement) for statement in statements]

    def _run(self, context: Context, statement: str) -> str:
        self.query = statement
        return str(AthenaOperator.execute(self, context))


__all__ = ["TraceTablesOperator"]
