"""The process that runs a dlt source: confined, then pages out until the source has no more.

It is given one order as a line of JSON, and answers in frames: four bytes of length, then JSON. It
never runs ``pipeline.run``: resources are iterated, and dlt's state is kept by whoever asked.

What dlt promises of its state is that it is right once all was read. Within a resource it moves on
only where that is right too (``_moves_within``): the resource is incremental in ascending order.
Else what is read again from the state before is recognised by its id and version.

A page ends where an item of dlt does, and only there the state moves: an item (what the source
yields at once, such as the rows of an answer) of more rows than a page takes makes several pages.
"""

from __future__ import annotations

import base64
import gc
import importlib
import importlib.util
import math
import os
import re
import socket
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO, NoReturn
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
import orjson

from waybill.egress import EgressGuard, ForbiddenAddressError, guard_process
from waybill.errors import InputError
from waybill.events import dumps, loads
from waybill.ingestion.connectors.dlt_cursors import CursorGuard, make_canonical
from waybill.processing.sandbox import Confinement, Limits

LENGTH_BYTES = 4
_FLUSH_BYTES = 8 * 1024**2
_MOST_STATE_BYTES = 4 * 1024**2
_TOGETHER, _TOGETHER_BYTES = 20, 1024**2
"""Rows that are written at once, if they are no larger."""
_YOUNG_OBJECTS = 100_000
"""So many more of them than went have Python look for cycles of garbage: rows are none."""
_PLAIN = (str, int, bool, type(None))
_PLAIN_KINDS, _TEXT_ONLY = frozenset({*_PLAIN, float}), frozenset({str})
_SERVER_ERRORS = 500
_TRY_AGAIN = frozenset({408, 425, 429})
_REFUSED = frozenset({401, 403})
_MOST_REASONS = 50


class Order(msgspec.Struct, frozen=True):
    """What is to be read, and how this process is confined."""

    name: str
    """Of the source, for messages."""
    resource: str
    """``module:function``; "": ``rest_api``."""
    rest_api: dict[str, Any] | None
    arguments: dict[str, Any]
    hints: dict[str, dict[str, Any]]
    resources: list[str]
    """Those to read; empty: all that are selected."""
    state: Any
    """As the last frame had it; None: the beginning."""
    page_rows: int
    describe: bool
    """Only say what there is."""
    somebody_waits: bool
    """dlt does not try a server again that refuses connections, or whose name nobody knows."""
    source_folder: str
    """Of the pipeline."""
    folder: str
    readable: list[str]
    limits: Limits
    strict: bool
    """Do not run it where the machine cannot confine this process."""
    owner: str
    allowed_hosts: list[str]
    allowed_networks: list[str]


def main() -> NoReturn:
    """Confine this process, and answer the order that stands on standard input."""
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the source prints is its log
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    confinement = Confinement(
        order.folder, order.readable, order.limits, network=True, owner=order.owner
    )
    missing = confinement.apply()
    sys.path[:] = filter(_is_open, sys.path)
    if missing and order.strict:
        words = f"this machine cannot confine a source's code: it has no {', no '.join(missing)}"
        _send_error(output, "input", f"{words}; WAYBILL_SANDBOX__STRICT asks for it", "")
        os._exit(1)
    for lacks in missing:
        sys.stderr.write(f"this machine does not close the process in: no {lacks}\n")
    guard_process(EgressGuard(order))
    if order.somebody_waits:
        _give_up_at_once()
    status = 0
    try:
        _answer(order, output)
    except BrokenPipeError:
        status = 1
    finally:
        os._exit(status)  # threads that the source left do not keep it


def _is_open(entry: str) -> bool:
    """Tell whether packages may be looked for there.

    A folder of `PYTHONPATH` that is closed to this process would have each import of a name that it
    holds, which dlt's packages try of those that may be missing, end in a `PermissionError`.
    """
    try:
        next(Path(entry).iterdir(), None)
    except NotADirectoryError:
        return True  # an archive
    except OSError:
        return False
    return True


def _answer(order: Order, output: BinaryIO) -> None:
    try:
        source = _opened(order)
        if order.describe:
            _send(output, {"kind": "resources", "resources": list(_described(source))})
        else:
            _Reading(order, source, output).run()
        _send(output, {"kind": "end"})
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the source raises is told, none of it is ours
        traceback.print_exc()
        kind, message, detail = _judged(error, order)
        _send_error(output, kind, message, detail)


def _send_error(output: BinaryIO, kind: str, message: str, detail: str) -> None:
    _send(output, {"kind": kind, "message": message, "detail": detail})


def _send(output: BinaryIO, frame: Mapping[str, Any]) -> None:
    body = dumps(frame)
    output.write(len(body).to_bytes(LENGTH_BYTES, "big"))
    output.write(body)
    output.flush()


def _give_up_at_once() -> None:
    """Have dlt's requests fail at the first try where no server is: it makes five, in 16 s."""
    from dlt.sources.helpers.requests import retry as dlt_retry

    made: Any = dlt_retry._make_retry

    def retrying(*given: Any, **options: Any) -> Any:
        found = made(*given, **options)
        found.stop |= lambda state: state.outcome.failed and _is_absent(state.outcome.exception())
        return found

    dlt_retry._make_retry = retrying


def _is_absent(error: BaseException) -> bool:
    absent = (ConnectionRefusedError, socket.gaierror)
    return any(isinstance(one, absent) for one in _reasons(error))


# Pages by number

_PAGE_FIELDS = re.compile(r"page|(?:current|page)_?(?:page|number|no|index)|number", re.IGNORECASE)


def _refuse_guessed_pages() -> None:
    """Have a source refused whose pages dlt would ask for by numbers that it guesses.

    Where an answer says how many pages there are, dlt counts from 0. It has the first page from a
    request without a number: of a source that counts from 1, it asks for that one again, and
    never for the last.
    """
    from dlt.sources.helpers.rest_client import detector

    module: Any = detector
    module.pages_number_paginator_detector = _refuse_page_numbers


def _refuse_page_numbers(response: Any) -> tuple[None, None]:
    from dlt.sources.helpers.rest_client.detector import find_total_pages_path

    answer = response.json()
    path, total = find_total_pages_path(answer)
    if not path or not re.fullmatch(r"\s*[0-9]+(\.[0-9]*)?\s*", str(total), re.ASCII):
        return None, None
    base, field = _first_page(answer, path), _yaml_text(path[-1])
    paginator = (
        f"{{type: page_number, base_page: {1 if base is None else base}, page_param: page,"
        f" total_path: {_yaml_text('.'.join(path))}}}"
    )
    doubt = "" if base is not None else f"; nothing beside {field} says that the first page is 1"
    raise InputError(
        f"{urlsplit(response.url).path}: the answer says how many pages there are"
        f" ({field}: {str(total).strip()[:20]}), not how one of them is asked for. dlt would count"
        " from 0: of a source that counts from 1, a page would never be read. Declare, under client"
        f" or endpoint, paginator: {paginator}, and check page_param and base_page{doubt}. If this"
        " is no number of pages, declare paginator: single_page"
    )


def _first_page(answer: Any, path: Sequence[str]) -> int | None:
    """Return the number of the first page, as its answer says it; None: it does not."""
    for name in path[:-1]:
        answer = answer[name]
    numbers = (value for name, value in answer.items() if _PAGE_FIELDS.fullmatch(str(name)))
    return next((value for value in numbers if type(value) is int and value in {0, 1}), None)


def _yaml_text(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z_][\w.]*", text, re.ASCII) else orjson.dumps(text).decode()


# What the source is


def _opened(order: Order) -> Any:
    """Return the dlt source, with hints applied and the resources selected."""
    import dlt
    from dlt.extract import DltResource, DltSource

    _refuse_guessed_pages()
    if order.rest_api is not None:
        from dlt.sources.rest_api import rest_api_source

        made: Any = rest_api_source(order.rest_api, name=order.name)  # type: ignore[arg-type]
    else:
        function = _function(order)
        made = function(**order.arguments)
        if not isinstance(made, DltResource | DltSource):
            made = dlt.resource(made, name=order.resource.rpartition(":")[2])
    if isinstance(made, DltResource):
        made = DltSource(dlt.Schema(order.name), order.name, [made])
    for name, hints in order.hints.items():
        _hint(_resource(made, name, "hints"), dict(hints))
    for name in order.resources:
        _resource(made, name, "resources")
    return made.with_resources(*order.resources) if order.resources else made


def _resource(source: Any, name: str, option: str) -> Any:
    if name not in source.resources:
        known = ", ".join(source.resources) or "none"
        raise InputError(f"source.options.{option}: there is no resource {name!r} ({known})")
    return source.resources[name]


def _hint(resource: Any, hints: dict[str, Any]) -> None:
    import dlt

    incremental = hints.pop("incremental", None)
    if incremental is not None:
        hints["incremental"] = dlt.sources.incremental(**incremental)
    resource.apply_hints(**hints)


def _function(order: Order) -> Any:
    name, _, attribute = order.resource.partition(":")
    own = Path(order.source_folder, f"{name}.py")
    try:
        if own.is_file():
            module = _own_module(name, own)
        else:
            module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InputError(
            f"source.options.resource: {error}; it is a file of the pipeline's folder, or of a"
            " package that is installed"
        ) from error
    found = getattr(module, attribute, None)
    if not callable(found):
        raise InputError(f"source.options.resource: {name} has no function {attribute!r}")
    return found


def _own_module(name: str, file: Path) -> Any:
    """Import a file of the pipeline's folder, whatever else there is of its name."""
    sys.path.append(str(file.parent))  # last: its neighbours hide no package
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise InputError(f"source.options.resource: {file.name} is no module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _described(source: Any) -> Iterator[dict[str, Any]]:
    for name, resource in source.selected_resources.items():
        with _iterated(source.with_resources(name), {}) as found:
            incremental = _incremental(found.pipe(name))
        schema = _schema_of(resource)
        columns = schema.get("columns", {})
        yield {
            "name": name,
            "table": schema.get("name", name),
            "key": [n for n, column in columns.items() if column.get("primary_key")],
            "write_disposition": schema.get("write_disposition", "append"),
            "cursor": None if incremental is None else str(incremental.cursor_path),
            "ascending": _moves_within(incremental) and not resource.is_transformer,
            "types": {n: c["data_type"] for n, c in columns.items() if "data_type" in c},
        }


def _schema_of(resource: Any) -> dict[str, Any]:
    """Return what hints say of a resource's table; of hints that need a row, nothing."""
    from dlt.extract.exceptions import DataItemRequiredForDynamicTableHints

    try:
        return dict(resource.compute_table_schema())
    except DataItemRequiredForDynamicTableHints:
        return {}


def _incremental(pipe: Any) -> Any:
    """Return what a pipe whose generator is made is incremental by, or None."""
    from dlt.extract.incremental import Incremental, IncrementalResourceWrapper

    found = None if pipe is None else pipe.get_by_type(IncrementalResourceWrapper, Incremental)
    return found.incremental if isinstance(found, IncrementalResourceWrapper) else found


def _moves_within(incremental: Any) -> bool:
    """Tell whether dlt's state is right after each page of a resource, not only at its end.

    All rows up to the cursor have come then, and those at the cursor itself are asked for again.
    """
    return (
        incremental is not None
        and incremental.row_order == "asc"
        and incremental.last_value_func is max
        and incremental.range_start == "closed"
    )


class _Iterated:
    """A source's selected resources, iterated as dlt's own extraction does; the state is ours."""

    def __init__(self, source: Any, state: Any) -> None:
        from dlt.common.configuration.container import Container
        from dlt.common.configuration.inject import inject_section  # type: ignore[attr-defined]
        from dlt.common.pipeline import StateInjectableContext
        from dlt.extract.pipe_iterator import ManagedPipeIterator
        from dlt.extract.source import SourceInjectableContext, SourceSchemaInjectableContext

        section, *others = contexts = [
            source._get_config_section_context(),  # as DltSource.__iter__
            StateInjectableContext(state=state),
            SourceInjectableContext(source),
            SourceSchemaInjectableContext(source.schema),
        ]
        with ExitStack() as stack:
            stack.enter_context(inject_section(section))
            for context in others:
                stack.enter_context(Container().injectable_context(context))
            iterator: Any = ManagedPipeIterator
            self._items = iterator.from_pipes(source.resources.selected_pipes)
        self._items.set_context(contexts)

    def pipe(self, name: str) -> Any:
        """Return the pipe that begins with a resource, its generator made; None: none does."""
        found = (one.pipe for one in self._items._sources)  # told nowhere else
        return next((pipe for pipe in found if pipe.name == name), None)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield (table, a row, a list of rows or a table of them)."""
        from dlt.extract.items import TableNameMeta

        for found in self._items:
            is_named = isinstance(found.meta, TableNameMeta)
            yield str(found.meta.table_name if is_named else found.pipe.name), found.item

    def close(self) -> None:
        """Close all generators."""
        self._items.close()


def _iterated(source: Any, state: dict[str, Any]) -> closing[_Iterated]:
    return closing(_Iterated(source, state))


# Reading


@dataclass(slots=True)
class _Page:
    """What goes into the next frame, already as JSON."""

    runs: list[bytes]
    """Of rows: their table, the first one's number, their operation, and a list of them."""
    bad: list[dict[str, Any]]
    rows: int = 0
    bytes: int = 0


class _Reading:
    """Iterates a source's resources, and sends what they give in pages with dlt's state."""

    def __init__(self, order: Order, source: Any, output: BinaryIO) -> None:
        from dlt.common.json import json

        self._json, self._order, self._source, self._output = json, order, source, output
        given = order.state or {}
        kept = given.get("dlt")
        self._state: dict[str, Any] = {} if kept is None else json.typed_loadb(dumps(kept))
        self._done: list[str] = list(given.get("done", ()))
        """Resources that this round has read to their end."""
        self._told = dumps(kept)
        """The state of the last place that can be gone on from, as JSON."""
        self._sent = (_canonical(self._told), self._done)
        self._page = _Page([], [])
        self._numbers: dict[str, int] = {}

    def run(self) -> None:
        """Read all resources; resources of one tree together.

        First those that a round which a run before has left lacks. Its others may have grown
        since, and are the next round: a run that ends has read all that there was when it began.
        """
        selected = dict(self._source.selected_resources)
        if any(resource.is_transformer for resource in selected.values()):
            groups = [list(selected)]
        else:
            groups = [[name] for name in selected]
        waiting = [group for group in groups if not set(group) <= set(self._done)]
        self._round(waiting, selected)
        self._round([group for group in groups if group not in waiting], selected)

    def _round(self, groups: Sequence[list[str]], selected: Mapping[str, Any]) -> None:
        for number, group in enumerate(groups):
            self._group(group, [selected[name] for name in group])
            is_last = number + 1 == len(groups)
            self._done = [] if is_last else [*self._done, *group]
            self._told = self._snapshot()
            self._flush()

    def _group(self, names: list[str], resources: Sequence[Any]) -> None:
        deleting = {
            name: _deleting_column(resource)
            for name, resource in zip(names, resources, strict=True)
        }
        guard = CursorGuard(self._state, self._refuse, _row_text)
        source = self._source.with_resources(*names)
        with guard.watching(), _iterated(source, self._state) as found:
            for name in names:
                guard.begin(_incremental(found.pipe(name)))
            moves = len(names) == 1 and _moves_within(_incremental(found.pipe(names[0])))
            for table, items in found:
                marked = deleting[table if table in deleting else names[0]]
                if self._count() + _length(items) > self._order.page_rows:
                    self._flush()
                for rows in _slices(items, self._order.page_rows):
                    self._add_all(table, rows, marked)
                if moves:
                    self._told = self._snapshot()
                self._flush_full()
        guard.end(names)

    def _add_all(self, name: str, rows: Sequence[Any], deleting: tuple[str, bool] | None) -> None:
        at = 0
        while at < len(rows):
            self._flush_full()
            room = self._order.page_rows - self._count()
            some = rows[at : at + min(room, _TOGETHER)]
            at += len(some)
            text = _together(some) if deleting is None else None
            if text is not None:
                self._put(name, "upsert", len(some), text)
                continue
            for row in some:
                self._flush_full()
                self._add(name, row, deleting)

    def _add(self, name: str, row: Any, deleting: tuple[str, bool] | None) -> None:
        row = row if isinstance(row, dict) else _as_dict(row)
        try:
            is_delete = deleting is not None and _is_deleted(row, deleting[0], is_bool=deleting[1])
            text = dumps([row if _is_plain(row) else plain(row)])
        except (TypeError, ValueError, RecursionError) as error:
            self._add_bad(name, _shown(row), "payload_not_json", str(error)[:1000])
            return
        self._put(name, "delete" if is_delete else "upsert", 1, text)

    def _refuse(self, name: str, row: Any, why: str) -> None:
        """Add a row whose cursor is none to the page's bad ones."""
        self._flush_full()
        self._add_bad(name, _row_text(row), "source_row_malformed", why)

    def _add_bad(self, name: str, row: bytes, code: str, message: str) -> None:
        number = self._numbers[name] = self._numbers.get(name, 0) + 1
        raw = base64.b64encode(row).decode()
        bad = {"table": name, "number": number, "code": code, "message": message, "raw": raw}
        self._page.bad.append(bad)
        self._page.bytes += len(raw)

    def _put(self, name: str, op: str, count: int, text: bytes) -> None:
        """Add rows of one table and operation to the page; ``text``: a list of them as JSON."""
        page, before = self._page, self._numbers.get(name, 0)
        self._numbers[name] = before + count
        page.runs.append(b"%b,%b]" % (dumps([name, before + 1, op])[:-1], text))
        page.rows += count
        page.bytes += len(text)

    def _count(self) -> int:
        return self._page.rows + len(self._page.bad)

    def _flush_full(self) -> None:
        """Send a page that is full."""
        if self._count() >= self._order.page_rows or self._page.bytes >= _FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        """Send what there is, and the state; nothing, if there is neither a row nor a new state."""
        page, self._page = self._page, _Page([], [])
        state = (_canonical(self._told), self._done)
        if not page.runs and not page.bad and state == self._sent:
            return
        self._sent = state
        head = dumps({"kind": "page", "bad": page.bad, "done": self._done})[:-1]
        runs = b",".join(page.runs)
        body = b'%b,"dlt":%b,"runs":[%b]}' % (head, state[0], runs)
        self._output.write(len(body).to_bytes(LENGTH_BYTES, "big"))
        self._output.write(body)
        self._output.flush()

    def _snapshot(self) -> bytes:
        text: bytes = self._json.typed_dumpb(self._state)
        if len(text) > _MOST_STATE_BYTES:
            raise InputError(
                f"dlt's state has {len(text) // 1024**2} MiB, more than is kept; a cursor that many"
                " rows share grows it: declare range_start: open, or a finer cursor"
            )
        return text


def _canonical(state: bytes) -> bytes:
    """Return dlt's state such that the same place in the source has the same one.

    The hashes of the rows at the cursor, and of those that must not move it, are sets; where the
    run began that wrote the state is told beside it, and read by nothing.
    """
    value = loads(state)
    _make_canonical(value)
    make_canonical(value)
    return dumps(value)


def _make_canonical(state: Any) -> None:
    if not isinstance(state, dict):
        return
    if {"last_value", "unique_hashes", "start_value"} <= state.keys():
        state["unique_hashes"].sort()
        state["start_value"] = state["initial_value"]
        return
    for inner in state.values():
        _make_canonical(inner)


def _length(items: Any) -> int:
    if hasattr(items, "num_rows"):
        return int(items.num_rows)
    return len(items) if isinstance(items, list) or hasattr(items, "iloc") else 1


def _slices(items: Any, count: int) -> Iterator[Sequence[Any]]:
    """Yield an item of dlt, which may be a row, a list of rows or a table, as lists of rows."""
    if hasattr(items, "to_pylist") and hasattr(items, "slice"):  # Arrow
        for start in range(0, items.num_rows, count):
            yield items.slice(start, count).to_pylist()
    elif hasattr(items, "to_dict") and hasattr(items, "iloc"):  # pandas
        for start in range(0, len(items), count):
            yield items.iloc[start : start + count].to_dict("records")
    elif isinstance(items, list):
        for start in range(0, len(items), count):
            yield items[start : start + count]
    else:
        yield [items]


def _row_text(row: Any) -> bytes:
    """Return a row as JSON, or, if it has no such form, as Python shows it."""
    try:
        return dumps(plain(_as_dict(row)))
    except (TypeError, ValueError, RecursionError):
        return _shown(row)


def _shown(row: Any) -> bytes:
    return repr(row).encode("utf-8", "backslashreplace")


def _as_dict(row: Any) -> Any:
    """Return a row as a dict, as dlt does: what is none stands in ``value``."""
    if hasattr(row, "model_dump"):
        return row.model_dump()
    if is_dataclass(row) and not isinstance(row, type):
        return asdict(row)
    return dict(row) if isinstance(row, Mapping) else {"value": row}


def _deleting_column(resource: Any) -> tuple[str, bool] | None:
    """Return the column that marks a deleted row (dlt's ``hard_delete``), and if it is a bool."""
    for name, column in _schema_of(resource).get("columns", {}).items():
        if column.get("hard_delete"):
            return name, column.get("data_type") == "bool"
    return None


def _is_deleted(row: Mapping[str, Any], column: str, *, is_bool: bool) -> bool:
    value = row.get(column)
    return value is True if is_bool or isinstance(value, bool) else value is not None


def _is_plain(row: Mapping[Any, Any]) -> bool:
    """Tell whether ``plain`` gives a row as it is."""
    kinds = set(map(type, row.values()))
    if not kinds <= _PLAIN_KINDS or not _TEXT_ONLY.issuperset(map(type, row)):
        return False
    return float not in kinds or all(
        math.isfinite(value) for value in row.values() if type(value) is float
    )


def _together(rows: Sequence[Any]) -> bytes | None:
    """Return rows as one list of JSON, each as ``plain`` gives it; None: they go one by one.

    What JSON does not have goes through ``plain``; but orjson writes NaN as null, and a fragment as
    it stands.
    """
    if not all(type(row) is dict for row in rows):
        return None
    try:
        text = orjson.dumps(rows, default=plain, option=_ONLY_JSON)
        if b"null" in text and not all(map(_is_plain, rows)):
            text = orjson.dumps(list(map(plain, rows)), option=_ONLY_JSON)
    except (TypeError, ValueError, RecursionError):
        return None
    return text if len(text) <= _TOGETHER_BYTES and _is_list(text, len(rows)) else None


_LIST = msgspec.json.Decoder(list[msgspec.Raw])


def _is_list(text: bytes, count: int) -> bool:
    """Tell whether a text is a list of JSON of so many values. Cost: as much as to write it."""
    try:
        text.decode()  # of texts in it msgspec tells only that they end
        return len(_LIST.decode(text)) == count
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        return False


def _checked(value: orjson.Fragment) -> orjson.Fragment:
    text = orjson.dumps(value)
    if not _is_list(b"[%b]" % text, 1):
        raise ValueError(f"an orjson.Fragment holds no JSON: {text[:100]!r}")
    return value


_ONLY_JSON = (
    orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)


def plain(value: Any) -> Any:
    """Return a value as JSON has it: times in UTC, decimals with all digits, bytes in base 64.

    Raises:
        TypeError: it has no JSON form.
        ValueError: NaN or an infinity.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} has no form in JSON")
        return float(value)
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in value]
    return _plain_scalar(value)


def _plain_scalar(value: Any) -> Any:
    for kind, form in _FORMS:
        if isinstance(value, kind):
            return form(value)
    if hasattr(value, "model_dump"):
        return plain(value.model_dump())
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a number of numpy
        return plain(value.item())
    raise TypeError(f"a value of type {type(value).__name__} has no form in JSON")


def _moment(value: datetime) -> str:
    if type(value).__name__ == "NaTType":
        raise ValueError("NaT has no form in JSON")
    zoned = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    text = datetime(*zoned.timetuple()[:6], zoned.microsecond, tzinfo=UTC).isoformat()
    return text.replace("+00:00", "Z")


def _digits(value: Decimal) -> str:
    if not value.is_finite():
        raise ValueError(f"{value} has no form in JSON")
    return format(value, "f")


_FORMS: tuple[tuple[Any, Any], ...] = (
    (datetime, _moment),
    (date, lambda value: value.isoformat()),
    (time, lambda value: value.isoformat()),
    (timedelta, lambda value: value.total_seconds()),
    (Decimal, _digits),
    (UUID, str),
    (bytes | bytearray | memoryview, lambda value: base64.b64encode(bytes(value)).decode()),
    (Enum, lambda value: plain(value.value)),
    (orjson.Fragment, _checked),
    (str, str),
    (int, int),
)


# What went wrong


def _judged(error: BaseException, order: Order) -> tuple[str, str, str]:
    """Return (``retry`` or ``input``, message, more for who looks closer) for what was raised."""
    cause = _root(error)
    response = getattr(cause, "response", None)
    status = getattr(response, "status_code", None)
    if isinstance(cause, InputError | ForbiddenAddressError):
        return "input", str(cause), ""
    if status is not None:
        return *_judged_answer(int(status), response), ""
    words = f"{order.name}: {type(cause).__name__}: {str(cause)[:1000]}"
    if isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError | PermissionError):
        unanswered = _unanswered(cause)
        return ("retry", unanswered, words) if unanswered else ("retry", words, "")
    return "input", words + _where(cause, order), ""


def _unanswered(error: BaseException) -> str:
    """Return who does not answer a request, and why, in a few words; "": it is none of these."""
    url = urlsplit(str(getattr(getattr(error, "request", None), "url", None) or ""))
    host = url.netloc.rpartition("@")[2]
    found = host and next(
        (words for one in _reasons(error) for kind, words in _UNANSWERED if isinstance(one, kind)),
        "",
    )
    return f"nobody answers at {host} ({found})" if found else ""


_UNANSWERED: tuple[tuple[type[BaseException], str], ...] = (
    (ConnectionRefusedError, "connection refused"),
    (socket.gaierror, "there is no such host"),
    (TimeoutError, "nothing came in time"),
)


def _reasons(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and all that it came from: requests keep theirs in arguments."""
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < _MOST_REASONS:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        more = (getattr(one, "reason", None), one.__cause__, one.__context__, *one.args)
        waiting += [inner for inner in more if isinstance(inner, BaseException)]


def _judged_answer(status: int, response: Any) -> tuple[str, str]:
    url = str(getattr(response, "url", "")).partition("?")[0]
    words = f"{url} answered {status}"
    if status in _REFUSED:
        return (
            "input",
            f"{words}: the credentials are refused or have expired; renew the connection",
        )
    again = status in _TRY_AGAIN or status >= _SERVER_ERRORS
    return ("retry" if again else "input"), words


def _root(error: BaseException) -> BaseException:
    """Return what dlt's own exceptions were raised for."""
    while type(error).__module__.startswith("dlt.") and error.__cause__ is not None:
        error = error.__cause__
    return error


def _where(error: BaseException, order: Order) -> str:
    """Return the last line of the pipeline's own code that an error came through."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(order.source_folder):
            return f" ({Path(frame.filename).name}, line {frame.lineno})"
    return ""


if __name__ == "__main__":
    main()
