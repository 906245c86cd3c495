"""``make bench-cli``: CPU seconds (user and system) that ``waybill`` takes to start and to answer.

``waybill --help`` and ``waybill pipelines check`` without a server; ``parked list``, ``balance`` and ``trail`` on a
real tracker with parked partitions, a store, and a node's trace files: the median of several processes, in turns with two rivals: ``python -c pass``, and ``airflow --help`` of the same
installation. All run compiled bytecode: each command runs once before it is measured.

``QUICK=1``: less than a minute.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.home import opened_home
from tests.benchmarks.parking_fill import Size, fill

BIN = Path(sys.executable).parent
FLIGHTS = Path(__file__).resolve().parents[2] / "include" / "pipelines" / "flights"


@dataclass(frozen=True)
class Sizes:
    """How much is done."""

    turns: int = 15
    partitions: int = 20
    segments: int = 400
    traces: int = 10_000


QUICK = Sizes(turns=3)


def main() -> None:
    sizes = QUICK if os.environ.pop("QUICK", "") == "1" else Sizes()
    with opened_home() as (home, _):
        from tests import servers

        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # the first run of a command writes it
        environment = {**os.environ, "AIRFLOW_HOME": str(home / "airflow")}
        environment |= tracker_with(home, servers, Size(sizes.partitions, sizes.segments))
        event_id = traced(home, sizes.traces)
        commands = {
            "help_cpu_s": [str(BIN / "waybill"), "--help"],
            "check_cpu_s": [str(BIN / "waybill"), "pipelines", "check", str(FLIGHTS)],
            "parked_list_cpu_s": [str(BIN / "waybill"), "parked", "list"],
            "balance_cpu_s": [str(BIN / "waybill"), "balance"],
            "trail_cpu_s": [str(BIN / "waybill"), "trail", event_id],
            "python_cpu_s": [sys.executable, "-c", "pass"],
            "airflow_help_cpu_s": [str(BIN / "airflow"), "--help"],
        }
        for command in commands.values():
            cpu_seconds(command, environment, home)
        runs: dict[str, list[float]] = {key: [] for key in commands}
        for _ in range(sizes.turns):
            for key, command in commands.items():
                runs[key].append(cpu_seconds(command, environment, home))
    show(commands, runs)
    report = {key: round(statistics.median(times), 3) for key, times in runs.items()}
    report |= {"runs": sizes.turns, "partitions": sizes.partitions, "segments": sizes.segments}
    report["traces"] = sizes.traces
    sys.stdout.write(json.dumps(report) + "\n")


def tracker_with(home: Path, servers: Any, size: Size) -> dict[str, str]:
    """Start PostgreSQL, S3 and Kafka, fill a tracker, and return the settings that name them."""
    from waybill.services import migrate
    from waybill.settings import Settings, TrackerSettings
    from waybill.storage import TrackerStore

    s3 = servers.start_s3(home / "s3").bucket("bench", keep=True)
    dsn = servers.start_postgres(home / "postgres").database("bench")
    kafka = servers.start_quiet_kafka(home / "kafka")
    tracker = TrackerSettings(dsn=dsn)
    migrate(Settings(_env_file=None, s3=s3, tracker=tracker))
    with TrackerStore(tracker) as store:
        fill(store, size)
    return {
        "WAYBILL_HOME": str(home),
        "WAYBILL_TRACES__SPOOL_DIR": str(home / "traces"),
        "WAYBILL_TRACKER__DSN": dsn,
        "WAYBILL_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "WAYBILL_S3__ENDPOINT_URL": str(s3.endpoint_url),
        "WAYBILL_S3__BUCKET": s3.bucket,
        "WAYBILL_S3__ACCESS_KEY": s3.access_key.get_secret_value(),
        "WAYBILL_S3__SECRET_KEY": s3.secret_key.get_secret_value(),
    }


def traced(home: Path, number: int) -> str:
    """Write the traces of events into a node's spool; return the id of one."""
    from tests.unit.tracing.samples import batch, ids

    from waybill.tracing import Recorder

    events = ids(number)
    Recorder(home / "traces").write([batch(events)])
    return events[number // 2]


def cpu_seconds(command: list[str], environment: dict[str, str], directory: Path) -> float:
    """Return what a process and its children took; it must answer: 0, or 2 (it found something)."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=directory
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if result.returncode not in {0, 2}:
        raise SystemExit(f"{' '.join(command)} failed: {result.stderr}")
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def show(commands: dict[str, list[str]], runs: dict[str, list[float]]) -> None:
    """Print a table: a row a command."""
    sys.stdout.write(f"{'command':32} {'CPU s, median':>14} {'least':>7} {'most':>7}\n")
    for key, (program, *words) in commands.items():
        name = " ".join(Path(word).name[:12] for word in (program, *words))
        times = runs[key]
        sys.stdout.write(
            f"{name:32} {statistics.median(times):14.3f} {min(times):7.3f} {max(times):7.3f}\n"
        )


if __name__ == "__main__":
    main()
