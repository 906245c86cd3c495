"""Damaged frames and lost objects: that segment is set apart and told, all else is replayed."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text
from tests.integration.test_replay_outcome import NAMES, Books
from tests.support import orders
from tests.support.parked_orders import order, parked
from tests.support.replays import run_replay
from typer.testing import CliRunner

from waybill import services
from waybill.access import Decision
from waybill.cli import app
from waybill.parking import Segment

pytestmark = pytest.mark.serves
COMMITS, EACH = 4, 5
_TOLD = "SELECT kind, detail FROM notices WHERE kind IN ('damage', 'missing')"


@pytest.fixture
def books(stack_settings: Any, tmp_path: Any) -> Any:
    orders.write_orders(tmp_path / "pipelines", rows=1)
    settings = stack_settings.model_copy(update={"pipelines_dir": tmp_path / "pipelines"})
    services.migrate(settings)
    services.run_deploy(settings, tmp_path / "pipelines" / "orders", who="test")
    books = Books(settings, orders.team_of(settings.pipelines_dir))
    for commit in range(COMMITS):
        numbers = range(commit * EACH, commit * EACH + EACH)
        books.park([parked(order(n, books.team)) for n in numbers], commit + 1)
    yield books
    books.tracker.close()


def segments(books: Books) -> list[Segment]:
    from waybill.parking.reading import segments_in_order

    return list(segments_in_order(books.tracker))


def rows(books: Books, query: str) -> list[tuple[Any, ...]]:
    with books.tracker.transaction() as connection:
        return [tuple(row) for row in connection.execute(text(query))]


def spoil(books: Books, number: int, how: str) -> bytes:
    """Damage one segment's object; returns its bytes as they were."""
    segment = segments(books)[number]
    body = books.objects.get(segment.object_key)
    if how == "gone":
        books.objects.delete([segment.object_key])
        return body
    flipped = bytearray(body)
    flipped[segment.position + segment.length // 2] ^= 1
    changed = {"flipped": bytes(flipped), "cut": body[: segment.length // 2], "empty": b""}[how]
    books.objects.put(segment.object_key, changed)
    return body


def run(books: Books, run_id: str = "r1", **conditions: Any) -> Any:
    return run_replay(books.settings, **NAMES, **conditions, who="ann", run_id=run_id)


def numbers(books: Books) -> list[int]:
    return sorted(event.data["number"] for event in books.sent())


@pytest.mark.parametrize("how", ["flipped", "cut", "empty", "gone"])
def test_the_rest_is_replayed_and_the_outcome_says_what_was_not(books: Books, how: str) -> None:
    whole = spoil(books, 1, how)
    key = segments(books)[1].object_key
    report = run(books)
    assert numbers(books) == [n for n in range(20) if n not in range(5, 10)]
    assert (report.events, report.sent, report.quarantined) == (20, 15, 5)
    assert "5 events" in report.problem
    assert "all else was sent (15 events)" in report.problem
    assert "`waybill parked recheck`" in report.problem
    [partition] = services.parked_partitions(books.settings)
    assert (partition.parked, partition.replaying, partition.replayed) == (0, 0, 15)
    assert partition.quarantined == 5
    assert services.balance(books.settings).quarantined == 5
    kind = "missing" if how == "gone" else "damage"
    [(said, detail)] = rows(books, _TOLD)
    assert (said, detail["object_key"], detail["events"]) == (kind, key, 5)
    assert rows(books, "SELECT who FROM audit_log WHERE action = 'quarantine'") == [("ann",)]
    assert run(books).problem == report.problem, "a run that is done says it again"
    mend_and_replay(books, key, whole)


def test_what_became_of_the_rest_is_told_although_some_is_damaged(books: Books) -> None:
    [partition] = services.parked_partitions(books.settings)
    spoil(books, 1, "gone")
    run(books)
    sent = sorted(books.sent(), key=lambda event: event.id)
    books.process(sent[:1])
    books.load()
    outcome = services.replay_outcome(books.settings, partition, "r1", wait_s=0)
    assert (outcome.sent, outcome.passed, outcome.waits_for) == (15, 14, "")
    assert outcome.parked_again == {"mapping/not_null_violation": 1}


def mend_and_replay(books: Books, key: str, whole: bytes) -> None:
    left = services.recheck_quarantine(books.settings, Decision("bob"))
    assert (left.segments, left.left_events) == (0, 5)
    books.objects.put(key, whole)
    assert services.recheck_quarantine(books.settings, Decision("bob")).events == 5
    report = run(books, "r2")
    assert (report.sent, report.problem) == (5, "")
    assert numbers(books) == list(range(20))
    assert books.parking.refresh(grace_s=0).aggregates_corrected == 0


def test_a_segment_that_a_condition_cuts_through_is_told_by_that_replay(books: Books) -> None:
    spoil(books, 3, "flipped")
    report = run(books, max_events=17)
    assert (report.sent, report.quarantined) == (15, 5)
    assert report.problem
    assert numbers(books) == list(range(15))


def test_one_lost_object_with_many_segments_is_told_once(books: Books) -> None:
    many = [parked(order(n, books.team)) for n in range(20, 26)]
    for n, one in enumerate(many):
        one.message = "one" if n % 2 else "another"
    books.park(many, COMMITS + 1)
    books.objects.delete([segments(books)[-1].object_key])
    report = run(books)
    assert (report.sent, report.quarantined) == (20, 6)
    assert len(rows(books, _TOLD)) == 1


def test_the_command_looks_again(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in books.settings.to_env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WAYBILL_HOME", str(books.settings.home))
    whole = spoil(books, 0, "gone")
    key = segments(books)[0].object_key
    run(books)
    again = CliRunner().invoke(app, ["parked", "recheck", "orders"])
    assert again.exit_code == 2
    assert "still quarantined: 1 part of a file: the object is gone from the store" in " ".join(
        again.stdout.split()
    )
    books.objects.put(key, whole)
    again = CliRunner().invoke(app, ["parked", "recheck"])
    assert (again.exit_code, again.stdout) == (0, "5 events parked again\n")


def test_a_dry_run_names_what_is_lost_and_fails(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in books.settings.to_env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WAYBILL_HOME", str(books.settings.home))

    def dry(*words: str) -> tuple[int, str]:
        pipeline, event, stage, error = NAMES.values()
        names = [pipeline, "-e", event, "-s", stage, "-t", error]
        done = CliRunner().invoke(app, ["parked", *words, *names], env={"COLUMNS": "80"})
        return done.exit_code, " ".join((done.stdout + done.stderr).split())

    keys = [segment.object_key for segment in segments(books)]
    spoil(books, 1, "gone")
    for words in (("replay", "--dry-run"), ("dry-run",)):
        code, said = dry(*words)
        assert code == 2
        assert " of 15 would pass" in said
        assert f"5 events of {keys[1]} could not be read: the object is gone from" in said
        assert "`waybill parked recheck`" in said
    for number in (0, 2, 3):
        spoil(books, number, "gone")
    code, said = dry("replay", "--dry-run")
    assert code == 2
    assert "over order transformation/null_value: none of it can be read" in said
    assert all(f"5 events of {key} could not be read" in said for key in keys)
    run(books)  # sets all apart
    for words in (("replay", "--dry-run"), ("dry-run",)):
        code, said = dry(*words)
        assert code == 2
        assert "20" in said
        assert "quarantine" in said
        assert "`waybill parked lost`" in said
