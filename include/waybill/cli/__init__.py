"""``waybill``: the command line.

One table names every command and its function; a package is imported when its command runs.
Errors a user can mend end in one block of text and exit code 1; ``waybill --debug`` shows the
traceback.
"""

from __future__ import annotations

from typing import Annotated

import typer

from waybill.cli.lazy import Later, root

COMMANDS = {
    "up": Later("Start the embedded stack, or complete it.", "waybill.cli.stack:up"),
    "down": Later("Stop everything that was started, and nothing else.", "waybill.cli.stack:down"),
    "status": Later("Show the stack's services.", "waybill.cli.stack:status"),
    "doctor": Later("Say what is missing here, and how to get it.", "waybill.cli.stack:doctor"),
    "demo": Later("Run the main job on real data.", "waybill.cli.demo:demo"),
    "pipelines": Later(
        "Declared pipelines: check, list, show, deploy; hold, release; reread.",
        "waybill.cli.pipelines:app",
        more={
            "deploy": "waybill.cli.pipelines:deploy",
            "holds": "waybill.cli.holds:holds",
            "hold": "waybill.cli.holds:hold",
            "release": "waybill.cli.holds:release",
            "reread": "waybill.cli.topics:reread",
        },
    ),
    "mapping": Later(
        "What events become in a destination: infer, show, compare.", "waybill.cli.mapping:app"
    ),
    "parked": Later(
        "Events that could not go on: look, take, discard, replay.",
        "waybill.cli.parked:app",
        more={
            "replay": "waybill.cli.replays:replay",
            "auto-replay": "waybill.cli.auto_replay:auto_replay",
            "recheck": "waybill.cli.rechecks:recheck",
            "lost": "waybill.cli.rechecks:lost",
            "dry-run": "waybill.cli.dry_runs:dry_run",
        },
    ),
    "destination": Later(
        "Destinations: list, check; park what waits for one.", "waybill.cli.destinations:app"
    ),
    "bucket": Later(
        "The bucket: which deployment it belongs to; take it over.", "waybill.cli.bucket:app"
    ),
    "logs": Later(
        "Write-ahead logs of ingestion and replays: list, settle.", "waybill.cli.logs:app"
    ),
    "topics": Later(
        "Topics of Kafka: list, show, configure; settle one that is stopped.",
        "waybill.cli.topics:app",
    ),
    "notices": Later(
        "What owners are told: see what waits, send it, test it.", "waybill.cli.notices:app"
    ),
    "traces": Later(
        "Event traces: ship and compact them; tables for Athena.", "waybill.cli.traces:app"
    ),
    "files": Later(
        "Files on their way from this node to the object store: list, show, retry.",
        "waybill.cli.files:app",
    ),
    "trail": Later("Show where events are, or were.", "waybill.cli.trails:trail"),
    "queries": Later("Questions about events: list, show, cancel.", "waybill.cli.queries:app"),
    "balance": Later("Show that what went in came out.", "waybill.cli.books:balance"),
    "audit": Later(
        "Breaches of the books: look for them, list, show, close.", "waybill.cli.audit:app"
    ),
    "retention": Later(
        "What grows: show how long it is kept, trim it.", "waybill.cli.retention:app"
    ),
}

app = typer.Typer(
    cls=root(COMMANDS),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Event pipelines that never lose an event.",
)


@app.callback()
def _options(
    *,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    wait: Annotated[
        float,
        typer.Option(
            "--wait", min=0, help="Seconds that a server which does not answer is waited for."
        ),
    ] = 60.0,
) -> None:
    """Event pipelines that never lose an event."""
    del debug, wait  # read by the root group
