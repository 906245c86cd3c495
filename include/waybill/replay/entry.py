"""Where a replay enters: at the stage that parked, or earlier, with what the events were made from.

An event that parked at mapping was made by the transformation. In a pipeline that keeps sources it
carries the message that it was made from. A replay that enters at the transformation sends that
message instead, once for all its children in the replay. The books: the parents come in at the
transformation as replayed; the children are marked replayed without coming in at mapping, which the
ledger is told in the transaction that marks them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Connection

from waybill.errors import InputError, ParkError
from waybill.events import Event, decode
from waybill.ledger import add_entries, write_replayed_earlier
from waybill.parking import Beside, CorruptSegmentError, ParkedEvent, Parking, Partition, Segment
from waybill.pipelines import Pipeline
from waybill.replay.messages import next_attempt

_LOG = logging.getLogger(__name__)
TRANSFORMATION = "transformation"


def enters_earlier(enter: str | None, stage: str, pipeline: Pipeline) -> bool:
    """Tell whether a replay enters before the stage that parked.

    Raises:
        InputError: it cannot: says why.
    """
    if not enter or (enter == TRANSFORMATION and stage in {"ingestion", TRANSFORMATION}):
        return False
    if enter != TRANSFORMATION:
        raise InputError(
            f"enter: {enter!r} is not a stage to enter at; there is {TRANSFORMATION!r}"
        )
    if stage != "mapping":
        raise InputError(
            f"events parked at {stage} cannot enter at the transformation: what is staged for a "
            "destination keeps no source. Replay them from where they parked"
        )
    if not pipeline.keep_source:
        raise InputError(
            f"pipeline {pipeline.name!r} keeps no sources, so its events enter at the stage that "
            "parked them; declare `keep_source: true` for those that park from then on"
        )
    return True


def parent_of(parked: ParkedEvent, *, replay_id: str | None) -> Event:
    """Return the event that a parked one was made from, as it goes back to the transformation.

    Raises:
        InputError: its source is none, or no event.
    """
    try:
        event = decode(parked.source)
    except ParkError as error:
        raise InputError(
            f"an event has no source that can be sent ({error.message}); cancel this replay, and "
            "replay without entering earlier"
        ) from error
    return msgspec.structs.replace(
        event, stage=TRANSFORMATION, attempt=next_attempt(parked), replay_id=replay_id
    )


def refuse_without_source(events: Iterable[ParkedEvent], beforehand: str = "") -> None:
    """Refuse events that carry no source.

    Raises:
        InputError: some do not; says how many.
    """
    total = without = 0
    for event in events:
        total += 1
        without += not event.source
    if without:
        raise InputError(
            f"{without:,} of {total:,} parked events carry no source: they were parked before the "
            f"pipeline kept any, or when they were replayed from mapping.{beforehand} Replay them "
            "from mapping, or narrow the replay to when the others were parked"
        )


def readable(parking: Parking, replay_id: UUID) -> Iterator[ParkedEvent]:
    """Yield what a replay has still to send, without what is damaged: sending says so."""
    for group in parking.replay_slices(replay_id):
        for segment in group:
            try:
                yield from parking.read(segment)
            except CorruptSegmentError:
                continue


class Parents:
    """The parents that one replay sends. Memory: their ids, about 100 bytes each."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._seen: set[str] = set()
        self._parents: Counter[tuple[str, int]] = Counter()
        self._children: Counter[int] = Counter()

    def resume(self, parking: Parking, replay_id: UUID) -> None:
        """Note the parents that runs before have sent and marked. Cost: reads their children.

        A file that was damaged since says nothing: its parents may go twice, and the destination
        knows the second for a duplicate.
        """
        for segment in parking.replay_segments(replay_id):
            if segment.state != "replayed":
                continue
            try:
                self._seen.update(decode(event.source).id for event in parking.read(segment))
            except CorruptSegmentError as error:
                _LOG.warning("parents may be sent twice: %s", error)

    def of(
        self, events: Iterable[tuple[Segment, ParkedEvent]], replay_id: str
    ) -> Iterator[tuple[Segment, Event, bytes]]:
        """Yield a group's parents, each once, with its first child's segment and as it came."""
        for segment, parked in events:
            event = parent_of(parked, replay_id=replay_id)
            self._children[event.intake_minute] += 1
            if event.id not in self._seen:
                self._seen.add(event.id)
                self._parents[event.name, event.intake_minute] += 1
                yield segment, event, parked.source

    def said(self) -> dict[str, Any]:
        """Return what the books are to be told since the last time, as a mark carries it."""
        parents, children = self._parents, self._children
        self._parents, self._children = Counter(), Counter()
        return {
            "pipeline_id": self._partition.pipeline_id,
            "event_name": self._partition.event_name,
            "parents": [[*key, number] for key, number in sorted(parents.items())],
            "children": sorted(children.items()),
        }


def books(mark: dict[str, Any], partition: Partition) -> Beside:
    """Return what writes into the books what a mark of a partition's replay names."""
    return partial(_write_earlier if mark.get("earlier") else _write, mark, partition)


def _write(mark: dict[str, Any], partition: Partition, connection: Connection, marked: int) -> None:
    """Write events that went back to the stage that parked them."""
    if marked:
        entry = (mark["replay"], partition.event_name, partition.stage)
        add_entries(connection, "marked", {entry: marked})


def _write_earlier(
    mark: dict[str, Any], _partition: Partition, connection: Connection, marked: int
) -> None:
    """Write the parents that were sent, and the children that will not come in."""
    said = mark["earlier"]
    rows = [
        (name, "earlier/transformation", minute, number) for name, minute, number in said["parents"]
    ]
    for minute, number in said["children"]:
        # Of a cancelled replay some may be somebody else's by now.
        own = min(number, marked)
        marked -= own
        rows.append((said["event_name"], "earlier/mapping", minute, own))
    reference = f"replay:{mark['replay']}:{mark['segments'][0]}"
    if write_replayed_earlier(connection, reference, said["pipeline_id"], rows):
        parents: Counter[tuple[str, str, str]] = Counter()
        for name, _minute, number in said["parents"]:
            parents[mark["replay"], name, TRANSFORMATION] += number
        add_entries(connection, "marked", parents)
