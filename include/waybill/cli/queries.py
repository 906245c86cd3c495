"""``waybill queries``: the questions that were asked about events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from waybill.trails import Asked

app = typer.Typer(no_args_is_help=True, help="Questions about events: list, show, cancel.")

_ID_DIGITS = 8
_Id = Annotated[str, typer.Argument(help="The question's id, or the beginning of it.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_(
    by: Annotated[str | None, typer.Option(help="Only questions of this user.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="List at most this many.")] = 20,
    *,
    as_json: _Json = False,
) -> None:
    """List the newest questions: who asked what, and how far the answer is."""
    import orjson

    from waybill.services import opened_trails
    from waybill.settings import Settings

    with opened_trails(Settings()) as desk:
        found = [
            desk.told(one, None, personal=False) for one in desk.newest(asked_by=by, limit=limit)
        ]
    if as_json:
        typer.echo(orjson.dumps([one.to_json() for one in found]).decode())
    else:
        _print(found)


@app.command()
def show(query_id: _Id, *, as_json: _Json = False) -> None:
    """Show a question's answer again, as it was found then."""
    from waybill.cli.trails import show as print_asked
    from waybill.services import current_user, opened_trails
    from waybill.settings import Settings

    with opened_trails(Settings()) as desk:
        asked = desk.find(query_id)
        asked = desk.told(asked, None, personal=asked.asked_by == current_user())
    print_asked(asked, as_json=as_json)


@app.command()
def cancel(query_id: _Id) -> None:
    """Cancel a question that is still being answered."""
    from waybill.services import current_user, opened_trails
    from waybill.settings import Settings

    with opened_trails(Settings()) as desk:
        asked = desk.find(query_id)
        if asked.ended:
            typer.echo(f"question {asked.id} has ended already: {asked.state}")
            raise typer.Exit(1)
        desk.cancel(asked.id, who=current_user())
    typer.echo(f"question {asked.id} is told to end")


def _print(found: Sequence[Asked]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from waybill.cli.parked_views import plain

    console = Console(highlight=False)
    if not found:
        console.print("Nobody has asked for an event yet: `waybill trail ID`.")
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("id", no_wrap=True)
    table.add_column("asked (UTC)", no_wrap=True)
    for name in ("by", "for"):
        table.add_column(name, overflow="fold")
    table.add_column("state", no_wrap=True)
    for one in found:
        state: str = one.state
        if state == "running":
            state += f" {one.objects_read:,}/{one.objects:,}"
        table.add_row(
            str(one.id)[:_ID_DIGITS],
            f"{one.asked_at:%m-%d %H:%M:%S}",
            Text(plain(one.asked_by)),
            Text(plain(one.question.words)),
            state,
        )
    console.print(table)
