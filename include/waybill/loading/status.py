"""Destinations as people see them: how far each is, what waits, and whether it can be loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import BigInteger, Connection, cast, func, select

from waybill.deployment import active_heads
from waybill.destinations import (
    Finding,
    RevertingDestination,
    is_experimental,
    open_destination,
)
from waybill.errors import InputError, NotFoundError, RetryError
from waybill.loading.rewinds import Rewind, open_rewinds
from waybill.loading.states import Waiting, all_waiting
from waybill.nearest_name import hint
from waybill.pipelines import TableSpec
from waybill.settings import DestinationSettings, S3Settings
from waybill.storage import TrackerStore
from waybill.storage.tracker import (
    commit_sequences,
    load_positions,
    pipeline_versions,
    pipelines,
    staged_objects,
)

_DESTINATION = pipeline_versions.c.declaration["destination"].astext
_INTO = (
    select(_DESTINATION, pipelines.c.name, pipelines.c.team)
    .join(pipelines, pipelines.c.id == pipeline_versions.c.pipeline_id)
    .where(_DESTINATION.is_not(None))
    .distinct()
)
"""Destination, pipeline, team; no version of a pipeline goes elsewhere than the first."""
OWN_SCHEMA = "waybill"
"""Of Waybill's books in a destination; examined where no pipeline says another."""


@dataclass(frozen=True, slots=True)
class DestinationLine:
    """One destination, and how far it is."""

    name: str
    kind: str
    """Empty: no settings name it."""
    live_tested: bool
    pipelines: tuple[str, ...]
    """Names of the pipelines that go there."""
    teams: tuple[str, ...]
    """Whose they are."""
    loaded: int
    """The last commit that is loaded, or parked."""
    last_commit: int
    rows: int
    """Rows that wait: staged, and not loaded."""
    bytes: int
    """Of their staged objects."""
    waiting: Waiting | None
    """Since when it takes no loads; None: it does, as far as anybody has tried."""
    rewinds: tuple[Rewind, ...] = ()
    """Times that it was found at an older point, which are not over: what is loaded again, and
    alarms."""

    @property
    def experimental(self) -> bool:
        """Tell whether only the dialect of its kind was tested, never a server."""
        return bool(self.kind) and not self.live_tested

    @property
    def behind(self) -> int:
        """Return how many commits wait."""
        return self.last_commit - self.loaded

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        fields = asdict(self) | {"behind": self.behind, "experimental": self.experimental}
        fields["rewinds"] = [one.to_json() for one in self.rewinds]
        return fields | {"waiting": None if self.waiting is None else self.waiting.to_json()}


def destination_lines(
    tracker: TrackerStore, configured: Mapping[str, DestinationSettings]
) -> list[DestinationLine]:
    """Return all destinations that settings or deployed pipelines name, in order of names.

    Cost: six statements; what waits is summed from staged objects, about 1 s for a million.
    """
    waiting = all_waiting(tracker)
    with tracker.transaction() as connection:
        into = {name: set[tuple[str, str]]() for name in configured}
        for name, pipeline, team in connection.execute(_INTO):
            into.setdefault(name, set()).add((pipeline, team))
        loaded = _numbers(connection, load_positions.c.destination, load_positions.c.last_commit)
        last = _numbers(connection, commit_sequences.c.destination, commit_sequences.c.last)
        back = open_rewinds(connection)
        sums = {name: _sums(connection, name, loaded.get(name, 0)) for name in into}
    return [
        DestinationLine(
            name,
            configured[name].kind if name in configured else "",
            name in configured and not is_experimental(configured[name].kind),
            tuple(sorted(pipeline for pipeline, _ in into[name])),
            tuple(sorted({team for _, team in into[name]})),
            loaded.get(name, 0),
            last.get(name, 0),
            *sums[name],
            waiting.get(name),
            tuple(back.get(name, ())),
        )
        for name in sorted(into)
    ]


def known_destination(
    tracker: TrackerStore, configured: Mapping[str, DestinationSettings], name: str
) -> None:
    """Refuse a name that neither settings nor deployed pipelines give.

    Raises:
        InputError: with the nearest name.
    """
    with tracker.transaction() as connection:
        known = set(configured) | {str(row[0]) for row in connection.execute(_INTO)}
    if name not in known:
        listed = ", ".join(sorted(known)) or "none"
        raise NotFoundError(f"no destination {name!r}: there is {listed}{hint(name, known)}")


def schemas_of(tracker: TrackerStore, name: str) -> list[str]:
    """Return the schemas that deployed pipelines write to; Waybill's own, where there are none."""
    schemas = {p.schema_name for p in active_heads(tracker).values() if p.destination == name}
    return sorted(schemas) or [OWN_SCHEMA]


def examine(
    name: str,
    configured: Mapping[str, DestinationSettings],
    schemas: Sequence[str],
    s3: S3Settings | None = None,
) -> list[Finding]:
    """Try all that loads into a destination need, step by step; ends with the first that fails.

    Raises:
        InputError: no such destination is configured.
    """
    if name not in configured:
        listed = ", ".join(sorted(configured)) or "none"
        raise NotFoundError(
            f"destination {name!r} is not configured (WAYBILL_DESTINATIONS names {listed})"
            f"{hint(name, configured)}"
        )
    findings: list[Finding] = []
    try:
        with open_destination(name, configured[name], s3) as destination:
            for schema in schemas:
                findings += destination.examine(schema)
                if not findings[-1].ok:
                    break
    except (InputError, RetryError) as error:
        findings.append(Finding("open the destination", ok=False, words=str(error)))
    return findings


def dry_run(
    name: str,
    settings: DestinationSettings,
    specs: Sequence[TableSpec],
    s3: S3Settings | None = None,
) -> list[Finding]:
    """Try all that loads into some tables need, step by step; ends with the first that fails.

    Where definitions of tables can be rolled back (PostgreSQL, DuckDB) nothing is left, and the
    tables themselves are tried. Elsewhere a table of its own is made in their schemas and dropped.
    """
    findings: list[Finding] = []
    try:
        with open_destination(name, settings, s3) as destination:
            if isinstance(destination, RevertingDestination):
                return destination.dry_run(specs)
            for schema in sorted({spec.schema_name for spec in specs}):
                findings += destination.examine(schema)
                if not findings[-1].ok:
                    break
    except (InputError, RetryError) as error:
        away = isinstance(error, RetryError)
        findings.append(Finding("open the destination", ok=False, words=str(error), may_pass=away))
    return findings


def rewind_findings(tracker: TrackerStore, name: str) -> list[Finding]:
    """Return a step for each time that a destination was put back, which is not over."""
    with tracker.transaction() as connection:
        rewinds = open_rewinds(connection).get(name, ())
    return [Finding("hold what it took", ok=False, words=one.words) for one in rewinds]


def _numbers(connection: Connection, name: Any, number: Any) -> dict[str, int]:
    return {str(row[0]): int(row[1]) for row in connection.execute(select(name, number))}


def _sums(connection: Connection, destination: str, after: int) -> tuple[int, int]:
    table = staged_objects.c
    query = select(
        cast(func.coalesce(func.sum(table.rows), 0), BigInteger),
        cast(func.coalesce(func.sum(table.bytes), 0), BigInteger),
    ).where(table.destination == destination, table.commit_number > after)
    row = connection.execute(query).one()
    return int(row[0]), int(row[1])
