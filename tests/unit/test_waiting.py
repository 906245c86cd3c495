"""A server that is being restarted is waited for where a person waits, and only there."""

from __future__ import annotations

import pytest

from waybill import waiting as room
from waybill.errors import AwayError, RetryError
from waybill.waiting import answered, nobody_waiting, waiting


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(room.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(room.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


def away_until(now, at_s, kind=AwayError):
    def ask():
        if now[0] < at_s:
            raise kind("the tracker did not answer\nmore", **_setting(kind))
        return "here"

    return ask


def _setting(kind):
    return {"setting": "WAYBILL_TRACKER__DSN"} if kind is AwayError else {}


def test_nobody_waits_by_default(clock):
    with pytest.raises(AwayError):
        answered(away_until(clock, 1))
    assert clock == [0.0]


def test_a_server_that_comes_back_is_waited_for_and_named_once(clock):
    heard = []
    with waiting(60, heard.append):
        assert answered(away_until(clock, 40)) == "here"
    assert heard == ["waiting up to 60 s: the tracker did not answer"]


def test_a_server_that_goes_away_again_is_named_again(clock):
    heard = []
    with waiting(60, heard.append):
        answered(away_until(clock, 5))
        answered(away_until(clock, clock[0] + 5))
    assert len(heard) == 2


def test_a_server_that_stays_away_is_waited_for_no_longer_than_said(clock):
    with waiting(60, lambda _words: None), pytest.raises(AwayError):
        answered(away_until(clock, 1000))
    assert 60 <= clock[0] < 65
    with pytest.raises(AwayError):
        answered(away_until(clock, 1000))


def test_a_service_that_a_command_runs_has_its_own_tries_and_waits_for_nothing_more(clock):
    with waiting(60, lambda _words: None):
        with nobody_waiting(), pytest.raises(AwayError):
            answered(away_until(clock, 40))
        assert clock == [0.0]
        assert answered(away_until(clock, 40)) == "here"


def test_other_errors_are_waited_for_only_where_asked(clock):
    with waiting(60, lambda _words: None):
        with pytest.raises(RetryError):
            answered(away_until(clock, 5, RetryError))
        assert answered(away_until(clock, 5, RetryError), kind=RetryError) == "here"
