"""What a message says in words: nothing of it reads like a program's own notation."""

from datetime import UTC, datetime
from uuid import UUID

from waybill.notices.rendering import Message, NamedCounts

AT = datetime(2026, 1, 1, tzinfo=UTC)
PROBE = {
    "version": "v2",
    "events": 2000,
    "would_pass": 1990,
    "would_fail": {"mapping/not_null_violation": 10},
    "left": [],
    "outcome": "passed",
}


def text_of(**detail):
    named = (NamedCounts("release", "flights", AT, detail),)
    return Message(UUID(int=1), "ann", named, {"release": 1}).text


def test_an_empty_event_name_is_shown_and_stays_empty_for_programs():
    detail = {"event_name": "", "stage": "mapping", "error_type": "null_value", "count": 3}
    named = NamedCounts("first", "weird", AT, detail)
    message = Message(UUID(int=1), "ops", (named,), {"first": 1})
    assert "weird / (empty) / mapping / null_value" in message.text
    assert message.to_json()["notices"][0]["event_name"] == ""


def test_advice_names_the_command_and_is_left_out_where_nothing_is_parked_any_more():
    detail = {"event_name": "loan", "stage": "mapping", "error_type": "unknown_column", "count": 3}

    def said(**more):
        named = NamedCounts("first", "lo ans", AT, detail | more)
        return Message(UUID(int=1), "ops", (named,), {"first": 1}).text

    assert "Change the mapping, dry-run, deploy, replay" in said(parked_now=3)
    assert "`waybill parked show 'lo ans'` gives the commands" in said()
    gone = said(parked_now=0)
    assert "The payload has a field that the mapping does not name. Nothing of it is" in gone
    assert "Change the mapping" not in gone
    assert "waybill parked show" not in gone


def test_a_probe_is_told_in_plain_words():
    said = text_of(hold=3, released_by="probe", probe=PROBE)
    assert (
        "hold: 3, released_by: probe, probe: version v2; events 2,000; would pass 1,990; "
        "would fail mapping/not_null_violation 10; outcome passed"
    ) in said
    assert not set("{}[]'") & set(said)


def test_what_is_not_printable_inside_is_written_out():
    assert "probe: a\\x1bb c\\nd" in text_of(probe={"a\x1bb": "c\nd"})
    assert "seen: a, 2" in text_of(seen=["a", 2])
