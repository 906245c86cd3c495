"""Make Waybill's pools in Airflow; one that is there keeps its size. Run by docker-compose.yaml."""

from __future__ import annotations

import subprocess
import sys

from waybill.settings import Settings
from waybill.stack.airflow import pool_sizes


def main() -> int:
    """Make what is missing; the exit code of the first command that fails."""
    for name, (slots, words) in pool_sizes(Settings().airflow).items():
        there = subprocess.run(["airflow", "pools", "get", name], capture_output=True, check=False)
        if there.returncode:
            made = subprocess.run(["airflow", "pools", "set", name, str(slots), words], check=False)
            if made.returncode:
                return made.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
