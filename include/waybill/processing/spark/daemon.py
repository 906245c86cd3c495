"""The daemon that Spark forks Python workers from, with all that a task needs loaded beforehand.

Spark runs it (``spark.python.daemon.module``) once an application. What is loaded before the fork
is in memory once for all workers, and no worker spends a second on loading it. Only modules:
whatever has a connection, a thread or a lock is made by the worker itself, after the fork.

What workers log goes to their stderr, a file of the executor: warnings, and what user code prints.

On ``local[n]`` it inherits the driver's environment. It drops the settings that tasks are not sent,
before any worker is forked.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import MutableMapping, Sequence
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path

import numpy as np

from waybill.processing.spark.executor_settings import is_sent

_NEEDED = ("boto3", "pandas", "confluent_kafka", "pyspark.worker", "waybill.processing.spark.tasks")
"""``pandas`` is what Spark's own Arrow serializers load."""
_YOUNG_OBJECTS = 50_000
"""Containers made before the collector looks for cycles among them, instead of 700: events come and
go by the hundred without any. Costs a worker some MB where user code does make cycles."""


def drop_settings(environment: MutableMapping[str, str]) -> None:
    """Drop Waybill's variables but those of settings that executors are sent."""
    for name in list(environment):
        if name.upper().startswith("WAYBILL_") and not is_sent(name):
            del environment[name]


def without_archives(path: Sequence[str]) -> list[str]:
    """Return a module search path without the archives of the Spark that is installed on it.

    Spark puts ``pyspark.zip``, Py4J's and a jar in front. What is imported from an archive is
    compiled by each process that starts (0.4 s of CPU), and at the start of each task Python reads
    the list of files of each archive anew, once for each package that it looked for there (50 ms of
    CPU and more). Archives of another Spark than the installed one stay: versions may differ.
    """
    spec = PathFinder.find_spec("pyspark", [one for one in path if not _is_archive(one)])
    if spec is None or spec.origin is None:
        return list(path)
    installed = Path(spec.origin).resolve().parent
    return [
        one for one in path if not (_is_archive(one) and installed in Path(one).resolve().parents)
    ]


def _is_archive(entry: str) -> bool:
    return Path(entry).suffix in {".zip", ".jar"}


def configure_logging() -> None:
    """Log warnings, and what user code prints, to stderr."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("waybill.user_code").setLevel(logging.INFO)


def main() -> None:
    """Load the modules and serve until Spark ends."""
    drop_settings(os.environ)
    configure_logging()
    sys.path[:] = without_archives(sys.path)
    sys.path_importer_cache.clear()  # what looked into the archives so far would go on to
    for name in _NEEDED:
        import_module(name)
    os.register_at_fork(after_in_child=np.random.seed)  # else all workers draw the same numbers
    gc.collect()
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])
    gc.freeze()  # a collection in a worker would write to, and so copy, every page
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
