"""The Spark application of this name, with failpoints: see ``tests.faults.loading_failpoints``."""

import runpy
import sys
from pathlib import Path

from tests.faults import loading_failpoints

if __name__ == "__main__":
    loading_failpoints.in_loading(sys.argv[sys.argv.index("--cluster") + 1])
    checkout = Path(__file__).parents[4]
    runpy.run_path(str(checkout / "spark_jobs" / "loading.py"), run_name="__main__")
