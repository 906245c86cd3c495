"""The root of the command line: what it imports, and how it says errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from waybill import services
from waybill.cli import app
from waybill.errors import InputError
from waybill.settings import Settings, StackSettings
from waybill.stack import doctor, ports
from waybill.stack.doctor import Check
from waybill.stack.embedded import ServiceStatus, Stack
from waybill.storage import log, open_log, open_objects, open_tracker

HEAVY = (
    "pyspark",
    "airflow",
    "boto3",
    "duckdb",
    "pyarrow",
    "confluent_kafka",
    "pandas",
    "psycopg",
)


@pytest.fixture
def waybill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run the command line in this process, its state in ``tmp_path / "home"``, on free ports."""
    monkeypatch.setenv("WAYBILL_HOME", str(tmp_path / "home"))
    for name, port in ports.port_settings(ports.with_random_ports(StackSettings())).items():
        monkeypatch.setenv(f"WAYBILL_STACK__{name.upper()}", str(port))
    return lambda *words: CliRunner().invoke(app, words, prog_name="waybill")


def test_help_names_every_command_and_imports_no_room(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom waybill.cli import app\n"
        "try: app(['--help'])\nexcept SystemExit: pass\n"
        f"print('HEAVY', [m for m in {HEAVY!r} if m in sys.modules])\n"
        "print('ROOMS', [m for m in sys.modules if m.startswith('waybill.') and '.cli' not in m])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "HEAVY []" in run.stdout
    assert "ROOMS ['waybill.errors']" in run.stdout
    for name in ("up", "down", "status", "doctor", "demo", "pipelines", "parked", "trail"):
        assert f" {name} " in run.stdout


@pytest.mark.parametrize(
    "words", [("up",), ("down",), ("status",), ("doctor",), ("pipelines",), ("parked", "replay")]
)
def test_each_command_has_its_own_help(waybill, words: tuple[str, ...]) -> None:
    run = waybill(*words, "--help")
    assert run.exit_code == 0, run.output
    assert f"Usage: waybill {' '.join(words)}" in run.stdout


def test_an_error_is_one_block_without_a_traceback(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "waybill.cli", "up"],
        env={**os.environ, "WAYBILL_HOME": str(tmp_path), "JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert run.stderr.startswith(f"Error: JAVA_HOME={tmp_path} is wrong")
    assert "unset it" in run.stderr
    assert "Traceback" not in run.stderr


def test_debug_raises_the_error_itself(waybill, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert isinstance(waybill("--debug", "up").exception, InputError)
    assert isinstance(waybill("up").exception, SystemExit)


def test_a_misspelt_setting_is_named(waybill, monkeypatch) -> None:
    monkeypatch.setenv("WAYBILL_KAFKAA__PORT", "1")
    run = waybill("status")
    assert run.exit_code == 1
    assert "WAYBILL_KAFKAA__PORT" in run.stderr


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("WAYBILL_KAFKA__BOOTSTRAP_SERVER", "WAYBILL_KAFKA__BOOTSTRAP_SERVERS"),
        ("WAYBILL_KAFKAA__BOOTSTRAP_SERVERS", "WAYBILL_KAFKA__BOOTSTRAP_SERVERS"),
        ("WAYBILL_DAGS_DIRS", "WAYBILL_DAGS_DIR"),
        ("WAYBILL_DESTINATIONS__LAKE__DSM", "WAYBILL_DESTINATIONS__LAKE__DSN"),
    ],
)
def test_a_misspelt_setting_gets_the_nearest(waybill, monkeypatch, name, nearest) -> None:
    monkeypatch.setenv(name, "x")
    run = waybill("status")
    assert run.exit_code == 1
    assert f"unknown setting {name}; did you mean {nearest}?" in run.stderr


def test_every_setting_is_known_by_its_variable(monkeypatch) -> None:
    settings = Settings(_env_file=None, destinations={"lake": {"dsn": "postgresql://x"}})
    for name, value in settings.to_env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WAYBILL_DESTINATIONS__LAKE__KIND", "postgres")
    assert Settings(_env_file=None).destinations == settings.destinations


def nobody_answers(folder: Path) -> Settings:
    """Return settings of servers that are away, as an embedded stack writes them."""
    home = folder / "home"
    home.mkdir()
    (home / "stack.env").write_text(
        "WAYBILL_TRACKER__DSN=postgresql://127.0.0.1:1/waybill\n"
        "WAYBILL_KAFKA__BOOTSTRAP_SERVERS=127.0.0.1:1\n"
        "WAYBILL_S3__ENDPOINT_URL=http://127.0.0.1:1\n"
        "WAYBILL_S3__ACCESS_KEY=a\nWAYBILL_S3__SECRET_KEY=b\n"
    )
    return Settings(home=home)


def ask_kafka(settings: Settings) -> object:
    return open_log(settings.kafka).topics()


def ask_s3(settings: Settings) -> object:
    return open_objects(settings.s3).exists("x")


def ask_tracker(settings: Settings) -> object:
    with open_tracker(settings.tracker) as tracker, tracker.transaction():
        return None


@pytest.mark.parametrize("ask", [ask_kafka, ask_s3, ask_tracker])
def test_a_server_of_the_stack_that_is_away_is_answered_with_up(
    waybill, monkeypatch, tmp_path: Path, ask
) -> None:
    monkeypatch.setattr(log, "_ANSWER_S", 0.5)
    settings = nobody_answers(tmp_path)
    monkeypatch.setattr(services, "balance", lambda *_, **__: ask(settings))
    run = waybill("--wait", "0", "balance")
    assert run.exit_code == 4
    assert "answer" in run.stderr
    assert "`waybill up` starts what does not" in run.stderr


def test_a_server_of_others_that_is_away_is_named_by_its_setting(waybill, monkeypatch) -> None:
    monkeypatch.setenv("WAYBILL_TRACKER__DSN", "postgresql://127.0.0.1:1/waybill")
    run = waybill("--wait", "0", "balance")
    assert run.exit_code == 4
    assert "does WAYBILL_TRACKER__DSN name it?" in run.stderr
    assert "waybill up" not in run.stderr


def test_a_setting_out_of_range_is_named(waybill, monkeypatch) -> None:
    monkeypatch.setenv("WAYBILL_STACK__KAFKA_PORT", "0")
    run = waybill("status")
    assert run.exit_code == 1
    assert "WAYBILL_STACK__KAFKA_PORT: Input should be greater than or equal to 1" in run.stderr


def test_a_misspelt_command_gets_the_nearest(waybill) -> None:
    run = waybill("statsu")
    assert run.exit_code == 1
    assert "Did you mean 'status'?" in run.stderr


def test_a_stack_that_never_was_is_all_down_and_looking_leaves_no_trace(waybill, tmp_path) -> None:
    run = waybill("status", "--json")
    assert run.exit_code == 4
    lines = json.loads(run.stdout)
    assert {line["name"] for line in lines} >= {"postgres", "kafka", "s3", "airflow-scheduler"}
    assert not any(line["healthy"] or line["pid"] for line in lines)
    assert waybill("down").exit_code == 0
    assert not (tmp_path / "home").exists()


def line(name: str, *, pid: int | None = 7, healthy: bool = True) -> ServiceStatus:
    return ServiceStatus(name, pid, (), 0, 1.0 if pid else None, healthy=healthy, log="x.log")


@pytest.mark.parametrize("words", [(), ("--json",)])
@pytest.mark.parametrize(
    ("lines", "code", "said"),
    [
        ([line("kafka"), line("s3")], 0, ""),
        ([line("kafka"), line("s3", pid=None, healthy=False)], 4, "not up: s3; `waybill up`"),
        ([line("kafka"), line("s3", healthy=False)], 4, "not up: s3; `waybill up`"),
        ([line("s3", pid=None, healthy=False)], 4, "nothing runs; `waybill up` starts"),
    ],
)
def test_status_fails_when_some_or_all_of_the_stack_is_down(
    waybill, monkeypatch, lines, code, said, words
) -> None:
    monkeypatch.setattr(Stack, "status", lambda _self: lines)
    run = waybill("status", *words)
    assert run.exit_code == code
    if words:
        assert [one["name"] for one in json.loads(run.stdout)] == [one.name for one in lines]
    else:
        assert said in run.stdout


def test_status_cuts_no_name_at_80_columns(waybill, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = ["airflow-dag-processor", "spark-processing-a-long-cluster", "kafka"]
    ports_in_use = (18333, 18334, 18335, 18336)
    now = time.time()
    lines = [
        ServiceStatus(name, 123456, ports_in_use, 999 * 1024**2, now, healthy=True, log="x.log")
        for name in names
    ]
    monkeypatch.setattr(Stack, "status", lambda _self: lines)
    said = waybill("status").stdout
    assert "…" not in said
    assert max(map(len, said.splitlines())) <= 80


def test_doctor_says_a_remedy_once_and_never_breaks_a_command(waybill, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    command = "apt-get install -y openjdk-17-jre-headless"
    checks = [
        Check("Java", ok=False, found="Java is missing: no `java` on PATH", remedy=f"x: {command}"),
        Check("disk", ok=True, found="9 GiB free at " + "/a-long-folder" * 6),
    ]
    monkeypatch.setattr(doctor, "examine", lambda _settings: checks)
    run = waybill("doctor")
    assert run.exit_code == 2
    assert f"Java: x: {command}\n" in run.stdout
    assert run.stdout.count("apt-get") == 1


def test_doctor_fails_when_something_is_missing_and_tells_machines(
    waybill, monkeypatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    run = waybill("doctor", "--json")
    assert run.exit_code == 2
    checks = {check["name"]: check for check in json.loads(run.stdout)}
    assert checks["Java"]["ok"] is False
    assert checks["Python"]["ok"] is True
