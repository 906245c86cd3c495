"""A batch of a campaign: many parked groups, replayed one after the other by one run.

Each group has its own replay, as if its run were its own, and its outcome and report are in its
row as soon as it has ended. Only what is opened is shared: groups of one pipeline have one producer
and one log, but those that Kafka refused at ingestion, which park again there, have another. A
campaign numbers its groups in that order.

Who dies when: the run's next try goes on with the groups that have no outcome. One that was amid
goes first, and is resumed from the log; one that had ended, and whose outcome was not written, is
known by its replay. A group whose error may pass ends the try, which its row says: so it goes last
in the next one, and holds nobody up. A run whose groups all have outcomes, and that is cleared,
tries those that failed, the one that was tried last at the end.

A group that was cancelled, held, taken by another run, or of which nothing is parked any more when
its turn comes, is left out with the reason. A cancelled campaign leaves out those that have not
begun; what was launched of a paused one goes on.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Row, case, func, null, select, update

from waybill.errors import InputError, WaybillError
from waybill.replay.campaigns import (
    CANCELLED,
    FAILED,
    HELD,
    REPLAYING,
    SETTLED,
    SUCCESS,
    batch_run_id_of,
)
from waybill.replay.request import BatchRequest, CampaignRequest, ReplayRequest
from waybill.storage import TrackerStore
from waybill.storage.tracker import campaign_groups as groups
from waybill.storage.tracker import campaigns, json_value, pipeline_holds, pipelines, replays
from waybill.storage.tracker import parked_partitions as partitions

if TYPE_CHECKING:
    from waybill.progress import Progress

_LOG = logging.getLogger(__name__)
_DEEPEST = 4
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
_LONGEST = 2_000
"""Characters of a text in a report."""
_NAMED = 10
"""Failed groups that a report names."""


@dataclass(frozen=True, slots=True)
class BatchGroup:
    """A parked group of a batch."""

    partition_id: int
    pipeline_id: str
    pipeline: str
    event_name: str
    stage: str
    error_type: str
    state: str
    outcome: str
    report: dict[str, Any] | None
    tried_at: datetime | None
    """When it ended, or ended a try after that."""

    @property
    def shares(self) -> tuple[str, bool]:
        """Return what groups have in common that share a producer."""
        return self.pipeline_id, self.stage == "ingestion"

    @property
    def names(self) -> dict[str, str]:
        """Return its four names."""
        return {name: getattr(self, name) for name in ("pipeline", *_OWN_NAMES)}


_OWN_NAMES = ("event_name", "stage", "error_type")


@dataclass(frozen=True, slots=True)
class Batch:
    """What a run has to do."""

    campaign_id: int
    request: CampaignRequest
    run_id: str
    groups: tuple[BatchGroup, ...]
    """All that were not left out, in their order."""

    @property
    def to_do(self) -> list[BatchGroup]:
        """Return the groups to replay: those without an outcome; if all have one, the failed."""
        without = [group for group in self.groups if group.state != "ended"]
        if without:
            return sorted(without, key=lambda group: group.report is not None)
        failed = [group for group in self.groups if group.outcome != SUCCESS]
        return sorted(failed, key=lambda group: group.tried_at or _LONG_AGO)

    def request_of(self, group: BatchGroup) -> ReplayRequest:
        """Return the replay of one group."""
        return ReplayRequest.of(self.request.of_group(group.names))


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What became of a batch's groups, over all tries of its run."""

    campaign_id: int
    groups: int
    """That were not left out."""
    succeeded: int
    failed: int
    sent: int
    """Events sent again, or tried by a dry run."""
    named: dict[str, str]
    """Some failed groups, and why."""

    @property
    def problem(self) -> str:
        """Return that groups failed, and which; empty: none did."""
        if not self.failed:
            return ""
        named = "; ".join(f"{name}: {why}" for name, why in self.named.items())
        return (
            f"{self.failed:,} of {self.groups:,} groups failed, all others were seen to: {named}. "
            f"See `waybill campaigns show {self.campaign_id}`; cleared, this run tries them again"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return asdict(self)


Send = Callable[[BatchGroup], Mapping[str, Any]]
"""Replays a group, or tries it; returns its report, with ``problem`` if it failed."""
OpenSend = Callable[[BatchGroup], AbstractContextManager[Send]]
"""Opens what a group needs, and all others that share it."""


def read_batch(tracker: TrackerStore, asked: BatchRequest, run_id: str) -> Batch:
    """Return the groups of a batch.

    Raises:
        InputError: there is no such campaign or batch, or it is not this run's.
    """
    with tracker.transaction() as connection:
        query = select(campaigns.c.id, campaigns.c.request)
        found = connection.execute(query.where(campaigns.c.run_id == asked.campaign)).first()
        if found is None:
            raise InputError(f"campaign: there is none of run {asked.campaign!r}")
        request = CampaignRequest.of(found.request)
        batch = asked.batch
        if batch is None or batch_run_id_of(str(asked.campaign), batch) != run_id:
            raise InputError(
                "campaign, batch: only the campaign itself starts its runs; to replay a group "
                "leave both empty"
            )
        before = batch * request.groups_per_run
        own = groups.c.campaign_id == found.id
        place = groups.c.number.between(before + 1, before + request.groups_per_run)
        rows = connection.execute(_select().where(own, place).order_by(groups.c.number))
        return Batch(found.id, request, run_id, tuple(BatchGroup(*row) for row in rows))


def _select() -> Any:
    name = func.coalesce(pipelines.c.name, partitions.c.pipeline_id)
    return select(
        groups.c.partition_id,
        partitions.c.pipeline_id,
        name,
        *(partitions.c[name] for name in _OWN_NAMES),
        groups.c.state,
        groups.c.outcome,
        groups.c.report,
        groups.c.ended_at,
    ).select_from(
        groups.join(partitions, partitions.c.id == groups.c.partition_id).outerjoin(
            pipelines, pipelines.c.id == partitions.c.pipeline_id
        )
    )


def replay_batch(tracker: TrackerStore, batch: Batch, opened: OpenSend, progress: Progress) -> None:
    """Replay the groups of a batch that are to be done; each outcome is written as it is known.

    Raises:
        WaybillError, Exception: what stopped a group, and may pass; run again, it goes on.
    """
    for _, section in groupby(batch.to_do, lambda group: group.shares):
        with ExitStack() as stack:
            send: Send | None = None
            for group in section:
                reason = _reason(tracker, batch, group)
                if reason is None:
                    try:
                        send = send or stack.enter_context(opened(group))
                        _replay_group(tracker, batch, group, send)
                    except InputError as error:  # of opening: the pipeline is not deployed any more
                        _write(tracker, batch, group, "ended", FAILED, {"error": str(error)})
                elif reason:
                    _write(tracker, batch, group, "left_out", reason, None)
                progress.add()


def _replay_group(tracker: TrackerStore, batch: Batch, group: BatchGroup, send: Send) -> None:
    try:
        report = send(group)
    except InputError as error:
        if _reason(tracker, batch, group) == CANCELLED:
            _write(tracker, batch, group, "left_out", CANCELLED, {"error": str(error)})
        else:
            _write(tracker, batch, group, "ended", FAILED, {"error": str(error)})
    except Exception as error:
        with suppress(WaybillError):  # the tracker may be what is away
            _note(tracker, batch, group, error)
        raise
    else:
        outcome = FAILED if report.get("problem") else SUCCESS
        _write(tracker, batch, group, "ended", outcome, dict(report))


def _reason(tracker: TrackerStore, batch: Batch, group: BatchGroup) -> str | None:
    """Return why a group is not replayed now: ``""``: it is left out already; ``None``: it is."""
    held = select(pipeline_holds.c.id).where(
        pipeline_holds.c.pipeline_id == partitions.c.pipeline_id,
        pipeline_holds.c.released_at.is_(None),
    )
    of_group = select(replays.c.run_id, replays.c.state).where(
        replays.c.partition_id == group.partition_id
    )
    query = (
        select(
            groups.c.state,
            campaigns.c.state.label("campaign"),
            partitions.c.parked,
            held.exists().label("is_held"),
        )
        .join_from(groups, campaigns, campaigns.c.id == groups.c.campaign_id)
        .join(partitions, partitions.c.id == groups.c.partition_id)
        .where(
            groups.c.campaign_id == batch.campaign_id,
            groups.c.partition_id == group.partition_id,
        )
    )
    with tracker.transaction() as connection:
        own = of_group.where(replays.c.run_id == batch.run_id)
        states = {str(row.state) for row in connection.execute(own)}
        other = of_group.where(replays.c.run_id != batch.run_id, replays.c.state == "running")
        is_taken = connection.execute(other).first() is not None
        row = connection.execute(query).one()
    if row.state == "left_out":
        return ""
    if "cancelled" in states:
        return CANCELLED
    if states:  # it began: it is resumed, whatever came since
        return None
    return _hindrance(row, is_taken=is_taken, is_dry_run=batch.request.dry_run)


def _hindrance(row: Row[Any], *, is_taken: bool, is_dry_run: bool) -> str | None:
    """Return why a group that has not begun cannot be replayed; ``None``: it can."""
    if row.campaign == CANCELLED:
        return CANCELLED
    if row.is_held and not is_dry_run:
        return HELD
    if is_taken and not is_dry_run:
        return REPLAYING
    return None if row.parked else SETTLED


def read_report(tracker: TrackerStore, asked: BatchRequest, run_id: str) -> BatchReport:
    """Return what became of a batch so far.

    Raises:
        InputError: as ``read_batch``.
    """
    batch = read_batch(tracker, asked, run_id)
    ended = [group for group in batch.groups if group.state == "ended"]
    failed = [group for group in ended if group.outcome != SUCCESS]
    reports = [group.report or {} for group in ended]
    return BatchReport(
        campaign_id=batch.campaign_id,
        groups=len(batch.groups),
        succeeded=len(ended) - len(failed),
        failed=len(failed),
        sent=sum(int(report.get("events", 0)) for report in reports),
        named={"/".join(group.names.values()): _why(group) for group in failed[:_NAMED]},
    )


def _why(group: BatchGroup) -> str:
    report = group.report or {}
    return str(report.get("error") or report.get("problem") or group.outcome)


# The rows


def _note(tracker: TrackerStore, batch: Batch, group: BatchGroup, error: Exception) -> None:
    """Write down why a group ended a try: it has no outcome, or failed before it was cleared."""
    name = type(error).__name__
    # What others say may quote values of events: it is in the task's log alone.
    words = f"{name}: {error}" if isinstance(error, WaybillError) else name
    _LOG.warning("group %s ends this try, and goes last in the next: %s", group.names, words)
    failed = _update(batch, group).where(groups.c.outcome != SUCCESS)
    with tracker.transaction() as connection:
        tried_at = case((groups.c.state == "ended", func.clock_timestamp()))
        connection.execute(failed.values(report=_json({"error": words}), ended_at=tried_at))


def _update(batch: Batch, group: BatchGroup) -> Any:
    return update(groups).where(
        groups.c.campaign_id == batch.campaign_id, groups.c.partition_id == group.partition_id
    )


def _json(report: Mapping[str, Any] | None) -> Any:
    return (
        null() if report is None else json_value(dict(report), deepest=_DEEPEST, longest=_LONGEST)
    )


def _write(
    tracker: TrackerStore,
    batch: Batch,
    group: BatchGroup,
    state: str,
    outcome: str,
    report: Mapping[str, Any] | None,
) -> None:
    """Write how a group ended, whatever it was before: the campaign's numbers follow.

    It may wait: its run was started, and the campaign's task has not written it down. It may have
    ended: its run was cleared, or ended by hand while it was at work. A success with its report
    stays: who comes to another end was frozen, while the run's next try replayed the group.
    """
    with tracker.transaction() as connection:
        held = select(campaigns.c.left_out).where(campaigns.c.id == batch.campaign_id)
        left_out = Counter(connection.execute(held.with_for_update()).scalar_one())
        own = (groups.c.campaign_id == batch.campaign_id) & (
            groups.c.partition_id == group.partition_id
        )
        query = select(groups.c.state, groups.c.outcome, groups.c.report.is_not(None)).where(own)
        *before, is_told = connection.execute(query).one()
        if is_told and before == ["ended", SUCCESS]:
            return
        now = func.clock_timestamp()
        connection.execute(
            _update(batch, group).values(
                state=state,
                outcome=outcome,
                report=_json(report),
                run_id=batch.run_id,
                launched_at=func.coalesce(groups.c.launched_at, now),
                ended_at=now,
                number=groups.c.number if state == "ended" else None,
            )
        )
        _count(connection, batch.campaign_id, left_out, tuple(before), (state, outcome))


def _count(
    connection: Connection,
    campaign_id: int,
    left_out: Counter[str],
    before: tuple[Any, ...],
    after: tuple[str, str],
) -> None:
    more = Counter(_numbers(*after))
    more.subtract(_numbers(*before))
    for (state, reason), number in ((before, -1), (after, 1)):
        if state == "left_out":
            left_out[reason] += number
    values = {name: campaigns.c[name] + number for name, number in more.items()}
    kept = {reason: number for reason, number in left_out.items() if number}
    connection.execute(
        update(campaigns).where(campaigns.c.id == campaign_id).values(**values, left_out=kept)
    )


def _numbers(state: str, outcome: str) -> dict[str, int]:
    """Return what a group adds to the numbers of its campaign."""
    return {
        "groups": state != "left_out",
        "launched": state in {"launched", "ended"},
        "ended": state == "ended",
        "failed": state == "ended" and outcome != SUCCESS,
    }


__all__ = [
    "Batch",
    "BatchGroup",
    "BatchReport",
    "read_batch",
    "read_report",
    "replay_batch",
]
