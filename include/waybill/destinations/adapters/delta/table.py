"""A Delta table by delta-rs: appended to, or merged; each commit on top of the snapshot judged.

A commit is tried once, as the very next version: with ``max_commit_retries`` 0 delta-rs does not
look whether a newer version could be passed by, which for an append is always. The commit number is
the table's own application transaction, the books are metadata of the same commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import (
    CommitProperties,
    DeltaTable,
    Field,
    Schema,
    Transaction,
    WriterProperties,
)
from deltalake import write_deltalake as write
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from waybill.destinations.adapters.delta.files import (
    DeltaFile,
    DeltaFiles,
    files_within,
    is_plain,
    removed,
)
from waybill.destinations.merging import DELETED_AT, KEPT_COLUMNS
from waybill.destinations.per_table.books import LoadRecord
from waybill.destinations.per_table.files import added, complete, folder_of, plainly, rewritten
from waybill.destinations.per_table.table import (
    DELETE,
    FILE,
    OP,
    SOFT_DELETE,
    TOUCH,
    UPSERT,
    Bounds,
    Changes,
    ConflictError,
    RowStamp,
    ShapePlan,
    plain_field,
)
from waybill.errors import InputError

_UNSAFE = frozenset(" ,;{}()\n\t=")
"""Characters that a column's name may have only in a table with column mapping."""
_MAPPING = "delta.columnMapping.mode"
_BOOKS = "waybill"
_CONSTRAINT = "delta.constraints."
_TRIES = 10
_LOOKS = (1, 20, 1_000, None)
"""So many commits are looked at for the newest with books, then more."""
_WRITER = WriterProperties(compression="SNAPPY")


@dataclass(slots=True)
class DeltaLakeTable:
    """One table: see ``LakeTable``."""

    root: str
    schema_name: str
    name: str
    options: dict[str, str]
    _opened: DeltaTable | None = None
    _files: dict[str, int] = field(default_factory=dict)
    _found: dict[int, DeltaFile] = field(default_factory=dict)
    _books: tuple[int, LoadRecord | None] | None = None

    @property
    def uri(self) -> str:
        """Return where it is."""
        return f"{self.root}/{folder_of(self.schema_name)}/{folder_of(self.name)}"

    @property
    def _table(self) -> DeltaTable:
        if self._opened is None:
            raise TableNotFoundError(f"{self.uri} was not read yet")
        return self._opened

    def refresh(self) -> bool:
        """Read the newest snapshot; see the protocol."""
        try:
            self._opened = DeltaTable(self.uri, storage_options=self.options)
        except TableNotFoundError:
            self._opened = None
        self._files, self._found = {}, {}
        return self._opened is not None

    def fields(self) -> pa.Schema:
        """Return its columns; see the protocol."""
        return pa.schema([plain_field(f) for f in pa.schema(self._table.schema().to_arrow())])

    def checks(self) -> Mapping[str, str]:
        """Return its CHECK constraints."""
        configuration = self._table.metadata().configuration
        return {
            name.removeprefix(_CONSTRAINT): expression
            for name, expression in configuration.items()
            if name.startswith(_CONSTRAINT)
        }

    def last_number(self, destination: str) -> int | None:
        """Return the greatest commit number of a destination; see the protocol."""
        number: int | None = self._table.transaction_version(_app(destination))
        return number

    def record(self) -> LoadRecord | None:
        """Return the newest books; see the protocol. Cost: of the commits since."""
        version = self._table.version()
        if self._books is None or self._books[0] != version:
            self._books = (version, self._newest_record())
        return self._books[1]

    def _newest_record(self) -> LoadRecord | None:
        for limit in _LOOKS:
            commits = self._table.history(limit)
            for entry in commits:
                if _BOOKS in entry:
                    return LoadRecord.from_text(entry[_BOOKS])
            if limit is None or len(commits) < limit:
                break
        return None

    def count(self) -> int:
        """Return how many rows it has."""
        return int(self._table.count())

    def scan(self, columns: Sequence[str], bounds: Bounds) -> pa.RecordBatchReader:
        """Read columns of rows within the bounds; see the protocol.

        Where the table is not plain, all lie in file 0.
        """
        if is_plain(self._table):
            return self._scan_files(columns, bounds)
        found = self._table.scan(columns=list(columns), predicate=_within(bounds, ""))
        reader = pa.RecordBatchReader.from_stream(found)
        fields = [plain_field(reader.schema.field(name)) for name in columns]
        schema = pa.schema([*fields, pa.field(FILE, pa.int32())])

        def batches() -> Any:
            for batch in reader:
                arrays = [_cast(batch.column(f.name), f.type) for f in fields]
                yield pa.record_batch(
                    [*arrays, pa.repeat(pa.scalar(0, pa.int32()), batch.num_rows)], schema=schema
                )

        return pa.RecordBatchReader.from_batches(schema, batches())

    def _scan_files(self, columns: Sequence[str], bounds: Bounds) -> pa.RecordBatchReader:
        own = self.fields()
        wanted = plainly(pa.schema([own.field(name) for name in columns]))
        schema = pa.schema([*wanted, pa.field(FILE, pa.int32())])
        files, reader = files_within(self._table, bounds), DeltaFiles(self._table)

        def batches() -> Iterator[pa.RecordBatch]:
            for file in files:
                number = self._files.setdefault(file.path, len(self._files))
                self._found[number] = file
                for batch in reader.read(file.path, wanted):
                    numbers = pa.repeat(pa.scalar(number, pa.int32()), batch.num_rows)
                    yield pa.record_batch([*batch.columns, numbers], schema=schema)

        return pa.RecordBatchReader.from_batches(schema, batches())

    def commit(self, changes: Changes | None, stamp: RowStamp) -> None:
        """Change rows and leave the stamp; see the protocol."""
        metadata = {} if stamp.record is None else {_BOOKS: stamp.record.to_text()}
        done = [Transaction(_app(stamp.destination), stamp.number)] if stamp.destination else []
        properties = CommitProperties(
            custom_metadata=metadata, max_commit_retries=0, app_transactions=done
        )
        try:
            if changes is None:
                self._table.create_write_transaction(
                    [], "append", self._table.schema(), commit_properties=properties
                )
            elif not len(changes.met):
                rows = changes.rows.drop_columns([OP])
                self._append(rows, properties)
            elif is_plain(self._table):
                self._rewrite_files(changes, properties)
            else:
                self._merge(changes, properties)
        except CommitFailedError as error:
            raise ConflictError(str(error)) from error

    def _append(self, rows: pa.Table, properties: CommitProperties) -> None:
        """Add rows; columns that they lack are null."""
        write(
            self._table,
            complete(rows, self.fields()),
            mode="append",
            commit_properties=properties,
            writer_properties=_WRITER,
        )

    def _rewrite_files(self, changes: Changes, properties: CommitProperties) -> None:
        """Write the files that hold changed keys anew, without what is changed, and the changes."""
        schema = plainly(self.fields())
        old = [self._found[number] for number in sorted(changes.files)]
        files = DeltaFiles(self._table)
        batches = (batch for file in old for batch in files.read(file.path, schema))
        tables = chain(rewritten(batches, changes, schema), [added(changes, schema)])
        actions = [*removed(old), *files.write(tables)]
        self._table.create_write_transaction(
            actions, "append", self._table.schema(), commit_properties=properties
        )

    def _merge(self, changes: Changes, properties: CommitProperties) -> None:
        rows = changes.rows
        on = [f"t.{_quoted(name)} = s.{_quoted(name)}" for name in changes.key]
        met = rows.select(list(changes.key)).take(pa.array(changes.met))
        bounds = {n: e for n in changes.key if (e := _ends(met[n])) is not None}
        if bounds:
            on.append(_within(bounds, "t.") or "true")
        ops = set(pc.unique(rows[OP]).to_pylist())
        merger = self._table.merge(
            rows,
            " AND ".join(on),
            source_alias="s",
            target_alias="t",
            commit_properties=properties,
            writer_properties=_WRITER,
        )
        names = [name for name in rows.column_names if name != OP]
        free = [name for name in names if name not in changes.key]
        versions = [name for name, _ in KEPT_COLUMNS[:-1]]
        marks = [*versions, *([DELETED_AT] if DELETED_AT in names else [])]

        def only(op: str) -> str | None:
            return None if ops == {op} else f"s.{_quoted(OP)} = '{op}'"

        if DELETE in ops:
            merger = merger.when_matched_delete(only(DELETE))
        if TOUCH in ops:
            merger = merger.when_matched_update(_sets(versions), only(TOUCH))
        if SOFT_DELETE in ops:
            merger = merger.when_matched_update(_sets(marks), only(SOFT_DELETE))
        if UPSERT in ops:
            merger = merger.when_matched_update(_sets(free), only(UPSERT))
            merger = merger.when_not_matched_insert(_sets(names), only(UPSERT))
        merger.execute()

    def append(self, rows: pa.Table) -> None:
        """Add rows, whatever others do."""
        for _ in range(_TRIES):
            try:
                write(self._table, rows, mode="append", writer_properties=_WRITER)
            except CommitFailedError:  # the definition is another one: two made the table at once
                self.refresh()
            else:
                return
        raise ConflictError(f"{self.schema_name}.{self.name} is changed by many")

    def replace(self, column: str, value: str, rows: pa.Table) -> None:
        """Put rows in the place of others; see the protocol."""
        try:
            write(
                self._table,
                rows,
                mode="overwrite",
                predicate=f"{_quoted(column)} = {_literal(value)}",
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except CommitFailedError as error:
            raise ConflictError(str(error)) from error

    def create(self, schema: pa.Schema) -> None:
        """Make the table; see the protocol."""
        try:
            DeltaTable.create(
                self.uri,
                schema,
                mode="error",
                name=self.name,
                configuration={_MAPPING: "name"} if _unsafe(schema.names) else None,
                storage_options=self.options,
            )
        except DeltaError:
            if not self.refresh():
                raise

    def alter(self, plan: ShapePlan) -> None:
        """Bring its columns to a plan: by its definition, or where types widen by rewriting it."""
        new = _unsafe([f.name for f in plan.add])
        if new and _MAPPING not in self._table.metadata().configuration:
            raise InputError(
                f"table {self.schema_name}.{self.name}: column names {new} have characters that "
                f"Delta takes only with column mapping; set {_MAPPING} to name, or choose others"
            )
        try:
            if plan.widen or any(not f.nullable for f in plan.add):
                self._rewrite(plan)
                return
            if plan.add:
                self._table.alter.add_columns([Field.from_arrow(f) for f in plan.add])
            for name in plan.loosen:
                self._table.alter.drop_column_not_null(name)
        except CommitFailedError as error:
            raise ConflictError(str(error)) from error

    def _rewrite(self, plan: ShapePlan) -> None:
        """Write the table anew in one commit; where it is plain, batch by batch."""
        wider = {f.name: f for f in plan.widen}
        fields = [wider.get(f.name, f) for f in self.fields()] + list(plan.add)
        fields = [f.with_nullable(f.nullable or f.name in plan.loosen) for f in fields]
        schema = pa.schema(fields)
        record = self.record()
        properties = CommitProperties(
            max_commit_retries=0,
            custom_metadata={} if record is None else {_BOOKS: record.to_text()},
        )
        if is_plain(self._table):
            self._rewrite_plain(schema, properties)
            return
        rows = pa.table(self._table.scan())  # delta-rs cannot read a stream of its own
        write(
            self._table,
            complete(rows, schema).cast(schema),
            mode="overwrite",
            schema_mode="overwrite",
            commit_properties=properties,
        )

    def _rewrite_plain(self, schema: pa.Schema, properties: CommitProperties) -> None:
        own = plainly(self.fields())
        files = DeltaFiles(self._table)
        found = files_within(self._table, {})
        batches = (batch for file in found for batch in files.read(file.path, own))
        rows = (complete(pa.Table.from_batches([batch]), schema) for batch in batches)
        self._table.create_write_transaction(
            files.write(rows), "overwrite", Schema.from_arrow(schema), commit_properties=properties
        )

    def drop(self) -> None:
        """Remove the table, its rows too."""
        from waybill.destinations.per_table.files import remove_folder

        remove_folder(self.uri, self.options)
        self._opened = None


def _unsafe(names: Sequence[str]) -> list[str]:
    return [name for name in names if set(name) & _UNSAFE]


def _app(destination: str) -> str:
    return f"waybill/{destination}"


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else array.cast(kind)


def _ends(column: pa.ChunkedArray) -> tuple[Any, Any] | None:
    """Return least and greatest, of types that files know them of exactly."""
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date(kind)):
        return None
    ends = pc.min_max(column).as_py()
    return None if ends["min"] is None else (ends["min"], ends["max"])


def _within(bounds: Bounds, prefix: str) -> str | None:
    parts = [
        f"{prefix}{_quoted(name)} BETWEEN {_literal(low)} AND {_literal(high)}"
        for name, (low, high) in bounds.items()
    ]
    return " AND ".join(parts) or None


def _literal(value: Any) -> str:
    if isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _sets(names: Sequence[str]) -> dict[str, str]:
    return {_quoted(name): f"s.{_quoted(name)}" for name in names}
