"""Refused rows of a load of which some commits were parked whole before the tracker heard of it.

A load of commits 5 to 10 was done at the destination, but its answer was lost. 5 to 7 were then
parked by order, and 8 to 10 are found to be loaded: the object of their refused rows holds those of
5 to 7 as well, which are parked already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from waybill.events import decode
from waybill.loading.refused_rows import store_packed
from waybill.parking import (
    ANY_REPLAY,
    Identity,
    Packer,
    ParkedEvent,
    SegmentDescriptor,
    identify,
    read_segment,
)
from waybill.storage import ObjectStore


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
    body, packer = objects.get(item["key"]), Packer()
    for segment in map(SegmentDescriptor.from_json, item["segments"]):
        frame = body[segment.position : segment.position + segment.length]
        place = {"key": item["key"], "position": segment.position}
        for parked in read_segment(frame, sha256=segment.sha256, **place):
            if parked.kafka_offset > after:
                packer.add(parked, _identity(parked))
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
