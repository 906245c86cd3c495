"""The changes of a slot, as pages.

A page ends when it is full, also within a transaction, whose changes are counted then: the server
sends a transaction again from its beginning, and what was read of it is passed over. So no
transaction is held in memory, however large. A page that is not full goes once nothing came for a
moment; but not before this run has read all that was in the log when it began: a run that reads a
page again which a killed one had begun gets no less than that had.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from waybill.errors import InputError
from waybill.ingestion.connectors.base import Page, Patience
from waybill.ingestion.connectors.postgres_cdc.changes import ChangePage, ChangeReader
from waybill.ingestion.connectors.postgres_cdc.pgoutput import (
    INSERT,
    Begin,
    Commit,
    Relation,
    decode,
)
from waybill.ingestion.connectors.postgres_cdc.position import Position
from waybill.ingestion.connectors.postgres_cdc.replication import (
    Change,
    Keepalive,
    ReplicationStream,
    lsn_text,
)
from waybill.ingestion.connectors.postgres_cdc.rows import PAGE_BYTES

_WAIT_S = 0.5
_LINGER_S = 0.2
"""Without a change for so long, a page goes that is not full."""
_MOVED_BYTES = 16 * 1024 * 1024
"""So much log without a change of these tables is a page of its own: the server may forget it."""
_LAST_BYTES = 64 * 1024
"""The same, at the end of a run."""
_MESSAGES = 1024
"""Between two looks at the clock."""


class LogReader:
    """Reads a stream from a position on.

    Args:
        stream: begins at the position.
        changes: turns changes into records.
        position: where to begin.
        page_rows: a page ends behind so many rows.
    """

    def __init__(
        self,
        stream: ReplicationStream,
        changes: ChangeReader,
        position: Position,
        *,
        page_rows: int,
    ) -> None:
        self._stream = stream
        self._changes = changes
        self._page_rows = page_rows
        self._at = position
        """Behind the last page."""
        self._lsn = self._reached = position.lsn
        """Behind the last whole transaction; up to where the server had sent all."""
        self._transaction = self._count = self._read = 0
        """Its commit's place, 0: none is open; its changes so far; those that were read before."""
        self._page = ChangePage()
        self._answer_wanted = self._moved = False

    def pages(self, patience: Patience, *, target: int) -> Iterator[Page | None]:
        """Yield the pages until nothing comes, or the time is over.

        Args:
            patience: says when; before this run is through with what it began with, or has made
                a page, it goes on all the same.
            target: the end of the log when the run began.
        """
        while True:
            came = yield from self._messages()
            caught_up = self._reached >= target
            if came or not caught_up:
                patience.met()
            if patience.over and (caught_up or self._moved):
                break
            if came:
                yield None
            elif caught_up and self._is_due():
                yield self._taken()
            else:
                yield None
        if self._page or (not self._transaction and self._gap > _LAST_BYTES):
            yield self._taken()

    def _messages(self) -> Generator[Page, None, bool]:
        """Read up to some number of messages, with full pages; returns whether that many came."""
        for _ in range(_MESSAGES):
            page = self._page
            message = self._stream.next(_LINGER_S if page.records or page.bad else _WAIT_S)
            if message is None:
                return False
            if isinstance(message, Change):
                self._change(message)
                count = len(page.records) + len(page.bad)
                if count >= self._page_rows or page.size >= PAGE_BYTES:
                    yield self._taken()
            else:
                self._keepalive(message)
        self._stream.tell_sometimes()
        return True

    def _change(self, message: Change) -> None:
        payload, page = message.payload, self._page
        if payload[0] == INSERT and self._count >= self._read:
            if self._changes.add_insert(page, payload, message.lsn):
                self._count += 1
                page.size += len(payload)
                return
        change = decode(payload)
        if change is None:
            return
        if isinstance(change, Begin):
            self._begin(change)
        elif isinstance(change, Commit):
            self._lsn, self._transaction = change.end_lsn, 0
            self._reached = max(self._reached, change.end_lsn)
        elif isinstance(change, Relation):
            self._changes.relate(change)
        else:
            self._count += 1
            if self._count > self._read:
                self._changes.add(page, change, message.lsn)
                page.size += len(payload)

    def _begin(self, begin: Begin) -> None:
        at = self._at
        self._transaction, self._count, self._read = begin.commit_lsn, 0, 0
        if at.transaction and self._lsn == at.lsn:  # the first one
            if begin.commit_lsn != at.transaction:
                raise InputError(
                    f"the transaction that was committed at {lsn_text(at.transaction)} was read in"
                    " part, and is not published any more; read the tables again (`waybill"
                    " pipelines reread`)"
                )
            self._read = at.changes

    def _keepalive(self, message: Keepalive) -> None:
        """Take note of where the server is.

        One that shuts down waits for this client to confirm all that it sent, which it cannot while
        Kafka has not all of it. It has ended all other sessions by then: so the stream is ended.
        """
        if not self._transaction:
            self._reached = max(self._reached, message.lsn)
            self._answer_wanted |= message.answer_wanted
        if message.answer_wanted:
            self._changes.require_server()

    def _is_due(self) -> bool:
        """Tell whether a page is to go although it is not full."""
        if self._transaction:
            return False
        return bool(self._page) or self._gap > (0 if self._answer_wanted else _MOVED_BYTES)

    @property
    def _gap(self) -> int:
        """Bytes of log that were sent since the last page, whosever changes they hold."""
        return self._reached - self._at.lsn

    def _taken(self) -> Page:
        """Return the page that was gathered, and begin the next one."""
        page, self._page = self._page, ChangePage()
        self._changes.complete(page)
        start = self._at.cursor()
        if self._transaction:
            self._at = self._at.moved(self._lsn, self._transaction, self._count)
        else:
            self._lsn = max(self._lsn, self._reached)
            self._at = self._at.moved(self._lsn)
            self._answer_wanted = False
        self._moved = True
        return page.page(start, self._at)
