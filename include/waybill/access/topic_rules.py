"""Kafka's access rules as the declarations want them: Waybill its own topics, teams theirs."""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True)
class KafkaRules:
    """What is wanted, and what the brokers have."""

    wanted: frozenset[KafkaAcl]
    found: frozenset[KafkaAcl]
    """Of Waybill's topics and groups."""

    @property
    def missing(self) -> list[KafkaAcl]:
        """Return what is wanted and not there."""
        return sorted(self.wanted - self.found)

    @property
    def others(self) -> list[KafkaAcl]:
        """Return what is there and not wanted: somebody else reaches Waybill's topics."""
        return sorted(self.found - self.wanted)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "there": [one.to_json() for one in sorted(self.wanted & self.found)],
            "missing": [one.to_json() for one in self.missing],
            "others": [one.to_json() for one in self.others],
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
    """Tell whether a rule reaches topics or groups of Waybill."""
    own = _TOPICS if rule.resource == "topic" else _GROUPS
    if rule.pattern == "prefixed":
        return rule.name.startswith(own) or own.startswith(rule.name)
    return rule.name == "*" or rule.name.startswith((f"{own}.", f"{own}-g", _GROUPS))
