"""Every command of the command line, found by walking its tree, and words to call each with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from waybill.cli import COMMANDS


def commands() -> Iterator[tuple[str, Any]]:
    """Yield the path of each command that runs something, and the command."""
    for name, later in COMMANDS.items():
        yield from _walk(name, later.load(name))


def _walk(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
    for word, one in (inner or {}).items():
        yield from _walk(f"{path} {word}", one)


def flags(command: Any) -> set[str]:
    """Return all options of a command."""
    return {flag for one in command.params for flag in getattr(one, "opts", ())}


def names_something(command: Any) -> bool:
    """Tell whether a command looks up what is given by place."""
    return any(_kind(one) in {str, int} for one in _arguments(command))


def words(command: Any, texts: Mapping[str, str], *, other: str) -> list[str]:
    """Return arguments and options that a command runs with.

    Args:
        command: as ``commands`` yields it.
        texts: by metavar or type's name, what is given.
        other: what is given where a text is wanted.
    """
    given = [_value(one, texts, other) for one in _arguments(command)]
    for one in command.params:
        is_reason = one.param_type_name == "option" and "--why" in one.opts
        if is_reason or (one.param_type_name == "option" and one.required):
            given += [one.opts[0], _value(one, texts, other)]
    return given + (["--yes"] if "--yes" in flags(command) else [])


def _arguments(command: Any) -> list[Any]:
    return [one for one in command.params if one.param_type_name == "argument"]


def _kind(param: Any) -> Any:
    return param.type_descriptor.annotation


def _value(param: Any, texts: Mapping[str, str], other: str) -> str:
    if param.type_descriptor.is_choice:
        return str(param.type_descriptor.choices[0])
    return (
        texts.get(param.metavar or "") or texts.get(getattr(_kind(param), "__name__", "")) or other
    )
