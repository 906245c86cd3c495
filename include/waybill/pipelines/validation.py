"""Walk folders of pipelines, report every mistake, or load them all."""

from __future__ import annotations

import stat
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import Field

from waybill.errors import InputError
from waybill.nearest_name import hint, shown_name
from waybill.pipelines.code_check import check_code
from waybill.pipelines.document import Document, read_document
from waybill.pipelines.folder import (
    DECLARATION,
    MAX_CODE_BYTES,
    SHARED,
    folder_names,
    has_shared,
    read_declaration,
    read_inside,
    root_of,
)
from waybill.pipelines.form import PACKAGE, ChildForm, PipelineForm, check_shape
from waybill.pipelines.imports import CodePlace, absent_imports
from waybill.pipelines.model import (
    ChildTable,
    Column,
    EventDeclaration,
    Pipeline,
    Source,
    TableSpec,
)
from waybill.pipelines.problems import Problem, field_name
from waybill.pipelines.rules import check_rules, flattens, source_of, unescaped
from waybill.pipelines.shared_modules import SharedModules, find_shared
from waybill.pipelines.source_path import find_file, package_folder
from waybill.request import Request

_DEFAULT_CODE = "transformation.py"
TableKey = Callable[[str, str, str], Hashable]
"""Takes a destination, a schema and a table; returns what is equal for two that are one table."""


def as_spelled(destination: str, schema: str, table: str) -> Hashable:
    """Take tables for one whose names are equal to the letter: nothing is known of engines."""
    return destination, schema, table


class DeclarationError(InputError):
    """One or more declarations are wrong; ``problems`` has all of them."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class DeployAllowances(Request):
    """What a deploy, or a rollback, may go over that it is refused for else."""

    force: bool = Field(
        default=False, description="Deploy over what was deployed from elsewhere since."
    )
    missing_ok: bool = Field(
        default=False, description="Also where an import or the destination is not known here."
    )
    version_ok: bool = Field(
        default=False,
        description="Also where an event's `version` is another than that of rows that are loaded.",
    )


class NamesMissingError(DeclarationError):
    """All is right but for an import, or the destination, that is not there as far as is known."""


@dataclass(frozen=True, slots=True)
class RunEnvironment:
    """What is known here of where pipelines are to run."""

    destinations: frozenset[str] = frozenset()
    """Names of the settings; none: they are set elsewhere, and no name is held against them."""
    runs_code: bool = False
    """User code runs with what is installed here; False: an import that is missing may be there."""
    table_key: TableKey = as_spelled
    """Which tables are one in these destinations."""

    @classmethod
    def of(
        cls, destinations: Iterable[str], spark_master: str, table_key: TableKey = as_spelled
    ) -> Self:
        """Return what settings say: these destinations, where Spark runs, which tables are one."""
        runs_code = spark_master.startswith("local")
        return cls(frozenset(destinations), runs_code=runs_code, table_key=table_key)


_ELSEWHERE = RunEnvironment()


@dataclass(slots=True)
class Examined:
    """One folder: its pipeline when it is right, and what is wrong with it."""

    directory: Path
    document: Document
    texts: list[tuple[str, str | None]]
    """What it is judged by: names and texts of declaration and code. None: unreadable."""
    shared: SharedModules = field(default_factory=SharedModules)
    """What its code imports of the modules that pipelines share."""
    pipeline: Pipeline | None = None
    problems: list[Problem] = field(default_factory=list)

    @property
    def file(self) -> str:
        """Return the path of its declaration."""
        return str(self.directory / DECLARATION)


def _no_roots(_: str) -> Sequence[Path]:
    return ()


def check(
    root: Path,
    roots_of: Callable[[str], Sequence[Path]] = _no_roots,
    open_source: Callable[..., object] | None = None,
    environment: RunEnvironment = _ELSEWHERE,
) -> list[Problem]:
    """Return every mistake under a folder of pipelines (or in one pipeline's folder); sorted.

    Args:
        root: the folder.
        roots_of: a team's folders, where its sources may lie beside packages and their own.
        open_source: opens a connector, which refuses options that are wrong; nothing is read.
        environment: what tables, a destination's name and imports are held against.

    Cost: about 1 ms a pipeline, and 50 µs a column.
    """
    examined, problems = _check_all(root, environment.table_key)
    outside = [found for one in examined for found in _outside(one, roots_of)]
    refused = [found for one in examined for found in _refused(one, roots_of, open_source)]
    absent = [found for one in examined for found in _absent_names(one, environment)[0]]
    return _each_once(problems + outside + refused + absent)


def _each_once(problems: Iterable[Problem]) -> list[Problem]:
    """Return problems sorted; what several pipelines share is said once."""
    return sorted(set(problems))


def check_names(directory: Path, environment: RunEnvironment) -> list[Problem]:
    """Return what a folder's declaration names and is not there, as ``check`` does; sorted."""
    return sorted(_absent_names(examine(directory), environment)[0])


def _absent_names(
    examined: Examined, environment: RunEnvironment
) -> tuple[list[Problem], list[Problem]]:
    """Return what a pipeline names that is not there: mistakes, and what may be elsewhere."""
    pipeline = examined.pipeline
    if pipeline is None:
        return [], []
    mistakes: list[Problem] = []
    warnings: list[Problem] = []
    if said := _unknown_destination(pipeline, environment):
        mistakes.append(_problem(examined, ("destination", "name"), said))
    root = root_of(examined.directory)
    shared = root / SHARED if has_shared(root) else None
    files = {"": str(examined.directory / examined.texts[1][0])}
    files |= {path: str(root / path) for path in pipeline.shared_code}
    own = CodePlace(examined.directory, shared, uses_shared=bool(pipeline.shared_code))
    for problem, is_certain in _absent_imports(pipeline, own, files, environment):
        (mistakes if is_certain else warnings).append(problem)
    return mistakes, warnings


def _absent_imports(
    pipeline: Pipeline, own: CodePlace, files: Mapping[str, str], environment: RunEnvironment
) -> Iterator[tuple[Problem, bool]]:
    """Yield what a pipeline's code and its shared modules import in vain, and is it certain.

    Args:
        pipeline: the pipeline.
        own: where its own code lies.
        files: how problems name a file, by the path of a shared module; "": the transformation.
        environment: where code runs.
    """
    texts = {"": pipeline.transformation_code, **pipeline.shared_code}
    shared = own if own.shared is None else replace(own, folder=own.shared)
    for path, text in texts.items():
        place = shared if path else own
        for line, said, is_certain in absent_imports(text, place, runs_here=environment.runs_code):
            yield Problem(files[path], line, "", said), is_certain


def _unknown_destination(pipeline: Pipeline, environment: RunEnvironment) -> str:
    name, known = pipeline.destination, environment.destinations
    if not known or name in known:
        return ""
    there = ", ".join(sorted(map(shown_name, known)))
    said = f"expected a destination of the settings ({there}); found {shown_name(name)!r}"
    return said + (hint(name, known) or "; `waybill destination add` adds one")


def check_version(
    pipeline: Pipeline, label: str, directory: Path, environment: RunEnvironment
) -> tuple[list[Problem], list[Problem]]:
    """Return what a deployed version names and is not there: mistakes, and what may be elsewhere.

    Args:
        pipeline: the version.
        label: names it, where a problem of a folder names a file.
        directory: where a folder of the pipeline would be; what lies there is not shipped.
        environment: what a destination's name and imports are held against.
    """
    mistakes: list[Problem] = []
    warnings: list[Problem] = []
    if said := _unknown_destination(pipeline, environment):
        mistakes.append(Problem(label, 1, "destination.name", said))
    files = {path: f"{label}, {path or _DEFAULT_CODE}" for path in ("", *pipeline.shared_code)}
    shared = root_of(directory) / SHARED if pipeline.shared_code else None
    own = CodePlace(directory, shared, uses_shared=bool(pipeline.shared_code))
    for problem, is_certain in _absent_imports(pipeline, own, files, environment):
        (mistakes if is_certain else warnings).append(problem)
    return mistakes, warnings


def problem_at(directory: Path, place: tuple[str | int, ...], message: str) -> Problem:
    """Return a problem at a place of a folder's declaration, with its file and line."""
    return _problem(examine(directory), place, message)


def code_file(directory: Path) -> str:
    """Return the path of a folder's transformation; that of its declaration where there is none."""
    examined = examine(directory)
    return str(directory / examined.texts[1][0]) if len(examined.texts) > 1 else examined.file


def _refused(
    examined: Examined,
    roots_of: Callable[[str], Sequence[Path]],
    open_source: Callable[..., object] | None,
) -> list[Problem]:
    """Return what a source's own connector has against it."""
    if examined.pipeline is None or open_source is None:
        return []
    try:
        pipeline = examined.pipeline
        roots = roots_of(pipeline.team)
        open_source(pipeline.source, examined.directory, roots, events=pipeline.events)
    except InputError as error:
        return [_problem(examined, ("source",), str(error))]
    return []


def _outside(examined: Examined, roots_of: Callable[[str], Sequence[Path]]) -> list[Problem]:
    """Return the mistake of a source that lies where it must not, here and now."""
    pipeline = examined.pipeline
    if pipeline is None or not pipeline.source.path or pipeline.source.path.startswith(PACKAGE):
        return []  # the workers have their own packages; one that is missing here is a warning
    try:
        find_file(pipeline.source.path, examined.directory, roots_of(pipeline.team))
    except InputError as error:
        return [_problem(examined, ("source", "path"), str(error))]
    return []


def check_sources(root: Path, environment: RunEnvironment = _ELSEWHERE) -> list[Problem]:
    """Return a warning for each source that is not there yet, or is no file; sorted.

    And for each import that finds nothing here, but may where the code runs. No mistakes: a file
    may come after the declaration, and lie on the workers only. Of right declarations only.
    Nothing is opened: whoever opens a pipe may wait for ever.
    """
    found = []
    for one in _check_all(root)[0]:
        if one.pipeline is not None and (said := _absent(one.pipeline.source.path, one.directory)):
            found.append(_problem(one, ("source", "path"), said))
        found.extend(_absent_names(one, environment)[1])
    return _each_once(found)


def _absent(path: str, directory: Path) -> str:
    """Return words for a source that is not there, or is no file, or nothing."""
    if not path:
        return ""
    if path.startswith(PACKAGE):
        name = path.removeprefix(PACKAGE).partition("/")[0]
        there = package_folder(name) is not None
        return "" if there else f"the package {shown_name(name)!r} is not installed here"
    file = directory / path
    shown = repr(shown_name(str(file)))
    try:
        mode = file.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return f"no file {shown} is there yet"
    except OSError as error:
        return f"whether {shown} is there cannot be seen: {error.strerror}"
    if stat.S_ISREG(mode):
        return ""
    kind = _KINDS.get(stat.S_IFMT(mode), "no file")
    return f"{shown} is {kind}: ingestion would refuse it; name a file"


_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def load_pipeline(directory: Path, source_roots: Sequence[Path] | None = None) -> Pipeline:
    """Return the pipeline of one folder.

    Args:
        directory: the folder.
        source_roots: given, a source outside of folder, packages and these is a mistake too.

    Raises:
        DeclarationError: it has mistakes; lists all.
    """
    examined = examine(directory)
    if source_roots is not None and (outside := _outside(examined, lambda _: source_roots)):
        raise DeclarationError(outside)
    if examined.pipeline is None:
        raise DeclarationError(sorted(examined.problems))
    return examined.pipeline


def load_completed(directory: Path, complete: Callable[[Any], Any]) -> Pipeline:
    """Return the pipeline of a folder whose declaration is not finished.

    Args:
        directory: the folder.
        complete: gets the declaration's plain values, and returns what is checked and loaded.

    Raises:
        DeclarationError: what is there, or was put in, has mistakes; lists all.
    """
    examined = examine(directory, complete)
    if examined.pipeline is None:
        raise DeclarationError(sorted(examined.problems))
    return examined.pipeline


def load_pipelines(root: Path) -> dict[str, Pipeline]:
    """Return the pipelines under a folder, by name.

    Raises:
        DeclarationError: any of them has a mistake, or two are in each other's way; lists all.
    """
    examined, problems = _check_all(root)
    if problems:
        raise DeclarationError(problems)
    return {one.pipeline.name: one.pipeline for one in examined if one.pipeline is not None}


def pipeline_directories(root: Path) -> dict[str, Path]:
    """Return the folder of each pipeline, by name. Raises like ``load_pipelines``."""
    examined, problems = _check_all(root)
    if problems:
        raise DeclarationError(problems)
    return {one.pipeline.name: one.directory for one in examined if one.pipeline is not None}


def declared_folders(roots: Sequence[Path]) -> dict[str, Path]:
    """Return the folder that declares a pipeline, right or wrong, by its id and by its name.

    Of two the first counts; an id goes before a name. A folder of pipelines that cannot be listed
    has none.
    """
    ids: dict[str, Path] = {}
    names: dict[str, Path] = {}
    for root in roots:
        try:
            directories = _directories(root)
        except OSError:
            continue
        for directory in directories:
            text, _ = read_declaration(directory)
            value = None if text is None else read_document(text).value
            for key, known in (("id", ids), ("name", names)):
                if isinstance(value, dict) and isinstance(value.get(key), str):
                    known.setdefault(value[key], directory)
    return names | ids


def _check_all(
    root: Path, table_key: TableKey = as_spelled
) -> tuple[list[Examined], list[Problem]]:
    try:
        directories = _directories(root)
    except OSError as error:
        said = f"expected a folder with a folder for each pipeline; {error.strerror}"
        return [], [Problem(str(root), 1, "", said)]
    if not directories and root.name == SHARED and has_shared(root.parent):
        said = "expected a folder of pipelines; found that of the modules that they share"
        return [], [Problem(str(root), 1, "", f"{said}: name one of those that import them")]
    examined = [examine(directory) for directory in directories]
    problems = [problem for one in examined for problem in one.problems]
    problems.extend(_collisions(examined, table_key))
    return examined, _each_once(problems)


def _directories(root: Path) -> list[Path]:
    if (root / DECLARATION).is_file():
        return [root]
    return [root / name for name in folder_names(root)]


def examine(directory: Path, complete: Callable[[Any], Any] | None = None) -> Examined:
    """Return what is in a folder, and all that is wrong with it; see ``load_completed``."""
    text, said = read_declaration(directory)
    if text is None:
        examined = Examined(directory, Document(), [(DECLARATION, None)])
        if directory.name == SHARED and has_shared(directory.parent):
            said = f"{said}: this folder has the modules that pipelines share"
        examined.problems.append(Problem(examined.file, 1, "", said + _similar(directory)))
        return examined
    document = read_document(text)
    examined = Examined(directory, document, [(DECLARATION, text)])
    for line, path, message in document.faults:
        examined.problems.append(Problem(examined.file, line, field_name(path), message))
    if document.faults and document.value is None:
        return examined
    if complete is not None:
        document.value = complete(document.value)
    form, findings = check_shape(document.value)
    findings.extend(check_rules(document.value))
    for path, message in findings:
        examined.problems.append(_problem(examined, path, message))
    code = _code(examined)
    if form is not None and code is not None and not examined.problems:
        examined.pipeline = _pipeline(form, code, examined.shared.code)
    return examined


def _problem(examined: Examined, path: tuple[str | int, ...], message: str) -> Problem:
    return Problem(examined.file, examined.document.line(path), field_name(path), message)


def _code(examined: Examined) -> str | None:
    """Return the transformation's text; notes what is wrong with it."""
    value = examined.document.value
    name = value.get("transformation", _DEFAULT_CODE) if isinstance(value, dict) else None
    if not isinstance(name, str):
        return None
    text, said = read_inside(examined.directory, name, MAX_CODE_BYTES)
    examined.texts.append((name, text))
    if text is None:
        examined.problems.append(_problem(examined, ("transformation",), said))
        return None
    file = str(examined.directory / name)
    faults = check_code(text)
    examined.problems.extend(Problem(file, line, "", message) for line, message in faults)
    examined.shared = find_shared(examined.directory, name, text)
    examined.problems.extend(examined.shared.problems)
    return text


def _similar(directory: Path) -> str:
    try:
        return hint(DECLARATION, [path.name for path in directory.iterdir()])
    except OSError:
        return ""


def find_collisions(root: Path, directory: Path, table_key: TableKey) -> list[Problem]:
    """Return what a pipeline's folder claims that a pipeline under ``root`` has; sorted.

    Args:
        root: a folder of pipelines; mistakes in them are passed over.
        directory: the folder, which is not one of them.
        table_key: which tables are one.
    """
    newcomer = examine(directory)
    examined = [*map(examine, _directories(root)), newcomer]
    return sorted(one for one in _collisions(examined, table_key) if one.file == newcomer.file)


class _Claim(NamedTuple):
    """An id, a name or a table that a folder has for itself."""

    path: tuple[str | int, ...]
    kind: str
    key: Hashable
    shown: str


def _collisions(examined: list[Examined], table_key: TableKey) -> Iterator[Problem]:
    """Yield ids, names and tables that two folders claim."""
    claims: dict[tuple[str, Hashable], tuple[Examined, str]] = {}
    for one in examined:
        for claim in _claims(one.document.value, table_key):
            first, shown = claims.setdefault((claim.kind, claim.key), (one, claim.shown))
            if first is not one:
                said = f"expected {claim.kind} of its own; found {shown_name(claim.shown)!r}, which"
                name = "" if shown == claim.shown else f", as {shown_name(shown)!r}"
                yield _problem(one, claim.path, f"{said} {first.file} has too{name}")


def _claims(value: Any, table_key: TableKey) -> Iterator[_Claim]:
    if not isinstance(value, dict):
        return
    for name in ("id", "name"):
        if isinstance(value.get(name), str):
            yield _Claim((name,), f"a pipeline {name}", value[name], value[name])
    destination, events = value.get("destination"), value.get("events")
    if not isinstance(destination, dict) or not isinstance(events, dict):
        return
    place = (str(destination.get("name")), str(destination.get("schema")))
    for name, event in events.items():
        for path, table in _tables_of(event):
            yield _Claim(("events", name, *path), "a table", table_key(*place, table), table)


def _tables_of(event: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    if not isinstance(event, dict):
        return
    if isinstance(event.get("table"), str):
        yield ("table",), event["table"]
    if isinstance(event.get("children"), dict):
        for table in event["children"]:
            yield ("children", table), table


def _pipeline(form: PipelineForm, code: str, shared_code: dict[str, str]) -> Pipeline:
    source = form.source
    return Pipeline(
        id=form.id,
        name=form.name,
        team=form.team,
        owner=form.owner,
        schedule=form.schedule,
        source=Source(
            connector=source.connector,
            event=source.event,
            path=source.path,
            page_rows=source.page_rows,
            order_by=tuple(source.order_by),
            null_values=tuple(source.null_values),
            columns=source.columns,
            connection=source.connection,
            options=source.options,
        ),
        events={name: _event(form, name) for name in form.events},
        transformation_code=code,
        shared_code=shared_code,
        destination=form.destination.name,
        schema_name=form.destination.schema_name,
        keep_source=form.keep_source,
        network=form.network,
    )


def _event(form: PipelineForm, name: str) -> EventDeclaration:
    event = form.events[name]
    raw = {"nested": event.nested}
    columns = tuple(
        Column(
            name=column,
            type=shape.type,
            nullable=column not in event.key and shape.nullable is not False,
            source=source_of(raw, column, {"from": shape.source}),
        )
        for column, shape in event.columns.items()
    )
    sources = {column.name: column.source for column in columns}
    return EventDeclaration(
        name=name,
        key=tuple(unescaped(sources[key]) if flattens(raw) else sources[key] for key in event.key),
        version=event.version,
        table=TableSpec(
            schema_name=form.destination.schema_name,
            name=event.table,
            columns=columns,
            key=tuple(event.key),
            children=tuple(_child(table, child) for table, child in event.children.items()),
            soft_delete=event.deletes == "soft",
        ),
        policy=event.policy,
        nested=event.nested,
        depth=event.depth,
        arrays=event.arrays,
        personal=tuple(event.personal),
    )


def _child(table: str, form: ChildForm) -> ChildTable:
    return ChildTable(
        name=table,
        source=form.source,
        columns=tuple(
            Column(
                name=column,
                type=shape.type,
                nullable=shape.nullable is not False,
                source=column if shape.source is None else shape.source,
            )
            for column, shape in form.columns.items()
        ),
    )
