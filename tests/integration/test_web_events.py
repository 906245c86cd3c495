"""Events by the REST API: pages, masking, downloads, and what the audit log says of it."""

from __future__ import annotations

import csv
import io
import json

import pytest
import zstandard
from tests.integration.parking_lot import make_event
from tests.support import web_app

from waybill.parking import ParkedEvent
from waybill.parking.masking import MASK

pytestmark = pytest.mark.serves
airflow_app, web = web_app.airflow_app, web_app.web


SEEN = "see_personal_messages"


def row(n, **more):
    return json.dumps({"n": n, "name": f"Ann {n}", "mail": f"ann{n}@b.c", **more}).encode()


@pytest.fixture
def people(web):
    """Four events of a pipeline with personal fields, in two segments; the partition's id."""
    web.deploy("pl-1", "flights", "aviation", personal=["name", "mail"])
    for number in (1, 2):
        events = [
            make_event(n, value=row(n), message=f"unreachable: ann{n}@b.c")
            for n in range(2 * number, 2 * number + 2)
        ]
        web.lot.park(events, number)
    return web.lot.only().id


def test_personal_fields_are_masked_in_payload_and_message(web, people):
    page = web.get("uma", f"/api/partitions/{people}/events")
    assert [event["payload"]["n"] for event in page["events"]] == [2, 3, 4, 5]
    for event in page["events"]:
        assert event["payload"]["name"] == event["payload"]["mail"] == MASK
        assert event["message"] == f"unreachable: {MASK}"
        assert event["masked"] == ["mail", "name"]
    assert "ann" not in json.dumps(page).casefold()
    assert web.audit() == []


def test_who_may_sees_them_and_that_is_written_down(web, people):
    page = web.get("pia", f"/api/partitions/{people}/events", params={"limit": 3})
    assert page["events"][0]["payload"]["name"] == "Ann 2"
    assert page["events"][0]["masked"] == []
    [(who, action, target, detail)] = web.audit()
    assert (who, action, target) == ("pia", "see_personal", f"partition {people}")
    assert detail["fields"] == ["mail", "name"]
    assert (detail["events"], detail["team"], detail["pipeline_id"]) == (3, "aviation", "pl-1")


def test_the_last_message_is_hidden_where_it_may_quote_what_is_personal(web, people):
    by_event = f"unreachable: {MASK}"
    for path, masked in (("/api/partitions", MASK), (f"/api/partitions/{people}", by_event)):
        for user, said in (("uma", masked), ("pia", "unreachable: ann5@b.c")):
            answer = web.get(user, path)
            [found] = answer.get("partitions", [answer])
            assert {group["message"] for group in found.get("fingerprints", [])} <= {said}
            assert found["last_message"] == said
    assert [(who, action) for who, action, _, _ in web.audit()] == [("pia", SEEN)] * 2
    for _, _, _, detail in web.audit():
        assert detail == {"team": "aviation", "pipeline_ids": ["pl-1"], "partitions": [people]}
    assert [e["who"] for e in web.get("uma", "/api/audit")["entries"]] == ["pia", "pia"]
    assert web.get("otto", "/api/audit")["entries"] == []


def looks(web):
    return [(who, detail["partitions"]) for who, action, _, detail in web.audit() if action == SEEN]


def test_a_page_that_asks_again_is_one_look_and_whatever_else_is_shown_another(web, people):
    own = f"/api/partitions/{people}"
    for _ in range(5):
        web.get("pia", own)
    assert looks(web) == [("pia", [people])]
    web.get("ann", own)
    web.get("pia", "/api/partitions")
    assert looks(web)[1:] == [("ann", [people]), ("pia", [people])]
    for _ in range(2):
        web.get("pia", own)
        web.get("pia", "/api/partitions")
        web.get("ann", own)
    assert len(looks(web)) == 3
    web.lot.park([make_event(9, value=row(9), message="unreachable: ann9@b.c")], 9)
    for _ in range(2):
        assert web.get("pia", own)["last_message"] == "unreachable: ann9@b.c"
    assert looks(web)[3:] == [("pia", [people])]


def test_a_look_that_cannot_be_written_down_shows_nothing_then_or_later(web, people):
    own = f"/api/partitions/{people}"
    web.lot.sql("ALTER TABLE audit_log RENAME TO moved_away")
    try:
        for _ in range(2):
            answer = web.ask("pia", "GET", own)
            assert (answer.status_code, "ann5" in answer.text) == (503, False)
    finally:
        web.lot.sql("ALTER TABLE moved_away RENAME TO audit_log")
    assert web.get("pia", own)["last_message"] == "unreachable: ann5@b.c"
    assert looks(web) == [("pia", [people])]


def test_a_list_of_two_teams_is_written_down_once_a_team_and_only_what_is_personal(web, people):
    web.deploy("pl-2", "boxes", "shipping", personal=["name"])
    web.deploy("pl-4", "plain", "shipping")
    for number, pipeline in enumerate(("pl-2", "pl-4"), 5):
        web.lot.park([make_event(number, pipeline_id=pipeline)], number)
    listed = web.get("ann", "/api/partitions")["partitions"]
    assert MASK not in {one["last_message"] for one in listed}
    [shipping] = [one["id"] for one in listed if one["pipeline_id"] == "pl-2"]
    said = [(d["team"], d["pipeline_ids"], d["partitions"]) for _, _, _, d in web.audit()]
    assert said == [("aviation", ["pl-1"], [people]), ("shipping", ["pl-2"], [shipping])]
    web.get("ann", "/api/partitions", params={"pipeline": "plain"})
    assert len(web.audit()) == 2


def enveloped(**more):
    given = {"specversion": "1.0", "id": "e1", "source": "aviation/pl-1", "subject": '["ann@b.c"]'}
    return json.dumps(given | more).encode()


@pytest.mark.parametrize("around", [{"dataref": "payloads/pl-1/e1"}, {"data": {"n": 1}}])
def test_a_key_with_a_personal_field_is_masked_on_the_page_and_in_files(web, around):
    web.deploy("pl-1", "flights", "aviation", personal=["mail"], key=["mail"])
    web.lot.park([make_event(1, value=enveloped(**around), message="ann@b.c is late")])
    path = f"/api/partitions/{web.lot.only().id}"
    [event] = web.get("uma", f"{path}/events")["events"]
    assert event["envelope"]["subject"] == MASK
    assert "(key)" in event["masked"]
    kinds = [
        web.ask("uma", "GET", f"{path}/download", params={"kind": k}) for k in ("jsonl", "csv")
    ]
    assert not [one for one in [json.dumps(event), *(k.text for k in kinds)] if "ann" in one]
    [event] = web.get("pia", f"{path}/events")["events"]
    assert (event["envelope"]["subject"], event["masked"]) == ('["ann@b.c"]', [])


@pytest.mark.parametrize(
    ("stage", "code", "value"),
    [
        ("ingestion", "source_row_malformed", b"7;zoe;zoe@b.c"),
        ("ingestion", "source_encoding_invalid", b"\xff;zoe"),
        ("ingestion", "source_row_malformed", b'["zoe", 41]'),
        ("ingestion", "key_missing", b'{"n":null,"mail":"zoe@b.c","name":"zoe"}'),
        ("transformation", "pipeline_held", enveloped(data_base64="em9lQGIuYw==")),
        ("transformation", "pipeline_held", enveloped(data={"mail": "zoe@b.c", "name": "zoe"})),
    ],
)
def test_what_came_in_raw_shows_nothing_personal(web, stage, code, value):
    """Parked under an event name that declares nothing personal, as another one of it does."""
    table = {"columns": [{"name": "n"}]}
    other = {"personal": ["mail", "name"], "key": ["mail"], "table": table}
    events = {"flight": {"personal": [], "key": ["n"], "table": table}, "person": other}
    web.deploy("pl-1", "flights", "aviation", events=events)
    web.lot.park(
        [make_event(1, stage=stage, code=code, value=value, message="of zoe@b.c", where="zoe")]
    )
    path = f"/api/partitions/{web.lot.only().id}"
    answers = [web.ask("uma", "GET", f"{path}{more}").text for more in ("", "/events")]
    answers += [web.ask("uma", "GET", f"{path}/download", params={"kind": "jsonl"}).text]
    for answer in answers:
        assert "zoe" not in answer
        assert "em9l" not in answer
    [event] = json.loads(answers[1])["events"]
    assert event["masked"] != []


def test_of_a_pipeline_nobody_deployed_everything_is_masked_without_the_permission(web):
    _, _, nobodys = web.two_teams(value=row(1))
    web.lot.park([make_event(7, pipeline_id="pl-3", value=row(7))], 4)
    grants = [{"who": "uma", "teams": "*", "permissions": ["view"]}]
    web.grant(grants)
    for event in web.get("uma", f"/api/partitions/{nobodys}/events")["events"]:
        assert set(event["payload"].values()) == {MASK}


def test_an_event_name_that_is_not_declared_is_masked_as_all_the_others(web, people):
    web.lot.park([make_event(1, name="unheard", value=row(1))], 9)
    other = web.lot.parking.find(
        "pl-1", event_name="unheard", stage="transformation", error_type="null_value"
    )
    [event] = web.get("uma", f"/api/partitions/{other.id}/events")["events"]
    assert event["payload"] == {"n": 1, "name": MASK, "mail": MASK}


def test_all_errors_are_shown_masked_and_one_cause_can_be_asked_for(web, people):
    errors = [
        {"error_type": "null_value", "message": "no such: Ann 7", "where": "name"},
        {"error_type": "type_mismatch", "message": "bad ann7@b.c", "where": "mail"},
    ]
    web.lot.park([make_event(7, value=row(7), message="other cause", errors=errors)], 7)
    path = f"/api/partitions/{people}/events"
    last = web.get("uma", path)["events"][-1]
    assert [error["message"] for error in last["errors"]] == [f"no such: {MASK}", f"bad {MASK}"]
    assert [error["where"] for error in last["errors"]] == ["name", "mail"]
    found = web.get("uma", path, params={"fingerprint": last["fingerprint"]})["events"]
    assert [event["payload"]["n"] for event in found] == [7]
    assert web.get("uma", path, params={"fingerprint": "none"})["events"] == []


def test_pages_follow_each_other_to_the_end(web, people):
    seen, after = [], None
    for _ in range(4):
        query = {"limit": 1} | ({"after": after} if after else {})
        page = web.get("uma", f"/api/partitions/{people}/events", params=query)
        seen += [event["payload"]["n"] for event in page["events"]]
        after = page["next"]
    assert seen == [2, 3, 4, 5]
    assert after is None


def test_a_page_goes_on_where_it_was_though_events_went_meanwhile(web, people):
    first = web.get("uma", f"/api/partitions/{people}/events", params={"limit": 3})
    web.post(
        "uma", "/api/discard", {"partition_id": people, "why": "x", "until": "2013-01-01T04:00Z"}
    )
    query = {"after": first["next"]}
    rest = web.get("uma", f"/api/partitions/{people}/events", params=query)
    assert [event["payload"]["n"] for event in rest["events"]] == [5]


@pytest.mark.parametrize(
    "after", ["x", "é", "W10", "WzFd", "bnVsbA", "W1tbW1tb", "WzEsMSwxLDEsMSwxXQ", "A" * 9000]
)
def test_a_made_up_cursor_is_refused(web, people, after):
    path = f"/api/partitions/{people}/events"
    answer = web.ask("uma", "GET", path, params={"after": after})
    assert answer.status_code == 422
    assert "cursor" in answer.json()["detail"]


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.zst", "csv"])
@pytest.mark.parametrize(("user", "masked"), [("uma", True), ("pia", False)])
def test_downloads_hold_every_event_masked_or_audited(web, people, kind, user, masked):
    answer = web.ask(user, "GET", f"/api/partitions/{people}/download", params={"kind": kind})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-disposition"] == f'attachment; filename="parked-{people}.{kind}"'
    found = [json.loads(event) for event in events_of(kind, answer.content)]
    assert [event["n"] for event in found] == [2, 3, 4, 5]
    assert {event["name"] for event in found} == (
        {MASK} if masked else {f"Ann {n}" for n in range(2, 6)}
    )
    actions = [(who, action, detail["kind"]) for who, action, _, detail in web.audit()]
    looks = [] if masked else [(user, "download_personal", f".{kind}")]
    assert actions == [*looks, (user, "download", f".{kind}")]


def events_of(kind, content):
    if kind == "csv":
        return [line["event"] for line in csv.DictReader(io.StringIO(content.decode(), newline=""))]
    if kind == "jsonl.zst":
        content = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(content)).read()
    return [ParkedEvent.from_line(line).value for line in content.splitlines()]


def test_cells_that_a_spreadsheet_takes_as_formulas_are_escaped(web):
    web.deploy("pl-1", "flights", "aviation")
    for n, start in enumerate("=+-@\t"):
        web.lot.park(
            [make_event(n, message=f"{start}cmd|' /C calc'!A0", value=f"{start}1".encode())], n
        )
    path = f"/api/partitions/{web.lot.only().id}/download"
    answer = web.ask("uma", "GET", path, params={"kind": "csv"})
    lines = list(csv.DictReader(io.StringIO(answer.text, newline="")))
    assert len(lines) == 5
    for line in lines:
        assert line["message"].startswith("'")
        assert line["event"].startswith("'")


def test_a_download_takes_a_window_and_says_what_is_wrong_with_it(web, people):
    path = f"/api/partitions/{people}/download"
    query = {"kind": "jsonl", "since": "2013-01-01T04:00Z"}
    answer = web.ask("uma", "GET", path, params=query)
    assert [json.loads(event)["n"] for event in events_of("jsonl", answer.content)] == [4, 5]
    wrong = web.ask("uma", "GET", path, params={"since": "soon"})
    assert (wrong.status_code, "'soon' is not a time" in wrong.json()["detail"]) == (422, True)
    assert web.ask("uma", "GET", path, params={"kind": "exe"}).status_code == 422
    assert len(web.audit()) == 1


def test_payloads_come_as_they_are_whatever_they_are(web):
    web.deploy("pl-1", "flights", "aviation")
    values = [
        b'{"big":123456789012345678901234567890,"d":1.0000000000000000001}',
        b"\xff\x00 not utf-8",
        b"[" * 900 + b"]" * 900,
        b'"' + b"x" * 400_000 + b'"',
        b'{"specversion":"1.0","id":"e7","data":{"a":1}}',
        b'{"specversion":"1.0","id":"e8","data_base64":"SGk="}',
        '{"html":"<script>alert(1)</script>\u202e"}'.encode(),
    ]
    web.lot.park(
        [make_event(n, value=value, message="\x1b[2J\ud800") for n, value in enumerate(values)]
    )
    path = f"/api/partitions/{web.lot.only().id}/events"
    answer = web.ask("uma", "GET", path)
    assert answer.headers["content-type"] == "application/json"
    assert b'"big":123456789012345678901234567890,"d":1.0000000000000000001' in answer.content
    shown = answer.json()["events"]
    assert shown[1]["text"] == "\\xff\x00 not utf-8"
    assert shown[1]["payload"] is None
    assert (shown[2]["payload"], shown[2]["text"][:3]) == (None, "[[[")
    assert (shown[3]["cut"], shown[3]["bytes"]) == (True, 400_002)
    assert len(shown[3]["text"]) < 20_000
    assert (shown[4]["payload"], shown[4]["event_id"]) == ({"a": 1}, "e7")
    assert (shown[5]["payload"], shown[5]["text"]) == (None, "Hi")


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        ("/api/partitions/999", 404, "no parked group 999"),
        ("/api/partitions/0", 422, "partition_id"),
        ("/api/partitions/x/events", 422, "partition_id"),
        ("/api/partitions/99999999999999999999", 422, "partition_id"),
        ("/api/partitions?event_since=soon", 422, "'soon' is not a time"),
        ("/api/partitions?limit=0", 422, "limit"),
        ("/api/timelines?ids=1,x", 422, "are not ids"),
        ("/api/timelines?ids=1&since=2020-01-02&until=2020-01-01", 422, "not before parked_until"),
        ("/api/timelines", 422, "ids"),
        ("/api/runs/replay/nobody", 404, "no replay or dry run"),
        ("/api/runs/ingest_flights/nobody", 404, "no replay or dry run"),
    ],
)
def test_what_is_wrong_is_said_in_words(web, path, code, words):
    answer = web.ask("ann", "GET", path)
    assert answer.status_code == code, answer.text
    assert isinstance(answer.json()["detail"], str)
    assert words in answer.json()["detail"]


def test_a_tracker_that_is_away_is_said(web, monkeypatch):
    from waybill_airflow.web.services import OPENED

    monkeypatch.setenv("WAYBILL_TRACKER__DSN", "postgresql://127.0.0.1:1/nowhere")
    OPENED.close()
    answer = web.ask("ann", "GET", "/api/partitions")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    monkeypatch.setenv("WAYBILL_WRONG", "1")
    OPENED.close()
    answer = web.ask("ann", "GET", "/api/partitions")
    assert answer.status_code == 500
    assert "WAYBILL_WRONG" in answer.json()["detail"]


def test_a_timeline_counts_what_was_parked_when(web, people):
    web.lot.sql("UPDATE segments SET parked_at = '2026-01-01T00:30Z' WHERE commit_number = 1")
    web.lot.sql("UPDATE segments SET parked_at = '2026-01-01T23:59Z' WHERE commit_number = 2")
    query = {"ids": str(people), "since": "2026-01-01", "until": "2026-01-02"}
    line = web.get("uma", "/api/timelines", params=query)[str(people)]
    assert line["parked"] == [2] + [0] * 22 + [2]
    assert line["step_s"] == 3600
