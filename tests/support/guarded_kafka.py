"""A Kafka with access rules: who logs in may write to topics, and not read them.

Whoever comes by the first listener may do all, as on every broker of the tests.
"""

from __future__ import annotations

from pathlib import Path

from tests import servers
from tests.support import secured_kafka

from waybill.stack import jars, state_folder
from waybill.storage import librdkafka_config

RULES = """\
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""


class GuardedKafka(servers.QuietKafka):
    """The tests' broker with access rules."""

    def prepare(self) -> None:
        """As the broker without rules, then the rules."""
        super().prepare()
        state_folder.write_private(self._properties, self._properties.read_text() + RULES)


class GuardedKafkaServer(servers.KafkaServer):
    """`writer`: client settings of the user who may only write; `let_write`: to a topic."""

    service: GuardedKafka

    @property
    def writer(self) -> dict[str, object]:
        return librdkafka_config(self.service.doors.by_login("PLAIN"))

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
            f"User:{secured_kafka.USER}",
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
