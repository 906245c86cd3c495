"""How many rows a table must have: what loads added and took away, kept beside the commits.

Each load notes the net change of its rows in its own transaction, in ``_waybill_row_counts``. So a
table's rows, less what all loads changed, are always the same number: the rows that were there
before Waybill (the baseline, taken when it is first looked). Where they are not, somebody else
wrote or deleted. Both are read by one statement, in one snapshot, while loads go on.

A row that somebody deleted and a load brought back was put there twice. While the numbers differ,
the table's keys are held against the sums that loads keep (``key_sums``); what nobody misses is
taken out of the baseline, once.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from waybill.destinations.key_sums import (
    MOST_ROWS,
    Hashes,
    KeySums,
    Numbers,
    key_hashes,
    key_types,
    moments,
    not_missing,
)
from waybill.destinations.merging import literal, quoted
from waybill.destinations.model import CountLook, RowCount
from waybill.destinations.transactional.books import TABLES, is_of
from waybill.destinations.transactional.engine import Engine
from waybill.destinations.transactional.session import Session
from waybill.pipelines import TableSpec

if TYPE_CHECKING:
    import pyarrow as pa

_LOG = logging.getLogger(__name__)
_FAR = 0.2
"""Of the rows: an estimate that is so far off is followed by an exact count."""


def count_rows(engine: Engine, look: CountLook) -> RowCount | None:
    """Look at one table, in the session's transaction; None: no load has written to it.

    None as well where it is dropped meanwhile, and the books with it.

    One that is not due is as it was when it was counted last, but for what loads did since: so what
    a count found is told even if the process that counted died before it told.

    Cost: a count of the whole table when it is small or its exact count is due; while rows are
    missing, and when it is first counted, a pass over its keys.
    """
    rows = engine.session.query(_state(look)).to_pylist()
    if not rows:
        return None
    [row] = rows
    estimate = engine.count(look.spec)
    known = RowCount(
        look.spec, (row["expected"] or 0) - row["gap"], row["expected"], row["baseline"]
    )
    if row["looked_s"] < look.every_s and not row["accepted"]:
        return known
    if estimate is not None and not _due(look, row, estimate):
        engine.session.execute(f"UPDATE {TABLES} SET looked_at = now() WHERE {is_of(look.spec)}")
        return known
    anew = bool(row["first"] or row["accepted"])
    keys = "keys_beside = NULL" if anew else ""
    try:
        found = _counted(engine.session, look.spec, there=estimate is not None, anew=anew)
        if estimate is not None and found.counted <= MOST_ROWS:
            found, keys = _settled(engine, found, anew=anew)
    except _ForgottenError:
        return None
    _write(engine.session, found, keys, row["baseline"])
    return found


class _ForgottenError(Exception):
    """The books have a table no more: it was dropped while it was counted."""


def _of_books(rows: pa.Table) -> dict[str, Any]:
    """Return the row that the books have of a table.

    Raises:
        _ForgottenError: there is none.
    """
    found: list[dict[str, Any]] = rows.to_pylist()
    if not found:
        raise _ForgottenError
    return found[0]


def _state(look: CountLook) -> str:
    return (
        "SELECT rows + baseline AS expected, baseline IS NULL AS first, baseline, gap, "
        "CAST(coalesce(extract(epoch FROM now() - looked_at), 1e9) AS float8) AS looked_s, "
        "CAST(coalesce(extract(epoch FROM now() - counted_at), 1e9) AS float8) AS counted_s, "
        f"{_accepted(look)} AS accepted FROM {TABLES} WHERE {is_of(look.spec)}"
    )


def _due(look: CountLook, row: dict[str, Any], estimate: int) -> bool:
    """Tell whether the table is to be counted exactly."""
    expected = row["expected"] or 0
    far = abs(estimate - expected) > _FAR * max(expected, 1)
    forced = row["first"] or row["accepted"] or far
    return bool(forced or estimate <= look.small_rows or row["counted_s"] >= look.exact_every_s)


def _counted(session: Session, spec: TableSpec, *, there: bool, anew: bool) -> RowCount:
    table = f"{quoted(spec.schema_name)}.{quoted(spec.name)}"
    counted = f"(SELECT count(*) FROM {table})" if there else "CAST(0 AS bigint)"
    row = _of_books(
        session.query(
            f"SELECT {counted} AS counted, rows, baseline FROM {TABLES} WHERE {is_of(spec)}"
        )
    )
    baseline = row["counted"] - row["rows"] if anew else row["baseline"]
    return RowCount(spec, row["counted"], row["rows"] + baseline, baseline)


def _write(session: Session, found: RowCount, keys: str, was: int | None) -> None:
    """Note a count, unless somebody noted another baseline than ``was`` meanwhile.

    It comes last: until the transaction's end it has loads of the table wait.
    """
    noted = f", {keys}" if keys else ""
    session.execute(
        f"UPDATE {TABLES} SET baseline = {found.beside}, gap = {found.expected - found.counted}, "
        f"looked_at = now(), counted_at = now(){noted} WHERE {is_of(found.spec)} "
        f"AND baseline IS NOT DISTINCT FROM {'NULL' if was is None else was}"
    )


def _settled(engine: Engine, found: RowCount, *, anew: bool) -> tuple[RowCount, str]:
    """Return a count without rows that seem missing and are not, and what to note of their keys.

    Loads change the sums of what they put, counts those of what was there beside: loads go on
    while the keys are read.
    """
    session, spec = engine.session, found.spec
    sums = f"SELECT rows, keys, keys_beside FROM {TABLES}"
    row = _of_books(session.query(f"{sums} WHERE {is_of(spec)}"))
    known = not anew and _expected_sums(row, found.beside) is not None
    forgotten = "keys_beside = NULL" if anew else ""
    if known == (found.expected == found.counted) or not _has_columns(session, spec):
        return found, forgotten
    rows = session.query(_keys_and_books(spec))
    row = _of_books(rows.filter(rows["rows"].is_valid()))
    read = _read_keys(spec, rows.filter(rows["rows"].is_null()))
    if read is None:
        return found, forgotten
    hashes, loaded_at = read
    there = KeySums.of(hashes)
    expected = None if anew else _expected_sums(row, found.beside)
    if expected is None:
        if row["rows"] + found.beside == len(hashes):  # of an older release, and at first
            put = KeySums.from_text(row["keys"]) or KeySums.none()
            forgotten = f"keys_beside = {literal((there - put).to_text())}"
        return found, forgotten
    less = not_missing(
        expected - there, hashes, loaded_at, lambda: engine.books.buried(session, spec)
    )
    beside = found.beside - less.rows
    found = RowCount(spec, len(hashes), row["rows"] + beside, beside)
    if not less.rows:
        return found, ""
    left = (KeySums.from_text(row["keys_beside"]) or KeySums.none()) - less
    return found, f"keys_beside = {literal(left.to_text())}"


def _read_keys(spec: TableSpec, rows: pa.Table) -> tuple[Hashes, Numbers] | None:
    """Return the keys' hashes, and when each row was loaded; None: somebody retyped a column."""
    import pyarrow as pa

    types = key_types(spec)
    try:
        hashes = key_hashes(types, [rows[f"k{place}"] for place in range(len(types))])
        return hashes, moments(rows["at"])
    except pa.ArrowException as error:
        table = f"{spec.schema_name}.{spec.name}"
        _LOG.warning("which rows of %s are missing is not known: a column's type: %s", table, error)
        return None


def _expected_sums(row: dict[str, Any], baseline: int) -> KeySums | None:
    """Return the sums over all rows that must be there; None: not known.

    They are not while an older release loads beside this one: it notes numbers, and no sums.
    """
    put = KeySums.none() if row["keys"] is None else KeySums.from_text(row["keys"])
    beside = KeySums.from_text(row["keys_beside"])
    if put is None or beside is None:
        return None
    both = put + beside
    return both if both.rows == row["rows"] + baseline else None


def _has_columns(session: Session, spec: TableSpec) -> bool:
    """Tell whether the key's columns are there: somebody may have changed the table."""
    rows = session.query(
        "SELECT column_name AS found FROM information_schema.columns "
        f"WHERE table_schema = {literal(spec.schema_name)} AND table_name = {literal(spec.name)}"
    )
    return {*spec.key, "_waybill_loaded_at"} <= set(rows["found"].to_pylist())


def _keys_and_books(spec: TableSpec) -> str:
    """Return the query for a table's keys and, as one row more, what its books say of them."""
    places = range(len(spec.key))
    keys = ", ".join(f"t.{quoted(name)} AS k{n}" for n, name in enumerate(spec.key))
    return (
        f"SELECT {keys}, t._waybill_loaded_at AS at, CAST(NULL AS bigint) AS rows, "
        "CAST(NULL AS text) AS keys, CAST(NULL AS text) AS keys_beside "
        f"FROM {quoted(spec.schema_name)}.{quoted(spec.name)} AS t UNION ALL "
        f"SELECT {', '.join('NULL' for _ in places)}, NULL, rows, keys, keys_beside "
        f"FROM {TABLES} WHERE {is_of(spec)}"
    )


def _accepted(look: CountLook) -> str:
    if look.accepted_at is None:
        return "false"
    at = literal(look.accepted_at.isoformat())
    return f"coalesce(counted_at < CAST({at} AS timestamptz), false)"


def count_warehouse_rows(session: Session, look: CountLook) -> RowCount | None:
    """Look at one table of a warehouse, where COUNT(*) costs next to nothing; see ``count_rows``.

    Both numbers are read by one statement. One that is not due is as it was counted last, but for
    what loads did since.
    """
    spec = look.spec
    rows = session.query(
        f"SELECT rows, baseline, gap, looked_at FROM {TABLES} WHERE {is_of(spec)}"
    ).to_pylist()
    if not rows:
        return None
    [state] = rows
    looked = state["looked_at"]
    accepted = look.accepted_at is not None and (looked is None or looked < look.accepted_at)
    if looked is not None and not accepted:
        since_s = (datetime.now(UTC) - looked).total_seconds()
        if since_s < look.every_s:
            expected = state["rows"] + state["baseline"]
            return RowCount(spec, expected - state["gap"], expected, state["baseline"])
    anew = state["baseline"] is None or accepted
    try:
        return _warehouse_count(session, look, anew=anew)
    except _ForgottenError:
        return None


def _warehouse_count(session: Session, look: CountLook, *, anew: bool) -> RowCount:
    spec = look.spec
    table = f"{quoted(spec.schema_name)}.{quoted(spec.name)}"
    row = _of_books(
        session.query(
            f"SELECT (SELECT COUNT(*) FROM {table}) AS counted, rows, baseline "
            f"FROM {TABLES} WHERE {is_of(spec)}"
        )
    )
    counted, put = int(row["counted"]), int(row["rows"])
    baseline = counted - put if anew else int(row["baseline"])
    expected = put + baseline
    session.execute(
        f"UPDATE {TABLES} SET baseline = {baseline}, gap = {expected - counted}, "
        f"looked_at = CURRENT_TIMESTAMP WHERE {is_of(spec)}"
    )
    return RowCount(spec, counted, expected, baseline)
