"""Deployed pipelines: immutable versions in the tracker; the newest of each is active."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from itertools import pairwise
from operator import is_
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Connection, TextClause, func, or_, select, text
from sqlalchemy.dialects.postgresql import distinct_on, insert

from waybill.access import Decision, write_audit
from waybill.errors import InputError, NotFoundError
from waybill.events import rfc3339
from waybill.mappings import (
    InForce,
    TablePlaces,
    keep_declared,
    numbers_in_force,
    read_marks,
    read_numbered,
)
from waybill.nearest_name import hint, shown_name
from waybill.notices import write_notice
from waybill.pipelines import (
    PUSHED,
    EventDeclaration,
    Pipeline,
    PipelineHead,
    Source,
    TableSpec,
    base_topic,
    brings_deletes,
    root_of,
    topic_name,
    topic_of,
)
from waybill.settings import SourceSettings
from waybill.storage import AdvisoryLock, TrackerStore
from waybill.storage.tracker import (
    COUNT_COLUMNS,
    pipeline_versions,
    pipelines,
    text_value,
    undeployments,
)

Mappings = dict[tuple[str, str], InForce]
"""By pipeline id and event name."""


class DeployedOnTopic(NamedTuple):
    """What the events of one topic are processed with."""

    pipelines: Mapping[str, Pipeline]
    """By id: those of the topic that were asked for."""
    mappings: Mappings
    """In force of these pipelines."""
    ids: frozenset[str]
    """Of all pipelines that send to the topic; the same object while they are the same."""


class EventTopic(NamedTuple):
    """A topic that deployed pipelines send to."""

    team: str
    destination: str


ChoosePipelines = Callable[[str, frozenset[str]], Collection[str]]
"""Takes a topic and the ids of its pipelines, and returns those that are to be read."""


@dataclass(frozen=True, slots=True)
class DeployedVersion:
    """A version of a pipeline, as its history has it."""

    pipeline_id: str
    number: int
    version: str
    """The first 12 hex digits of the SHA-256 over declaration and code."""
    deployed_at: datetime
    deployed_by: str
    place: str = ""
    """Host and folder that it was deployed from; "": by a rollback, or by an older release."""
    rolled_back_to: int | None = None
    """The number that a rollback made active again; None: it was deployed from a folder."""
    why: str = ""

    def __str__(self) -> str:
        how = "deployed"
        if self.rolled_back_to is not None:
            how = f"a rollback to number {self.rolled_back_to}"
        place = f" from {self.place}" if self.place else ""
        return (
            f"number {self.number} ({self.version}), {how} by {self.deployed_by}{place} on "
            f"{self.deployed_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON."""
        return asdict(self) | {"deployed_at": rfc3339(self.deployed_at)}


@dataclass(frozen=True, slots=True)
class PastUndeployment:
    """An undeployment, as a pipeline's history has it: also one that a deploy took back."""

    number: int
    """The version that was active."""
    asked_at: datetime
    asked_by: str
    why: str
    drop_tables: bool
    done_at: datetime | None = None
    """When nothing was on its way any more; None: it drains, or a deploy came before."""
    dropped: tuple[str, ...] = ()
    """Names of the tables that were dropped."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON."""
        done = None if self.done_at is None else rfc3339(self.done_at)
        return asdict(self) | {"asked_at": rfc3339(self.asked_at), "done_at": done}


@dataclass(frozen=True, slots=True)
class DeployReport:
    """What a deploy, or a rollback, did."""

    pipeline: str
    pipeline_id: str
    version: str
    number: int
    changed: bool
    """False: this version was active already."""
    warnings: tuple[str, ...] = ()
    """A sentence for each table that another deployed pipeline writes too, and for what else may
    not be meant."""
    replaced: DeployedVersion | None = None
    """What was active before; None: nothing was, or it still is."""
    rolled_back_to: int | None = None
    """The number whose declaration and code are active again; None: it was a deploy."""
    touched: tuple[str, ...] = ()
    """Names of other pipelines that import shared modules of this one, and are active with other
    texts of these: they get them when they are deployed."""
    is_pushed: bool = False
    """Its source sends to the collector: it has no DAG."""
    tried: tuple[str, ...] = ()
    """What was tried before, and is right."""

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        replaced = None if self.replaced is None else self.replaced.to_json()
        return asdict(self) | {"replaced": replaced}


@dataclass(frozen=True, slots=True)
class DeployOrigin:
    """Where a deploy comes from, and over what it may go."""

    place: str = ""
    """Host and folder, for the history; "": nobody can tell later what came from there."""
    force: bool = True
    """Deploy also where another version was deployed from elsewhere since."""
    version: str = ""
    """That was checked: another is refused. "": whatever the folder holds."""
    version_ok: bool = False
    """Deploy also where events of tables with rows get their version from elsewhere."""


_UNKNOWN_ORIGIN = DeployOrigin()


class StaleFolderError(InputError):
    """A folder is behind what is active: deploying it would take back somebody's change."""


class OtherVersionError(InputError):
    """Events would get their version from elsewhere, and the rows of their table keep theirs."""


def deploy(
    tracker: TrackerStore,
    directory: Path,
    *,
    who: str,
    places: TablePlaces | None = None,
    source_roots: Sequence[Path] = (),
    origin: DeployOrigin = _UNKNOWN_ORIGIN,
) -> DeployReport:
    """Check the declaration in a folder and make it the pipeline's active version.

    In the same transaction its columns are laid over what was learned from its events. Of a folder
    that holds what is active already it is noted that it does: what is changed in it from then on
    is a change of that version.

    Args:
        tracker: where pipelines are kept.
        directory: with the declaration.
        who: deploys.
        places: of the destinations that are configured; None: none is known.
        source_roots: folders of the settings that its source may lie in.
        origin: where it comes from, and over what it may go.

    Raises:
        InputError: the declaration is wrong, its source lies where it must not, its name belongs to
            another pipeline, its team or destination is not what it was, a column's type is none
            that holds what was learned, or the folder holds another version than was checked.
        OtherVersionError: events would get their version from elsewhere, and that is not allowed.
        StaleFolderError: another version was deployed from elsewhere since, and it is not forced.
    """
    from waybill.pipelines import load_pipeline

    pipeline = load_pipeline(directory, source_roots)
    if origin.version and pipeline.version != origin.version:
        raise InputError(f"{directory} changed while it was checked; run the command again")
    with tracker.transaction() as connection:
        _lock_deploys(connection)
        _register(connection, pipeline)
        active = _active_row(connection, pipeline.id)
        if active is not None and active.version != pipeline.version and not origin.force:
            _refuse_stale(connection, pipeline, origin.place)
        detail = {"place": origin.place} if origin.place else {}
        change = _Change(who, "deploy", detail, version_ok=origin.version_ok)
        report = _activated(connection, pipeline, active, change, places or TablePlaces({}))
        if origin.place and not report.changed:
            _note_agreement(connection, pipeline, report.number, change)
        others = other_shared_code(connection, pipeline)
    return replace(report, touched=_importing(others, directory))


def _importing(others: Mapping[str, Mapping[str, str]], directory: Path) -> tuple[str, ...]:
    """Return which other pipelines import, in the folder beside a pipeline's, other shared code.

    What another folder of pipelines has is not meant by its ``shared``. A pipeline is looked for in
    the folder of its name; one whose folder has mistakes is left to `waybill pipelines check`.
    """
    from waybill.pipelines import DeclarationError, load_pipeline

    found = []
    for name, texts in others.items():
        try:
            folder = load_pipeline(root_of(directory) / name)
        except DeclarationError:
            continue
        if any(folder.shared_code.get(path, text) != text for path, text in texts.items()):
            found.append(name)
    return tuple(found)


def roll_back(
    tracker: TrackerStore,
    name: str,
    version: str | None,
    decision: Decision,
    check: Callable[[Pipeline], TablePlaces],
    *,
    version_ok: bool = False,
) -> DeployReport:
    """Make a version that was deployed before active again: as a new one, with a new number.

    Args:
        tracker: where pipelines are kept.
        name: of the pipeline, or its id.
        version: its number, or the beginning of its digest; None: the last one that differs from
            the active one.
        decision: whose it is, and why.
        check: looks at it as a deploy does, and returns what is known of the destinations.
        version_ok: also where events of tables with rows get their version from elsewhere.

    Raises:
        InputError: nothing of that name is deployed, there is no such version, or it is refused
            as a deploy of it would be.
    """
    with tracker.transaction() as connection:
        _lock_deploys(connection)
        versions = _history(connection, deployed_id(connection, name))
        target = _earlier(name, versions) if version is None else pick_version(versions, version)
        active = _active_row(connection, target.pipeline_id)
        pipeline = _version_of(connection, target)
        places = check(pipeline)
        _register(connection, pipeline)
        detail = {"why": decision.why, **decision.beside_who()}
        change = _Change(decision.who, "rollback", detail, target.number, version_ok)
        return _activated(connection, pipeline, active, change, places)


@dataclass(frozen=True, slots=True)
class _Change:
    """What the audit log gets beside version and number."""

    who: str
    action: str
    detail: Mapping[str, object]
    rolled_back_to: int | None = None
    version_ok: bool = False


def _activated(
    connection: Connection,
    pipeline: Pipeline,
    active: Any,
    change: _Change,
    places: TablePlaces,
) -> DeployReport:
    """Make a version active, unless it is; returns what that did."""
    number, replaced, warnings = 0 if active is None else int(active.number), None, list[str]()
    has_tables = not _are_tables_dropped(connection, pipeline.id)
    is_back = _take_back_undeployment(connection, pipeline, change.action)
    changed = active is None or active.version != pipeline.version or is_back
    before = None if active is None or not changed else Pipeline.from_json(active.declaration)
    if before is not None:
        _refuse_other_topic(before, pipeline)
        _refuse_other_way(before, pipeline)
        if has_tables:
            warnings += _other_versions(connection, before, pipeline, change)
        warnings += _other_source(connection, before, pipeline)
        replaced = _history(connection, pipeline.id)[0]
    if changed:
        _refuse_dropped_tables(connection, pipeline, places)
        _refuse_foreign_tables(connection, pipeline, None if is_back else before, places)
        number += 1
        _write_version(connection, pipeline, number, change)
        keep_declared(connection, pipeline, places.rules(pipeline.destination), change.who)
    return DeployReport(
        pipeline.name,
        pipeline.id,
        pipeline.version,
        number,
        changed=changed,
        warnings=(*shared_tables(connection, pipeline, places), *warnings),
        replaced=replaced,
        rolled_back_to=change.rolled_back_to,
        is_pushed=pipeline.source.connector == PUSHED,
    )


class _Lock(Enum):
    """How a row is locked until the transaction ends."""

    ALONE = "nobody else locks it"
    UNCHANGED = "nobody changes it"


@dataclass(frozen=True, slots=True)
class Undeployment:
    """A pipeline that is not to be read any more, and how far that is."""

    pipeline_id: str
    asked_by: str
    why: str
    drop_tables: bool
    asked_at: datetime
    dropping_at: datetime | None
    """Since when its tables may be gone."""
    done_at: datetime | None
    """When nothing of it was on its way any more; None: it drains."""
    problem: str
    """Why its tables could not be dropped when that was tried last; "": they could, or were not."""

    def __str__(self) -> str:
        at = f"{(self.done_at or self.asked_at).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
        how = "is being undeployed, since" if self.done_at is None else "was undeployed on"
        return f"{how} {at}, by {self.asked_by}"


def read_undeployment(tracker: TrackerStore, pipeline_id: str) -> Undeployment | None:
    """Return how far a pipeline is undeployed; None: it is not."""
    with tracker.transaction() as connection:
        return _undeployment(connection, pipeline_id)


def refuse_undeployed(tracker: TrackerStore, pipeline: Pipeline) -> None:
    """Refuse to go on with a pipeline that is undeployed, or about to be.

    Raises:
        InputError: says since when, by whom and what to do.
    """
    found = read_undeployment(tracker, pipeline.id)
    if found is not None:
        raise InputError(
            f"pipeline {pipeline.name!r} {found}: its source is not read. "
            "`waybill pipelines deploy` makes it active again"
        )


def refuse_replays(tracker: TrackerStore, pipeline: Pipeline) -> None:
    """Refuse to send events back into a pipeline that is undeployed, or loses its tables.

    Whoever sends has registered a write-ahead log before: so either this sees the undeployment's
    end, for whose transaction it waits, or that one sees the log.

    Raises:
        InputError: says since when, by whom and what to do.
    """
    with tracker.transaction() as connection:
        found = _undeployment(connection, pipeline.id, _Lock.UNCHANGED)
    if found is not None and (found.done_at or found.dropping_at) is not None:
        raise InputError(
            f"pipeline {pipeline.name!r} {found}: deploy it before its parked events are replayed"
        )


def begin_undeployment(
    tracker: TrackerStore,
    pipeline: Pipeline,
    decision: Decision,
    *,
    drop_tables: bool,
    keep_tables: bool = False,
) -> Undeployment:
    """Have a pipeline's source not be read any more; asked again, it goes on.

    Args:
        tracker: where pipelines are kept.
        pipeline: the one.
        decision: whose it is, and why.
        drop_tables: its tables are to be dropped.
        keep_tables: they are not, also where that was asked before, or was tried and failed.

    Raises:
        InputError: it is undeployed already, or was begun with tables to be dropped, which is
            not what is asked now.
        RetryError: somebody else goes on with it at this moment.
    """
    with tracker.transaction() as connection:
        _take_turn(connection, pipeline.id)
        _lock_deploys(connection)
        found = _undeployment(connection, pipeline.id)
        if found is not None and found.done_at is not None:
            raise InputError(f"pipeline {pipeline.name!r} {found} already")
        if found is not None and found.drop_tables and not (drop_tables or keep_tables):
            raise InputError(
                f"pipeline {pipeline.name!r} {found}, with its tables to be dropped: ask for that "
                "again (--drop-tables), keep them (--keep-tables), or deploy it, which ends it"
                + (" once its tables are gone, or kept" if found.dropping_at else "")
            )
        if found is None or found.drop_tables != drop_tables:
            values = {"asked_by": text_value(decision.who), "why": text_value(decision.why)}
            statement = insert(undeployments).values(
                pipeline_id=pipeline.id, drop_tables=drop_tables, **values
            )
            connection.execute(
                statement.on_conflict_do_update(
                    index_elements=[undeployments.c.pipeline_id],
                    set_={"drop_tables": drop_tables, "problem": "", **values},
                )
            )
            _audit(connection, "undeploy", pipeline.id, decision, drop_tables=drop_tables)
        begun = _undeployment(connection, pipeline.id)
    if begun is None:
        raise InputError(f"pipeline {pipeline.name!r} was deployed meanwhile")
    return begun


def hold_undeployment(
    connection: Connection, pipeline: Pipeline, begun: Undeployment, *, alone: bool = True
) -> Undeployment:
    """Have nobody else go on with an undeployment until the transaction ends; return how it is now.

    Args:
        connection: to the tracker.
        pipeline: whose it is.
        begun: what ``begin_undeployment`` returned.
        alone: deploys, and replays that are about to begin, wait as well. False: for longer than a
            moment; then no row is locked.

    Raises:
        InputError: it was ended meanwhile, by a deploy or by somebody who went on with it, or what
            becomes of the tables was decided anew.
        RetryError: somebody else goes on with it at this moment.
    """
    _take_turn(connection, pipeline.id)
    if alone:
        _lock_deploys(connection)
    found = _undeployment(connection, pipeline.id, _Lock.ALONE if alone else None)
    asked = None if found is None else (found.asked_at, found.drop_tables)
    if found is None or found.done_at is not None or asked != (begun.asked_at, begun.drop_tables):
        raise InputError(
            f"pipeline {pipeline.name!r} was deployed meanwhile, or somebody else went on with its "
            "undeployment; `waybill pipelines list` shows how it is"
        )
    return found


def begin_drop(
    connection: Connection,
    begun: Undeployment,
    pipeline: Pipeline,
    tables: Sequence[TableSpec],
    places: TablePlaces,
) -> None:
    """Note that a pipeline's tables may be gone from now on; until the end no deploy gets between.

    Args:
        connection: which holds the undeployment.
        begun: it.
        pipeline: whose.
        tables: that are to be dropped.
        places: of the destinations that are configured.

    Raises:
        InputError: another pipeline that writes one of its tables was deployed.
    """
    if others := shared_tables(connection, pipeline, places, tables):
        raise InputError(f"its tables are not dropped: {others[0]}")
    now = func.coalesce(undeployments.c.dropping_at, func.clock_timestamp())
    _change_undeployment(connection, begun, {"dropping_at": now})


def note_problem(tracker: TrackerStore, pipeline: Pipeline, begun: Undeployment, said: str) -> None:
    """Note why a pipeline's tables could not be dropped; its owner is told of each reason once."""
    with tracker.transaction() as connection:
        found = _undeployment(connection, begun.pipeline_id, _Lock.ALONE)
        if found is None or (found.asked_at, found.done_at) != (begun.asked_at, None):
            return
        if found.problem == text_value(said):
            return
        _change_undeployment(connection, begun, {"problem": text_value(said)})
        write_notice(
            connection,
            kind="destination",
            pipeline_id=pipeline.id,
            destination=f"{pipeline.destination} did not drop the tables of this pipeline, which "
            "is being undeployed",
            message=said,
            see="waybill pipelines undeploy --help",
        )


def unfinished_drops(tracker: TrackerStore) -> list[Undeployment]:
    """Return the undeployments whose tables are being dropped, or could not be."""
    own = undeployments.c
    query = select(undeployments).where(
        own.done_at.is_(None), own.dropping_at.is_not(None), own.drop_tables
    )
    with tracker.transaction() as connection:
        rows = connection.execute(query.order_by(own.pipeline_id)).all()
    return [Undeployment(**row._asdict()) for row in rows]


def end_undeployment(
    connection: Connection, begun: Undeployment, decision: Decision, tables: Sequence[str]
) -> None:
    """Say that nothing of a pipeline is on its way, and which tables were dropped.

    Args:
        connection: which holds the undeployment.
        begun: it.
        decision: whose it is, and why.
        tables: that were dropped, by name.
    """
    _change_undeployment(connection, begun, {"done_at": func.clock_timestamp(), "problem": ""})
    _audit(connection, "undeployed", begun.pipeline_id, decision, dropped=list(tables))


def _change_undeployment(
    connection: Connection, begun: Undeployment, values: Mapping[str, Any]
) -> None:
    own = undeployments.c.pipeline_id == begun.pipeline_id
    connection.execute(undeployments.update().where(own).values(**values))


def _take_turn(connection: Connection, pipeline_id: str) -> None:
    """Wait until nobody else goes on with a pipeline's undeployment, as long as for any lock."""
    AdvisoryLock.UNDEPLOYMENT.take(connection, pipeline_id)


def _audit(
    connection: Connection, action: str, pipeline_id: str, decision: Decision, **detail: object
) -> None:
    detail = {"why": decision.why, **detail, **decision.beside_who()}
    write_audit(connection, who=decision.who, action=action, target=pipeline_id, **detail)


def _undeployment(
    connection: Connection, pipeline_id: str, lock: _Lock | None = None
) -> Undeployment | None:
    query = select(undeployments).where(undeployments.c.pipeline_id == pipeline_id)
    if lock is not None:
        query = query.with_for_update(read=lock is _Lock.UNCHANGED)
    row = connection.execute(query).first()
    return None if row is None else Undeployment(**row._asdict())


def _take_back_undeployment(connection: Connection, pipeline: Pipeline, action: str) -> bool:
    """End an undeployment, for its pipeline is deployed; False: there was none.

    Raises:
        InputError: its tables are being dropped, or it is no deploy that asks.
    """
    found = _undeployment(connection, pipeline.id)
    if found is None:
        return False
    if action != "deploy":
        raise InputError(
            f"pipeline {pipeline.name!r} {found}: there is nothing to roll back. "
            "`waybill pipelines deploy` makes it active again"
        )
    if found.done_at is None and found.dropping_at is not None:
        raise InputError(
            f"pipeline {pipeline.name!r} {found}, and its tables are being dropped: finish that "
            f"first (waybill pipelines undeploy {pipeline.name} --drop-tables; --keep-tables keeps "
            "those that are left)"
        )
    connection.execute(undeployments.delete().where(undeployments.c.pipeline_id == pipeline.id))
    return True


def _write_version(
    connection: Connection, pipeline: Pipeline, number: int, change: _Change
) -> None:
    connection.execute(
        pipeline_versions.insert().values(
            pipeline_id=pipeline.id,
            number=number,
            version=pipeline.version,
            declaration=pipeline.to_json(),
            deployed_by=change.who,
        )
    )
    detail = {"version": pipeline.version, "number": number, **change.detail}
    if change.rolled_back_to is not None:
        detail["rolled_back_to"] = change.rolled_back_to
    write_audit(connection, who=change.who, action=change.action, target=pipeline.id, **detail)


def _refuse_stale(connection: Connection, pipeline: Pipeline, place: str) -> None:
    """Refuse a folder that is behind the active version, as far as that can be told."""
    versions = _history(connection, pipeline.id)
    behind = _behind(connection, pipeline, versions, text_value(place))
    if not behind:
        return
    raise StaleFolderError(
        f"pipeline {pipeline.name!r}: {behind}. What is active now is {versions[0]}; deploying the "
        f"folder would take back what that changed. `waybill pipelines diff {pipeline.name}` shows "
        "the difference; bring it into the folder, or go on with --force"
    )


def _behind(
    connection: Connection, pipeline: Pipeline, versions: Sequence[DeployedVersion], place: str
) -> str:
    """Return in which way a folder is behind the active version; "": that cannot be told.

    It is where it holds what was active before; where it was deployed and somebody else deployed
    since; where it held what somebody else deployed, and holds what was before that, changed.
    """
    active = versions[0]
    same = next((one for one in versions if one.version == pipeline.version), None)
    if same is not None:
        return f"this folder holds number {same.number}, which was active before"
    own = _last_of_place(connection, pipeline.id, place)
    if own is None:
        return ""
    if own.number < active.number and own.action != _AGREED:
        return f"this folder was last deployed as number {own.number}, and changed since"
    held = f"this folder was as number {own.number} when last deployed"
    if own.number < active.number:
        return f"{held}, and changed since"
    if own.action == _AGREED and _takes_back(connection, pipeline, versions):
        return (
            f"{held}, and now has nothing of what that changed: it is from before that, or that was"
            " taken out on purpose"
        )
    return ""


def _takes_back(
    connection: Connection, pipeline: Pipeline, versions: Sequence[DeployedVersion]
) -> bool:
    """Tell whether a folder has nothing of what the active version changed, and some of before.

    What a rollback took back may come again, corrected.
    """
    active = versions[0]
    replaced = next((one for one in versions if one.version != active.version), None)
    if replaced is None or active.rolled_back_to is not None:
        return False
    new, old = (_line_pairs(_version_of(connection, one)) for one in (active, replaced))
    folder = _line_pairs(pipeline)
    return not folder & (new - old) and bool(folder & (old - new))


def _line_pairs(pipeline: Pipeline) -> set[tuple[str, str, str]]:
    """Return (file, line, next line) of declaration and code, without empty lines.

    By pairs a line that was put in between two is told from one that was taken out.
    """
    content = pipeline.to_json()
    for name in ("version", "transformation_code", "shared_code"):
        content.pop(name, None)
    declaration = json.dumps(content, sort_keys=True, indent=0)
    code = {"transformation": pipeline.transformation_code, **pipeline.shared_code}
    texts = {"": declaration, **code}
    return {
        (file, *pair)
        for file, text in texts.items()
        for pair in pairwise(["", *filter(str.strip, text.splitlines()), ""])
    }


def _note_agreement(
    connection: Connection, pipeline: Pipeline, number: int, change: _Change
) -> None:
    """Note that a folder holds what is active, once for each version: a rollback came before.

    Of folders that nothing came from before, as of hosts that each deploy gets anew, the first
    `_MOST_AGREED` of a version are noted.
    """
    own = _last_of_place(connection, pipeline.id, text_value(str(change.detail["place"])))
    if own is not None and own.number >= number:
        return
    if own is None:
        given = {"id": pipeline.id, "agreed": _AGREED, "number": str(number)}
        if connection.execute(_AGREED_PLACES, given).scalar_one() >= _MOST_AGREED:
            return
    detail = {"version": pipeline.version, "number": number, **change.detail}
    write_audit(connection, who=change.who, action=_AGREED, target=pipeline.id, **detail)


def _last_of_place(connection: Connection, pipeline_id: str, place: str) -> Any:
    """Return (number, action) of the newest version that a place deployed, or held when it did.

    None: nothing of the pipeline came from there, or nobody knows where it comes from.
    """
    given = {"id": pipeline_id, "place": place, "agreed": _AGREED}
    return connection.execute(_LAST_OF_PLACE, given).first() if place else None


def _earlier(name: str, versions: Sequence[DeployedVersion]) -> DeployedVersion:
    """Return the last version that differs from the active one, unless that is ambiguous."""
    active = versions[0]
    others = [one for one in versions if one.version != active.version]
    if not others:
        raise InputError(f"pipeline {name!r} has had one version only: {active}")
    if active.rolled_back_to is not None:
        raise InputError(
            f"pipeline {name!r}: what is active is {active}; say which version is to be active "
            f"(`waybill pipelines history {name}` has them), or the last one would bring back "
            f"number {others[0].number}"
        )
    return others[0]


def pick_version(versions: Sequence[DeployedVersion], given: str) -> DeployedVersion:
    """Return the version of a history by its number, or by the beginning of its digest.

    Raises:
        InputError: there is none, or several begin so; says which there are.
    """
    found = [one for one in versions if given == str(one.number)]
    if not found and len(given) >= (_FEWEST_FIGURES if given.isdigit() else _FEWEST_DIGITS):
        found = [one for one in versions if one.version.startswith(given.lower())]
    if len({one.version for one in found}) == 1:
        return found[0]
    known = ", ".join(f"{one.number} ({one.version})" for one in versions[:_MOST_NAMED])
    more = len(versions) - _MOST_NAMED
    known += f" and {more:,} more" if more > 0 else ""
    kind = "more than one version begins with" if found else "there is no version"
    error = InputError if found else NotFoundError
    raise error(f"{kind} {shown_name(given)!r}; by number and digest there are {known}")


class _SameTable(NamedTuple):
    """A table of another pipeline that is one of a pipeline's own, or may be."""

    pipeline: str
    """The other's name."""
    team: str
    """Its team."""
    own: str
    """The table's name, as the pipeline has it."""
    destination: str
    """This, schema and table: as the other has them."""
    schema: str
    table: str


def shared_tables(
    connection: Connection,
    pipeline: Pipeline,
    places: TablePlaces,
    learned: Sequence[TableSpec] = (),
) -> list[str]:
    """Return a sentence for each table that another deployed pipeline writes too, or may write.

    Those that it learned from its events are among them. One that is undeployed writes none. Where
    a destination is not configured nobody knows which other one is the same place: any may be.

    Args:
        connection: to the tracker.
        pipeline: the one.
        places: of the destinations that are configured.
        learned: its tables with what was learned of them, besides those that it declares.

    Cost: one statement, which reads each active declaration, 75 KB of one of 100 event names, and
    of pipelines of this place and schema their mappings; they are compared where they lie, but for
    names that are not ASCII.
    """
    found = _same_tables(connection, _SHARED_TABLES, pipeline, places, learned)
    return [_said_shared(pipeline, one, places) for one in found]


def _said_shared(pipeline: Pipeline, other: _SameTable, places: TablePlaces) -> str:
    own = f"{pipeline.schema_name}.{other.own} of {pipeline.destination!r}"
    theirs = f"{other.schema}.{other.table} of {other.destination!r}"
    table = own if own == theirs else f"{own} ({other.pipeline!r} calls it {theirs})"
    names = f"pipelines {pipeline.name!r} and {other.pipeline!r}"
    if _is_certain(pipeline, other, places):
        return f"{names} both write table {table}: rows with equal keys replace each other"
    known = places.is_known(pipeline.destination)
    unknown = other.destination if known else pipeline.destination
    return (
        f"{names} may both write table {table}: destination {unknown!r} is not among the settings "
        "here (WAYBILL_DESTINATIONS), so nobody can tell; name it there"
    )


def _is_certain(pipeline: Pipeline, other: _SameTable, places: TablePlaces) -> bool:
    own = places.key(pipeline.destination, pipeline.schema_name, other.own)
    return own == places.key(other.destination, other.schema, other.table)


def _same_tables(
    connection: Connection,
    statement: TextClause,
    pipeline: Pipeline,
    places: TablePlaces,
    learned: Sequence[TableSpec] = (),
) -> list[_SameTable]:
    """Return which of the tables that a statement finds are a pipeline's own, or may be."""
    names = _declared_tables(pipeline, learned)
    given = {
        "id": pipeline.id,
        "team": pipeline.team,
        "elsewhere": places.elsewhere(pipeline.destination),
        "schemas": [pipeline.schema_name.casefold()],
        "names": sorted({name.casefold() for name in names}),
    }
    rows = connection.execute(statement, given).all()
    spellings = {
        one: places.spelling(pipeline.destination, one) for one in {row.destination for row in rows}
    }
    own = {
        one: {(same(pipeline.schema_name), same(name)): name for name in names}
        for one, same in spellings.items()
    }
    found = []
    for row in rows:
        same = spellings[row.destination]
        name = own[row.destination].get((same(row.schema), same(row.name)))
        if name is not None:
            found.append(_SameTable(row.pipeline, row.team, name, *row[2:]))
    return found


def other_shared_code(connection: Connection, pipeline: Pipeline) -> dict[str, dict[str, str]]:
    """Return {name of another pipeline: path to text} where shared modules of this one differ.

    Those that are active with another text of a module of the same path, with these modules alone;
    they may be of other folders of pipelines. None of one that is undeployed.

    Cost: one statement, which reads each active declaration; none, where the pipeline has no shared
    modules.
    """
    if not pipeline.shared_code:
        return {}
    given = {"id": pipeline.id, "code": json.dumps(pipeline.shared_code)}
    found: dict[str, dict[str, str]] = {}
    for name, path, text_there in connection.execute(_OTHER_SHARED_CODE, given):
        found.setdefault(str(name), {})[str(path)] = str(text_there)
    return found


def _refuse_dropped_tables(connection: Connection, pipeline: Pipeline, places: TablePlaces) -> None:
    """Refuse a pipeline that writes a table which is being dropped: its rows would go with it."""
    found = _same_tables(connection, _DROPPED_TABLES, pipeline, places)
    if not found:
        return
    other = found[0]
    which = "is" if _is_certain(pipeline, other, places) else "may be one that is"
    raise InputError(
        f"pipeline {pipeline.name!r} writes table {pipeline.schema_name}.{other.own} of "
        f"{pipeline.destination!r}, which {which} being dropped with those of {other.pipeline!r}: "
        f"finish that first (waybill pipelines undeploy {other.pipeline} --drop-tables; "
        "--keep-tables keeps those that are left)"
    )


def _refuse_foreign_tables(
    connection: Connection, pipeline: Pipeline, active: Pipeline | None, places: TablePlaces
) -> None:
    """Refuse a pipeline that writes what other teams own, unless the settings let its team.

    A table that its active version writes already it keeps, whoever else writes it: the deploy that
    shared it was let, or was before tables had owners.
    """
    team, schema, named = pipeline.team, pipeline.schema_name, set[str]()
    if active is not None and active.schema_name == schema:
        named.update(_declared_tables(active))
    for table in ("", *_declared_tables(pipeline)):
        for limit in places.limits(pipeline.destination, schema, table):
            if team not in limit.teams:
                raise InputError(
                    f"{limit.what} is not for pipelines of team {team!r}: {limit.setting} of"
                    f" WAYBILL_DESTINATIONS names {', '.join(limit.teams)}"
                )
            named.add(table)
    for other in _same_tables(connection, _OWNED_TABLES, pipeline, places):
        if other.own not in named and _is_certain(pipeline, other, places):
            shared = json.dumps({f"{schema}.{other.own}": sorted([team, other.team])})
            raise InputError(
                f"table {schema}.{other.own} of {pipeline.destination!r} belongs to team"
                f" {other.team!r}: its pipeline {other.pipeline!r} writes it, or left it there;"
                f" {pipeline.name!r} is of team {team!r}. Name another table or schema; or have"
                f" the settings of the destination share it: table_teams {shared}"
            )


def refuse_foreign_connection(pipeline: Pipeline, sources: SourceSettings) -> None:
    """Refuse a pipeline whose source is reached by a connection of other teams.

    Raises:
        InputError: it is.
    """
    name = pipeline.source.connection
    if name is not None and not sources.is_for(name, pipeline.team):
        raise InputError(
            f"connection {name!r} is not for pipelines of team {pipeline.team!r}:"
            " WAYBILL_SOURCES__CONNECTION_TEAMS names other teams"
        )


def _declared_tables(pipeline: Pipeline, learned: Sequence[TableSpec] = ()) -> list[str]:
    """Return the names of a pipeline's tables and their children."""
    specs = [*(event.table for event in pipeline.events.values()), *learned]
    return sorted(
        {name for one in specs for name in (one.name, *(child.name for child in one.children))}
    )


def _refuse_other_topic(active: Pipeline, proposed: Pipeline) -> None:
    """Refuse to move a pipeline to another topic: what waits in the old one would not be read."""
    old, new = topic_of(active), topic_of(proposed)
    if old != new:
        raise InputError(
            f"pipeline {proposed.id!r} sends to topic {old!r}; with this team and destination it "
            f"would be {new!r}, and events that wait in the old one would never be read. Declare "
            "it as a new pipeline, with an id and a name of its own, which reads its source from "
            f"the beginning; `waybill pipelines undeploy {active.name}` ends the old one, and "
            "keeps its tables or drops them"
        )


def _refuse_other_way(active: Pipeline, proposed: Pipeline) -> None:
    """Refuse to change whether events are fetched or sent: their logs are of two kinds."""
    ways = [one.source.connector == "http" for one in (active, proposed)]
    if ways[0] != ways[1]:
        old, new = active.source.connector, proposed.source.connector
        raise InputError(
            f"pipeline {proposed.id!r} has connector {old!r}; with {new!r} its events would come "
            "another way, while some of the old way may be in a write-ahead log still. Declare it "
            "as a new pipeline, with an id of its own"
        )


def _are_tables_dropped(connection: Connection, pipeline_id: str) -> bool:
    """Tell whether a pipeline was undeployed with its tables."""
    found = _undeployment(connection, pipeline_id)
    return found is not None and found.drop_tables and found.done_at is not None


def _other_versions(
    connection: Connection, active: Pipeline, proposed: Pipeline, change: _Change
) -> list[str]:
    """Return a sentence for each event whose version would come from elsewhere, if that is allowed.

    The rows that are in its table keep the versions that they have: where the new ones are less,
    each change of these rows is superseded, for ever.

    Raises:
        OtherVersionError: there is one, and it is not allowed.
    """
    origins = {
        name: (_version_origin(active, event), _version_origin(proposed, proposed.events[name]))
        for name, event in active.events.items()
        if name in proposed.events and _table_of(active, name) == _table_of(proposed, name)
    }
    names = [name for name, (old, new) in origins.items() if old and old != new]
    given = {"id": proposed.id, "names": names}
    met = list(connection.execute(_TAKEN_IN, given).scalars()) if names else []
    found = [_said_other_version(proposed, name, *origins[name]) for name in met]
    if found and not change.version_ok:
        raise OtherVersionError(
            f"pipeline {proposed.name!r}: {'; '.join(found)}. {_ways_out(proposed)}"
        )
    return found


def _said_other_version(pipeline: Pipeline, event_name: str, old: str, new: str) -> str:
    table = ".".join(_table_of(pipeline, event_name))
    return (
        f"event {event_name!r}: its version was {old}, and is now {new or 'none, which is 0'}. Rows"
        f" of table {table} keep the version that they have: where the new ones are less, later"
        " changes of these rows are superseded, and never written"
    )


def _ways_out(pipeline: Pipeline) -> str:
    """Return what to do where rows would keep greater versions."""
    said = "Keep the version that it had"
    if pipeline.source.connector == PUSHED:
        said += ", or declare another table for the event"
    else:
        name = shlex.quote(pipeline.name)
        said += (
            "; or declare another table for the event, deploy, and read the source from its"
            f" beginning (waybill ingest {name} --full --why …), which into the same table does not"
            f" help; or drop the table before (waybill pipelines undeploy {name} --drop-tables)"
        )
    return f"{said}. Where the new versions are greater than all old ones, go on with --version-ok"


def _table_of(pipeline: Pipeline, event_name: str) -> tuple[str, str]:
    """Return schema and name of an event's table."""
    return pipeline.schema_name, pipeline.events[event_name].table.name


def _version_origin(pipeline: Pipeline, event: EventDeclaration) -> str:
    """Return where the source versions of an event come from, for people; "": they are all 0."""
    source = pipeline.source
    if source.connector == "postgres_cdc":
        return "the position in PostgreSQL's log"
    if source.connector == "kafka" and source.options.get("version") == "position":
        return "the position in the log of Debezium's source"
    return "" if event.version is None else f"field {event.version!r}"


_SOURCE_PLACES = {
    "sql": (("file",), ("schema",), ("table",)),
    "dlt": (("resource",), ("arguments",), ("rest_api", "client")),
    "singer": (("tap",), ("config",)),
}
"""Options that say what is read, of connectors whose positions are not known by the source."""


def _other_source(connection: Connection, active: Pipeline, proposed: Pipeline) -> list[str]:
    """Return a sentence where a source is another than the one that its position is of."""
    old, new = active.source, proposed.source
    if old.connector == new.connector and new.connector not in _SOURCE_PLACES:
        return []
    changed = _changed_places(old, new)
    is_read = changed and connection.execute(_STANDS, {"id": proposed.id}).scalar()
    if not is_read:
        return []
    full = f"`waybill ingest {shlex.quote(proposed.name)} --full --why …`"
    stood = f"{', '.join(changed)}: the source's position is one in what it read before"
    if old.connector != new.connector:
        return [f"{stood}: where the next run refuses it, {full} reads this one from its beginning"]
    if new.connector != "sql":
        return [f"{stood}: where that was another source, {full} reads this one from its beginning"]
    return [f"{stood}: the next run is refused, until {full} reads this one from its beginning"]


def _changed_places(old: Source, new: Source) -> list[str]:
    """Return what of a declaration names another source than it did, with names as they are."""
    if old.connector != new.connector:
        return [f"source.connector is {new.connector!r}, and was {old.connector!r}"]
    changed = [] if old.connection == new.connection else ["source.connection is another"]
    for path in _SOURCE_PLACES[new.connector]:
        before, after = (_option(one.options, path) for one in (old, new))
        if before != after:
            are_names = all(isinstance(one, str | None) for one in (before, after))
            said = f"{after!r}, and was {before!r}" if are_names else "another"
            changed.append(f"source.options.{'.'.join(path)} is {said}")
    return changed


def _option(options: Any, path: Sequence[str]) -> Any:
    for name in path:
        options = options.get(name) if isinstance(options, dict) else None
    return options


def _lock_deploys(connection: Connection) -> None:
    """Have deploys, also of different pipelines, take turns."""
    connection.execute(text("LOCK TABLE pipelines IN SHARE ROW EXCLUSIVE MODE"))


def _register(connection: Connection, pipeline: Pipeline) -> None:
    """Insert or update the pipeline's row.

    Commands take a name or an id: so no pipeline's name is the id of another.

    Raises:
        InputError: another has its name, has its name as its id, or its id as its name.
    """
    own = pipelines.c
    query = select(own.id, own.name).where(
        own.id != pipeline.id,
        or_(own.name.in_((pipeline.name, pipeline.id)), own.id == pipeline.name),
    )
    for other in connection.execute(query):
        if other.name == pipeline.name:
            raise InputError(
                f"a pipeline named {pipeline.name!r} exists with id {other.id!r}; this declaration "
                f"says {pipeline.id!r}. Ids never change: keep the old id, or choose another name"
            )
        if other.id == pipeline.name:
            raise InputError(
                f"name {pipeline.name!r} is the id of pipeline {other.name!r}: commands take a "
                "name or an id, and would not know which is meant; choose another name"
            )
        raise InputError(
            f"id {pipeline.id!r} is the name of the pipeline with id {other.id!r}: commands take a "
            "name or an id, and would not know which is meant; choose another id, or deploy that "
            "pipeline under another name first"
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


class _Unread(NamedTuple):
    """Pipelines that were parsed before, by id, and rows of others."""

    known: Mapping[str, Pipeline]
    rows: Sequence[Any]


class _Mappings(NamedTuple):
    """In force of a pipeline."""

    mark: tuple[int, Any] | None
    """Of all its versions of mappings; None: there are none."""
    by_name: Mapping[str, InForce]


class _Deployed(NamedTuple):
    """What was returned of a topic, and what it was made from."""

    parts: Sequence[object]
    deployed: DeployedOnTopic


class ActivePipelines:
    """The active versions of all deployed pipelines; each is read and parsed once, when asked for.

    It keeps the number and the topic of each pipeline, which are read again where something was
    deployed, and the pipelines and mappings that were asked for last. Threads may share one.
    """

    def __init__(self, tracker: TrackerStore) -> None:
        self._tracker = tracker
        self._lock = threading.Lock()
        self._mark: tuple[Any, ...] = ()
        """What there is in the tracker, summed up."""
        self._numbers: dict[str, int] = {}
        """Of the active version, by pipeline id."""
        self._topics: dict[str, EventTopic] = {}
        """By pipeline id."""
        self._ids: dict[str, frozenset[str]] = {}
        """By topic."""
        self._parsed: dict[str, tuple[int, Pipeline]] = {}
        """By pipeline id, with the version's number."""
        self._mappings: dict[str, _Mappings] = {}
        """By pipeline id."""
        self._deployed: dict[str, _Deployed] = {}
        """By topic."""

    def read(self) -> dict[str, Pipeline]:
        """Return {pipeline id: active version}; the same object while none newer is deployed.

        Cost: one statement, three more where there is something new.
        """
        with self._lock, self._tracker.transaction() as connection:
            self._refresh(connection)
            ids, unread = list(self._numbers), self._unread(connection, self._numbers)
        found = self._parse(unread)
        return {pipeline_id: found[pipeline_id] for pipeline_id in ids}

    def read_topics(self) -> frozenset[EventTopic]:
        """Return the topics that pipelines send to; no declaration is parsed.

        Cost: one statement, two more where there is something new.
        """
        with self._lock, self._tracker.transaction() as connection:
            self._refresh(connection)
            return frozenset(self._topics.values())

    def read_mapped(
        self, topics: Collection[str], choose: ChoosePipelines | None = None
    ) -> dict[str, DeployedOnTopic]:
        """Return {topic: its pipelines, and their mappings in force}; any generation of a topic.

        All are of one moment: no mapping is of a later or earlier deploy than its pipeline.
        What is the same as at the last call is the same object.
        Cost: three statements, one to five more where there is something new, however many topics;
        of a pipeline without news a row, however many event names it has. What is not chosen costs
        nothing, and is not kept.

        Args:
            topics: as Kafka names them.
            choose: picks the pipelines of a topic that are read; None: all are.
        """
        with self._lock, self._tracker.transaction() as connection:
            connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
            self._refresh(connection)
            ids = {topic: self._ids.get(base_topic(topic), frozenset[str]()) for topic in topics}
            chosen = {
                topic: own if choose is None else own.intersection(choose(topic, own))
                for topic, own in ids.items()
            }
            wanted = frozenset[str]().union(*chosen.values())
            unread = self._unread(connection, wanted)
            marks = read_marks(connection, wanted) if wanted else {}
            mappings = {
                one: kept
                for one in wanted
                if (kept := self._mappings.get(one)) is not None and kept.mark == marks.get(one)
            }
            changed = marks.keys() - mappings.keys()
            numbers = numbers_in_force(connection, changed) if changed else {}
            known = {
                name: mapping
                for name, number in numbers.items()
                if (mapping := self._known(*name)) is not None and mapping.number == number
            }
            new = {name: number for name, number in numbers.items() if name not in known}
            parse_mappings = read_numbered(connection, new)
            self._forget(wanted, {base_topic(topic) for topic in topics})
        # the transaction is over, and nobody waits: thousands take a minute to parse
        pipelines = self._parse(unread)
        by_name: dict[str, dict[str, InForce]] = {one: {} for one in wanted - mappings.keys()}
        for (pipeline_id, event_name), mapping in known.items():
            by_name[pipeline_id][event_name] = mapping
        for version in parse_mappings():
            in_force = InForce(version.number, version.declaration)
            by_name[version.pipeline_id][version.event_name] = in_force
        mappings |= {one: _Mappings(marks.get(one), own) for one, own in by_name.items()}
        with self._lock:
            self._mappings |= mappings
        return {
            topic: self._on_topic(topic, sorted(own), pipelines, mappings, ids[topic])
            for topic, own in chosen.items()
        }

    def _known(self, pipeline_id: str, event_name: str) -> InForce | None:
        kept = self._mappings.get(pipeline_id)
        return None if kept is None else kept.by_name.get(event_name)

    def _on_topic(
        self,
        topic: str,
        own: Sequence[str],
        pipelines: Mapping[str, Pipeline],
        mappings: Mapping[str, _Mappings],
        ids: frozenset[str],
    ) -> DeployedOnTopic:
        """Return a topic's pipelines and mappings: what was returned last, if it is the same."""
        parts: list[object] = [ids]
        parts += [part for one in own for part in (pipelines[one], mappings[one].by_name)]
        before = self._deployed.get(topic)
        if (
            before is not None
            and len(before.parts) == len(parts)
            and all(map(is_, before.parts, parts))
        ):
            return before.deployed
        deployed = DeployedOnTopic(
            {pipeline_id: pipelines[pipeline_id] for pipeline_id in own},
            {
                (pipeline_id, event_name): mapping
                for pipeline_id in own
                for event_name, mapping in mappings[pipeline_id].by_name.items()
            },
            ids,
        )
        self._deployed[topic] = _Deployed(parts, deployed)
        return deployed

    def _forget(self, wanted: Collection[str], topics: Collection[str]) -> None:
        """Keep of these topics' pipelines only those that are wanted."""
        for pipeline_id in self._parsed.keys() - wanted:
            topic = self._topics.get(pipeline_id)
            if topic is None or topic_name(*topic) in topics:
                del self._parsed[pipeline_id]
                self._mappings.pop(pipeline_id, None)

    def _unread(self, connection: Connection, pipeline_ids: Collection[str]) -> _Unread:
        known = {
            one: self._parsed[one][1]
            for one in pipeline_ids
            if self._parsed.get(one, (0,))[0] == self._numbers[one]
        }
        unknown = [(one, self._numbers[one]) for one in pipeline_ids if one not in known]
        return _Unread(known, _versions(connection, unknown) if unknown else ())

    def _parse(self, unread: _Unread) -> dict[str, Pipeline]:
        """Return the pipelines by id; keep what was not known. For no transaction, and no lock."""
        fresh = {
            row[0]: (int(row[1]), Pipeline.from_json(json.loads(row[2]))) for row in unread.rows
        }
        with self._lock:
            self._parsed |= fresh
        return {**unread.known, **{ident: pipeline for ident, (_, pipeline) in fresh.items()}}

    def _refresh(self, connection: Connection) -> None:
        """Read which versions are active, if any was deployed since this was last done."""
        mark = tuple(connection.execute(_MARK).one())
        if mark == self._mark:
            return
        numbers = dict(_newest(connection))
        fresh = [item for item in numbers.items() if self._numbers.get(item[0]) != item[1]]
        topics = {one: topic for one, topic in self._topics.items() if one in numbers}
        for row in connection.execute(_TOPICS, _wanted(fresh)) if fresh else ():
            topics[row[0]] = EventTopic(row[1], row[2])
        ids: dict[EventTopic, set[str]] = {}
        for pipeline_id, topic in topics.items():
            ids.setdefault(topic, set()).add(pipeline_id)
        before, self._ids = self._ids, {}
        for topic, own in ids.items():
            name = topic_name(*topic)
            known = before.get(name)
            self._ids[name] = known if known is not None and known == own else frozenset(own)
        self._mark, self._numbers, self._topics = mark, numbers, topics
        for gone in self._parsed.keys() - numbers:
            del self._parsed[gone]
            self._mappings.pop(gone, None)


_MOST_NAMED = 20
"""Pipelines, or versions of one, that an error lists."""
_FEWEST_DIGITS, _FEWEST_FIGURES = 4, 6
"""Of a digest's beginning that names it; where it has figures alone, fewer are a number."""
_MARK = text("SELECT count(*), sum(hashtextextended(pipeline_id, number)) FROM pipeline_versions")
"""Versions are written once. Cost: 1 ms for 5,000 versions; it reads the index only."""
_WANTED = """FROM pipeline_versions
JOIN unnest(CAST(:pipeline_ids AS text[]), CAST(:numbers AS int[]))
  AS wanted (pipeline_id, number) USING (pipeline_id, number)"""
_TOPICS = text("SELECT pipeline_id, declaration->>'team', declaration->>'destination' " + _WANTED)
_VERSIONS = text("SELECT pipeline_id, number, CAST(declaration AS text) " + _WANTED)


_ACTIVE_ONES = """FROM pipelines CROSS JOIN LATERAL (
  SELECT declaration FROM pipeline_versions WHERE pipeline_id = pipelines.id
  ORDER BY number DESC LIMIT 1) AS active"""
_TEAM_DESTINATIONS = text(
    "SELECT DISTINCT pipelines.team, active.declaration->>'destination' AS destination "
    + _ACTIVE_ONES
)
_NOT_UNDEPLOYED = """ AND NOT EXISTS (
  SELECT FROM undeployments AS gone
  WHERE gone.pipeline_id = pipelines.id AND gone.done_at IS NOT NULL)"""
_SENDING_TEAMS = text(
    "SELECT DISTINCT pipelines.team, active.declaration->>'destination' AS destination "
    + _ACTIVE_ONES
    + " WHERE true"
    + _NOT_UNDEPLOYED
)
_SENDING = text(
    "SELECT pipelines.name "
    + _ACTIVE_ONES
    + " WHERE active.declaration->>'destination' = :destination"
    + _NOT_UNDEPLOYED
    + " ORDER BY 1"
)
_SENDERS = text(
    "SELECT pipelines.id, pipelines.team, active.declaration->>'destination' AS destination "
    + _ACTIVE_ONES
    + " WHERE pipelines.id = ANY(CAST(:ids AS text[]))"
)
_HEADS = text(
    "SELECT pipelines.id, active.declaration "
    "- CAST('{events,transformation_code,shared_code}' AS text[]) " + _ACTIVE_ONES
)
_TABLES_THERE = """
CROSS JOIN LATERAL (
  SELECT jsonb_path_query(active.declaration, '$.events.*.table')
  UNION ALL SELECT learned.declaration->'table' FROM (
    SELECT DISTINCT ON (event_name) event_name, declaration FROM mapping_versions
    WHERE mapping_versions.pipeline_id = pipelines.id ORDER BY event_name, number DESC) AS learned
  WHERE jsonb_exists(active.declaration->'events', learned.event_name)) AS spec (value)
CROSS JOIN LATERAL (
  SELECT spec.value->>'name' UNION ALL SELECT child->>'name'
  FROM jsonb_path_query(spec.value, '$.children[*]') AS child) AS found (name)"""
_TABLE = """SELECT DISTINCT pipelines.name AS pipeline, pipelines.team,
  active.declaration->>'destination' AS destination,
  active.declaration->>'schema_name' AS schema, found.name AS name """
_MAY_BE_ONE = """(lower({name} COLLATE "C") = ANY(CAST(:{folded} AS text[]))
    OR octet_length({name}) > char_length({name}))"""
"""Names that are ASCII are folded as Python does it; all others are compared by Python."""
_MAY_BE_OURS = (
    """ WHERE pipelines.id <> :id
  AND active.declaration->>'destination' <> ALL(CAST(:elsewhere AS text[]))
  AND """
    + _MAY_BE_ONE.format(name="(active.declaration->>'schema_name')", folded="schemas")
    + " AND "
    + _MAY_BE_ONE.format(name="found.name", folded="names")
)
_SHARED_TABLES = text(
    _TABLE
    + _ACTIVE_ONES
    + _TABLES_THERE
    + _MAY_BE_OURS
    + _NOT_UNDEPLOYED
    + " ORDER BY name, pipeline, destination, schema"
)
"""What is declared, and what was learned of these event names: it is in the mapping in force. What
cannot be read of another's declaration is not found in it."""
_OWNED_TABLES = text(
    _TABLE
    + _ACTIVE_ONES
    + _TABLES_THERE
    + _MAY_BE_OURS
    + """ AND pipelines.team <> :team AND NOT EXISTS (
  SELECT FROM undeployments AS gone WHERE gone.pipeline_id = pipelines.id
  AND gone.drop_tables AND gone.done_at IS NOT NULL)"""
    + " ORDER BY name, pipeline, destination, schema"
)
"""Those of other teams; also of a pipeline that was undeployed and left its tables."""
_DECLARING = text(
    "SELECT DISTINCT pipelines.name AS pipeline, active.declaration->>'schema_name' AS schema,"
    " found.name AS name "
    + _ACTIVE_ONES
    + _TABLES_THERE
    + " WHERE active.declaration->>'destination' = :destination"
    + " AND lower(found.name) = lower(:name)"
    + " AND (:schema = '' OR lower(active.declaration->>'schema_name') = lower(:schema))"
    + _NOT_UNDEPLOYED
    + " ORDER BY 1, 2, 3 LIMIT 20"
)
_OTHER_CODE_THERE = """
CROSS JOIN LATERAL jsonb_each_text(active.declaration->'shared_code') AS there
JOIN jsonb_each_text(CAST(:code AS jsonb)) AS own
  ON own.key = there.key AND own.value <> there.value
WHERE pipelines.id <> :id
  AND pipelines.id NOT IN (SELECT pipeline_id FROM undeployments) ORDER BY 1, 2"""
_OTHER_SHARED_CODE = text(
    "SELECT pipelines.name, there.key, there.value " + _ACTIVE_ONES + _OTHER_CODE_THERE
)


_TABLES_DROPPED = """ JOIN undeployments AS gone ON gone.pipeline_id = pipelines.id
  AND gone.drop_tables AND gone.dropping_at IS NOT NULL AND gone.done_at IS NULL
CROSS JOIN LATERAL (
  SELECT jsonb_path_query(active.declaration, '$.events.*.table')
  UNION ALL SELECT declaration->'table' FROM mapping_versions
  WHERE mapping_versions.pipeline_id = pipelines.id) AS spec (value)
CROSS JOIN LATERAL (
  SELECT spec.value->>'name' UNION ALL SELECT child->>'name'
  FROM jsonb_path_query(spec.value, '$.children[*]') AS child) AS found (name)"""
_DROPPED_TABLES = text(
    _TABLE
    + _ACTIVE_ONES
    + _TABLES_DROPPED
    + _MAY_BE_OURS
    + " ORDER BY name, pipeline, destination, schema"
)
"""Also those that were learned."""


_TAKEN_IN = text(
    """
SELECT name FROM unnest(CAST(:names AS text[])) AS name WHERE EXISTS (
  SELECT FROM ledger_totals WHERE pipeline_id = :id AND event_name = name
  AND stage = 'ingestion' AND passed > 0) OR EXISTS (
  SELECT FROM ledger CROSS JOIN LATERAL jsonb_array_elements(counts) AS row
  WHERE NOT folded AND pipeline_id = :id AND row->>0 = name AND row->>1 = 'ingestion'
  AND (row->3->>{passed})::bigint > 0) ORDER BY 1
""".replace("{passed}", str(COUNT_COLUMNS.index("passed")))
)
"""Event names of which something was taken in: it has its version, also before it is loaded."""
_STANDS = text("""
SELECT EXISTS (SELECT FROM connector_positions
  WHERE pipeline_id = :id AND jsonb_typeof(cursor) = 'object' AND reread_asked_at IS NULL)
""")


_LOADED_TABLES = text(
    "SELECT pipelines.team, pipelines.name, active.declaration->>'destination', spec->>'name' "
    + _ACTIVE_ONES
    + """ JOIN consumers ON consumers.name = 'loading/' || (active.declaration->>'destination')
    AND split_part(consumers.holder, ':', 1) = :cluster
CROSS JOIN LATERAL jsonb_path_query(active.declaration, '$.events.*.table') AS spec
ORDER BY 1, 2, 4"""
)


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """A table of a deployed pipeline."""

    team: str
    pipeline: str
    destination: str
    table: str


def loaded_tables(tracker: TrackerStore, cluster: str) -> list[LoadedTable]:
    """Return the tables that a virtual cluster's application loads, by team, pipeline and name.

    Cost: one statement, which reads each active declaration.
    """
    with tracker.transaction() as connection:
        rows = connection.execute(_LOADED_TABLES, {"cluster": cluster}).all()
    return [LoadedTable(*row) for row in rows]


class DeclaredTable(NamedTuple):
    """A table of a deployed pipeline, whether a load has made it yet or not."""

    pipeline: str
    schema: str
    name: str

    @property
    def table(self) -> str:
        """Return its name with the schema's."""
        return f"{self.schema}.{self.name}"


def sending_pipelines(connection: Connection, destination: str) -> list[str]:
    """Return the names of pipelines whose rows go to a destination; no undeployed one's.

    Cost: one statement, which reads each active declaration.
    """
    return [row.name for row in connection.execute(_SENDING, {"destination": destination})]


def declaring_pipelines(tracker: TrackerStore, destination: str, table: str) -> list[DeclaredTable]:
    """Return the tables of a name that deployed pipelines write, some at most; no undeployed one's.

    Args:
        tracker: where pipelines are kept.
        destination: its name.
        table: the table's, with its schema and a dot before it, or alone; in any case.

    Cost: one statement, which reads each active declaration.
    """
    schema, _, name = table.rpartition(".")
    given = {"destination": destination, "schema": schema, "name": name}
    with tracker.transaction() as connection:
        return [DeclaredTable(*row) for row in connection.execute(_DECLARING, given)]


def _wanted(versions: Sequence[tuple[str, int]]) -> dict[str, list[Any]]:
    return {
        "pipeline_ids": [pipeline_id for pipeline_id, _ in versions],
        "numbers": [number for _, number in versions],
    }


_HISTORY = text("""
SELECT versions.pipeline_id, versions.number, versions.version, versions.deployed_at,
  versions.deployed_by, COALESCE(entry.detail->>'place', '') AS place,
  CAST(entry.detail->>'rolled_back_to' AS int) AS rolled_back_to,
  COALESCE(entry.detail->>'why', '') AS why
FROM pipeline_versions AS versions LEFT JOIN (
  SELECT DISTINCT ON (detail->>'number') detail->>'number' AS number, detail FROM audit_log
  WHERE target = :id AND action IN ('deploy', 'rollback') ORDER BY detail->>'number', id DESC
  ) AS entry ON entry.number = CAST(versions.number AS text)
WHERE versions.pipeline_id = :id ORDER BY versions.number DESC
""")
_PAST_UNDEPLOYMENTS = text("""
SELECT * FROM (
  SELECT id, action, at, who, coalesce(detail->>'why', '') AS why,
    coalesce(CAST(detail->>'drop_tables' AS boolean), false) AS drop_tables,
    coalesce(detail->'dropped', '[]') AS dropped,
    coalesce(max(CAST(detail->>'number' AS int)) OVER (ORDER BY id), 1) AS number
  FROM audit_log
  WHERE target = :id AND action IN ('deploy', 'rollback', 'undeploy', 'undeployed')
) AS entries WHERE action IN ('undeploy', 'undeployed') ORDER BY id
""")
_AGREED = "deploy_unchanged"
"""In the audit log: a deploy of a folder that holds what is active already."""
_MOST_AGREED = 16
_AGREED_PLACES = text("""
SELECT count(*) FROM audit_log
WHERE target = :id AND action = :agreed AND detail->>'number' = :number
""")
_LAST_OF_PLACE = text("""
SELECT CAST(detail->>'number' AS int) AS number, action FROM audit_log
WHERE target = :id AND action IN ('deploy', :agreed) AND detail->>'place' = :place
ORDER BY CAST(detail->>'number' AS int) DESC, id DESC LIMIT 1
""")
_ACTIVE_VERSIONS = text("""
SELECT pipelines.name, pipelines.team, active.pipeline_id, active.number, active.version,
  active.deployed_at, active.deployed_by, gone.asked_at IS NOT NULL AS is_undeployed,
  gone.asked_at IS NOT NULL AND gone.done_at IS NULL AS drains,
  coalesce(gone.problem, '') AS problem
FROM pipelines LEFT JOIN undeployments AS gone ON gone.pipeline_id = pipelines.id
CROSS JOIN LATERAL (
  SELECT pipeline_id, number, version, deployed_at, deployed_by FROM pipeline_versions
  WHERE pipeline_id = pipelines.id ORDER BY number DESC LIMIT 1) AS active ORDER BY pipelines.name
""")
_NUMBERS = text("""
SELECT pipeline_id, max(number) FROM pipeline_versions
JOIN unnest(CAST(:pipeline_ids AS text[]), CAST(:versions AS text[]))
  AS wanted (pipeline_id, version) USING (pipeline_id, version) GROUP BY pipeline_id
""")


def _history(connection: Connection, pipeline_id: str) -> list[DeployedVersion]:
    rows = connection.execute(_HISTORY, {"id": pipeline_id})
    return [DeployedVersion(**row._asdict()) for row in rows]


def read_history(tracker: TrackerStore, name: str) -> list[DeployedVersion]:
    """Return the versions of a pipeline, by name or id, the active one first.

    Raises:
        InputError: nothing of that name is deployed.

    Cost: one statement, which looks through the audit log.
    """
    with tracker.transaction() as connection:
        return _history(connection, deployed_id(connection, name))


def read_past_undeployments(tracker: TrackerStore, name: str) -> list[PastUndeployment]:
    """Return the undeployments of a pipeline, by name or id, the newest first.

    Raises:
        InputError: nothing of that name is deployed.

    Cost: one statement, which looks through the audit log.
    """
    entries: list[PastUndeployment] = []
    with tracker.transaction() as connection:
        given = {"id": deployed_id(connection, name)}
        rows = connection.execute(_PAST_UNDEPLOYMENTS, given).all()
    for row in rows:
        if row.action == "undeploy":
            entries.append(PastUndeployment(row.number, row.at, row.who, row.why, row.drop_tables))
        elif entries:
            entries[-1] = replace(entries[-1], done_at=row.at, dropped=tuple(row.dropped))
    return entries[::-1]


def read_version(tracker: TrackerStore, version: DeployedVersion) -> Pipeline:
    """Return what a version declares."""
    with tracker.transaction() as connection:
        return _version_of(connection, version)


def _version_of(connection: Connection, version: DeployedVersion) -> Pipeline:
    [row] = _versions(connection, [(version.pipeline_id, version.number)])
    return Pipeline.from_json(json.loads(row[2]))


@dataclass(frozen=True, slots=True)
class ActiveVersion:
    """What is active of a pipeline, beside what a folder has of it."""

    name: str
    team: str
    active: DeployedVersion
    folder_number: int | None = None
    """The number under which what the folder has was deployed; None: it never was."""
    is_undeployed: bool = False
    """Its source is not read any more."""
    drains: bool = False
    """It is, but some of it may be on its way still."""
    problem: str = ""
    """Why its tables could not be dropped; "": they could, or were not to be."""


def compare_active(tracker: TrackerStore, folders: Mapping[str, str]) -> dict[str, ActiveVersion]:
    """Return what is active by pipeline id, of all that is deployed; no declaration is read.

    Args:
        tracker: where pipelines are kept.
        folders: {pipeline id: version in its folder}.
    """
    wanted = {"pipeline_ids": list(folders), "versions": list(folders.values())}
    with tracker.transaction() as connection:
        numbers = {row[0]: int(row[1]) for row in connection.execute(_NUMBERS, wanted)}
        rows = [dict(row) for row in connection.execute(_ACTIVE_VERSIONS).mappings()]
    return {
        row["pipeline_id"]: ActiveVersion(
            row.pop("name"),
            row.pop("team"),
            is_undeployed=row.pop("is_undeployed"),
            drains=row.pop("drains"),
            problem=row.pop("problem"),
            active=DeployedVersion(**row),
            folder_number=numbers.get(row["pipeline_id"]),
        )
        for row in rows
    }


def _newest(connection: Connection) -> list[tuple[str, int]]:
    """Return (pipeline id, number of its active version) of all deployed pipelines."""
    table = pipeline_versions.c
    query = select(table.pipeline_id, func.max(table.number)).group_by(table.pipeline_id)
    return [(row[0], int(row[1])) for row in connection.execute(query)]


def _versions(connection: Connection, wanted: Sequence[tuple[str, int]]) -> Sequence[Any]:
    """Return (pipeline id, number, declaration as text) of versions by pipeline id and number."""
    return connection.execute(_VERSIONS, _wanted(wanted)).all()


def active_pipelines(tracker: TrackerStore) -> dict[str, Pipeline]:
    """Return {pipeline id: active version} of all deployed pipelines.

    Cost: grows with all event names: 1,000 pipelines of 100 each take 9 s of CPU, and 730 MB.
    Where these are not looked at, ask for `active_heads`; for one pipeline, `active_pipeline`.
    """
    return ActivePipelines(tracker).read()


def elsewhere(connection: Connection, pipeline_ids: Collection[str], topic: str) -> frozenset[str]:
    """Return those pipelines that send to another topic; undeployed ones too.

    Cost: one statement, by primary keys.
    """
    rows = connection.execute(_SENDERS, {"ids": list(pipeline_ids)})
    return frozenset(row.id for row in rows if topic_name(row.team, row.destination) != topic)


def active_heads(tracker: TrackerStore) -> dict[str, PipelineHead]:
    """Return {pipeline id: its active version without event names and code} of all deployed ones.

    Cost: one statement, which reads each active declaration and sends what is small of it.
    """
    with tracker.transaction() as connection:
        rows = connection.execute(_HEADS).all()
    return {pipeline_id: PipelineHead.from_json(head) for pipeline_id, head in rows}


def active_pipeline(tracker: TrackerStore, name: str) -> Pipeline:
    """Return the active version of one pipeline, by name or id; no other declaration is read.

    Raises:
        InputError: nothing of that name is deployed.
    """
    with tracker.transaction() as connection:
        pipeline_id = deployed_id(connection, name)
    return pipeline_of(tracker, pipeline_id)


def deployed_id(connection: Connection, name: str) -> str:
    """Return the id of a deployed pipeline, by name or id.

    Raises:
        InputError: nothing of that name is deployed; says what is.
    """
    query = select(pipelines.c.id, pipelines.c.name).order_by(pipelines.c.name)
    deployed = connection.execute(query).all()
    ids = {one.id: one.id for one in deployed} | {one.name: one.id for one in deployed}
    if name in ids:
        return str(ids[name])
    names = [str(one.name) for one in deployed]
    known = ", ".join(names[:_MOST_NAMED]) or "none"
    more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    near = hint(name, names)
    advice = "" if near else "; run `waybill pipelines deploy`"
    raise NotFoundError(f"no pipeline {name!r} is deployed (deployed: {known}{more}{near}){advice}")


def pipeline_of(tracker: TrackerStore, pipeline_id: str) -> Pipeline:
    """Return the active version of one pipeline by its id, where a name may be the same.

    Raises:
        InputError: it is not deployed.
    """
    with tracker.transaction() as connection:
        row = _active_row(connection, pipeline_id)
    if row is None:
        raise NotFoundError(f"no pipeline with id {pipeline_id!r} is deployed")
    return Pipeline.from_json(row.declaration)


def active_version(tracker: TrackerStore, pipeline_id: str) -> str | None:
    """Return the version of a pipeline that is deployed now; None: there is none."""
    table = pipeline_versions.c
    query = select(table.version).where(table.pipeline_id == pipeline_id)
    with tracker.transaction() as connection:
        return connection.execute(query.order_by(table.number.desc()).limit(1)).scalar()


def keeps_source(tracker: TrackerStore, pipeline_id: str) -> bool:
    """Tell whether the version of a pipeline that is deployed now keeps sources."""
    return _declared(tracker, pipeline_id, "keep_source") is True


@dataclass(frozen=True, slots=True)
class ActiveSource:
    """What the active version of a pipeline says of its source, and since when."""

    version: str
    deployed_at: datetime
    keeps_source: bool
    is_pushed: bool
    """It sends to the collector, so it cannot be read again."""
    brings_deletes: bool
    """It is declared to; what is deleted there is not there to be read again."""


def active_sources(tracker: TrackerStore, pipeline_ids: Collection[str]) -> dict[str, ActiveSource]:
    """Return {pipeline id: the source of its active version}. Cost: one query."""
    table = pipeline_versions.c
    keeps, source = table.declaration["keep_source"], table.declaration["source"]
    query = (
        select(table.pipeline_id, table.version, table.deployed_at, keeps, source)
        .where(table.pipeline_id.in_(sorted(pipeline_ids)))
        .ext(distinct_on(table.pipeline_id))
        .order_by(table.pipeline_id, table.number.desc())
    )
    with tracker.transaction() as connection:
        rows = connection.execute(query).all()
    return {
        name: ActiveSource(
            version,
            at,
            keeps is True,
            source["connector"] == PUSHED,
            brings_deletes(source["connector"], source.get("options", {})),
        )
        for name, version, at, keeps, source in rows
    }


def _declared(tracker: TrackerStore, pipeline_id: str, *path: str) -> Any:
    """Return one value of the active declaration; None: it says none, or there is none."""
    table = pipeline_versions.c
    query = select(table.declaration[path]).where(table.pipeline_id == pipeline_id)
    with tracker.transaction() as connection:
        return connection.execute(query.order_by(table.number.desc()).limit(1)).scalar()


def team_destinations(connection: Connection, *, undeployed: bool = True) -> dict[str, set[str]]:
    """Return {team: destinations that its deployed pipelines write to}.

    Cost: one statement, which reads each active declaration and parses none.

    Args:
        connection: to the tracker.
        undeployed: also of pipelines that were undeployed: events of theirs may be on their way.
    """
    found: dict[str, set[str]] = {}
    for row in connection.execute(_TEAM_DESTINATIONS if undeployed else _SENDING_TEAMS):
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
