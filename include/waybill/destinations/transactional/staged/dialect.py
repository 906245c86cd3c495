"""One engine as a value: types, names, limits, and how Waybill's statements read there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import sqlglot
from sqlglot import exp

from waybill.destinations.drivers import ErrorMap
from waybill.destinations.limits import ValueLimits
from waybill.destinations.transactional.staged.rewriting import Rewriting
from waybill.pipelines import Column, TableSpec

DEFINED_IN = "postgres"
BOOKS = "waybill"
"""The schema of the books and, where there are no temporary tables, of working tables."""
WORKING_PREFIX = "_waybill_work_"


@dataclass(frozen=True)
class Dialect:
    """How one engine takes what Waybill says."""

    kind: str
    title: str
    """Its name, for people."""
    sqlglot: str
    types: Mapping[str, str]
    """Column type to the engine's, as its DDL writes it; "decimal" has {p} and {s}."""
    errors: ErrorMap
    limits: ValueLimits
    widens: Callable[[str, str], bool]
    """Say whether a column of one type can be altered to a wider one (column types)."""
    known: Callable[[str], str | None]
    """From a type as the catalogue spells it to the column type it holds; None: none."""
    catalogue: str
    """A query for a table's columns (name, type, required); with {schema}, {table} (texts) and
    {schema_name} (an identifier)."""
    absent: str = ""
    """The engine's code for a schema that is not there, when its catalogue fails for that."""
    altering: str = "ALTER TABLE {table} ALTER COLUMN {column} SET DATA TYPE {type}"
    relaxing: str = "ALTER TABLE {table} ALTER COLUMN {column} DROP NOT NULL"
    """Empty: the engine cannot."""
    adding: str = "ALTER TABLE {table} ADD COLUMN {column} {type}"
    table_suffix: str = ""
    """After the columns of a created table."""
    working_suffix: str = ""
    """After the columns of a created working table."""
    temporary: bool = True
    """Working tables are temporary ones."""
    rewritings: tuple[Rewriting, ...] = ()
    key_clause: str = ", PRIMARY KEY ({key})"
    decimal: Callable[[int, int], str] | None = None
    forbidden: Mapping[str, str] = field(default_factory=dict)
    """Characters that names cannot have, to words for them."""

    def sql_type(self, name: str) -> str:
        """Return the engine's type of a column type."""
        if name.startswith("decimal("):
            digits, behind = (int(part) for part in name[8:-1].split(","))
            if self.decimal is not None:
                return self.decimal(digits, behind)
            return self.types["decimal"].format(p=digits, s=behind)
        return self.types[name]

    def quoted(self, name: str) -> str:
        """Return an identifier as the engine quotes it."""
        return str(exp.to_identifier(name, quoted=True).sql(self.sqlglot))

    def literal(self, text: str) -> str:
        """Return a text as the engine quotes it."""
        return str(exp.Literal.string(text).sql(self.sqlglot))

    def columns_query(self, spec: TableSpec) -> str:
        """Return the query for a table's columns as the catalogue has them."""
        return self.catalogue.format(
            schema=self.literal(spec.schema_name), table=self.literal(spec.name),
            schema_name=self.quoted(spec.schema_name),
        )  # fmt: skip

    def table(self, schema: str, name: str) -> str:
        """Return a qualified name."""
        return f"{self.quoted(schema)}.{self.quoted(name)}"

    def working(self, name: str) -> str:
        """Return the name of a working table, where they are."""
        return self.quoted(name) if self.sessional else self.table(BOOKS, name)

    @property
    def sessional(self) -> bool:
        """Say whether working tables have no schema, being the session's own."""
        return self.kind == "redshift"

    def rendered(self, text: str) -> list[str]:
        """Return a statement of Waybill's in the engine's words: one statement, or several."""
        tree = sqlglot.parse_one(text, read=DEFINED_IN)
        if not self.sessional:
            for table in tree.find_all(exp.Table):
                if table.name.startswith(WORKING_PREFIX) and not table.db:
                    table.set("db", exp.to_identifier(BOOKS, quoted=True))
        trees = [tree]
        for rewriting in self.rewritings:
            trees = [found for one in trees for found in rewriting(one)]
        return [str(one.sql(self.sqlglot, identify=True)) for one in trees]


def not_null(spec: TableSpec, column: Column) -> bool:
    """Say whether a column takes no null."""
    return not column.nullable or column.name in spec.key
