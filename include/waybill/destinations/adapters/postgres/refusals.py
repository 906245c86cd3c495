"""Finding the rows that PostgreSQL refuses: halve what failed, under a savepoint each time.

Ranges are applied in the order the events came, so that a row which passes only after an earlier
one (a value set free) does pass. Few refused rows among many cost about 2 log2(n / 64) statements
each; a small range is applied row by row on the server, so that a batch where all is refused costs
a fraction of a millisecond a row.
"""

from __future__ import annotations

from collections.abc import Callable

from waybill.destinations.adapters.postgres.connection import PostgresSession
from waybill.destinations.adapters.postgres.errors import PostgresError
from waybill.destinations.merging import MergeStatements, bounds, literal, quoted
from waybill.destinations.transactional.session import Refused

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
