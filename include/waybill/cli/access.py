"""``waybill access kafka-acls``: who may reach Waybill's topics in Kafka."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from waybill.cli.exit_codes import ExitCode
from waybill.cli.options import AsJson, Reason, Who, decision
from waybill.cli.output import counted, plain, print_json
from waybill.cli.tables import Column, Table, print_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from waybill.services import KafkaAccess
    from waybill.storage import KafkaAcl

app = typer.Typer(no_args_is_help=True, help="Who may reach what: Kafka's access rules.")


@app.command("kafka-acls")
def kafka_acls(
    *,
    apply: Annotated[
        bool, typer.Option("--apply", help="Make the rules that are missing.")
    ] = False,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="With --apply: take away those that nothing here wants."),
    ] = False,
    show: Annotated[bool, typer.Option("--show", help="Only show them; as without it.")] = False,
    who: Who = None,
    why: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Compare Kafka's access rules with the declarations. Exit code 2 if they differ.

    Waybill may do all with topics that begin with `events`; of a team's topics those principals
    may write that WAYBILL_ACCESS__KAFKA_PRINCIPALS names. Run it again after a deploy of a new
    team or destination, and after a topic grew.
    """
    from waybill.services import apply_kafka_rules, show_kafka_rules
    from waybill.settings import Settings

    if show and apply:
        raise typer.BadParameter("--show and --apply exclude each other")
    if prune and not apply:
        raise typer.BadParameter("--prune goes with --apply")
    settings = Settings()
    if apply:
        access = apply_kafka_rules(settings, decision(who, why), prune=prune)
    else:
        access = show_kafka_rules(settings)
    if as_json:
        print_json(access.rules.to_json() | {"teams_without": list(access.teams_without)})
    else:
        _print(access)
    if access.rules.missing or access.rules.others:
        raise typer.Exit(ExitCode.FOUND)


def _print(access: KafkaAccess) -> None:
    rules = access.rules
    states = {
        "there": sorted(rules.wanted & rules.found),
        "missing": rules.missing,
        "not ours": rules.others,
        "wider": rules.wider,
    }
    rows = [row for state, found in states.items() for row in _rows(state, found)]
    columns = (Column("state"), Column("principal"), Column("on"), Column("what", "words"))
    notes = [
        f"Team {plain(team)} has pipelines and no principal: only Waybill writes for it."
        for team in access.teams_without
    ]
    if rules.missing:
        notes.append("`waybill access kafka-acls --apply` makes what is missing.")
    if rules.others:
        some = counted(len(rules.others), "rule")
        notes.append(
            f"{some} of others reach Waybill's topics or groups: `--apply --prune` takes them away."
        )
    if rules.wider:
        notes.append("What is wider reaches topics of others too, or forbids: change it by hand.")
    print_table(Table(columns, rows, empty="There are no rules."), notes)


def _rows(state: str, rules: list[KafkaAcl]) -> Iterator[tuple[str, str, str, str]]:
    def place(rule: KafkaAcl) -> tuple[str, str, str]:
        name = f"{rule.name}…" if rule.pattern == "prefixed" else rule.name
        host = "" if rule.host == "*" else f" from {rule.host}"
        verb = "may" if rule.permission == "ALLOW" else "must not"
        return rule.principal, f"{rule.resource} {name}{host}", verb

    for (principal, on, verb), same in groupby(rules, place):
        operations = ", ".join(one.operation.lower() for one in same)
        yield state, plain(principal), plain(on), f"{verb} {operations}"
