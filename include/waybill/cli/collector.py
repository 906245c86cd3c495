"""``waybill collector``: take events over HTTP."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from waybill.cli.options import AsJson
from waybill.cli.output import print_json


def collector(
    *,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; loopback by default.")
    ] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port; 0: a free one.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=64, help="Processes; each has logs of its own.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Take events over HTTP, for pipelines whose source is `http`, until SIGTERM or Ctrl-C.

    Options win over WAYBILL_COLLECTOR__HOST, __PORT and __WORKERS.
    """
    given = {"HOST": host, "PORT": port, "WORKERS": workers}
    for name, value in given.items():
        if value is not None:  # the environment is how the worker processes hear of it
            os.environ[f"WAYBILL_COLLECTOR__{name}"] = str(value)
    from waybill.services import run_collector
    from waybill.settings import Settings

    settings = Settings()
    if as_json:
        own = settings.collector
        print_json({"host": own.host, "port": own.port, "workers": own.workers})
    run_collector(settings)
