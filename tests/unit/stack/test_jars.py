from __future__ import annotations

import shutil
from hashlib import sha256
from pathlib import Path

import pytest

from waybill.errors import InputError, RetryError
from waybill.stack import jars


@pytest.fixture
def some(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Two small locked files, and what `Ivy` would bring: the folder it 'downloads' from."""
    lock = [
        jars.Jar(sha256(b"one").hexdigest(), "kafka/one-1.jar", "org.a", "one", "1"),
        jars.Jar(sha256(b"two").hexdigest(), "spark/two-2.jar", "org.b", "two", "2"),
    ]
    source = tmp_path / "source"
    for jar, content in zip(lock, (b"one", b"two"), strict=True):
        (source / jar.file).parent.mkdir(parents=True)
        (source / jar.file).write_bytes(content)
    asked: list[list[str]] = []

    def bring(wanted, scratch: Path, _cache: Path) -> str:
        asked.append([jar.name for jar in wanted])
        shutil.copytree(source, scratch, dirs_exist_ok=True)
        return "SERVER ERROR: Bad Gateway"

    monkeypatch.setattr(jars, "locked", lambda: lock)
    monkeypatch.setattr(jars, "_run_ivy", bring)
    return source, asked


def test_the_lock_has_what_kafka_and_spark_need_and_no_more() -> None:
    files = [jar.file for jar in jars.locked()]
    assert sum(f.startswith("kafka/") for f in files) == 46
    assert [f.split("/")[1].rsplit("-", 1)[0] for f in files if f.startswith("spark/")] == [
        "commons-pool2",
        "kafka-clients",
        "spark-sql-kafka-0-10_2.13",
        "spark-tags_2.13",
        "spark-token-provider-kafka-0-10_2.13",
    ]
    assert not any("hadoop" in f for f in files)


def test_only_what_is_missing_is_fetched(some, tmp_path: Path) -> None:
    _, asked = some
    root = tmp_path / "jars"
    assert jars.ensure(root) == 2
    assert jars.ensure(root) == 0
    (root / "spark/two-2.jar").unlink()
    assert jars.ensure(root) == 1
    assert asked == [["one", "two"], ["two"]]


def test_a_torn_jar_is_fetched_again(some, tmp_path: Path) -> None:
    root = tmp_path / "jars"
    jars.ensure(root)
    (root / "kafka/one-1.jar").write_bytes(b"o")
    assert [jar.name for jar in jars.missing(root)] == ["one"]
    jars.ensure(root)
    assert (root / "kafka/one-1.jar").read_bytes() == b"one"


def test_a_jar_that_is_not_the_locked_one_is_not_taken(some, tmp_path: Path) -> None:
    source, _ = some
    (source / "kafka/one-1.jar").write_bytes(b"evil")
    with pytest.raises(InputError, match=r"kafka/one-1\.jar arrived with sha256"):
        jars.ensure(tmp_path / "jars")
    assert not (tmp_path / "jars/kafka/one-1.jar").exists()


def test_a_failed_download_keeps_what_came_and_says_what_ivy_said(some, tmp_path: Path) -> None:
    source, asked = some
    (source / "spark/two-2.jar").unlink()
    with pytest.raises(RetryError, match=r"could not fetch spark/two-2.jar(.|\n)*Bad Gateway"):
        jars.ensure(tmp_path / "jars")
    (source / "spark/two-2.jar").write_bytes(b"two")
    assert jars.ensure(tmp_path / "jars") == 1
    assert asked[-1] == ["two"]


def test_ivy_is_asked_for_each_artifact_by_itself() -> None:
    text = jars._ivy_file(jars.locked())
    assert text.count('transitive="false"') == len(jars.locked())
    assert jars._ivy_jar().exists()


def test_every_jar_is_asked_for_once_by_a_call_with_a_cache_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[list[str]] = []
    caches: list[Path] = []

    def call(wanted, _scratch: Path, cache: Path) -> str:
        asked.append([jar.file for jar in wanted])
        caches.append(cache)
        return f"{len(wanted)} "

    monkeypatch.setattr(jars, "_call_ivy", call)
    said = jars._run_ivy(jars.locked(), tmp_path, tmp_path / "ivy")
    assert sorted(file for files in asked for file in files) == sorted(
        jar.file for jar in jars.locked()
    )
    assert sum(map(int, said.split())) == len(jars.locked())
    assert len(set(caches)) == len(asked) > 4
    assert all(len({file.split("/")[0] for file in files}) == 1 for files in asked)
