"""Nodes that are processes of this machine: for hosts without compose, for tests and development.

A node is two registered processes (see `processes`): a worker, which leads the node, and its
enhancer, which reports for it and drains it. Both have the node's name in the registry::

    <home>/run/loopback-<kind>-<8 hex>.json             the worker
    <home>/run/loopback-<kind>-<8 hex>-enhancer.json    its enhancer
    <home>/run/loopback-<kind>.lock                     held by who looks or starts
    <home>/run/loopback-<kind>.failures                 workers that ended soon after their start

N1  No orphan, no double: a process is recorded before its first instruction, and has the lock until
    then. Whoever dies between starting and recording, the next look waits for the record.
N2  A node whose worker is gone is no node: what it left in its session is ended, and its enhancer.
N3  A worker without its enhancer gets another one.
N4  ``waybill down`` ends them all, at once.
N5  A node's own folder goes with it, also where somebody died between the two.
N6  A command whose workers end soon after their start is not run each minute: after the second in a
    row the next start waits, each time twice as long, and who asks for nodes is told why there are
    none. Another command is tried at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from waybill.back_off import BackOff
from waybill.capacity import NodeKind
from waybill.errors import InputError, RetryError
from waybill.stack import processes, state_folder
from waybill.stack.processes import Launch, ProcessRecord

_LOCK_S = 60.0
_RECORDED_S = 60.0
_POLL_S = 0.05
_ENHANCER = "-enhancer"
_SOON_S = 180.0
"""A worker that is found dead so long after its start, or sooner, never was one. Looks are a minute
apart, so it may have lived for two of these three."""
_BACK_OFF = BackOff(60.0, 900.0)


@dataclass(frozen=True)
class NodeCommands:
    """How the two processes of a node are started; environments are whole."""

    worker: Sequence[str]
    worker_env: Mapping[str, str]
    enhancer: Sequence[str]
    enhancer_env: Mapping[str, str]
    ports: Mapping[str, int] = field(default_factory=dict)
    """Of the worker; its record has them."""
    setting: str = ""
    """That gives the worker's command, for who has to mend it."""

    def digest(self, node: str) -> str:
        """Return what tells the worker's command from others, whatever node and ports it is for."""
        drawn = set(map(str, self.ports.values()))
        words = json.dumps(
            ["" if word in drawn else word.replace(node, "") for word in self.worker]
        )
        return hashlib.sha256(words.encode()).hexdigest()


@dataclass(frozen=True)
class _Failures:
    """Workers in a row that ended soon after their start, as ``*.failures`` keeps them."""

    count: int = 0
    at_s: float = 0.0
    """When the last one was found dead, since the epoch."""
    node: str = ""
    """Its name."""
    command: str = ""
    """Digest of its command."""

    @classmethod
    def read(cls, path: Path) -> _Failures:
        """Return those of a file; none where there is none, or none that can be read."""
        try:
            raw = json.loads(path.read_text())
            return cls(int(raw["count"]), float(raw["at_s"]), str(raw["node"]), str(raw["command"]))
        except (OSError, ValueError, KeyError, TypeError):
            return cls()

    @property
    def wait_s(self) -> float:
        """Return how long nothing is started yet; the first is started again at once."""
        passed_s = max(0.0, time.time() - self.at_s)
        return max(0.0, _BACK_OFF.wait_s(self.count - 1) - passed_s) if self.count else 0.0


class LoopbackNodes:
    """Nodes of one kind, as processes of this machine; see `waybill.capacity.NodeBackend`.

    Args:
        kind: of nodes.
        home: the state folder.
        commands: returns the commands of a node, by its name.
        grace_s: that a drained worker has to end, then it is killed.
        folders: has a folder of each node, by its name, that nobody needs without it; None: they
            have none.
    """

    acts = True

    def __init__(
        self,
        kind: NodeKind,
        home: Path,
        commands: Callable[[str], NodeCommands],
        *,
        grace_s: float = 60.0,
        folders: Path | None = None,
    ) -> None:
        self.name = f"{kind} processes on loopback"
        self._home, self._run = home.absolute(), home.absolute() / "run"
        self._prefix, self._commands, self._grace_s = f"loopback-{kind}-", commands, grace_s
        self._failures = self._run / f"loopback-{kind}.failures"
        self._folders = folders

    def nodes(self) -> list[str]:
        """Return the nodes whose worker lives; what others left is ended, what lacks is started.

        Raises:
            RetryError: another process is at work here.
            InputError: a process cannot be started.
        """
        with self._claimed() as claim:
            return self._looked(claim)

    def resize(self, total: int) -> None:
        """Start what is missing.

        Raises:
            RetryError: another process is at work here.
            InputError: a process cannot be started, or those that were started ended at once.
        """
        with self._claimed() as claim:
            for _ in range(total - len(self._looked(claim))):
                name = self._prefix + secrets.token_hex(4)
                self._require_startable(name)
                self._start(name, name, claim)
                self._start(name + _ENHANCER, name, claim)

    def remove(self, node: str) -> None:
        """End a node, its worker first; one that is gone changes nothing. Raises as ``nodes``."""
        with self._claimed():
            if node in self._names():
                for name in (node, node + _ENHANCER):
                    if record := self._record(name):
                        processes.end(record, grace_s=self._grace_s)
            self._clear()

    def _looked(self, claim: int) -> list[str]:
        """Mend what somebody's death left, and return who lives."""
        found, young = [], []
        for name in self._names():
            worker, enhancer = self._record(name), self._record(name + _ENHANCER)
            if worker is None or worker.process() is None:
                if worker is not None and abs(time.time() - worker.create_time) <= _SOON_S:
                    young.append(name)
                for record in filter(None, (enhancer, worker)):
                    processes.end(record, grace_s=0 if record is worker else 5.0)
                continue
            found.append(name)
            if enhancer is None or enhancer.process() is None:
                self._start(name + _ENHANCER, name, claim)
        self._count(found, young)
        self._clear()
        return found

    def _count(self, living: Sequence[str], young: Sequence[str]) -> None:
        """Keep who ended soon after its start; a worker that came later, and stays, ends the row.

        Only the last one's logs stay: there may be a hundred a day.
        """
        before = _Failures.read(self._failures)
        if not young:
            if before.count and any(map(self._stays, living)):
                self._failures.unlink(missing_ok=True)
            return
        last = young[-1]
        command = self._commands(last).digest(last)
        count = before.count + 1 if before.command == command else 1
        kept = {"count": count, "at_s": time.time(), "node": last, "command": command}
        state_folder.write_private(self._failures, json.dumps(kept))
        for name in filter(None, {before.node, *young} - {last}):
            for log in (self._log(name), self._log(name + _ENHANCER)):
                log.unlink(missing_ok=True)

    def _stays(self, name: str) -> bool:
        """Tell whether a worker was started after the last that ended, and is no young one."""
        record, before = self._record(name), _Failures.read(self._failures)
        if record is None or record.create_time < before.at_s:
            return False
        return time.time() - record.create_time > _SOON_S

    def _require_startable(self, name: str) -> None:
        """Refuse a command that is not there, or whose workers end as soon as they are started.

        Raises:
            InputError: what is wrong, where it shows, and when the next try is.
        """
        own, failures = self._commands(name), _Failures.read(self._failures)
        setting = f", by {own.setting}," if own.setting else ""
        program = own.worker[0] if own.worker else ""
        place = str(self._home / program) if os.sep in program else program
        if shutil.which(place, path=own.worker_env.get("PATH")) is None:
            raise InputError(
                f"{self.name}: the command of a worker{setting} begins with {program!r:.80}, and "
                "there is no such program"
            )
        if failures.command == own.digest(name) and failures.wait_s > 0:
            raise InputError(
                f"{self.name}: {failures.count} times in a row a worker ended within "
                f"{_SOON_S / 60:.0f} min of its start. Its command{setting} begins with "
                f"{program!r:.80}; why it ended is in {self._log(failures.node)}. The next try is "
                f"in {failures.wait_s:.0f} s, or as soon as the command is another one"
            )

    def _log(self, name: str) -> Path:
        return self._home / "logs" / f"{name}.log"

    def _clear(self) -> None:
        """Remove the folders of nodes that are gone."""
        known = self._names()
        for folder in self._folders.glob(f"{self._prefix}*") if self._folders else ():
            if folder.name not in known:
                shutil.rmtree(folder, ignore_errors=True)

    def _names(self) -> list[str]:
        """Return the nodes that have a record, of a worker or an enhancer."""
        stems = (path.stem for path in self._run.glob(f"{self._prefix}*.json"))
        return sorted({stem.removesuffix(_ENHANCER) for stem in stems})

    def _record(self, name: str) -> ProcessRecord | None:
        return processes.read_record(self._run / f"{name}.json")

    def _start(self, name: str, node: str, claim: int) -> None:
        own = self._commands(node)
        is_worker = name == node
        command, env = (
            (own.worker, own.worker_env) if is_worker else (own.enhancer, own.enhancer_env)
        )
        log = self._log(name)
        state_folder.rotate(log)
        launched = Launch(name, command, env, self._home, log, own.ports if is_worker else {})
        try:
            child = processes.spawn(self._run, launched, claim=claim)
        except OSError as error:
            raise InputError(f"{name} is not started: {error}") from error
        self._await_record(name, child.poll)

    def _await_record(self, name: str, exit_code: Callable[[], int | None]) -> None:
        """Wait until a process that was started is recorded."""
        until = time.monotonic() + _RECORDED_S
        while self._record(name) is None:
            if (code := exit_code()) is not None:
                raise InputError(f"{name} ended with {code} before it was recorded")
            if time.monotonic() > until:
                raise RetryError(f"{name} is not recorded after {_RECORDED_S:.0f} s")
            time.sleep(_POLL_S)

    @contextmanager
    def _claimed(self) -> Iterator[int]:
        """Hold the lock, as a descriptor that a started process may share."""
        self._run.mkdir(parents=True, exist_ok=True, mode=0o700)
        claim = os.open(self._run / f"{self._prefix[:-1]}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            until = time.monotonic() + _LOCK_S
            while True:
                try:
                    fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise RetryError(
                            f"another process starts {self.name}: its lock in {self._run} is taken"
                        ) from None
                    time.sleep(_POLL_S)
            yield claim
        finally:
            os.close(claim)


__all__ = ["LoopbackNodes", "NodeCommands"]
