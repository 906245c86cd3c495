"""Kafka 4.1, one KRaft node, from jars.

The cluster id is drawn once and kept; `healthy` asks for it, so that another broker on the port is
not taken for ours. Storage is formatted only while it has no ``meta.properties``; a format cut
short is repeated.
"""

from __future__ import annotations

import base64
import os
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from waybill.settings import StackSettings
from waybill.stack import state_folder
from waybill.stack.java import find_java
from waybill.stack.service import ServiceError, SpawnedService

PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
unclean.leader.election.enable=false
message.max.bytes=2097152
replica.fetch.max.bytes=2097152
offsets.topic.replication.factor=1
offsets.topic.num.partitions=8
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=8
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=2
group.initial.rebalance.delay.ms=0
num.network.threads=2
num.io.threads=4
log.cleaner.dedupe.buffer.size=16777216
"""


class Kafka(SpawnedService):
    """One broker and controller; data in ``<home>/kafka``."""

    name = "kafka"
    stop_grace_s = 20.0
    advice = "More memory: WAYBILL_STACK__KAFKA_HEAP_MB=<MiB>. Missing jars: waybill doctor."

    def __init__(self, home: Path, stack: StackSettings, jars: Path) -> None:
        ports = {
            "kafka_port": stack.kafka_port,
            "kafka_controller_port": stack.kafka_controller_port,
        }
        super().__init__(home, ports)
        self.heap_mb = stack.kafka_heap_mb
        self.jars = jars.absolute()

    @property
    def bootstrap_servers(self) -> str:
        """Return ``host:port`` for clients."""
        return f"127.0.0.1:{self.ports['kafka_port']}"

    @property
    def _folder(self) -> Path:
        return self.home / "kafka"

    @property
    def _properties(self) -> Path:
        return self._folder / "server.properties"

    def cluster_id(self) -> str:
        """Return the id of this cluster; drawn at the first call."""
        path = self._folder / "cluster.id"
        if not path.exists():
            drawn = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            state_folder.write_private(
                path, drawn.replace("-", "x")
            )  # a leading dash reads as an option
        return path.read_text().strip()

    def prepare(self) -> None:
        """Write the configuration; format the storage once."""
        data = self._folder / "data"
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        text = PROPERTIES.format(
            broker=self.ports["kafka_port"],
            controller=self.ports["kafka_controller_port"],
            data=data,
        )
        state_folder.write_private(self._properties, text)
        if not (data / "meta.properties").exists():
            self._format()

    def _format(self) -> None:
        command = [*self._java(128), "kafka.tools.StorageTool", "format", "--ignore-formatted"]
        command += ["-t", self.cluster_id(), "-c", str(self._properties)]
        run = subprocess.run(  # noqa: S603 - our own arguments
            command, capture_output=True, text=True, check=False, timeout=120, cwd=self._folder
        )
        if run.returncode:
            raise ServiceError(
                f"kafka: the storage could not be formatted:\n{run.stdout}{run.stderr}"
            )

    def _java(self, heap_mb: int) -> list[str]:
        java = [str(find_java().path), f"-Xmx{heap_mb}m", "-Xms64m", "-XX:+ExitOnOutOfMemoryError"]
        java += ["-Djava.awt.headless=true", "-Dorg.slf4j.simpleLogger.showDateTime=true"]
        java += ["-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSZ"]
        return [*java, "-cp", f"{self.jars}/*"]

    def command(self) -> Sequence[str]:
        """Return the broker's command line."""
        return [*self._java(self.heap_mb), "kafka.Kafka", str(self._properties)]

    def environment(self) -> Mapping[str, str]:
        """Return the caller's environment."""
        return os.environ

    def healthy(self) -> bool:
        """Say whether the broker on the port answers and has our cluster id."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        if self.running() is None:
            return False
        quiet = {"bootstrap.servers": self.bootstrap_servers, "log_level": 0}
        limits = {"socket.timeout.ms": 2000, "socket.connection.setup.timeout.ms": 2000}
        client = AdminClient({**quiet, **limits})
        try:
            metadata = client.list_topics(timeout=2)
        except KafkaException:
            return False
        return bool(metadata.brokers) and metadata.cluster_id == self.cluster_id()
