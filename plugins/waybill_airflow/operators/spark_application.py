"""Supervise a Spark application of a virtual cluster, which lives outside of every task.

Its life is in the tracker: a row with its epoch, its reports and what it should do. This task looks
at the row and asks the backend (``waybill.clusters.supervise``), starts or ends what follows, and
defers: while it waits, it has no slot of a worker. The triggerer polls the rows of all applications
in one query, and wakes a task where reports stay away or something else is wanted.

Who may end what
- A task that is killed, timed out, marked, cleared, or whose worker or triggerer dies leaves the
  application running. The next task, on any worker, goes on from the row.
- Stopping needs a clear request: ``waybill clusters stop``, or *Stop* on the page *Clusters*. The
  application is kept stopped until ``waybill clusters start``, or *Start* there.
- A task ends by itself after its ``shift`` and succeeds, so that logs, code and workers change
  hands.

One application, not two: see the invariants of ``waybill.clusters.supervision``.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator

from waybill_airflow.failures import read_settings
from waybill_airflow.spark_submit import spark_backends

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Context
    from pydantic import JsonValue

    from waybill.clusters import ApplicationKind, Look

_QUIET_S = 30.0
"""Between two looks at one that is silent, or ends, while its backend says that it lives."""
_PAUSE_S = 5.0
"""Between two looks at least, where none of them starts it."""
_AWAY_S = 10.0
"""Until the next look when the tracker did not answer."""


class SparkApplicationOperator(BaseOperator):
    """Keep the processing or loading application of a virtual cluster running.

    :param kind: ``processing`` (sources' events to staged objects) or ``loading`` (those to the
        destinations).
    :param virtual_cluster: which group of teams it serves.
    :param shift: how long one task supervises; ``None``: until it is ended.
    :param poll_s: seconds between two looks at its row, in the triggerer.
    :raises waybill.errors.InputError: it cannot be started as things are, e.g. no Java. Unlike
        elsewhere the task is retried: the cause can be mended while Airflow runs.
    :raises waybill.errors.RetryError: the tracker did not answer when the shift was over.
    :returns: ``{"kind", "virtual_cluster", "epoch", "external_id", "starts"}`` at the end of the
        shift; ``external_id`` is ``None`` when it does not run.
    """

    def __init__(
        self,
        *,
        kind: ApplicationKind,
        virtual_cluster: str = "default",
        shift: timedelta | None = timedelta(hours=6),
        poll_s: float = 3.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.kind: ApplicationKind = kind
        self.virtual_cluster = virtual_cluster
        self.shift = shift
        self.poll_s = poll_s

    def execute(self, context: Context) -> dict[str, JsonValue]:
        """Look once, and wait in the triggerer until the next look is due."""
        until_s = None if self.shift is None else time.time() + self.shift.total_seconds()
        self.log.info("supervising %s of cluster %s", self.kind, self.virtual_cluster)
        return self._supervise(until_s, starts=0)

    def look_again(
        self, context: Context, event: Mapping[str, Any], until_s: float | None, starts: int
    ) -> dict[str, JsonValue]:
        """Go on when the trigger fired; whether the shift is over is said by its clock, too."""
        is_over = event["reason"] == "shift"
        return self._supervise(time.time() if is_over else until_s, starts=starts)

    def _supervise(self, until_s: float | None, *, starts: int) -> dict[str, JsonValue]:
        from waybill.errors import RetryError
        from waybill.services import supervise_application

        try:
            settings = read_settings()
            backends = spark_backends(settings)
            look = supervise_application(settings, self.kind, self.virtual_cluster, backends)
        except RetryError as error:
            if self._is_over(until_s):
                raise
            self.log.warning("nothing is started: %s", error)
            self._wait(until_s, starts, quiet_s=_AWAY_S)
        self._tell(look)
        starts += look.action == "start"
        if self._is_over(until_s):
            return self._result(look, starts)
        self._wait(until_s, starts, quiet_s=self._quiet_s(look))

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return what loading reads and writes; called by Airflow's OpenLineage provider alone."""
        from waybill_airflow.lineage import of_loading

        if self.kind != "loading":
            return None
        return of_loading(read_settings(), self.virtual_cluster)

    def _is_over(self, until_s: float | None) -> bool:
        return until_s is not None and time.time() >= until_s

    def _wait(self, until_s: float | None, starts: int, *, quiet_s: float) -> NoReturn:
        from waybill_airflow.triggers.applications import ApplicationTrigger

        self.defer(
            trigger=ApplicationTrigger(
                self.kind, self.virtual_cluster, until_s, quiet_s, self.poll_s
            ),
            method_name="look_again",
            kwargs={"until_s": until_s, "starts": starts},
        )
        raise AssertionError("unreachable: to defer raises")

    def _quiet_s(self, look: Look) -> float:
        """Return how long the trigger lets a row alone that could wake this task at once."""
        from waybill.clusters import needs_look

        application = look.application
        is_to_start = application.ended_s is not None and application.wanted == "running"
        if is_to_start and look.word in {"dead", "unknown"}:
            return max(application.waits_s(), 0.0 if look.word == "dead" else _PAUSE_S)
        return _QUIET_S if needs_look(application) else _PAUSE_S

    def _tell(self, look: Look) -> None:
        application = look.application
        if look.words:
            self.log.warning(
                "it died (%d in a row); next start in %.1f s; the end of its log:\n%s",
                application.failures,
                application.waits_s(),
                look.words,
            )
        if look.problem:
            self.log.warning("%s", look.problem)
        self.log.info(
            "%s: its backend says %s; start %d, %s; wanted: %s%s",
            look.action,
            look.word,
            application.epoch,
            application.external_id or "not known yet",
            application.wanted,
            f" (by {application.wanted_by})" if application.wanted_by else "",
        )

    def _result(self, look: Look, starts: int) -> dict[str, JsonValue]:
        """Return what runs at the end of the shift."""
        application = look.application
        runs = application.epoch > 0 and application.ended_s is None
        return {
            "kind": self.kind,
            "virtual_cluster": self.virtual_cluster,
            "epoch": application.epoch,
            "external_id": application.external_id if runs else None,
            "starts": starts,
        }


__all__ = ["SparkApplicationOperator"]
