"""The database that is read: what has to be so before it can be, its publication, its slot.

What is made here is made in the order publication, then slot: a change is published only by what
was there when it was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import sql
from psycopg.errors import InsufficientPrivilege, QueryCanceled
from psycopg.rows import namedtuple_row

from waybill.errors import InputError, RetryError
from waybill.ingestion.connectors.connections import Connection
from waybill.ingestion.connectors.postgres_cdc.declaration import TableName, conninfo
from waybill.ingestion.connectors.postgres_cdc.errors import answered
from waybill.ingestion.connectors.postgres_cdc.replication import lsn_text
from waybill.pipelines import EventDeclaration

OLDEST = 15
_SAYS_WHY = 170_000
"""From this version on the server says why a slot is lost."""
_SLOT_WAIT_S = 60
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A declared table as it is in the database."""

    name: TableName
    event: str
    key: tuple[str, ...]
    """Columns of the event's key."""
    oid: int
    columns: tuple[str, ...]
    """Those that are published, in order."""
    page_key: tuple[str, ...]
    """Columns of a unique index without nulls, by which it is read page by page."""
    page_key_types: tuple[str, ...]
    """Their types, as SQL."""
    row_filter: str = ""
    """The publication's condition, as SQL; "": all rows."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A replication slot."""

    confirmed: int
    """All before it was confirmed."""
    held_bytes: int
    """Of log that the server keeps for it."""
    spare_bytes: int | None
    """Until the server drops the log all the same (``max_slot_wal_keep_size``); None: never."""
    active_pid: int | None
    """The server's process that reads it now."""
    lost: str
    """Why it cannot be read any more; "": it can."""


class SourceDatabase:
    """A session with the database. Each statement is a transaction of its own.

    Raises:
        RetryError: it does not answer.
        InputError: it refuses.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        with answered(connection, "connecting"):
            self.sql = psycopg.connect(conninfo(connection), autocommit=True)

    def close(self) -> None:
        """End the session."""
        self.sql.close()

    def rows(self, query: str, given: Iterable[Any] = ()) -> list[Any]:
        """Return the rows of a query, as named tuples."""
        with answered(self.connection), self.sql.cursor(row_factory=namedtuple_row) as cursor:
            return cursor.execute(query.encode(), list(given)).fetchall()

    def position(self) -> int:
        """Return where the log's next byte will stand."""
        return int(self.rows("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn AS lsn")[0].lsn)

    def flushed(self) -> int:
        """Return up to where the log is on the server's disk, so that it is sent."""
        return int(self.rows("SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn AS lsn")[0].lsn)

    def next_transaction(self) -> int:
        """Return an id that no transaction has yet that writes."""
        query = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text AS xid"
        return int(self.rows(query)[0].xid)

    def writers_before(self, transaction: int) -> list[int]:
        """Return the server's processes whose transactions write and began before one.

        A transaction that was prepared (two phases) has none: 0 stands for it.
        """
        query = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text AS xid"
        if int(self.rows(query)[0].xid) >= transaction:
            return []
        found = self.rows(
            "SELECT pid FROM pg_stat_activity WHERE backend_xid IS NOT NULL"
            " AND pid <> pg_backend_pid() ORDER BY xact_start"
        )
        return [row.pid for row in found] or [0]

    # What has to be so

    def require_server(self) -> str:
        """Return the server's own id.

        Raises:
            InputError: it is too old, a standby, or its log does not say enough.
        """
        version = self.sql.info.server_version
        if version < OLDEST * 10_000:
            raise self._wrong(f"it is version {version // 10_000}; {OLDEST} or newer is needed")
        if self.rows("SELECT pg_is_in_recovery() AS standby")[0].standby:
            raise self._wrong("it is a standby; name the primary")
        level = self.rows("SELECT current_setting('wal_level') AS level")[0].level
        if level != "logical":
            raise self._wrong(
                f"wal_level is {level}; set wal_level = logical and restart the server"
                " (a managed one: its parameter for logical replication)"
            )
        query = "SELECT system_identifier::text AS id FROM pg_control_system()"
        return str(self.rows(query)[0].id)

    def tables(
        self, declared: Mapping[TableName, str], events: Mapping[str, EventDeclaration]
    ) -> list[SourceTable]:
        """Return the declared tables; columns and conditions are the publication's business.

        Args:
            declared: event name of each table.
            events: the pipeline's, by name; may be empty.

        Raises:
            InputError: one is not there, may not be read, or has not what is needed.
        """
        return [self._table(name, event, events.get(event)) for name, event in declared.items()]

    def _table(self, name: TableName, event: str, declared: EventDeclaration | None) -> SourceTable:
        found = self.rows(_TABLE, [name.schema, name.name])
        if not found:
            raise InputError(
                f"source.options.tables: there is no table {str(name)!r} in database"
                f" {self.sql.info.dbname!r}; correct the name"
            )
        table = found[0]
        if table.kind not in {"r", "p"} or table.persistence != "p":
            raise InputError(
                f"table {str(name)!r} is a view, foreign, temporary or unlogged table: nothing of"
                " it is in the log; name a table"
            )
        if not table.readable:
            raise InputError(
                f"table {str(name)!r} may not be read by {self.sql.info.user!r}: GRANT SELECT ON"
                f" {quoted(name)} TO {identifier(self.sql.info.user)}"
            )
        self._require_identity(table, declared)
        key = self.rows(_PAGE_KEY, [table.oid])
        if not key:
            raise InputError(
                f"table {str(name)!r} has no primary key, nor a unique index on columns that are"
                " NOT NULL, so it cannot be read page by page; add one"
            )
        names, types = tuple(key[0].names), tuple(key[0].types)
        own_key = names if declared is None else declared.key
        return SourceTable(name, event, own_key, table.oid, (), names, types)

    def _require_identity(self, table: Any, declared: EventDeclaration | None) -> None:
        for part in self.rows(_IDENTITY, [table.oid]):
            if part.columns is None:
                raise InputError(
                    f"table {part.name} has no replica identity, so its updates and deletes cannot"
                    f" be read (and fail once it is published): give it a primary key, or ALTER"
                    f" TABLE {part.name} REPLICA IDENTITY FULL (or USING INDEX)"
                )
            missing = [field for field in (declared.key if declared else ()) if not part.whole]
            missing = [field for field in missing if field not in part.columns]
            if declared is not None and missing:
                raise InputError(
                    f"events.{declared.name}.key: a delete of table {part.name} says only"
                    f" {', '.join(part.columns)}, which has no {missing[0]!r}; declare another key,"
                    f" or ALTER TABLE {part.name} REPLICA IDENTITY FULL"
                )

    def _wrong(self, words: str) -> InputError:
        return InputError(f"PostgreSQL of connection {self.connection.name!r}: {words}")

    # The publication

    def publish(
        self, name: str, tables: list[SourceTable], *, own: bool
    ) -> tuple[list[SourceTable], set[TableName]]:
        """Return the tables as the publication has them, and those that it had not before.

        It is made, or added to, if it is our own.

        Args:
            name: of the publication.
            tables: that it has to publish.
            own: it was not named by a user.

        Raises:
            InputError: it is not there, or lacks something that only a user may change.
        """
        found = self.rows(_PUBLICATION, [name])
        added: set[TableName] = set()
        if not found:
            self._make_publication(name, tables, own=own)
            added = {table.name for table in tables}
            found = self.rows(_PUBLICATION, [name])
        publication = found[0]
        if not (publication.insert and publication.update and publication.delete):
            raise InputError(
                f"publication {name!r} leaves out inserts, updates or deletes: ALTER PUBLICATION"
                f" {identifier(name)} SET (publish = 'insert, update, delete, truncate')"
            )
        published = self._published(name)
        missing = [table for table in tables if table.name not in published]
        if missing:
            self._add_tables(name, missing, own=own)
            published = self._published(name)
            added = {table.name for table in missing}
        return [self._as_published(name, table, published) for table in tables], added

    def as_published(self, name: str, tables: list[SourceTable]) -> list[SourceTable]:
        """Return tables as our own publication has them, or would have them once it is made.

        Raises:
            InputError: it has them in a way that cannot be read.
        """
        published = self._published(name)
        return [
            self._as_published(name, table, published)
            if table.name in published
            else replace(table, columns=tuple(self.types(table)))
            for table in tables
        ]

    def types(self, table: SourceTable) -> dict[str, str]:
        """Return the columns of a table that a publication has by itself, with their types."""
        return {row.name: row.type for row in self.rows(_COLUMNS, [table.oid])}

    def _published(self, name: str) -> dict[TableName, Any]:
        rows = self.rows(_PUBLISHED, [name])
        return {TableName((row.schema, row.name)): row for row in rows}

    def _make_publication(self, name: str, tables: list[SourceTable], *, own: bool) -> None:
        statement = f"CREATE PUBLICATION {identifier(name)} FOR TABLE "
        statement += ", ".join(quoted(table.name) for table in tables)
        statement += " WITH (publish_via_partition_root = true)"
        self._change_publication(statement, f"there is no publication {name!r}", own=own)

    def _add_tables(self, name: str, tables: list[SourceTable], *, own: bool) -> None:
        names = ", ".join(quoted(table.name) for table in tables)
        statement = f"ALTER PUBLICATION {identifier(name)} ADD TABLE {names}"
        self._change_publication(statement, f"publication {name!r} lacks {names}", own=own)

    def _change_publication(self, statement: str, lacking: str, *, own: bool) -> None:
        if not own:
            raise InputError(f"{lacking}; run: {statement}")
        try:
            with answered(self.connection, f"running {statement}"):
                try:
                    self.sql.execute(statement.encode())
                except psycopg.errors.DuplicateObject:
                    return  # another run was quicker
        except InputError as error:
            if isinstance(error.__context__, InsufficientPrivilege):
                raise InputError(
                    f"{lacking}, and user {self.sql.info.user!r} may not make it so; have the"
                    f" tables' owner run: {statement}"
                ) from None
            raise

    def _as_published(
        self, publication: str, table: SourceTable, published: Mapping[TableName, Any]
    ) -> SourceTable:
        row = published.get(table.name)
        if row is None:
            raise InputError(
                f"publication {publication!r} publishes {str(table.name)!r} under other names:"
                f" ALTER PUBLICATION {identifier(publication)} SET (publish_via_partition_root ="
                " true)"
            )
        lacking = [name for name in table.page_key if name not in row.columns]
        if lacking:
            raise InputError(
                f"publication {publication!r} leaves column {lacking[0]!r} of {str(table.name)!r}"
                " out, which is part of its key; publish it"
            )
        return replace(table, columns=tuple(row.columns), row_filter=row.filter or "")

    # The slot

    def slot(self, name: str) -> Slot | None:
        """Return a slot; None: there is none.

        Raises:
            InputError: it is one of another kind, or of another database.
        """
        rows = self.rows(
            _SLOT.format(
                reason="invalidation_reason"
                if self.sql.info.server_version >= _SAYS_WHY
                else "NULL"
            ),
            [name],
        )
        if not rows:
            return None
        row = rows[0]
        if row.plugin != "pgoutput" or row.database != self.sql.info.dbname:
            raise InputError(
                f"slot {name!r} is there for something else (plugin {row.plugin}, database"
                f" {row.database}); choose another name in source.options.slot"
            )
        lost = ""
        if row.wal_status == "lost":
            reason = {"wal_removed": "it held back more log than max_slot_wal_keep_size allows"}
            lost = reason.get(row.reason or "wal_removed", f"the server says {row.reason}")
        return Slot(int(row.confirmed or 0), int(row.held or 0), row.spare, row.active_pid, lost)

    def make_slot(self, name: str) -> None:
        """Make a slot; waits for the transactions that write.

        Raises:
            RetryError: transactions go on for longer than a minute.
            InputError: it may not be made.
        """
        wait = sql.SQL("SET statement_timeout = {}").format(sql.Literal(f"{_SLOT_WAIT_S}s"))
        make = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')"
        with answered(self.connection, f"making replication slot {name!r}"):
            self.sql.execute(wait)
            try:
                self.sql.execute(make, [name])
            except QueryCanceled:
                writers = self.rows(_WRITERS)
                pids = ", ".join(str(row.pid) for row in writers) or "prepared ones"
                raise RetryError(
                    f"replication slot {name!r} cannot be made while transactions that write are"
                    f" open; they are those of the server's processes {pids}"
                ) from None
            finally:
                self.sql.execute("SET statement_timeout = 0")

    def drop_slot(self, name: str) -> None:
        """Drop a slot."""
        with answered(self.connection, f"dropping replication slot {name!r}"):
            self.sql.execute("SELECT pg_drop_replication_slot(%s)", [name])


def identifier(name: str) -> str:
    """Return a name as SQL."""
    return sql.Identifier(name).as_string()


def quoted(name: TableName) -> str:
    """Return a table's name as SQL."""
    return sql.Identifier(*name).as_string()


def holding_words(name: str, slot: Slot) -> str:
    """Say how much log a slot holds back."""
    words = f"replication slot {name!r} holds back {slot.held_bytes / _MIB:,.0f} MiB of the log"
    if slot.spare_bytes is not None:
        words += f", {max(0, slot.spare_bytes) / _MIB:,.0f} MiB before the server drops it"
    return f"{words}; confirmed up to {lsn_text(slot.confirmed)}"


_TABLE = """
SELECT c.oid::int8 AS oid, c.relkind AS kind, c.relpersistence AS persistence,
       has_table_privilege(c.oid, 'SELECT') AS readable
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""
_COLUMNS = """
SELECT attname::text AS name, format_type(atttypid, atttypmod) AS type
FROM pg_attribute
WHERE attrelid = %s::int8::oid AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
ORDER BY attnum
"""
_IDENTITY = """
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS name,
       c.relreplident = 'f' AS whole,
       CASE WHEN c.relreplident = 'f' THEN ARRAY[]::text[] ELSE (
           SELECT array_agg(a.attname::text ORDER BY k.place)
           FROM pg_index i
           CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(number, place)
           JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
           WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
             AND k.place <= i.indnkeyatts
             AND (c.relreplident = 'd' AND i.indisprimary
                  OR c.relreplident = 'i' AND i.indisreplident)
       ) END AS columns
FROM (SELECT %s::int8::oid AS root) r
CROSS JOIN LATERAL (
    SELECT relid FROM pg_partition_tree(r.root) WHERE isleaf
    UNION SELECT r.root WHERE NOT EXISTS (SELECT FROM pg_partition_tree(r.root) WHERE isleaf)
) t
JOIN pg_class c ON c.oid = t.relid JOIN pg_namespace n ON n.oid = c.relnamespace
ORDER BY 1
"""
_PAGE_KEY = """
SELECT array_agg(a.attname::text ORDER BY k.place) AS names,
       array_agg(format_type(a.atttypid, a.atttypmod) ORDER BY k.place) AS types
FROM pg_index i
CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(number, place)
LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
WHERE i.indrelid = %s::int8::oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
  AND k.place <= i.indnkeyatts
GROUP BY i.indexrelid, i.indisprimary
HAVING bool_and(coalesce(a.attnotnull, false))
ORDER BY i.indisprimary DESC, count(*), i.indexrelid LIMIT 1
"""
_PUBLICATION = """
SELECT pubinsert AS insert, pubupdate AS update, pubdelete AS delete
FROM pg_publication WHERE pubname = %s
"""
_PUBLISHED = """
SELECT schemaname AS schema, tablename AS name, attnames::text[] AS columns, rowfilter AS filter
FROM pg_publication_tables WHERE pubname = %s
"""
_SLOT = """
SELECT plugin, database, active_pid, wal_status, {reason} AS reason,
       confirmed_flush_lsn - '0/0'::pg_lsn AS confirmed,
       pg_current_wal_lsn() - restart_lsn AS held, safe_wal_size AS spare
FROM pg_replication_slots WHERE slot_name = %s
"""
_WRITERS = """
SELECT pid FROM pg_stat_activity
WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() ORDER BY xact_start
"""
