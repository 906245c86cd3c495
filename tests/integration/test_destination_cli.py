"""``waybill destination``: how far destinations are, whether they answer, parking by hand."""

from __future__ import annotations

import json

import pytest
from tests.support.loads import opened_loads, some
from tests.unit.destinations.orders import clean_database
from typer.testing import CliRunner

from waybill.cli import app
from waybill.loading.backoff import StoppedError
from waybill.settings import DestinationSettings, Settings

pytestmark = pytest.mark.serves


@pytest.fixture
def loads(postgres, s3):
    with opened_loads(postgres, s3, clean_database(postgres)) as opened:
        yield opened


@pytest.fixture
def run(loads, monkeypatch):
    """Run a command; returns exit code and all it printed."""
    house = DestinationSettings(kind="snowflake", dsn="snowflake://nobody")
    settings = Settings(
        _env_file=None,
        tracker=loads.tracker_settings,
        s3=loads.s3,
        destinations={"warehouse": loads.settings, "other-house": house},
    )
    monkeypatch.setattr("waybill.settings.Settings", lambda: settings)
    monkeypatch.setenv("COLUMNS", "80")

    def call(*words):
        result = CliRunner().invoke(app, ["destination", *words])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.output

    return call


def try_once(loads, last):
    loads.gate.shut()
    loads.time.stopped = True
    with pytest.raises(StoppedError):
        loads.deliver(loads.patience(), last)
    loads.time.stopped = False


def test_a_list_says_how_far_each_is_and_why_one_waits(loads, run):
    loads.deliver(loads.patience(), loads.stage(some(1, 2)))
    try_once(loads, loads.stage(some(3, 1200)))
    code, text = run("list")
    assert code == 0
    assert max(map(len, text.partition("\n\n")[0].splitlines())) <= 80
    warehouse = next(line for line in text.splitlines() if line.startswith("warehouse "))
    assert warehouse.split() == ["warehouse", "postgres", "1", "2", "1,200", "waits"]
    assert "snowflake" in text
    assert "(experimental)" in text
    assert "warehouse: waits since" in text
    assert "1 try, destination_unreachable: destination 'warehouse' did not answer" in text


def test_a_list_for_machines_says_all_of_it(loads, run):
    try_once(loads, loads.stage(some(1, 3)))
    _, text = run("list", "--json")
    other, warehouse = json.loads(text)
    assert (other["name"], other["kind"], other["live_tested"]) == (
        "other-house",
        "snowflake",
        False,
    )
    assert (other["behind"], other["waiting"], other["experimental"]) == (0, None, True)
    names = ("loaded", "last_commit", "behind", "rows", "live_tested")
    assert [warehouse[name] for name in names] == [0, 1, 1, 3, True]
    assert warehouse["experimental"] is False
    assert warehouse["bytes"] > 0
    assert warehouse["waiting"]["code"] == "destination_unreachable"
    assert warehouse["waiting"]["attempts"] == 1


def test_what_waits_is_ordered_to_be_parked_and_the_order_taken_back(loads, run):
    last = loads.stage(some(1, 3))
    try_once(loads, last)
    code, text = run("park", "warehouse", "--reason", "a long move", "--who", "ann")
    assert (code, "as destination_unreachable" in text) == (0, True)
    assert "parking ordered by ann" in run("list")[1]
    _, text = run("unpark", "warehouse", "--why", "it is back", "--who", "ann", "--json")
    assert json.loads(text)["asked_at"] is None
    run("park", "warehouse", "--why", "again", "--who", "ann")
    loads.deliver(loads.patience(), last)
    assert "parked from commit 1 on" in run("list")[1]
    rows = loads.sql("SELECT who, action, detail ->> 'why' FROM audit_log ORDER BY id LIMIT 3")
    assert rows == [
        ("ann", "park_destination", "a long move"),
        ("ann", "unpark_destination", "it is back"),
        ("ann", "park_destination", "again"),
    ]


@pytest.mark.parametrize("verb", ["park", "unpark"])
def test_a_name_that_is_none_is_answered_with_the_nearest(run, verb):
    code, text = run(verb, "warehuose", "--why", "x")
    assert (code, "did you mean 'warehouse'" in " ".join(text.split())) == (3, True)


def test_nothing_lost_is_not_said_of_a_name_that_is_none(run):
    code, text = run("lost", "warehuose")
    assert code == 3
    assert "warehouse" in text
    assert "No staged object is lost" not in text


def test_a_check_says_each_step_and_leaves_only_the_books(loads, run):
    code, text = run("check", "warehouse", "--schema", "shop")
    assert code == 0, text
    assert "warehouse: can be loaded" in text
    assert text.count("ok ") >= 3
    assert max(map(len, text.splitlines())) <= 80
    assert loads.ask("SELECT count(*) FROM pg_tables WHERE schemaname = 'shop'") == [(0,)]
    _, text = run("check", "warehouse", "--json")
    assert json.loads(text)["ok"] is True


def test_a_check_of_what_is_away_fails_and_says_so(loads, run):
    loads.gate.shut()
    code, text = run("check", "warehouse")
    assert code == 2
    assert "failed" in text
    assert "cannot be loaded" in text


def test_status_names_the_destinations_that_are_waited_for(loads, run, capsys):
    from waybill.cli import stack

    stack._show_waiting()
    assert capsys.readouterr().out == ""
    try_once(loads, loads.stage(some(1, 1)))
    stack._show_waiting()
    assert "destination warehouse waits since" in capsys.readouterr().out
