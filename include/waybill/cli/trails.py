"""``waybill trail``: where events are, by id or by primary key."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from waybill.trails import Asked, Question, TrailService

_MOST_FILE_BYTES = 4 * 1024**2


def trail(  # noqa: PLR0913, PLR0917 - three ways to ask, a window, an output
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Ids of events, up to 1,000.")
    ] = None,
    file: Annotated[
        str | None, typer.Option(metavar="FILE", help="A file of ids, one a line; -: stdin.")
    ] = None,
    pipeline: Annotated[
        str | None, typer.Option(help="With --key: the pipeline, by name or id.")
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(help="The primary key; once for each of its fields, or as a JSON array."),
    ] = None,
    event_name: Annotated[
        str | None, typer.Option(help="With --key: only this kind of event; else all there are.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Only traces from this time on (UTC): reads less.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Only traces until then.")] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Show where events are, or were: every stop in order, with time and place.

    Exit code 0: all were found; 1: some were not.
    """
    from waybill.services import current_user, opened_trails
    from waybill.settings import Settings

    window = (since, until)
    with opened_trails(Settings()) as desk:
        if pipeline is None and not key:
            if event_name is not None:
                raise _needs_key("--event-name")
            question = _of_ids([*(ids or ()), *_read(file)], window)
        else:
            _refuse_both(ids, file)
            question = _of_key(desk, pipeline, key, event_name, window)
        asked = desk.run(question, who=current_user())
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


def _of_ids(texts: list[str], window: tuple[str | None, str | None]) -> Question:
    from waybill.trails import ask_for_ids

    since, until = _edges(window)
    return ask_for_ids(texts, since=since, until=until)


def _of_key(
    desk: TrailService,
    pipeline: str | None,
    key: list[str] | None,
    event_name: str | None,
    window: tuple[str | None, str | None],
) -> Question:
    from waybill.errors import InputError
    from waybill.trails import ask_for_key

    if pipeline is None or not key:
        raise _needs_key("--key" if pipeline is None else "--pipeline")
    found = desk.pipeline(pipeline)
    if found is None:
        raise InputError(
            f"there is no pipeline {pipeline!r}; `waybill pipelines list` shows those there are"
        )
    since, until = _edges(window)
    return ask_for_key(found.id, key, event_name=event_name, since=since, until=until)


def _edges(window: tuple[str | None, str | None]) -> tuple[datetime | None, datetime | None]:
    from waybill.trails import parsed_moment

    return parsed_moment(window[0], "--since"), parsed_moment(window[1], "--until")


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
        raise InputError(f"--file {file}: it is no UTF-8 text") from error


def _needs_key(given: str) -> Exception:
    from waybill.errors import InputError

    return InputError(f"{given} says nothing alone; a key is asked for by --pipeline and --key")


def _refuse_both(ids: list[str] | None, file: str | None) -> None:
    from waybill.errors import InputError

    if ids or file is not None:
        raise InputError("give ids, or --pipeline and --key; not both")
