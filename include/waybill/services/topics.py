"""Topics: how they are, their configuration, and settling those that are stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waybill.settings import Settings
from waybill.storage import open_log, open_tracker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from waybill.access import Decision
    from waybill.ledger import TopicGeneration
    from waybill.storage import ConfigFault
    from waybill.topics import (
        GrowRequest,
        Growth,
        Settlement,
        SettleRequest,
        TopicLine,
        TopicStop,
    )


def topic_lines(settings: Settings, name: str | None = None) -> list[TopicLine]:
    """Return the topics of deployed pipelines and of the ledger, or one."""
    from waybill import topics

    with open_tracker(settings.tracker) as tracker:
        return topics.topic_lines(tracker, open_log(settings.kafka), name)


def stopped_topics(settings: Settings) -> list[TopicStop]:
    """Return the topics that are not read until somebody settles them."""
    from waybill.topics import read_stops

    with open_tracker(settings.tracker) as tracker:
        return read_stops(tracker)


def settlement(settings: Settings, request: SettleRequest) -> Settlement:
    """Return what settling a topic would do."""
    from waybill.topics import plan_settlement

    with open_tracker(settings.tracker) as tracker:
        log = open_log(settings.kafka)
        return plan_settlement(tracker, log, request)


def settle_topic(
    settings: Settings, plan: Settlement, decision: Decision, *, reread: bool = False
) -> None:
    """Do what was planned; with ``reread``, the topic's sources are read again as well."""
    from waybill import topics

    with open_tracker(settings.tracker) as tracker:
        if reread:  # first: asking twice does no harm, never having asked does
            topics.ask_rereads(tracker, plan.pipelines, decision)
        topics.apply_settlement(tracker, plan, decision)


def plan_growth(settings: Settings, request: GrowRequest) -> Growth:
    """Return what growing a topic would do."""
    from waybill import topics

    with open_tracker(settings.tracker) as tracker:
        return topics.plan_growth(tracker, open_log(settings.kafka), request)


def grow_topic(settings: Settings, plan: Growth, decision: Decision) -> TopicGeneration:
    """Begin the next generation of a topic, as it was planned."""
    from waybill import topics

    with open_tracker(settings.tracker) as tracker:
        return topics.grow(tracker, open_log(settings.kafka), plan, decision)


def topic_config_faults(settings: Settings, name: str) -> list[ConfigFault]:
    """Return what is dangerous in a topic's topics."""
    from waybill.topics import faults_of

    return faults_of(open_log(settings.kafka), name)


def configure_topic(settings: Settings, name: str, decision: Decision) -> list[ConfigFault]:
    """Mend what is dangerous in a topic's configuration; returns what it was."""
    from waybill.topics import configure

    with open_tracker(settings.tracker) as tracker:
        return configure(tracker, open_log(settings.kafka), name, decision)


def ask_rereads(settings: Settings, names: Sequence[str], decision: Decision) -> list[str]:
    """Have the next run of these pipelines' ingestion read their source from its beginning."""
    from waybill import topics

    with open_tracker(settings.tracker) as tracker:
        return topics.ask_rereads(tracker, names, decision)
