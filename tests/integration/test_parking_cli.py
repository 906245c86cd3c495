"""``waybill parked`` against the real tracker and store."""

import csv
import fcntl
import io
import json
import os
import pty
import random
import re
import struct
import subprocess
import sys
import termios

import pytest
import zstandard
from tests.integration import parking_lot
from tests.integration.parking_lot import make_event
from typer.testing import CliRunner

from waybill.cli.parked import app
from waybill.errors import InputError
from waybill.events import Event, encode
from waybill.parking import ParkedEvent

pytestmark = pytest.mark.serves
lot, opened_lots = parking_lot.lot, parking_lot.opened_lots


@pytest.fixture
def run(lot, monkeypatch, tmp_path):
    s3 = lot.settings["s3"]
    for name, value in {
        "WAYBILL_HOME": str(tmp_path),
        "WAYBILL_TRACKER__DSN": lot.settings["dsn"],
        "WAYBILL_S3__ENDPOINT_URL": s3.endpoint_url,
        "WAYBILL_S3__BUCKET": s3.bucket,
        "WAYBILL_S3__ACCESS_KEY": s3.access_key.get_secret_value(),
        "WAYBILL_S3__SECRET_KEY": s3.secret_key.get_secret_value(),
        "COLUMNS": "200",
    }.items():
        monkeypatch.setenv(name, value)

    def call(*words, fails=False, answer=None):
        done = CliRunner().invoke(app, [str(word) for word in words], input=answer)
        if fails:
            return done
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == 0, done.output
        return json.loads(done.output) if "--json" in words else done.output

    return call


@pytest.fixture
def flights(lot):
    lot.sql("INSERT INTO pipelines (id, name, team) VALUES ('pl-1', 'flights', 'aviation')")
    declare(lot)
    lot.park([make_event(n) for n in range(6)], 1)
    lot.park([make_event(9, stage="mapping", code="not_null_violation")], 2)


def declare(lot, personal=(), keep_source=False, connector="csv"):
    """Write a deployed version with these personal fields."""
    event = {"personal": list(personal), "table": {"columns": [{"name": "n"}]}}
    lot.sql(
        "INSERT INTO pipeline_versions (pipeline_id, number, version, declaration, deployed_by) "
        "SELECT 'pl-1', count(*) + 1, 'v1', CAST(:declared AS jsonb), 'test' FROM pipeline_versions",
        declared=json.dumps(
            {
                "keep_source": keep_source,
                "source": {"connector": connector},
                "events": {"flight": event},
            }
        ),
    )


def test_an_empty_state_is_said(run):
    assert "Nothing is parked." in run("list")
    assert run("list", "--json") == []


def test_a_list_shows_names_numbers_and_the_sum(run, flights):
    shown = run("list")
    assert ["flights", "flight", "transformation", "null_value", "6"] in [
        line.split()[:5] for line in shown.splitlines()
    ]
    assert "7 events parked in 2 groups" in shown
    rows = run("list", "flights", "--stage", "mapping", "--json")
    assert [(r["pipeline"], r["error_type"], r["parked"]) for r in rows] == [
        ("flights", "not_null_violation", 1)
    ]
    assert run("list", "--since", "2013-01-01T08:00Z", "--json") == rows
    assert "No parked group matches" in run("list", "-e", "nothing")


def test_what_is_dealt_with_is_listed_only_on_demand(run, flights):
    run("discard", "flights", "-s", "mapping", "--why", "test", "--yes")
    assert len(run("list", "--json")) == 1
    assert len(run("list", "--all", "--json")) == 2


def test_the_pipelines_of_all_teams_are_reached_only_when_that_is_said(run, flights, lot):
    words = ("--all-pipelines", "-s", "mapping", "--why", "test", "--yes")
    assert "1 event discarded" in run("discard", *words)
    assert "1 event parked again" in run("undo-discard", *words)
    assert lot.states() == {"parked": 7}


def test_show_says_what_to_do(run, flights):
    shown = run("show", "flights", "-t", "not_null_violation")
    assert "A column declared NOT NULL got no value" in shown
    assert "dry-run, deploy, replay" in shown
    [row] = run("show", "-s", "mapping", "--json")
    assert row["error"]["transient"] is False
    assert row["parked"] == 1


def test_show_says_that_events_are_deletes(run, flights, lot):
    gone = Event(
        id="e7", pipeline_id="pl-1", team="aviation", name="gone", key='["7"]', source_version=1,
        intake_version=1, intake_minute=1, time="2026-01-01T00:00:00Z", data={"n": 7}, op="delete",
    )  # fmt: skip
    lot.park([make_event(7, name="gone", code="field_missing", value=encode(gone))], 3)
    shown = " ".join(run("show", "flights", "-e", "gone").split())
    assert "1 of the 1 event parked last is a delete (its key, no other field is sure)" in shown
    assert 'if event.op == "delete": return event' in shown
    [row] = run("show", "flights", "-e", "gone", "--json")
    assert row["deletes_of_newest"] == [1, 1]
    assert "is a delete" not in run("show", "flights", "-e", "flight")


def read_again(number, intake_version, **changes):
    """Return an event as it parked at mapping when its source was read."""
    event = Event(
        id=f"e{number}", pipeline_id="pl-1", team="aviation", name="ride", key='["7"]',
        source_version=1, intake_version=intake_version, intake_minute=1,
        time="2026-01-01T00:00:00Z", data={"n": number},
    )  # fmt: skip
    return make_event(
        number, name="ride", stage="mapping", code="type_mismatch", value=encode(event), **changes
    )


def test_show_says_how_many_events_parked_again_as_their_source_was_read_again(run, flights, lot):
    lot.park([read_again(n, n) for n in range(2)], 3)
    assert "copies" not in run("show", "flights", "-e", "ride")
    lot.park([read_again(n, 10 + n) for n in range(2)], 4)
    lot.park([read_again(2, 20)], 5)
    shown = flat(run("show", "flights", "-e", "ride"))
    assert "copies: the 5 parked are 3 events: some came more than once" in shown
    assert "5 parked, 0 replaying" in shown
    [row] = run("show", "flights", "-e", "ride", "--json")
    assert row["distinct_of_newest"] == [3, 5]


def test_copies_are_looked_for_among_the_newest_events_of_a_large_group(run, flights, lot):
    for number in range(10):
        lot.park([read_again(number % 6, number)], 3 + number)
    shown = flat(run("show", "flights", "-e", "ride"))
    assert "copies: the 8 parked last are 6 events" in shown
    assert "10 parked, 0 replaying" in shown
    run("discard", "flights", "-e", "ride", "--why", "test", "--yes")
    assert "copies" not in run("show", "flights", "-e", "ride")


def flat(shown):
    return " ".join(shown.split())


def steps(shown):
    """Return the words of each command that is a step, in order."""
    return [part.strip() for part in re.split(r"step \d:", flat(shown))[1:]]


GROUP = "flights -e flight -s mapping -t not_null_violation"
DISCARD = f"waybill parked discard {GROUP} --parked-until 20"
READ_AGAIN = f"waybill ingest flights --full --yes --why corrected --wait && {DISCARD}"


def test_show_gives_each_way_its_commands_and_the_one_that_discards_nothing_first(
    run, flights, lot, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("show", "flights", "-s", "mapping")
    mild, _, other = flat(shown).partition("way 2:")
    assert "what to do: try way 1 first: it is the mild one and discards nothing" in mild
    assert "way 1: Change the mapping, dry-run, deploy, replay. Nothing is discarded" in mild
    assert steps(mild) == [
        f"waybill parked dry-run {GROUP} --proposed flights",
        "waybill pipelines deploy flights",
        f"waybill parked replay {GROUP}",
    ]
    assert other.strip().startswith("If the transformation made them wrong, correct it")
    assert "Only if the source still has these rows" in other
    assert f"step 1: waybill pipelines deploy flights step 2: {READ_AGAIN}" in other, (
        "nothing is discarded where it was not read again"
    )
    assert "--enter" not in shown
    [row] = run("show", "flights", "-s", "mapping", "--json")
    assert [one["discards"] for one in row["remedies"]] == [False, True]


def test_where_events_carry_their_source_one_way_runs_all_again(run, flights, lot):
    declare(lot, keep_source=True)
    lot.sql("UPDATE pipeline_versions SET deployed_at = now() - interval '1 day'")
    shown = run("show", "flights", "-s", "mapping")
    assert "way 2" not in shown
    assert f"waybill parked replay {GROUP} --enter transformation" in shown
    assert "--full" not in shown
    [row] = run("show", "flights", "-s", "mapping", "--json")
    [remedy] = row["remedies"]
    assert [one.split()[:3] for one in remedy["commands"]] == [
        ["waybill", "parked", "dry-run"],
        ["waybill", "pipelines", "deploy"],
        ["waybill", "parked", "replay"],
    ]


def test_what_a_corrected_transformation_cures_has_its_commands(run, flights):
    group = "flights -e flight -s transformation -t null_value"
    shown = run("show", "flights", "-s", "transformation")
    assert "what to do: Correct the transformation, dry-run it on the parked events" in flat(shown)
    assert "way 1" not in shown
    assert f"waybill parked dry-run {group} --proposed flights" in shown
    assert f"waybill parked replay {group}" in shown
    assert "waybill ingest" not in shown


def test_a_version_that_was_deployed_since_is_tried_before_anything_is_changed(run, flights, lot):
    declare(lot)
    shown = run("show", "flights")
    since = "Version v1 was deployed after these parked: if it"
    assert f"way 1: {since} changes the mapping, dry-run, replay" in flat(shown)
    assert f"way 2: {since} corrects the transformation, read their source again" in flat(shown)
    assert f"what to do: {since} corrects the transformation, dry-run, replay" in flat(shown)
    assert "pipelines deploy" not in shown, "it is deployed"
    assert "--proposed" not in shown
    assert "made them wrong" not in shown
    lot.park([make_event(10, stage="mapping", code="not_null_violation")], 3)
    shown = run("show", "flights", "-s", "mapping")
    assert "Change the mapping, dry-run, deploy, replay" in flat(shown), "it parked what came since"


def test_one_reading_serves_all_groups_that_need_it(run, flights, lot):
    lot.park([make_event(10, stage="mapping", code="type_mismatch")], 3)
    shown = flat(run("show", "flights", "-s", "mapping"))
    assert shown.count("waybill ingest flights --full") == 1
    assert "One reading serves 2 groups of this pipeline: do it once" in shown
    other = DISCARD.replace("not_null_violation", "type_mismatch")
    commands = shown.partition("waybill ingest flights --full --yes --why corrected --wait")[2]
    assert f"&& {DISCARD}" in commands
    assert f"&& {other}" in commands
    assert re.search(
        r"way 2: the same commands as way 2 of flights/flight/mapping/\w+, run once", shown
    )
    alone = flat(run("show", "flights", "-t", "type_mismatch"))
    assert "`waybill parked show flights -s mapping` gives one command for them" in alone
    assert DISCARD not in alone, "what was not asked for is not discarded"
    run("discard", "flights", "-t", "not_null_violation", "--why", "test", "--yes")
    assert "One reading" not in run("show", "flights", "-t", "type_mismatch")


def test_nothing_is_advised_for_a_group_that_holds_nothing(run, flights, lot):
    run("discard", "flights", "-s", "mapping", "--why", "test", "--yes")
    shown = run("show", "flights", "-s", "mapping")
    assert "what to do: nothing: no event is parked here any more" in flat(shown)
    assert "`waybill parked undo-discard` takes a discard back" in flat(shown)
    assert not steps(shown)
    assert "--full" not in shown
    [row] = run("show", "flights", "-s", "mapping", "--json")
    assert row["remedies"] == []


def test_what_a_sender_pushed_is_not_to_be_read_again_nor_discarded_before_it_is_sent_again(
    run, flights, lot
):
    declare(lot, connector="http")
    lot.sql("UPDATE pipeline_versions SET deployed_at = now() - interval '1 day'")
    shown = " ".join(run("show", "flights", "-s", "mapping").split())
    assert "have the events sent again, and discard these once the new ones are delivered" in shown
    assert "`keep_source: true`" in shown
    [row] = run("show", "flights", "-s", "mapping", "--json")
    mild, other = row["remedies"]
    assert (len(mild["commands"]), other["commands"]) == (3, ["waybill pipelines deploy flights"])
    assert not other["discards"]


def test_a_discard_can_be_tried(run, flights, lot):
    told = run("discard", "flights", "--dry-run")
    assert "flights/flight/transformation/null_value: 6 parked events" in told
    assert "up to 7 events in 2 groups" in told
    assert "nothing was written" in told
    assert run("discard", "flights", "-s", "mapping", "--dry-run", "--json")["events"] == 1
    assert (lot.states(), lot.sql("SELECT count(*) FROM audit_log")) == ({"parked": 7}, [(0,)])
    missing = run("discard", "flights", "--yes", fails=True)
    assert "--why is missing" in str(missing.exception)
    run("discard", "flights", "-s", "mapping", "--why", "test", "--yes")
    undone = run("undo-discard", "flights", "--dry-run")
    assert "up to 1 event in 1 group" in undone


def test_messages_in_waybills_own_words_are_shown_where_their_events_cannot_be_read(run, lot):
    lot.sql("INSERT INTO pipelines (id, name, team) VALUES ('pl-1', 'flights', 'aviation')")
    declare(lot, personal=["mail"])
    kept = "column 'n' is decimal(8,2); got str "
    learned = "column 'ann' is decimal(8,2); got str '7'"
    broken = "expected an object of JSON in UTF-8; found no JSON"
    cases = {
        "type_mismatch": ("mapping", f"{kept}'ann@x.org'", '{"n":"ann@x.org","mail":"b@x.org"}'),
        "number_out_of_range": ("mapping", learned, '{"ann":"7"}'),
        "value_error": ("transformation", f"{kept}'ann@x.org'", '{"n":"ann@x.org"}'),
        "source_row_malformed": ("ingestion", broken, '{"mail":"ann@x.org'),
    }
    for number, (code, (stage, message, value)) in enumerate(cases.items()):
        event = make_event(number, stage=stage, code=code)
        event.message, event.value = message, value.encode()
        event.where = "in/ann@x.org.jsonl, line 7" if stage == "ingestion" else "n"
        lot.park([event], number + 1)

    def said(*words):
        return {row["error_type"]: row["last_message"] for row in run(*words, "--json")}

    assert said("list") == said("show"), "one rule, wherever a message is shown"
    assert said("list")["number_out_of_range"] == learned, "no value of a personal field"
    kept_files = {key: lot.objects.get(key) for key in lot.keys()}
    lot.objects.delete(sorted(kept_files))
    assert said("list") == {
        "type_mismatch": f"{kept}•••",
        "number_out_of_range": "•••",
        "value_error": "•••",
        "source_row_malformed": broken,
    }
    assert said("show") == said("list")
    assert "waybill parked sample PIPELINE --personal" in run("list")
    for key, body in kept_files.items():
        lot.objects.put(key, body)
    sample = run("sample", "flights", "-t", "source_row_malformed")
    assert f"{broken}  (line 7)" in sample, "a file's name may be personal"
    assert "ann" not in sample
    assert "--personal" in sample
    assert broken in run("show", "flights", "-t", "source_row_malformed")


def test_a_sample_shows_events_next_to_their_errors(run, flights):
    shown = run("sample", "flights", "-t", "null_value", "-n", "2")
    assert "message 0" in shown
    assert '{"n":3}' in shown
    both = run("sample", "flights", "-n", "2", "--json")
    assert {row["error"]["stage"] for row in both} == {"transformation", "mapping"}
    assert both[0]["event"].keys() == {"n"}


def test_a_sample_masks_a_personal_value_in_the_other_fields_too(run, flights, lot):
    declare(lot, personal=["mail"])
    event = make_event(1, code="value_error")
    event.message = "op9@x.example is odd"
    event.value = b'{"mail":"op9@x.example","tags":["op9@x.example"],"note":"by op9@x.example"}'
    lot.park([event], 3)
    [row] = run("sample", "flights", "-t", "value_error", "--json")
    assert row["event"] == {"mail": "•••", "tags": ["•••"], "note": "by •••"}
    assert "op9" not in run("sample", "flights", "-t", "value_error")


def test_a_sample_masks_what_is_personal_and_says_who_saw_it(run, flights, lot):
    declare(lot, personal=["n"])
    masked = run("sample", "flights", "-t", "null_value", "-n", "2", "--json")
    assert [row["event"] for row in masked] == [{"n": "•••"}] * 2
    assert [row["error"]["message"] for row in masked] == ["message •••"] * 2
    assert lot.sql("SELECT count(*) FROM audit_log") == [(0,)]
    seen = run("sample", "flights", "-t", "null_value", "-n", "2", "--json", "--personal")
    assert [row["event"] for row in seen] == [{"n": 0}, {"n": 3}]
    assert lot.sql("SELECT action, detail ->> 'fields' FROM audit_log") == [
        ("sample_personal", '["n"]')
    ]


def test_one_partition_and_its_sample_mask_messages_alike(run, flights, lot):
    for personal in ([], ["pilot"], ["n"]):
        declare(lot, personal=personal)
        [row] = run("show", "flights", "-t", "null_value", "--json")
        events = run("sample", "flights", "-t", "null_value", "-n", "99", "--json")
        said = {event["error"]["message"] for event in events}
        assert row["last_message"] in said
        assert {cause["message"] for cause in row["causes"]} <= said
        assert (said == {"message •••"}) is (personal == ["n"])


def test_what_cannot_be_read_is_hidden_whole_where_it_may_be_personal(run, flights, lot):
    declare(lot, personal=["n"])
    [row] = run("show", "flights", "-t", "null_value", "--json")
    kept = {key: lot.objects.get(key) for key in row["objects"]}
    lot.objects.delete(row["objects"])
    [row] = run("show", "flights", "-t", "null_value", "--json")
    assert {row["last_message"], *(cause["message"] for cause in row["causes"])} == {"•••"}
    for key, body in kept.items():
        lot.objects.put(key, body)


def test_a_group_says_the_same_once_its_events_are_discarded(run, flights, lot):
    declare(lot, personal=["n"])

    def said(*words):
        return [row["last_message"] for row in run(*words, "-s", "mapping", "--json")]

    assert said("list") == said("show") == ["message •••"]
    run("discard", "flights", "-s", "mapping", "--why", "test", "--yes")
    assert said("list", "--all") == said("show") == ["message •••"]
    shown = flat(run("show", "-s", "mapping"))
    assert "•••" in shown
    assert "--personal" not in shown, "a sample has none of them"
    assert "nobody can look up any more" in shown


def test_a_list_reads_little_of_each_group_and_show_reads_more(run, flights, lot):
    declare(lot, personal=["n"])
    noise = random.Random(3).randbytes(300 * 1024).hex().encode()
    large = make_event(11, code="value_error", value=b'{"n":11,"noise":"%s"}' % noise)
    lot.park([large], 4)
    assert [row["last_message"] for row in run("list", "-t", "value_error", "--json")] == ["•••"]
    [row] = run("show", "flights", "-t", "value_error", "--json")
    assert row["last_message"] == "message •••"


def test_a_list_needs_no_object_store(run, flights, lot, monkeypatch):
    declare(lot, personal=["n"])
    monkeypatch.setenv("WAYBILL_S3__ENDPOINT_URL", "http://127.0.0.1:9")
    rows = run("list", "--json")
    assert [(row["parked"], row["last_message"]) for row in rows] == [(1, "•••"), (6, "•••")]


def test_lists_and_downloads_mask_what_is_personal_and_say_who_took_it(run, flights, lot, tmp_path):
    declare(lot, personal=["n"])
    assert {row["last_message"] for row in run("list", "--json")} == {"message •••"}
    masked, seen = tmp_path / "masked.jsonl", tmp_path / "seen.jsonl"
    run("download", "-o", masked, "flights", "-t", "null_value")
    events = [ParkedEvent.from_line(line) for line in masked.read_bytes().splitlines()]
    assert {(event.value, event.message) for event in events} == {
        ('{"n":"•••"}'.encode(), "message •••")
    }
    assert lot.sql("SELECT count(*) FROM audit_log") == [(0,)]
    run("download", "-o", seen, "flights", "-t", "null_value", "--personal")
    events = [ParkedEvent.from_line(line) for line in seen.read_bytes().splitlines()]
    assert [event.value for event in events] == [b'{"n":%d}' % n for n in range(6)]
    assert lot.sql("SELECT action, detail ->> 'fields' FROM audit_log") == [
        ("download_personal", '["n"]')
    ]


def test_downloads_hold_every_event(run, flights, tmp_path):
    plain, packed, cells = (tmp_path / f"out{kind}" for kind in (".jsonl", ".jsonl.zst", ".csv"))
    assert run("download", "-o", plain, "--json")["events"] == 7
    assert run("download", "-o", packed, "flights", "-t", "null_value", "--json")["events"] == 6
    assert "out.csv: 3 events" in run("download", "-o", cells, "--since", "2013-01-01T04:00Z")
    whole = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(packed.read_bytes())).read()
    offsets = [ParkedEvent.from_line(line).kafka_offset for line in whole.splitlines()]
    assert offsets == list(range(6))
    assert len(plain.read_bytes().splitlines()) == 7
    with cells.open(newline="") as stream:
        assert [row["event"] for row in csv.DictReader(stream)] == ['{"n":9}', '{"n":4}', '{"n":5}']
    with pytest.raises(InputError, match="exists"):
        run("download", "-o", plain)
    run("download", "-o", plain, "--force", "flights", "-s", "mapping")
    assert len(plain.read_bytes().splitlines()) == 1


def test_a_discard_asks_first_and_is_undone(run, flights, lot):
    words = ("discard", "flights", "-t", "null_value", "--why", "test flights")
    declined = run(*words, fails=True, answer="n\n")
    assert declined.exit_code == 1
    assert "Discard up to 6 parked events?" in declined.output
    assert lot.states() == {"parked": 7}
    with pytest.raises(InputError, match="add --yes"):
        run(*words, "--json")
    assert "6 events discarded, in 1 group\n" in run(*words, answer="y\n")
    assert lot.states() == {"parked": 1, "discarded": 6}
    undo = ("undo-discard", "flights", "--why", "wrong ones", "--who", "ann")
    declined = run(*undo, fails=True, answer="n\n")
    assert declined.exit_code == 1
    assert "Park up to 6 discarded events again?" in declined.output
    with pytest.raises(InputError, match="add --yes"):
        run(*undo, "--json")
    assert lot.states() == {"parked": 1, "discarded": 6}
    report = run(*undo, "--json", "--yes")
    assert report["events"] == 6
    assert lot.states() == {"parked": 7}
    assert lot.sql("SELECT detail ->> 'why' FROM audit_log ORDER BY id") == [
        ("test flights",),
        ("wrong ones",),
    ]
    assert lot.sql("SELECT who FROM audit_log ORDER BY id DESC LIMIT 1") == [("ann",)]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("list", "fligths"), "did you mean 'flights'"),
        (("list", "--since", "soon"), "since: 'soon' is not a time"),
        (("show", "-e", "nothing"), "nothing was ever parked of event name nothing"),
        (("sample", "-e", "nothing"), "nothing is parked now of event name nothing"),
        (("discard", "--why", "x", "--yes"), "no pipeline was given"),
        (("discard", "--why", "x", "--yes", "--since", "2013-01-01"), "say --all-pipelines"),
        (("undo-discard", "--why", "x", "--yes", "-s", "mapping"), "say --all-pipelines"),
        (("discard", "--why", "x", "--yes", "--all-pipelines"), "no filter was given"),
        (("discard", "flights", "--why", "x", "--yes", "--all-pipelines"), "contradicts"),
        (("discard", "flights", "--why", " ", "--yes"), "`why` must not be empty"),
        (("download", "-o", "out.doc"), "must end in one of"),
    ],
)
def test_bad_input_is_said_with_what_to_do(run, flights, words, error):
    with pytest.raises(InputError, match=error):
        run(*words)


def test_hostile_names_are_neither_markup_nor_terminal_commands(run, lot):
    name = "[red]\x1b[2J\r\x07[/]\u202e"
    event = make_event(name=name, message=name, where=name, value=name.encode(), event_at=name)
    lot.park([event])
    for words in (("list",), ("show",), ("sample",)):
        shown = run(*words)
        assert not set("\x1b\r\x07\u202e") & set(shown)
        assert "[red]" in shown
        assert "\\x1b" in shown


def test_a_name_that_was_given_stands_beside_that_of_the_system_user(run, flights, lot):
    from waybill.services import current_user

    for verb in ("discard", "undo-discard"):
        run(verb, "flights", "--why", "x", "--who", "../../<b>root", "--yes")
    said = lot.sql("SELECT who, detail ->> 'system_user' FROM audit_log")
    assert said == [("../../<b>root", current_user())] * 2


def test_a_sample_says_how_many_it_left_out(run, flights, lot):
    """6 and 1 events: the smaller group gives all it has, the rest is the larger one's."""
    assert "5 of 7 events; --number 7 shows all" in run("sample", "flights")
    assert "of 7 events" not in run("sample", "flights", "-n", "7")
    assert len(run("sample", "flights", "-n", "7", "--json")) == 7
    chosen = run("show", "flights", "-s", "transformation", "--json")[0]["causes"][0]["fingerprint"]
    one = run("sample", "flights", "-f", chosen, "-n", "1")
    assert "1 event; --number shows more, if there are" in one
    assert "1 of 7 events" in run("sample", "flights", "-n", "1")
    lot.park([make_event(n) for n in range(20, 120)], 3)
    assert "5 of 107 events; --number shows more, `waybill parked download` takes all" in (
        run("sample", "flights")
    )


def test_a_terminal_gets_a_payload_a_line_a_field(flights, run, lot):
    """The values as they are; folded to the terminal's width. A pipe gets it as it came."""
    long = b'{"n":1.50,"note":"%s\\u001b[31m"}' % (b"word " * 20)
    lot.park([make_event(8, name="noted", value=long)], 3)
    code = "from waybill.cli.parked import app; app()"
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    given = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    subprocess.run(
        [sys.executable, "-c", code, "sample", "flights", "-e", "noted"],
        stdout=theirs, stdin=theirs, env={**given, "NO_COLOR": "1"}, timeout=300, check=True,
    )  # fmt: skip
    os.close(theirs)
    said = os.read(ours, 65_536).decode()
    os.close(ours)
    assert '{\r\n  "n": 1.50,\r\n  "note": "word word' in said
    assert max(map(len, said.split("\r\n"))) <= 60
    assert "\x1b" not in said
    assert '{"n":9}' in run("sample", "flights", "-s", "mapping")


def test_a_discard_that_nobody_can_answer_says_how_to_go_on(run, flights, lot):
    words = ("discard", "flights", "-s", "mapping", "--why", "a test")
    declined = run(*words, fails=True, answer="n\n")
    assert "Discard up to 1 parked event? [y/N]" in declined.output
    assert declined.exit_code == 1
    with pytest.raises(InputError, match="no terminal; add --yes to go on without being asked"):
        run(*words, answer="")
    assert lot.states() == {"parked": 7}
