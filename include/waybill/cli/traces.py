"""``waybill traces``: carry traces from this node to the object store; look at the files."""

from __future__ import annotations

import signal
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from waybill.files import FileReader, FileRecord

app = typer.Typer(no_args_is_help=True, help="Event traces: ship them, see their files.")

_MOST_SHOWN = 100


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


@app.command()
def files(
    since: Annotated[
        datetime | None, typer.Option(help="Only files created from this time on (UTC).")
    ] = None,
    until: Annotated[datetime | None, typer.Option(help="Only files created until then.")] = None,
    state: Annotated[
        str | None, typer.Option(help="Only this state: open, closed, shipping, shipped, failed.")
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="For machines; all files.")] = False,
) -> None:
    """List this node's trace files as the shipper's books have them; works while it runs."""
    import orjson  # noqa: PLC0415

    from waybill.files import BOOKS, FileReader  # noqa: PLC0415
    from waybill.settings import Settings  # noqa: PLC0415

    wanted = _state(state)
    window = {name: _us(at) for name, at in (("since_us", since), ("until_us", until)) if at}
    directory = Settings().traces.spool_dir / BOOKS
    with FileReader(directory) as books:
        found = list(books.files(state=wanted, **window))
        if as_json:
            typer.echo(orjson.dumps([_with_shipment(books, record) for record in found]).decode())
        else:
            _show(books, found, directory)


def _state(text: str | None) -> Any:  # noqa: ANN401 - a FileState, or None
    from waybill.errors import InputError  # noqa: PLC0415
    from waybill.files import FILE_STATES  # noqa: PLC0415

    if text is not None and text not in FILE_STATES:
        raise InputError(f"--state {text}: there are {', '.join(FILE_STATES)}")
    return text


def _us(moment: datetime) -> int:
    return int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1_000_000)


def _with_shipment(books: FileReader, record: FileRecord) -> dict[str, Any]:
    shipment = None if record.shipment is None else books.shipment(record.shipment)
    return {**record.to_json(), "shipment": None if shipment is None else shipment.to_json()}


def _show(books: FileReader, found: Sequence[FileRecord], directory: Path) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    console = Console()
    table = Table(title=f"Trace files of {directory.parent}", title_justify="left")
    for name in ("created (UTC)", "state", "bytes", "objects", "failed tries", "next try", "error"):
        table.add_column(name, justify="right" if name in {"bytes", "objects"} else "left")
    for record in found[-_MOST_SHOWN:]:
        shipment = None if record.shipment is None else books.shipment(record.shipment)
        waits = shipment is not None and not shipment.done and shipment.next_attempt_us
        table.add_row(
            _clock(record.created_us),
            record.state,
            f"{record.size_bytes:,}",
            "" if shipment is None else str(len(shipment.keys)),
            "" if shipment is None else str(shipment.attempts),
            _clock(shipment.next_attempt_us) if shipment is not None and waits else "",
            record.error or ("" if shipment is None else shipment.error),
        )
    console.print(table)
    left_out = len(found) - _MOST_SHOWN
    if left_out > 0:
        console.print(f"{left_out:,} older files are not shown; --json has all.")
    counts = ", ".join(f"{name} {count:,}" for name, count in books.counts().items())
    console.print(f"All files: {counts}")


def _clock(moment_us: int) -> str:
    return f"{datetime.fromtimestamp(moment_us / 1_000_000, UTC):%Y-%m-%d %H:%M:%S}"
