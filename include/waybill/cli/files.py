"""``waybill files``: what this node has gathered in files, and where each of them is on its way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waybill.cli.options import AsJson
from waybill.cli.output import echo, echo_json, print_json
from waybill.cli.tables import Cell, Column, Table, ago, clock, print_facts, print_table

if TYPE_CHECKING:
    from waybill.tracing.files import FileReader, FileRecord

app = typer.Typer(
    no_args_is_help=True,
    help="Files on their way from this node to the object store: list, show, retry.",
)

SpoolOption = Annotated[
    Path | None,
    typer.Option("--spool", help="Folder of the files. Default: WAYBILL_TRACES__SPOOL_DIR."),
]


@app.command("list")
def list_files(
    since: Annotated[
        datetime | None, typer.Option(help="Only files created from this time on (UTC).")
    ] = None,
    until: Annotated[datetime | None, typer.Option(help="Only files created until then.")] = None,
    state: Annotated[
        str | None, typer.Option(help="Only this state: open, closed, shipping, shipped, failed.")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=10**9, help="Newest files that are shown; --json has all.")
    ] = 100,
    spool: SpoolOption = None,
    *,
    as_json: AsJson = False,
) -> None:
    """List this node's files, as the shipper has recorded them; works while it runs."""
    from waybill.tracing.files import BOOKS, FileReader

    wanted = _state(state)
    window: dict[str, Any] = {
        name: _us(at) for name, at in (("since_us", since), ("until_us", until)) if at
    }
    directory = _spool_dir(spool)
    with FileReader(directory / BOOKS) as books:
        if as_json:
            _print_json(books, books.files(state=wanted, **window))
            return
        newest = books.files(state=wanted, newest_first=True, **window)
        _show(books, list(islice(newest, limit + 1)), directory, limit)


@app.command()
def show(
    file_id: Annotated[str, typer.Argument(help="As `waybill files list` shows it.")],
    spool: SpoolOption = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show one file: its state, its shipment, the objects it became."""
    from waybill.tracing.files import BOOKS, FileReader

    with FileReader(_spool_dir(spool) / BOOKS) as books:
        found = _with_shipment(books, _known(books, file_id))
    if as_json:
        print_json(found)
        return
    print_facts(_facts(found))


@app.command()
def retry(
    file_id: Annotated[str, typer.Argument(help="A failed file.")],
    who: Annotated[str, typer.Option(help="Your name.")],
    why: Annotated[str, typer.Option(help="What was fixed.")],
    spool: SpoolOption = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Retry a failed file, once its cause is fixed.

    The shipper retries it at its next step, or when it next starts. A file that failed in a
    shipment with others is retried with them, under the same keys: nothing is stored twice.
    """
    from waybill.errors import InputError
    from waybill.tracing.files import BOOKS, FileReader, ask_for_retry

    directory = _spool_dir(spool)
    with FileReader(directory / BOOKS) as books:
        record = _known(books, file_id)
    if record.state != "failed":
        raise InputError(f"file {file_id} is {record.state}, not failed")
    ask_for_retry(directory, file_id, who=who, why=why)
    if as_json:
        print_json({"id": file_id, "asked": True})
        return
    echo(f"Asked for a retry. See how it goes: waybill files show {file_id}")


def _spool_dir(given: Path | None) -> Path:
    from waybill.settings import Settings

    return given or Settings().traces.spool_dir


def _state(text: str | None) -> Any:
    from waybill.errors import InputError
    from waybill.tracing.files import FILE_STATES

    if text is not None and text not in FILE_STATES:
        raise InputError(f"--state {text}: there are {', '.join(FILE_STATES)}")
    return text


def _known(books: FileReader, file_id: str) -> FileRecord:
    from waybill.errors import NotFoundError

    record = books.get(file_id)
    if record is None:
        raise NotFoundError(
            f"no file {file_id} is known here: it was never seen, or shipped and forgotten after "
            "a day. `waybill files list` shows those that are"
        )
    return record


def _us(moment: datetime) -> int:
    return int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1_000_000)


def _with_shipment(books: FileReader, record: FileRecord) -> dict[str, Any]:
    shipment = None if record.shipment is None else books.shipment(record.shipment)
    return {**record.to_json(), "shipment": None if shipment is None else shipment.to_json()}


def _print_json(books: FileReader, found: Iterable[FileRecord]) -> None:
    """Print a list, a file a line, without holding it in memory."""
    import orjson

    between = "["
    for record in found:
        echo_json(between + orjson.dumps(_with_shipment(books, record)).decode(), nl=False)
        between = ",\n"
    echo_json("[]" if between == "[" else "]")


def _show(books: FileReader, newest: list[FileRecord], directory: Path, limit: int) -> None:
    totals = books.totals().items()
    notes = []
    if len(newest) > limit:
        notes.append(f"There are older files; --limit shows more than {limit:,}, --json all.")
    if totals:
        shown = (f"{name} {one.files:,} ({one.size_bytes:,} bytes)" for name, one in totals)
        notes.append(f"All files: {', '.join(shown)}")
    print_table(_file_table(books, list(reversed(newest[:limit])), directory), notes)


def _file_table(books: FileReader, found: list[FileRecord], directory: Path) -> Table:
    rows = []
    for record in found:
        shipment = None if record.shipment is None else books.shipment(record.shipment)
        rows.append(
            (
                ago(_time(record.created_us)),
                record.id,
                record.state,
                record.size_bytes,
                None if shipment is None else len(shipment.keys),
                None if shipment is None else shipment.attempts,
                record.error or ("" if shipment is None else shipment.error) or None,
            )
        )
    return Table(
        (
            Column("created", spare=2),
            Column("id"),
            Column("state"),
            Column("bytes", "number"),
            Column("objects", "number", spare=3),
            Column("failed tries", "number", spare=4),
            Column("why", "text", spare=1),
        ),
        rows,
        "no such file: `waybill files list` without options shows all that there are",
        f"Files of {directory}",
    )


def _facts(found: dict[str, Any]) -> Iterator[tuple[str, Cell]]:
    """Yield what is known of a file, for people."""
    yield "file", found["id"]
    yield "created (UTC)", _time(found["created_us"])
    since = f" since {clock(_time(found['changed_us']))}" if found["changed_us"] else ""
    yield "state", found["state"] + since
    yield "bytes", found["size_bytes"]
    for name in ("error", "note"):
        if found[name]:
            yield name, found[name]
    if shipment := found["shipment"]:
        yield "shipment", f"{shipment['id']}, {len(shipment['files']):,} files"
        yield "failed tries", shipment["attempts"]
        if shipment["error"]:
            yield "last error", shipment["error"]
        if not shipment["done"] and shipment["next_attempt_us"]:
            yield "next try (UTC)", _time(shipment["next_attempt_us"])
        for number, key in enumerate(shipment["keys"]):
            yield "" if number else "objects", key


def _time(moment_us: int) -> datetime:
    return datetime.fromtimestamp(moment_us / 1_000_000, UTC)
