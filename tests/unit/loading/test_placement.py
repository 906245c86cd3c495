"""Who loads a destination: executors, unless only the driver may reach it."""

from __future__ import annotations

import pytest

from waybill.loading import placement, placement_of
from waybill.settings import DestinationSettings

FAR = "postgresql://u:secret-pw@db.internal/dwh"
BUCKET = "s3://lake/tables"


def placed(kind, dsn, *, executors=True, environment=None, **given):
    settings = DestinationSettings(kind=kind, dsn=dsn, **given)
    return placement_of(settings, has_executors=executors, environment=environment or {})


@pytest.fixture(autouse=True)
def no_password_file(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("kind", "dsn", "options"),
    [
        ("postgres", FAR, {}),
        ("postgres", FAR + "?sslmode=verify-full&sslrootcert=system", {}),
        ("delta", BUCKET, {}),
        ("iceberg", BUCKET, {"catalog": FAR}),
        ("clickhouse", "clickhouse://u:p@h:8443/?secure=true", {}),
        ("databricks", "databricks://token:x@h/sql/w?catalog=main&staging=/Volumes/x", {}),
        ("snowflake", "snowflake://u:p@a/d?warehouse=w", {}),
    ],
)
def test_executors_load_what_they_reach(kind, dsn, options):
    assert placed(kind, dsn, options=options).by_executors
    assert not placed(kind, dsn, options=options, executors=False).by_executors
    assert not placed(kind, dsn, options=options, loaded_by="driver").by_executors


ONLY_HERE = [
    ("postgres", "postgresql:///dwh", {}, "driver's host"),
    ("postgres", "postgresql://u:p@localhost/dwh", {}, "driver's host"),
    ("postgres", "postgresql://u:p@db.internal,127.0.0.1/dwh", {}, "driver's host"),
    ("postgres", "host=/var/run/postgresql dbname=dwh", {}, "driver's host"),
    ("postgres", FAR + "?sslkey=/etc/key.pem&sslcert=/etc/c.pem", {}, "files"),
    ("postgres", FAR + "?sslmode=verify-full", {}, "surroundings"),
    ("postgres", FAR + "?sslmode=verify-ca", {}, "surroundings"),
    ("postgres", "postgresql://db.internal/dwh?password=p", {}, "surroundings"),
    ("clickhouse", "clickhouse://u:p@localhost:8123/", {}, "driver's host"),
    ("databricks", "databricks://token:x@127.0.0.2/sql?catalog=m&staging=/V", {}, "driver's host"),
    ("redshift", "redshift://u:p@h:5439/d?staging=s3://b/p&iam_role=arn:x", {}, "AWS"),
    ("bigquery", "bigquery://p?location=EU", {}, "Google"),
    ("delta", "/srv/lake", {}, "folder"),
    ("delta", "file:///srv/lake", {}, "folder"),
    ("iceberg", BUCKET, {"catalog": "postgresql://u:p@localhost/c"}, "driver's host"),
    ("bigquery", "bigquery://p?location=EU&credentials=/k.json", {}, "Google"),
    ("snowflake", "snowflake://u@a/d?warehouse=w", {"private_key_file": "/k"}, "file"),
]


@pytest.mark.parametrize(("kind", "dsn", "options", "reason"), ONLY_HERE)
def test_the_driver_loads_what_it_alone_may_reach_unless_it_is_asked_otherwise(
    kind, dsn, options, reason
):
    found = placed(kind, dsn, options=options)
    assert not found.by_executors
    assert reason in found.reason
    assert placed(kind, dsn, options=options, loaded_by="executors").by_executors
    asked_on_local = placed(kind, dsn, options=options, loaded_by="executors", executors=False)
    assert asked_on_local.by_executors


@pytest.mark.parametrize(
    ("kind", "dsn", "options"),
    [
        ("duckdb", "/srv/w.duckdb", {}),
        ("iceberg", "/srv/lake", {}),
        ("iceberg", "/srv/lake", {"catalog": "sqlite:////srv/c.db"}),
    ],
)
def test_a_file_of_one_writer_is_the_drivers_whatever_is_asked(kind, dsn, options):
    found = placed(kind, dsn, options=options, loaded_by="executors")
    assert not found.by_executors
    assert found.reason


def test_a_password_of_the_drivers_surroundings_stays_there(tmp_path):
    bare = "postgresql://u@db.internal/dwh"
    assert placed("postgres", bare).by_executors
    assert not placed("postgres", bare, environment={"PGPASSWORD": "x"}).by_executors
    assert placed("postgres", FAR, environment={"PGPASSWORD": "x"}).by_executors
    (tmp_path / ".pgpass").write_text("*:*:*:*:x")
    assert not placed("postgres", bare).by_executors
    assert placed("postgres", FAR).by_executors


@pytest.mark.parametrize("name", ["PGSSLROOTCERT", "PGSSLMODE", "PGSSLCERT", "PGSERVICE", "PGPORT"])
def test_what_libpq_takes_from_the_drivers_surroundings_stays_there(name):
    assert not placed("postgres", FAR, environment={name: "x"}).by_executors
    options = {"catalog": FAR}
    assert not placed("iceberg", BUCKET, options=options, environment={name: "x"}).by_executors
    asked = placed("postgres", FAR, environment={name: "x"}, loaded_by="executors")
    assert asked.by_executors


def test_what_an_address_says_itself_is_not_taken_from_there():
    dsn = FAR + "?sslmode=verify-full&sslrootcert=system"
    named = {"PGSSLMODE": "prefer", "PGSSLROOTCERT": "/ca.pem", "PGAPPNAME": "x"}
    assert placed("postgres", dsn, environment=named).by_executors


def test_certificates_in_the_drivers_home_stay_there(tmp_path):
    (tmp_path / ".postgresql").mkdir()
    assert not placed("postgres", FAR).by_executors
    assert placed("postgres", FAR + "?sslmode=disable").by_executors


@pytest.mark.parametrize(
    "host",
    [
        "LOCALHOST", "localhost.", "127.0.0.1", "127.0.1.1", "127.1", "0", "::1", "::",
        "::ffff:127.0.0.1", "Waybill-1.internal", "waybill-1", "/var/run/postgresql", "@abstract",
    ],
)  # fmt: skip
def test_the_drivers_own_host_has_many_names(host, monkeypatch):
    monkeypatch.setattr(placement.socket, "gethostname", lambda: "waybill-1.internal")
    assert placement.is_own_host(host)
    assert not placed("postgres", f"host={host} user=u password=p dbname=d").by_executors


@pytest.mark.parametrize(
    "host", ["db.internal", "10.0.0.1", "128.0.0.1", "2001:db8::1", "localhost.example.org", "ö\0"]
)
def test_other_hosts_are_not_its_own(host):
    assert not placement.is_own_host(host)


@pytest.mark.parametrize(
    ("kind", "dsn", "options"),
    [
        ("postgres", "host='secret-pw", {}),
        ("postgres", "nonsense secret-pw", {}),
        ("iceberg", BUCKET, {"catalog": "postgresql://u:secret-pw@h:54x/d"}),
        ("iceberg", BUCKET, {"catalog": "postgresql://u:secret-pw@[::1/d"}),
        ("iceberg", BUCKET, {"catalog": "secret-pw\0"}),
        ("delta", "\0secret-pw", {}),
        ("redshift", "http://[secret-pw", {}),
    ],
)
@pytest.mark.parametrize("asked", [None, "executors", "driver"])
def test_an_odd_address_raises_nothing_and_is_not_shown(kind, dsn, options, asked):
    found = placed(kind, dsn, options=options, loaded_by=asked)
    assert "secret" not in repr(found)


def test_one_that_is_not_configured_is_the_drivers():
    assert placement_of(None, has_executors=True) == placement_of(None, has_executors=False)
    assert not placement_of(None, has_executors=True).by_executors
