"""What a replay sends: parked events as they go back, or what they were made from.

An event goes back to the stage that parked it, with its payload's bytes as they came. One that
parked at mapping was made by the transformation; in a pipeline that keeps sources it carries the
message that it was made from. A replay that enters at the transformation sends that message
instead, once for all its children in the replay (one that was taken in again is another). The
books: the parents come in at the transformation as replayed; the children are marked replayed
without coming in at mapping, which the ledger is told in the transaction that marks them.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from shlex import quote
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Connection

from waybill.errors import InputError, ParkError
from waybill.events import Event, GoingBack, decode, encode, encode_data, going_back, payload_bytes
from waybill.ledger import add_entries, write_replayed_earlier
from waybill.parking import Beside, CorruptSegmentError, ParkedEvent, ParkedGroup, Parking, Segment
from waybill.pipelines import Pipeline
from waybill.storage import LARGEST_MESSAGE_BYTES, ObjectStore, check_in

_LAST_ATTEMPT = 2**31 - 1
_LOG = logging.getLogger(__name__)
TRANSFORMATION = "transformation"
AS_PARKED = "as_parked"
MAPPING = "mapping"


def next_attempt(parked: ParkedEvent) -> int:
    """Return the attempt of a parked event that goes back; the wire takes no more than 2^31-1."""
    return min(parked.attempt + 1, _LAST_ATTEMPT)


def message_again(
    parked: ParkedEvent, *, replay_id: str, objects: ObjectStore | None = None
) -> GoingBack:
    """Return a parked event as it goes back: id, ordering key, message, intake minute.

    Cost: 3 µs for 400 bytes.

    Raises:
        InputError: see ``events.reentry``.
        ParkError: see ``encode_again``.
    """
    value = parked.value
    if len(value) <= LARGEST_MESSAGE_BYTES:
        found = going_back(
            value, attempt=next_attempt(parked), replay_id=replay_id, stage=entry_stage(parked)
        )
        if found is not None:
            return found
    event = returning(parked, replay_id=replay_id)
    message = encode_again(event, value, objects=objects)
    return event.id, event.key.encode(), message, event.intake_minute


def entry_stage(parked: ParkedEvent) -> str | None:
    """Return where a parked event enters; None: where its own message says.

    One that Kafka refused when it was taken in enters where it would have entered then.
    """
    return None if parked.stage == "ingestion" else parked.stage


def returning(parked: ParkedEvent, *, replay_id: str) -> Event:
    """Return a parked event as it goes back: same id and versions, entering where it failed.

    Raises:
        InputError: its bytes are no event, so there is no stage that could take them.
    """
    try:
        event = decode(parked.value)
    except ParkError as error:
        raise InputError(
            f"parked bytes are not a Waybill event ({error.message}); fix the producer that wrote "
            "them, and discard these"
        ) from error
    stage = entry_stage(parked) or event.stage
    return msgspec.structs.replace(
        event, stage=stage, attempt=next_attempt(parked), replay_id=replay_id
    )


def encode_again(event: Event, came: bytes, *, objects: ObjectStore | None = None) -> bytes:
    """Return the message of a parked event that goes back, with its payload's bytes as they came.

    One that came as a claim check may have been parked with its payload, which no log takes whole.

    Args:
        event: as it goes back.
        came: its message as it was parked.
        objects: where large payloads go; None: they stay in the message.

    Raises:
        ParkError: a payload with lone surrogates is nested too deeply to be written anew.
    """
    if event.data_ref is not None or isinstance(event.data, bytes):
        return encode(event)
    content = payload_bytes(came)
    if content is None:
        content = encode_data(event.data)
    if objects is not None:
        name = f"{event.replay_id}-{hashlib.sha256(content).hexdigest()}"
        check_in(objects, event, content, name=name)
    return encode(event, content=content)


def check_entry(enter: str | None) -> None:
    """Raise ``InputError`` where this is no stage that a replay may be asked to enter at."""
    if enter and enter not in {TRANSFORMATION, MAPPING}:
        raise InputError(
            f"enter: {enter!r} is not a stage to enter at; choose {TRANSFORMATION!r}, or "
            f"{MAPPING!r} for what parked there"
        )


def enters_earlier(enter: str | None, stage: str, pipeline: Pipeline) -> bool:
    """Tell whether a replay is asked to enter before the stage that parked.

    Raises:
        InputError: it cannot: says why.
    """
    if not enter or enter == stage or (enter == TRANSFORMATION and stage == "ingestion"):
        return False
    check_entry(enter)
    if enter == MAPPING:
        raise InputError(
            f"events parked at {stage} cannot enter at the mapping: leave `enter` out, and they "
            "enter at the stage that parked them"
        )
    if stage != MAPPING:
        raise InputError(
            f"events parked at {stage} cannot enter at the transformation: staged rows keep no "
            "source. Replay them from the stage that parked them"
        )
    if not pipeline.keep_source:
        raise InputError(
            f"pipeline {pipeline.name!r} keeps no sources, so its events can only enter at the "
            "stage that parked them; declare `keep_source: true` for events that park from then "
            f"on. `waybill parked show {quote(pipeline.name)} -s {MAPPING}` says how those that "
            "are parked are delivered once the transformation is corrected"
        )
    return True


def asked_entry(enter: str | None) -> str:
    """Return where a replay enters that an older release began: where it was asked to."""
    return TRANSFORMATION if enter == TRANSFORMATION else AS_PARKED


def choose_entry(
    enter: str | None, stage: str, pipeline: Pipeline, events: Iterable[ParkedEvent]
) -> str:
    """Return where a replay's events enter: ``TRANSFORMATION``, as their parents, or ``AS_PARKED``.

    One that names no entry enters at the transformation where all events carry sources. Kafka
    carries none: an event that enters at the mapping and parks there again has lost what a later
    transformation could mend it from.

    Raises:
        InputError: they cannot enter where it says; or some carry a source, and it says not where.

    Cost: reads the events, where the pipeline keeps sources and they parked at mapping.
    """
    if enters_earlier(enter, stage, pipeline):
        refuse_without_source(events)
        return TRANSFORMATION
    if enter or stage != MAPPING or not pipeline.keep_source:
        return AS_PARKED
    return TRANSFORMATION if _all_carry_sources(events) else AS_PARKED


def _all_carry_sources(events: Iterable[ParkedEvent]) -> bool:
    """Tell whether all of these events carry a source, or none does. Cost: reads them.

    Raises:
        InputError: some do: where they enter has to be chosen.
    """
    total = with_source = 0
    for event in events:
        total += 1
        with_source += bool(event.source)
    if 0 < with_source < total:
        raise InputError(
            f"{with_source:,} of {total:,} parked events carry what they were made from, which "
            "they would lose by entering at the mapping. Limit the replay to the time when these, "
            "or the others, were parked (`waybill parked replay --parked-since`, "
            "`--parked-until`); or send all as they parked, with `--enter mapping`"
        )
    return with_source > 0


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
            "start one that does not enter earlier"
        ) from error
    return msgspec.structs.replace(
        event, stage=TRANSFORMATION, attempt=next_attempt(parked), replay_id=replay_id
    )


def refuse_without_source(events: Iterable[ParkedEvent]) -> None:
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
            f"pipeline kept any, or when they were replayed from mapping. Replay them from "
            "mapping (`--enter mapping`), or limit the replay to the time when the others "
            "were parked (`waybill parked replay --parked-since`, `--parked-until`)"
        )


def readable(parking: Parking, replay_id: UUID) -> Iterator[ParkedEvent]:
    """Yield what a replay has still to send, without what is damaged: sending says so."""
    for some in parking.replay_slices(replay_id):
        for segment in some:
            try:
                yield from parking.read(segment)
            except CorruptSegmentError:
                continue


class Parents:
    """The parents that one replay sends; one that was taken in again is another.

    Memory: their ids and versions, about 200 bytes each.
    """

    def __init__(self, partition: ParkedGroup) -> None:
        self._partition = partition
        self._seen: set[tuple[str, int]] = set()
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
                parents = (decode(event.source) for event in parking.read(segment))
                self._seen.update((event.id, event.intake_version) for event in parents)
            except CorruptSegmentError as error:
                _LOG.warning("parents may be sent twice: %s", error)

    def of(
        self, events: Iterable[tuple[Segment, ParkedEvent]], replay_id: str
    ) -> Iterator[tuple[Segment, Event, bytes]]:
        """Yield a slice's parents, each once, with its first child's segment and as it came."""
        for segment, parked in events:
            event = parent_of(parked, replay_id=replay_id)
            self._children[event.intake_minute] += 1
            intake = (event.id, event.intake_version)
            if intake not in self._seen:
                self._seen.add(intake)
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


def books(mark: dict[str, Any], partition: ParkedGroup) -> Beside:
    """Return what writes into the books what a mark of a partition's replay names."""
    return partial(_write_earlier if mark.get("earlier") else _write, mark, partition)


def _write(
    mark: dict[str, Any], partition: ParkedGroup, connection: Connection, marked: int
) -> None:
    """Write events that went back to the stage that parked them."""
    if marked:
        entry = (mark["replay"], partition.event_name, partition.stage)
        add_entries(connection, "marked", {entry: marked})


def _write_earlier(
    mark: dict[str, Any], _partition: ParkedGroup, connection: Connection, marked: int
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
