"""What delivers the events of a parked group: its remedies, each with the commands it takes.

The mildest comes first; one that was just tried with another version, and failed, comes last. A
command that discards is joined by ``&&`` to the reading that it relies on, so that it runs only
once all was read. That reading is told from what parked before by the tracker's clock: where it
steps back, copies that park again may be discarded too.

Which remedies apply depends on the version that is deployed: was it deployed before the events
parked, something has to be changed; was it deployed since, it may be the cure already.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, timedelta
from shlex import quote

from waybill.deployment import ActiveSource, active_sources
from waybill.events import CODE_ERRORS
from waybill.parking import ParkedGroup, ParkedGroupFilter, Parking
from waybill.replay.messages import MAPPING, TRANSFORMATION
from waybill.storage import TrackerStore

_NO_SOURCE = "what is parked does not hold what it could be run on again"
_IF_STILL_THERE = (
    "Only if the source still has these rows: the last command discards what may be the only copy "
    "of the others"
)
_DELETES_ARE_GONE = (
    "The source brings deletes, and what is deleted there is not read again, so no command here "
    "discards these events: once the rows are delivered, see with `waybill parked sample` whether "
    "deletes are among them; a replay with another mapping delivers those, and nothing else does"
)
_DISCARD_ASKS = (
    "`waybill parked discard` asks before it discards; where nobody can answer, it takes `--yes`"
)
_RUNS_NO_MORE = (
    "The transformation does not run again on these events, neither here nor in a replay: they "
    "parked at mapping, without what they were made from, so no change of it has an effect on them "
    "(`keep_source: true` in the declaration has events that park from then on carry it)"
)
_COLUMN_FOR_IT = (
    "`waybill sources discover` writes a column for each new field of the source into "
    "pipeline.yaml; one that the transformation makes of none is written by hand"
)
_DISCOVERED_RECORDS = 100_000
"""As many as `waybill sources discover` takes: a new field is in the newest records."""
_SEND_AGAIN = (
    "The source sends to `waybill collector`, so it cannot be read again: have the events sent "
    "again, and discard these once the new ones are delivered. `keep_source: true` in the "
    "declaration has events that park from then on carry what they were made from"
)


@dataclass(frozen=True, slots=True)
class Remedy:
    """One way to have the events of a parked group delivered."""

    advice: str
    """What to do, and where the commands would lose events."""
    commands: tuple[str, ...]
    """To paste into a shell, in their order."""
    discards: bool = False
    """Whether the last command discards what is parked."""


def read_remedies(
    tracker: TrackerStore,
    parking: Parking,
    found: Sequence[ParkedGroup],
    *,
    carry_sources: bool | None = None,
    tried: bool = False,
    proposed: bool = False,
) -> dict[int, tuple[Remedy, ...]]:
    """Return what ``remedies_of`` does, with what is deployed and parked now.

    Cost: a query, and one for each pipeline with events parked at mapping.
    """
    sources = active_sources(tracker, {group.pipeline_id for group in found})
    mapped = {group.pipeline_id for group in found if group.stage == MAPPING and group.parked}
    at_mapping = {}
    for pipeline_id in sorted(mapped):
        wanted = ParkedGroupFilter(pipeline_id=pipeline_id, stage=MAPPING, held=True)
        there = parking.partitions(wanted)
        at_mapping[pipeline_id] = sum(bool(group.parked) for group in there)
    return remedies_of(
        found, sources, at_mapping, carry_sources=carry_sources, tried=tried, proposed=proposed
    )


def remedies_of(
    found: Sequence[ParkedGroup],
    sources: Mapping[str, ActiveSource],
    at_mapping: Mapping[str, int],
    *,
    carry_sources: bool | None = None,
    tried: bool = False,
    proposed: bool = False,
) -> dict[int, tuple[Remedy, ...]]:
    """Return {group id: its remedies, the mildest first}; nothing of a group without parked events.

    Groups of one pipeline that need their source read again share that remedy: one reading serves
    all of them. A group has none where its error type alone says what to do, or its pipeline is not
    deployed.

    Args:
        found: of any pipelines.
        sources: {pipeline id: what is deployed}.
        at_mapping: {pipeline id: its groups with events parked at mapping, those not in ``found``
            as well}.
        carry_sources: whether events that parked at mapping hold what they were made from; None:
            as the deployed version declares it.
        tried: the mapping was tried on the events, and they would park again.
        proposed: another version than the deployed one was tried.
    """
    planned = [
        _Plan(group, source, carry_sources, tried=tried, proposed=proposed)
        for group in found
        if group.parked and (source := sources.get(group.pipeline_id)) is not None
    ]
    shared = _shared_readings([plan for plan in planned if plan.reads_again], at_mapping)
    return {plan.group.id: tuple(_remedies(plan, shared)) for plan in planned}


@dataclass(frozen=True, slots=True)
class _Plan:
    """A group, and what is deployed of its pipeline."""

    group: ParkedGroup
    source: ActiveSource
    known_carrying: bool | None
    tried: bool
    proposed: bool

    @property
    def name(self) -> str:
        return quote(self.group.pipeline)

    @property
    def which(self) -> str:
        """The group, as commands take it."""
        group = self.group
        names = f"-e {quote(group.event_name)} -s {group.stage} -t {quote(group.error_type)}"
        return f"{self.name} {names}"

    @property
    def is_deployed_since(self) -> bool:
        """Whether what is deployed is newer than all that parked, so that it may be the cure."""
        return not self.proposed and self.source.deployed_at > self.group.last_parked_at

    @property
    def carries_source(self) -> bool:
        known = self.known_carrying
        return self.source.keeps_source if known is None else known

    @property
    def reads_again(self) -> bool:
        is_of_mapping = self.group.stage == MAPPING
        return is_of_mapping and not (self.carries_source or self.source.is_pushed)

    @property
    def since(self) -> str:
        return f"version {self.source.version} was deployed after these parked"

    @property
    def was_proposed(self) -> bool:
        """Whether another mapping was tried, and the events would park again."""
        return self.tried and self.proposed

    @property
    def lacks_column(self) -> bool:
        """Whether a column is missing that a look at the source may propose."""
        return self.group.error_type == "unknown_column" and not self.source.is_pushed

    def replay(self, *, deployed: bool, enter: str = "") -> tuple[str, ...]:
        """Return the commands that try and replay the group; ``deployed``: with what is there."""
        entry = f" --enter {enter}" if enter else ""
        tried = f"waybill parked dry-run {self.which}{entry}"
        replay = f"waybill parked replay {self.which}{entry}"
        if deployed:
            return tried, replay
        deploy = f"waybill pipelines deploy {self.name}"
        return *self._discovery(), f"{tried} --proposed {self.name}", deploy, replay

    def _discovery(self) -> Iterator[str]:
        if self.lacks_column:
            yield f"waybill sources discover {self.name} --write --sample {_DISCOVERED_RECORDS}"


def _remedies(plan: _Plan, shared: Mapping[int, Remedy]) -> Iterable[Remedy]:
    stage = plan.group.stage
    if stage == TRANSFORMATION and plan.group.error_type in CODE_ERRORS:
        yield _corrected_code(plan)
    elif stage == MAPPING and plan.carries_source:
        yield _from_source(plan)
    elif stage == MAPPING:
        ways = [_other_mapping(plan), _made_again(plan, shared)]
        yield from reversed(ways) if plan.was_proposed else ways


def _made_again(plan: _Plan, shared: Mapping[int, Remedy]) -> Remedy:
    return shared[plan.group.id] if plan.reads_again else _sent_again(plan)


def _corrected_code(plan: _Plan) -> Remedy:
    deployed = plan.is_deployed_since
    advice = "correct the transformation, dry-run it on the parked events, deploy, replay"
    if deployed:
        advice = f"{plan.since}: if it corrects the transformation, dry-run, replay"
    return Remedy(_sentence(advice), plan.replay(deployed=deployed))


def _from_source(plan: _Plan) -> Remedy:
    deployed = plan.is_deployed_since
    advice = "change the mapping or the transformation, dry-run, deploy, replay"
    if deployed:
        advice = f"{plan.since}: if it corrects the mapping or the transformation, dry-run, replay"
    both = "The events carry what they were made from, so a replay runs both again"
    commands = plan.replay(deployed=deployed, enter=TRANSFORMATION)
    return Remedy(f"{_sentence(advice)}. {both}{_how_to_add(plan, deployed=deployed)}", commands)


def _how_to_add(plan: _Plan, *, deployed: bool) -> str:
    return f". {_COLUMN_FOR_IT}" if plan.lacks_column and not deployed else ""


def _other_mapping(plan: _Plan) -> Remedy:
    deployed = plan.is_deployed_since and not plan.tried
    advice = "change the mapping, dry-run, deploy, replay"
    if plan.was_proposed:
        advice = "change the mapping in another way than was just tried, dry-run, deploy, replay"
    if deployed:
        advice = f"{plan.since}: if it changes the mapping, dry-run, replay"
    said = f"{_sentence(advice)}. Nothing is discarded{_how_to_add(plan, deployed=deployed)}"
    return Remedy(said, plan.replay(deployed=deployed))


def _sent_again(plan: _Plan) -> Remedy:
    if plan.is_deployed_since:
        advice = f"{plan.since}: if it corrects the transformation, {_NO_SOURCE}"
        return Remedy(f"{_sentence(advice)}. {_SEND_AGAIN}", ())
    advice = f"If the transformation made them wrong, correct it and deploy: {_NO_SOURCE}"
    said = [_RUNS_NO_MORE] if plan.was_proposed else []
    said += [advice, _SEND_AGAIN]
    return Remedy(". ".join(said), (f"waybill pipelines deploy {plan.name}",))


def _shared_readings(planned: Sequence[_Plan], at_mapping: Mapping[str, int]) -> dict[int, Remedy]:
    """Return {group id: the reading that serves it}, one for all that are alike."""
    alike: dict[tuple[str, bool], list[_Plan]] = defaultdict(list)
    for plan in planned:
        alike[plan.group.pipeline_id, plan.is_deployed_since].append(plan)
    shared: dict[int, Remedy] = {}
    for (pipeline_id, _), plans in alike.items():
        remedy = _read_again(plans, others=at_mapping.get(pipeline_id, 0) - len(plans))
        shared |= {plan.group.id: remedy for plan in plans}
    return shared


def _read_again(plans: Sequence[_Plan], *, others: int) -> Remedy:
    first = plans[0]
    advice = "if the transformation made them wrong, correct it, deploy, read their source again"
    steps: tuple[str, ...] = (f"waybill pipelines deploy {first.name}",)
    if first.is_deployed_since:
        advice = f"{first.since}: if it corrects the transformation, read their source again"
        steps = ()
    keeps_deletes = first.source.brings_deletes
    said = [_RUNS_NO_MORE] if first.was_proposed else []
    said.append(f"{_sentence(advice)}: {_NO_SOURCE}")
    said.append(_DELETES_ARE_GONE if keeps_deletes else _IF_STILL_THERE)
    if len(plans) > 1 and others <= 0:
        said.append(f"One reading serves {len(plans)} groups of this pipeline: do it once")
    elif others > 0:
        said.append(
            f"One reading serves all groups of this pipeline: `waybill parked show {first.name} "
            f"-s {MAPPING}` gives one command for them"
        )
    read = f"waybill ingest {first.name} --full --yes --why corrected --wait"
    discards = [] if keeps_deletes else [_discard(plan) for plan in plans]
    said += [_DISCARD_ASKS] if discards else []
    commands = (*steps, " && ".join([read, *discards]))
    return Remedy(". ".join(said), commands, discards=bool(discards))


def _discard(plan: _Plan) -> str:
    until = plan.group.last_parked_at.astimezone(UTC) + timedelta(seconds=1)
    return (
        f"waybill parked discard {plan.which} --parked-until {until:%Y-%m-%dT%H:%M:%SZ} "
        "--why corrected"
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"
