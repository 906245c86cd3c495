"""``waybill traces``: carry traces from this node to the object store; compact them there."""

from __future__ import annotations

import signal
import threading
from datetime import UTC, datetime
from typing import Annotated

import typer

from waybill.cli.exit_codes import ExitCode
from waybill.cli.options import AsJson
from waybill.cli.output import echo, print_json, show_log

app = typer.Typer(no_args_is_help=True, help="Event traces: ship and compact them.")

AlwaysJson = Annotated[bool, typer.Option("--json", help="As without it: the report is JSON.")]


@app.command()
def ship(
    drain_s: Annotated[
        float, typer.Option(min=0, help="After SIGTERM: seconds to ship what is left.")
    ] = 20.0,
    *,
    as_json: AlwaysJson = False,
) -> None:
    """Ship finished trace files until SIGTERM or Ctrl-C. One process a node."""
    del as_json
    from dataclasses import asdict

    from waybill.settings import Settings
    from waybill.storage import open_owned_objects, refuse_foreign_bucket
    from waybill.tracing import run_shipper
    from waybill.waiting import nobody_waiting

    show_log("%(asctime)s %(levelname)s %(message)s")
    asked = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked.set())
    settings = Settings()
    refuse_foreign_bucket(settings)
    store = open_owned_objects(settings)
    with nobody_waiting():
        report = run_shipper(settings.traces, store, asked.is_set, drain_s=drain_s)
    counted = asdict(report)
    print_json({"traces": counted.pop("records"), **counted})


@app.command()
def compact(
    hour: Annotated[
        datetime | None, typer.Option(help="Only the hour (UTC) that holds this time.")
    ] = None,
    *,
    as_json: AlwaysJson = False,
) -> None:
    """Move shipped traces into their buckets, delete what earlier runs replaced, and report.

    The DAG compact_traces does the same every 15 minutes. Safe to stop and to repeat.
    """
    del as_json
    from waybill.services import compact_traces
    from waybill.settings import Settings

    zoned = None if hour is None else hour.replace(tzinfo=hour.tzinfo or UTC)
    report = compact_traces(Settings(), hour=zoned)
    print_json(report.to_json())
    if report.damaged:
        raise typer.Exit(ExitCode.FOUND)


@app.command()
def ddl(
    since: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%d"], help="First day to look for. Default: of the store."),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Print the statements that make the tables over the traces in Athena."""
    from waybill.services import trace_tables
    from waybill.settings import Settings

    statements = trace_tables(Settings(), since_day=None if since is None else f"{since:%Y-%m-%d}")
    if as_json:
        print_json(list(statements))
        return
    for statement in statements:
        echo(f"{statement};\n")
