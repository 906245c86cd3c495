import subprocess
import sys
from datetime import UTC, datetime
from uuid import UUID

import pytest

import waybill.notices
from waybill.notices import KINDS, Message, NamedCounts

AT = datetime(2026, 1, 1, tzinfo=UTC)


def test_the_public_names_are_these():
    assert sorted(waybill.notices.__all__) == [
        "KINDS",
        "Kind",
        "Message",
        "NamedCounts",
        "SendReport",
        "SentNotice",
        "Sink",
        "SinkAwayError",
        "SinkError",
        "WaitingNotice",
        "one_line",
        "open_sinks",
        "send_notices",
        "send_test",
        "sent_notices",
        "waiting_notices",
        "write_first",
        "write_notice",
    ]
    assert all(hasattr(waybill.notices, name) for name in waybill.notices.__all__)


def test_who_only_writes_notices_pays_for_no_client():
    code = "import sys, waybill.notices; print({'httpx', 'smtplib', 'email'} & set(sys.modules))"
    path = next(p for p in sys.path if p.endswith("include"))
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": path}, check=True, capture_output=True
    )
    assert "httpx" not in done.stdout.decode()
    assert "smtplib" not in done.stdout.decode()


@pytest.mark.parametrize("kind", [*KINDS, "of a later release"])
def test_each_kind_has_words_also_one_that_this_release_does_not_know(kind):
    numbers = {"parked": 1, "new": 1, "kinds": 1, "partitions": []} if kind == "digest" else {}
    named = NamedCounts(kind, "flights", AT, {"stage": "mapping", "reason": "why\nnot", **numbers})
    message = Message(UUID(int=1), "ann", (named,), {kind: 1})
    assert "flights" in message.text
    assert message.subject.startswith("Waybill: 1 ")
    if kind != "digest":
        assert "reason: why\\nnot" in message.text


def test_a_text_of_many_long_lines_is_cut_and_says_so():
    rows = [{"event_name": "é" * 900, "stage": "\x00" * 900, "error_type": "x", "new": 1}] * 10
    rows = [{**row, "parked": 1, "oldest": None, "message": "\x1b" * 5000} for row in rows]
    detail = {"parked": 1, "new": 1, "kinds": 99, "partitions": rows}
    named = tuple(NamedCounts("digest", "p" * 900, AT, detail) for _ in range(20))
    message = Message(UUID(int=1), "ann", named, {"digest": 20})
    assert len(message.text) <= 30_000
    assert message.text.endswith("[cut]")
    assert "\x1b" not in message.text
    assert len(message.subject) < 800
