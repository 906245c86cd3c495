"""The Spark session's own configuration, and whether it has executors."""

from __future__ import annotations

from pathlib import Path

import pytest

from waybill.clusters import SET_BY_WAYBILL
from waybill.errors import StopError
from waybill.processing.spark import executor_watch, session
from waybill.processing.spark.executor_watch import FIRST_S, LOST_S, ExecutorWatch, has_executors
from waybill.processing.spark.session import session_options
from waybill.settings import SparkSettings


def test_whatever_a_session_sets_is_refused_of_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "spark-sql-kafka-0-10_2.13-4.0.5.jar").touch()
    options = session_options(SparkSettings(jars_dir=tmp_path), max_cores=1, memory_mb=1024)
    assert {"spark.jars", "spark.executor.memory", "spark.master"} <= SET_BY_WAYBILL.keys()
    assert options.keys() - SET_BY_WAYBILL.keys() == set()


def test_checkpoints_of_every_query_are_written_with_few_child_processes(tmp_path: Path) -> None:
    (tmp_path / "spark-sql-kafka-0-10_2.13-4.0.5.jar").touch()
    options = session_options(SparkSettings(jars_dir=tmp_path))
    name = "spark.sql.streaming.checkpointFileManagerClass"
    assert options[name].endswith(".FileSystemBasedCheckpointFileManager")
    assert SET_BY_WAYBILL[name] == "", "a cluster cannot set it"


class Executors:
    """How many there are, and the clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count: int | None = 0
        self.now_s = 1000.0
        monkeypatch.setattr(executor_watch.time, "monotonic", lambda: self.now_s)
        self.watch = ExecutorWatch(lambda: self.count, "spark://there:7077")

    def look(self, count: int | None, *, after_s: float = 1.0) -> bool:
        self.count, self.now_s = count, self.now_s + after_s
        return self.watch.look()


@pytest.fixture
def executors(monkeypatch: pytest.MonkeyPatch) -> Executors:
    return Executors(monkeypatch)


def test_an_application_waits_long_for_its_first_executor_and_is_not_at_work(
    executors: Executors,
) -> None:
    assert not executors.look(0)
    assert not executors.look(0, after_s=FIRST_S - 1)
    with pytest.raises(StopError, match=r"no executor for 300 s.*spark://there:7077"):
        executors.look(0)


def test_an_application_whose_executors_are_gone_ends_soon(executors: Executors) -> None:
    assert executors.look(2)
    assert not executors.look(0)
    assert not executors.look(0, after_s=LOST_S - 1)
    assert executors.look(1), "they are back"
    assert not executors.look(0, after_s=LOST_S), "it begins anew"
    with pytest.raises(StopError, match="no executor for 60 s"):
        executors.look(0, after_s=LOST_S)


def test_executors_that_are_not_needed_now_are_not_missed(executors: Executors) -> None:
    assert executors.look(1)
    assert executors.look(None)
    assert executors.look(None, after_s=2 * FIRST_S)
    assert not executors.look(0)
    assert not executors.look(0, after_s=LOST_S), "it waits for a first one again"
    with pytest.raises(StopError):
        executors.look(0, after_s=FIRST_S)


def test_a_local_master_works_in_the_driver() -> None:
    masters = ["local", "local[2,4]", "local[*]", "local-cluster[2,1,1024]", "spark://a:1", "yarn"]
    assert [has_executors(one) for one in masters] == [False] * 3 + [True] * 3


def test_a_drivers_java_idles_cheaply_unless_somebody_chose_its_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in session._JAVA_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    name = "spark.driver.defaultJavaOptions"
    assert session._java_options({}, is_light=False) == {name: "-XX:-UsePerfData -XX:+UseSerialGC"}
    light = session._java_options({}, is_light=True)[name]
    assert light.split()[1:] == ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    own = {"spark.driver.extraJavaOptions": "-Dx=1 -XX:+UseZGC"}
    assert session._java_options(own, is_light=False) == {name: "-XX:-UsePerfData"}
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xshare:auto -XX:+UseG1GC")
    assert session._java_options({}, is_light=False) == {name: "-XX:-UsePerfData"}
