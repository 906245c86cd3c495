"""Make the tracker's tables and the bucket, and deploy the declared pipelines.

Run by docker-compose.yaml before anything else; safe to run again: what is there already stays.
"""

from __future__ import annotations

import json
import sys

from waybill.errors import WaybillError
from waybill.pipelines import pipeline_directories
from waybill.services import migrate, run_deploy
from waybill.settings import Settings


def main() -> int:
    """Prepare, print one JSON line a pipeline; 1 when something is wrong, with the reason."""
    settings = Settings()
    try:
        migrate(settings)
        for directory in pipeline_directories(settings.pipelines_dir).values():
            report = run_deploy(settings, directory, who="docker-compose")
            sys.stdout.write(json.dumps(report.to_json()) + "\n")
    except WaybillError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
