"""``waybill notices``: what owners are told, and what keeps it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from waybill.cli.exit_codes import ExitCode
from waybill.cli.options import AsJson
from waybill.cli.output import counted, echo, plain, print_folded, print_json
from waybill.cli.promises import tell_hindrances
from waybill.cli.tables import Column, Table, print_table

if TYPE_CHECKING:
    from waybill.notices import SentNotice, WaitingNotice
    from waybill.settings import NoticeSettings, Settings

app = typer.Typer(no_args_is_help=True, help="Notices to owners: list, send, test.")

_MOST_SHOWN = 100
_MOST_SENT = 1_000


@app.command("list")
def list_(
    *,
    sent: Annotated[bool, typer.Option("--sent", help="List what was sent instead.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, in full.")] = False,
) -> None:
    """List what owners have not been told yet: messages to send, and notices in none so far.

    With --sent: what they were told, the newest first, by minute, pipeline and kind, with the
    newest of each as it was sent, as long as it is kept (WAYBILL_NOTICES__KEEP_SENT_DAYS).
    """
    from waybill.services import sent_notices, waiting_notices
    from waybill.settings import Settings

    settings = Settings()
    if sent:
        _show_sent(sent_notices(settings, _MOST_SENT), as_json=as_json)
        return
    found = waiting_notices(settings)
    if as_json:
        print_json([item.to_json() for item in found])
        return
    _show(found, settings)
    if not found:
        _say_sent(sent_notices(settings, _MOST_SENT))
    else:
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
        echo(told + failed)
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
            echo(f"{sink}: {plain(problem) or 'taken'}")
    if any(answers.values()) or not answers:
        raise typer.Exit(ExitCode.FOUND)


def _show(found: list[WaitingNotice], settings: Settings) -> None:
    shown = found[:_MOST_SHOWN]
    failed = [one for one in shown if one.problem]
    said = (f"{one.owner or 'nobody'} by {one.sink}: {one.problem}" for one in failed)
    notes = list(dict.fromkeys(said))
    if len(found) > _MOST_SHOWN:
        notes.append(f"{len(found) - _MOST_SHOWN:,} more are not shown; --json has all.")
    notes += _ways(settings.notices)
    print_table(_notice_table(shown), notes)


def _say_sent(found: list[SentNotice]) -> None:
    """Say how many notices were sent within a day, if any was."""
    since = datetime.now(UTC) - timedelta(days=1)
    lately = sum(one.notices for one in found if one.sent_at >= since)
    if lately:
        were = f"{counted(lately, 'notice')} {'was' if lately == 1 else 'were'}"
        print_folded([f"{were} sent within the last day: `waybill notices list --sent`"])


def _show_sent(found: list[SentNotice], *, as_json: bool) -> None:
    if as_json:
        print_json([one.to_json() for one in found])
        return
    more = len(found) == _MOST_SENT
    print_table(_sent_table(found), [f"the newest {_MOST_SENT:,} lines"] if more else [])


def _sent_table(found: list[SentNotice]) -> Table:
    return Table(
        (
            Column("sent (UTC)"),
            Column("owner"),
            Column("what", "words", least=16),
            Column("notices", "number"),
            Column("by", spare=1),
        ),
        [
            (
                one.sent_at,
                one.owner or "nobody",
                _sent_text(one),
                one.notices,
                ", ".join(one.sinks) or None,
            )
            for one in found
        ],
        "Nothing that is kept was sent.",
    )


def _sent_text(notice: SentNotice) -> str:
    """Return of which kind and pipeline notices are, and what the newest says."""
    which = f"{notice.kind} in {notice.pipeline}"
    newest = "the newest: " if notice.notices > 1 else ""
    return f"{which}: {newest}{notice.newest}" if notice.newest else which


def _ways(settings: NoticeSettings) -> list[str]:
    """Return what is to be said where no message reaches a person: none, or the log only."""
    if settings.webhook_url is not None or settings.smtp_host:
        return []
    where = (
        "messages are only written to the log of the task `shift` of the DAG upkeep"
        if settings.log
        else "nothing is sent, and notices are only listed here"
    )
    return [
        f"Neither a webhook nor a mail server is set, so {where}: WAYBILL_NOTICES__WEBHOOK_URL or "
        "WAYBILL_NOTICES__SMTP_HOST. `waybill notices list --sent` lists what was sent."
    ]


def _notice_table(shown: list[WaitingNotice]) -> Table:
    return Table(
        (
            Column("owner"),
            Column("by"),
            Column("what", "words", least=16),
            Column("notices", "number"),
            Column("tries", "number", spare=1),
            Column("next try (UTC)"),
            Column("message", spare=2),
        ),
        [
            (
                one.owner or "nobody",
                one.sink or None,
                "a message" if one.sink else f"{one.kind} in {one.pipeline}",
                one.notices,
                one.attempts if one.sink else None,
                one.next_try_at,
                one.message_id if one.sink else None,
            )
            for one in shown
        ],
        "No notice waits to be sent.",
    )
