"""N1-N4 and N6 of waybill.stack.nodes, on real processes."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.servers import wait_for
from tests.support import children

from waybill.errors import InputError
from waybill.stack import LoopbackNodes, NodeCommands, processes, read_record
from waybill.stack.processes import ProcessRecord

WORKS = [sys.executable, "-c", "import time; time.sleep(1200)"]
STARTS_A_TASK = [
    sys.executable,
    "-c",
    "import subprocess, sys, time; subprocess.Popen(['sleep', '1200']); time.sleep(1200)",
]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for record in processes.read_registry(tmp_path / "run"):
        processes.end(record, grace_s=0)


def nodes(home: Path, worker: list[str] = WORKS, setting: str = "", **given: Any) -> LoopbackNodes:
    env = dict(os.environ)
    commands = NodeCommands(worker, env, WORKS, env, setting=setting)
    return LoopbackNodes("ingestion", home, lambda _node: commands, **given)


def record(home: Path, name: str) -> ProcessRecord:
    found = read_record(home / "run" / f"{name}.json")
    assert found is not None
    return found


def living(home: Path) -> list[str]:
    return [one.name for one in processes.read_registry(home / "run") if one.process() is not None]


def kill(found: ProcessRecord) -> None:
    os.kill(found.pid, signal.SIGKILL)
    wait_for(lambda: found.process() is None)


def test_there_are_as_many_nodes_as_were_asked_for_and_asking_again_starts_none(home):
    loopback = nodes(home)
    assert loopback.nodes() == []
    loopback.resize(2)
    first = loopback.nodes()
    assert len(first) == 2
    loopback.resize(2)
    assert nodes(home).nodes() == first, "another process finds the same ones"
    assert len(living(home)) == 4, "each has an enhancer"


def test_a_removed_node_is_gone_with_its_enhancer_and_the_others_stay(home):
    loopback = nodes(home, STARTS_A_TASK)
    loopback.resize(2)
    first, second = loopback.nodes()
    below = wait_for(lambda: psutil.Process(record(home, first).pid).children())
    loopback.remove(first)
    loopback.remove(first)
    assert loopback.nodes() == [second]
    assert living(home) == [second, f"{second}-enhancer"]
    assert not any(map(runs, below))
    loopback.remove("postgres")
    loopback.remove("../run/other")
    assert loopback.nodes() == [second], "what is no node of its own is left alone"


def test_a_node_that_died_is_none_any_more_and_what_it_left_is_ended(home):
    loopback = nodes(home, STARTS_A_TASK)
    loopback.resize(1)
    [name] = loopback.nodes()
    below = wait_for(lambda: psutil.Process(record(home, name).pid).children())
    kill(record(home, name))
    assert loopback.nodes() == []
    assert living(home) == []
    assert not any(map(runs, below))
    loopback.resize(1)
    assert loopback.nodes() != [name], "another one has a name of its own"


def test_an_enhancer_that_died_is_started_again_and_the_worker_stays(home):
    loopback = nodes(home)
    loopback.resize(1)
    [name] = loopback.nodes()
    worker, enhancer = record(home, name), record(home, f"{name}-enhancer")
    kill(enhancer)
    assert loopback.nodes() == [name]
    assert record(home, name).pid == worker.pid
    assert record(home, f"{name}-enhancer").pid != enhancer.pid


def runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_killed_between_a_start_and_its_record_leaves_no_orphan_and_no_double(home, number):
    point = (LoopbackNodes, "_await_record", number)
    children.killed(point, lambda: nodes(home).resize(2))
    assert len(nodes(home).nodes()) == (number + 1) // 2, "whoever was started has a record"
    nodes(home).resize(2)
    found = nodes(home).nodes()
    assert len(found) == 2
    assert sorted(living(home)) == sorted([*found, *(f"{one}-enhancer" for one in found)])
    marks = {one.mark for one in processes.read_registry(home / "run")}
    started = [one for one in psutil.process_iter() if processes._mark(one) in marks]
    assert len(started) == 4


@pytest.mark.parametrize("number", [1, 2])
def test_killed_while_a_node_is_removed_leaves_no_half_of_it(home, number):
    nodes(home).resize(1)
    [name] = nodes(home).nodes()
    children.killed((processes, "end", number), lambda: nodes(home).remove(name))
    left = nodes(home).nodes()
    assert left == ([name] if number == 1 else [])
    nodes(home).remove(name)
    assert (nodes(home).nodes(), living(home)) == ([], [])


def test_a_command_that_is_not_there_is_refused_before_a_process_is_started(home):
    for command in (["no-such-worker"], ["/no/such/worker"], ["./worker"], []):
        with pytest.raises(InputError, match="there is no such program"):
            nodes(home, command).resize(1)
    assert living(home) == []
    assert not (home / "logs").exists()


def ended(home: Path) -> None:
    wait_for(lambda: not [name for name in living(home) if not name.endswith("-enhancer")])


def passes(home: Path, seconds: float) -> None:
    """Have the last failure be older."""
    path = home / "run" / "loopback-ingestion.failures"
    kept = json.loads(path.read_text())
    path.write_text(json.dumps(kept | {"at_s": kept["at_s"] - seconds}))


def test_a_command_whose_workers_end_at_once_is_said_and_tried_less_and_less_often(
    home, monkeypatch
):
    fails = [sys.executable, "-c", "raise SystemExit('no module named tasks')"]
    for _ in range(2):
        nodes(home, fails).resize(1)
        ended(home)
        assert nodes(home, fails).nodes() == []
    assert living(home) == [], "their enhancers are ended"
    with pytest.raises(InputError, match="2 times in a row .* by A_SETTING, .* next try") as told:
        nodes(home, fails, setting="A_SETTING").resize(1)
    [log] = (home / "logs").glob("loopback-ingestion-????????.log")
    assert str(log) in str(told.value), "the logs of those before are gone"
    assert "no module named tasks" in log.read_text()
    assert living(home) == [], "none was started"

    passes(home, 61)
    nodes(home, fails).resize(1)
    ended(home)
    assert nodes(home, fails).nodes() == []
    passes(home, 61)
    with pytest.raises(InputError, match=r"3 times in a row .* next try is in [1-5]?\d s"):
        nodes(home, fails).resize(1)

    nodes(home).resize(1)
    assert len(nodes(home).nodes()) == 1, "another command is tried at once"
    later = time.time() + 200
    monkeypatch.setattr(time, "time", lambda: later)
    assert len(nodes(home).nodes()) == 1
    assert not (home / "run" / "loopback-ingestion.failures").exists(), "one that stays ends it"


def test_a_command_that_fails_is_the_same_one_on_another_port(home):
    ports = iter(range(40_000, 50_000))

    def commands(_node: str) -> NodeCommands:
        port, env = next(ports), dict(os.environ)
        fails = [sys.executable, "-c", "raise SystemExit('no memory')", "--port", str(port)]
        return NodeCommands(fails, env, WORKS, env, {"page": port})

    loopback = LoopbackNodes("spark", home, commands)
    for _ in range(2):
        loopback.resize(1)
        ended(home)
        assert loopback.nodes() == []
    with pytest.raises(InputError, match="2 times in a row"):
        loopback.resize(1)


@pytest.mark.parametrize("number", [1, 2])
def test_the_folder_of_a_node_goes_with_it_whoever_dies_meanwhile(home, number):
    folders = home / "nodes"
    loopback = nodes(home, folders=folders)
    loopback.resize(2)
    names = loopback.nodes()
    for name in (*names, "of-somebody-else"):
        (folders / name / "executor").mkdir(parents=True)
    assert loopback.nodes() == names
    gone = names[0]
    children.killed((processes, "end", number), lambda: loopback.remove(gone))
    loopback.nodes()
    loopback.remove(gone)
    assert sorted(one.name for one in folders.iterdir()) == sorted([names[1], "of-somebody-else"])
