"""Partitions that replay when their cause changes: when, when not, and what a kill leaves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support import orders
from tests.support.parked_orders import order, parked
from typer.testing import CliRunner

from waybill import services
from waybill.access import Decision
from waybill.cli import app
from waybill.errors import InputError, RetryError
from waybill.parking import Packer, Parking, new_key
from waybill.parking.auto_replays import read_mark, remove_mark
from waybill.replay.auto_replay import (
    AutoLaunch,
    answering,
    due_auto_replays,
    launched,
    mark_for_auto_replay,
)
from waybill.settings import DestinationSettings
from waybill.storage import open_objects, open_tracker

pytestmark = pytest.mark.serves


class World:
    """A deployed pipeline with one parked partition, and a destination that can be away."""

    def __init__(self, settings: Any, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        self.tracker = open_tracker(settings.tracker)
        self.parking = Parking(self.tracker, open_objects(settings.s3))
        self.team = orders.team_of(settings.pipelines_dir)
        self.away = False
        self.asked = 0
        self.park()
        [partition] = self.parking.partitions()
        self.partition_id = partition.id

    def park(self, stage: str = "transformation", code: str = "null_value") -> None:
        packer = Packer()
        for number in range(3):
            packer.add(parked(order(number, self.team), stage=stage, code=code))
        packed, key = packer.finish(), new_key()
        with self.tracker.transaction() as connection:
            self.parking.record(
                connection,
                key=key,
                size=len(packed.body),
                segments=packed.segments,
                scope="warehouse",
                commit_number=1,
            )

    def healthy(self, _name: str) -> bool:
        self.asked += 1
        return not self.away

    def mark(self, on_change: str) -> None:
        mark_for_auto_replay(
            self.tracker,
            self.parking,
            self.partition_id,
            Decision("ann"),
            on_change=on_change,
            healthy=self.healthy,
        )

    def due(self) -> list[AutoLaunch]:
        return due_auto_replays(self.tracker, self.parking, healthy=self.healthy)

    def note(self, launch: AutoLaunch, run_id: str = "r1") -> bool:
        return launched(
            self.tracker, launch.partition_id, before=launch.before, seen=launch.seen, run_id=run_id
        )

    def deploy(self, words: str) -> None:
        code = self.folder / "orders" / "transformation.py"
        code.write_text(code.read_text() + f"\n# {words}\n")
        services.run_deploy(self.settings, self.folder / "orders", who="ann")


@pytest.fixture
def world(stack_settings: Any, tmp_path: Any) -> Any:
    folder = tmp_path / "pipelines"
    orders.write_orders(folder, rows=1)
    settings = stack_settings.model_copy(update={"pipelines_dir": folder})
    services.migrate(settings)
    services.run_deploy(settings, folder / "orders", who="test")
    world = World(settings, folder)
    yield world
    world.tracker.close()


def test_a_new_version_replays_once(world: World) -> None:
    world.mark("version")
    assert world.due() == []
    world.deploy("mended")
    [launch] = world.due()
    assert (launch.partition_id, launch.error_type) == (world.partition_id, "null_value")
    assert launch.why.startswith("version ")
    assert world.due() == [launch], "a kill before the launch was kept must launch it again"
    assert world.note(launch)
    assert world.due() == []
    mark = read_mark(world.tracker, world.partition_id)
    assert mark is not None
    assert (mark.last_run_id, mark.tried_at is None) == ("r1", False)


def test_a_destination_that_is_back_replays_and_one_that_never_left_does_not(world: World) -> None:
    world.mark("destination")
    world.deploy("something else")
    assert world.due() == []
    world.away = True
    assert world.due() == []
    world.away = False
    [launch] = world.due()
    assert "was away since" in launch.why
    assert world.note(launch)
    assert world.due() == []


def test_a_version_deployed_while_the_destination_is_away_is_acted_on_later(world: World) -> None:
    world.mark("version")
    world.away = True
    world.deploy("mended")
    assert world.due() == []
    assert world.due() == []
    world.away = False
    [launch] = world.due()
    assert launch.why.startswith("version ")


@pytest.mark.parametrize("on_change", ["version", "any"])
def test_while_its_pipeline_is_held_a_change_waits_and_is_not_used_up(
    world: World, on_change: str
) -> None:
    world.mark(on_change)
    world.parking.hold("orders", Decision("ann", "migration"))
    world.deploy("mended")
    assert world.due() == []
    assert world.due() == []
    world.parking.release("orders", Decision("ann", "done"))
    [launch] = world.due()
    assert launch.why.startswith("version ")


def test_a_destination_that_was_away_and_came_back_amid_a_hold_replays_after_it(
    world: World,
) -> None:
    world.mark("destination")
    world.parking.hold("orders", Decision("ann", "migration"))
    world.away = True
    assert world.due() == []
    world.away = False
    assert world.due() == []
    world.parking.release("orders", Decision("ann", "done"))
    [launch] = world.due()
    assert "was away since" in launch.why


def test_a_change_while_nothing_was_parked_is_no_reason_later(world: World) -> None:
    world.mark("any")
    begun = world.parking.begin_replay(world.partition_id, who="ann", run_id="by hand")
    world.deploy("mended")
    assert world.due() == []
    world.parking.cancel_replay(begun.id, who="ann")
    assert world.due() == []


def test_a_mark_that_was_changed_meanwhile_is_not_overwritten(world: World) -> None:
    world.mark("version")
    world.deploy("mended")
    [launch] = world.due()
    world.mark("any")
    assert not world.note(launch)
    assert world.due() == []
    assert remove_mark(world.tracker, world.partition_id, Decision("ann"))
    assert not remove_mark(world.tracker, world.partition_id, Decision("ann"))
    assert not world.note(launch)


def test_the_job_launches_a_changed_partition_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[tuple[str, Mapping[str, Any]]] = []

    class Airflow:
        answer: Exception | None = RetryError("Airflow did not answer")

        def launch(self, run_id: str, conf: Mapping[str, Any]) -> None:
            launched.append((run_id, conf))
            if self.answer:
                raise self.answer

    here = DestinationSettings(dsn=world.settings.tracker.dsn)
    settings = world.settings.model_copy(update={"destinations": {"warehouse": here}})
    parts = services.UpkeepParts(Airflow(), "a test", str)
    world.mark("version")
    world.deploy("mended")
    with pytest.raises(RetryError):
        services.run_upkeep_job(settings, parts, "auto_replay")
    Airflow.answer = None
    done = services.run_upkeep_job(settings, parts, "auto_replay")
    assert done == {"due": 1, "launched": 1}
    first, again = launched
    assert first == again
    assert again[1]["error_type"] == "null_value"
    assert services.run_upkeep_job(settings, parts, "auto_replay")["due"] == 0
    mark = read_mark(world.tracker, world.partition_id)
    assert mark is not None
    assert mark.last_run_id == again[0]


def test_the_command_marks_and_takes_the_mark_away(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in world.settings.to_env().items():
        monkeypatch.setenv(name, value)
    words = ["parked", "auto-replay", "orders", "-e", "order", "-s", "transformation"]
    told = CliRunner().invoke(app, [*words, "-t", "null_value", "--on", "version"])
    assert told.exit_code == 0, told.output
    assert "when a new version of the pipeline is active" in told.stdout
    mark = read_mark(world.tracker, world.partition_id)
    assert mark is not None
    assert mark.on_change == "version"
    off = CliRunner().invoke(app, [*words, "-t", "null_value", "--off"])
    assert "by hand only" in off.stdout
    assert read_mark(world.tracker, world.partition_id) is None


def test_a_destination_is_asked_once_a_look(world: World) -> None:
    world.park("mapping", "type_mismatch")
    for partition in world.parking.partitions():
        world.partition_id = partition.id
        world.mark("any")
    world.asked = 0
    world.due()
    assert world.asked == 1


def test_what_cannot_be_replayed_is_not_marked(world: World) -> None:
    world.park("ingestion", "key_missing")
    for partition in world.parking.partitions():
        if partition.stage == "ingestion":
            world.partition_id = partition.id
    with pytest.raises(InputError, match="never were events"):
        world.mark("any")
    world.partition_id = 0
    with pytest.raises(InputError, match="no parked group"):
        world.mark("any")


def test_an_unknown_change_is_refused_with_the_ones_there_are(world: World) -> None:
    with pytest.raises(InputError, match="version, destination, any"):
        world.mark("full moon")


def test_whether_a_destination_answers_is_asked_of_the_real_one(postgres: Any) -> None:
    here = DestinationSettings(dsn=postgres.database("answers"))
    gone = DestinationSettings(dsn="postgresql://127.0.0.1:1/none?connect_timeout=1")
    ask = answering({"here": here, "gone": gone})
    assert (ask("here"), ask("gone"), ask("unknown")) == (True, False, False)


def test_names_that_are_left_out_are_those_of_the_only_group(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in world.settings.to_env().items():
        monkeypatch.setenv(name, value)

    def run(*words: str, code: int) -> Any:
        done = CliRunner().invoke(app, ["parked", *words])
        assert done.exit_code == code, (done.output, done.exception)
        return done

    only = run("auto-replay", "orders", "--on", "version", "--json", code=0)
    assert only.stderr.splitlines()[:3] == [
        "event name: order, the only one",
        "stage: transformation, the only one",
        "error type: null_value, the only one",
    ]
    assert json.loads(only.stdout)["on_change"] == "version"
    world.park("mapping", "type_mismatch")
    several = run("auto-replay", "orders", code=1)
    assert several.stderr.splitlines() == [
        "Error: which stage? mapping or transformation: give --stage",
        "which error type? null_value or type_mismatch: give --error-type",
    ]
    marked = run("auto-replay", "orders", "-s", "mapping", "--json", code=0)
    assert json.loads(marked.stdout)["on_change"] == "any"
    assert "error type: type_mismatch, the only one" in marked.stderr
    several = run("replay", "orders", code=1)
    assert "which stage? mapping or transformation: give --stage" in several.stderr
    nothing = run("dry-run", "orders", "-s", "ingestion", code=1)
    assert "nothing of orders is parked that matches" in nothing.stderr
    assert "did you mean 'orders'" in run("dry-run", "order", code=3).stderr
