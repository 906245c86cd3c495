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
    "up": Later("Start the embedded stack, or the parts that are down.", "waybill.cli.stack:up"),
    "down": Later("Stop everything that was started, and nothing else.", "waybill.cli.stack:down"),
    "status": Later("Show the stack's services.", "waybill.cli.stack:status"),
    "doctor": Later(
        "Check this machine, and say how to get what is missing.", "waybill.cli.stack:doctor"
    ),
    "demo": Later("Run the demo: the main job on real data.", "waybill.cli.demo:demo"),
    "pipelines": Later(
        "Declared pipelines: new, test, check, list, show, deploy; hold, release; reread.",
        "waybill.cli.pipelines:app",
        more={
            "new": "waybill.cli.pipeline_tests:new",
            "test": "waybill.cli.pipeline_tests:test",
            "deploy": "waybill.cli.pipelines:deploy",
            "holds": "waybill.cli.pipelines:holds",
            "hold": "waybill.cli.pipelines:hold",
            "release": "waybill.cli.pipelines:release",
            "reread": "waybill.cli.topics:reread",
        },
    ),
    "new": Later(
        "Create a working pipeline; short for `pipelines new`.",
        "waybill.cli.pipeline_tests:new",
    ),
    "test": Later(
        "Run pipelines' example events; short for `pipelines test`.",
        "waybill.cli.pipeline_tests:test",
    ),
    "mapping": Later(
        "Mappings from events to tables: infer, show, compare.", "waybill.cli.mapping:app"
    ),
    "parked": Later(
        "Parked events: list, show, sample, download, replay, discard.",
        "waybill.cli.parked:app",
        more={
            "replay": "waybill.cli.replays:replay",
            "auto-replay": "waybill.cli.replays:auto_replay",
            "recheck": "waybill.cli.lost_objects:recheck",
            "lost": "waybill.cli.lost_objects:lost_parked_events",
            "dry-run": "waybill.cli.replays:dry_run",
        },
    ),
    "destination": Later(
        "Destinations: list, check; park what waits for one.",
        "waybill.cli.destinations:app",
        more={
            "lost": "waybill.cli.lost_objects:lost_staged",
            "settle-lost": "waybill.cli.lost_objects:settle_lost",
        },
    ),
    "bucket": Later("The bucket and its owner: show, claim.", "waybill.cli.bucket:app"),
    "logs": Later(
        "Write-ahead logs of ingestion and replays: list, settle.", "waybill.cli.logs:app"
    ),
    "topics": Later(
        "Kafka topics: list, show, configure; settle one that is stopped.",
        "waybill.cli.topics:app",
    ),
    "notices": Later("Notices to owners: list, send, test.", "waybill.cli.notices:app"),
    "traces": Later(
        "Event traces: ship and compact them; tables for Athena.", "waybill.cli.traces:app"
    ),
    "files": Later(
        "Files on their way from this node to the object store: list, show, retry.",
        "waybill.cli.files:app",
    ),
    "trail": Later("Show where events are, or were.", "waybill.cli.trails:trail"),
    "queries": Later("Questions about events: list, show, cancel.", "waybill.cli.trails:queries"),
    "balance": Later("Check that what went in came out.", "waybill.cli.balance:balance"),
    "audit": Later(
        "Breaches that the auditor found: run a round, list, show, close.", "waybill.cli.audit:app"
    ),
    "retention": Later(
        "Retention: show how long things are kept, and trim them.", "waybill.cli.retention:app"
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
        typer.Option("--wait", min=0, help="Seconds to wait for a server that does not answer."),
    ] = 60.0,
) -> None:
    """Event pipelines that never lose an event."""
    del debug, wait  # read by the root group
