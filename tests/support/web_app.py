"""Airflow's real web application in this process, on a metadata database of its own.

Made once a session, with a new metadata database for each file; tests get it over a fresh tracker and
bucket by the fixture ``web``. Users and
what Waybill grants them: ``ann`` (Airflow admin) everything; ``uma`` all but personal fields of team
aviation; ``pia`` that and personal fields; ``otto`` everything of team shipping; ``vic`` (Airflow viewer)
looks at and replays aviation, which Airflow refuses; ``nell`` nothing.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from tests.integration.parking_lot import ParkingLot, make_event
from tests.support import emptied
from tests.support.airflow_metadata import options

if "AIRFLOW_HOME" not in os.environ:  # read once, when Airflow is first imported
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="waybill-airflow-")

USERS = {
    "ann": "admin",
    "uma": "user",
    "pia": "user",
    "otto": "user",
    "vic": "viewer",
    "nell": "user",
}
_ALL = ["view", "replay", "discard", "download", "personal"]
GRANTS = [
    {"who": "role:admin", "teams": "*", "permissions": _ALL},
    {"who": "uma", "teams": ["aviation"], "permissions": _ALL[:-1]},
    {"who": "pia", "teams": ["aviation"], "permissions": _ALL},
    {"who": "otto", "teams": ["shipping"], "permissions": _ALL},
    {"who": "vic", "teams": ["aviation"], "permissions": ["view", "replay"]},
]
OWN = {"x-waybill": "1", "sec-fetch-site": "same-origin"}
"""Headers of a request from the page itself."""


@dataclass
class Web:
    """A client of the application, and what lies below it."""

    client: object
    lot: ParkingLot
    tokens: dict[str, str]
    patch: pytest.MonkeyPatch

    def ask(self, user, method, path, **given):
        """Ask as a browser in which this user is signed in; None: nobody is."""
        self.client.cookies.clear()
        if user is not None:
            self.client.cookies.set("_token", self.tokens[user])
        headers = {**OWN, **given.pop("headers", {})}
        answer = self.client.request(method, f"/waybill{path}", headers=headers, **given)
        _check_described(method, path, answer.status_code)
        return answer

    def get(self, user, path, **given):
        answer = self.ask(user, "GET", path, **given)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, user, path, body=None, *, status=200):
        answer = self.ask(user, "POST", path, json={} if body is None else body)
        assert answer.status_code == status, answer.text
        return answer.json()

    def deploy(self, pipeline_id, name, team, personal=(), columns=("n",), key=(), **more):
        """Write a deployed version as ``deploy`` does, in as far as looking needs it."""
        table = {"columns": [{"name": name, "source": name} for name in columns]}
        event = {"personal": list(personal), "key": list(key), "table": table}
        declaration = {"events": {"flight": event}, "destination": "warehouse", **more}
        self.lot.sql(
            "INSERT INTO pipelines (id, name, team) VALUES (:id, :name, :team)",
            id=pipeline_id, name=name, team=team,
        )  # fmt: skip
        self.lot.sql(
            "INSERT INTO pipeline_versions (pipeline_id, number, version, declaration, deployed_by) "
            "VALUES (:id, 1, 'v1', CAST(:declaration AS jsonb), 'test')",
            id=pipeline_id, declaration=json.dumps(declaration),
        )  # fmt: skip

    def grant(self, grants):
        """Replace the grants for the rest of the test."""
        from waybill_airflow.web.services import OPENED

        self.patch.setenv("WAYBILL_ACCESS__GRANTS", json.dumps(grants))
        OPENED.close()

    def audit(self):
        return self.lot.sql("SELECT who, action, target, detail FROM audit_log ORDER BY id")

    def two_teams(self, **changes):
        """Park an event of team aviation, one of shipping, one of nobody; return their ids."""
        self.deploy("pl-1", "flights", "aviation")
        self.deploy("pl-2", "boxes", "shipping")
        self.lot.park([make_event(n, **changes) for n in range(3)], 1)
        self.lot.park([make_event(4, pipeline_id="pl-2")], 2)
        self.lot.park([make_event(5, pipeline_id="pl-3")], 3)
        found = {one.pipeline_id: one.id for one in self.lot.parking.partitions()}
        return found["pl-1"], found["pl-2"], found["pl-3"]


def _check_described(method, path, code):
    """Fail where the API answers a status that its description does not name for the route."""
    from waybill_airflow.web.app import app

    described = app.openapi()["paths"]
    path = path.partition("?")[0]
    for route in app.routes:
        if method in route.methods and route.path_regex.fullmatch(path):
            known = described[route.path][method.lower()]["responses"]
            assert str(code) in known, f"{method} {route.path}: {code} is not in the description"
            return


class Application:
    """The application and a token for each user; one a session, as to make it takes 1.5 s of CPU."""

    def __init__(self, metadata, postgres, home):
        self._metadata, self._postgres = metadata, postgres
        self._passwords = home / "passwords.json"
        self._passwords.write_text(json.dumps({user: user for user in USERS}))
        self._patch = pytest.MonkeyPatch()
        self._open = ExitStack()
        self._made = None

    def renewed(self):
        """Return its client and the tokens, over a new metadata database that knows the DAG ``replay``."""
        database = f"airflow_in_process_{secrets.token_hex(4)}"
        options = _airflow_options(self._postgres.service.dsn(database), self._passwords)
        for name, value in options.items():
            self._patch.setenv(name, value)
        from airflow import settings

        self._metadata.copy(database)
        settings.configure_vars()
        settings.dispose_orm(do_log=False)
        settings.configure_orm()
        if self._made is None:
            self._made = self._make()
        return self._made

    def _make(self):
        from airflow.api_fastapi.app import cached_app, purge_cached_app
        from fastapi.testclient import TestClient

        purge_cached_app()
        application = TestClient(cached_app(apps="core"), base_url="http://testserver")
        client = self._open.enter_context(application)
        return client, {user: _token(client, user) for user in USERS}

    def close(self):
        """End it, and restore the environment."""
        if self._made:
            from airflow import settings
            from airflow.api_fastapi.app import purge_cached_app

            self._open.close()
            purge_cached_app()
            settings.dispose_orm(do_log=False)
        self._patch.undo()


@pytest.fixture(scope="module")
def airflow_app(web_application):
    """The application, with the DAG ``replay`` known to it, and a token for each user."""
    return web_application.renewed()


def _airflow_options(dsn, passwords):
    return {
        **options(dsn),
        "AIRFLOW_API_APPS": "core",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{u}:{r}" for u, r in USERS.items()),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        "AIRFLOW__API_AUTH__JWT_SECRET": "a-secret-of-the-tests-" * 4,
        "AIRFLOW__API__SECRET_KEY": "another-secret-of-the-tests",
    }


def _token(client, user):
    answer = client.post("/auth/token", json={"username": user, "password": user})
    return answer.json()["access_token"]


@pytest.fixture
def web(airflow_app, web_lot, monkeypatch, tmp_path):
    """The application over an empty tracker and bucket."""
    from waybill_airflow.web.services import OPENED

    s3 = web_lot.settings["s3"]
    for name, value in {
        "WAYBILL_HOME": str(tmp_path),
        "WAYBILL_TRACKER__DSN": web_lot.settings["dsn"],
        "WAYBILL_S3__ENDPOINT_URL": s3.endpoint_url,
        "WAYBILL_S3__BUCKET": s3.bucket,
        "WAYBILL_S3__ACCESS_KEY": s3.access_key.get_secret_value(),
        "WAYBILL_S3__SECRET_KEY": s3.secret_key.get_secret_value(),
        "WAYBILL_ACCESS__GRANTS": json.dumps(GRANTS),
    }.items():
        monkeypatch.setenv(name, value)
    own = {"deployment", "virtual_clusters"}  # one row each, made by the migrations
    emptied.empty(web_lot.sql, but=own)
    OPENED.close()
    yield Web(airflow_app[0], web_lot, airflow_app[1], monkeypatch)
    OPENED.close()
