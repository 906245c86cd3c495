"""How payloads are read: fields as they are named, or objects flattened; what counts as a field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from waybill.mappings import fields_of
from waybill.pipelines import EventDeclaration


@dataclass(frozen=True, slots=True)
class Reading:
    """How a payload becomes fields, and what is done with those that no column takes."""

    policy: str = "strict"
    """"strict" and "evolve" make them faults, "ignore" leaves them out."""
    by_column: bool = False
    """Rows hold column names (a replay into the destination stage), not source fields."""
    depth: int | None = None
    """Levels that are flattened; None: nothing is."""
    children: bool = False
    """Arrays that no column takes are, or get, tables of their items."""
    most_columns: int | None = None
    """Columns that the destination's tables may have, where that is what ends learning."""

    @staticmethod
    def of(
        declared: EventDeclaration, *, by_column: bool = False, most_columns: int | None = None
    ) -> Reading:
        """Return how a declaration has payloads read."""
        return Reading(
            policy=declared.policy,
            by_column=by_column,
            depth=declared.depth if declared.nested == "flatten" and not by_column else None,
            children=declared.arrays == "child",
            most_columns=most_columns if declared.policy == "evolve" else None,
        )

    def fields(self, payload: dict[str, Any], whole: frozenset[str]) -> dict[str, Any]:
        """Return a payload's fields; ``whole``: those that are not looked into.

        Of a flattened one an empty object is no field.
        """
        if self.depth is None:
            return payload
        return fields_of(payload, self.depth, whole)

    def no_room(self, columns: int, new: int) -> str:
        """Return why a table with so many columns gets none for new fields; "": it is not full."""
        if self.most_columns is None or columns + new <= self.most_columns:
            return ""
        if columns >= self.most_columns:
            return f"there are {columns}, and the destination takes no more"
        return f"there are {columns} of at most {self.most_columns}, no room for {new} new ones"

    def is_something(self, value: Any) -> bool:
        """Tell whether a field that no column takes is one: there is nothing to learn of null."""
        if value is None or self.policy != "evolve" or self.by_column:
            return value is not None or self.policy == "strict"
        if self.children and isinstance(value, list | tuple):
            return not all(item is None or (isinstance(item, dict) and not item) for item in value)
        return True
