"""``waybill trail``: where events are, by id or by primary key."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waybill.cli.options import takes
from waybill.trails import TrailRequest

if TYPE_CHECKING:
    from waybill.trails import Asked, Question, TrailService

_MOST_FILE_BYTES = 4 * 1024**2


@takes(TrailRequest, argument="")
def trail(
    request: TrailRequest,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Ids of events, up to 1,000.")
    ] = None,
    file: Annotated[
        str | None, typer.Option(metavar="FILE", help="A file of ids, one a line; -: stdin.")
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show where events are, or were: every stop in order, with time and place.

    Exit code 0: all were found; 1: some were not.
    """
    from waybill.services import current_user, opened_trails
    from waybill.settings import Settings

    with opened_trails(Settings()) as trails:
        if request.pipeline is None and not request.key:
            if request.event_name is not None:
                raise _needs_key("--event-name")
            question = _of_ids([*(ids or ()), *_read(file)], request)
        else:
            _refuse_both(ids, file)
            question = _of_key(trails, request)
        asked = trails.run(question, who=current_user())
    show(asked, as_json=as_json)
    if asked.answer is None or asked.answer["missing"] or not asked.answer["trails"]:
        raise typer.Exit(1)


def show(asked: Asked, *, as_json: bool) -> None:
    """Print a question that has ended.

    Raises:
        RetryError: it failed, or was cancelled; says why.
    """
    import orjson

    from waybill.errors import RetryError

    if as_json:
        answer: dict[str, Any] = asked.answer or {}
        typer.echo(orjson.dumps({"query": asked.to_json(), **answer}).decode())
    elif asked.answer is None:
        raise RetryError(f"the question is {asked.state}: {asked.error or 'there is no answer'}")
    else:
        from waybill.cli.trail_views import print_answer

        print_answer(asked.question, asked.answer)


def _of_ids(texts: list[str], request: TrailRequest) -> Question:
    from waybill.trails import ask_for_ids

    since, until = _edges(request)
    return ask_for_ids(texts, since=since, until=until)


def _of_key(trails: TrailService, request: TrailRequest) -> Question:
    from waybill.errors import InputError
    from waybill.trails import ask_for_key

    pipeline, key = request.pipeline, request.key
    if pipeline is None or not key:
        raise _needs_key("--key" if pipeline is None else "--pipeline")
    found = trails.pipeline(pipeline)
    if found is None:
        raise InputError(
            f"there is no pipeline {pipeline!r}; `waybill pipelines list` shows those there are"
        )
    since, until = _edges(request)
    return ask_for_key(found.id, key, event_name=request.event_name, since=since, until=until)


def _edges(request: TrailRequest) -> tuple[datetime | None, datetime | None]:
    from waybill.trails import parsed_moment

    return parsed_moment(request.since, "--since"), parsed_moment(request.until, "--until")


def _read(file: str | None) -> list[str]:
    """Return the ids of a file, or of what is piped in."""
    from waybill.errors import InputError
    from waybill.trails import ids_in

    if file is None:
        return []
    try:
        if file == "-":
            body = sys.stdin.buffer.read(_MOST_FILE_BYTES + 1)
        else:
            with Path(file).open("rb") as opened:
                body = opened.read(_MOST_FILE_BYTES + 1)
        if len(body) > _MOST_FILE_BYTES:
            raise InputError(f"--file {file}: it has more than {_MOST_FILE_BYTES:,} bytes")
        return ids_in(body.decode("utf-8-sig"))
    except OSError as error:
        raise InputError(f"--file {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"--file {file}: it is not UTF-8 text") from error


def _needs_key(given: str) -> Exception:
    from waybill.errors import InputError

    return InputError(f"{given} says nothing alone; a key is asked for by --pipeline and --key")


def _refuse_both(ids: list[str] | None, file: str | None) -> None:
    from waybill.errors import InputError

    if ids or file is not None:
        raise InputError("give ids, or --pipeline and --key; not both")
