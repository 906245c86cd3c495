"""A dry run of events through one version's stages, in memory; nothing is written anywhere."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from waybill.mappings import InForce
from waybill.pipelines import Pipeline, TableSpec
from waybill.processing import (
    Chain,
    ChainResult,
    Chunk,
    CodeRunner,
    Fault,
    Learner,
    Plan,
    Retries,
    TooSlowError,
)

_LOG = logging.getLogger(__name__)
Fetch = Callable[[str], bytes]
_CHUNK = 512
_LIMITED_CHUNK = 16
"""Where time is limited: what a chunk has done is lost with the event that it ran out at."""
_CHUNK_BYTES = 16 * 1024**2
_CLAIM_CHECKS = (b'"dataref"', b"\\u")
"""What a message has that may name a payload; JSON may write any character of a name so."""
_CLAIMED_BYTES = 2 * 1024**2
"""A payload in the store counts as this much: it was too large for the log."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row that an event, or a child of it, became."""

    table: str
    id: str
    values: dict[str, Any]
    """Columns; and under ``_waybill_key`` and ``_waybill_op`` the row's key and what is done."""
    spec: TableSpec
    """The table as it was mapped: with what was learned."""


@dataclass(slots=True)
class Fate:
    """What becomes of one event."""

    faults: dict[str, Fault] = field(default_factory=dict)
    """Way to fail, "mapping/not_null_violation", to its first fault; several if children fail."""
    filtered: bool = False
    rows: list[Row] = field(default_factory=list)
    """By id. Empty unless they were asked for."""

    @property
    def passes(self) -> bool:
        """Return whether it goes on, with all its children."""
        return not self.faults and not self.filtered


class DryRunner:
    """Runs events through a pipeline's stages as processing would.

    Args:
        pipeline: the version to try.
        code: runs its code.
        fetch: returns the payload of an event that is in the object store; without it such an
            event fails with ``data_ref_missing``.
        rows: keep the rows that events become.
        mappings: what its event names map to, where that is not what it declares.
        learner: what learns from events under ``policy: evolve``; None: nothing is learned.

    A transient error of user code fails its event at once; the stream would try again.

    Cost: as processing. An event that never ends costs the time-out of its runner, one that is
    stuck in C three times as long, but no more than ``limit_s`` has left. Memory: 512 events or
    16 MiB of them at a time.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        code: CodeRunner,
        fetch: Fetch | None = None,
        rows: bool = False,
        mappings: Mapping[str, InForce] | None = None,
        learner: Learner | None = None,
    ) -> None:
        self._plans = {pipeline.id: Plan(pipeline, mappings, learner)}
        self._code = code
        self._fetch = fetch
        self._rows = rows
        self.limit_s = math.inf
        """For all events together, from the first on, of code that runs in processes of its own:
        those that are not done by then fail with ``transformation_timeout``."""
        self.not_done = 0
        """Events that there was no time for."""

    def fates(self, values: Iterable[bytes]) -> Iterator[Fate]:
        """Yield what becomes of each event, in order."""
        retries = None
        if self.limit_s < math.inf:
            retries = Retries(0)
            retries.deadline = time.monotonic() + self.limit_s
        for chunk in _chunks(values, _CHUNK if retries is None else _LIMITED_CHUNK):
            yield from self._within(chunk, retries)

    def _within(self, values: list[bytes], retries: Retries | None) -> list[Fate]:
        """Return what becomes of a chunk; after the deadline none of it is tried."""
        if retries is None or time.monotonic() <= retries.deadline:
            try:
                return self._chunk(values, retries)
            except TooSlowError as error:
                _LOG.warning("%s", error)
        self.not_done += len(values)
        words = f"not done within the {self.limit_s:g} s that all events have together"
        fault = Fault("transformation_timeout", words)
        return [Fate({f"transformation/{fault.code}": fault}) for _ in values]

    def _chunk(self, values: list[bytes], retries: Retries | None) -> list[Fate]:
        chain = Chain(self._plans, code=self._code, fetch=self._fetch, retries=retries)
        zeros = [0] * len(values)
        chain.process(Chunk(values, zeros, range(len(values)), zeros))
        fates = [Fate() for _ in values]
        for failure in chain.result.failures:
            way = f"{failure.stage}/{failure.fault.code}"
            fates[failure.offset].faults.setdefault(way, failure.fault)
        for (_, _, outcome), group in chain.result.mapped.items():
            if outcome == "filtered":
                for offset in group.offsets:
                    fates[offset].filtered = True
        if self._rows:
            _keep_rows(chain.result, fates)
        return fates


def _chunks(values: Iterable[bytes], most: int) -> Iterator[list[bytes]]:
    chunk: list[bytes] = []
    size = 0
    for value in values:
        chunk.append(value)
        size += len(value) + (_CLAIMED_BYTES if any(m in value for m in _CLAIM_CHECKS) else 0)
        if len(chunk) >= most or size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _keep_rows(result: ChainResult, fates: list[Fate]) -> None:
    """Give each event its rows: what is staged lies in the order of what is noted as passed."""
    offsets = {
        (pipeline_id, name): iter(passed.offsets)
        for (pipeline_id, name, outcome), passed in result.mapped.items()
        if outcome == "passed"
    }
    for head, table in result.staged.tables():
        passed = offsets[head.pipeline_id, head.event_name]
        for values in table.to_pylist():
            offset = next(passed)
            kept = {k: v for k, v in values.items() if k not in _OF_THE_EVENT}
            fates[offset].rows.append(Row(head.table.name, values["_waybill_id"], kept, head.table))
    for fate in fates:
        fate.rows.sort(key=lambda row: row.id)


_OF_THE_EVENT = {
    "_waybill_id",
    "_waybill_source_version",
    "_waybill_intake_version",
    "_waybill_intake_minute",
    "_waybill_replayed",
    "_waybill_attempt",
}
"""System columns that no version of a pipeline decides."""
