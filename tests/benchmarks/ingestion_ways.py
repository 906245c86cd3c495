"""The sources that ``make bench-ingestion`` reads, and its rivals: the same source without us.

A way is a source of orders of ten columns, some 250 bytes as JSON, and two readers of it, each a
process of its own. Ours is ``waybill.services.run_ingest``: the write-ahead log, Kafka, the tracker,
traces. The rival sends the same bytes with ``confluent_kafka.Producer`` in the configuration that our
producer has, by code of some lines that an engineer would write for this one source:

sql     psycopg's server-side cursor in the order of (seq, id), 1,000 rows at a time
files   ``pyarrow.csv.open_csv``, a block at a time, ``to_pylist``
dlt     the same resource, iterated in the process itself
cdc     psycopg2's replication cursor on a slot of its own, inserts of ``pgoutput`` taken apart

The rival wraps each row into the same CloudEvents message, all of it by one call of orjson, with a
random id. It keeps no log, no cursor, no counts and no traces, and parks nothing.

Modules are imported before the clock starts, on both sides; but for dlt, which is imported within it
on both: ours is in the source's own process. The rival's dlt is told what ours is told, above all to
look for no secrets in Airflow, which it would import for that.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import subprocess
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import orjson
from pydantic import SecretStr

from waybill.settings import Settings

Row = dict[str, Any]
COLUMNS = {
    "id": "bigint PRIMARY KEY",
    "seq": "bigint NOT NULL",
    "customer": "text",
    "email": "text",
    "city": "text",
    "quantity": "integer",
    "price": "double precision",
    "paid": "boolean",
    "created": "timestamptz",
    "note": "text",
}
FETCHED, IDLE_S, LIMIT_S = 1_000, 0.5, 1_800
DECLARATION = """
id: {name}
name: {name}
team: {name}
owner: shop@example.com
schedule: null
source:
  connector: {connector}
  event: order
{source}
events:
  order:
    key: [id]
    version: {version}
    table: orders
    policy: ignore
    columns: {{id: int64, seq: int64, quantity: int64, price: float64, paid: bool}}
transformation: transformation.py
destination: {{name: warehouse, schema: {name}}}
"""
RESOURCE = """
import dlt
import orjson

@dlt.resource(name="order")
def orders(path, seq=dlt.sources.incremental("seq", row_order="asc")):
    page = []
    with open(path, "rb") as file:
        for line in file:
            page.append(orjson.loads(line))
            if len(page) == 1000:
                yield page
                page = []
    yield page
"""


def order(number: int) -> Row:
    """Return a made-up order, as all sources have it."""
    second = number % 86_400
    at = f"2026-03-01T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}Z"
    return {
        "id": number,
        "seq": number,
        "customer": f"customer {number * 7919 % 100_003}",
        "email": f"someone.{number * 7919 % 100_003}@example.com",
        "city": ("Hamburg", "Lyon", "Porto", "Gdańsk")[number % 4],
        "quantity": number % 9 + 1,
        "price": (number * 31 % 9_000) / 4 + 0.25,
        "paid": number % 3 == 0,
        "created": at,
        "note": f"leave order {number} with the neighbour on the left, ring twice",
    }


@dataclass(frozen=True)
class Side:
    """What one reading of a source took."""

    rows: int
    seconds: float
    cpu_s: float


@dataclass(frozen=True)
class Reading:
    """What a rival is given: a way, its source and a topic."""

    way: str
    source: dict[str, str]
    rows: int
    kafka: str
    topic: str


class Way(ABC):
    """One source, filled once; each of ``rounds`` reads all of it."""

    name: ClassVar[str]
    connector: ClassVar[str]
    version: ClassVar[str] = "seq"

    def __init__(self, settings: Settings, rows: int, dsn: str) -> None:
        connections = {"shop": SecretStr(dsn)}
        sources = settings.sources.model_copy(update={"connections": connections})
        self.settings = settings.model_copy(update={"sources": sources})
        self.rows, self.dsn = rows, dsn

    @abstractmethod
    def fill(self) -> None:
        """Make the source, before the first round."""

    @abstractmethod
    def declared(self, number: int) -> str:
        """Return what a round's declaration says of its source, indented by two."""

    @abstractmethod
    def source(self, number: int) -> dict[str, str]:
        """Return what a round's rival reads."""

    @contextmanager
    def prepared(self, number: int) -> Iterator[None]:
        """Make ready what only this round reads, and take it away; the pipeline is deployed."""
        del number
        yield

    def pipeline(self, number: int) -> str:
        return f"{self.name}-{number}"

    def round(self, number: int, *, ours_first: bool) -> tuple[Side, Side]:
        """Return what we and the rival took for one reading each, of which one is first."""
        deploy(
            self.settings,
            self.pipeline(number),
            connector=self.connector,
            source=self.declared(number),
            version=self.version,
        )
        sides: dict[bool, Side] = {}
        with self.prepared(number):
            for is_ours in (ours_first, not ours_first):
                sides[is_ours] = self.ours(number) if is_ours else self.bare(number)
        return sides[True], sides[False]

    def ours(self, number: int) -> Side:
        side, _ = run_ours(self.settings, self.pipeline(number))
        if side.rows != self.rows:
            raise SystemExit(f"{self.name}: {side.rows} of {self.rows} rows were taken in")
        return side

    def bare(self, number: int) -> Side:
        from waybill.ingestion.connectors.dlt_source import ENVIRONMENT

        topic = f"bare.{self.pipeline(number)}"
        kafka = self.settings.kafka
        make_topic(kafka.bootstrap_servers, topic, kafka.topic_partitions)
        given = Reading(self.name, self.source(number), self.rows, kafka.bootstrap_servers, topic)
        found = _child("bare", json.dumps(given.__dict__), os.environ | ENVIRONMENT)
        same_messages(kafka.bootstrap_servers, f"events.{self.pipeline(number)}.warehouse", topic)
        return Side(found["rows"], found["seconds"], found["cpu_s"])


def make_topic(servers: str, topic: str, partitions: int) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": servers, "log_level": 3})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)


def deploy(settings: Settings, name: str, *, connector: str, source: str, version: str) -> None:
    """Deploy a pipeline of orders; ``source``: what its declaration says of that, indented by two."""
    from waybill import services

    home = settings.pipelines_dir / name
    home.mkdir(parents=True)
    text = DECLARATION.format(name=name, connector=connector, source=source, version=version)
    (home / "pipeline.yaml").write_text(text)
    (home / "transformation.py").write_text("def transform(event):\n    return event\n")
    (home / "shop_rows.py").write_text(RESOURCE)
    services.migrate(settings)
    services.run_deploy(settings, home, who="bench")


def run_ours(settings: Settings, name: str) -> tuple[Side, int]:
    """Run a pipeline in a process of its own; returns what it took, and its peak memory in MB."""
    found = _child("ours", name, {**os.environ, **settings.to_env()})
    return Side(found["rows"], found["seconds"], found["cpu_s"]), found["peak_mb"]


def _child(side: str, given: str, environment: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.benchmarks.ingestion_ways", side, given]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, timeout=LIMIT_S, env=environment
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def same_messages(servers: str, ours: str, bare: str) -> None:
    """Make sure that both sides sent the same: a partition's first messages, but for id and times."""
    found = [_first_message(servers, topic) for topic in (ours, bare)]
    if None in found:
        return  # the other side comes yet
    (key, value), (bare_key, bare_value) = found  # type: ignore[misc]
    message, other = (orjson.loads(text) for text in (value, bare_value))
    own = {"id", "time", "version", "intakeminute"}
    alike = [name for name in message if name not in own and message[name] != other.get(name)]
    if key != bare_key or len(value) != len(bare_value) or alike:
        raise SystemExit(f"the sides differ in {alike}:\n{value!r}\n{bare_value!r}")


def _first_message(servers: str, topic: str) -> tuple[bytes, bytes] | None:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "log_level": 0})
    try:
        if topic not in consumer.list_topics(timeout=30).topics:
            return None
        place = TopicPartition(topic, 0, OFFSET_BEGINNING)
        if consumer.get_watermark_offsets(place, timeout=30)[1] == 0:
            return None
        consumer.assign([place])
        (message,) = consumer.consume(1, timeout=30)
        return message.key(), message.value()
    finally:
        consumer.close()


class SqlWay(Way):
    """A table of PostgreSQL, by a cursor column that has an index."""

    name = connector = "sql"

    def fill(self) -> None:
        fill_table(self.dsn, "orders", self.rows)

    def declared(self, number: int) -> str:
        return "  connection: shop\n  options: {table: orders, cursor: seq}"

    def source(self, number: int) -> dict[str, str]:
        return {"dsn": self.dsn}


def fill_table(dsn: str, table: str, rows: int) -> None:
    import psycopg

    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    with psycopg.connect(dsn) as shop:
        shop.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})".encode())
        shop.execute(f"CREATE INDEX IF NOT EXISTS {table}_seq ON {table} (seq, id)".encode())
        with shop.cursor().copy(f"COPY {table} FROM STDIN".encode()) as copy:
            for number in range(1, rows + 1):
                copy.write_row(tuple(order(number).values()))
    with psycopg.connect(dsn, autocommit=True) as shop:
        shop.execute(f"VACUUM ANALYZE {table}".encode())


class FilesWay(Way):
    """A file of CSV."""

    name = connector = "files"

    @property
    def file(self) -> Path:
        return self.settings.pipelines_dir / "orders.csv"

    def fill(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("w") as file:
            file.write(",".join(COLUMNS) + "\n")
            for number in range(1, self.rows + 1):
                values = order(number) | {"paid": "true" if number % 3 == 0 else "false"}
                file.write(",".join(map(_csv_text, values.values())) + "\n")

    def declared(self, number: int) -> str:
        types = "id: int64, seq: int64, quantity: int64, price: float64, paid: bool"
        return f"  columns: {{{types}}}\n  options: {{path: {self.file}, settle_s: 0}}"

    def source(self, number: int) -> dict[str, str]:
        return {"path": str(self.file)}


def _csv_text(value: Any) -> str:
    text = str(value)
    return f'"{text}"' if "," in text else text


class DltWay(Way):
    """A resource of dlt, incremental, in lists of 1,000 rows."""

    name = connector = "dlt"

    @property
    def file(self) -> Path:
        return self.settings.pipelines_dir / "orders.jsonl"

    def fill(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("wb") as file:
            file.writelines(orjson.dumps(order(n)) + b"\n" for n in range(1, self.rows + 1))

    def declared(self, number: int) -> str:
        return f"  options: {{resource: shop_rows:orders, arguments: {{path: {self.file}}}}}"

    def source(self, number: int) -> dict[str, str]:
        folder = self.settings.pipelines_dir / self.pipeline(number)
        return {"path": str(self.file), "folder": str(folder)}


class CdcWay(SqlWay):
    """Inserts of a table of PostgreSQL, by a replication slot for each side."""

    name, connector, version = "cdc", "postgres_cdc", "null"

    def fill(self) -> None:
        pass  # the rows of a round are inserted once its slots are there

    def declared(self, number: int) -> str:
        return (
            f"  connection: shop\n  options: {{slot: ours_{number}, idle_s: {IDLE_S},"
            f" tables: {{order: public.orders_{number}}}}}"
        )

    def source(self, number: int) -> dict[str, str]:
        return {"dsn": self.dsn, "slot": f"bare_{number}", "publication": f"ours_{number}"}

    @contextmanager
    def prepared(self, number: int) -> Iterator[None]:
        import psycopg

        fill_table(self.dsn, f"orders_{number}", 0)
        run_ours(self.settings, self.pipeline(number))
        with psycopg.connect(self.dsn, autocommit=True) as shop:
            given = [f"bare_{number}"]
            shop.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", given)
        fill_table(self.dsn, f"orders_{number}", self.rows)
        yield
        with psycopg.connect(self.dsn, autocommit=True) as shop:
            for slot in (f"ours_{number}", f"bare_{number}"):
                shop.execute("SELECT pg_drop_replication_slot(%s)", [slot])

    def ours(self, number: int) -> Side:
        """Without the time for which a run waits for more at its end."""
        side = super().ours(number)
        return Side(side.rows, side.seconds - IDLE_S, side.cpu_s)


WAYS: dict[str, type[Way]] = {way.name: way for way in (SqlWay, FilesWay, DltWay, CdcWay)}


# The two processes


class Clock:
    """Wall and CPU seconds of this process and of those that it has ended, since its making."""

    def __init__(self) -> None:
        self._cpu_s, self._began = _cpu_s(), time.perf_counter()

    def report(self, rows: int) -> dict[str, Any]:
        seconds = time.perf_counter() - self._began
        return {"rows": rows, "seconds": seconds, "cpu_s": _cpu_s() - self._cpu_s}


def _cpu_s() -> float:
    found = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in found)


def peak_mb() -> int:
    """Return the most memory that this process ever had, in MB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) // 1024


def _ours(name: str) -> dict[str, Any]:
    from waybill.services import run_ingest

    for module in (*_IMPORTED_BY_ALL, *_IMPORTED_BY_OURS[name.partition("-")[0]]):
        importlib.import_module(module)
    settings = Settings(_env_file=None)
    clock = Clock()
    report = run_ingest(settings, name)
    return clock.report(report.accepted) | {"peak_mb": peak_mb()}


class Bare:
    """Rows as messages, by a plain producer."""

    def __init__(self, reading: Reading) -> None:
        from confluent_kafka import Producer

        from waybill.settings import WalSettings

        settings = {
            "bootstrap.servers": reading.kafka,
            "acks": "all",
            "enable.idempotence": True,
            "queue.buffering.max.messages": WalSettings().max_in_flight,
            "queue.buffering.max.kbytes": 64 * 1024,
            "message.max.bytes": 2 * 1024**2,
            "message.timeout.ms": 0,
            "log_level": 3,
        }
        self._producer = Producer(settings)
        self._topic = reading.topic
        self._team = reading.topic.removeprefix("bare.")
        self.sent = self.delivered = 0

    def send(self, row: Row, version: int | None = None) -> None:
        """Send one row; ``version``: None: it has its own."""
        now_us = time.time_ns() // 1000
        key = orjson.dumps([row["id"]])
        message = {
            "specversion": "1.0",
            "id": uuid.uuid4().hex,
            "source": f"{self._team}/{self._team}",
            "type": "order",
            "time": _rfc3339(now_us),
            "subject": key.decode(),
            "version": f"{row['seq'] if version is None else version:x}/{now_us:x}",
            "intakeminute": now_us // 60_000_000,
            "stage": "transformation",
            "attempt": 0,
            "data": row,
        }
        value = orjson.dumps(message, option=orjson.OPT_UTC_Z)
        while True:
            try:
                self._producer.produce(self._topic, value, key, on_delivery=self._report)
                break
            except BufferError:
                self._producer.poll(0.05)
        self.sent += 1
        if not self.sent & 255:
            self._producer.poll(0)

    def _report(self, error: object, _message: object) -> None:
        self.delivered += error is None

    def end(self) -> int:
        """Wait until Kafka has all; returns how many rows that is."""
        self._producer.flush(LIMIT_S)
        if self.delivered != self.sent:
            raise SystemExit(f"{self.sent - self.delivered} messages were not delivered")
        return self.delivered


def _rfc3339(now_us: int) -> str:
    return datetime.fromtimestamp(now_us / 1_000_000, UTC).isoformat().replace("+00:00", "Z")


def _bare(given: str) -> dict[str, Any]:
    reading = Reading(**json.loads(given))
    read = RIVALS[reading.way]
    for module in _IMPORTED[reading.way]:
        importlib.import_module(module)
    clock = Clock()
    bare = Bare(reading)
    for row, version in read(reading):
        bare.send(row, version)
    return clock.report(bare.end())


def _read_sql(reading: Reading) -> Iterator[tuple[Row, int | None]]:
    import psycopg
    from psycopg.rows import dict_row

    with (
        psycopg.connect(reading.source["dsn"], options="-c timezone=UTC") as shop,
        shop.cursor(name="orders", row_factory=dict_row) as cursor,
    ):
        cursor.itersize = FETCHED
        for row in cursor.execute("SELECT * FROM orders ORDER BY seq, id"):
            yield row, None


def _read_files(reading: Reading) -> Iterator[tuple[Row, int | None]]:
    import pyarrow as pa
    from pyarrow import csv

    types = {
        "id": pa.int64(), "seq": pa.int64(), "quantity": pa.int64(), "price": pa.float64(),
        "paid": pa.bool_(), "created": pa.string(),
    }  # fmt: skip
    options = csv.ConvertOptions(column_types=types)
    with csv.open_csv(reading.source["path"], convert_options=options) as batches:
        for batch in batches:
            for row in batch.to_pylist():
                yield row, None


def _read_dlt(reading: Reading) -> Iterator[tuple[Row, int | None]]:
    sys.path.insert(0, reading.source["folder"])
    resource = importlib.import_module("shop_rows")
    for row in resource.orders(reading.source["path"]):
        yield row, None


def _read_cdc(reading: Reading) -> Iterator[tuple[Row, int | None]]:
    import psycopg2  # type: ignore[import-untyped]
    from psycopg2.extras import LogicalReplicationConnection  # type: ignore[import-untyped]

    source = reading.source
    with psycopg2.connect(
        source["dsn"],
        connection_factory=LogicalReplicationConnection,
        options="-c timezone=UTC",
    ) as shop:
        cursor = shop.cursor()
        cursor.start_replication(
            slot_name=source["slot"],
            decode=False,
            options={"proto_version": "1", "publication_names": source["publication"]},
        )
        left = reading.rows
        while left:
            message = cursor.read_message()
            if message is None:
                _wait(cursor)
            elif message.payload[:1] == b"I":
                yield _inserted(message.payload), message.data_start
                left -= 1


def _wait(cursor: Any) -> None:
    import select

    select.select([cursor], [], [], 10)


def _inserted(payload: bytes) -> Row:
    """Return the row of an insert; its values are text."""
    row, at = {}, 8
    for name, convert in _CONVERTED.items():
        if payload[at : at + 1] == b"t":
            begin = at + 5
            at = begin + int.from_bytes(payload[at + 1 : begin])
            row[name] = convert(payload[begin:at])
        else:
            row[name], at = None, at + 1
    return row


def _moment(text: bytes) -> str:
    return text.decode().replace(" ", "T").replace("+00", "Z")


_CONVERTED: dict[str, Callable[[bytes], Any]] = dict.fromkeys(COLUMNS, bytes.decode) | {
    "id": int, "seq": int, "quantity": int, "price": float, "paid": b"t".__eq__, "created": _moment,
}  # fmt: skip
RIVALS: dict[str, Callable[[Reading], Iterator[tuple[Row, int | None]]]] = {
    "sql": _read_sql,
    "files": _read_files,
    "dlt": _read_dlt,
    "cdc": _read_cdc,
}
_IMPORTED = {
    "sql": ("confluent_kafka", "psycopg"),
    "files": ("confluent_kafka", "pyarrow.csv"),
    "dlt": ("confluent_kafka",),
    "cdc": ("confluent_kafka", "psycopg2.extras"),
}
_IMPORTED_BY_ALL = (
    "boto3",  # for the bucket
    "confluent_kafka.admin",
    "pandas",  # by pyarrow, at the first array that it makes
    "psycopg",  # for the tracker
    "pyarrow.compute",
    "pyarrow.parquet",
    "waybill.ingestion.run",
)
_IMPORTED_BY_OURS = {
    "sql": ("waybill.ingestion.connectors.sql_table",),
    "files": ("waybill.ingestion.connectors.files",),
    "large": ("waybill.ingestion.connectors.files",),
    "dlt": ("waybill.ingestion.connectors.dlt_source",),
    "cdc": ("waybill.ingestion.connectors.postgres_cdc.connector",),
}


def main() -> None:
    side, given = sys.argv[1:]
    report = _ours(given) if side == "ours" else _bare(given)
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
