"""SIGKILL while a connector is read: each record is in Kafka exactly once, and counted exactly once."""

from __future__ import annotations

import gzip
import json
import random
import signal
import sqlite3
from collections import Counter

import pytest
from tests.support import children

from waybill import services
from waybill.events import decode
from waybill.pipelines import load_pipeline, topic_of
from waybill.storage import open_log

pytestmark = [pytest.mark.serves, pytest.mark.campaign]
SEED = 20261126
ROWS = 3_000
KILLS = 6
INGEST = """
from waybill.services import run_ingest
print(run_ingest(settings, "rows"))
"""
DIES = """
import os, signal
from waybill.ingestion import run
from waybill.producer import LosslessProducer
from waybill.storage import ObjectStore

left = {steps}

def counted(real):
    def call(*arguments, **named):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **named)
    return call

LosslessProducer.produce = counted(LosslessProducer.produce)
LosslessProducer.mark = counted(LosslessProducer.mark)
LosslessProducer.confirm = counted(LosslessProducer.confirm)
run.commit_intake = counted(run.commit_intake)
ObjectStore.put = counted(ObjectStore.put)
ObjectStore.delete = counted(ObjectStore.delete)
"""
DECLARATION = """
id: rows-0001
name: rows
team: {team}
owner: shop@example.com
source: {{connector: {connector}, event: row, page_rows: 150, options: {options}}}
events:
  row: {{key: [id], version: seq, table: rows, columns: {{id: int64, seq: int64, name: string}}}}
destination: {{name: warehouse, schema: shop}}
"""


def rows():
    return [{"id": n, "seq": n // 7, "name": f"row {n}"} for n in range(ROWS)]


def write_files(folder):
    for first in range(0, ROWS, ROWS // 4):
        part = rows()[first : first + ROWS // 4]
        lines = b"".join(json.dumps(row).encode() + b"\n" for row in part)
        (folder / f"{first:06}.jsonl.gz").write_bytes(gzip.compress(lines, 1))
    return "files", '{path: "*.jsonl.gz", settle_s: 0}'


def write_compared_table(folder):
    write_table(folder)
    return (
        "sql",
        "{file: shop.db, table: rows, cursor: seq, deletes: compare, compare_every: 0,"
        " compare_limit: 100}",
    )


def write_table(folder):
    with sqlite3.connect(folder / "shop.db") as database:
        database.execute(
            "CREATE TABLE rows (id integer PRIMARY KEY, seq integer NOT NULL, name text)"
        )
        database.executemany("INSERT INTO rows VALUES (:id, :seq, :name)", rows())
    return "sql", "{file: shop.db, table: rows, cursor: seq}"


@pytest.fixture(params=[write_files, write_table], ids=["files", "sql"])
def settings(request, stack_settings, tmp_path):
    folder = tmp_path / "pipelines" / "rows"
    folder.mkdir(parents=True)
    connector, options = request.param(folder)
    team = f"t{abs(hash(str(tmp_path))) % 10**9}"
    text = DECLARATION.format(team=team, connector=connector, options=options)
    (folder / "pipeline.yaml").write_text(text)
    (folder / "transformation.py").write_text("def transform(event):\n    return event\n")
    settings = stack_settings.model_copy(update={"pipelines_dir": tmp_path / "pipelines"})
    services.migrate(settings)
    services.run_deploy(settings, folder, who="test")
    return settings


def ingest_with_kills(settings, code, kills):
    """Run ingestion so many times to a death at a random point, then to its end."""
    chance = random.Random(SEED)
    print(f"seed {SEED}")
    killed = 0
    for _ in range(kills):
        steps = chance.choice([chance.randint(1, 20), chance.randint(100, 600)])
        child = children.start(settings, DIES.format(steps=steps) + code)
        try:
            output, _ = child.communicate(timeout=400)
        finally:
            children.kill(child)
        assert child.returncode in (0, -signal.SIGKILL), output.decode()
        killed += child.returncode == -signal.SIGKILL
    assert killed >= kills - 1
    children.run(settings, code, limit_s=400)


def test_a_connector_that_is_killed_at_random_points_loses_and_doubles_nothing(settings):
    ingest_with_kills(settings, INGEST, KILLS)
    log = open_log(settings.kafka)
    topic = log.describe(topic_of(load_pipeline(settings.pipelines_dir / "rows")))
    found = Counter(decode(v).data["id"] for v in log.read(topic.name, log.watermarks(topic)))
    balance = services.balance(settings)
    assert found == Counter(range(ROWS))
    assert (balance.ingested, balance.unaccounted, balance.in_flight) == (ROWS, 0, ROWS)


@pytest.mark.parametrize("settings", [write_table], indirect=True, ids=["sql"])
def test_rows_of_the_last_cursor_value_that_come_between_kills_are_each_sent_once(settings):
    """At each death some more rows of that value, with keys below and above those that were read."""
    file = settings.pipelines_dir / "rows" / "shop.db"
    last, chance, ids = (ROWS - 1) // 7, random.Random(SEED), set(range(ROWS))
    for number in range(KILLS):
        steps = chance.choice([chance.randint(1, 20), chance.randint(100, 600)])
        child = children.start(settings, DIES.format(steps=steps) + INGEST)
        try:
            output, _ = child.communicate(timeout=400)
        finally:
            children.kill(child)
        assert child.returncode in (0, -signal.SIGKILL), output.decode()
        late = [-1 - number, ROWS + number]
        with sqlite3.connect(file) as database:
            database.executemany(
                "INSERT INTO rows VALUES (?, ?, 'late')", [(n, last) for n in late]
            )
        ids.update(late)
    children.run(settings, INGEST, limit_s=400)
    children.run(settings, INGEST, limit_s=400)
    log = open_log(settings.kafka)
    topic = log.describe(topic_of(load_pipeline(settings.pipelines_dir / "rows")))
    found = Counter(decode(v).data["id"] for v in log.read(topic.name, log.watermarks(topic)))
    balance = services.balance(settings)
    assert found == Counter(ids)
    assert (balance.ingested, balance.unaccounted, balance.in_flight) == (len(ids), 0, len(ids))


@pytest.mark.parametrize("settings", [write_compared_table], indirect=True, ids=["sql"])
def test_rows_that_go_between_kills_are_deletes_and_no_other_row_is(settings):
    """Killed while rows are sent, keys are noted, compared, and while deletes are sent."""
    file = settings.pipelines_dir / "rows" / "shop.db"
    chance, gone = random.Random(SEED), set()
    children.run(settings, INGEST, limit_s=400)
    for number in range(KILLS):
        some = set(range(number * 200, number * 200 + 150))
        with sqlite3.connect(file) as database:
            database.execute("DELETE FROM rows WHERE id >= ? AND id <= ?", (min(some), max(some)))
        gone |= some
        child = children.start(settings, DIES.format(steps=chance.randint(1, 300)) + INGEST)
        try:
            output, _ = child.communicate(timeout=400)
        finally:
            children.kill(child)
        assert child.returncode in (0, -signal.SIGKILL), output.decode()
    children.run(settings, INGEST, limit_s=400)
    log = open_log(settings.kafka)
    topic = log.describe(topic_of(load_pipeline(settings.pipelines_dir / "rows")))
    events = [decode(value) for value in log.read(topic.name, log.watermarks(topic))]
    upserts = Counter(event.data["id"] for event in events if event.op == "upsert")
    deletes = [event for event in events if event.op == "delete"]
    balance = services.balance(settings)
    assert upserts == Counter(range(ROWS))
    assert {event.data["id"] for event in deletes} == gone
    assert {event.source_version for event in deletes} == {(ROWS - 1) // 7}
    assert balance.unaccounted == 0
    assert balance.ingested == len(events)
