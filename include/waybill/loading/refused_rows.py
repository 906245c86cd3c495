"""Rows that a destination refused, parked so that a replay can enter at the destination."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from waybill.destinations import RefusedRow
from waybill.events import Event, encode, rfc3339
from waybill.parking import ANY_REPLAY, Packer, ParkedEvent, identify, new_key
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
