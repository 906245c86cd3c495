"""Declarations for the tests of mappings, and tasks that learn in processes of their own."""

from __future__ import annotations

import json
import sys
from typing import Any

from waybill.mappings import LearnedFields, MappingVersion, NameRules, learn, learn_once, rules_of
from waybill.pipelines import Column, EventDeclaration, Pipeline, Source, TableSpec
from waybill.settings import TrackerSettings
from waybill.storage import TrackerStore

RULES = rules_of("postgres")


def declared(policy: str = "evolve", columns: Any = None, **fields: Any) -> EventDeclaration:
    """Return event ``order``, key ``id``; columns by name: a type, or (type, source)."""
    made = [Column(name="id", type="int64", nullable=False)]
    for name, said in (columns or {}).items():
        kind, source = said if isinstance(said, tuple) else (said, name)
        made.append(Column(name=name, type=kind, source=source))
    table = TableSpec(schema_name="shop", name="orders", columns=tuple(made), key=("id",))
    return EventDeclaration(name="order", key=("id",), table=table, policy=policy, **fields)


def types(declaration: EventDeclaration) -> dict[str, str]:
    """Return the columns' types by name."""
    return {column.name: column.type for column in declaration.table.columns}


def names(declaration: EventDeclaration) -> dict[str, str]:
    """Return the columns' names by source."""
    return {column.source: column.name for column in declaration.table.columns}


def pipeline(*events: EventDeclaration, code: str = "") -> Pipeline:
    """Return pipeline ``p1`` with these events."""
    return Pipeline(
        id="p1",
        name="orders",
        team="shop",
        owner="shop@example.org",
        source=Source(connector="csv", event="order", path="orders.csv"),
        events={event.name: event for event in events},
        transformation_code=code or "def transform(event):\n    return event\n",
        destination="warehouse",
        schema_name="shop",
    )


def learn_payloads(
    tracker: TrackerStore,
    pipeline_id: str,
    known: EventDeclaration,
    payloads: Any,
    rules: NameRules,
    author: str,
) -> MappingVersion:
    """Learn from payloads as a task that knows a declaration, and keep it as a driver."""
    learned = LearnedFields.between(known, learn(known, payloads, rules) or known)
    with tracker.transaction() as connection:
        return learn_once(connection, pipeline_id, known, [learned], rules, author)


def main(dsn: str, author: str, payloads: str) -> None:
    """Learn from payloads once a line comes in; print the version that is in force then."""
    with TrackerStore(TrackerSettings(dsn=dsn, pool_size=1)) as tracker:
        with tracker.transaction():
            print("ready", flush=True)
        sys.stdin.readline()
        version = learn_payloads(tracker, "p1", declared(), json.loads(payloads), RULES, author)
        print(json.dumps([version.number, names(version.declaration)]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
