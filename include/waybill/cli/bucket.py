"""``waybill bucket show|claim``: which deployment the bucket belongs to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from waybill.cli.exit_codes import ExitCode
from waybill.cli.options import AsJson, Who, Why, ask, decision
from waybill.cli.output import echo
from waybill.cli.tables import Cell, print_facts

if TYPE_CHECKING:
    from waybill.services import BucketReport

app = typer.Typer(no_args_is_help=True, help="The bucket and its owner: show, claim.")


@app.command()
def show(*, as_json: AsJson = False) -> None:
    """Show which deployment owns the bucket. Exit code 2 if it is another one."""
    from waybill.services import bucket_owner
    from waybill.settings import Settings

    report = bucket_owner(Settings())
    _print(report, as_json=as_json)
    if report.owner is not None and not report.is_ours:
        raise typer.Exit(ExitCode.FOUND)


@app.command()
def claim(
    owner: Annotated[
        str | None,
        typer.Argument(help="Id of the deployment that has it now, as `show` says.", metavar="ID"),
    ] = None,
    *,
    why: Why,
    who: Who = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Take the bucket over from a deployment that is gone for good.

    End its processes first: a running one checks the owner again only before it deletes. Its
    objects stay until this deployment's DAG refresh_tracker finds that they are garbage.
    """
    from waybill.services import bucket_owner, claim_bucket
    from waybill.settings import Settings

    settings = Settings()
    report = bucket_owner(settings)
    if not report.is_ours and not yes:
        _print(report, as_json=False)
        echo("Its objects will then be this deployment's: those that no row of this")
        echo("tracker names are deleted as garbage.")
        ask("Take it over?", as_json=as_json)
    _print(claim_bucket(settings, owner, decision(who, why)), as_json=as_json)


def _print(report: BucketReport, *, as_json: bool) -> None:
    if as_json:
        echo(json.dumps(report.to_json()))
        return
    facts: list[tuple[str, Cell]] = [
        ("bucket", f"{report.bucket} ({report.server})"),
        ("this deployment", report.deployment),
    ]
    owner = report.owner
    if owner is None:
        facts.append(("belongs to", "nobody: the first process that writes claims it"))
    else:
        facts.append(("belongs to", "this one" if report.is_ours else owner.deployment))
        facts.append(("claimed", f"{owner.claimed_at} by {owner.claimed_by}"))
    print_facts(facts)
