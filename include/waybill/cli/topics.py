"""``waybill topics list|show|configure|grow|settle``, ``waybill pipelines reread``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from waybill.cli.command import DEPLOYED
from waybill.cli.exit_codes import ExitCode
from waybill.cli.options import AsJson, Reason, Who, Yes, ask, decision, takes
from waybill.cli.output import counted, echo, print_folded, print_json, print_line
from waybill.cli.tables import Column, Table, clock, print_table
from waybill.topics import GrowRequest, SettleRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from waybill.topics import Growth, Settlement, TopicLine, TopicStop

app = typer.Typer(
    no_args_is_help=True, help="Kafka topics: where the ledger stands, and what is wrong."
)

Name = Annotated[str, typer.Argument(help="The topic: events.<team>.<destination>.")]


@app.command("list")
def list_(*, as_json: AsJson = False) -> None:
    """List topics: unread records, and what is wrong. Exit code 2 if one is not ok."""
    from waybill.services import topic_lines
    from waybill.settings import Settings

    found = topic_lines(Settings())
    if as_json:
        print_json([one.to_json() for one in found])
    else:
        print_table(_topic_table(found))
        for one in found:
            _print_troubles(one)
    wrong = {"unknown", "stopped", "unsafe", "altered"}
    if any(one.state in wrong or one.late or one.drains_long for one in found):
        raise typer.Exit(ExitCode.FOUND)


@app.command()
def show(name: Name, *, as_json: AsJson = False) -> None:
    """Show one topic: its partitions, what is wrong, and what was settled."""
    from waybill.services import topic_lines
    from waybill.settings import Settings

    [found] = topic_lines(Settings(), name)
    if as_json:
        print_json(found.to_json())
        return
    replicas = counted(found.replicas, "replica")
    print_line(f"{found.topic}: {found.state}; id {found.topic_id or '-'}, {replicas}")
    print_line(f"written by {', '.join(found.pipelines) or 'no deployed pipeline'}")
    print_folded([""])
    print_table(_partition_table(found))
    _print_troubles(found)
    for stop in found.settled:
        print_line("")
        print_line(f"settled {clock(stop.settled_at)} UTC by {stop.settled_by}: {stop.words}")
        print_line(f"  {stop.settlement.get('words', '')} ({stop.settlement.get('why', '')})")


@app.command()
def configure(
    name: Name, who: Who = None, why: Reason = "", *, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Fix a topic configuration that could lose events: shows the changes, then asks."""
    from waybill.services import configure_topic, topic_config_faults
    from waybill.settings import Settings

    faults = topic_config_faults(Settings(), name)
    if not as_json:
        for fault in faults:
            print_line(f"{fault.name}: {fault.value} -> {fault.wanted} ({fault.why})")
    if faults and not yes:
        ask(f"Change {counted(len(faults), 'entry')} of {name}?", as_json=as_json)
    changed = configure_topic(Settings(), name, decision(who, why)) if faults else []
    if as_json:
        entries = {one.name: {"before": one.value, "after": one.wanted} for one in changed}
        print_json({"topic": name, "changed": entries})
    else:
        print_line(f"{name}: {'changed' if changed else 'safe; nothing to change'}")


@app.command()
@takes(GrowRequest, argument="topic")
def grow(
    request: GrowRequest,
    who: Who = None,
    why: Reason = "",
    *,
    plan_only: Annotated[
        bool, typer.Option("--plan", help="Show the plan and change nothing.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Give a topic more partitions: shows what will happen, then asks.

    A new generation of the topic begins. It is read once the old one is drained, so that
    keys keep their order; until then events of the new one wait.
    """
    from waybill.services import grow_topic, plan_growth
    from waybill.settings import Settings

    plan = plan_growth(Settings(), request)
    if not as_json:
        _print_growth(plan)
    if not plan_only:
        if not yes:
            ask(f"Grow {plan.topic}?", as_json=as_json)
        grow_topic(Settings(), plan, decision(who, why))
    if as_json:
        print_json(plan.to_json() | {"grown": not plan_only})
    elif not plan_only:
        print_line(f"{plan.topic}: grown; `waybill topics list` shows how it drains")


def _print_growth(plan: Growth) -> None:
    print_line(f"{plan.topic}: growing it does this:")
    print_line(
        f"- generation {plan.number} begins, with {counted(plan.partitions, 'partition')} instead "
        f"of {plan.before:,}: topic {plan.name}"
        + (", which is there already, unused" if plan.adopted else "")
    )
    print_line("- runs of ingestion and replays write to it from their next page on")
    print_line(
        "- it is read once the generation before has ended: "
        f"{counted(plan.unread, 'record')} of that are to be read, and "
        f"{counted(len(plan.writers), 'log')} to move on, between two pages or slices of a replay"
    )
    for one in plan.writers:
        print_line(f"  {one}")


@app.command()
@takes(SettleRequest, argument="topic", flags={"reread": ("--reread",)})
def settle(
    request: SettleRequest,
    who: Who = None,
    why: Reason = "",
    *,
    plan_only: Annotated[
        bool, typer.Option("--plan", help="Show the plan and change nothing.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Resume a stopped topic: shows what will happen, then asks. Needs --why.

    With --reread the next run of ingestion reads each source from its beginning: what
    was lost arrives, the rest is a duplicate at its destination.
    """
    from waybill.services import settle_topic, settlement
    from waybill.settings import Settings

    name, reread = request.topic, request.reread
    plan = settlement(Settings(), request)
    if not as_json:
        _print_plan(plan, reread=reread)
    done = not plan_only
    if done:
        made = decision(who, why)
        made.require_why()
        if not yes:
            ask(f"Settle {name}?", as_json=as_json)
        settle_topic(Settings(), plan, made, reread=reread)
    if as_json:
        print_json(plan.to_json() | {"settled": done, "reread": reread and done})
    elif done:
        print_line(f"{name}: settled; it is read on within a minute")


def reread(
    name: Annotated[str, typer.Argument(metavar=DEPLOYED, help="The pipeline, by name or id.")],
    who: Who = None,
    why: Reason = "",
    *,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Read a source from its beginning with the next ingestion run. Needs --why.

    Events that the destination has are duplicates there; what it lacks arrives.
    """
    from waybill.services import ask_rereads
    from waybill.settings import Settings

    made = decision(who, why)
    made.require_why()
    if not yes:
        echo(f"The next run takes in all that the source of {name} has, again.", err=True)
        ask("Go on?", as_json=as_json)
    fresh = ask_rereads(Settings(), [name], made)
    if as_json:
        print_json({"pipeline": name, "asked": True, "never_read": bool(fresh)})
    elif fresh:
        print_line(f"{name}: was never read; its first run begins at the beginning anyway")
    else:
        print_line(f"{name}: its next run begins at the beginning")


def _print_plan(plan: Settlement, *, reread: bool) -> None:
    print_line(f"{plan.topic.name}: settling it does this:")
    for step in plan.steps:
        print_line(f"- {step.words}")
    names = ", ".join(plan.pipelines)
    if reread:
        print_line(f"- the next run of ingestion reads these sources from the beginning: {names}")
    elif plan.lost:
        print_line(
            f"{counted(plan.lost, 'event')} at least {'is' if plan.lost == 1 else 'are'} gone from "
            "Kafka unread: `waybill audit breaches` names them once the auditor saw it; --reread, "
            f"or `waybill pipelines reread`, takes in again what the sources have: {names}"
        )


def _print_troubles(line: TopicLine) -> None:
    for stop in line.stops:
        print_line("")
        print_line(_stopped(stop))
        print_line(f"  `waybill topics settle {line.topic}` shows what will happen, then asks")
    for log_fault in line.log_faults:
        print_line("")
        print_line(f"{line.topic}: processing will not read it: {log_fault.words}")
        print_line(f"  `waybill topics settle {line.topic}` shows what will happen, then asks")
    _print_generation(line)
    for fault in line.faults:
        print_line("")
        print_line(f"{line.topic}: {fault}")
        print_line(f"  `waybill topics configure {line.topic}` mends it")


def _print_generation(line: TopicLine) -> None:
    if line.altered:
        print_line("")
        print_line(f"{line.topic}: {line.altered}")
        print_line(
            f"  `waybill topics grow {line.generation.topic} --partitions …` begins a generation "
            "in which keys keep their order again"
        )
    if line.unknown:
        print_line("")
        print_line(
            f"{line.topic}: it has records, and the tracker does not know of it: it was restored "
            "from before the topic grew. Nobody reads them; see `Backup` in docs/operations.md"
        )
    if line.waits_for:
        since = line.generation.draining_since
        print_line("")
        print_line(f"{line.topic}: it drains since {clock(since)} UTC, and the next")
        print_line("  generation waits, until these end:")
        for log in line.waits_for:
            print_line(f"  {log}")
        print_line("  run the pipeline or replay again, or `waybill logs settle`")
    if line.late:
        print_line("")
        print_line(
            f"{line.topic}: {counted(line.late, 'record')} written after it ended; nobody reads "
            "them: copies of a process that woke up late, or a service that writes to the old topic"
        )


def _stopped(stop: TopicStop) -> str:
    return f"{stop.topic}: stopped since {clock(stop.found_at)} UTC: {stop.words}"


def _topic_table(found: Sequence[TopicLine]) -> Table:
    return Table(
        (
            Column("topic"),
            Column("partitions", "number", spare=1),
            Column("unread", "number"),
            Column("state"),
        ),
        [(one.topic, len(one.partitions), one.unread, one.state) for one in found],
        "No topic: no pipeline is deployed; `waybill pipelines deploy` makes the first",
    )


def _partition_table(found: TopicLine) -> Table:
    heads = ("partition", "first", "end", "ledger", "unread")
    return Table(
        [Column(head, "number") for head in heads],
        [(one.partition, one.first, one.end, one.position, one.unread) for one in found.partitions],
        "it is not in Kafka yet: the first run of ingestion makes it",
    )
