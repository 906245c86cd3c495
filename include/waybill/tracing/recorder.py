"""The recorder: traces of any process on the node into finished files of the spool.

Costs about 0.2 µs a trace and two syncs a call, so call it once a task or page, not once an event.
No state is shared between processes; safe across forks; nothing is kept in memory between calls.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from waybill.tracing.files import SpoolLimit
from waybill.tracing.parquet import encode_unsorted
from waybill.tracing.shipping import trace_spool
from waybill.tracing.trace import constant_text

if TYPE_CHECKING:
    from waybill.settings import TraceSettings


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
        self._limit = SpoolLimit(
            self._spool,
            threshold_bytes=disk_threshold_bytes,
            full_wait_s=full_wait_s,
            advice="is `waybill traces ship` running, and does the object store answer?",
        )

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
        self._limit.wait_for(len(body))
        path = self._spool.store(body)
        self._limit.wrote(len(body))
        return path

    def _with_host(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        place = batch.schema.get_field_index("host")
        if batch.column(place).null_count < batch.num_rows:
            return batch
        return batch.set_column(
            place, batch.schema.field(place), constant_text(self._host, batch.num_rows)
        )


def open_recorder(settings: TraceSettings) -> Recorder:
    """Return the recorder of this node as it is configured."""
    return Recorder(settings.spool_dir, disk_threshold_bytes=settings.disk_threshold_bytes)
