"""``waybill new``: a working pipeline to begin with; in a terminal, what is not given is asked."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from waybill.cli.options import AsJson, takes
from waybill.cli.output import echo_json, plain, print_folded, terminal
from waybill.errors import InputError
from waybill.nearest_name import hint, shown_name
from waybill.pipelines import NewPipeline

if TYPE_CHECKING:
    from waybill.settings import Settings

_KINDS = {
    "csv": "one CSV file",
    "files": "files of a folder or of S3: CSV, JSON lines, Parquet",
    "sql": "a table of PostgreSQL, MySQL, MariaDB or SQLite",
    "dlt": "a REST API, or any source of dlt",
    "singer": "any Singer tap",
    "postgres_cdc": "tables of PostgreSQL and each change, by its log",
    "kafka": "topics of others",
    "http": "what is sent to `waybill collector`: webhooks, applications",
}
NoQuestions = Annotated[
    bool, typer.Option("--yes", "-y", help="Ask nothing: defaults for what is not given.")
]


def _complete(given: Mapping[str, Any], *, yes: bool, as_json: bool) -> dict[str, Any]:
    """Return what was given, with answers to what was not, where somebody can be asked."""
    values = {name: value for name, value in given.items() if value is not None}
    if not yes and not as_json and sys.stdin.isatty() and sys.stderr.isatty():
        from waybill.settings import Settings

        return _ask(values, Settings())
    if "name" not in values:
        raise InputError(
            "name: expected the name of the new pipeline, as in `waybill new orders`; questions are"
            " asked in a terminal only, without --yes and --json"
        )
    return values


def _ask(values: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Ask for what is not given; an answer that cannot be is asked for again."""
    from waybill.pipelines import CONNECTORS, DEFAULT_DESTINATION, brought_connectors

    print_folded(
        ["Enter takes what stands in brackets; Ctrl-C ends it, and writes nothing."], err=True
    )
    kinds = [*CONNECTORS, *sorted(brought_connectors())]
    destinations = sorted(settings.destinations) or [DEFAULT_DESTINATION]
    default = DEFAULT_DESTINATION if DEFAULT_DESTINATION in destinations else destinations[0]
    answers = dict(values)
    _answer(
        answers, "name", "Name of the pipeline", judge=_judge("name", root=settings.pipelines_dir)
    )
    if "connector" not in answers:
        print_folded(
            (f"  {kind}: {_KINDS.get(kind, 'of another package')}" for kind in kinds), err=True
        )
    _answer(answers, "connector", "Where do its records come from", kinds[0], kinds)
    _answer(answers, "team", "Team that owns it", NewPipeline.model_fields["team"].default)
    _answer(answers, "destination", "Destination", default, destinations)
    if NewPipeline(name="new", connector=answers["connector"]).has_examples:
        _answer(answers, "key", "Columns of the primary key, with commas between", "id")
    return answers


def _answer(
    answers: dict[str, Any],
    field: str,
    question: str,
    default: str | None = None,
    choices: Collection[str] = (),
    judge: Callable[[str], str] | None = None,
) -> None:
    """Ask for a field that is not there yet, until the answer is one that can be."""
    if field not in answers:
        answers[field] = typer.prompt(
            question, default=default, err=True, value_proc=judge or _judge(field, choices)
        )


def _judge(
    field: str, choices: Collection[str] = (), root: Path | None = None
) -> Callable[[str], str]:
    def judge(text: str) -> str:
        from waybill.pipelines import wrong_value

        text = text.strip()
        if choices and text not in choices:
            said = f"there is no {shown_name(text)!r}; there are {', '.join(choices)}"
            raise typer.BadParameter(plain(said + hint(text, choices)))
        if wrong := wrong_value(field, text):
            raise typer.BadParameter(plain(wrong))
        if root is not None and os.path.lexists(root / text):
            raise typer.BadParameter(f"{plain(str(root / text))} is there already")
        return text

    return judge


@takes(NewPipeline, argument="name", flags={"batch": ("--batch",)}, complete=_complete)
def new(request: NewPipeline, *, yes: NoQuestions = False, as_json: AsJson = False) -> None:
    """Create a pipeline with example events and a test, for you to change.

    In a terminal it asks for what is not given, but with --yes. Elsewhere, and for what is not
    asked: connector csv, team `team`, the only destination or `warehouse`. Of csv and http it
    works as it is; of others `waybill sources discover` fills in key and columns.
    """
    from waybill.egress import EgressGuard
    from waybill.mappings import TablePlaces
    from waybill.pipelines import write_new
    from waybill.settings import Settings

    del yes  # the questions have been asked
    settings = Settings()
    egress = EgressGuard(settings.egress)
    written = write_new(
        settings.pipelines_dir,
        request,
        settings.destinations,
        settings.sources,
        egress=egress,
        table_key=TablePlaces(settings.destinations).key,
    )
    if as_json:
        from waybill.events import dumps

        echo_json(dumps(written.to_json()))
        return
    console = terminal()
    console.print(Text(f"wrote {plain(str(written.folder))}/", "bold"), soft_wrap=True)
    print_folded(f"  {file}" for file in written.files)
    facts = f"id {written.id}, team {written.team}, destination {written.destination}"
    print_folded([f"{facts}: these never change once it is deployed"])
    name, advice = request.name, written.advice.splitlines()
    if not written.is_finished:
        advice.append("its columns are not known yet: the first `next` below fills them in")
    for line in advice:
        if line.startswith(" "):  # to be copied
            console.print(Text(plain(line)), soft_wrap=True)
        else:
            print_folded([line])
    found = [] if written.is_finished else [f"sources discover {name} --write"]
    for command in (
        *found,
        f"test {name}",
        f"run {name} --local",
        f"dev {name}",
        f"pipelines deploy {name}",
    ):
        console.print(Text(f"next: waybill {command}", "dim"), soft_wrap=True)
