"""Kafka's access rules as the declarations want them: Waybill its own topics, teams theirs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from waybill.storage import KafkaAcl

_OWN_OPERATIONS = (
    "READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS",
)  # fmt: skip
_TEAMS_OPERATIONS = ("WRITE", "DESCRIBE")
_TOPICS = "events"
"""What the names of all of Waybill's topics begin with, those of later generations too."""
_GROUPS = "waybill-"
_OWN_TOPIC = re.compile(r"events(-g[1-9][0-9]*)?\.")


@dataclass(frozen=True, slots=True)
class KafkaRules:
    """What is wanted, and what the brokers have."""

    wanted: frozenset[KafkaAcl]
    found: frozenset[KafkaAcl]
    """Those that reach topics or groups of Waybill."""

    @property
    def missing(self) -> list[KafkaAcl]:
        """Return what is wanted and not there."""
        return sorted(self.wanted - self.found)

    @property
    def others(self) -> list[KafkaAcl]:
        """Return what is not wanted and allows something, of Waybill's topics and groups alone."""
        more = self.found - self.wanted
        return sorted(one for one in more if one.permission == "ALLOW" and _is_within(one))

    @property
    def wider(self) -> list[KafkaAcl]:
        """Return what reaches others' topics and groups as well, or forbids: it is not touched."""
        return sorted(self.found - self.wanted - {*self.others})

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "there": [one.to_json() for one in sorted(self.wanted & self.found)],
            "missing": [one.to_json() for one in self.missing],
            "others": [one.to_json() for one in self.others],
            "wider": [one.to_json() for one in self.wider],
        }


def kafka_rules(
    own: str,
    principals: Mapping[str, Sequence[str]],
    topics: Mapping[str, Collection[str]],
    found: Collection[KafkaAcl],
) -> KafkaRules:
    """Return the rules that are wanted beside those that there are.

    Args:
        own: Waybill's principal.
        principals: those that may write to a team's topics, by team.
        topics: names in Kafka, by team: of deployed pipelines, with all their generations.
        found: rules of the cluster.
    """
    wanted = {KafkaAcl(own, "topic", _TOPICS, "prefixed", one) for one in _OWN_OPERATIONS}
    wanted.add(KafkaAcl(own, "group", _GROUPS, "prefixed", "DESCRIBE"))
    wanted |= set(_teams_rules(principals, topics))
    return KafkaRules(frozenset(wanted), frozenset(one for one in found if _is_ours(one)))


def _teams_rules(
    principals: Mapping[str, Sequence[str]], topics: Mapping[str, Collection[str]]
) -> Iterator[KafkaAcl]:
    for team, names in topics.items():
        for principal in principals.get(team, ()):
            for name in names:
                for operation in _TEAMS_OPERATIONS:
                    yield KafkaAcl(principal, "topic", name, "literal", operation)


def _is_ours(rule: KafkaAcl) -> bool:
    """Tell whether a rule reaches topics or groups of Waybill, beside others or not."""
    if _is_within(rule):
        return True
    own = _TOPICS if rule.resource == "topic" else _GROUPS
    reaches = own.startswith(rule.name) or rule.name.startswith(own)
    return rule.name == "*" or (rule.pattern == "prefixed" and reaches)


def _is_within(rule: KafkaAcl) -> bool:
    """Tell whether all that a rule reaches is Waybill's."""
    if rule.resource == "group":
        return rule.name.startswith(_GROUPS)
    return _OWN_TOPIC.match(rule.name) is not None
