"""Destinations that were put back to an older point: found by their own books, and loaded again.

What the tracker knows that a destination took is compared with what the destination's books say.
Commits that it lacks are loaded again from their staged objects, which are kept for some days after
their load. The versions of rows guard them, so that a reload brings back rows and tombstones and
nothing else. It counts nothing: these commits are acknowledged. Only a row that was delivered then,
and is refused now, moves in the books, from delivered to parked. What a rewind is still to load
again is kept, however long the destination is away (``parking.refreshing``).

What is older than the kept objects is an alarm, until somebody settles it by name.

Invariants
  I1  A rewind's row is written before the first commit is loaded again, with all that are to be.
      Killed at any time, the next loader goes on where it says (``done_to``): what the destination
      has by then is asked for its stored outcome, so that what it refused is parked once.
  I2  The alarm, the notices and the line in the audit log are of one transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, func, select, text, update
from sqlalchemy.dialects.postgresql import insert

from waybill.access import Decision
from waybill.destinations import Expected, Held
from waybill.errors import InputError
from waybill.loading.states import LOADER, audit_destination, tell_owners
from waybill.storage import TrackerStore
from waybill.storage.tracker import COUNT_COLUMNS, load_positions, loaded_tables
from waybill.storage.tracker import destination_rewinds as rewinds

Span = tuple[int, int]
"""(first, last): commit numbers, both in."""
_TAKEN = text("""
SELECT commit_number, bool_or(state = 'deleted') AS gone, sum(rows)::bigint AS rows
FROM staged_objects WHERE destination = :destination AND taken GROUP BY 1 ORDER BY 1
""")
_BEFORE = text("""
SELECT count(*) AS known,
  coalesce(sum(delivered) FILTER (WHERE delivered > 0), 0)::bigint AS rows,
  array_agg(commit_number ORDER BY commit_number) FILTER (WHERE delivered > 0) AS numbers
FROM (SELECT b.commit_number, coalesce(sum((row->3->>:passed)::bigint), 0) AS delivered
  FROM batches b
  LEFT JOIN ledger l ON l.reference = 'load:' || b.destination || ':' || b.commit_number
  LEFT JOIN LATERAL jsonb_array_elements(l.counts) AS row ON true
  WHERE b.destination = :destination AND b.commit_number BETWEEN :first AND :last
  GROUP BY 1) AS each
""")
"""Commits of before the tracker kept what a destination took, or whose rows are trimmed."""
_SHOWN = 5
"""Spans that a sentence names."""
_PASSED = COUNT_COLUMNS.index("passed")


@dataclass(frozen=True, slots=True)
class Taken:
    """What the tracker knows that a destination took."""

    newest: int | None = None
    kept: Mapping[int, int] = field(default_factory=dict)
    """Commit number to rows, where the staged objects are kept,"""
    gone: Mapping[int, int] = field(default_factory=dict)
    """and where they are deleted."""
    tables: Mapping[tuple[str, str], int] = field(default_factory=dict)

    @property
    def first(self) -> int:
        """Return the first commit of which the tracker knows by itself that it was taken."""
        numbers = [*self.kept, *self.gone]
        return min(numbers) if numbers else (self.newest or 0) + 1

    @property
    def expected(self) -> Expected:
        """Return what a load looks for first."""
        return Expected(self.newest, self.tables)


@dataclass(frozen=True, slots=True)
class Missing:
    """What a destination lacks of what it took."""

    held: int
    """The newest commit that it has."""
    again: tuple[int, ...]
    """Commits that can be loaded again."""
    lost: tuple[int, ...]
    """Commits whose staged objects are deleted."""
    before: Span | None
    """Commits of which only older books can tell whether they had rows."""

    def __bool__(self) -> bool:
        return bool(self.again or self.lost or self.before)


def compare(taken: Taken, held: Held) -> Missing:
    """Return what is missing, by the books of the destination."""
    if held.numbers is not None:
        spans = [(held.newest, taken.newest or 0)] if held.newest < (taken.newest or 0) else []
        lacked = {*taken.kept, *taken.gone} - held.numbers
    else:
        spans = [
            (held.tables[place], last)
            for place, last in taken.tables.items()
            if held.tables.get(place, last) < last
        ]
        known = (*taken.kept, *taken.gone)
        lacked = {n for n in known if any(low < n <= high for low, high in spans)}
    older = [(low + 1, min(high, taken.first - 1)) for low, high in spans]
    older = [span for span in older if span[0] <= span[1]]
    before = (min(low for low, _ in older), max(high for _, high in older)) if older else None
    again = tuple(sorted(number for number in lacked if number in taken.kept))
    lost = tuple(sorted(number for number in lacked if number in taken.gone))
    low = min((low for low, _ in spans), default=held.newest)
    return Missing(low, again, lost, before)


@dataclass(frozen=True, slots=True)
class Rewind:
    """One time that a destination was found at an older point."""

    id: int
    destination: str
    found_at: datetime
    held: int
    taken: int
    commits: tuple[Span, ...]
    rows: int
    done_to: int
    lost: tuple[Span, ...]
    lost_rows: int
    reloaded_at: datetime | None
    settled_at: datetime | None

    @property
    def is_open(self) -> bool:
        """Tell whether commits are still to be loaded again, or an alarm is not settled."""
        return self.reloaded_at is None or bool(self.lost and self.settled_at is None)

    @property
    def words(self) -> str:
        """Return it as a sentence, with what is to be done."""
        back = f"it was put back from commit {self.taken:,} to {self.held:,}"
        if self.reloaded_at is None:
            back += f": {_of(self.commits)} ({self.rows:,} rows) are loaded again"
            back += f", done up to {self.done_to:,}" if self.done_to else ""
        if self.lost:
            back += (
                f"; the staged objects of {_of(self.lost)} ({self.lost_rows:,} rows, as far as is "
                "known) are not kept any more: restore a newer copy of the destination, or have "
                "its sources read again, then `waybill destination settle`"
            )
        return back

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        times = {n: v.isoformat() for n, v in fields.items() if isinstance(v, datetime)}
        return fields | times | {"words": self.words}


def _of(spans: Sequence[Span]) -> str:
    shown = ", ".join(f"{a:,}" if a == b else f"{a:,} to {b:,}" for a, b in spans[:_SHOWN])
    more = f" and {len(spans) - _SHOWN} more spans" if len(spans) > _SHOWN else ""
    return f"commits {shown}{more}"


def read_taken(connection: Connection, destination: str) -> Taken:
    """Return what a destination took. Cost: of its staged objects that the tracker has rows of."""
    own = load_positions.c.destination == destination
    newest = connection.execute(select(load_positions.c.last_taken).where(own)).scalar()
    table = loaded_tables.c
    places = connection.execute(
        select(table.table_schema, table.table_name, table.last_commit).where(
            table.destination == destination
        )
    )
    tables = {(row[0], row[1]): int(row[2]) for row in places}
    rows = connection.execute(_TAKEN, {"destination": destination}).all()
    kept = {int(row[0]): int(row[2]) for row in rows if not row[1]}
    gone = {int(row[0]): int(row[2]) for row in rows if row[1]}
    return Taken(None if newest is None else int(newest), kept, gone, tables)


def open_rewind(
    connection: Connection, destination: str, taken: Taken, missing: Missing
) -> Rewind | None:
    """Write what is missing, tell the owners; None: nothing of it had rows."""
    lost, lost_rows = list(missing.lost), sum(taken.gone[number] for number in missing.lost)
    if missing.before is not None:
        older, rows = _lost_before(connection, destination, missing.before)
        lost, lost_rows = [*older, *lost], lost_rows + rows
    if not missing.again and not lost:
        return None
    values = {
        "held": missing.held,
        "taken": max(taken.newest or 0, *taken.tables.values(), missing.held),
        "commits": spans_of(missing.again),
        "rows": sum(taken.kept[number] for number in missing.again),
        "done_to": 0,
        "lost": spans_of(lost),
        "lost_rows": lost_rows,
    }
    row = insert(rewinds).values(destination=destination, **values)
    found = connection.execute(row.returning(rewinds)).one()
    rewind = _rewind(found)
    audit_destination(connection, LOADER, "destination_put_back", destination, **values)
    tell_owners(connection, destination, "lacks what it took", message=rewind.words)
    return rewind


def _lost_before(connection: Connection, destination: str, span: Span) -> tuple[list[int], int]:
    """Return commits that had rows, or of which nothing is known any more, and those rows."""
    asked = {"destination": destination, "first": span[0], "last": span[1], "passed": _PASSED}
    row = connection.execute(_BEFORE, asked).one()
    if int(row.known) < span[1] - span[0] + 1:
        return list(range(span[0], span[1] + 1)), int(row.rows)
    return list(map(int, row.numbers or ())), int(row.rows)


def unfinished(connection: Connection, destination: str) -> Rewind | None:
    """Return the rewind whose commits are being loaded again."""
    own = (rewinds.c.destination == destination, rewinds.c.reloaded_at.is_(None))
    row = connection.execute(select(rewinds).where(*own)).first()
    return None if row is None else _rewind(row)


def note_done(
    connection: Connection, rewind: Rewind, done_to: int, failed: Iterable[int] = ()
) -> None:
    """Note how far a rewind is loaded again.

    Args:
        connection: of the loader, under its lease.
        rewind: as it was opened, or found unfinished.
        done_to: the newest commit that was loaded again.
        failed: commits up to there, of this run, whose staged objects were found to be lost. The
            destination's books have their numbers now, so that only this row tells.
    """
    lost = sorted({*numbers_of(rewind.lost), *failed})
    values = {"done_to": done_to, "lost": spans_of(lost)}
    connection.execute(update(rewinds).where(rewinds.c.id == rewind.id).values(**values))


def end_rewind(
    connection: Connection, rewind: Rewind, held: Held, *, failed: Iterable[int] = ()
) -> None:
    """Note that all is loaded again that can be; what cannot is an alarm from now on.

    Args:
        connection: of the loader, under its lease.
        rewind: as it was opened.
        held: what the destination has now: what it lacks is not expected of it any more.
        failed: commits whose staged objects were found to be lost.
    """
    name, missing = rewind.destination, list(failed)
    lost = [*numbers_of(rewind.lost), *missing]
    ended = {"reloaded_at": func.clock_timestamp(), "lost": spans_of(sorted(set(lost)))}
    connection.execute(update(rewinds).where(rewinds.c.id == rewind.id).values(**ended))
    if lost:
        connection.execute(
            text(
                "UPDATE staged_objects SET taken = false "
                "WHERE destination = :name AND commit_number = ANY(:numbers)"
            ),
            {"name": name, "numbers": lost},
        )
        connection.execute(
            update(load_positions)
            .where(load_positions.c.destination == name)
            .values(last_taken=held.newest or None)
        )
        _correct_tables(connection, name, held.tables)
    detail = {"rewind": rewind.id, "rows": rewind.rows, "lost": ended["lost"]}
    audit_destination(connection, LOADER, "destination_loaded_again", name, **detail)
    result = "has all of it again" if not lost else "has again what is kept; the rest is missing"
    tell_owners(connection, name, result, since=f"{rewind.found_at:%Y-%m-%d %H:%M} UTC")


def _correct_tables(
    connection: Connection, destination: str, tables: Mapping[tuple[str, str], int]
) -> None:
    table = loaded_tables.c
    for (schema, name), last in tables.items():
        own = (
            table.destination == destination,
            table.table_schema == schema,
            table.table_name == name,
        )
        if last:
            connection.execute(update(loaded_tables).where(*own).values(last_commit=last))
        else:
            connection.execute(delete(loaded_tables).where(*own))


def open_rewinds(connection: Connection) -> dict[str, list[Rewind]]:
    """Return what is not over, by destination: loads again that run, and alarms."""
    is_alarm = (rewinds.c.lost != text("'[]'::jsonb")) & rewinds.c.settled_at.is_(None)
    query = select(rewinds).where(rewinds.c.reloaded_at.is_(None) | is_alarm).order_by(rewinds.c.id)
    by_destination: dict[str, list[Rewind]] = {}
    for row in connection.execute(query):
        by_destination.setdefault(row.destination, []).append(_rewind(row))
    return by_destination


def settle_rewinds(tracker: TrackerStore, destination: str, decision: Decision) -> list[Rewind]:
    """Settle the alarms of a destination: what was lost there is dealt with, or given up.

    Raises:
        InputError: there is no alarm.
    """
    why = decision.require_why()
    with tracker.transaction() as connection:
        found = [
            one
            for one in open_rewinds(connection).get(destination, ())
            if one.lost and one.settled_at is None and one.reloaded_at is not None
        ]
        if not found:
            raise InputError(
                f"destination {destination!r} has no alarm to settle (`waybill destination list`)"
            )
        connection.execute(
            update(rewinds)
            .where(rewinds.c.id.in_([one.id for one in found]))
            .values(settled_at=func.clock_timestamp(), settled_by=decision.who, reason=why)
        )
        said = {"why": why, **decision.beside_who()}
        lost = [list(span) for one in found for span in one.lost]
        audit_destination(
            connection, decision.who, "settle_destination", destination, lost=lost, **said
        )
    return found


def parked_before(
    connection: Connection, groups: Iterable[tuple[str, str]], identities: set[bytes]
) -> set[bytes]:
    """Return which identities were parked at the destination before, whatever became of them.

    Args:
        connection: to the tracker.
        groups: (pipeline id, event name) of the events.
        identities: of 8 bytes; see ``waybill.parking.identities``.
    """
    query = text(
        "SELECT s.ids FROM parked_partitions p JOIN segments s ON s.partition_id = p.id "
        "WHERE p.stage = 'destination' AND s.ids IS NOT NULL "
        "AND p.pipeline_id = :pipeline AND p.event_name = :name"
    )
    found: set[bytes] = set()
    for pipeline_id, event_name in sorted(set(groups)):
        asked = {"pipeline": pipeline_id, "name": event_name}
        for row in connection.execute(query, asked):
            ids = bytes(row[0])
            found.update(ids[at : at + 8] for at in range(0, len(ids), 8))
    return found & identities


def refused_now(
    segments: Iterable[Any], copies: Mapping[tuple[str, str, str, int], int]
) -> list[tuple[str, list[list[Any]]]]:
    """Return packed counts that move events from delivered to parked, at the stage destination.

    Args:
        segments: descriptors of what was parked.
        copies: those of them that were parked already, and are not again.
    """
    numbers: Counter[tuple[str, str, str, int]] = Counter()
    for segment in segments:
        for minute, _, count in segment.origins:
            numbers[*segment.partition[:3], minute] += count
    numbers.subtract(copies)
    packed: dict[str, list[list[Any]]] = {}
    for (pipeline_id, event_name, stage, minute), number in sorted(numbers.items()):
        row = [0] * len(COUNT_COLUMNS)
        row[_PASSED] = row[COUNT_COLUMNS.index("out")] = -number
        row[COUNT_COLUMNS.index("parked")] = number
        if number:
            packed.setdefault(pipeline_id, []).append([event_name, stage, minute, row])
    return list(packed.items())


def spans_of(numbers: Sequence[int]) -> list[list[int]]:
    """Return numbers, in order, as spans [first, last]."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return spans


def numbers_of(spans: Iterable[Sequence[int]]) -> list[int]:
    """Return what ``spans_of`` was given."""
    return [number for first, last in spans for number in range(first, last + 1)]


def _rewind(row: Any) -> Rewind:
    return Rewind(
        row.id,
        row.destination,
        row.found_at,
        row.held,
        row.taken,
        tuple((a, b) for a, b in row.commits),
        row.rows,
        row.done_to,
        tuple((a, b) for a, b in row.lost),
        row.lost_rows,
        row.reloaded_at,
        row.settled_at,
    )
