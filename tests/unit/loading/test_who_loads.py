"""Who loads follows the master that Spark has, not the one of the settings; the log says it once."""

from __future__ import annotations

import logging
import os
from types import SimpleNamespace

import pytest

from waybill.loading.spark import ExecutorLoads
from waybill.loading.spark.application import LoadingParts
from waybill.settings import Settings

DESTINATIONS = {
    "far": {"dsn": "postgresql://u:secret-pw@db.internal/dwh"},
    "near": {"dsn": "postgresql://u:secret-pw@localhost/dwh"},
    "odd": {
        "kind": "iceberg",
        "dsn": "s3://lake/x",
        "options": {"catalog": "postgresql://u:secret-pw@h:54x/d"},
    },
}


@pytest.fixture(autouse=True)
def no_surroundings(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("PG")]:
        monkeypatch.delenv(name)


def parts(master: str | None, setting: str = "local[2]") -> LoadingParts:
    settings = Settings(_env_file=None, destinations=DESTINATIONS, spark={"master": setting})  # type: ignore[arg-type]
    spark = SimpleNamespace(sparkContext=SimpleNamespace(master=master)) if master else None
    return LoadingParts(settings, None, spark, None, None, "d1", None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "master", ["spark://h:7077", "yarn", "k8s://https://h:6443", "local-cluster[2,1,1024]"]
)
def test_executors_load_where_spark_has_its_own(master):
    assert isinstance(parts(master).executors("far"), ExecutorLoads)


@pytest.mark.parametrize("master", [None, "local", "local[2]", "local[*]", "local[2,4]"])
def test_the_driver_loads_where_spark_has_none(master):
    assert parts(master, setting="spark://h:7077").executors("far") is None


def test_what_stays_with_the_driver_is_told_once_and_no_address_is(caplog):
    made = parts("spark://h:7077")
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            for name in (*DESTINATIONS, "not-configured"):
                made.executors(name)
    assert caplog.text.count("loading/near: the driver loads it: its server is on") == 1
    assert caplog.text.count("loading/odd: ") == 1
    assert "secret" not in caplog.text
    assert made.executors("near") is None
