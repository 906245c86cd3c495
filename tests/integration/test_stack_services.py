"""Outages and kills of the single servers: what was acknowledged is there afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from tests import servers
from tests.servers import wait_for

from waybill.settings import Settings
from waybill.stack import processes
from waybill.stack.postgres import Postgres

pytestmark = pytest.mark.serves


def kill(server: servers._Server) -> int:
    pid = server.pid
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: server.service.running() is None)
    return pid


def put_row(dsn: str, value: int) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("create table if not exists t (n int)")
        connection.execute("insert into t values (%s)", (value,))


def rows(dsn: str) -> list[int]:
    with psycopg.connect(dsn) as connection:
        return [row[0] for row in connection.execute("select n from t order by n")]


def produce(address: str, topic: str, values: list[bytes]) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "acks": "all"})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(120) == 0


def create_topic(address: str, topic: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    client = AdminClient({"bootstrap.servers": address})
    [made] = client.create_topics([NewTopic(topic, 1)]).values()
    made.result(120)


def consume(address: str, topic: str, count: int) -> list[bytes]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": "none"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    got = [m.value() for m in consumer.consume(count, 120) if m.error() is None]
    consumer.close()
    return got


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.campaign
def test_postgres_keeps_what_was_committed(postgres: servers.PostgresServer, end: str) -> None:
    dsn = postgres.database("kept")
    put_row(dsn, 1)
    _ = postgres.stop() if end == "stop" else kill(postgres)
    postgres.start()
    put_row(dsn, 2)
    assert rows(dsn) == [1, 2]


@pytest.fixture
def as_shipped() -> Iterator[servers.PostgresServer]:
    """PostgreSQL with the settings that users get; that of the other tests does not sync."""
    home = servers.new_home()
    with servers.started(servers.start_postgres, home) as server:
        yield server
    servers.end_home(home)


def test_postgres_has_its_settings_and_no_network_port(as_shipped: servers.PostgresServer) -> None:
    wanted = {
        "synchronous_commit": "on",
        "fsync": "on",
        "max_connections": "200",
        "shared_buffers": "256MB",
        "wal_compression": "off",
    }
    with psycopg.connect(as_shipped.database("settings")) as connection:
        shown = {name: connection.execute(f"show {name}").fetchone()[0] for name in wanted}
    assert shown == wanted
    listening = psutil.Process(as_shipped.pid).net_connections("inet")
    assert listening == []


@pytest.mark.campaign
def test_postgres_lives_on_when_its_starter_ends(tmp_path: Path) -> None:
    home = servers.new_home()
    code = (
        "import sys; from pathlib import Path; from waybill.stack.postgres import Postgres\n"
        "Postgres(Path(sys.argv[1])).start()"
    )
    include = str(servers.CHECKOUT / "include")

    subprocess.run(
        [sys.executable, "-c", code, str(home)],
        env={**os.environ, "PYTHONPATH": include},
        check=True,
    )
    try:
        assert Postgres(home).healthy()
    finally:
        servers.end_home(home)


def _backends(cluster: Postgres) -> list[psutil.Process]:
    return [p for p in cluster._children() if _works(p)]


def _works(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("then", ["stop", "start"])
@pytest.mark.campaign
def test_a_backend_of_a_killed_postgres_is_ended_amid_its_query(
    stopped_cluster: Postgres, then: str
) -> None:
    cluster = stopped_cluster
    cluster.start()
    dsn, main = cluster.dsn("postgres"), cluster.running()
    assert main is not None
    connection = psycopg.connect(dsn)
    backend = psutil.Process(connection.info.backend_pid)
    query = threading.Thread(target=_count_for_long, args=(connection,), daemon=True)
    query.start()
    try:
        wait_for(lambda: backend.cpu_times().user > 0.5)
        os.kill(main.pid, signal.SIGKILL)
        wait_for(lambda: cluster.running() is None)
        time.sleep(1)
        assert backend in _backends(cluster)
        began = time.monotonic()
        _ = cluster.stop() if then == "stop" else cluster.start()
        assert backend not in _backends(cluster)
        assert time.monotonic() - began < 120
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            backend.kill()
        query.join(60)
        connection.close()
    assert cluster.healthy() is (then == "start")


def _count_for_long(connection: psycopg.Connection[Any]) -> None:
    with contextlib.suppress(psycopg.OperationalError):
        connection.execute("select count(*) from generate_series(1, 1e10::bigint)")


@pytest.fixture(scope="module")
def _cluster() -> Iterator[Postgres]:
    home = servers.new_home()
    cluster = Postgres(home)
    cluster.start()
    yield cluster
    servers.end_home(home)


@pytest.fixture
def stopped_cluster(_cluster: Postgres) -> Postgres:
    """A cluster of its own that is down."""
    _cluster.stop()
    return _cluster


def test_a_postmaster_pid_of_a_recycled_pid_does_not_block_the_start(
    stopped_cluster: Postgres,
) -> None:
    folder = stopped_cluster.cluster
    stranger = subprocess.Popen(["sleep", "600"])
    stale = [str(stranger.pid), str(folder), "1700000000", "5432", str(folder), "", "1 2", "ready"]
    (folder / "postmaster.pid").write_text("\n".join(stale) + "\n")
    try:
        assert stopped_cluster.running() is None
        assert stopped_cluster.start() is True
        stopped_cluster.stop()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize("text", ["", "4711\n", "garbage\n" * 8])
def test_a_torn_postmaster_pid_does_not_block_the_start(
    stopped_cluster: Postgres, text: str
) -> None:
    (stopped_cluster.cluster / "postmaster.pid").write_text(text)
    assert stopped_cluster.start() is True


def test_an_initdb_that_was_cut_short_is_done_again(stopped_cluster: Postgres) -> None:
    half = stopped_cluster.home / "postgres.new"
    half.mkdir()
    (half / "PG_VERSION").write_text("18\n")
    stopped_cluster.cluster.rename(stopped_cluster.home / "away")
    assert stopped_cluster.start() is True
    assert not half.exists()


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.campaign
def test_kafka_keeps_what_was_acknowledged(kafka: servers.KafkaServer, end: str) -> None:
    topic = f"kept-{end}"
    create_topic(kafka.bootstrap_servers, topic)
    produce(kafka.bootstrap_servers, topic, [b"1", b"2"])
    _ = kafka.stop() if end == "stop" else kill(kafka)
    kafka.start()
    produce(kafka.bootstrap_servers, topic, [b"3"])
    assert consume(kafka.bootstrap_servers, topic, 3) == [b"1", b"2", b"3"]


def test_kafka_makes_no_topic_by_itself_and_refuses_large_messages(
    kafka: servers.KafkaServer,
) -> None:
    from confluent_kafka.admin import AdminClient, ConfigResource

    client = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    [asked] = client.describe_configs([ConfigResource("broker", "1")]).values()
    settings = {name: entry.value for name, entry in asked.result(120).items()}
    assert settings["auto.create.topics.enable"] == "false"
    assert settings["unclean.leader.election.enable"] == "false"
    assert settings["message.max.bytes"] == str(2 * 1024**2)
    assert settings["offsets.topic.replication.factor"] == "1"


def test_another_broker_on_the_port_is_not_taken_for_ours(kafka: servers.KafkaServer) -> None:
    path = kafka.service._folder / "cluster.id"
    own = path.read_text()
    path.write_text("AAAAAAAAAAAAAAAAAAAAAA")
    try:
        assert not kafka.service.healthy()
    finally:
        path.write_text(own)
    wait_for(kafka.service.healthy)


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.campaign
def test_s3_keeps_what_was_acknowledged(s3: servers.S3Server, end: str) -> None:
    bucket = s3.bucket("kept").bucket
    for n in range(20):
        s3.client().put_object(Bucket=bucket, Key=f"a/{n}", Body=b"x" * 10_000)
    _ = s3.stop() if end == "stop" else kill(s3)
    s3.start()
    listed = s3.client().list_objects_v2(Bucket=bucket)["Contents"]
    assert len(listed) == 20
    assert s3.client().get_object(Bucket=bucket, Key="a/7")["Body"].read() == b"x" * 10_000


def test_s3_refuses_a_wrong_key_and_a_stranger(s3: servers.S3Server) -> None:
    import urllib.error
    import urllib.request

    from botocore.exceptions import ClientError
    from pydantic import SecretStr

    from waybill.settings import StackSettings
    from waybill.stack.seaweed import SeaweedFS

    wrong = s3.settings.model_copy(update={"secret_key": SecretStr("guess")})
    service = SeaweedFS(s3.service.home, StackSettings(s3_port=s3.service.ports["s3_port"]), wrong)
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        service.client().list_buckets()
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(str(s3.settings.endpoint_url))


def test_every_port_is_on_loopback(kafka: servers.KafkaServer, s3: servers.S3Server) -> None:
    for server in (kafka, s3):
        for connection in psutil.Process(server.pid).net_connections("inet"):
            if connection.status == psutil.CONN_LISTEN:
                assert connection.laddr.ip in {"127.0.0.1", "::ffff:127.0.0.1"}, connection


def test_keys_are_readable_by_their_owner_only(s3: servers.S3Server) -> None:
    assert (s3.service.home / "s3" / "keys.json").stat().st_mode & 0o777 == 0o600


def test_a_servers_settings_lead_to_the_servers(stack_settings: Settings) -> None:
    put_row(stack_settings.tracker.dsn.get_secret_value(), 1)
    put_row(stack_settings.destinations["warehouse"].dsn.get_secret_value(), 2)
    assert rows(stack_settings.tracker.dsn.get_secret_value()) == [1]


def test_what_a_killed_session_left_is_swept(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(servers.tempfile, "gettempdir", lambda: str(tmp_path))
    home = tmp_path / f"{servers.PREFIX}x"
    owner = subprocess.Popen(["sleep", "0"])
    orphan = subprocess.Popen(["sleep", "600"], start_new_session=True)
    home.mkdir()
    processes.register(home, "owner", owner.pid)
    processes.register(home / "run", "s3", orphan.pid)
    owner.wait()
    servers.sweep()
    assert orphan.wait(120) == -signal.SIGTERM
    assert not home.exists()
