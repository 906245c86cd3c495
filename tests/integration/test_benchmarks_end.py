"""A benchmark that is ended leaves nothing running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests import servers

pytestmark = pytest.mark.serves
BENCHMARKS = Path(servers.__file__).parent / "benchmarks"
CODE = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
from tests.benchmarks.home import opened_home
with opened_home() as (home, stack):
    from tests import servers
    stack.callback(print, "closed", flush=True)
    print(home, servers.start_s3(home).pid, flush=True)
    time.sleep(120)
"""


@pytest.fixture
def benchmark(tmp_path):
    """A benchmark that runs: its process, its folder, and the object store's process."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "WAYBILL_NO_SUCH_SETTING": "1"}
    child = subprocess.Popen(
        [sys.executable, "-c", CODE],
        env=environment,
        cwd=servers.CHECKOUT,
        stdout=subprocess.PIPE,
        text=True,
    )
    home, pid = child.stdout.readline().split()
    yield child, Path(home), psutil.Process(int(pid))
    child.kill()
    child.wait()
    if Path(home).exists():
        servers.end_home(Path(home))


def runs(process):
    """Tell whether a process runs; one that nobody has buried yet does not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.campaign
def test_a_signal_ends_its_servers_too(benchmark, number):
    child, home, store = benchmark
    assert runs(store)
    child.send_signal(number)
    out, _ = child.communicate(timeout=240)
    assert out == "closed\n"
    assert child.returncode == (128 + number if number == signal.SIGTERM else -number)
    assert not runs(store)
    assert not home.exists()


@pytest.mark.campaign
def test_a_second_signal_does_not_break_the_ending_off(benchmark):
    child, home, store = benchmark
    child.send_signal(signal.SIGTERM)
    servers.wait_for(lambda: child.stdout.readline() == "closed\n")
    child.send_signal(signal.SIGTERM)
    assert child.wait(240) == 128 + signal.SIGTERM
    assert not runs(store)
    assert not home.exists()


def test_every_benchmark_with_servers_has_them_in_such_a_home():
    runnable = {p.name: p.read_text() for p in BENCHMARKS.glob("*.py")}
    runnable = {n: text for n, text in runnable.items() if "def main()" in text}
    del runnable["clusters.py"]  # on a simulated clock, without a server
    del runnable["shapes.py"]  # in its own process
    del runnable["collector_load.py"]  # sends to the collector of ingestion.py
    del runnable[
        "ingestion_ways.py"
    ]  # one way of reading, in a process of its own, for ingestion.py
    del runnable["airflow_parses.py"]  # its program makes parses, for airflow.py
    assert len(runnable) >= 5
    assert [name for name, text in runnable.items() if "with opened_home()" not in text] == []
    assert [name for name, text in runnable.items() if "new_home()" in text] == []
