"""Access rules of Kafka."""

from __future__ import annotations

from dataclasses import dataclass

from waybill.access import Decision, KafkaRules, kafka_rules, write_audit
from waybill.deployment import team_destinations
from waybill.errors import InputError
from waybill.pipelines import base_topic, topic_name
from waybill.settings import Settings
from waybill.storage import KafkaAcls, TrackerStore, open_log, open_tracker


@dataclass(frozen=True, slots=True)
class KafkaAccess:
    """The rules, and the teams with pipelines that nobody but Waybill may write for."""

    rules: KafkaRules
    teams_without: tuple[str, ...]


def show_kafka_rules(settings: Settings) -> KafkaAccess:
    """Compare the rules of the brokers with those that the declarations want.

    Raises:
        InputError: the settings do not say which principal Waybill is; the brokers have no rules.
        RetryError: tracker or brokers are away.
    """
    with open_tracker(settings.tracker) as tracker:
        return _compared(settings, tracker, KafkaAcls(settings.kafka))


def apply_kafka_rules(settings: Settings, decision: Decision, *, prune: bool) -> KafkaAccess:
    """Make the rules that are missing; take the others away where that is asked.

    Args:
        settings: of the deployment.
        decision: whose it is; the audit log has it, before the first rule is changed.
        prune: take away rules of Waybill's topics and groups that no declaration wants.

    Raises:
        InputError: as `show_kafka_rules`; or this login may not change rules.
        RetryError: tracker or brokers are away; some rules may be changed.
    """
    acls = KafkaAcls(settings.kafka)
    with open_tracker(settings.tracker) as tracker:
        access = _compared(settings, tracker, acls)
        taken = access.rules.others if prune else []
        if not access.rules.missing and not taken:
            return access
        with tracker.transaction() as connection:
            write_audit(
                connection,
                who=decision.who,
                action="apply_kafka_rules",
                target="kafka",
                made=[one.to_json() for one in access.rules.missing],
                taken=[one.to_json() for one in taken],
                why=decision.why,
                **decision.beside_who(),
            )
        acls.create(access.rules.missing)  # first: nobody is shut out meanwhile
        acls.delete(taken)
        return _compared(settings, tracker, acls)


def _compared(settings: Settings, tracker: TrackerStore, acls: KafkaAcls) -> KafkaAccess:
    access = settings.access
    with tracker.transaction() as connection:
        declared = team_destinations(connection, undeployed=False)
    if not access.kafka_principal:
        raise InputError(
            "which principal of Kafka Waybill is must be said: set WAYBILL_ACCESS__KAFKA_PRINCIPAL,"
            " such as User:waybill (it need not be who runs this command)"
        )
    there = open_log(settings.kafka).topics()
    topics: dict[str, list[str]] = {}
    for team, destinations in declared.items():
        names = {topic_name(team, destination) for destination in destinations}
        topics[team] = sorted(names | {one for one in there if base_topic(one) in names})
    rules = kafka_rules(access.kafka_principal, access.kafka_principals, topics, acls.read())
    without = tuple(sorted(team for team in topics if not access.kafka_principals.get(team)))
    return KafkaAccess(rules, without)
