"""Any dlt resource or source, as an iterator: its rows are records, its state is our cursor.

``resource`` names a function of the pipeline's folder or of an installed package that returns a
dlt source, a dlt resource, or rows; ``rest_api`` is the dict of dlt's source of that name. Each
resource's table is an event name. The cursor is ``{"dlt": dlt's state, "done": [resources]}``:
``done`` are those that the round has read to their end, until it has read all. A run that goes on
with a round reads those once more behind it: they may have grown since.

The same cursor gives the same rows in the same order where the source does, and the same page where
its items fall alike: one that is asked from another row on may cut its answers elsewhere. Where the
state stands still within a resource (see ``dlt_process``), a run that died gives the resource's
rows again from its beginning. What comes again is recognised by id and version.

The source runs in a process of its own, confined as transformations are, with the network open to
what the settings let sources connect to. Nothing of the platform's is in it but the order: options,
and the parts of the connection that they refer to.
"""

from __future__ import annotations

import base64
import os
import re
import sys
from bisect import bisect
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

import msgspec
from pydantic import Field, JsonValue, field_validator, model_validator

from waybill.errors import InputError, RetryError
from waybill.events import loads
from waybill.ingestion.connectors.base import BadRow, Cursor, Discovered, Page, Record, Row
from waybill.ingestion.connectors.dlt_process import LENGTH_BYTES, Order
from waybill.ingestion.connectors.opening import Opening, Options, with_options
from waybill.ingestion.connectors.references import filled_in, has_references
from waybill.ingestion.connectors.source_process import SourceProcess, new_source_folder
from waybill.processing.sandbox import Limits
from waybill.settings import Settings

_FUNCTION = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_HINTS = frozenset(
    {"incremental", "primary_key", "merge_key", "write_disposition", "columns", "table_name"}
)
_LARGEST_FRAME_BYTES = 256 * 1024**2
_CPU_S = 86_400
ENVIRONMENT = {
    "PROVIDERS__ENABLE_AIRFLOW_SECRETS": "false",  # it would ask Airflow for each value
    "PROVIDERS__ENABLE_GOOGLE_SECRETS": "false",
    "RUNTIME__DLTHUB_TELEMETRY": "false",
    "RUNTIME__LOG_LEVEL": "WARNING",
    "EXTRACT__NEXT_ITEM_MODE": "fifo",
    "PYTHONUTF8": "1",
    "TZ": "UTC",
}


class DltOptions(Options):
    """What a declaration says of a dlt source."""

    resource: str = Field(
        "",
        description="module:function, of a file in the pipeline's folder or an installed package",
    )
    rest_api: dict[str, JsonValue] | None = Field(
        None, description="the dict of dlt's rest_api source: client, resources"
    )
    arguments: dict[str, JsonValue] = Field(
        default={}, description="arguments of the function, by name"
    )
    resources: list[str] = Field(default=[], description="a list of resources; all, if empty")
    hints: dict[str, dict[str, JsonValue]] = Field(
        default={}, description=f"for each resource some of {', '.join(sorted(_HINTS))}"
    )
    events: dict[str, str] = Field(
        default={}, description="the event name of each resource whose name is another"
    )

    @field_validator("resource")
    @classmethod
    def _check_function(cls, text: str) -> str:
        if text and _FUNCTION.fullmatch(text) is None:
            raise ValueError("a module's name, a colon, a function's name")
        return text

    @field_validator("hints")
    @classmethod
    def _check_hints(cls, hints: dict[str, Any]) -> dict[str, Any]:
        for given in hints.values():
            if unknown := sorted(set(given) - _HINTS):
                raise ValueError(f"there is no hint {unknown[0]!r}")
        return hints

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if bool(self.resource) == (self.rest_api is not None):
            raise ValueError("expected either resource or rest_api")
        if self.arguments and not self.resource:
            raise ValueError("arguments are those of resource; there is none")
        return self


class DltConnector:
    """Reads any dlt resource or source, or a REST API by its description."""

    def __init__(self, opening: Opening) -> None:
        opening.refuse("path", "order_by", "null_values", "columns")
        self._opening = opening
        self._options = opening.options(DltOptions)
        self._settings = opening.settings or Settings()
        if has_references(self._secret_options):
            opening.require_connection()

    @property
    def _secret_options(self) -> Any:
        options = self._options
        return {"arguments": options.arguments, "rest_api": options.rest_api}

    def read(self, cursor: Cursor | None) -> Iterator[Page | None]:
        """Yield the pages from a state on; the last one's state is that of a round that is over.

        Raises:
            InputError: the source refuses what it is given, or its code fails.
            RetryError: it did not answer.

        Cost: a process of 115 MB, 0.6 s of CPU to start; then about 2 µs a row beside the
        source's own work.
        """
        return self._read(cursor, somebody_waits=False)

    def preview(self) -> Iterator[Page | None]:
        """Yield the first pages, as ``read``; a server that is not there is not asked again."""
        return self._read(None, somebody_waits=True)

    def _read(self, cursor: Cursor | None, *, somebody_waits: bool) -> Iterator[Page | None]:
        start = None if cursor is None else dict(cursor)
        seen: set[str] = set()
        for frame in self._frames(cursor, describe=False, somebody_waits=somebody_waits):
            if frame is None:
                yield None
                continue
            after = {"dlt": frame["dlt"], "done": frame["done"]}
            if frame["runs"] or frame["bad"] or after != start:
                self._require_keys(frame, seen)
                yield self._page(frame, after, start)
                start = after

    def count(self) -> None:
        """Return None: no source of dlt says how many rows it has."""
        return

    def discover(self) -> list[Discovered]:
        """Return what each resource says of itself; no row is read.

        Raises:
            InputError, RetryError: as ``read``.
        """
        found: list[Discovered] = []
        for frame in self._frames(None, describe=True, somebody_waits=True):
            for one in () if frame is None else frame["resources"]:
                event = self._event(one["table"])
                key = tuple(one["key"])
                found.append(Discovered(one["name"], event, key, one["cursor"], one["types"]))
        return found

    def only(self, name: str) -> DltConnector:
        """Return a connector of one resource."""
        return DltConnector(with_options(self._opening, resources=[name]))

    def _event(self, table: str) -> str:
        return self._options.events.get(table, table)

    def _page(
        self, frame: dict[str, Any], after: dict[str, Any], start: dict[str, Any] | None
    ) -> Page:
        rows: list[Row] = []
        begins: list[tuple[int, str, int]] = []
        for table, number, op, given in frame["runs"]:
            event = self._event(table)
            begins.append((len(rows), table, number))
            if op == "upsert" and event == self._opening.source.event:
                rows += given
            else:
                rows += [Record(row, event=event, op=op) for row in given]

        def place(index: int) -> str:
            begin, table, number = begins[bisect(begins, index, key=itemgetter(0)) - 1]
            return f"resource {table}, record {number + index - begin} of the run"

        bad = [
            BadRow(
                base64.b64decode(one["raw"]),
                0,
                one["code"],
                one["message"],
                where=f"resource {one['table']}, record {one['number']} of the run",
            )
            for one in frame["bad"]
        ]
        return Page(rows, bad, cursor=after, start=start, place=place, origin="", finite=True)

    def _require_keys(self, frame: dict[str, Any], seen: set[str]) -> None:
        """Refuse an event of which no row of its first page has a field of the key.

        Raises:
            InputError: names what the rows have instead.
        """
        fields: dict[str, set[str]] = {}
        for table, _, _, rows in frame["runs"]:
            if table not in seen:
                fields.setdefault(table, set()).update(*rows)
        seen.update(fields)
        for table, names in fields.items():
            event = self._event(table)
            declared = self._opening.events.get(event)
            lacking = [one for one in declared.key if one not in names] if declared else []
            if lacking:
                raise InputError(
                    f"resource {table!r}: no row has the field {lacking[0]!r}, which the key of"
                    f" event {event!r} names; they have {', '.join(sorted(names)[:20])}"
                )

    def _frames(
        self, cursor: Cursor | None, *, describe: bool, somebody_waits: bool
    ) -> Iterator[dict[str, Any] | None]:
        """Yield the frames of one process; None while it is silent."""
        name = f"dlt source {self._options.resource or 'rest_api'}"
        folder = new_source_folder()
        order = self._order(cursor, folder, describe=describe, somebody_waits=somebody_waits)
        process = SourceProcess(
            name,
            _command(sys.path),
            folder,
            environment={**ENVIRONMENT, "HOME": str(folder), "DLT_DATA_DIR": str(folder)},
            given=msgspec.json.encode(order) + b"\n",
            hide=self._hide,
        )
        with closing(process):
            for body in _bodies(process.chunks(self._settings.sources.quiet_s), name):
                if body is None:
                    yield None
                    continue
                frame = loads(body)
                if frame["kind"] == "end":
                    return
                if frame["kind"] in _ERRORS:
                    detail = self._hide(frame["detail"])
                    cause = RuntimeError(detail) if detail else None  # --debug shows it
                    raise _ERRORS[frame["kind"]](self._hide(frame["message"])) from cause
                yield frame
            status = process.status()
            raise RetryError(
                f"{name} ended by itself (status {status}) before it said that it has read all:"
                f" {process.last_words or 'it said nothing'}"
            )

    @property
    def _hide(self) -> Callable[[str], str]:
        connection = self._opening.source.connection
        if connection is None or not has_references(self._secret_options):
            return str
        return self._opening.connection().hide

    def _order(
        self, cursor: Cursor | None, folder: Path, *, describe: bool, somebody_waits: bool
    ) -> Order:
        options, settings, opening = self._options, self._settings, self._opening
        connection = opening.connection() if has_references(self._secret_options) else None
        fill = partial(filled_in, connection=connection)
        return Order(
            name=re.sub(r"\W", "_", opening.source.event, flags=re.ASCII) or "source",
            resource=options.resource,
            rest_api=fill(options.rest_api, place="source.options.rest_api"),
            arguments=fill(options.arguments, place="source.options.arguments"),
            hints=options.hints,
            resources=options.resources,
            state=_checked(cursor),
            page_rows=opening.source.page_rows,
            describe=describe,
            somebody_waits=somebody_waits,
            source_folder=str(opening.folder.resolve()),
            folder=os.path.realpath(folder),
            readable=[str(path) for path in (opening.folder.resolve(), *opening.roots)],
            limits=Limits(settings.sandbox.memory_mb, settings.sandbox.file_mb, _CPU_S),
            strict=settings.sandbox.strict,
            owner=f"source of {opening.folder.name}",
            allowed_hosts=list(settings.egress.allowed_hosts),
            allowed_networks=list(settings.egress.allowed_networks),
        )


_ERRORS = {"input": InputError, "retry": RetryError}


def _checked(cursor: Cursor | None) -> Any:
    if cursor is None:
        return None
    if set(cursor) != {"dlt", "done"} or not isinstance(cursor["done"], list):
        raise InputError(f"cursor {str(dict(cursor))[:200]} is not one of this connector; reset it")
    return dict(cursor)


def _command(path: list[str]) -> list[str]:
    entries = [str(Path(entry).resolve()) for entry in path if entry]
    code = (
        "import sys; sys.path[:] = sys.argv[1:]; "
        "from waybill.ingestion.connectors.dlt_process import main; main()"
    )
    return [sys.executable, "-I", "-c", code, *entries]


def _bodies(chunks: Iterator[bytes | None], name: str) -> Iterator[bytes | None]:
    """Yield the bodies of frames, and None for each chunk that is none.

    Raises:
        InputError: a frame is larger than may be held.
    """
    held = bytearray()
    for chunk in chunks:
        if chunk is None:
            yield None
            continue
        held += chunk
        while len(held) >= LENGTH_BYTES:
            length = int.from_bytes(held[:LENGTH_BYTES], "big")
            if length > _LARGEST_FRAME_BYTES:
                raise InputError(
                    f"{name}: one page has {length // 1024**2} MiB, more than the"
                    f" {_LARGEST_FRAME_BYTES // 1024**2} that are held; lower source.page_rows"
                )
            end = LENGTH_BYTES + length
            if len(held) < end:
                break
            yield bytes(held[LENGTH_BYTES:end])
            del held[:end]
