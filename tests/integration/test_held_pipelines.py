"""Holds and probes against the real tracker and store: one at a time, whoever dies when."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.integration import parking_lot
from tests.support import orders, parked_orders
from tests.support.user_code import sandbox
from typer.testing import CliRunner

from waybill.access import Decision
from waybill.cli import lazy, pipelines
from waybill.deployment import deploy
from waybill.errors import InputError
from waybill.parking.holds import (
    BREAKER,
    begin_probe,
    end_probe,
    held_groups,
    held_pipelines,
    read_holds,
    record_storm,
    to_replay,
)
from waybill.replay import probing
from waybill.replay.probing import probe_held

pytestmark = pytest.mark.serves
lot, opened_lots = parking_lot.lot, parking_lot.opened_lots
ID = "test-orders"
CAUSE = {
    "version": "v1",
    "stage": "transformation",
    "error_type": "null_value",
    "place": "",
    "message": "no amount",
    "failed": 60,
    "events": 100,
}


def storm(lot, *, version="v1"):
    with lot.tracker.transaction() as connection:
        return record_storm(connection, ID, CAUSE | {"version": version})


def deployed(lot, folder, *, fixed):
    """Deploy a version: the first fails on all held orders, the fixed one on none."""
    return deploy(lot.tracker, orders.write_orders(folder, rows=1, fixed=fixed), who="t").version


def hold_orders(lot, numbers, *, attempt=0, number=1, note="n"):
    events = []
    for one in numbers:
        event = parked_orders.order(one, "team", note)
        event.attempt = attempt
        events.append(parked_orders.parked(event, code="pipeline_held"))
    lot.park(events, number)


def probe(lot, *, pass_rate=0.9, code=None):
    return probe_held(
        lot.tracker, lot.parking, pass_rate=pass_rate, code=code or sandbox(), fetch=lot.objects.get
    )


def age(lot, seconds):
    """Let a hold and its last probe be older than they are."""
    lot.sql(
        "UPDATE pipeline_holds SET held_at = held_at - make_interval(secs => :s), "
        "probed_at = probed_at - make_interval(secs => :s), "
        "released_at = released_at - make_interval(secs => :s)",
        s=seconds,
    )


def test_a_storm_is_held_once_with_its_notice_and_its_audit_entry(lot):
    assert storm(lot)
    assert not storm(lot), "it is held already"
    assert held_pipelines(lot.tracker) == {ID}
    assert lot.sql("SELECT kind, pipeline_id, detail->>'failed' FROM notices") == [
        ("hold", ID, "60")
    ]
    assert lot.sql("SELECT who, action, target FROM audit_log") == [(BREAKER, "hold", ID)]


def test_a_hold_whose_batch_is_rolled_back_never_was(lot):
    with pytest.raises(RuntimeError), lot.tracker.transaction() as connection:
        record_storm(connection, ID, CAUSE)
        raise RuntimeError("the offsets had moved")
    assert held_pipelines(lot.tracker) == frozenset()
    assert lot.sql("SELECT count(*) FROM notices WHERE kind = 'hold'") == [(0,)]


def test_of_many_that_hold_a_pipeline_at_once_one_does(lot, tmp_path):
    deployed(lot, tmp_path, fixed=False)
    together = threading.Barrier(8)

    def try_it(number):
        together.wait()
        if number % 2:
            return storm(lot)
        try:
            return bool(lot.parking.hold("orders", Decision("ada", "looks odd")))
        except InputError:
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(try_it, range(8))) == 1
    assert lot.sql("SELECT count(*) FROM pipeline_holds") == [(1,)]
    assert lot.sql("SELECT count(*) FROM notices WHERE kind = 'hold'") == [(1,)]


def test_a_release_by_hand_wins_over_a_probe_that_was_under_way(lot, tmp_path):
    deployed(lot, tmp_path, fixed=False)
    storm(lot)
    [found] = read_holds(lot.tracker)
    assert begin_probe(lot.tracker, found, "v1")
    assert not begin_probe(lot.tracker, found, "v1"), "another probe has begun it"
    lot.parking.release("orders", Decision("ada", "the service is back"))
    assert not end_probe(lot.tracker, found, {"version": "v1"}, passed=True)
    [over] = lot.parking.holds(active=False)
    assert (over.released_by, over.probes) == ("ada", 1)
    with pytest.raises(InputError, match="not held"):
        lot.parking.release("orders", Decision("ada", "again"))


def test_what_a_person_held_no_probe_releases(lot, tmp_path):
    deployed(lot, tmp_path, fixed=True)
    lot.parking.hold("orders", Decision("ada", "wait for the audit"))
    hold_orders(lot, range(5))
    age(lot, 100_000)
    assert probe(lot).probes == []
    assert held_pipelines(lot.tracker) == {ID}


def test_a_probe_of_the_version_that_failed_waits_its_time_and_twice_as_long_each_time(
    lot, tmp_path
):
    version = deployed(lot, tmp_path, fixed=False)
    storm(lot, version=version)
    hold_orders(lot, range(10, 40))
    for wait_s in (60, 120, 240, 480, 960, 1920, 3600, 3600):
        age(lot, wait_s - 5)
        assert probe(lot).probes == []
        age(lot, 6)
        [found] = probe(lot).probes
        assert (found.events, found.would_pass, found.released) == (30, 0, False)
        assert found.would_fail == {"transformation/null_value": 30}
    assert to_replay(lot.tracker) == [], "it is held still"


def test_a_fix_is_probed_at_once_and_what_was_held_is_to_go_back(lot, tmp_path):
    storm(lot, version=deployed(lot, tmp_path, fixed=False))
    hold_orders(lot, range(30))
    fixed = deployed(lot, tmp_path, fixed=True)
    report = probe(lot)
    [found] = report.probes
    assert (found.version, found.would_pass, found.released) == (fixed, 30, True)
    assert (report.held, [p.parked for p in report.to_replay]) == ([], [30])
    assert lot.sql("SELECT who, action FROM audit_log WHERE action = 'release'") == [
        ("probe", "release")
    ]
    again = probe(lot)
    assert again.probes == []
    assert [p.id for p in again.to_replay] == [p.id for p in report.to_replay], (
        "a round that died before its launches is made good by the next"
    )


@pytest.mark.parametrize("how", ["gone", "cut", "flipped"])
@pytest.mark.parametrize(("whole", "fixed"), [(20, True), (20, False), (0, True)])
def test_a_damaged_file_among_what_is_held_decides_nothing(lot, tmp_path, how, whole, fixed):
    """What is whole decides; where all is damaged, the next events will tell."""
    storm(lot, version=deployed(lot, tmp_path, fixed=False))
    hold_orders(lot, range(10))
    if whole:
        hold_orders(lot, range(10, 10 + whole), number=2)
    damage(lot, how)
    age(lot, 10_000)
    deployed(lot, tmp_path, fixed=fixed)
    [found] = probe(lot).probes
    assert (found.events, found.would_pass) == (whole, whole if fixed else 0)
    assert found.released is fixed
    lot.sql("DELETE FROM segments")
    lot.sql("DELETE FROM parked_partitions")


def damage(lot, how):
    """Damage the first object that is held."""
    [(key, middle)] = lot.sql(
        "SELECT object_key, position + length / 2 FROM segments ORDER BY id LIMIT 1"
    )
    body = bytearray(lot.objects.get(key))
    body[middle] ^= 1
    lot.objects.delete([key])
    if how != "gone":
        lot.objects.put(key, bytes(body if how == "flipped" else body[:middle]))


@pytest.mark.parametrize(("good", "released"), [(90, True), (89, False)])
def test_the_share_that_must_pass_decides(lot, tmp_path, good, released):
    storm(lot)
    deployed(lot, tmp_path, fixed=False)  # a note is NOT NULL, and there is none without an amount
    code = "def transform(event):\n    if event.data['number'] >= 90: 1/0\n    return None\n"
    code = code.replace("90", str(good))
    folder = orders.write_orders(tmp_path, rows=1, code=code)
    deploy(lot.tracker, folder, who="t")
    hold_orders(lot, range(100))
    [found] = probe(lot).probes
    assert (found.events, found.would_pass, found.released) == (100, good, released)


def test_a_probe_killed_before_its_end_is_not_begun_again_before_its_time(
    lot, tmp_path, monkeypatch
):
    storm(lot)
    deployed(lot, tmp_path, fixed=True)
    hold_orders(lot, range(10))

    def dies(*_given, **_named):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(probing, "dry_run", dies)
        with pytest.raises(KeyboardInterrupt):
            probe(lot)
    assert probe(lot).probes == []
    age(lot, 121)
    assert probe(lot).probes[0].released


HANGS = "def transform(event):\n    while True:\n        pass\n"


def test_code_that_hangs_costs_a_probe_its_time_and_no_more(lot, tmp_path, monkeypatch, run):
    """It may raise for fresh events, so that they are held, and hang for those of a minute ago."""
    storm(lot)
    deploy(lot.tracker, orders.write_orders(tmp_path, rows=1, code=HANGS), who="t")
    hold_orders(lot, range(180))
    monkeypatch.setattr(probing, "PROBE_S", 2.0, raising=False)
    began = time.monotonic()
    [found] = probe(lot, code=sandbox(0.5)).probes
    assert time.monotonic() - began < 60, "180 events of half a second each"
    assert (found.events, found.would_pass, found.released) == (180, 0, False)
    assert found.would_fail == {"transformation/transformation_timeout": 180}
    shown = " ".join(run("holds").split())
    assert f"it took too long: {found.not_done} events were not done within 2 s" in shown


def test_of_a_sample_that_is_not_done_in_time_what_passed_counts(lot, tmp_path, monkeypatch):
    storm(lot)
    code = "import time\ndef transform(event):\n    time.sleep(0.2)\n    return None\n"
    deploy(lot.tracker, orders.write_orders(tmp_path, rows=1, code=code), who="t")
    hold_orders(lot, range(150))
    monkeypatch.setattr(probing, "PROBE_S", 8.0, raising=False)  # of 30
    [found] = probe(lot).probes
    assert (found.events, found.released) == (150, False)
    assert 0 < found.would_pass < 150
    assert found.would_pass + found.not_done == 150


def other_deployed(lot, folder, number):
    """Deploy the orders under another id, held since an hour."""
    home = orders.write_orders(folder / str(number), rows=1)
    declared = (home / "pipeline.yaml").read_text()
    ident = f"{ID}-{number}"
    declared = declared.replace(ID, ident).replace("name: orders", f"name: orders-{number}")
    declared = declared.replace("schema: shop", f"schema: shop_{number}")
    (home / "pipeline.yaml").write_text(declared)
    version = deploy(lot.tracker, home, who="t").version
    with lot.tracker.transaction() as connection:
        assert record_storm(connection, ident, CAUSE | {"version": version})
    return ident


def test_a_round_has_an_end_and_the_next_goes_on_where_it_stopped(lot, tmp_path, monkeypatch):
    for number in range(3):
        other_deployed(lot, tmp_path, number)
    age(lot, 100)
    monkeypatch.setattr(probing, "ROUND_S", 0.0, raising=False)
    rounds = [[one.pipeline for one in probe(lot).probes] for _ in range(4)]
    assert [len(one) for one in rounds] == [1, 1, 1, 0]
    assert len({one for [one] in rounds[:3]}) == 3


def test_what_fails_again_and_again_does_not_keep_a_new_hold_from_its_turn(lot, tmp_path):
    """It is quiet for longer, as it waits for longer."""
    old, new = (other_deployed(lot, tmp_path, number) for number in range(2))
    lot.sql("UPDATE pipeline_holds SET probes = 6 WHERE pipeline_id = :id", id=old)
    lot.sql(
        "UPDATE pipeline_holds SET held_at = held_at - make_interval(secs => "
        "CASE pipeline_id WHEN :id THEN 4000 ELSE 100 END)",
        id=old,
    )
    assert [one.pipeline for one in probe(lot).probes] == [
        name.replace("test-", "") for name in (new, old)
    ]


def test_a_sample_is_taken_from_all_partitions_and_of_fresh_events_where_there_are_any(
    lot, tmp_path
):
    storm(lot)
    deployed(lot, tmp_path, fixed=False)
    hold_orders(lot, range(1000), attempt=1)
    hold_orders(lot, range(1000, 2000), number=2)
    assert held_groups(lot.tracker, ID)[0][1] == 2000
    [found] = probe(lot).probes
    assert 70 < found.events < 130, "half of 200, as drawn"


def test_what_fails_in_every_fiftieth_event_is_as_frequent_in_the_sample(lot, tmp_path):
    storm(lot)
    deployed(lot, tmp_path, fixed=False)
    code = "def transform(event):\n    if event.data['number'] % 50 == 0: 1/0\n    return None\n"
    deploy(lot.tracker, orders.write_orders(tmp_path, rows=1, code=code), who="t")
    hold_orders(lot, range(3000))
    [found] = probe(lot, pass_rate=1.0).probes
    assert (found.events, found.released) == (200, False)
    assert 192 <= found.would_pass < 200, "4 of 200 on average, and never one in ten"


def test_nothing_left_to_probe_releases(lot, tmp_path):
    storm(lot)
    deployed(lot, tmp_path, fixed=False)
    [found] = probe(lot).probes
    assert (found.events, found.released) == (0, True)


def test_a_storm_that_comes_back_soon_waits_longer_and_one_after_a_rest_does_not(lot, tmp_path):
    deployed(lot, tmp_path, fixed=False)
    waits = []
    for rest_s in (0, 0, 3700):
        storm(lot)
        [found] = read_holds(lot.tracker)
        waits.append(found.wait_s)
        lot.parking.release("orders", Decision("ada", "try"))
        age(lot, rest_s)
    storm(lot)
    waits.append(read_holds(lot.tracker)[0].wait_s)
    assert waits == [60, 120, 240, 60]


def test_a_replay_that_runs_or_was_cancelled_since_is_not_launched_again(lot, tmp_path):
    deployed(lot, tmp_path, fixed=False)
    storm(lot)
    hold_orders(lot, range(3))
    lot.parking.release("orders", Decision("ada", "try"))
    [partition_id] = to_replay(lot.tracker)
    begun = lot.parking.begin_replay(partition_id, who="t", run_id="r1")
    hold_orders(lot, range(3, 5), number=2)
    assert to_replay(lot.tracker) == [], "the one that runs ends first"
    lot.parking.cancel_replay(begun.id, who="ada")
    assert to_replay(lot.tracker) == [], "ada decides"
    storm(lot)
    lot.parking.release("orders", Decision("ada", "now"))
    assert to_replay(lot.tracker) == [partition_id]


@pytest.fixture
def run(lot, tmp_path, monkeypatch):
    """Run ``waybill pipelines holds|hold|release``, the pipeline deployed; return what it says."""
    deployed(lot, tmp_path, fixed=False)
    monkeypatch.setenv("WAYBILL_HOME", str(tmp_path))
    monkeypatch.setenv("WAYBILL_TRACKER__DSN", lot.settings["dsn"])
    app = lazy.typer.Typer()
    for name in ("holds", "hold", "release"):
        app.command(name)(getattr(pipelines, name))

    def run_one(*arguments):
        done = CliRunner().invoke(app, list(arguments))
        assert done.exception is None, done.exception
        return done.output

    return run_one


def test_the_commands_hold_show_and_release(lot, run):
    assert run("holds") == "No pipeline is held.\n"
    storm(lot)
    shown = run("holds")
    assert "orders: held since" in shown
    assert "60 of 100 events would have been parked: transformation/null_value" in shown
    released = " ".join(run("release", "orders", "--why", "fixed").split())
    assert "released; what waits stays, until this is mended" in released
    assert "the upkeep job probe_held_pipelines is late, it never succeeded" in released
    held = json.loads(run("hold", ID, "--why", "by me", "--who", "ada", "--json"))
    assert (held["pipeline"], held["held_by"], held["wait_s"]) == ("orders", "ada", None)
    assert "released only by hand" in run("holds")
    run("release", "orders", "--why", "done", "--json")
    assert [one["released_at"] is None for one in json.loads(run("holds", "--all", "--json"))] == [
        False,
        False,
    ]


def test_the_commands_mask_messages_that_may_quote_what_is_personal(lot, run):
    storm(lot)
    assert "no amount" in run("holds"), "nothing of it is declared as personal"
    lot.sql(
        "UPDATE pipeline_versions SET declaration = "
        "jsonb_set(declaration, '{events,order,personal}', '[\"note\"]')"
    )
    assert "no amount" not in (shown := run("holds"))
    assert "would have been parked: transformation/null_value\n  •••\n" in shown
    [held] = json.loads(run("holds", "--json"))
    assert (held["cause"]["message"], held["cause"]["failed"]) == ("•••", 60)
    released = json.loads(run("release", "orders", "--why", "mended", "--json"))
    assert released["cause"]["message"] == "•••"


def test_a_campaign_leaves_out_pipelines_that_are_held_and_says_so(lot, tmp_path, monkeypatch):
    from waybill import services
    from waybill.replay import CampaignRequest
    from waybill.settings import Settings

    deployed(lot, tmp_path, fixed=False)
    monkeypatch.setenv("WAYBILL_HOME", str(tmp_path))
    monkeypatch.setenv("WAYBILL_TRACKER__DSN", lot.settings["dsn"])
    hold_orders(lot, range(3))
    lot.park([parking_lot.make_event(9, pipeline_id="another")], 2)
    settings, runs = Settings(), iter(range(99))

    def frozen(**asked):
        request = CampaignRequest.of(asked)
        found = services.freeze_campaign(settings, request, who="ada", run_id=f"{next(runs)}")
        groups = services.campaign_groups(settings, found.id, state="waiting", limit=9)
        services.cancel_campaign(settings, found.id, Decision("ada"))
        return sorted(group.pipeline for group in groups), found.left_out

    assert frozen() == (["another", "orders"], {})
    lot.parking.hold("orders", Decision("ada", "migration"))
    assert frozen() == (["another"], {"held": 1})
    assert frozen(limit=1) == (["another"], {"held": 1}), "what is held takes no place"
    assert frozen(dry_run=True) == (["another", "orders"], {})
    assert frozen(pipeline="orders") == ([], {"held": 1})
    for asked, words in (
        ({"pipeline": "ordres"}, "no pipeline 'ordres' is deployed"),
        ({"stage": "maping"}, "did you mean 'mapping'"),
        ({"error_type": "nul_value"}, "did you mean 'null_value'"),
        ({"event_name": "no such event"}, "there is no parked event name 'no such event'"),
    ):
        with pytest.raises(InputError, match=words):
            frozen(**asked)
    lot.parking.release("orders", Decision("ada", "done"))
    assert frozen() == (["another", "orders"], {})
