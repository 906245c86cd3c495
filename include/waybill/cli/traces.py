"""``waybill traces``: carry traces from this node to the object store."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Event traces: ship them.")


@app.callback()
def _group() -> None:
    """Event traces; their files: ``waybill files``."""


@app.command()
def ship(
    drain_s: Annotated[
        float, typer.Option(min=0, help="After SIGTERM: seconds to ship what is left.")
    ] = 20.0,
) -> None:
    """Ship finished trace files until SIGTERM or Ctrl-C. One process a node."""
    import logging  # noqa: PLC0415
    from dataclasses import asdict  # noqa: PLC0415

    import orjson  # noqa: PLC0415

    from waybill.settings import Settings  # noqa: PLC0415
    from waybill.storage import open_objects  # noqa: PLC0415
    from waybill.tracing import run_shipper  # noqa: PLC0415

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    asked = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked.set())
    settings = Settings()
    store = open_objects(settings.s3)
    report = run_shipper(settings.traces, store, asked.is_set, drain_s=drain_s)
    counted = asdict(report)
    typer.echo(orjson.dumps({"traces": counted.pop("records"), **counted}).decode())
