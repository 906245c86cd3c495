"""The processing application on Spark: queries, tasks, and how a micro-batch is committed.

Invariants
  I1  A consumer starts where the ledger stands; Spark's own checkpoint is new at each start.
  I2  A task writes at most one staged and one parked object a topic, under fresh keys, before it
      returns their descriptors; only returned descriptors are committed. It has no way to the
      tracker, and no settings but those that the driver sent.
  I3  A batch is committed before Spark is told that it is done.
  I4  Each topic of a batch is committed by itself, or not at all; what is wrong with one keeps no
      other from its commit.
  I5  Any doubt about a log (a hole, another topic id, a tail that was cut) stops its consumer; the
      stop is in the tracker until somebody settles it. A batch is committed only if no leader
      changed since the log was held against the ledger.
  I6  Rows are mapped by what the tracker keeps. What events teach is kept by the driver between two
      runs of their batch, of which the last alone is committed; there are so many and no more.
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.processing.spark.application import run_processing as run_processing
    from waybill.processing.spark.consumers import CONSUMER_BACK_OFF as CONSUMER_BACK_OFF
    from waybill.processing.spark.consumers import LAST_BATCH_S as LAST_BATCH_S
    from waybill.processing.spark.consumers import Stopping as Stopping
    from waybill.processing.spark.consumers import keep_running as keep_running
    from waybill.processing.spark.consumers import try_later as try_later
    from waybill.processing.spark.executor_settings import ExecutorSettings as ExecutorSettings
    from waybill.processing.spark.executor_watch import has_executors as has_executors
    from waybill.processing.spark.executor_watch import watch_executors as watch_executors
    from waybill.processing.spark.idle_trigger import IDLE_AFTER_S as IDLE_AFTER_S
    from waybill.processing.spark.memory import give_memory_back as give_memory_back
    from waybill.processing.spark.session import is_submitted as is_submitted
    from waybill.processing.spark.session import open_session as open_session
    from waybill.processing.spark.session import stop_session as stop_session

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "application": ["run_processing"],
        "consumers": [
            "CONSUMER_BACK_OFF",
            "LAST_BATCH_S",
            "Stopping",
            "keep_running",
            "try_later",
        ],
        "executor_settings": ["ExecutorSettings"],
        "executor_watch": ["has_executors", "watch_executors"],
        "idle_trigger": ["IDLE_AFTER_S"],
        "memory": ["give_memory_back"],
        "session": ["is_submitted", "open_session", "stop_session"],
    },
)
