"""The tracker's engine and tables: PostgreSQL, always.

Only this package knows how to connect and what the tables are; the rooms that keep books in them
(ledger, parking) write their own statements over ``tables``.
"""

from waybill.storage.tracker import tables
from waybill.storage.tracker.engine import TrackerStore, open_tracker

__all__ = ["TrackerStore", "open_tracker", "tables"]
