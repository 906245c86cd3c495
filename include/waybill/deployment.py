"""Deployed pipelines: immutable versions in the tracker; the newest of each is active."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Connection, func, select, text, tuple_
from sqlalchemy.dialects.postgresql import insert

from waybill.errors import InputError
from waybill.mappings import (
    InForce,
    NameRules,
    keep_declared,
    numbers_in_force,
    rules_of,
    versions_numbered,
)
from waybill.pipelines import Pipeline, base_topic, load_pipeline, topic_of
from waybill.storage import TrackerStore
from waybill.storage.tracker import audit_log, pipeline_versions, pipelines

Mappings = dict[tuple[str, str], InForce]
"""By pipeline id and event name."""


class DeployedOnTopic(NamedTuple):
    """What the events of one topic are processed with."""

    pipelines: Mapping[str, Pipeline]
    """By id: those that send to the topic."""
    mappings: Mappings
    """In force of these pipelines."""


@dataclass(frozen=True, slots=True)
class DeployReport:
    """What a deploy did."""

    pipeline: str
    pipeline_id: str
    version: str
    number: int
    changed: bool
    """False: this version was active already."""
    warnings: tuple[str, ...] = ()
    """A sentence for each table that another deployed pipeline writes too."""

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return asdict(self)


def deploy(
    tracker: TrackerStore,
    directory: Path,
    *,
    who: str,
    rules: NameRules | None = None,
    source_roots: Sequence[Path] = (),
) -> DeployReport:
    """Check the declaration in a folder and make it the pipeline's active version.

    In the same transaction its columns are laid over what was learned from its events.

    Args:
        tracker: where pipelines are kept.
        directory: with the declaration.
        who: deploys.
        rules: for names, of the pipeline's destination; PostgreSQL's, where none are given.
        source_roots: folders of the settings that its source may lie in.

    Raises:
        InputError: the declaration is wrong, its source lies where it must not, its name belongs to
            another pipeline, its team or destination is not what it was, or a column's type is none
            that holds what was learned.
    """
    pipeline = load_pipeline(directory, source_roots)
    with tracker.transaction() as connection:
        _register(connection, pipeline)
        number, changed = _activate(connection, pipeline, who, rules or rules_of("postgres"))
        warnings = tuple(_shared_tables(connection, pipeline))
    return DeployReport(
        pipeline.name, pipeline.id, pipeline.version, number, changed=changed, warnings=warnings
    )


def _activate(
    connection: Connection, pipeline: Pipeline, who: str, rules: NameRules
) -> tuple[int, bool]:
    """Make a version active; returns its number, and False if it was active already."""
    active = _active_row(connection, pipeline.id)
    if active is not None and active.version == pipeline.version:
        return int(active.number), False
    if active is not None:
        _refuse_other_topic(Pipeline.from_json(active.declaration), pipeline)
    number = 1 if active is None else active.number + 1
    connection.execute(
        pipeline_versions.insert().values(
            pipeline_id=pipeline.id,
            number=number,
            version=pipeline.version,
            declaration=pipeline.to_json(),
            deployed_by=who,
        )
    )
    connection.execute(
        audit_log.insert().values(
            who=who,
            action="deploy",
            target=pipeline.id,
            detail={"version": pipeline.version, "number": number},
        )
    )
    keep_declared(connection, pipeline, rules, who)
    return number, True


def _shared_tables(connection: Connection, pipeline: Pipeline) -> Iterator[str]:
    """Yield a sentence for each table that another deployed pipeline writes too."""
    tables = _tables(pipeline)
    numbers = {one: number for one, number in _newest(connection) if one != pipeline.id}
    for pipeline_id, _, declaration in sorted(_versions(connection, list(numbers.items()))):
        try:
            other = Pipeline.from_json(declaration)
        except InputError as error:
            yield f"the tables of pipeline {pipeline_id!r} were not compared: {error}"
            continue
        if other.destination != pipeline.destination:
            continue
        for schema, table in sorted(tables & _tables(other)):
            yield (
                f"pipelines {pipeline.name!r} and {other.name!r} both write table {schema}.{table} "
                f"of {pipeline.destination!r}: rows with equal keys replace each other"
            )


def _tables(pipeline: Pipeline) -> set[tuple[str, str]]:
    specs = [event.table for event in pipeline.events.values()]
    return {
        (spec.schema_name, name)
        for spec in specs
        for name in (spec.name, *(child.name for child in spec.children))
    }


def _refuse_other_topic(active: Pipeline, proposed: Pipeline) -> None:
    """Refuse to move a pipeline to another topic: what waits in the old one would not be read."""
    old, new = topic_of(active), topic_of(proposed)
    if old != new:
        raise InputError(
            f"pipeline {proposed.id!r} sends to topic {old!r}; with this team and destination it "
            f"would be {new!r}, and events that wait in the old one would never be read. Declare "
            "it as a new pipeline, with an id of its own"
        )


def _register(connection: Connection, pipeline: Pipeline) -> None:
    """Insert or update the pipeline's row; deploys, also of different pipelines, take turns."""
    connection.execute(text("LOCK TABLE pipelines IN SHARE ROW EXCLUSIVE MODE"))
    owner = connection.execute(
        select(pipelines.c.id).where(pipelines.c.name == pipeline.name)
    ).scalar()
    if owner is not None and owner != pipeline.id:
        raise InputError(
            f"a pipeline named {pipeline.name!r} exists with id {owner!r}; this declaration says "
            f"{pipeline.id!r}. Ids never change: keep the old id, or choose another name"
        )
    statement = insert(pipelines).values(id=pipeline.id, name=pipeline.name, team=pipeline.team)
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=[pipelines.c.id], set_={"name": pipeline.name, "team": pipeline.team}
        )
    )


def _active_row(connection: Connection, pipeline_id: str) -> Any:
    query = (
        select(pipeline_versions)
        .where(pipeline_versions.c.pipeline_id == pipeline_id)
        .order_by(pipeline_versions.c.number.desc())
        .limit(1)
    )
    return connection.execute(query).first()


class ActivePipelines:
    """The active versions of all deployed pipelines; a version is read and parsed once.

    Threads may share one.
    """

    def __init__(self, tracker: TrackerStore) -> None:
        self._tracker = tracker
        self._lock = threading.Lock()
        self._known: dict[tuple[str, int], Pipeline] = {}
        self._by_id: dict[str, Pipeline] = {}
        self._by_topic: dict[str, dict[str, Pipeline]] = {}
        self._mappings: dict[tuple[str, str], InForce] = {}

    def read(self) -> dict[str, Pipeline]:
        """Return {pipeline id: active version}; the same object while none newer is deployed.

        Cost: one statement, one more where there is something new.
        """
        with self._lock, self._tracker.transaction() as connection:
            self._read(connection)
            return dict(self._by_id)

    def read_mapped(self, topics: Collection[str]) -> dict[str, DeployedOnTopic]:
        """Return {topic: its pipelines, and their mappings in force}; any generation of a topic.

        All are of one moment: no mapping is of a later or earlier deploy than its pipeline.
        Cost: three statements, one or two more where there is something new, however many topics.
        """
        with self._lock, self._tracker.transaction() as connection:
            connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
            self._read(connection)
            own = {topic: self._by_topic.get(base_topic(topic), {}) for topic in topics}
            mappings: dict[str, Mappings] = {topic: {} for topic in own}
            topics_of_id: dict[str, list[str]] = {}
            for topic, group in own.items():
                for pipeline_id in group:
                    topics_of_id.setdefault(pipeline_id, []).append(topic)
            for name, mapping in self._read_mappings(connection, list(topics_of_id)).items():
                for topic in topics_of_id[name[0]]:
                    mappings[topic][name] = mapping
            return {one: DeployedOnTopic(own[one], mappings[one]) for one in own}

    def _read(self, connection: Connection) -> None:
        active = dict.fromkeys(_newest(connection))
        if active.keys() == self._known.keys():
            return
        unknown = [one for one in active if one not in self._known]
        rows = _versions(connection, unknown) if unknown else []
        fresh = {(row[0], int(row[1])): Pipeline.from_json(row[2]) for row in rows}
        self._known = {one: fresh.get(one) or self._known[one] for one in active}
        self._by_id = {pipeline_id: pipeline for (pipeline_id, _), pipeline in self._known.items()}
        self._by_topic = {}
        for pipeline_id, pipeline in self._by_id.items():
            self._by_topic.setdefault(topic_of(pipeline), {})[pipeline_id] = pipeline

    def _read_mappings(self, connection: Connection, pipeline_ids: Sequence[str]) -> Mappings:
        numbers = numbers_in_force(connection, pipeline_ids)
        known = {name: one.number for name, one in self._mappings.items()}
        unknown = {name: n for name, n in numbers.items() if known.get(name) != n}
        for version in versions_numbered(connection, unknown):
            name = (version.pipeline_id, version.event_name)
            self._mappings[name] = InForce(version.number, version.declaration)
        return {name: self._mappings[name] for name in numbers}


def _newest(connection: Connection) -> list[tuple[str, int]]:
    """Return (pipeline id, number of its active version) of all deployed pipelines."""
    table = pipeline_versions.c
    query = select(table.pipeline_id, func.max(table.number)).group_by(table.pipeline_id)
    return [(row[0], int(row[1])) for row in connection.execute(query)]


def _versions(connection: Connection, wanted: Sequence[tuple[str, int]]) -> Sequence[Any]:
    table = pipeline_versions.c
    query = select(table.pipeline_id, table.number, table.declaration)
    return connection.execute(
        query.where(tuple_(table.pipeline_id, table.number).in_(wanted))
    ).all()


def active_pipelines(tracker: TrackerStore) -> dict[str, Pipeline]:
    """Return {pipeline id: active version} of all deployed pipelines."""
    return ActivePipelines(tracker).read()


def active_pipeline(tracker: TrackerStore, name: str) -> Pipeline:
    """Return the active version of one pipeline, by name or id.

    Raises:
        InputError: nothing of that name is deployed.
    """
    found = active_pipelines(tracker)
    by_name = {pipeline.name: pipeline for pipeline in found.values()}
    pipeline = by_name.get(name) or found.get(name)
    if pipeline is not None:
        return pipeline
    known = ", ".join(sorted(p.name for p in found.values())) or "none"
    raise InputError(
        f"no pipeline {name!r} is deployed (deployed: {known}); run `waybill pipelines deploy`"
    )


def active_version(tracker: TrackerStore, pipeline_id: str) -> str | None:
    """Return the version of a pipeline that is deployed now; None: there is none."""
    table = pipeline_versions.c
    query = select(table.version).where(table.pipeline_id == pipeline_id)
    with tracker.transaction() as connection:
        return connection.execute(query.order_by(table.number.desc()).limit(1)).scalar()


def keeps_source(tracker: TrackerStore, pipeline_id: str) -> bool:
    """Tell whether the version of a pipeline that is deployed now keeps sources."""
    table = pipeline_versions.c
    query = select(table.declaration["keep_source"]).where(table.pipeline_id == pipeline_id)
    with tracker.transaction() as connection:
        return connection.execute(query.order_by(table.number.desc()).limit(1)).scalar() is True


_TEAM_DESTINATIONS = text("""
SELECT DISTINCT pipelines.team, active.declaration->>'destination' AS destination
FROM pipelines CROSS JOIN LATERAL (
  SELECT declaration FROM pipeline_versions WHERE pipeline_id = pipelines.id
  ORDER BY number DESC LIMIT 1) AS active
""")


def team_destinations(connection: Connection) -> dict[str, set[str]]:
    """Return {team: destinations that its deployed pipelines write to}.

    Cost: one statement, which reads each active declaration and parses none.
    """
    found: dict[str, set[str]] = {}
    for row in connection.execute(_TEAM_DESTINATIONS):
        found.setdefault(row.team, set()).add(row.destination)
    return found


def deployed_names(tracker: TrackerStore, teams: tuple[str, ...] | None) -> list[dict[str, str]]:
    """Return id, name and team of the deployed pipelines of these teams, by name; None: of all."""
    query = select(pipelines.c.id, pipelines.c.name, pipelines.c.team)
    if teams is not None:
        query = query.where(pipelines.c.team.in_(teams))
    with tracker.transaction() as connection:
        rows = connection.execute(query.order_by(pipelines.c.name)).mappings()
        return [{name: str(row[name]) for name in ("id", "name", "team")} for row in rows]
