"""Make the tracker's tables, Waybill's bucket and that of task logs; deploy the declared pipelines.

Run by docker-compose.yaml before anything else; safe to run again: what is there already stays.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from waybill.deployment import OtherVersionError, StaleFolderError
from waybill.errors import WaybillError
from waybill.pipelines import DeployAllowances, pipeline_directories
from waybill.services import migrate, run_deploy
from waybill.settings import Settings
from waybill.storage import ObjectStore


def main() -> int:
    """Prepare, print one JSON line a pipeline; 1 when something is wrong, with the reason."""
    settings = Settings()
    try:
        migrate(settings)
        make_log_bucket(settings)
        for directory in pipeline_directories(settings.pipelines_dir).values():
            line = deployed(settings, directory)
            sys.stdout.write(json.dumps(line) + "\n")
    except WaybillError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def deployed(settings: Settings, directory: Path) -> dict[str, Any]:
    """Deploy a folder; where it is refused beside what is active, that stays, and why is said."""
    try:
        allows = DeployAllowances(missing_ok=True)
        return run_deploy(settings, directory, who="docker-compose", allows=allows).to_json()
    except (OtherVersionError, StaleFolderError) as error:
        return {"folder": str(directory), "changed": False, "kept": str(error)}


def make_log_bucket(settings: Settings) -> None:
    """Make the bucket in which Airflow puts logs of tasks, unless it is there.

    Raises:
        RetryError: the object store is away.
    """
    folder = urlsplit(os.environ.get("AIRFLOW__LOGGING__REMOTE_BASE_LOG_FOLDER", ""))
    if folder.scheme == "s3":
        own = settings.s3.model_copy(update={"bucket": folder.netloc})
        ObjectStore(own).ensure_bucket()


if __name__ == "__main__":
    sys.exit(main())
