"""Airflow parses each DAG file again and again: it must be fast, offline and light."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.dags.conftest import ROOT

FILES = sorted(path.name for path in (ROOT / "dags").glob("*.py"))
FORBIDDEN = {
    "pyspark",
    "boto3",
    "botocore",
    "confluent_kafka",
    "duckdb",
    "pandas",
    "numpy",
    "pyarrow",
    "rocksdict",
    "psycopg",
    "psycopg2",
    "sqlalchemy",
    "alembic",
    "adbc_driver_manager",
}
MOST_S = 1.0

# In a fresh interpreter: import Airflow, then one forked child a file. No child sees another's
# modules, and none may open a connection. Seconds are those of the clock without those in which
# other processes had the cores: a file that sleeps is slow, one on a busy machine is not. How many
# times slower than an idle one the machine is at the moment, a loop tells.
PROBE = """
import importlib.machinery, importlib.util, json, os, socket, sys, time
import airflow.sdk, airflow.dag_processing.dagbag

def refuse(*arguments):
    raise OSError(f"a DAG file opened a connection: {arguments[1:]}")

def waited():
    # Seconds in which this process could have run and had no core (0 where the kernel keeps no such count).
    try:
        with open("/proc/self/schedstat") as stream:
            return int(stream.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0

def slowness():
    start = time.process_time()
    for _ in range(1_000_000):
        pass
    return max(1.0, (time.process_time() - start) / 0.03)

def probe(path, out):
    slower = slowness()
    socket.socket.connect = refuse
    socket.getaddrinfo = refuse
    before = set(sys.modules)
    start = time.perf_counter() - waited()
    loader = importlib.machinery.SourceFileLoader("parsed_dag_file", path)
    spec = importlib.util.spec_from_loader("parsed_dag_file", loader)
    loader.exec_module(importlib.util.module_from_spec(spec))
    seconds = time.perf_counter() - waited() - start
    new = sorted({name.split(".")[0] for name in set(sys.modules) - before})
    slower = max(slower, slowness())
    os.write(out, json.dumps({"seconds": seconds, "new": new, "slower": slower}).encode())

results = {}
for path in sys.argv[1:]:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            probe(path, write)
        except BaseException as error:
            os.write(write, json.dumps({"error": repr(error)}).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        results[os.path.basename(path)] = json.loads(stream.read())
    os.waitpid(child, 0)
print("RESULTS" + json.dumps(results))
"""


def _probe(paths: list[Path]) -> dict[str, dict]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *map(str, paths)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**_environment()},
        timeout=600,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULTS")]
    assert lines, done.stdout + done.stderr
    return json.loads(lines[0].removeprefix("RESULTS"))


def _environment() -> dict[str, str]:
    import os

    path = [str(ROOT / "include"), str(ROOT / "plugins"), *filter(None, sys.path)]
    return {**os.environ, "PYTHONPATH": ":".join(path)}


@pytest.fixture(scope="module")
def probed(tmp_path_factory):
    """The DAG files, and three files that each do what is forbidden; Airflow is imported once."""
    folder = tmp_path_factory.mktemp("forbidden")
    heavy, online, slow = (folder / f"{name}.py" for name in ("heavy", "online", "slow"))
    heavy.write_text("import psycopg")
    online.write_text("import socket; socket.create_connection(('127.0.0.1', 9))")
    slow.write_text("import time; time.sleep(1.1)")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WAYBILL_HOME", str(folder / "home"))
        patch.setenv("WAYBILL_PIPELINES_DIR", str(ROOT / "include" / "pipelines"))
        return _probe([heavy, online, slow, *(ROOT / "dags" / name for name in FILES)])


def test_every_file_parses_in_under_a_second_offline_without_heavy_modules(probed):
    files = {name: probed[name] for name in FILES}
    for name, result in files.items():
        assert "error" not in result, (name, result)
        assert not FORBIDDEN & set(result["new"]), (name, FORBIDDEN & set(result["new"]))
    slow = files
    for _ in range(3):  # disks and caches are shared too: what was slow is measured again
        slow = {name: slow[name] for name in slow if _is_slow(slow[name])}
        slow = _probe([ROOT / "dags" / name for name in slow]) if slow else {}
    assert not any(map(_is_slow, slow.values())), slow


def _is_slow(result: dict) -> bool:
    return result["seconds"] >= MOST_S * result["slower"]


def test_the_probe_sees_what_it_forbids(probed):
    assert "psycopg" in probed["heavy.py"]["new"]
    assert "opened a connection" in probed["online.py"]["error"]
    assert probed["slow.py"]["seconds"] > MOST_S
