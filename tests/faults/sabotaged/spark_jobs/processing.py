"""The Spark application of this name, sabotaged: see ``tests.faults.sabotage``."""

import runpy
from pathlib import Path

from tests.faults import sabotage

if __name__ == "__main__":
    sabotage.in_processing()
    checkout = Path(__file__).parents[4]
    runpy.run_path(str(checkout / "spark_jobs" / "processing.py"), run_name="__main__")
