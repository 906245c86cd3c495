"""The recorder: traces of any process on the node into finished files of the spool.

Costs about 0.2 µs a trace and two syncs a call, so call it once a task or page, not once an event.
No state is shared between processes; safe across forks; nothing is kept in memory between calls.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from waybill.errors import RetryError
from waybill.tracing.parquet import encode_unsorted
from waybill.tracing.shipping import trace_spool
from waybill.tracing.trace import constant_text

if TYPE_CHECKING:
    from waybill.settings import TraceSettings

_LOOK_S = 1.0
_WAIT_S = 0.2


class Recorder:
    """Writes traces into a spool folder.

    Args:
        spool_dir: the node's spool; made when it is missing.
        host: this node's name, put where a trace has none. Default: the system's.
        disk_threshold_bytes: most that the spool may hold; looked up once a second.
        full_wait_s: how long ``write`` waits for room before it raises.
    """

    def __init__(
        self,
        spool_dir: Path,
        *,
        host: str | None = None,
        disk_threshold_bytes: int = 5 * 1024**3,
        full_wait_s: float = 30.0,
    ) -> None:
        self._spool = trace_spool(spool_dir)
        self._host = host or socket.gethostname()
        self._threshold_bytes = disk_threshold_bytes
        self._full_wait_s = full_wait_s
        self._used_bytes = 0
        self._looked_at = float("-inf")

    def write(self, batches: Sequence[pa.RecordBatch]) -> Path | None:
        """Write traces as one finished file; on disk when this returns. None: there were none.

        Args:
            batches: as ``traces`` makes them.

        Raises:
            RetryError: the spool or its disk stayed full; nothing was written.
        """
        filled = [self._with_host(batch) for batch in batches if batch.num_rows]
        if not filled:
            return None
        table = pa.Table.from_batches(filled).unify_dictionaries()
        body = memoryview(encode_unsorted(table))
        self._wait_for_room(len(body))
        path = self._spool.store(body)
        self._used_bytes += len(body)
        return path

    def _with_host(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        place = batch.schema.get_field_index("host")
        if batch.column(place).null_count < batch.num_rows:
            return batch
        return batch.set_column(
            place, batch.schema.field(place), constant_text(self._host, batch.num_rows)
        )

    def _wait_for_room(self, more_bytes: int) -> None:
        deadline = time.monotonic() + self._full_wait_s
        while self._used(more_bytes) + more_bytes > self._threshold_bytes:
            if time.monotonic() >= deadline:
                raise RetryError(
                    f"trace spool {self._spool.directory} holds {self._used_bytes} of "
                    f"{self._threshold_bytes} bytes and {more_bytes} more do not fit; "
                    "is `waybill traces ship` running, and does the object store answer?"
                )
            time.sleep(_WAIT_S)

    def _used(self, more_bytes: int) -> int:
        """Return the spool's bytes: looked up, or what was seen plus what this process wrote."""
        now = time.monotonic()
        full = self._used_bytes + more_bytes > self._threshold_bytes
        if full or now - self._looked_at >= _LOOK_S:
            self._used_bytes = self._spool.used_bytes()
            self._looked_at = now
        return self._used_bytes


def open_recorder(settings: TraceSettings) -> Recorder:
    """Return the recorder of this node as it is configured."""
    return Recorder(settings.spool_dir, disk_threshold_bytes=settings.disk_threshold_bytes)
