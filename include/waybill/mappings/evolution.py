"""A declaration that grows: events bring fields and values that it has no column for.

Under the policy ``evolve`` a field without a column gets one, a column gets the narrowest type that
holds its values and the new one, and an array gets a table of its items where the declaration says
so. Nothing that is there goes away. What no type holds is left: the mapping parks it.

Who meets such events and who keeps mappings are two: what was learned from payloads (`learn`)
travels as `LearnedFields`, names and types of fields without their values, and is laid over what is
in force by then (`with_learned`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, Self, TypeVar

from waybill.mappings.flattening import fields_of, whole_fields
from waybill.mappings.inference import type_needed, type_of, type_of_all
from waybill.mappings.naming import NameRules, name_fields, plain_name, table_name
from waybill.pipelines import ChildTable, Column, EventDeclaration, TableSpec, widened

T = TypeVar("T")
_MOST_CHILDREN = 64
"""Child tables of an event name."""
_LONGEST_SOURCE = 1_000
"""Characters of a field that gets a column, as in a declaration."""
ITEM = ""
"""Source of the one field that an item has which is no object."""
_ITEM_NAME = "value"


@dataclass(frozen=True, slots=True)
class NamedField:
    """Names that were given in one table, or to the child tables of one."""

    last: Mapping[str, str] = field(default_factory=dict)
    """Source to the name that it had last; in the order in which they were given."""
    spent: frozenset[str] = frozenset()
    """All names that ever were given."""


@dataclass(frozen=True, slots=True)
class Given:
    """Names that were given once, whatever became of the columns and tables since."""

    columns: NamedField = NamedField()
    children: NamedField = NamedField()
    items: Mapping[str, NamedField] = field(default_factory=dict)
    """Columns of child tables, by the child's source."""
    tables: frozenset[str] = frozenset()
    """Other tables of the schema."""


@dataclass(frozen=True, slots=True)
class InForce:
    """What an event name maps to now."""

    number: int
    """Of the mapping's version; 0: what the pipeline declares, nothing was learned."""
    declaration: EventDeclaration


class LearnedField(NamedTuple):
    """A field that gets a column, or a wider one."""

    child: str | None
    """Field of the array whose items have it; None: the event itself has it."""
    source: str
    type: str
    """Of the column."""


@dataclass(frozen=True, slots=True)
class LearnedFields:
    """What was learned from events of one name: no values of theirs."""

    reading: tuple[str, int, str]
    """How payloads were read when it was learned: the declaration's nested, depth and arrays."""
    fields: tuple[LearnedField, ...]
    """In the order in which they were met."""

    @classmethod
    def between(cls, before: EventDeclaration, after: EventDeclaration) -> Self:
        """Return what a declaration has learned, in words that another one understands."""
        return cls(_reading(before), tuple(_news(before, after)))

    def to_json(self) -> list[Any]:
        """Return the fields as JSON."""
        return [list(self.reading), [list(one) for one in self.fields]]

    @classmethod
    def from_json(cls, content: Sequence[Any]) -> Self:
        """Read what ``to_json`` gave."""
        (nested, depth, arrays), fields = content
        return cls((nested, depth, arrays), tuple(LearnedField(*one) for one in fields))


def _reading(declared: EventDeclaration) -> tuple[str, int, str]:
    return declared.nested, declared.depth, declared.arrays


def _news(before: EventDeclaration, after: EventDeclaration) -> Iterator[LearnedField]:
    yield from _fields_between(None, before.table.columns, after.table.columns)
    known = {child.source: child.columns for child in before.table.children}
    for child in after.table.children:
        yield from _fields_between(child.source, known.get(child.source, ()), child.columns)


def _fields_between(
    child: str | None, before: Sequence[Column], after: Sequence[Column]
) -> Iterator[LearnedField]:
    """Yield the fields of wider columns and of new ones, which stand behind them."""
    for number, column in enumerate(after):
        if number >= len(before) or column.type != before[number].type:
            yield LearnedField(child, column.source, column.type)


def with_learned(
    declared: EventDeclaration,
    learned: LearnedFields,
    rules: NameRules,
    given: Given | None = None,
) -> EventDeclaration | None:
    """Return the declaration with room for what was learned; None: it has all the room there is.

    A field that has a column by now gets the wider type of both, if there is one; a new one gets a
    column, named here, while the table has room.

    Args:
        declared: what is in force; it may be a later version than that which was learned over. If
            it reads payloads in another way, nothing is learned: what they bring is met again.
        learned: by somebody who met events.
        rules: of the destination.
        given: names of columns that were dropped since.
    """
    if declared.policy != "evolve" or _reading(declared) != learned.reading:
        return None
    given = given or Given()
    table = declared.table
    tables = {child.source for child in table.children}
    own = _types(learned, None, taken=tables)
    mapped = {column.source for column in table.columns}
    arrays = dict.fromkeys(one.child for one in learned.fields if one.child is not None)
    items = {
        source: _types(learned, source)
        for source in arrays
        if source in tables
        or (declared.arrays == "child" and source not in mapped and _can_be_kept(source))
    }
    names = _Names(rules, given.columns, declared)
    columns = _with_types(table.columns, own, names)
    children = _children(declared, items, _with_types, rules, given)
    if columns == table.columns and children == table.children:
        return None
    return with_table(declared, columns, children)


def _types(
    learned: LearnedFields, child: str | None, taken: Collection[str] = ()
) -> dict[str, str]:
    """Return {field: type} of an event, or of an array's items; without those that are taken."""
    return {
        one.source: one.type
        for one in learned.fields
        if one.child == child and one.source not in taken and _can_be_kept(one.source)
    }


def _with_types(
    columns: tuple[Column, ...], types: Mapping[str, str], names: _Names
) -> tuple[Column, ...]:
    """Return columns that hold these types as well, and then those of new fields."""
    wider = [
        column.model_copy(update={"type": widened(column.type, types[column.source])})
        if widened(column.type, types.get(column.source, column.type)) not in {None, column.type}
        else column
        for column in columns
    ]
    mapped = {column.source for column in columns}
    new = ((source, kind) for source, kind in types.items() if source not in mapped)
    fresh = dict(islice(new, max(0, names.rules.most_columns - len(columns))))
    named = names.of(fresh, columns)
    return (*wider, *(Column(name=named[s], type=kind, source=s) for s, kind in fresh.items()))


def learn(
    declared: EventDeclaration,
    payloads: Iterable[Mapping[str, Any]],
    rules: NameRules,
    given: Given | None = None,
) -> EventDeclaration | None:
    """Return the declaration with room for these payloads; None: it has all the room there can be.

    Args:
        declared: what is in force.
        payloads: of upserts, as the mapping gets them; anything that is no dict is passed over.
        rules: of the destination; at ``most_columns`` no field gets a column any more.
        given: names of columns that were dropped since.

    Cost: up to 10 µs a value; it is asked of what does not fit, not of every event.
    """
    if declared.policy != "evolve":
        return None
    whole = whole_fields(declared.table.columns)
    rows = [row_of(declared, payload, whole) for payload in payloads if isinstance(payload, dict)]
    given = given or Given()
    table = declared.table
    arrays = _arrays(declared, rows)
    names = _Names(rules, given.columns, declared)
    columns = _grown(table.columns, rows, names, passed=arrays.keys())
    children = _children(declared, arrays, _grown, rules, given)
    if columns == table.columns and children == table.children:
        return None
    return with_table(declared, columns, children)


def row_of(
    declared: EventDeclaration, payload: Mapping[str, Any], whole: Collection[str] = frozenset()
) -> Mapping[str, Any]:
    """Return a payload's fields, by the sources that the declaration's columns have.

    Of a flattened one those that hold an empty object are left out, for it has no field; but for
    ``whole``: see `flatten`.
    """
    if declared.nested != "flatten":
        return payload
    return fields_of(payload, declared.depth, whole)


def item_of(
    declared: EventDeclaration,
    item: Any,
    columns: Sequence[Column] = (),
) -> Mapping[str, Any]:
    """Return the fields of an array's item; one that is no object has one field, ``""``.

    So has each, where the child table's only column takes any value: JSON.
    """
    if isinstance(item, dict) and not takes_any_item(columns):
        return row_of(declared, item, whole_fields(columns))
    return {ITEM: item}


def takes_any_item(columns: Sequence[Column]) -> bool:
    """Tell whether a child table keeps its items as they are, objects as well."""
    return [(column.source, column.type) for column in columns] == [(ITEM, "json")]


def with_table(
    declared: EventDeclaration, columns: Sequence[Column], children: Sequence[ChildTable]
) -> EventDeclaration:
    """Return a declaration with other columns and child tables."""
    changed = {"columns": tuple(columns), "children": tuple(children)}
    table = TableSpec.model_validate({**dict(declared.table), **changed})
    return EventDeclaration.model_validate({**dict(declared), "table": table})


def _arrays(
    declared: EventDeclaration, rows: Sequence[Mapping[str, Any]]
) -> dict[str, list[Mapping[str, Any]]]:
    """Return the items of each field that has, or gets, a child table."""
    mapped = {column.source for column in declared.table.columns}
    known = {child.source: child.columns for child in declared.table.children}
    values: dict[str, list[Any]] = {}
    for row in rows:
        for source, value in row.items():
            if value is not None and isinstance(source, str) and source not in mapped:
                values.setdefault(source, []).append(value)
    return {
        source: [
            item_of(declared, item, known.get(source, ()))
            for value in found
            for item in _items(value)
        ]
        for source, found in values.items()
        if source in known or _gets_table(declared, source, found)
    }


def _gets_table(declared: EventDeclaration, source: str, values: Sequence[Any]) -> bool:
    arrays = all(isinstance(value, list | tuple) for value in values)
    return declared.arrays == "child" and arrays and _can_be_kept(source)


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _children(
    declared: EventDeclaration,
    arrays: Mapping[str, T],
    grow: Callable[[tuple[Column, ...], T, _Names], tuple[Column, ...]],
    rules: NameRules,
    given: Given,
) -> tuple[ChildTable, ...]:
    """Return child tables with room for what ``arrays`` says of their items, by field."""
    children = {child.source: child for child in declared.table.children}
    for source, items in arrays.items():
        child = children.get(source)
        if child is None and len(children) >= _MOST_CHILDREN:
            continue
        names = _Names(rules, given.items.get(source, NamedField()), declared, of_items=True)
        columns = grow(child.columns if child else (), items, names)
        if child is not None:
            children[source] = child.model_copy(update={"columns": columns})
        elif columns:
            name = given.children.last.get(source) or _child_name(
                declared, source, children.values(), rules, given
            )
            children[source] = ChildTable(name=name, source=source, columns=columns)
    return tuple(children.values())


def _child_name(
    declared: EventDeclaration,
    source: str,
    children: Iterable[ChildTable],
    rules: NameRules,
    given: Given,
) -> str:
    taken = {child.name for child in children} | given.children.spent | given.tables
    path = declared.nested == "flatten"
    return table_name(declared.table.name, source, taken, rules, path=path)


def _grown(
    columns: tuple[Column, ...],
    rows: Sequence[Mapping[str, Any]],
    names: _Names,
    passed: Iterable[str] = (),
) -> tuple[Column, ...]:
    """Return wider columns, and then new ones in the order in which their fields were met."""
    mapped = {column.source for column in columns}.union(passed)
    values = _values(rows, mapped, names.rules.most_columns - len(columns))
    wider = [_widened(column, values.get(column.source, ())) for column in columns]
    for source in mapped:
        values.pop(source, None)
    kinds = ((source, type_of_all(items)) for source, items in values.items())
    types = {source: kind for source, kind in kinds if kind is not None}
    named = names.of(types, columns)
    return (*wider, *(Column(name=named[s], type=kind, source=s) for s, kind in types.items()))


def _values(
    rows: Sequence[Mapping[str, Any]], mapped: Collection[str], room: int
) -> dict[str, list[Any]]:
    """Return values by field: of those that have a column, and of those that can get one.

    A row that has more new fields than there is room for gets none: it parks all the same, and the
    room is left to rows that fit.
    """
    values: dict[str, list[Any]] = {}
    fresh: set[str] = set()
    for row in rows:
        filled = {s: v for s, v in row.items() if v is not None and isinstance(s, str)}
        new = {s for s in filled if s not in mapped and s not in fresh and _can_be_kept(s)}
        if len(fresh) + len(new) <= room:
            fresh |= new
        for source, value in filled.items():
            if source in mapped or source in fresh:
                values.setdefault(source, []).append(value)
    return values


@dataclass(frozen=True, slots=True)
class _Names:
    """Names new columns of one table."""

    rules: NameRules
    given: NamedField
    declared: EventDeclaration
    of_items: bool = False
    """Of a child table, which has the parent's key columns as well."""

    def of(self, sources: Iterable[str], columns: Sequence[Column]) -> dict[str, str]:
        """Return a name for each field, which no column and none of the key has."""
        taken = {f"\0column {n}": column.name for n, column in enumerate(columns)}
        wishes = {}
        if self.of_items:
            taken |= {f"\0key {name}": name for name in self.declared.table.key}
            wishes = self._wishes(sources)
        free = self._free({self.rules.same(name) for name in taken.values()})
        taken |= {f"\0spent {name}": name for name in self.given.spent}
        return name_fields(sources, taken | free, self.rules, paths=self._paths, wishes=wishes)

    def _free(self, used: set[str]) -> dict[str, str]:
        """Return the fields that get back what they had: a name is its last field's."""
        free: dict[str, str] = {}
        for source, name in reversed(list(self.given.last.items())):
            if self.rules.same(name) not in used:
                free[source] = name
                used.add(self.rules.same(name))
        return free

    @property
    def _paths(self) -> bool:
        return self.declared.nested == "flatten"

    def _wishes(self, sources: Iterable[str]) -> dict[str, str]:
        """Return ``value`` for an item that is no object, ``item_id`` where the key has ``id``."""
        keys = {self.rules.same(name) for name in self.declared.table.key}
        plain = {source: plain_name(source, path=self._paths) for source in sources}
        wishes = {s: f"item_{name}" for s, name in plain.items() if self.rules.same(name) in keys}
        return wishes | ({ITEM: _ITEM_NAME} if ITEM in plain else {})


def _can_be_kept(source: str) -> bool:
    """Tell whether the tracker can hold a field's name: it takes no NUL and no lone surrogates."""
    if len(source) > _LONGEST_SOURCE or "\0" in source:
        return False
    try:
        source.encode()
    except UnicodeEncodeError:
        return False
    return True


def _widened(column: Column, values: Iterable[Any]) -> Column:
    kind = column.type
    for value in values:
        needed = type_needed(kind, value)
        if needed is not None:
            kind = _wider(kind, needed, value)
    return column if kind == column.type else column.model_copy(update={"type": kind})


def _wider(kind: str, needed: str, value: Any) -> str:
    """Return a wider type, with room to grow where that can be; the same where there is none."""
    roomy = type_of(value)
    if needed.startswith("decimal") and roomy is not None and widened(needed, roomy) == roomy:
        return widened(kind, roomy) or widened(kind, needed) or kind
    return widened(kind, needed) or kind
