"""Locks of C libraries at a fork: a fork waits for young clients; a child is told, and never hangs."""

import ast
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

from waybill.producer import forks
from waybill.producer.components import REAL

NOBODY = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
WORKED, TOLD, HUNG = 0, 3, -signal.SIGKILL

FORKING = textwrap.dedent(
    """
    import collections, os, signal, socket, sys, threading, time
    from waybill.errors import StopError
    from waybill.producer import forks
    from waybill.producer.components import REAL

    NOBODY = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    forks.LOCKS_LIMIT_S = 2.0
    client = REAL.client(NOBODY)

    def resolve():
        while True:
            socket.getaddrinfo("127.0.0.1", None, flags=socket.AI_ADDRCONFIG)

    for _ in range(8):
        threading.Thread(target=resolve, daemon=True).start()

    ends = collections.Counter()
    while ends[3] < 3 and sum(ends.values()) < 200:
        child = os.fork()
        if child == 0:
            try:
                REAL.client(NOBODY)
            except StopError as error:
                os._exit(3 if "fork again" in str(error) else 4)
            os._exit(0)
        limit = time.monotonic() + 120
        done = 0
        while not done and time.monotonic() < limit:
            done, status = os.waitpid(child, os.WNOHANG)
            time.sleep(0.005)
        if not done:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
        ends[os.waitstatus_to_exitcode(status)] += 1
    print(dict(ends))
    sys.stdout.flush()
    os._exit(0)
    """
)


def test_a_child_that_inherited_a_taken_lock_is_told_instead_of_hanging():
    """Eight threads that resolve addresses hold glibc's lock at nearly every fork."""
    ended = (
        subprocess.run(  # in a process of its own: pytest's must not be forked with such threads
            [sys.executable, "-c", FORKING],
            capture_output=True,
            text=True,
            timeout=1200,
            check=True,
        )
    )
    ends = ast.literal_eval(ended.stdout)
    assert ends.get(TOLD, 0) >= 1, ended.stdout
    assert set(ends) <= {WORKED, TOLD}, ended.stdout


def test_a_fork_waits_until_the_newest_client_has_had_time_to_connect():
    began = time.monotonic()
    client = REAL.client(NOBODY)
    child = os.fork()
    if child == 0:
        os._exit(0)
    waited = time.monotonic() - began
    os.waitpid(child, 0)
    assert waited >= forks.SETTLING_S
    del client


def test_forks_of_older_clients_do_not_wait(monkeypatch):
    slept, sleep, own = [], time.sleep, threading.get_ident()

    def noted(seconds):
        if threading.get_ident() != own:  # a thread that another test left would spin
            return sleep(seconds)
        return slept.append(seconds)

    client = REAL.client(NOBODY)
    time.sleep(forks.SETTLING_S)
    monkeypatch.setattr(time, "sleep", noted)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert slept == []
    del client
