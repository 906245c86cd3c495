"""Which rows a merge refuses, where there are no savepoints: halves, each rolled back."""

from __future__ import annotations

import uuid

import pyarrow as pa

from waybill.destinations.batch import TableBatch
from waybill.destinations.warehouses.limits import Reasons
from waybill.destinations.warehouses.session import Session
from waybill.destinations.warehouses.table_load import RowRefusedError, TableLoad


def find_refused(session: Session, failed: TableLoad) -> Reasons:
    """Return the rows that fail by themselves. Cost: about 2 log2(n) trial merges for one row.

    Args:
        session: connected; no transaction is open.
        failed: the load that failed as a whole.
    """
    found: Reasons = {}
    everything = [n for n in range(failed.batch.columns.num_rows) if n not in failed.refused]
    waiting = [everything]
    while waiting:
        ordinals = waiting.pop()
        error = _try(session, failed, ordinals)
        if error is None:
            continue
        if len(ordinals) == 1:
            code = session.dialect.errors.refused_code(error.error)
            found[ordinals[0]] = (str(code), error.error.words)
            continue
        middle = len(ordinals) // 2
        waiting += [ordinals[middle:], ordinals[:middle]]
    return found


def _try(session: Session, failed: TableLoad, ordinals: list[int]) -> RowRefusedError | None:
    batch = failed.batch
    places = pa.array(ordinals, pa.int64())
    part = TableBatch(batch.spec, [], batch.columns.take(places), batch.context.take(places))
    load = TableLoad(session, part, uuid.uuid4().hex[:12], {}, failed.marked)
    load.stage()
    try:
        session.execute(session.begin)
        try:
            load.run()
        finally:
            session.abandon()
    except RowRefusedError as error:
        return error
    else:
        return None
    finally:
        load.drop()
