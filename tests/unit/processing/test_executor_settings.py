"""Executors have what their tasks need of the settings, and no way to anything else."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from tests.support.evolving import kafka_records
from tests.support.object_server import object_server
from tests.unit.processing.made import event, pipeline

import waybill
from waybill.errors import StopError
from waybill.events import encode
from waybill.processing import read_staged
from waybill.processing.spark import executor_settings
from waybill.processing.spark.daemon import drop_settings
from waybill.processing.spark.executor_settings import (
    SENT,
    ExecutorSettings,
    SettingsMismatchError,
)
from waybill.processing.spark.plan_cache import TaskTexts
from waybill.processing.spark.tasks import StageTask, TaskPlan, TopicPlan
from waybill.settings import S3Settings, Settings, secret_values
from waybill.storage import Records

CANARIES = {
    "tracker": {"dsn": "postgresql://canary-user:canary-tracker@127.0.0.1:1/x"},
    "airflow": {"password": "canary-airflow"},
    "notices": {"webhook_url": "https://x.org/canary-webhook", "webhook_secret": "canary-signs"},
    "destinations": {
        "warehouse": {
            "kind": "snowflake",
            "dsn": "snowflake://canary-warehouse@x/y",
            "options": {"password": "canary-option"},
        }
    },
    "s3": {"access_key": "access-of-s3", "secret_key": "secret-of-s3"},
}


LOGIN = {
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "SCRAM-SHA-512",
    "sasl_username": "carol",
    "sasl_password": "canary-kafka",
}


def settings(**changes: Any) -> Settings:
    return Settings(_env_file=None, **{**CANARIES, **changes})  # type: ignore[arg-type]


def sent(**changes: Any) -> ExecutorSettings:
    return ExecutorSettings.of(settings(**changes), "d1")


def test_what_is_sent_is_this_and_no_more():
    assert {f"{section}.{name}" for section, (_, names) in SENT.items() for name in names} == {
        "kafka.bootstrap_servers", "kafka.security_protocol",
        "kafka.ssl_ca_pem", "kafka.ssl_certificate_pem", "kafka.ssl_private_key_pem",
        "kafka.ssl_private_key_password", "kafka.sasl_mechanism", "kafka.sasl_username",
        "kafka.sasl_password", "kafka.sasl_token_url", "kafka.sasl_scope",
        "s3.endpoint_url", "s3.bucket", "s3.region", "s3.access_key", "s3.secret_key",
        "sandbox.shared_by", "sandbox.memory_mb", "sandbox.file_mb", "sandbox.readable",
        "sandbox.strict",
        "spark.event_timeout_s",
        "traces.enabled", "traces.spool_dir", "traces.disk_threshold_bytes",
        "parking.transient_attempts", "parking.transient_backoff_s", "parking.transient_budget_s",
    }  # fmt: skip
    not_sent = {"connection_id"}  # who starts an application has put its keys in their place
    assert set(S3Settings.model_fields) == {*SENT["s3"][1], *not_sent}, (
        "a new one is sent, or is not, on purpose"
    )


def test_no_secret_but_the_object_stores_is_in_what_travels():
    whole = pickle.dumps(sent())
    secrets = secret_values(settings()) - {"access-of-s3", "secret-of-s3"}
    assert len(secrets) >= 5
    assert [secret for secret in secrets if secret.encode() in whole] == []
    assert b"secret-of-s3" in whole
    assert sent().destination_kinds == {"warehouse": "snowflake"}


def test_kafkas_login_travels_and_its_certificates_do_as_text(tmp_path):
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    own = pickle.loads(pickle.dumps(sent(kafka={**LOGIN, "ssl_ca_file": tmp_path / "ca.pem"})))
    own.refuse_mismatch({"WAYBILL_KAFKA__SECURITY_PROTOCOL": "SASL_SSL"})
    # as a worker has it that inherits the environment of the driver
    of_files = settings(kafka={**LOGIN, "ssl_ca_file": tmp_path / "ca.pem"})
    own.refuse_mismatch(of_files.to_env())
    (tmp_path / "ca.pem").unlink()
    assert own.kafka.ssl_ca_pem == "-----BEGIN CERTIFICATE-----\n"
    assert own.kafka.sasl_password.get_secret_value() == "canary-kafka"
    assert "canary-kafka" not in repr(own)
    with pytest.raises(SettingsMismatchError, match="WAYBILL_KAFKA__SASL_USERNAME") as caught:
        own.refuse_mismatch({"WAYBILL_KAFKA__SASL_USERNAME": "dave"})
    assert "canary-kafka" not in str(caught.value)
    with pytest.raises(SettingsMismatchError, match="WAYBILL_KAFKA__SECURITY_PROTOCOL"):
        own.refuse_mismatch({"WAYBILL_KAFKA__SECURITY_PROTOCOL": "PLAINTEXT"})


def loading(name: str = "lake", **changes: Any) -> ExecutorSettings:
    """What tasks that load a destination are sent; there are others."""
    two = {
        **CANARIES["destinations"],
        "lake": {
            "kind": "delta",
            "dsn": "s3://lake/key-of-lake",
            "options": {"x": "option-of-lake"},
        },
    }
    return ExecutorSettings.of(settings(**{"destinations": two, **changes}), "d1", loads=name)


def test_a_task_that_loads_gets_its_own_destination_and_the_object_store():
    own = loading()
    whole = pickle.dumps(own)
    secrets = secret_values(settings()) - {"access-of-s3", "secret-of-s3"}
    assert len(secrets) >= 5
    assert [secret for secret in secrets if secret.encode() in whole] == []
    for sent_to_it in (b"secret-of-s3", b"key-of-lake", b"option-of-lake"):
        assert sent_to_it in whole
    assert set(own.values) == {"s3", "traces"}
    assert own.destination_kinds == {"lake": "delta"}
    assert own.loaded[1].dsn.get_secret_value() == "s3://lake/key-of-lake"
    assert "of-lake" not in repr(own)
    pickle.loads(whole).refuse_mismatch({})


def test_a_task_that_loads_nothing_has_no_destination():
    with pytest.raises(StopError):
        _ = sent().loaded


def test_the_destination_is_in_the_fingerprint():
    changed = {"lake": {"kind": "delta", "dsn": "s3://lake/other"}}
    assert loading().fingerprint != loading(destinations=changed).fingerprint
    other = replace(loading(), destination=loading(destinations=changed).destination)
    with pytest.raises(SettingsMismatchError):
        other.refuse_mismatch({})


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"WAYBILL_DESTINATIONS__LAKE__DSN": "s3://other"}, "WAYBILL_DESTINATIONS__LAKE__DSN"),
        ({"WAYBILL_DESTINATIONS": '{"lake": {"dsn": "s3://other"}}'}, r"\(lake, dsn\)"),
        ({"WAYBILL_DESTINATIONS": '{"lake": {"kind": "iceberg"}}'}, r"\(lake, kind\)"),
    ],
)
def test_a_worker_with_another_address_for_the_destination_refuses(environment, named):
    with pytest.raises(SettingsMismatchError, match=named) as caught:
        loading().refuse_mismatch(environment)
    assert "other" not in str(caught.value).replace("another", "")


def test_a_folder_is_the_drivers_wherever_a_worker_begins():
    lake = {"lake": {"kind": "delta", "dsn": "relative/lake"}}
    own = loading(destinations=lake)
    assert own.loaded[1].dsn.get_secret_value() == str(Path("relative/lake").absolute())


@pytest.mark.parametrize(
    ("given", "taken"),
    [("relative/lake", True), ("./relative/lake", True), ("other/lake", False), ("/lake", False)],
)
@pytest.mark.parametrize("begins", ["here", "elsewhere"])
def test_a_worker_with_the_same_relative_folder_takes_it(
    given, taken, begins, tmp_path, monkeypatch
):
    own = loading(destinations={"lake": {"kind": "delta", "dsn": "relative/lake"}})
    if begins == "elsewhere":
        monkeypatch.chdir(tmp_path)
    whole = json.dumps({"lake": {"kind": "delta", "dsn": given}})
    for environment in (
        {"WAYBILL_DESTINATIONS__LAKE__DSN": given},
        {"WAYBILL_DESTINATIONS": whole},
    ):
        if taken:
            own.refuse_mismatch(environment)
        else:
            with pytest.raises(SettingsMismatchError):
                own.refuse_mismatch(environment)


def test_nothing_of_it_is_shown():
    own = sent()
    plan = TaskPlan({}, [], own)
    for text in (repr(own), str(own), f"{own}", repr(plan), repr(own.values["s3"])):
        assert "of-s3" not in text
        assert own.fingerprint not in text


def test_it_comes_out_of_a_pickle_as_it_was_and_is_taken():
    own = pickle.loads(pickle.dumps(sent(traces={"spool_dir": "relative/traces"})))
    own.refuse_mismatch({})
    assert own.s3.secret_key.get_secret_value() == "secret-of-s3"
    assert own.spool[0] == Path("relative/traces").absolute()


@pytest.mark.parametrize(
    "changes",
    [
        {"s3": {"bucket": "other"}},
        {"s3": {**CANARIES["s3"], "secret_key": "other"}},
        {"sandbox": {"memory_mb": 65}},
        {"spark": {"event_timeout_s": 1}},
        {"kafka": LOGIN},
        {"traces": {"enabled": False}},
        {"parking": {"transient_attempts": 9}},
        {"destinations": {}},
    ],
    ids=str,
)
def test_each_setting_that_is_sent_changes_the_fingerprint(changes):
    assert sent(**changes).fingerprint != sent().fingerprint


def test_settings_that_are_not_sent_do_not_change_it():
    assert sent(tracker={"pool_size": 9}, spark={"trigger_ms": 9}).fingerprint == sent().fingerprint
    assert ExecutorSettings.of(settings(), "d2").fingerprint != sent().fingerprint


def test_a_worker_of_another_version_refuses(monkeypatch):
    own = sent()
    monkeypatch.setattr(waybill, "__version__", "0.0.9")
    with pytest.raises(SettingsMismatchError, match=r"runs Waybill 0\.0\.9.*different versions"):
        own.refuse_mismatch({})


def test_a_worker_that_knows_other_settings_refuses(monkeypatch):
    own = sent()
    model, names = SENT["parking"]
    monkeypatch.setattr(executor_settings, "SENT", {**SENT, "parking": (model, names[:-1])})
    with pytest.raises(SettingsMismatchError, match="different versions"):
        own.refuse_mismatch({})


def test_what_was_changed_on_its_way_is_refused():
    own = sent()
    with pytest.raises(SettingsMismatchError):
        replace(own, deployment="d2").refuse_mismatch({})


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"WAYBILL_S3__BUCKET": "other"}, "WAYBILL_S3__BUCKET"),
        ({"waybill_s3__bucket": "other"}, "WAYBILL_S3__BUCKET"),
        ({"WAYBILL_S3": '{"bucket": "other"}'}, r"WAYBILL_S3 \(bucket\)"),
        ({"WAYBILL_S3__SECRET_KEY": "canary-of-another"}, "WAYBILL_S3__SECRET_KEY"),
        ({"WAYBILL_TRACES__ENABLED": "false"}, "WAYBILL_TRACES__ENABLED"),
        ({"WAYBILL_TRACES__SPOOL_DIR": "/elsewhere"}, "WAYBILL_TRACES__SPOOL_DIR"),
        ({"WAYBILL_SANDBOX__MEMORY_MB": "much"}, "WAYBILL_SANDBOX__MEMORY_MB"),
        ({"WAYBILL_SANDBOX__READABLE": '["/etc"]'}, "WAYBILL_SANDBOX__READABLE"),
        ({"WAYBILL_S3": '{"bucket": "waybill"}', "WAYBILL_S3__BUCKET": "x"}, "WAYBILL_S3__BUCKET"),
    ],
    ids=str,
)
def test_a_worker_with_other_values_refuses_and_names_them_without_values(environment, named):
    with pytest.raises(SettingsMismatchError, match=f"has {named} with another value") as caught:
        sent().refuse_mismatch(environment)
    assert "canary" not in str(caught.value)
    assert "of-s3" not in str(caught.value)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WAYBILL_S3__BUCKET": "waybill", "WAYBILL_SANDBOX__READABLE": "[]"},
        {"WAYBILL_S3": "no JSON", "WAYBILL_PARKING__TRANSIENT_BACKOFF_S": "0.20"},
        {"WAYBILL_TRACKER__DSN": "postgresql://other/x", "WAYBILL_HOME": "/other"},
    ],
    ids=str,
)
def test_a_worker_that_says_the_same_or_nothing_takes_them(environment):
    sent().refuse_mismatch(environment)


def test_a_worker_with_all_of_the_drivers_environment_takes_them():
    made = settings(sandbox={"readable": ["/etc/hosts"], "strict": True}, traces={"enabled": False})
    ExecutorSettings.of(made, "d1").refuse_mismatch(made.to_env())


class Environment(Mapping[str, str]):
    """Notes what is read."""

    def __init__(self, values: dict[str, str]) -> None:
        self._values, self.read = values, set[str]()

    def __getitem__(self, name: str) -> str:
        self.read.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def test_only_variables_of_what_was_sent_are_read():
    environment = Environment(settings().to_env())
    sent().refuse_mismatch(environment)
    assert environment.read == {f"WAYBILL_{section}".upper() for section in SENT}


def test_the_daemon_of_the_workers_drops_what_they_are_not_sent():
    environment = settings(s3={**CANARIES["s3"], "bucket": "b"}).to_env() | {
        "PATH": "/bin",
        "waybill_tracker__dsn": "postgresql://canary-dsn/x",
        "WAYBILL_S3__BUCKET": "b",
        "WAYBILL_PARKING__STORM_SHARE": "0.5",
        "WAYBILL_DESTINATIONS__LAKE__DSN": "canary-lake",
    }
    drop_settings(environment)
    sections = {f"WAYBILL_{section}".upper() for section in SENT}
    assert set(environment) == {"PATH", "WAYBILL_S3__BUCKET", *sections}
    assert "canary-" not in str(environment)


def test_the_workers_log_warnings_and_what_user_code_prints():
    code = (
        "import logging\nfrom waybill.processing.spark import daemon\ndaemon.configure_logging()\n"
        "for name in ('waybill.user_code', 'botocore', 'waybill.processing'):\n"
        "    logging.getLogger(name).info('told')\n    logging.getLogger(name).warning('warned')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    lines = [line.split()[2:] for line in done.stderr.splitlines()]
    assert lines == [
        ["INFO", "waybill.user_code", "told"],
        ["WARNING", "waybill.user_code", "warned"],
        ["WARNING", "botocore", "warned"],
        ["WARNING", "waybill.processing", "warned"],
    ]


def run_as_executor(
    task: StageTask, records: Records, folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a task in a process that can reach neither tracker nor settings."""
    (folder / "task").write_bytes(cloudpickle.dumps((task, records)))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WAYBILL_")}
    return subprocess.run(
        [sys.executable, "-m", "tests.support.executor", str(folder / "task")],
        env={**kept, **environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def task_of(made: Settings) -> StageTask:
    declared = pipeline(policy="evolve")
    plan = TopicPlan("batch", TaskTexts().of({"p1": declared}, {}))
    return StageTask(TaskPlan({"t": plan}, [], ExecutorSettings.of(made, "d1")))


@pytest.mark.parametrize("inherits", [False, True], ids=["bare", "driver's environment"])
def test_a_task_runs_where_the_tracker_is_out_of_reach_and_reads_nothing_of_it(tmp_path, inherits):
    with object_server() as server:
        made = settings(
            s3={**CANARIES["s3"], "endpoint_url": server.url, "bucket": "b"},
            traces={"spool_dir": tmp_path / "traces"},
        )
        rows = kafka_records("t", [encode(event(n, {"id": n, "n": n})) for n in range(5)])
        environment = made.to_env() if inherits else {}
        done = run_as_executor(task_of(made), rows, tmp_path, environment)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout.splitlines()[-1])
        [told] = answer["told"]
        [frame] = read_staged(server.objects[f"/b/{told['staged']['key']}"])
        owner = json.loads(server.objects["/b/_waybill/owner.json"])
    assert frame.data["n"].to_pylist() == list(range(5))
    assert owner["deployment"] == "d1"
    assert answer["loaded"] == []
    sections = {f"WAYBILL_{section}".upper() for section in SENT}
    assert set(answer["read"]) == (sections if inherits else set())
    assert "canary" not in done.stdout + done.stderr


def test_a_task_that_meets_a_new_field_tells_of_it_without_a_tracker(tmp_path):
    made = settings(s3={**CANARIES["s3"], "endpoint_url": "http://127.0.0.1:1"})
    rows = kafka_records("t", [encode(event(1, {"id": 1, "new": "a value"}))])
    done = run_as_executor(task_of(made), rows, tmp_path, {})
    assert done.returncode == 0, done.stderr
    [told] = json.loads(done.stdout.splitlines()[-1])["told"]
    assert told["learned"][0][2][1] == [[None, "new", "string"]]


def test_a_task_on_a_worker_of_another_deployment_refuses_before_it_reads_or_writes(tmp_path):
    with object_server() as server:
        made = settings(s3={**CANARIES["s3"], "endpoint_url": server.url, "bucket": "b"})
        rows = kafka_records("t", [encode(event(1, {"id": 1, "n": 1}))])
        other = {"WAYBILL_S3__BUCKET": "theirs"}
        done = run_as_executor(task_of(made), rows, tmp_path, other)
        assert server.objects == {}
    assert done.returncode != 0
    assert "has WAYBILL_S3__BUCKET with another value than the driver" in done.stderr
