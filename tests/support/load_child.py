"""``python -m tests.support.load_child TASK``: a load's task as an executor without a way to the books.

Reads a pickled task from a file and prints what came of each of its tables. Whatever would open the
tracker, or read settings, raises; the environment says which of its variables were read.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.support.executor import Refuses, Watched

FORBIDDEN = ("waybill.storage.tracker", "waybill.deployment", "waybill.ledger")


def main(task: Path) -> None:
    """Run the task; see the module."""
    from tests.support import executor

    executor.FORBIDDEN = FORBIDDEN  # type: ignore[assignment]
    sys.meta_path.insert(0, Refuses())
    import pickle

    import pyarrow as pa

    from waybill.loading.spark import tasks
    from waybill.settings import Settings

    def refused(*_: Any, **named: Any) -> None:
        raise AssertionError(f"an executor reads settings: {named}")

    Settings.__init__ = refused  # type: ignore[method-assign]
    environment = Watched(dict(os.environ))
    tasks.os = type("Os", (), {"environ": environment, "getpid": os.getpid})  # type: ignore[assignment]
    run = pickle.loads(task.read_bytes())
    places = pa.record_batch({"id": pa.array(range(len(run._plan.tables)), pa.int64())})
    told = [row for batch in run(iter([places])) for row in batch.to_pylist()]
    loaded = [name for name in sys.modules if name in FORBIDDEN]
    print(json.dumps({"told": told, "read": sorted(environment.read), "loaded": loaded}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
