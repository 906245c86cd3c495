"""The connector ``postgres_cdc``: tables and their changes, by logical replication."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator
from dataclasses import replace

from waybill.errors import InputError, RetryError
from waybill.ingestion.connectors.base import (
    Cursor,
    Discovered,
    HeldLog,
    Page,
    Patience,
    Standing,
)
from waybill.ingestion.connectors.opening import Opening
from waybill.ingestion.connectors.postgres_cdc.changes import ChangeReader
from waybill.ingestion.connectors.postgres_cdc.column_values import Converters
from waybill.ingestion.connectors.postgres_cdc.declaration import (
    TableName,
    conninfo,
    read_options,
    table_name,
)
from waybill.ingestion.connectors.postgres_cdc.errors import answered
from waybill.ingestion.connectors.postgres_cdc.log_reader import LogReader
from waybill.ingestion.connectors.postgres_cdc.position import Position, TablePosition
from waybill.ingestion.connectors.postgres_cdc.replication import ReplicationStream, lsn_text
from waybill.ingestion.connectors.postgres_cdc.rows import PAGE_BYTES
from waybill.ingestion.connectors.postgres_cdc.snapshot import read_page
from waybill.ingestion.connectors.postgres_cdc.source_database import (
    Slot,
    SourceDatabase,
    SourceTable,
    holding_words,
)

_LOG = logging.getLogger(__name__)
_MIB = 1024 * 1024
_WAIT_S = 0.5
_SLOT_BUSY_S = 30.0
"""For so long a slot may be read by a process that has just died."""
_TOLD_EACH_S = 30.0


class PostgresCdcConnector:
    """Reads the declared tables once, then their changes from a replication slot.

    Each run goes on where the last one's commits ended; it ends when nothing came for ``idle_s``,
    or after ``run_s``. See ``docs/connectors-cdc.md`` and ADR 31.
    """

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._options = read_options(opening)
        self._page_rows = opening.source.page_rows
        self._tables: dict[TableName, str] = {
            table_name(text): event for event, text in self._options.tables.items()
        }
        self._opened: SourceDatabase | None = None
        self._stream: ReplicationStream | None = None

    def read(self, cursor: Cursor | None) -> Iterator[Page | None]:
        """Yield the pages behind a position: rows of tables that were not read yet, then changes.

        Raises:
            InputError: the server, the tables, the publication or the slot are not as they have to
                be; says what to do.
            RetryError: the server is away, or somebody else reads the slot.
        """
        self.close()
        patience = Patience(self._options.idle_s, self._options.run_s)
        database = self._database()
        system = database.require_server()
        declared = database.tables(self._tables, self._opening.events)
        own = self._options.publication is None
        name = self._options.publication or self._options.slot
        tables, added = database.publish(name, declared, own=own)
        position = self._begin(database, system, cursor)
        yield from self._until_free(database)
        begun = _with_tables(database, position, tables, added)
        start = None if cursor is None else dict(cursor)
        if begun.cursor() != start:
            yield Page([], [], cursor=begun.cursor(), start=start)
        converters = Converters(database.sql)
        position = yield from self._read_tables(database, converters, tables, begun)
        changes = ChangeReader(database, converters, tables)
        yield from self._read_changes(database, changes, position, patience)

    def preview(self) -> Iterator[Page]:
        """Yield the first rows of each table; makes no slot and no publication.

        Raises:
            InputError, RetryError: as ``read``.
        """
        self.close()
        database = self._database()
        system = database.require_server()
        position = Position(system=system, slot=self._options.slot, lsn=0)
        converters = Converters(database.sql)
        for table in self._readable(database):
            beginning = TablePosition(oid=table.oid, floor=0, until=0)
            rows, _ = read_page(
                database, converters, table, beginning, rows=self._page_rows, size=PAGE_BYTES
            )
            yield rows.page(position.cursor(), position)

    def discover(self) -> list[Discovered]:
        """Return the declared tables, each with its key; their versions are the log's."""
        self.close()
        database = self._database()
        database.require_server()
        return [
            Discovered(
                str(table.name),
                table.event,
                key=table.key,
                types=database.types(table),
                versions_itself=True,
            )
            for table in self._readable(database)
        ]

    def only(self, name: str) -> PostgresCdcConnector:
        """Return a connector of one table."""
        own = {
            event: text
            for event, text in self._options.tables.items()
            if str(table_name(text)) == name
        }
        options = {**self._opening.source.options, "tables": own}
        source = self._opening.source.model_copy(update={"options": options})
        return PostgresCdcConnector(replace(self._opening, source=source))

    def _readable(self, database: SourceDatabase) -> list[SourceTable]:
        """Return the declared tables as they are, or would be, published; nothing changes."""
        declared = database.tables(self._tables, self._opening.events)
        own = self._options.publication
        if own is not None:
            return database.publish(own, declared, own=False)[0]
        return database.as_published(self._options.slot, declared)

    def count(self) -> int | None:
        """Return None: a source without an end."""
        return None

    def standing(self, cursor: Cursor) -> Standing | None:
        """Return a position in the log, and how many bytes of log are behind it."""
        if self._opened is None:
            return None
        lsn = Position.of(cursor).lsn
        behind = max(0, self._opened.flushed() - lsn)
        return Standing(lsn_text(lsn), behind, "bytes")

    def confirm(self, cursor: Cursor) -> None:
        """Let the server forget what is committed."""
        stream = self._stream
        if stream is not None:
            with answered(self._database().connection, "confirming"):
                stream.confirm(Position.of(cursor).lsn)

    def held(self) -> HeldLog | None:
        """Return how much log the server keeps for the slot; None: there is no slot.

        Raises:
            RetryError: the server does not answer.
            InputError: it refuses.
        """
        name, limit = self._options.slot, self._options.slot_limit_mb * _MIB
        slot = self._database().slot(name)
        if slot is None:
            return None
        if slot.lost:
            words = f"replication slot {name!r} is lost: {slot.lost}"
            return HeldLog(words, slot.held_bytes, limit, lost=True)
        return HeldLog(holding_words(name, slot), slot.held_bytes, limit)

    def close(self) -> None:
        """End all connections; again changes nothing."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _database(self) -> SourceDatabase:
        if self._opened is None:
            self._opened = SourceDatabase(self._opening.connection("postgres"))
        return self._opened

    # The slot

    def _begin(self, database: SourceDatabase, system: str, cursor: Cursor | None) -> Position:
        """Return where to go on; the slot is there then."""
        name = self._options.slot
        slot = database.slot(name)
        if cursor is None:
            if slot is not None and slot.lost:
                database.drop_slot(name)
                slot = None
            if slot is None:
                database.make_slot(name)
                slot = database.slot(name)
            if slot is None:
                raise RetryError(f"replication slot {name!r} was dropped as soon as it was made")
            return Position(system=system, slot=name, lsn=slot.confirmed)
        position = Position.of(cursor)
        _require_same(position, system, name)
        _require_changes(position, slot, database.position())
        return position

    def _until_free(self, database: SourceDatabase) -> Iterator[None]:
        """Wait for a process that has just died to leave the slot."""
        deadline = time.monotonic() + _SLOT_BUSY_S
        while (slot := database.slot(self._options.slot)) is not None and slot.active_pid:
            if time.monotonic() > deadline:
                raise RetryError(
                    f"replication slot {self._options.slot!r} is read by the server's process"
                    f" {slot.active_pid}, of another client; a slot is for one pipeline of one"
                    " deployment: end that client, or choose another slot"
                )
            yield None
            time.sleep(_WAIT_S)
        if slot is not None and slot.held_bytes > self._options.slot_limit_mb * _MIB:
            _LOG.warning("%s", holding_words(self._options.slot, slot))

    # Tables

    def _read_tables(
        self,
        database: SourceDatabase,
        converters: Converters,
        tables: list[SourceTable],
        position: Position,
    ) -> Generator[Page | None, None, Position]:
        """Yield the rows of the tables that are not read yet; returns the position behind them."""
        for table in tables:
            name = str(table.name)
            while not (at := position.tables[name]).done:
                yield from _until_ended(database, at.until)
                rows, moved = read_page(
                    database, converters, table, at, rows=self._page_rows, size=PAGE_BYTES
                )
                start = position.cursor()
                position = position.with_table(name, moved)
                yield rows.page(start, position)
        return position

    # Changes

    def _read_changes(
        self,
        database: SourceDatabase,
        changes: ChangeReader,
        position: Position,
        patience: Patience,
    ) -> Iterator[Page | None]:
        """Yield the changes behind a position until nothing comes, or the time is over."""
        with answered(database.connection, "reading the log"):
            self._stream = ReplicationStream(
                conninfo(database.connection, replication=True),
                slot=self._options.slot,
                publication=self._options.publication or self._options.slot,
                start=position.lsn,
            )
            reader = LogReader(self._stream, changes, position, page_rows=self._page_rows)
            try:
                yield from reader.pages(patience, target=database.flushed())
            except Exception:
                self.close()  # a server that shuts down waits for that
                raise


def _until_ended(database: SourceDatabase, transaction: int) -> Iterator[None]:
    """Wait until all transactions before one have ended."""
    told = 0.0
    while writers := database.writers_before(transaction):
        if time.monotonic() - told > _TOLD_EACH_S:
            told = time.monotonic()
            _LOG.info(
                "reading begins once transactions that write have ended: those of processes %s"
                " (0: a prepared one) of the server",
                writers,
            )
        yield None
        time.sleep(_WAIT_S)


def _with_tables(
    database: SourceDatabase, position: Position, tables: list[SourceTable], added: set[TableName]
) -> Position:
    """Return the position with the tables that are declared now; new ones are at their beginning.

    One that was made again under its name, or had left the publication, is new.
    """
    found: dict[str, TablePosition] = {}
    for table in tables:
        name = str(table.name)
        known = position.tables.get(name)
        if known is not None and known.oid == table.oid and table.name not in added:
            found[name] = known
            continue
        floor = database.position() - 1
        found[name] = TablePosition(oid=table.oid, floor=floor, until=database.next_transaction())
    return position.model_copy(update={"tables": found})


def _require_same(position: Position, system: str, slot: str) -> None:
    if position.slot != slot:
        raise InputError(
            f"source.options.slot: the source was read by slot {position.slot!r}, and is {slot!r}"
            f" now: name the old one, or {_READ_AGAIN}"
        )
    if position.system != system:
        raise InputError(
            f"this is another server than the one that was read (its id was {position.system}, now"
            f" {system}): correct the connection, or {_READ_AGAIN}"
        )


def _require_changes(position: Position, slot: Slot | None, end: int) -> None:
    """Refuse to go on where changes are missing.

    Raises:
        InputError: says why, and what to do.
    """
    why = ""
    if slot is None:
        why = f"replication slot {position.slot!r} is gone"
    elif slot.lost:
        why = f"replication slot {position.slot!r} is lost: {slot.lost}"
    elif slot.confirmed > position.lsn:
        why = (
            f"replication slot {position.slot!r} was read by somebody else up to"
            f" {lsn_text(slot.confirmed)}"
        )
    elif position.lsn > end:
        why = f"the server's log ends at {lsn_text(end)}: it was put back to an older state"
    if why:
        raise InputError(
            f"{why}; changes behind {lsn_text(position.lsn)} cannot be read. {_READ_AGAIN}: rows"
            " that were deleted meanwhile stay at the destination"
        )


_READ_AGAIN = "read the tables again (`waybill pipelines reread`)"
