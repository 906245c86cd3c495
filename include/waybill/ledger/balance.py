"""Balance: what went in must have come out, per pipeline, event name, stage and intake minute.

Equations (G5)
  ingestion       in = passed + parked
  transformation  in = passed + parked + filtered;  first-pass in + in flight = ingestion's out
  mapping         in = passed + parked;             first-pass in = transformation's out
  destination     in = delivered + superseded + duplicate + parked;
                  first-pass in + in flight + unrecoverable = mapping's out
  At each stage in counts duplicate as well: copies of events that are parked there.
  Both equations of a stage must hold: a mistake in what came in shows in both, with two signs.
  replays         replayed in + in flight = events of the segments marked replayed, at each stage,
                  and what replays that did not end by themselves sent without a mark
                  (``replay_entries``);
                  what was replayed from ingestion comes in at the transformation;
                  where a replay entered at the transformation for events that parked at mapping,
                  those events leave mapping's side and their parents join the transformation's:
                  the ledger's rows "earlier/<stage>" say how many (``replayed_as_parents``,
                  ``parents``)
  parking         parked = events of the segments that are parked, replaying, replayed, discarded

In flight is measured: records between the ledger's offsets and the log's end, rows of staged
objects beyond the load position, and those of lost ones that may be made again. It is never the
residual. What else was lost with staged objects is unrecoverable: the ledger's rows "lost" have it,
less what was made again (``waybill.loading.quarantine``).

The books of some intake minutes, and of all of them together: what the auditor reads.

Both hold what was folded and what was not, of the caller's snapshot.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import Connection, RowMapping, text

from waybill.ledger.positions import WAITING_COUNTS, waiting_asked
from waybill.ledger.replay_entries import ReplayEntry, read_unmarked
from waybill.storage.tracker import COUNT_COLUMNS, TrackerStore

COLUMNS = "in_first, in_replayed, passed, out, parked, filtered, superseded, duplicate"
_SUMS = ", ".join(
    f"sum((row->3->>{index})::bigint)::bigint AS {name}"
    for index, name in enumerate(COLUMNS.split(", "))
)
ROWS_OF_PICKED = (  # fixed names only
    "SELECT pipeline_id, row->>0 AS event_name, row->>1 AS stage, (row->>2)::int AS minute, "
    f"{_SUMS} FROM picked, jsonb_array_elements(counts) AS row GROUP BY 1, 2, 3, 4"
)
_DELIVERED_KEPT_S = 10_800
"""For so long it is kept what was delivered in which minute: a page draws an hour."""
_FOLD = f"""
WITH picked AS (
  UPDATE ledger SET folded = true WHERE id IN (
    SELECT id FROM ledger WHERE NOT folded ORDER BY id LIMIT :most FOR UPDATE SKIP LOCKED)
  RETURNING pipeline_id, counts, reference, committed_at),
rows AS ({ROWS_OF_PICKED}),
written AS (
  INSERT INTO ledger_minutes (pipeline_id, event_name, stage, minute, {COLUMNS})
  SELECT * FROM rows ORDER BY 1, 2, 3, 4
  ON CONFLICT (pipeline_id, event_name, stage, minute) DO UPDATE SET
  {", ".join(f"{n} = ledger_minutes.{n} + excluded.{n}" for n in COLUMNS.split(", "))}),
summed AS (
  INSERT INTO ledger_totals (pipeline_id, event_name, stage, {COLUMNS})
  SELECT pipeline_id, event_name, stage,
    {", ".join(f"sum({n})::bigint" for n in COLUMNS.split(", "))}
  FROM rows GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
  ON CONFLICT (pipeline_id, event_name, stage) DO UPDATE SET
  {", ".join(f"{n} = ledger_totals.{n} + excluded.{n}" for n in COLUMNS.split(", "))}),
changed AS (
  INSERT INTO audit_minutes (pipeline_id, event_name, minute, changed)
  SELECT DISTINCT pipeline_id, event_name, minute, 1 FROM rows ORDER BY 1, 2, 3
  ON CONFLICT (pipeline_id, event_name, minute) DO UPDATE SET
  changed = audit_minutes.changed + 1, balanced_at = NULL),
delivered AS (
  INSERT INTO delivered_minutes (pipeline_id, minute, delivered)
  SELECT pipeline_id, floor(extract(epoch FROM committed_at) / 60)::int,
    sum((row->3->>{COUNT_COLUMNS.index("passed")})::bigint)::bigint
  FROM picked, jsonb_array_elements(counts) AS row
  WHERE starts_with(reference, 'load:') AND row->>1 = 'destination'
    AND committed_at >= clock_timestamp() - make_interval(secs => {_DELIVERED_KEPT_S})
  GROUP BY 1, 2 ORDER BY 1, 2
  ON CONFLICT (pipeline_id, minute) DO UPDATE SET
  delivered = delivered_minutes.delivered + excluded.delivered),
trimmed AS (
  DELETE FROM delivered_minutes
  WHERE minute < floor(extract(epoch FROM now()) / 60)::int - {_DELIVERED_KEPT_S // 60 + 1})
SELECT count(*) FROM picked
"""
_READ = f"""
WITH picked AS (SELECT pipeline_id, counts FROM ledger WHERE NOT folded),
rows AS ({ROWS_OF_PICKED}),
everything AS (
  SELECT pipeline_id, event_name, stage, minute, {COLUMNS} FROM ledger_minutes
  UNION ALL SELECT * FROM rows)
SELECT pipeline_id, event_name, stage, minute,
  {", ".join(f"sum({n})::bigint AS {n}" for n in COLUMNS.split(", "))}
FROM everything
WHERE (CAST(:pipeline AS text) IS NULL OR pipeline_id = :pipeline)
  AND (CAST(:since AS int) IS NULL OR minute >= :since)
GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 4, 3
"""
_STAGED_IN_FLIGHT = f"""
WITH {WAITING_COUNTS}
SELECT waiting.pipeline_id, row->>0 AS event_name, (row->>2)::int AS minute,
  sum((row->3->>0)::bigint)::bigint AS in_first, sum((row->3->>1)::bigint)::bigint AS in_replayed
FROM waiting, jsonb_array_elements(waiting.counts) AS row
WHERE row->>1 = 'staged' GROUP BY 1, 2, 3
"""
_LOST_IN_FLIGHT = """
WITH commits AS (
  SELECT DISTINCT destination, commit_number FROM staged_objects
  WHERE state = 'lost' AND not_recovered = ''),
written AS (
  SELECT 'lost:' || destination || ':' || commit_number AS reference FROM commits
  UNION ALL
  SELECT 'found:' || key FROM commits JOIN staged_objects USING (destination, commit_number))
SELECT ledger.pipeline_id, row->>0 AS event_name, (row->>2)::int AS minute,
  sum((row->3->>0)::bigint)::bigint AS in_first, sum((row->3->>1)::bigint)::bigint AS in_replayed
FROM written JOIN ledger USING (reference), jsonb_array_elements(ledger.counts) AS row
GROUP BY 1, 2, 3
"""
_SEGMENTS = """
SELECT parked_partitions.pipeline_id, parked_partitions.event_name, parked_partitions.stage,
  sum(parked + replaying + replayed + discarded + quarantined)::bigint AS recorded,
  sum(replayed)::bigint AS replayed
FROM parked_partitions
WHERE (CAST(:pipeline AS text) IS NULL OR pipeline_id = :pipeline)
GROUP BY 1, 2, 3
"""
_EARLIER = {
    "earlier/mapping": ("mapping", "replayed_as_parents"),
    "earlier/transformation": ("transformation", "parents"),
}
"""Rows of the ledger that say what a replay sent to an earlier stage: the counter they are."""
LOST = "lost"
"""Stage of the ledger's rows of what was lost with staged objects."""
_BEFORE = {
    "transformation": "ingestion",
    "mapping": "transformation",
    "destination": "mapping",
}
MinuteKey = tuple[str, str, int]
"""(pipeline id, event name, intake minute)."""


@dataclass(frozen=True, slots=True)
class ParkedEvents:
    """What the tracker's segments say of one (pipeline id, event name, stage)."""

    recorded: int
    """Events of all segments, whatever became of them."""
    replayed: int
    """Events of those marked replayed."""
    unmarked: int = 0
    """Messages that cancelled or running replays sent, and that no mark names."""


@dataclass(slots=True)
class StageCounts:
    """The counters of one stage, and what is in flight towards it."""

    in_first: int = 0
    in_replayed: int = 0
    passed: int = 0
    out: int = 0
    parked: int = 0
    filtered: int = 0
    superseded: int = 0
    duplicate: int = 0
    in_flight: int = 0
    """First-pass events on their way to this stage."""
    in_flight_replayed: int = 0
    """Replayed events on their way to this stage."""
    replayed_as_parents: int = 0
    """Events parked here and marked replayed, whose parents were sent to an earlier stage."""
    parents: int = 0
    """Parents that were sent here for events that a later stage had parked."""
    unrecoverable: int = 0
    """First-pass events that were lost on their way to this stage, and cannot be made again."""
    unrecoverable_replayed: int = 0
    """Replayed events of which the same is true."""

    def left_over(self) -> int:
        """Return events that went in and did not come out in any way; 0 when exact."""
        gone = self.passed + self.parked + self.filtered + self.superseded + self.duplicate
        return self.in_first + self.in_replayed - gone


@dataclass(slots=True)
class BalanceRow:
    """The books of one (pipeline, event name, intake minute): all its stages."""

    pipeline_id: str
    event_name: str
    minute: int
    stages: dict[str, StageCounts] = field(default_factory=dict)

    def stage(self, name: str) -> StageCounts:
        """Return one stage's counters, zeros when it has none."""
        return self.stages.setdefault(name, StageCounts())

    def breaches(self) -> dict[str, int]:
        """Return {stage: events unaccounted for}; positive: missing, negative: too many.

        Events missed on the way to a stage and in the stage add up; where the two differ in sign
        they never cancel each other: the larger one stands.
        """
        ingestion, transformation = self.stage("ingestion"), self.stage("transformation")
        mapping, destination = self.stage("mapping"), self.stage("destination")
        gaps = {
            "ingestion": ingestion.left_over(),
            "transformation": _gap(ingestion, transformation),
            "mapping": _gap(transformation, mapping),
            "destination": _gap(mapping, destination),
        }
        return {stage: gap for stage, gap in gaps.items() if gap}

    def on_the_way(self, stage: str) -> int:
        """Return the events missed between the end of the stage before and this one; 0: none."""
        before = _BEFORE.get(stage)
        if before is None:
            return 0
        return _on_the_way(self.stage(before), self.stage(stage))

    def to_json(self) -> dict[str, Any]:
        """Return the row with its stages and breaches."""
        return {
            "pipeline_id": self.pipeline_id,
            "event_name": self.event_name,
            "minute": self.minute,
            "stages": {name: asdict(counts) for name, counts in self.stages.items()},
            "breaches": self.breaches(),
        }


def _gap(before: StageCounts, after: StageCounts) -> int:
    """Return the events unaccounted for between the end of one stage and the end of the next."""
    on_the_way = _on_the_way(before, after)
    within = after.left_over()
    if on_the_way * within >= 0:
        return on_the_way + within
    return max(on_the_way, within, key=abs)


def _on_the_way(before: StageCounts, after: StageCounts) -> int:
    return before.out - after.in_first - after.in_flight - after.unrecoverable


def fold(tracker: TrackerStore, *, most: int = 5000) -> int:
    """Fold ledger rows into minutes and totals; returns how many.

    Each minute that changes is put on the auditor's list, and what was delivered is counted by the
    minute in which it was (``delivered_minutes``), for the last hours. Safe to run twice at once,
    and to kill.
    """
    total = 0
    while True:
        with tracker.transaction(long_statements=True) as connection:
            number = int(connection.execute(text(_FOLD), {"most": most}).scalar_one())
        total += number
        if number < most:
            return total


def read_balance(
    tracker: TrackerStore,
    *,
    pipeline_id: str | None = None,
    since_minute: int | None = None,
    in_log: Mapping[tuple[MinuteKey, str, bool], int] | None = None,
    replays_in_log: Mapping[ReplayEntry, int] | None = None,
) -> tuple[list[BalanceRow], dict[tuple[str, str, str], ParkedEvents]]:
    """Return the books by minute, and parked events by (pipeline id, event name, stage).

    Args:
        tracker: the books.
        pipeline_id: only this pipeline.
        since_minute: only minutes from this one on.
        in_log: events measured in the log beyond the ledger's offsets, by (minute key, stage of
            entry, replayed).
        replays_in_log: those of them that are replayed, by (replay id, event name, stage of entry).

    All of it is read in one snapshot.
    """
    with tracker.transaction(long_statements=True) as connection:
        begin_snapshot(connection)
        return read_books(
            connection,
            pipeline_id=pipeline_id,
            since_minute=since_minute,
            in_log=in_log,
            replays_in_log=replays_in_log,
        )


def begin_snapshot(connection: Connection) -> None:
    """Have all that a transaction reads be of one moment: that of its first query after this."""
    connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))


def read_books(
    connection: Connection,
    *,
    pipeline_id: str | None = None,
    since_minute: int | None = None,
    in_log: Mapping[tuple[MinuteKey, str, bool], int] | None = None,
    replays_in_log: Mapping[ReplayEntry, int] | None = None,
) -> tuple[list[BalanceRow], dict[tuple[str, str, str], ParkedEvents]]:
    """Return what ``read_balance`` does, in a snapshot that the caller began."""
    arguments = {"pipeline": pipeline_id, "since": since_minute}
    counted = connection.execute(text(_READ), arguments).mappings().all()
    staged = read_staged(connection)
    parked = read_parked(connection, pipeline_id=pipeline_id, replays_in_log=replays_in_log)
    rows: dict[MinuteKey, BalanceRow] = {}
    for found in counted:
        add_counted(rows, found)
    add_in_flight(rows, staged, in_log or {})
    add_lost_in_flight(rows, read_lost_in_flight(connection))
    return list(rows.values()), parked


def read_parked(
    connection: Connection,
    *,
    pipeline_id: str | None = None,
    replays_in_log: Mapping[ReplayEntry, int] | None = None,
) -> dict[tuple[str, str, str], ParkedEvents]:
    """Return parked events by (pipeline id, event name, stage)."""
    segments = connection.execute(text(_SEGMENTS), {"pipeline": pipeline_id}).mappings().all()
    unmarked = read_unmarked(connection, replays_in_log or {}, pipeline_id=pipeline_id)
    sums = {(r["pipeline_id"], r["event_name"], r["stage"]): r for r in segments}
    nothing = {"recorded": 0, "replayed": 0}
    return {
        key: ParkedEvents(found["recorded"], found["replayed"], unmarked[key])
        for key in {*sums, *unmarked}
        for found in [sums.get(key, nothing)]
    }


def read_staged(connection: Connection, *, leave_out: Collection[str] = ()) -> Sequence[RowMapping]:
    """Return the rows of staged objects beyond the load positions, by minute key.

    Args:
        connection: reads the books.
        leave_out: destinations whose commits are not read.

    Cost: the commits that wait, by index, about 50 µs each; none of those that are loaded.
    """
    asked = waiting_asked(leave_out=leave_out)
    return connection.execute(text(_STAGED_IN_FLIGHT), asked).mappings().all()


def read_lost_in_flight(connection: Connection) -> Sequence[RowMapping]:
    """Return the rows of lost staged objects that may be made again, by minute key.

    Of a commit with several lost objects: all of them, until each was tried.
    """
    return connection.execute(text(_LOST_IN_FLIGHT)).mappings().all()


def add_lost_in_flight(rows: Mapping[MinuteKey, BalanceRow], lost: Iterable[RowMapping]) -> None:
    """Take events that may be made again for what is in flight, not for unrecoverable."""
    for found in lost:
        if row := rows.get((found["pipeline_id"], found["event_name"], found["minute"])):
            counts = row.stage("destination")
            counts.in_flight += found["in_first"]
            counts.unrecoverable -= found["in_first"]
            counts.in_flight_replayed += found["in_replayed"]
            counts.unrecoverable_replayed -= found["in_replayed"]


def add_in_flight(
    rows: Mapping[MinuteKey, BalanceRow],
    staged: Iterable[RowMapping],
    in_log: Mapping[tuple[MinuteKey, str, bool], int],
) -> None:
    """Put what is in flight to the destination, and in the log, into the rows that there are."""
    for found in staged:
        key = (found["pipeline_id"], found["event_name"], found["minute"])
        if key in rows:
            rows[key].stage("destination").in_flight += found["in_first"]
            rows[key].stage("destination").in_flight_replayed += found["in_replayed"]
    for (key, stage, again), number in in_log.items():
        if key in rows:
            counts = rows[key].stage(stage)
            counts.in_flight_replayed += number if again else 0
            counts.in_flight += 0 if again else number


def add_counted(rows: dict[MinuteKey, BalanceRow], found: Mapping[Any, Any]) -> None:
    """Put one of the ledger's rows into its minute's."""
    key = (found["pipeline_id"], found["event_name"], found["minute"])
    _add_counted(rows.setdefault(key, BalanceRow(*key)), found)


def _add_counted(row: BalanceRow, found: Mapping[Any, Any]) -> None:
    """Put the counters of one of the ledger's stages into a row."""
    if found["stage"] in _EARLIER:
        stage, name = _EARLIER[found["stage"]]
        setattr(row.stage(stage), name, found["in_replayed"])
    elif found["stage"] == LOST:
        counts = row.stage("destination")
        counts.unrecoverable = found["in_first"]
        counts.unrecoverable_replayed = found["in_replayed"]
    elif found["stage"] != "staged":
        counts = row.stage(found["stage"])
        for name in COLUMNS.split(", "):
            setattr(counts, name, found[name])


_SUMMED = ", ".join(f"sum({name})::bigint AS {name}" for name in COUNT_COLUMNS)
_MINUTES = text(f"""
WITH asked AS (SELECT * FROM unnest(CAST(:pipelines AS text[]), CAST(:names AS text[]),
    CAST(:minutes AS int[])) AS asked (pipeline_id, event_name, minute)),
picked AS (SELECT pipeline_id, counts FROM ledger WHERE NOT folded),
rows AS ({ROWS_OF_PICKED}),
everything AS (
  SELECT pipeline_id, event_name, stage, minute, {COLUMNS}
  FROM asked JOIN ledger_minutes USING (pipeline_id, event_name, minute)
  UNION ALL
  SELECT pipeline_id, event_name, stage, minute, {COLUMNS}
  FROM rows JOIN asked USING (pipeline_id, event_name, minute))
SELECT pipeline_id, event_name, stage, minute, {_SUMMED} FROM everything GROUP BY 1, 2, 3, 4
""")
_TOTALS = text(f"""
WITH picked AS (SELECT pipeline_id, counts FROM ledger WHERE NOT folded),
rows AS ({ROWS_OF_PICKED}),
everything AS (
  SELECT pipeline_id, event_name, stage, {COLUMNS} FROM ledger_totals
  UNION ALL SELECT pipeline_id, event_name, stage, {COLUMNS} FROM rows)
SELECT pipeline_id, event_name, stage, 0 AS minute, {_SUMMED} FROM everything GROUP BY 1, 2, 3
""")


def read_minutes(
    connection: Connection, keys: Collection[MinuteKey]
) -> dict[MinuteKey, BalanceRow]:
    """Return the books of these minutes, without what is in flight; cost: about 5 µs a stage."""
    columns = list(zip(*keys, strict=True)) or [(), (), ()]
    asked = dict(zip(("pipelines", "names", "minutes"), map(list, columns), strict=True))
    rows: dict[MinuteKey, BalanceRow] = {key: BalanceRow(*key) for key in keys}
    for found in connection.execute(_MINUTES, asked).mappings():
        add_counted(rows, found)
    return rows


def read_totals(connection: Connection) -> dict[tuple[str, str], BalanceRow]:
    """Return the books of each (pipeline id, event name) over all minutes.

    Cost: a row for each stage of each event name, however long the history.
    """
    rows: dict[MinuteKey, BalanceRow] = {}
    for found in connection.execute(_TOTALS).mappings():
        add_counted(rows, found)
    return {(pipeline_id, name): row for (pipeline_id, name, _), row in rows.items()}
