"""Trimming batches, ledger, staged objects and Kafka: the books say the same, to the digit."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.audited import PIPELINE, Way
from tests.support.books import open_books, sessions_ended
from tests.support.children import forked, was_killed
from tests.support.many_batches import ManyBatches, fill

from waybill.ingestion.takeover import count_sent
from waybill.ledger import (
    LogIdentity,
    LogProgress,
    claim_source,
    replaced_log,
    settle_log,
    tell_progress,
)
from waybill.reconciliation.balance_report import balance
from waybill.retention import records, rows, trim_log, trim_rows
from waybill.settings import TrackerSettings
from waybill.storage import TrackerStore

pytestmark = pytest.mark.serves
DAY_S = 86_400.0
KEPT_S = 90 * DAY_S


@pytest.fixture
def way(postgres: Any, kafka: Any, tmp_path: Path) -> Iterator[Way]:
    with open_books(postgres, "retention") as tracker:
        yield Way(tracker, kafka, tmp_path)


def flow(way: Way, *numbers: int) -> None:
    """Take events in and through, all in one minute, a batch an argument."""
    first = 0
    way.begin()
    for number in numbers:
        way.send(*(way.event(n) for n in range(first, first + number)))
        way.page(number)
        way.process()
        first += number
    way.end()


def age(way: Way, days: int, most: int = 10**9) -> None:
    """Make commits as old as that, those up to a commit number."""
    given = {"days": days, "most": most}
    way.query(
        "UPDATE batches SET committed_at = clock_timestamp() - make_interval(days => :days) "
        "WHERE commit_number <= :most",
        **given,
    )
    way.query(
        "UPDATE ledger SET committed_at = clock_timestamp() - make_interval(days => :days) "
        "WHERE reference IN (SELECT id::text FROM batches WHERE commit_number <= :most) "
        "OR reference LIKE 'load:%' OR reference LIKE 'intake:%'",
        **given,
    )
    way.query("UPDATE topic_offsets SET known_since = known_since - interval '10 years'")


def books(way: Way) -> dict[str, Any]:
    found = balance(way.tracker, way.log).to_json()
    return {**found, "minutes": sorted(map(str, found["minutes"]))}


def sizes(way: Way) -> dict[str, int]:
    tables = ("batches", "ledger", "staged_objects")
    return {name: way.query(f"SELECT count(*) FROM {name}")[0][0] for name in tables}


def test_trimmed_books_balance_as_before_and_a_second_run_does_nothing(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "MOST_ROWS", 7)
    fill(way.tracker, ManyBatches(PIPELINE, "other", "events.x.other", 60, 40))
    flow(way, 5, 3, 2)
    way.load()
    flow(way, 4)
    way.query("UPDATE staged_objects SET state = 'deleted', loaded_at = coalesce(loaded_at, "
              "committed_at) WHERE state = 'loaded'")  # fmt: skip
    way.query("UPDATE staged_objects SET loaded_at = loaded_at - interval '100 days'")
    age(way, 100)
    before = books(way)
    assert trim_rows(way.tracker, kept_s=200 * DAY_S) == dict.fromkeys(rows.TRIMS, 0)
    gone = trim_rows(way.tracker, kept_s=KEPT_S)
    assert gone["batches"] == 40 + 3
    assert gone["staged_objects"] == 40 + 3
    assert gone["ledger"] >= 2 * 40 + 2 * 3
    assert books(way) == before
    assert trim_rows(way.tracker, kept_s=KEPT_S) == dict.fromkeys(rows.TRIMS, 0)
    report = way.audit()
    assert (report.opened, report.breaches) == ([], 0)
    way.load()
    assert books(way)["unaccounted"] == before["unaccounted"]


def test_what_the_auditor_has_not_looked_at_stays(way: Way) -> None:
    flow(way, 2, 2)
    way.audit()
    flow(way, 2)
    way.load()
    age(way, 100)
    flow(way, 1)
    assert trim_rows(way.tracker, kept_s=KEPT_S)["batches"] == 2
    assert way.audit().opened == []
    assert trim_rows(way.tracker, kept_s=KEPT_S)["batches"] == 1
    assert way.audit().opened == []


class _Mortal(TrackerStore):
    """Dies before its n-th transaction is committed, or after."""

    left = 0

    @contextmanager
    def transaction(self, **limits: Any) -> Iterator[Any]:
        with super().transaction(**limits) as connection:
            yield connection
            self._pass()
        self._pass()

    def _pass(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def killed_at(way: Way, point: int) -> bool:
    dsn = way.tracker.engine.url.set(drivername="postgresql").render_as_string(False)

    def trim() -> None:
        tracker = _Mortal(TrackerSettings(dsn=dsn))
        tracker.left = point
        trim_rows(tracker, kept_s=KEPT_S)

    with sessions_ended(way.tracker):
        return was_killed(forked(trim))


def test_a_kill_between_any_two_transactions_changes_no_book(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "MOST_ROWS", 10)
    fill(way.tracker, ManyBatches(PIPELINE, "other", "events.x.other", 60, 50))
    age(way, 100)
    before, kills = books(way), 0
    for point in range(1, 60, 3):
        if not killed_at(way, point):
            break
        kills += 1
        assert books(way) == before
    assert kills > 3
    trim_rows(way.tracker, kept_s=KEPT_S)
    assert books(way) == before
    assert sizes(way)["batches"] == 10


def low(way: Way) -> int:
    """Return the first offset that is there, of the partition that events go to."""
    return way.log.watermarks(way.topic)[0][0]


def trimmed(way: Way, days: float = 7) -> dict[str, Any]:
    [found] = trim_log(way.tracker, way.log, {way.topic.name: "warehouse"}, kept_s=days * DAY_S)
    return found.to_json()


def test_records_go_once_they_are_loaded_and_old_and_the_last_one_stays(way: Way) -> None:
    flow(way, 4, 3, 2)
    assert trimmed(way, 0)["deleted"] == 0, "nothing is loaded"
    way.load()
    assert trimmed(way)["deleted"] == 0, "nothing is old"
    age(way, 30, most=2)
    before = books(way)
    assert trimmed(way) == {
        "topic": way.topic.name, "deleted": 7, "commit": 2, "problem": "", "held": "",
    }  # fmt: skip
    assert low(way) == 7
    assert trimmed(way)["deleted"] == 0
    age(way, 30)
    assert trimmed(way)["deleted"] == 1, "the last record that was read stays"
    assert low(way) == 8
    assert books(way) == before
    assert way.audit().opened == []
    flow(way, 2)
    way.load()
    assert books(way)["in_flight"] == 0


def test_records_whose_staged_object_is_not_loaded_stay_with_all_behind(way: Way) -> None:
    flow(way, 4, 3, 2)
    way.load()
    age(way, 30)
    way.query("UPDATE staged_objects SET state = 'staged' WHERE commit_number = 2")
    found = trimmed(way)
    assert (found["deleted"], low(way)) == (4, 4)
    assert "commit 2 and all behind it are kept: a staged object of it is not" in found["held"]


QUARANTINED = """
WITH own AS (
  INSERT INTO parked_partitions (pipeline_id, event_name, stage, error_type, quarantined)
  VALUES ('p', 'order', 'mapping', 'x', 1) RETURNING id),
object AS (INSERT INTO parked_objects (key, bytes) VALUES ('parked/x', 1) RETURNING key)
INSERT INTO segments (partition_id, object_key, position, length, count, bytes, sha256,
  first_event_at, last_event_at, state, scope, commit_number, kafka_partition, first_offset)
SELECT own.id, key, 0, 1, 1, 1, '', now(), now(), 'quarantined', 'warehouse', 1, 0, 0
FROM own, object
"""


@pytest.mark.parametrize(
    ("what", "until"),
    [
        (
            "UPDATE staged_objects SET state = 'lost', not_recovered = 'x' WHERE commit_number = 1",
            "UPDATE staged_objects SET state = 'deleted', loaded_at = now() WHERE state = 'lost'",
        ),
        (QUARANTINED, "UPDATE segments SET problem = 'they are gone'"),
    ],
)
def test_records_of_what_may_be_made_again_stay_also_when_the_books_are_trimmed(
    way: Way, what: str, until: str
) -> None:
    flow(way, 4, 3, 2)
    way.load()
    age(way, 100)
    way.query(what)
    assert trim_rows(way.tracker, kept_s=KEPT_S)["batches"] == 0
    found = trimmed(way)
    assert (found["deleted"], found["commit"]) == (0, 0)
    assert "commit 1 and all behind it are kept: " in found["held"]
    way.query(until)
    assert trimmed(way)["deleted"] == 8
    assert trim_rows(way.tracker, kept_s=KEPT_S)["batches"] == 2


def test_many_lost_objects_hold_up_no_row_of_those_behind(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "MOST_ROWS", 7)
    fill(way.tracker, ManyBatches(PIPELINE, "other", "events.x.other", 60, 30))
    first = "destination = 'other' AND commit_number <= 10"
    way.query("UPDATE staged_objects SET state = 'deleted', "
              "loaded_at = clock_timestamp() - interval '100 days'")  # fmt: skip
    way.query(f"UPDATE staged_objects SET state = 'lost' WHERE {first}")
    before, all_rows = sizes(way)["staged_objects"], "SELECT count(*) FROM staged_objects WHERE "
    [(lost,)] = way.query(f"{all_rows} {first}")
    assert trim_rows(way.tracker, kept_s=KEPT_S)["staged_objects"] == before - lost > 7
    assert sizes(way)["staged_objects"] == lost > 7


def log_of(way: Way, wal_id: str, **changes: Any) -> Any:
    """Claim the source for a log, which begins at the ends of the topic as they are."""
    ends = {n: high for n, (_, high) in way.log.watermarks(way.topic).items()}
    name = way.topic.name
    identity = LogIdentity(wal_id, PIPELINE, "ingestion", "p", "edge-7", "/wal", name, **changes)
    return claim_source(way.tracker, identity, ends={name: ends})


def test_records_that_a_log_may_look_for_stay_and_the_log_is_named(way: Way) -> None:
    flow(way, 4)
    lease = log_of(way, "a" * 32)
    flow(way, 3, 2)
    way.load()
    age(way, 30, most=2)
    tell_progress(way.tracker, LogProgress(lease, 1, 3))
    assert trimmed(way)["deleted"] == 7, "its run lives"
    age(way, 30)
    way.query("UPDATE write_ahead_logs SET seen_at = seen_at - interval '31 days'")
    found = trimmed(way)
    assert (found["deleted"], found["commit"], low(way)) == (0, 2, 7), "its run died"
    assert f"what log {'a' * 32} of " in found["held"]
    assert f"`waybill logs settle {'a' * 32}`" in found["held"]
    again = log_of(way, "a" * 32)
    assert trimmed(way)["deleted"] == 0, "who opened it again has not looked yet"
    tell_progress(way.tracker, LogProgress(again, 2, 0, 1, {0: 9}))
    found = trimmed(way)
    assert (found["deleted"], found["held"]) == (1, "")


@pytest.mark.parametrize("settled", [False, True])
def test_records_of_a_log_that_was_taken_over_stay_until_it_is_counted(
    way: Way, settled: bool
) -> None:
    log_of(way, "a" * 32)
    flow(way, 4, 3)
    way.load()
    age(way, 30)
    way.query("UPDATE write_ahead_logs SET seen_at = seen_at - interval '31 days'")
    if settled:
        settle_log(way.tracker, "a" * 32, who="ann", reason="the disk burnt")
    else:
        log_of(way, "b" * 32)
    assert trimmed(way)["deleted"] == 0
    replaced = replaced_log(way.tracker, "a" * 32)
    assert replaced is not None
    count_sent(way.tracker, way.log, replaced)
    found = trimmed(way)
    assert (found["deleted"], found["held"]) == (6, "")


def test_offsets_of_another_topic_of_the_same_name_delete_nothing(way: Way) -> None:
    flow(way, 4, 3)
    way.load()
    age(way, 30)
    way.query("UPDATE topic_offsets SET known_since = clock_timestamp()")
    assert trimmed(way)["deleted"] == 0
    way.query("UPDATE topic_offsets SET topic_id = 'another', trimmed_commit = 0")
    assert "not the topic that the ledger knows" in trimmed(way)["problem"]
    assert low(way) == 0


def test_a_kill_after_the_deletion_is_made_good_by_the_next_run(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow(way, 4, 3, 2)
    way.load()
    age(way, 30)
    with monkeypatch.context() as patch:
        patch.setattr(records, "_keep", lambda *_: None)
        assert trimmed(way)["deleted"] == 8
    assert trimmed(way) | {"commit": 3} == {
        "topic": way.topic.name, "deleted": 0, "commit": 3, "problem": "", "held": "",
    }  # fmt: skip
    assert low(way) == 8


def test_a_commit_of_a_clock_that_was_ahead_holds_up_no_trimming(way: Way) -> None:
    flow(way, 3, 3, 3, 3)
    way.load()
    age(way, 100)
    ahead = "clock_timestamp() + interval '10 years'"
    way.query(f"UPDATE batches SET committed_at = {ahead} WHERE commit_number = 1")
    first = "SELECT id::text FROM batches WHERE commit_number = 1"
    way.query(f"UPDATE ledger SET committed_at = {ahead} WHERE left(reference, 36) IN ({first})")
    before = books(way)
    gone = trim_rows(way.tracker, kept_s=KEPT_S)
    assert gone["batches"] == 2, "the one that seems young and the last one stay"
    assert gone["ledger"] >= 2
    assert books(way) == before
    assert trimmed(way)["deleted"] > 0


def test_a_commit_of_an_older_log_and_of_a_clock_that_was_ahead_deletes_nothing(way: Way) -> None:
    """The log was made anew and settled after the clock had stepped back behind commit 1."""
    flow(way, 4)
    way.load()
    way.query(
        "UPDATE batches SET committed_at = clock_timestamp() - interval '30 days', "
        "offsets = jsonb_set(offsets, '{0,3}', '1000') WHERE commit_number = 1"
    )
    way.query("DELETE FROM topic_offsets")  # as settling a topic that was made anew does
    flow(way, 3)
    assert way.query("SELECT DISTINCT known_since_commit FROM topic_offsets") == [(1,)]
    ahead = "clock_timestamp() - interval '30 days 39 minutes'"
    way.query(f"UPDATE topic_offsets SET known_since = {ahead}")
    assert trimmed(way)["deleted"] == 0
    assert low(way) == 0
