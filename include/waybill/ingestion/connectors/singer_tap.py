"""Any Singer tap, as a process: its records are rows, its STATE is our cursor.

Which programs may run is the operator's to say, in ``sources.taps`` of the settings; a declaration
names one of them and gives it a configuration, with references for its secrets. That stands in a
file that only this user may read, as long as the tap runs.

The tap runs in a group of processes of its own, which ends with this process. It reads its own
installation, the system's libraries, the pipeline's folder and ``sources.roots``; what it connects
to is not judged, as that is its own.

Who dies when: a tap that dies has said its last STATE in the page before; the next run starts it
from there. The state is the tap's own: the same one gives the same rows if the tap keeps to that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import orjson
from pydantic import Field, JsonValue

from waybill.errors import InputError, RetryError
from waybill.events import dumps, loads
from waybill.ingestion.connectors.base import Cursor, Discovered, Page
from waybill.ingestion.connectors.opening import Opening, Options, with_options
from waybill.ingestion.connectors.references import filled_in, has_references
from waybill.ingestion.connectors.singer_launcher import Places
from waybill.ingestion.connectors.singer_messages import (
    LARGEST_LINE_BYTES,
    SingerPages,
    lines_of,
)
from waybill.ingestion.connectors.source_process import SourceProcess, new_source_folder
from waybill.settings import Settings

_PLACE = "source.options.config"
_PATH = "/usr/local/bin:/usr/bin:/bin"
_SYSTEM = ("/usr", "/bin", "/lib", "/lib64")
_PROC = ("/proc/cpuinfo", "/proc/meminfo", "/proc/stat")


class SingerOptions(Options):
    """What a declaration says of a tap."""

    tap: str = Field(description="the name of a tap in WAYBILL_SOURCES__TAPS")
    config: dict[str, JsonValue] = Field(default={}, description="the tap's configuration")
    streams: list[str] = Field(default=[], description="a list of streams; all, if empty")
    replication_keys: dict[str, str] = Field(
        default={}, description="for streams that are read incrementally, the column of each"
    )
    discover: bool = Field(
        default=True, description="true, or false for a tap that knows no --discover"
    )
    events: dict[str, str] = Field(
        default={}, description="the event name of each stream whose name is another"
    )


class SingerConnector:
    """Reads a Singer tap."""

    def __init__(self, opening: Opening) -> None:
        opening.refuse("path", "order_by", "null_values", "columns")
        self._opening = opening
        self._options = opening.options(SingerOptions)
        self._settings = opening.settings or Settings()
        self._name = f"tap {self._options.tap}"
        if has_references(self._options.config):
            opening.require_connection()

    def read(self, cursor: Cursor | None) -> Iterator[Page | None]:
        """Yield the pages from a state on.

        Raises:
            InputError: no such tap, or its streams are not as declared.
            RetryError: the tap failed, or is silent for too long; the pages before are good.
        """
        start = _checked(cursor)
        catalog = self._catalog() if self._options.discover else None
        events = self._opening.events
        pages = SingerPages(
            self._name,
            self._opening.source.page_rows,
            {name: declared.key for name, declared in events.items()},
            self._event,
            start,
            self._opening.source.event,
        )
        folder = new_source_folder()
        arguments = ["--config", self._write(folder, "config.json", self._config())]
        if catalog is not None:
            arguments += ["--catalog", self._write(folder, "catalog.json", catalog)]
        if start is not None and start["state"] is not None:
            arguments += ["--state", self._write(folder, "state.json", start["state"])]
        with closing(self._started(folder, arguments)) as process:
            chunks = process.chunks(self._settings.sources.quiet_s)
            yield from pages.read(lines_of(chunks, self._name))
            self._require_end(process)

    def count(self) -> None:
        """Return None: no tap says how many rows it has."""
        return

    def discover(self) -> list[Discovered]:
        """Return what the tap's catalog says of each stream.

        Raises:
            InputError, RetryError: as ``read``.
        """
        wanted, keys = self._options.streams, self._options.replication_keys
        found = [one for one in self._streams() if not wanted or _stream_id(one) in wanted]
        return [
            Discovered(
                _stream_id(one),
                self._event(str(one.get("stream", _stream_id(one)))),
                tuple(_of_catalog(one, "key_properties", "table-key-properties") or ()),
                keys.get(_stream_id(one)) or _of_catalog(one, "replication_key", "replication-key"),
                _types(one),
            )
            for one in found
        ]

    def only(self, name: str) -> SingerConnector:
        """Return a connector of one stream."""
        keys = self._options.replication_keys
        own: Any = {name: keys[name]} if name in keys else {}
        return SingerConnector(with_options(self._opening, streams=[name], replication_keys=own))

    def _event(self, stream: str) -> str:
        return self._options.events.get(stream, stream)

    def _streams(self) -> list[dict[str, Any]]:
        folder = new_source_folder()
        config = self._write(folder, "config.json", self._config())
        with closing(self._started(folder, ["--config", config, "--discover"])) as process:
            text = bytearray()
            for chunk in process.chunks(self._settings.sources.quiet_s):
                text += chunk or b""
                if len(text) > LARGEST_LINE_BYTES:  # it may be reading its source
                    raise self._no_catalog("what it says is too long to be one")
            self._require_end(process)
        try:
            streams = loads(bytes(text))["streams"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise self._no_catalog("what it says is no JSON with streams") from error
        if not isinstance(streams, list) or not all(map(_is_stream, streams)):
            raise self._no_catalog("a stream is not what Singer says of it")
        return streams

    def _no_catalog(self, why: str) -> InputError:
        return InputError(
            f"{self._name} gives no catalog: {why}; where it knows no --discover, declare"
            " source.options.discover: false"
        )

    def _catalog(self) -> dict[str, Any]:
        """Return the tap's catalog with the wanted streams selected, and no others."""
        streams = self._streams()
        known = {_stream_id(one) for one in streams}
        options = self._options
        for name in (*options.streams, *options.replication_keys):
            if name not in known:
                raise InputError(
                    f"source.options.streams: {self._name} has no stream {name!r}"
                    f" ({', '.join(sorted(known)[:20])})"
                )
        for one in streams:
            name = _stream_id(one)
            chosen = not options.streams or name in options.streams
            facts: dict[str, Any] = {"selected": chosen}
            if name in options.replication_keys:
                key = options.replication_keys[name]
                one["replication_method"], one["replication_key"] = "INCREMENTAL", key
                facts |= {"replication-method": "INCREMENTAL", "replication-key": key}
            _select(one, facts)
        return {"streams": streams}

    def _config(self) -> Any:
        options, opening = self._options, self._opening
        connection = opening.connection() if has_references(options.config) else None
        return filled_in(options.config, connection, _PLACE)

    @property
    def _hide(self) -> Callable[[str], str]:
        if not has_references(self._options.config):
            return str
        return self._opening.connection().hide

    def _write(self, folder: Path, name: str, value: Any) -> str:
        file = folder / name
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(dumps(value))
        return str(file)

    def _started(self, folder: Path, arguments: Sequence[str]) -> SourceProcess:
        taps = self._settings.sources.taps
        command = taps.get(self._options.tap)
        if command is None:
            known = ", ".join(sorted(taps)) or "none"
            raise InputError(
                f"source.options.tap: there is no tap {self._options.tap!r} ({known}); who operates"
                " Waybill installs it and names its command:"
                f' WAYBILL_SOURCES__TAPS=\'{{"{self._options.tap[:40]}": ["/opt/taps/bin/tap"]}}\''
            )
        opening = self._opening
        places = Places(
            [str(opening.folder.resolve()), *map(str, opening.roots), *_PROC],
            list(_installation(command[0])),
            self._settings.sandbox.strict,
        )
        launch = _launch(sys.path, places)
        return SourceProcess(
            self._name,
            [*launch, *command, *arguments],
            folder,
            environment={
                "PATH": f"{Path(command[0]).parent}:{_PATH}",
                "HOME": str(folder),
                "TMPDIR": str(folder),
                "LANG": "C.UTF-8",
                "TZ": "UTC",
            },
            hide=self._hide,
        )

    def _require_end(self, process: SourceProcess) -> None:
        if status := process.status():
            raise RetryError(
                f"{self._name} ended with status {status}; the next run goes on from its last"
                f" state. It said: {process.last_words or 'nothing'}"
            )


def _launch(path: list[str], places: Places) -> list[str]:
    entries = orjson.dumps([str(Path(entry).resolve()) for entry in path if entry]).decode()
    code = (
        "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
        "from waybill.ingestion.connectors.singer_launcher import main; main()"
    )
    return [sys.executable, "-I", "-c", code, entries, msgspec.json.encode(places).decode()]


def _installation(program: str) -> Iterator[str]:
    """Yield where a program and what it needs are: its environment, its Python, the system."""
    yield from _SYSTEM
    for file in (Path(program), Path(program).resolve()):
        yield str(file.parent.parent if file.parent.name == "bin" else file)
        marker = file.parent.parent / "pyvenv.cfg"
        if marker.is_file():
            for line in marker.read_text("utf-8").splitlines():
                name, _, value = line.partition("=")
                if name.strip() == "home":
                    yield str(Path(value.strip()).parent)
                    yield str((Path(value.strip()) / "python3").resolve().parent.parent)


def _checked(cursor: Cursor | None) -> dict[str, Any] | None:
    if cursor is None:
        return None
    if set(cursor) != {"state"}:
        raise InputError(f"cursor {str(dict(cursor))[:200]} is not one of this connector; reset it")
    return dict(cursor)


def _is_stream(stream: Any) -> bool:
    """Tell whether a stream of a catalog has the form that it is read by."""
    if not isinstance(stream, dict):
        return False
    facts, schema = stream.get("metadata") or [], stream.get("schema") or {}
    return (
        isinstance(facts, list)
        and all(isinstance(one, dict) for one in facts)
        and all(isinstance(one.get("metadata") or {}, dict) for one in facts)
        and isinstance(schema, dict)
        and isinstance(schema.get("properties") or {}, dict)
    )


def _stream_id(stream: Mapping[str, Any]) -> str:
    return str(stream.get("tap_stream_id") or stream.get("stream"))


def _facts_of(stream: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a stream as a whole."""
    for one in stream.get("metadata") or ():
        if not one.get("breadcrumb"):
            return dict(one.get("metadata") or {})
    return {}


def _of_catalog(stream: Mapping[str, Any], name: str, in_metadata: str) -> Any:
    return stream.get(name) or _facts_of(stream).get(in_metadata)


def _select(stream: dict[str, Any], facts: dict[str, Any]) -> None:
    metadata = [one for one in stream.get("metadata") or () if one.get("breadcrumb")]
    whole = {"breadcrumb": [], "metadata": {**_facts_of(stream), **facts}}
    stream["metadata"] = [whole, *metadata]
    schema = stream.get("schema")
    if isinstance(schema, dict):  # as old taps have it
        stream["schema"] = {**schema, "selected": facts["selected"]}


def _types(stream: Mapping[str, Any]) -> dict[str, str]:
    """Return the type of each field, as columns name it."""
    properties = (stream.get("schema") or {}).get("properties") or {}
    return {name: _type(one) for name, one in properties.items() if isinstance(one, dict)}


def _type(schema: Mapping[str, Any]) -> str:
    given = schema.get("type", "string")
    listed = given if isinstance(given, list) else [given]
    kinds = [kind for kind in listed if isinstance(kind, str) and kind != "null"]
    if kinds == ["string"] and schema.get("format") in ("date-time", "date"):
        return "timestamp" if schema["format"] == "date-time" else "date"
    names = {"integer": "int64", "number": "float64", "boolean": "bool", "string": "string"}
    return names.get(kinds[0], "json") if len(kinds) == 1 else "json"
