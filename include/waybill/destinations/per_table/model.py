"""What loads ask of a table in a lake, whatever its format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from waybill.errors import RetryError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from waybill.destinations.per_table.books import LoadRecord
    from waybill.destinations.per_table.shape import ShapePlan

FILE = "_waybill_file"
"""Column of a scan: which of the snapshot's files a row lies in (int32)."""
OP = "_waybill_op"
UPSERT, DELETE, SOFT_DELETE, TOUCH = "upsert", "delete", "soft", "touch"
"""What a changed row does: put it there; remove it; mark it deleted; move its versions on."""

Bounds = Mapping[str, tuple[Any, Any]]
"""Column to the least and the greatest value that are looked for; both are in."""


class ConflictError(RetryError):
    """Somebody else wrote to the table since it was read: read and judge again."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What one commit does to a table's rows."""

    rows: pa.Table
    """Columns of the table, and ``OP``; one row a key at most. Of a delete only the key counts, of
    a soft delete and a touch the key and the system columns."""
    key: tuple[str, ...]
    met: np.ndarray[Any, np.dtype[np.int64]]
    """Places in ``rows`` of those whose key is in the table,"""
    files: frozenset[int]
    """and the files they lie in, by the numbers that the scan gave."""


@dataclass(frozen=True, slots=True)
class RowStamp:
    """What a commit says of itself: for which destination, up to which commit number, the books."""

    destination: str
    """Empty: none; then the table's commit numbers stay as they are."""
    number: int
    record: LoadRecord | None
    """None: a table that has no books, for it is no event's own."""


class LakeTable(Protocol):
    """One table, as of the snapshot that ``refresh`` read."""

    schema_name: str
    name: str

    def refresh(self) -> bool:
        """Read the newest snapshot; returns whether the table is there."""
        ...

    def fields(self) -> pa.Schema:
        """Return its columns; nullable or not as it has them."""
        ...

    def checks(self) -> Mapping[str, str]:
        """Return its CHECK constraints: name to expression, in Spark's SQL."""
        ...

    def last_number(self, destination: str) -> int | None:
        """Return the greatest commit number of a destination that the table has."""
        ...

    def record(self) -> LoadRecord | None:
        """Return the books that the newest commit of a load left; None: there are none."""
        ...

    def count(self) -> int:
        """Return how many rows it has. Cost: of metadata, not of rows."""
        ...

    def scan(self, columns: Sequence[str], bounds: Bounds) -> pa.RecordBatchReader:
        """Read columns and ``FILE`` of all rows within the bounds, perhaps of more."""
        ...

    def commit(self, changes: Changes | None, stamp: RowStamp) -> None:
        """Change rows and leave the stamp, in one commit on top of the snapshot; then refresh.

        Raises:
            ConflictError: there is a newer snapshot.
        """
        ...

    def append(self, rows: pa.Table) -> None:
        """Add rows, whatever others do."""
        ...

    def replace(self, column: str, value: str, rows: pa.Table) -> None:
        """Put ``rows`` in the place of those with this value.

        Raises:
            ConflictError: there is a newer snapshot.
        """
        ...

    def create(self, schema: pa.Schema) -> None:
        """Make the table; nothing happens when somebody else just did."""
        ...

    def alter(self, plan: ShapePlan) -> None:
        """Bring its columns to a plan.

        Raises:
            ConflictError: there is a newer snapshot.
        """
        ...

    def drop(self) -> None:
        """Remove the table, its rows too."""
        ...


class Lake(Protocol):
    """A place with tables of one format."""

    def table(self, schema_name: str, name: str) -> LakeTable:
        """Return a table that may be there or not; ``refresh`` tells."""
        ...

    def check(self) -> None:
        """See whether it answers."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...
