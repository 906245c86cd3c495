from __future__ import annotations

from pathlib import Path

import pytest

from waybill.errors import InputError
from waybill.stack import java


def fake_java(folder: Path, says: str, code: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "java"
    script.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{says}\nEND\nexit {code}\n")
    script.chmod(0o755)
    return script


def only_path(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin" if folder.name == "fake" else str(folder))


def test_no_java_says_which_command_installs_it(monkeypatch, tmp_path: Path) -> None:
    only_path(monkeypatch, tmp_path / "empty")
    with pytest.raises(
        InputError, match=r"missing: no `java` .*apt-get install -y openjdk-17-jre-headless"
    ):
        java.find_java()


@pytest.mark.parametrize(
    "says", ['openjdk version "11.0.2" 2019-01-15', 'java version "1.8.0_292"']
)
def test_an_old_java_says_its_version_and_what_to_install(monkeypatch, tmp_path, says) -> None:
    fake_java(tmp_path / "fake", says)
    only_path(monkeypatch, tmp_path / "fake")
    with pytest.raises(InputError, match=r"is Java (11|8)\. Java 17 or newer is needed: apt-get"):
        java.find_java()


@pytest.mark.parametrize(
    ("says", "version"), [('openjdk version "17.0.15"', 17), ('version "25"', 25)]
)
def test_a_new_java_is_taken(monkeypatch, tmp_path: Path, says: str, version: int) -> None:
    script = fake_java(tmp_path / "fake", f"Picked up JAVA_TOOL_OPTIONS: -Xmx1g\n{says} 2025-04-15")
    only_path(monkeypatch, tmp_path / "fake")
    assert java.find_java() == java.Java(script, version)


def test_java_home_wins_over_the_path(monkeypatch, tmp_path: Path) -> None:
    fake_java(tmp_path / "fake", 'openjdk version "11"')
    only_path(monkeypatch, tmp_path / "fake")
    script = fake_java(tmp_path / "jdk" / "bin", 'openjdk version "21.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert java.find_java().path == script


def test_a_wrong_java_home_is_named_and_not_answered_with_an_install(
    monkeypatch, tmp_path: Path
) -> None:
    script = fake_java(tmp_path / "fake", 'openjdk version "17"')
    only_path(monkeypatch, tmp_path / "fake")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(java.JavaError) as caught:
        java.find_java()
    assert caught.value.found == f"JAVA_HOME={tmp_path} is wrong: it has no bin/java"
    assert f"unset it to use {script}" in caught.value.remedy
    assert "apt-get" not in str(caught.value)


def test_a_java_home_of_an_old_java_is_named(monkeypatch, tmp_path: Path) -> None:
    only_path(monkeypatch, tmp_path / "empty")
    fake_java(tmp_path / "jdk" / "bin", 'openjdk version "11"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'empty'}:/bin")
    with pytest.raises(InputError, match=r"is Java 11\. Let JAVA_HOME name .* or unset it"):
        java.find_java()


def test_a_java_that_fails_shows_what_it_said(monkeypatch, tmp_path: Path) -> None:
    fake_java(tmp_path / "fake", "Error: could not find libjava.so", code=2)
    only_path(monkeypatch, tmp_path / "fake")
    with pytest.raises(InputError, match=r"could not find libjava\.so"):
        java.find_java()
