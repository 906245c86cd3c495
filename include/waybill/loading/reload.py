"""Bringing a destination that was put back to an older point up to what it took before.

Done at each open, before the first load; see ``loading.rewinds`` for what is written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection, select

from waybill.destinations import Destination, Expected, Held, LoadOutcome
from waybill.ledger import StagedReference, staged_references, write_counts
from waybill.loading import rewinds
from waybill.loading.parked_rows import without_identities
from waybill.loading.plans import LoadReport
from waybill.loading.rewinds import Rewind, Taken
from waybill.parking import (
    NO_ID,
    OF_LOADS,
    ObjectDescriptor,
    Parking,
    SegmentDescriptor,
    split_ids,
    unpack_ids,
)
from waybill.storage import ObjectStore, TrackerStore
from waybill.storage.tracker import staged_objects

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
_ROWS, _ROW_BYTES = 200_000, 256 * 1024**2
"""Rows, and bytes of them in memory, loaded again in one load, unless one commit has more."""
_COMMITS = 500
_ROUNDS = 5
"""Comparisons of one call: a destination may be put back again while it is loaded."""


class LoaderParts(Protocol):
    """What a reload needs of the loader that it is for."""

    name: str

    def books(self) -> AbstractContextManager[Connection]:
        """One transaction of the tracker, under the lease."""
        ...

    def ask(self, call: Callable[[Destination], T]) -> T:
        """Ask the destination; what it says is raised as ``NotTakenError``."""
        ...

    def load_again(
        self, references: Sequence[StagedReference], numbers: Sequence[int], rewind: int
    ) -> LoadReport:
        """Load commits again, and acknowledge nothing; what is parked bears the rewind's id."""
        ...


class Reload:
    """Compares one destination with the tracker's books, and loads again what it lacks.

    Args:
        tracker: the books.
        objects: where staged and parked objects are.
        loader: that this is for.
    """

    def __init__(self, tracker: TrackerStore, objects: ObjectStore, loader: LoaderParts) -> None:
        self._tracker = tracker
        self._objects = objects
        self._parking = Parking(tracker, objects)
        self._loader = loader

    def run(self) -> Expected:
        """Return what the destination has at the least, once it has all that can be loaded again.

        Cost: where nothing is missing, two queries; of all commits whose staged objects are kept.

        Raises:
            NotTakenError: the destination is away, or does not take what is loaded again.
            RetryError: the tracker or the store is away.
            FencedError: another loader has taken over.
        """
        name = self._loader.name
        with self._tracker.transaction() as connection:
            rewind = rewinds.unfinished(connection, name)
        for _ in range(_ROUNDS):
            if rewind is not None:
                self._load_again(rewind)
            with self._tracker.transaction() as connection:
                taken = rewinds.read_taken(connection, name)
            rewind = self._found(taken)
            if rewind is None:
                return taken.expected
            _LOG.warning("%s: %s", name, rewind.words)
        return taken.expected

    def _found(self, taken: Taken) -> Rewind | None:
        if taken.newest is None and not taken.tables:
            return None
        missing = rewinds.compare(taken, self._held(taken))
        if not missing:
            return None
        with self._loader.books() as connection:
            return rewinds.open_rewind(connection, self._loader.name, taken, missing)

    def _held(self, taken: Taken) -> Held:
        after = taken.first - 1
        return self._loader.ask(lambda destination: destination.held(after, list(taken.tables)))

    def _load_again(self, rewind: Rewind) -> None:
        numbers = [n for n in rewinds.numbers_of(rewind.commits) if n > rewind.done_to]
        failed: set[int] = set()
        for part in self._parts(numbers, failed):
            self._load_part(rewind, part, failed)
        with self._tracker.transaction() as connection:
            taken = rewinds.read_taken(connection, self._loader.name)
        held = self._held(taken)
        with self._loader.books() as connection:
            rewinds.end_rewind(connection, rewind, held, failed=failed)
        _LOG.warning("%s: what could be loaded again is there", self._loader.name)

    def _load_part(self, rewind: Rewind, part: Sequence[StagedReference], failed: set[int]) -> None:
        """Load some commits again; those of which an object is lost are added to ``failed``."""
        numbers = sorted({item.commit_number for item in part})
        report = self._loader.load_again(part, numbers, rewind.id)
        failed |= {item.commit_number for item in part if item.key in report.lost}
        self._write(rewind, report.outcomes, numbers, failed)

    def _parked_now(self, item: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return an object of refused rows without those that were refused before; None: all were.

        Those are parked, or were.
        """
        segments = list(map(SegmentDescriptor.from_json, item["segments"]))
        digests = {digest for one in segments for digest in split_ids(unpack_ids(one.ids))}
        groups = [(one.pipeline_id, one.event_name) for one in segments]
        with self._tracker.transaction() as connection:
            if self._parking.knows(connection, item["key"]):
                return item
            known = rewinds.parked_before(connection, groups, digests - {NO_ID})
        return without_identities(self._objects, item, known) if known else item

    def _write(
        self,
        rewind: Rewind,
        outcomes: Sequence[LoadOutcome],
        numbers: Sequence[int],
        failed: set[int],
    ) -> None:
        items = {i["key"]: i for o in outcomes for i in o.parked if i.get("reload") == rewind.id}
        rest = filter(None, map(self._parked_now, items.values()))
        found = {item["key"]: item for item in rest}
        name = self._loader.name
        with self._loader.books() as connection:
            new = [
                _descriptor(item)
                for key, item in sorted(found.items())
                if not self._parking.knows(connection, key)
            ]
            copies = self._parking.record_once(
                connection, new, scope=f"{OF_LOADS}{name}", commit_number=numbers[0]
            )
            segments = [segment for item in new for segment in item.segments]
            reference = f"reload:{name}:{rewind.id}:{numbers[-1]}"
            write_counts(connection, reference, rewinds.refused_now(segments, copies))
            rewinds.note_done(connection, rewind, numbers[-1], failed)

    def _parts(self, numbers: Sequence[int], failed: set[int]) -> Iterator[list[StagedReference]]:
        """Yield the staged objects of these commits, some whole commits at a time.

        Commits of which one was deleted since the rewind was found are added to ``failed``.
        """
        for at in range(0, len(numbers), _COMMITS):
            part: list[StagedReference] = []
            references, gone = self._references(numbers[at : at + _COMMITS])
            failed |= gone
            for item in references:
                is_next = bool(part) and item.commit_number != part[-1].commit_number
                if is_next and _is_full([*part, item]):
                    yield part
                    part = []
                part.append(item)
            if part:
                yield part

    def _references(self, numbers: Sequence[int]) -> tuple[list[StagedReference], set[int]]:
        """Return the staged objects of commits, and the commits of which one is deleted."""
        table = staged_objects.c
        own = (table.destination == self._loader.name, table.commit_number.in_(numbers))
        kept = staged_references().where(*own, table.state == "loaded")
        deleted = select(table.commit_number).where(*own, table.state == "deleted", table.taken)
        with self._tracker.transaction() as connection:
            rows = connection.execute(kept.order_by(table.commit_number, table.key)).all()
            gone = set(map(int, connection.execute(deleted).scalars()))
        return [StagedReference(*row) for row in rows], gone


def _is_full(part: Sequence[StagedReference]) -> bool:
    rows, size = sum(one.rows for one in part), sum(one.row_bytes for one in part)
    return rows > _ROWS or size > _ROW_BYTES


def _descriptor(item: Mapping[str, Any]) -> ObjectDescriptor:
    segments = tuple(map(SegmentDescriptor.from_json, item["segments"]))
    return ObjectDescriptor(item["key"], item["size"], segments)
