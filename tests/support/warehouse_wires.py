"""What stands behind the drivers of warehouses that are not here: an engine, or a recording.

A wire answers calls: ``execute`` (a statement) and ``put`` (rows in bulk). ``DuckWire`` runs them on
DuckDB, each statement translated from the warehouse's dialect; ``Recorder`` writes down what another
wire answers; ``Recorded`` answers from such a file, and fails on any call that is not the next one.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import sqlglot
from sqlglot import exp

_CATALOGUE = re.compile(r"information_schema\.columns|svv_columns", re.IGNORECASE)
_TABLE_OF = re.compile(r"table_name = '([^']*)'")
_SCHEMA_OF = re.compile(r"table_schema = '([^']*)'|FROM `([^`]*)`\.INFORMATION_SCHEMA")
_SPELT = {
    "snowflake": {"VARCHAR": "TEXT", "TIMESTAMPTZ": "TIMESTAMP_TZ", "VARBINARY": "BINARY", "DOUBLE": "FLOAT"},
    "redshift": {
        "VARCHAR": "character varying", "TIMESTAMP WITH TIME ZONE": "timestamp with time zone",
        "DECIMAL": "numeric", "VARBYTE": "binary varying",
    },
    "bigquery": {},
}  # fmt: skip


class WireError(Exception):
    """What the engine says instead of an answer; the driver's shim makes its own error of it."""

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields


@dataclass
class Answer:
    """Rows, or the count of rows changed."""

    rows: list[dict[str, Any]] | None = None
    changed: int = -1
    names: list[str] = field(default_factory=list)
    """Columns of the rows, when it is a query."""


@dataclass
class Fault:
    """What goes wrong at the first statement that holds a text."""

    at: str
    message: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    after: bool = False
    """The statement is done, but its answer is an error."""
    then: Any = None
    """No error: this is done to the wire, before the statement."""


@dataclass
class DuckWire:
    """DuckDB in a warehouse's clothes. It enforces no keys, as they do not."""

    dialect: str
    connection: Any = field(default_factory=duckdb.connect)
    staged: dict[str, pa.Table] = field(default_factory=dict)
    columns: dict[tuple[str, str], dict[str, list]] = field(default_factory=dict)
    fault: Fault | None = None
    """What goes wrong, once."""
    lost: bool = False

    def __post_init__(self) -> None:
        self.connection.execute("SET TimeZone = 'UTC'")

    def open(self) -> Answer:
        """Connect: what an earlier connection left open is rolled back."""
        if self.lost:
            self.lost = False
            self._roll_back()
        return Answer()

    def put(self, place: str, rows: pa.Table) -> Answer:
        if place in self.staged and self.dialect == "bigquery":
            raise WireError(f"Already Exists: Job {place}", exists=True)
        self.staged[place] = rows
        return Answer()

    def load(self, place: str, table: str, columns: str = "") -> Answer:
        """Fill a table (made with these columns, when they are given) from what was put."""
        rows = self.staged[place]
        if columns:
            self.execute(f"CREATE TABLE {table} ({columns})")
        self.connection.register("given", rows)
        names = ", ".join(
            f'"{name}"'.replace('""', '"') for name in map(_doubled, rows.column_names)
        )
        self.connection.execute(f"INSERT INTO {table} ({names}) SELECT {names} FROM given")
        return Answer(changed=rows.num_rows)

    def execute(self, statement: str) -> Answer:
        if self.lost:
            raise WireError("the connection is closed", lost=True)
        fault = self.fault
        if fault is None or fault.at not in statement:
            return self._run(statement)
        self.fault = None
        if fault.after:
            self._run(statement)
        if fault.then is not None:
            fault.then(self)
            return self._run(statement)
        self.lost = bool(fault.fields.get("lost"))
        raise WireError(fault.message, **fault.fields)

    def _roll_back(self) -> None:
        try:
            self.connection.execute("ROLLBACK")
        except duckdb.TransactionException:
            pass  # none was open

    def _run(self, statement: str) -> Answer:
        if _CATALOGUE.search(statement):
            return self._catalogue(statement)
        try:
            tree, translated = _read_once(statement, self.dialect)
            self._note(tree)
            found = self.connection.execute(translated)
        except duckdb.ConstraintException as error:
            raise WireError(str(error), refused=True) from error
        except duckdb.CatalogException as error:
            raise WireError(str(error), reason="notFound", state="42P01", code=2003) from error
        if isinstance(tree, exp.Select):
            rows = found.to_arrow_table()
            return Answer(rows.to_pylist(), names=rows.column_names)
        counts = isinstance(tree, (exp.Insert, exp.Update, exp.Delete, exp.Merge))
        return Answer(changed=found.fetchone()[0] if counts else -1)

    @staticmethod
    def _translated(tree: exp.Expression) -> str:
        if isinstance(tree, exp.Create):
            tree.set("properties", None)
            for key in list(tree.find_all(exp.PrimaryKey)):
                key.pop()
        for kind in list(tree.find_all(exp.DataType)):
            if kind.this.name in ("VARCHAR", "VARBINARY", "TEXT"):
                kind.set("expressions", [])
        return tree.sql("duckdb")

    def _note(self, tree: exp.Expression) -> None:
        """Remember the columns of tables, as a catalogue would."""
        if isinstance(tree, exp.Create) and isinstance(tree.this, exp.Schema):
            table = tree.this.this
            self.columns.setdefault((table.db, table.name), {}).update(
                {c.name: self._column(c) for c in tree.this.find_all(exp.ColumnDef)}
            )
        if isinstance(tree, exp.Alter):
            known = self.columns[tree.this.db, tree.this.name]
            for action in tree.args["actions"]:
                self._note_change(known, action)

    def _note_change(self, known: dict[str, list], action: exp.Expression) -> None:
        if isinstance(action, exp.ColumnDef):
            known[action.name] = self._column(action)
        elif isinstance(action, exp.AlterColumn) and action.args.get("dtype"):
            known[action.name][0] = self._spelt(action.args["dtype"])
        elif isinstance(action, exp.AlterColumn):
            known[action.name][1] = False

    def _column(self, column: exp.ColumnDef) -> list:
        required = any(isinstance(c.kind, exp.NotNullColumnConstraint) for c in column.constraints)
        return [self._spelt(column.args["kind"]), required]

    def _spelt(self, kind: exp.DataType) -> str:
        text = kind.sql(self.dialect).replace(", ", ",")
        plain, bracket, rest = text.partition("(")
        name = _SPELT[self.dialect].get(plain, plain)
        return name + bracket + rest if plain in ("DECIMAL", "NUMERIC", "BIGNUMERIC") else name

    def _catalogue(self, statement: str) -> Answer:
        schema = next(g for g in _SCHEMA_OF.search(statement).groups() if g)
        found = self.columns.get((schema, _TABLE_OF.search(statement)[1]), {})
        if self.dialect == "snowflake":
            found = {n: [k.replace("DECIMAL", "NUMBER"), r] for n, (k, r) in found.items()}
        rows = [{"name": n, "type": k, "required": r} for n, (k, r) in found.items()]
        return Answer(rows, names=["name", "type", "required"])


@functools.lru_cache(maxsize=1024)
def _read_once(statement: str, dialect: str) -> tuple[exp.Expression, str]:
    """Return a statement's tree, which nobody may change, and the statement in DuckDB's words.

    Tests of a warehouse say much the same: to parse it each time was most of what they cost.
    """
    tree = sqlglot.parse_one(statement, read=dialect)
    return tree, DuckWire._translated(tree.copy())


def _doubled(name: str) -> str:
    return name.replace('"', '""')


CALLS = ("open", "put", "load", "execute", "command", "query", "insert")


@dataclass
class Recorder:
    """Writes down the calls and answers of another wire."""

    wire: Any
    lines: list[dict[str, Any]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        if name not in CALLS:
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            line: dict[str, Any] = {"call": name, "with": [_sent(a) for a in arguments]}
            self.lines.append(line)
            try:
                answer = getattr(self.wire, name)(*arguments)
            except WireError as error:
                line["error"] = {"message": error.message, **error.fields}
                raise
            line.update(_told(answer))
            return answer

        return call

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in self.lines))


class Recorded:
    """Answers from a recording; every call must be the next one of it, to the letter."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = [json.loads(line) for line in path.read_text().splitlines()]
        self._at = 0

    def __getattr__(self, name: str) -> Any:
        if name not in CALLS:
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            assert self._at < len(self._lines), f"{self.path.name} has ended: {name} {arguments}"
            line = self._lines[self._at]
            self._at += 1
            came = {"call": name, "with": [_sent(a) for a in arguments]}
            expected = {"call": line["call"], "with": line["with"]}
            assert came == expected, f"{self.path.name}, line {self._at}"
            if "error" in line:
                raise WireError(**line["error"])
            return _answered(line)

        return call

    def at_end(self) -> bool:
        return self._at == len(self._lines)


def _told(answer: Any) -> dict[str, Any]:
    if answer is None:
        return {}
    if isinstance(answer, pa.Table):
        kinds = [[f.name, str(f.type)] for f in answer.schema]
        return {"rows": _plain(answer), "kinds": kinds}
    return {"rows": _plain(answer.rows), "changed": answer.changed, "names": answer.names}


def _answered(line: dict[str, Any]) -> Any:
    rows = _back(line.get("rows"))
    if "kinds" in line:
        schema = pa.schema([(name, _kind(text)) for name, text in line["kinds"]])
        arrays = [pa.array([row[f.name] for row in rows]).cast(f.type) for f in schema]
        return pa.table(arrays, schema=schema)
    if "changed" in line:
        return Answer(rows, line["changed"], line["names"])
    return None


def _kind(text: str) -> pa.DataType:
    decimal = re.fullmatch(r"decimal128\((\d+), (\d+)\)", text)
    if decimal:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if text.startswith("timestamp"):
        return pa.timestamp("us", "UTC")
    return {"date32[day]": pa.date32()}.get(text) or pa.type_for_alias(text)


def _sent(value: Any) -> Any:
    """Return an argument; rows that are sent in bulk have no order."""
    if isinstance(value, pa.Table):
        return sorted(_plain(value.to_pylist()), key=json.dumps)
    return _plain(value)


def _plain(value: Any) -> Any:  # noqa: PLR0911 - one a type
    if isinstance(value, pa.Table):
        return _plain(value.to_pylist())
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    if isinstance(value, datetime):
        return {"time": "2026-11-22T20:00:00+00:00"}
    if isinstance(value, date):
        return {"date": value.isoformat()}
    return {type(value).__name__: str(value)}


def _back(value: Any) -> Any:
    if value is None:
        return None
    return [{key: _read(item) for key, item in row.items()} for row in value]


def _read(item: Any) -> Any:
    if isinstance(item, dict):
        [(kind, text)] = item.items()
        return Decimal(text) if kind == "Decimal" else text
    return item
