"""Makes the two tables over the traces in Athena, and brings them up to date. Daily.

There only where `WAYBILL_TRACES__BACKEND=athena` stands in the environment of the DAG processor and
of the workers. The statements are those of `waybill traces ddl`; a table that is there gets the
number of buckets and the first day of the traces as they are now. The database has to be there.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from waybill_airflow.dag_defaults import traces_in_athena, upkeep

if traces_in_athena():
    from waybill_airflow.operators.trace_tables import TraceTablesOperator

    with DAG(
        "make_trace_tables",
        schedule="@daily",
        **upkeep(timeout=timedelta(minutes=30), long=True),
        tags={"waybill", "maintenance"},
        doc_md=__doc__,
    ) as dag:
        TraceTablesOperator(task_id="make")
