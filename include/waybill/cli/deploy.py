"""``waybill pipelines deploy``: make a declaration the active version of its pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def deploy(
    directory: Annotated[Path, typer.Argument(help="Folder with pipeline.yaml, or a name.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Check a declaration and make it active; applications take it with their next batch."""
    import orjson

    from waybill.cli.pipelines import folder_named
    from waybill.services import current_user, run_deploy
    from waybill.settings import Settings

    report = run_deploy(Settings(), folder_named(directory), who=current_user())
    if as_json:
        typer.echo(orjson.dumps(report.to_json()).decode())
    elif report.changed:
        number = f"(number {report.number})"
        typer.echo(f"{report.pipeline}: version {report.version} {number} is active")
    else:
        typer.echo(f"{report.pipeline}: version {report.version} was active already")
