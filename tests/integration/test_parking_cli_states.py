"""``waybill parked``: what is quarantined or gone is said, and so is what a filter gets wrong."""

import json
from dataclasses import replace

import pytest
from tests.integration import parking_lot, test_parking_cli
from tests.integration.parking_lot import make_event
from typer.testing import CliRunner

from waybill.access import Decision
from waybill.cli import app
from waybill.errors import InputError, RetryError
from waybill.parking import ParkedEvent, ParkedGroupFilter

pytestmark = pytest.mark.serves
lot, opened_lots = parking_lot.lot, parking_lot.opened_lots
run, flights = test_parking_cli.run, test_parking_cli.flights


def quarantine(lot, stage):
    """Set all parked events of one stage's partition apart, as a replay does that cannot read."""
    lot.sql(
        "UPDATE segments SET state = 'quarantined' FROM parked_partitions p "
        "WHERE p.id = partition_id AND p.stage = :stage",
        stage=stage,
    )
    lot.sql(
        "UPDATE parked_partitions SET quarantined = parked, parked = 0, bytes = 0 "
        "WHERE stage = :stage",
        stage=stage,
    )


def test_what_is_quarantined_is_listed_counted_and_has_a_way_out(run, flights, lot):
    assert "quarantined" not in run("list") + run("show")
    quarantine(lot, "transformation")
    shown = run("list", "-t", "null_value")
    assert "quarantined" in shown.splitlines()[0]
    assert "0 events parked in 1 group, 6 quarantined: `waybill parked recheck`" in shown
    assert run("list", "-t", "null_value", "--since", "2013-01-01", "--json")[0]["quarantined"] == 6
    assert len(run("list", "--json")) == 2
    shown = " ".join(run("show", "-t", "null_value").split())
    assert "0 parked, 0 replaying, 6 quarantined" in shown
    assert "`waybill parked recheck` once their files are back" in shown


@pytest.mark.parametrize("since", [None, "2013-01-01"])
def test_a_page_can_have_what_is_quarantined_too(lot, flights, since):
    def stages(**chosen):
        page = lot.parking.page(ParkedGroupFilter(since=since, **chosen))
        return {partition.stage for partition in page.partitions}

    quarantine(lot, "mapping")
    lot.park([make_event(1, stage="destination")], 3)
    lot.parking.discard(ParkedGroupFilter(stage="destination"), Decision("ann", "test"))
    assert stages(kept=True) == {"transformation", "mapping"}
    assert stages(held=True) == {"transformation"}
    lot.park([make_event(n, stage="destination") for n in (1, 30)], 4)
    day = ParkedGroupFilter(stage="destination", since="2013-01-02")
    lot.parking.discard(day, Decision("ann", "test"))
    assert lot.parking.page(replace(day, kept=True)).partitions == ()


def test_an_undo_says_how_many_it_came_too_late_for(run, flights, lot):
    undo = ("undo-discard", "flights", "-t", "null_value", "--why", "sorry")
    run("discard", "flights", "-t", "null_value", "--why", "x", "-y")
    lot.parking.clean_up(grace_s=0)
    assert lot.states() == {"parked": 1, "deleted": 6}
    report = run(*undo, "-y", "--json")
    assert (report["events"], report["left_segments"], report["left_events"]) == (0, 1, 6)
    assert "came too late for 6 events: a clean-up has" in run(*undo, "-y")
    outside = run(*undo, "-y", "--json", "--since", "2013-01-02")
    assert (outside["left_segments"], outside["left_events"]) == (0, 0)
    other = run("undo-discard", "flights", "-s", "mapping", "--why", "sorry", "-y", "--json")
    assert other["left_events"] == 0


def test_what_was_replayed_and_cleaned_up_is_nothing_to_undo(run, flights, lot):
    number = lot.parking.find(
        "flights", event_name="flight", stage="mapping", error_type="not_null_violation"
    ).id
    replay = "3f0d9a6e-0000-4000-8000-000000000001"
    lot.sql(
        "INSERT INTO replays (id, partition_id, state, requested_by) VALUES (:id, :p, 'done', 'a')",
        id=replay,
        p=number,
    )
    lot.sql(
        "UPDATE segments SET state = 'deleted', replay_id = :id WHERE partition_id = :p",
        id=replay,
        p=number,
    )
    lot.sql(
        "UPDATE parked_partitions SET parked = 0, replayed = 1, bytes = 0 WHERE id = :p", p=number
    )
    lot.park([make_event(9, stage="mapping", code="not_null_violation")], 3)
    run("discard", "flights", "-s", "mapping", "--why", "x", "-y")
    report = run("undo-discard", "flights", "-s", "mapping", "--why", "x", "-y", "--json")
    assert (report["events"], report["left_segments"], report["left_events"]) == (1, 0, 0)


def test_nothing_to_decide_is_not_asked_about(run, flights):
    assert "again?" not in run("undo-discard", "flights", "--why", "x")
    run("discard", "flights", "--why", "x", "-y")
    assert "Discard up to" not in run("discard", "flights", "--why", "x")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("list", "--stage", "mappin"), "there is no stage 'mappin'; did you mean 'mapping'"),
        (("list", "--stage", "nosuch"), "there is no stage 'nosuch'; there are"),
        (("list", "-t", "valu_error"), "no error type 'valu_error'; did you mean 'value_error'"),
        (("show", "-t", "valu_error"), "did you mean 'value_error'"),
        (("discard", "flights", "--why", "x", "-y", "-t", "nul_value"), "did you mean 'null_value"),
        (("list", "--fingerprint", "zzz"), "fingerprint: 'zzz' is not a fingerprint"),
        (
            ("discard", "flights", "--why", "x", "-y", "-f", "zzz"),
            "fingerprint: 'zzz' is not a fingerprint",
        ),
        (("sample", "-f", "zzz"), "fingerprint: 'zzz' is not a fingerprint"),
        (("list", "--since", "2014", "--until", "2013-01-01"), "since: '2014' is not a time"),
        (("list", "--since", "2014-01-01", "--until", "2013-01-01"), "since: .* before until"),
        (
            ("list", "--parked-since", "2014-01-01", "--parked-until", "2014-01-01"),
            "parked_since: .* before parked_until",
        ),
        (
            ("download", "-o", "x.csv", "--since", "2014-01-01", "--until", "2013-01-01"),
            "since: .* before until",
        ),
    ],
)
def test_a_filter_that_can_match_nothing_is_an_error(run, flights, words, error):
    with pytest.raises(InputError, match=error):
        run(*words)


def test_error_types_of_a_users_own_are_known_once_they_parked(run, lot):
    lot.park([make_event(1, code="too_blue")])
    assert len(run("list", "-t", "too_blue", "--json")) == 1
    assert len(run("list", "-t", "null_value", "--json")) == 0


def test_show_lists_causes_which_sample_and_download_take(run, flights, lot, tmp_path):
    lot.park([make_event(n, message="no such airport") for n in (20, 21)], 3)
    shown = run("show", "flights", "-t", "null_value")
    [row] = run("show", "flights", "-t", "null_value", "--json")
    causes = [(cause["events"], cause["message"]) for cause in row["causes"]]
    assert causes == [(6, "message 5"), (2, "no such airport")]
    for cause in row["causes"]:
        assert f"{cause['fingerprint']}  {cause['events']} events: {cause['message']}" in shown
    chosen = row["causes"][1]["fingerprint"]
    events = run("sample", "flights", "-f", chosen, "-n", "5", "--json")
    assert [event["error"]["message"] for event in events] == ["no such airport"] * 2
    path = tmp_path / "out.jsonl"
    run("download", "-o", path, "flights", "--fingerprint", chosen)
    lines = path.read_bytes().splitlines()
    assert [ParkedEvent.from_line(line).kafka_offset for line in lines] == [20, 21]


def test_messages_of_causes_are_masked(run, flights, lot):
    test_parking_cli.declare(lot, personal=["n"])
    [row] = run("show", "flights", "-t", "null_value", "--json")
    assert [cause["message"] for cause in row["causes"]] == ["message •••"]


def test_a_tracker_without_tables_yet_is_said(run, lot):
    lot.sql("ALTER TABLE parked_partitions RENAME TO moved_away")
    try:
        for words in (("list",), ("show",)):
            with pytest.raises(RetryError, match=r"`waybill up`") as raised:
                run(*words)
            assert "SELECT" not in str(raised.value)
    finally:
        lot.sql("ALTER TABLE moved_away RENAME TO parked_partitions")


def test_a_pipeline_that_does_not_exist_cannot_be_held(lot, flights):
    with pytest.raises(InputError, match="no pipeline 'flightss'; did you mean 'flights'"):
        lot.parking.hold("flightss", Decision("ann", "test"))


def recheck(*words):
    """Return exit code and output of the command."""
    done = CliRunner().invoke(app, ["parked", "recheck", *words])
    return done.exit_code, done.output


def test_recheck_says_what_is_gone_or_damaged_before_it_is_quarantined(run, flights, lot):
    """Both ways to ask: for all, and for one object by the key that `show` gives."""
    [key] = run("show", "-t", "null_value", "--json")[0]["objects"]
    shown = run("show", "-t", "null_value")
    assert key in shown
    assert recheck("flights") == (0, "0 events parked again\n")
    code, said = recheck("--object", key)
    assert (code, f"{key} is present, 6 events\n" in said) == (0, True)

    whole = lot.objects.get(key)
    lot.objects.put(key, whole[: len(whole) // 4])
    code, said = recheck("--object", key)
    assert (code, f"{key} is damaged, 6 events: " in said) == (2, True)

    lot.objects.delete([key])
    for words in (("--object", key), ("flights",), ()):
        code, said = recheck(*words)
        assert code == 2
        assert f"{key} is missing, 6 events: the object is gone from the store" in said
    [told] = json.loads(recheck("--json")[1])["objects"]
    assert (told["object_key"], told["state"], told["events"]) == (key, "missing", 6)
    lot.objects.put(key, whole)
    code, said = recheck("--object", "parked/none\udcff")
    assert (code, "no parked event is in object" in said) == (3, True)
