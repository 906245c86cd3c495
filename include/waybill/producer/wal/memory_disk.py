"""A disk in memory that loses power, dies at any step and refuses, for tests of what stands on one.

For the tests of this library, and for whoever tests a ``Disk`` user of their own. One thread.

What is written is in the page cache: ``kill`` (SIGKILL) keeps it, ``power_cut`` does not. That
leaves of each 512-byte sector that was written since the last sync the old or the new content, of
each file whose size changed the old or the new size, and of the changes of names since the last
sync of their directory any subset, applied in order. A sync that is refused leaves the pages clean
and the disk as it was, as Linux does.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from random import Random
from typing import Literal, TypeAlias

from waybill.producer.wal.disk import DiskFile, WalFullError

SECTOR_BYTES = 512
Operation: TypeAlias = Literal[
    "make", "resize", "sync", "rename", "link", "remove", "mkdir", "sync_directory", "write"
]


class Killed(BaseException):
    """The process died here. Not an Exception: nothing may handle it."""


class _Node:
    """One file, whatever its names."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.data = _mapping(bytes(size))
        self.believed = b""
        """What the page cache takes for the disk's content."""
        self.durable = b""
        """The disk's content."""

    @property
    def content(self) -> bytes:
        return self.data[: self.size]

    def settle(self, content: bytes) -> None:
        """Have one content everywhere, and nobody's old mapping of it."""
        self.size, self.data = len(content), _mapping(content)
        self.believed = self.durable = content

    def write_back(self) -> None:
        content = self.content
        if content != self.believed:
            self.durable = b"".join(
                new if new != believed else old for new, believed, old in self._sectors(content)
            )
            self.believed = content

    def cut(self, random: Random) -> bytes:
        """Return what a power cut leaves."""
        content = self.content
        parts = (
            new if new != believed and random.random() < 0.5 else old  # noqa: PLR2004 - a coin
            for new, believed, old in self._sectors(content)
        )
        left = b"".join(parts)
        changed = len(content) != len(self.believed)
        size = random.choice([len(content), len(self.durable)]) if changed else len(self.durable)
        return (left + self.durable[len(left) :]).ljust(size, b"\0")[:size]

    def _sectors(self, content: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
        for at in range(0, len(content), SECTOR_BYTES):
            new = content[at : at + SECTOR_BYTES]
            believed = self.believed[at : at + len(new)].ljust(len(new), b"\0")
            yield new, believed, self.durable[at : at + len(new)].ljust(len(new), b"\0")


def _mapping(content: bytes) -> mmap:
    data = mmap(-1, max(1, len(content)))
    data[: len(content)] = content
    return data


@dataclass(frozen=True, slots=True)
class _Change:
    """One change of names in a directory."""

    directory: Path
    removed: Path | None = None
    added: Path | None = None
    node: _Node | None = None

    def apply(self, names: dict[Path, _Node], folders: set[Path]) -> None:
        if self.removed is not None:
            names.pop(self.removed, None)
            folders.discard(self.removed)
        if self.added is not None and self.node is not None:
            names[self.added] = self.node
        elif self.added is not None:
            folders.add(self.added)


class MemoryFile:
    """``DiskFile`` of a ``MemoryDisk``."""

    def __init__(self, disk: MemoryDisk, path: Path, node: _Node) -> None:
        self.path = path
        self.size = node.size
        self.data = node.data
        self._disk = disk
        self._node = node

    def read(self, position: int, size_bytes: int) -> bytes:
        return self._node.content[position : position + size_bytes]

    def touch(self, size_bytes: int) -> None:
        node = self._node
        known = min(size_bytes, len(node.believed))
        node.believed = node.durable[:known].ljust(known, b"\0") + node.believed[known:]

    def sync(self) -> None:
        try:
            with self._disk.step("sync"):
                self._node.write_back()
        except OSError:
            self._node.believed = self._node.content
            raise

    def resize(self, size_bytes: int) -> None:
        with self._disk.step("resize"):
            node = self._node
            content = node.content[:size_bytes].ljust(size_bytes, b"\0")
            node.size, node.data = size_bytes, _mapping(content)
            self.size, self.data = size_bytes, node.data

    def let_go(self) -> None:
        """Nothing is held open here."""

    def close(self) -> None:
        """Nothing is held open here."""


class MemoryDisk:
    """``Disk`` with the faults of one.

    Args:
        capacity_bytes: more than that in all files is "no room".
    """

    def __init__(self, capacity_bytes: int = 2**40) -> None:
        self.capacity_bytes = capacity_bytes
        self.steps = 0
        """Operations so far that changed something or were to make it last."""
        self._names: dict[Path, _Node] = {}
        self._folders: set[Path] = set()
        self._made: set[Path] = set()
        """Folders that were ever made here; others are there for good."""
        self._durable_names: dict[Path, _Node] = {}
        self._durable_folders: set[Path] = set()
        self._pending: list[_Change] = []
        self._refusals: Counter[Operation] = Counter()
        self._kill_at: tuple[int, bool] | None = None
        self._dead = False

    # Faults

    def refuse(self, operation: Operation, times: int = 1) -> None:
        """Have the next ``times`` of an operation fail: EIO, of ``make`` ENOSPC. 0: none."""
        self._refusals[operation] = times

    def kill_at(self, step: int, *, after: bool = False) -> None:
        """Have ``Killed`` raised before (or right after) the ``step``-th operation from now."""
        self._kill_at = (self.steps + step, after)

    def kill(self) -> None:
        """End the process: its mappings are nobody's, all that it wrote stays."""
        for node in self._nodes():
            node.data = _mapping(node.content)
        self._revive()

    def power_cut(self, random: Random) -> None:
        """End the machine; ``random`` decides what the disk has got."""
        for change in self._pending:
            if random.random() < 0.5:  # noqa: PLR2004 - a coin
                change.apply(self._durable_names, self._durable_folders)
        self._pending.clear()
        self._folders = set(self._durable_folders)
        reached = {
            path: node
            for path, node in self._durable_names.items()
            if path.parent in self._folders or path.parent not in self._made
        }
        self._names, self._durable_names = reached, dict(reached)
        for node in self._nodes():
            node.settle(node.cut(random))
        self._revive()

    def write_back(self, random: Random) -> None:
        """Have the disk get, unasked, all of some files, as the kernel does now and then."""
        for node in self._nodes():
            if random.random() < 0.5:  # noqa: PLR2004 - a coin
                node.write_back()

    def flip(self, path: Path, bit: int) -> None:
        """Change one bit of a file, for good."""
        node = self._names[path]
        content = bytearray(node.content)
        content[bit // 8] ^= 1 << bit % 8
        node.settle(bytes(content))

    def _revive(self) -> None:
        self._kill_at, self._dead = None, False
        self._refusals.clear()

    def _nodes(self) -> list[_Node]:
        return list({id(node): node for node in self._names.values()}.values())

    @contextmanager
    def step(self, operation: Operation) -> Iterator[None]:
        """Count an operation; die before or after it, or refuse it, when that was ordered."""
        self.steps += 1
        self._perish(after=False)
        if self._refusals[operation]:
            self._refusals[operation] -= 1
            self._perish(after=True)
            raise OSError(errno.EIO, f"Input/output error ({operation})")
        yield
        self._perish(after=True)

    def _perish(self, *, after: bool) -> None:
        self._dead = self._dead or self._kill_at == (self.steps, after)
        if self._dead:
            raise Killed

    # Disk

    def make(self, path: Path, size_bytes: int) -> DiskFile:
        if self._refusals["make"] or size_bytes > self.free_bytes(path.parent):
            self._refusals["make"] = max(0, self._refusals["make"] - 1)
            raise WalFullError(f"no room for a segment of {size_bytes} bytes: out of memory")
        if path in self._names:
            raise FileExistsError(path)
        with self.step("make"):
            self._change(_Change(path.parent, added=path, node=_Node(0)))
        with self.step("make"):
            node = self._names[path]
            node.size, node.data = size_bytes, _mapping(bytes(size_bytes))
        with self.step("make"):
            node.write_back()
        return MemoryFile(self, path, node)

    def open(self, path: Path) -> DiskFile:
        return MemoryFile(self, path, self._at(path))

    def rename(self, path: Path, new: Path) -> None:
        with self.step("rename"):
            self._change(_Change(new.parent, removed=path, added=new, node=self._at(path)))

    def link(self, path: Path, new: Path) -> None:
        with self.step("link"):
            if new in self._names:
                raise FileExistsError(new)
            self._change(_Change(new.parent, added=new, node=self._at(path)))

    def remove(self, path: Path) -> None:
        with self.step("remove"):
            if path in self._names:
                self._change(_Change(path.parent, removed=path))

    def make_directory(self, path: Path) -> None:
        with self.step("mkdir"):
            self._made.add(path)
            if path not in self._folders:
                self._change(_Change(path.parent, added=path))
        self.sync_directory(path.parent)

    def remove_directory(self, path: Path) -> None:
        if self.names(path):
            raise OSError(errno.ENOTEMPTY, f"Directory not empty: {path}")
        with self.step("remove"):
            self._change(_Change(path.parent, removed=path))

    def sync_directory(self, directory: Path) -> None:
        with self.step("sync_directory"):
            for change in self._pending:
                if change.directory == directory:
                    change.apply(self._durable_names, self._durable_folders)
            self._pending = [c for c in self._pending if c.directory != directory]

    def names(self, directory: Path) -> list[str]:
        paths = [*self._names, *self._folders]
        return sorted(path.name for path in paths if path.parent == directory)

    def read(self, path: Path) -> bytes:
        return self._at(path).content

    def write(self, path: Path, data: bytes) -> None:
        try:
            for part in (data[: len(data) // 2], data):
                with self.step("write"):
                    node = _Node(len(part))
                    node.data[: len(part)] = part
                    self._change(_Change(path.parent, added=path, node=node))
            MemoryFile(self, path, node).sync()
        except OSError:
            self._change(_Change(path.parent, removed=path))
            raise

    def free_bytes(self, directory: Path) -> int:  # noqa: ARG002 - see Disk
        return self.capacity_bytes - sum(node.size for node in self._nodes())

    def _at(self, path: Path) -> _Node:
        if path not in self._names:
            raise FileNotFoundError(path)
        return self._names[path]

    def _change(self, change: _Change) -> None:
        change.apply(self._names, self._folders)
        self._pending.append(change)
