"""A Delta table behind SQL as a ``LakeTable``, and the destination that it belongs to.

A load's merge is one Delta commit. What Waybill says of it, up to which commit number it brought
rows and what became of them, is that commit's ``userMetadata``, so that both are there or neither.
``DESCRIBE HISTORY`` forgets after the table's log retention (30 days), so the newest stamp is also
copied to ``waybill._waybill_loads`` after the merge; whichever is of the higher version counts.

Two merges of one table conflict in Delta, and the second fails. One that began after another had
committed, on books read before that, is found by the table's version, which is compared before the
merge; between this look and the merge the lease of the loader, and the merge's own guard by
version, are what keeps a second loader from doing harm.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa

from waybill.destinations.adapters.databricks import dialect
from waybill.destinations.adapters.databricks.dialect import (
    LOADS,
    METADATA,
    field_of,
    literal,
    quoted,
)
from waybill.destinations.adapters.databricks.session import DatabricksSession
from waybill.destinations.per_table.books import LoadRecord
from waybill.destinations.per_table.sql_table import SqlLake, SqlLakeDestination, SqlLakeTable
from waybill.destinations.per_table.table import (
    OP,
    Changes,
    ConflictError,
    RowStamp,
    ShapePlan,
)
from waybill.settings import DestinationSettings, S3Settings

_PREFIX = "waybill."
_LOOK = 100
"""Commits that are looked at for the newest stamp."""
_CONSTRAINT = "delta.constraints."


class DatabricksTable(SqlLakeTable):
    """One table: see ``LakeTable``. Experimental.

    Args:
        session: with the catalog.
        schema_name: of the table.
        name: of the table.
    """

    sql = dialect.SQL
    session: DatabricksSession

    def __init__(self, session: DatabricksSession, schema_name: str, name: str) -> None:
        super().__init__(session, schema_name, name)
        self._checks: dict[str, str] = {}
        self._version = -1
        self._stamp: dict[str, Any] = {}

    def refresh(self) -> bool:
        """Read what it is now."""
        rows = self.session.query(
            "SELECT column_name AS name, full_data_type AS type, is_nullable = 'YES' AS nullable "
            f"FROM information_schema.columns WHERE table_schema = {literal(self.schema_name)} "
            f"AND table_name = {literal(self.name)} ORDER BY ordinal_position"
        ).to_pylist()
        self._fields = pa.schema(
            [field_of(r["name"], r["type"], nullable=bool(r["nullable"])) for r in rows]
        )
        if rows:
            self._make_books()
            self._read_history()
            self._read_checks()
        return bool(rows)

    def checks(self) -> Mapping[str, str]:
        """Return its CHECK constraints."""
        return self._checks

    def last_number(self, destination: str) -> int | None:
        """Return the greatest commit number of a destination that the table has."""
        number: int | None = self._stamp.get("numbers", {}).get(destination)
        return number

    def record(self) -> LoadRecord | None:
        """Return the newest books."""
        text = self._stamp.get("record")
        return None if text is None else LoadRecord.from_text(text)

    def commit(self, changes: Changes | None, stamp: RowStamp) -> None:
        """Merge the changed rows and leave the stamp, in one commit.

        Raises:
            ConflictError: there is a newer version of the table.
        """
        following = self._next_stamp(stamp)
        if changes is None:
            self._keep(following, self._version)
            return
        names = [f.name for f in self.fields() if f.name in changes.rows.column_names]
        with self.session.staged(changes.rows.select([*names, OP])) as source:
            if self._newest()[0]["version"] != self._version:
                raise ConflictError(f"{self.place} has a newer version than was read")
            self.session.execute(f"SET {METADATA} = {_packed(following)}")
            self.session.execute(dialect.merge(self.place, source, names, changes.key))
            self.session.execute(f"RESET {METADATA}")
        self._keep(following, self._newest()[0]["version"])

    def append(self, rows: pa.Table) -> None:
        """Add rows, whatever others do."""
        with self.session.staged(rows) as source:
            names = ", ".join(quoted(name) for name in rows.column_names)
            self.session.execute(f"INSERT INTO {self.place} ({names}) SELECT {names} FROM {source}")

    def _creation(self, schema: pa.Schema, partitions: Sequence[str]) -> list[str]:
        return dialect.creation(self.schema_name, self.name, schema, partitions)

    def _alterations(self, plan: ShapePlan) -> list[str]:
        return dialect.alterations(self.place, self.fields(), plan)

    def _newest(self, limit: int = 1) -> list[dict[str, Any]]:
        rows = self.session.query(f"DESCRIBE HISTORY {self.place} LIMIT {limit}")
        return list(rows.select(["version", "userMetadata"]).to_pylist())

    def _read_history(self) -> None:
        entries = self._newest(_LOOK)
        self._version = entries[0]["version"]
        known = [
            (entry["version"], entry["userMetadata"])
            for entry in entries
            if str(entry["userMetadata"] or "").startswith(_PREFIX)
        ]
        kept = self.session.query(
            f"SELECT version, stamp FROM {LOADS} WHERE place = {literal(self.place)} "
            "ORDER BY version DESC, at DESC LIMIT 1"
        ).to_pylist()
        known = [(row["version"], row["stamp"]) for row in kept] + known
        newest = max(known, key=lambda pair: int(pair[0]), default=None)
        self._stamp = {} if newest is None else _unpacked(newest[1])

    def _read_checks(self) -> None:
        rows = self.session.query(f"SHOW TBLPROPERTIES {self.place}").to_pylist()
        self._checks = {
            row["key"].removeprefix(_CONSTRAINT): row["value"]
            for row in rows
            if row["key"].startswith(_CONSTRAINT)
        }

    def _next_stamp(self, stamp: RowStamp) -> dict[str, Any]:
        numbers = dict(self._stamp.get("numbers", {}))
        if stamp.destination:
            numbers[stamp.destination] = stamp.number
        record = self._stamp.get("record") if stamp.record is None else stamp.record.to_text()
        return {"numbers": numbers, "record": record}

    def _keep(self, stamp: dict[str, Any], version: int) -> None:
        """Copy a stamp to where it outlives the table's log; of no rows it is only there."""
        self._stamp, self._version = stamp, version
        if stamp["record"] is not None:
            self.session.execute(
                f"INSERT INTO {LOADS} VALUES ({literal(self.place)}, {version}, "
                f"{literal(_packed(stamp))}, CURRENT_TIMESTAMP())"
            )


def _packed(stamp: dict[str, Any]) -> str:
    """Return a stamp in letters that need no quotes."""
    return _PREFIX + base64.urlsafe_b64encode(orjson.dumps(stamp)).decode().rstrip("=")


def _unpacked(text: str) -> dict[str, Any]:
    packed = text.removeprefix(_PREFIX)
    stamp: dict[str, Any] = orjson.loads(
        base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4))
    )
    return stamp


class DatabricksDestination(SqlLakeDestination):
    """One catalog of Databricks, as ``waybill.destinations.Destination`` says.

    Experimental: the statements and the order of calls are tested, no server was.

    Args:
        name: commit numbers are kept under it.
        settings: dsn and options.
    """

    kind = "databricks"

    def __init__(self, name: str, settings: DestinationSettings) -> None:
        session = DatabricksSession(name, settings)
        super().__init__(name, SqlLake(session, lambda *place: DatabricksTable(session, *place)))


def open_databricks(
    name: str, settings: DestinationSettings, _s3: S3Settings | None = None
) -> DatabricksDestination:
    """Open a warehouse; it connects on first use.

    Raises:
        InputError: the dsn is not of the kind's form.
    """
    return DatabricksDestination(name, settings)
