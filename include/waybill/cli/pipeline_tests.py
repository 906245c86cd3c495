"""``waybill pipelines test``: pipelines' example events and own tests, without servers.

Names, messages and values come from users: they are never read as markup, and control characters
are shown, not sent.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from waybill.cli.command import DECLARED
from waybill.cli.exit_codes import ExitCode
from waybill.cli.options import AsJson
from waybill.cli.output import counted, echo_json, plain, print_folded, terminal, user_code_printed

if TYPE_CHECKING:
    from waybill.pipelines import Pipeline
    from waybill.settings import Settings
    from waybill.testing import EventResult, Example, OwnTests, TriedDelete

_MESSAGE_CHARS = 400
_NOTE_CHARS = 100
_MOST_DIFFERENCES = 12


@dataclass(slots=True)
class _Report:
    """What the tests of one pipeline's folder said."""

    name: str
    folder: Path
    results: list[tuple[Example, EventResult, list[str]]] = field(default_factory=list)
    """Of each example: what became of it, and how that differs from what is expected."""
    deletes: list[tuple[TriedDelete, EventResult]] = field(default_factory=list)
    """Deletes of which no example says anything, with their keys alone, and what became of them."""
    own: OwnTests | None = None
    errors: list[str] = field(default_factory=list)
    """What could not be run, and why."""

    @property
    def wrong(self) -> int:
        return sum(bool(mismatches) for _, _, mismatches in self.results)

    @property
    def parked_deletes(self) -> int:
        return sum(bool(result.parked) and one.is_sure for one, result in self.deletes)

    @property
    def is_empty(self) -> bool:
        return not (self.results or self.deletes or self.own or self.errors)

    @property
    def exit_code(self) -> int:
        if self.errors:
            return 1
        failed = self.wrong or self.parked_deletes or (self.own is not None and self.own.exit_code)
        return ExitCode.FOUND if failed else ExitCode.DONE


def test(
    pipeline: Annotated[
        str | None,
        typer.Argument(
            metavar=DECLARED, help="A pipeline's folder, or its name; all, if left out."
        ),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Run pipelines' example events and own tests; needs no servers.

    Without a name, those of shared modules too; `shared` names these alone.

    Exit code 2: something is not as expected; 1: something could not be run.
    """
    from waybill.settings import Settings

    settings = Settings()
    reports = [_run_tests(settings, folder) for folder in _folders(settings, pipeline)]
    reports += [_run_shared_tests(folder) for folder in _shared_folders(settings, pipeline)]
    _refuse_nothing(reports, settings.pipelines_dir)
    if as_json:
        _print_json({"ok": not _exit_code(reports), "pipelines": [*map(_json, reports)]})
    else:
        for report in reports:
            _show(report)
    if code := _exit_code(reports):
        raise typer.Exit(code)


def _exit_code(reports: list[_Report]) -> int:
    codes = {report.exit_code for report in reports}
    return 1 if 1 in codes else max(codes, default=0)


def _folders(settings: Settings, pipeline: str | None) -> list[Path]:
    from waybill.cli.pipelines import existing_folder
    from waybill.pipelines import pipeline_directories

    root = settings.pipelines_dir if pipeline is None else existing_folder(pipeline)
    return [] if _is_shared(root) else list(pipeline_directories(root).values())


def _shared_folders(settings: Settings, pipeline: str | None) -> list[Path]:
    """Return the folder of shared modules whose tests are asked for, if there is one."""
    from waybill.cli.pipelines import existing_folder
    from waybill.pipelines import SHARED

    given = settings.pipelines_dir if pipeline is None else existing_folder(pipeline)
    if _is_shared(given):
        return [given]
    if (given / "pipeline.yaml").is_file():
        return []
    folder = given / SHARED
    has_tests = next(folder.glob("test_*.py"), None) is not None
    return [folder] if _is_shared(folder) and has_tests else []


def _is_shared(folder: Path) -> bool:
    from waybill.pipelines import SHARED, has_shared, root_of

    return folder.name == SHARED and has_shared(root_of(folder))


def _refuse_nothing(reports: list[_Report], root: Path) -> None:
    from waybill.errors import InputError
    from waybill.pipelines import EXAMPLES

    if all(report.is_empty for report in reports):
        place = reports[0].folder if len(reports) == 1 else root
        raise InputError(
            f"nothing to test in {place}: write example events into {EXAMPLES}, a line "
            '{"data": {…the payload…}} each, or tests into test_*.py'
        )


def _run_tests(settings: Settings, folder: Path) -> _Report:
    from waybill.errors import InputError
    from waybill.pipelines import EXAMPLES, load_pipeline
    from waybill.testing import read_examples, run_own_tests

    pipeline = load_pipeline(folder)
    report = _Report(pipeline.name, folder)
    try:
        has_examples = os.path.lexists(folder / EXAMPLES)
        examples = read_examples(folder) if has_examples else []
    except InputError as error:
        report.errors.append(str(error))
    else:
        _run_events(report, pipeline, examples, settings)
    try:
        report.own = run_own_tests(folder)
    except InputError as error:
        report.errors.append(str(error))
    return report


def _run_events(
    report: _Report, pipeline: Pipeline, examples: list[Example], settings: Settings
) -> None:
    """Run example events, and the deletes that the source brings besides."""
    from waybill.testing import differences, run_pipeline, untried_deletes

    deletes = untried_deletes(pipeline, examples)
    given = [example.given for example in examples]
    with user_code_printed():
        results = run_pipeline(pipeline, given, settings=settings).events if given else []
        tried = [one.event for one in deletes]  # apart: a table has no nulls of theirs
        ends = run_pipeline(pipeline, tried, settings=settings).events if tried else []
    for example, result in zip(examples, results, strict=True):
        report.results.append((example, result, differences(example, result)))
    report.deletes += zip(deletes, ends, strict=True)


def _run_shared_tests(folder: Path) -> _Report:
    from waybill.errors import InputError
    from waybill.testing import run_own_tests

    report = _Report(folder.name, folder)
    try:
        report.own = run_own_tests(folder)
    except InputError as error:
        report.errors.append(str(error))
    return report


def _print_json(value: Any) -> None:
    from waybill.events import dumps

    echo_json(dumps(value))


def _json(report: _Report) -> dict[str, Any]:
    return {
        "pipeline": report.name,
        "folder": str(report.folder),
        "ok": not report.exit_code,
        "events": [_event_json(*result) for result in report.results],
        "deletes": [_delete_json(*one) for one in report.deletes],
        "tests": None if report.own is None else report.own.to_json(),
        "errors": report.errors,
    }


def _event_json(example: Example, result: EventResult, mismatches: list[str]) -> dict[str, Any]:
    return {
        "line": example.line,
        "note": example.note,
        "ok": not mismatches,
        **_result_json(result),
        "differences": mismatches,
    }


def _delete_json(tried: TriedDelete, result: EventResult) -> dict[str, Any]:
    return {
        "event": tried.event.name,
        "data": tried.event.data,
        "ok": not (result.parked and tried.is_sure),
        **_result_json(result),
    }


def _result_json(result: EventResult) -> dict[str, Any]:
    from waybill.testing import json_value

    return {
        "rows": json_value(result.rows),
        "deleted": json_value(result.deleted),
        "filtered": result.filtered,
        "parked": [
            {
                "stage": parked.stage,
                "error_type": parked.error_type,
                "message": parked.message,
                "where": parked.where,
                "others": list(parked.others),
            }
            for parked in result.parked
        ],
    }


def _show(report: _Report) -> None:
    if report.is_empty:
        _say(f"{report.name}: no example events and no tests", style="dim")
        return
    _say(report.name, style="bold")
    for example, result, mismatches in report.results:
        _show_event(example, result, mismatches)
    if report.results:
        matching = len(report.results) - report.wrong
        summary = f"{matching:,} of {counted(len(report.results), 'example event')} as expected"
        _say(summary, indent=2, style="bold red" if report.wrong else "green")
    for event, result in report.deletes:
        _show_delete(event, result)
    if report.own is not None:
        _show_own_tests(report.own)
    errors = terminal(err=True)
    for error in report.errors:
        for line in error.split("\n"):
            errors.print(Text(plain(line), "red"), soft_wrap=True)


def _show_event(example: Example, result: EventResult, mismatches: list[str]) -> None:
    note = f" ({_cut(example.note, _NOTE_CHARS)})" if example.note else ""
    mark, style = ("not as expected", "red") if mismatches else ("ok", "green")
    _say(f"line {example.line}: {mark}, {_outcome(result)}{note}", indent=2, style=style)
    for cause in _causes(result):
        _say(_cut(cause, _MESSAGE_CHARS), indent=4)
    for mismatch in mismatches[:_MOST_DIFFERENCES]:
        _say(mismatch, indent=4, style="red")
    if (left := len(mismatches) - _MOST_DIFFERENCES) > 0:
        rest = f"and {counted(left, 'difference')} more; --json has all"
        _say(rest, indent=4, style="red")


def _show_delete(tried: TriedDelete, result: EventResult) -> None:
    from waybill.testing import KEY_ONLY

    event = tried.event
    mark, style = "ok", "green"
    if result.parked:
        mark, style = ("not as expected", "red") if tried.is_sure else ("a warning", "yellow")
    key = ", ".join(event.data)
    head = f"a delete of {event.name} with its key alone ({key})"
    _say(f"{head}: {mark}, {_outcome(result)}", indent=2, style=style)
    for cause in (*_causes(result), *([KEY_ONLY] if result.parked else ())):
        _say(_cut(cause, _MESSAGE_CHARS), indent=4)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


def _outcome(result: EventResult) -> str:
    parts = [f"{table} {counted(len(rows), 'row')}" for table, rows in result.rows.items()]
    for table, rows in result.deleted.items():
        parts.append(f"{table} {counted(len(rows), 'row')} deleted")
    parts += [f"parks as {parked.way}" for parked in result.parked]
    return "; ".join(parts) or ("filtered" if result.filtered else "no rows")


def _causes(result: EventResult) -> Iterator[str]:
    for parked in result.parked:
        yield parked.message
        if parked.where:
            yield f"where: {parked.where}"
        for other in parked.others:
            yield f"also {other}"


def _show_own_tests(own: OwnTests) -> None:
    if own.exit_code:
        console = terminal()
        for line in own.output.splitlines():
            console.print(Text(plain(line)), soft_wrap=True)  # as wide as pytest made it
    style = "bold red" if own.exit_code else "green"
    _say(f"{', '.join(own.files)}: {own.summary}", indent=2, style=style)


def _say(message: str, *, indent: int = 0, style: str = "") -> None:
    print_folded([" " * indent + message], style=style)
