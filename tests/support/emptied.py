"""A tracker that tests share, emptied between them: only of what was written.

To cut sixty tables makes some four hundred files anew, whether or not a table holds anything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from waybill.storage.tracker.tables import METADATA

_WRITTEN = """
SELECT CAST(CAST(tables.oid AS regclass) AS text) FROM pg_class AS tables
WHERE tables.oid = ANY (CAST(:names AS regclass[])) AND (
  pg_relation_size(tables.oid) > 0
  OR EXISTS (
    SELECT FROM pg_depend AS owned JOIN pg_class AS sequences ON sequences.oid = owned.objid
    WHERE owned.refobjid = tables.oid AND owned.deptype IN ('a', 'i') AND CASE sequences.relkind
      WHEN 'S' THEN pg_sequence_last_value(sequences.oid) IS NOT NULL END))
"""
"""Tables that had a row, also one of a transaction that was rolled back, or that drew a number."""


def empty(sql: Callable[..., Any], *, but: Collection[str]) -> None:
    """Delete the rows of all tables but some, and have numbers begin at 1 again.

    Args:
        sql: runs a statement in a transaction of its own and returns its rows.
        but: tables that stay as they are.
    """
    names = [name for name in METADATA.tables if name not in but]
    written = [name for (name,) in sql(_WRITTEN, names=names)]
    if written:
        sql(without_triggers(f"TRUNCATE {', '.join(written)} RESTART IDENTITY CASCADE"))


def without_triggers(statement: str) -> str:
    """Return one statement that does the same, of a superuser, and fires no trigger.

    The audit log's refuses to change or to delete.
    """
    return f"DO $do$ BEGIN SET LOCAL session_replication_role = replica; {statement}; END $do$"
