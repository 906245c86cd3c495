"""Events run through the stages as they were when their batch was processed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime

from sqlalchemy import func, select

from waybill.deployment import ActivePipelines
from waybill.loading import Run
from waybill.mappings import InForce
from waybill.pipelines import Pipeline, base_topic, team_of, topic_of
from waybill.processing import Chain, ChainResult, Chunk, CodeRunner, Failure, Plan, TopicOwner
from waybill.storage import TrackerStore
from waybill.storage.tracker import pipeline_versions

_CHUNK = 512
FindFailures = Callable[[Chunk, str, datetime, Collection[str]], list[Failure]]
"""Runs events through the stages as they were at a time, these pipelines held."""


def stages_at(tracker: TrackerStore, *, fetch: Callable[[str], bytes], code: CodeRunner) -> Run:
    """Return what runs events through the versions that were active at a time.

    Mappings are those in force now, as mappings only widen. What parks or is filtered is left out:
    it was so the first time.

    Args:
        tracker: with the versions.
        fetch: returns the payload of an event that is in the object store.
        code: runs user code.
    """

    def run(values: Sequence[bytes], topic: str, at: datetime) -> ChainResult:
        chain = _chain_at(tracker, topic, at, fetch, code)
        zeros = [0] * len(values)
        for _ in _run(chain, Chunk(values, zeros, range(len(values)), zeros)):
            pass
        return chain.result

    return run


def failures_at(
    tracker: TrackerStore, *, fetch: Callable[[str], bytes], code: CodeRunner
) -> FindFailures:
    """Return what runs events as ``stages_at`` does, and gives what does not pass, in log order."""

    def run(chunk: Chunk, topic: str, at: datetime, held: Collection[str]) -> list[Failure]:
        chain = _chain_at(tracker, topic, at, fetch, code, held)
        found = [failure for failures in _run(chain, chunk) for failure in failures]
        return sorted(found, key=lambda failure: (failure.partition, failure.offset))

    return run


def _chain_at(
    tracker: TrackerStore,
    topic: str,
    at: datetime,
    fetch: Callable[[str], bytes],
    code: CodeRunner,
    held: Collection[str] = (),
) -> Chain:
    known, base = _versions_at(tracker, at), base_topic(topic)
    pipelines = {ident: one for ident, one in known.items() if topic_of(one) == base}
    mappings: dict[str, dict[str, InForce]] = {}
    for deployed in ActivePipelines(tracker).read_mapped({base}).values():
        for (pipeline_id, name), mapping in deployed.mappings.items():
            mappings.setdefault(pipeline_id, {})[name] = mapping
    plans = {one.id: Plan(one, mappings.get(one.id)) for one in pipelines.values()}
    owner = TopicOwner(team_of(base), frozenset(known.keys() - pipelines.keys()))
    return Chain(plans, code=code, fetch=fetch, held=held, owner=owner)


def _run(chain: Chain, chunk: Chunk) -> Iterator[list[Failure]]:
    """Run messages through a chain; yield what failed of each some hundred."""
    for start in range(0, len(chunk.values), _CHUNK):
        chain.process(chunk.part(start, start + _CHUNK))
        yield list(chain.result.failures)
        chain.result.failures.clear()
        chain.result.mapped.clear()
        chain.result.transformed.clear()


def _versions_at(tracker: TrackerStore, at: datetime) -> dict[str, Pipeline]:
    table = pipeline_versions.c
    newest = (
        select(table.pipeline_id, func.max(table.number).label("number"))
        .where(table.deployed_at <= at)
        .group_by(table.pipeline_id)
        .subquery()
    )
    query = select(table.pipeline_id, table.declaration).join(
        newest,
        (newest.c.pipeline_id == table.pipeline_id) & (newest.c.number == table.number),
    )
    with tracker.transaction() as connection:
        rows = connection.execute(query).all()
    return {row[0]: Pipeline.from_json(row[1]) for row in rows}
