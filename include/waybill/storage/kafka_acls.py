"""Kafka's access rules: who may do what with topics and groups; read, made and taken away."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any, Literal

from waybill.errors import InputError, RetryError
from waybill.settings import KafkaSettings
from waybill.storage.log import client_config

_ANSWER_S = 30.0


@dataclass(frozen=True, slots=True, order=True)
class KafkaAcl:
    """One rule."""

    principal: str
    """As Kafka has it: ``User:crm``."""
    resource: Literal["topic", "group"]
    name: str
    pattern: Literal["literal", "prefixed"]
    operation: str
    """In Kafka's words, in capitals: ``WRITE``."""
    host: str = "*"
    permission: Literal["ALLOW", "DENY"] = "ALLOW"

    def to_json(self) -> dict[str, str]:
        """Return it as JSON."""
        return asdict(self)


class KafkaAcls:
    """The rules of a cluster's brokers.

    Args:
        settings: how brokers are reached; the login needs the cluster's `Alter` to change rules.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        self._servers = settings.bootstrap_servers
        try:
            self._admin = AdminClient(client_config(settings))
        except KafkaException as error:
            why = error.args[0].str()
            raise InputError(f"WAYBILL_KAFKA__… cannot be used: {why}") from error

    def read(self) -> set[KafkaAcl]:
        """Return the rules of topics and groups.

        Raises:
            InputError: the brokers ask nobody who they are, or this login may not read rules.
            RetryError: they do not answer.
        """
        from confluent_kafka import admin

        kinds = admin.ResourceType
        found = set[KafkaAcl]()
        for kind in (kinds.TOPIC, kinds.GROUP):
            wanted = admin.AclBindingFilter(
                kind,
                None,
                admin.ResourcePatternType.ANY,
                None,
                None,
                admin.AclOperation.ANY,
                admin.AclPermissionType.ANY,
            )
            rules = self._done(self._admin.describe_acls(wanted, request_timeout=_ANSWER_S))
            found |= {_rule(one) for one in rules}
        if not found:
            # librdkafka says nothing of brokers without rules, nor of a login that may not ask
            self.delete([KafkaAcl("User:nobody", "topic", "of-nobody", "literal", "READ")])
        return found

    def create(self, rules: Collection[KafkaAcl]) -> None:
        """Make rules; one that is there already stays.

        Raises:
            InputError: this login may not.
            RetryError: the brokers do not answer; some may be made.
        """
        if rules:
            made = self._admin.create_acls([*map(_binding, rules)], request_timeout=_ANSWER_S)
            for done in made.values():
                self._done(done)

    def delete(self, rules: Collection[KafkaAcl]) -> None:
        """Take rules away.

        Raises:
            InputError: this login may not.
            RetryError: the brokers do not answer; some may be gone.
        """
        if rules:
            filters = [*map(_filter, rules)]
            for done in self._admin.delete_acls(filters, request_timeout=_ANSWER_S).values():
                self._done(done)

    def _done(self, future: Any) -> Any:
        from confluent_kafka import KafkaException

        try:
            return future.result(timeout=_ANSWER_S)
        except TimeoutError as error:
            raise RetryError(f"Kafka at {self._servers} did not answer") from error
        except KafkaException as error:
            reason = error.args[0]
            if reason.name() == "SECURITY_DISABLED":
                raise InputError(
                    f"Kafka at {self._servers} has no access rules: its brokers have no authorizer"
                    " (authorizer.class.name), so everybody may do everything"
                ) from error
            if reason.name() == "CLUSTER_AUTHORIZATION_FAILED":
                raise InputError(
                    f"this login may not read, or change, the access rules of Kafka at"
                    f" {self._servers}: it needs Describe, or Alter, of the cluster"
                ) from error
            raise RetryError(f"Kafka at {self._servers}: {reason.str()}") from error


def _rule(binding: Any) -> KafkaAcl:
    return KafkaAcl(
        binding.principal,
        binding.restype.name.lower(),
        binding.name,
        binding.resource_pattern_type.name.lower(),
        binding.operation.name,
        binding.host,
        binding.permission_type.name,
    )


def _parts(rule: KafkaAcl) -> tuple[Any, ...]:
    from confluent_kafka import admin

    return (
        admin.ResourceType[rule.resource.upper()],
        rule.name,
        admin.ResourcePatternType[rule.pattern.upper()],
        rule.principal,
        rule.host,
        admin.AclOperation[rule.operation],
        admin.AclPermissionType[rule.permission],
    )


def _binding(rule: KafkaAcl) -> Any:
    from confluent_kafka.admin import AclBinding

    return AclBinding(*_parts(rule))


def _filter(rule: KafkaAcl) -> Any:
    from confluent_kafka.admin import AclBindingFilter

    return AclBindingFilter(*_parts(rule))
