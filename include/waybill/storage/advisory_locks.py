"""Every PostgreSQL advisory lock that Waybill takes, in the tracker and in PostgreSQL destinations.

Advisory locks are plain numbers that all users of a database share. Two jobs that take the same one
wait for each other, or skip their turn, for no reason. So each job has a name here, its number is
made of the name, and nothing else calls ``pg_advisory…``. All end with their transaction.
"""

from __future__ import annotations

from enum import StrEnum, unique

from sqlalchemy import Connection, text


@unique
class AdvisoryLock(StrEnum):
    """A job that one process does at a time; no name is another one's beginning and a blank."""

    MIGRATION = "waybill migration"
    """Bringing the tracker's tables to a version."""
    AUDIT_ROUND = "waybill audit round"
    """A round of the auditor."""
    MISSING_OBJECTS = "waybill missing objects"
    """Telling of objects that rows name and the store does not have."""
    MAPPING_VERSION = "waybill mapping"
    """Adding a version to an event name's mapping; its scope: pipeline id and event name."""
    SOURCE_LEASE = "waybill source"
    """Taking a pipeline's source over; its scope: pipeline id."""
    CLUSTER_ASSIGNMENT = "waybill assignment"
    """Making the next version of which cluster serves which team."""
    CAPACITY = "waybill capacity"
    """Deciding about nodes, and announcing them."""
    CAMPAIGN = "waybill campaign"
    """Freezing the parked groups of a campaign: no group is in two that are at work."""
    UNDEPLOYMENT = "waybill undeployment"
    """Going on with a pipeline's undeployment; its scope: pipeline id."""
    AUDIT_SEAL = "waybill audit seal"
    """Sealing the audit log: one seal, from its object to its row."""
    QUESTION = "waybill question"
    """Counting a person's questions about events and adding one; its scope: the person."""
    DESTINATION_BOOKS = "waybill books"
    """Making the schema ``waybill`` of a destination."""
    DESTINATION_TABLES = "waybill tables"
    """Bringing a destination's tables to their declarations."""
    DESTINATION_TABLE = "waybill table"
    """Loading into one table of a destination; its scope: schema and table."""

    def name_of(self, *scope: str) -> str:
        """Return what the lock's number is made of."""
        return " ".join([self.value, *scope])

    def take(self, connection: Connection, *scope: str) -> None:
        """Wait for the lock; it is held until the transaction ends."""
        connection.execute(_TAKE, {"name": self.name_of(*scope)})

    def try_take(self, connection: Connection, *scope: str) -> bool:
        """Take the lock until the transaction ends, if nobody has it; False: somebody has."""
        return bool(connection.execute(_TRY, {"name": self.name_of(*scope)}).scalar_one())

    def sql(self, *scope: str) -> str:
        """Return the statement that waits for the lock, for sessions that are not SQLAlchemy's."""
        name = self.name_of(*scope).replace("'", "''")
        return f"SELECT pg_advisory_xact_lock(hashtextextended('{name}', 0))::text"


_TAKE = text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")
_TRY = text("SELECT pg_try_advisory_xact_lock(hashtextextended(:name, 0))")
