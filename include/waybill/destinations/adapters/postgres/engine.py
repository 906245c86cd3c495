"""PostgreSQL as the load that is one transaction needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from waybill.destinations.adapters.postgres import books
from waybill.destinations.adapters.postgres.books import PostgresBooks
from waybill.destinations.adapters.postgres.connection import PostgresSession
from waybill.destinations.adapters.postgres.refusals import halve, merge_by_halves
from waybill.destinations.adapters.postgres.schema import ensure_tables, look_at_tables
from waybill.destinations.adapters.postgres.staging import (
    create_items,
    create_stage,
    items_rows,
    items_with_nul,
    ordinals_with_nul,
    staged_rows,
    without,
)
from waybill.destinations.batch import Place, TableBatch
from waybill.destinations.merging import MergeStatements, quoted
from waybill.destinations.transactional.destination import SqlDestination
from waybill.destinations.transactional.engine import Merged, merge_items, reopened, statements_of
from waybill.destinations.transactional.session import Refused
from waybill.destinations.transactional.table_load import parked_verdicts
from waybill.destinations.transactional.tables import Table
from waybill.pipelines import ChildTable, TableSpec
from waybill.settings import DestinationSettings, S3Settings
from waybill.storage import AdvisoryLock


class PostgresEngine:
    """One database.

    Args:
        name: the destination's name.
        dsn: libpq URL or key=value text.

    Raises:
        InputError: the dsn cannot be read.
    """

    dialect = "postgres"
    judges_all = False

    def __init__(self, name: str, dsn: str) -> None:
        self.session = PostgresSession(dsn, name)
        self.books = PostgresBooks()
        self._mixed: set[Place] = set()
        """Tables whose last load was not all news."""

    def ensure(self, specs: Sequence[TableSpec]) -> Mapping[Place, Table]:
        """Bring tables to their declarations; see the protocol."""
        return ensure_tables(self.session, specs)

    def look(self, specs: Sequence[TableSpec]) -> Mapping[Place, Table] | None:
        """Say what tables are; see the protocol."""
        return look_at_tables(self.session, specs)

    def take_tables(self, batches: Sequence[TableBatch]) -> None:
        """Let one load at a time write a table, whatever destination name it comes under.

        All in one order, and after the commit numbers: no two loads wait for each other.
        Constraints that would wait for the commit are checked at once, while the row at fault can
        still be told.
        """
        self.session.execute("SET CONSTRAINTS ALL IMMEDIATE")
        for batch in batches:
            place = f"{batch.spec.schema_name}.{batch.spec.name}"
            self.session.query(AdvisoryLock.DESTINATION_TABLE.sql(place))

    def stage(
        self, label: str, batch: TableBatch, table: Table, refused: Mapping[int, object]
    ) -> tuple[MergeStatements, Refused]:
        """COPY the rows; those whose values the types cannot hold are found by halving."""
        statements = statements_of(label, table, batch.spec, self.dialect)
        create_stage(self.session, statements)
        found = self._stage_rows(statements, batch)
        for index in range(len(batch.spec.children)):
            found |= self._stage_items(statements, batch, index, {**refused, **found})
        return statements, found

    def working_table(self, statements: MergeStatements, what: str, columns: str) -> str:
        """Make a working table that ends with the transaction; see the protocol."""
        name = f"{statements.stage}{what}"
        self._create(name, columns)
        return name

    def _create(self, name: str, columns: str) -> None:
        self.session.execute(f"CREATE TEMPORARY TABLE {quoted(name)} ({columns}) ON COMMIT DROP")

    def analyze(self, name: str) -> None:
        """Tell the planner how large a working table became."""
        self.session.execute(f"ANALYZE {quoted(name)}")

    def merge_news(self, statements: MergeStatements, batch: TableBatch) -> Merged | None:
        """Merge at once what need not be judged; see the protocol.

        A join less, and no look at versions beside the MERGE's own. A table where it failed is
        judged until a load of it was all news again: a MERGE that is undone leaves dead rows.
        """
        place, merged = (batch.spec.schema_name, batch.spec.name), Merged()
        if place in self._mixed or not books.merge_tells(self.session):
            return None

        def merge() -> bool:
            changed, merged.change = books.merge_counted(self.session, statements.merge_news())
            if changed == batch.columns.num_rows:
                merge_items(self.session, statements)
                return True
            return False

        if self.session.keep_if(merge):
            return merged
        self._mixed.add(place)
        return None

    def merge(self, statements: MergeStatements, batch: TableBatch, *, judged: bool) -> Merged:
        """Merge in one statement; where that fails, by halves under savepoints."""
        session, merged = self.session, Merged()
        if not judged:
            self._mixed.discard((batch.spec.schema_name, batch.spec.name))
        whole = statements.merge(judged=judged)
        tells = books.merge_tells(session)
        before = 0 if tells else books.rows_of_stage(session, statements)

        def merge() -> None:
            if tells:
                _, merged.change = books.merge_counted(session, whole)
            else:
                session.execute(whole)
            merge_items(self.session, statements)

        if session.attempt(merge) is None:
            if not tells:
                merged.change = books.rows_of_stage(session, statements) - before
            return merged
        before = books.rows_of_stage(session, statements)
        refused = merge_by_halves(session, statements, batch.columns.num_rows)
        if refused:
            session.append(statements.verdict, parked_verdicts(refused))
        return Merged(books.rows_of_stage(session, statements) - before, refused)

    def reopen(self, statements: MergeStatements) -> MergeStatements | None:
        """Stage the rows that lost only to refused ones; see the protocol."""

        def create_like(name: str, like: str) -> None:
            self._create(name, f"LIKE {quoted(like)}")

        return reopened(self.session, statements, create_like)

    def count(self, spec: TableSpec) -> int | None:
        """Return about how many rows a table has; None: there is no such table."""
        return books.estimate(self.session, spec)

    def drop(self, spec: TableSpec) -> None:
        """Drop a table."""
        self.session.execute(f"DROP TABLE {quoted(spec.schema_name)}.{quoted(spec.name)}")

    def _stage_rows(self, statements: MergeStatements, batch: TableBatch) -> Refused:
        rows = staged_rows(batch)
        error = self.session.attempt(lambda: self.session.append(statements.stage, rows))
        if error is None:
            return {}
        refused = dict.fromkeys(ordinals_with_nul(batch), error)
        rows = without(rows, refused)
        ordinals = rows["_waybill_n"].to_pylist()

        def copy(low: int, high: int) -> None:
            self.session.append(statements.stage, rows.slice(low, high - low))

        found = halve(self.session, copy, (0, rows.num_rows)) if ordinals else {}
        return refused | {ordinals[place]: cause for place, cause in found.items()}

    def _stage_items(
        self,
        statements: MergeStatements,
        batch: TableBatch,
        index: int,
        refused: Mapping[int, object],
    ) -> Refused:
        """COPY a child's items; a row with one that cannot be held is refused as a whole."""
        child: ChildTable = batch.spec.children[index]
        table = create_items(self.session, statements, index)
        rows = items_rows(batch, child, refused)
        if not rows.num_rows:
            return {}
        error = self.session.attempt(lambda: self.session.append(table, rows))
        if error is None:
            return {}
        found = dict.fromkeys(items_with_nul(batch, child) - refused.keys(), error)
        rows = items_rows(batch, child, {**refused, **found})
        ordinals = rows["_waybill_n"].to_pylist()

        def copy(low: int, high: int) -> None:
            self.session.append(table, rows.slice(low, high - low))

        bad = halve(self.session, copy, (0, rows.num_rows)) if ordinals else {}
        return found | {ordinals[place]: cause for place, cause in bad.items()}


class PostgresDestination(SqlDestination):
    """One PostgreSQL database, as ``waybill.destinations.Destination`` says.

    Args:
        name: commit numbers are kept under it.
        dsn: libpq URL or key=value text.

    Raises:
        InputError: the dsn cannot be read.
    """

    def __init__(self, name: str, dsn: str) -> None:
        super().__init__(name, PostgresEngine(name, dsn))


def open_postgres(
    name: str, settings: DestinationSettings, _s3: S3Settings | None = None
) -> PostgresDestination:
    """Open a database; it connects on first use."""
    return PostgresDestination(name, settings.dsn.get_secret_value())
