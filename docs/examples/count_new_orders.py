"""Counts what is new in a table of Waybill, each time that rows were loaded into it.

A run may be for several loads: Airflow folds events that come close together, and may leave the
newest of them to the next run's list. So how far the table is loaded is read from the newest event
that there is when the task runs; what is in the table then is at least that.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import dag, task
from airflow.sdk.exceptions import AirflowSkipException

from waybill_airflow.assets import table_asset

ORDERS = table_asset(team="shop", pipeline="orders", table="orders")


@dag(
    schedule=[ORDERS],
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    tags={"example"},
    doc_md=__doc__,
)
def count_new_orders() -> None:
    """Declare the DAG."""

    @task(inlets=[ORDERS], retries=3)
    def count(*, triggering_asset_events=None, inlet_events=None) -> dict[str, int]:
        """Print how far the table is loaded, and the rows of the events that started this run."""
        events = inlet_events[ORDERS]
        if not events:  # started by hand
            raise AirflowSkipException(f"{ORDERS.uri} has no event yet: nothing was loaded into it")
        rows = sum(e.extra["payload"]["rows"] for e in triggering_asset_events[ORDERS])
        position = events[-1].extra["payload"]["position"]
        print(f"{rows} rows are new; the table is loaded up to commit {position}")
        return {"rows": rows, "position": position}

    count()


count_new_orders()
