"""``waybill audit-log``: the audit log against its seals, and sealing it now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from waybill.cli.exit_codes import ExitCode
from waybill.cli.options import AsJson
from waybill.cli.output import counted, echo, print_folded, print_json

if TYPE_CHECKING:
    from waybill.access import AuditReport

app = typer.Typer(
    no_args_is_help=True, help="The audit log's seals: verify that nobody changed it; seal now."
)
_MOST_SHOWN = 100


@app.command()
def verify(
    *,
    from_seal: Annotated[
        int, typer.Option(help="Begin at this seal.", metavar="NUMBER", min=1, max=10**12)
    ] = 1,
    expect: Annotated[
        str,
        typer.Option(help="The newest seal of an earlier verification.", metavar="NUMBER:DIGEST"),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Hold the audit log against its seals. Exit code 2 if anything differs.

    Finds entries and seals that were removed, altered or added since they were sealed, in the
    tracker and in the bucket. Entries of the last quarter of an hour may not be sealed yet.
    Keep the newest seal that it prints outside of both, and give it to the next verification:
    who may write to both can make the whole chain anew.
    """
    from waybill.services import verify_audit_log
    from waybill.settings import Settings

    report = verify_audit_log(Settings(), from_seal=from_seal, expected=expect)
    if as_json:
        print_json(report.to_json())
    else:
        _show(report)
    if report.found:
        raise typer.Exit(ExitCode.FOUND)


@app.command()
def seal(*, as_json: AsJson = False) -> None:
    """Seal the entries that are not sealed yet, as upkeep does each quarter of an hour."""
    from waybill.services import seal_audit_log
    from waybill.settings import Settings

    report = seal_audit_log(Settings())
    entries = sum(one.entries for one in report.seals)
    if as_json:
        print_json(report.to_json())
    elif report.busy and not report.seals:
        echo("Another process seals the audit log now; this one did nothing.")
    elif not report.seals:
        echo("No entry is new since the last seal.")
    else:
        echo(f"{counted(len(report.seals), 'seal')} made, of {_entries(entries)}.")


def _show(report: AuditReport) -> None:
    shown = report.findings[:_MOST_SHOWN]
    lines = [one.words for one in shown] + report.notes
    if report.found > len(shown):
        lines.append(f"{report.found - len(shown):,} more findings are not shown.")
    found = counted(report.found, "finding") if report.found else "nothing was changed"
    lines.append(
        f"audit log: {found}; checked {counted(report.seals, 'seal')} and "
        f"{_entries(report.entries)}; {report.unsealed:,} not sealed yet"
    )
    if report.newest:
        lines.append(f"newest seal: {report.newest}")
    print_folded(lines)


def _entries(number: int) -> str:
    return f"{number:,} {'entry' if number == 1 else 'entries'}"
