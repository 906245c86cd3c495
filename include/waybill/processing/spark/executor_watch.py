"""Whether Spark has executors: without any its jobs wait without end, and nothing fails.

So it is where the last worker of a cluster died, or a standalone master was started anew, which
knows nothing of an application that registered with the one before.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from waybill.errors import StopError

LOST_S = 60.0
"""An application whose executors are gone for so long ends: started anew, it asks for others."""
FIRST_S = 300.0
"""How long the first executor may take: a queue of a cluster, an image, a node that is started."""


class ExecutorWatch:
    """For the loop of an application; it looks each second or two.

    Args:
        count: returns how many executors there are; None: none are needed now.
        master: of Spark, for people.
    """

    def __init__(self, count: Callable[[], int | None], master: str) -> None:
        self._count = count
        self._master = master
        self._limit_s = FIRST_S
        self._without_since: float | None = None

    def look(self) -> bool:
        """Tell whether work can be done.

        Raises:
            StopError: there has been no executor for too long, or Spark has ended.
        """
        count = self._count()
        if count is None or count > 0:
            self._limit_s = FIRST_S if count is None else LOST_S
            self._without_since = None
            return True
        now = time.monotonic()
        if self._without_since is None:
            self._without_since = now
        if (waited_s := now - self._without_since) >= self._limit_s:
            raise StopError(
                f"Spark has had no executor for {waited_s:.0f} s, and nothing is processed or "
                f"loaded: see that the workers of {self._master} run, and have cores and memory "
                "to spare for it; its supervisor starts it anew"
            )
        return False


def watch_executors(spark: SparkSession) -> ExecutorWatch:
    """Return the watch over the executors of a session. Cost of a look: two calls of Java."""
    context = spark.sparkContext
    on_demand = context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true"

    def count() -> int | None:
        java = context._jsc.sc()
        if java.isStopped():
            raise StopError(f"Spark has ended on {context.master}: the log says why before")
        if not has_executors(context.master):
            return None
        found = int(java.getExecutorMemoryStatus().size()) - 1  # one is the driver
        if not found and on_demand and not context.statusTracker().getActiveJobsIds():
            return None
        return found

    def count_or_end() -> int | None:
        try:
            return count()
        except Py4JError as error:  # it ended just now, or its process did
            raise StopError(f"Spark on {context.master} does not answer: {error}") from error

    return ExecutorWatch(count_or_end, context.master)


def has_executors(master: str) -> bool:
    """Tell whether Spark has executors of its own there, or works in the driver."""
    return master.startswith("local-cluster[") or not master.startswith("local")
