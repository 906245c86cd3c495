"""The real servers that integration tests use, one set a test session.

They run in folders of their own directly under the temporary folder (pytest's own is private to
its user, and PostgreSQL, as root, runs as another), on free ports. PostgreSQL is in memory where
there is room: each database that a test makes is 300 files. They end with the session, also by
Ctrl-C and SIGTERM; what a session that was killed left behind is ended by the next one, known by
the owner that the folder names.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
from pydantic import SecretStr
from sqlalchemy import make_url
from tests.support import class_data, secured_kafka

from waybill.errors import WaybillError
from waybill.settings import (
    DestinationSettings,
    KafkaSettings,
    S3Settings,
    Settings,
    SparkSettings,
    StackSettings,
    TraceSettings,
    TrackerSettings,
    WalSettings,
)
from waybill.stack import jars, ports, processes, state_folder
from waybill.stack.kafka import Kafka
from waybill.stack.postgres import Postgres
from waybill.stack.seaweed import SeaweedFS
from waybill.stack.service import Service
from waybill.storage import open_tracker

CHECKOUT = Path(__file__).resolve().parents[1]
JARS = CHECKOUT / ".waybill" / "jars"
PREFIX = "waybill-tests-"
OWNER = "owner.json"
MEMORY = Path("/dev") / "shm"
QUIET = """\
metadata.max.idle.interval.ms=0
num.network.threads=1
num.io.threads=2
background.threads=2
group.coordinator.threads=1
share.coordinator.threads=1
"""
"""No records of its own (two a second, each a commit of the metadata), and fewer threads that look
for work several times a second: a session's broker mostly waits. 9 ms of CPU a second, not 19."""
START_S = 300.0
"""In which a server comes up or, where it runs, answers: other tests have the processors busy."""
ROOM = 4 * 1024**3
"""What has to be free in memory for PostgreSQL to be there, and as much again for the tests."""


def wait_for(ask: Callable[[], Any], timeout_s: float = 300.0) -> Any:
    """Ask until the answer is true, and return it; fail after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not (answer := ask()):
        assert time.monotonic() < deadline, f"did not happen within {timeout_s} s"
        time.sleep(0.02)
    return answer


def new_home(folder: Path | None = None) -> Path:
    """Make a state folder that is known to belong to this process."""
    home = Path(tempfile.mkdtemp(prefix=PREFIX, dir=folder))
    processes.register(home, OWNER.removesuffix(".json"), os.getpid())
    return home


def in_memory() -> Path | None:
    """Return the folder whose files are in memory, if it has room for databases."""
    if not os.access(MEMORY, os.W_OK) or psutil.virtual_memory().available < 2 * ROOM:
        return None
    return MEMORY if shutil.disk_usage(MEMORY).free > ROOM else None


def end_home(home: Path) -> None:
    """End every process registered in a test's state folder, or in one within it; then delete it.

    A checkout in it, which may run a stack of its own, is one of those within.
    """
    for stack in home.glob("*/.waybill"):
        if not stack.parent.is_symlink():
            end_home(stack)
    Postgres(home).stop()
    for run in (*home.glob("*/run"), home / "run"):
        records = processes.read_registry(run)
        for record in reversed(records):
            processes.end(record, grace_s=2)
        processes.end_marked({r.mark for r in records if r.mark}, processes.mark_files(run))
    shutil.rmtree(home, ignore_errors=True)


def sweep() -> None:
    """End what test sessions that were killed left behind."""
    for folder in (Path(tempfile.gettempdir()), MEMORY):
        for home in folder.glob(f"{PREFIX}*"):
            owner = processes.read_record(home / OWNER)
            if owner is not None and owner.process() is None:
                end_home(home)


def random_ports() -> StackSettings:
    """Return settings in which every port is free, chosen at random."""
    return ports.with_random_ports(StackSettings(kafka_heap_mb=384))


def patient(service: Any) -> Any:
    """Have a service wait for as long as a busy machine takes."""
    service.start_timeout_s = max(service.start_timeout_s, START_S)
    service.hanging_after_s = max(service.hanging_after_s, START_S)
    return service


def start_on_free_ports(make: Any) -> Any:
    """Start ``make(stack settings)``; another session may take a port first, so try three times."""
    for attempt in range(3):
        service = patient(make(random_ports()))
        try:
            service.start()
        except WaybillError:
            if attempt == 2:
                raise
        else:
            return service
    raise AssertionError


class QuietKafka(Kafka):
    """The embedded broker, which costs half as much while nobody asks it anything.

    It has two more doors, which ask who one is; they take the ports of Airflow and S3.
    """

    def __init__(self, home: Path, stack: StackSettings, jars_dir: Path) -> None:
        super().__init__(home, stack, jars_dir)
        self.ports |= {"airflow_port": stack.airflow_port, "s3_port": stack.s3_port}
        self.doors = secured_kafka.Doors(self._folder, stack.airflow_port, stack.s3_port)

    def prepare(self) -> None:
        """As the broker that comes with Waybill; of two equal keys the later one counts."""
        super().prepare()
        plain, controller = self.ports["kafka_port"], self.ports["kafka_controller_port"]
        text = self._properties.read_text() + QUIET + self.doors.properties(plain, controller)
        state_folder.write_private(self._properties, text)

    def _java(self, heap_mb: int) -> list[str]:
        java, *options = super()._java(heap_mb)
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.doors.keys_url}"
        return [java, *class_data.kafka_options(JARS), allowed, *options]


class _Server:
    """A server that a test may stop and start again; ``start`` returns when it answers."""

    def __init__(self, service: Service) -> None:
        self.service = service

    @property
    def pid(self) -> int:
        """The process id; it fails when the server does not run."""
        record = self.service.running()
        assert record is not None, f"{self.service.name} does not run"
        return record.pid

    @property
    def log(self) -> Path:
        return self.service.log

    def stop(self) -> None:
        """Stop it; data stays. Start it again before the test ends."""
        self.service.stop()

    def start(self) -> None:
        """Start it on the same address with the same data; nothing happens when it runs."""
        self.service.start()

    def ensure(self) -> None:
        """Start it if it does not run; whether one that runs answers is not asked."""
        if self.service.running() is None:
            self.start()


class PostgresServer(_Server):
    """PostgreSQL 18: `database` gives a fresh, empty database, `tracker` one with our tables."""

    service: Postgres
    _template = ""

    def __init__(self, service: Postgres) -> None:
        super().__init__(service)
        self._databases: list[str] = []

    def database(self, name: str = "test", *, keep: bool = False) -> str:
        """Create a new database whose name starts with ``name``; return its URL.

        It goes with the tests of the file, unless it is kept for several.
        """
        full = f"{name}_{secrets.token_hex(4)}"
        if not keep:
            self._databases.append(full)
        return self._create(full, "template1")

    def tracker(self, name: str = "tracker") -> str:
        """Create a new database with the tracker's tables; return its URL.

        It is copied from one that is migrated once: 0.03 s in place of 0.2 s.
        """
        import psycopg

        if not self._template:
            dsn = self.database("template", keep=True)
            with open_tracker(TrackerSettings(dsn=dsn)) as tracker:
                tracker.migrate()
            self._template = str(make_url(dsn).database)
        full = f"{name}_{secrets.token_hex(4)}"
        self._databases.append(full)
        dsn = self._create(full, self._template)
        with psycopg.connect(dsn) as connection:
            connection.execute("UPDATE deployment SET id = gen_random_uuid()")
        return dsn

    def _create(self, name: str, template: str) -> str:
        """Copy a database, file by file: through its log takes twice the CPU; return its URL."""
        import psycopg
        from psycopg import sql

        copy = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy")
        with psycopg.connect(self.service.dsn("postgres"), autocommit=True) as connection:
            connection.execute(copy.format(sql.Identifier(name), sql.Identifier(template)))
        return self.service.dsn(name)

    def drop_databases(self) -> None:
        """Delete the databases of a file of tests, whoever is still connected."""
        import psycopg
        from psycopg import sql

        drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
        self.ensure()
        with psycopg.connect(self.service.dsn("postgres"), autocommit=True) as connection:
            while self._databases:
                connection.execute(drop.format(sql.Identifier(self._databases.pop())))


class KafkaServer(_Server):
    """Kafka 4.1, one node, no automatic topics."""

    service: Kafka

    @property
    def bootstrap_servers(self) -> str:
        return self.service.bootstrap_servers

    @cached_property
    def doors(self) -> secured_kafka.Doors:
        """The ways in that ask who one is; the user is known from the first call on."""
        assert isinstance(self.service, QuietKafka)
        secured_kafka.add_user(self.bootstrap_servers)
        return self.service.doors


class S3Server(_Server):
    """SeaweedFS: `settings` with keys; `bucket` gives settings with a fresh bucket."""

    service: SeaweedFS

    def __init__(self, service: SeaweedFS) -> None:
        super().__init__(service)
        self._client = service.client()
        self._buckets: list[str] = []

    @property
    def settings(self) -> S3Settings:
        return self.service.settings

    def client(self) -> Any:
        """A boto3 client with the keys."""
        return self.service.client()

    def bucket(self, name: str = "test", *, keep: bool = False) -> S3Settings:
        """Create a new bucket whose name starts with ``name``; return settings for it.

        It goes with the test, unless it is kept for several.
        """
        full = f"{name}-{secrets.token_hex(4)}"
        self._client.create_bucket(Bucket=full)
        if not keep:
            self._buckets.append(full)
        return self.settings.model_copy(update={"bucket": full})

    def drop_buckets(self) -> None:
        """Delete the buckets of a test: each holds volumes, and those run out."""
        from botocore.exceptions import ClientError

        client = self._client
        while self._buckets:
            bucket = self._buckets.pop()
            # a bucket that a child of the test still writes to stays; that costs some volumes
            with contextlib.suppress(ClientError):
                for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
                    keys = [{"Key": row["Key"]} for row in page.get("Contents", ())]
                    if keys:
                        client.delete_objects(Bucket=bucket, Delete={"Objects": keys})
                client.delete_bucket(Bucket=bucket)


def start_postgres(home: Path) -> PostgresServer:
    service = patient(Postgres(home))
    service.start()
    return PostgresServer(service)


def start_postgres_without_fsync(home: Path) -> PostgresServer:
    """Start one whose commits outlive its death, but no power cut; tests make many databases."""
    import psycopg

    server = start_postgres(home)
    with psycopg.connect(server.service.dsn("postgres"), autocommit=True) as connection:
        for setting in ("fsync", "full_page_writes"):
            connection.execute(f"ALTER SYSTEM SET {setting} = off")
        connection.execute("ALTER SYSTEM SET max_wal_size = '256MB'")
        # a process for each database and minute, most of which are gone before it finds work
        connection.execute("ALTER SYSTEM SET autovacuum_naptime = '5min'")
        connection.execute("SELECT pg_reload_conf()")
    # it writes down what each first connection to a copy would look up: 4 ms of CPU, not 7
    psycopg.connect(server.service.dsn("template1")).close()
    return server


def start_kafka(home: Path) -> KafkaServer:
    jars.ensure(JARS)
    return KafkaServer(start_on_free_ports(lambda stack: Kafka(home, stack, JARS / jars.KAFKA)))


def start_quiet_kafka(home: Path) -> KafkaServer:
    """Start one that costs less while it waits; benchmarks measure the one that users have."""
    jars.ensure(JARS)
    folder = JARS / jars.KAFKA
    return KafkaServer(start_on_free_ports(lambda stack: QuietKafka(home, stack, folder)))


def start_s3(home: Path) -> S3Server:
    """Start an S3 server whose buckets take one volume at first, not seven: tests make many."""
    os.environ["WEED_MASTER_VOLUME_GROWTH_COPY_1"] = "1"
    keys = S3Settings(
        access_key=SecretStr(secrets.token_hex(10)), secret_key=SecretStr(secrets.token_hex(20))
    )
    return S3Server(start_on_free_ports(lambda stack: SeaweedFS(home, stack, keys)))


def stack_settings(
    postgres: PostgresServer, kafka: KafkaServer, s3: S3Server, home: Path
) -> Settings:
    """Return settings over the servers: fresh databases, a fresh bucket, folders under ``home``."""
    warehouse = DestinationSettings(dsn=SecretStr(postgres.database("warehouse")))
    return Settings(
        _env_file=None,
        home=home,
        pipelines_dir=CHECKOUT / "include" / "pipelines",
        dags_dir=CHECKOUT / "dags",
        kafka=KafkaSettings(bootstrap_servers=kafka.bootstrap_servers),
        s3=s3.bucket("waybill"),
        tracker=TrackerSettings(dsn=postgres.tracker()),
        wal=WalSettings(dir=home / "wal"),
        spark=SparkSettings(jars_dir=JARS / jars.SPARK, work_dir=home / "spark"),
        traces=TraceSettings(spool_dir=home / "traces"),
        destinations={"warehouse": warehouse},
    )


@contextlib.contextmanager
def started(start: Any, home: Path) -> Any:
    """Start one server for as long as the block takes; started again if a test left it stopped."""
    server = start(home)
    try:
        yield server
    finally:
        server.service.stop_grace_s = 1.0  # its data goes with it
        server.stop()
