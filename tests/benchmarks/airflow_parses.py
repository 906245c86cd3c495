"""What a parse of the files of the family ``ingest`` costs, with 5,000 pipelines declared.

Each parse is a fork of a process that has imported Airflow and nothing of Waybill, as in Airflow's
DAG processor and its tasks; CPU is that of the fork, so what Waybill imports is in it. *Cold*: the
index of declarations is not there, and each declaration is checked.

Run as a program it makes the parses that it reads from standard input: ``[file, dag id or null]``,
a line each; and says for each what it took, and a hash of each DAG as it is serialised.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
import traceback
from collections import Counter
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]
PIPELINES = 5_000
ROUNDS, QUICK_ROUNDS = 3, 2
QUICK_SHARDS = 3
WORDS = {
    "pipelines": "pipelines declared",
    "shard_dags": "DAGs of the fullest file",
    "shard_build_cpu_s": "CPU s to build them",
    "shard_build_cold_cpu_s": "CPU s to build them, each declaration checked",
    "shard_serialise_cpu_s": "CPU s to serialise them",
    "task_parse_ms": "CPU ms to build the one of a task",
    "task_parse_cold_ms": "CPU ms to build it, its declaration checked",
    "empty_shard_parse_ms": "CPU ms for a file without DAGs",
    "serialised_stable": "two processes serialise all alike",
}
DECLARATION = """\
id: id-{name}
name: {name}
team: team-{team}
owner: team-{team}@example.com
schedule: "@hourly"
source:
  connector: csv
  path: rows.csv
  event: row
  columns: {{number: int64, changed: int64, {types}}}
events:
  row:
    key: [number]
    version: changed
    table: {name}
    columns: {{number: int64, changed: int64, {types}}}
destination: {{name: warehouse, schema: team_{team}}}
"""
CODE = "def transform(event):\n    return event\n"
COLUMNS = 20


class ParsingProcess:
    """A process with Airflow that forks for each parse."""

    def __init__(self, pipelines: Path, home: Path, hash_seed: int = 0) -> None:
        environment = {
            **os.environ,
            "AIRFLOW_HOME": str(home / "airflow"),
            "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "600",  # by the clock, on a machine that is busy
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
            "PYTHONHASHSEED": str(hash_seed),
            "PYTHONPATH": str(ROOT / "plugins"),
            "WAYBILL_HOME": str(home),
            "WAYBILL_PIPELINES_DIR": str(pipelines),
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # the first parse writes it
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.airflow_parses"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()

    def parse(self, shard: int, dag_id: str | None = None) -> dict[str, Any]:
        """Parse a file of the family; ``dag_id``: for a task of this DAG."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        file = str(ROOT / "dags" / f"ingest_{shard:02}.py")
        self._process.stdin.write(json.dumps([file, dag_id]) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        raise SystemExit("the parsing process ended")


def run(home: Path, *, quick: bool) -> dict[str, Any]:
    """Return the figures of all parses."""
    from waybill.pipelines import SHARDS, shard_of

    pipelines, few = home / "many", home / "few"
    declare(pipelines, PIPELINES)
    declare(few, 2)
    sizes = Counter(shard_of(folder.name) for folder in pipelines.iterdir())
    shards = dict(sizes.most_common(QUICK_SHARDS if quick else SHARDS))
    fullest = next(iter(shards))
    rounds = QUICK_ROUNDS if quick else ROUNDS
    with ExitStack() as stack:
        one = stack.enter_context(ParsingProcess(pipelines, home, hash_seed=1))
        other = stack.enter_context(ParsingProcess(pipelines, home, hash_seed=2))
        empty = stack.enter_context(ParsingProcess(few, home))
        one.parse(0, "nothing")  # bytecode
        cold = {shard: one.parse(shard) for shard in shards}
        assert {shard: len(parse["dags"]) for shard, parse in cold.items()} == dict(shards)
        warm = {shard: [one.parse(shard) for _ in range(rounds)] for shard in shards}
        alike = all(other.parse(shard)["dags"] == warm[shard][0]["dags"] for shard in shards)
        tasks = _tasks(one, warm, rounds)
        shutil.rmtree(home / "declarations")
        tasks_cold = _tasks(one, warm, 1)
        unused = next(shard for shard in range(SHARDS) if not empty.parse(shard)["dags"])
        nothing = [empty.parse(unused) for _ in range(rounds)]
    return {
        "pipelines": PIPELINES,
        "shard_dags": shards[fullest],
        "shard_build_cpu_s": round(max(_median(one, "build_s") for one in warm.values()), 3),
        "shard_build_cold_cpu_s": round(max(one["build_s"] for one in cold.values()), 3),
        "shard_serialise_cpu_s": round(_median(warm[fullest], "serialise_s"), 3),
        "task_parse_ms": round(1000 * tasks, 1),
        "task_parse_cold_ms": round(1000 * tasks_cold, 1),
        "empty_shard_parse_ms": round(1000 * _median(nothing, "build_s"), 1),
        "serialised_stable": alike,
    }


def _tasks(process: ParsingProcess, parsed: dict[int, list[dict[str, Any]]], rounds: int) -> float:
    """Return the median for tasks of a DAG of each file; other files build nothing for them."""
    found = []
    for shard, parses in parsed.items():
        for dag_id in list(parses[0]["dags"])[:rounds]:
            task = process.parse(shard, dag_id)
            assert list(task["dags"]) == [dag_id], task
            assert not process.parse((shard + 1) % 16, dag_id)["dags"]
            found.append(task)
    return _median(found, "build_s")


def _median(parses: list[dict[str, Any]], name: str) -> float:
    return float(statistics.median(parse[name] for parse in parses))


def declare(root: Path, count: int) -> None:
    """Write pipelines of 22 columns."""
    types = ", ".join(f"column_{number}: string" for number in range(COLUMNS))
    for number in range(count):
        folder = root / f"pipeline_{number}"
        folder.mkdir(parents=True)
        text = DECLARATION.format(name=folder.name, team=number % 50, types=types)
        (folder / "pipeline.yaml").write_text(text)
        (folder / "transformation.py").write_text(CODE)


def main() -> None:
    """Make the parses that standard input asks for."""
    from airflow.dag_processing import dagbag
    from airflow.serialization import serialized_objects

    del dagbag, serialized_objects
    gc.freeze()  # as the DAG processor does
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                sys.stdout.write("\n" + json.dumps(parsed(*json.loads(line))) + "\n")
                sys.stdout.flush()
                os._exit(0)
            finally:
                traceback.print_exc()
                os._exit(1)
        if os.waitpid(child, 0)[1]:
            raise SystemExit(1)


def parsed(file: str, dag_id: str | None) -> dict[str, Any]:
    """Parse a file, and return CPU seconds, and the DAGs' hashes by id."""
    from airflow.dag_processing.dagbag import DagBag
    from airflow.sdk.definitions._internal.dag_parsing_context import (
        _airflow_parsing_context_manager,
    )
    from airflow.serialization.serialized_objects import DagSerialization

    for_a_task = nullcontext() if dag_id is None else _airflow_parsing_context_manager(dag_id)
    start = time.process_time()
    with for_a_task:
        bag = DagBag(file)
    built = time.process_time()
    assert not bag.import_errors, bag.import_errors
    dags = {
        name: json.dumps(DagSerialization.to_dict(dag), sort_keys=True)
        for name, dag in bag.dags.items()
    }
    return {
        "build_s": built - start,
        "serialise_s": time.process_time() - built,
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "dags": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in dags.items()},
    }


if __name__ == "__main__":
    main()
