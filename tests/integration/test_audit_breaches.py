"""Breaches: one open of a key, ended by themselves or by name, told once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text
from tests.support.books import MINUTE, counts, nothing_parked, open_books

from waybill.access import Decision
from waybill.errors import InputError
from waybill.ledger import IntakeCommit, commit_intake, fold
from waybill.reconciliation import (
    BreachKey,
    Opened,
    close_breach,
    minute_states,
    open_breach,
    read_breach,
    read_breaches,
    settle,
)
from waybill.storage import TrackerStore

pytestmark = pytest.mark.serves
KEY = BreachKey("p", "on_the_way", "order", "transformation", MINUTE)


@pytest.fixture
def tracker(postgres: Any) -> Iterator[TrackerStore]:
    with open_books(postgres, "breaches") as books:
        yield books


def opened(tracker: TrackerStore, gap: int, key: BreachKey = KEY) -> Opened | None:
    with tracker.transaction() as connection:
        return open_breach(connection, key, gap=gap, words=f"{gap} are missing")


def settled(tracker: TrackerStore, *, stands: bool = False, key: BreachKey = KEY) -> int | None:
    with tracker.transaction() as connection:
        return settle(connection, key, reason="they came", stands=stands)


def told(tracker: TrackerStore) -> list[dict[str, Any]]:
    with tracker.transaction() as connection:
        rows = connection.execute(text("SELECT detail FROM notices WHERE kind = 'breach'"))
        return [row.detail for row in rows]


def test_a_breach_opens_once_and_is_told_once(tracker: TrackerStore) -> None:
    first, again = opened(tracker, 3), opened(tracker, 2)
    assert first is not None and first.new
    assert again == Opened(first.id, new=False)
    [found] = read_breaches(tracker)
    assert (found.gap, found.state, found.words) == (2, "open", "2 are missing")
    assert [said["what"] for said in told(tracker)] == ["3 are missing"]


def test_settled_breaches_stay_and_a_later_one_is_another(tracker: TrackerStore) -> None:
    first = opened(tracker, 3)
    assert first is not None
    assert settled(tracker) == first.id
    assert settled(tracker) is None
    later = opened(tracker, 3)
    assert later is not None and later.new and later.id != first.id
    assert [one.state for one in read_breaches(tracker)] == ["open", "explained"]
    assert [said["breach"].split(", ")[1] for said in told(tracker)] == [
        "opened",
        "explained",
        "opened",
    ]


def test_what_was_closed_by_name_stands_while_the_gap_is_the_same(tracker: TrackerStore) -> None:
    first = opened(tracker, 3)
    assert first is not None
    closed = close_breach(tracker, first.id, Decision("anna", "sent by hand"))
    assert (closed.state, closed.ended_by, closed.reason) == ("closed", "anna", "sent by hand")
    assert opened(tracker, 3) is None
    other = opened(tracker, 4)
    assert other is not None and other.new
    with tracker.transaction() as connection:
        [entry] = connection.execute(text("SELECT who, action, detail FROM audit_log")).all()
    assert (entry.who, entry.action) == ("anna", "close_breach")
    assert (entry.detail["why"], entry.detail["gap"]) == ("sent by hand", 3)


def test_what_was_closed_and_is_over_opens_when_it_comes_again(tracker: TrackerStore) -> None:
    key = BreachKey("p", "quiet")
    first = opened(tracker, 0, key)
    assert first is not None
    close_breach(tracker, first.id, Decision("anna", "known"))
    assert opened(tracker, 0, key) is None
    settled(tracker, key=key)
    assert opened(tracker, 0, key) is not None


def test_a_harmless_gap_stands(tracker: TrackerStore) -> None:
    opened(tracker, -1)
    assert settled(tracker, stands=True) is not None
    assert opened(tracker, -1) is None
    assert opened(tracker, -2) is not None


def test_closing_what_ended_or_is_not_there_is_refused(tracker: TrackerStore) -> None:
    first = opened(tracker, 3)
    assert first is not None
    settled(tracker)
    with pytest.raises(InputError, match="is explained already"):
        close_breach(tracker, first.id, Decision("anna", "why not"))
    with pytest.raises(InputError, match="does not exist"):
        close_breach(tracker, 4711, Decision("anna", "why not"))
    with pytest.raises(InputError, match="why"):
        close_breach(tracker, first.id, Decision("anna", " "))


def test_names_of_any_kind_make_a_breach(tracker: TrackerStore) -> None:
    key = BreachKey("p", "quiet", "a\u202e'; DROP", "x\ud800".encode("utf-8", "replace").decode())
    found = opened(tracker, 1, key)
    assert found is not None
    read = read_breach(tracker, found.id)
    assert read is not None
    assert read.key == key


def test_minutes_show_what_went_in_and_wait_for_the_audit(tracker: TrackerStore) -> None:
    page = counts("ingestion", in_first=10, passed=9, out=9, parked=1)
    commit_intake(tracker, IntakeCommit("p", 1, {}, 10, page), nothing_parked)
    fold(tracker)
    [state] = minute_states(tracker, "p", MINUTE, MINUTE + 1)
    assert (state.stage, state.came_in, state.out, state.parked) == ("ingestion", 10, 9, 1)
    assert state.verdict == "moving"
    assert not list(minute_states(tracker, "p", MINUTE + 1, MINUTE + 2))
    assert not list(minute_states(tracker, "p", MINUTE, MINUTE + 1, event_name="other"))
    with tracker.transaction() as connection:
        connection.execute(text("DELETE FROM audit_minutes"))
    [state] = minute_states(tracker, "p", MINUTE, MINUTE + 1)
    assert (state.verdict, state.gap, state.why) == ("balanced", 0, "")
