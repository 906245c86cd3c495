"""SIGKILL while a table is read in ranges of its key, by several connections, as its rows change.

Kafka's newest of each key is the table, and a row that nobody changed since the mark is there once.
"""

from __future__ import annotations

import random
import signal
import sqlite3
from collections import Counter

import psycopg
import pytest
from pydantic import SecretStr
from tests.faults.test_connector_kills import DIES, INGEST
from tests.support import children

from waybill import services
from waybill.events import decode
from waybill.ledger import read_position
from waybill.pipelines import load_pipeline, topic_of
from waybill.settings import SourceSettings
from waybill.storage import open_log, open_tracker

pytestmark = [pytest.mark.serves, pytest.mark.campaign]
SEED = 20261127
ROWS = 4_000
KILLS = 8
MARK = ROWS - 1
"""The greatest ``seq`` before anything was read."""
DECLARATION = """
id: rows-0001
name: rows
team: {team}
owner: shop@example.com
source:
  connector: sql
  event: row
  page_rows: 90
  {connection}
  options: {{table: rows, cursor: seq, backfill: {{ranges: 6}}, limits: {{max_connections: 4}}{file}}}
events:
  row: {{key: [id], version: seq, table: rows, columns: {{id: int64, seq: int64, name: string}}}}
destination: {{name: warehouse, schema: shop}}
"""
TABLE = "CREATE TABLE rows (id bigint PRIMARY KEY, seq bigint NOT NULL, name text)"


class PostgresRows:
    """Rows whose ``seq`` rises with each change; the keys are far apart and begin below 0."""

    connection, file, mark = "connection: shop", "", "%s"

    def __init__(self, folder, postgres):
        self.folder = folder
        self.dsn = postgres().database("shop")
        self.chance, self.seq = random.Random(SEED), MARK
        self.run(TABLE)
        keys = self.chance.sample(range(-(10**9), 10**12), ROWS)
        self.run(self.insert, [(key, number, "first") for number, key in enumerate(keys)])

    @property
    def insert(self):
        return f"INSERT INTO rows VALUES ({self.mark}, {self.mark}, {self.mark})"

    def run(self, statement, rows=None):
        with psycopg.connect(self.dsn) as connection, connection.cursor() as cursor:
            if rows is None:
                cursor.execute(statement)
                return cursor.fetchall() if cursor.description else []
            cursor.executemany(statement, rows)
        return []

    def rows(self):
        return {key: (seq, name) for key, seq, name in self.run("SELECT id, seq, name FROM rows")}

    def change(self):
        """Change some rows, add some at all places, delete one; each in a transaction."""
        there = sorted(self.rows())
        changed = self.chance.sample(there, 20)
        self.seq += 1
        update = f"UPDATE rows SET seq = {self.mark}, name = 'changed' WHERE id = {self.mark}"
        self.run(update, [(self.seq, key) for key in changed])
        self.seq += 1
        new = [self.chance.randrange(-2 * 10**9, 2 * 10**12) for _ in range(5)]
        self.run(self.insert, [(key, self.seq, "new") for key in new if key not in there])
        self.run(f"DELETE FROM rows WHERE id = {self.mark}", [(self.chance.choice(there),)])

    @property
    def sources(self):
        return SourceSettings(connections={"shop": SecretStr(self.dsn)})


class SqliteRows(PostgresRows):
    connection, file, mark = "", ", file: shop.db", "?"

    def __init__(self, folder, postgres):
        super().__init__(folder, lambda: self)

    def database(self, name):
        return self.folder / f"{name}.db"

    def run(self, statement, rows=None):
        with sqlite3.connect(self.dsn, timeout=60) as database:
            if rows is None:
                return database.execute(statement).fetchall()
            database.executemany(statement, rows)
        database.close()
        return []

    @property
    def sources(self):
        return SourceSettings()


@pytest.fixture(params=[PostgresRows, SqliteRows], ids=["postgres", "sqlite"])
def table(request, stack_settings, tmp_path):
    folder = tmp_path / "pipelines" / "rows"
    folder.mkdir(parents=True)
    rows = request.param(folder, lambda: request.getfixturevalue("postgres"))
    team = f"t{abs(hash(str(tmp_path))) % 10**9}"
    text = DECLARATION.format(team=team, connection=rows.connection, file=rows.file)
    (folder / "pipeline.yaml").write_text(text)
    (folder / "transformation.py").write_text("def transform(event):\n    return event\n")
    rows.settings = stack_settings.model_copy(
        update={"pipelines_dir": tmp_path / "pipelines", "sources": rows.sources}
    )
    services.migrate(rows.settings)
    services.run_deploy(rows.settings, folder, who="test")
    return rows


def cursor_of(settings):
    with open_tracker(settings.tracker) as tracker:
        return read_position(tracker, "rows-0001").cursor or {}


@pytest.mark.timeout(2400)
def test_ranges_that_are_killed_at_random_points_while_rows_change_lose_and_double_nothing(table):
    settings, chance = table.settings, random.Random(SEED)
    print(f"seed {SEED}")
    killed, places = 0, []
    for _ in range(KILLS):
        steps = chance.choice([chance.randint(1, 30), chance.randint(300, 900)])
        child = children.start(settings, DIES.format(steps=steps) + INGEST)
        try:
            while child.poll() is None:
                table.change()
            output = child.stdout.read()
        finally:
            children.kill(child)
        assert child.returncode in (0, -signal.SIGKILL), output.decode()
        killed += child.returncode == -signal.SIGKILL
        places.append("backfill" if "backfill" in cursor_of(settings) else "increments")
        table.change()
    assert killed >= KILLS - 1
    assert places.count("backfill") >= 2, places
    children.run(settings, INGEST, limit_s=600)
    children.run(settings, INGEST, limit_s=600)

    log = open_log(settings.kafka)
    topic = log.describe(topic_of(load_pipeline(settings.pipelines_dir / "rows")))
    events = [decode(value) for value in log.read(topic.name, log.watermarks(topic))]
    newest = {}
    for event in events:
        said = event.data["seq"], event.data["name"]
        assert said >= newest.get(event.data["id"], said), "an older one came behind a newer one"
        newest[event.data["id"]] = said
    there = table.rows()
    assert {key: newest.get(key) for key in there} == there
    twice = [event_id for event_id, met in Counter(e.id for e in events).items() if met > 1]
    seqs = {event.id: event.data["seq"] for event in events}
    assert [seqs[one] for one in twice if seqs[one] < MARK] == []
    balance = services.balance(settings)
    assert (balance.ingested, balance.unaccounted) == (len(events), 0)
