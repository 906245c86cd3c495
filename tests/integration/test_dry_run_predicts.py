"""A dry run predicts what the replay then does, within 2 points, and writes nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.support import orders
from tests.support.evolving import executor_settings, kafka_records
from tests.support.parked_orders import order, parked
from tests.support.replays import dry_run_request, run_replay
from typer.testing import CliRunner

from waybill import services
from waybill.cli import app
from waybill.events import Event, decode, encode
from waybill.parking import Packer, ParkedEvent, Parking, new_key, read_directory
from waybill.processing.spark import tasks
from waybill.processing.spark.plan_cache import TaskTexts
from waybill.replay.dry_run import DryRunReport
from waybill.settings import Settings
from waybill.storage import open_log, open_objects, open_tracker

pytestmark = pytest.mark.serves
NAMES = ("orders", "order", "transformation", "null_value")
EVENTS = 3_000
NOT_SENT_BACK = 200
"""Recent good events that lie in the log before the replay."""

MENDED = """
def transform(event):
    order = event.data
    cause, luck = order["note"].split(":")
    luck = int(luck)
    if cause == "half" and luck % 2: raise ValueError(f"odd luck {luck}")
    if cause == "filtered": return None
    if cause == "mapping" and luck % 10 < 3: order["amount"] = "text"
    if cause == "hopeless": return order["missing"]
    if cause == "dies" and luck % 7 == 0:
        import os
        os._exit(3)
    if cause == "slow" and luck % 3 == 0:
        while True: pass
    if cause == "good": order["amount"] = 1
    return event
"""
CAUSES = {"mended": 40, "half": 20, "filtered": 5, "mapping": 25, "hopeless": 10}
"""Shares in per cent; a few events of "dies" and "slow" come on top."""


def corpus(team: str, seed: int) -> list[ParkedEvent]:
    """Return parked events of several causes, in a random order."""
    rng = random.Random(seed)
    names = rng.choices(list(CAUSES), list(CAUSES.values()), k=EVENTS)
    names += ["dies"] * 12 + ["slow"] * 3
    found = []
    for number, name in enumerate(names):
        event = order(
            number, team, note=f"{name}:{number if name == 'slow' else rng.randrange(10**6)}"
        )
        one = parked(event)
        one.message = f"no amount, as {name} orders have"
        found.append(one)
    rng.shuffle(found)
    return found


class World:
    """A tracker, a bucket and a log, with parked events in 30 objects and good ones in the log."""

    def __init__(self, settings: Settings, seed: int) -> None:
        self.settings = settings
        self.log, self.objects = open_log(settings.kafka), open_objects(settings.s3)
        self.tracker = open_tracker(settings.tracker)
        self.parking = Parking(self.tracker, self.objects)
        self.team = orders.team_of(settings.pipelines_dir)
        self.topic = self.log.ensure_topic(orders.topic_of(settings.pipelines_dir))
        events = corpus(self.team, seed)
        for number in range(30):
            self._park(events[number::30], number)

    def _park(self, events: Sequence[ParkedEvent], number: int) -> None:
        packer, key = Packer(), new_key()
        for one in events:
            packer.add(one)
        packed = packer.finish()
        self.objects.put(key, packed.body)
        with self.tracker.transaction() as connection:
            self.parking.record(
                connection, key=key, size=len(packed.body), segments=packed.segments,
                scope="warehouse", commit_number=number,
            )  # fmt: skip

    def send_good(self) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.settings.kafka.bootstrap_servers})
        for number in range(NOT_SENT_BACK):
            event = order(
                100_000 + number, self.team, note="good:1" if number % 4 else "hopeless:1"
            )
            event.data["amount"] = 7
            producer.produce(self.topic.name, encode(event), event.key.encode())
        assert producer.flush(30) == 0

    def dry_run(self, **options: Any) -> DryRunReport:
        return services.run_dry_run(self.settings, dry_run_request(*NAMES, **options))

    def state(self) -> tuple[Any, ...]:
        """Return all that a dry run could have written to."""
        from sqlalchemy import select

        from waybill.storage.tracker.tables import METADATA

        with self.tracker.transaction() as connection:
            rows = {
                table.name: sorted(map(repr, connection.execute(select(table))))
                for table in METADATA.tables.values()
            }
        keys = sorted(item.key for item in self.objects.list(""))
        folders = sorted(map(str, self.settings.wal.dir.parent.rglob("*")))
        return rows, keys, self.log.watermarks(self.topic), folders

    def sent(self) -> list[tuple[bytes, Event]]:
        values = self.log.read(self.topic.name, self.log.watermarks(self.topic))
        found = [(value, decode(value)) for value in values]
        return [(value, event) for value, event in found if event.attempt]


def written(folder: Path, team: str, code: str) -> Path:
    """Write a proposed version of the team's pipeline; return its folder."""
    home = orders.write_orders(folder, rows=1, code=code)
    text = (home / "pipeline.yaml").read_text()
    (home / "pipeline.yaml").write_text(text.replace(orders.team_of(folder), team))
    return home


def processed(world: World, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Run what a replay sent through the task that Spark runs; return what became of it."""
    monkeypatch.setattr(tasks, "_WORKERS", [])
    version = services.deployed_pipelines(world.settings)["test-orders"]
    values = [value for value, _ in world.sent()]
    batch = kafka_records(world.topic.name, values)
    texts = TaskTexts().of({version.id: version}, {})
    topic_plan = tasks.TopicPlan("batch", texts)
    plan = tasks.TaskPlan({world.topic.name: topic_plan}, [], executor_settings(world.settings))
    [answer] = tasks.StageTask(plan).run([batch])
    told = orjson.loads(answer.column(0)[0].as_py())
    found = {"sent": len(values), "passed": told["staged"]["rows"]}
    body = world.objects.get(told["parked"]["key"])
    for segment in read_directory(body):
        way = f"{segment.stage}/{segment.error_type}"
        found[way] = found.get(way, 0) + segment.count
    return found


@pytest.fixture
def world(stack_settings: Settings, tmp_path: Any) -> Iterator[World]:
    folder = tmp_path / "pipelines"
    orders.write_orders(folder, rows=1)
    settings = stack_settings.model_copy(
        update={
            "pipelines_dir": folder,
            "spark": stack_settings.spark.model_copy(update={"event_timeout_s": 2.0}),
        }
    )
    services.migrate(settings)
    services.run_deploy(settings, folder / "orders", who="test")
    world = World(settings, seed=20_131)
    yield world
    world.tracker.close()


def test_the_predicted_rate_is_within_two_points_of_the_replays(
    world: World, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.send_good()
    proposed = written(tmp_path / "proposed", world.team, MENDED)
    before = world.state()
    full = world.dry_run(proposed=proposed)
    sampled = [world.dry_run(proposed=proposed, sample=1_500, good=0, seed=s) for s in (1, 2)]
    some = world.dry_run(proposed=proposed, max_events=100, good=0)
    assert world.state() == before
    assert (full.events, full.tried, some.events) == (EVENTS + 15, EVENTS + 15, 100)
    assert (full.good.tried, full.good.newly_broken, full.good.changed) == (200, 50, 150)

    services.run_deploy(world.settings, proposed, who="ann")
    run_replay(
        world.settings,
        **dict(zip(("pipeline", "event_name", "stage", "error_type"), NAMES, strict=True)),
        who="ann",
        run_id="r1",
    )
    really = processed(world, monkeypatch)
    sent, passed = really.pop("sent"), really.pop("passed")
    assert sent == full.events
    assert full.would_pass == passed
    assert full.would_fail == really
    assert full.would_filter == sent - passed - sum(really.values())
    assert full.low == full.pass_rate == full.high == pytest.approx(passed / sent)
    for report in sampled:
        assert (report.tried, report.events) == (1_500, sent)
        assert abs(report.pass_rate - passed / sent) <= 0.02
        assert report.low <= passed / sent <= report.high
        assert report.high - report.low < 0.06
        assert len(report.by_fingerprint) == len(CAUSES) + 2
        assert all(row["tried"] for row in report.by_fingerprint.values())


def test_the_command_tells_it_on_a_terminal_and_to_machines(
    world: World, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waybill.settings.Settings", lambda: world.settings)
    words = ["parked", "dry-run", NAMES[0], "-e", NAMES[1], "-s", NAMES[2], "-t", NAMES[3]]
    code = MENDED.replace("while True: pass", "pass")
    proposed = written(tmp_path / "proposed", world.team, code)
    world.send_good()
    words += ["--proposed", str(proposed), "--sample", "500", "--seed", "1"]
    shown = CliRunner().invoke(app, words, env={"COLUMNS": "110"})
    assert shown.exit_code == 0, shown.output
    for words_shown in (
        "% of 3,015 would pass",
        "500 tried",
        "would be filtered on purpose",
        "mapping/type_mismatch",
        "50 newly broken: transformation/field_missing",
        "orders.amount: 7 → 1",
        "nothing was written",
    ):
        assert words_shown in shown.output
    told = CliRunner().invoke(app, [*words, "--json"])
    assert set(orjson.loads(told.output)) == set(DryRunReport.__slots__)
