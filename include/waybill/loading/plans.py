"""A load as a value: what is to be done, made by the driver, and what became of it.

A plan names staged objects and holds none of their rows. Whoever carries it out needs the object
store, and the destination unless it parks; never the tracker.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from waybill.destinations import Expected, LoadOutcome, OutcomeCount, joined_outcome
from waybill.errors import StopError

Place = tuple[str, str]
"""(schema, table)."""


@dataclass(frozen=True, slots=True)
class PlannedObject:
    """A staged object of a load."""

    commit_number: int
    key: str
    rows: int
    bytes: int
    """Of the object."""
    row_bytes: int
    """Of its rows in memory."""
    batch: str
    """Id of the micro-batch that wrote it; empty: not known."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What is to be loaded, or parked."""

    destination: str
    """Its name."""
    numbers: Sequence[int]
    """All commits, in order; some, or very many, may have no object."""
    objects: tuple[PlannedObject, ...]
    expected: Expected | None = None
    """What the destination must have; None: that is not looked at."""
    tables: tuple[Place | None, ...] = (None,)
    """Each is loaded by itself; None: all of them at once."""
    reload: int | None = None
    """Id of the rewind for which commits are loaded again: that is not traced, and what it parks
    bears the id."""
    park: tuple[str, str] | None = None
    """(error type, message): all rows are parked under it, and the destination is not asked."""

    @property
    def rows(self) -> int:
        """Return how many rows were staged."""
        return sum(item.rows for item in self.objects)

    @property
    def row_bytes(self) -> int:
        """Return the size of the rows in memory."""
        return sum(item.row_bytes for item in self.objects)


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What became of a plan, or of one table's part of it."""

    rows: int = 0
    """That were read. 0: the destination had no part in it."""
    outcomes: tuple[LoadOutcome, ...] = ()
    """Of each commit of the plan; from an executor, without their rows, and without commits that
    brought none."""
    tables: Mapping[Place, int] = field(default_factory=dict)
    """Where books are per table: each table's newest commit with rows for it."""
    lost: Mapping[str, str] = field(default_factory=dict)
    """Staged objects that are gone or damaged: key to what is wrong."""

    def check_whole(self, plan: LoadPlan) -> None:
        """Refuse a report that leaves out rows which are not lost: nobody else would miss them.

        Raises:
            StopError: it does.
        """
        there = sum(item.rows for item in plan.objects if item.key not in self.lost)
        if self.rows != there:
            raise StopError(
                f"loading/{plan.destination}: executors report {self.rows} rows of commits "
                f"{plan.numbers[0]} to {plan.numbers[-1]}, which have {there}; nothing is "
                "acknowledged"
            )

    def to_json(self) -> str:
        """Return it as ASCII text, without the outcomes' rows. Cost: some 10 µs a segment."""
        parked = {item["key"]: item for one in self.outcomes for item in one.parked}
        outcomes = [
            [
                one.commit_number,
                [astuple(c) for c in one.counts],
                one.replays,
                [item["key"] for item in one.parked],
            ]
            for one in self.outcomes
            if one.counts or one.parked or one.replays
        ]
        told = {
            "rows": self.rows,
            "outcomes": outcomes,
            "parked": list(parked.values()),  # each once: it names the rows of all commits
            "tables": [[*place, number] for place, number in self.tables.items()],
            "lost": self.lost,
        }
        return json.dumps(told, default=dict)

    @classmethod
    def from_json(cls, text: str) -> LoadReport:
        """Return what ``to_json`` gave."""
        told: Mapping[str, Any] = json.loads(text)
        parked = {item["key"]: item for item in told["parked"]}
        outcomes = tuple(
            LoadOutcome(
                number,
                [OutcomeCount(*c) for c in counts],
                replays,
                tuple(parked[key] for key in keys),
                None,
            )
            for number, counts, replays, keys in told["outcomes"]
        )
        tables = {(schema, name): number for schema, name, number in told["tables"]}
        return cls(told["rows"], outcomes, tables, told["lost"])

    @classmethod
    def joined(cls, reports: Sequence[LoadReport]) -> LoadReport:
        """Return the report of a plan from those of its tables."""
        if len(reports) == 1:
            return reports[0]
        pieces: dict[int, list[LoadOutcome]] = {}
        for report in reports:
            for outcome in report.outcomes:
                pieces.setdefault(outcome.commit_number, []).append(outcome)
        return cls(
            sum(report.rows for report in reports),
            tuple(joined_outcome(number, pieces[number]) for number in sorted(pieces)),
            {place: number for report in reports for place, number in report.tables.items()},
            {key: problem for report in reports for key, problem in report.lost.items()},
        )
