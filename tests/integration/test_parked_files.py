"""``waybill parked files``: which objects there are, what they hold, when they go."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from tests.integration import parking_lot
from tests.integration.parking_lot import make_event
from typer.testing import CliRunner

from waybill.access import Decision
from waybill.cli import app
from waybill.parking import ParkedGroupFilter

pytestmark = pytest.mark.serves
lot, opened_lots = parking_lot.lot, parking_lot.opened_lots
ANN = Decision("ann", "test")
LATER = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
def two(lot):
    """Two objects: three flights and a weather reading; two flights."""
    lot.sql("INSERT INTO pipelines (id, name, team) VALUES ('pl-1', 'flights', 'aviation')")
    first = lot.park([*map(make_event, range(3)), make_event(3, name="weather")], 1)
    return first, lot.park([make_event(n) for n in (4, 5)], 2)


def numbers(file):
    names = ("parked", "replaying", "quarantined", "replayed", "discarded")
    return {name: getattr(file, name) for name in names if getattr(file, name)}


def test_a_file_stays_until_the_last_of_its_events_is_decided_on(lot, two):
    found = lot.parking.files()
    assert [file.key for file in found.files] == [two[1], two[0]]
    assert [numbers(file) for file in found.files] == [{"parked": 2}, {"parked": 4}]
    assert {file.finished_at for file in found.files} == {None}
    assert found.bytes == sum(file.bytes for file in found.files) > 0
    lot.parking.discard(ParkedGroupFilter(event_name="flight"), ANN)  # a mark: no row says so
    newest, oldest = lot.parking.files().files
    assert (numbers(newest), numbers(oldest)) == ({"discarded": 2}, {"parked": 1, "discarded": 3})
    assert newest.finished_at >= newest.committed_at
    assert oldest.finished_at is None
    assert lot.parking.files().finished == 1
    assert lot.parking.clean_up(grace_s=0, now=LATER).objects == 1
    assert [file.key for file in lot.parking.files().files] == [two[0]]
    assert lot.keys() == {two[0]}, "what is listed is what is there"


def test_an_undone_discard_makes_it_stay_again(lot, two):
    lot.parking.discard(ParkedGroupFilter(pipeline_id="pl-1"), ANN)
    assert lot.parking.files().finished == 2
    lot.parking.undo_discard(ParkedGroupFilter(event_name="weather"), ANN)
    found = lot.parking.files()
    assert (found.finished, found.finished_bytes) == (1, found.files[0].bytes)


def test_files_of_some_groups_are_counted_whole(lot, two):
    found = lot.parking.files(ParkedGroupFilter(event_name="weather"))
    assert [(file.key, numbers(file)) for file in found.files] == [(two[0], {"parked": 4})]
    assert lot.parking.files(ParkedGroupFilter(pipeline_id="other")).number == 0


def test_sums_are_of_all_and_a_replayed_event_says_so(lot, two):
    found = lot.parking.files(limit=1)
    assert (len(found.files), found.number) == (1, 2)
    names = {"event_name": "weather", "stage": "transformation", "error_type": "null_value"}
    partition = lot.parking.find("pl-1", **names)
    replay = lot.parking.begin_replay(partition.id, who="ann", run_id="r")
    assert numbers(lot.parking.files().files[1]) == {"parked": 3, "replaying": 1}
    ids = [one.id for one in lot.parking.replay_segments(replay.id)]
    lot.parking.mark_replayed(replay.id, ids)
    lot.parking.finish_replay(replay.id)
    assert numbers(lot.parking.files().files[1]) == {"parked": 3, "replayed": 1}


def test_the_command_says_size_end_and_cost(lot, two, monkeypatch, tmp_path):
    s3 = lot.settings["s3"]
    for name, value in {
        "WAYBILL_HOME": str(tmp_path),
        "WAYBILL_TRACKER__DSN": lot.settings["dsn"],
        "WAYBILL_S3__ENDPOINT_URL": s3.endpoint_url,
        "WAYBILL_S3__BUCKET": s3.bucket,
        "WAYBILL_S3__ACCESS_KEY": s3.access_key.get_secret_value(),
        "WAYBILL_S3__SECRET_KEY": s3.secret_key.get_secret_value(),
        "WAYBILL_AIRFLOW__URL": "http://127.0.0.1:1",
        "COLUMNS": "80",
    }.items():
        monkeypatch.setenv(name, value)

    def run(*words, code=0):
        done = CliRunner().invoke(app, ["--wait", "0", "parked", "files", *words])
        assert done.exit_code == code, (done.output, done.exception)
        return done

    said = run("flights", "--price", "1000000").stdout
    assert two[1] in said.splitlines()
    assert "2 parked; stays" in said
    assert "a month, at 1e+06 for a GB and month" in said
    lot.parking.discard(ParkedGroupFilter(pipeline_id="pl-1"), ANN)
    ended = run("-n", "1")
    assert "2 discarded; goes with the first clean-up after 20" in " ".join(ended.stdout.split())
    assert "and 1 older file; -n shows more" in ended.stdout
    assert "2 of them" in ended.stdout
    assert "could not be checked" in " ".join(ended.stderr.split()), "who deletes them is away"
    told = json.loads(run("--json", "--price", "1").stdout)
    assert (told["number"], told["finished"], told["kept_s"]) == (2, 2, 3600.0)
    assert told["cost_a_month"] == told["bytes"] / 10**9
    assert run("flihgts", code=3).stderr
