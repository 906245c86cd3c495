"""What applications report of their consumers: short, plain, and without secrets."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from waybill.clusters import Heartbeat, serving
from waybill.clusters.serving import (
    MOST_NAMED,
    ApplicationEnd,
    HeldConsumer,
    Serving,
    error_words,
    held_words,
    plain_words,
    serving_words,
)
from waybill.errors import InputError, RetryError, SettleError, StopError, WaybillError
from waybill.ledger import FencedError

LEADERLESS = RetryError("partition 0 has no leader")


def test_a_report_is_small_whatever_fails_and_says_what_fails_first():
    hostile = "\x1b[2J\r\nOK \u202e" + "x" * 100_000
    held = [HeldConsumer(f"{n}{hostile}", "waits", hostile) for n in range(3_000)]
    held.append(HeldConsumer.of("z", SettleError("made anew"), ""))
    held.append(HeldConsumer.of("y", LEADERLESS, ""))
    found = Serving.of(3, 5_000, held)
    assert (found.running, found.failing, len(found.held)) == (1_998, 1, MOST_NAMED)
    assert [(one.name, one.kind) for one in found.held[:2]] == [("y", "fails"), ("z", "stopped")]
    said = "serving 1,998 of 5,000 topics; 1 fails, 1 stopped, 3,000 wait"
    assert serving_words(found, "topic") == said
    assert found.held[2].why.startswith("\\x1b[2J OK \\u202exxx")
    assert all(text.isprintable() for one in found.held for text in (one.name, one.why))
    assert len(json.dumps(found.to_json())) < 6_000
    written = json.loads(json.dumps(found.to_json() | {"epoch": 4}))
    assert (Serving.read(written, epoch=4), Serving.read(written, epoch=5)) == (found, None)


def test_however_many_do_not_run_words_are_made_for_those_that_are_named(monkeypatch):
    made = []
    monkeypatch.setattr(serving, "plain_words", lambda text, **_: made.append(text) or text)
    held = [HeldConsumer.of(str(n), LEADERLESS, "") for n in range(5_000)]
    Serving.of(3, 5_000, held)
    assert len(made) == 2 * MOST_NAMED  # a name and a reason each


def test_words_of_an_error_that_is_made_of_names_of_secrets_take_no_long_time():
    began = time.thread_time()
    for _ in range(20):
        plain_words("secret" * 700)
    assert time.thread_time() - began < 0.2


@pytest.mark.parametrize(
    "value", [None, 3, [], {}, {"version": "x", "epoch": 1}, {"version": 1, "held": 2, "epoch": 1}]
)
def test_what_another_release_wrote_otherwise_is_not_known(value):
    assert Serving.read(value, epoch=1) is None
    assert ApplicationEnd.read(value) is None


@pytest.mark.parametrize(
    ("words", "secret"),
    [
        ("no answer of postgresql://ann:hunter2@db/x", "hunter2"),
        ("conf: sasl.password=hunter2, more", "hunter2"),
        ("{'secret_key': 'hunter2', 'region': 'x'}", "hunter2"),
        ("AWS_SECRET_ACCESS_KEY=hunter2", "hunter2"),
        ("?access_token=hunter2&x=1", "hunter2"),
        ("no answer of s3://ann:pa/hunter2@db", "hunter2"),
        ("no answer of s3://ann:p@hunter2@db", "hunter2"),
        ("no answer of s3://ann@x.org:hunter2@db", "hunter2"),
        ("conf: password='two hunter2' of x", "hunter2"),
        ('conf: password="two \\" hunter2" of x', "hunter2"),
        ('{\\"password\\": \\"hunter2\\"}', "hunter2"),
        ("conf: [('password', 'hunter2')]", "hunter2"),
        ("conf: pwd=hunter2", "hunter2"),
        ("conf: api_key=hunter2", "hunter2"),
        ("conf: private_key=hunter2", "hunter2"),
        ("conf: passphrase: hunter2", "hunter2"),
        ("conf: AccountKey=hunter2==;x=1", "hunter2"),
        ("sent Authorization: Bearer hunter2", "hunter2"),
        ("sent Authorization: Basic hunter2", "hunter2"),
        ("?X-Amz-Signature=hunter2&x=1", "hunter2"),
    ],
)
def test_no_password_that_an_error_quotes_is_reported(words, secret):
    said = error_words(ValueError(words))
    assert secret not in said
    assert said.startswith(f"ValueError: {words[:5]}")
    assert "***" in said


@pytest.mark.parametrize(
    "words", ["Topic authorization failed.", "http://h:80/x is away", "the basic tokens are known"]
)
def test_what_is_no_password_is_reported(words):
    assert error_words(ValueError(words)) == f"ValueError: {words}"


def test_an_application_is_unable_where_nothing_runs_and_not_only_by_decisions_to_come():
    stop = HeldConsumer.of("a", SettleError("made anew"), "")
    fails, waits = HeldConsumer.of("b", LEADERLESS, ""), HeldConsumer.of("c", None, "its turn")
    assert Serving.of(1, 3, [stop, fails, waits]).is_unable
    assert not Serving.of(1, 4, [stop, fails, waits]).is_unable
    assert not Serving.of(1, 2, [stop, waits]).is_unable
    assert not Serving.of(1, 0, []).is_unable


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InputError("its topic is compacted"), "stopped"),
        (SettleError("made anew"), "stopped"),
        (FencedError("taken over"), "fails"),
        (StopError("its staged rows lack a column: a defect"), "fails"),
        (LEADERLESS, "fails"),
        (WaybillError("KeyError: a defect"), "fails"),
    ],
)
def test_what_somebody_has_to_settle_is_stopped_and_all_else_fails(error, kind):
    assert HeldConsumer.of("a", error, "").kind == kind


class GoneError(Exception):
    """Whose words cannot be read any more."""

    def __str__(self) -> str:
        raise ConnectionRefusedError("the JVM has ended")


class RefusedLease:
    """Of an application whose tracker refuses its password from now on."""

    why = ""

    def note_end(self, why: str) -> None:
        self.why = why
        raise InputError("the tracker refuses the password")


def test_what_ends_an_application_is_not_replaced_by_what_fails_as_that_is_told():
    lease: Any = RefusedLease()
    with pytest.raises(GoneError), Heartbeat(lease, every_s=60):
        raise GoneError
    assert lease.why == "GoneError"


def test_lines_for_people():
    fails, waits = HeldConsumer.of("b", LEADERLESS, ""), HeldConsumer.of("c", None, "for its turn")
    assert serving_words(Serving.of(1, 1, []), "topic") == "serving 1 of 1 topic"
    found = Serving.of(1, 2_000, [fails, waits, waits])
    assert serving_words(found, "topic") == "serving 1,997 of 2,000 topics; 1 fails, 2 wait"
    assert held_words(fails) == "b: fails: RetryError: partition 0 has no leader"
    assert held_words(waits) == "c: waits for its turn"
