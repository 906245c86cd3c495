"""The infra coordinator: looks, decides, drains, and asks for nodes.

A round writes its decision first, in one transaction with the nodes that it drains and the version
that announces them, and asks for nodes after that. Killed in between, the next round sees that
there are fewer than were decided and decides anew; backends are told totals, so none is asked for
twice. Where a backend refuses, the decision is rewritten: nothing changes, and why is its reason. A
node that drains is ended in a later round, once it says that nothing runs on it and the ledger
knows no open write-ahead log of it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any

from sqlalchemy import Connection

from waybill.capacity.backends import NodeBackend
from waybill.capacity.followers import read_followers
from waybill.capacity.model import (
    KINDS,
    Decision,
    NodeKind,
    Observation,
    Thresholds,
)
from waybill.capacity.policy import decide
from waybill.capacity.records import (
    Node,
    announce,
    drain_nodes,
    forget_node,
    keep_thresholds,
    kept_thresholds,
    now_s,
    read_node_hours,
    read_nodes,
    read_state,
    read_waits,
    rewrite_decision,
    write_decision,
)
from waybill.capacity.thresholds import ThresholdStore, parse
from waybill.clusters import read_capacities, read_consumers
from waybill.errors import InputError, RetryError
from waybill.ledger import LogLine, read_logs
from waybill.storage import AdvisoryLock, TrackerStore

_LOG = logging.getLogger(__name__)
START_LIMIT_S = 900.0
"""A node that was asked for and reports nothing for so long is not waited for any more."""
_WAITS_S = 900.0
_MOST_TOLD = 10
_NEVER_S = 1e6


@dataclass(frozen=True, slots=True)
class CapacityReport:
    """What a round did."""

    decisions: Mapping[NodeKind, Decision]
    version: int
    """Of the announced nodes."""
    removed: tuple[str, ...]
    problems: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


def scale(
    tracker: TrackerStore,
    store: ThresholdStore,
    backends: Mapping[NodeKind, NodeBackend],
    *,
    units: Mapping[NodeKind, int],
    wait_s: float = 0.0,
) -> CapacityReport:
    """Run one round for every kind of node.

    Args:
        tracker: the books.
        store: of the thresholds; while it is away, or what it has contradicts itself, the last
            known ones hold. Where there are none, no node of the kind comes or goes: defaults could
            be far less than what is there.
        backends: who gives nodes of each kind.
        units: that a new node of each kind brings where none reports yet.
        wait_s: so long to wait for other thresholds first.

    Raises:
        RetryError: the tracker does not answer. What a backend refuses is a problem of the report.

    Cost: some statements; each backend is asked once or twice; the open write-ahead logs where a
        node drains.
    """
    problems: list[str] = []
    thresholds = _thresholds(tracker, store, wait_s, problems)
    decisions: dict[NodeKind, Decision] = {}
    removed: list[str] = []
    for kind in KINDS:
        if kind not in thresholds:
            problems.append(f"{kind} nodes stay as they are: no thresholds of them are known")
            continue
        one = _Kind(kind, backends[kind], thresholds[kind], units[kind])
        made = _round(tracker, one, removed, problems)
        if made is not None:
            decisions[kind] = made
    with _alone(tracker) as connection:
        version = announce(connection)
        late = [
            one
            for one in read_followers(connection, read_nodes(connection), version)
            if one.is_late
        ]
    problems += [
        f"{one.name} has not acknowledged version {version} of the nodes for "
        f"{one.waits_s:.0f} s: see that it is at work"
        for one in late[:_MOST_TOLD]
    ]
    if len(late) > _MOST_TOLD:
        problems.append(f"{len(late) - _MOST_TOLD} more have not: `waybill capacity show`")
    for kind, decision in decisions.items():
        if decision.action != "hold":
            before, after = decision.before, decision.after
            _LOG.info("%s: %d nodes -> %d: %s", kind, before, after, "; ".join(decision.reasons))
    return CapacityReport(decisions, version, tuple(removed), tuple(problems))


@contextmanager
def _alone(tracker: TrackerStore) -> Iterator[Connection]:
    """Open a transaction beside which nobody else decides or announces."""
    with tracker.transaction() as connection:
        AdvisoryLock.CAPACITY.take(connection)
        yield connection


@dataclass(frozen=True, slots=True)
class _Kind:
    kind: NodeKind
    backend: NodeBackend
    thresholds: Thresholds
    units: int
    """That a new node brings."""


def _round(
    tracker: TrackerStore, one: _Kind, removed: list[str], problems: list[str]
) -> Decision | None:
    """End what drained, decide, and ask for nodes; None: nothing is decided."""
    backend = one.backend
    try:
        present = backend.nodes()
    except (InputError, RetryError) as error:  # how many there are is not known
        problems.append(f"{one.kind} nodes stay as they are: {error}")
        return None
    if backend.acts:
        _forget_gone(tracker, one, present, problems)
        ended = _end_drained(tracker, one, problems)
        removed += ended
        present = present and [name for name in present if name not in ended]
    made = _decide(tracker, one, present)
    if made is None:
        return None
    if made.silent:
        problems.append(_silence(one, made.silent))
    if made.decision.action != "grow":
        return made.decision
    try:
        backend.resize(made.decision.after + made.draining + made.silent)
    except (InputError, RetryError) as error:
        why = f"no {one.kind} nodes are added: {error}"
        problems.append(why)
        held = _held(made.decision, why)
        with tracker.transaction() as connection:
            rewrite_decision(connection, made.number, held)
        return held
    return made.decision


def _held(decision: Decision, why: str) -> Decision:
    """Return a decision that nothing came of; why is its first reason."""
    return replace(decision, action="hold", after=decision.before, reasons=(why, *decision.reasons))


def _silence(one: _Kind, silent: int) -> str:
    return (
        f"{one.backend.name}: {silent} {one.kind} nodes report nothing for over "
        f"{START_LIMIT_S / 60:.0f} min: see that their workers answer, and that "
        "`waybill capacity enhance` runs on them"
    )


@dataclass(frozen=True, slots=True)
class _Decided:
    number: int
    """By which the decision is kept."""
    decision: Decision
    draining: int
    silent: int
    """Nodes that the backend has, and that did not report in time."""


def _thresholds(
    tracker: TrackerStore, store: ThresholdStore, wait_s: float, problems: list[str]
) -> dict[NodeKind, Thresholds]:
    """Return the thresholds in force: those of the store, or the last that held, if any did."""
    try:
        found = parse(store.read(), store.name)
        if wait_s > 0:
            found = parse(store.read(wait_s), store.name)
    except (InputError, RetryError) as error:
        with tracker.transaction() as connection:
            kept = {kind: kept_thresholds(connection, kind) for kind in KINDS}
        known = {kind: one[0] for kind, one in kept.items() if one}
        problems.append(f"{error}; the last known thresholds hold" if known else str(error))
        return known
    with tracker.transaction() as connection:
        for kind, thresholds in found.items():
            keep_thresholds(connection, kind, thresholds, store.name)
    return found


def _decide(tracker: TrackerStore, one: _Kind, present: Collection[str] | None) -> _Decided | None:
    """Write the decision, and mark the nodes that drain; None: there are no nodes of this kind."""
    with _alone(tracker) as connection:
        nodes = [node for node in read_nodes(connection) if node.kind == one.kind]
        if not nodes and present is None:
            return None
        before, silent = read_state(connection, one.kind), 0
        seen = observe(connection, nodes, present, one)
        if seen.at_s - before.grown_at_s > START_LIMIT_S:
            silent, seen = seen.starting, replace(seen, starting=0)
        decision, state = decide(before, seen, one.thresholds)
        if silent:
            decision = _beside_silent(decision, one, silent)
            if decision.action == "hold":  # else they would be waited for once more
                state = replace(state, grown_at_s=before.grown_at_s)
        if decision.action == "shrink" and one.backend.acts:
            chosen = _least_busy(nodes, present, decision.before - decision.after)
            drain_nodes(connection, [node.name for node in chosen])
        number = write_decision(connection, one.kind, seen, decision, state)
        announce(connection)
    return _Decided(number, decision, seen.draining, silent)


def _beside_silent(decision: Decision, one: _Kind, silent: int) -> Decision:
    """Return a decision that says of silent nodes, and counts them where it adds some.

    They are not waited for, and there all the same: what keeps them silent would have each round
    add as many again, which nobody limits.
    """
    after = min(decision.after, max(decision.before, one.thresholds.max_nodes - silent))
    if decision.action == "grow" and after <= decision.before:
        return _held(decision, f"{_silence(one, silent)}; with them there are max_nodes")
    reasons = (*decision.reasons, _silence(one, silent))
    return replace(
        decision, after=after if decision.action == "grow" else decision.after, reasons=reasons
    )


def observe(
    connection: Connection, nodes: Sequence[Node], present: Collection[str] | None, one: _Kind
) -> Observation:
    """Return what the policy is to know of a kind.

    Args:
        connection: a transaction.
        nodes: of this kind, that are not gone.
        present: what its backend has; None: it cannot say.
        one: the kind.
    """
    ready = [n for n in nodes if n.state == "active" and n.is_heard and _is_there(n, present)]
    draining = [n for n in nodes if n.state == "draining" and _is_there(n, present)]
    known = {node.name for node in (*ready, *draining)}
    reports = [node.report for node in ready if node.report is not None]
    size = sum(node.units for node in ready) / len(ready) if ready else float(one.units)
    seen = Observation(
        at_s=now_s(connection),
        units_per_node=size,
        units=float(sum(max(n.units, n.report.workers if n.report else 0) for n in ready)),
        ready=len(ready),
        starting=0 if present is None else len(set(present) - known),
        draining=len(draining),
        node_hours=read_node_hours(connection, one.kind),
        utilisation=sum(r.cpu for r in reports) / len(reports) if reports else None,
    )
    if one.kind == "spark":
        own = [report.consumers for report in reports if report.consumers > 0]
        each = sum(own) / len(own) if len(own) == len(reports) and own else 0.0
        return replace(seen, **_spark(connection, one.thresholds, each))
    return replace(seen, **_ingestion(connection))


def _is_there(node: Node, present: Collection[str] | None) -> bool:
    return present is None or node.name in present


def _ingestion(connection: Connection) -> dict[str, Any]:
    """Return what the delay monitor saw."""
    looks = read_waits(connection, since_s=_WAITS_S)
    if not looks:
        return {"measured_s": _NEVER_S}
    last = looks[-1]
    return {
        "busy": last["busy"],
        "demand": last["demand"],
        "backlog_unit_s": last["backlog_s"],
        "waiting": last["waiting"] + last["unseen"],
        "p95_s": last["p95_s"],
        "oldest_s": last["oldest_s"],
        "measured_s": last["age_s"],
    }


def _spark(connection: Connection, thresholds: Thresholds, consumers_each: float) -> dict[str, Any]:
    """Return what the processing coordinator computed of its clusters, each one's newest minute.

    It says how many cores each needs, what waits included; they are taken as they are.

    Args:
        connection: a transaction.
        thresholds: in force.
        consumers_each: that a node serves; 0: not every node says so, and cores alone count.
    """
    rows = list(
        {one["cluster"]: one for one in read_capacities(connection, since_s=_WAITS_S)}.values()
    )
    if not rows:
        return {"measured_s": _NEVER_S}
    consumers = read_consumers(connection, since_s=_WAITS_S) if consumers_each else 0
    now, lag_s = now_s(connection), max(one["lag_s"] for one in rows)
    return {
        "busy": sum(one["demand_cores"] for one in rows),
        "demand": sum(one["needed_cores"] for one in rows) * thresholds.busy_target,
        "p95_s": lag_s,
        "oldest_s": lag_s,
        "consumer_nodes": ceil(consumers / consumers_each) if consumers else 0,
        "measured_s": min(now - one["at"].timestamp() for one in rows),
    }


def _least_busy(nodes: Sequence[Node], present: Collection[str] | None, count: int) -> list[Node]:
    """Return the nodes that are drained first: those with the least to do."""
    able = [n for n in nodes if n.state == "active" and n.is_heard and _is_there(n, present)]
    return sorted(able, key=lambda n: (n.report.running if n.report else 0, n.name))[:count]


def _forget_gone(
    tracker: TrackerStore, one: _Kind, present: Collection[str] | None, problems: list[str]
) -> None:
    """Write that nodes are gone which their backend does not have, and which say nothing."""
    if present is None:
        return
    with _alone(tracker) as connection:
        gone = [
            node.name
            for node in read_nodes(connection)
            if node.kind == one.kind and not node.is_heard and node.name not in present
        ]
        for name in gone:
            forget_node(connection, name)
    problems += [
        f"node {name} is gone, and nobody had drained it: what it ran is for its executor to run "
        "again, and `waybill logs list` shows the write-ahead logs that it left"
        for name in gone
    ]


def _end_drained(tracker: TrackerStore, one: _Kind, problems: list[str]) -> list[str]:
    """End the nodes that drained; say of those that do not get there."""
    with tracker.transaction() as connection:
        nodes = [n for n in read_nodes(connection) if n.kind == one.kind and n.state == "draining"]
    if not nodes:
        return []
    logs = read_logs(tracker)
    ended = []
    for node in nodes:
        if why := not_drained(node, logs):
            if (node.draining_s or 0.0) > one.thresholds.drain_limit_s:
                problems.append(
                    f"node {node.name} drains for {(node.draining_s or 0) / 60:.0f} min and is not "
                    f"ended: {why}"
                )
            continue
        try:
            one.backend.remove(node.name)
        except (InputError, RetryError) as error:
            problems.append(f"node {node.name} is drained and not ended: {error}")
            continue
        with tracker.transaction() as connection:
            forget_node(connection, node.name)
        ended.append(node.name)
    return ended


def not_drained(node: Node, logs: Sequence[LogLine]) -> str:
    """Return why a node that drains may not be ended yet; "": it may."""
    if not node.is_heard or node.report is None:
        return "it reports nothing, so nobody knows what runs on it"
    if not node.report.drains:
        return "it has not said yet that it takes no new task"
    if node.report.running:
        return f"{node.report.running} tasks run on it"
    if own := [log for log in logs if log.node == node.name]:
        events = sum(log.unsettled for log in own)
        return (
            f"{len(own)} write-ahead logs are open on it, with {events} unsettled events: "
            "`waybill logs list`"
        )
    return ""
