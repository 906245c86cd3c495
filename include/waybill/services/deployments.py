"""Deployed versions of pipelines: made, compared with folders, taken back."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waybill.deployment import (
    ActiveVersion,
    DeployedVersion,
    DeployOrigin,
    DeployReport,
    PastUndeployment,
    compare_active,
    deploy,
    pick_version,
    read_history,
    read_past_undeployments,
    read_version,
    refuse_foreign_connection,
    roll_back,
)
from waybill.mappings import TablePlaces
from waybill.pipelines import (
    DeployAllowances,
    NamesMissingError,
    Problem,
    RunEnvironment,
    check_names,
    check_sources,
    check_version,
    load_pipeline,
)
from waybill.services.source_addresses import closed_sources
from waybill.storage import open_tracker

if TYPE_CHECKING:
    from waybill.access import Decision
    from waybill.pipelines import Pipeline
    from waybill.settings import Settings


_NOTHING = DeployAllowances()
_BY_CODE = DeployAllowances(force=True, missing_ok=True)


def run_deploy(
    settings: Settings,
    directory: Path,
    *,
    who: str,
    allows: DeployAllowances = _BY_CODE,
    deep: bool = False,
) -> DeployReport:
    """Deploy the declaration in a folder.

    Args:
        settings: all.
        directory: with the declaration.
        who: deploys.
        allows: what it may go over; the report warns of names that are missing, and of events
            that get their version from elsewhere.
        deep: try its destination, and its code on a sample, before: see ``deep_check``.

    Raises:
        TrialFailedError: it was tried, and cannot work.
        OtherVersionError: events would get their version from elsewhere, and that is not allowed.
        StaleFolderError: another version was deployed from elsewhere since, and it is not forced.
        InputError: the declaration is wrong, not fit for what is deployed, or was changed while it
            was checked.
    """
    from waybill.ingestion.connectors import open_connector

    pipeline = load_pipeline(directory)
    refuse_foreign_connection(pipeline, settings.sources)
    roots = settings.sources.roots_of(pipeline.team)
    open_connector(pipeline.source, directory, roots, events=pipeline.events)  # reads nothing
    environment = RunEnvironment.of(settings.destinations, settings.spark.master)
    missing = check_names(directory, environment)
    if missing and not allows.missing_ok:
        raise NamesMissingError(missing)
    elsewhere = [one for one in check_sources(directory, environment) if not one.field]
    elsewhere += closed_sources(settings, pipeline, lambda: directory)
    tried, facts = _tried(settings, directory, pipeline, missing) if deep else ((), ())
    place = f"{socket.gethostname()}:{directory.resolve()}"
    with open_tracker(settings.tracker) as tracker:
        report = deploy(
            tracker,
            directory,
            who=who,
            places=TablePlaces(settings.destinations),
            source_roots=roots,
            origin=DeployOrigin(
                place,
                force=allows.force,
                version=pipeline.version,
                version_ok=allows.version_ok,
            ),
        )
    said = map(_sentence, [*missing, *elsewhere, *tried])
    return replace(report, warnings=(*report.warnings, *said), tried=tuple(facts))


def _tried(
    settings: Settings, directory: Path, pipeline: Pipeline, missing: Sequence[Problem]
) -> tuple[Sequence[Problem], Sequence[str]]:
    """Try a pipeline; return (of what to warn, what is right).

    Raises:
        TrialFailedError: it cannot work.
    """
    from waybill.services.pipeline_trial import TrialFailedError, deep_check

    has_imports = all(one.field for one in missing)
    found = deep_check(settings, directory, pipeline, has_imports=has_imports)
    if found.problems:
        raise TrialFailedError(list(found.problems))
    return [one for one in found.warnings if one.field != _NAME or not missing], found.facts


_NAME = "destination.name"


def _sentence(problem: Problem) -> str:
    return f"{problem.file}:{problem.line}: {problem.message}"


def run_rollback(
    settings: Settings,
    name: str,
    version: str | None,
    decision: Decision,
    allows: DeployAllowances = _NOTHING,
) -> DeployReport:
    """Make an earlier version of a pipeline active again.

    It is looked at as a deploy is: its connector is opened, which reads nothing; its imports and
    its destination are looked for.

    Args:
        settings: all.
        name: of the pipeline, or its id.
        version: its number, or the beginning of its digest; None: the last one that differs from
            the active one.
        decision: whose it is, and why.
        allows: what it may go over; the report warns of names that are missing, and of events
            that get their version from elsewhere.

    Raises:
        OtherVersionError: events would get their version from elsewhere, and that is not allowed.
        InputError: there is no such pipeline or version, or it is refused as a deploy would be.
    """
    environment = RunEnvironment.of(settings.destinations, settings.spark.master)
    warnings: list[Problem] = []

    def check(pipeline: Pipeline) -> TablePlaces:
        from waybill.ingestion.connectors import open_connector

        folder = settings.pipelines_dir / pipeline.name
        refuse_foreign_connection(pipeline, settings.sources)
        roots = settings.sources.roots_of(pipeline.team)
        open_connector(pipeline.source, folder, roots, events=pipeline.events)
        label = f"version {pipeline.version}"
        missing, elsewhere = check_version(pipeline, label, folder, environment)
        if missing and not allows.missing_ok:
            raise NamesMissingError(missing)
        warnings.extend([*missing, *elsewhere])
        return TablePlaces(settings.destinations)

    with open_tracker(settings.tracker) as tracker:
        report = roll_back(tracker, name, version, decision, check, version_ok=allows.version_ok)
    return replace(report, warnings=(*report.warnings, *map(_sentence, warnings)))


def deploy_history(settings: Settings, name: str) -> list[DeployedVersion]:
    """Return the versions of a pipeline, by name or id, the active one first.

    Raises:
        InputError: nothing of that name is deployed.
    """
    with open_tracker(settings.tracker) as tracker:
        return read_history(tracker, name)


def past_undeployments(settings: Settings, name: str) -> list[PastUndeployment]:
    """Return the undeployments of a pipeline, by name or id, the newest first.

    Raises:
        InputError: nothing of that name is deployed.
    """
    with open_tracker(settings.tracker) as tracker:
        return read_past_undeployments(tracker, name)


def active_beside(settings: Settings, declared: Iterable[Pipeline]) -> dict[str, ActiveVersion]:
    """Return what is active of all that is deployed, by pipeline id, beside these folders."""
    versions = {pipeline.id: pipeline.version for pipeline in declared}
    with open_tracker(settings.tracker) as tracker:
        return compare_active(tracker, versions)


@dataclass(frozen=True, slots=True)
class VersionSide:
    """One side of a comparison."""

    label: str
    """``active, number 2 (0123456789ab)`` or ``folder include/pipelines/flights (…)``."""
    pipeline: Pipeline


@dataclass(frozen=True, slots=True)
class VersionDiff:
    """How two versions of a pipeline differ."""

    before: VersionSide
    after: VersionSide

    @property
    def is_same(self) -> bool:
        """Tell whether they are one version."""
        return self.before.pipeline.version == self.after.pipeline.version

    def lines(self) -> list[str]:
        """Return a unified diff of declaration and code, without line ends; empty: none differs."""
        old, new = (_files(side.pipeline) for side in (self.before, self.after))
        return [line for file in {**old, **new} for line in self._unified(file, old, new)]

    def _unified(self, file: str, old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
        """Return how a file differs; one that a side does not have is empty there."""
        from difflib import unified_diff

        before, after = (side[file].split("\n") if file in side else [] for side in (old, new))
        names = [
            f"{file}, {label}" if file in side else f"no {file}, {label}"
            for side, label in ((old, self.before.label), (new, self.after.label))
        ]
        return list(unified_diff(before, after, names[0], names[1], lineterm=""))

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "from": {"version": self.before.pipeline.version, "label": self.before.label},
            "to": {"version": self.after.pipeline.version, "label": self.after.label},
            "same": self.is_same,
            "diff": "\n".join(self.lines()),
        }


def version_diff(
    settings: Settings, name: str, sides: Sequence[str], folder: Mapping[str, Path]
) -> VersionDiff:
    """Return how two versions of a pipeline differ.

    Args:
        settings: all.
        name: of the pipeline, or its id.
        sides: two of ``active``, ``folder``, a number, the beginning of a digest.
        folder: {name or id of a pipeline: its folder}.

    Raises:
        InputError: there is no such pipeline, version or folder.
    """
    from waybill.errors import InputError

    with open_tracker(settings.tracker) as tracker:
        versions = read_history(tracker, name)

        def side(given: str) -> VersionSide:
            if given != "folder":
                one = versions[0] if given == "active" else pick_version(versions, given)
                is_active = "active, " if one == versions[0] else ""
                label = f"{is_active}number {one.number} ({one.version})"
                return VersionSide(label, read_version(tracker, one))
            directory = folder.get(versions[0].pipeline_id) or folder.get(name)
            if directory is None:
                raise InputError(
                    f"no folder declares pipeline {name!r}; name two versions of "
                    f"`waybill pipelines history {name}`, or another folder with --from"
                )
            pipeline = load_pipeline(directory)
            return VersionSide(f"folder {directory} ({pipeline.version})", pipeline)

        before, after = map(side, sides)
    return VersionDiff(before, after)


def _files(pipeline: Pipeline) -> dict[str, str]:
    """Return all of a version as files, by name."""
    code = {"transformation.py": pipeline.transformation_code}
    return {"pipeline.yaml": _declared(pipeline), **code, **pipeline.shared_code}


def _declared(pipeline: Pipeline) -> str:
    """Return all of a version but its code, as YAML.

    Sorted are names that the tracker gives back in an order of its own.
    """
    import yaml

    content = pipeline.to_json()
    for name in ("transformation_code", "shared_code", "version"):
        content.pop(name, None)
    content["events"] = dict(sorted(content["events"].items()))
    for name in ("columns", "options"):
        content["source"][name] = json.loads(json.dumps(content["source"][name], sort_keys=True))
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100))
