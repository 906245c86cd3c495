"""Destinations: typed rows into tables, merged by version, never overwritten by the past.

A load takes consecutive commits of one destination and makes one transaction there. It first
inserts one row per commit number (unique), then bulk loads, judges and merges each table's rows,
and at its end writes the outcome counts beside the commit numbers.

Invariants
  I1  A commit number is loaded once. A repeat, or a second loader that wakes up, waits at the
      unique index, then changes nothing and reports the outcome that is stored.
  I2  All of a load is visible, or nothing: data, tombstones, outcomes, what was parked.
  I3  A key's row is that of the greatest (source version, intake version) ever loaded, whatever the
      order and the batching; when that one is a delete, there is no row but a tombstone.
  I4  Every input row has exactly one outcome: delivered, superseded, duplicate or parked. Counts
      come from rows; the four add up to first-pass in + replayed in.
  I5  A row that the destination refuses parks alone. A row that lost only to a refused one is
      judged again, as if the refused one had not come.
  I6  A commit number that comes back with other contents stops the load: the tracker was replaced.
  I7  What a load changes of a table's number of rows is noted in the load's own transaction.
  I8  A child table holds exactly the items of the rows that are there: they are replaced with their
      row, deleted with it, and no row that lost changes any.
  I9  Where deletes are soft, a row that was deleted stays, marked, with the delete's versions; it
      counts as a row for I7. A tombstone is left only for a key without a row.
  I10 A table's column is at least as wide as that of any declaration that was loaded; a value is
      never changed by a cast. A key that widens keeps its tombstones.

Outcomes of a row, against the better ones of its key in the load, then the table or tombstone
  newer (higher source version; or equal, and later intake with other content)    delivered
  equal source version, and same intake version or same content                   duplicate
  all others                                                                      superseded
A duplicate with a later intake version moves the row's intake version on, its content being as it
was; without that, I3 would hang on the order of arrival. Two different events of one key with the
same two versions (children of one parent) are beyond I3: the first to come stays.
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.destinations.batch import PARKED as PARKED
    from waybill.destinations.batch import TableBatch as TableBatch
    from waybill.destinations.batch import batches_of as batches_of
    from waybill.destinations.batch import outcomes_of as outcomes_of
    from waybill.destinations.model import BehindError as BehindError
    from waybill.destinations.model import Commit as Commit
    from waybill.destinations.model import CountLook as CountLook
    from waybill.destinations.model import Destination as Destination
    from waybill.destinations.model import Expected as Expected
    from waybill.destinations.model import Finding as Finding
    from waybill.destinations.model import Held as Held
    from waybill.destinations.model import LoadOutcome as LoadOutcome
    from waybill.destinations.model import Note as Note
    from waybill.destinations.model import OutcomeCount as OutcomeCount
    from waybill.destinations.model import Park as Park
    from waybill.destinations.model import RefusedRow as RefusedRow
    from waybill.destinations.model import RevertingDestination as RevertingDestination
    from waybill.destinations.model import RowCount as RowCount
    from waybill.destinations.model import Rows as Rows
    from waybill.destinations.per_table.books import joined_outcome as joined_outcome
    from waybill.destinations.queries import QueryResult as QueryResult
    from waybill.destinations.queries import ReadQuery as ReadQuery
    from waybill.destinations.queries import TableMissingError as TableMissingError
    from waybill.destinations.queries import read_rows as read_rows
    from waybill.destinations.refused import refused_rows as refused_rows
    from waybill.destinations.registry import is_experimental as is_experimental
    from waybill.destinations.registry import open_destination as open_destination

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "batch": ["PARKED", "TableBatch", "batches_of", "outcomes_of"],
        "model": [
            "BehindError",
            "Commit",
            "CountLook",
            "Destination",
            "Expected",
            "Finding",
            "Held",
            "LoadOutcome",
            "Note",
            "OutcomeCount",
            "Park",
            "RefusedRow",
            "RevertingDestination",
            "RowCount",
            "Rows",
        ],
        "per_table.books": ["joined_outcome"],
        "registry": ["is_experimental", "open_destination"],
        "queries": ["QueryResult", "ReadQuery", "TableMissingError", "read_rows"],
        "refused": ["refused_rows"],
    },
)
