"""The traces of a load: what became of each row of each commit, and where it is parked.

``kafka_offset`` holds the row's number in its commit: the same rows have the same numbers when a
load is tried again, whether table by table or all at once, with some tables done before or none,
and when it is parked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from waybill.destinations import LoadOutcome
from waybill.tracing import traces


def load_traces(
    destination: str,
    outcomes: Sequence[LoadOutcome],
    codes: Mapping[str, str],
    *,
    now_us: int,
    before: Mapping[int, int] | None = None,
) -> list[pa.RecordBatch]:
    """Return the traces of all rows that a load has an outcome for, in the order of the rows.

    Args:
        destination: its name.
        outcomes: of the commits; one that was loaded before has no rows, so no traces.
        codes: event id to why it was refused.
        now_us: microseconds since 1970.
        before: of a table that is loaded by itself: commit number to rows of the tables before it.

    Cost: about 0.2 µs a row, and 10 µs a commit.
    """
    import pyarrow.compute as pc

    known = [(one, one.rows) for one in outcomes if one.rows is not None and one.rows.num_rows]
    if not known:
        return []
    rows = pa.concat_tables([own for _, own in known])
    places = np.repeat(np.arange(len(known), dtype=np.int32), [own.num_rows for _, own in known])
    numbers = np.array([one.commit_number for one, _ in known])
    firsts = np.array([(before or {}).get(one.commit_number, 0) for one, _ in known])
    parked = pc.equal(rows.column("outcome"), "parked").combine_chunks()
    replays = rows.column("replay_id")
    return [
        traces(
            rows.column("event_id"),
            pipeline_id=rows.column("pipeline_id"),
            event_name=rows.column("event_name"),
            phase="destination",
            outcome=_outcomes(rows),
            at_us=now_us,
            batch=pa.DictionaryArray.from_arrays(
                places, [f"load:{destination}:{number}" for number in numbers]
            ),
            commit_number=pa.array(numbers[places]),
            kafka_offset=pc.add(rows.column("number"), pa.array(firsts[places])),
            object_key=_object_keys(destination, [one for one, _ in known], places, parked),
            error_type=_error_types(rows.column("event_id"), parked, codes),
            replay_id=None if replays.null_count == len(replays) else replays,
            intake_minute=rows.column("intake_minute"),
        )
    ]


def _outcomes(rows: pa.Table) -> pa.ChunkedArray:
    """Return the outcome of each row's trace: of a delete that was taken another one."""
    import pyarrow.compute as pc

    outcomes, deletes = rows.column("outcome"), pc.equal(rows.column("op"), "delete")
    if not pc.any(deletes).as_py():  # nearly always
        return outcomes
    return pc.if_else(pc.and_(deletes, pc.equal(outcomes, "delivered")), "deleted", outcomes)


def _object_keys(
    destination: str,
    outcomes: Sequence[LoadOutcome],
    places: np.ndarray[Any, np.dtype[np.int32]],
    parked: pa.BooleanArray,
) -> str | pa.DictionaryArray:
    """Return where each row is: in the destination, or in its commit's parked object."""
    parks = parked.to_numpy(zero_copy_only=False)
    if not parks.any():
        return destination
    keys = {destination: 0}
    choices = np.zeros(len(outcomes), np.int32)
    for place in np.unique(places[parks]):
        key = str(outcomes[place].parked[-1]["key"])
        choices[place] = keys.setdefault(key, len(keys))
    return pa.DictionaryArray.from_arrays(np.where(parks, choices[places], 0), list(keys))


def _error_types(
    ids: pa.ChunkedArray, parked: pa.BooleanArray, codes: Mapping[str, str]
) -> pa.Array | None:
    """Return why each row was refused; None: none was."""
    import pyarrow.compute as pc

    refused = [codes.get(one) for one in ids.filter(parked).to_pylist()]
    if not refused:
        return None
    nothing = pa.nulls(len(parked), pa.string())
    return pc.replace_with_mask(nothing, parked, pa.array(refused, pa.string()))
