"""``waybill pipelines history|rollback|diff``: what was deployed, and what a folder has instead.

Names and texts come from users: they are never read as markup, and control characters are shown.
With ``--json`` standard output is one JSON value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waybill.cli.command import DEPLOYED
from waybill.cli.exit_codes import ExitCode
from waybill.cli.options import AsJson, Reason, Who, decision, takes
from waybill.cli.output import echo, plain, print_folded, print_json, terminal
from waybill.cli.tables import Cell, Column, Styled, Table, print_table
from waybill.pipelines import DeployAllowances

if TYPE_CHECKING:
    from rich.text import Text

    from waybill.deployment import ActiveVersion, DeployedVersion, PastUndeployment
    from waybill.pipelines import Pipeline
    from waybill.settings import Settings

Name = Annotated[str, typer.Argument(metavar=DEPLOYED, help="The pipeline, by name or id.")]
_LEFT_OPEN = ("owner", "schedule", "connector", "events", "destination", "schema", "topic")
"""What a list says of a folder, and not of what is in none."""
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True, slots=True)
class ActiveVersions:
    """What is active beside what folders have."""

    declared: frozenset[str] | None = None
    """Ids of all pipelines in all folders; None: not all were looked at."""
    active: Mapping[str, ActiveVersion] = field(default_factory=dict)
    """By pipeline id, of all that is deployed."""
    unknown: str = ""
    """Why it is not known what is active; "": it is."""

    def state(self, pipeline: Pipeline) -> str:
        """Return how a folder stands to what is active.

        ``same``; ``changed``: it was never deployed as it is; ``older``: it was active before;
        ``not_deployed``; ``undeploying``, ``undeployed``: its source is not read; ``unknown``.
        """
        if self.unknown:
            return "unknown"
        found = self.active.get(pipeline.id)
        if found is None:
            return "not_deployed"
        if found.is_undeployed:
            return "undeploying" if found.drains else "undeployed"
        if found.active.version == pipeline.version:
            return "same"
        return "changed" if found.folder_number is None else "older"

    def mark(self, pipeline: Pipeline) -> str:
        """Return what is active, for a cell of a table."""
        state = self.state(pipeline)
        if state in {"undeploying", "undeployed"}:
            return state
        if state in {"unknown", "not_deployed"}:
            return "not known" if state == "unknown" else "none"
        active = self.active[pipeline.id].active
        return f"number {active.number}" if state == "same" else active.version

    def lines(self, pipeline: Pipeline) -> list[str]:
        """Return a sentence where the folder's version and the active one differ."""
        state = self.state(pipeline)
        found = self.active.get(pipeline.id)
        if found is not None and found.problem:
            return [
                f"{pipeline.name}: its tables are not dropped: {found.problem}; mend that, or keep "
                f"them: waybill pipelines undeploy {pipeline.name} --keep-tables"
            ]
        if found is None or state not in {"changed", "older"}:
            return []
        was = (
            "was never deployed"
            if found.folder_number is None
            else f"is number {found.folder_number}, which was active before"
        )
        return [
            f"{pipeline.name}: the folder's version {pipeline.version} {was}. Active is "
            f"{found.active}; see: waybill pipelines diff {pipeline.name}"
        ]

    def alone(self) -> list[ActiveVersion]:
        """Return what is deployed, and in none of the folders."""
        if self.declared is None:
            return []
        return [
            one
            for ident, one in self.active.items()
            if ident not in self.declared and (one.drains or not one.is_undeployed)
        ]

    def to_json(self, pipeline: Pipeline) -> dict[str, Any]:
        """Return what is active of a pipeline, and how its folder stands to that."""
        found = self.active.get(pipeline.id)
        return {
            "active": None if found is None else _shown(found.active),
            "state": self.state(pipeline),
            "folder_number": None if found is None else found.folder_number,
            "problem": "" if found is None else found.problem,
        }

    @staticmethod
    def alone_json(found: ActiveVersion) -> dict[str, Any]:
        """Return what is known of a pipeline that is in none of the folders."""
        return {
            **dict.fromkeys(_LEFT_OPEN),
            "id": found.active.pipeline_id,
            "name": found.name,
            "team": found.team,
            "version": None,
            "active": _shown(found.active),
            "state": "undeploying" if found.drains else "no_folder",
            "folder_number": None,
            "problem": found.problem,
        }


def active_versions(declared: Sequence[Pipeline], *, is_all: bool = False) -> ActiveVersions:
    """Return what is active beside these folders; a tracker that is away is not waited for.

    Args:
        declared: what is in the folders.
        is_all: these are all of the folder of pipelines: what else is deployed is told as well,
            unless a further folder of the settings declares it.
    """
    from waybill.errors import WaybillError
    from waybill.pipelines import declared_folders
    from waybill.services import active_beside
    from waybill.settings import Settings
    from waybill.waiting import waiting

    settings = Settings()
    ids = None
    if is_all:
        ids = frozenset(one.id for one in declared)
        ids |= declared_folders(settings.more_pipelines_dirs).keys()
    try:
        with waiting(0.0, lambda _words: None):
            return ActiveVersions(ids, active_beside(settings, declared))
    except WaybillError as error:
        return ActiveVersions(unknown=str(error).partition("\n")[0])


def tell_active(settings: Settings, pipeline_id: str, done: str) -> DeployedVersion | None:
    """Say on standard error which version is active, and whether the folder has another one.

    Args:
        settings: all.
        pipeline_id: the pipeline.
        done: what becomes of its events with it: "replayed".

    Returns:
        The version; None: it is not deployed.
    """
    return tell_all_active(settings, [pipeline_id], done).get(pipeline_id)


def deployed_meanwhile(pipeline_id: str, before: DeployedVersion | None) -> DeployedVersion | None:
    """Return the version that took the place of an active one since; standard error says so.

    Args:
        pipeline_id: the pipeline.
        before: what was active; None: it is not compared.
    """
    if before is None:
        return None
    found = active_versions([])
    if found.unknown:
        print_folded([f"whether it was deployed meanwhile is not known: {found.unknown}"], err=True)
    now = found.active[pipeline_id].active if pipeline_id in found.active else before
    if now.number == before.number:
        return None
    words = (
        f"deployed meanwhile: some events were processed by version {now.version} (number "
        f"{now.number}), not by {before.version} (number {before.number})"
    )
    print_folded([words], err=True, style="yellow")
    return now


def tell_all_active(
    settings: Settings, pipeline_ids: Collection[str], done: str
) -> dict[str, DeployedVersion]:
    """Say on standard error what ``tell_active`` does; of several only where the folder differs.

    Returns:
        {pipeline id: version} of those that are deployed.
    """
    from waybill.pipelines import DeclarationError, declared_folders, load_pipeline

    roots = (settings.pipelines_dir, *settings.more_pipelines_dirs)
    folders = declared_folders(roots)
    declared: dict[str, Pipeline] = {}
    mistaken: set[str] = set()
    for name in pipeline_ids:
        if name in folders:
            try:
                declared[name] = load_pipeline(folders[name])
            except DeclarationError:
                mistaken.add(name)
    found = active_versions(list(declared.values()))
    deployed = {name: found.active[name] for name in pipeline_ids if name in found.active}
    for name, one in deployed.items():
        if len(pipeline_ids) == 1:
            version = f"{one.active.version} (number {one.active.number})"
            print_folded([f"{done} with version {version}"], err=True)
        if name in mistaken:
            words = f"the folder has mistakes, see: waybill pipelines check {quote(one.name)}"
            print_folded([words], err=True)
        print_folded(_differences(found, one, declared.get(name)), err=True)
    return {name: one.active for name, one in deployed.items()}


def _differences(found: ActiveVersions, one: ActiveVersion, pipeline: Pipeline | None) -> list[str]:
    """Return how a pipeline's folder differs from what is active; nothing where it does not."""
    if pipeline is None or pipeline.id != one.active.pipeline_id:
        return []
    state = found.state(pipeline)
    if state == "changed":
        name = quote(one.name)
        return [f"the folder has changes that are not deployed: waybill pipelines deploy {name}"]
    return found.lines(pipeline) if state == "older" else []


def history(name: Name, *, as_json: AsJson = False) -> None:
    """List a pipeline's versions, the newest first, and when and why it was undeployed.

    Each with when, by whom and from where. No version is active once a pipeline is undeployed.
    """
    from waybill.services import deploy_history, past_undeployments
    from waybill.settings import Settings

    settings = Settings()
    undeployments = past_undeployments(settings, name)  # first: a deploy between has its version
    found = deploy_history(settings, name)
    if as_json:
        print_json([_version_json(one, found, undeployments) for one in found])
        return
    print_table(_history_table(found, undeployments))


@takes(DeployAllowances, without=("force",))
def rollback(
    name: Name,
    version: Annotated[
        str | None,
        typer.Argument(help="Its number, or the first 4 characters of its version, or more."),
    ] = None,
    who: Who = None,
    why: Reason = "",
    *,
    request: DeployAllowances,
    as_json: AsJson = False,
) -> None:
    """Make a version that was deployed before active again: the last other one, if none is named.

    It is checked as a deploy is, and applications take it with their next batch. The folder stays
    as it is: bring the change into it, or the next deploy is refused.
    """
    from waybill.errors import InputError
    from waybill.pipelines import NamesMissingError
    from waybill.services import run_rollback
    from waybill.settings import Settings

    try:
        report = run_rollback(Settings(), name, version, decision(who, why), request)
    except NamesMissingError as error:
        raise InputError(f"{error}\n--missing-ok rolls back all the same") from error
    if as_json:
        print_json(report.to_json())
        return
    if not report.changed:
        echo(plain(f"{report.pipeline}: version {report.version} was active already"))
        return
    print_folded(
        [
            f"{report.pipeline}: version {report.version} is active again, as number "
            f"{report.number} (it was number {report.rolled_back_to})",
            f"  in place of {report.replaced}",
            "the folder it was deployed from is as it was, and so is its DAG: the schedule is that "
            "of the folder",
        ]
    )
    print_folded([f"warning: {one}" for one in report.warnings], err=True)


def diff(
    name: Name,
    a: Annotated[
        str, typer.Argument(help="`active`, `folder`, a number, or the beginning of a version.")
    ] = "active",
    b: Annotated[str, typer.Argument(help="The same, of what it is compared with.")] = "folder",
    *,
    directory: Annotated[
        Path | None,
        typer.Option("--from", help="Folder of pipelines, or one pipeline's.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare two versions of a pipeline: its declaration, in Waybill's own form, and its code.

    Exit code 2: they differ.
    """
    from waybill.services import version_diff
    from waybill.settings import Settings

    settings = Settings()
    folders = _folders(settings, directory) if "folder" in {a, b} else {}
    found = version_diff(settings, name, (a, b), folders)
    if as_json:
        print_json(found.to_json())
    elif found.is_same:
        print_folded([f"{name}: {found.before.label} and {found.after.label} are the same"])
    else:
        _print_diff(found.lines())
    if not found.is_same:
        raise typer.Exit(ExitCode.FOUND)


def _folders(settings: Settings, directory: Path | None) -> dict[str, Path]:
    """Return the folder of each declared pipeline, by id and by name."""
    from waybill.pipelines import declared_folders

    roots = [settings.pipelines_dir, *settings.more_pipelines_dirs]
    return declared_folders(roots if directory is None else [directory])


def _shown(version: DeployedVersion) -> dict[str, Any]:
    return version.to_json()


def _version_json(
    version: DeployedVersion,
    found: Sequence[DeployedVersion],
    undeployments: Sequence[PastUndeployment],
) -> dict[str, Any]:
    its = [one.to_json() for one in undeployments if one.number == version.number]
    return _shown(version) | {"active": version is found[0] and not its, "undeployments": its}


def _history_table(
    found: Sequence[DeployedVersion], undeployments: Sequence[PastUndeployment] = ()
) -> Table:
    rows: list[list[Cell]] = []
    for place, version in enumerate(found):
        its = [one for one in undeployments if one.number == version.number]
        for one in its:
            style = "" if rows else "bold"
            said = _undeployed(one, is_newest=not place)
            when_and_what = (one.asked_at, one.asked_by, said)
            rows.append([None, None, *(Styled(cell, style) for cell in when_and_what), None])
        style = "" if rows else "bold"
        what = _deployed(version, is_active=not rows)
        cells = (str(version.number), version.version, version.deployed_at, version.deployed_by)
        rows.append([*(Styled(cell, style) for cell in (*cells, what)), version.place or None])
    return Table(
        (
            Column("number", "number"),
            Column("version"),
            Column("when (UTC)"),
            Column("by"),
            Column("what", "words"),
            Column("from", spare=1),
        ),
        rows,
        "it was never deployed: `waybill pipelines deploy` does",
    )


def _deployed(version: DeployedVersion, *, is_active: bool) -> str | None:
    """Return what is said of a version beside when and by whom; None: nothing."""
    parts = ["active"] if is_active else []
    if version.rolled_back_to is not None:
        why = f": {version.why}" if version.why else ""
        parts.append(f"rollback to {version.rolled_back_to}{why}")
    return ", ".join(parts) or None


def _undeployed(one: PastUndeployment, *, is_newest: bool) -> str:
    """Return how far an undeployment came, what became of the tables, and why it was asked for."""
    how = "undeployed"
    if one.done_at is None:
        how = "is being undeployed" if is_newest else "undeployment begun, ended by a deploy"
    if one.dropped:
        how += f", {', '.join(one.dropped)} dropped"
    return f"{how}: {one.why}" if one.why else how


def _print_diff(lines: Sequence[str]) -> None:
    """Print a diff; a tab stays one, what else is not printable is written out."""
    from rich.text import Text

    console = terminal()
    for line in lines:
        shown = "\t".join(plain(part) for part in line.split("\t"))
        console.print(_coloured(shown, Text), soft_wrap=True)


def _coloured(line: str, make: type[Text]) -> Text:
    return make(line, _COLOURS.get(line[:1], ""))
