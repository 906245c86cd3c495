"""The demo's live view: what was taken in, delivered and parked, until nothing is in flight."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table

from waybill.cli.airflow_client import END_STATES, AirflowClient
from waybill.errors import RetryError, StopError
from waybill.settings import Settings
from waybill.wiring import balance

if TYPE_CHECKING:
    from waybill.operations.balancing import BalanceReport

_LOOK_S = 1.0
_SAY_S = 15.0


def follow(
    settings: Settings, console: Console, *, finished: Callable[[], bool], limit_s: float
) -> None:
    """Show progress until ``finished`` and nothing is in flight.

    Raises:
        RetryError: it takes longer than ``limit_s``.
    """
    deadline = time.monotonic() + limit_s
    said = 0.0
    with Live(console=console, auto_refresh=False, transient=not console.is_terminal) as live:
        while True:
            report = balance(settings)
            if console.is_terminal:
                live.update(_table(report), refresh=True)
            elif time.monotonic() - said > _SAY_S:
                said = time.monotonic()
                console.print(_line(report), highlight=False)
            if finished() and report.ingested and not report.in_flight and not report.unaccounted:
                break
            if time.monotonic() > deadline:
                raise RetryError(f"still in flight after {limit_s:.0f} s: {_line(report)}")
            time.sleep(_LOOK_S)
    console.print(_line(report), highlight=False)


def ended(airflow: AirflowClient, dag_id: str) -> bool:
    """Tell whether a DAG's newest run ended well; False while there is none.

    Raises:
        StopError: it failed.
    """
    runs = airflow.runs(dag_id)
    if not runs:
        return False
    newest = runs[0]
    if newest["state"] == "failed":
        raise StopError(f"run {newest['dag_run_id']!r} of {dag_id!r} failed; see Airflow's log")
    return newest["state"] in END_STATES


def _line(report: BalanceReport) -> str:
    return (
        f"taken in {report.ingested:,}  delivered {report.delivered:,}  parked {report.parked:,}  "
        f"replayed {report.replayed:,}  in flight {report.in_flight:,}"
    )


def _table(report: BalanceReport) -> Table:
    table = Table(header_style="bold", title="Events", title_justify="left")
    table.add_column("pipeline")
    for name in ("taken in", "transformed", "mapped", "delivered", "parked", "in flight"):
        table.add_column(name, justify="right")
    for group in report.pipelines:
        stages = group.stages
        table.add_row(
            group.pipeline,
            f"{stages['ingestion'].in_first:,}",
            f"{stages['transformation'].passed:,}",
            f"{stages['mapping'].passed:,}",
            f"{stages['destination'].passed:,}",
            f"{sum(counts.parked for counts in stages.values()):,}",
            f"{sum(c.in_flight + c.in_flight_replayed for c in stages.values()):,}",
        )
    return table
