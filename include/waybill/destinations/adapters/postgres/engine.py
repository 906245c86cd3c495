"""PostgreSQL as the load that is one transaction needs it.

A batch goes into temporary tables whose columns have the target's types but none of its
constraints. So a value that the type cannot hold fails there, at the COPY, and what fails later is
a constraint. jsonb's binary form is a version byte and the text: the byte is put before it, in
Arrow.

The rows that PostgreSQL refuses are found by halving what failed, under a savepoint each time.
Ranges are applied in the order the events came, so that a row which passes only after an earlier
one (a value set free) does pass. Few refused rows among many cost about 2 log2(n / 64) statements
each; a small range is applied row by row on the server, so that a batch where all is refused costs
a fraction of a millisecond a row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa

from waybill.destinations.adapters.postgres import books
from waybill.destinations.adapters.postgres.books import PostgresBooks
from waybill.destinations.adapters.postgres.schema import (
    ensure_tables,
    find_tables,
    look_at_tables,
    sql_type,
)
from waybill.destinations.adapters.postgres.session import PostgresError, PostgresSession
from waybill.destinations.batch import Place, TableBatch
from waybill.destinations.key_sums import KeySums
from waybill.destinations.merging import MergeStatements, bounds, literal, quoted
from waybill.destinations.specs import ITEM
from waybill.destinations.transactional.destination import SqlDestination
from waybill.destinations.transactional.engine import (
    Merged,
    keys_of_stage,
    merge_items,
    reopened,
    statements_of,
)
from waybill.destinations.transactional.session import Refused
from waybill.destinations.transactional.table_load import parked_verdicts
from waybill.destinations.transactional.tables import FoundTable, Table
from waybill.pipelines import ChildTable, Column, TableSpec
from waybill.settings import DestinationSettings, S3Settings
from waybill.storage import AdvisoryLock

_JSONB_VERSION = "\x01"
_STAGED = {
    "_waybill_id": "text",
    "_waybill_source_version": "bigint",
    "_waybill_intake_version": "bigint",
    "_waybill_op": "text",
}
_VERDICTS = "(n bigint NOT NULL, outcome smallint NOT NULL, winner bigint, touch boolean NOT NULL)"


def create_stage(session: PostgresSession, statements: MergeStatements) -> None:
    """Create a batch's stage and verdict tables; they end with the transaction."""
    spec = statements.spec
    columns = [
        f"{quoted(c.name)} {sql_type(c.type)}{' NOT NULL' if c.name in spec.key else ''}"
        for c in spec.columns
    ]
    columns += [f"{quoted(name)} {kind}" for name, kind in _STAGED.items()]
    session.execute(
        f"CREATE TEMPORARY TABLE {quoted(statements.stage)} "
        f"(_waybill_n bigint NOT NULL, {', '.join(columns)}) ON COMMIT DROP"
    )
    session.execute(
        f"CREATE TEMPORARY TABLE {quoted(statements.verdict)} {_VERDICTS} ON COMMIT DROP"
    )


def create_items(session: PostgresSession, statements: MergeStatements, index: int) -> str:
    """Create the table of a child's items; return its name."""
    child, name = statements.spec.children[index], statements.items[index]
    columns = ", ".join(f"{quoted(c.name)} {sql_type(c.type)}" for c in child.columns)
    session.execute(
        f"CREATE TEMPORARY TABLE {quoted(name)} (_waybill_n bigint NOT NULL, {ITEM} bigint, "
        f"{columns}) ON COMMIT DROP"
    )
    return name


def staged_rows(batch: TableBatch) -> pa.Table:
    """Return a batch as the stage table takes it. Cost: no copy but for JSON columns."""
    columns = _as_sent(batch.spec.columns, batch.columns)
    ordinals = pa.array(np.arange(columns.num_rows, dtype=np.int64))
    arrays = [ordinals, *columns.columns, *(batch.context[name] for name in _STAGED)]
    return pa.table(arrays, names=["_waybill_n", *columns.column_names, *_STAGED])


def ordinals_with_nul(batch: TableBatch) -> list[int]:
    """Return the rows with a NUL in a text: what PostgreSQL most often cannot hold."""
    return _with_nul(batch.columns)


def _with_nul(rows: pa.Table) -> list[int]:
    mask = np.zeros(rows.num_rows, np.bool_)
    for column in rows.columns:
        if pa.types.is_string(column.type):
            hits = pa.compute.match_substring(column, "\0")
            mask |= pa.compute.fill_null(hits, fill_value=False).to_numpy()
    return [int(place) for place in np.flatnonzero(mask)]


def without(rows: pa.Table, ordinals: Collection[int]) -> pa.Table:
    """Return staged rows but for some."""
    gone = pa.compute.is_in(rows["_waybill_n"], pa.array(list(ordinals), pa.int64()))
    return rows.filter(pa.compute.invert(gone))


def items_rows(batch: TableBatch, child: ChildTable, refused: Collection[int]) -> pa.Table:
    """Return a child's items as their table takes them, but for those of refused rows."""
    items = batch.items(child)
    if refused:
        gone = pa.compute.is_in(items["_waybill_n"], pa.array(list(refused), pa.int64()))
        items = items.filter(pa.compute.invert(gone))
    sent = _as_sent(child.columns, items)
    return pa.table([items["_waybill_n"], items[ITEM], *sent.columns], names=items.column_names)


def items_with_nul(batch: TableBatch, child: ChildTable) -> set[int]:
    """Return the rows of which an item has a NUL in a text."""
    items = batch.items(child)
    return {items["_waybill_n"][place].as_py() for place in _with_nul(items)}


def _as_sent(columns: Sequence[Column], rows: pa.Table) -> pa.Table:
    arrays = [
        pa.compute.binary_join_element_wise(_JSONB_VERSION, rows[column.name], "")
        if column.type == "json"
        else rows[column.name]
        for column in columns
    ]
    return pa.table(arrays, names=[column.name for column in columns])


SMALL = 64
Range = tuple[int, int]
"""From the first ordinal, before the second."""


def halve(
    session: PostgresSession,
    apply: Callable[[int, int], object],
    *ranges: Range,
    one_by_one: Callable[[int, int], Refused] | None = None,
) -> Refused:
    """Apply ranges of ordinals; return the ordinals that are refused.

    Args:
        session: with an open transaction.
        apply: applies a range, or fails as a whole.
        ranges: in order.
        one_by_one: applies what it can of a small range, and returns the rest.
    """
    refused: Refused = {}
    waiting = list(reversed(ranges))
    while waiting:
        start, end = waiting.pop()
        if one_by_one is not None and end - start <= SMALL:
            refused |= one_by_one(start, end)
            continue
        error = session.attempt(lambda a=start, b=end: apply(a, b))  # type: ignore[misc]
        if error is None:
            continue
        if end - start == 1:
            refused[start] = error
        else:
            waiting += reversed(halves(start, end))
    return refused


def halves(start: int, end: int) -> tuple[Range, ...]:
    """Return a range in two; one ordinal stays as it is."""
    if end - start == 1:
        return ((start, end),)
    middle = (start + end) // 2
    return (start, middle), (middle, end)


def merge_by_halves(session: PostgresSession, statements: MergeStatements, rows: int) -> Refused:
    """Merge a batch that failed as a whole, but for the rows that are refused.

    Args:
        session: with an open transaction.
        statements: of the batch.
        rows: its ordinals are below.
    """
    notes = f"{statements.stage}refused"
    session.execute(
        f"CREATE TEMPORARY TABLE {quoted(notes)} (n bigint, state text, words text, detail text) "
        "ON COMMIT DROP"
    )
    for table, column in ((statements.stage, "_waybill_n"), (statements.verdict, "n")):
        session.execute(f"CREATE INDEX ON {quoted(table)} ({column})")
        session.execute(f"ANALYZE {quoted(table)}")
    range_merge = range_statements(statements, "$1", "$2")
    row_merge = "; ".join(range_statements(statements, "_waybill_low", "_waybill_high"))

    def merge(low: int, high: int) -> None:
        for statement in range_merge:
            session.execute(statement, (low, high))

    def merge_one_by_one(low: int, high: int) -> Refused:
        session.execute(f"DO {literal(_loop(row_merge, notes, low, high))}")
        return _noted(session, notes, low)

    return halve(session, merge, *halves(0, rows), one_by_one=merge_one_by_one)


def range_statements(statements: MergeStatements, low: str, high: str) -> list[str]:
    """Return what merges a range of rows, and their items: bounds are expressions."""
    between, merges = bounds(low, high), [statements.merge_range(low, high)]
    for child, items in zip(statements.spec.children, statements.items, strict=True):
        merges.append(statements.clear_items(child, between))
        merges.append(statements.write_items(child, items, between))
    return merges


def _loop(merge: str, notes: str, low: int, high: int) -> str:
    return (
        "DECLARE _waybill_high bigint; _waybill_state text; _waybill_words text; "
        "_waybill_detail text; "
        f"BEGIN FOR _waybill_low IN {low} .. {high - 1} LOOP "
        f"_waybill_high := _waybill_low + 1; BEGIN {merge}; "
        "EXCEPTION WHEN integrity_constraint_violation OR data_exception OR raise_exception "
        "OR with_check_option_violation OR SQLSTATE '54000' THEN "
        "GET STACKED DIAGNOSTICS _waybill_state = RETURNED_SQLSTATE, "
        "_waybill_words = MESSAGE_TEXT, _waybill_detail = PG_EXCEPTION_DETAIL; "
        f"INSERT INTO {quoted(notes)} VALUES "
        "(_waybill_low, _waybill_state, _waybill_words, _waybill_detail); "
        "END; END LOOP; END"
    )


def _noted(session: PostgresSession, notes: str, low: int) -> Refused:
    rows = session.query(f"SELECT * FROM {quoted(notes)} WHERE n >= {low}")
    return {
        row["n"]: PostgresError(row["words"], row["state"], row["detail"])
        for row in rows.to_pylist()
    }


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

    def found(self, specs: Sequence[TableSpec]) -> Mapping[Place, FoundTable]:
        """Return what the catalogue has of tables; see the protocol."""
        return find_tables(self.session, specs)

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
        unfit = self._stage_rows(statements, batch)
        by_item: Refused = {}
        for index in range(len(batch.spec.children)):
            known = {**refused, **unfit, **by_item}
            by_item |= self._stage_items(statements, batch, index, known)
        if by_item:  # their rows are in the stage: what is there is judged and merged
            numbers = ", ".join(map(str, by_item))
            self.session.execute(
                f"DELETE FROM {quoted(statements.stage)} WHERE _waybill_n IN ({numbers})"
            )
        return statements, unfit | by_item

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
            done = books.merge_counted(self.session, statements.merge_news(), batch)
            merged.change, merged.keys = done.change, done.keys
            if done.changed == batch.columns.num_rows:
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
        before = KeySums.none() if tells else keys_of_stage(session, statements)

        def merge() -> None:
            if tells:
                done = books.merge_counted(session, whole, batch)
                merged.change, merged.keys = done.change, done.keys
            else:
                session.execute(whole)
            merge_items(self.session, statements)

        if session.attempt(merge) is None:
            if not tells:
                merged.keys = keys_of_stage(session, statements) - before
                merged.change = merged.keys.rows
            return merged
        before = keys_of_stage(session, statements)
        refused = merge_by_halves(session, statements, batch.columns.num_rows)
        if refused:
            session.append(statements.verdict, parked_verdicts(refused))
        keys = keys_of_stage(session, statements) - before
        return Merged(keys.rows, refused, keys)

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

        unfit = halve(self.session, copy, (0, rows.num_rows)) if ordinals else {}
        return refused | {ordinals[place]: cause for place, cause in unfit.items()}

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
        unfit = dict.fromkeys(items_with_nul(batch, child) - refused.keys(), error)
        rows = items_rows(batch, child, {**refused, **unfit})
        ordinals = rows["_waybill_n"].to_pylist()

        def copy(low: int, high: int) -> None:
            self.session.append(table, rows.slice(low, high - low))

        bad = halve(self.session, copy, (0, rows.num_rows)) if ordinals else {}
        return unfit | {ordinals[place]: cause for place, cause in bad.items()}


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
