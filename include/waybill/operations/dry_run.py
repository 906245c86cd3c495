"""Dry run: the active or a proposed pipeline over parked events; nothing is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from waybill.errors import ParkError
from waybill.events import decode, encode
from waybill.parking import ParkedEvent
from waybill.pipelines import Pipeline
from waybill.stages import Chain, Chunk, Plan

_CHUNK = 5_000


@dataclass(frozen=True, slots=True)
class DryRunReport:
    """What would become of parked events."""

    pipeline: str
    version: str
    events: int
    would_pass: int
    would_filter: int
    would_fail: dict[str, int]
    """Stage and error type ("mapping/not_null_violation") to events. An event whose children fail
    in several ways is under each."""
    examples: dict[str, str]
    """One message for each way to fail."""

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return asdict(self)


def dry_run(
    pipeline: Pipeline,
    parked: Iterable[ParkedEvent],
    *,
    fetch: Callable[[str], bytes] | None = None,
) -> DryRunReport:
    """Run events through a pipeline's stages as a replay would.

    Args:
        pipeline: the version to try.
        parked: the events.
        fetch: returns the payload of an event that is in the object store; without it such an
            event fails with ``data_ref_missing``.

    Cost: as processing, and 10 µs an event: user code runs in forked children, so that code which
    ends the interpreter fails its event here too. Code without end has no clock here.
    """
    plans = {pipeline.id: Plan(pipeline)}
    failed: Counter[str] = Counter()
    examples: dict[str, str] = {}
    events = passed = filtered = 0
    for values in _chunks(parked):
        chain = Chain(plans, fetch=fetch, isolated=True)
        chain.process(Chunk(values, [0] * len(values), range(len(values)), [0] * len(values)))
        bad = {failure.offset for failure in chain.result.failures}
        gone = {
            offset
            for (_, _, outcome), group in chain.result.mapped.items()
            if outcome == "filtered"
            for offset in group.offsets
        }
        ways = {(f.offset, f"{f.stage}/{f.fault.code}"): f for f in chain.result.failures}
        for (_, way), failure in ways.items():
            failed[way] += 1
            examples.setdefault(way, failure.fault.message)
        events += len(values)
        filtered += len(gone - bad)
        passed += len(values) - len(bad | gone)
    return DryRunReport(
        pipeline.name, pipeline.version, events, passed, filtered, dict(failed), examples
    )


def _chunks(parked: Iterable[ParkedEvent]) -> Iterator[list[bytes]]:
    values = map(_entering, parked)
    while chunk := list(islice(values, _CHUNK)):
        yield chunk


def _entering(parked: ParkedEvent) -> bytes:
    """Return the bytes a replay would send: the event, entering at the stage that parked it."""
    try:
        event = decode(parked.value)
        event.stage = event.stage if parked.stage == "ingestion" else parked.stage
        event.attempt = parked.attempt + 1
        return encode(event)
    except ParkError:
        return parked.value
