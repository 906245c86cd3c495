"""What declarations say of the DAGs that are made of them, kept from one parse to the next.

Airflow parses the files of the ``ingest`` family every few minutes. Checking a declaration costs 2
ms, one of 300 event names a second; so what came out is kept in the state folder, a file a shard of
the family: ``declarations/00.json``.

Invariants
  I1  An entry is used only where its digest is that of the folder's place, its declaration and code
      as they are now, and of the code that judged them. The index may be missing, damaged, old or
      another node's: that costs time and changes nothing.
  I2  What was wrong with a file that could not be read is not kept: it may pass by itself.
  I3  A file is replaced whole, and sealed: its first line is the digest of the rest. Of two writers
      one wins; what the other found is found again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic

from waybill.pipelines.folder import (
    DECLARATION,
    MAX_CODE_BYTES,
    SHARED,
    folder_names,
    has_shared,
    read_declaration,
    read_inside,
)

if TYPE_CHECKING:
    from waybill.pipelines.model import Source
    from waybill.pipelines.validation import Examined

SHARDS = 16
"""Files of the family, and of the index. With 5,000 pipelines, 313 are in each."""
_MOST_PROBLEMS = 50
"""That are told of one declaration: a notice is stored in each of Airflow's versions of its DAG."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeclaredPipeline:
    """A pipeline's folder: what its DAG is made of, or what is wrong with it."""

    folder: str
    """Its name; usually also that of the pipeline."""
    problem: str = ""
    """Its mistakes, a line each; "": there is none, and what follows is filled in."""
    id: str = ""
    name: str = ""
    team: str = ""
    owner: str = ""
    schedule: str | None = None
    pushed: bool = False
    """Its source sends by itself, to the collector: there is nothing for a run to fetch."""
    connection: str | None = None
    """That its source is read by."""
    connections: int = 1
    """As many as a run may have at its source at once."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """What is kept of a folder."""

    digest: str
    code: str | None
    """File of its transformation; None: the declaration names none."""
    brought: bool
    """Whether installed packages have a say: its connector is none of Waybill's own."""
    shared: list[list[str]]
    """Paths of the shared modules that its code imports, and the folders that were looked into;
    empty: its code does not have that word."""
    declared: DeclaredPipeline


def shard_of(folder: str) -> int:
    """Return the shard that a pipeline's folder belongs to, for ever."""
    digest = hashlib.sha256(os.fsencode(folder)).digest()
    return int.from_bytes(digest[:4], "big") % SHARDS


class DeclarationIndex:
    """The declarations of a folder of pipelines, by shard."""

    def __init__(self, root: Path, home: Path, prefix: str = "") -> None:
        """Open it; nothing is read.

        Args:
            root: the folder of pipelines.
            home: the state folder (``Settings.home``); where there is none, nothing is kept.
            prefix: of the index's files; each folder of pipelines has its own.
        """
        self._root = root
        self._prefix = prefix
        self._kept = home / "declarations"
        self._shards: dict[int, dict[str, _Entry]] = {}

    def file(self, folder: str) -> Path:
        """Return the declaration in a folder."""
        return self._root / folder / DECLARATION

    def shard(self, number: int) -> list[DeclaredPipeline]:
        """Return what is declared in the folders of a shard, by folder; keeps it.

        Raises:
            OSError: the folder of pipelines cannot be listed.

        Cost: 0.15 ms a folder that is as it was; else that of checking it.
        """
        folders = [name for name in folder_names(self._root) if shard_of(name) == number]
        kept = self._read(number)
        found: list[DeclaredPipeline] = []
        entries: dict[str, _Entry] = {}
        try:
            for folder in folders:
                declared, entry = self._look(folder, kept.get(folder))
                found.append(declared)
                if entry is not None:
                    entries[folder] = entry
        finally:  # also where a parse is ended for taking too long: the next one goes on from here
            entries |= {name: kept[name] for name in folders[len(found) :] if name in kept}
            if entries != kept:
                self._write(number, entries)
                self._shards[number] = entries
        return found

    def folder(self, name: str) -> DeclaredPipeline | None:
        """Return what is declared in a folder; None: there is no such folder. Keeps nothing.

        Cost: 2 ms, with 5,000 pipelines, where it is as it was; else that of checking it.
        """
        if not name or name.startswith((".", "_")) or Path(name).name != name:
            return None
        if not (self._root / name).is_dir() or (name == SHARED and has_shared(self._root)):
            return None
        return self._look(name, self._read(shard_of(name)).get(name))[0]

    def renamed(self) -> list[DeclaredPipeline]:
        """Return the right declarations whose pipeline is not named as its folder, by folder.

        Those of all shards, as they were when their shard was looked at: no shard checks all.
        """
        kept = {name: one for number in range(SHARDS) for name, one in self._read(number).items()}
        found = []
        for name in folder_names(self._root):
            declared = kept[name].declared if name in kept else self._look(name, None)[0]
            if not declared.problem and declared.name != name:
                found.append(declared)
        return found

    def _look(self, folder: str, kept: _Entry | None) -> tuple[DeclaredPipeline, _Entry | None]:
        """Return what a folder says now; and its entry, None where it is not to be kept."""
        directory = self._root / folder
        if kept is not None:
            texts = [(DECLARATION, read_declaration(directory)[0])]
            if kept.code is not None:
                texts.append((kept.code, read_inside(directory, kept.code, MAX_CODE_BYTES)[0]))
            shared = _shared_state(directory, kept.shared)
            if kept.digest == self._digest(directory, texts, shared, brought=kept.brought):
                return kept.declared, kept
        return self._examined(directory)

    def _examined(self, directory: Path) -> tuple[DeclaredPipeline, _Entry | None]:
        from waybill.pipelines.form import CONNECTORS
        from waybill.pipelines.validation import examine

        examined = examine(directory)
        source = _mapping(_mapping(examined.document.value).get("source"))
        brought = source.get("connector") not in CONNECTORS
        code = examined.texts[1][0] if len(examined.texts) > 1 else None
        state = examined.shared.state
        digest = self._digest(directory, examined.texts, state, brought=brought)
        declared = _declared(examined)
        shared = []
        if state:
            shared = [[path for path, _ in examined.shared.texts], list(examined.shared.folders)]
        entry = None if digest is None else _Entry(digest, code, brought, shared, declared)
        return declared, entry

    def _digest(
        self,
        directory: Path,
        texts: Sequence[tuple[str, str | None]],
        shared: str | None,
        *,
        brought: bool,
    ) -> str | None:
        """Return the digest of what a folder is judged by; None: some of it cannot be read."""
        if shared is None or any(text is None for _, text in texts):
            return None
        judged = [str(directory), texts, self._connectors if brought else None, shared]
        return hashlib.sha256(json.dumps(judged).encode()).hexdigest()

    @cached_property
    def _connectors(self) -> list[str]:
        """The connectors that installed packages bring."""
        from waybill.pipelines.form import brought_connectors

        return sorted(brought_connectors())

    def _read(self, number: int) -> dict[str, _Entry]:
        """Return a shard's entries by folder; none where it is not what this release wrote."""
        if number not in self._shards:
            self._shards[number] = self._stored(number)
        return self._shards[number]

    def _stored(self, number: int) -> dict[str, _Entry]:
        try:
            seal, _, body = self._shard_file(number).read_bytes().partition(b"\n")
        except OSError:
            return {}
        if seal != _seal(body):
            return {}
        entries = [
            _Entry(**{**entry, "declared": DeclaredPipeline(**entry["declared"])})
            for entry in json.loads(body)
        ]
        return {entry.declared.folder: entry for entry in entries}

    def _write(self, number: int, entries: dict[str, _Entry]) -> None:
        body = json.dumps([asdict(entry) for entry in entries.values()]).encode()
        file = self._shard_file(number)
        scratch = file.with_suffix(f".{os.getpid()}")
        try:
            self._kept.mkdir(exist_ok=True)
            scratch.write_bytes(_seal(body) + b"\n" + body)
            scratch.replace(file)
        except OSError as error:
            _log.warning("declarations are checked anew at each parse: %s", error)

    def _shard_file(self, number: int) -> Path:
        return self._kept / f"{self._prefix}{number:02}.json"


def _shared_state(directory: Path, shared: Sequence[Sequence[str]]) -> str | None:
    """Return what a folder's shared modules are now, as far as they were looked at."""
    if not shared:
        return ""
    from waybill.pipelines.shared_modules import shared_state

    paths, folders = shared
    return shared_state(directory, paths, folders)


def _declared(examined: Examined) -> DeclaredPipeline:
    from waybill.pipelines.model import PUSHED

    folder, pipeline = examined.directory.name, examined.pipeline
    if pipeline is None:
        problems = [str(problem) for problem in sorted(examined.problems)]
        if len(problems) > _MOST_PROBLEMS:
            rest = len(problems) - _MOST_PROBLEMS
            problems[_MOST_PROBLEMS:] = [f"{rest} more; `waybill pipelines check` has all"]
        return DeclaredPipeline(folder, "\n".join(problems))
    return DeclaredPipeline(
        folder,
        id=pipeline.id,
        name=pipeline.name,
        team=pipeline.team,
        owner=pipeline.owner,
        schedule=pipeline.schedule,
        pushed=pipeline.source.connector == PUSHED,
        connection=pipeline.source.connection,
        connections=_connections(pipeline.source),
    )


def _connections(source: Source) -> int:
    """Return how many connections a run may have at its source at once.

    More than one has connector ``sql`` alone, where it reads ranges of a table. What is no number
    in its options is refused when the pipeline is deployed.
    """
    if source.connector != "sql":
        return 1
    ranges = _mapping(source.options.get("backfill")).get("ranges", 1)
    most = _mapping(source.options.get("limits")).get("max_connections", ranges)
    return max(1, min((one for one in (ranges, most) if isinstance(one, int)), default=1))


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _seal(body: bytes) -> bytes:
    """Return the first line of a file with these entries."""
    return hashlib.sha256(_judge() + body).hexdigest().encode()


@cache
def _judge() -> bytes:
    """Return the digest of what judges declarations: this package, Python, what is installed."""
    installed = Path(pydantic.__file__).parents[1].stat().st_mtime_ns
    digest = hashlib.sha256(f"{sys.version} {installed}".encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.digest()
