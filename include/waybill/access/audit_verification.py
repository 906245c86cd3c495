"""Holding the audit log against its seals: what was removed, altered or added, each by name.

Seals and entries are read in pages and one seal's object at a time, so memory does not grow with
the log. The sealer and those who write entries may be at work meanwhile.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from itertools import islice
from typing import Any

from sqlalchemy import text

from waybill.access.audit_entries import (
    FIRST_ID,
    LAST_ID,
    AuditLine,
    audit_lines,
    digest_lines,
    exact_json,
)
from waybill.access.audit_entries import read_page as read_entries
from waybill.access.audit_seals import (
    Seal,
    SealObjects,
    StoredSeal,
    newest_seal,
    read_seals,
    sign,
)
from waybill.errors import InputError, NotFoundError
from waybill.storage import ObjectMissingError, ObjectStore, TrackerStore, deployment_of

MOST_FINDINGS = 1_000
"""These are kept in words; all are counted."""
_PAGE_SEALS = 500
_LONGEST = 60
_RESTORED = "the tracker was restored to an older point, or entries were removed"
_KEY = "WAYBILL_ACCESS__AUDIT_SIGNING_SECRET"


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One thing that is not as it was sealed."""

    kind: str
    """``entry_removed``, ``entry_altered``, ``entry_added``, ``entries_differ``,
    ``seal_removed``, ``seal_altered``, ``chain_broken``, ``object_missing``, ``object_altered``,
    ``store_has_more``, ``head_differs``, ``not_sealed``, ``signature_wrong`` or ``not_signed``."""
    seal: int
    words: str
    """In one line; names in it come from users."""
    entry: int | None = None
    """Id of the entry."""


@dataclass(slots=True)
class AuditReport:
    """What a verification found."""

    seals: int = 0
    """Checked."""
    entries: int = 0
    """Sealed entries of the tracker that were checked."""
    unsealed: int = 0
    """Entries that nothing is known about: they are not sealed yet."""
    newest: str = ""
    """The newest seal of the tracker, as ``<number>:<chain digest>``; empty: there is none. Kept
    elsewhere, and given to a later verification, it shows that this chain was not made anew."""
    found: int = 0
    """How many findings there are; ``findings`` has the first 1,000."""
    findings: list[AuditFinding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, kind: str, seal: int, words: str, entry: int | None = None) -> None:
        """Add a finding."""
        self.found += 1
        if len(self.findings) < MOST_FINDINGS:
            self.findings.append(AuditFinding(kind, seal, words, entry))

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


class AuditVerifier:
    """Verifies once.

    Args:
        tracker: the tracker.
        objects: the deployment's bucket.
        signing_key: of the signatures; empty: they are not checked.
    """

    def __init__(self, tracker: TrackerStore, objects: ObjectStore, *, signing_key: str) -> None:
        self._tracker = tracker
        self._store = SealObjects(objects, deployment_of(tracker))
        self._key = signing_key
        self._report = AuditReport()
        self._number = 0
        """Of the seal that was checked last."""
        self._chains = {self._store.genesis}
        """Its chain digest; two, where tracker and store differ; none: it is not known."""
        self._first = FIRST_ID
        """The lowest id behind it."""
        self._unsigned: tuple[int, int] | None = None
        """The newest seals without a signature: first and last number."""
        self._signed = 0

    def run(self, *, from_seal: int = 1, expected: str = "") -> AuditReport:
        """Return what is found from a seal on; the seals before it are taken as they are.

        Args:
            from_seal: to begin at.
            expected: ``newest`` of an earlier report: this seal must have this digest.

        Raises:
            InputError: ``expected`` is none.
            NotFoundError: the tracker has no seal ``from_seal``.
            RetryError: tracker or store are away.
        """
        self._check_expected(expected)
        if from_seal > 1:
            self._begin_at(from_seal)
        highest = self._store.highest()  # first: seals that are made meanwhile have their rows
        for seal in self._seals():
            self._check_gap(seal)
            self._check_seal(seal)
        self._check_rest(highest)
        self._tell_signatures()
        with self._tracker.transaction() as connection:
            newest = newest_seal(connection)
            row = connection.execute(_UNSEALED, {"first": self._first}).one()
        self._report.newest = "" if newest is None else _head_of(newest)
        self._report.unsealed = row.entries
        if row.age_s > _UNSEALED_S:
            words = (
                f"{row.entries:,} entries are not sealed, the oldest for {row.age_s / 60:,.0f} min:"
                " does the job seal_audit_log run? (waybill upkeep list)"
            )
            self._report.add("not_sealed", self._number + 1, words)
        return self._report

    def _check_expected(self, head: str) -> None:
        """Check that a seal has the digest that it had once."""
        if not head:
            return
        found = _HEAD.fullmatch(head)
        if found is None:
            raise InputError(
                f"{head!r} is no seal: give <number>:<digest>, as `waybill audit-log verify` says"
            )
        number = int(found[1])
        with self._tracker.transaction() as connection:
            there = [one for one in read_seals(connection, number, 1) if one.number == number]
        if [_head_of(one) for one in there] != [head]:
            is_other = "has another digest" if there else "is not in the tracker"
            words = f"seal {number}: {is_other} than it had: the chain was made anew, or removed"
            self._report.add("head_differs", number, words)

    def _begin_at(self, number: int) -> None:
        """Take what comes before a seal as it is, also where a restored tracker lacks it."""
        with self._tracker.transaction() as connection:
            found = read_seals(connection, number, 1)
            if not found or found[0].number != number:
                raise NotFoundError(f"the tracker has no seal {number} of the audit log")
            seals = read_seals(connection, found[0].after_number, 1)
        before = seals[0] if seals else found[0]
        if found[0].after_number == 0 and number > 1:  # restored to before the first seal
            self._number, self._chains = number - 1, set()
        elif before.number == number - 1:
            self._go_behind(before, {before.chain_sha256})
        elif before.number < number:
            self._go_behind(replace(before, number=number - 1), set())

    def _go_behind(self, seal: Seal, chains: set[str]) -> None:
        self._number, self._chains, self._first = seal.number, chains, seal.last_id + 1

    def _seals(self) -> Iterator[Seal]:
        first = self._number + 1
        while True:
            with self._tracker.transaction() as connection:
                page = read_seals(connection, first, _PAGE_SEALS)
            yield from page
            if not page:
                return
            first = page[-1].number + 1

    def _check_gap(self, seal: Seal) -> None:
        """Check the seals before this one that the tracker does not have."""
        first, last = self._number + 1, seal.number - 1
        if first > last:
            return
        if seal.after_number == self._number:
            self._tell_restored(first, last)
            return
        for number in range(first, last + 1):
            if not self._check_removed(number):
                self._report.add(
                    "seal_removed", number, f"{_seals(number, last)}: in neither place"
                )
                self._chains = set()
                return

    def _check_removed(self, number: int) -> bool:
        """Check a seal by its object alone; False: there is none."""
        try:
            stored = self._store.read(number)
        except ObjectMissingError:
            return False
        self._report.add("seal_removed", number, f"seal {number}: removed from the tracker")
        if stored is None or not stored.is_whole:
            self._tell_object(number)
            self._chains = set()
            return True
        self._check_follows(stored.seal, {stored.previous_sha256})
        self._check_entries(stored.seal, stored)
        self._go_behind(stored.seal, {stored.seal.chain_sha256})
        return True

    def _tell_restored(self, first: int, last: int) -> None:
        """Tell of seals that only the store has, and follow their chain."""
        entries = 0
        for number in range(first, last + 1):
            try:
                stored = self._store.read(number)
            except ObjectMissingError:
                self._report.add("object_missing", number, f"{_seals(number, last)}: in no place")
                self._chains = set()
                break
            if stored is None or not stored.is_whole:
                self._tell_object(number)
                self._chains = set()
                continue
            self._check_follows(stored.seal, {stored.previous_sha256})
            self._chains = {stored.seal.chain_sha256}
            entries += stored.seal.entries
        words = f"{_seals(first, last)}: only in the store, with {entries:,} entries: {_RESTORED}"
        self._report.add("store_has_more", first, words)

    def _check_follows(self, seal: Seal, previous: set[str]) -> None:
        """Check that a seal was made behind the one before it."""
        if self._chains and not self._chains & previous:
            words = f"seal {seal.number}: does not follow from the seal before it"
            self._report.add("chain_broken", seal.number, words)

    def _check_seal(self, row: Seal) -> None:
        self._report.seals += 1
        self._check_signature(row)
        stored = self._check_object(row)
        if stored is None:
            self._check_own_digest(row, self._chains)
        elif stored.seal == row:
            self._check_follows(row, {stored.previous_sha256})
        elif self._is_foreign(row, stored):
            stored = None
        trusted = row if stored is None else stored.seal
        self._check_entries(trusted, stored)
        self._go_behind(trusted, {row.chain_sha256, trusted.chain_sha256})

    def _check_object(self, row: Seal) -> StoredSeal | None:
        """Return a seal's object, if it is whole."""
        stored, is_missing = self._read(row.number)
        if is_missing:
            words = f"seal {row.number}: its object is missing in the store"
            self._report.add("object_missing", row.number, words)
        elif stored is None:
            self._tell_object(row.number)
        elif stored.seal != row:
            fields = _differences(asdict(row), asdict(stored.seal))
            words = f"seal {row.number}: differs between tracker and store: {fields}"
            self._report.add("seal_altered", row.number, words)
        return stored

    def _check_own_digest(self, row: Seal, chains: set[str]) -> None:
        """Check a seal of which there is only the row."""
        if chains and not _fits(row, chains):
            words = f"seal {row.number}: altered, or does not follow from the seal before it"
            self._report.add("seal_altered", row.number, words)

    def _is_foreign(self, row: Seal, stored: StoredSeal) -> bool:
        """Tell whether of two different seals only the tracker's follows from the one before."""
        follows = not self._chains or stored.previous_sha256 in self._chains
        if not follows and not _fits(row, self._chains):
            self._check_follows(row, {stored.previous_sha256})
        return not follows and _fits(row, self._chains)

    def _read(self, number: int) -> tuple[StoredSeal | None, bool]:
        """Return a seal's object if it is whole; and whether it is missing."""
        try:
            stored = self._store.read(number)
        except ObjectMissingError:
            return None, True
        return (stored if stored is not None and stored.is_whole else None), False

    def _check_signature(self, seal: Seal) -> None:
        if not self._key:
            self._signed += bool(seal.signature)
            return
        if not seal.signature:
            first = seal.number if self._unsigned is None else self._unsigned[0]
            self._unsigned = (first, seal.number)
            return
        self._unsigned = None  # it signs the chain, so all seals before it
        expected = sign(self._key, seal.chain_sha256)
        if not hmac.compare_digest(seal.signature.encode(), expected.encode()):
            words = f"seal {seal.number}: its signature is not of the key {_KEY}"
            self._report.add("signature_wrong", seal.number, words)

    def _tell_signatures(self) -> None:
        if self._unsigned is not None:
            words = (
                f"{_seals(*self._unsigned)}: not signed; if {_KEY} is new, the next seal signs all"
            )
            self._report.add("not_signed", self._unsigned[0], words)
        if self._signed:
            self._report.notes.append(f"signatures were not checked: {_KEY} is not set")

    def _lines(self, seal: Seal) -> Iterator[AuditLine]:
        def read(first: int, last: int) -> list[AuditLine]:
            with self._tracker.transaction() as connection:
                return read_entries(connection, first, last)

        return audit_lines(read, self._first, seal.last_id)

    def _check_entries(self, seal: Seal, stored: StoredSeal | None) -> None:
        """Compare the tracker's entries up to a seal's last id with what was sealed."""
        count, digest = digest_lines(self._lines(seal))
        self._report.entries += count
        if (count, digest) == (seal.entries, seal.entries_sha256):
            return
        if stored is None:
            words = (
                f"entries {seal.first_id} to {seal.last_id}: not those of seal {seal.number}: "
                f"{count:,} of {seal.entries:,}; without its object they cannot be named"
            )
            self._report.add("entries_differ", seal.number, words)
            return
        sealed = _by_id(stored)
        for line in self._lines(seal):
            self._compare(seal.number, line, sealed.pop(line.id, None))
        for number, document in sealed.items():
            words = f"entry {number}: removed: {_said(document)}"
            self._report.add("entry_removed", seal.number, words, number)

    def _compare(self, seal: int, line: AuditLine, sealed: str | None) -> None:
        if sealed is None:
            words = f"entry {line.id}: added behind seal {seal}: {_said(line.text)}"
            self._report.add("entry_added", seal, words, line.id)
        elif sealed != line.text:
            changed = _differences(_fields_of(line.text), _fields_of(sealed))
            words = f"entry {line.id}: altered: {changed}; sealed was: {_said(sealed)}"
            self._report.add("entry_altered", seal, words, line.id)

    def _check_rest(self, highest: int) -> None:
        """Check seals of the store that are newer than the tracker's newest.

        A sealer that is at work, or was killed, leaves one, and it holds the tracker's entries.
        """
        first, number = self._number + 1, self._number + 1
        while number <= highest and self._is_next(number, is_only=highest == first):
            number += 1
        if number > highest:
            return
        entries = known = 0
        for one in range(number, highest + 1):
            stored, is_missing = self._read(one)
            if is_missing:
                self._report.add("object_missing", one, f"{_seals(one, highest)}: in no place")
                break
            if stored is None:
                self._tell_object(one)
                continue
            sealed = _by_id(stored)
            entries += len(sealed)
            known += sum(sealed.get(line.id) == line.text for line in self._lines(stored.seal))
            self._first = max(self._first, stored.seal.last_id + 1)
        words = (
            f"{_seals(number, highest)}: only in the store, with {entries:,} entries of which the "
            f"tracker has {known:,}: {_RESTORED}"
        )
        self._report.add("store_has_more", number, words)

    def _is_next(self, number: int, *, is_only: bool) -> bool:
        """Tell whether a seal that only the store has holds the tracker's next entries."""
        stored, _ = self._read(number)
        if stored is None or stored.previous_sha256 not in self._chains:
            return False
        found = digest_lines(islice(self._lines(stored.seal), stored.seal.entries + 1))
        if found != (stored.seal.entries, stored.seal.entries_sha256):
            return False
        if is_only:
            self._report.notes.append(
                f"seal {number} is in the store and not yet in the tracker, whose entries agree: "
                "`waybill audit-log seal` completes it, as does the job seal_audit_log"
            )
            return True
        words = f"seal {number}: removed from the tracker, whose entries agree with the store's"
        self._report.add("seal_removed", number, words)
        self._go_behind(stored.seal, {stored.seal.chain_sha256})
        return True

    def _tell_object(self, number: int) -> None:
        words = f"seal {number}: its object was altered: {self._store.key(number)}"
        self._report.add("object_altered", number, words)


_UNSEALED = text(
    "SELECT count(*) AS entries, coalesce(extract(epoch FROM clock_timestamp() - min(at)), 0)"
    " AS age_s FROM audit_log WHERE id >= :first"
)
_UNSEALED_S = 3_600.0
"""Entries are sealed within a quarter of an hour."""
_HEAD = re.compile(r"([1-9]\d{0,17}):[0-9a-f]{64}")


def _head_of(seal: Seal) -> str:
    return f"{seal.number}:{seal.chain_sha256}"


def _fits(seal: Seal, chains: set[str]) -> bool:
    """Tell whether a seal has the digest that it must have behind one of these."""
    return any(seal.chained(one) == seal.chain_sha256 for one in chains)


def _by_id(stored: StoredSeal) -> dict[int, str]:
    """Return the sealed entries of a whole object."""
    lines = stored.lines.decode("utf-8", "backslashreplace").split("\n")
    return {number: line for line in lines if (number := _id_of(line)) is not None}


def _id_of(line: str) -> int | None:
    number = _fields_of(line).get("id")
    if isinstance(number, Decimal) and FIRST_ID <= number <= LAST_ID:
        return int(number)
    return None


def _fields_of(line: str) -> dict[str, Any]:
    """Return an entry; what an altered object has may be anything."""
    try:
        fields = exact_json(line)
    except (ValueError, ArithmeticError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _said(line: str) -> str:
    """Return when, who, what and about what of an entry's line."""
    fields = _fields_of(line)
    parts = (str(fields.get(name)) for name in ("at", "who", "action", "target"))
    return ", ".join(
        part if len(part) <= _LONGEST else f"{part[: _LONGEST - 1]}…" for part in parts
    )


def _differences(found: dict[str, Any], expected: dict[str, Any]) -> str:
    """Return the names of the fields that differ."""
    names = sorted(found.keys() | expected.keys())
    return ", ".join(name for name in names if found.get(name) != expected.get(name))


def _seals(first: int, last: int) -> str:
    return f"seal {first}" if first == last else f"seals {first} to {last}"
