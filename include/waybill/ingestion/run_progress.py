"""How far a run of ingestion is, told to the tracker each few seconds by a thread of its own.

The run only sets numbers, so that a page costs nothing for it, however fast pages come; and the
tracker hears of the run also while a source, or Kafka, is waited for. With each answer the run
learns whether somebody asked it to stop. A tracker that is away is told later: progress stops no
run, and no run waits for it but at its very end, for one statement.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Self
from uuid import UUID, uuid4

from waybill.errors import WaybillError
from waybill.ingestion.connectors.base import Connector, Cursor, StandingConnector, waiting_in
from waybill.ingestion.turns import RunSoFar, TurnEndedError
from waybill.ledger import (
    AskedOfRun,
    RunFigures,
    begin_run,
    end_run,
    resume_run,
    tell_run,
    wait_run,
)
from waybill.storage import TrackerStore

_LOG = logging.getLogger(__name__)
TELL_EVERY_S = 5.0
LOOK_EVERY_S = 10.0
"""Between two looks at where a position stands in its source."""
_LOOK_SHARE = 20
"""A look that takes long, as of a table without an index, is made less often: a 20th of the run."""


class RunProgress:
    """Tells of one run; a context around it. The run's own thread calls all but the telling.

    Args:
        tracker: the books.
        pipeline_id: whose source is read.
        node: of this machine, for people.
        is_ended: tells whether the run is to stop for a reason of its process, such as a signal.
        before: what the run did in the turns before this one.
    """

    def __init__(
        self,
        tracker: TrackerStore,
        pipeline_id: str,
        node: str,
        *,
        is_ended: Callable[[], bool] = lambda: False,
        before: RunSoFar | None = None,
    ) -> None:
        self._tracker, self._pipeline_id, self._node = tracker, pipeline_id, node
        self._is_ended = is_ended
        self._run = uuid4() if before is None else before.run
        self._resumes = before is not None
        self._is_claimed = False
        self._begun_as: bool | None = None
        """Whether it had the source when it was told that it begins; None: that is not told."""
        self._figures = self._before = RunFigures() if before is None else before.figures
        self._before_s = 0.0 if before is None else before.report.seconds
        self._reported_s: float | None = None
        self._asked_by = ""
        self._leave_asked = False
        self._stopped = False
        self._over = threading.Event()
        self._began = self._told = time.monotonic()
        self._told_read = self._before.read
        self._look_due = 0.0
        self._thread = threading.Thread(target=self._tell_on, name="run progress", daemon=True)

    def __enter__(self) -> Self:
        self._try(self._begin)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        turn_s = self.spent_s() if self._reported_s is None else self._reported_s
        seconds = max(self._before_s + turn_s, 1e-3)
        self._figures = replace(self._figures, rate_per_s=self._figures.read / seconds)
        self._try(lambda: self._end(error))

    @property
    def run(self) -> UUID:
        """The run's id, the same in all of its turns."""
        return self._run

    @property
    def figures(self) -> RunFigures:
        """How far the run is, with the turns before this one."""
        return self._figures

    def spent_s(self) -> float:
        """Return how long this turn of the run took until now, its opening with it, in seconds."""
        return time.monotonic() - self._began

    def reported(self, turn_s: float) -> None:
        """Take note of how long this turn took by its report: the run's rate is over the same."""
        self._reported_s = turn_s

    def claimed(self) -> None:
        """Take note that this run has the source now: no other run is shown any more."""
        self._is_claimed = True
        self._try(self._begin)

    def at(self, *, read: int, settled: int, parked: int, pages: int, total: int | None) -> None:
        """Take note of how far this turn of the run is; costs no statement."""
        before = self._before
        self._figures = replace(
            self._figures,
            read=before.read + read,
            settled=before.settled + settled,
            parked=before.parked + parked,
            pages=before.pages + pages,
            total=total,
        )

    def look(self, connector: Connector, cursor: Cursor | None, *, last: bool = False) -> None:
        """Ask the source where a position stands, if it can say, and it was not asked lately."""
        if cursor is None and last:
            self._figures = replace(self._figures, position=waiting_in(connector))
        if cursor is None or not isinstance(connector, StandingConnector):
            return
        now = time.monotonic()
        if now < self._look_due and not last:
            return
        found = None
        try:
            found = connector.standing(cursor)
        except WaybillError as error:
            _LOG.info("the source does not say how far it is read: %s", error)
        took = time.monotonic() - now
        self._look_due = now + took + max(LOOK_EVERY_S, _LOOK_SHARE * took)
        if found is not None:
            self._figures = replace(
                self._figures, position=found.position, behind=found.behind, unit=found.unit
            )

    def stop_asked(self) -> bool:
        """Tell whether the run is to end at this page."""
        return bool(self._asked_by) or self._is_ended()

    def leave_asked(self) -> bool:
        """Tell whether the run is to give its slot to another team at this page."""
        return self._leave_asked

    def stopped(self) -> str:
        """Take note that the run ended before its source did; return who asked, for people."""
        self._stopped = True
        return self._asked_by or "the end of its process"

    def words(self) -> str:
        """Return what the log's line of progress says beside counts: position, what is left."""
        figures = self._figures
        behind = "" if figures.behind is None else f"{figures.behind:,.0f} {figures.unit} behind"
        return ", ".join(part for part in (figures.position, behind) if part)

    # The thread

    def _tell_on(self) -> None:
        while not self._over.wait(TELL_EVERY_S):
            self._try(self._tell)

    def _tell(self) -> None:
        self._begin()
        now, figures = time.monotonic(), self._figures
        rate = (figures.read - self._told_read) / max(now - self._told, 1e-3)
        self._told, self._told_read = now, figures.read
        shown = replace(figures, rate_per_s=rate)
        self._take(tell_run(self._tracker, self._pipeline_id, self._run, shown))

    def _take(self, asked: AskedOfRun) -> None:
        self._asked_by = " ".join(asked.stop_by.split()) or self._asked_by
        self._leave_asked = asked.leave

    def _begin(self) -> None:
        claimed = self._is_claimed
        if self._begun_as is claimed:
            return
        if self._resumes:
            resume_run(self._tracker, self._pipeline_id, self._run, node=self._node)
            self._resumes = False
        begin_run(self._tracker, self._pipeline_id, node=self._node, run=self._run, claimed=claimed)
        self._begun_as = claimed

    def _end(self, error: BaseException | None) -> None:
        self._begin()
        if isinstance(error, TurnEndedError):
            wait_run(
                self._tracker,
                self._pipeline_id,
                self._run,
                self._figures,
                waits_for=error.waits_for,
            )
        elif error is not None:
            words = str(error) or type(error).__name__
            end_run(
                self._tracker,
                self._pipeline_id,
                self._run,
                self._figures,
                state="failed",
                error=words,
            )
        else:
            end_run(
                self._tracker,
                self._pipeline_id,
                self._run,
                self._figures,
                state="stopped" if self._stopped else "success",
            )

    @staticmethod
    def _try(work: Callable[[], None]) -> None:
        """Do it; a tracker that is away is logged, and told at the next turn."""
        try:
            work()
        except WaybillError as error:
            _LOG.warning("the tracker was not told how far the run is: %s", error)


__all__ = ["LOOK_EVERY_S", "TELL_EVERY_S", "RunProgress"]
