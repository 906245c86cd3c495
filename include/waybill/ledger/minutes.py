"""The books of some intake minutes, and of all of them together: what the auditor reads.

Both hold what was folded and what was not, of the caller's snapshot.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, text

from waybill.ledger.balance import COLUMNS, ROWS_OF_PICKED, BalanceRow, MinuteKey, add_counted
from waybill.storage.tracker import COUNT_COLUMNS

_SUMMED = ", ".join(f"sum({name})::bigint AS {name}" for name in COUNT_COLUMNS)
_MINUTES = text(f"""
WITH asked AS (SELECT * FROM unnest(CAST(:pipelines AS text[]), CAST(:names AS text[]),
    CAST(:minutes AS int[])) AS asked (pipeline_id, event_name, minute)),
picked AS (SELECT pipeline_id, counts FROM ledger WHERE NOT folded),
rows AS ({ROWS_OF_PICKED}),
everything AS (
  SELECT pipeline_id, event_name, stage, minute, {COLUMNS}
  FROM asked JOIN ledger_minutes USING (pipeline_id, event_name, minute)
  UNION ALL
  SELECT pipeline_id, event_name, stage, minute, {COLUMNS}
  FROM rows JOIN asked USING (pipeline_id, event_name, minute))
SELECT pipeline_id, event_name, stage, minute, {_SUMMED} FROM everything GROUP BY 1, 2, 3, 4
""")
_TOTALS = text(f"""
WITH picked AS (SELECT pipeline_id, counts FROM ledger WHERE NOT folded),
rows AS ({ROWS_OF_PICKED}),
everything AS (
  SELECT pipeline_id, event_name, stage, {COLUMNS} FROM ledger_totals
  UNION ALL SELECT pipeline_id, event_name, stage, {COLUMNS} FROM rows)
SELECT pipeline_id, event_name, stage, 0 AS minute, {_SUMMED} FROM everything GROUP BY 1, 2, 3
""")


def read_minutes(
    connection: Connection, keys: Collection[MinuteKey]
) -> dict[MinuteKey, BalanceRow]:
    """Return the books of these minutes, without what is in flight; cost: about 5 µs a stage."""
    columns = list(zip(*keys, strict=True)) or [(), (), ()]
    asked = dict(zip(("pipelines", "names", "minutes"), map(list, columns), strict=True))
    rows: dict[MinuteKey, BalanceRow] = {key: BalanceRow(*key) for key in keys}
    for found in connection.execute(_MINUTES, asked).mappings():
        add_counted(rows, found)
    return rows


def read_totals(connection: Connection) -> dict[tuple[str, str], BalanceRow]:
    """Return the books of each (pipeline id, event name) over all minutes.

    Cost: a row for each stage of each event name, however long the history.
    """
    rows: dict[MinuteKey, BalanceRow] = {}
    for found in connection.execute(_TOTALS).mappings():
        add_counted(rows, found)
    return {(pipeline_id, name): row for (pipeline_id, name, _), row in rows.items()}
