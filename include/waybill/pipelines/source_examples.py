"""What a new pipeline declares of its source, by its connector, with records that fit it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os.path import normpath
from pathlib import Path

from waybill.pipelines.document import yaml_text
from waybill.pipelines.source_path import roots_advice, roots_setting

EXAMPLE_CONNECTORS = frozenset({"csv", "http"})
"""Connectors whose new pipelines have an example's columns: it is at hand, or cannot be read."""
_MOST_SLOT = 63


@dataclass(frozen=True, slots=True)
class ExampleColumns:
    """Names of the example table's columns: of the key, and the three beside it."""

    key: tuple[str, ...]
    changed: str
    status: str
    amount: str

    @property
    def names(self) -> tuple[str, ...]:
        """Return all, in order."""
        return (*self.key, self.changed, self.status, self.amount)

    def record(self, number: int) -> dict[str, str]:
        """Return an example record, as text."""
        key = {name: f"A-{number}" for name in self.key}
        rest = (f"2026-01-0{number}T08:00:00Z", "Paid", f"{number}2.50")
        return key | dict(zip((self.changed, self.status, self.amount), rest, strict=True))


@dataclass(frozen=True, slots=True)
class SourceExample:
    """The source of a new pipeline."""

    lines: Sequence[str]
    """Of the declaration, below ``source.connector``."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Beside the declaration: path in the folder to text."""
    event: str = "record"
    """The event name of its records."""
    advice: str = ""
    """What is the user's to do before the source can be read, in lines; "": nothing."""


def source_example(
    connector: str, name: str, table: str, columns: ExampleColumns, taps: Sequence[str] = ()
) -> SourceExample:
    """Return the source of a new pipeline: of another package's connector, without options.

    Args:
        connector: its kind.
        name: of the pipeline.
        table: of the pipeline.
        columns: of the example's table.
        taps: Singer taps that are installed.
    """
    if connector == "singer":
        return _singer(name, columns, taps)
    maker = _MAKERS.get(connector)
    if maker is None:
        return SourceExample(
            ("  options: {} # what the connector asks for",),
            advice=f"source.options is yours to fill in, as connector {connector} asks for it",
        )
    return maker(name, table, columns)


def _records(columns: ExampleColumns) -> str:
    rows = [columns.names, *(tuple(columns.record(number).values()) for number in (1, 2))]
    return "".join(",".join(map(_csv, row)) + "\n" for row in rows)


def _csv(text: str) -> str:
    quoted = text.replace('"', '""')
    return f'"{quoted}"' if set(text) & set(',"') else text


def _csv_file(_name: str, _table: str, columns: ExampleColumns) -> SourceExample:
    types = [f"{yaml_text(column)}: string" for column in columns.key]
    types += [f"{columns.changed}: timestamp", f"{columns.status}: string"]
    types += [f"{columns.amount}: decimal(10,2)"]
    lines = (
        "  # an example; for files of your own `waybill new … --connector files` writes a pipeline",
        "  # whose columns `waybill sources discover` fills in",
        "  path: records.csv",
        "  columns:",
        *(f"    {line}" for line in types),
    )
    return SourceExample(lines, {"records.csv": _records(columns)})


def _files(_name: str, _table: str, columns: ExampleColumns) -> SourceExample:
    lines = (
        "  options:",
        '    path: "inbox/*.csv" # or *.jsonl, *.parquet, s3://bucket/key; * is any part of a name',
        '  # columns: { amount: "decimal(10,2)" } # of CSV: what is not text, time or day',
    )
    return SourceExample(lines, {"inbox/records.csv": _records(columns)})


def files_source(path: str, roots: Sequence[Path] = ()) -> SourceExample:
    """Return the source of a new pipeline that reads files of the user's own.

    Args:
        path: with `*` for any part of a name.
        roots: folders that sources may read already.
    """
    lines = ("  options:", f"    path: {yaml_text(path)}")
    if path.startswith("/"):
        folder = re.split(r"[*?\[]", path)[0].rpartition("/")[0]
        if not any(Path(normpath(folder)).is_relative_to(root) for root in roots):
            return SourceExample(lines, advice=roots_advice(folder, roots))
    return SourceExample(lines)


def connection_name(name: str, suffix: str) -> str:
    """Return what a new pipeline's connection is called."""
    return f"{re.sub('[^a-z0-9]+', '_', name.lower()).strip('_')[:50] or 'my'}_{suffix}"


def connection_advice(connection: str, example: str) -> str:
    """Return how a connection is made, in lines; ``example`` is a URI or JSON."""
    variable = f"WAYBILL_SOURCES__CONNECTIONS__{connection.upper()}"
    return f"connection {connection} is yours to make: in Airflow, or\n  {variable}={example}"


_UNSEEN = (
    "deleted rows are not seen without `deletes: compare` in source.options;",
    "with it all keys are compared each 86400 s (compare_every)",
)
UNSEEN_DELETES = " ".join(_UNSEEN)
"""What a table is read without, unless it is declared."""
_DATABASE = "postgres://user:password@host:5432/database"


def _sql(name: str, table: str, _columns: ExampleColumns) -> SourceExample:
    connection = connection_name(name, "db")
    lines = (
        f"  connection: {connection} # PostgreSQL, MySQL, MariaDB; of SQLite see `file`",
        "  options:",
        "    # file: /data/shop.db # SQLite: this, and no `connection`; a file in this folder, or",
        "    #   below a folder of WAYBILL_SOURCES__ROOTS",
        "    # schema: public # if it is not the connection's own",
        f"    table: {yaml_text(table)} # or a view",
        "    # cursor: updated_at # a column that rises with each change: a run reads what is new;",
        "    #   without it each run reads the whole table",
        "    # deletes: compare # with a cursor: rows that are gone become deletes, of which the",
        "    #   transformation gets the key alone; all keys are compared each 86400 s",
        "    #   (compare_every). Without it, no delete is seen",
    )
    advice = connection_advice(connection, _DATABASE)
    advice += (
        "\nof SQLite: options.file, no connection; sources may read files below /data by"
        "\n  (with the folders that are in it already)"
        f"\n  {roots_setting('/data')}"
    )
    advice += "\n" + "\n  ".join(_UNSEEN)
    return SourceExample(lines, advice=advice)


def _postgres_cdc(name: str, table: str, _columns: ExampleColumns) -> SourceExample:
    connection = connection_name(name, "db")
    slot = f"waybill_{re.sub('[^a-z0-9_]', '_', name.lower())}"[:_MOST_SLOT]
    lines = (
        f"  connection: {connection} # PostgreSQL with wal_level = logical",
        "  options:",
        f"    slot: {slot} # made by the first run; of this pipeline alone",
        f"    tables: {{ record: {yaml_text(f'public.{table}')} }}",
    )
    return SourceExample(lines, advice=connection_advice(connection, _DATABASE))


def _kafka(name: str, table: str, _columns: ExampleColumns) -> SourceExample:
    connection = connection_name(name, "kafka")
    lines = (
        f"  connection: {connection}",
        "  options:",
        f"    topics: {{ record: {yaml_text(table)} }} # event name: topic",
        "    format: json # or debezium, avro, protobuf, json_schema",
    )
    return SourceExample(lines, advice=connection_advice(connection, "kafka://host:9092"))


def _http(name: str, _table: str, _columns: ExampleColumns) -> SourceExample:
    variable = f"{connection_name(name, 'token').upper()}"
    variable = f"T_{variable}" if variable[0].isdigit() else variable
    lines = (
        "  options:",
        "    auth: bearer # or github, stripe, standard",
        f"    secret: env:{variable} # where the secret is, never the secret",
    )
    advice = (
        "columns, transformation and events.jsonl are an example: put what your source sends\n"
        f"set {variable} where `waybill collector` runs"
    )
    return SourceExample(lines, advice=advice)


def _dlt(_name: str, _table: str, columns: ExampleColumns) -> SourceExample:
    lines = (
        "  options:",
        '    resource: "source:record" # the function of source.py; its table is the event name',
        "    # a REST API needs no code: `waybill new … --connector dlt --rest-api https://…/records`",
    )
    return SourceExample(lines, {"source.py": _dlt_code(columns)})


def _dlt_code(columns: ExampleColumns) -> str:
    rows = "\n".join(f"    {columns.record(number)!r}," for number in (1, 2))
    return f'''\
"""Where the records come from: any resource or source of dlt; docs/connectors.md#dlt."""

import dlt

ROWS = [
{rows}
]


@dlt.resource(primary_key={list(columns.key)!r})
def record(
    changed=dlt.sources.incremental(
        {columns.changed!r}, initial_value="2000-01-01T00:00:00Z", row_order="asc"
    ),
):
    yield [row for row in ROWS if row[{columns.changed!r}] >= changed.last_value]
'''


def _singer(name: str, columns: ExampleColumns, taps: Sequence[str]) -> SourceExample:
    tap = taps[0] if taps else "jsonl"
    keys = ", ".join(map(yaml_text, columns.key))
    lines = (
        "  options:",
        f"    tap: {yaml_text(tap)} # a name in WAYBILL_SOURCES__TAPS",
        f"    config: {{ path: /data/{name}.jsonl, stream_name: record, primary_keys: [{keys}] }}",
        f"    replication_keys: {{ record: {columns.changed} }}",
    )
    there = "" if taps else f"; tap {tap} is yours to install, and to name in WAYBILL_SOURCES__TAPS"
    return SourceExample(lines, advice=f"source.options.config is the tap's: fill it in{there}")


_MAKERS: Mapping[str, Callable[[str, str, ExampleColumns], SourceExample]] = {
    "csv": _csv_file,
    "files": _files,
    "sql": _sql,
    "dlt": _dlt,
    "postgres_cdc": _postgres_cdc,
    "kafka": _kafka,
    "http": _http,
}
