"""Options of commands: who decided and why, and those made from the fields of a request."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import typer
from annotated_types import Ge, Le
from pydantic.fields import FieldInfo

from waybill.cli.command import DEPLOYED
from waybill.request import Request

if TYPE_CHECKING:
    from waybill.access import Decision


Why = Annotated[str, typer.Option(help="The reason, for the audit log.", show_default=False)]
Reason = Annotated[
    str,
    typer.Option("--why", "--reason", help="The reason, for the audit log.", show_default=False),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
AllPipelines = Annotated[
    bool, typer.Option("--all-pipelines", help="Instead of one: the pipelines of all teams.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
PIPELINE_FLAGS = ("--pipeline", "-p")
PARTITION_FLAGS = {
    "event_name": ("--event-name", "-e"),
    "stage": ("--stage", "-s"),
    "error_type": ("--error-type", "-t"),
}
"""Options that name a parked partition."""
Who = Annotated[str | None, typer.Option(help="Your name, if not the system user's.")]


def decision(who: str | None, why: str = "") -> Decision:
    """Return a decision of the system user, or of whom they name: the audit log has both."""
    from waybill.access import Decision
    from waybill.services import current_user

    user = current_user()
    return Decision(who or user, why, system_user=user)


def require_scope(pipeline: str | None, *, all_pipelines: bool) -> None:
    """Refuse to reach into every team's pipelines unless that is said.

    Raises:
        InputError: neither a pipeline nor --all-pipelines is given, or both are.
    """
    from waybill.errors import InputError

    if pipeline is None and not all_pipelines:
        raise InputError(
            "no pipeline was given: name one, or say --all-pipelines to mean those of all teams"
        )
    if pipeline is not None and all_pipelines:
        raise InputError(f"--all-pipelines contradicts pipeline {pipeline!r}: give one of them")


def ask(question: str, *, as_json: bool = False) -> None:
    """Go on where the answer is yes. The question is on standard error; an answer can be piped.

    Raises:
        InputError: it cannot be asked with --json, or nobody is there to answer.
        typer.Abort: the answer is no.
    """
    from waybill.errors import InputError

    if as_json:
        raise InputError("--json asks no questions: add --yes")
    with told_how_to_answer("--yes"):
        is_agreed = typer.confirm(question, err=True)
    if not is_agreed:
        raise typer.Abort


@contextmanager
def told_how_to_answer(option: str) -> Iterator[None]:
    """Say which option answers a question, where standard input is no terminal and ends before.

    Raises:
        InputError: it ended; names the option.
    """
    from waybill.cli.output import echo
    from waybill.errors import InputError

    try:
        yield
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        echo(err=True)
        raise InputError(
            "nothing was done: nobody answered, as standard input is no terminal; add"
            f" {option} to go on without being asked"
        ) from None


R = TypeVar("R", bound=Request)
_TIME = ": 2013-01-31, or RFC 3339; UTC without a zone."


def takes(
    model: type[R],
    *,
    argument: str = "pipeline",
    flags: Mapping[str, tuple[str, ...]] | None = None,
    without: Collection[str] = (),
    complete: Callable[..., Mapping[str, Any]] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of ``model``; it is called with the request as ``request``.

    Args:
        model: the request.
        argument: the field that is given by place.
        flags: names of options that are not the field's own.
        without: fields that the command does not take.
        complete: is called with what was given for the fields, None where nothing was, and the
            command's own options by name; returns the request's fields. With it, no option has a
            default, and none is required; an argument that is a pipeline is, as everywhere.

    Raises:
        InputError: when the command is called with what the model refuses.
    """
    fields = {name: field for name, field in model.model_fields.items() if name not in set(without)}

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            values: Mapping[str, Any] = {name: given.pop(name) for name in fields}
            request = model.of(values if complete is None else complete(values, **given))
            command(request=request, **given)

        times = [name for name, field in fields.items() if _plain(field) is datetime]
        more = dict.fromkeys(times, f"; as --{times[0]}.") | {times[0]: _TIME} if times else {}
        parameters = [
            _parameter(
                name,
                field,
                argument=name == argument,
                flags=(flags or {}).get(name, ()),
                more=more.get(name, ""),
                optional=complete is not None,
            )
            for name, field in fields.items()
        ]
        hints = get_type_hints(command, include_extras=True)
        own = [
            one.replace(annotation=hints[one.name], kind=inspect.Parameter.KEYWORD_ONLY)
            for one in inspect.signature(command).parameters.values()
            if one.name != "request"
        ]
        run.__signature__ = inspect.Signature([*parameters, *own])  # type: ignore[attr-defined]
        run.__doc__, run.__name__ = command.__doc__, command.__name__
        return run

    return wrap


def _parameter(
    name: str,
    field: FieldInfo,
    *,
    argument: bool,
    flags: tuple[str, ...],
    more: str,
    optional: bool,
) -> inspect.Parameter:
    """Return one field as typer wants it; ``more`` ends its help."""
    text = field.description or ""
    options: dict[str, Any] = {"help": f"{text.rstrip('.')}{more}" if more else text}
    if name == "pipeline":
        options |= {"metavar": DEPLOYED} if argument else {}
        flags = flags or (() if argument else PIPELINE_FLAGS)
    if field.default is False and not flags and not argument:
        flags = (f"--{name.replace('_', '-')}",)  # without it: the default, no option says so
    for limit in field.metadata:
        if isinstance(limit, Ge):
            options["min"] = limit.ge
        if isinstance(limit, Le):
            options["max"] = limit.le
    info = typer.Argument(**options) if argument else typer.Option(*flags, **options)
    kind: Any = str if _plain(field) is datetime else _plain(field)
    default: Any = inspect.Parameter.empty if field.is_required() else field.default
    if optional and kind is not bool and not (argument and name == "pipeline"):
        default = None
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind | None if default is None else kind, info],
    )


def _plain(field: FieldInfo) -> Any:
    """Return the type that is not None of ``X | None``."""
    if get_origin(field.annotation) is Literal:
        return field.annotation
    kinds = get_args(field.annotation)
    return next((one for one in kinds if one is not NoneType), field.annotation)
