"""What a supervisor does with an application: from its row, and from what its backend says."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import psutil
from hypothesis import given
from hypothesis import strategies as st

from waybill.back_off import BackOff
from waybill.clusters import Application, decide, needs_look, process_identity, process_state
from waybill.clusters.applications import (
    HANGS_S,
    LEASE_S,
    RESTARTS,
    STALE_S,
    application_state,
    older_code,
)
from waybill.clusters.serving import ApplicationEnd
from waybill.clusters.supervision import KILL_S

NOW_S = 1_000_000.0
times = st.floats(NOW_S - 10_000, NOW_S + 10_000)
words = st.sampled_from(["alive", "dead", "unknown", "no answer"])
rows = st.builds(
    Application,
    cluster=st.just("default"),
    kind=st.sampled_from(["processing", "loading"]),
    now_s=st.just(NOW_S),
    epoch=st.integers(0, 9),
    wanted=st.sampled_from(["running", "stopped"]),
    wanted_s=times,
    restart_epoch=st.integers(0, 9),
    at_work=st.booleans(),
    started_s=st.none() | times,
    heartbeat_s=st.none() | times,
    ended_s=st.none() | times,
    failures=st.integers(0, 40),
    tracker_since_s=times,
)
WORKS = Application(
    "default",
    "processing",
    NOW_S,
    epoch=3,
    started_s=NOW_S - 900,
    heartbeat_s=NOW_S - 2,
    at_work=True,
)


# Starting


@given(rows, st.sampled_from(["alive", "no answer"]))
def test_reports_that_stay_away_start_nothing_while_it_lives_or_nobody_answers(row, word):
    started = replace(row, epoch=max(1, row.epoch))
    assert decide(started, word) != "start"


@given(rows)
def test_what_nobody_can_ask_after_is_replaced_only_after_its_end_was_written_down(row):
    if row.epoch and decide(row, "unknown") == "start":
        assert row.ended_s is not None


@given(rows, words)
def test_what_is_to_be_stopped_is_never_started(row, word):
    assert decide(replace(row, wanted="stopped"), word) != "start"


@given(rows, words)
def test_only_what_lives_and_should_not_is_ended(row, word):
    if decide(row, word) in {"stop", "kill"}:
        assert word == "alive"
        is_unwanted = row.wanted == "stopped" or row.restart_epoch >= row.epoch
        assert is_unwanted or row.silence_s >= HANGS_S


@given(rows, st.floats(-10_000, 10_000))
def test_a_confirmed_death_is_followed_by_a_start_whatever_the_clock_was_set_to(row, moved_s):
    dead = replace(row, wanted="running", epoch=max(1, row.epoch))
    waited = replace(dead, now_s=NOW_S + moved_s)
    if waited.ended_s is None or waited.ended_s <= waited.now_s:
        waited = replace(waited, now_s=waited.now_s + RESTARTS.longest_s)
    assert decide(waited, "dead") == "start"


@given(rows, words)
def test_a_row_that_needs_no_look_would_be_left_alone(row, word):
    """The trigger sees the row alone: what it lets pass must be what a supervisor lets pass."""
    is_confirmed = row.ended_s is not None  # then nothing of it lives
    if not needs_look(row, version="0.0.0") and word != "dead" and not is_confirmed:
        assert decide(row, word) == "wait"


def test_waits_between_restarts_double_and_a_restart_that_was_asked_for_waits_not_at_all():
    back_off = BackOff(1.0, 8.0)
    ended = replace(WORKS, ended_s=NOW_S, failures=3)
    assert ended.waits_s(back_off) == 4.0
    assert decide(ended, "dead", back_off=back_off) == "wait"
    assert decide(replace(ended, now_s=NOW_S + 4), "dead", back_off=back_off) == "start"
    assert decide(replace(ended, restart_epoch=3), "dead", back_off=back_off) == "start"


def test_what_nobody_can_ask_after_has_time_to_report_once_its_lease_is_found_over():
    """The tracker, or the way to it, was away for everybody: it came back for a supervisor first."""
    silent = replace(WORKS, heartbeat_s=NOW_S - LEASE_S)
    assert decide(silent, "unknown") == "wait"
    given_up = replace(silent, ended_s=NOW_S)
    assert decide(given_up, "unknown") == "wait"
    assert decide(replace(given_up, now_s=NOW_S + STALE_S), "unknown") == "start"
    assert decide(replace(given_up, now_s=NOW_S - 900), "unknown") == "start", "set back since"


def test_one_that_was_never_started_is_started_and_not_asked_after():
    new = Application("default", "processing", NOW_S)
    assert needs_look(new)
    assert decide(new, "unknown") == "start"
    assert not needs_look(replace(new, wanted="stopped"))


# Looking


def test_what_reports_is_left_alone_and_what_is_silent_is_asked_after():
    assert not needs_look(WORKS)
    assert needs_look(replace(WORKS, heartbeat_s=NOW_S - STALE_S))
    starting = replace(WORKS, heartbeat_s=None, started_s=NOW_S - 30)
    assert not needs_look(starting)
    assert needs_look(replace(starting, started_s=NOW_S - 61))


def test_nobody_is_silent_for_longer_than_the_tracker_is_up():
    away = replace(WORKS, heartbeat_s=NOW_S - 900, tracker_since_s=NOW_S - 10)
    assert (away.is_stale, away.is_expired) == (False, False)
    assert decide(away, "unknown") == "wait"
    set_back = replace(away, heartbeat_s=NOW_S - 900, tracker_since_s=NOW_S + 3600)
    assert not set_back.is_ahead, "the tracker was started before the clock was set back"


def test_a_clock_that_was_set_back_makes_a_report_worth_nothing_but_ends_no_lease():
    set_back = replace(WORKS, heartbeat_s=NOW_S + 3600)
    assert set_back.is_stale
    assert not set_back.is_expired
    assert decide(set_back, "alive") == "wait"
    assert decide(set_back, "dead") == "start"


def test_who_does_not_end_when_asked_is_killed_after_a_minute():
    asked = replace(WORKS, wanted="stopped", wanted_s=NOW_S - 1)
    assert needs_look(asked)
    assert decide(asked, "alive") == "stop"
    assert decide(replace(asked, wanted_s=NOW_S - KILL_S), "alive") == "kill"
    assert decide(replace(WORKS, restart_epoch=3, wanted_s=NOW_S), "alive") == "stop"


def test_one_that_lives_and_reports_no_more_is_killed_after_half_an_hour():
    hangs = replace(WORKS, heartbeat_s=NOW_S - HANGS_S)
    assert needs_look(hangs)
    assert decide(hangs, "alive") == "kill"
    assert decide(replace(hangs, now_s=NOW_S - 1), "alive") == "wait"
    assert decide(replace(hangs, tracker_since_s=NOW_S - 60), "alive") == "wait"


def test_older_code_is_replaced_and_newer_code_left_alone():
    older = replace(WORKS, backend="process", code_version="0.9.12")
    assert older_code(older, "0.10.0")
    assert not older_code(replace(older, code_version="0.10.0"), "0.9.12")
    assert not older_code(replace(older, code_version="0.10.0"), "0.10.0")
    assert not older_code(replace(older, code_version=""), "0.10.0")
    assert needs_look(older, version="0.10.0")


def test_what_a_cluster_runs_has_the_version_of_its_image_and_is_never_replaced_for_it():
    submitted = replace(WORKS, backend="spark", code_version="0.9.12")
    assert not needs_look(submitted, version="0.10.0")


def test_words_for_how_it_is_come_from_the_row():
    assert application_state(WORKS) == "at work"
    assert application_state(replace(WORKS, at_work=False)) == "starting"
    assert application_state(replace(WORKS, heartbeat_s=NOW_S - 99)) == "not heard of"
    assert application_state(replace(WORKS, restart_epoch=3)) == "stopping"
    assert application_state(replace(WORKS, ended_s=NOW_S)) == "waits for its start"
    assert application_state(replace(WORKS, ended_s=NOW_S, wanted="stopped")) == "stopped"
    left = replace(WORKS, at_work=False, end=ApplicationEnd(WORKS.epoch, NOW_S, "StopError: x"))
    assert application_state(left) == "ended"
    assert application_state(replace(left, wanted="stopped")) == "stopped"
    assert application_state(replace(left, heartbeat_s=NOW_S + 1)) == "starting"  # it came back
    assert (left.last_end, replace(left, epoch=left.epoch + 2).last_end) == (left.end, None)


# Processes


def test_a_process_is_known_by_host_boot_and_start_beside_its_pid():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = process_identity(child.pid)
    assert process_state(identity) == "alive"
    host, machine, namespace, boot, start, pid = identity.rsplit(":", 5)
    place = f"{host}:{machine}:{namespace}"
    other = f"{place}:{boot}:{int(start) + 1}:{pid}"
    assert process_state(other) == "dead", "its pid is another process's"
    assert process_state(f"{place}:before:{start}:{pid}") == "dead", "a boot ago"
    rest = f"{boot}:{start}:{pid}"
    assert process_state(f"elsewhere:{machine}:{namespace}:{rest}") == "unknown"
    assert process_state(f"{host}:{machine}:1:{rest}") == "unknown", "another container"
    namesake = f"{host}:another:{namespace}:before:{start}:{pid}"
    assert process_state(namesake) == "unknown", "another machine of the same name"
    child.kill()
    while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
        pass
    assert process_state(identity) == "dead", "a zombie runs nothing"
    child.wait()
    assert process_state(identity) == "dead"


PLACE = process_identity(os.getpid()).rsplit(":", 3)[0]
parts = st.text(st.characters(exclude_characters=":"), max_size=9)


@given(st.lists(parts, max_size=8).map(":".join), parts, st.integers(1, 9_999_999))
def test_a_text_that_names_no_process_of_this_host_is_nobodys_death(text, boot, pid):
    assert process_state(text) == "unknown"
    assert process_state(f"{text}:{boot}:1:{pid}") == "unknown", "a process of another host"


@given(parts, parts, parts.filter(lambda part: not part.isdecimal()))
def test_what_is_no_pid_is_nobodys_death(boot, start, pid):
    assert process_state(f"{PLACE}:{boot}:{start}:{pid}") == "unknown"


def test_a_process_that_nobody_may_look_at_is_not_dead(monkeypatch):
    def refuse(self):
        raise psutil.AccessDenied(self.pid)

    monkeypatch.setattr(psutil.Process, "status", refuse)
    assert process_state(process_identity(os.getpid())) == "unknown"


def test_this_process_lives():
    assert process_state(process_identity(os.getpid())) == "alive"
