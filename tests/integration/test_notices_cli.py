"""``waybill notices`` and the settings behind it, against the real tracker and a real web server."""

from __future__ import annotations

import json
import re

import pytest
from pydantic import ValidationError
from tests.integration import parking_lot
from tests.integration.parking_lot import make_event
from tests.support.told import declare, web_server
from typer.testing import CliRunner

from waybill.cli.notices import app
from waybill.settings import NoticeSettings

pytestmark = pytest.mark.serves
lot, opened_lots = parking_lot.lot, parking_lot.opened_lots


@pytest.fixture
def webhook():
    with web_server() as found:
        yield found


@pytest.fixture
def run(lot, webhook, monkeypatch, tmp_path):
    for name, value in {
        "WAYBILL_HOME": str(tmp_path),
        "WAYBILL_TRACKER__DSN": lot.settings["dsn"],
        "WAYBILL_NOTICES__LOG": "false",
        "WAYBILL_NOTICES__WEBHOOK_URL": webhook.url,
        "COLUMNS": "250",
    }.items():
        monkeypatch.setenv(name, value)

    def call(*words, code=0):
        done = CliRunner().invoke(app, words)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == code, done.output
        return json.loads(done.output) if "--json" in words else done.output

    return call


def test_where_no_sink_reaches_a_person_the_list_says_so(run, monkeypatch):
    reached = "Neither a webhook nor a mail server is set"
    assert reached not in run("list")
    monkeypatch.delenv("WAYBILL_NOTICES__WEBHOOK_URL")
    said = " ".join(run("list").split())
    assert f"{reached}, so nothing is sent, and notices are only listed here" in said
    monkeypatch.setenv("WAYBILL_NOTICES__LOG", "true")
    assert "only written to the log of the task `shift` of the DAG upkeep" in " ".join(
        run("list").split()
    )


def test_what_waits_is_listed_sent_and_gone(lot, webhook, run):
    assert "No notice waits to be sent." in run("list")
    declare(lot, "pl-1", "ann@example.org", "flights\x1b[2J")
    lot.park([make_event(1), make_event(2, name="bag")], 1)
    shown = run("list")
    assert "ann@example.org" in shown
    assert "first in flights\\x1b[2J" in shown
    [row] = run("list", "--json")
    assert (row["kind"], row["notices"], row["sink"]) == ("first", 2, "")
    webhook.answer = 503
    assert "0 messages sent, 0 notices; 1 not taken" in run("send", code=2)
    assert "the webhook answered 503" in run("list")
    assert run("send", "--json")["failed"] == 0  # not due yet
    webhook.answer = 200
    lot.sql("UPDATE notice_messages SET next_try_at = clock_timestamp()")
    assert "1 message sent, 2 notices" in run("send")
    assert "No notice waits to be sent." in run("list")


def test_a_test_message_says_which_way_works(webhook, run):
    assert run("test", "ann@example.org") == "webhook: taken\n"
    [content] = webhook.contents
    assert content["owner"] == "ann@example.org"
    assert "This is a test: nothing happened" in content["text"]
    webhook.answer = 401
    answers = run("test", "ann@example.org", "--json", code=2)
    assert answers == {"webhook": "the webhook answered 401: said\\r\\nso"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"webhook_url": "ftp://example.org"}, "webhook_url must start with"),
        ({"smtp_host": "mail.example.org"}, "smtp_from must say"),
        ({"smtp_host": "m", "smtp_from": "a@b\nBcc: c@d"}, "smtp_from must be one mail address"),
        ({"fallback_to": "a@b, c@d"}, "fallback_to must be one mail address"),
    ],
)
def test_settings_that_could_not_send_are_refused(given, words):
    with pytest.raises(ValidationError, match=words):
        NoticeSettings(**given)


def test_what_was_sent_is_listed_afterwards(lot, webhook, run):
    assert "Nothing that is kept was sent." in run("list", "--sent")
    declare(lot, "pl-1", "ann@example.org", "flights\x1b[2J")
    lot.park([make_event(1), make_event(2, name="bag")], 1)
    assert "Nothing that is kept was sent." in run("list", "--sent")
    run("send")
    [row] = run("list", "--sent", "--json")
    assert (row["owner"], row["kind"], row["notices"]) == ("ann@example.org", "first", 2)
    assert row["sinks"] == ["webhook"]
    shown = run("list", "--sent")
    assert "first in flights\\x1b[2J: the newest: " in shown
    assert " / transformation / null_value: message " in shown
    assert re.fullmatch(r"\w+ / transformation / null_value: message \d", row["newest"])
    personal = '{"owner": "ann@example.org", "events": {"bag": {"personal": ["n"]}}}'
    lot.sql("UPDATE pipeline_versions SET declaration = CAST(:new AS jsonb)", new=personal)
    [row] = run("list", "--sent", "--json")
    assert "null_value: (hidden: it may quote personal values)" in row["newest"]
    assert "webhook" in shown
