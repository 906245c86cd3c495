"""An Iceberg table by pyiceberg: appended to, or copied on write; each commit one snapshot.

Only files that hold changed keys are written anew. A commit is tried once, on top of the snapshot
that was judged. The books and the commit numbers are properties of the table, set in the snapshot's
own commit: snapshots may expire, the newest books stay; the snapshot names the commit as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce

import orjson
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThanOrEqual,
    LessThanOrEqual,
)
from pyiceberg.io.pyarrow import (
    ArrowScan,
    _ConvertToIcebergWithoutIDs,
    _dataframe_to_data_files,
    visit_pyarrow,
)
from pyiceberg.table import FileScanTask, Table, TableProperties, Transaction
from pyiceberg.types import DecimalType, IcebergType, IntegerType, LongType
from sqlalchemy.exc import IntegrityError

from waybill.destinations.per_table.books import LoadRecord
from waybill.destinations.per_table.files import (
    added,
    complete,
    folder_of,
    packed,
    plainly,
    rewritten,
)
from waybill.destinations.per_table.table import (
    FILE,
    Bounds,
    Changes,
    ConflictError,
    RowStamp,
    ShapePlan,
    plain_field,
)

_BOOKS, _NUMBERS = "waybill.books", "waybill.commits"
_FILE_BYTES = 128 * 1024**2
"""Of rows in memory: a data file holds no more."""
_TRIES = 20
_CREATED_WITH = {
    TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
    TableProperties.METADATA_PREVIOUS_VERSIONS_MAX: "100",
}


@dataclass(slots=True)
class IcebergLakeTable:
    """One table: see ``LakeTable``."""

    root: str
    schema_name: str
    name: str
    catalog: Catalog
    _opened: Table | None = None
    _files: dict[str, int] = field(default_factory=dict)
    _tasks: dict[int, FileScanTask] = field(default_factory=dict)

    @property
    def _identifier(self) -> tuple[str, str]:
        return self.schema_name, self.name

    @property
    def _table(self) -> Table:
        if self._opened is None:
            raise NoSuchTableError(f"{self.schema_name}.{self.name} was not read yet")
        return self._opened

    def refresh(self) -> bool:
        """Read the newest snapshot; see the protocol."""
        try:
            self._opened = self.catalog.load_table(self._identifier)
        except NoSuchTableError:
            self._opened = None
            return False
        # in memory alone: a commit that was overtaken must be judged again, not passed on
        self._opened.metadata.properties[TableProperties.COMMIT_NUM_RETRIES] = "0"
        self._files, self._tasks = {}, {}
        return True

    def fields(self) -> pa.Schema:
        """Return its columns; see the protocol."""
        return pa.schema([plain_field(f) for f in self._table.schema().as_arrow()])

    def checks(self) -> Mapping[str, str]:
        """Iceberg has none."""
        return {}

    def last_number(self, destination: str) -> int | None:
        """Return the greatest commit number of a destination; see the protocol."""
        return self._numbers().get(destination)

    def _numbers(self) -> dict[str, int]:
        numbers: dict[str, int] = orjson.loads(self._table.properties.get(_NUMBERS, "{}"))
        return numbers

    def record(self) -> LoadRecord | None:
        """Return the newest books; see the protocol."""
        text = self._table.properties.get(_BOOKS)
        return None if text is None else LoadRecord.from_text(text)

    def count(self) -> int:
        """Return how many rows it has."""
        return int(self._table.scan().count())

    def scan(self, columns: Sequence[str], bounds: Bounds) -> pa.RecordBatchReader:
        """Read columns of rows within the bounds; see the protocol."""
        own = self.fields()
        schema = pa.schema([*(own.field(n) for n in columns), pa.field(FILE, pa.int32())])
        plain = plainly(schema)
        condition = _within(bounds)
        tasks = list(self._table.scan(row_filter=condition).plan_files())

        def batches() -> Iterator[pa.RecordBatch]:
            for task in tasks:
                number = self._files.setdefault(task.file.file_path, len(self._files))
                self._tasks[number] = task
                for batch in self._read([task], columns, condition):
                    arrays = [batch.column(n).cast(plain.field(n).type) for n in columns]
                    files = pa.repeat(pa.scalar(number, pa.int32()), batch.num_rows)
                    yield pa.record_batch([*arrays, files], schema=plain)

        return pa.RecordBatchReader.from_batches(plain, batches())

    def _read(
        self, tasks: Iterable[FileScanTask], columns: Sequence[str], condition: BooleanExpression
    ) -> Iterator[pa.RecordBatch]:
        table = self._table
        wanted = table.schema().select(*columns)
        yield from ArrowScan(table.metadata, table.io, wanted, condition).to_record_batches(tasks)

    def commit(self, changes: Changes | None, stamp: RowStamp) -> None:
        """Change rows and leave the stamp, in one snapshot; see the protocol."""
        schema = self.fields()
        old = [self._tasks[number] for number in sorted(changes.files)] if changes else []
        transaction = self._table.transaction()
        summary = {"waybill.destination": stamp.destination, "waybill.commit": str(stamp.number)}
        with _conflicts():
            with transaction.update_snapshot(snapshot_properties=summary).overwrite() as snapshot:
                for task in old:
                    snapshot.delete_data_file(task.file)
                for file in self._written(transaction, changes, old, schema):
                    snapshot.append_data_file(file)
            transaction.set_properties(self._properties(stamp))
            transaction.commit_transaction()

    def _properties(self, stamp: RowStamp) -> dict[str, str]:
        properties = {} if stamp.record is None else {_BOOKS: stamp.record.to_text()}
        if stamp.destination:
            numbers = {**self._numbers(), stamp.destination: stamp.number}
            properties[_NUMBERS] = orjson.dumps(numbers).decode()
        return properties

    def _written(
        self,
        transaction: Transaction,
        changes: Changes | None,
        old: Sequence[FileScanTask],
        schema: pa.Schema,
    ) -> Iterator[object]:
        """Write data files with what is changed and added; yield them."""
        if changes is None:
            return
        batches = self._read(old, schema.names, AlwaysTrue()) if old else iter(())
        plain = (complete(pa.Table.from_batches([batch]), schema) for batch in batches)
        chunks = (batch for rows in plain for batch in rows.to_batches())
        new = added(changes, schema)
        yield from self._files_of(transaction, rewritten(chunks, changes, schema), schema)
        yield from self._files_of(transaction, [new], schema)

    def _files_of(
        self, transaction: Transaction, tables: Iterable[pa.Table], schema: pa.Schema
    ) -> Iterator[object]:
        strict = pa.schema([schema.field(name) for name in schema.names])
        for rows in packed(tables, _FILE_BYTES):
            yield from _dataframe_to_data_files(
                transaction.table_metadata, rows.cast(strict), self._table.io
            )

    def append(self, rows: pa.Table) -> None:
        """Add rows, whatever others do."""
        for _ in range(_TRIES):
            try:
                with _conflicts():
                    self._table.append(rows)
            except ConflictError:
                self.refresh()
            else:
                return
        raise ConflictError(f"{self.schema_name}.{self.name} is written to by many")

    def replace(self, column: str, value: str, rows: pa.Table) -> None:
        """Put rows in the place of others; see the protocol."""
        with _conflicts():
            self._table.overwrite(rows, overwrite_filter=EqualTo(column, value))

    def create(self, schema: pa.Schema) -> None:
        """Make the table; see the protocol."""
        with suppress(IntegrityError):  # somebody creates it at the same time
            self.catalog.create_namespace_if_not_exists((self.schema_name,))
        location = f"{self.root}/{folder_of(self.schema_name)}/{folder_of(self.name)}"
        try:
            self.catalog.create_table(
                self._identifier, schema, location=location, properties=_CREATED_WITH
            )
        except TableAlreadyExistsError:
            return

    def alter(self, plan: ShapePlan) -> None:
        """Bring its columns to a plan: by its schema, or where Iceberg does not widen by a copy."""
        transaction = self._table.transaction()
        found = self._table.schema()
        anew = [f for f in plan.widen if not _promotes(found.find_type(f.name), _iceberg(f))]
        names = {f.name for f in anew}
        with _conflicts():
            with transaction.update_schema(allow_incompatible_changes=True) as change:
                for item in plan.add:
                    change.add_column((item.name,), _iceberg(item), required=not item.nullable)
                for item in plan.widen:
                    if item.name in names:
                        change.delete_column((item.name,))
                    else:
                        change.update_column((item.name,), _iceberg(item))
                for name in set(plan.loosen) - names:
                    change.update_column((name,), required=False)
            if anew:
                self._copy(transaction, plan, anew)
            transaction.commit_transaction()

    def _copy(self, transaction: Transaction, plan: ShapePlan, anew: Sequence[pa.Field]) -> None:
        """Give columns their new types and write all rows again, in the same commit."""
        with transaction.update_schema(allow_incompatible_changes=True) as change:
            for item in anew:
                required = not item.nullable and item.name not in plan.loosen
                change.add_column((item.name,), _iceberg(item), required=required)
        own = self.fields()
        whole = pa.schema([plain_field(f) for f in transaction.table_metadata.schema().as_arrow()])
        tasks = list(self._table.scan().plan_files())
        batches = self._read(tasks, own.names, AlwaysTrue()) if tasks else iter(())
        rows = (complete(pa.Table.from_batches([batch]), whole) for batch in batches)
        with transaction.update_snapshot().overwrite() as snapshot:
            for task in tasks:
                snapshot.delete_data_file(task.file)
            for file in self._files_of(transaction, rows, whole):
                snapshot.append_data_file(file)

    def drop(self) -> None:
        """Remove the table, its rows too."""
        self.catalog.purge_table(self._identifier)
        self._opened = None


class _conflicts:  # noqa: N801 - reads as a statement
    """Turn the errors of commits that were overtaken into ours."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, CommitFailedException | ValidationException):
            raise ConflictError(str(error)) from error


def _within(bounds: Bounds) -> BooleanExpression:
    parts: list[BooleanExpression] = []
    for name, (low, high) in bounds.items():
        parts += [GreaterThanOrEqual(name, low), LessThanOrEqual(name, high)]
    return reduce(And, parts) if parts else AlwaysTrue()


def _iceberg(item: pa.Field) -> IcebergType:
    kind: IcebergType = visit_pyarrow(item.type, _ConvertToIcebergWithoutIDs())
    return kind


def _promotes(found: IcebergType, wanted: IcebergType) -> bool:
    """Say whether Iceberg widens one to the other by itself."""
    if isinstance(found, IntegerType) and isinstance(wanted, LongType):
        return True
    return (
        isinstance(found, DecimalType)
        and isinstance(wanted, DecimalType)
        and found.scale == wanted.scale
        and found.precision < wanted.precision
    )
