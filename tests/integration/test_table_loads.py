"""What is new in tables, told from the ledger of a real tracker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import text
from tests.support.books import counts, joined, nothing_parked, open_books
from tests.support.orders import team_of, write_orders

from waybill.deployment import deploy
from waybill.ledger import LoadCommit, TableLoads, TableName, acquire_lease, commit_load, fold
from waybill.ledger import table_loads as module
from waybill.storage import TrackerStore

pytestmark = pytest.mark.serves
LEARNED = """
INSERT INTO mapping_versions (pipeline_id, event_name, number, declaration, author)
SELECT pipeline_id, :event, :number, declaration || jsonb_build_object('table',
  declaration->'table' || jsonb_build_object('name', CAST(:table AS text),
    'children', jsonb_build_array(jsonb_build_object('name', CAST(:child AS text))))), 'learned'
FROM mapping_versions WHERE event_name = 'order' AND number = 1
"""
HOSTILE = 'o\'rders\\ "{{ 1 }}" é/..'


@pytest.fixture
def tracker(postgres: Any, tmp_path: Any) -> Iterator[TrackerStore]:
    with open_books(postgres, "tables") as books:
        deploy(books, write_orders(tmp_path, rows=1), who="test")
        yield books


@pytest.fixture
def table(tmp_path: Any) -> TableName:
    return TableName(team_of(tmp_path), "orders", "orders")


Load = Callable[..., None]


@pytest.fixture
def load(tracker: TrackerStore) -> Load:
    """Load commits, each of so many delivered rows of an event name."""
    epoch = acquire_lease(tracker, "loading/warehouse", holder="me")
    stands = 0

    def loaded(*delivered: int, event: str = "order") -> None:
        nonlocal stands
        after, stands = stands, stands + len(delivered)
        packed = {
            number: joined(
                counts("destination", pipeline="test-orders", event=event, in_first=9, passed=rows),
                counts("destination", pipeline="another", event=event, in_first=9, passed=9),
            )
            for number, rows in enumerate(delivered, after + 1)
        }
        commit = LoadCommit("loading/warehouse", epoch, "warehouse", after, stands, packed)
        commit_load(tracker, commit, nothing_parked)

    return loaded


def look(tracker: TrackerStore, **positions: Any) -> dict[str, tuple[Any, ...]]:
    loads = TableLoads()
    with tracker.transaction() as connection:
        found = loads.read(connection, {table: after for table, after in positions["of"].items()})
    return {t.table: (one.after, one.position, one.rows) for t, one in found.items()}


def test_a_pipeline_that_a_team_has_not_deployed_is_named(
    tracker: TrackerStore, table: TableName
) -> None:
    loads, stranger = TableLoads(), table._replace(team="nobody")
    hostile = {table._replace(pipeline=name) for name in ("\0", "\ud800", "{orders}", "x" * 9_999)}
    with tracker.transaction() as connection:
        loads.read(connection, dict.fromkeys([table, stranger, *hostile]))
    assert loads.unknown == {stranger, *hostile}


def test_rows_since_a_position_are_counted_and_parked_ones_are_not(
    tracker: TrackerStore, table: TableName, load: Load
) -> None:
    stranger = table._replace(team="nobody")
    assert look(tracker, of={table: None, stranger: None}) == {}
    load(0)
    assert look(tracker, of={table: None, stranger: 0}) == {"orders": (None, 1, 0)}
    load(5, 0, 2)
    other = table._replace(table="orders_lines")
    assert look(tracker, of={table: 1, other: 1}) == {
        "orders": (1, 4, 7),
        "orders_lines": (1, 4, 0),
    }
    assert look(tracker, of={table: 2, other: 3}) == {
        "orders": (2, 4, 2),
        "orders_lines": (3, 4, 0),
    }
    assert look(tracker, of={table: 4}) == {}
    assert look(tracker, of={table: 9, other: 1})["orders"] == (9, 4, 0)


def test_all_that_was_ever_loaded_is_counted_whether_it_is_folded_or_not(
    tracker: TrackerStore, table: TableName, load: Load
) -> None:
    load(5, 6)
    assert look(tracker, of={table: None}) == {"orders": (None, 2, 11)}
    fold(tracker)
    load(1)
    assert look(tracker, of={table: None}) == {"orders": (None, 3, 12)}
    with tracker.transaction() as connection:
        connection.execute(text("DELETE FROM ledger WHERE folded"))  # as retention does
    assert look(tracker, of={table: None}) == {"orders": (None, 3, 12)}


def test_event_names_count_for_the_table_that_they_map_to_now_and_for_its_children(
    tracker: TrackerStore, table: TableName, load: Load
) -> None:
    child, hostile = table._replace(table=f"{HOSTILE}_lines"), table._replace(table=HOSTILE)
    load(3, event="{{ 1 }}'")
    assert look(tracker, of={hostile: None, child: 0}) == {
        HOSTILE: (None, 1, 0),
        child[2]: (0, 1, 0),
    }
    with tracker.transaction() as connection:
        for event, number, name in (("{{ 1 }}'", 1, "before"), ("{{ 1 }}'", 2, HOSTILE)):
            given = {"event": event, "number": number, "table": name, "child": f"{name}_lines"}
            connection.execute(text(LEARNED), given)
    assert look(tracker, of={hostile: None, child: 0}) == {
        HOSTILE: (None, 1, 3),
        child[2]: (0, 1, 3),
    }
    assert look(tracker, of={table._replace(table="before"): 0}) == {"before": (0, 1, 0)}


def test_after_a_long_time_it_looks_at_some_commits_at_a_time(
    tracker: TrackerStore, table: TableName, load: Load, monkeypatch: Any
) -> None:
    monkeypatch.setattr(module, "_MOST_COMMITS", 2)
    load(1, 0, 0, 4, 2)
    later = table._replace(table="later")
    assert look(tracker, of={table: 0, later: 3}) == {"orders": (0, 2, 1)}
    assert look(tracker, of={table: 2, later: 3}) == {"orders": (2, 4, 4), "later": (3, 4, 0)}
    assert look(tracker, of={table: 4}) == {"orders": (4, 5, 2)}
