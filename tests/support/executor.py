"""``python -m tests.support.executor TASK``: a task as an executor without a way to the books.

Reads a pickled task and its records from a file; prints the descriptors. Whatever would open the
tracker, or read settings, raises; the environment says which of its variables were read.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

FORBIDDEN = (
    "sqlalchemy",
    "psycopg",
    "waybill.storage.tracker",
    "waybill.deployment",
    "waybill.ledger",
    "waybill.destinations",
    "waybill.mappings.versions",
    "waybill_airflow",
)


class Refuses(MetaPathFinder):
    """Refuses what no executor needs."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> None:
        """Raise for a forbidden module; leave others to whoever finds them."""
        if name in FORBIDDEN or name.startswith(tuple(f"{one}." for one in FORBIDDEN)):
            raise AssertionError(f"an executor loads {name}")


class Watched(dict[str, str]):
    """An environment that notes which of Waybill's variables are read."""

    def __init__(self, given: dict[str, str]) -> None:
        super().__init__(given)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> str:
        if name.startswith("WAYBILL_"):
            self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default

    def items(self) -> Any:
        raise AssertionError("an executor reads the whole environment")

    values = items


def main(task: Path) -> None:
    """Run the task; see the module."""
    sys.meta_path.insert(0, Refuses())
    import pickle

    from waybill.processing.spark import tasks
    from waybill.settings import Settings

    def refused(*_: Any, **named: Any) -> None:
        raise AssertionError(f"an executor reads settings: {named}")

    Settings.__init__ = refused  # type: ignore[method-assign]
    environment = Watched(dict(os.environ))
    tasks.os = type("Os", (), {"environ": environment, "getpid": os.getpid})  # type: ignore[assignment]
    run, records = pickle.loads(task.read_bytes())
    told = [json.loads(one.column(0)[0].as_py()) for one in run.run([records])]
    loaded = [name for name in sys.modules if name in FORBIDDEN]
    print(json.dumps({"told": told, "read": sorted(environment.read), "loaded": loaded}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
