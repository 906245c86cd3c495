"""The real Airflow web server with the plugin, over a tracker and a bucket with parked events.

Only the API server runs: no scheduler, so that a run stays as a test leaves it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tests import servers
from tests.integration.parking_lot import ParkingLot
from tests.support.airflow_metadata import AirflowMetadata, stamp

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


class AirflowWithPlugin(Airflow):
    """Airflow's environment with Waybill's settings and two users."""

    def __init__(self, settings: Settings, postgres: Postgres) -> None:
        super().__init__(settings, read_or_draw(settings.home), postgres)
        self.passwords = {"admin": self.credentials.airflow_password, VIEWER: "look-only"}

    def environment(self) -> dict[str, str]:
        s3 = self.settings.s3
        return super().environment() | {
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"admin:admin,{VIEWER}:viewer",
            "WAYBILL_PIPELINES_DIR": str(self.settings.pipelines_dir),
            "WAYBILL_TRACKER__DSN": self.settings.tracker.dsn.get_secret_value(),
            "WAYBILL_S3__ENDPOINT_URL": str(s3.endpoint_url),
            "WAYBILL_S3__BUCKET": s3.bucket,
            "WAYBILL_S3__ACCESS_KEY": s3.access_key.get_secret_value(),
            "WAYBILL_S3__SECRET_KEY": s3.secret_key.get_secret_value(),
            "WAYBILL_ACCESS__GRANTS": json.dumps(GRANTS),
        }

    def prepare(self) -> None:
        """Say that the database is migrated (its pools serve nobody here), and give both users their passwords."""
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        migrated = json.loads(stamp(self.postgres.dsn("airflow"))) | {"pools": self._pools()}
        (self.home / "migrated.json").write_text(json.dumps(migrated))
        super().prepare()
        state_folder.write_private(self.home / "passwords.json", json.dumps(self.passwords))


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


def start(home: Path, metadata: AirflowMetadata, lot: ParkingLot) -> tuple[Web, object]:
    """Start the web server; return it and the service to stop."""
    metadata.copy("airflow")
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
        made.append(AirflowWithPlugin(settings, metadata.postgres.service))
        return AirflowComponent(made[-1], "api-server")

    service = servers.start_on_free_ports(make)
    service.stop_grace_s = 2.0
    return Web(made[-1], lot), service
