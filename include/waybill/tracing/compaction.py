"""Compaction: moves an hour's fresh objects into its buckets, in place of what lies there.

What a SIGKILL leaves, step by step (see ``manifests`` for what readers make of it):
  claim     nothing, or a manifest ``writing``: its lease runs out, the next run takes it over.
  outputs   some of them, hidden: the run that takes over hides them for good and deletes them.
  done      the new objects count; a run at least ``kept_s`` later goes on with
  note      what was replaced is noted for shippers that come back (``_compacted``),
  deleting  the manifest says so (Athena's questions wait for its end),
  delete    some of the replaced objects: the rest likewise,
  over      the manifest is deleted.
Two runs at once: an hour belongs to the run whose manifest the store took (conditional PUT; a store
without that refuses, and nothing is compacted). A run that was frozen so long that its lease ran
out cannot set ``done`` any more.

While an hour goes on its fresh objects are only moved; once it is over, all of its objects are
merged into one for each bucket.
"""

from __future__ import annotations

import logging
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
import pyarrow as pa

from waybill.errors import NotDeletedError, RetryError
from waybill.progress import Progress
from waybill.storage import ObjectMissingError
from waybill.tracing.files import put_confirmed
from waybill.tracing.layout import (
    COMPACTIONS_PREFIX,
    EARLY_PREFIX,
    LAYOUT_KEY,
    Hour,
    Layout,
    TraceStore,
    bucket_prefix,
    hashes_of,
    object_key,
    place_of,
    stated_layout,
)
from waybill.tracing.manifests import Manifest, TraceObject, output_name, run_of, visible
from waybill.tracing.parquet import encode_unsorted, read_whole, sorted_body
from waybill.tracing.trace import MEMORY_SCHEMA, TRACE_SCHEMA

LOG = logging.getLogger(__name__)
_READS_AT_ONCE = 8
_PART_BYTES = 8 * 1024**2
"""An object of a bucket holds about so much: up to 2 million traces, 250 MB while it is sorted."""
_LEASE_S = 600.0


class DamagedObjectError(Exception):
    """An object that is no whole trace object; its hour stays as it is."""


class LostLeaseError(RetryError):
    """Another run took the hour over."""


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """What a run did."""

    hours: int = 0
    objects_before: int = 0
    objects_after: int = 0
    traces: int = 0
    sent_bytes: int = 0
    deleted: int = 0
    """Objects that earlier runs replaced."""
    damaged: tuple[str, ...] = ()
    """What could not be compacted, and why; it stays where it is and is still found."""

    def plus(self, other: CompactionReport) -> CompactionReport:
        """Return the sum of two reports."""
        return CompactionReport(
            *(getattr(self, name) + getattr(other, name) for name in self.__slots__)
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


class Compactor:
    """Compacts the traces of a store. Safe to kill, and to run twice at once.

    Args:
        store: where they are.
        after_s: objects younger than this are left to the next run.
        kept_s: how long replaced objects are kept for those who still read them.
        lease_s: how long a run may be silent before another takes its hour over.
    """

    def __init__(
        self,
        store: TraceStore,
        *,
        after_s: float,
        kept_s: float,
        lease_s: float = _LEASE_S,
    ) -> None:
        self._store = store
        self._after_s = after_s
        self._kept_s = kept_s
        self._lease_s = lease_s
        self._not_deleted: dict[str, str] = {}

    def run(self, only: Hour | None = None) -> CompactionReport:
        """Finish what earlier runs replaced, then compact every hour that has fresh objects.

        Args:
            only: this hour alone.

        Raises:
            NotDeletedError: the store did not delete some of what was replaced; other hours are
                done, and the next run tries those again.
            RetryError: the store is away; what is done so far counts.
            InputError: the store refuses, or is of a later release.
        """
        report, self._not_deleted = CompactionReport(), {}
        layout = stated_layout(self._store)
        if layout is None:
            return report
        claims = self._claims()
        for hour in [hour for hour, claim in claims.items() if self._is_kept(claim)]:
            if only in (None, hour):
                report = report.plus(self._tried(self._clear, layout, hour, claims.pop(hour)))
        hours = sorted(self._waiting(layout) | claims.keys())
        progress = Progress("compaction of traces", "hours", len(hours))
        for hour in hours:
            progress.add()
            claim = claims.get(hour)
            if only in (None, hour) and (claim is None or self._is_dead(claim)):
                report = report.plus(self._tried(self._compact, layout, hour, claim))
        if layout.early:
            self._end_early(layout)
        if self._not_deleted:
            raise NotDeletedError(self._not_deleted)
        return report

    def _claims(self) -> dict[Hour, _Claim]:
        claims = {}
        for info in self._store.list(COMPACTIONS_PREFIX):
            try:
                body, tag = self._store.get_tagged(info.key)
            except ObjectMissingError:
                continue  # its run ended meanwhile
            manifest = Manifest.decode(body)
            claims[manifest.at] = _Claim(manifest, tag)
        return claims

    def _is_kept(self, claim: _Claim) -> bool:
        """Tell whether what a finished run replaced has been kept for long enough."""
        done = claim.manifest.state != "writing"
        return done and _age_s(claim.manifest.changed_us) >= self._kept_s

    def _is_dead(self, claim: _Claim) -> bool:
        """Tell whether a manifest's run is dead: it writes, and said nothing for so long."""
        writing = claim.manifest.state == "writing"
        return writing and _age_s(claim.manifest.beat_us) >= self._lease_s

    def _waiting(self, layout: Layout) -> set[Hour]:
        """Return the hours that have objects to compact."""
        limit = time.time() - self._after_s
        prefixes = [bucket_prefix(layout.fresh), *[EARLY_PREFIX] * layout.early]
        return {
            place.hour
            for prefix in prefixes
            for info in self._store.list(prefix)
            if (place := place_of(info.key)) and info.modified.timestamp() <= limit
        }

    def _tried(
        self,
        work: Callable[[Layout, Hour, Any], CompactionReport],
        layout: Layout,
        hour: Hour,
        claim: _Claim | None,
    ) -> CompactionReport:
        """Do a piece of work on an hour; one that cannot be done does not hold the others up."""
        try:
            return work(layout, hour, claim)
        except DamagedObjectError as error:
            LOG.error("traces of %s are not compacted: %s", hour.path, error)  # noqa: TRY400
            return CompactionReport(damaged=(str(error),))
        except NotDeletedError as error:
            self._not_deleted |= error.reasons
        except LostLeaseError as error:
            LOG.warning("%s", error)
        return CompactionReport()

    def _compact(self, layout: Layout, hour: Hour, claimed: _Claim | None) -> CompactionReport:
        inputs = self._inputs(layout, hour)
        manifest = Manifest(
            hour.path,
            _new_run(),
            "writing",
            tuple(one.key for one in inputs),
            () if claimed is None else (*claimed.manifest.abandoned, claimed.manifest.run),
        ).beaten()
        lease = _Lease(self._store, manifest, None if claimed is None else claimed.tag)
        if not lease.claim():
            return CompactionReport()
        try:
            report = self._write(layout, hour, inputs, lease, self._lease_s)
        except DamagedObjectError:
            self._store.delete(self._outputs(layout, lease.manifest, (lease.manifest.run,)))
            lease.end()
            raise
        lease.swap(manifest.finished())
        return report

    def _inputs(self, layout: Layout, hour: Hour) -> list[TraceObject]:
        """Return what is replaced: the fresh objects; of an hour that is over, all there are."""
        over = _age_s(int(hour.end.timestamp() * 1_000_000)) >= self._after_s
        buckets = range(layout.buckets + 1) if over else [layout.fresh]
        moment = hour.start
        objects = visible(self._store, layout, buckets, moment, moment, each=_several_at_once)
        return sorted(objects, key=lambda one: (one.place.name, one.key))

    def _write(
        self,
        layout: Layout,
        hour: Hour,
        inputs: Sequence[TraceObject],
        lease: _Lease,
        lease_s: float,
    ) -> CompactionReport:
        slices = 1 + sum(one.size for one in inputs) // (layout.buckets * _PART_BYTES)
        read = objects = traces = sent = 0
        with Spill(buckets=layout.buckets, slices=slices) as spill:
            for table in self._tables(inputs):
                read += table.num_rows
                spill.add(table)
                lease.beat(lease_s)
            for bucket, number, rows, body in spill.parts():
                lease.beat(lease_s)
                key = object_key(bucket, hour, output_name(lease.manifest.run, number))
                put_confirmed(self._store, key, body)
                objects, traces, sent = objects + 1, traces + rows, sent + len(body)
        if traces != read:
            raise DamagedObjectError(f"{hour.path}: {read} traces were read, {traces} written")
        return CompactionReport(1, len(inputs), objects, traces, sent)

    def _tables(self, inputs: Sequence[TraceObject]) -> Iterator[pa.Table]:
        with ThreadPoolExecutor(_READS_AT_ONCE) as pool:
            for start in range(0, len(inputs), _READS_AT_ONCE):
                some = inputs[start : start + _READS_AT_ONCE]
                yield from pool.map(lambda one: _read(self._store, one.key), some)

    def _clear(self, layout: Layout, hour: Hour, claim: _Claim) -> CompactionReport:
        """Delete what a finished run replaced and what dead ones wrote, then its manifest."""
        del hour
        manifest = claim.manifest
        put_confirmed(self._store, manifest.compacted_key, manifest.encode())
        lease = _Lease(self._store, manifest, claim.tag)
        lease.swap(replace(manifest, state="deleting"))
        keys = [*manifest.replaces, *self._outputs(layout, manifest)]
        self._store.delete(keys)
        lease.end()
        return CompactionReport(deleted=len(keys))

    def _outputs(
        self, layout: Layout, manifest: Manifest, more_runs: tuple[str, ...] = ()
    ) -> list[str]:
        """Return the objects that the dead runs of a manifest wrote, and some more."""
        runs = {*manifest.abandoned, *more_runs}
        prefixes = [bucket_prefix(n) for n in range(layout.buckets)] if runs else []
        return [
            info.key
            for prefix in prefixes
            for info in self._store.list(f"{prefix}{manifest.hour}/")
            if (place := place_of(info.key)) and run_of(place) in runs
        ]

    def _end_early(self, layout: Layout) -> None:
        """Note in the layout that no object of the first format is left."""
        if any(place_of(info.key) for info in self._store.list(EARLY_PREFIX)):
            return
        _, tag = self._store.get_tagged(LAYOUT_KEY)
        self._store.swap(LAYOUT_KEY, replace(layout, early=False).encode(), expected=tag)


@dataclass(frozen=True, slots=True)
class _Claim:
    manifest: Manifest
    tag: str
    """ETag."""


class _Lease:
    """An hour's manifest, as long as it is ours."""

    def __init__(self, store: TraceStore, manifest: Manifest, tag: str | None) -> None:
        self._store = store
        self.manifest = manifest
        self._tag = tag
        self._beat_at = time.monotonic()

    def claim(self) -> bool:
        """Take the hour, from nobody or from a dead run; False: another run was first."""
        self._tag = self._store.swap(self.manifest.key, self.manifest.encode(), expected=self._tag)
        self._beat_at = time.monotonic()
        return self._tag is not None

    def beat(self, lease_s: float) -> None:
        """Say that we live, a few times a lease.

        Raises:
            LostLeaseError: too late.
        """
        if time.monotonic() - self._beat_at > lease_s / 5:
            self.swap(self.manifest.beaten())

    def swap(self, manifest: Manifest) -> None:
        """Store the manifest in place of what we stored last; raises LostLeaseError."""
        tag = self._store.swap(manifest.key, manifest.encode(), expected=self._tag)
        if tag is None:
            raise LostLeaseError(f"another run took {manifest.hour} over from {manifest.run}")
        self.manifest, self._tag, self._beat_at = manifest, tag, time.monotonic()

    def end(self) -> None:
        """Delete the manifest, if it is still what we stored.

        It may be gone: two runs that clear one hour store the same bytes, and hold the same ETag.
        """
        try:
            _, tag = self._store.get_tagged(self.manifest.key)
        except ObjectMissingError:
            return
        if tag == self._tag:
            self._store.delete([self.manifest.key])


def _read(store: TraceStore, key: str) -> pa.Table:
    try:
        return read_whole(pa.BufferReader(store.get(key))).cast(MEMORY_SCHEMA)
    except ObjectMissingError as error:
        raise LostLeaseError(f"{key} was compacted by another run") from error
    except (OSError, ValueError) as error:
        raise DamagedObjectError(f"{key} is damaged: {error}") from error


def _several_at_once(
    listed: Callable[[str], list[TraceObject]], prefixes: list[str]
) -> Iterable[list[TraceObject]]:
    with ThreadPoolExecutor(_READS_AT_ONCE) as pool:
        return list(pool.map(listed, prefixes))


def _new_run() -> str:
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{uuid.uuid4().hex[:12]}"


def _age_s(moment_us: int) -> float:
    return time.time() - moment_us / 1_000_000


_ROWS_AT_ONCE = 400_000
"""About 100 MB."""


class Spill:
    """Traces of an hour, cut by bucket on the local disk, between being read and written anew.

    It takes tables in any order, and gives each part's traces as one sorted object. Use it once. In
    memory are the traces of a few objects, or of one part, never those of the hour. The file has no
    name, so that a death leaves nothing of it.

    Args:
        buckets: of the layout.
        slices: parts that each bucket's traces are cut into, by the same hash.
    """

    def __init__(self, *, buckets: int, slices: int) -> None:
        self._buckets = buckets
        self._slices = slices
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="waybill-compaction-")
        self._chunks: dict[int, list[tuple[int, int]]] = {}
        self._waiting: list[pa.Table] = []
        self._rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(self, table: pa.Table) -> None:
        """Take traces. Cost: 1.5 µs a trace."""
        self._waiting.append(table)
        self._rows += table.num_rows
        if self._rows >= _ROWS_AT_ONCE:
            self._cut()

    def parts(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Yield (bucket, slice, traces, object's bytes), without empty ones. Cost: 1 µs a trace."""
        self._cut()
        for part in sorted(self._chunks):
            table = self._read(self._chunks[part])
            bucket, number = divmod(part, self._slices)
            yield bucket, number, table.num_rows, sorted_body(table)

    def _cut(self) -> None:
        if not self._rows:
            return
        table = pa.concat_tables(self._waiting).unify_dictionaries().combine_chunks()
        self._waiting, self._rows = [], 0
        hashes = np.array(hashes_of(table.column("event_id")), np.int64)
        buckets, numbers = hashes % self._buckets, hashes // self._buckets % self._slices
        codes = buckets * self._slices + numbers
        order = np.argsort(codes, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
            # plain texts: a dictionary would be stored with all values of all parts
            some = table.take(pa.array(rows)).cast(TRACE_SCHEMA)
            self._append(int(codes[rows[0]]), memoryview(encode_unsorted(some)))

    def _append(self, part: int, body: memoryview) -> None:
        self._chunks.setdefault(part, []).append((self._file.tell(), len(body)))
        self._file.write(body)

    def _read(self, chunks: list[tuple[int, int]]) -> pa.Table:
        tables = []
        for position, length in chunks:
            self._file.seek(position)
            tables.append(read_whole(pa.BufferReader(self._file.read(length))).cast(MEMORY_SCHEMA))
        return pa.concat_tables(tables).unify_dictionaries().combine_chunks()
