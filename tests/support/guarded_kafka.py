"""A Kafka that asks who one is: a second listener for a user who may write to topics, not read them.

Whoever comes by the first listener may do all, as on every broker of the tests.
"""

from __future__ import annotations

from pathlib import Path

from tests import servers

from waybill.settings import StackSettings
from waybill.stack import jars, state_folder

USER, PASSWORD = "writer", "writes-only"
PROPERTIES = """\
listeners=PLAINTEXT://127.0.0.1:{broker},GUARDED://127.0.0.1:{guarded},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker},GUARDED://127.0.0.1:{guarded}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,GUARDED:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.guarded.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""


class GuardedKafka(servers.QuietKafka):
    """The embedded broker with access rules; the second listener takes Airflow's port."""

    def __init__(self, home: Path, stack: StackSettings, jars_dir: Path) -> None:
        super().__init__(home, stack, jars_dir)
        self.ports["airflow_port"] = stack.airflow_port

    def prepare(self) -> None:
        """As the broker without rules, then the rules: of two equal keys the later one counts."""
        super().prepare()
        rules = PROPERTIES.format(
            broker=self.ports["kafka_port"],
            guarded=self.ports["airflow_port"],
            controller=self.ports["kafka_controller_port"],
            user=USER,
            password=PASSWORD,
        )
        state_folder.write_private(self._properties, self._properties.read_text() + rules)


class GuardedKafkaServer(servers.KafkaServer):
    """`writer`: client settings of the user who may only write; `let_write`: to a topic."""

    service: GuardedKafka

    @property
    def writer(self) -> dict[str, object]:
        return {
            "bootstrap.servers": f"127.0.0.1:{self.service.ports['airflow_port']}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        }

    def let_write(self, topic: str) -> None:
        """Let the user write to a topic (and know of it)."""
        from confluent_kafka.admin import (
            AclBinding,
            AclOperation,
            AclPermissionType,
            AdminClient,
            ResourcePatternType,
            ResourceType,
        )

        rule = AclBinding(
            ResourceType.TOPIC,
            topic,
            ResourcePatternType.LITERAL,
            f"User:{USER}",
            "*",
            AclOperation.WRITE,
            AclPermissionType.ALLOW,
        )
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        admin.create_acls([rule])[rule].result(300)


def start(home: Path) -> GuardedKafkaServer:
    """Start one on free ports; its data lies under ``home``."""
    jars.ensure(servers.JARS)
    folder = servers.JARS / jars.KAFKA
    return GuardedKafkaServer(
        servers.start_on_free_ports(lambda stack: GuardedKafka(home, stack, folder))
    )
