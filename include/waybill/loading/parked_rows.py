"""Rows and commits that are parked instead of loaded, so that a replay can load them later.

Refused: what a destination does not take. Whole: commits of a destination that is not to be waited
for any more. Both: a load of commits 5 to 10 was done at the destination, but its answer was lost;
5 to 7 were then parked by order, and 8 to 10 are found to be loaded: the object of their refused
rows holds those of 5 to 7 as well, which are parked already.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from waybill.destinations import (
    PARKED,
    Commit,
    LoadOutcome,
    RefusedRow,
    Rows,
    TableBatch,
    batches_of,
    outcomes_of,
    refused_rows,
)
from waybill.events import Event, decode, encode, rfc3339
from waybill.parking import (
    ANY_REPLAY,
    Identity,
    Packer,
    ParkedEvent,
    SegmentDescriptor,
    identify,
    new_key,
    new_unloaded_key,
    read_segment,
)
from waybill.storage import ObjectStore

if TYPE_CHECKING:
    from waybill.storage import ObjectStore


def park_refused(
    objects: ObjectStore,
    refused: Sequence[RefusedRow],
    origins: Mapping[tuple[str, str], tuple[str, str]],
) -> dict[str, Any] | None:
    """Write refused rows into one parked object and return its descriptor.

    Args:
        objects: where the object goes.
        refused: rows with the destination's reasons.
        origins: (pipeline id, event name) to (team, pipeline version).

    Raises:
        RetryError: the store is away; the load is rolled back and tried again.
    """
    if not refused:
        return None
    packer = Packer()
    pack_refused(packer, refused, origins)
    return store_packed(objects, packer)


def pack_refused(
    packer: Packer,
    refused: Iterable[RefusedRow],
    origins: Mapping[tuple[str, str], tuple[str, str]],
) -> None:
    """Add refused rows to an object; see ``park_refused``."""
    now = rfc3339(datetime.now(UTC))
    for row in refused:
        team, version = origins.get((row.pipeline_id, row.event_name), ("", ""))
        identity = identify(
            row.event_id,
            source_version=row.source_version,
            intake_version=row.intake_version,
            minute=row.intake_minute,
            replay_id=row.replay_id or (ANY_REPLAY if row.attempt else None),
        )
        packer.add(_parked(row, team, version, now), identity)


def store_packed(objects: ObjectStore, packer: Packer, key: str | None = None) -> dict[str, Any]:
    """Store what was packed and return its descriptor, as a destination's books take it.

    Args:
        objects: where the object goes.
        packer: it is empty then.
        key: of the object; None: a fresh one.

    Raises:
        RetryError: the store is away.
    """
    packed = packer.finish()
    key = key or new_key()
    objects.put(key, packed.body)
    return {
        "key": key,
        "size": len(packed.body),
        "segments": [segment.to_json() for segment in packed.segments],
    }


def _parked(row: RefusedRow, team: str, version: str, now: str) -> ParkedEvent:
    moment = datetime.fromtimestamp(row.intake_version / 1_000_000, UTC)
    at = rfc3339(moment)
    event = Event(
        id=row.event_id,
        pipeline_id=row.pipeline_id,
        team=team,
        name=row.event_name,
        key=row.key,
        source_version=row.source_version,
        intake_version=row.intake_version,
        intake_minute=row.intake_minute,
        time=at,
        data=row.row,
        stage="destination",
        op=row.op,
        attempt=row.attempt,
        replay_id=row.replay_id,
    )
    return ParkedEvent(
        pipeline_id=row.pipeline_id,
        event_name=row.event_name,
        stage="destination",
        error_type=row.error_code,
        message=row.message,
        where=row.table,
        stack_hash="",
        pipeline_version=version,
        event_at=at,
        parked_at=now,
        topic="",
        kafka_partition=-1,
        kafka_offset=row.commit_number,
        attempt=row.attempt,
        value=encode(event),
    )


_ROWS_AT_A_TIME = 5_000
"""Rows that are Python objects at a time, 2 to 5 KB each; what is packed is compressed."""


def park_commits(
    objects: ObjectStore,
    commits: Sequence[Commit],
    origins: Mapping[tuple[str, str], tuple[str, str]],
    *,
    destination: str,
    code: str,
    message: str,
) -> list[LoadOutcome]:
    """Write all rows of some commits into one parked object; return what a load would have.

    Rows have the same numbers in their commit as in a load, so that a trace of this says what
    became of a row of which a load that failed had said something else.

    Args:
        objects: where the object goes.
        commits: with the rows, which are in memory already.
        origins: (pipeline id, event name) to (team, pipeline version).
        destination: whose commits.
        code: the error type under which all are parked.
        message: what the destination said.

    Raises:
        RetryError: the store is away; nothing was parked.

    Cost: about 100 µs a row; memory: the rows, and what is packed of them.
    """
    packer = Packer()
    batches = []
    for commit in commits:
        for batch in _frames_of(commit):
            batch.outcomes[:] = PARKED
            for part in _parts(batch.columns.num_rows):
                rows = refused_rows(batch, dict.fromkeys(part, (code, message)))
                pack_refused(packer, rows, origins)
            batches.append(batch)
    outcomes = outcomes_of(commits, batches)
    if not packer.count:
        return outcomes
    key = new_unloaded_key(destination, commits[-1].number)
    parked = store_packed(objects, packer, key)
    return [replace(one, parked=(parked,)) if one.counts else one for one in outcomes]


def _frames_of(commit: Commit) -> Iterator[TableBatch]:
    """Yield each frame by itself, in the order of a load: frames need not go together."""

    def place(rows: Rows) -> tuple[str, str]:
        return (rows.table.schema_name, rows.table.name)

    for rows in sorted(commit.rows, key=place):
        yield from batches_of([Commit(commit.number, (rows,))])


def _parts(rows: int) -> Iterator[range]:
    for first in range(0, rows, _ROWS_AT_A_TIME):
        yield range(first, min(rows, first + _ROWS_AT_A_TIME))


def names_commits_before(item: Mapping[str, Any], after: int) -> bool:
    """Tell whether an object of refused rows has rows of a commit up to ``after``."""
    return any(segment["first_offset"] <= after for segment in item["segments"])


def without_commits_before(
    objects: ObjectStore, item: Mapping[str, Any], after: int
) -> dict[str, Any] | None:
    """Write the rows of later commits into an object of their own; None: there are none.

    Args:
        objects: where both are.
        item: the object's descriptor, as the destination keeps it.
        after: the last commit whose rows are left out.

    Raises:
        RetryError: the store is away.
        CorruptSegmentError: the object is damaged.
    """
    return _rewritten(objects, item, lambda parked, _: parked.kafka_offset > after)


def without_identities(
    objects: ObjectStore, item: Mapping[str, Any], known: Collection[bytes]
) -> dict[str, Any] | None:
    """Write all rows but some into an object of their own; None: there are no others.

    Args:
        objects: where both are.
        item: the object's descriptor.
        known: identities of the rows that are left out.

    Raises:
        RetryError: the store is away.
        CorruptSegmentError: the object is damaged.
    """
    return _rewritten(
        objects, item, lambda _, identity: identity is None or identity.digest not in known
    )


def _rewritten(
    objects: ObjectStore,
    item: Mapping[str, Any],
    keeps: Callable[[ParkedEvent, Identity | None], bool],
) -> dict[str, Any] | None:
    body, packer = objects.get(item["key"]), Packer()
    for segment in map(SegmentDescriptor.from_json, item["segments"]):
        frame = body[segment.position : segment.position + segment.length]
        place = {"key": item["key"], "position": segment.position}
        for parked in read_segment(frame, sha256=segment.sha256, **place):
            identity = _identity(parked)
            if keeps(parked, identity):
                packer.add(parked, identity)
    return store_packed(objects, packer) if packer.count else None


def _identity(parked: ParkedEvent) -> Identity | None:
    event = decode(parked.value)
    return identify(
        event.id,
        source_version=event.source_version,
        intake_version=event.intake_version,
        minute=event.intake_minute,
        replay_id=event.replay_id or (ANY_REPLAY if event.attempt else None),
    )
