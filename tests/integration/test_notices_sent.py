"""Messages reach owners by a real web server, from the real tracker, whoever dies when."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import threading
from datetime import timedelta

import pytest
from tests.integration import parking_lot
from tests.integration.parking_lot import Points, TrackerWithPoints, make_event
from tests.support.books import sessions_ended
from tests.support.children import forked, was_killed
from tests.support.told import (
    Kept,
    change_owner,
    declare,
    end_waits,
    note,
    web_server,
)

from waybill.notices import (
    Message,
    SinkAwayError,
    outbox,
    send_notices,
    waiting_notices,
)
from waybill.settings import NoticeSettings, TrackerSettings

pytestmark = pytest.mark.serves
lot, opened_lots = parking_lot.lot, parking_lot.opened_lots
ANN, BOB = "ann@example.org", "bob@example.org"


@pytest.fixture
def webhook():
    with web_server() as found:
        yield found


def by_web(webhook, **changes):
    return NoticeSettings(**({"log": False, "webhook_url": webhook.url} | changes))


def unsent(lot):
    return lot.sql("SELECT count(*)::int FROM notices WHERE sent_at IS NULL")[0][0]


# Webhooks ----------------------------------------------------------------------------------------


def test_an_owner_gets_one_message_of_all_pipelines_and_others_get_their_own(lot, webhook):
    declare(lot, "pl-1", ANN, "flights")
    declare(lot, "pl-2", ANN, "trains")
    declare(lot, "pl-3", BOB, "ships")
    for pipeline in ("pl-1", "pl-2", "pl-3", "pl-gone"):
        note(lot, pipeline, event_name="go", stage="mapping", error_type="type_mismatch", count=2)
    report = send_notices(lot.tracker, by_web(webhook))
    assert (report.messages, report.notices, report.failed) == (3, 4, 0)
    [anns], [bobs], [nobodys] = webhook.to(ANN), webhook.to(BOB), webhook.to("")
    assert [item["pipeline"] for item in anns["notices"]] == ["flights", "trains"]
    assert "flights / go / mapping / type_mismatch, 2 events" in anns["text"]
    assert "A value does not fit its column's type." in anns["text"]
    assert bobs["subject"] == "Waybill: 1 new kind of parked events in ships"
    assert nobodys["notices"][0]["pipeline"] == "pl-gone"
    assert unsent(lot) == 0
    assert send_notices(lot.tracker, by_web(webhook)).messages == 0
    assert len(webhook.requests) == 3


def test_the_newest_declaration_says_who_is_told(lot, webhook):
    declare(lot, "pl-1", ANN)
    change_owner(lot, "pl-1", BOB, 2)
    note(lot)
    send_notices(lot.tracker, by_web(webhook))
    assert len(webhook.to(BOB)) == 1


def test_the_most_urgent_is_named_first(lot, webhook):
    for kind in ("first", "replay", "hold", "damage"):
        note(lot, kind=kind, count=1)
    for n in range(30):
        note(lot, n=n)
    send_notices(lot.tracker, by_web(webhook))
    [content] = webhook.contents
    kinds = [item["kind"] for item in content["notices"]]
    assert kinds == ["hold", "damage", "replay", *["first"] * 17]
    assert (content["more"], content["counts"]["first"]) == (14, 31)


def test_a_body_is_signed_and_names_are_neither_links_nor_mentions(lot, webhook):
    declare(lot, "pl-1", ANN)
    note(lot, event_name="<!channel> & \x1b[31m\u202e\nnew line", message="<http://x|y>")
    settings = by_web(webhook, webhook_secret="hush")
    send_notices(lot.tracker, settings)
    [(headers, body)] = webhook.requests
    text = webhook.contents[0]["text"]
    assert "&lt;!channel&gt; &amp; \\x1b[31m\\u202e\\nnew line" in text
    assert "&lt;http://x|y&gt;" in text
    signed = headers["X-Waybill-Timestamp"].encode() + b"." + body
    right = hmac.new(b"hush", signed, hashlib.sha256).hexdigest()
    assert headers["X-Waybill-Signature"] == f"sha256={right}"
    assert headers["Idempotency-Key"] == webhook.contents[0]["id"]
    assert "hush" not in repr(settings)
    assert "s3cret" not in repr(settings)


@pytest.mark.parametrize("answer", [302, 404, 500])
def test_what_is_not_taken_is_kept_with_its_id_and_tells_why(lot, webhook, answer):
    note(lot)
    webhook.answer = answer
    report = send_notices(lot.tracker, by_web(webhook))
    assert (report.messages, report.failed, report.stuck) == (0, 1, [])
    [item] = waiting_notices(lot.tracker)
    assert item.problem == f"the webhook answered {answer}: said\\r\\nso"
    assert (item.attempts, item.notices, unsent(lot)) == (1, 1, 1)
    assert send_notices(lot.tracker, by_web(webhook)).failed == 0  # it is not due yet
    end_waits(lot)
    webhook.answer = 200
    assert send_notices(lot.tracker, by_web(webhook)).messages == 1
    first, second = webhook.contents
    assert first["id"] == second["id"]
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert first["text"] == second["text"]
    assert unsent(lot) == 0
    assert waiting_notices(lot.tracker) == []


def test_waits_double_up_to_the_longest_and_what_waits_for_long_is_said(lot, webhook):
    note(lot)
    webhook.answer = 503
    settings = by_web(webhook, retry_first_s=100, retry_longest_s=300, stuck_after_s=1800)
    waits = []
    for _ in range(4):
        assert send_notices(lot.tracker, settings).stuck == []
        left = "SELECT extract(epoch FROM next_try_at - clock_timestamp()) FROM notice_messages"
        waits.append(float(lot.sql(left)[0][0]))
        end_waits(lot)
    assert waits == pytest.approx([100, 200, 300, 300], abs=20)
    lot.sql("UPDATE notice_messages SET made_at = made_at - interval '31 minutes'")
    [stuck] = send_notices(lot.tracker, settings).stuck
    assert "to nobody, with 1 notices, waits since" in stuck
    assert "answered 503" in stuck


def test_what_comes_while_a_message_fails_goes_in_one_after_it(lot, webhook):
    note(lot, n=0)
    webhook.answer = 500
    send_notices(lot.tracker, by_web(webhook))
    for n in range(1, 30):
        note(lot, n=n)
        send_notices(lot.tracker, by_web(webhook))
    assert len(webhook.requests) == 1
    webhook.answer = 200
    end_waits(lot)
    send_notices(lot.tracker, by_web(webhook))
    send_notices(lot.tracker, by_web(webhook))
    assert [sum(content["counts"].values()) for content in webhook.contents] == [1, 1, 29]


def test_a_server_that_hangs_or_is_gone_costs_three_tries_and_other_sinks_nothing(lot, webhook):
    for n in range(9):
        declare(lot, f"pl-{n}", f"owner-{n}")
        note(lot, f"pl-{n}")
    kept = Kept()
    webhook.hang_s = 120.0
    settings = by_web(webhook, webhook_timeout_s=0.2)
    from waybill.notices import open_sinks

    report = send_notices(lot.tracker, settings, [*open_sinks(settings), kept])
    assert (report.messages, report.failed) == (9, 3)
    assert len(kept.taken) == 9
    problems = {item.problem for item in waiting_notices(lot.tracker)}
    assert problems == {"", "the webhook did not answer: ReadTimeout"}
    webhook.hang_s = 0.0
    patient = by_web(webhook)
    report = send_notices(lot.tracker, patient, [*open_sinks(patient), kept])
    assert (report.messages, len(kept.taken)) == (6, 9)  # the three that failed still wait
    nowhere = by_web(webhook, webhook_url="http://127.0.0.1:1/hook/s3cret")
    end_waits(lot)
    assert send_notices(lot.tracker, nowhere).failed == 3
    assert "s3cret" not in repr(waiting_notices(lot.tracker))


def test_one_owner_whose_message_fails_holds_up_nobody(lot, webhook):
    for n in range(6):
        declare(lot, f"pl-{n}", f"owner-{n}")
        note(lot, f"pl-{n}")
    webhook.answer = lambda content: 400 if content["owner"] == "owner-2" else 200
    assert send_notices(lot.tracker, by_web(webhook)).messages == 5
    for n in range(6):
        note(lot, f"pl-{n}", n=n)
    assert send_notices(lot.tracker, by_web(webhook)).messages == 5
    assert [item.owner for item in waiting_notices(lot.tracker)] == ["owner-2", "owner-2"]


def test_an_error_nobody_thought_of_holds_up_nobody(lot):
    """Among them a digest that lacks its numbers: it cannot be put into words."""
    declare(lot, "pl-1", ANN)
    declare(lot, "pl-2", BOB)
    note(lot, "pl-1", kind="digest")
    note(lot, "pl-2")
    sink = Kept(fails=lambda message: None if message.text else "")
    report = send_notices(lot.tracker, NoticeSettings(), [sink])
    assert (report.messages, report.failed) == (1, 1)
    [item] = waiting_notices(lot.tracker)
    assert item.problem == "unexpected: KeyError: 'partitions'"


# Who dies when -----------------------------------------------------------------------------------


class Deadly:
    """Sends by a webhook, and dies after it, before anything is noted."""

    def __init__(self, sink, points):
        self.name, self.sink, self.points = sink.name, sink, points

    def send(self, message: Message) -> None:
        self.sink.send(message)
        self.points.pass_one()


def test_killed_anywhere_nothing_is_lost_and_doubles_are_known_by_their_id(lot, webhook):
    from waybill.notices import open_sinks

    settings = by_web(webhook)
    doubles = kill_at = 0
    while True:
        kill_at += 1
        webhook.requests.clear()
        note(lot, number=kill_at)

        def send(kill_at=kill_at):
            points = Points(kill_at)
            tracker = TrackerWithPoints(TrackerSettings(dsn=lot.settings["dsn"]))
            tracker.points = points
            send_notices(tracker, settings, [Deadly(open_sinks(settings)[0], points)])

        with sessions_ended(lot.tracker):
            killed = was_killed(forked(send))
        end_waits(lot)
        send_notices(lot.tracker, settings)
        assert unsent(lot) == 0
        assert waiting_notices(lot.tracker) == []
        assert len({content["id"] for content in webhook.contents}) == 1
        assert len({content["text"] for content in webhook.contents}) == 1
        assert f"number: {kill_at}" in webhook.contents[0]["text"]
        doubles += len(webhook.contents) - 1
        if not killed:
            break
    assert kill_at > 15
    assert doubles >= 2  # killed between sending and noting it


def test_senders_at_once_send_each_message_once(lot, webhook):
    for n in range(12):
        declare(lot, f"pl-{n:02}", f"owner-{n:02}")
    for _ in range(2):
        for n in range(12):
            note(lot, f"pl-{n:02}")
        threads = [
            threading.Thread(target=send_notices, args=(lot.tracker, by_web(webhook)))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        send_notices(lot.tracker, by_web(webhook))
    assert unsent(lot) == 0
    assert len({content["id"] for content in webhook.contents}) == len(webhook.requests)
    numbers = [sum(content["counts"].values()) for content in webhook.contents]
    assert sum(numbers) == 24


def test_what_is_being_marked_is_not_put_into_another_message(lot):
    """One sender has the answer and is about to commit; another looks for what is unsent."""
    note(lot)
    outbox.put_together(lot.tracker, ["kept"])
    other = threading.Thread(target=outbox.put_together, args=(lot.tracker, ["kept"]))
    with lot.tracker.transaction() as connection:
        claimed = outbox.claim(connection, "kept", (), lease_s=60)
        outbox.mark_sent(connection, claimed, ["kept", "later"])
        other.start()
        other.join(2)
    other.join()
    assert [item.message_id for item in waiting_notices(lot.tracker) if item.sink] == []
    assert unsent(lot) == 1  # by the sink that has not told it


def test_a_sender_that_hangs_is_left_behind_after_its_lease(lot, webhook):
    note(lot)
    claimed = Kept(name="webhook", fails=lambda _message: webhook.hang(lot))
    webhook.hang = lambda lot: send_notices(lot.tracker, by_web(webhook)).messages or "late"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("waybill.notices.sending._STEPS_OF_A_SEND", 100)
        report = send_notices(lot.tracker, by_web(webhook), [claimed])
    assert report.failed == 1  # while it hung, nobody else took its message
    assert webhook.requests == []
    end_waits(lot)
    assert send_notices(lot.tracker, by_web(webhook)).messages == 1


# Sinks that come and go, and what is kept ---------------------------------------------------------


def test_a_notice_is_sent_when_every_sink_has_it_and_a_removed_sink_keeps_nothing(lot):
    note(lot)
    good, bad = Kept("good"), Kept("bad", fails=lambda _message: "no")
    send_notices(lot.tracker, NoticeSettings(), [good, bad])
    assert (len(good.taken), unsent(lot)) == (1, 1)
    end_waits(lot)
    send_notices(lot.tracker, NoticeSettings(), [good, bad])
    assert len(good.taken) == 1
    send_notices(lot.tracker, NoticeSettings(), [good])
    assert (len(good.taken), unsent(lot), waiting_notices(lot.tracker)) == (1, 0, [])


def test_the_log_is_told_by_default_and_nothing_is_lost_without_a_sink(lot, caplog):
    note(lot, event_name="flight")
    assert send_notices(lot.tracker, NoticeSettings(log=False)).messages == 0
    assert unsent(lot) == 1
    with caplog.at_level(logging.WARNING):
        assert send_notices(lot.tracker, NoticeSettings()).messages == 1
    assert "to nobody: the pipeline is not declared" in caplog.text
    assert "pl-1 / flight" in caplog.text


def test_error_messages_can_be_left_out(lot, webhook):
    rows = [{"event_name": "e", "stage": "mapping", "error_type": "x", "message": "SECRET"}]
    rows[0] |= {"new": 1, "parked": 1, "oldest": None}
    note(lot, kind="digest", parked=1, new=1, kinds=1, partitions=rows)
    note(lot, message="SECRET", event_name="shown")
    send_notices(lot.tracker, by_web(webhook, error_messages=False))
    [(_, body)] = webhook.requests
    assert b"SECRET" not in body
    assert b"shown" in body


def test_error_messages_of_a_pipeline_with_personal_fields_are_hidden(lot, webhook):
    """As long as any version has declared one, and where nobody has said that there is none."""
    declare(lot, "open", "ann@example.org")
    declare(lot, "was", "ann@example.org")
    for number, personal in ((2, ["mail"]), (3, [])):
        declaration = {"owner": "ann@example.org", "events": {"an.event": {"personal": personal}}}
        lot.sql(
            "INSERT INTO pipeline_versions (pipeline_id, number, version, declaration, deployed_by)"
            " VALUES ('was', :number, 'v', cast(:declaration AS jsonb), 'ann')",
            number=number,
            declaration=json.dumps(declaration),
        )
    rows = [{"event_name": "e", "stage": "mapping", "error_type": "x", "message": "bad a@b.c"}]
    rows[0] |= {"new": 1, "parked": 1, "oldest": None}
    for pipeline in ("open", "was", "undeclared"):
        note(lot, pipeline, kind="digest", parked=1, new=1, kinds=1, partitions=rows)
        note(lot, pipeline, kind="hold", message=f"{pipeline}: bad a@b.c", event_name="shown")
        note(lot, pipeline, message="", error_type="null_value")
    send_notices(lot.tracker, by_web(webhook))
    found = {
        (item["pipeline"], item["kind"]): json.dumps(item)
        for _, body in webhook.requests
        for item in json.loads(body)["notices"]
    }
    assert len(found) == 9
    for (pipeline, kind), item in found.items():
        assert ("a@b.c" in item) is (pipeline == "open" and kind != "first")
        assert ("hidden" in item) is (pipeline != "open" and kind != "first")
    texts = [json.loads(body)["text"] for _, body in webhook.requests]
    assert sum(text.count("a@b.c") for text in texts) == 2
    note(lot, "was", message="bad a@b.c")
    send_notices(lot.tracker, by_web(webhook, personal_messages=True))
    assert b"bad a@b.c" in webhook.requests[-1][1]


def test_what_was_sent_is_forgotten_after_its_time_and_what_was_not_never(lot):
    note(lot, n=1)
    send_notices(lot.tracker, NoticeSettings(), [Kept()])
    note(lot, n=2)
    lot.sql("UPDATE notices SET sent_at = sent_at - interval '31 days', made_at = '2020-01-01'")
    away = Kept(fails=lambda _message: SinkAwayError("gone"))
    send_notices(lot.tracker, NoticeSettings(keep_sent_days=32), [away])
    assert lot.sql("SELECT count(*)::int FROM notices") == [(2,)]
    send_notices(lot.tracker, NoticeSettings(), [away])
    assert lot.sql("SELECT detail->>'n' FROM notices") == [("2",)]
    assert waiting_notices(lot.tracker)[0].next_try_at - waiting_notices(lot.tracker)[
        0
    ].since > timedelta(0)


def test_a_notice_of_new_events_says_how_many_there_are_by_now(lot, webhook):
    declare(lot, "pl-1", ANN, "flights")
    lot.park([make_event(n) for n in range(3)], 1)
    lot.park([make_event(n) for n in range(3, 10)], 2)
    send_notices(lot.tracker, by_web(webhook))
    [content] = webhook.contents
    assert "null_value, 3 events at first, 10 parked now\n" in content["text"]
    [item] = content["notices"]
    assert (item["count"], item["parked_now"]) == (3, 10)
