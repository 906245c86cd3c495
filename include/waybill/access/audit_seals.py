"""Seals of the audit log: a chain of digests over its entries, in the tracker and in the bucket.

A seal covers the entries that were not sealed yet, up to an id. Its chain digest is made of the one
before it. ``audit/<deployment>/<number>.jsonl`` in the bucket holds the seal on its first line and
then the sealed entries, a line each, so it is also their export.

Invariants
  I1  A seal's object is written once, before its row: no row is without an object. A sealer that is
      killed between leaves an object without a row; the next one takes it over if the tracker's
      entries are those that it holds.
  I2  Behind a seal no entry with a lower id can be committed any more (see `_await_writers`).
  I3  Nothing in the store is written over. Where it has seals that the tracker does not know, the
      next seal goes behind the highest of them and says behind which one the tracker stood
      (``after_number``).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import time
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any

from sqlalchemy import Connection, RowMapping, func, select, text

from waybill.access.audit_entries import (
    FIRST_ID,
    LAST_ID,
    AuditLine,
    audit_lines,
    canonical_json,
    digest_lines,
    moment_columns,
    moment_text,
    read_page,
)
from waybill.errors import RetryError, StopError
from waybill.storage import (
    AdvisoryLock,
    ObjectMissingError,
    ObjectStore,
    TrackerStore,
    deployment_of,
)
from waybill.storage.tracker import audit_seals

SEAL_ENTRIES = 10_000
"""At most, in one seal."""
_SEAL_BYTES = 16 * 2**20
"""No further entry is added to a seal that has as many."""
_MOST_SEALS = 20
"""Of one run."""
_AGAIN_S = 0.2
_NUMBER = re.compile(r"(\d{12,18})\.jsonl")
_LARGEST_OBJECT = 4 * _SEAL_BYTES
"""What is larger is no seal: nothing of it is read."""


@dataclass(frozen=True, slots=True)
class Seal:
    """One seal, as its row and the first line of its object have it."""

    number: int
    after_number: int
    """The seal before it that the tracker had: ``number - 1``, or less after a restore."""
    first_id: int
    last_id: int
    entries: int
    entries_sha256: str
    """Over the entries' lines in the order of their ids, each with its line end."""
    sealed_at: str
    """RFC 3339, UTC, microseconds; the tracker's clock."""
    chain_sha256: str
    """Over the chain digest of seal ``number - 1`` and the fields above."""
    signature: str
    """HMAC-SHA256 of ``chain_sha256``; empty: not signed."""

    def chained(self, previous: str) -> str:
        """Return the chain digest that this seal has behind a seal with the digest ``previous``."""
        fields = [value for name, value in asdict(self).items() if name not in _NOT_CHAINED]
        return hashlib.sha256(canonical_json([previous, *fields]).encode()).hexdigest()


_NOT_CHAINED = ("chain_sha256", "signature")


@dataclass(frozen=True, slots=True)
class StoredSeal:
    """A seal's object."""

    seal: Seal
    previous_sha256: str
    """The chain digest of the seal before it."""
    lines: bytes
    """The entries, each with its line end."""

    @property
    def is_whole(self) -> bool:
        """Tell whether the object agrees with itself: its entries, their number, its digests."""
        return (
            self.seal.entries == self.lines.count(b"\n")
            and self.seal.entries_sha256 == hashlib.sha256(self.lines).hexdigest()
            and self.seal.chain_sha256 == self.seal.chained(self.previous_sha256)
        )

    def to_bytes(self) -> bytes:
        """Return the object."""
        first = asdict(self.seal) | {"previous_sha256": self.previous_sha256}
        return canonical_json(first).encode() + b"\n" + self.lines


class SealObjects:
    """The objects of a deployment's seals."""

    def __init__(self, objects: ObjectStore, deployment: str) -> None:
        self._objects = objects
        self._prefix = f"audit/{deployment}/"
        self.genesis = hashlib.sha256(f"audit log of {deployment}".encode()).hexdigest()
        """What stands for the chain digest before the first seal."""

    def key(self, number: int) -> str:
        """Return the key of a seal's object."""
        return f"{self._prefix}{number:012}.jsonl"

    def write(self, stored: StoredSeal) -> bool:
        """Write a seal's object; False: there is one of this number.

        Raises:
            RetryError: the store did not answer; it may be written.
        """
        key = self.key(stored.seal.number)
        return self._objects.swap(key, stored.to_bytes(), expected=None) is not None

    def read(self, number: int) -> StoredSeal | None:
        """Return a seal's object; None: it is no seal of this number.

        Raises:
            ObjectMissingError: it is not there.
        """
        key = self.key(number)
        if any(info.key == key and info.size > _LARGEST_OBJECT for info in self._objects.list(key)):
            return None
        stored = _parsed(self._objects.get(key))
        return stored if stored is not None and stored.seal.number == number else None

    def highest(self) -> int:
        """Return the highest number of an object; 0: there is none. Cost: a listing of all."""
        keys = (info.key.removeprefix(self._prefix) for info in self._objects.list(self._prefix))
        return max((int(found[1]) for key in keys if (found := _NUMBER.fullmatch(key))), default=0)


@dataclass(frozen=True, slots=True)
class SealReport:
    """What a run of the sealer did."""

    seals: tuple[Seal, ...]
    busy: bool = False
    """Another sealer is at work, so this one ended."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        entries = sum(seal.entries for seal in self.seals)
        return {"seals": len(self.seals), "entries": entries, "busy": self.busy}


class AuditSealer:
    """Seals what is not sealed yet.

    Args:
        tracker: the tracker.
        objects: the deployment's bucket.
        signing_key: of the signatures; empty: seals are not signed.
        wait_s: how long writers are waited for whose entries might come behind a seal.
    """

    def __init__(
        self, tracker: TrackerStore, objects: ObjectStore, *, signing_key: str, wait_s: float
    ) -> None:
        self._tracker = tracker
        self._objects = objects
        self._key = signing_key
        self._wait_s = wait_s

    def run(self, *, pause_s: float = 0.0) -> SealReport:
        """Seal what is there, 20 seals at most.

        Args:
            pause_s: nothing is sealed while the newest seal is younger, unless it is many entries.

        Raises:
            RetryError: a transaction that writes entries did not end within ``wait_s``; tracker or
                store are away; another process wrote a seal at the same moment.
            StopError: the store's newest object is no seal, so none can follow it.
        """
        made: list[Seal] = []
        store = SealObjects(self._objects, deployment_of(self._tracker))
        while len(made) < _MOST_SEALS:
            with self._tracker.transaction(long_idle=True) as connection:
                # Behind `_await_writers` entries must be seen that were committed meanwhile.
                connection.execute(text("SET TRANSACTION ISOLATION LEVEL READ COMMITTED"))
                if not AdvisoryLock.AUDIT_SEAL.try_take(connection):
                    return SealReport(tuple(made), busy=True)
                seal = self._seal_next(connection, store, pause_s)
            if seal is None:
                break
            made.append(seal)
        return SealReport(tuple(made))

    def _seal_next(self, connection: Connection, store: SealObjects, pause_s: float) -> Seal | None:
        last = newest_seal(connection)
        place = _Place.behind(last, store.genesis)
        given = {"first": place.first_id, "pause": pause_s, "many": SEAL_ENTRIES}
        up_to = connection.execute(_UP_TO, given).scalar()
        if up_to is None:
            return None
        _await_writers(connection, self._wait_s)
        seal = self._stored(connection, store, place, up_to)
        connection.execute(audit_seals.insert().values(**asdict(seal)))
        return seal

    def _stored(
        self, connection: Connection, store: SealObjects, place: _Place, up_to: int
    ) -> Seal:
        """Return the next seal, whose object is in the store."""
        made = self._made(connection, place, _read_lines(connection, place.first_id, up_to))
        if store.write(made):
            return made.seal
        found = _read_written(store, place.number + 1)
        if found is not None and found.previous_sha256 == place.chain_sha256:
            if _is_of(connection, place, found):
                return found.seal  # of a sealer that was killed before its row
        return self._behind_the_store(connection, store, place, made)

    def _behind_the_store(
        self, connection: Connection, store: SealObjects, place: _Place, made: StoredSeal
    ) -> Seal:
        """Return a seal behind the newest of the store, which has some that the tracker lacks.

        Raises:
            RetryError: another process wrote one at this moment.
            StopError: the newest is no whole seal.
        """
        number = store.highest()
        newest = _read_written(store, number)
        if newest is None or not newest.is_whole:
            raise StopError(
                f"object {store.key(number)!r} is no whole seal of the audit log, so none can "
                "follow it: `waybill audit-log verify` says what differs"
            )
        if newest.seal.after_number == place.number < number - 1:
            if _is_of(connection, place, newest):
                return newest.seal  # as above
        seal = replace(made.seal, number=number + 1)
        stored = self._completed(seal, newest.seal.chain_sha256, made.lines)
        if not store.write(stored):
            raise RetryError(f"another process wrote {store.key(number + 1)!r} at this moment")
        return stored.seal

    def _made(self, connection: Connection, place: _Place, lines: list[AuditLine]) -> StoredSeal:
        count, digest = digest_lines(lines)
        seal = Seal(
            number=place.number + 1,
            after_number=place.number,
            first_id=lines[0].id,
            last_id=lines[-1].id,
            entries=count,
            entries_sha256=digest,
            sealed_at=moment_text(connection.execute(_NOW).mappings().one()),
            chain_sha256="",
            signature="",
        )
        body = "".join(f"{line.text}\n" for line in lines).encode()
        return self._completed(seal, place.chain_sha256, body)

    def _completed(self, seal: Seal, previous: str, body: bytes) -> StoredSeal:
        chain = seal.chained(previous)
        signature = sign(self._key, chain) if self._key else ""
        return StoredSeal(replace(seal, chain_sha256=chain, signature=signature), previous, body)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the tracker's chain ends."""

    number: int
    chain_sha256: str
    first_id: int
    """The lowest id that is not sealed."""

    @classmethod
    def behind(cls, last: Seal | None, genesis: str) -> _Place:
        if last is None:
            return cls(0, genesis, FIRST_ID)
        return cls(last.number, last.chain_sha256, last.last_id + 1)


def sign(key: str, chain_sha256: str) -> str:
    """Return the signature of a chain digest."""
    return hmac.new(key.encode(), chain_sha256.encode(), hashlib.sha256).hexdigest()


def newest_seal(connection: Connection) -> Seal | None:
    """Return the seal with the highest number that the tracker has."""
    newest = _SEALS.order_by(audit_seals.c.number.desc()).limit(1)
    row = connection.execute(newest).mappings().one_or_none()
    return None if row is None else _seal_of(row)


def read_seals(connection: Connection, first: int, most: int) -> list[Seal]:
    """Return the next seals of the tracker, from a number on."""
    number = audit_seals.c.number
    page = _SEALS.where(number >= first).order_by(number).limit(most)
    return [_seal_of(row) for row in connection.execute(page).mappings()]


def _await_writers(connection: Connection, wait_s: float) -> None:
    """Wait until no transaction is left that may commit an entry with an id that is drawn already.

    A transaction has the table's ROW EXCLUSIVE lock before it draws an entry's id, and gives it
    back after its commit is visible. So once all are over that hold the lock now, each entry with
    an id up to the highest that was seen before is visible, or was rolled back. This is how CREATE
    INDEX CONCURRENTLY waits. A transaction's number would not do: it is given after the id. LOCK
    TABLE would hold up all who write entries behind the longest transaction.

    Raises:
        RetryError: one is still open after ``wait_s``.
    """
    ends_at = time.monotonic() + wait_s
    writers = set(connection.execute(_WRITERS).scalars())
    while writers:
        if time.monotonic() > ends_at:
            raise RetryError(
                f"the audit log is not sealed: {len(writers)} transactions of the tracker that "
                f"write entries did not end within {wait_s:g} s; pg_locks of `audit_log` has them"
            )
        time.sleep(_AGAIN_S)
        writers &= set(connection.execute(_WRITERS).scalars())


def _read_lines(connection: Connection, first: int, up_to: int) -> list[AuditLine]:
    """Return the next entries for one seal."""
    lines: list[AuditLine] = []
    size = 0
    for line in audit_lines(partial(read_page, connection), first, up_to):
        lines.append(line)
        size += len(line.text)
        if len(lines) >= SEAL_ENTRIES or size >= _SEAL_BYTES:
            break
    return lines


def _is_of(connection: Connection, place: _Place, stored: StoredSeal) -> bool:
    """Tell whether an object is what a sealer would have made of the tracker's entries at a place.

    Anybody who may write to the bucket can plant one: each of its fields counts.
    """
    seal = stored.seal
    lines = audit_lines(partial(read_page, connection), place.first_id, seal.last_id)
    found = [*islice(lines, seal.entries + 1)]
    return (
        stored.is_whole
        and 0 < len(found) == seal.entries
        and (found[0].id, found[-1].id) == (seal.first_id, seal.last_id)
        and digest_lines(found) == (seal.entries, seal.entries_sha256)
        and seal.after_number == place.number
        and _is_moment(seal.sealed_at)
    )


def _is_moment(text: str) -> bool:
    """Tell whether a text is a time as `moment_text` writes it."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return False
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z" == text


def _read_written(store: SealObjects, number: int) -> StoredSeal | None:
    """Return an object that was there a moment ago.

    Raises:
        RetryError: it is not there.
    """
    try:
        return store.read(number)
    except ObjectMissingError as error:
        raise RetryError(f"{error}, but was a moment ago") from error


def _parsed(body: bytes) -> StoredSeal | None:
    first, _, lines = body.partition(b"\n")
    try:
        fields = json.loads(first)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or fields.keys() != _FIELDS.keys():
        return None
    if any(type(fields[name]) is not kind for name, kind in _FIELDS.items()):
        return None
    if any(not FIRST_ID <= fields[name] <= LAST_ID for name in _INTEGERS):
        return None
    previous = fields.pop("previous_sha256")
    return StoredSeal(Seal(**fields), previous, lines)


def _seal_of(row: RowMapping) -> Seal:
    fields = {name: row[name] for name in Seal.__dataclass_fields__ if name != "sealed_at"}
    return Seal(**fields, sealed_at=moment_text(row))


_INTEGERS = ("number", "after_number", "first_id", "last_id", "entries")
_FIELDS: dict[str, type] = {name: str for name in Seal.__dataclass_fields__}
_FIELDS |= {"previous_sha256": str, **dict.fromkeys(_INTEGERS, int)}
_SEALS = select(
    *(audit_seals.c[name] for name in Seal.__dataclass_fields__ if name != "sealed_at"),
    *moment_columns(audit_seals.c.sealed_at),
)
_NOW = select(*moment_columns(func.clock_timestamp()))
_UP_TO = text("""
SELECT max(id) FROM audit_log WHERE id >= :first HAVING count(*) >= :many
  OR NOT EXISTS (SELECT FROM audit_seals WHERE number = (SELECT max(number) FROM audit_seals)
    AND sealed_at BETWEEN clock_timestamp() - :pause * interval '1 s' AND clock_timestamp())
""")
_WRITERS = text("""
SELECT virtualtransaction FROM pg_locks
WHERE locktype = 'relation' AND relation = CAST('audit_log' AS regclass) AND granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND mode = 'RowExclusiveLock' AND pid IS DISTINCT FROM pg_backend_pid()
""")
