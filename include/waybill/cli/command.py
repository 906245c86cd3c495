"""What every command has besides its own: ``--no-color``, ``-p``, and the only choice there is.

An argument with one of the metavars below means a pipeline or a destination. A pipeline can be
given as ``-p`` as well. What is needed and left out is the only one there is, and that is said; but
for a few commands that have to be told.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

DEPLOYED = "PIPELINE"
"""Metavar of an argument that names a deployed pipeline."""
DECLARED = "PIPELINE|FOLDER"
"""The same of a declared one."""
DESTINATION = "DESTINATION"
"""The same of a destination."""
NoColor = Annotated[
    bool,
    typer.Option(
        "--no-color",
        help="Print without colors; so does NO_COLOR, and what goes into a file or a pipe.",
        is_eager=True,
        callback=lambda value: _set_no_color(given=value),
    ),
]
_OPTION = "named_pipeline"
_BRACED = re.compile(r"^\{(.*)\}")
_LARGEST_SHOWN = 1_000_000_000
"""Of a number's upper bound: what is larger is there for the machine."""


class Command(TyperCommand):
    """A command with what all have."""

    def __init__(self, name: str | None, **given: Any) -> None:
        super().__init__(name, **given)
        self._subject = next((one for one in self.params if one.metavar in _CHOICES), None)
        self._is_needed = False
        pipeline, no_color = _common_options()
        if self._subject is not None:
            self._is_needed, self._subject.required = self._subject.required, False
            if self._subject.metavar != DESTINATION:
                self.params.append(pipeline)
        self.params.append(no_color)
        for param in self.params:
            _show_plainly(param)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line: ``NAME`` is needed, ``[NAME]`` may be left out."""
        return [_BRACED.sub(r"\1", one) for one in super().collect_usage_pieces(ctx)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse; a pipeline that is given as an option takes the place of the argument."""
        subject = self._subject
        if subject is None:
            return super().parse_args(ctx, args)
        values, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        named = values.get(_OPTION)
        if named is None:
            rest = super().parse_args(ctx, args)
        else:
            everything = self.params
            self.params = [one for one in everything if one is not subject]
            try:
                rest = super().parse_args(ctx, args)
            finally:
                self.params = everything
            ctx.params[subject.name] = subject.process_value(ctx, named)
        if self._is_needed and ctx.params[subject.name] is None and not ctx.resilient_parsing:
            only = only_choice(str(subject.metavar), is_taken=self.name not in _NAMED)
            ctx.params[subject.name] = subject.process_value(ctx, only)
        return rest


def _show_plainly(param: Any) -> None:
    """Name an argument in capitals, and leave a bound out of the help that is no one's limit.

    The bound is checked all the same: by the parameter's type.
    """
    if param.param_type_name == "argument" and param.metavar is None:
        param.metavar = str(param.name).upper()
    if (getattr(param, "max", None) or 0) > _LARGEST_SHOWN:
        param.max = None


@cache
def _common_options() -> tuple[Any, Any]:
    """Return the parameters ``-p`` and ``--no-color``."""

    def command(
        named_pipeline: Annotated[
            str | None,
            typer.Option("--pipeline", "-p", help="The pipeline; the same as the argument."),
        ] = None,
        *,
        no_color: NoColor = False,
    ) -> None:
        del named_pipeline, no_color

    alone = typer.Typer(add_completion=False)
    alone.command()(command)
    made: dict[str, Any] = {one.name: one for one in typer.main.get_command(alone).params}
    for one in made.values():
        one.expose_value = False
    return made[_OPTION], made["no_color"]


def _set_no_color(*, given: bool) -> bool:
    if given:
        os.environ["NO_COLOR"] = "1"
    return given


def only_choice(kind: str, *, is_taken: bool = True) -> str:
    """Return the only choice, and say so on standard error.

    Args:
        kind: metavar of the argument.
        is_taken: False: it has to be named, also where there is only one.

    Raises:
        InputError: there is none, or more than one, or it has to be named; says which there are.
    """
    from waybill.errors import InputError
    from waybill.nearest_name import shown_name

    noun = "destination" if kind == DESTINATION else "pipeline"
    choices = _CHOICES[kind]()
    if len(choices) == 1 and is_taken:
        tell_taken(noun, choices[0])
        return choices[0]
    listed = ", ".join(map(shown_name, choices[:_MOST_LISTED]))
    more = f" and {len(choices) - _MOST_LISTED:,} more" if len(choices) > _MOST_LISTED else ""
    there = f"; there {'is' if len(choices) == 1 else 'are'} {listed}{more}" if choices else ""
    raise InputError(f"no {noun} was given: name one{there}")


def tell_taken(noun: str, choice: str, why: str = "the only one") -> None:
    """Say on standard error what was taken where nothing was given."""
    from waybill.cli.output import echo
    from waybill.nearest_name import shown_name

    echo(f"{noun}: {shown_name(choice) or '(empty)'}, {why}", err=True)


def _deployed() -> list[str]:
    """Return the names of deployed pipelines; none where the tracker is away: not waited for."""
    from waybill.errors import RetryError
    from waybill.services import deployed_names
    from waybill.settings import Settings
    from waybill.waiting import nobody_waiting

    try:
        with nobody_waiting():
            return deployed_names(Settings())
    except RetryError:
        return []


def _declared() -> list[str]:
    from waybill.settings import Settings

    settings = Settings()
    roots = (settings.pipelines_dir, *settings.more_pipelines_dirs)
    files = (path for root in roots for path in root.glob("[!._]*/pipeline.yaml"))
    return sorted({path.parent.name for path in files})


def _destinations() -> list[str]:
    from waybill.settings import Settings

    return sorted(Settings().destinations)


_MOST_LISTED = 10
_NAMED = frozenset({"undeploy", "rollback", "replay", "reread", "remove", "settle", "settle-lost"})
"""Commands that are told which: what they do to a wrong one cannot be taken back."""
_CHOICES: Mapping[str, Callable[[], list[str]]] = {
    DEPLOYED: _deployed,
    DECLARED: _declared,
    DESTINATION: _destinations,
}
