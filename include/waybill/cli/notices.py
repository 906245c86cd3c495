"""``waybill notices``: what owners are told, and what keeps it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from waybill.cli.exit_codes import ExitCode
from waybill.cli.options import AsJson
from waybill.cli.output import counted, plain, print_json, terminal
from waybill.cli.promises import tell_hindrances

if TYPE_CHECKING:
    from waybill.notices import WaitingNotice

app = typer.Typer(no_args_is_help=True, help="Notices to owners: list, send, test.")

_MOST_SHOWN = 100


@app.command("list")
def list_(
    *, as_json: Annotated[bool, typer.Option("--json", help="Print JSON, in full.")] = False
) -> None:
    """List what owners have not been told yet: messages to send, and notices in none so far."""
    from waybill.services import waiting_notices
    from waybill.settings import Settings

    settings = Settings()
    found = waiting_notices(settings)
    if as_json:
        print_json([item.to_json() for item in found])
        return
    _show(found)
    if found:
        tell_hindrances(settings, "nobody sends these notices", jobs=["tell_owners"])


@app.command()
def send(*, as_json: AsJson = False) -> None:
    """Send what waits and is due. Exit code 2 if a sink did not take a message."""
    from waybill.services import send_notices
    from waybill.settings import Settings

    report = send_notices(Settings())
    if as_json:
        print_json(report.to_json())
    else:
        told = f"{counted(report.messages, 'message')} sent, {counted(report.notices, 'notice')}"
        failed = f"; {report.failed:,} not taken: `waybill notices list`" if report.failed else ""
        typer.echo(told + failed)
    if report.failed:
        raise typer.Exit(ExitCode.FOUND)


@app.command()
def test(
    owner: Annotated[str, typer.Argument(help="Whom to tell, as `owner` in pipeline.yaml.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Send a test message to an owner by each sink. Exit code 2 if one did not take it."""
    from waybill.services import current_user, send_test_notice
    from waybill.settings import Settings

    answers = send_test_notice(Settings(), owner, who=current_user())
    if as_json:
        print_json(answers)
    else:
        for sink, problem in answers.items():
            typer.echo(f"{sink}: {plain(problem) or 'taken'}")
    if any(answers.values()) or not answers:
        raise typer.Exit(ExitCode.FOUND)


def _show(found: list[WaitingNotice]) -> None:
    from rich.table import Table
    from rich.text import Text

    console = terminal()
    if not found:
        console.print("Owners have been told everything.")
        return
    grid = Table(
        title="Still to be told (times in UTC)",
        padding=(0, 1, 0, 0),
        title_justify="left",
        header_style="bold",
    )
    for name in ("owner", "by", "what"):
        grid.add_column(name, overflow="fold")
    for name in ("notices", "tries"):
        grid.add_column(name, justify="right", no_wrap=True)
    grid.add_column("next try", no_wrap=True)
    for item in found[:_MOST_SHOWN]:
        grid.add_row(
            Text(plain(item.owner) or "nobody"),
            item.sink or "·",
            Text(_what(item)),
            f"{item.notices:,}",
            str(item.attempts) if item.sink else "·",
            _clock(item.next_try_at),
        )
    console.print(grid)
    for item in found[:_MOST_SHOWN]:
        if item.problem:
            console.print(Text(f"{_what(item)}: {plain(item.problem)}"), soft_wrap=True)
    if len(found) > _MOST_SHOWN:
        console.print(f"{len(found) - _MOST_SHOWN:,} more are not shown; --json has all.")


def _what(item: WaitingNotice) -> str:

    return item.message_id[:8] if item.sink else plain(f"{item.kind} in {item.pipeline}")


def _clock(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%d %b %H:%M}"
