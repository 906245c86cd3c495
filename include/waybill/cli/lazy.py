"""The root group: commands that are imported when they are called, and errors a user can read.

``waybill --help`` imports none of them: names and help lines are in a table.
"""

from __future__ import annotations

import gc
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from waybill.cli.exit_codes import ExitCode, exit_code
from waybill.errors import AwayError, RetryError, WaybillError

if TYPE_CHECKING:
    from pydantic import ValidationError


AWAY_ADVICE = "`waybill status` shows what runs here; `waybill up` starts what does not."
_TRACKER = "WAYBILL_TRACKER__DSN"
_USUAL_GROUPS = ("pipelines", "parked", "destination", "sources")
_MOST_GROUPS = 3
_NEW_OBJECTS = 10_000
_STACK_COMMANDS = ("up", "down")
"""These start and end the supervisor themselves."""


@dataclass(frozen=True)
class LazyCommand:
    """A command or group of commands, by ``module:name``.

    ``target``: a function, or a `typer.Typer`. ``more``: commands of other modules that belong to
    the group: name -> ``module:function``.
    """

    help: str
    target: str
    more: Mapping[str, str] = field(default_factory=dict)

    def load(self, name: str) -> Any:
        """Import it and return typer's command; made once in a process."""
        return _made(name, self.target, tuple(self.more.items()))


@cache
def _made(name: str, target: str, more: tuple[tuple[str, str], ...]) -> Any:
    from waybill.cli.command import Command

    found = _import(target)
    if isinstance(found, typer.Typer):
        for word, function in more:
            found.command(word)(_import(function))
        for one in found.registered_commands:
            one.cls = Command
        return _with_joined_help(typer.main.get_group(found))
    alone = typer.Typer(add_completion=False)
    alone.command(name, cls=Command)(found)
    return _with_joined_help(typer.main.get_command(alone))


def _with_joined_help(command: Any) -> Any:
    """Return a command with each paragraph of its help on one line: docstrings break theirs."""
    if command.help:
        paragraphs = inspect.cleandoc(command.help).split("\n\n")
        command.help = "\n\n".join(" ".join(one.split()) for one in paragraphs)
    for inner in getattr(command, "commands", {}).values():
        _with_joined_help(inner)
    return command


def _import(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


class _UnloadedCommand(TyperCommand):
    """Shown in the help; imports the command when it is called."""

    def __init__(self, name: str, later: LazyCommand, panel: str) -> None:
        super().__init__(name, help=later.help, rich_help_panel=panel)
        self.later = later

    def make_context(  # typer's own types of what goes through here are private
        self,
        info_name: Any,
        args: list[str],
        parent: Any = None,
        **extra: Any,
    ) -> Any:
        """Return the context of the real command."""
        _watch_over_stack(str(info_name))
        return self.later.load(str(info_name)).make_context(info_name, args, parent=parent, **extra)


class Root(TyperGroup):
    """Prints a `WaybillError` as one block on standard error and exits with its code.

    With ``--debug`` it is raised. What cannot be parsed is wrong input as well.
    """

    def make_context(  # typer's own types of what goes through here are private
        self, info_name: Any, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Return the context; what is wrong about the root's options ends with 1."""
        with _usage_as_input():
            return super().make_context(info_name, args, parent=parent, **extra)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the command line; garbage is looked for less often meanwhile."""
        with _rare_collections():
            return super().main(*args, **extra)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command; a word that groups have is not guessed to be another."""
        try:
            return super().resolve_command(ctx, args)
        except TyperException as error:
            if args and (groups := _groups_with(args[0], self.commands)):
                places = ", ".join(repr(f"{name} {args[0]}") for name in groups)
                error.message = f"No such command {args[0]!r}. Did you mean {places}?"
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a server that does not answer is waited for, ``--wait`` seconds."""
        from waybill.waiting import waiting

        try:
            limit_s = ctx.params.get("wait", 0)
            with _usage_as_input(), waiting(limit_s, _print_wait, _has_no_tracker):
                return super().invoke(ctx)
        except WaybillError as error:
            if ctx.params.get("debug"):
                raise
            _print_error(_error_text(error))
            code = exit_code(error)
        except ValueError as error:
            words = _TEXT_OF.get(type(error).__name__)
            if ctx.params.get("debug") or words is None:
                raise
            _print_error(words(error))
            code = ExitCode.INPUT
        raise typer.Exit(code)


def _groups_with(word: str, commands: Mapping[str, Any]) -> list[str]:
    """Return the groups that have a command of this name, the most usual first, some at most."""
    lazy = {name: one for name, one in commands.items() if isinstance(one, _UnloadedCommand)}
    if word in commands:
        return []
    names = [*(name for name in _USUAL_GROUPS if name in lazy), *lazy]
    found = (
        name
        for name in dict.fromkeys(names)
        if word in getattr(lazy[name].later.load(name), "commands", {})
    )
    return list(islice(found, _MOST_GROUPS))


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Let Python look for garbage in cycles after 10,000 new objects instead of 700.

    Imports make many objects that stay: looking through them is a tenth of a command's CPU.
    """
    usual = gc.get_threshold()
    if usual[0]:  # 0: it is switched off
        gc.set_threshold(max(_NEW_OBJECTS, usual[0]), *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


@contextmanager
def _usage_as_input() -> Iterator[None]:
    """End with the code of wrong input on a usage error; typer's own is 2."""
    try:
        yield
    except TyperException as error:
        error.exit_code = ExitCode.INPUT
        raise


def root(
    commands: Mapping[str, LazyCommand], panels: Mapping[str, Sequence[str]]
) -> type[TyperGroup]:
    """Return the class of a root group that has these commands besides its own.

    Args:
        commands: by name.
        panels: title -> the commands that the help has below it, in this order.
    """

    class WithCommands(Root):
        """The root group with its table."""

        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            self.commands = {
                **{
                    name: _UnloadedCommand(name, commands[name], panel)
                    for panel, names in panels.items()
                    for name in names
                },
                **self.commands,
            }

    return WithCommands


def _watch_over_stack(command: str) -> None:
    """Start the embedded stack's supervisor if it has died; without a stack nothing is loaded."""
    home = _home()
    if command in _STACK_COMMANDS or not (home / "run" / "supervised").exists():
        return
    from waybill.cli.output import echo
    from waybill.stack import supervisor

    try:
        started = supervisor.ensure(home)
    except (OSError, WaybillError) as error:  # another user's stack, a full disk: none of its own
        echo(f"the stack's supervisor is not looked after: {error}", err=True)
        return
    if started:
        echo("the stack's supervisor had died; it is started again", err=True)


def _home() -> Path:
    return Path(os.environ.get("WAYBILL_HOME") or ".waybill")


def no_stack(home: Path) -> str:
    """Return that no stack was started in a state folder; "": one was."""
    if (home / "stack.env").exists() or (home / "run").exists():
        return ""
    return f"no stack was started in this folder (WAYBILL_HOME={home.absolute()})"


def _has_no_tracker(error: RetryError) -> bool:
    """Tell whether nobody ever said where a tracker is that does not answer."""
    names = {name.upper() for name in os.environ}
    is_set = any(name == "WAYBILL_TRACKER" or name.startswith(_TRACKER) for name in names)
    return getattr(error, "setting", "") == _TRACKER and not is_set and bool(no_stack(_home()))


def _error_text(error: WaybillError) -> str:
    words = str(error) or type(error).__name__
    return f"{words}\n{_advice(error)}" if isinstance(error, AwayError) else words


def _advice(error: AwayError) -> str:
    """Return what to do about a server that is away: ours is started, another's is looked for."""
    if _has_no_tracker(error):
        return f"{no_stack(_home())}, and no tracker is set ({_TRACKER}): `waybill up` starts one"
    section = error.setting.partition("__")[0]
    if any(name.startswith((section, "WAYBILL_TRACKER")) for name in os.environ):
        return f"Is it up, and does {error.setting} name it?"
    return AWAY_ADVICE


def _not_json_text(error: ValueError) -> str:
    """Name the variables that are no JSON, of the field that could not be read; show no value."""
    field = re.search(r'field "(\w+)"', str(error))
    wanted = "" if field is None else field[1].upper()
    names = [
        name
        for name, value in sorted(os.environ.items())
        if name.upper().startswith("WAYBILL_") and wanted in name.upper() and not _is_json(value)
    ]
    objects = [name for name in names if os.environ[name].lstrip()[:1] in {"{", "["}]
    return f"the settings are wrong:\n{', '.join(objects or names) or wanted}: not valid JSON"


def _is_json(value: str) -> bool:
    try:
        json.loads(value)
    except ValueError:
        return False
    return True


def _settings_text(error: ValueError) -> str:
    lines = []
    for fault in cast("ValidationError", error).errors():
        where = "__".join(str(part) for part in fault["loc"]).upper()
        name = f"WAYBILL_{where}: " if where else ""
        lines.append(f"{name}{fault['msg'].removeprefix('Value error, ')}")
    title = cast("ValidationError", error).title
    return f"the settings ({title}) are wrong:\n" + "\n".join(lines)


_TEXT_OF: Mapping[str, Callable[[ValueError], str]] = {
    "ValidationError": _settings_text,
    "SettingsError": _not_json_text,
}


def _print_wait(words: str) -> None:
    from waybill.cli.output import echo

    echo(words, err=True)  # which flushes it


_ERROR = "Error:"


def _print_error(words: str) -> None:
    """Print an error; on a terminal it is broken between words, else it is as it was written."""
    from rich.text import Text

    from waybill.cli.output import folded, plain, screen_width, terminal

    console = terminal(err=True)
    width = screen_width(err=True) if console.is_terminal else None
    first, *rest = map(plain, words.split("\n"))  # a server's may quote a value
    lines = [part for line in (f"{_ERROR} {first}", *rest) for part in folded(line, width, "  ")]
    console.print(
        Text(_ERROR, "bold red"), Text(lines[0].removeprefix(_ERROR).lstrip()), soft_wrap=True
    )
    for line in lines[1:]:
        console.print(Text(line), soft_wrap=True)
    sys.stdout.flush()
