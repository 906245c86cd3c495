"""The replication protocol over libpq: COPY BOTH by psycopg's ``PGconn``.

What was read is confirmed by nobody but ``confirm``: a client that says more than that, such as one
that takes the server's word for its own, loses what it had not committed.
"""

from __future__ import annotations

import select
import struct
import time
from types import TracebackType
from typing import NamedTuple, Self

import msgspec
from psycopg import pq, sql
from psycopg.errors import OperationalError
from psycopg.pq import DiagnosticField, ExecStatus

from waybill.ingestion.connectors.postgres_cdc.errors import ServerError

_CHANGE, _KEEPALIVE = ord("w"), ord("k")
_HEADER = 25
_UNIX_TO_POSTGRES_US = 946_684_800_000_000
_position = struct.Struct(">Q").unpack_from
_FEEDBACK = struct.Struct(">cqqqqb")
FEEDBACK_S = 10.0
"""How often the server is told at least that this client lives; it gives up after a minute."""


class Change(msgspec.Struct, frozen=True):
    """A message of the output plugin."""

    lsn: int
    """Of what it tells, in the log."""
    payload: bytes


class Keepalive(NamedTuple):
    """All that was committed before a position has been sent."""

    lsn: int
    answer_wanted: bool
    """The server waits to be told how far this client is: it may be shutting down."""


class ReplicationStream:
    """A slot's changes from a position on.

    Args:
        conninfo: to the slot's database, with ``replication=database``.
        slot: the slot's name.
        publication: the publication's name.
        start: where to go on; what is before it is confirmed.

    Raises:
        ServerError: the server does not answer, or refuses.
    """

    def __init__(self, conninfo: str, *, slot: str, publication: str, start: int) -> None:
        self._confirmed = self._received = start
        self._told = 0.0
        self._connection = _connect(conninfo)
        self._poll = select.poll()
        self._poll.register(self._connection.socket, select.POLLIN)
        try:
            self._start(slot, publication)
            self.confirm(start)
        except BaseException:
            self.close()
            raise

    def _start(self, slot: str, publication: str) -> None:
        names = sql.Literal(sql.Identifier(publication).as_string())
        command = sql.SQL(
            "START_REPLICATION SLOT {} LOGICAL {} (proto_version '1', publication_names {})"
        ).format(sql.Identifier(slot), sql.SQL(lsn_text(self._confirmed)), names)
        result = self._connection.exec_(command.as_string().encode())
        if result.status != ExecStatus.COPY_BOTH:
            raise _refused(result)

    def next(self, wait_s: float) -> Change | Keepalive | None:
        """Return the next message; None: nothing came for so long.

        Raises:
            ServerError: the connection is lost, or the server ended the stream.
        """
        message = self._take()
        if message is None and wait_s > 0:
            self.tell_sometimes()
            if self._poll.poll(wait_s * 1000):
                self._consume()
                message = self._take()
        return message

    def _take(self) -> Change | Keepalive | None:
        try:
            size, data = self._connection.get_copy_data(1)
        except OperationalError as error:
            raise ServerError(str(error)) from error
        if size > 0:
            if data[0] != _CHANGE:
                return self._read(bytes(data))
            (lsn,) = _position(data, 1)
            self._received = max(self._received, lsn)
            return Change(lsn, bytes(data[_HEADER:]))
        if size == 0:
            return None
        result = self._connection.get_result()
        if result is not None and result.error_message:
            raise _refused(result)
        raise ServerError("the server ended the stream")

    def _consume(self) -> None:
        try:
            self._connection.consume_input()
        except OperationalError as error:
            raise ServerError(str(error)) from error

    def _read(self, data: bytes) -> Keepalive:
        if data[0] == _KEEPALIVE:
            wanted = data[17] == 1
            if wanted:
                self._tell()
            return Keepalive(int.from_bytes(data[1:9]), wanted)
        raise ServerError(f"the server sent {data[:1]!r} within a stream")

    def confirm(self, lsn: int) -> None:
        """Say that all before a position is committed here: the server may forget it.

        Raises:
            ServerError: the connection is lost.
        """
        self._confirmed = max(self._confirmed, lsn)
        self._tell()

    def tell_sometimes(self) -> None:
        """Tell the server that this client lives, if it was not told for a while.

        Raises:
            ServerError: the connection is lost.
        """
        if time.monotonic() - self._told > FEEDBACK_S:
            self._tell()

    def _tell(self) -> None:
        self._told = time.monotonic()
        now_us = time.time_ns() // 1000 - _UNIX_TO_POSTGRES_US
        received, confirmed = max(self._received, self._confirmed), self._confirmed
        data = _FEEDBACK.pack(b"r", received, confirmed, confirmed, now_us, 0)
        try:
            self._connection.put_copy_data(data)
            self._connection.flush()
        except OperationalError as error:
            raise ServerError(str(error)) from error

    def close(self) -> None:
        """End the connection; again changes nothing."""
        self._connection.finish()

    def __enter__(self) -> Self:
        """Return the stream."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()


def _connect(conninfo: str) -> pq.abc.PGconn:
    connection = pq.PGconn.connect(conninfo.encode())
    if connection.status != 0:
        said = connection.get_error_message()
        connection.finish()
        raise ServerError(said)
    return connection


def _refused(result: pq.abc.PGresult) -> ServerError:
    state = result.error_field(DiagnosticField.SQLSTATE) or b""
    return ServerError(result.get_error_message(), state.decode())


def lsn_text(lsn: int) -> str:
    """Return a position in the log as PostgreSQL writes it: ``16/B374D848``."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
