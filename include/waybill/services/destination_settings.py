"""Destinations of the embedded stack: added, changed and removed while it runs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from waybill.errors import InputError, NotFoundError
from waybill.nearest_name import nearest_or_all
from waybill.services.destination_request import DestinationRequest
from waybill.settings import ENV_FILE_NAME, DestinationSettings, Settings
from waybill.storage import open_tracker

if TYPE_CHECKING:
    from waybill.access import Decision
    from waybill.clusters import ApplicationKind
    from waybill.destinations import Finding
    from waybill.storage import TrackerStore

OWN_FOLDER_KINDS = frozenset({"duckdb", "delta", "iceberg"})
"""Their dsn can be a file or folder on this host."""
_VARIABLE = "WAYBILL_DESTINATIONS"


@dataclass(frozen=True, slots=True)
class DestinationChange:
    """What came of a request."""

    name: str
    kind: str
    is_done: bool
    """False: it cannot be loaded as it is, and nothing was changed."""
    findings: Sequence[Finding] = ()
    restarted: Mapping[str, Sequence[ApplicationKind]] = field(default_factory=dict)
    """{cluster: those of its applications that start anew}; they have the settings then."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        steps = [{"step": one.step, "ok": one.ok, "words": one.words} for one in self.findings]
        return {
            "destination": self.name,
            "kind": self.kind,
            "done": self.is_done,
            "steps": steps,
            "restarted": {name: list(kinds) for name, kinds in self.restarted.items()},
        }


def add_destination(
    settings: Settings, request: DestinationRequest, decision: Decision
) -> DestinationChange:
    """Add a destination to the embedded stack, and have its applications start anew.

    One that is there with the same settings is no error: the applications start anew again, as
    after an `add` that was cut off.

    Raises:
        InputError: the name, kind, address or a setting is wrong; another one has the name.
        NotFoundError: no embedded stack was started here.
        RetryError: the tracker does not answer. If it went away once the settings were written, the
            same command again, or `waybill clusters restart default`, starts the applications anew.
    """
    wanted = _wanted(request, None)
    return _apply(settings, request, wanted, decision)


def change_destination(
    settings: Settings, request: DestinationRequest, decision: Decision
) -> DestinationChange:
    """Change settings of a destination of the embedded stack; its applications start anew.

    Raises:
        InputError: a setting is wrong, or is the stack's own.
        NotFoundError: there is no such destination, or no embedded stack here.
        RetryError: the tracker does not answer. If it went away once the settings were written, the
            same command again, or `waybill clusters restart default`, starts the applications anew.
    """
    from waybill.stack import OWN_DESTINATION, kept_destinations

    _require_stack(settings, request.name)
    before = _known(kept_destinations(settings.home), request.name)
    if request.name == OWN_DESTINATION and (request.kind, request.dsn) != (None, None):
        raise InputError(
            f"destination {request.name!r} is the embedded stack's own: its kind and dsn stay;"
            " add another one under another name"
        )
    if request.kind is not None and request.dsn is None:
        raise InputError("--kind needs --dsn: what is an address for one kind is none for another")
    return _apply(settings, request, _wanted(request, before), decision, before)


def remove_destination(settings: Settings, name: str, decision: Decision) -> DestinationChange:
    """Remove a destination from the embedded stack. Its tables stay as they are.

    Raises:
        InputError: it is the stack's own, a deployed pipeline names it, or commits wait for it.
        NotFoundError: there is no such destination, or no embedded stack here.
        RetryError: the tracker does not answer. If it went away once the settings were written,
            `waybill clusters restart default` has the applications start anew.
    """
    from waybill.stack import OWN_DESTINATION, changed_destinations

    _require_stack(settings, name)
    _refuse_variables(name)
    if name == OWN_DESTINATION:
        raise InputError(f"destination {name!r} is the embedded stack's own: `up` brings it again")
    with open_tracker(settings.tracker) as tracker:
        with changed_destinations(settings.home) as destinations:
            gone = _known(destinations, name)
            _refuse_needed(tracker, name, gone)
            _note(tracker, "remove_destination", name, gone.kind, decision)
            del destinations[name]
        return DestinationChange(
            name, gone.kind, is_done=True, restarted=_restart(tracker, decision)
        )


def _refuse_needed(tracker: TrackerStore, name: str, settings: DestinationSettings) -> None:
    from waybill.deployment import sending_pipelines
    from waybill.loading import destination_lines

    with tracker.transaction() as connection:
        senders = sending_pipelines(connection, name)
    if senders:
        raise InputError(
            f"destination {name!r}: deployed pipelines name it: {', '.join(senders)}; undeploy them"
        )
    behind = sum(
        one.behind for one in destination_lines(tracker, {name: settings}) if one.name == name
    )
    if behind:
        raise InputError(
            f"destination {name!r}: {behind:,} commits wait to be loaded; wait, or have them parked"
            " with `waybill destination park`"
        )


def _apply(
    settings: Settings,
    request: DestinationRequest,
    wanted: DestinationSettings,
    decision: Decision,
    before: DestinationSettings | None = None,
) -> DestinationChange:
    from waybill import loading
    from waybill.stack import changed_destinations, kept_destinations, refuse_unkeepable

    name = request.name
    _require_stack(settings, name)
    _refuse_variables(name)
    _refuse_another(kept_destinations(settings.home), name, wanted, before)
    refuse_unkeepable({name: wanted})
    with open_tracker(settings.tracker) as tracker:
        findings: list[Finding] = []
        if not request.no_check:
            schemas = loading.schemas_of(tracker, name)
            findings = loading.examine(name, {name: wanted}, schemas, settings.s3)
        if not all(one.ok for one in findings):
            return DestinationChange(name, wanted.kind, is_done=False, findings=findings)
        with changed_destinations(settings.home) as destinations:
            _refuse_another(destinations, name, wanted, before)
            action = "add_destination" if before is None else "change_destination"
            _note(tracker, action, name, wanted.kind, decision)
            destinations[name] = wanted
        restarted = _restart(tracker, decision)
    return DestinationChange(
        name, wanted.kind, is_done=True, findings=findings, restarted=restarted
    )


def _restart(tracker: TrackerStore, decision: Decision) -> dict[str, Sequence[ApplicationKind]]:
    """Have the applications of all clusters start anew: loading, and processing for its names.

    The settings are written before: an application that a supervisor starts from now on has them.
    """
    from waybill import clusters

    with tracker.transaction() as connection:
        names = [one.name for one in clusters.read_clusters(connection)]
    asked = {name: clusters.restart_cluster(tracker, name, decision) for name in names}
    return {name: kinds for name, kinds in asked.items() if kinds}


def _note(tracker: TrackerStore, action: str, name: str, kind: str, decision: Decision) -> None:
    from waybill.access import write_audit

    with tracker.transaction() as connection:
        write_audit(
            connection,
            who=decision.who,
            action=action,
            target=f"destination {name}",
            why=decision.why,
            kind=kind,
            **decision.beside_who(),
        )


def _require_stack(settings: Settings, name: str) -> None:
    if not (settings.home / ENV_FILE_NAME).exists():
        raise NotFoundError(
            f"no embedded stack was started in {settings.home}: `waybill up` starts one. Where"
            f" Airflow's processes have variables, set {_VARIABLE}__{name.upper()}__KIND and"
            f" {_VARIABLE}__{name.upper()}__DSN for them, start them anew, then"
            " `waybill clusters restart default`, and each other cluster"
        )


def _known(kept: Mapping[str, DestinationSettings], name: str) -> DestinationSettings:
    if name not in kept:
        near = nearest_or_all(name, kept, none="it has none")
        raise NotFoundError(f"the embedded stack has no destination {name!r}; {near}")
    return kept[name]


def _refuse_another(
    kept: Mapping[str, DestinationSettings],
    name: str,
    wanted: DestinationSettings,
    before: DestinationSettings | None,
) -> None:
    found = kept.get(name)
    if found in (before, wanted):
        return
    if before is not None:
        raise InputError(f"destination {name!r} was changed meanwhile: try again")
    raise InputError(
        f"there is a destination {name!r}, of kind {kept[name].kind} and with other settings:"
        " `waybill destination set` changes it"
    )


def _refuse_variables(name: str) -> None:
    """Refuse what a variable of this shell says otherwise: it would win, here and in `up`."""
    prefix = f"{_VARIABLE}__{name}".upper()
    for variable in os.environ:
        upper = variable.upper()
        inside = upper == _VARIABLE and name in _names_in(os.environ[variable])
        if inside or upper == prefix or upper.startswith(f"{prefix}__"):
            raise InputError(
                f"{variable} is set here and wins over what is kept: unset it, then try again"
            )


def _names_in(text: str) -> Mapping[str, Any]:
    try:
        given = json.loads(text)
    except ValueError:
        return {}
    return given if isinstance(given, dict) else {}


def _wanted(request: DestinationRequest, before: DestinationSettings | None) -> DestinationSettings:
    """Return what a destination is to be.

    Raises:
        InputError: says which setting is wrong, and never its value: it may be a password.
    """
    from waybill.pipelines import PART, PART_PATTERN

    if not re.match(PART_PATTERN, request.name) or request.name.endswith("\n"):
        raise InputError(f"a destination's name is {PART}")
    if request.dsn == "" or (request.kind == "duckdb" and "://" in (request.dsn or "")):
        raise InputError("--dsn: expected an address of this kind; for duckdb the path of a file")
    values: dict[str, Any] = {} if before is None else before.model_dump()
    if request.kind is not None:
        values["kind"] = request.kind
    if request.dsn is not None:
        values["dsn"] = request.dsn
    if values.get("kind") in OWN_FOLDER_KINDS and isinstance(values.get("dsn"), str):
        values["dsn"] = _absolute(values["dsn"])
    options = dict(values.get("options", {})) | dict(_pairs("--option", request.options))
    values["options"] = {name: value for name, value in options.items() if value}
    known = [one for one in DestinationSettings.model_fields if one not in _SAID_OTHERWISE]
    for name, value in _pairs("--set", request.values):
        if name not in known:
            shown = f" {name}" if _NAME.fullmatch(name) else ""  # else it may be an address
            raise InputError(f"--set{shown}: no such setting; {nearest_or_all(name, known)}")
        values[name] = None if value == "null" else value
    return _validated(request.name, values)


def _validated(name: str, values: Mapping[str, Any]) -> DestinationSettings:
    try:
        return DestinationSettings.model_validate(values)
    except ValidationError as error:
        faults = [
            ": ".join([*map(str, one["loc"]), one["msg"].removeprefix("Value error, ")])
            for one in error.errors(include_input=False, include_url=False)
        ]
        raise InputError(f"destination {name!r}: {'; '.join(faults)}") from None


_NAME = re.compile("[a-z_]{1,40}")
_SAID_OTHERWISE = ("kind", "dsn", "options")


def _pairs(option: str, given: Sequence[str]) -> list[tuple[str, str]]:
    pairs = [one.partition("=") for one in given]
    if any(not (name.strip() and equals) for name, equals, _ in pairs):
        raise InputError(f"{option}: write {option} <name>=<value>")
    return [(name.strip(), value) for name, _, value in pairs]


def _absolute(dsn: str) -> str:
    """Return a folder or file as an absolute path: applications run in another folder."""
    return dsn if "://" in dsn or not dsn else str(Path(dsn).expanduser().absolute())
