"""Pipelines tried before they are deployed: their destination, and their code on a sample.

What cannot work is told apart from what may: a destination that is away may be back in an hour, and
one event that parks stops no other. Nothing is left behind, at the source, in the tracker or (see
``loading.dry_run``) in the destination.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from waybill.errors import InputError, WaybillError
from waybill.nearest_name import shown_name
from waybill.pipelines import (
    EXAMPLES,
    PUSHED,
    DeclarationError,
    Pipeline,
    Problem,
    RunEnvironment,
    code_file,
    load_pipeline,
    problem_at,
)
from waybill.settings import Settings

if TYPE_CHECKING:
    from waybill.ingestion.connectors import Record
    from waybill.testing import Event, EventResult, Example

T = TypeVar("T")
DEEP_LIMIT_S = 60.0
"""How long each of these may take: the destination, the source, the code, deletes."""
_SAMPLE_ROWS = 50
_MOST_EXAMPLES = 100
_MOST_WAYS = 3
_FIRST = 5
"""Events that are tried by themselves: code that never ends shows after them."""
_WORDS = 300
_HIDDEN = "what it says is not shown, for the pipeline has personal fields"


class TrialFailedError(DeclarationError):
    """A pipeline was tried, and what was found cannot work."""


@dataclass(frozen=True, slots=True)
class DeepCheck:
    """What came of trying a pipeline."""

    pipeline: str
    problems: tuple[Problem, ...] = ()
    """What cannot work as it is."""
    warnings: tuple[Problem, ...] = ()
    """What may work later, of some events only, or could not be tried."""
    facts: tuple[str, ...] = ()
    """What was tried, and is right."""
    untried: tuple[str, ...] = ()
    """What was left out, though nothing is wrong."""


@dataclass(slots=True)
class _Trial:
    """What is gathered of one pipeline."""

    settings: Settings
    directory: Path
    pipeline: Pipeline
    limit_s: float
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    untried: list[str] = field(default_factory=list)
    code_failed: bool = False
    """The code could not be loaded, or did not end in time: it is not run once more."""

    @property
    def runs_code_here(self) -> bool:
        environment = RunEnvironment.of((), self.settings.spark.master)
        return environment.runs_code


def deep_check(
    settings: Settings,
    directory: Path,
    pipeline: Pipeline | None = None,
    *,
    limit_s: float = DEEP_LIMIT_S,
    has_imports: bool = True,
) -> DeepCheck:
    """Try a pipeline: can its destination be loaded, what does its code make of a sample.

    The sample: its example events, or the rows that its source gives first, 50 at most.

    Args:
        settings: all.
        directory: with a declaration without mistakes.
        pipeline: as it was read from there, whatever the folder holds by now; None: it is read.
        limit_s: how long destination, source, code and deletes may take, each; what takes longer
            is left to end with this process.
        has_imports: False: the code imports what is not here, and is not run.

    Raises:
        DeclarationError: the declaration has mistakes.

    Cost: half a second where all answers; at most four times ``limit_s``.
    """
    trial = _Trial(settings, directory, pipeline or load_pipeline(directory), limit_s)
    _try_destination(trial)
    if has_imports:
        _try_code(trial)
        _try_deletes(trial)
    else:
        _warn_code(trial, "the transformation was not tried: it imports what is not here")
    return DeepCheck(
        trial.pipeline.name,
        tuple(sorted(trial.problems)),
        tuple(sorted(trial.warnings)),
        tuple(trial.facts),
        tuple(trial.untried),
    )


def _try_destination(trial: _Trial) -> None:
    from waybill.loading import dry_run

    pipeline, settings = trial.pipeline, trial.settings
    name, place = pipeline.destination, ("destination", "name")
    configured = settings.destinations.get(name)
    if not settings.destinations:
        trial.untried.append("the destination was not tried: the settings here name none")
        return
    if configured is None:
        said = (
            f"{shown_name(name)!r} was not tried: it is not among the destinations of the settings "
            "here; `waybill destination add` adds one"
        )
        trial.warnings.append(problem_at(trial.directory, place, said))
        return
    specs = [event.table for event in pipeline.events.values()]
    found = _within(trial.limit_s, lambda: dry_run(name, configured, specs, settings.s3))
    if found is None:
        said = f"{name!r} was not tried to the end: it took more than {trial.limit_s:.0f} s"
        trial.warnings.append(problem_at(trial.directory, place, said))
        return
    failed = next((one for one in found if not one.ok), None)
    if failed is None:
        steps = f"{len(found)} steps, nothing is left of them"
        trial.facts.append(f"destination {name!r} can be loaded ({steps})")
        return
    said = f"{failed.step}: {failed.words}"
    if failed.may_pass:
        said += "; until it answers, what is loaded waits, and nothing is lost"
    kept = trial.warnings if failed.may_pass else trial.problems
    kept.append(problem_at(trial.directory, place, said))


def _try_code(trial: _Trial) -> None:
    if os.path.lexists(trial.directory / EXAMPLES):
        _try_examples(trial)
    else:
        _try_rows(trial)


def _try_examples(trial: _Trial) -> None:
    from waybill.testing import differences, read_examples

    try:
        examples = read_examples(trial.directory)[:_MOST_EXAMPLES]
    except DeclarationError as error:
        trial.problems += error.problems
        return
    results = _run(trial, [example.given for example in examples])
    wrong = [
        (example, found)
        for example, result in zip(examples, results, strict=False)
        if (found := differences(example, result))
    ]
    file = str(trial.directory / EXAMPLES)
    kept = _certain(trial)
    kept += [Problem(file, one.line, "", _example_words(one, found)) for one, found in wrong]
    if results and not wrong:
        trial.facts.append(f"{len(results)} example events are as expected")


def _try_deletes(trial: _Trial) -> None:
    """Try the deletes that the source brings, with their keys alone.

    The sample has none, and one that parks is one of some events only: a warning.
    """
    from waybill.testing import KEY_ONLY, SampleEvent, masked_result, read_examples, untried_deletes

    try:
        has_examples = os.path.lexists(trial.directory / EXAMPLES)
        examples = read_examples(trial.directory) if has_examples else []
    except DeclarationError:  # its mistakes are among the problems already
        return
    deletes = untried_deletes(trial.pipeline, examples)
    if not deletes or trial.code_failed:
        return
    records = [one.event.record(trial.pipeline) for one in deletes]
    results = _run(trial, records, "deletes with their key alone", trial.warnings)
    for record, result in zip(records, results, strict=False):
        key = ", ".join(map(shown_name, record.data))
        what = f"a delete of {shown_name(str(record.event))} with its key alone ({key})"
        if result.parked:
            masked = masked_result(trial.pipeline, SampleEvent("", record), result)
            _warn_code(trial, f"{what} parks: {_ways([masked])}; {KEY_ONLY}")
        else:
            trial.facts.append(f"{what} {'is filtered' if result.filtered else 'passes'}")


def _example_words(example: Example, found: Sequence[str]) -> str:
    note = f" ({shown_name(example.note)})" if example.note else ""
    more = f"; and {len(found) - 1} more" if len(found) > 1 else ""
    return (
        f"the example event{note} is not as expected: {_cut(found[0])}{more}. Correct the code or "
        "the example; `waybill pipelines test` shows all"
    )


def _try_rows(trial: _Trial) -> None:
    from waybill.testing import SampleEvent, masked_result

    if trial.pipeline.source.connector == PUSHED:
        _warn_code(
            trial,
            f"the transformation was not tried: its source sends, and there are no examples in "
            f"{EXAMPLES}",
        )
        return
    rows = _first_rows(trial)
    if not rows:
        return
    results = _run(trial, rows)
    failed = [
        masked_result(trial.pipeline, SampleEvent("", row), result)
        for row, result in zip(rows, results, strict=False)
        if result.parked
    ]
    said = _ways(failed)
    if results and len(failed) == len(results):
        which = (
            "the first row of its source parks"
            if len(results) == 1
            else (f"all of the first {len(results)} rows of its source park")
        )
        file = code_file(trial.directory)
        _certain(trial).append(Problem(file, 1, "", f"{which}: {said}"))
    elif failed:
        _warn_code(
            trial,
            f"{len(failed)} of the first {len(results)} rows of its source park: {said}",
        )
    if len(failed) < len(results):
        trial.facts.append(
            f"{len(results) - len(failed)} of the first {len(results)} rows of its source pass"
        )


def _ways(failed: Sequence[EventResult]) -> str:
    """Return in which ways rows park, the most frequent first, with an example of each."""
    found: dict[str, list[Any]] = {}
    for result in failed:
        parked = result.parked[0]
        found.setdefault(parked.way, []).append(parked)
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    words = []
    for way, alike in ordered[:_MOST_WAYS]:
        first = alike[0]
        where = f" ({shown_name(first.where)})" if first.where else ""
        times = "once" if len(alike) == 1 else f"{len(alike)} times"
        words.append(f"{way}, {times}: {_cut(first.message)}{where}")
    more = len(ordered) - _MOST_WAYS
    return "; ".join(words) + (f"; and {more} other ways" if more > 0 else "")


def _first_rows(trial: _Trial) -> list[Record]:
    """Return the first rows of a source; where there are none, says why.

    Whose values the words of a source quote is not known: with personal fields they are hidden.
    """
    from waybill.ingestion.connectors import closed_places

    if closed_places(trial.pipeline.source, trial.settings.egress):
        said = "the transformation was not tried: its source is closed here"
        trial.warnings.append(problem_at(trial.directory, ("source",), said))
        return []
    try:
        found = _within(trial.limit_s, lambda: _read_rows(trial))
    except Exception as error:  # noqa: BLE001 - a source may fail in any way; it is said
        kind = "" if isinstance(error, WaybillError) else f"{type(error).__name__}: "
        hides = any(event.personal for event in trial.pipeline.events.values())
        reason = f"its source gave no rows: {_HIDDEN if hides else f'{kind}{error}'}"
    else:
        if found:
            return found
        took = f"its source gave no row within {trial.limit_s:.0f} s"
        reason = took if found is None else "its source has no rows"
    said = f"the transformation was not tried: {_cut(reason)}"
    trial.warnings.append(problem_at(trial.directory, ("source",), said))
    return []


def _read_rows(trial: _Trial) -> list[Record]:
    from waybill.ingestion.connectors import Record, first_pages

    with _opened(trial) as connector:
        rows = (row for page in first_pages(connector) for row in page.rows)
        return [
            row if isinstance(row, Record) else Record(row) for row in islice(rows, _SAMPLE_ROWS)
        ]


@contextmanager
def _opened(trial: _Trial) -> Iterator[Any]:
    from waybill.ingestion.connectors import Connections, closing_connector, open_connector

    settings, pipeline = trial.settings, trial.pipeline
    connector = open_connector(
        pipeline.source,
        trial.directory,
        settings.sources.roots_of(pipeline.team),
        events=pipeline.events,
        connections=Connections(settings.sources.connections_of(pipeline.team), None),
        settings=settings,
    )
    with closing_connector(connector):
        yield connector


def _run(
    trial: _Trial,
    events: Sequence[Event | Record],
    what: str = "sample events",
    late: list[Problem] | None = None,
) -> list[EventResult]:
    """Return what becomes of events, as far as there is time; says how far that was.

    Args:
        trial: what is tried.
        events: that are run.
        what: they are, in the plural.
        late: where it is said that there was no time for any; None: among what is certain.
    """
    from waybill.testing import run_pipeline

    done: list[EventResult] = []
    deadline = time.monotonic() + trial.limit_s

    def run() -> bool:
        waiting = list(events)
        while waiting and time.monotonic() < deadline:
            number = 1 if len(done) < _FIRST else len(waiting)
            some, waiting = waiting[:number], waiting[number:]
            done.extend(run_pipeline(trial.pipeline, some, settings=trial.settings).events)
        return not waiting

    try:
        is_whole = _within(trial.limit_s, run)
    except InputError as error:
        trial.code_failed = True
        _certain(trial).append(Problem(code_file(trial.directory), 1, "", str(error)))
        return []
    results = list(done)
    if not is_whole:
        trial.code_failed = True
        said = (
            f"{len(results)} of {len(events)} {what} were done after {trial.limit_s:.0f} s; "
            f"an event may take {trial.settings.spark.event_timeout_s:.0f} s, then it parks"
        )
        kept = trial.warnings if results else (_certain(trial) if late is None else late)
        kept.append(Problem(code_file(trial.directory), 1, "", said))
    return results


def _certain(trial: _Trial) -> list[Problem]:
    """Return where a failure of code goes: where code runs elsewhere, it may do there."""
    return trial.problems if trial.runs_code_here else trial.warnings


def _warn_code(trial: _Trial, said: str) -> None:
    trial.warnings.append(Problem(code_file(trial.directory), 1, "", said))


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _WORDS else f"{line[:_WORDS]}…"


def _within(limit_s: float, act: Callable[[], T]) -> T | None:
    """Return what an action returns; None: it is not done yet, and ends with this process.

    What it raises is raised.
    """
    found: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            found.append(act())
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            errors.append(error)

    thread = threading.Thread(target=run, name="deep check", daemon=True)
    thread.start()
    thread.join(limit_s)
    if errors:
        raise errors[0]
    return found[0] if found else None
