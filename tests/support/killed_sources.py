"""Sources over which ingestion is killed, each with a pipeline that is deployed on the real servers.

A source grows before each run, so that each run has work; at the end it is held against Kafka and
the books (`Verdict`). What a destination would count twice is *doubled*; see there.
"""

from __future__ import annotations

import json
import random
import secrets
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import psycopg
from confluent_kafka import Producer
from pydantic import SecretStr
from tests.support import cdc, children, connector_sources
from tests.support.children import Point
from tests.support.connector_sources import Row, SourceOfRows

from waybill import services
from waybill.events import Event, decode
from waybill.ingestion import IngestReport
from waybill.ingestion import run as ingestion_run
from waybill.ingestion.connectors.postgres_cdc.connector import PostgresCdcConnector
from waybill.pipelines import topic_name
from waybill.producer import LosslessProducer
from waybill.settings import Settings, SourceSettings
from waybill.storage import open_log

NAME = "rows"
"""Of each pipeline, unless another one is given."""
PAGE_ROWS = 40
TRIES = 8
"""A run that ended before it was killed at a moment is no kill: so often it is tried again."""
_USUAL_S = 1.0
_WHOLE_RUNS = 0.2
"""The share of kills behind which a run goes to its end: what is read begins elsewhere then."""
DECLARATION = """
id: {team}-{name}
name: {name}
team: {team}
owner: shop@example.com
schedule: null
source: {source}
events:
  e: {{key: [id], version: {version}, table: t, policy: ignore, columns: {{id: int64, name: string}}}}
transformation: transformation.py
destination: {{name: warehouse, schema: {team}}}
"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What Kafka and the books have of a source."""

    records: int
    """In Kafka."""
    lost: int
    """Rows of the source that Kafka does not have, or not as they are."""
    doubled: int
    """What a destination would count twice, or once too often: each id of a row beyond its first, each row that the
    source does not have, and, where the docs do not say that it may be so, each record beyond the
    first with one id."""
    copies: int
    """Records beyond the first with one id, and the same version: a destination counts `duplicate`."""
    unbalanced: int
    """Events that the ledger has taken in and Kafka has not, or the other way; and those that the
    balance cannot account for."""


class KilledSource(ABC):
    """A source that grows, and its pipeline."""

    points: ClassVar[Sequence[tuple[Any, str, int]]] = (
        (LosslessProducer, "produce", 100),
        (LosslessProducer, "mark", 2),
        (ingestion_run, "commit_intake", 2),
        (LosslessProducer, "confirm", 2),
        (ingestion_run, "close_source", 1),
    )
    """Where a run is killed: before a call of a function; each run has so many calls at least."""
    settings: Settings
    name = NAME

    @abstractmethod
    def grow(self) -> None:
        """Have more for a run to read."""

    @abstractmethod
    def judge(self) -> Verdict:
        """Hold the source against Kafka and the books, once a run has gone to its end."""

    @abstractmethod
    def close(self) -> None:
        """Leave nothing behind on servers that others use."""

    def ingest(self) -> IngestReport:
        """Run the connector to the end of the source, as a task of Airflow does."""
        return services.run_ingest(self.settings, self.name)

    def events(self, team: str) -> list[Event]:
        """Return what Kafka has of it."""
        log = open_log(self.settings.kafka)
        name = topic_name(team, "warehouse")
        if name not in log.topics():
            return []
        topic = log.describe(name)
        return [decode(value) for value in log.read(topic.name, log.watermarks(topic))]

    def off_balance(self, records: int) -> int:
        """Return by how many events the books differ from Kafka, and from themselves."""
        report = services.balance(self.settings, pipeline=self.name)
        return abs(report.ingested - records) + abs(report.unaccounted)


class KilledRows(KilledSource):
    """Rows that are added with ascending numbers.

    Args:
        settings: over the servers.
        folder: of pipelines.
        source: makes it in the folder of its pipeline.
        name: of the pipeline.
    """

    added = 150
    """Rows before each run."""
    may_copy = False
    """A record may come twice with one id and version."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        source: Callable[[Path], SourceOfRows],
        name: str = NAME,
    ) -> None:
        self.team, self.name = f"t{secrets.token_hex(4)}", name
        self._home = folder / name
        self._home.mkdir(parents=True)
        self.source = source(self._home)
        self.rows = 0
        own = SourceSettings(
            connections=self.source.secrets(), taps=self.source.settings().sources.taps
        )
        self.settings = settings.model_copy(update={"sources": own, "pipelines_dir": folder})
        services.migrate(self.settings)
        self._deploy()

    def _deploy(self) -> None:
        source = {"event": "e", "page_rows": PAGE_ROWS, **self.source.declaration()}
        version = "null" if source["connector"] == "kafka" else "seq"
        text = DECLARATION.format(
            team=self.team, name=self.name, source=json.dumps(source), version=version
        )
        (self._home / "pipeline.yaml").write_text(text)
        (self._home / "transformation.py").write_text("def transform(event):\n    return event\n")
        services.run_deploy(self.settings, self._home, who="test")

    def grow(self) -> None:
        first, self.rows = self.rows + 1, self.rows + self.added
        self.source.add([row(number) for number in range(first, self.rows + 1)])

    def judge(self) -> Verdict:
        return judge_rows(self)

    def close(self) -> None:
        if isinstance(self.source, TopicOfOthers):
            self.source.close()


class KilledAnswers(KilledRows):
    """A source that cuts its answers anew from where a run begins: some records of a dead run come
    again, as the docs say."""

    may_copy = True


class KilledUnordered(KilledAnswers):
    """A source that is read from where it was until a run has gone to its end: what a dead one had
    sent comes again, as the docs say."""

    added = 60
    points = (
        (LosslessProducer, "produce", 50),
        (LosslessProducer, "mark", 1),
        *KilledRows.points[2:],
    )


def row(number: int) -> Row:
    """Return one row."""
    return {"id": number, "seq": number, "name": f"row {number}"}


def judge_rows(killed: KilledRows) -> Verdict:
    """Hold each row against what Kafka has of it."""
    events = killed.events(killed.team)
    found: dict[Any, set[str]] = {}
    right = set()
    versions = {(event.id, str(event.source_version)) for event in events}
    for event in events:
        number = event.data["id"]
        found.setdefault(number, set()).add(event.id)
        if event.data.get("name") == row(number)["name"]:
            right.add(number)
    expected = set(range(1, killed.rows + 1))
    ids = len({event.id for event in events})
    doubled = sum(len(one) - 1 for one in found.values()) + len(found.keys() - expected)
    doubled += len(versions) - ids
    copies = len(events) - len(versions)
    if not killed.may_copy:
        doubled += copies
    return Verdict(
        records=len(events),
        lost=len(expected - right),
        doubled=doubled,
        copies=copies,
        unbalanced=killed.off_balance(len(events)),
    )


class DltAnswers(connector_sources.DltFunction):
    """A dlt source of two resources with one half of the rows each, in answers of 20, in ascending
    order of ``seq``."""

    order: ClassVar[str] = "asc"

    def __init__(self, folder: Path, request: Any = None) -> None:
        super().__init__(folder, request)
        text = _ANSWERS.replace("{order}", repr(self.order or None))
        (folder / "listed.py").write_text(text)

    def declaration(self) -> dict[str, Any]:
        arguments = {"path": str(self.folder / "rows.jsonl")}
        options = {"resource": "listed:shop", "arguments": arguments, "events": {"odd": "e"}}
        return {"connector": "dlt", "options": options}


class DltUnordered(DltAnswers):
    """The same without the promise of an order: the state moves when all is read."""

    order = ""


_ANSWERS = """
import json
import dlt

def answers(path, start, rest):
    with open(path) as file:
        rows = [row for row in map(json.loads, file) if row["id"] % 2 == rest and row["seq"] >= (start or 0)]
    for at in range(0, len(rows), 20):
        yield rows[at : at + 20]

@dlt.source
def shop(path):
    @dlt.resource(primary_key="id")
    def e(seq=dlt.sources.incremental("seq", row_order={order})):
        yield from answers(path, seq.start_value, 0)

    @dlt.resource(primary_key="id")
    def odd(seq=dlt.sources.incremental("seq", row_order={order})):
        yield from answers(path, seq.start_value, 1)
    return e, odd
"""


class TopicOfOthers(SourceOfRows):
    """Messages of three partitions, as JSON.

    Args:
        folder: of the pipeline.
        settings: of the Kafka that has them.
    """

    idle_s: ClassVar[float] = 0.3

    def __init__(self, folder: Path, settings: Settings) -> None:
        super().__init__(folder, None)  # type: ignore[arg-type]
        self._kafka = settings.kafka
        self.topic = f"theirs-{secrets.token_hex(4)}"
        open_log(self._kafka).create_topic(self.topic, 3)

    def add(self, rows: list[Row]) -> None:
        producer = Producer({"bootstrap.servers": self._kafka.bootstrap_servers})
        for one in rows:
            producer.produce(self.topic, json.dumps(one), str(one["id"]), one["id"] % 3)
        assert producer.flush(300) == 0

    def declaration(self) -> dict[str, Any]:
        options = {"idle_s": self.idle_s, "topics": {"e": self.topic}}
        return {"connector": "kafka", "connection": "theirs", "options": options}

    def secrets(self) -> dict[str, SecretStr]:
        address = self._kafka.bootstrap_servers
        connection = {"conn_type": "kafka", "extra": {"bootstrap.servers": address}}
        return {"theirs": SecretStr(json.dumps(connection))}

    def close(self) -> None:
        open_log(self._kafka).delete_topic(self.topic)


class PatientTopic(TopicOfOthers):
    """The same; a run waits longer for more, and lasts."""

    idle_s = 10.0


class KilledChanges(KilledSource):
    """A table of PostgreSQL that changes at random: inserts, updates, deletes, other keys.

    Args:
        settings: over the servers.
        dsn: of the source's database.
        chance: draws the changes.
    """

    rows_at_first, highest, changes = 300, 350, 120
    points = (
        (LosslessProducer, "produce", 30),
        (LosslessProducer, "mark", 1),
        (ingestion_run, "commit_intake", 1),
        (PostgresCdcConnector, "confirm", 1),
        (ingestion_run, "close_source", 1),
    )
    name = "orders"

    def __init__(self, settings: Settings, folder: Path, dsn: str, chance: random.Random) -> None:
        self.team, self._chance, self._dsn = f"t{secrets.token_hex(4)}", chance, dsn
        own = SourceSettings(connections={"shop": SecretStr(dsn)})
        self.settings = settings.model_copy(update={"sources": own, "pipelines_dir": folder})
        self.sql = cdc.connected(dsn)
        self.sql.execute("CREATE TABLE orders (id int PRIMARY KEY, name text, big text)")
        self.sql.execute("ALTER TABLE orders ALTER big SET STORAGE EXTERNAL")
        insert = "INSERT INTO orders SELECT g, 'name ' || g FROM generate_series(1, %s::int) g"
        self.sql.execute(insert, [self.rows_at_first])
        home = cdc.write_pipeline(folder, team=self.team, page_rows=PAGE_ROWS)
        services.migrate(self.settings)
        services.run_deploy(self.settings, home, who="test")

    def reconnect(self) -> None:
        """Connect to the source again, which was away."""
        self.sql = cdc.connected(self._dsn)

    def grow(self) -> None:
        for _ in range(self.changes):
            cdc.change_orders(self.sql, self._chance, highest=self.highest)

    def judge(self) -> Verdict:
        """Hold the table against Kafka's newest of each key; a key that is gone is no row."""
        events = self.events(self.team)
        newest: dict[Any, Event] = {}
        for event in events:
            known = newest.get(event.data["id"])
            if known is None or known.source_version < event.source_version:
                newest[event.data["id"]] = event
        found = {key: event.data for key, event in newest.items() if event.op == "upsert"}
        rows = self.sql.execute("SELECT id, name, big FROM orders").fetchall()
        table = {one[0]: dict(zip(("id", "name", "big"), one, strict=True)) for one in rows}
        copies = len(events) - len({event.id for event in events})
        return Verdict(
            records=len(events),
            lost=sum(found.get(key) != data for key, data in table.items()),
            doubled=len(found.keys() - table.keys()) + copies,
            copies=copies,
            unbalanced=self.off_balance(len(events)),
        )

    def close(self) -> None:
        drop = (
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE database = current_database() AND NOT active"
        )
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(drop)
        self.sql.close()


def kill_runs(killed: KilledSource, kills: int, chance: random.Random) -> Counter[str]:
    """Kill runs at random points, each over a source that has grown; the last one goes to its end.

    Half of the points are moments of the run, the others calls of its functions: a record, a mark, a
    commit, a confirmation, the end.

    Returns:
        Kills that were done, by point.
    """
    done: Counter[str] = Counter()
    usual_s = _USUAL_S
    for number in range(kills):
        point = chance.choice(killed.points) if number % 2 == 0 else None
        for _ in range(TRIES):
            killed.grow()
            if point is None:
                is_dead = children.dies_after(chance.uniform(0, usual_s), killed.ingest)
                usual_s = usual_s if is_dead else usual_s * 0.7
            else:
                is_dead = children.dies_at(_drawn(point, chance), killed.ingest)
            if is_dead:
                done["any moment" if point is None else point[1]] += 1
                break
        if chance.random() < _WHOLE_RUNS:
            began = time.monotonic()
            killed.ingest()
            usual_s = time.monotonic() - began
    killed.ingest()
    return done


def _drawn(point: tuple[Any, str, int], chance: random.Random) -> Point:
    owner, name, most = point
    return owner, name, chance.randint(1, most)
