"""Where a producer meets what is outside: disk, lock, Kafka, threads. Tests bring their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from waybill.producer.background import Background, Threads
from waybill.producer.forks import note_client
from waybill.producer.lock import DirectoryLock
from waybill.producer.tail import Tail, TailReader
from waybill.producer.wal import Disk, RealDisk


class Lock(Protocol):
    """One live process a directory."""

    def release(self) -> None:
        """Let the next one in."""


MakeTail: TypeAlias = Callable[[Mapping[str, object], bytes, Callable[[], bool]], TailReader]


def _client(config: dict[str, object]) -> Any:
    from confluent_kafka import Producer

    note_client()
    return Producer(config)


def _lock(directory: Path) -> Lock:
    directory.mkdir(parents=True, exist_ok=True)
    return DirectoryLock(directory)


@dataclass(frozen=True, slots=True)
class Environment:
    """How the things outside are got; each call returns a new one."""

    disk: Disk = field(default_factory=RealDisk)
    lock: Callable[[Path], Lock] = _lock
    """Makes the directory and locks it; raises ``ProducerBusyError``."""
    client: Callable[[dict[str, object]], Any] = _client
    """Of librdkafka's settings: what ``Sender`` uses of a ``confluent_kafka.Producer``."""
    tail: MakeTail = Tail
    background: Callable[[threading.Event], Background] = Threads


REAL = Environment()
