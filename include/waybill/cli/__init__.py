"""``waybill``: the command line.

One table names every command and its function; a package is imported when its command runs.
Errors a user can mend end in one block of text and the code of ``exit_codes``; ``waybill --debug``
shows the traceback.
"""

from __future__ import annotations

from typing import Annotated

import typer

from waybill.cli.command import NoColor
from waybill.cli.lazy import LazyCommand, root

COMMANDS = {
    "up": LazyCommand(
        "Start the embedded stack, or the parts that are down.", "waybill.cli.stack:up"
    ),
    "down": LazyCommand(
        "Stop everything that was started, and nothing else.", "waybill.cli.stack:down"
    ),
    "status": LazyCommand("Show the stack's services.", "waybill.cli.stack:status"),
    "doctor": LazyCommand(
        "Check this machine, and say how to get what is missing.", "waybill.cli.stack:doctor"
    ),
    "collector": LazyCommand(
        "Take events over HTTP: JSON, lines, CloudEvents, webhooks.",
        "waybill.cli.collector:collector",
    ),
    "demo": LazyCommand("Run the demo: the main job on real data.", "waybill.cli.demo:demo"),
    "pipelines": LazyCommand(
        "Declared pipelines: new, test, check, list, deploy, history, rollback, undeploy; hold.",
        "waybill.cli.pipelines:app",
        more={
            "new": "waybill.cli.new_pipeline:new",
            "test": "waybill.cli.pipeline_tests:test",
            "deploy": "waybill.cli.pipelines:deploy",
            "history": "waybill.cli.pipeline_versions:history",
            "rollback": "waybill.cli.pipeline_versions:rollback",
            "diff": "waybill.cli.pipeline_versions:diff",
            "undeploy": "waybill.cli.undeployments:undeploy",
            "holds": "waybill.cli.pipelines:holds",
            "hold": "waybill.cli.pipelines:hold",
            "release": "waybill.cli.pipelines:release",
            "reread": "waybill.cli.topics:reread",
        },
    ),
    "new": LazyCommand(
        "Create a working pipeline; short for `pipelines new`.",
        "waybill.cli.new_pipeline:new",
    ),
    "run": LazyCommand(
        "With --local: a pipeline from its source to rows on the screen.",
        "waybill.cli.local_runs:run",
    ),
    "dev": LazyCommand(
        "Watch a pipeline's folder; with each change, show which rows differ.",
        "waybill.cli.local_runs:dev",
    ),
    "test": LazyCommand(
        "Run pipelines' example events; short for `pipelines test`.",
        "waybill.cli.pipeline_tests:test",
    ),
    "sources": LazyCommand(
        "Sources: list the kinds; discover and test a pipeline's.", "waybill.cli.sources:app"
    ),
    "ingest": LazyCommand(
        "Start a pipeline's ingestion; read its source again.", "waybill.cli.ingest:ingest"
    ),
    "mapping": LazyCommand(
        "Mappings from events to tables: infer, show, compare.", "waybill.cli.mapping:app"
    ),
    "parked": LazyCommand(
        "Parked events: list, show, sample, files, download, replay, discard.",
        "waybill.cli.parked:app",
        more={
            "replay": "waybill.cli.replays:replay",
            "auto-replay": "waybill.cli.replays:auto_replay",
            "recheck": "waybill.cli.lost_objects:recheck",
            "lost": "waybill.cli.lost_objects:lost_parked_events",
            "dry-run": "waybill.cli.replays:dry_run",
        },
    ),
    "campaigns": LazyCommand(
        "Replays of many parked groups: start, list, show, pause, resume, cancel.",
        "waybill.cli.campaigns:app",
    ),
    "destination": LazyCommand(
        "Destinations: list, check; park what waits for one.",
        "waybill.cli.destinations:app",
        more={
            "lost": "waybill.cli.lost_objects:lost_staged",
            "settle-lost": "waybill.cli.lost_objects:settle_lost",
        },
    ),
    "sql": LazyCommand("Ask a destination: one statement that reads.", "waybill.cli.queries:sql"),
    "connect": LazyCommand(
        "Open a destination's shell: psql, DuckDB's.", "waybill.cli.queries:connect"
    ),
    "audit-log": LazyCommand(
        "The audit log's seals: verify that nobody changed it; seal now.",
        "waybill.cli.audit_log:app",
    ),
    "access": LazyCommand("Who may reach what: Kafka's access rules.", "waybill.cli.access:app"),
    "bucket": LazyCommand("The bucket and its owner: show, claim.", "waybill.cli.bucket:app"),
    "logs": LazyCommand(
        "Write-ahead logs of ingestion and replays: list, settle.", "waybill.cli.logs:app"
    ),
    "topics": LazyCommand(
        "Kafka topics: list, show, configure; settle one that is stopped.",
        "waybill.cli.topics:app",
    ),
    "clusters": LazyCommand(
        "Virtual clusters: list, show, create, set, drain; pin and move teams.",
        "waybill.cli.clusters:app",
    ),
    "capacity": LazyCommand(
        "Capacity that follows the work: show, decisions, simulate, enhance.",
        "waybill.cli.capacity:app",
    ),
    "notices": LazyCommand("Notices to owners: list, send, test.", "waybill.cli.notices:app"),
    "traces": LazyCommand(
        "Event traces: ship and compact them; tables for Athena.", "waybill.cli.traces:app"
    ),
    "files": LazyCommand(
        "Files on their way from this node to the object store: list, show, retry.",
        "waybill.cli.files:app",
    ),
    "trail": LazyCommand("Show where events are, or were.", "waybill.cli.trails:trail"),
    "queries": LazyCommand(
        "Questions about events: list, show, cancel.", "waybill.cli.trails:queries"
    ),
    "balance": LazyCommand("Check that what went in came out.", "waybill.cli.balance:balance"),
    "audit": LazyCommand(
        "Breaches that the auditor found: run a round, list, show, close.", "waybill.cli.audit:app"
    ),
    "upkeep": LazyCommand(
        "The jobs that run each minute: list, pause, resume.", "waybill.cli.upkeep:app"
    ),
    "retention": LazyCommand(
        "Retention: show how long things are kept, and trim them.", "waybill.cli.retention:app"
    ),
}

PANELS = {
    "Start here": ("up", "new", "test", "run", "ingest", "sql", "status", "down"),
    "Pipelines and sources": ("pipelines", "sources", "mapping", "dev", "collector"),
    "What failed": ("parked", "campaigns", "notices"),
    "Check the books": ("trail", "balance", "audit", "queries"),
    "Operate": (
        *("doctor", "upkeep", "retention", "destination", "connect", "topics", "clusters"),
        *("capacity", "logs", "files", "traces", "bucket", "access", "audit-log", "demo"),
    ),
}
"""The groups of commands in the help, in order: each command is in one."""

app = typer.Typer(
    cls=root(COMMANDS, PANELS),
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
    no_color: NoColor = False,
) -> None:
    """Event pipelines that never lose an event."""
    del debug, wait, no_color  # read by the root group, and by callbacks
