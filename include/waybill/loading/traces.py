"""The traces of a load: what became of each row of each commit, and where it is parked.

``kafka_offset`` holds the row's number in its commit: the same rows have the same numbers when a
load is tried again, whether table by table or all at once, with some tables done before or none,
and when it is parked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import pyarrow as pa

from waybill.destinations import LoadOutcome
from waybill.tracing import traces

_ALIKE = ["pipeline_id", "event_name", "outcome", "op"]
_TAKEN = {("delivered", "delete"): "deleted"}
"""Outcome and operation of a row to the outcome of its trace, where that is another."""


def load_traces(
    destination: str,
    outcomes: Sequence[LoadOutcome],
    codes: Mapping[str, str],
    *,
    now_us: int,
    before: Mapping[int, int] | None = None,
) -> list[pa.RecordBatch]:
    """Return the traces of all rows that a load has an outcome for.

    Args:
        destination: its name.
        outcomes: of the commits; one that was loaded before has no rows, so no traces.
        codes: event id to why it was refused.
        now_us: microseconds since 1970.
        before: of a table that is loaded by itself: commit number to rows of the tables before it.

    Cost: about 0.2 µs a row.
    """
    return [
        batch
        for outcome in outcomes
        if outcome.rows is not None and outcome.rows.num_rows
        for batch in _of_commit(
            destination,
            outcome,
            outcome.rows,
            codes,
            now_us=now_us,
            first=(before or {}).get(outcome.commit_number, 0),
        )
    ]


def _of_commit(
    destination: str,
    outcome: LoadOutcome,
    rows: pa.Table,
    codes: Mapping[str, str],
    *,
    now_us: int,
    first: int,
) -> list[pa.RecordBatch]:
    import pyarrow.compute as pc

    batches = []
    numbers = pc.add(rows.column("number").combine_chunks(), first)
    for group in rows.select(_ALIKE).group_by(_ALIKE).aggregate([]).to_pylist():
        matches = [pc.equal(rows.column(name), group[name]) for name in _ALIKE]
        mask = reduce(pc.and_, matches)
        chosen = rows.filter(mask)
        ids = chosen.column("event_id").combine_chunks()
        replays = chosen.column("replay_id")
        parked = outcome.parked[-1] if group["outcome"] == "parked" else None
        batches.append(
            traces(
                ids,
                pipeline_id=group["pipeline_id"],
                event_name=group["event_name"],
                phase="destination",
                outcome=_TAKEN.get((group["outcome"], group["op"]), group["outcome"]),
                at_us=now_us,
                batch=f"load:{destination}:{outcome.commit_number}",
                commit_number=outcome.commit_number,
                kafka_offset=numbers.filter(mask.combine_chunks()),
                object_key=destination if parked is None else str(parked["key"]),
                error_type=None if parked is None else [codes.get(i) for i in ids.to_pylist()],
                replay_id=None if replays.null_count == len(replays) else replays.to_pylist(),
                intake_minute=chosen.column("intake_minute").combine_chunks(),
            )
        )
    return batches
