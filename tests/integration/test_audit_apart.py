"""What one destination or pipeline has too much of takes nothing from the audit of the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import orders
from tests.support.audited import PIPELINE, Way
from tests.support.books import open_books
from tests.support.many_batches import MINUTE, ManyBatches, fill

from waybill.deployment import deploy
from waybill.reconciliation import read_breaches

pytestmark = pytest.mark.serves
BEHIND = 5_000


@pytest.fixture
def way(postgres: Any, kafka: Any, tmp_path: Path) -> Iterator[Way]:
    with open_books(postgres, "apart") as tracker:
        home = orders.write_orders(tmp_path / "other", rows=1)
        declaration = home / "pipeline.yaml"
        other = declaration.read_text(encoding="utf-8")
        for old, new in (
            ("id: test-orders", "id: slow-orders"),
            ("name: orders\nteam", "name: slow\nteam"),
            ("name: warehouse", "name: slow"),
        ):
            assert old in other
            other = other.replace(old, new, 1)
        declaration.write_text(other, encoding="utf-8")
        deploy(tracker, home, who="ann")
        way = Way(tracker, kafka, tmp_path)
        yield way


def slow(way: Way, commits: int = BEHIND, loaded: int = 0) -> None:
    fill(way.tracker, ManyBatches("slow-orders", "slow", "events.x.slow", commits, loaded))


def of_stages(way: Way, pipeline_id: str) -> list[tuple[Any, ...]]:
    return way.query(
        "SELECT DISTINCT stages->'destination'->>'verdict', stages->'destination'->>'why' "
        "FROM audit_minutes WHERE pipeline_id = :p",
        p=pipeline_id,
    )


def test_a_destination_far_behind_hides_no_breach_of_another(way: Way) -> None:
    slow(way)
    way.begin()
    way.send(*(way.event(n) for n in range(3)))
    way.page(3, open_from=0)
    way.end()
    way.process()
    way.load(lose=True)
    way.query(
        "INSERT INTO parked_partitions (pipeline_id, event_name, stage, error_type, replayed, "
        "parked) SELECT id, 'order', 'mapping', 'null_value', 1, 0 "
        "FROM unnest(ARRAY['test-orders', 'slow-orders']) AS id"
    )
    way.audit()
    found = {
        (b.key.pipeline_id, b.key.stage, b.key.kind, b.gap) for b in read_breaches(way.tracker)
    }
    assert {
        (PIPELINE, "destination", "on_the_way", 3),
        (PIPELINE, "mapping", "replays", 1),
    } <= found
    assert not [one for one in found if one[0] == "slow-orders" and one[2] != "parked"]
    assert of_stages(way, "slow-orders") == [("moving", "loading lags: 5,000 batches wait")]


def test_ranges_of_a_destination_with_many_commits_do_not_put_off_the_others(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``aaa`` comes first in the order of names, and has more than a round looks at."""
    monkeypatch.setattr("waybill.reconciliation.offset_ranges.MOST_BATCHES", 100)
    fill(way.tracker, ManyBatches("slow-orders", "aaa", "events.x.aaa", 1_000, 1_000))
    way.begin()
    way.send(*(way.event(n) for n in range(6)))
    way.page(6, open_from=0)
    way.end()
    for _ in range(3):
        way.process(most=2)
    way.query("DELETE FROM batches WHERE destination = 'warehouse' AND commit_number = 2")
    way.audit()
    [found] = [b for b in read_breaches(way.tracker) if b.key.kind == "offsets"]
    assert "no batch has the offsets 2 to 4" in found.words


def test_minutes_that_move_for_long_leave_room_for_other_pipelines(way: Way) -> None:
    """A round that takes 50 minutes looks at a newer one beside 1,000 that wait for a destination."""
    slow(way, 1_000)
    way.query(
        "UPDATE audit_minutes SET minute = minute - 1000, audited = changed, state = 'moving'"
    )
    way.query("UPDATE ledger_minutes SET minute = minute - 1000")
    spread = (
        "INSERT INTO audit_minutes (pipeline_id, event_name, minute, changed, audited, state) "
        "SELECT 'slow-orders', 'order', n, 1, 1, 'moving' FROM generate_series(1, 1000) AS n"
    )
    way.query(spread)
    way.begin()
    way.send(*(way.event(n) for n in range(3)))
    way.page(3, open_from=0)
    way.end()
    way.process()
    way.audit(minutes=50)
    way.load(lose=True)
    report = way.audit(minutes=50)
    assert report.looked_at == 50
    assert [(b.key.pipeline_id, b.gap) for b in read_breaches(way.tracker)] == [(PIPELINE, 3)]
    assert MINUTE == read_breaches(way.tracker)[0].key.minute
