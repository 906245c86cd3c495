"""Virtual clusters, pins, assignments and measurements in the tracker."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Text, cast, func, select, text
from sqlalchemy.dialects.postgresql import insert

from waybill.clusters.applications import read_applications, why_unserved
from waybill.clusters.capacity import CapacityDemand
from waybill.clusters.loads import ClusterActivity, HotPartition, LoadSample, TopicLook
from waybill.clusters.model import Assignment, Move, Placement, VirtualCluster
from waybill.storage import AdvisoryLock
from waybill.storage.tracker import (
    cluster_assignments,
    cluster_loads,
    cluster_pins,
    json_value,
    team_loads,
    text_value,
    topic_looks,
    virtual_clusters,
)

CHANNEL = "waybill_assignment"
"""On which PostgreSQL notifies of a new version."""
COORDINATOR = "coordinator"
HISTORY_S = 3 * 86_400.0
"""For so long it is kept what clusters needed: two seasons of a day, and the one that goes on."""
_LOOKS_S = 86_400.0
"""For so long looks at teams are kept."""
LATELY_S = 3_600.0
"""Measurements of which the load of a team is made."""
_KEPT_VERSIONS = 100
"""Each names all teams: of 5,000 one is over a megabyte. People see the last 50 with a move."""
_SETTINGS = ("max_consumers", "cores", "lag_objective_s", "state", "memory_mb", "scheduler_pool")
_DEEPEST = 8
_SAMPLES = text("""
SELECT team, extract(epoch FROM at)::float, consumers, written, read, lag_s, batches, batch_events,
  core_s, nullif(hot_partitions, '[]'::jsonb), nullif(unseen, '{}'::jsonb)
FROM team_loads WHERE at >= clock_timestamp() - make_interval(secs => :lately_s)
  AND at <= clock_timestamp() ORDER BY at
""")
_OLD_SAMPLES = text(
    "DELETE FROM team_loads WHERE at < clock_timestamp() - make_interval(secs => :kept_s) "
    "OR at > clock_timestamp()"
)
"""Also what lies in the future, as the clock stepped back: it would be the newest for as long, and
then lie among the looks of the same minutes."""
_OLD_TOPICS = text(
    "DELETE FROM topic_looks WHERE at < clock_timestamp() - make_interval(secs => :kept_s)"
)
_OLD_LOADS = text(
    "DELETE FROM cluster_loads WHERE at < clock_timestamp() - make_interval(secs => :kept_s) "
    "OR at > clock_timestamp()"
)
_OLD_VERSIONS = text(
    "DELETE FROM cluster_assignments "
    "WHERE version <= (SELECT max(version) FROM cluster_assignments) - :kept"
)
_CONSUMERS = text("""
SELECT coalesce(sum(consumers), 0)::bigint FROM (
  SELECT DISTINCT ON (team) consumers FROM team_loads
  WHERE at >= clock_timestamp() - make_interval(secs => :since_s) AND at <= clock_timestamp()
  ORDER BY team, at DESC
) AS newest
""")
_GROWTHS = text("""
SELECT at, who, detail->>'team', substr(target, length('topic ') + 1),
  (detail->'before'->>'partitions')::int, (detail->'after'->>'partitions')::int, detail->>'why'
FROM audit_log WHERE action = 'grow_topic' AND detail ? 'team'
  AND id > (SELECT max(id) FROM audit_log) - 100000
  AND EXISTS (SELECT FROM topic_generations WHERE generation > 1)
ORDER BY id DESC LIMIT :limit
""")


@dataclass(frozen=True, slots=True)
class Pin:
    """A team that a person put into a cluster."""

    team: str
    cluster: str
    who: str
    why: str
    pinned_at: datetime


def lock_assignment(connection: Connection) -> None:
    """Wait until nobody else makes the next version; until the transaction ends."""
    AdvisoryLock.CLUSTER_ASSIGNMENT.take(connection)


def now_s(connection: Connection) -> float:
    """Return the tracker's time, in seconds since the epoch."""
    return float(
        connection.execute(text("SELECT extract(epoch FROM clock_timestamp())::float")).scalar_one()
    )


def read_clusters(connection: Connection) -> list[VirtualCluster]:
    """Return all virtual clusters, by name; see ``why_unserved``."""
    running = read_applications(connection)
    rows = connection.execute(select(virtual_clusters).order_by(virtual_clusters.c.name))
    found = []
    for row in rows:
        application = running.get((row.name, "processing"))
        why = why_unserved(application)
        settings = {name: getattr(row, name) for name in _SETTINGS}
        conf = dict(row.spark_conf)
        found.append(
            VirtualCluster(
                row.name,
                spark_conf=conf,
                is_served=not why,
                unserved=why,
                is_unable=bool(why) and application is not None and application.is_at_work,
                **settings,
            )
        )
    return found


def write_cluster(connection: Connection, cluster: VirtualCluster) -> None:
    """Write a cluster, or what is other now."""
    values = {name: getattr(cluster, name) for name in _SETTINGS}
    values["scheduler_pool"] = text_value(cluster.scheduler_pool)
    values["spark_conf"] = json_value(dict(cluster.spark_conf), deepest=1)
    first = insert(virtual_clusters).values(name=cluster.name, **values)
    connection.execute(
        first.on_conflict_do_update(index_elements=[virtual_clusters.c.name], set_=values)
    )


def remove_cluster(connection: Connection, name: str) -> None:
    """Take a cluster away, with what it needed; nobody may be pinned to it."""
    for table, column in (
        (cluster_loads, cluster_loads.c.cluster),
        (virtual_clusters, virtual_clusters.c.name),
    ):
        connection.execute(table.delete().where(column == name))


def read_pins(connection: Connection) -> dict[str, Pin]:
    """Return all pins, by team."""
    columns = [cluster_pins.c[name] for name in ("team", "cluster", "who", "why", "pinned_at")]
    return {row.team: Pin(*row) for row in connection.execute(select(*columns))}


def write_pin(connection: Connection, team: str, cluster: str, *, who: str, why: str) -> None:
    """Pin a team; another pin of it is replaced."""
    values = {
        "cluster": cluster,
        "who": text_value(who),
        "why": text_value(why),
        "pinned_at": func.clock_timestamp(),
    }
    first = insert(cluster_pins).values(team=team, **values)
    connection.execute(
        first.on_conflict_do_update(index_elements=[cluster_pins.c.team], set_=values)
    )


def delete_pin(connection: Connection, team: str) -> None:
    """Take a pin away, if there is one."""
    connection.execute(cluster_pins.delete().where(cluster_pins.c.team == team))


def newest_version(connection: Connection) -> int:
    """Return the version in force; 0: there is none yet. Cost: a look at one end of an index."""
    return int(connection.execute(select(func.max(cluster_assignments.c.version))).scalar() or 0)


def read_assignment(connection: Connection) -> Assignment | None:
    """Return the assignment in force; None: the coordinator has not run yet."""
    query = select(cluster_assignments).order_by(cluster_assignments.c.version.desc()).limit(1)
    row = connection.execute(query).one_or_none()
    if row is None:
        return None
    return Assignment(
        int(row.version),
        {team: Placement(**at) for team, at in row.placements.items()},
        tuple(Move(**move) for move in row.moves),
        tuple(row.waiting),
        tuple(row.problems),
    )


@dataclass(frozen=True, slots=True)
class MovesOfVersion:
    """What a version of the assignment changed."""

    version: int
    made_by: str
    made_at: datetime
    moves: tuple[Move, ...]
    problems: tuple[str, ...]
    """What could not be done, or was not known, when it was made."""


def read_moves(connection: Connection, *, limit: int) -> list[MovesOfVersion]:
    """Return the newest versions that moved a team, the newest first.

    Cost: reads no placements; at most the versions that are kept.
    """
    table = cluster_assignments.c
    query = (
        select(table.version, table.made_by, table.made_at, table.moves, table.problems)
        .where(func.jsonb_array_length(table.moves) > 0)
        .order_by(table.version.desc())
        .limit(limit)
    )
    return [
        MovesOfVersion(
            int(row.version),
            row.made_by,
            row.made_at,
            tuple(Move(**move) for move in row.moves),
            tuple(row.problems),
        )
        for row in connection.execute(query)
    ]


@dataclass(frozen=True, slots=True)
class GrownTopic:
    """A topic that got more partitions: the coordinator's decision, or a person's."""

    at: datetime
    made_by: str
    team: str
    topic: str
    before: int
    partitions: int
    why: str


def read_growths(connection: Connection, *, limit: int) -> list[GrownTopic]:
    """Return the newest growths of topics, the newest first.

    Cost: nothing where none ever grew; else the newest 100,000 entries of the audit log.
    """
    return [GrownTopic(*row) for row in connection.execute(_GROWTHS, {"limit": limit})]


def write_assignment(connection: Connection, assignment: Assignment, *, made_by: str) -> None:
    """Write the next version and notify whoever listens, once the transaction is committed.

    Raises:
        sqlalchemy.exc.IntegrityError: this version is there: see ``lock_assignment``.
    """
    said = assignment.to_json()
    connection.execute(
        cluster_assignments.insert().values(
            version=assignment.version,
            placements=json_value(said["placements"], deepest=_DEEPEST),
            moves=json_value(said["moves"], deepest=_DEEPEST),
            waiting=json_value(said["waiting"], deepest=_DEEPEST),
            problems=json_value(said["problems"], deepest=_DEEPEST),
            made_by=text_value(made_by),
        )
    )
    connection.execute(_OLD_VERSIONS, {"kept": _KEPT_VERSIONS})
    connection.execute(select(func.pg_notify(CHANNEL, cast(str(assignment.version), Text))))


def last_look_s(connection: Connection) -> float | None:
    """Return when teams were looked at last; None: never."""
    past = team_loads.c.at <= func.clock_timestamp()
    at = connection.execute(select(func.max(team_loads.c.at)).where(past)).scalar()
    return None if at is None else at.timestamp()


def write_samples(connection: Connection, samples: Sequence[LoadSample]) -> None:
    """Write one look at the teams, and trim what is old, or lies in the future."""
    rows = [
        {
            "team": one.team,
            "at": datetime.fromtimestamp(one.at_s, UTC),
            "consumers": one.consumers,
            "written": one.written,
            "read": one.read,
            "lag_s": one.lag_s,
            "batches": one.batches,
            "batch_events": one.batch_events,
            "core_s": one.core_s,
            "hot_partitions": [asdict(hot) for hot in one.hot_partitions],
            "unseen": json_value(dict(one.unseen), deepest=1),
        }
        for one in samples
    ]
    if rows:
        connection.execute(insert(team_loads).on_conflict_do_nothing(), rows)
    connection.execute(_OLD_SAMPLES, {"kept_s": _LOOKS_S})


def write_topic_looks(connection: Connection, looks: Sequence[TopicLook]) -> None:
    """Write what is known of topics now, instead of what was; and trim what is old.

    Cost: a row a topic.
    """
    rows = [
        {
            "topic": one.topic,
            "at": datetime.fromtimestamp(one.at_s, UTC),
            "written": one.written,
            "read": one.read,
            "lag_s": one.lag_s,
        }
        for one in looks
    ]
    if rows:
        first = insert(topic_looks)
        columns = ("at", "written", "read", "lag_s")
        newer = {name: first.excluded[name] for name in columns}
        connection.execute(
            first.on_conflict_do_update(
                index_elements=[topic_looks.c.topic],
                set_=newer,
                where=(topic_looks.c.at < first.excluded.at)
                | (topic_looks.c.at > func.clock_timestamp()),
            ),
            rows,
        )
    connection.execute(_OLD_TOPICS, {"kept_s": _LOOKS_S})


def read_topic_looks(connection: Connection, topics: Collection[str]) -> dict[str, TopicLook]:
    """Return what was known last of topics; one that did not answer for a day is not there."""
    query = select(topic_looks).where(topic_looks.c.topic.in_(topics))
    return {
        row.topic: TopicLook(
            row.topic, row.at.timestamp(), int(row.written), int(row.read), float(row.lag_s)
        )
        for row in connection.execute(query)
    }


def read_samples(
    connection: Connection, *, lately_s: float = LATELY_S
) -> dict[str, list[LoadSample]]:
    """Return the looks at each team of the last hour, the oldest first.

    Cost: an index scan over them: 60 rows a team.
    """
    found: dict[str, list[LoadSample]] = {}
    for row in connection.execute(_SAMPLES, {"lately_s": lately_s}):
        team, at_s, consumers, written, read, lag_s, batches, events, core_s, hot, unseen = row
        sample = LoadSample(team, at_s, consumers, written, read, lag_s, batches, events, core_s)
        if hot or unseen:  # seldom
            spots = tuple(HotPartition(**one) for one in hot or ())
            sample = replace(sample, hot_partitions=spots, unseen=unseen or {})
        found.setdefault(team, []).append(sample)
    return found


def read_consumers(connection: Connection, *, since_s: float) -> int:
    """Return how many consumers all teams have, of looks since so many seconds ago.

    Cost: an index scan over these looks.
    """
    return int(connection.execute(_CONSUMERS, {"since_s": since_s}).scalar_one())


def read_demand_history(connection: Connection) -> dict[str, list[float]]:
    """Return {cluster: cores that its teams kept busy}, by minute, the oldest first.

    A minute in which the coordinator did not look is as the one before.

    Cost: 4,320 rows a cluster.
    """
    table = cluster_loads.c
    query = (
        select(table.cluster, table.at, table.demand_cores)
        .where(table.at <= func.clock_timestamp())
        .order_by(table.cluster, table.at)
    )
    found: dict[str, list[float]] = {}
    before: dict[str, int] = {}
    for name, at, cores in connection.execute(query):
        minute, series = int(at.timestamp() // 60), found.setdefault(name, [])
        passed = minute - before.get(name, minute - 1)
        if passed == 0:  # two rounds in one minute
            series.pop()
        series.extend([*series[-1:] * (passed - 1), float(cores)])
        before[name] = minute
    return found


def write_capacities(
    connection: Connection,
    demand: CapacityDemand,
    teams: Mapping[str, int],
    activity: Mapping[str, ClusterActivity],
) -> None:
    """Write what each cluster needs now, with what its teams did, and trim as ``write_samples``."""
    known = {one.cluster: activity.get(one.cluster, ClusterActivity()) for one in demand.clusters}
    rows = [
        {
            "cluster": one.cluster,
            "teams": teams.get(one.cluster, 0),
            "cores": one.cores,
            "needed_cores": one.needed_cores,
            "demand_cores": one.demand_cores,
            "forecast_cores": one.forecast_cores,
            "lag_s": one.lag_s,
            "arrival_per_s": known[one.cluster].arrival_per_s,
            "processed_per_s": known[one.cluster].processed_per_s,
            "hot": [asdict(spot) for spot in known[one.cluster].hot],
        }
        for one in demand.clusters
    ]
    if rows:
        connection.execute(insert(cluster_loads), rows)
    connection.execute(_OLD_LOADS, {"kept_s": HISTORY_S})


def read_capacities(
    connection: Connection, cluster: str | None = None, *, since_s: float = 120.0
) -> list[dict[str, Any]]:
    """Return what clusters needed since so many seconds ago, the oldest first."""
    now = func.clock_timestamp()
    lately = cluster_loads.c.at.between(now - func.make_interval(0, 0, 0, 0, 0, 0, since_s), now)
    query = select(cluster_loads).where(lately).order_by(cluster_loads.c.at)
    if cluster is not None:
        query = query.where(cluster_loads.c.cluster == cluster)
    rows = connection.execute(query).mappings()
    return [{str(name): value for name, value in row.items()} for row in rows]
