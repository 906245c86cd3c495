"""A node of worker processes, tasks that wait or burn, and an enhancer: ``make bench-ingestion``.

``enhancer_io_speedup``  tasks a second of a node with an enhancer against one without, where tasks wait
``enhancer_cpu_ratio``   the same where they burn CPU

Tasks that wait read from a server on loopback that answers after 0.3 s; those that burn use 0.15 s
of CPU. The node begins with as many workers as it has cores, and has always more to do. Its usage
is that of its own processes, as a node has a machine of its own: others that are busy on this one
change nothing. The product's enhancer looks twice a second.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Literal

import psutil

from waybill.capacity import Enhancer, EnhancerLimits, Usage

TaskKind = Literal["io", "cpu"]
WAIT_S, BURN_S = 0.3, 0.15
LOOK_S = 0.5
CORES = len(os.sched_getaffinity(0))
LIMITS = EnhancerLimits(configured=CORES, most=8 * CORES)


class Node:
    """Workers, each a thread that hands tasks to a process of its own."""

    def __init__(self, kind: TaskKind, port: int) -> None:
        self._kind, self._port = kind, port
        self._size = self._spawned = 0
        self._running = 0
        self.done = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self.resize(CORES, now=0)

    def read(self) -> tuple[int, int]:
        """Return (workers, running tasks)."""
        with self._lock:
            return self._size, self._running

    def resize(self, workers: int, *, now: int) -> None:
        """Have so many workers: one that is too many ends behind its task."""
        del now
        with self._lock:
            self._size = workers
            for number in range(self._spawned, workers):
                thread = threading.Thread(target=self._work, args=(number,))
                self._threads.append(thread)
                thread.start()
            self._spawned = max(self._spawned, workers)

    def drain(self) -> None:
        """Take no new task: each worker ends behind the one that it has."""
        with self._lock:
            self._size = 0

    def close(self) -> None:
        """End all."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _work(self, number: int) -> None:
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(
            target=_serve, args=(theirs, self._kind, self._port)
        )
        child.start()
        theirs.close()
        while not self._ended.is_set():
            if number >= self._size:
                self._ended.wait(0.05)
                continue
            with self._lock:
                self._running += 1
            ours.send("task")
            ours.recv()
            with self._lock:
                self._running -= 1
                self.done += 1
        ours.send("end")
        child.join()


def _serve(tasks: Connection, kind: TaskKind, port: int) -> None:
    while True:
        if tasks.recv() == "end":
            return
        if kind == "io":
            with socket.create_connection(("127.0.0.1", port)) as slow:
                slow.recv(1)
        else:
            until = time.process_time() + BURN_S
            while time.process_time() < until:
                pass
        tasks.send("done")


class NodeUsage:
    """How much of the cores the children of this process use, since the call before."""

    def __init__(self) -> None:
        self._before: dict[tuple[int, float], float] = {}
        self._at = time.monotonic()
        self()

    def __call__(self) -> Usage:
        """Return it."""
        now = dict(_cpu_times())
        at = time.monotonic()
        passed, self._at = max(at - self._at, 0.001), at
        used = sum(spent - self._before.get(key, 0.0) for key, spent in now.items())
        self._before = now
        return Usage(min(1.0, used / passed / CORES), 0.0, psutil.virtual_memory().percent / 100)


def _cpu_times() -> Iterator[tuple[tuple[int, float], float]]:
    for process in psutil.Process().children(recursive=True):
        try:
            times = process.cpu_times()
            yield (process.pid, process.create_time()), times.user + times.system
        except psutil.NoSuchProcess:
            continue


@contextmanager
def slow_server() -> Iterator[int]:
    """Answer on loopback after ``WAIT_S``; gives the port."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        thread = threading.Thread(target=_answer, args=(server,), daemon=True)
        thread.start()
        yield server.getsockname()[1]


def _answer(server: socket.socket) -> None:
    while True:
        try:
            client, _ = server.accept()
        except OSError:
            return
        threading.Timer(WAIT_S, _reply, [client]).start()


def _reply(client: socket.socket) -> None:
    with client:
        client.sendall(b".")


def tasks_per_s(kind: TaskKind, port: int, *, seconds: float, enhanced: bool) -> float:
    """Return how many tasks a node does a second, with or without an enhancer."""
    node, usage = Node(kind, port), NodeUsage()
    enhancer = Enhancer(node, usage, LIMITS)
    began = time.monotonic()
    try:
        while time.monotonic() < began + seconds:
            time.sleep(LOOK_S)
            if enhanced:
                enhancer.look()
        return node.done / (time.monotonic() - began)
    finally:
        node.close()


def run(seconds: float) -> dict[str, float]:
    """Return the figures, of four runs of so many seconds."""
    ratios: dict[TaskKind, float] = {}
    kinds: Collection[TaskKind] = ("io", "cpu")
    with slow_server() as port:
        for kind in kinds:
            alone = tasks_per_s(kind, port, seconds=seconds, enhanced=False)
            if not alone:
                raise SystemExit(f"no task ended within {seconds} s: the machine is too busy")
            ratios[kind] = tasks_per_s(kind, port, seconds=seconds, enhanced=True) / alone
    return {
        "enhancer_io_speedup": round(ratios["io"], 3),
        "enhancer_cpu_ratio": round(ratios["cpu"], 3),
    }
