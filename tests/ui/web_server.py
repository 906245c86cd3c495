"""The real Airflow web server with the plugin, over a tracker and a bucket with parked events.

Only the API server runs: no scheduler, so that a run stays as a test leaves it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests import servers
from tests.integration.parking_lot import ParkingLot

from waybill.parking import Parking
from waybill.settings import PERMISSIONS, S3Settings, Settings, TrackerSettings
from waybill.stack import state_folder
from waybill.stack.airflow import Airflow, AirflowComponent
from waybill.stack.credentials import read_or_draw
from waybill.stack.postgres import Postgres
from waybill.storage import ObjectStore, TrackerStore

VIEWER = "vera"
GRANTS = [
    {"who": "role:admin", "teams": "*", "permissions": list(PERMISSIONS)},
    {"who": VIEWER, "teams": "*", "permissions": ["view"]},
]
REPLAY_DAG = """
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.models.dagbundle import DagBundleModel
from airflow.utils.session import create_session

with create_session() as session:
    session.merge(DagBundleModel(name="dags-folder"))
sync_bag_to_db(DagBag({path!r}), "dags-folder", None)
"""


class AirflowWithPlugin(Airflow):
    """Airflow's environment with Waybill's settings, two users, and the DAG `replay` known."""

    def __init__(self, settings: Settings, postgres: Postgres) -> None:
        super().__init__(settings, read_or_draw(settings.home), postgres)
        self.telling: subprocess.Popen[str]
        self.passwords = {"admin": self.credentials.airflow_password, VIEWER: "look-only"}

    def environment(self) -> dict[str, str]:
        s3 = self.settings.s3
        return super().environment() | {
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"admin:admin,{VIEWER}:viewer",
            "WAYBILL_PIPELINES_DIR": str(self.settings.pipelines_dir),
            "WAYBILL_TRACKER__DSN": str(self.settings.tracker.dsn),
            "WAYBILL_S3__ENDPOINT_URL": str(s3.endpoint_url),
            "WAYBILL_S3__BUCKET": s3.bucket,
            "WAYBILL_S3__ACCESS_KEY": s3.access_key.get_secret_value(),
            "WAYBILL_S3__SECRET_KEY": s3.secret_key.get_secret_value(),
            "WAYBILL_ACCESS__GRANTS": json.dumps(GRANTS),
        }

    def prepare(self) -> None:
        """Migrate; then the DAG is made known while the server starts."""
        super().prepare()
        state_folder.write_private(self.home / "passwords.json", json.dumps(self.passwords))
        script = REPLAY_DAG.format(path=str(self.settings.dags_dir / "replay.py"))
        self.telling = subprocess.Popen(
            [sys.executable, "-c", script],
            env=self.environment(),
            cwd=self.home,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_until_known(self) -> None:
        _, said = self.telling.communicate(timeout=120)
        assert self.telling.returncode == 0, said[-2000:]


@dataclass
class Web:
    """A web server that runs, and what it serves."""

    airflow: AirflowWithPlugin
    lot: ParkingLot

    @property
    def url(self) -> str:
        return self.airflow.url

    @property
    def passwords(self) -> dict[str, str]:
        return self.airflow.passwords


def open_lot(dsn: str, s3: S3Settings) -> ParkingLot:
    """Return what tests park events with; close its tracker."""
    tracker = TrackerStore(TrackerSettings(dsn=dsn))
    tracker.migrate()
    objects = ObjectStore(s3)
    return ParkingLot(tracker, objects, Parking(tracker, objects), {"dsn": dsn, "s3": s3})


def start(home: Path, postgres: servers.PostgresServer, lot: ParkingLot) -> tuple[Web, object]:
    """Start the web server; return it and the service to stop."""
    postgres.service.create_database("airflow")
    s3: S3Settings = lot.settings["s3"]
    tracker = TrackerSettings(dsn=lot.settings["dsn"])
    made: list[AirflowWithPlugin] = []

    def make(stack):
        settings = Settings(
            _env_file=None,
            home=home,
            pipelines_dir=servers.CHECKOUT / "include" / "pipelines",
            dags_dir=servers.CHECKOUT / "dags",
            s3=s3,
            tracker=tracker,
            stack=stack,
        )
        made.append(AirflowWithPlugin(settings, postgres.service))
        return AirflowComponent(made[-1], "api-server")

    service = servers.start_on_free_ports(make)
    service.stop_grace_s = 2.0
    made[-1].wait_until_known()
    return Web(made[-1], lot), service
