"""Nodes, waits, decisions, their broadcast and thresholds in the tracker.

All times are the tracker's clock. A decision, the nodes that it drains and the version that
announces them are one transaction of the caller's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from sqlalchemy import Connection, Text, cast, func, select, text
from sqlalchemy.dialects.postgresql import insert

from waybill.capacity.model import Decision, NodeKind, Observation, PolicyState, Thresholds
from waybill.capacity.waits import DelayReport
from waybill.clusters import ANNOUNCED, newest_announcement, read_announced
from waybill.errors import InputError
from waybill.storage.tracker import (
    capacity_nodes,
    capacity_rounds,
    capacity_thresholds,
    capacity_versions,
    json_value,
    task_waits,
    text_value,
)

LATEST_S = 120.0
"""A node that reported nothing for so long is not counted."""
_KEPT_VERSIONS = 100
_DEEPEST = 6
_LONGEST = 500
_OLD = (
    "DELETE FROM task_waits WHERE at < clock_timestamp() - interval '3 days' "
    "OR at > clock_timestamp()",
    "DELETE FROM capacity_rounds WHERE at < clock_timestamp() - interval '90 days' "
    "OR (action = 'hold' AND at < clock_timestamp() - interval '3 days')",
    "DELETE FROM capacity_nodes WHERE gone_at < clock_timestamp() - interval '3 days' "
    "OR reported_at < clock_timestamp() - interval '3 days'",
    "DELETE FROM capacity_acks WHERE at < clock_timestamp() - interval '3 days' "
    "AND version IS DISTINCT FROM (SELECT max(version) FROM capacity_versions)",
)
_OLD_VERSIONS = text(
    "DELETE FROM capacity_versions "
    "WHERE version <= (SELECT max(version) FROM capacity_versions) - :kept"
)
_REPORT = text("""
INSERT INTO capacity_nodes AS known (name, kind, state, units, reported_at, report)
VALUES (:name, :kind, 'active', :units, clock_timestamp(), CAST(:report AS jsonb))
ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, units = excluded.units,
  reported_at = excluded.reported_at, report = excluded.report,
  state = CASE known.state WHEN 'gone' THEN 'active' ELSE known.state END,
  draining_at = CASE known.state WHEN 'gone' THEN NULL ELSE known.draining_at END, gone_at = NULL
RETURNING state
""")
_NODES = text("""
SELECT name, kind, state, units, report,
  coalesce(reported_at BETWEEN clock_timestamp() - :latest * interval '1 s'
    AND clock_timestamp() + :latest * interval '1 s', false) AS is_heard,
  greatest(0, extract(epoch FROM clock_timestamp() - draining_at))::float AS draining_s
FROM capacity_nodes WHERE state <> 'gone' ORDER BY name
""")
_WAITS = text("""
SELECT report, extract(epoch FROM at)::float AS at_s,
  extract(epoch FROM clock_timestamp() - at)::float AS age_s
FROM task_waits WHERE at >= clock_timestamp() - make_interval(secs => :since_s)
  AND at <= clock_timestamp() ORDER BY at
""")
_NODE_HOURS = text("""
SELECT coalesce(sum(nodes * length_s), 0)::float / 3600 FROM (
  SELECT (observation->>'ready')::float + (observation->>'starting')::float
      + (observation->>'draining')::float AS nodes,
    least(300, greatest(0, extract(epoch FROM
      coalesce(lead(at) OVER (ORDER BY id), clock_timestamp()) - at))) AS length_s
  FROM capacity_rounds
  WHERE kind = :kind AND at >= date_trunc('day', clock_timestamp(), 'UTC')
) AS spent
""")


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What the enhancer of a node saw last."""

    workers: int
    """That it has now; of Spark: cores."""
    running: int
    """Tasks."""
    cpu: float
    """Share of its CPU that is busy, 0 to 1;"""
    io_wait: float
    """and that waits for disks."""
    memory: float
    """Share of its memory in use."""
    why: str = ""
    """What it did last, and why."""
    drains: bool = False
    """It had been told to take no new task when ``running`` was counted."""
    consumers: int = 0
    """Of Spark: consumers that it serves, as configured; 0: as many as come."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)

    @classmethod
    def read(cls, value: object) -> Self | None:
        """Return what ``to_json`` gave; None: what another release wrote otherwise."""
        if not isinstance(value, Mapping):
            return None
        try:
            cpu, io_wait, memory = (float(value[name]) for name in ("cpu", "io_wait", "memory"))
            workers, running = int(value["workers"]), int(value["running"])
            drains, consumers = value.get("drains") is True, int(value.get("consumers", 0))
            shares = (cpu, io_wait, memory)
            return cls(workers, running, *shares, str(value["why"]), drains, consumers)
        except (TypeError, KeyError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class Node:
    """A node that declared its capacity."""

    name: str
    kind: NodeKind
    state: str
    """active or draining."""
    units: int
    """Workers or cores, as configured."""
    report: NodeReport | None
    is_heard: bool
    """It reported lately."""
    draining_s: float | None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


def now_s(connection: Connection) -> float:
    """Return the tracker's time, in seconds since the epoch."""
    query = text("SELECT extract(epoch FROM clock_timestamp())::float")
    return float(connection.execute(query).scalar_one())


def write_report(
    connection: Connection, name: str, kind: NodeKind, units: int, report: NodeReport
) -> str:
    """Declare a node, or say how it is; returns its state: active, or draining."""
    import orjson

    values = json_value(report.to_json(), deepest=1, longest=_LONGEST)
    given = {"name": text_value(name), "kind": kind, "units": units}
    row = connection.execute(_REPORT, given | {"report": orjson.dumps(values).decode()})
    return str(row.scalar_one())


def read_nodes(connection: Connection) -> list[Node]:
    """Return the nodes that are not gone, by name."""
    rows = connection.execute(_NODES, {"latest": LATEST_S}).mappings()
    return [Node(**{**row, "report": NodeReport.read(row["report"])}) for row in rows]


def drain_nodes(connection: Connection, names: list[str]) -> None:
    """Have nodes take no new task."""
    connection.execute(
        capacity_nodes.update()
        .where(capacity_nodes.c.name.in_(names), capacity_nodes.c.state == "active")
        .values(state="draining", draining_at=func.clock_timestamp())
    )


def forget_node(connection: Connection, name: str) -> None:
    """Write that a node is gone."""
    connection.execute(
        capacity_nodes.update()
        .where(capacity_nodes.c.name == name)
        .values(state="gone", gone_at=func.clock_timestamp())
    )


def write_waits(connection: Connection, report: DelayReport) -> None:
    """Keep what the delay monitor saw; what is old goes, here and of the decisions.

    So does what it saw in the future, before the clock stepped back.
    """
    values = json_value(report.to_json(), deepest=_DEEPEST, longest=_LONGEST)
    connection.execute(task_waits.insert().values(report=values))
    for statement in _OLD:
        connection.execute(text(statement))


def read_waits(connection: Connection, *, since_s: float) -> list[dict[str, Any]]:
    """Return what the monitor saw until now, the oldest first, with ``at_s`` and ``age_s``."""
    rows = connection.execute(_WAITS, {"since_s": since_s})
    return [{**row.report, "at_s": row.at_s, "age_s": row.age_s} for row in rows]


def read_state(connection: Connection, kind: NodeKind) -> PolicyState:
    """Return what the policy remembers of a kind."""
    query = (
        select(capacity_rounds.c.state)
        .where(capacity_rounds.c.kind == kind)
        .order_by(capacity_rounds.c.id.desc())
        .limit(1)
    )
    return PolicyState.read(connection.execute(query).scalar())


def write_decision(
    connection: Connection,
    kind: NodeKind,
    seen: Observation,
    decision: Decision,
    state: PolicyState,
) -> int:
    """Keep a decision with what it was made of; return the number by which it is kept."""
    kept = connection.execute(
        capacity_rounds.insert()
        .values(observation=seen.to_json(), state=state.to_json(), kind=kind, **_values(decision))
        .returning(capacity_rounds.c.id)
    )
    return int(kept.scalar_one())


def rewrite_decision(connection: Connection, number: int, decision: Decision) -> None:
    """Keep another decision in place of one."""
    connection.execute(
        capacity_rounds.update().where(capacity_rounds.c.id == number).values(**_values(decision))
    )


def _values(decision: Decision) -> dict[str, Any]:
    said = json_value(decision.to_json(), deepest=2, longest=_LONGEST)
    return {"action": decision.action, "decision": said}


def read_decisions(
    connection: Connection, *, limit: int = 50, since_s: float | None = None, holds: bool = True
) -> list[dict[str, Any]]:
    """Return decisions, the newest first.

    Args:
        connection: a transaction.
        limit: at most so many.
        since_s: only those of so many last seconds.
        holds: also those that left nodes as they are.
    """
    query = select(
        capacity_rounds.c.at,
        capacity_rounds.c.kind,
        capacity_rounds.c.observation,
        capacity_rounds.c.decision,
    ).order_by(capacity_rounds.c.id.desc())
    if since_s is not None:
        begun = func.clock_timestamp() - func.make_interval(0, 0, 0, 0, 0, 0, since_s)
        query = query.where(capacity_rounds.c.at >= begun)
    if not holds:
        query = query.where(capacity_rounds.c.action != "hold")
    rows = connection.execute(query.limit(limit))
    return [
        {"at": row.at, "kind": row.kind, "observation": row.observation, **row.decision}
        for row in rows
    ]


def read_node_hours(connection: Connection, kind: NodeKind) -> float:
    """Return the node hours of this UTC day; a gap between two looks counts for five minutes."""
    return float(connection.execute(_NODE_HOURS, {"kind": kind}).scalar_one())


def announce(connection: Connection) -> int:
    """Announce the nodes as they are, where they are other than announced; returns the version.

    PostgreSQL notifies whoever listens once the transaction is committed.
    """
    nodes = {
        node.name: {"kind": node.kind, "state": node.state, "units": node.units}
        for node in read_nodes(connection)
        if node.is_heard
    }
    version = newest_announcement(connection)
    if nodes == read_announced(connection, version):
        return version
    connection.execute(capacity_versions.insert().values(version=version + 1, nodes=nodes))
    connection.execute(_OLD_VERSIONS, {"kept": _KEPT_VERSIONS})
    connection.execute(select(func.pg_notify(ANNOUNCED, cast(str(version + 1), Text))))
    return version + 1


def enhancer_of(node: str) -> str:
    """Return the name under which a node's enhancer acknowledges versions."""
    return f"enhancer of {node}"


def keep_thresholds(
    connection: Connection, kind: NodeKind, thresholds: Thresholds, source: str
) -> None:
    """Keep thresholds that hold, for when their store is away."""
    values = {
        "thresholds": thresholds.to_json(),
        "source": text_value(source, longest=_LONGEST),
        "read_at": func.clock_timestamp(),
    }
    first = insert(capacity_thresholds).values(kind=kind, **values)
    connection.execute(
        first.on_conflict_do_update(index_elements=[capacity_thresholds.c.kind], set_=values)
    )


def kept_thresholds(connection: Connection, kind: NodeKind) -> tuple[Thresholds, str] | None:
    """Return the last thresholds that held, and where they are from; None: there were none."""
    query = select(capacity_thresholds).where(capacity_thresholds.c.kind == kind)
    row = connection.execute(query).one_or_none()
    if row is None:
        return None
    try:
        return Thresholds.read(row.thresholds), row.source
    except InputError:  # another release knew other thresholds
        return None
