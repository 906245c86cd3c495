"""The demo's live view: what was taken in, delivered and parked, until nothing is in flight."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from waybill.cli.airflow_client import END_STATES, AirflowClient
from waybill.errors import RetryError, StopError
from waybill.services import balance, parked_partitions
from waybill.settings import Settings
from waybill.waiting import answered

if TYPE_CHECKING:
    from waybill.parking import ParkedGroup
    from waybill.reconciliation import PipelineBalance

_LOOK_S = 1.0
_SHARE = 3
"""Looking at the books may take this part of the time at most."""
_SAY_S = 15.0
_HEALTH_S = 10.0


@dataclass(frozen=True)
class Figures:
    """Where the events of some pipelines are now."""

    groups: Sequence[PipelineBalance]
    partitions: Sequence[ParkedGroup]

    def _sum(self, *names: str) -> int:
        stages = [counts for group in self.groups for counts in group.stages.values()]
        return sum(int(getattr(counts, name)) for counts in stages for name in names)

    @property
    def ingested(self) -> int:
        """Events taken in."""
        return sum(group.stages["ingestion"].in_first for group in self.groups)

    @property
    def delivered(self) -> int:
        """Events in the warehouse."""
        return sum(group.stages["destination"].passed for group in self.groups)

    @property
    def replayed(self) -> int:
        """Events sent back by replays."""
        return sum(partition.replayed for partition in self.partitions)

    @property
    def parked(self) -> int:
        """Events parked now."""
        return sum(partition.parked + partition.replaying for partition in self.partitions)

    @property
    def in_flight(self) -> int:
        """Events on their way: measured, as of one moment."""
        return self._sum("in_flight", "in_flight_replayed")

    @property
    def unaccounted(self) -> str:
        """Events that the books miss, or have too many of, in words; empty: they balance."""
        gaps = [gap for group in self.groups for gap in group.breaches.values()]
        missing, extra = sum(gap for gap in gaps if gap > 0), -sum(gap for gap in gaps if gap < 0)
        words = ((missing, "missing"), (extra, "too many"))
        return ", ".join(f"{number:,} {word}" for number, word in words if number)

    @property
    def at_rest(self) -> bool:
        """Whether something came in, and nothing moves or is missing."""
        return bool(self.ingested) and not self.in_flight and not self.unaccounted

    def __str__(self) -> str:
        """Return one line."""
        wrong = f"  {self.unaccounted}: see waybill balance" if self.unaccounted else ""
        return (
            f"taken in {self.ingested:,}  delivered {self.delivered:,}  parked {self.parked:,}  "
            f"replayed {self.replayed:,}  on the way {self.in_flight:,}{wrong}"
        )


def follow(
    settings: Settings,
    console: Console,
    airflow: AirflowClient,
    names: Collection[str],
    *,
    finished: Callable[[], bool],
    limit_s: float,
) -> None:
    """Show the progress of some pipelines until ``finished`` and none of their events moves.

    Says so when a part of Airflow does not answer.

    Raises:
        RetryError: it takes longer than ``limit_s``.
    """
    deadline = time.monotonic() + limit_s
    said = asked = 0.0
    with Live(console=console, auto_refresh=False, transient=not console.is_terminal) as live:
        while True:
            began = time.monotonic()
            figures = answered(lambda: _figures(settings, names), kind=RetryError)
            if console.is_terminal:
                live.update(table(figures), refresh=True)
            elif began - said > _SAY_S:
                said = began
                console.print(str(figures), highlight=False)
            if began - asked > _HEALTH_S:
                asked = began
                _say_what_is_down(console, airflow)
            if finished() and figures.at_rest:
                break
            if began > deadline:
                raise RetryError(f"still in flight after {limit_s:.0f} s: {figures}")
            time.sleep(max(_LOOK_S, _SHARE * (time.monotonic() - began)))
    console.print(str(figures), highlight=False)


def _figures(settings: Settings, names: Collection[str]) -> Figures:
    return Figures(
        [group for group in balance(settings).pipelines if group.pipeline in names],
        [partition for partition in parked_partitions(settings) if partition.pipeline in names],
    )


def _say_what_is_down(console: Console, airflow: AirflowClient) -> None:
    if down := airflow.unhealthy():
        console.print(
            f"[yellow]Airflow's {' and '.join(down)} gives no sign of life: the stack's supervisor "
            "(or `waybill up` in another terminal) starts it again, and this goes on.[/]"
        )


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


def table(figures: Figures) -> Table:
    """Return the live view: a line a pipeline, and below them what is wrong with their sums."""
    grid = Table(
        header_style="bold", title="Events", title_justify="left", box=SIMPLE_HEAD, pad_edge=False
    )
    grid.caption_style, grid.caption_justify, wrong = "bold red", "left", list[str]()
    grid.add_column("pipeline", overflow="fold")
    for name in ("taken\nin", "transformed", "mapped", "delivered", "parked", "on the\nway"):
        grid.add_column(name, justify="right", no_wrap=True)
    for group in figures.groups:
        theirs = [p for p in figures.partitions if p.pipeline == group.pipeline]
        its = Figures([group], theirs)
        grid.add_row(
            Text(group.pipeline),
            f"{its.ingested:,}",
            f"{group.stages['transformation'].passed:,}",
            f"{group.stages['mapping'].passed:,}",
            f"{its.delivered:,}",
            f"{its.parked:,}",
            f"{its.in_flight:,}",
        )
        if its.unaccounted:
            wrong.append(f"{group.pipeline}: {its.unaccounted}; see waybill balance")
    grid.caption = Text("\n".join(wrong)) if wrong else None
    return grid
