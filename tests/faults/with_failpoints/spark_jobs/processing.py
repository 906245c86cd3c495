"""The Spark application of this name, with failpoints: see ``tests.faults.processing_failpoints``."""

import runpy
import sys
from pathlib import Path

from tests.faults import processing_failpoints

if __name__ == "__main__":
    processing_failpoints.in_processing(sys.argv[sys.argv.index("--cluster") + 1])
    checkout = Path(__file__).parents[4]
    runpy.run_path(str(checkout / "spark_jobs" / "processing.py"), run_name="__main__")
