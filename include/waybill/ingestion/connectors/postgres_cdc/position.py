"""How far a source is read: the connector's cursor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from waybill.errors import InputError


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TablePosition(_Part):
    """How far a table's rows are read, beside the log."""

    oid: int
    floor: int
    """The version of its rows: above all that was in the log when it was taken, below all that came
    later."""
    until: int
    """Reading begins once all transactions before this id have ended: none of them is seen in part,
    and what they wrote is in the table."""
    after: tuple[str, ...] | None = None
    """Key of the last row that was read, as text."""
    done: bool = False


class Position(_Part):
    """A position in a source: its tables, and its log."""

    system: str
    """The server's own id."""
    slot: str
    lsn: int
    """All transactions that were committed before are read."""
    transaction: int = 0
    """Where the commit of a transaction stands that is read in part; 0: there is none."""
    changes: int = 0
    """Of that transaction, which are read."""
    tables: dict[str, TablePosition] = {}

    @classmethod
    def of(cls, cursor: Mapping[str, Any]) -> Self:
        """Return the position that a cursor says.

        Raises:
            InputError: it is no cursor of this connector.
        """
        try:
            return cls.model_validate(dict(cursor))
        except ValidationError as error:
            raise InputError(
                f"cursor {str(dict(cursor))[:200]} is not one of connector postgres_cdc; read the"
                " source again from its beginning: `waybill pipelines reread`"
            ) from error

    def cursor(self) -> dict[str, Any]:
        """Return it as JSON."""
        return self.model_dump(mode="json")

    def moved(self, lsn: int, transaction: int = 0, changes: int = 0) -> Self:
        """Return the position behind some changes."""
        return self.model_copy(update={"lsn": lsn, "transaction": transaction, "changes": changes})

    def with_table(self, name: str, table: TablePosition) -> Self:
        """Return the position with another one of a table."""
        return self.model_copy(update={"tables": {**self.tables, name: table}})
