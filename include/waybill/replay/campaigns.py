"""Campaigns: many parked groups, frozen by one request, replayed by runs of the DAG ``replay``.

A campaign is a row; its groups are rows too, written by one ``INSERT … SELECT`` with the request:
what parks later is not in it. A group waits, is launched, and ends as its run does; one that cannot
be replayed is left out with the reason, when the campaign begins or when its turn comes. A run has
one group, or a *batch* of up to ``groups_per_run`` (``campaign_batches``), and writes down how each
of these ended. A task of the campaign's own DAG run calls ``advance_campaign`` again and again: it
settles the groups whose runs have ended, launches the next ones while fewer than ``max_unfinished``
runs are unfinished, and ends the campaign.

Invariants
  I1  A DAG run has one campaign: asked again, it is the same one.
  I2  The id of a run is made of the campaign's DAG run and the group, or batch. A run is started
      first and written down afterwards: whoever is killed in between starts it again, and Airflow
      says that it is there. So each group is launched once, and none is forgotten.
  I3  A group is in one campaign at most that is at work; dry runs change nothing, and do not count.
  I4  ``launched``, ``ended`` and ``failed`` of a campaign are the numbers of its groups, after
      every transaction. Whoever writes groups holds the campaign's row.

A cancelled campaign launches nothing more; runs that it has started go on to their ends. Its groups
that still wait are cancelled: their rows do not say so, as they can be very many.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from itertools import groupby, islice
from typing import Any, Literal, Protocol

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    ColumnElement,
    Connection,
    Row,
    Select,
    Subquery,
    Text,
    and_,
    case,
    cast,
    distinct,
    func,
    literal,
    literal_column,
    not_,
    null,
    or_,
    select,
    true,
    update,
)

from waybill.access import Decision, write_audit
from waybill.errors import InputError, NotFoundError
from waybill.events import DELIVERY_ERRORS, rfc3339
from waybill.parking import in_window, matches
from waybill.replay.campaign_results import CampaignResult, parked_again, read_group_results
from waybill.replay.request import MOST_GROUPS_PER_RUN, CampaignRequest
from waybill.storage import AdvisoryLock, TrackerStore
from waybill.storage.tracker import campaign_groups as groups
from waybill.storage.tracker import (
    campaigns,
    json_value,
    pipeline_holds,
    pipelines,
    replays,
    text_value,
)
from waybill.storage.tracker import parked_partitions as partitions

CampaignState = Literal["running", "paused", "cancelled", "done"]
GroupState = Literal["waiting", "launched", "ended", "left_out"]
NEVER_EVENTS, HELD, REPLAYING, OVER_LIMIT = "never_events", "held", "replaying", "over_limit"
CANCELLED, SETTLED = "cancelled", "settled"
"""Why a group is left out; one reason more is ``campaign <id>``: that one has it."""
SUCCESS, FAILED, GONE = "success", "failed", "gone"
UNFINISHED = ("queued", "running")
"""States of a DAG run that goes on."""
_AT_ONCE, _GROUPS_AT_ONCE = 20, 1000
"""Launches between two looks at whether the campaign was paused or cancelled; with batches at most
so many groups, or one batch."""
_MANY_RUNS = 5_000
"""From here on batches are proposed: a run takes ten seconds of CPU before it sends anything."""
_RATE_OVER = timedelta(minutes=15)
_DEEPEST = 8
_LONGEST_REASON = 2_000
_is_run_of_a_group = re.compile(r"replay__([0-9]{1,18})__[0-9a-f]{12}").fullmatch
_PIPELINE = func.coalesce(pipelines.c.name, partitions.c.pipeline_id)
_NAME_KEYS = ("pipeline", "event_name", "stage", "error_type")
_NAMES = (
    _PIPELINE.label("pipeline"),
    partitions.c.event_name,
    partitions.c.stage,
    partitions.c.error_type,
)
_WAITING, _LAUNCHED, _ENDED, _AT_WORK = (
    literal_column(f"campaign_groups.{words}", Boolean)
    for words in (
        "state = 'waiting'",
        "state = 'launched'",
        "state = 'ended'",
        "state IN ('waiting', 'launched')",
    )
)
"""In words, not as parameters: only so the planner sees that the partial indexes serve."""
_IS_HELD = and_(
    pipeline_holds.c.pipeline_id == partitions.c.pipeline_id,
    pipeline_holds.c.released_at.is_(None),
)
_IS_REPLAYED = and_(replays.c.partition_id == partitions.c.id, replays.c.state == "running")
_GROUPS = groups.join(partitions, partitions.c.id == groups.c.partition_id).outerjoin(
    pipelines, pipelines.c.id == partitions.c.pipeline_id
)


class ReplayRuns(Protocol):
    """Runs of the DAG ``replay``."""

    def start(self, run_id: str, conf: Mapping[str, Any]) -> None:
        """Start a run; one with this id that is there already is kept.

        Raises:
            RetryError: it is not known whether it was started.
        """

    def state(self, run_id: str) -> str | None:
        """Return the state of a run; ``None``: there is none with this id."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """One campaign, and how far it is."""

    id: int
    run_id: str
    """Of the DAG run that asked for it, and that works on it."""
    asked_by: str
    """Airflow's user; "x (for y)": who says that y asks."""
    asked_at: datetime
    request: dict[str, Any]
    """Fields of a ``CampaignRequest``."""
    teams: tuple[str, ...]
    """Whose groups are in it; ``""``: those of pipelines that nobody deployed."""
    max_unfinished: int
    state: CampaignState
    changed_by: str
    """Who paused, resumed or cancelled it last."""
    changed_at: datetime | None
    groups: int
    """That are to be launched, or were."""
    launched: int
    ended: int
    """Groups whose runs have ended."""
    failed: int
    """Of those, the ones whose run failed or was deleted."""
    left_out: dict[str, int]
    """{reason: groups}."""
    looked_at: datetime | None
    """When its task was at work on it last."""
    ended_at: datetime | None
    recent: int
    """Groups that have ended in the time over which the rate is taken."""
    recent_s: float

    @property
    def groups_per_run(self) -> int:
        """Return how many groups a run replays at most."""
        return int(self.request.get("groups_per_run", 1))

    @property
    def proposed_groups_per_run(self) -> int | None:
        """Return how many groups a run should have; ``None``: it is well, or over or cancelled."""
        is_over = self.ended_at is not None or self.state == "cancelled"
        if is_over or self.groups_per_run > 1 or self.groups <= _MANY_RUNS:
            return None
        return min(MOST_GROUPS_PER_RUN, math.ceil(self.groups / _MANY_RUNS))

    @property
    def waiting(self) -> int:
        """Return how many groups are still to be launched."""
        return 0 if self.state == "cancelled" else self.groups - self.launched

    @property
    def unfinished(self) -> int:
        """Return how many groups were launched and have not ended."""
        return self.launched - self.ended

    @property
    def rate_per_min(self) -> float:
        """Return how many groups end in a minute: over a quarter of an hour, or over all of it."""
        return self.recent * 60 / self.recent_s if self.recent_s > 0 else 0.0

    @property
    def eta_s(self) -> float | None:
        """Return in how many seconds it ends at this rate; ``None``: nobody can say."""
        rate = self.rate_per_min
        if self.state != "running" or self.ended_at is not None or not rate:
            return None
        return (self.waiting + self.unfinished) * 60 / rate

    def to_json(self) -> dict[str, Any]:
        """Return the campaign as JSON."""
        own = {
            name: rfc3339(value) if isinstance(value, datetime) else value
            for name, value in asdict(self).items()
            if name not in {"recent", "recent_s"}
        }
        return own | {
            "groups_per_run": self.groups_per_run,
            "proposed_groups_per_run": self.proposed_groups_per_run,
            "waiting": self.waiting,
            "unfinished": self.unfinished,
            "cancelled": self.groups - self.launched if self.state == "cancelled" else 0,
            "rate_per_min": round(self.rate_per_min, 2),
            "eta_s": None if self.eta_s is None else round(self.eta_s),
        }


@dataclass(frozen=True, slots=True)
class CampaignGroup:
    """One parked group of a campaign."""

    partition_id: int
    pipeline: str
    event_name: str
    stage: str
    error_type: str
    state: GroupState
    outcome: str
    """Why it is left out; or how its run ended: ``success``, ``failed``, ``gone``."""
    run_id: str
    launched_at: datetime | None
    ended_at: datetime | None
    report: dict[str, Any] | None
    """Of its replay or dry run, or ``{"error": …}``; ``None``: its run, which did not fail, has it
    in Airflow, or was killed before it could say why."""
    result: CampaignResult = field(default_factory=CampaignResult)
    """What became of its events so far."""

    @property
    def outcome_now(self) -> str:
        """Return ``outcome``; of a success, whether events parked again or would: then that."""
        return (self.result.word if self.outcome == SUCCESS else "") or self.outcome

    def to_json(self) -> dict[str, Any]:
        """Return the group as JSON."""
        own = {
            name: rfc3339(value) if isinstance(value, datetime) else value
            for name, value in asdict(self).items()
        }
        return own | {"outcome": self.outcome_now, "result": self.result.to_json()}


@dataclass(frozen=True, slots=True)
class OpenCampaign:
    """What tells whether a campaign's task has something to do."""

    state: CampaignState
    max_unfinished: int
    waiting: bool
    run_ids: tuple[str, ...]
    """Of runs that had not ended when the task looked last."""

    def is_due(self, unfinished: int, *, late: bool) -> bool:
        """Tell whether its task is to look.

        Args:
            unfinished: how many of ``run_ids`` go on.
            late: it looked last so long ago that it may look for a single run that has ended.

        A run of a batch leaves ``run_ids`` with its last group, perhaps before it has ended.
        """
        may_launch = self.waiting and self.state == "running"
        if not self.run_ids:
            return may_launch or not self.waiting or self.state == "cancelled"
        some_ended = unfinished < len(self.run_ids)
        if unfinished <= self.max_unfinished // 2:
            return may_launch or some_ended
        has_room = may_launch and len(self.run_ids) < self.max_unfinished
        return late and (some_ended or has_room)


@dataclass(frozen=True, slots=True)
class CampaignForecast:
    """What a campaign would have if it began now."""

    groups: int
    events: int
    """That are parked in these groups; a window or a fingerprint may take fewer."""
    left_out: dict[str, int]
    """{reason: groups}."""
    pipelines: list[str]
    """Ids of those whose groups it would have."""


# Freezing


def foresee_campaign(
    tracker: TrackerStore, request: CampaignRequest, pipeline_id: str | None
) -> CampaignForecast:
    """Return what a campaign would have, and write nothing.

    Args:
        tracker: the books.
        request: which groups; its limit is not looked at.
        pipeline_id: of ``request.pipeline``.

    Cost: one statement over the groups that match.
    """
    own = _found(request, pipeline_id).subquery()
    query = (
        select(own.c.reason, own.c.pipeline_id, func.count(), func.sum(partitions.c.parked))
        .join_from(own, partitions, partitions.c.id == own.c.id)
        .group_by(own.c.reason, own.c.pipeline_id)
        .order_by(own.c.pipeline_id)
    )
    number = events = 0
    left_out: Counter[str] = Counter()
    found: list[str] = []
    with tracker.transaction(long_statements=True) as connection:
        for reason, pipeline, count, parked in connection.execute(query):
            if reason:
                left_out[str(reason)] += int(count)
                continue
            number += int(count)
            events += int(parked)
            found.append(str(pipeline))
    return CampaignForecast(number, events, dict(left_out), found)


def foresee_groups(
    tracker: TrackerStore, request: CampaignRequest, pipeline_id: str | None
) -> list[int]:
    """Return the ids of the groups that a campaign would have if it began now, in its order."""
    own = _found(request, pipeline_id).subquery()
    query = select(own.c.id).where(own.c.reason == "").order_by(*_order(request, own))
    query = query.limit(request.limit)
    with tracker.transaction(long_statements=True) as connection:
        return [int(row[0]) for row in connection.execute(query)]


def freeze_campaign(
    tracker: TrackerStore,
    request: CampaignRequest,
    pipeline_id: str | None,
    *,
    who: str,
    run_id: str,
) -> Campaign:
    """Write down which parked groups a campaign has; the same DAG run has the same one.

    Args:
        tracker: the books.
        request: which groups, and how they are replayed.
        pipeline_id: of ``request.pipeline``.
        who: asked, as Airflow knows them. ``request.who`` may name somebody else, unverified: it
            is written beside this one, never in its place.
        run_id: of the DAG run that works on it.

    Cost: one statement; 2.4 s for 500,000 groups, none of them in this process.
    """
    asked = request.model_dump(mode="json", exclude_none=True, exclude={"who"})
    claimed = text_value((request.who or "").replace("\x00", "")).strip()
    beside = {"claimed_who": claimed} if claimed not in {"", who} else {}
    with tracker.transaction(long_statements=True) as connection:
        AdvisoryLock.CAMPAIGN.take(connection)
        known = connection.execute(_select(campaigns.c.run_id == run_id)).first()
        if known is not None:
            return _to_campaign(known)
        made = campaigns.insert().values(
            run_id=run_id,
            asked_by=f"{who} (for {claimed})" if beside else who,
            request=json_value(asked, deepest=_DEEPEST),
            max_unfinished=request.max_unfinished,
        )
        campaign_id = int(connection.execute(made.returning(campaigns.c.id)).scalar_one())
        found = _numbered(request, pipeline_id, campaign_id)
        columns = ("campaign_id", "partition_id", "number", "state", "outcome")
        connection.execute(groups.insert().from_select(columns, found))
        _count(connection, campaign_id, pipeline_id)
        made_now = _read(connection, campaign_id)
        write_audit(
            connection,
            who=who,
            action="begin_campaign",
            target=_target(campaign_id),
            run_id=run_id,
            teams=made_now.teams,
            request=asked,
            groups=made_now.groups,
            left_out=made_now.left_out,
            why=request.why or "",
            **beside,
        )
        return made_now


def _target(campaign_id: int) -> str:
    return f"campaign {campaign_id}"


def _numbered(request: CampaignRequest, pipeline_id: str | None, campaign_id: int) -> Select[Any]:
    """Return the query for the rows of a campaign: what is launched is numbered."""
    own = _found(request, pipeline_id).subquery()
    order = _order(request, own)
    place = func.row_number(type_=BigInteger).over(partition_by=own.c.reason, order_by=order)
    placed = select(own.c.id, own.c.reason, place.label("place")).subquery()
    too_many = true() if request.limit is None else placed.c.place <= request.limit
    outcome = case(
        (placed.c.reason != "", placed.c.reason), (not_(too_many), OVER_LIMIT), else_=literal("")
    )
    is_in = and_(placed.c.reason == "", too_many)
    return select(
        literal(campaign_id, BigInteger),
        placed.c.id,
        case((is_in, placed.c.place)),
        case((is_in, "waiting"), else_="left_out"),
        outcome,
    ).order_by(placed.c.id)


def _order(request: CampaignRequest, own: Subquery) -> list[ColumnElement[Any]]:
    """Return how the groups of a campaign are numbered, from ``_found``.

    By id; with batches first by what can share a producer: see ``campaign_batches``.
    """
    shared = [own.c.pipeline_id, own.c.is_ingestion] if request.groups_per_run > 1 else []
    return [*shared, own.c.id]


def _found(request: CampaignRequest, pipeline_id: str | None) -> Select[Any]:
    """Return the query for what matches, with the reason to leave it out; empty: there is none."""
    wanted = request.partitions(pipeline_id, held=True)
    conditions = [*matches(wanted), *in_window(wanted)]
    own = [
        partitions.c.id,
        partitions.c.pipeline_id,
        (partitions.c.stage == "ingestion").label("is_ingestion"),
    ]
    never = and_(
        partitions.c.stage == "ingestion", partitions.c.error_type.not_in(sorted(DELIVERY_ERRORS))
    )
    if request.dry_run:
        reason = case((never, NEVER_EVENTS), else_=literal(""))
        return select(*own, reason.label("reason")).where(*conditions, partitions.c.parked > 0)
    other = (
        select(groups.c.partition_id, func.min(groups.c.campaign_id).label("campaign_id"))
        .join_from(groups, campaigns, campaigns.c.id == groups.c.campaign_id)
        .where(
            _AT_WORK,
            campaigns.c.state.in_(["running", "paused"]),
            campaigns.c.request["dry_run"].as_boolean().is_not(True),
        )
        .group_by(groups.c.partition_id)
        .subquery()
    )
    source = (
        partitions.outerjoin(pipeline_holds, _IS_HELD)
        .outerjoin(replays, _IS_REPLAYED)
        .outerjoin(other, other.c.partition_id == partitions.c.id)
    )
    reason = case(
        (never, NEVER_EVENTS),
        (pipeline_holds.c.id.is_not(None), HELD),
        (other.c.campaign_id.is_not(None), func.concat("campaign ", other.c.campaign_id)),
        (or_(replays.c.id.is_not(None), partitions.c.parked == 0), REPLAYING),
        else_=literal(""),
    )
    return select(*own, reason.label("reason")).select_from(source).where(*conditions)


def _count(connection: Connection, campaign_id: int, pipeline_id: str | None) -> None:
    """Write down how many groups it has, and whose; one without any is its pipeline's team's."""
    own = groups.c.campaign_id == campaign_id
    each = select(groups.c.outcome, func.count()).where(own).group_by(groups.c.outcome)
    left_out = {str(reason): int(number) for reason, number in connection.execute(each)}
    team = func.coalesce(pipelines.c.team, "")
    query = select(team).distinct().select_from(_GROUPS).where(own)
    asked = select(pipelines.c.team).where(pipelines.c.id == pipeline_id)
    teams = {*connection.execute(query).scalars(), *connection.execute(asked).scalars()} or {""}
    connection.execute(
        update(campaigns)
        .where(campaigns.c.id == campaign_id)
        .values(groups=left_out.pop("", 0), left_out=left_out, teams=sorted(teams))
    )


# Reading


def read_campaign(tracker: TrackerStore, campaign_id: int) -> Campaign:
    """Return one campaign.

    Raises:
        InputError: there is none with this id.
    """
    with tracker.transaction() as connection:
        return _read(connection, campaign_id)


def campaign_of_run(tracker: TrackerStore, run_id: str) -> Campaign | None:
    """Return the campaign that a DAG run works on; None: it has not begun it."""
    with tracker.transaction() as connection:
        row = connection.execute(_select(campaigns.c.run_id == run_id)).first()
    return None if row is None else _to_campaign(row)


def read_campaigns(tracker: TrackerStore, *, limit: int) -> list[Campaign]:
    """Return the newest campaigns, the newest first."""
    query = _select().order_by(campaigns.c.id.desc()).limit(limit)
    with tracker.transaction() as connection:
        return [_to_campaign(row) for row in connection.execute(query)]


def teams_of_campaign(tracker: TrackerStore, run_id: str) -> tuple[str, ...]:
    """Return whose groups the campaign of a DAG run has; without one: nobody's."""
    query = select(campaigns.c.teams).where(campaigns.c.run_id == run_id)
    with tracker.transaction() as connection:
        return tuple(connection.execute(query).scalar() or ())


def read_campaign_groups(
    tracker: TrackerStore,
    campaign_id: int,
    *,
    state: str,
    limit: int,
    after: int = 0,
) -> list[CampaignGroup]:
    """Return groups of a campaign by id, those after ``after``.

    Args:
        tracker: the books.
        campaign_id: whose.
        state: a ``GroupState``; or ``failed``: ended, but not well; or ``parked_again``: some of
            its events did, or would by a dry run.
        limit: most.
        after: id of a parked group.
    """
    conditions: list[ColumnElement[bool]] = [groups.c.state == state]
    if state == "failed":
        conditions = [_ENDED, groups.c.outcome != SUCCESS]
    elif state == "parked_again":
        conditions = [_ENDED, groups.c.outcome == SUCCESS, parked_again()]
    fields = {column.name: column for column in (groups.c.partition_id, *_NAMES)} | {
        name: groups.c[name]
        for name in ("state", "outcome", "run_id", "launched_at", "ended_at", "report")
    }
    query = (
        select(*(fields[name] for name in CampaignGroup.__slots__ if name in fields))
        .select_from(_GROUPS)
        .where(groups.c.campaign_id == campaign_id, groups.c.partition_id > after, *conditions)
        .order_by(groups.c.partition_id)
        .limit(limit)
    )
    with tracker.transaction() as connection:
        found = [CampaignGroup(*row) for row in connection.execute(query)]
        results = read_group_results(connection, campaign_id, [one.partition_id for one in found])
    return [replace(one, result=results[one.partition_id]) for one in found]


def read_pipelines_of(tracker: TrackerStore, campaign_id: int) -> list[str]:
    """Return the ids of the pipelines of which a campaign has replayed something."""
    query = (
        select(partitions.c.pipeline_id)
        .distinct()
        .join_from(groups, partitions, partitions.c.id == groups.c.partition_id)
        .join(replays, replays.c.partition_id == groups.c.partition_id)
        .where(
            groups.c.campaign_id == campaign_id,
            groups.c.run_id != "",
            groups.c.run_id == replays.c.run_id,
        )
    )
    with tracker.transaction() as connection:
        return sorted(connection.execute(query).scalars())


def read_open_campaigns(connection: Connection) -> dict[int, OpenCampaign]:
    """Return {id: campaign} of those that have not ended."""
    launched = (
        select(func.array_agg(distinct(groups.c.run_id)))
        .where(groups.c.campaign_id == campaigns.c.id, _LAUNCHED)
        .scalar_subquery()
    )
    query = select(
        campaigns.c.id,
        campaigns.c.state,
        campaigns.c.max_unfinished,
        campaigns.c.groups > campaigns.c.launched,
        func.coalesce(launched, cast([], ARRAY(Text))),
    ).where(campaigns.c.ended_at.is_(None))
    return {
        int(row[0]): OpenCampaign(row[1], row[2], row[3], tuple(row[4]))
        for row in connection.execute(query)
    }


def _select(*conditions: ColumnElement[bool]) -> Select[Any]:
    """Return a query for campaigns, with what their rate is made of."""
    now = func.coalesce(campaigns.c.ended_at, func.clock_timestamp())
    since = case(
        (campaigns.c.ended_at.is_not(None), campaigns.c.asked_at),
        else_=func.greatest(campaigns.c.asked_at, func.clock_timestamp() - _RATE_OVER),
    )
    ended_since = (
        select(func.count())
        .where(
            groups.c.campaign_id == campaigns.c.id,
            _ENDED,
            groups.c.ended_at >= func.greatest(campaigns.c.asked_at, now - _RATE_OVER),
        )
        .scalar_subquery()
    )
    recent = case((campaigns.c.ended_at.is_not(None), campaigns.c.ended), else_=ended_since)
    own = [campaigns.c[name] for name in tuple(Campaign.__slots__)[:-2]]
    seconds = func.extract("epoch", now - since)
    return select(*own, recent, seconds).where(*conditions)


def _to_campaign(row: Row[Any]) -> Campaign:
    values = dict(zip(Campaign.__slots__, row, strict=True))
    return Campaign(
        **values | {"teams": tuple(values["teams"]), "recent_s": float(values["recent_s"])}
    )


def _read(connection: Connection, campaign_id: int, *, lock: bool = False) -> Campaign:
    if lock:
        held = select(campaigns.c.id).where(campaigns.c.id == campaign_id).with_for_update()
        connection.execute(held)
    row = connection.execute(_select(campaigns.c.id == campaign_id)).first()
    if row is None:
        raise NotFoundError(f"there is no campaign {campaign_id}; see `waybill campaigns list`")
    return _to_campaign(row)


# Deciding


def pause_campaign(tracker: TrackerStore, campaign_id: int, decision: Decision) -> Campaign:
    """Launch nothing more until it is resumed; again changes nothing.

    Raises:
        InputError: there is none with this id, or it is over.
    """
    return _change(tracker, campaign_id, "paused", decision)


def resume_campaign(tracker: TrackerStore, campaign_id: int, decision: Decision) -> Campaign:
    """Go on launching; again changes nothing.

    Raises:
        InputError: there is none with this id, or it is over.
    """
    return _change(tracker, campaign_id, "running", decision)


def cancel_campaign(tracker: TrackerStore, campaign_id: int, decision: Decision) -> Campaign:
    """Launch nothing more, for good; runs that were started go on. Again changes nothing.

    Its task ends it, once it has seen to these.

    Raises:
        InputError: there is none with this id, or it is done.
    """
    return _change(tracker, campaign_id, "cancelled", decision)


_ACTIONS = {
    "paused": "pause_campaign",
    "running": "resume_campaign",
    "cancelled": "cancel_campaign",
}


def _change(
    tracker: TrackerStore, campaign_id: int, wanted: CampaignState, decision: Decision
) -> Campaign:
    with tracker.transaction() as connection:
        found = _read(connection, campaign_id, lock=True)
        if found.state == wanted:
            return found
        if found.state in {"cancelled", "done"}:
            by = f" by {found.changed_by}" if found.state == "cancelled" else ""
            raise InputError(
                f"campaign {campaign_id} is {found.state}{by}; what is still parked needs another: "
                "`waybill campaigns start`"
            )
        connection.execute(
            update(campaigns)
            .where(campaigns.c.id == campaign_id)
            .values(state=wanted, changed_by=decision.who, changed_at=func.clock_timestamp())
        )
        write_audit(
            connection,
            who=decision.who,
            action=_ACTIONS[wanted],
            target=_target(campaign_id),
            teams=found.teams,
            why=decision.why,
            **decision.beside_who(),
        )
        return _read(connection, campaign_id)


# Working on it


def advance_campaign(tracker: TrackerStore, campaign_id: int, runs: ReplayRuns) -> Campaign:
    """Settle what has ended, launch what there is room for, and end the campaign if it is over.

    To be called again when ``OpenCampaign.is_due`` says so. Two at once do no harm. Cost: a call
    of Airflow for each run that is unfinished, and for each that is launched.

    Raises:
        RetryError: Airflow or the tracker does not answer; what was launched until then is written.
    """
    _settle(tracker, campaign_id, runs)
    while waiting := _next(tracker, campaign_id, runs):
        _launch(tracker, campaign_id, waiting, runs)
    return _look(tracker, campaign_id)


def run_id_of(campaign_run_id: str, partition_id: int) -> str:
    """Return the id of the run that replays a group: letters, digits, underscores.

    It is not made of the campaign's own id: a tracker that is restored gives ids again.
    """
    salt = hashlib.sha256(campaign_run_id.encode()).hexdigest()
    return f"replay__{partition_id}__{salt[:12]}"


def note_failure(tracker: TrackerStore, run_id: str, reason: str) -> bool:
    """Write why a campaign's run of one group failed; a success of a later try takes it away.

    The run may have failed before its campaign has written down that it was started.

    Args:
        tracker: the books.
        run_id: of any run of the DAG `replay`.
        reason: of the error; 2,000 characters of it are kept.

    Returns:
        False: it is no such run.
    """
    match = _is_run_of_a_group(run_id)
    if match is None:
        return False
    partition_id = int(match[1])
    going_on = (
        select(campaigns.c.id, campaigns.c.run_id)
        .join_from(campaigns, groups, groups.c.campaign_id == campaigns.c.id)
        .where(
            groups.c.partition_id == partition_id,
            or_(
                campaigns.c.ended_at.is_(None),
                campaigns.c.ended_at > func.now() - timedelta(days=1),
            ),
        )
    )
    report = json_value({"error": reason[:_LONGEST_REASON]}, deepest=_DEEPEST)
    with tracker.transaction() as connection:
        found = connection.execute(going_on).all()
        own = [row.id for row in found if run_id_of(row.run_id, partition_id) == run_id]
        statement = (
            update(groups)
            .where(
                groups.c.campaign_id.in_(own),
                groups.c.partition_id == partition_id,
                groups.c.state != "left_out",
                groups.c.outcome != SUCCESS,
            )
            .values(report=report)
        )
        return bool(connection.execute(statement).rowcount)


def batch_run_id_of(campaign_run_id: str, batch: int) -> str:
    """Return the id of the run that replays a batch, counted from 0."""
    salt = hashlib.sha256(campaign_run_id.encode()).hexdigest()
    return f"replay__batch_{batch}__{salt[:12]}"


def _settle(tracker: TrackerStore, campaign_id: int, runs: ReplayRuns) -> None:
    own = groups.c.campaign_id == campaign_id
    query = select(groups.c.run_id).distinct().where(own, _LAUNCHED)
    with tracker.transaction() as connection:
        launched = list(connection.execute(query).scalars())
    states = {run_id: runs.state(run_id) for run_id in launched}
    ended = {run_id: state or GONE for run_id, state in states.items() if state not in UNFINISHED}
    if ended:
        _write_ended(tracker, campaign_id, ended)


def _write_ended(tracker: TrackerStore, campaign_id: int, ended: Mapping[str, str]) -> None:
    given = select(
        func.unnest(cast(list(ended), ARRAY(Text))).label("run_id"),
        func.unnest(cast(list(ended.values()), ARRAY(Text))).label("outcome"),
    ).subquery()
    settled = (
        update(groups)
        .where(
            groups.c.campaign_id == campaign_id,
            _LAUNCHED,
            groups.c.run_id == given.c.run_id,
        )
        .values(
            state="ended",
            outcome=given.c.outcome,
            ended_at=func.clock_timestamp(),
            report=case(
                (and_(given.c.outcome == SUCCESS, groups.c.report.op("?")("error")), null()),
                else_=groups.c.report,
            ),
        )
        .returning(groups.c.outcome)
    )
    with tracker.transaction() as connection:
        _read(connection, campaign_id, lock=True)
        outcomes = list(connection.execute(settled).scalars())
        failed = sum(outcome != SUCCESS for outcome in outcomes)
        _add(connection, campaign_id, ended=len(outcomes), failed=failed)


def _add(connection: Connection, campaign_id: int, **numbers: int) -> None:
    more = {name: campaigns.c[name] + number for name, number in numbers.items()}
    connection.execute(update(campaigns).where(campaigns.c.id == campaign_id).values(more))


@dataclass(frozen=True, slots=True)
class _Launch:
    partition_ids: tuple[int, ...]
    run_id: str
    conf: dict[str, Any]


def _next(tracker: TrackerStore, campaign_id: int, runs: ReplayRuns) -> list[_Launch]:
    """Return what to launch now: nothing while it is paused, or its runs are enough.

    What was held, or taken by another run, since the campaign began is left out now; but for what
    a task that was killed has started, and not written down: that is launched, also of a cancelled
    campaign. It can only be among the first that wait.
    """
    while True:
        found, batches = _waiting(tracker, campaign_id)
        request = CampaignRequest.of(found.request)
        launches: list[_Launch] = []
        left_out: dict[int, str] = {}
        is_cancelled = found.state == "cancelled"
        has_started = False
        for rows in batches:
            launch = _launch_of(found, request, rows)
            reasons = {} if request.dry_run else _reasons(rows, launch)
            fit = [row for row in rows if row["partition_id"] not in reasons]
            if (is_cancelled or reasons) and runs.state(launch.run_id) is not None:
                launches.append(launch)
                has_started = True
            elif not is_cancelled:
                launches += [_launch_of(found, request, fit)] if fit else []
                left_out |= reasons
        if is_cancelled or has_started or not left_out:
            return launches
        _leave_out(tracker, campaign_id, left_out)


_Rows = Sequence[Mapping[Any, Any]]
"""Of groups that go into one run."""


def _launch_of(found: Campaign, request: CampaignRequest, rows: _Rows) -> _Launch:
    first = rows[0]
    numbers = tuple(int(row["partition_id"]) for row in rows)
    conf = request.of_group({name: str(first[name]) for name in _NAME_KEYS})
    if request.groups_per_run == 1 and not request.dry_run:
        return _Launch(numbers, run_id_of(found.run_id, numbers[0]), conf)
    batch = (int(first["number"]) - 1) // request.groups_per_run
    own = {"campaign": found.run_id, "batch": batch}
    return _Launch(numbers, batch_run_id_of(found.run_id, batch), conf | own)


def _reasons(rows: _Rows, launch: _Launch) -> dict[int, str]:
    """Return {parked group: why it cannot be replayed}."""
    found = {int(row["partition_id"]): _reason(row, launch) for row in rows}
    return {number: reason for number, reason in found.items() if reason}


def _reason(row: Mapping[Any, Any], launch: _Launch) -> str:
    """Return why a group whose turn has come cannot be replayed; empty: it can."""
    if row["is_held"]:
        return HELD
    return "" if row["taken_by"] in {None, launch.run_id} else REPLAYING


def _waiting(tracker: TrackerStore, campaign_id: int) -> tuple[Campaign, list[_Rows]]:
    """Return a campaign, and the groups of it that come next: those of a run together."""
    waiting = (
        select(
            groups.c.partition_id,
            groups.c.number,
            *_NAMES,
            pipeline_holds.c.id.is_not(None).label("is_held"),
            replays.c.run_id.label("taken_by"),
        )
        .select_from(_GROUPS.outerjoin(pipeline_holds, _IS_HELD).outerjoin(replays, _IS_REPLAYED))
        .where(groups.c.campaign_id == campaign_id, _WAITING)
        .order_by(groups.c.number)
    )
    unfinished = select(func.count(distinct(groups.c.run_id))).where(
        groups.c.campaign_id == campaign_id, _LAUNCHED
    )
    with tracker.transaction() as connection:
        found = _read(connection, campaign_id)
        size = found.groups_per_run
        room = found.max_unfinished - connection.execute(unfinished).scalar_one()
        at_once = max(1, min(_AT_ONCE, _GROUPS_AT_ONCE // size))
        most = {"running": max(0, min(room, at_once)), "cancelled": at_once}.get(found.state, 0)
        rows = connection.execute(waiting.limit(most * size)).mappings()
        # Where groups of it were left out a batch has fewer rows, so these may be of more batches.
        batches = groupby(rows, lambda row: (row["number"] - 1) // size)
        return found, [list(batch) for _, batch in islice(batches, most)]


def _leave_out(tracker: TrackerStore, campaign_id: int, reasons: Mapping[int, str]) -> None:
    """Leave groups out that were to be launched; with one that is held, all that are."""
    held = select(partitions.c.id).join_from(partitions, pipeline_holds, _IS_HELD)
    taken = [number for number, reason in reasons.items() if reason == REPLAYING]
    which: dict[str, ColumnElement[bool]] = {REPLAYING: groups.c.partition_id.in_(taken)}
    if HELD in reasons.values():
        which[HELD] = groups.c.partition_id.in_(held)
    with tracker.transaction(long_statements=True) as connection:
        left_out = dict(_read(connection, campaign_id, lock=True).left_out)
        gone = 0
        for reason, condition in which.items():
            left = (
                update(groups)
                .where(groups.c.campaign_id == campaign_id, _WAITING, condition)
                .values(state="left_out", outcome=reason, number=None)
            )
            if number := connection.execute(left).rowcount:
                left_out[reason] = left_out.get(reason, 0) + number
                gone += number
        changed = {"groups": campaigns.c.groups - gone, "left_out": left_out}
        connection.execute(update(campaigns).where(campaigns.c.id == campaign_id).values(changed))


def _launch(
    tracker: TrackerStore, campaign_id: int, waiting: Sequence[_Launch], runs: ReplayRuns
) -> None:
    started: dict[int, str] = {}
    try:
        for launch in waiting:
            runs.start(launch.run_id, launch.conf)
            started |= dict.fromkeys(launch.partition_ids, launch.run_id)
    finally:
        if started:
            _write_launched(tracker, campaign_id, started)


def _write_launched(tracker: TrackerStore, campaign_id: int, started: Mapping[int, str]) -> None:
    """Write down which runs were started, also of a campaign that was cancelled meanwhile."""
    given = select(
        func.unnest(cast(list(started), ARRAY(groups.c.partition_id.type))).label("id"),
        func.unnest(cast(list(started.values()), ARRAY(Text))).label("run_id"),
    ).subquery()
    launched = (
        update(groups)
        .where(
            groups.c.campaign_id == campaign_id,
            groups.c.partition_id == given.c.id,
            _WAITING,
        )
        .values(state="launched", run_id=given.c.run_id, launched_at=func.clock_timestamp())
    )
    with tracker.transaction() as connection:
        _read(connection, campaign_id, lock=True)
        _add(connection, campaign_id, launched=connection.execute(launched).rowcount)


def _look(tracker: TrackerStore, campaign_id: int) -> Campaign:
    """Write down that its task was here, and end the campaign if there is nothing left to do."""
    with tracker.transaction() as connection:
        found = _read(connection, campaign_id, lock=True)
        now = func.clock_timestamp()
        values: dict[str, Any] = {"looked_at": now}
        if found.ended_at is None and not (found.waiting or found.unfinished):
            values |= {"ended_at": now}
            values |= {} if found.state == "cancelled" else {"state": "done"}
        connection.execute(update(campaigns).where(campaigns.c.id == campaign_id).values(values))
        return _read(connection, campaign_id)


def left_out_words(left_out: Mapping[str, int]) -> list[str]:
    """Return why groups are left out, a sentence a reason, the most frequent first."""
    ordered: Collection[tuple[str, int]] = sorted(
        left_out.items(), key=lambda item: (-item[1], item[0])
    )
    return [
        f"{number:,} {'group' if number == 1 else 'groups'} left out: {reason_words(reason)}"
        for reason, number in ordered
    ]


def reason_words(reason: str) -> str:
    """Return why a group is left out, and what to do."""
    known = {
        NEVER_EVENTS: (
            "what the source gave could not be read, so there is no event to replay; correct the "
            "source, then discard it"
        ),
        HELD: "their pipelines are held; run again after the release (`waybill pipelines holds`)",
        REPLAYING: "they are being replayed; run again when that has ended",
        OVER_LIMIT: "they are over the limit; run again for them",
        CANCELLED: "they were cancelled; what was not sent is still parked",
        SETTLED: "nothing of them is parked any more: replayed or discarded meanwhile",
    }
    in_another = f"they are in {reason}; run again when it has ended, or cancel it"
    return known.get(reason, in_another)


def proposal_words(campaign: Campaign) -> str:
    """Return that batches would be cheaper, and how to have them; empty: they would not."""
    proposed = campaign.proposed_groups_per_run
    if proposed is None:
        return ""
    return (
        f"{campaign.groups:,} groups with a run each are {campaign.groups:,} starts of a task; "
        f"groups_per_run={proposed} is proposed, which makes them "
        f"{math.ceil(campaign.groups / proposed):,}: cancel this campaign, and begin one with it"
    )


__all__ = [
    "Campaign",
    "CampaignGroup",
    "OpenCampaign",
    "ReplayRuns",
    "advance_campaign",
    "batch_run_id_of",
    "cancel_campaign",
    "freeze_campaign",
    "left_out_words",
    "pause_campaign",
    "proposal_words",
    "read_campaign",
    "read_campaign_groups",
    "read_campaigns",
    "read_open_campaigns",
    "reason_words",
    "resume_campaign",
    "run_id_of",
    "teams_of_campaign",
]
