from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from waybill.settings import Settings, SparkSettings, StackSettings
from waybill.stack import doctor, ports
from waybill.stack.doctor import Check, examine


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A folder where nothing was installed, and ports that are free."""
    return Settings(
        _env_file=None,
        home=tmp_path / "home",
        dags_dir=tmp_path / "dags",
        spark=SparkSettings(jars_dir=tmp_path / "jars" / "spark"),
        stack=ports.with_random_ports(StackSettings()),
    )


def named(checks: list[Check], name: str) -> Check:
    [found] = [check for check in checks if check.name == name]
    return found


def test_each_thing_missing_says_how_to_get_it(settings: Settings, monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "requirements.txt").write_text("orjson==0.0.1 \\\n    --hash=x\nno-such-thing==2\n")
    checks = examine(settings)
    java, jars, packages = (named(checks, name) for name in ("Java", "jars", "packages"))
    assert not java.ok
    assert "apt-get" not in java.found
    assert "apt-get install -y openjdk-17-jre-headless" in java.remedy
    assert not jars.ok
    assert jars.found.startswith("0 of 51")
    assert "no-such-thing absent instead of 2" in packages.found
    assert "instead of 0.0.1" in packages.found
    assert packages.remedy == "make venv"


def test_looking_changes_nothing(settings: Settings, tmp_path: Path) -> None:
    examine(settings)
    assert list(tmp_path.iterdir()) == []


def test_a_stack_that_is_down_is_no_fault(settings: Settings) -> None:
    services = named(examine(settings), "services")
    assert services.ok
    assert "down" in services.found


@pytest.mark.parametrize(
    ("missing", "user", "ok", "found"),
    [
        ([], 0, True, "files, network, processes are closed"),
        ([], 50_000, True, "all teams' code runs as this user"),
        (["closed files (Landlock)"], 0, False, "not closed here: closed files (Landlock)"),
    ],
)
def test_it_says_how_user_code_is_closed_in(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    missing: list[str],
    user: int,
    *,
    ok: bool,
    found: str,
) -> None:
    box = SimpleNamespace(missing=lambda: missing)
    monkeypatch.setattr(doctor, "shared_sandbox", lambda _settings: box)
    monkeypatch.setattr(doctor.os, "geteuid", lambda: user)
    check = doctor._user_code(settings)
    assert check.ok is ok
    assert found in check.found
    assert ("this user" in check.found) is (user != 0)


def test_a_busy_port_is_shown_with_its_setting(settings: Settings) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", settings.stack.kafka_port))
        server.listen()
        check = named(examine(settings), "port")
    assert not check.ok
    assert str(settings.stack.kafka_port) in check.found
    assert "WAYBILL_STACK__KAFKA_PORT" in check.remedy


def test_too_little_disk_and_memory_is_said(settings: Settings, monkeypatch) -> None:
    monkeypatch.setattr(doctor, "DISK_BYTES", 1 << 60)
    monkeypatch.setattr(doctor, "MEMORY_BYTES", 1 << 60)
    checks = examine(settings)
    assert "WAYBILL_HOME" in named(checks, "disk").remedy
    assert not named(checks, "memory").ok


def test_this_environment_has_the_pinned_packages(settings: Settings) -> None:
    here = settings.model_copy(update={"dags_dir": Path(__file__).parents[3] / "dags"})
    packages = named(examine(here), "packages")
    assert packages.ok, packages.found
