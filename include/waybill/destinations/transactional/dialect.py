"""A warehouse's SQL as a value: types, names, limits, and how Waybill's statements read there.

Waybill's statements are defined in PostgreSQL's dialect. What sqlglot's generators do not turn into
other words by themselves is rewritten in the tree, never in the text: one function a construct,
which takes a tree and returns the trees that say the same, in order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlglot
from sqlglot import exp

from waybill.destinations.drivers import ErrorMap
from waybill.destinations.limits import ValueLimits
from waybill.pipelines import Column, TableSpec

_DEFINED_IN = "postgres"
BOOKS = "waybill"
"""The schema of the books and, where there are no temporary tables, of working tables."""
WORKING_PREFIX = "_waybill_work_"

Tree = Any
"""A sqlglot expression, which has no types."""
Rewriting = Callable[[Tree], Sequence[Tree]]

_DECIMAL = re.compile(r"(?:decimal|numeric|number|bignumeric)\((\d+), ?(\d+)\)", re.ASCII)
_LENGTH = re.compile(r"\(\d+\)$", re.ASCII)


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
        tree = sqlglot.parse_one(text, read=_DEFINED_IN)
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


def using_as_exists(tree: Tree) -> Sequence[Tree]:
    """``DELETE FROM a USING b WHERE …`` as ``DELETE FROM a WHERE EXISTS (…)``."""
    using = tree.args.get("using") if isinstance(tree, exp.Delete) else None
    if not using:
        return [tree]
    inner = exp.select(exp.Literal.number(1)).from_(using[0].copy())
    for other in using[1:]:
        inner = inner.join(other.copy(), join_type="cross")
    inner = inner.where(tree.args["where"].this.copy())
    changed = tree.copy()
    changed.set("using", None)
    changed.set("where", exp.Where(this=exp.Exists(this=inner)))
    return [changed]


def delete_without_alias(tree: Tree) -> Sequence[Tree]:
    """``DELETE FROM a AS x …`` with the table's own name for the alias."""
    if not isinstance(tree, exp.Delete) or not tree.this.alias:
        return [tree]
    names = {tree.this.alias: tree.this.copy()}
    changed = tree.transform(lambda node: _renamed(node, names))
    changed.this.set("alias", None)
    return [changed]


def null_safe_as_or(tree: Tree) -> Sequence[Tree]:
    """Say ``a IS NOT DISTINCT FROM b`` in words that every engine has; never null itself."""

    def change(node: Tree) -> Tree:
        if not isinstance(node, exp.NullSafeEQ):
            return node
        a, b = node.this, node.expression
        same = exp.func("COALESCE", a.copy().eq(b.copy()), exp.false())
        both = exp.and_(a.copy().is_(exp.null()), b.copy().is_(exp.null()))
        return exp.paren(exp.or_(same, both))

    return [tree.transform(change)]


def merge_in_steps(tree: Tree) -> Sequence[Tree]:
    """``MERGE`` as a table of its source, then a DELETE, UPDATE or INSERT for each WHEN.

    Only for a merge whose arms change what their conditions look at: a row that one arm took must
    not please the next (Waybill's arms compare versions, and set them). Runs under the target's
    lock. The target has no alias then, as an old PostgreSQL's DELETE knows none.
    """
    if not isinstance(tree, exp.Merge):
        return [tree]
    target, source = tree.this, tree.args["using"]
    working = exp.to_identifier(f"{target.name}_source"[:100], quoted=True)
    names = {target.alias or target.name: target, source.alias_or_name: exp.Table(this=working)}

    def named(node: Tree) -> Tree:
        return node.copy().transform(lambda item: _renamed(item, names))

    steps: list[Tree] = [
        exp.Drop(tables=[exp.Table(this=working.copy())], kind="TABLE", exists=True),
        exp.Create(
            this=exp.Table(this=working.copy()),
            kind="TABLE",
            expression=_selected(source),
            properties=exp.Properties(expressions=[exp.TemporaryProperty()]),
        ),
    ]
    bare = exp.Table(this=target.this.copy(), db=target.args.get("db"))
    for when in tree.args["whens"].expressions:
        steps.append(_step(when, bare, exp.Table(this=working), tree.args["on"], named))
    return steps


def _selected(source: Tree) -> Tree:
    if isinstance(source, exp.Subquery):
        return source.this.copy()
    return exp.select("*").from_(source.copy())


def _renamed(node: Tree, names: dict[str, exp.Table]) -> Tree:
    if isinstance(node, exp.Column) and node.table in names:
        table = names[node.table]
        return exp.Column(
            this=node.this.copy(), table=table.this.copy(),
            db=table.args["db"].copy() if table.args.get("db") else None,
        )  # fmt: skip
    return node


def _step(
    when: exp.When, target: exp.Table, source: exp.Table, on: Tree, named: Callable[[Tree], Tree]
) -> Tree:
    condition = when.args.get("condition")
    then = when.args["then"]
    if not when.args["matched"]:
        key = next(column for column in on.find_all(exp.Column) if column.table != _alias_of(then))
        insert = exp.select(*(named(item) for item in then.expression.expressions))
        insert = insert.from_(source.copy()).join(target.copy(), on=named(on), join_type="left")
        insert = insert.where(
            exp.column(key.name, target.name, target.db, quoted=True).is_(exp.null())
        )
        if condition is not None:
            insert = insert.where(named(condition))
        return exp.Insert(
            this=exp.Schema(
                this=target.copy(), expressions=[c.this.copy() for c in then.this.expressions]
            ),
            expression=insert,
        )
    where = named(on) if condition is None else exp.and_(named(on), exp.paren(named(condition)))
    if isinstance(then, exp.Update):
        changes = [
            exp.EQ(this=exp.column(item.this.this.copy()), expression=named(item.expression))
            for item in then.expressions
        ]
        return exp.Update(
            this=target.copy(), expressions=changes,
            **{"from_": exp.From(this=source.copy())}, where=exp.Where(this=where),
        )  # fmt: skip
    return exp.Delete(this=target.copy(), using=[source.copy()], where=exp.Where(this=where))


def _alias_of(insert: Tree) -> str:
    """Return the source's alias: that of the inserted values."""
    return next((column.table for column in insert.expression.find_all(exp.Column)), "")


def reader(
    names: Mapping[str, str], decimals: Mapping[str, str] | None = None
) -> Callable[[str], str | None]:
    """Return a function from a catalogue's type to the column type, None when there is none.

    Args:
        names: types in small letters, without a length, to column types.
        decimals: decimals that are something else here, to column types.
    """

    def known(text: str) -> str | None:
        plain = text.lower().strip()
        if decimals is not None and plain in decimals:
            return decimals[plain]
        match = _DECIMAL.fullmatch(plain)
        if match is not None:
            return f"decimal({match[1]},{match[2]})"
        return names.get(plain) or names.get(_LENGTH.sub("", plain))

    return known


def digits(name: str) -> tuple[int, int] | None:
    """Return a decimal column type's digits before and behind the point."""
    match = _DECIMAL.fullmatch(name)
    return None if match is None else (int(match[1]) - int(match[2]), int(match[2]))
