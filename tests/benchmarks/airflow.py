"""``make bench-airflow``: Waybill's DAGs in Airflow, at 5,000 pipelines.

Parses: CPU seconds that the fullest of the 16 files of the family ``ingest`` takes to build its DAGs,
a task takes to build its one, and whether two processes serialise all of them alike. See
``airflow_parses``. Campaigns: seconds to freeze 500,000 parked groups, and memory: ``airflow_campaigns``; runs that one
launches a second, against the bare REST API: ``airflow_launches``. Idle: what Waybill adds to a stack in which nothing
happens, and a round of upkeep: ``airflow_idle``.

``QUICK=1``: fewer files and rounds, no streams, less than five minutes, since it starts Airflow. Exit code 1 where a figure of the full form
is beyond its limit (``LIMITS``).
"""

from __future__ import annotations

import json
import math
import os
import sys
from typing import Any

from tests.benchmarks import airflow_campaigns, airflow_idle, airflow_launches, airflow_parses
from tests.benchmarks.home import opened_home

PARTS = (airflow_parses, airflow_campaigns, airflow_launches, airflow_idle)
"""Each has ``run(home, quick=…)``, which returns figures, and ``WORDS`` for them."""
LIMITS = {
    "shard_build_cpu_s": (0, 2),
    "shard_build_cold_cpu_s": (0, 2),
    "task_parse_ms": (0, 50),
    "serialised_stable": (True, True),
    "campaign_freeze_500k_s": (0, 20),
    "campaign_rss_mb": (0, 300),
    "idle_core_share": (0, 0.05),
    "launch_vs_bare": (0.8, math.inf),
}
"""(least, most)."""


def main() -> None:
    quick = os.environ.pop("QUICK", "") == "1"
    report: dict[str, Any] = {}
    for part in PARTS:
        with opened_home() as (home, _):
            figures = part.run(home, quick=quick)
        for name, value in figures.items():
            sys.stdout.write(f"{part.WORDS[name]:58} {value!s:>10}\n")
        report |= figures
    beyond = [
        f"{name} is {report[name]}, beyond its limit {limits}\n"
        for name, limits in LIMITS.items()
        if not limits[0] <= report[name] <= limits[1]
    ]
    sys.stdout.writelines(beyond)
    sys.stdout.write(json.dumps(report) + "\n")
    if beyond and not quick:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
